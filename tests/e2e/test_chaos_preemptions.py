"""Important jobs come to a full cluster of machines with NUMA zones, and the controller is killed on the way.

All of them land aligned, every budget holds, and who was evicted is who the stored plans say, none of them in vain.

A witness reads every change from etcd and judges each of them (`support.witness`, `support.preemptions`). The same run
in full, 50 preemptors and ten kills: ``TOPOGATE_CHAOS=full pytest -s tests/e2e/test_chaos_preemptions.py``.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass

import pytest
from support.chaos import ALONE, ASKED, FULL, gets_on, witnessed
from support.cluster_checker import name_of, owner_of, settled, violations
from support.etcd_events import STORING_JSON
from support.house import NAMESPACE, PREFERRED, REQUIRED, house, user_job
from support.jobs import GPU, KEYS, until

from kube.resources import CLUSTER_QUEUES, FLEX_TOPOS, JOBS, LOCAL_QUEUES, POD_DISRUPTION_BUDGETS, PRIORITY_CLASSES
from localcluster import Fleet, Options
from localcluster.kubelets.fleet import Publishing
from localcluster.process import log_tail

SEED = 7
ZONE = 4  # GPUs of one NUMA zone, two of which make a machine
PRIORITIES = {"spare": 10, "low": 20, "usual": 30, "urgent": 500, "first": 1000}
PREEMPTORS = ((1, 4, REQUIRED), (1, 2, PREFERRED), (2, 2, REQUIRED), (1, 4, PREFERRED), (1, 2, REQUIRED))


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    fleet: Fleet
    preemptors: int
    kills: int
    writes: int  # of the controller, at most, between two kills
    settle_seconds: int

    @property
    def zones(self):
        return 2 * len(self.fleet)


def machines(racks):
    return Fleet(
        blocks=1,
        racks=racks,
        hosts=4,
        machine="2 sockets / 2 NUMA / 64 cores / 8 GPUs",
        kubelet="single-numa-node, pod",
    )


SIZE = Size(machines(7), 50, 10, 45, 1200) if FULL else Size(machines(2), 12, 3, 25, 300)

pytestmark = [ASKED, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(3600 if FULL else 600)]


async def test_preemptors_land_and_nobody_goes_in_vain_though_the_controller_is_killed_on_the_way():
    options = Options(extra_args=STORING_JSON)
    env = {"TOPOGATE_EVICTION_PATIENCE_SECONDS": "2", **ALONE}
    async with house(SIZE.fleet, options=options, env=env) as here, witnessed(here) as (seen, events):
        choose, began = random.Random(SEED), time.monotonic()
        seen.preemptions.zone, seen.preemptions.quota = ZONE, SIZE.zones * ZONE
        await set_up(here)
        await fill(here, seen, choose)
        await protect(here, seen)
        print(f"{time.monotonic() - began:.1f} s: full, {len(seen.jobs)} jobs with {len(seen.pods)} pods", flush=True)
        submitting = asyncio.create_task(preempt(here))
        for _ in range(SIZE.kills):
            pid, moment = here.components.pid("ungater"), choose.randint(3, SIZE.writes)
            await gets_on(seen, moment, lambda pid=pid: os.kill(pid, signal.SIGKILL))
            await here.components.kill("ungater")  # waits until it is gone
            print(f"{time.monotonic() - began:.1f} s: ungater killed; {len(seen.preemptions.plans)} plans", flush=True)
            assert seen.wrong == [], seen.wrong
            here.components.spawn("ungater")
        await submitting
        await landed(here, seen)
        await events.caught_up()
        print(f"{time.monotonic() - began:.1f} s: {told(seen)}", flush=True)
        judge(seen)
        before = len(seen.preemptions.plans), sum(seen.preemptions.evicted.values())
        await asyncio.sleep(5)
        assert before == (len(seen.preemptions.plans), sum(seen.preemptions.evicted.values())), "it goes on for ever"


# --- the play --------------------------------------------------------------------------------------------------------


async def set_up(here):
    """Kubelets for the machines, priorities, and one queue with a quota of exactly what there is."""
    await asyncio.to_thread(here.cluster.play_kubelets, Publishing(delay=(0.05, 0.3)))
    for name, value in PRIORITIES.items():
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        await here.client.create(PRIORITY_CLASSES, {**body, "value": value})
    quotas = {GPU: str(SIZE.zones * ZONE), "cpu": "100k", "memory": "100Ti"}
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quotas.items()]
    group = {"coveredResources": list(quotas), "flavors": [{"name": "tas", "resources": resources}]}
    spec = {
        "resourceGroups": [group],
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    api = "topogate.dev/v1alpha1"
    await here.client.create(
        CLUSTER_QUEUES, {"apiVersion": api, "kind": "ClusterQueue", "metadata": {"name": "gpu"}, "spec": spec}
    )
    local = {"apiVersion": api, "kind": "LocalQueue", "metadata": {"name": "team"}, "spec": {"clusterQueue": "gpu"}}
    await here.client.create(LOCAL_QUEUES, local, NAMESPACE)

    async def published():
        return sum("status" in found for found in await here.client.list(FLEX_TOPOS)) == len(SIZE.fleet)

    await until(published, "the insides of all machines")
    await asyncio.sleep(1)  # the controller has seen them


def job(name, shape, priority, app="any"):
    """A job of guaranteed pods in the queue; ``shape``: pods, GPUs of each, and what it asks for."""
    pods, gpus, request = shape
    body = user_job(name, pods, request, gpus=gpus)
    amounts = {GPU: str(gpus), "cpu": str(4 * gpus), "memory": f"{4 * gpus}Gi"}
    template = body["spec"]["template"]
    template["metadata"] = {"labels": {"app": app}}
    template["spec"]["containers"][0]["resources"] = {"limits": amounts, "requests": amounts}
    template["spec"]["priorityClassName"] = priority
    body["metadata"]["labels"] = {KEYS.queue_name: "team"}
    return body


async def fill(here, seen, choose):
    """Jobs of little importance until every zone is full, the large ones first."""
    pods = Counter()
    for _ in range(SIZE.zones):
        pods.update(choose.choice([(4,), (2, 2), (2, 1, 1), (2, 1, 1), (1, 1, 1, 1)]))
    number = 0
    for gpus in sorted(pods, reverse=True):
        left = pods[gpus]
        while left:
            gang = min(left, choose.choice([1, 1, 2, 3] if gpus < 4 else [1, 2]))
            app = "kept" if number % 9 == 4 else "some" if number % 3 == 1 else "any"
            gang = gang if app == "any" else 1  # one pod each, so that a budget lets some of the jobs go and some not
            priority = choose.choice(["spare", "low", "usual"])
            await here.client.create(JOBS, job(f"l{number}", (gang, gpus, PREFERRED), priority, app), NAMESPACE)
            number, left = number + 1, left - gang

    async def full():
        return len(seen.jobs) == number and not waiting(seen) and not settled(seen.cluster({NAMESPACE}))

    await arrive(here, seen, full, "the cluster to be full")


async def protect(here, seen):
    """One budget that lets nobody go, one that lets half of its pods go."""
    apps = Counter(pod["metadata"]["labels"]["app"] for pod in seen.pods.values())
    allowed = {"kept": 0, "some": apps["some"] // 2}
    for app, go in allowed.items():
        spec = {"minAvailable": apps[app] - go, "selector": {"matchLabels": {"app": app}}}
        body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": app}, "spec": spec}
        await here.client.create(POD_DISRUPTION_BUDGETS, body, NAMESPACE)

    async def counted():
        said = {budget["metadata"]["name"]: budget.get("status", {}) for budget in seen.budgets.values()}
        return all(
            said.get(app, {}).get("currentHealthy") == apps[app] and said[app].get("disruptionsAllowed") == go
            for app, go in allowed.items()
        )

    await until(counted, "the budgets to count")


async def preempt(here):
    for number in range(SIZE.preemptors):
        shape = PREEMPTORS[number % len(PREEMPTORS)]
        priority = "urgent" if number % 4 == 2 else "first"
        await here.client.create(JOBS, job(f"p{number}", shape, priority), NAMESPACE)


def waiting(seen):
    """Jobs that are suspended."""
    return [name_of(found) for found in seen.jobs.values() if found["spec"].get("suspend")]


async def landed(here, seen):
    """Wait until all preemptors run and nothing is under way."""

    async def all_run():
        late = [name for name in waiting(seen) if name.startswith(f"{NAMESPACE}/p")]
        if late or seen.preemptions.active() or settled(seen.cluster({NAMESPACE})):
            return False
        return all(plan.judged for plan in seen.preemptions.plans)

    await arrive(here, seen, all_run, "all preemptors to run", SIZE.settle_seconds)


async def arrive(here, seen, condition, what, seconds=300):
    async def done():
        assert seen.wrong == []
        return await condition()

    try:
        await until(done, what, seconds=seconds)
    except AssertionError as error:
        text = [name_of(found) for found in seen.workloads.values() if "admission" not in found.get("status", {})]
        log = log_tail(here.components.log("ungater"))
        cluster = settled(seen.cluster({NAMESPACE}))
        raise AssertionError(f"{error}: {cluster}\n{text}\n{told(seen)}\n{seen.wrong}\n{log}") from None


# --- the judgement ---------------------------------------------------------------------------------------------------


def told(seen):
    found = seen.preemptions
    return (
        f"{len(found.plans)} plans {dict(Counter(plan.outcome for plan in found.plans))} with "
        f"{sum(len(plan.victims) for plan in found.plans)} victims; {sum(found.evicted.values())} pods of "
        f"{len(found.evicted)} jobs evicted, requeued {sum(found.requeued.values())} times; refused by kubelets "
        f"{len(found.refused)}; late evictions {len(found.late)}; preemptors that made room themselves before they ran "
        f"{sum(plan.overtaken for plan in found.plans)}; {seen.seen} changes judged; wrong: {seen.wrong}; "
        f"still open: {[plan for plan in found.plans if not plan.judged]}"
    )


def judge(seen):
    preemptions = seen.preemptions
    assert seen.wrong == [], seen.wrong
    assert violations(seen.cluster({NAMESPACE})) == []
    assert preemptions.refused == []
    workloads = {owner_of(workload): workload for workload in seen.workloads.values()}
    mine = [workloads[uid] for uid, found in seen.jobs.items() if found["metadata"]["name"].startswith("p")]
    assert len(mine) == SIZE.preemptors
    for workload in mine:
        assert preemptions.aligned(workload) == []
    carried_out = [plan for plan in preemptions.plans if plan.outcome == "admitted"]
    victims = {uid for plan in carried_out for uid in plan.victims}
    assert len(victims) >= SIZE.preemptors // 2
    # A plan that a budget ended after all may have cost others of its victims their pods: those go on leaving.
    begun = {uid for plan in preemptions.plans if plan.outcome == "given up" for uid in plan.victims}
    assert victims <= set(preemptions.requeued) <= victims | begun, "who made room is who the plans say"
    assert set(preemptions.evicted) <= victims | begun  # who was admitted a moment ago may have no pod yet that runs
    assert preemptions.late == []
    assert not (vain := preemptions.in_vain()), "\n".join(vain)
    assert all(found["status"].get("failed", 0) == 0 for found in seen.jobs.values()), "an eviction is no failure"
