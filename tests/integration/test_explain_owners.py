"""``topogate explain`` of what is not there, or not ours: one line that says so, and an exit code."""

import asyncio
import sys

import pytest
from support import jobsets
from support.jobs import KEYS, install_crds

from cli.explain.report import reports
from cli.output import Failure
from kube.resources import DEPLOYMENTS, JOB_SETS, JOBS

pytestmark = pytest.mark.cluster

CONTAINERS = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}]


@pytest.fixture
async def plain(client, namespace):
    """A Deployment, a Job and a JobSet that are not ours."""
    await install_crds(client)
    await jobsets.install(client)
    labels = {"app": "plain"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": CONTAINERS}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    await client.create(DEPLOYMENTS, {"metadata": {"name": "plain"}, "spec": spec}, namespace)
    pods = {"spec": {"restartPolicy": "Never", "containers": CONTAINERS}}
    for name, more in (("plain", {}), ("theirs", {"managedBy": "example.com/other"})):
        asks = {"annotations": {KEYS.required[0]: "rack"}} if more else {}
        body = {"metadata": {"name": name, **asks}, "spec": {"suspend": True, "template": pods, **more}}
        await client.create(JOBS, body, namespace)
    alike = jobsets.jobset("plain", {"w": (1, 1)})
    alike["spec"] |= {"suspend": True, "managedBy": "example.com/other"}
    await client.create(JOB_SETS, alike, namespace)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("nothing", "no Job or other owner of pods nothing in namespace"),
        ("job/nothing", "no Job nothing in namespace"),
        ("jobset/nothing", "no JobSet nothing in namespace"),
        ("sts/nothing", "no StatefulSet nothing in namespace"),
        ("no-such-kind/nothing", "no no-such-kind nothing in namespace"),
        ("deploy/plain", "Deployment plain in namespace"),
        ("jobset/plain", "JobSet plain in namespace"),
        ("job/theirs", "is example.com/other's (spec.managedBy)"),
        ("a/b/c", "expected NAME of a Job, or KIND/NAME"),
    ],
)
async def test_what_is_not_there_or_not_ours_is_said(plain, client, namespace, asked, told):
    with pytest.raises(Failure) as failed:
        await reports(client, namespace, asked)
    assert told in str(failed.value)


async def test_a_job_that_is_not_ours_is_said_to_be_left_alone(plain, client, namespace):
    (found,) = await reports(client, namespace, "job/plain")
    assert found.state == "NotManaged"


async def test_the_command_ends_with_one_line_and_an_exit_code(plain, cluster, namespace):
    command = (sys.executable, "-m", "cli.main", "explain", "deploy/plain", "-n", namespace)
    made = await asyncio.create_subprocess_exec(
        *command,
        "--kubeconfig",
        str(cluster.kubeconfig),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, said = await made.communicate()
    assert made.returncode == 1
    assert not out
    assert b"Topogate places nothing of it" in said
    assert b"Traceback" not in said
