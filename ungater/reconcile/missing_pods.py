"""Pods that a workload has slots or quota for, and that nobody makes. Plain functions of what was seen.

A quota of their namespace refuses them, their controller is away, or whoever asked for so many never meant to make
them. What is held for them is nobody's, so it is given back.

Rules
- Pods that never came have a short time to come, from the admission or from the last one that did; those that were
  there once a longer one, as controllers wait between two tries. So have those that come in order, after others. What
  counts is for how long something was held for them (`ungater.model.pods_seen`).
- Where no pod is there, the workload is evicted, and waits longer each time. Where some are, the slots of the others go
  back, and from then on it gets as many as it has pods, until all that were missing have come. Once those that came
  have done what they had to, it is evicted too.
- After a restart, where fewer are admitted than are wanted and no more are there, more were given back.
- Without a queue nobody pays for what is held. So one that was evicted for this is placed again only when all its pods
  are there, and so is whatever comes in its namespace in the next hour; what is placed grows by pods that are there.
  Where pods come in order, all can only be there once it is placed: it is tried again after that hour.
- The time for pods that never came is also that of a namespace, for workloads without a queue that give back what they
  hold before it is over: suspended, deleted and made again, they hold nothing for longer.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from engine.reasons import Reason
from kube.objects import condition
from ungater.model import conditions as names
from ungater.model.actions import (
    Action,
    DoubtNamespace,
    Evict,
    RequeueAfter,
    Shorten,
)
from ungater.model.job_view import PodSetView
from ungater.model.pods_seen import PodsSeen
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.context import MissingPods

DOUBT = 3600.0  # seconds for which workloads of a namespace without a queue are placed only once all their pods exist


class Doubts:
    """Namespaces in which pods of a workload without a queue never came, a short time ago."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._in_vain: dict[str, tuple[float, float]] = {}  # by namespace: (share of the time, until when that counts)

    def record_doubt(self, namespace: str) -> None:
        """It was so just now."""
        self._until[namespace] = self._clock() + DOUBT

    def forget_past(self) -> None:
        """Keep nothing of namespaces of which nothing counts any more."""
        now = self._clock()
        self._until = {name: until for name, until in self._until.items() if until > now}
        self._in_vain = {name: one for name, one in self._in_vain.items() if one[1] > now}

    def about(self, namespace: str, now: float) -> float:
        """For how many seconds it is one of those; 0 where it is none."""
        return max(0.0, self._until.get(namespace, now) - now)

    def given_back(self, entry: WorkloadEntry, limits: MissingPods) -> None:
        """A workload ends to hold what it held, before its pods had the time that they have to come.

        Several together may have no more of it in an hour than one has: else one would be made after the other.
        """
        namespace, now = entry.job.namespace, self._clock()
        share = _in_vain(entry, limits, now)
        # Before the return: a second call for the same workload would else count the same seconds again.
        entry.count_pods({}, {})
        if not share:
            return
        before, until = self._in_vain.get(namespace, (0.0, 0.0))
        # The hour runs from the first share. Later shares add up in it and do not prolong it.
        if until <= now:
            before, until = 0.0, now + DOUBT
        self._in_vain[namespace] = before + share, until
        if before + share >= 1.0:
            self.record_doubt(namespace)


def _in_vain(entry: WorkloadEntry, limits: MissingPods, now: float) -> float:
    """For what share of the time that pods have to come something was held for such as never came, without a queue."""
    time = limits.again if entry.job.in_order else limits.never
    if entry.job.queue or entry.admission is None or time <= 0:
        return 0.0
    return max((one.grown + one.missed(now) for one in (entry.came or {}).values() if one.never), default=0.0) / time


def note(entry: WorkloadEntry, now: float, *, doubted: bool = False) -> None:
    """Count the pods of a workload that holds something; to be called before each look.

    ``doubted``: pods of others in its namespace did not come. Without a queue it grows only by pods that exist then.
    """
    if entry.admission is None or (entry.own or entry.job).suspended:
        entry.count_pods({}, {})
        return
    restarted, before, pod_sets, late = entry.came is None, entry.came or {}, entry.job.pod_sets, dict(entry.late)
    if restarted and any(
        entry.count_existing(one) <= entry.admitted(one.name) < _most_pods(entry, one) for one in pod_sets
    ):
        late = {one.name: entry.admitted(one.name) for one in pod_sets}
    after: dict[str, PodsSeen] = {}
    all_came = True
    for pod_set in pod_sets:
        name = pod_set.name
        there, need, most = entry.count_existing(pod_set), _needed(entry, pod_set), _most_pods(entry, pod_set)
        # After a restart nobody knows which pods never came: all of them get the longer time of pods that were there.
        old = before.get(name) or PodsSeen(need if restarted else 0, there, need, now, now)
        if doubted and not entry.job.queue and max(there, entry.admitted(name)) < most:
            late.setdefault(name, entry.admitted(name))
        if name in late and not old.goal:
            old = old.awaiting(most)
        seen = old.counted(there, need, most, now)
        if name in late:
            late[name] = max(late[name], there)
            # The late pod sets become whole together: one that still lacks pods keeps the others short.
            all_came &= not seen.goal
            seen = seen.given_up() if there == late[name] else seen
        after[name] = seen
    entry.count_pods(after, {} if all_came else late)


def _needed(entry: WorkloadEntry, pod_set: PodSetView) -> int:
    """How many pods are to be there: of those that are admitted, those that still have something to do.

    All of those where it is not known how many it wants, as its pods contradict each other.
    """
    admitted = entry.admitted(pod_set.name)
    return max(0, (admitted if entry.job.wrong is not None else min(entry.count_of(pod_set), admitted)) - pod_set.idle)


def _most_pods(entry: WorkloadEntry, pod_set: PodSetView) -> int:
    """How many pods may come."""
    return max(entry.count_of(pod_set) - pod_set.idle, _needed(entry, pod_set))


class _Lack(msgspec.Struct, frozen=True):
    """A pod set that lacks pods. ``due``: when what is held for them goes back; ``never``: some were never there."""

    name: str
    need: int
    there: int
    due: float
    never: bool


def give_up_missing(entry: WorkloadEntry, limits: MissingPods, now: float) -> list[Action]:
    """What is to be done about the pods that are missing from a workload that holds something, and is to run."""
    lacking: list[_Lack] = []
    for name, one in (entry.came or {}).items():
        if one.there >= one.need:
            continue
        left = limits.again - one.lacked
        if one.never:
            # Of an ordered owner a later pod is made once the earlier ones are
            # ready, which takes as long as images take to pull.
            left = min(left, (limits.again if entry.job.in_order else limits.never) - one.grown)
        lacking.append(_Lack(name, one.need, one.there, one.seen_at + left, one.never))
    late = [one for one in lacking if one.due <= now and entry.late.get(one.name, one.need) > one.there]
    there = any(one.there for one in (entry.came or {}).values())
    done = short(entry) and not lacking and not there  # by those that came
    if not late and not done:
        soonest = min((one.due for one in lacking if one.due > now), default=None)
        return [RequeueAfter(soonest - now)] if soonest is not None else []
    # A tenant without a queue could hold nodes for nothing, one job
    # after the other; a queue's quota bounds that by itself.
    doubt: list[Action] = [DoubtNamespace()] if not entry.job.queue and any(one.never for one in late) else []
    if not there:
        text = message(entry, limits)
        return [
            *doubt,
            Evict(Reason.PODS_MISSING, text),
        ]
    # The look after this one gives the slots back: it sees the counts that are wanted from now on.
    return [*doubt, Shorten({one.name: one.there for one in late}), RequeueAfter(0.0)]


def short(entry: WorkloadEntry) -> bool:
    """Whether it gets fewer pods than it asks for, as those did not come in time."""
    return any(entry.late.get(one.name, one.count) < _most_pods(entry, one) for one in entry.job.pod_sets)


def message(entry: WorkloadEntry, limits: MissingPods) -> str:
    """What people are told."""
    there = sum(one.there for one in (entry.came or {}).values())
    seconds = limits.again if entry.job.in_order else limits.never
    owner = entry.job
    others = "" if owner.queue else "; without a queue, a namespace has this time only once an hour"
    return (
        f"{there} of {owner.count} pods exist, and the others were not created in time ({seconds:g} s, or "
        f"{limits.again:g} s for a pod that is replaced{others}): nothing is held for them any more. The events of "
        f"{owner.called} say why, for example a ResourceQuota"
    )


class Awaited(NamedTuple):
    """Why one without a queue waits for its pods before it is placed. ``left``: seconds; None: until they are there."""

    reason: Reason
    message: str
    left: float | None


def awaited(entry: WorkloadEntry, *, doubted: float, wall: float) -> Awaited | None:
    """None where it does not wait for its pods, or all are there.

    ``doubted``: for how many seconds it is because pods of others in its namespace did not come; 0 where they did.
    ``wall``: seconds since the epoch.
    """
    owner, observed = entry.job, entry.observed
    if owner.queue or (entry.own or owner).suspended or observed is None:
        return None
    # Read from the status, so that a restart does not let the workload hold the same slots again at once.
    evicted = condition(observed.conditions, names.EVICTED)
    itself = evicted is not None and (evicted.status, evicted.reason) == ("True", str(Reason.PODS_MISSING))
    left: float | None = doubted
    if itself:
        since = names.true_since(observed.conditions, names.EVICTED)
        left = max(doubted, (since or 0.0) + DOUBT - wall) if owner.in_order else None
    if left is not None and left <= 0:
        return None
    there = sum(entry.count_existing(one) for one in owner.pod_sets)
    wanted = sum(one.count - one.idle for one in owner.pod_sets)
    if there >= wanted:
        return None
    whose = "they" if itself else f"pods of others in namespace {owner.namespace}"
    until = "" if left is None else " or an hour has passed"
    text = (
        f"{there} of {wanted} pods exist, and {whose} were not created in time before: it is placed when all exist"
        f"{until}. The events of {owner.called} say why, for example a ResourceQuota"
    )
    return Awaited(Reason.PODS_MISSING, text, left)
