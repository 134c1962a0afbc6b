"""Preemptions that meet each other, or come to nothing on the way: who runs in the end, and that it ends at all.

Two hosts of 8 GPUs in one rack, and a queue of exactly that.
"""

import asyncio

import pytest
from support.cluster_checker import owner_of, snapshot, violations
from support.faults import FaultProxy, through
from support.jobs import KEYS, Running, install_crds, make_flavor, until
from support.queues import Queued, make_priorities, make_queue

from kube.connection import config
from kube.resources import CLUSTER_QUEUES, LOCAL_QUEUES, PRIORITY_CLASSES, RESOURCE_FLAVORS

pytestmark = pytest.mark.cluster

SLOW = {"topogate.dev/stop-seconds": "3"}  # its pods take so long to end
QUIET_SECONDS = 2.0


class Cases(Queued):
    """What the tests ask of jobs."""

    async def fill(self, *names, **options):
        """Jobs of low priority that share the two hosts and run."""
        for name in names:
            await self.submit(name, 2 // len(names), priority="low", **options)
        for name in names:
            await self.running(name, 2 // len(names))

    async def put_back(self, *names):
        """Wait until these jobs are suspended without pods, and nobody waits for anybody's room."""
        for name in names:
            await self.empty(name)
            await self.condition(name, "Requeued", "True", "Requeued")
            await self.condition(name, "Preempted", "True")

    async def leaving(self, name):
        """Wait until a pod of the job is on its way out."""

        async def goes():
            return [pod for pod in await self.pods(name) if pod["metadata"].get("deletionTimestamp")]

        await until(goes, f"pods of {name} to end")

    async def calm(self, *names):
        """These jobs run, and after a while the same pods of them do, and no plan is stored.

        The Workload of a deleted job may stay for some time, where the garbage collector has not seen that kind yet.
        """
        before = {name: await self.uids(name) for name in names}
        await asyncio.sleep(QUIET_SECONDS)
        assert {name: await self.uids(name) for name in names} == before
        found = await snapshot(self.client, {self.namespace})
        jobs = {job["metadata"]["uid"] for job in found["jobs"]}
        plans = [one for one in found["workloads"] if "nomination" in one["status"] and owner_of(one) in jobs]
        assert not plans

    async def uids(self, name):
        return {pod["metadata"]["uid"] for pod in await self.pods(name, phase="Running")}


@pytest.fixture
async def jobs(client, namespace, nodes):
    await install_crds(client)
    await nodes(blocks=1, racks=1, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    await make_priorities(client)
    top = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "top"}, "value": 5000}
    await client.apply(PRIORITY_CLASSES, top, field_manager="test")
    within = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    await make_queue(client, namespace, "team", 16, flavors=(namespace,), **within)
    yield Cases(client, namespace)
    assert violations(await snapshot(client, {namespace})) == []
    await client.delete(CLUSTER_QUEUES, f"{namespace}-team")
    await client.delete(RESOURCE_FLAVORS, namespace)


@pytest.fixture
async def running(client, jobs):
    async with Running(client):
        yield jobs


@pytest.fixture
async def kept(cluster, jobs):
    """A controller whose evictions of pods of the job ``kept`` are refused."""
    real = await config.load(str(cluster.kubeconfig))
    async with FaultProxy(real.url, real.tls).serve() as proxy, await through(proxy, cluster) as ours:
        proxy.refuse_evictions("kept")
        async with Running(ours, eviction_patience_seconds=2.0):
            yield jobs


async def test_two_preemptors_at_once_take_one_victim_each(running):
    await running.fill("one", "two")
    for name in ("first", "second"):
        await running.submit(name, 1, priority="high")
    for name in ("first", "second"):
        await running.running(name, 1)
    await running.put_back("one", "two")
    await running.calm("first", "second")


async def test_a_preemptor_that_waits_for_its_victims_makes_room_itself_afterwards(running):
    await running.fill("low", annotations=SLOW)
    await running.submit("high", 2, priority="high")
    await running.leaving("low")
    await running.submit("top", 2, priority="top")
    await running.running("top", 2)
    await running.put_back("low", "high")
    await running.calm("top")
    await running.finish("top")
    await running.running("high", 2)
    await running.calm("high")


async def test_equal_priorities_leave_each_other_alone(running):
    await running.submit("first", 2, priority="high")
    await running.running("first", 2)
    await running.submit("second", 2, priority="high")
    await running.waits("second", "InsufficientQuota")
    await running.calm("first")


async def test_of_equal_priorities_the_newer_one_makes_room_and_never_takes_it_back(running, client, namespace):
    await running.edit_queue("team", preemption={"withinClusterQueue": "LowerOrNewerEqualPriority"})
    await running.submit("older", 2, "late", priority="high")
    await running.waits("older", "NoQueue")
    await asyncio.sleep(1)  # times of creation are whole seconds
    await running.submit("newer", 2, priority="high")
    await running.running("newer", 2)
    local = {"apiVersion": "topogate.dev/v1alpha1", "kind": "LocalQueue", "metadata": {"name": "late"}}
    await client.create(LOCAL_QUEUES, {**local, "spec": {"clusterQueue": f"{namespace}-team"}}, namespace)
    await running.running("older", 2)
    await running.put_back("newer")
    await running.calm("older")


async def test_where_the_preemptor_is_deleted_while_its_victim_goes_the_victim_comes_back(running):
    await running.fill("low", annotations=SLOW)
    before = await running.uids("low")
    await running.submit("high", 2, priority="high")
    await running.leaving("low")
    await running.delete("high")

    async def anew():
        found = await running.uids("low")
        return len(found) == 2 and not found & before

    await until(anew, "two other pods of the victim")
    await running.condition("low", "Evicted", "False")
    await running.calm("low")


async def test_where_the_preemptor_is_made_inactive_its_victim_stays(kept):
    await kept.fill("kept")
    before = await kept.uids("kept")
    await kept.submit("high", 2, priority="high")
    await kept.condition("kept", "Evicted", "True", "Preempted")
    await kept.edit_workload("high", active=False)
    await kept.condition("kept", "Evicted", "False")
    assert await kept.uids("kept") == before
    await kept.calm("kept")


async def test_room_that_becomes_free_meanwhile_is_taken_instead_of_a_victims(kept):
    await kept.submit("brief", 1, priority="top")
    await kept.running("brief", 1)
    await kept.submit("kept", 1, priority="low", request={KEYS.unconstrained: "true"})
    await kept.running("kept", 1)
    before = await kept.uids("kept")
    await kept.submit("high", 1, priority="high")
    await kept.condition("kept", "Evicted", "True", "Preempted")
    await kept.finish("brief")
    await kept.running("high", 1)
    await kept.condition("kept", "Evicted", "False", "EvictionBlocked")
    assert await kept.uids("kept") == before
    await kept.calm("kept", "high")


async def test_a_class_that_is_nobodys_victim_stays_and_another_goes(running, client):
    spared = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "spared"}, "value": 1}
    spared["metadata"]["annotations"] = {"topogate.dev/preemptible": "false"}
    await client.apply(PRIORITY_CLASSES, spared, field_manager="test")
    await running.submit("spared", 1, priority="spared")
    await running.running("spared", 1)
    await running.submit("low", 1, priority="low")
    await running.running("low", 1)
    before = await running.uids("spared")
    await running.submit("high", 1, priority="high")
    await running.running("high", 1)
    await running.put_back("low")
    await running.submit("top", 2, priority="top")
    await running.waits("top", "InsufficientQuota")
    assert await running.uids("spared") == before, "less important than who was taken"
    await running.calm("spared", "high")


async def test_who_never_preempts_waits_before_those_of_lower_priority(running, client):
    patient = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "patient"}}
    await client.apply(PRIORITY_CLASSES, {**patient, "value": 3000, "preemptionPolicy": "Never"}, field_manager="test")
    await running.fill("one", "two")
    await running.submit("patient", 1, priority="patient")
    await running.waits("patient", "InsufficientQuota")
    await running.submit("later", 1, priority="low")
    await running.waits("later", "InsufficientQuota")
    await running.calm("one", "two")
    await running.finish("one")
    await running.running("patient", 1)
    await running.calm("patient", "two")
    await running.waits("later", "InsufficientQuota")
