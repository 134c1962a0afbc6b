"""Pods that a workload has slots or quota for, and that nobody makes. Plain functions of what was seen.

A quota of their namespace refuses them, their controller is away, or whoever asked for so many never meant to make
them. What is held for them is nobody's, so it is given back.

Rules
- Pods that never came have a short time to come, from the admission or from the last one that did; those that were
  there once a longer one, as controllers wait between two tries. So have those that come in order, after others.
- Where no pod is there, the workload is evicted, and waits longer each time. Where some are, the slots of the others go
  back, and from then on it gets as many as it has pods. Once these have done what they had to, it is evicted too.
- After a restart, where fewer are admitted than are wanted and no more are there, more were given back.
- Without a queue nobody pays for what is held. So one that was evicted for this is placed again only when all its pods
  are there, and so is whatever comes in its namespace in the next hour. Where pods come in order, all can only be there
  once it is placed: it is tried again after that hour.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.reasons import Reason
from kube.objects import condition
from ungater.model import conditions as names
from ungater.model.actions import DoubtNamespace, Evict, Instruction, MissingPods, RequeueAfter, Shorten
from ungater.model.conditions import WantedCondition
from ungater.model.job_view import PodSetView
from ungater.model.workload_entry import PodsSeen, WorkloadEntry

DOUBT = 3600.0  # seconds for which workloads of a namespace without a queue are placed only once all their pods exist


class Doubts:
    """Namespaces in which pods of a workload without a queue never came, a short time ago."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def note(self, namespace: str) -> None:
        """It was so just now."""
        now = self._clock()
        self._until = {name: until for name, until in self._until.items() if until > now}
        self._until[namespace] = now + DOUBT

    def about(self, namespace: str, now: float) -> float:
        """For how many seconds it is one of those; 0 where it is none."""
        return max(0.0, self._until.get(namespace, now) - now)


def note(entry: WorkloadEntry, now: float) -> None:
    """Count the pods of a workload that holds something; to be called before each look."""
    if entry.admission is None or (entry.own or entry.job).suspended:
        entry.count_pods({}, {})
        return
    restarted, before, pod_sets, late = entry.came is None, entry.came or {}, entry.job.pod_sets, dict(entry.late)
    if restarted and any(entry.there(one) <= entry.admitted(one.name) < _most(entry, one) for one in pod_sets):
        late = {one.name: entry.admitted(one.name) for one in pod_sets}
    after: dict[str, PodsSeen] = {}
    for pod_set in pod_sets:
        name = pod_set.name
        there, need = entry.there(pod_set), _needed(entry, name)
        old = before.get(name) or PodsSeen(need if restarted else 0, there, need, now, now)
        grew = there > old.most or need > old.need
        after[name] = replace(
            old,
            most=max(old.most, there),
            there=there,
            need=need,
            grew_at=now if grew else old.grew_at,
            changed_at=now if there != old.there else old.changed_at,
        )
        if name in late:
            late[name] = max(late[name], there)
    if all(late.get(one.name, one.count) >= _most(entry, one) for one in pod_sets):
        late = {}
    entry.count_pods(after, late)


def _needed(entry: WorkloadEntry, name: str) -> int:
    """How many pods are to be there: of those that are admitted, those that still have something to do.

    All of those where it is not known how many it wants, as its pods contradict each other.
    """
    pod_set, admitted = next(one for one in entry.job.pod_sets if one.name == name), entry.admitted(name)
    return max(0, (admitted if entry.job.wrong is not None else min(pod_set.count, admitted)) - pod_set.idle)


def _most(entry: WorkloadEntry, pod_set: PodSetView) -> int:
    """How many pods may come."""
    return max(pod_set.count - pod_set.idle, _needed(entry, pod_set.name))


@dataclass(frozen=True)
class _Lack:
    """A pod set that lacks pods. ``due``: when what is held for them goes back; ``never``: some were never there."""

    name: str
    need: int
    there: int
    due: float
    never: bool


def _lacking(entry: WorkloadEntry, limits: MissingPods) -> Iterator[_Lack]:
    for name, one in (entry.came or {}).items():
        if one.there >= one.need:
            continue
        never = one.need > one.most
        again = one.changed_at + limits.again
        first = one.grew_at + (limits.again if entry.job.in_order else limits.never)
        yield _Lack(name, one.need, one.there, min(first, again) if never else again, never)


def decide(entry: WorkloadEntry, limits: MissingPods, now: float) -> list[Instruction]:
    """What is to be done about the pods that are missing from a workload that holds something, and is to run."""
    lacking = list(_lacking(entry, limits))
    late = [one for one in lacking if one.due <= now and entry.late.get(one.name, one.need) > one.there]
    there = any(one.there for one in (entry.came or {}).values())
    done = entry.late and not lacking and not there  # by those that came
    if not late and not done:
        soonest = min((one.due for one in lacking if one.due > now), default=None)
        return [RequeueAfter(soonest - now)] if soonest is not None else []
    doubt: list[Instruction] = [DoubtNamespace()] if not entry.job.queue and any(one.never for one in late) else []
    if not there:
        text = message(entry, limits)
        return [
            *doubt,
            Evict((WantedCondition(names.EVICTED, True, Reason.PODS_MISSING, text),), Reason.PODS_MISSING, text),
        ]
    return [*doubt, Shorten({one.name: one.there for one in late}), RequeueAfter(0.0)]


def message(entry: WorkloadEntry, limits: MissingPods) -> str:
    """What people are told."""
    there = sum(one.there for one in (entry.came or {}).values())
    seconds = limits.again if entry.job.in_order else limits.never
    owner = entry.job
    return (
        f"{there} of {owner.count} pods exist, and no more were made in time ({seconds:g} s for those that never were, "
        f"{limits.again:g} s for those that were there before): what was held for the others is given back. The events "
        f"of {owner.kind} {owner.name} tell why they are not made, such as a ResourceQuota"
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
    evicted = condition(observed.conditions, names.EVICTED)
    itself = evicted is not None and (evicted.status, evicted.reason) == ("True", str(Reason.PODS_MISSING))
    left: float | None = doubted
    if itself:
        since = names.since(observed.conditions, names.EVICTED)
        left = max(doubted, (since or 0.0) + DOUBT - wall) if owner.in_order else None
    if left is not None and left <= 0:
        return None
    there = sum(entry.there(one) for one in owner.pod_sets)
    wanted = sum(one.count - one.idle for one in owner.pod_sets)
    if there >= wanted:
        return None
    whose = "they" if itself else f"pods of others in namespace {owner.namespace}"
    until = "" if left is None else " or an hour has passed"
    text = (
        f"{there} of {wanted} pods exist: {whose} did not come in time before, so it is placed when all are there"
        f"{until}. The events of {owner.kind} {owner.name} tell why pods are not made, such as a ResourceQuota"
    )
    return Awaited(Reason.PODS_MISSING, text, left)
