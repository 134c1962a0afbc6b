"""JobSets on the real control plane, with a stand-in for their controller: 2 blocks x 2 racks x 2 hosts of 8 GPUs."""

import pytest
from support import jobsets
from support.jobs import GPU, KEYS, RACK_LABEL, Running, Watched, install_crds, make_flavor, nodes_of, racks_of, until

from cli.explain.report import report
from kube.resources import CLUSTER_QUEUES, JOB_SETS, JOBS, LOCAL_QUEUES, PODS, RESOURCE_FLAVORS, WORKLOADS

pytestmark = pytest.mark.cluster

API = {"apiVersion": "topogate.dev/v1alpha1"}
RACK = {KEYS.required[0]: RACK_LABEL}


class Sets(Watched):
    """Pods are found by their JobSet, or by one of its replicated jobs (``name/role``)."""

    async def pods(self, name, *, phase=""):
        name, _, role = name.partition("/")
        selector = f"{jobsets.PREFIX}/jobset-name={name}" + (
            f",{jobsets.PREFIX}/replicatedjob-name={role}" if role else ""
        )
        found = await self.client.list(PODS, self.namespace, label_selector=selector)
        return [pod for pod in found if not phase or pod["status"].get("phase") == phase]


@pytest.fixture
async def sets(client, namespace, nodes):
    await install_crds(client)
    await jobsets.install(client)
    await nodes(blocks=2, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    async with jobsets.JobSets(client, namespace), Running(client) as controller:
        watched = Sets(client, namespace)
        watched.controller = controller
        yield watched
    await client.delete(RESOURCE_FLAVORS, namespace)


async def test_a_jobset_is_one_workload_in_one_rack(sets, client, namespace):
    both = {**RACK, KEYS.group: "all"}
    body = jobsets.jobset("train", {"leader": (1, 1), "workers": (1, 3)}, annotations=both)
    await client.create(JOB_SETS, body, namespace)
    pods = await sets.running("train", 4)
    assert len(racks_of(pods)) == 1
    (workload,) = await client.list(WORKLOADS, namespace)
    assert [(one["name"], one["count"]) for one in workload["spec"]["podSets"]] == [("leader", 1), ("workers", 3)]
    assert workload["spec"]["podSets"][1]["topologyRequest"]["subGroupIndexLabel"] == f"{jobsets.PREFIX}/job-index"
    (reference,) = workload["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["name"]) == ("JobSet", "train")
    await sets.condition("train", "PodsReady", "True")
    told = await report(client, namespace, "jobset/train")
    assert (told.kind, told.state, told.count) == ("JobSet", "Placed", 4)
    assert {domain.pod_set: len(domain.pods) for domain in told.domains if domain.pod_set == "leader"} == {"leader": 1}
    assert sorted(pod.rank for domain in told.domains if domain.pod_set == "workers" for pod in domain.pods) == [
        0,
        1,
        2,
    ]
    before = nodes_of(pods)
    await sets.controller.crash()
    await sets.controller.start()
    gone = pods[0]["metadata"]
    await client.delete(PODS, gone["name"], namespace)

    async def again():
        found = await sets.running("train", 4)
        return found if gone["uid"] not in {pod["metadata"]["uid"] for pod in found} else None

    assert nodes_of(await until(again, "the same places after a restart")) == before
    await client.delete(JOB_SETS, "train", namespace, propagation="Background")

    async def nothing():
        return not await client.list(WORKLOADS, namespace)

    await until(nothing, "the Workload to be gone")


async def test_a_jobset_with_a_queue_waits_runs_is_evicted_and_comes_back(sets, client, namespace):
    quotas = [{"name": GPU, "nominalQuota": 32}, {"name": "cpu", "nominalQuota": 100}]
    group = {"coveredResources": [GPU, "cpu"], "flavors": [{"name": namespace, "resources": quotas}]}
    spec = {"resourceGroups": [group], "namespaceSelector": {}, "stopPolicy": "Hold"}
    await client.create(CLUSTER_QUEUES, {**API, "kind": "ClusterQueue", "metadata": {"name": namespace}, "spec": spec})
    local = {"metadata": {"name": "team"}, "spec": {"clusterQueue": namespace}}
    await client.create(LOCAL_QUEUES, {**API, "kind": "LocalQueue", **local}, namespace)
    roles = {"leader": (1, 1), "workers": (2, 2)}
    await client.create(JOB_SETS, jobsets.jobset("q", roles, queue="team", annotations=RACK), namespace)
    await sets.condition("q", "QuotaReserved", "False")
    assert all(job["spec"]["suspend"] for job in await client.list(JOBS, namespace))
    await client.patch(CLUSTER_QUEUES, namespace, body={"spec": {"stopPolicy": "None"}})
    pods = await sets.running("q", 5)
    assert len(racks_of([pod for pod in pods if "workers" in pod["metadata"]["name"]])) == 1
    admission = (await sets.workload("q"))["status"]["admission"]
    usage = {one["name"]: one["resourceUsage"][GPU] for one in admission["podSetAssignments"]}
    assert usage == {"leader": "4", "workers": "16"}

    await client.patch(CLUSTER_QUEUES, namespace, body={"spec": {"stopPolicy": "HoldAndDrain"}})
    await sets.condition("q", "Admitted", "False")

    async def suspended():
        jobs = await client.list(JOBS, namespace)
        return all(job["spec"]["suspend"] for job in jobs) and not await sets.pods("q")

    await until(suspended, "the JobSet to be suspended, and its pods gone")
    await client.patch(CLUSTER_QUEUES, namespace, body={"spec": {"stopPolicy": "None"}})
    await sets.running("q", 5)
    await client.delete(JOB_SETS, "q", namespace, propagation="Background")
    await client.delete(CLUSTER_QUEUES, namespace)
