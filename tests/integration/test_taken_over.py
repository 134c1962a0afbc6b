"""A job that Kueue 0.19.2 would have started is taken over on the real control plane, and its pods run on.

The test plays Kueue: it has the CRDs, makes the Workload, and starts the Job with what Kueue adds to a template.
"""

import pytest
from support import kueue_kinds
from support.jobs import GPU, KEYS, Running, install_crds, job, make_flavor, until
from support.queues import Queued, make_queue

from crds.constants import ADMITTED_QUOTA, HOSTNAME_LABEL, KUEUE_POD_SET, SERVED
from crds.kueue.assignment import encode
from kube.resources import CLUSTER_QUEUES, JOBS, NAMESPACES, NODES, RESOURCE_FLAVORS, WORKLOADS
from ungater.model.conditions import timestamp
from ungater.model.kueue_objects import WORKLOADS as KUEUE_WORKLOADS

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


async def started_by_kueue(client, namespace, jobs, name, host):
    """A Job of two pods on a host, as it runs by Kueue's admission; the names of its pods."""
    labels = {KEYS.queue_name: "team"}
    before = job(name, 2, gpus=1, request={}, gated=False, labels=labels)
    template = before["spec"]["template"]
    template["metadata"] = {}
    body = {
        **before,
        "spec": {**before["spec"], "template": {**template, "metadata": {"labels": {KUEUE_POD_SET: "main"}}}},
    }
    body["spec"]["template"]["spec"] = {**template["spec"], "nodeSelector": {HOSTNAME_LABEL: host}}
    made = await client.create(JOBS, body, namespace)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": made["metadata"]["uid"], "controller": True}
    kueue = KUEUE_WORKLOADS[0]
    workload = {
        "apiVersion": kueue.api_version,
        "kind": "Workload",
        "metadata": {"name": f"job-{name}", "ownerReferences": [owner]},
        "spec": {"queueName": "team", "podSets": [{"name": "main", "count": 2, "template": template}]},
    }
    await client.create(kueue, workload, namespace)
    given = {
        "name": "main",
        "count": 2,
        "flavors": {GPU: namespace, "cpu": namespace},
        "resourceUsage": {GPU: "2", "cpu": "2"},
        "topologyAssignment": encode([HOSTNAME_LABEL], [((host,), 2)]),
    }
    conditions = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": timestamp(1e9)}
        for kind in ("QuotaReserved", "Admitted")
    ]
    status = {"conditions": conditions}
    status["admission"] = {"clusterQueue": f"{namespace}-team", "podSetAssignments": [given]}
    await client.patch(kueue, f"job-{name}", namespace, body={"status": status}, subresource="status")
    return {pod["metadata"]["uid"]: pod["status"].get("startTime") for pod in await jobs.running(name, 2)}


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
        assert {pod["metadata"]["uid"]: pod["status"].get("startTime") for pod in pods} == before
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
