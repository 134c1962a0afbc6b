"""Room that comes free by itself: who is on the way out, and for how long that is believed.

Rules
- A pod that was told to stop, or whose owner is gone, is *leaving*; so is a workload that is evicted, and one whose
  pods end for good, one after the other. What they still hold comes free soon.
- That is believed for ``patience`` seconds from when it was first seen, and of a workload whose pods end by themselves
  no longer than ``QUIET`` seconds after the last of them: nobody knows when the next one does. So what is kept for
  somebody who would fit once they are gone stays idle no longer than this.
- Who is not believed any more is so until it is gone: what stands still does not begin to leave again.
- No workload waits for pods that leave longer than that, even if others begin to leave meanwhile, and after that it
  does not wait for as long again. Else pods that begin to end one after the other and never do could keep a rack. One
  that was admitted since and waits again may.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from math import inf
from typing import Final

import msgspec

from engine.cluster.state import ClusterState
from engine.reservation_key import HolderKey, ReservationKey, Role, role_of, workload_of
from queueing.model import FlavorResource, Quantities
from queueing.queues.entry import Entry, Phase
from queueing.queues.quota import Quotas

QUIET: Final = 10.0  # seconds
# Each is a change of the state that is made and undone; a namespace that deletes everything must not stop the cycle.
MOST: Final = 2048  # pods that are taken out to see what there is without them


class _Departure(msgspec.Struct):
    """Since when it leaves, and when it was last seen to; None until a cycle looks."""

    first: float | None = None
    last: float | None = None

    def stamp(self, now: float) -> None:
        self.first = now if self.first is None else self.first
        self.last = now if self.last is None else self.last

    def stamp_anew(self) -> None:
        self.last = None


class Leaving(msgspec.Struct):
    """See the module's rules. ``review_leaving`` says who is believed from then on: ``pods``, ``workloads``.

    ``amounts``: by cluster queue, the quota that comes back; ``promised``: how much of that is somebody's already;
    ``unasked``: how much of it comes back though nobody evicts anybody for it.
    ``entries``: all workloads of the queues, by key; ``evicting``: those that were told to go; ``growing``: those that
    want more pods.
    """

    patience: float
    quotas: Quotas
    entries: Mapping[HolderKey, Entry]
    evicting: Mapping[HolderKey, None]
    growing: Mapping[str, object]
    pods: list[str] = msgspec.field(default_factory=list)
    workloads: list[HolderKey] = msgspec.field(default_factory=list)
    begun: list[HolderKey] = msgspec.field(default_factory=list)  # those of both that were not among them before
    amounts: dict[str, Quantities] = msgspec.field(default_factory=dict)
    promised: dict[str, Quantities] = msgspec.field(default_factory=dict)
    unasked: dict[str, Quantities] = msgspec.field(default_factory=dict)
    # Workloads that were a successor of these and were given up: they do not become one again.
    spent: set[str] = msgspec.field(default_factory=set)
    next_time: float = inf  # when somebody is not believed any more, or waits no more
    waited: list[HolderKey] = msgspec.field(default_factory=list)  # who waits for them no more from now on
    _now: float = -inf
    _orphans: list[ReservationKey] = msgspec.field(default_factory=list)  # of ``pods``
    # Who waits for them, or did, and since when.
    _followers: dict[HolderKey, float] = msgspec.field(default_factory=dict)
    _pods: dict[str, _Departure] = msgspec.field(default_factory=dict)
    _ending: dict[HolderKey, _Departure] = msgspec.field(default_factory=dict)
    _evicted: dict[HolderKey, _Departure] = msgspec.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.pods or self.workloads)

    def pod_stops(self, pod: str) -> None:
        """A pod (``namespace/name``) was told to stop, or its owner is gone, so that somebody will."""
        self._pods.setdefault(pod, _Departure())

    def pod_gone(self, pod: str) -> None:
        """A pod holds nothing any more."""
        self._pods.pop(pod, None)

    def pod_ended(self, workload: str) -> None:
        """A pod of a workload ended, and none is made in its place: the others are expected to follow."""
        # Each pod that ends renews the ten seconds, but not the minute since the first one.
        self._ending.setdefault(workload, _Departure()).stamp_anew()

    def workload_gone(self, workload: HolderKey) -> None:
        """A workload holds nothing any more."""
        self._ending.pop(workload, None)

    def may_follow(self, key: HolderKey) -> bool:
        """Whether one may wait for those that leave."""
        since = self._followers.get(key)
        # For one patience it waits, for one more it may not, then it may again.
        return since is None or not self.patience <= self._now - since < 2 * self.patience

    def watch_workload(self, key: HolderKey) -> None:
        """One waits for them."""
        if self._now - self._followers.setdefault(key, self._now) >= 2 * self.patience:
            self._followers[key] = self._now

    def review_leaving(self, state: ClusterState, now: float) -> set[str] | None:
        """See who is believed now; returns the flavors of those there who are not any more, None where all are."""
        before = {*self.pods}, {*self.workloads}
        late_from, self._now = self._now - self.patience, now
        wait = ((key, at) for key, at in self._followers.items() if self._is_waiting(key))
        # One that got what it waited for is forgotten, so that it may wait again after an eviction.
        self._followers = {key: at for key, at in wait if now - at < 2 * self.patience}
        # Those whose time ran out between the last look and this one: each is woken once.
        self.waited = [key for key, at in self._followers.items() if late_from < at <= now - self.patience]
        for key in [key for key in self._evicted if key not in self.evicting]:
            del self._evicted[key]
        for key in self.evicting:
            self._evicted.setdefault(key, _Departure())
        # Events bring no time: what came since the last cycle is dated by the cycle that first sees it.
        for one in (*self._pods.values(), *self._ending.values(), *self._evicted.values()):
            one.stamp(now)
        ends = {key: _earlier(self._until(one), one, QUIET) for key, one in self._ending.items()}
        ends |= {key: self._until(one) for key, one in self._evicted.items()}
        stops = {key: self._until(one) for key, one in self._pods.items()}
        self.pods = [key for key, until in stops.items() if until > now]
        # Kept, as each look at what there is without them asks for these.
        self._orphans = [ReservationKey.for_orphan(pod) for pod in self.pods]
        self.workloads = [key for key, until in ends.items() if until > now and key in self.entries]
        self.begun = [key for key in self.pods if key not in before[0]]
        self.begun += [key for key in self.workloads if key not in before[1]]
        waits = (at + self.patience for at in self._followers.values())
        self.next_time = min((at for at in (*stops.values(), *ends.values(), *waits) if at > now), default=inf)
        # Other leavers are other chances, so whoever gave up a place may follow these.
        if before != ({*self.pods}, {*self.workloads}):
            self.spent.clear()
        self.spent.intersection_update([key for key in self.spent if key in self.entries])
        self.amounts, self.promised, self.unasked = {}, {}, {}
        for unit in self._units():
            self._add(unit)
        # Believed until now and still there: whoever counted on them has to look elsewhere.
        late = before[0].difference(self.pods) & state.pods.keys()
        stuck = [
            key
            for key in before[1].difference(self.workloads)
            if (entry := self.entries.get(key)) is not None and entry.grant is not None
        ]
        if not (late or stuck):
            return None
        flavors = {flavor for pod in late for flavor in state.flavors_on(state.pods[pod].node)}
        return flavors | {part.flavor for key in stuck for part in state.assignments(key).values()}

    def _is_waiting(self, key: HolderKey) -> bool:
        """Whether one still has not got what it follows them for."""
        entry = self.entries.get(workload_of(key))
        if entry is None:
            return False
        return workload_of(key) in self.growing if role_of(key) is Role.GROWTH else entry.phase is not Phase.ADMITTED

    def victims_go(self, victims: Iterable[HolderKey], now: float) -> None:
        """These were told to go since: who is looked at after that in the same cycle may follow them too."""
        for key in victims:
            if self.patience <= 0 or key not in self.evicting or key not in self.entries or key in self.workloads:
                continue
            one = self._evicted.setdefault(key, _Departure())
            one.stamp(now)
            self.workloads.append(key)
            self.next_time = min(self.next_time, self._until(one))
            self.spent.clear()
            self._add(key)

    def _until(self, one: _Departure) -> float:
        return inf if one.first is None else one.first + self.patience

    def _units(self) -> Iterator[HolderKey]:
        """Under which keys they hold quota."""
        yield from self._orphans
        yield from self.workloads

    def _add(self, unit: HolderKey) -> None:
        """The quota that a unit holds comes back."""
        if (held := self.quotas.held.get(unit)) is not None:
            # Quota that is marked as leaving is out of `Quotas.overuse_of_queue`
            # already; the rest is taken off there by ``unasked``.
            for sums in (self.amounts,) if held.leaving else (self.amounts, self.unasked):
                total = sums.setdefault(held.queue, {})
                for name, amount in held.amounts.items():
                    total[name] = total.get(name, 0) + amount

    def overuse_left(self, queue: str, key: FlavorResource) -> int:
        """How much a queue uses beyond its nominal quota, and will not give back by itself.

        Whoever is let in where others leave need not borrow by then, so it is nobody's victim until then either.
        """
        return self.quotas.overuse_of_queue(queue, key) - self.unasked.get(queue, {}).get(key, 0)

    def promise(self, covered: Mapping[str, Quantities], sign: int = 1) -> None:
        """So much of the quota that comes back is somebody's already; with ``sign`` -1 not any more."""
        for queue, amounts in covered.items():
            total = self.promised.setdefault(queue, {})
            for name, amount in amounts.items():
                total[name] = total.get(name, 0) + sign * amount

    def unclaimed_quota(self, queue: str, name: FlavorResource) -> int:
        """How much quota comes back in a queue that is nobody's yet."""
        return self.amounts.get(queue, {}).get(name, 0) - self.promised.get(queue, {}).get(name, 0)

    @contextmanager
    def without_leaving(self, state: ClusterState) -> Iterator[None]:
        """Look at state and quota as they are once all who are believed are gone; what is done meanwhile is undone."""
        with self.quota_without_leaving(), self.room_without_leaving(state):
            yield

    @contextmanager
    def quota_without_leaving(self) -> Iterator[None]:
        """The same of the quota alone, which costs much less."""
        depth = self.quotas.begin()
        try:
            self.quotas.free_all(self._units())
            yield
        finally:
            self.quotas.rollback(depth)

    @contextmanager
    def room_without_leaving(self, state: ClusterState) -> Iterator[None]:
        """The same of the state alone.

        What pods of a workload that stays leave is its own: a slot without its pod is held again.
        """
        checkpoint = state.begin()
        try:
            # Pods that stop come before those of workloads that leave, should there be more than `MOST`.
            theirs = (pod for key in self.workloads for pod in self.entries[key].pods)
            for pod in dict.fromkeys(islice((*self.pods, *theirs), MOST)):
                state.remove_pod(pod, deallocated=True)
            state.release_all(self.workloads)
            yield
        finally:
            state.rollback(checkpoint)


def _earlier(until: float, one: _Departure, quiet: float) -> float:
    return until if one.last is None else min(until, one.last + quiet)
