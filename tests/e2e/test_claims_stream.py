"""Jobs whose pods ask for devices of claims come and go; the stock kube-scheduler gives the devices.

``TOPOGATE_CLAIMS=1000 pytest -s tests/e2e/test_claims_stream.py`` makes so many on 200 machines: with Topogate, whose
controller is killed ten times meanwhile, and without a topology request beside it. Each prints one line of what became
of them, and then more. On a busy machine the API server does not always answer, and Jobs come as others are complete.
"""

import asyncio
import os
import re
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial

import pytest
from support.chaos import ALONE, insist
from support.claim_jobs import ClaimJob, equip, mixed
from support.house import NAMESPACE, PREFERRED, REQUIRED, House, house
from support.jobs import KEYS

from kube.informer import Informer
from kube.objects import Job, Pod
from kube.resources import JOBS, PODS, RESOURCE_CLAIMS
from localcluster import Fleet

COUNT = int(os.environ.get("TOPOGATE_CLAIMS", "0"))
KILLS = 10
RATE = 4.0  # Jobs a second, where the machine takes as many
AT_ONCE = 150  # Jobs that are not complete
QUIET = 120.0  # seconds in which nothing is complete after all are made: the rest hangs
FLEET = Fleet(blocks=5, racks=10, hosts=4, gpus=0, cpu="64")
ELSEWHERE = re.compile("nodes are available|node affinity|[Pp]reemption|untolerated taint|not found$")
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

    def reasons(self, plans):
        """How many pods were Unschedulable of which kind, and why, aside from nodes that were not theirs."""
        kinds = {plan.name: plan.kind for plan in plans}
        found = Counter()
        for name, message in self.unschedulable.items():
            parts = re.split(r", |: |\. ", message)
            why = [re.sub(r"^\d+ ", "", one).rstrip(".") for one in parts if not ELSEWHERE.search(one)]
            found[f"{kinds[name.rpartition('-')[0]]}: {'; '.join(dict.fromkeys(why))}"] += 1
        return found

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


@dataclass
class Stream:
    """The Jobs that are made, and what is seen of them."""

    here: House
    plans: list[ClaimJob]
    topology: bool
    complete: set[str] = field(default_factory=set)
    kills: int = 0

    def see(self, event):
        job = event.new
        if job is not None and any(
            one.type == "Complete" and one.status == "True" for one in job.status.conditions or ()
        ):
            self.complete.add(job.metadata.name)

    async def create(self):
        """Make the Jobs, and kill the controller on the way."""
        began, kills = time.monotonic(), {round(len(self.plans) * (at + 1) / (KILLS + 1)) for at in range(KILLS)}
        for number, plan in enumerate(self.plans):
            await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
            until = time.monotonic() + QUIET  # where Jobs hang, the rest comes all the same
            while number - len(self.complete) >= AT_ONCE and time.monotonic() < until:
                await asyncio.sleep(0.2)
            if plan.shared is not None:
                claim = {"metadata": {"name": plan.claim}, "spec": plan.shared}
                await insist(partial(self.here.client.create, RESOURCE_CLAIMS, claim, NAMESPACE))
            await insist(partial(self.here.client.create, JOBS, plan.body(topology=self.topology), NAMESPACE))
            if self.topology and number in kills:
                await self.here.components.kill("ungater")
                self.here.components.spawn("ungater")
                self.kills += 1

    async def end(self):
        """Until all are complete, or none is any more."""
        before, since = len(self.complete), time.monotonic()
        while len(self.complete) < len(self.plans) and time.monotonic() - since < QUIET:
            await asyncio.sleep(1)
            if len(self.complete) != before:
                before, since = len(self.complete), time.monotonic()


@pytest.mark.parametrize("variant", ["topogate", "plain"])
async def test_no_pod_that_was_let_go_waits_for_devices(variant):
    plans = mixed(COUNT, REQUESTS, seed=18, seconds=(20, 80))
    async with house(FLEET, env=ALONE) as here:
        await equip(here.client, FLEET.node_names(), NAMESPACE)
        watch, stream = Watch(), Stream(here, plans, variant == "topogate")
        pods = Informer(here.client, PODS, Pod, namespace=NAMESPACE, on_event=watch.see)
        jobs = Informer(here.client, JOBS, Job, namespace=NAMESPACE, on_event=stream.see)
        tasks = [asyncio.create_task(one) for one in (pods.run(), jobs.run(), watch.sample(pods))]
        await asyncio.gather(pods.wait_synced(), jobs.wait_synced())
        began = time.monotonic()
        try:
            await stream.create()
            await stream.end()
        finally:
            for task in tasks:
                task.cancel()
        alive = [pod for pod in pods.store.values() if pod.status.phase == "Pending"]
        hanging = [pod.metadata.name for pod in alive if not pod.spec.scheduling_gates and not pod.spec.node_name]
        required = [plan.name for plan in plans if plan.request is REQUIRED and plan.pods > 1]
        together = sum(len(watch.racks[name]) == 1 for name in required)
        waits = sorted(at - watch.let_go[uid] for uid, at in watch.bound.items())
        print(
            f"{variant}: {len(stream.complete)} of {len(plans)} Jobs complete after {time.monotonic() - began:.0f} s; "
            f"of {sum(plan.pods for plan in plans)} pods {len(watch.bound)} had a node, {len(hanging)} hang, "
            f"{len(watch.unschedulable)} were Unschedulable for a time {dict(watch.reasons(plans).most_common(8))}; "
            f"{len(watch.apart)} Jobs were half there for 5 s; {together} of {len(required)} in one rack, of those "
            f"that want one; {stream.kills} kills"
        )
        print(f"  from let go to a node: {waits[len(waits) // 2]:.2f} s (median), {waits[-1]:.1f} s (most)")
        for name, why in list(watch.unschedulable.items())[:20] if variant == "topogate" else ():
            print(f"  {name}: {why}")
        print(f"  let go and without a node at the end: {hanging}", flush=True)
        for plan in plans if variant == "topogate" else ():
            if plan.name not in stream.complete:
                print(f"  {plan}\n{(await here.run('explain', plan.name)).stdout}", flush=True)
        if variant == "topogate":
            assert hanging == []
            assert len(stream.complete) == len(plans), [pod.metadata.name for pod in alive]
            assert together == len(required)
