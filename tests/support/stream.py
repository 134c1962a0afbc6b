"""A stream of Jobs on a cluster with something in it that Topogate does not know, and what becomes of them."""

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from support.chaos import insist
from support.house import NAMESPACE, House
from support.jobs import GPU

from kube.informer import Event, Informer
from kube.objects import Job, Pod
from kube.resources import JOBS, PODS
from localcluster import Fleet
from ungater.model.unscheduled import words_about

FLEET = Fleet(blocks=2, racks=4, hosts=4, gpus=8)
GPUS = 2 * 4 * 4 * 8
AT_ONCE = 40  # Jobs that are not complete
# A pod may be bound to a slot that moved as the pods after it were made otherwise: it is deleted as they are let go.
MOMENT = 1.0
QUIET = 180.0  # seconds in which nothing is complete: the rest hangs
Json = dict[str, Any]


@dataclass
class Seen:
    """What was seen of pods and Jobs. ``looks``: what else looks at each event of a pod."""

    began: float = field(default_factory=time.monotonic)
    complete: dict[str, float] = field(default_factory=dict)  # Jobs, and after how many seconds
    racks: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by Job, at any time
    now: defaultdict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))  # by Job and pod
    split: dict[str, float] = field(default_factory=dict)  # Jobs that are in several racks now, and since when
    apart: set[str] = field(default_factory=set)  # Jobs that were in several racks at once, for more than a moment
    refused_at: dict[str, float] = field(default_factory=dict)  # pods that are refused now, by uid
    hung: list[float] = field(default_factory=list)  # for how long each was that is not any more
    words: Counter[str] = field(default_factory=Counter)  # of kube-scheduler about them
    used: list[int] = field(default_factory=list)  # GPUs, each half second
    looks: list[Callable[[Event[Pod]], None]] = field(default_factory=list)

    def pod(self, event: Event[Pod]) -> None:
        pod, now = event.new, time.monotonic()
        uid = (pod or event.old).metadata.uid
        job = (pod or event.old).metadata.labels["batch.kubernetes.io/job-name"]
        self.now[job].pop(uid, None)
        if pod is not None and pod.spec.node_name and pod.status.phase in {"Pending", "Running"}:
            rack = pod.spec.node_name.rpartition("-")[0]
            self.racks[job].add(rack)
            if pod.metadata.deletion_timestamp is None:  # those of a gang that moves may still stop as the next begin
                self.now[job][uid] = rack
        if len(set(self.now[job].values())) > 1:
            self.split.setdefault(job, now)
        else:
            self.split.pop(job, None)
        if pod is not None and not pod.spec.node_name and (words := words_about(pod)) is not None:
            if uid not in self.refused_at:
                self.words[words] += 1
            self.refused_at.setdefault(uid, now)
        elif uid in self.refused_at:
            self.hung.append(now - self.refused_at.pop(uid))
        for look in self.looks:
            look(event)

    def job(self, event: Event[Job]) -> None:
        job = event.new
        if job is not None and any(
            one.type == "Complete" and one.status == "True" for one in job.status.conditions or ()
        ):
            self.complete.setdefault(job.metadata.name, time.monotonic() - self.began)

    async def sample(self, pods: Informer[Pod]) -> None:
        while True:
            running = [pod for pod in pods.store.values() if pod.status.phase == "Running"]
            limits = (
                one.resources.limits or {} for pod in running for one in pod.spec.containers or () if one.resources
            )
            now = time.monotonic()
            self.apart |= {job for job, since in self.split.items() if now - since > MOMENT}
            self.used.append(sum(int(found.get(GPU, 0)) for found in limits))
            await asyncio.sleep(0.5)

    def told(self) -> str:
        """What became of the Jobs, in words."""
        after = sorted(self.complete.values()) or [0.0]
        most_of_them = after[len(after) * 9 // 10 - 1]
        hung = sorted(self.hung) or [0.0]
        median, most = f"{hung[len(hung) // 2]:.1f} s (median)", f"{hung[-1]:.1f} s (most)"
        several = sum(len(racks) != 1 for racks in self.racks.values())
        why = "".join(f", {many} times as {words}" for words, many in self.words.most_common(4))
        return (
            f"GPUs in use on average {100 * sum(self.used) / max(1, len(self.used)) / GPUS:.0f}%, in {after[-1]:.0f} s "
            f"(nine tenths of the Jobs: {most_of_them:.0f} s); "
            f"{len(self.hung)} pods were refused, for {median}, {most}{why}; "
            f"{several} Jobs were in several racks in turn, {len(self.apart)} at once"
        )


@contextlib.asynccontextmanager
async def watching(here: House, seen: Seen) -> AsyncIterator[None]:
    """``seen`` is told of all pods and Jobs meanwhile."""
    pods = Informer(here.client, PODS, Pod, namespace=NAMESPACE, on_event=seen.pod)
    jobs = Informer(here.client, JOBS, Job, namespace=NAMESPACE, on_event=seen.job)
    tasks = [asyncio.create_task(one) for one in (pods.run(), jobs.run(), seen.sample(pods))]
    try:
        await asyncio.gather(pods.wait_synced(), jobs.wait_synced())
        yield
    finally:
        for task in tasks:
            task.cancel()


async def live_through(here: House, made: Iterable[Callable[[], Json]], seen: Seen) -> None:
    """Make the Jobs, as others are complete, until all are, or none is any more. What is not complete is explained."""
    seen.began, names = time.monotonic(), []
    for number, make in enumerate(made):
        until = time.monotonic() + QUIET
        while number - len(seen.complete) >= AT_ONCE and time.monotonic() < until:
            await asyncio.sleep(0.1)
        body = make()
        names.append(body["metadata"]["name"])
        await insist(partial(here.client.create, JOBS, body, NAMESPACE))
    before, since = len(seen.complete), time.monotonic()
    while len(seen.complete) < len(names) and time.monotonic() - since < QUIET:
        await asyncio.sleep(0.5)
        if len(seen.complete) != before:
            before, since = len(seen.complete), time.monotonic()
    for name in names:
        if name not in seen.complete:
            print((await here.run("explain", name)).stdout, flush=True)


class Paid:
    """What pods take that were let go of one queue, by their own specs, beside what that queue has (``quota``)."""

    def __init__(
        self, quota: dict[str, int], is_queued: Callable[[Pod], bool], takes: Callable[[Pod], Counter]
    ) -> None:
        self._quota = quota
        self._is_queued = is_queued
        self._takes = takes
        self._taken: dict[str, Counter] = {}
        self.wrong: list[str] = []
        self.most: Counter = Counter()

    def look(self, event: Event[Pod]) -> None:
        pod = event.new or event.old
        self._taken.pop(pod.metadata.uid, None)
        if event.new is None or not self._is_queued(pod) or pod.spec.scheduling_gates:
            return
        ends = pod.metadata.deletion_timestamp is not None and not pod.spec.node_name
        if ends or pod.status.phase in {"Succeeded", "Failed"}:
            return
        self._taken[pod.metadata.uid] = self._takes(pod)
        total = sum(self._taken.values(), Counter())
        self.most |= total
        self.wrong += [
            f"{total[name]} of {quota} {name} once pod {pod.metadata.name} was let go"
            for name, quota in self._quota.items()
            if total[name] > quota
        ]
