"""A filter of kube-scheduler that Topogate does not know costs seconds, and not GPUs.

An HTTP extender refuses a third of the nodes to a third of the kinds of pods, and changes its mind. All Jobs complete,
and no pod stays where it is refused.

``TOPOGATE_UNKNOWN_FILTER=1000 pytest -s -p no:xdist tests/e2e/test_unknown_filter.py`` makes so many Jobs, and beside
that run the same with a filter that the pods know of by their node affinity: each prints one line.
"""

import asyncio
import os
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial

import pytest
from support.chaos import ALONE, insist
from support.extender import KIND, Extender, extender
from support.house import NAMESPACE, REQUIRED, House, house, user_job
from support.jobs import GPU

from kube.informer import Informer
from kube.objects import Job, Pod
from kube.resources import JOBS, PODS
from localcluster import Fleet, Options
from ungater.model.unscheduled import words_about

COUNT = int(os.environ.get("TOPOGATE_UNKNOWN_FILTER", "0"))
FLEET = Fleet(blocks=2, racks=4, hosts=4, gpus=8)
GPUS = 2 * 4 * 4 * 8
KINDS = 9
AT_ONCE = 40  # Jobs that are not complete
CHANGES = 30.0  # seconds after which it changes its mind
QUIET = 180.0  # seconds in which nothing is complete: the rest hangs

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600 + 4 * COUNT),
    pytest.mark.skipif(not COUNT, reason="TOPOGATE_UNKNOWN_FILTER is not set"),
]


@dataclass
class Seen:
    """What was seen of pods and Jobs."""

    complete: set[str] = field(default_factory=set)
    racks: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    refused_at: dict[str, float] = field(default_factory=dict)  # pods that are refused now, by uid
    hung: list[float] = field(default_factory=list)  # for how long each was that is not any more
    used: list[int] = field(default_factory=list)  # GPUs, each half second

    def pod(self, event):
        pod, now = event.new, time.monotonic()
        uid = (pod or event.old).metadata.uid
        if pod is not None and pod.spec.node_name and pod.status.phase in {"Pending", "Running"}:
            self.racks[pod.metadata.labels["batch.kubernetes.io/job-name"]].add(pod.spec.node_name.rpartition("-")[0])
        if pod is not None and not pod.spec.node_name and words_about(pod) is not None:
            self.refused_at.setdefault(uid, now)
        elif uid in self.refused_at:
            self.hung.append(now - self.refused_at.pop(uid))

    def job(self, event):
        job = event.new
        if job is not None and any(
            one.type == "Complete" and one.status == "True" for one in job.status.conditions or ()
        ):
            self.complete.add(job.metadata.name)

    async def sample(self, pods):
        while True:
            running = [pod for pod in pods.store.values() if pod.status.phase == "Running"]
            limits = (one.resources.limits or {} for pod in running for one in pod.spec.containers or ())
            self.used.append(sum(int(found.get(GPU, 0)) for found in limits))
            await asyncio.sleep(0.5)


def made(number: int, filters: Extender, *, known: bool):
    """One Job of a kind; where the filter is known, its pods keep off the nodes that are refused to it."""
    dice = random.Random(f"job {number}")
    kind, pods = f"k{dice.randrange(KINDS)}", dice.choice((1, 2, 2, 4))
    gpus = dice.choice((4, 8)) if pods < 4 else 4  # half a rack at most: no rack has all nodes of one that refuses some
    spec = {}
    if known and (out := filters.refused_nodes(kind, FLEET.names())):
        wish = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": out}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [wish]}]}
        spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}
    body = user_job(f"job-{number}", pods, REQUIRED, gpus=gpus, pod_spec=spec)
    meta = {"labels": {KIND: kind}, "annotations": {"topogate.dev/run-seconds": str(dice.randint(5, 15))}}
    body["spec"]["template"]["metadata"] = meta
    body["spec"]["backoffLimit"] = 0  # nothing that is done about a pod counts as a failure
    return body


async def submit(here: House, filters: Extender, seen: Seen, *, known: bool) -> None:
    """Make the Jobs, as others are complete."""
    for number in range(COUNT):
        until = time.monotonic() + QUIET
        while number - len(seen.complete) >= AT_ONCE and time.monotonic() < until:
            await asyncio.sleep(0.1)
        await insist(partial(here.client.create, JOBS, made(number, filters, known=known), NAMESPACE))


async def complete(seen: Seen) -> None:
    """Until all are, or none is any more."""
    before, since = len(seen.complete), time.monotonic()
    while len(seen.complete) < COUNT and time.monotonic() - since < QUIET:
        await asyncio.sleep(0.5)
        if len(seen.complete) != before:
            before, since = len(seen.complete), time.monotonic()


async def change(filters: Extender) -> None:
    while True:
        await asyncio.sleep(CHANGES)
        filters.change_mind()


@pytest.mark.parametrize("variant", ["unknown", "known"])
async def test_an_unknown_filter_costs_seconds_and_not_gpus(variant):
    known = variant == "known"
    async with (
        extender(seed=36) as filters,
        house(FLEET, options=Options(scheduler_extenders=[filters.url]), env=ALONE) as here,
    ):
        seen = Seen()
        pods = Informer(here.client, PODS, Pod, namespace=NAMESPACE, on_event=seen.pod)
        jobs = Informer(here.client, JOBS, Job, namespace=NAMESPACE, on_event=seen.job)
        tasks = [asyncio.create_task(one) for one in (pods.run(), jobs.run(), seen.sample(pods))]
        if not known:  # one that is known says beforehand what it refuses
            tasks.append(asyncio.create_task(change(filters)))
        await asyncio.gather(pods.wait_synced(), jobs.wait_synced())
        began = time.monotonic()
        try:
            await submit(here, filters, seen, known=known)
            await complete(seen)
        finally:
            for task in tasks:
                task.cancel()
        took = time.monotonic() - began
        hung = sorted(seen.hung) or [0.0]
        apart = sum(len(racks) != 1 for racks in seen.racks.values())
        print(
            f"{variant}: {len(seen.complete)} of {COUNT} Jobs complete in {took:.0f} s; GPUs in use on average "
            f"{100 * sum(seen.used) / max(1, len(seen.used)) / GPUS:.0f}%; {filters.refused} times the filter left a "
            f"pod no node; {len(seen.hung)} pods were refused, for {hung[len(hung) // 2]:.1f} s (median), "
            f"{hung[-1]:.1f} s (most); {apart} Jobs were in several racks in turn",
            flush=True,
        )
        for number in range(COUNT):
            if f"job-{number}" not in seen.complete:
                print((await here.run("explain", f"job-{number}")).stdout, flush=True)
        assert len(seen.complete) == COUNT
        assert seen.refused_at == {}
        assert known or filters.refused, "nothing was refused, so nothing was shown"
