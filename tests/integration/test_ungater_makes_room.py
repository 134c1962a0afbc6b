"""Room on the real control plane: slices of a gang that keeps the others go, and pods that no queue admitted."""

import pytest
from support.cluster_checker import snapshot, violations
from support.jobs import GPU, KEYS, RACK_LABEL, Running, install_crds, make_flavor, racks_of, until
from support.queues import Queued, make_priorities, make_queue

from crds.constants import EVICT_BY, HOSTNAME_LABEL
from kube.resources import CLUSTER_QUEUES, POD_DISRUPTION_BUDGETS, PODS, RESOURCE_FLAVORS

pytestmark = pytest.mark.cluster
SLICES = {KEYS.unconstrained: "true", KEYS.slice_level: RACK_LABEL, KEYS.slice_size: "2"}
WITHIN = {"preemption": {"withinClusterQueue": "LowerPriority"}}


@pytest.fixture
async def jobs(client, namespace, nodes):
    """1 block x 2 racks x 2 hosts of 8 GPUs, and a queue that preempts."""
    await install_crds(client)
    await nodes(blocks=1, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    await make_priorities(client)
    await make_queue(client, namespace, "team", 64, flavors=(namespace,), **WITHIN)
    yield Queued(client, namespace)
    assert violations(await snapshot(client, {namespace})) == []
    await client.delete(CLUSTER_QUEUES, f"{namespace}-team")
    await client.delete(RESOURCE_FLAVORS, namespace)


async def test_a_gang_loses_the_slices_in_one_rack_keeps_the_others_and_gets_them_back(client, jobs, namespace):
    async with Running(client) as controller:
        declared = {**SLICES, EVICT_BY: "slice"}
        await jobs.submit("gang", 4, priority="low", indexed=True, request=declared)
        before = await jobs.running("gang", 4)
        await jobs.submit("high", 2, priority="high")
        room = await jobs.running("high", 2)
        (rack,) = racks_of(room)
        kept = await jobs.running("gang", 2)
        assert {pod["metadata"]["uid"] for pod in kept} <= {pod["metadata"]["uid"] for pod in before}
        assert rack not in racks_of(kept)
        ranks = sorted(int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]) for pod in kept)
        assert ranks in ([0, 1], [2, 3]), "a whole slice is left"
        assert "loses its slices" in (await jobs.event("gang", "Preempted"))["note"]
        assert not (await jobs.job("gang"))["spec"]["suspend"]
        assert (await jobs.job("gang"))["status"].get("failed", 0) == 0
        assert "nomination" not in await jobs.status("high")

        async def gated():
            found = [pod for pod in await jobs.pods("gang") if pod["spec"].get("schedulingGates")]
            return len(found) == 2

        await until(gated, "the pods of the lost slices to come back gated")
        await controller.crash()
        await controller.start()
        await jobs.running("gang", 2)
        await jobs.finish("high")
        assert len(racks_of(await jobs.running("gang", 4))) == 2


async def test_a_budget_on_its_slices_has_the_gang_keep_them(client, jobs, namespace):
    async with Running(client, eviction_patience_seconds=1.0):
        await jobs.submit("gang", 4, priority="low", indexed=True, request={**SLICES, EVICT_BY: "slice"})
        await jobs.running("gang", 4)
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "keep"},
            "spec": {"minAvailable": 4, "selector": {"matchLabels": {"batch.kubernetes.io/job-name": "gang"}}},
        }
        await client.create(POD_DISRUPTION_BUDGETS, budget, namespace)

        async def counted():
            found = await client.get(POD_DISRUPTION_BUDGETS, "keep", namespace)
            return found.get("status", {}).get("currentHealthy") == 4

        await until(counted, "the budget to count the pods")
        await jobs.submit("high", 2, priority="high")
        await jobs.event("high", "Preempting")
        await jobs.waits("high", "DoesNotFit")
        assert len(await jobs.running("gang", 4)) == 4
        assert "nomination" not in await jobs.status("high")


def plain(name, node, **meta):
    """A bound pod of 8 GPUs that no queue knows."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **meta},
        "spec": {
            "nodeSelector": {HOSTNAME_LABEL: node},
            "priorityClassName": "low",
            "containers": [
                {"name": "c", "image": "i", "resources": {"requests": {GPU: "8"}, "limits": {GPU: "8"}}},
            ],
        },
    }


async def test_plain_pods_of_lower_priority_make_room_where_a_setting_allows_it(client, jobs, namespace):
    names = [f"{namespace}-b1-r{rack}-h{host}" for rack in (1, 2) for host in (1, 2)]
    safe = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    for number, node in enumerate(names):
        await client.create(PODS, plain(f"plain-{number}", node, annotations=safe if number == 0 else {}), namespace)

    async def bound():
        found = await client.list(PODS, namespace)
        return sum(pod["status"].get("phase") == "Running" for pod in found) == 4

    await until(bound, "the plain pods to run")
    async with Running(client):
        await jobs.submit("high", 2, priority="high")
        await jobs.waits("high", "DoesNotFit")
    async with Running(client, preempt_plain_pods=True):
        room = await jobs.running("high", 2)
        assert {pod["spec"]["nodeName"] for pod in room} == set(names[2:]), "the rack whose pods may all go"
        left = {pod["metadata"]["name"] for pod in await client.list(PODS, namespace)}
        assert {"plain-0", "plain-1"} <= left
        assert not {"plain-2", "plain-3"} & left
        told = await jobs.event("plain-2", "Evicted")
        assert "no queue admitted" in told["note"]
        assert "nomination" not in await jobs.status("high")


async def test_nominal_quota_is_taken_back_from_who_borrows_it_whatever_its_budget_says(client, namespace, nodes):
    """A budget that allows nothing, and pods that may take a month to stop, keep nobody from their own."""
    await install_crds(client)
    await nodes(blocks=1, racks=1, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    cohort = {"cohortName": namespace}
    reclaim = {"preemption": {"reclaimWithinCohort": "Any"}}
    await make_queue(client, namespace, "own", 16, flavors=(namespace,), **cohort, **reclaim)
    await make_queue(client, namespace, "other", 0, flavors=(namespace,), **cohort)
    jobs = Queued(client, namespace)
    labels = {"matchLabels": {"batch.kubernetes.io/job-name": "borrows"}}
    budget = {"metadata": {"name": "mine"}, "spec": {"maxUnavailable": 0, "selector": labels}}
    async with Running(client, eviction_patience_seconds=2.0, reclaim_grace_seconds=5.0):
        await jobs.submit("borrows", 2, queue="other", pod_spec={"terminationGracePeriodSeconds": 2_592_000})
        before = {pod["metadata"]["uid"] for pod in await jobs.running("borrows", 2)}
        await client.create(POD_DISRUPTION_BUDGETS, budget, namespace)

        async def counted():
            found = await client.get(POD_DISRUPTION_BUDGETS, "mine", namespace)
            return found.get("status", {}).get("conditions")

        await until(counted, "the budget to be looked at")
        await jobs.submit("owns", 2, queue="own")
        first = min(pod["metadata"]["name"] for pod in await jobs.pods("borrows"))
        told = await jobs.event(first, "EvictionBlocked")
        assert "mine" in told["note"]
        assert len(await jobs.running("owns", 2)) == 2
        assert not before & {pod["metadata"]["uid"] for pod in await client.list(PODS, namespace)}
        assert (await jobs.job("borrows"))["status"].get("failed", 0) == 0
        note = (await jobs.event("borrows", "Preempted"))["note"]
        assert "takes back its nominal quota" in note
    for name in ("own", "other"):
        await client.delete(CLUSTER_QUEUES, f"{namespace}-{name}")
    await client.delete(RESOURCE_FLAVORS, namespace)
