"""Minimum run time: how long workloads that run are no victims of others, and who waits until that ends.

Rules
- A workload is *safe* for the seconds that its queue, a cohort above it or the rules say, from when it was admitted.
  Where its pods are not ready at once, from when they are, but in all for twice as long at most. One that is not
  admitted yet, as its checks are not ready, is not safe.
- *Within* its own queue, the first value counts that is set from its queue upwards, else that of the rules. For
  queues that meet it at a cohort, the first from the child of that cohort on its side upwards, as KAI's method ``lca``
  has it (pkg/scheduler/plugins/minruntime/resolver.go, 521a99aa). Where shares decide, ``fair`` counts, and where that
  is not set, ``reclaim`` of the same queue or cohort.
- It is safe from those who want its quota or its place, and is not moved as long as it is from anybody. It goes with a
  queue that is drained, with its nodes, with its own troubles and by hand as if nothing were set, and nobody who leaves
  already is safe.
- Times are those of its conditions, so a restart of the controller ends nothing early. The conditions say since when
  the pods are ready only as long as they are: after a restart the time counts from when they ceased to be ready, or are
  ready again, and the workload may be safe for longer, but in all for twice as long at most. A workload that grows or
  shrinks runs on, and so does one whose Workload is deleted and written again.
- The pods of a workload may run before its admission is stored, if it was taken over from Kueue or its Workload was
  lost. It is safe from when it is held; once its Workload says since when it is admitted, that counts.
- Whoever found no victims, and left out some who are safe, is looked at again once the first of these is not.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from math import ceil, inf
from typing import Final, NamedTuple

import msgspec

from engine.reservation_key import HolderKey
from queueing.model import Rules, RunTime
from queueing.queues.cohort_tree import TreeNode
from queueing.queues.entry import Entry, Phase
from queueing.queues.holders import Holders
from queueing.queues.pending_workloads import Event, PendingWorkloads
from queueing.queues.quota import Quotas


class Taking(StrEnum):
    """By what right somebody takes from one that runs; the value names the field of the API."""

    WITHIN = "withinClusterQueueSeconds"
    RECLAIM = "reclaimSeconds"
    FAIR = "fairSharingSeconds"


class Minimum(NamedTuple):
    """For how many seconds one is safe, and whose word that is: ``Cohort product``, or "" of the rules."""

    seconds: float
    source: str


NO_MINIMUM: Final = Minimum(0.0, "")


class LeftOut(msgspec.Struct, frozen=True):
    """Those whom searches left out because they are safe: the first of them to be so no more, and when the last is."""

    key: HolderKey
    until: float
    last: float
    minimum: Minimum


class RunTimes:
    """See the module's rules. ``entries``: all workloads of the queues, by key; times are seconds of one clock."""

    def __init__(
        self,
        rules: Rules,
        quotas: Quotas,
        holders: Holders,
        entries: Mapping[HolderKey, Entry],
        pending: PendingWorkloads,
    ) -> None:
        self.now = self._woken_at = 0.0
        self.left_out: LeftOut | None = None  # in the look that was begun last
        self._rule = rules.minimum
        # Who is within its own quota reclaims also where shares decide all else.
        self._takings = (Taking.RECLAIM, Taking.FAIR) if rules.fair else (Taking.RECLAIM,)
        self._quotas = quotas
        self._holders = holders
        self._entries = entries
        self._pending = pending
        self._ends: dict[str, float] = {}  # by pool, where somebody waits for it: when one may be safe no more
        self._version = -1
        self._any = False

    def advance_to(self, now: float) -> None:
        """It is so late."""
        self.now = now

    @property
    def any_minimum(self) -> bool:
        """Whether a minimum is set anywhere."""
        quotas = self._quotas
        # Asked by each search, and there may be thousands of queues.
        if self._version != quotas.tree.version:
            self._version = quotas.tree.version
            queues, cohorts = quotas.queues.values(), quotas.cohorts.values()
            rules = (self._rule, *(one.minimum for one in queues), *(one.minimum for one in cohorts))
            self._any = any(_value_of(rule, taking) for rule in rules for taking in Taking)
        return self._any

    def minimum_above(self, node: TreeNode, taking: Taking) -> Minimum:
        """The first that is set from a queue or cohort upwards, else that of the rules."""
        for one in (node, *node.path):
            found = _value_of(self._rule_of(one), taking)
            if found is not None:
                return Minimum(found, f"{'ClusterQueue' if one.is_queue else 'Cohort'} {one.name}")
        return Minimum(_value_of(self._rule, taking) or 0.0, "")

    def least_above(self, node: TreeNode) -> Minimum:
        """What is certain against other queues, by whichever right they take."""
        return min(self.minimum_above(node, taking) for taking in self._takings)

    def minimums_of(self, queue: str) -> list[tuple[str, Minimum]]:
        """How long workloads of a queue are safe at least: from its own ("") and from those met at each cohort above.

        The nearest cohort first, and where one says the same as the next above it, only that one.
        """
        below = self._quotas.tree.queues[queue]
        found: list[tuple[str, Minimum]] = [("", self.minimum_above(below, Taking.WITHIN))]
        for cohort in below.path:
            least = self.least_above(below)
            if found[-1][0] and found[-1][1].seconds == least.seconds:
                found.pop()
            found.append((cohort.name, least))
            below = cohort
        return found

    def last_end(self, entry: Entry) -> float:
        """Until when one is safe from anybody at all; less than any time where it is not, or is in no queue."""
        if not self.any_minimum or entry.queue not in self._quotas.queues:
            return -inf
        minimums = (one.seconds for _, one in self.minimums_of(entry.queue))
        return max(safe_until(entry.admitted_at, entry.ready_at, seconds) for seconds in minimums)

    def _rule_of(self, node: TreeNode) -> RunTime:
        quotas = self._quotas
        found = quotas.queues.get(node.name) if node.is_queue else quotas.cohorts.get(node.name)
        return found.minimum if found is not None else RunTime()

    # -- who is safe ------------------------------------------------------------------------------------------

    def note_start(self, key: HolderKey, admitted_at: float | None, ready_at: float | None) -> bool:
        """Since when one is admitted, and its pods are ready, as its Workload says; None: it says nothing of that.

        True where somebody is to be looked at again, who waits until one like it may be evicted.
        """
        entry = self._entries.get(key)
        # A workload that waits again may still have conditions of the run before, which would count for the next one.
        if entry is None or entry.phase is not Phase.ADMITTED:
            return False
        before = entry.admitted_at, entry.ready_at
        # The earliest that was said since it holds what it holds. Pods that are not ready for a moment would else begin
        # its time again, and so would a tenant who deletes its Workload, which is written again.
        # What was only presumed before its Workload said it does not count.
        presumed = entry.presumed and admitted_at is None
        if entry.presumed == presumed:
            admitted_at = _earlier(admitted_at, entry.admitted_at)
        ready_at = _earlier(ready_at, entry.ready_at)
        entry.note_start(admitted_at, ready_at, presumed=presumed)
        if before == (admitted_at, ready_at):
            return False
        self._holders.update_start(entry)
        return self._note_earlier_end(entry, before)

    def presume_start(self, key: HolderKey, now: float) -> None:
        """Its pods run, and its Workload does not say since when it is admitted: since now, until that says it."""
        entry = self._entries.get(key)
        if entry is not None and entry.phase is Phase.ADMITTED and entry.admitted_at is None:
            entry.note_start(now, entry.ready_at, presumed=True)
            self._holders.update_start(entry)

    def _note_earlier_end(self, entry: Entry, before: tuple[float | None, float | None]) -> bool:
        """Its times changed: whoever waits until it may be evicted counted on those before."""
        pool = self._quotas.pool(entry.queue)
        if pool not in self._ends or entry.queue not in self._quotas.queues:
            return False
        node = self._quotas.tree.queues[entry.queue]
        minimums = {self.minimum_above(one, taking).seconds for one in (node, *node.path) for taking in Taking}
        ends = (
            (safe_until(*before, seconds), safe_until(entry.admitted_at, entry.ready_at, seconds))
            for seconds in minimums
        )
        # With pods that became ready it is safe for a shorter time. By some minimums it was not safe any more anyway.
        return self._end_at(pool, min((after for was, after in ends if self.now < was and after < was), default=inf))

    # -- searches ---------------------------------------------------------------------------------------------

    def begin_look(self) -> None:
        """Somebody is looked at, and nobody was left out yet."""
        self.left_out = None

    def leave_out_safe(self, key: HolderKey, until: float, last: float, minimum: Minimum) -> None:
        """A search leaves out somebody who is safe until then, and perhaps others, all until ``last`` at most."""
        found = self.left_out
        if found is None:
            self.left_out = LeftOut(key, until, last, minimum)
        elif until < found.until:
            self.left_out = LeftOut(key, until, max(last, found.last), minimum)
        elif last > found.last:
            self.left_out = msgspec.structs.replace(found, last=last)

    def await_end(self, queue: str) -> Event | None:
        """What one of a queue waits for that found no victims; None where nobody was left out who is safe."""
        if self.left_out is None:
            return None
        pool = self._quotas.pool(queue)
        # By pool, as those whom it may take all hold quota of it; the earliest end of all searches there stands.
        self._end_at(pool, self.left_out.until)
        return ("safe", pool)

    def _end_at(self, pool: str, until: float) -> bool:
        """Somebody may be safe no more then; True where that is earlier than anybody there waits for."""
        # Whole seconds: of thousands that started one after the other many would end one look each.
        before, at = self._ends.get(pool, inf), float(ceil(max(until, self.now))) if until < inf else inf
        self._ends[pool] = min(before, at)
        return at < before

    # -- time -------------------------------------------------------------------------------------------------

    def wake_due(self, now: float) -> None:
        """Whoever waits for somebody to be safe no more is looked at again, where one may be; nobody began later."""
        before, self._woken_at = self._woken_at, now
        # A clock that was ahead and is set right, without a restart: nobody is safe for the time by which it was.
        if now < before - 1.0:
            for key, entry in self._entries.items():
                if entry.admitted_at is not None and max(entry.admitted_at, entry.ready_at or 0.0) > now:
                    ready_at = None if entry.ready_at is None else min(entry.ready_at, now)
                    self.note_start(key, min(entry.admitted_at, now), ready_at)
        for pool in [pool for pool, at in self._ends.items() if at <= now]:
            # `_end_at` keeps the earliest: one that is over and stayed would have all of them looked at in each cycle.
            del self._ends[pool]
            # Those who want more pods are in no line: they compare this counter.
            self._pending.pool_changed(pool)
            self._pending.move_events_to_active([("safe", pool)])

    def end_times(self) -> Iterator[float]:
        """When time alone changes something next."""
        return iter(self._ends.values())


def safe_until(admitted_at: float | None, ready_at: float | None, seconds: float) -> float:
    """Until when one is safe that runs for so many seconds at least; less than any time where it is not."""
    if admitted_at is None or not seconds:
        return -inf
    return min(inf if ready_at is None else ready_at, admitted_at + seconds) + seconds


def _earlier(one: float | None, other: float | None) -> float | None:
    return min((at for at in (one, other) if at is not None), default=None)


def _value_of(rule: RunTime, taking: Taking) -> float | None:
    match taking:
        case Taking.WITHIN:
            return rule.within
        case Taking.RECLAIM:
            return rule.reclaim
        case Taking.FAIR:
            return rule.reclaim if rule.fair is None else rule.fair
