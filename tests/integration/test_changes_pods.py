"""Pods that come, go and lie in ways that nobody planned: docs/changes.md, row by row, on the real control plane.

2 blocks x 2 racks x 2 hosts of 8 GPUs, one controller in this process for each test.
"""

import asyncio

import pytest
from support.changes import assignment, node_of, running, uids
from support.cluster_checker import rank_order, snapshot
from support.jobs import KEYS, RACK_LABEL, job, nodes_of, until

from kube.errors import NotFound
from kube.resources import JOBS, NAMESPACES, PODS, WORKLOADS
from localcluster.nodes import BLOCK_LABEL, HOSTNAME_LABEL

pytestmark = pytest.mark.cluster
BLOCK = {KEYS.required[0]: BLOCK_LABEL}
INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.fixture
async def jobs(client, namespace, nodes):
    """A running controller and its flavor; every test ends with the independent checker."""
    await nodes(blocks=2, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    async with running(client, namespace) as changed:
        yield changed


async def test_pods_deleted_while_they_are_gated_hold_up_nobody(jobs):
    """Their job waits for a place; those that come after them go to it."""
    for number in range(2):
        await jobs.create(job(f"first-{number}", 4, request=BLOCK))
        await jobs.running(f"first-{number}", 4)
    await jobs.create(job("gated", 2, indexed=True))
    await jobs.condition("gated", "QuotaReserved", "False", "DoesNotFit")
    before = await until(lambda: _count(jobs, "gated", 2), "two gated pods")
    await asyncio.gather(*(jobs.end(pod) for pod in before))
    await jobs.delete("first-0")
    after = await jobs.running("gated", 2)
    assert uids(after).isdisjoint(uids(before))


async def _count(jobs, name, count):
    found = await jobs.pods(name)
    return found if len(found) == count else None


def member(name, rank, total, *, gpus="8"):
    """A pod of a group, as the webhook stamps it, with the rank that its maker gave it."""
    resources = {"requests": {"nvidia.com/gpu": gpus, "cpu": "1"}, "limits": {"nvidia.com/gpu": gpus}}
    domain = KEYS.gate.partition("/")[0]
    return {
        "metadata": {
            "name": name,
            "labels": {KEYS.pod_group: "ring", f"{domain}/pod-group-pod-index": rank},
            "annotations": {**BLOCK, KEYS.pod_set: "main", KEYS.pod_group_total: str(total)},
        },
        "spec": {
            "schedulingGates": [{"name": KEYS.gate}],
            "containers": [{"name": "c", "image": "i", "resources": resources}],
        },
    }


async def test_ranks_that_are_double_out_of_range_or_no_numbers_fall_back_and_the_others_do_not(
    jobs, client, namespace
):
    ranks = {"a": "3", "b": "0", "c": "0", "d": "99"}
    for name, rank in ranks.items():
        await client.create(PODS, member(name, rank, 4), namespace)

    async def all_run():
        found = {pod["metadata"]["name"]: pod for pod in await client.list(PODS, namespace)}
        return found if all(pod["status"].get("phase") == "Running" for pod in found.values()) else None

    found = await until(all_run, "all four pods to run")
    (workload,) = await client.list(WORKLOADS, namespace)
    slices = workload["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"]["slices"]
    order = [one["nodeLabels"][HOSTNAME_LABEL] for one in slices for _ in range(one["count"])]
    assert node_of(found["a"]) == order[3]
    assert order[0] in {node_of(found["b"]), node_of(found["c"])}
    assert sorted(map(node_of, found.values())) == sorted(order)


async def test_a_pod_that_poses_as_a_rank_of_an_indexed_job_gets_no_slot(jobs, client, namespace):
    """The Job deletes one pod of a rank that there is twice; whatever it does, the slots of the others are theirs."""
    await jobs.create(job("twice", 3, gpus=4, indexed=True))
    before = await jobs.running("twice", 3)
    made = await client.get(JOBS, "twice", namespace)
    labels = {**before[0]["metadata"]["labels"], INDEX: "1"}
    annotations = {**before[0]["metadata"]["annotations"], INDEX: "1"}
    del annotations[KEYS.workload]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "twice", "uid": made["metadata"]["uid"]}
    template = made["spec"]["template"]["spec"]
    pod = {
        "metadata": {
            "name": "poses",
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {**template, "schedulingGates": [{"name": KEYS.gate}]},
    }
    await client.create(PODS, pod, namespace)

    async def gone():
        try:
            found = await client.get(PODS, "poses", namespace)
        except NotFound:
            return True
        assert "nodeSelector" not in found["spec"], "it was let go"
        return False

    await until(gone, "the Job to delete the second pod of rank 1")
    assert uids(await jobs.running("twice", 3)) == uids(before)


async def test_a_pod_that_terminates_and_its_replacement_never_share_a_slot(jobs, client, namespace):
    slow = {"topogate.dev/stop-seconds": "3"}
    await jobs.create(job("slow", 2, indexed=True, annotations=slow))
    before = await jobs.running("slow", 2)
    await jobs.end(before[0])
    seen = 0

    async def back():
        nonlocal seen
        found = await jobs.pods("slow")
        leaving = [pod for pod in found if pod["metadata"].get("deletionTimestamp")]
        ending = [pod for pod in leaving if pod["status"]["phase"] == "Running"]
        fresh = [pod for pod in found if pod["metadata"]["uid"] not in uids(before)]
        if ending and fresh:
            seen += 1
            assert all(pod["spec"].get("schedulingGates") for pod in fresh), "its slot is not free yet"
        return not leaving and await jobs.running("slow", 2)

    after = await until(back, "the replacement to run")
    assert seen, "both were there at the same time"
    assert nodes_of(after) == nodes_of(before)
    assert rank_order(await snapshot(client, {namespace}), "slow") == []


async def test_who_forges_an_owner_or_a_workload_gets_no_slot_of_it(jobs, client, namespace):
    """One pod names the Workload and a slot of it; others, in another namespace, the job as their owner."""
    await jobs.create(job("victim", 2, indexed=True))
    before = await jobs.running("victim", 2)
    workload = await jobs.workload("victim")
    made = await client.get(JOBS, "victim", namespace)
    elsewhere = f"{namespace}-thief"
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": elsewhere}})

    async def account():
        try:
            return await client.raw("GET", f"/api/v1/namespaces/{elsewhere}/serviceaccounts/default")
        except NotFound:
            return None

    await until(account, "the service account of the other namespace")
    slot = {key: before[0]["spec"]["nodeSelector"][key] for key in before[0]["spec"]["nodeSelector"]}
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    spec = {"schedulingGates": [{"name": KEYS.gate}], "containers": [container], "nodeSelector": slot}
    forged = {"metadata": {"name": "forged"}, "spec": spec}
    named = {**BLOCK, KEYS.workload: workload["metadata"]["name"], KEYS.pod_set: "main"}
    forged["metadata"]["annotations"] = named
    await client.create(PODS, forged, namespace)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "victim", "uid": made["metadata"]["uid"]}
    for number in range(3):
        pod = {"metadata": {"name": f"thief-{number}", "annotations": named}, "spec": spec}
        pod["metadata"] |= {"labels": {INDEX: "0"}, "ownerReferences": [{**owner, "controller": True}]}
        await client.create(PODS, pod, elsewhere)
    await jobs.end(before[0])
    (again,) = await jobs.sent("victim", 1, but=before)
    assert again["spec"]["nodeSelector"] == before[0]["spec"]["nodeSelector"], "the slot is still the job's"
    await jobs.running("victim", 2)
    for pod in await client.list(PODS, elsewhere):  # the garbage collector may have them already
        assert pod["spec"].get("schedulingGates"), f"{pod['metadata']['name']} was let go"
    found = await client.get(PODS, "forged", namespace)
    assert found["spec"].get("schedulingGates"), "it asks for a slot of its own, where there is no room for it"
    own = [one for one in await client.list(WORKLOADS, namespace) if one["metadata"]["name"].startswith("pod-")]
    assert len(own) == 1
    await client.delete(PODS, "forged", namespace)
    await client.delete(NAMESPACES, elsewhere)


async def test_a_job_that_grows_and_shrinks_places_only_the_difference(jobs):
    await jobs.create(job("elastic", 2, gpus=4, indexed=True))
    two = await jobs.running("elastic", 2)
    await jobs.edit("elastic", parallelism=4, completions=4)
    four = await jobs.running("elastic", 4)
    assert uids(two) <= uids(four)
    await jobs.edit("elastic", parallelism=6, completions=6)
    said = await jobs.condition("elastic", "PodsReady", "False", "PartlyPlaced")
    assert "4 of 6 pods have a slot" in said["message"]
    assert uids(await jobs.running("elastic", 4)) == uids(four), "the rack has no more room, and nobody moves"
    await jobs.edit("elastic", parallelism=3, completions=3)
    three = await jobs.running("elastic", 3)
    assert uids(three) <= uids(four)
    await jobs.create(
        job(
            "beside",
            1,
            gpus=4,
            pod_spec={
                "nodeSelector": {
                    RACK_LABEL: four[0]["spec"]["nodeSelector"][RACK_LABEL],
                    BLOCK_LABEL: four[0]["spec"]["nodeSelector"][BLOCK_LABEL],
                }
            },
        )
    )
    await jobs.running("beside", 1)

    async def shrunk():
        return sum(one["count"] for one in (await assignment(jobs, "elastic"))["slices"]) == 3

    await until(shrunk, "the slot of the pod that went to be given back")
