"""Nodes that are lost, closed or changed under running pods: docs/changes.md, row by row, on the real control plane.

2 blocks x 4 racks x 3 hosts of 8 GPUs: a job of two pods with 8 GPUs each has a rack with one spare host.
"""

import asyncio

import pytest
from support.changes import HANG, HASTY, LATER, assignment, node_of, running, uids
from support.jobs import KEYS, RACK_LABEL, job, racks_of
from support.queues import make_queue, queued

from kube.resources import CLUSTER_QUEUES, LOCAL_QUEUES, NODES, POD_DISRUPTION_BUDGETS
from localcluster.nodes import BLOCK_LABEL, GROUP_LABEL, HOSTNAME_LABEL

pytestmark = pytest.mark.cluster
BLOCK = {KEYS.required[0]: BLOCK_LABEL}


@pytest.fixture
async def jobs(request, client, namespace, nodes):
    """A running controller (with settings of a test's own) and its flavor; every test ends with the checker."""
    await nodes(blocks=2, racks=4, hosts=3, prefix=f"{namespace}-", group=namespace)
    async with running(client, namespace, **getattr(request, "param", {})) as changed:
        yield changed


async def deleted(jobs, pod):
    await jobs.client.delete(NODES, node_of(pod))
    await jobs.end(pod, now=True)  # as kube-controller-manager does after a minute


async def drained(jobs, pod):
    await jobs.cordon(node_of(pod))
    await jobs.end(pod)


async def no_execute(jobs, pod):
    await jobs.taint(node_of(pod), "NoExecute")  # kube-controller-manager ends the pod


async def no_schedule(jobs, pod):
    await jobs.taint(node_of(pod))
    await jobs.end(pod)


async def not_ready(jobs, pod):
    await jobs.fail(node_of(pod))  # its pod is told to stop a second later, and never does


async def moved_to_another_rack(jobs, pod):
    await jobs.label(node_of(pod), **{RACK_LABEL: "r9"})
    await jobs.end(pod)


async def taken_out_of_the_flavor(jobs, pod):
    await jobs.label(node_of(pod), **{GROUP_LABEL: "other"})
    await jobs.end(pod)


async def made_smaller(jobs, pod):
    await jobs.shrink(node_of(pod))
    await jobs.end(pod)


WAYS = (
    deleted,
    drained,
    no_execute,
    no_schedule,
    not_ready,
    moved_to_another_rack,
    taken_out_of_the_flavor,
    made_smaller,
)


async def test_whatever_becomes_of_a_node_only_the_pods_on_it_move_and_stay_in_their_rack(jobs):
    """All of it at once, each to a job and a rack of its own."""

    async def one(lose):
        name = lose.__name__.replace("_", "-")
        hang = HANG if lose is not_ready else {}
        await jobs.create(job(name, 2, indexed=True, annotations=hang, pod_spec={"tolerations": HASTY}))
        before = await jobs.running(name, 2)
        lost, kept = before
        await jobs.uncount(lost)
        await lose(jobs, lost)
        after = await jobs.moved(name, 2, off={node_of(lost)}, stay=[kept])
        assert racks_of(after) == racks_of(before)
        await jobs.event(name, "Replaced")

    await asyncio.gather(*(one(lose) for lose in WAYS))


async def test_several_nodes_at_once_and_a_place_that_is_lost_again_before_its_pod_came(jobs):
    """Three pods in the block's first rack; two of its hosts fail, and then one of those that they were to go to."""
    gates = {"schedulingGates": [{"name": KEYS.gate}, {"name": LATER}]}
    await jobs.create(job("several", 3, request=BLOCK, indexed=True, pod_spec=gates))
    await jobs.let_go("several", 3)
    before = await jobs.running("several", 3)
    *lost, kept = before
    off = {node_of(pod) for pod in lost}
    for pod in lost:
        await jobs.cordon(node_of(pod))
    for pod in lost:
        await jobs.end(pod)
    first, second = await jobs.sent("several", 2, but=before)
    where = first["spec"]["nodeSelector"][HOSTNAME_LABEL]
    await jobs.taint(where)
    await jobs.event(first["metadata"]["name"], "SlotMoved")
    again = await jobs.sent("several", 2, but=[*before, first])
    assert second["metadata"]["uid"] in uids(again)
    assert where not in {pod["spec"]["nodeSelector"][HOSTNAME_LABEL] for pod in again}
    await jobs.let_go("several", 2)
    after = await jobs.moved("several", 3, off={*off, where}, stay=[kept])
    assert {block for block, _ in racks_of(after)} == {block for block, _ in racks_of(before)}


async def test_what_is_only_closed_keeps_its_pods_and_a_drain_under_a_budget_ends(jobs, client, namespace):
    """Two pods a node: cordoned, they stay; drained one by one, each finds another place at once."""
    labels = {"app": "drained"}
    body = job("drained", 4, gpus=4, indexed=True)
    body["spec"]["template"]["metadata"]["labels"] = labels
    budget = {"metadata": {"name": "one"}, "spec": {"minAvailable": 3, "selector": {"matchLabels": labels}}}
    await client.create(POD_DISRUPTION_BUDGETS, budget, namespace)
    await jobs.create(body)
    before = await jobs.running("drained", 4)
    node = node_of(before[0])
    leaving = [pod for pod in before if node_of(pod) == node]
    kept = [pod for pod in before if node_of(pod) != node]
    stored = await assignment(jobs, "drained")
    await jobs.taint(node_of(kept[0]), "PreferNoSchedule")
    for number, close in enumerate((jobs.fail, jobs.cordon)):
        await close(node)
        await jobs.create(job(f"other-{number}", 1, pod_spec={"nodeSelector": {BLOCK_LABEL: "b2"}}))
        await jobs.running(f"other-{number}", 1)
        assert uids(await jobs.running("drained", 4)) == uids(before)
        assert await assignment(jobs, "drained") == stored, "a node that is closed or away for a moment moves nobody"
        if close == jobs.fail:
            await jobs.open(node)
    for pod in leaving:
        await jobs.evict(pod)  # refused until the pod before it has a ready replacement
    after = await jobs.moved("drained", 4, off={node}, stay=kept)
    assert racks_of(after) == racks_of(before)


async def test_with_no_other_place_the_pod_waits_says_why_and_goes_back_when_the_node_is_back(jobs):
    await jobs.create(job("waits", 3, indexed=True))
    before = await jobs.running("waits", 3)
    await jobs.create(job("prefers", 3, request={KEYS.preferred[0]: RACK_LABEL}))
    near = await jobs.running("prefers", 3)
    assert len(racks_of(near)) == 1
    await jobs.cordon(node_of(near[0]))
    await jobs.end(near[0])
    far = await jobs.moved("prefers", 3, off={node_of(near[0])}, stay=near[1:])
    assert len(racks_of(far)) == 2, "what is only preferred goes elsewhere"
    lost, *kept = before
    await jobs.taint(node_of(lost))
    await jobs.end(lost)
    said = await jobs.condition("waits", "PodsReady", "False", "PartlyPlaced")
    assert f"pods for {node_of(lost)} (lost)" in said["message"]
    await jobs.event("waits", "PartlyPlaced")
    (unhealthy,) = (await jobs.workload("waits"))["status"]["unhealthyNodes"]
    assert unhealthy["name"] == node_of(lost)
    assert unhealthy["since"]
    assert uids(kept) <= uids(await jobs.running("waits", 2))
    await jobs.open(node_of(lost))
    after = await jobs.running("waits", 3)
    assert {node_of(pod) for pod in after} == {node_of(pod) for pod in before}
    await jobs.condition("waits", "PodsReady", "True")
    assert "unhealthyNodes" not in (await jobs.workload("waits"))["status"]


async def test_slices_get_their_pods_back_in_the_domain_where_they_are(jobs):
    """Slices of two pods a rack: what is lost of one comes back to its rack, and a slice that is lost whole moves."""
    request = {**BLOCK, KEYS.slice_level: RACK_LABEL, KEYS.slice_size: "2"}
    await jobs.create(job("rings", 4, indexed=True, request=request))
    before = await jobs.running("rings", 4)
    assert len(racks_of(before)) == 2
    lost = [next(pod for pod in before if racks_of([pod]) == {rack}) for rack in sorted(racks_of(before))]
    for pod in lost:
        await jobs.cordon(node_of(pod))
    for pod in lost:
        await jobs.end(pod)
    kept = [pod for pod in before if pod not in lost]
    after = await jobs.moved("rings", 4, off={node_of(pod) for pod in lost}, stay=kept)
    by_rank = {pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]: pod for pod in after}
    for first, second in (("0", "1"), ("2", "3")):
        assert len(racks_of([by_rank[first], by_rank[second]])) == 1
    whole = [pod for pod in after if racks_of([pod]) == racks_of(after[:1])]
    rest = [pod for pod in after if pod not in whole]
    (rack,) = racks_of(whole)
    for number in range(1, 4):
        await jobs.cordon(f"{jobs.namespace}-{'-'.join(rack)}-h{number}")
    for pod in whole:
        await jobs.end(pod)
    last = await jobs.moved("rings", 4, off={node_of(pod) for pod in whole}, stay=rest)
    assert rack not in racks_of(last), "a slice that is lost whole goes to another rack"
    assert len(racks_of(last)) == 2
    assert {block for block, _ in racks_of(last)} == {rack[0]}


SOON = {"replacement_timeout_seconds": 2.0, "requeuing_backoff_base_seconds": 1.0}


@pytest.mark.parametrize("jobs", [SOON], indirect=True)
async def test_what_has_no_place_in_its_domain_in_time_starts_over_as_a_whole(jobs, client, namespace):
    """A slice that fills its rack loses a node: no pod of it may go to another rack alone. With a queue and without."""
    request = {**BLOCK, KEYS.slice_level: RACK_LABEL, KEYS.slice_size: "3"}
    await make_queue(client, namespace, "team", 64, flavors=(namespace,))
    await jobs.create(job("free", 3, indexed=True, request=request))
    await jobs.create(queued("queued", 3, indexed=True, request=request))

    async def one(name):
        before = await jobs.running(name, 3)
        await jobs.cordon(node_of(before[0]))
        await jobs.end(before[0])
        evicted = await jobs.condition(name, "Evicted", "True", "ReplacementTimeout")
        assert "no other place for 2 seconds" in evicted["message"]
        after = await jobs.moved(name, 3, off={node_of(pod) for pod in before}, stay=[])
        assert len(racks_of(after)) == 1
        assert racks_of(after).isdisjoint(racks_of(before))

    await asyncio.gather(one("free"), one("queued"))
    for kind, name in ((LOCAL_QUEUES, "team"), (CLUSTER_QUEUES, f"{namespace}-team")):
        await client.delete(kind, name, namespace if kind is LOCAL_QUEUES else None)
