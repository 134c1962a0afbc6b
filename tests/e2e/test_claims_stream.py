"""Jobs whose pods ask for devices of claims come and go; the stock kube-scheduler gives the devices.

``TOPOGATE_CLAIMS=1000 pytest -s tests/e2e/test_claims_stream.py`` makes so many on 200 machines: with Topogate, whose
controller is killed ten times meanwhile, and without a topology request beside it. Each prints what became of them.
"""

import asyncio
import os
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import pytest
from support.chaos import ALONE, insist
from support.claim_jobs import equip, mixed
from support.house import NAMESPACE, PREFERRED, REQUIRED, house
from support.jobs import KEYS

from kube.errors import KubeError
from kube.informer import Informer
from kube.objects import Pod
from kube.resources import JOBS, PODS, RESOURCE_CLAIMS
from localcluster import Fleet

COUNT = int(os.environ.get("TOPOGATE_CLAIMS", "0"))
KILLS = 10
RATE = 4.0  # Jobs a second, where the machine takes as many
FLEET = Fleet(blocks=5, racks=10, hosts=4, gpus=0, cpu="64")
REQUESTS = [REQUIRED, PREFERRED, {KEYS.unconstrained: "true"}]

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(1200 + 3 * COUNT),
    pytest.mark.skipif(not COUNT, reason="TOPOGATE_CLAIMS is not set"),
]


@dataclass
class Watch:
    """What was seen of pods, by uid, and of their Jobs by name."""

    let_go: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)
    unschedulable: dict[str, str] = field(default_factory=dict)  # let go, and why kube-scheduler had no node then
    partly: dict[str, float] = field(default_factory=dict)  # since when some pods of a Job have a node, and others not
    apart: set[str] = field(default_factory=set)  # for five seconds or more
    racks: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def see(self, event):
        pod = event.new
        if pod is None:
            return
        uid, now = pod.metadata.uid, time.monotonic()
        if pod.spec.scheduling_gates:
            return
        self.let_go.setdefault(uid, now)
        if pod.spec.node_name:
            self.bound.setdefault(uid, now)
            job = pod.metadata.labels["batch.kubernetes.io/job-name"]
            self.racks[job].add(pod.spec.node_name.rpartition("-")[0])
            return
        for one in pod.status.conditions or ():
            if one.reason == "Unschedulable":
                self.unschedulable[pod.metadata.name] = one.message

    async def sample(self, pods):
        """Look for Jobs that are half there, each second."""
        while True:
            self._look(pods.store.values())
            await asyncio.sleep(1)

    def _look(self, pods):
        nodes = defaultdict(set)
        for pod in pods:
            if pod.status.phase in {"Pending", "Running"}:
                nodes[pod.metadata.labels["batch.kubernetes.io/job-name"]].add(bool(pod.spec.node_name))
        now = time.monotonic()
        self.partly = {job: self.partly.get(job, now) for job, found in nodes.items() if len(found) == 2}
        self.apart |= {job for job, since in self.partly.items() if now - since >= 5}


@pytest.mark.parametrize("variant", ["topogate", "plain"])
async def test_no_pod_that_was_let_go_waits_for_devices(variant):
    plans = mixed(COUNT, REQUESTS, seed=18, seconds=(20, 80))
    async with house(FLEET, env=ALONE) as here:
        client = here.client
        await equip(client, FLEET.names(), NAMESPACE)
        watch = Watch()
        pods = Informer(client, PODS, Pod, namespace=NAMESPACE, on_event=watch.see)
        tasks = [asyncio.create_task(pods.run()), asyncio.create_task(watch.sample(pods))]
        await pods.wait_synced()
        began = time.monotonic()
        try:
            await _create(here, plans, topology=variant == "topogate")
            ended = await _ended(here.client, began + 300 + 2 * COUNT)
        finally:
            for task in tasks:
                task.cancel()
        alive = [pod for pod in pods.store.values() if pod.status.phase == "Pending"]
        hanging = [pod.metadata.name for pod in alive if not pod.spec.scheduling_gates and not pod.spec.node_name]
        waits = sorted(at - watch.let_go[uid] for uid, at in watch.bound.items())
        required = [plan.name for plan in plans if plan.request is REQUIRED and plan.pods > 1]
        together = sum(len(watch.racks[name]) == 1 for name in required)
        print(f"{variant}: {len(plans)} Jobs of {sum(plan.pods for plan in plans)} pods on {len(FLEET)} machines")
        print(f"  {time.monotonic() - began:.0f} s: {ended} complete, {len(watch.bound)} pods had a node")
        print(f"  let go and without a node at the end: {hanging}")
        print(f"  Unschedulable after they were let go: {len(watch.unschedulable)} pods")
        if variant == "topogate":
            kinds = {plan.name: plan.kind for plan in plans}
            for name, why in list(watch.unschedulable.items())[:20]:
                print(f"    {name} ({kinds[name.rpartition('-')[0]]}): {why}")
        print(f"  from let go to a node: {waits[len(waits) // 2]:.2f} s (median), {waits[-1]:.1f} s (most)")
        print(f"  some pods with devices for five seconds or more, others without: {len(watch.apart)} Jobs")
        print(f"  in one rack, of Jobs that want one: {together} of {len(required)}", flush=True)
        if variant == "topogate":
            assert hanging == []
            assert ended == len(plans), [pod.metadata.name for pod in alive]
            assert all(len(watch.racks[name]) == 1 for name in required)


async def _create(here, plans, *, topology):
    """Make the Jobs, and kill the controller on the way."""
    began, kills = time.monotonic(), {round(COUNT * (number + 1) / (KILLS + 1)) for number in range(KILLS)}
    for number, plan in enumerate(plans):
        await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
        if plan.shared is not None:
            claim = {"metadata": {"name": plan.claim}, "spec": plan.shared}
            await insist(partial(here.client.create, RESOURCE_CLAIMS, claim, NAMESPACE))
        await insist(partial(here.client.create, JOBS, plan.body(topology=topology), NAMESPACE))
        if topology and number in kills:
            await here.components.kill("ungater")
            here.components.spawn("ungater")


async def _ended(client, until):
    """How many Jobs are complete, once all are or nothing more is waited for."""
    done = 0
    while True:
        with suppress(KubeError):  # on a busy machine the API server does not always answer
            jobs = await client.list(JOBS, NAMESPACE)
            done = sum(map(_complete, jobs))
            if done == len(jobs):
                return done
        if time.monotonic() > until:
            return done
        await asyncio.sleep(5)


def _complete(job):
    conditions = job["status"].get("conditions") or ()
    return any(one["type"] == "Complete" and one["status"] == "True" for one in conditions)
