"""The LocalQueue named default: what names no queue gets it, in namespaces that have one.

The policy is the API server's (MutatingAdmissionPolicy v1, Kubernetes 1.36): it looks the LocalQueue up in the
namespace of the request, and runs before all webhooks. The rules are those of Kueue 0.19.2 (jobframework/defaults.go),
except where a test says something else.
"""

import asyncio
import copy
from contextlib import asynccontextmanager, suppress

import pytest
from support import jobsets
from support.reviews import GATE, QUEUE, UNCONSTRAINED, make_job, make_jobset, make_pod, pod_spec
from support.webhook_installed import delete, kubectl, queued, serving, until

from kube.errors import ServerError
from kube.patches import PatchType
from kube.resources import (
    DEPLOYMENTS,
    JOB_SETS,
    JOBS,
    LOCAL_QUEUES,
    MUTATING_ADMISSION_POLICIES,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    resource_of,
)
from manifests.render import InstallOptions, objects

pytestmark = pytest.mark.cluster

GATED = [{"name": GATE}]
NAME, HINT = "topogate-default-queue", "topogate-default-hint"
SETTLED_SECONDS = 0.5
BOTH = InstallOptions(default_queue=True, default_hint=True)


def queue(name="default", **spec):
    about = {"apiVersion": "topogate.dev/v1alpha1", "kind": "LocalQueue", "metadata": {"name": name}}
    return {**about, "spec": {"clusterQueue": "gpu", **spec}}


def label_of(obj):
    return obj["metadata"].get("labels", {}).get(QUEUE)


@asynccontextmanager
async def policies(client, name):
    found = [obj for obj in objects(BOTH) if obj["metadata"]["name"] == name]
    assert len(found) == 2
    for obj in found:
        await client.apply(resource_of(obj), obj, field_manager="test")
    try:
        yield
    finally:
        for obj in reversed(found):
            await delete(client, resource_of(obj), name)


async def in_force(client, namespace, *, wanted="default"):
    """API servers learn of policies and of LocalQueues from watches."""

    async def labelled():
        return label_of(await client.create(JOBS, make_job(), namespace, dry_run=True)) == wanted

    await until(labelled, f"a Job in LocalQueue {wanted}")


@pytest.fixture
async def webhook(cluster, client, namespace):
    """With ClusterQueue gpu, and LocalQueues team-a and default."""
    async with serving(cluster, client, namespace) as running, policies(client, NAME), queued(client, namespace):
        await client.create(LOCAL_QUEUES, queue(), namespace)
        await in_force(client, namespace)
        yield running
        await delete(client, LOCAL_QUEUES, "default", namespace)


async def test_a_job_that_names_no_queue_gets_default_before_any_webhook_sees_it(webhook, client, namespace):
    """That it is suspended and gated shows the order: the webhook does so for a Job with a queue alone."""
    made = await client.create(JOBS, make_job(labels={"a": "b"}), namespace)
    assert (made["metadata"]["labels"]["a"], label_of(made), made["spec"]["suspend"]) == ("b", "default", True)
    assert made["spec"]["template"]["metadata"]["annotations"][UNCONSTRAINED] == "true"
    team = await client.create(JOBS, make_job(name="t", labels={QUEUE: "team-a"}), namespace)
    assert label_of(team) == "team-a"
    empty = make_job(name="e", labels={QUEUE: ""})
    assert label_of(await client.create(JOBS, empty, namespace, dry_run=True)) == "default"
    other = await client.create(JOBS, make_job(), "default", dry_run=True)
    assert (label_of(other), other["spec"].get("suspend")) == (None, False), "a namespace without such a LocalQueue"
    managed = make_job(name="m", managedBy="example.com/other")
    assert label_of(await client.create(JOBS, managed, namespace, dry_run=True)) is None


async def test_a_pod_by_itself_and_one_of_an_unknown_controller_get_it(webhook, client, namespace):
    pod = await client.create(PODS, make_pod(), namespace, dry_run=True)
    assert (label_of(pod), pod["spec"]["schedulingGates"]) == ("default", GATED)
    step = make_pod()
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "w", "uid": "0a1b", "controller": True}
    step["metadata"]["ownerReferences"] = [owner]
    assert label_of(await client.create(PODS, step, namespace, dry_run=True)) == "default"
    # Another group's Job is none of ours: its pods name their queue themselves.
    step["metadata"]["ownerReferences"] = [{**owner, "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}]
    assert label_of(await client.create(PODS, step, namespace, dry_run=True)) == "default"
    for kind, version in (("Job", "batch/v1"), ("DaemonSet", "apps/v1"), ("Node", "v1"), ("RayCluster", "ray.io/v1")):
        step["metadata"]["ownerReferences"] = [{**owner, "apiVersion": version, "kind": kind}]
        assert label_of(await client.create(PODS, step, namespace, dry_run=True)) is None, kind
    bound = make_pod(nodeName="n1")
    assert label_of(await client.create(PODS, bound, namespace, dry_run=True)) is None


async def test_what_a_job_a_jobset_or_a_deployment_makes_gets_none_of_its_own(webhook, client, namespace):
    """A Deployment has it itself, and hands it down; its ReplicaSet and pods have it from there."""
    await jobsets.install(client)
    body = make_jobset()
    body["metadata"]["namespace"] = namespace

    async def labelled():
        # Of a CRD that was just made, API servers with such a policy answer 503 until they have its schema (seconds).
        with suppress(ServerError):
            return label_of(await client.create(JOB_SETS, body, namespace, dry_run=True)) == "default"
        return False

    await until(labelled, "a JobSet in its LocalQueue")
    await client.create(JOB_SETS, body, namespace)
    async with jobsets.JobSets(client, namespace):

        async def there():
            return len(await client.list(JOBS, namespace)) == 4

        await until(there, "the JobSet's Jobs")
    assert {label_of(job) for job in await client.list(JOBS, namespace)} == {None}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "d"}}}
    spec["template"] = {"metadata": {"labels": {"app": "d"}}, "spec": pod_spec()}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}
    made = await client.create(DEPLOYMENTS, deployment, namespace)
    assert (label_of(made), label_of(made["spec"]["template"])) == ("default", "default")

    async def born():
        return len(await client.list(PODS, namespace, label_selector="app=d")) == 2

    await until(born, "the Deployment's pods")
    assert all(pod["spec"]["schedulingGates"] == GATED for pod in await client.list(PODS, namespace))
    lone = {**copy.deepcopy(deployment), "kind": "StatefulSet", "metadata": {"name": "s"}}
    assert label_of(await client.create(STATEFUL_SETS, lone, namespace, dry_run=True)) == "default"
    replicas = {**copy.deepcopy(deployment), "kind": "ReplicaSet", "metadata": {"name": "r"}}
    assert label_of(await client.create(REPLICA_SETS, replicas, namespace, dry_run=True)) is None


async def test_what_was_there_before_is_left_alone_and_a_stopped_queue_gets_its_jobs(webhook, client, namespace):
    """Kueue 0.19.2 forgets a stopped LocalQueue, so that jobs run without one; here they wait in it."""
    await client.delete(LOCAL_QUEUES, "default", namespace)
    await in_force(client, namespace, wanted=None)
    await client.create(JOBS, make_job(name="before", suspend=True), namespace)
    await client.create(LOCAL_QUEUES, queue(stopPolicy="HoldAndDrain"), namespace)
    await in_force(client, namespace)
    change = {"metadata": {"annotations": {"a": "b"}}}
    after = await client.patch(JOBS, "before", namespace, body=change, content_type=PatchType.MERGE, type=dict)
    assert label_of(after) is None
    made = await client.create(JOBS, make_job(), namespace, dry_run=True)
    assert (label_of(made), made["spec"]["suspend"]) == ("default", True)


async def test_an_installation_that_is_made_again_finds_the_queues(webhook, client, namespace):
    """What an API server knows of LocalQueues must not be from the policy before."""
    body = next(obj for obj in objects(BOTH) if obj["metadata"]["name"] == NAME)
    await client.delete(MUTATING_ADMISSION_POLICIES, NAME)
    await in_force(client, namespace, wanted=None)
    await client.delete(LOCAL_QUEUES, "default", namespace)
    await client.apply(MUTATING_ADMISSION_POLICIES, body, field_manager="test")
    await asyncio.sleep(SETTLED_SECONDS)
    assert label_of(await client.create(JOBS, make_job(), namespace, dry_run=True)) is None, "it is gone"
    await client.create(LOCAL_QUEUES, queue(), namespace)
    await in_force(client, namespace)


async def test_an_api_server_without_such_policies_says_what_default_does_not_do(webhook, cluster, client, namespace):
    async with policies(client, HINT):
        create = ("create", "--dry-run=server", "-n", namespace)

        async def told(text):
            _, said = await kubectl(cluster, *create, obj=make_job())
            return (text in said) if text else not said

        await client.delete(MUTATING_ADMISSION_POLICIES, NAME)
        await until(lambda: told(f"the API server does not put this Job into it: add the label {QUEUE}"), "the warning")
        _, said = await kubectl(cluster, *create, obj=make_job(labels={QUEUE: "team-a"}))
        assert "nothing is refused" not in said
        _, said = await kubectl(cluster, "create", "--dry-run=server", "-n", "default", obj=make_job())
        assert said == ""
        async with policies(client, NAME):
            await until(lambda: told(""), "the policy, which the warning follows")


@pytest.fixture(autouse=True)
async def no_policies(client):
    """None that a failed test left."""
    yield
    for name in (NAME, HINT):
        for obj in objects(BOTH):
            if obj["metadata"]["name"] == name:
                with suppress(Exception):
                    await client.delete(resource_of(obj), name)
