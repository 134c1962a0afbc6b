"""Queues when the controller is killed: what was stored is what goes on."""

import asyncio
import random

import pytest
from support.cluster_checker import snapshot, violations
from support.faults import FaultProxy, through
from support.jobs import KEYS, Running, install_crds, make_flavor, until
from support.queues import Queued, make_priorities, make_queue

from kube.connection import config
from kube.resources import CLUSTER_QUEUES, RESOURCE_FLAVORS, WORKLOADS

pytestmark = pytest.mark.cluster


@pytest.fixture
async def jobs(client, namespace, nodes):
    """A queue of two hosts' GPUs where the high ones preempt; every test ends with the independent checker."""
    await install_crds(client)
    await nodes(blocks=1, racks=1, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    await make_priorities(client)
    within = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    await make_queue(client, namespace, "team", 16, flavors=(namespace,), **within)
    yield Queued(client, namespace)
    assert violations(await snapshot(client, {namespace})) == []
    await client.delete(CLUSTER_QUEUES, f"{namespace}-team")
    await client.delete(RESOURCE_FLAVORS, namespace)


def controller(client):
    return Running(client, requeuing_backoff_base_seconds=1.0)


async def test_a_plan_that_was_stored_is_carried_out_by_the_next_controller(jobs, client, namespace):
    """Killed between the plan's record and the first eviction: the record alone is there."""
    async with controller(client):
        await jobs.submit("low", 2, priority="low")
        await jobs.running("low", 2)
    await jobs.submit("high", 2, priority="high")
    victim = await jobs.workload("low")
    async with controller(client):
        await until(lambda: _nominated(jobs), "the plan")
    found = await jobs.workload("high")
    nomination = found["status"].get("nomination")
    if nomination is None:  # it was faster than we looked
        await jobs.running("high", 2)
        return
    assert [one["uid"] for one in nomination["victims"]] == [victim["metadata"]["uid"]]
    assert nomination["clusterQueue"] == f"{namespace}-team"
    async with controller(client):
        await jobs.running("high", 2)
        assert "nomination" not in await jobs.status("high")
        await jobs.empty("low")
        assert "come" in (await jobs.condition("low", "Preempted", "True", "InClusterQueue"))["message"]


async def _nominated(jobs):
    status = await jobs.status("high")
    return "nomination" in status or "admission" in status


@pytest.fixture
async def refusing(cluster):
    """A client whose evictions of pods of the job ``low`` are refused, and what refuses them."""
    real = await config.load(str(cluster.kubeconfig))
    async with FaultProxy(real.url, real.tls).serve() as proxy, await through(proxy, cluster) as ours:
        yield ours, proxy.refuse_evictions("low")


async def test_a_plan_waits_for_a_budget_over_a_restart_and_then_goes_on(jobs, refusing):
    ours, refusal = refusing
    async with controller(ours):
        await jobs.submit("low", 2, priority="low")
        await jobs.running("low", 2)
        await jobs.submit("high", 1, priority="high")
        await jobs.condition("low", "Evicted", "True", "Preempted")
        await jobs.waits("high", "Preempting")
    async with controller(ours):
        await asyncio.sleep(1)
        await jobs.running("low", 2)
        await jobs.submit("other", 1, priority="low")
        await jobs.waits("other", "InsufficientQuota")
        refusal.times = 0
        await jobs.running("high", 1)
        await jobs.running("other", 1)


async def test_where_the_job_that_wanted_the_room_is_deleted_its_victim_stays(jobs, refusing):
    ours, _ = refusing
    async with controller(ours):
        await jobs.submit("low", 2, priority="low")
        before = await jobs.running("low", 2)
        await jobs.submit("high", 1, priority="high")
        await jobs.condition("low", "Evicted", "True", "Preempted")
        await jobs.delete("high")
        stays = await jobs.condition("low", "Evicted", "False", "QuotaReserved")
        assert "nobody waits for its room" in stays["message"]
        after = await jobs.running("low", 2)
        assert {pod["metadata"]["uid"] for pod in after} == {pod["metadata"]["uid"] for pod in before}


async def test_what_was_admitted_and_not_started_is_started(jobs, client, namespace):
    running = controller(client)
    await jobs.submit("one", 2)
    async with running:
        await until(lambda: _admitted(jobs, "one"), "the admission")
    stored = (await jobs.status("one"))["admission"]
    async with running:
        await jobs.running("one", 2)
    assert (await jobs.status("one"))["admission"] == stored
    async with running:
        await jobs.edit("one", suspend=True)
        await jobs.event("one", "Suspended")  # a condition of it is gone as soon as it is admitted again
    async with running:
        await jobs.running("one", 2)


async def _admitted(jobs, name):
    return "admission" in await jobs.status(name)


async def test_after_a_restart_nothing_is_written_and_no_pod_moves(jobs, client, namespace):
    running = controller(client)
    async with running:
        await jobs.submit("calm", 2)
        await jobs.running("calm", 2)
        await jobs.condition("calm", "PodsReady", "True")
        await jobs.submit("waits", 1)
        await jobs.waits("waits", "InsufficientQuota")
    before = await snapshot(client, {namespace})
    async with running:
        await asyncio.sleep(5)  # longer than a lazy write is put off
    after = await snapshot(client, {namespace})
    for kind in ("workloads", "jobs"):
        versions = [[obj["metadata"]["resourceVersion"] for obj in found[kind]] for found in (before, after)]
        assert versions[0] == versions[1]


async def test_a_template_edited_while_nobody_watched_is_what_the_job_is_put_back_to(jobs, client, namespace):
    async with controller(client):
        await jobs.submit("runs", 2, priority="low")
        await jobs.running("runs", 2)
        await jobs.submit("waits", 1)
        await jobs.waits("waits", "InsufficientQuota")
    node = f"{namespace}-b1-r1-h2"
    pinned = {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}}
    await jobs.edit("waits", **pinned)
    async with controller(client):

        async def copied():
            template = (await jobs.workload("waits"))["spec"]["podSets"][0]["template"]["spec"]
            return template.get("nodeSelector") == pinned["template"]["spec"]["nodeSelector"]

        await until(copied, "the edited template in the Workload")
        await jobs.finish("runs")
        (pod,) = await jobs.running("waits", 1)
        assert pod["spec"]["nodeName"] == node
        await jobs.edit_workload("waits", active=False)
        await jobs.empty("waits")
        template = (await jobs.job("waits"))["spec"]["template"]["spec"]
        assert template["nodeSelector"] == pinned["template"]["spec"]["nodeSelector"]


async def test_killed_at_random_moments_every_job_gets_its_turn(jobs, client, namespace):
    choose, running = random.Random(5), controller(client)
    names = [f"j{number}" for number in range(5)]
    for number, name in enumerate(names):
        priority = choose.choice(["low", "high"])
        pods = choose.choice([1, 2])
        await jobs.submit(name, pods, priority=priority, request={KEYS.unconstrained: "true"})
        await running.start()
        await asyncio.sleep(choose.uniform(0.0, 1.2))
        await running.crash()
        assert violations(await snapshot(client, {namespace})) == [], number
    async with running:
        left = set(names)
        while left:
            name = await until(lambda: _first_that_runs(jobs, left), f"one of {sorted(left)} to run", seconds=90)
            await jobs.finish(name)
            left.discard(name)
    for found in await client.list(WORKLOADS, namespace):
        assert found["status"].get("nomination") is None


async def _first_that_runs(jobs, names):
    for name in sorted(names):
        want = (await jobs.job(name))["spec"]["parallelism"]
        if len(await jobs.pods(name, phase="Running")) == want:
            return name
    return None
