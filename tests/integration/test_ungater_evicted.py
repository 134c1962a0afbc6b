"""Jobs without a queue that are put back, on the real control plane: one block of 2 racks x 2 hosts of 8 GPUs."""

import pytest
from support.cluster_checker import snapshot, violations
from support.jobs import KEYS, Running, install_crds, job, make_flavor, nodes_of, racks_of, until
from support.queues import Queued

from cli.hold import Change, Selection, change_all
from kube.resources import NODES, POD_DISRUPTION_BUDGETS, PODS, RESOURCE_FLAVORS

pytestmark = pytest.mark.cluster


@pytest.fixture
async def jobs(client, namespace, nodes):
    """A flavor; every test ends with the independent checker."""
    await install_crds(client)
    await nodes(blocks=1, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    yield Queued(client, namespace)
    assert violations(await snapshot(client, {namespace})) == []
    await client.delete(RESOURCE_FLAVORS, namespace)


async def gated(jobs, name, pods):
    """Wait until all pods of the job are behind the gate, and its Workload has no admission."""

    async def back():
        found = await jobs.pods(name)
        held = "admission" in await jobs.status(name)
        return not held and len(found) == pods and all(pod["spec"].get("schedulingGates") for pod in found)

    await until(back, f"{pods} gated pods of job {name}")


async def test_made_inactive_it_gives_back_all_and_comes_again_when_it_is_active(jobs, client, namespace):
    told = []

    async def change(what, name):
        await change_all(
            client, Change(what), Selection((name,), None, every=False), namespace, told.append, dry_run=False
        )

    async with Running(client):
        await jobs.create(job("stops", 2))
        before = await jobs.running("stops", 2)
        await jobs.create(job("runs", 2))
        await jobs.running("runs", 2)
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "keep"},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"batch.kubernetes.io/job-name": "stops"}}},
        }
        await client.create(POD_DISRUPTION_BUDGETS, budget, namespace)

        async def counted():
            found = await client.get(POD_DISRUPTION_BUDGETS, "keep", namespace)
            return found.get("status", {}).get("currentHealthy") == 2

        await until(counted, "the budget to count the pods")
        await jobs.create(job("waits", 2))
        await jobs.waits("waits", "DoesNotFit")
        await change("hold", "stops")
        await jobs.condition("stops", "Evicted", "True", "Deactivated")
        await jobs.event(before[0]["metadata"]["name"], "EvictionBlocked")
        assert len(await jobs.pods("stops", phase="Running")) == 2
    async with Running(client):
        await client.delete(POD_DISRUPTION_BUDGETS, "keep", namespace)
        await gated(jobs, "stops", 2)
        found = await jobs.job("stops")
        assert (found["spec"].get("suspend", False), found["status"].get("failed", 0)) == (False, 0)
        assert "spec.active is false" in await jobs.waits("stops", "Deactivated")
        assert racks_of(await jobs.running("waits", 2)) == racks_of(before)
        await change("release", "stops")
        await jobs.waits("stops", "DoesNotFit")
        await jobs.finish("runs")
        await jobs.running("stops", 2)
        await jobs.condition("stops", "Evicted", "False")
        assert (await jobs.workload("waits"))["spec"].get("active", True)
        old = {pod["metadata"]["uid"] for pod in await jobs.pods("waits")}
        await change("requeue", "waits")
        assert not old & {pod["metadata"]["uid"] for pod in await jobs.running("waits", 2)}
        assert (await jobs.workload("waits"))["spec"]["active"]
        assert told == [
            "Job stops: on hold; its pods are evicted",
            "Job stops: released; it waits again",
            "Job waits: requeued; its pods are evicted, and it waits again",
        ]


async def test_without_another_place_for_pods_of_a_lost_node_all_go_to_a_rack_that_is_whole(jobs, client, namespace):
    async with Running(client, replacement_timeout_seconds=2.0, requeuing_backoff_base_seconds=1.0):
        await jobs.create(job("moves", 2))
        before = await jobs.running("moves", 2)
        lost, kept = before
        await client.patch(NODES, lost["spec"]["nodeName"], body={"spec": {"unschedulable": True}})
        await client.delete(PODS, lost["metadata"]["name"], namespace)
        found = await jobs.condition("moves", "Evicted", "True", "ReplacementTimeout")
        assert "no other place for 2 seconds" in found["message"]

        async def elsewhere():
            pods = await jobs.pods("moves", phase="Running")
            return len(pods) == 2 and racks_of(pods).isdisjoint(racks_of(before))

        await until(elsewhere, "both pods in another rack")
        assert kept["spec"]["nodeName"] not in nodes_of(await jobs.pods("moves"))
        assert (await jobs.status("moves"))["requeueState"]["count"] == 1
        await jobs.condition("moves", "Requeued", "True", "Requeued")
        await jobs.condition("moves", "Evicted", "False")


async def test_too_often_without_another_place_it_is_made_inactive(jobs, client, namespace):
    limits = {"requeuing_backoff_base_seconds": 1.0, "requeuing_backoff_limit_count": 0}
    async with Running(client, replacement_timeout_seconds=1.0, **limits):
        await jobs.create(job("once", 1, request={KEYS.required[0]: "kubernetes.io/hostname"}))
        (pod,) = await jobs.running("once", 1)
        for node in await client.list(NODES):
            if node["metadata"]["name"].startswith(f"{namespace}-"):
                await client.patch(NODES, node["metadata"]["name"], body={"spec": {"unschedulable": True}})
        await client.delete(PODS, pod["metadata"]["name"], namespace)
        await jobs.condition("once", "Requeued", "False", "RequeuingLimitExceeded")
        await gated(jobs, "once", 1)
        assert not (await jobs.workload("once"))["spec"]["active"]
