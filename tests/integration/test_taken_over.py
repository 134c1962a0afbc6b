"""A job that Kueue 0.19.2 would have started is taken over on the real control plane, and its pods run on.

The test plays Kueue: it has the CRDs, makes the Workload, and starts the Job with what Kueue adds to a template.
"""

import pytest
from support import kueue_kinds
from support.jobs import KEYS, Running, install_crds, make_flavor, until
from support.kueue_played import start_times, started_by_kueue
from support.queues import Queued, make_queue

from crds.constants import ADMITTED_QUOTA, HOSTNAME_LABEL, KUEUE_POD_SET, SERVED
from kube.resources import CLUSTER_QUEUES, JOBS, NAMESPACES, NODES, RESOURCE_FLAVORS, WORKLOADS

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def kinds(cluster):
    with kueue_kinds.installed(cluster):
        yield


@pytest.fixture
async def jobs(kinds, client, namespace, nodes):
    await install_crds(client)
    await nodes(blocks=1, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    await make_queue(client, namespace, "team", 16, flavors=(namespace,))
    yield Queued(client, namespace)
    await client.delete(CLUSTER_QUEUES, f"{namespace}-team")
    await client.delete(RESOURCE_FLAVORS, namespace)


async def test_a_label_of_the_namespace_has_its_running_job_taken_over_and_no_pod_ends(client, namespace, jobs):
    names = [node["metadata"]["name"] for node in await client.list(NODES)]
    host = min(name for name in names if name.startswith(f"{namespace}-"))
    before = await started_by_kueue(client, namespace, jobs, "train", host)
    as_made = await client.get(JOBS, "train", namespace)
    async with Running(client, beside_kueue=True):
        await jobs.submit("waits", 1)
        assert await client.list(WORKLOADS, namespace) == [], "Kueue serves the namespace"
        await client.patch(NAMESPACES, namespace, body={"metadata": {"labels": {SERVED: "true"}}})
        adopted = await jobs.condition("train", "Admitted", "True", "Adopted")
        assert adopted["message"] == "it was taken over from Kueue, and its pods run on"

        async def marked():
            pods = await jobs.running("train", 2)
            said = [pod["metadata"]["annotations"] for pod in pods]
            return pods if all(KEYS.workload in one and ADMITTED_QUOTA in one for one in said) else None

        pods = await until(marked, "the marks of its pods")
        assert start_times(pods) == before
        now = await client.get(JOBS, "train", namespace)
        assert (now["metadata"]["generation"], now["spec"]) == (as_made["metadata"]["generation"], as_made["spec"])
        (part,) = (await jobs.status("train"))["admission"]["podSetAssignments"]
        assert part["topologyAssignment"]["slices"][0]["nodeLabels"][HOSTNAME_LABEL] == host
        stored = await jobs.workload("train")
        kept = stored["spec"]["podSets"][0]["template"]
        assert "nodeSelector" not in kept["spec"], "from before Kueue started it"
        assert KUEUE_POD_SET not in kept["metadata"]["labels"]
        assert kept["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "train"
        await jobs.running("waits", 1)
        # And evicted later, its template is as its user wrote it.
        await client.patch(WORKLOADS, stored["metadata"]["name"], namespace, body={"spec": {"active": False}})

        async def restored():
            one = await client.get(JOBS, "train", namespace)
            return one if one["spec"]["suspend"] and not one["spec"]["template"]["spec"].get("nodeSelector") else None

        again = await until(restored, "its template to be as it was")
        assert KUEUE_POD_SET not in again["spec"]["template"]["metadata"]["labels"]
