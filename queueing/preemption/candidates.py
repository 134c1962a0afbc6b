"""Candidates: whom the queues' policies allow to be taken for one who waits.

Rules
- Own workloads of lower (or equal and newer) priority; workloads of other queues of the tree of cohorts only while
  their queue, and each cohort above it that is not above the preemptor too, use more than is their own of what is
  contested: of those quotas that do not suffice, or of all that is asked for where only room lacks. That changes
  victim by victim: `queueing.preemption.simulate` asks again as it takes them.
- Who is within its nominal quota reclaims, and so does who borrows, from those over whom its queue has advantage
  (`queueing.preemption.cohort_reach`): up to the priority that ``reclaim`` says. From others one that borrows takes
  only where ``borrowing`` says so, up to a priority below its own.
- Who is non-preemptible is none in its own queue, and none in another as long as that queue holds no more in this way
  than its nominal quota.
- Who is leaving already, nominated, or known not to be evictable is none; nor who leaves by itself while something is
  kept for those who follow (`queueing.cycle.successors`): what comes free is theirs first; nor who has a claim that
  the preemptor names as well, which would lose its devices with the last who has it. Pods that no queue admitted are
  some where the rules say so, for those that outrank them in Kubernetes too.
- Who has not run for as long as its queue and cohorts have it run at least is none, whatever the mode
  (`queueing.queues.minimum_run_time`).
- Who would use more than its own share by it leaves those of other queues alone who had it evicted
  (`queueing.queues.eviction_order`).
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Final

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.cluster.state import ClusterState
from engine.reasons import Reason
from engine.reservation_key import HolderKey, order_of, whole_of
from queueing.model import FlavorResource, Preemption, Reclaim, Within
from queueing.preemption.cohort_reach import find_advantage, find_borrowers, nodes_between, place_of
from queueing.preemption.fair_order import FairComparison
from queueing.queues.cohort_tree import TreeNode
from queueing.queues.entry import OUTSIDE, Entry, Phase
from queueing.queues.eviction_units import units_of
from queueing.queues.flavor_assigner import FlavorAssignment
from queueing.queues.minimum_run_time import Minimum, Taking, safe_until
from queueing.queues.queues import Queues
from queueing.queues.usage import OUTSIDE as OUTSIDE_NUMBER
from queueing.queues.usage import FlavorRows, Mask

# The shares from the root down to its queue, the largest first; its level; how new it is; its unit.
Importance = tuple[tuple[tuple[bool, float], ...], int, float, tuple[str, ...]]
_LEAST: Final = (True, 0.0)
_NOWHERE: Final = 1 << 62  # beyond every path


class Mode(msgspec.Struct, frozen=True):
    """Whose workloads may be taken: of other queues up to the priority ``near`` (None: of no other queue).

    ``others``: likewise of queues that it meets at the cohort ``wide`` of its path or further up, where ``cohort`` is
    owed what it lacks ("": its own queue is). ``borrowing``: whether the preemptor may end up above its nominal quota.
    ``reason``: that of victims up to ``near``. ``compares``: shares decide who may go. ``overriding``: budgets of other
    queues' workloads do not count: whoever borrows could else make what it borrows its own.
    """

    others: int | None
    borrowing: bool
    near: int | None = None
    wide: int = 0
    cohort: str = ""
    reason: Reason = Reason.IN_CLUSTER_QUEUE
    compares: bool = False
    overriding: bool = False

    def bound_at(self, place: int) -> int | None:
        """Up to which priority those may be taken whom it meets at this cohort of its path."""
        return self.others if place >= self.wide else self.near


def find_contested(queues: Queues, entry: Entry, option: FlavorAssignment) -> frozenset[FlavorResource]:
    """The quotas that do not suffice now; none where all do, so that only room may be lacking."""
    missing = queues.limits(entry).missing_quota(option.asked)
    return frozenset([(one.flavor, one.resource) for one in missing])


def modes(
    queues: Queues, entry: Entry, option: FlavorAssignment, contested: Collection[FlavorResource]
) -> Iterator[Mode]:
    """What the policies allow, the mildest first; ``contested``: the quotas that do not suffice."""
    policy, path = _policy(queues, entry), queues.quotas.tree.queues[entry.queue].path
    own = [Mode(None, borrowing=True)] if policy.within is not Within.NEVER else []
    # Beyond every priority: Kubernetes has 32 bits for one.
    most = entry.workload.priority - 1 if policy.reclaim is Reclaim.LOWER else (1 << 62)
    if not path or policy.reclaim is Reclaim.NEVER:
        yield from own
    elif queues.rules.fair:
        yield from _fair_modes(queues, entry, option, contested, most)
    else:
        yield from _classical_modes(queues, entry, option, contested or option.amounts, most, own)


def _fair_modes(
    queues: Queues, entry: Entry, option: FlavorAssignment, contested: Collection[FlavorResource], most: int
) -> Iterator[Mode]:
    wide = find_advantage(queues.quotas.tree.queues[entry.queue], option.amounts)
    # Kueue's FairSharingPreemptWithinNominal (since 0.17): who takes what is its own compares no shares. Only what is
    # contested counts: beside that it may borrow what nobody has to give up for it.
    asked = {key: option.amounts.get(key, 0) for key in contested}
    if not wide or (asked and not queues.quotas.borrows(entry.queue, asked)):
        yield Mode(most, borrowing=wide > 0)
    else:
        yield Mode(most, borrowing=True, near=most, wide=_NOWHERE, reason=Reason.FAIR_SHARING, compares=True)
    # Last: a budget is overridden only where nobody else would do.
    yield from _overriding(queues, most, wide)


def _classical_modes(  # noqa: PLR0917  (what `modes` knows)
    queues: Queues,
    entry: Entry,
    option: FlavorAssignment,
    contested: Collection[FlavorResource],
    most: int,
    own: list[Mode],
) -> Iterator[Mode]:
    node, policy, priority = queues.quotas.tree.queues[entry.queue], _policy(queues, entry), entry.workload.priority
    wide = find_advantage(node, option.amounts)
    owed = node.path[wide - 1].name if wide else ""
    if wide < len(node.path):
        yield Mode(most, borrowing=wide > 0, wide=wide, cohort=owed)
        yield from _overriding(queues, most, wide)
    if wide and policy.borrowing:
        near = priority - 1 if policy.threshold is None else min(priority - 1, policy.threshold)
        reason = Reason.RECLAIMED_WHILE_BORROWING
        yield Mode(most, borrowing=True, near=near, wide=wide, cohort=owed, reason=reason)
    # With what it has it would borrow, but without some of its own it would not: then it takes back what others have
    # of its nominal quota. One that may not take while it borrows has to have some of that left, and comes to it before
    # its own lose all that it needs (Kueue 0.19.2, pkg/scheduler/preemption/preemption.go, classicalPreemptions).
    left = policy.borrowing or all(node.usage.get(key, 0) < _nominal(node, key) for key in contested)
    may_end = wide and own and left and all(_nominal(node, key) >= amount for key, amount in option.amounts.items())
    last = Mode(most, borrowing=False, near=most, wide=wide, cohort=owed, reason=Reason.RECLAIMED)
    ends = [last] if may_end else []
    yield from [*own, *ends] if policy.borrowing or wide < len(node.path) else [*ends, *own]


def _nominal(node: TreeNode, key: FlavorResource) -> int:
    return node.subtree.get(key, 0)  # of a queue it is its own quota


def _overriding(queues: Queues, most: int, wide: int) -> list[Mode]:
    # Without a budget that keeps anybody it would find the same as the mode before it. A budget yields to what is the
    # queue's own, which nobody else may keep, and to no cohort's.
    protected = queues.spared or queues.budgets.guarded
    return [Mode(most, borrowing=False, overriding=True)] if not wide and protected and queues.rules.override else []


def _policy(queues: Queues, entry: Entry) -> Preemption:
    return queues.quotas.queues[entry.queue].preemption


class Candidates(msgspec.Struct, dict=True):
    """Who may be taken for ``entry`` to be put where ``option`` says, in one mode.

    ``contested``: the quotas of which those who lose something have to use more than is their own.
    """

    state: ClusterState
    queues: Queues
    entry: Entry
    option: FlavorAssignment
    mode: Mode
    contested: Collection[FlavorResource]
    _shares: dict[str, tuple[tuple[bool, float], ...]] = msgspec.field(default_factory=dict)
    _importance: dict[HolderKey, Importance] = msgspec.field(default_factory=dict)
    _borrowers: dict[str, int] | None = None
    _minimums: dict[str, Minimum] = msgspec.field(default_factory=dict)

    def anyone(self) -> bool:
        """Whether there may be a candidate at all: most searches end here."""
        within, mine = _policy(self.queues, self.entry).within, self.entry.workload.priority
        # Counts by priority are kept up to date by events, so a search
        # that cannot find anybody ends without looking at anyone.
        lowest = self.queues.holders.lowest(self.entry.queue)
        newer = within is Within.LOWER_OR_NEWER
        if lowest is not None and within is not Within.NEVER and (lowest < mine or (lowest == mine and newer)):
            return True
        lowest = self.queues.holders.lowest(OUTSIDE) if self.queues.rules.pods else None
        if lowest is not None and lowest < self.entry.workload.outranks:
            return True
        return any(
            (low := self.queues.holders.lowest(name)) is not None and low <= most
            for name, most in self._others().items()
        )

    def contest_all(self) -> None:
        """Room is lacking as well: who uses more than its own of anything that is asked for may be in the way."""
        if self.contested is not self.option.amounts:
            self.contested, self._borrowers = self.option.amounts, None

    def all_units(self) -> dict[HolderKey, None]:
        """All units that may be taken in the flavors of the option."""
        found: dict[HolderKey, None] = {}
        for flavor in dict.fromkeys(self.option.rooms):
            occupancy = self.queues.holders.usage(self.state, flavor)
            if occupancy is not None:
                eligible = self.eligible(occupancy).nonzero()[0].tolist()
                found |= dict.fromkeys(occupancy.keys[number] for number in eligible)
        return found

    def few(self, limit: int, most: int | None) -> list[HolderKey]:
        """All units of up to a level that may be taken; [] where they are more than ``limit``."""
        found: list[HolderKey] = []
        for flavor in dict.fromkeys(self.option.rooms):
            occupancy = self.queues.holders.usage(self.state, flavor)
            if occupancy is None:
                continue
            eligible = self.eligible(occupancy)
            if most is not None:
                eligible &= self.levels(occupancy)[: len(eligible)] <= most
            if np.count_nonzero(eligible) + len(found) > limit:
                return []
            found += [occupancy.keys[number] for number in eligible.nonzero()[0].tolist()]
        return found

    def eligible(self, occupancy: FlavorRows) -> Mask:
        """What ``_static`` says, for all owners of slots in a flavor at once."""
        size = len(occupancy.keys)
        priority, queue = occupancy.priority[:size], occupancy.queue[:size]
        mine, within = self.entry.workload, _policy(self.queues, self.entry).within
        found = np.zeros(size, np.bool_)
        if within is not Within.NEVER:
            found = priority < mine.priority
            if within is Within.LOWER_OR_NEWER:
                found |= (priority == mine.priority) & (occupancy.created[:size] > mine.created)
            found &= queue == self.queues.holders.number_of_queue(self.entry.queue)
        numbers: dict[int, list[int]] = {}
        for name, most in self._others().items():
            numbers.setdefault(most, []).append(self.queues.holders.number_of_queue(name))
        # There are two bounds at most, and thousands of owners.
        for most, others in numbers.items():
            found |= np.isin(queue, others) & (priority <= most)
        if self.queues.rules.pods:
            found |= (queue == OUTSIDE_NUMBER) & (priority < mine.outranks)
        # Rows and numbers of units that left stay until they are many.
        found &= occupancy.alive[:size]
        queues = self.queues
        # Few against all owners, so they are taken out by name; all else is one comparison of columns.
        protected = (key for key in (*queues.spared, *queues.budgets.guarded) if self._protected(key))
        spared = (key for key in queues.holders.non_preemptible if self.spared(key))
        leaving = (
            *queues.holders.nominated,
            *queues.holders.evicting,
            *queues.fresh,
            *queues.holders.losing,
            *self._followed,
            *self._before,
        )
        for key in (*leaving, *protected, *spared, *self._sharing):
            for unit in occupancy.units_of_workload(key):
                found[occupancy.numbers[unit]] = False
        return self._without_safe(occupancy, found)

    def _without_safe(self, occupancy: FlavorRows, found: Mask) -> Mask:
        """Those of these owners who have run for long enough; the others are noted."""
        times = self.queues.run_times
        if not times.any_minimum:
            return found
        number_of = self.queues.holders.number_of_queue
        # By number of queue; two more, as those of no queue have the numbers -1 and -2.
        seconds = np.zeros(self.queues.holders.count_of_queues + 2, np.float64)
        for name in (self.entry.queue, *self._others()):
            if (number := number_of(name)) >= 0:
                seconds[number] = self._minimum_of(name).seconds
        size = len(found)
        least = seconds[occupancy.queue[:size]]
        ends = np.minimum(occupancy.ready[:size], occupancy.admitted[:size] + least) + least
        # As `safe_until`: by a minimum of 0 nobody is safe, also where the clock was ahead when it was admitted.
        safe = found & (least > 0) & (ends > times.now)
        if safe.any():
            numbers = safe.nonzero()[0]
            first = int(numbers[ends[numbers].argmin()])
            key = whole_of(occupancy.keys[first])
            minimum = self._minimum_of(self.queues.entry_of_unit(key).queue)
            times.leave_out_safe(key, float(ends[first]), float(ends[numbers].max()), minimum)
        return found & ~safe

    def _is_safe(self, other: Entry) -> bool:
        """Whether one has not run for as long as it has to; then it is noted."""
        times = self.queues.run_times
        if not times.any_minimum:
            return False
        minimum = self._minimum_of(other.queue)
        until = safe_until(other.admitted_at, other.ready_at, minimum.seconds)
        if until <= times.now:
            return False
        times.leave_out_safe(other.workload.key, until, until, minimum)
        return True

    def _minimum_of(self, queue: str) -> Minimum:
        """For how long workloads of a queue are safe from the preemptor."""
        found = self._minimums.get(queue)
        if found is None:
            nodes, times = self.queues.quotas.tree.queues, self.queues.run_times
            if queue == self.entry.queue:
                found = times.minimum_above(nodes[queue], Taking.WITHIN)
            else:
                below = nodes_between(nodes[self.entry.queue], nodes[queue])[-1]
                # By the mode, not by the settings: with fair sharing too one that takes what is its own reclaims.
                found = times.minimum_above(below, Taking.FAIR if self.mode.compares else Taking.RECLAIM)
            self._minimums[queue] = found
        return found

    def level_of(self, unit: HolderKey) -> int:
        """How late one is taken, the least first: by priority, in its own queue by use by what its LocalQueue used."""
        workload = self.queues.entry_of_unit(unit).workload
        return self._levels.get(workload.key, workload.priority)

    def levels(self, occupancy: FlavorRows) -> Ints:
        """The same of all owners of slots in a flavor."""
        if not self._levels:
            return occupancy.priority
        found = occupancy.priority.copy()
        for key, level in self._levels.items():
            for unit in occupancy.units_of_workload(key):
                found[occupancy.numbers[unit]] = level
        return found

    @cached_property
    def _levels(self) -> dict[HolderKey, int]:
        """By who holds quota of its own queue, where that goes by use: the higher score first, then low priority.

        All others come before them, as in Kueue 0.19.2 (CandidatesOrdering in pkg/scheduler/preemption/common).
        """
        queues, own = self.queues, self.entry.queue
        line = queues.pending.lines.get(own)
        if line is None or not line.by_use or _policy(queues, self.entry).within is Within.NEVER:
            return {}
        others = (key for name in self._others() for key in queues.holders.held_in(name))
        dearest = max((queues.entries[key].workload.priority for key in others), default=-1)
        dearest = max(dearest, self.entry.workload.outranks if queues.rules.pods else -1)
        workloads = [queues.entries[key].workload for key in queues.holders.held_in(own)]
        places = {one.key: (-queues.use.score_of(one.part), one.priority) for one in workloads}
        ranks = {place: dearest + 1 + at for at, place in enumerate(sorted(set(places.values())))}
        return {key: ranks[place] for key, place in places.items()}

    def givers(self) -> Iterator[Entry]:
        """Candidates that would give back some of the quota that is lacking, in no order."""
        others, lacking = self._others(), self._lacking_quotas()
        for name in (self.entry.queue, *others):
            for key in self.queues.holders.held_in(name):
                other = self.queues.entries[key]
                grant = other.grant
                if grant is None or not self._static(other, others):
                    continue
                for wanted in lacking:
                    if grant.amounts.get(wanted, 0) > 0:
                        if not self._is_safe(other):
                            yield other
                        break

    def by_quota(self) -> list[HolderKey]:
        """The units of the same, the least important first."""
        givers = sorted(self.givers(), key=lambda other: self.importance(other.workload.key))
        return [
            unit
            for other in givers
            for unit in units_of(other.workload, self.state.assignments(other.workload.key).values())
        ]

    def importance(self, unit: HolderKey) -> Importance:
        """Whom to take first: where shares count those of the largest one; the lowest level, then the newest."""
        found = self._importance.get(unit)
        if found is None:
            shares: tuple[tuple[bool, float], ...] = (_LEAST,)
            other = self.queues.entry_of_unit(unit)
            if self._by_shares and other.queue != OUTSIDE:
                if other.queue not in self._shares:
                    self._shares[other.queue] = self._shares_down_to(other.queue)
                shares = self._shares[other.queue]
            found = self._importance[unit] = shares, self.level_of(unit), -other.workload.created, order_of(unit)
        return found

    def _shares_down_to(self, queue: str) -> tuple[tuple[bool, float], ...]:
        """The shares of the nodes from the root down to a queue, negated; with what is asked for on its own way."""
        node, compared = self.queues.quotas.tree.queues[queue], self.comparison
        nodes = (*reversed(node.path[:-1]), node)
        shares = [(not infinite, -ratio) for infinite, ratio in map(compared.shares_now(), nodes)]
        # Its own queue loses somebody only where nobody else does.
        return tuple(shares[:-1]) + ((_LEAST,) if queue == self.entry.queue else (shares[-1],))

    @cached_property
    def comparison(self) -> FairComparison:
        """Of its queue with others by share."""
        return FairComparison(self.queues.quotas, self.entry.queue, self.option.amounts, fair=self.queues.rules.fair)

    @cached_property
    def _by_shares(self) -> bool:
        """Whether shares of queues, present ones or over time, say whose workloads go first."""
        return self.queues.rules.fair or self.queues.quotas.goes_by_use(self.entry.queue)

    def _others(self) -> dict[str, int]:
        """The other queues that may lose something, as things are, each with the highest priority that it may lose."""
        # Asked once a search: who borrows is asked again, victim by
        # victim, as quota is taken (`SimulatedRemoval._take_quota`).
        if self._borrowers is None:
            node = self.queues.quotas.tree.queues[self.entry.queue]
            # Quota that a queue gives back by itself counts as not
            # borrowed: its owner waits for that instead of evicting for it.
            found = find_borrowers(self.queues.leaving, node, self.contested) if self._takes_others else ()
            bounds = {name: self.mode.bound_at(place) for name, place in found}
            self._borrowers = {name: most for name, most in sorted(bounds.items()) if most is not None}
        return self._borrowers

    @property
    def _takes_others(self) -> bool:
        return self.mode.others is not None or self.mode.near is not None

    def reason_for(self, queue: str) -> tuple[Reason, str]:
        """By which rule one of another queue goes, and the cohort that takes its quota back so; "": no cohort does."""
        nodes = self.queues.quotas.tree.queues
        if place_of(nodes[self.entry.queue], nodes[queue]) < self.mode.wide:
            return self.mode.reason, ""
        return Reason.RECLAIMED, self.mode.cohort

    def _static(self, other: Entry, others: Mapping[str, int]) -> bool:
        """Whether the policies allow one victim, whatever else is taken."""
        key = other.workload.key
        queues = self.queues
        if (
            other.phase is not Phase.ADMITTED
            or key in queues.fresh
            or key in queues.holders.losing
            or self._protected(key)
        ):
            return False
        held = queues.quotas.held.get(key)
        if held is None or held.leaving or (held.non_preemptible and self.spared(key)):
            return False
        if key in self._sharing or key in self._followed or key in self._before:
            return False
        priority, mine = other.workload.priority, self.entry.workload
        if other.queue == self.entry.queue:
            within = _policy(self.queues, self.entry).within
            newer = within is Within.LOWER_OR_NEWER and other.workload.created > mine.created
            return within is not Within.NEVER and (priority < mine.priority or (priority == mine.priority and newer))
        most = others.get(other.queue)
        return most is not None and priority <= most

    @cached_property
    def _sharing(self) -> frozenset[str]:
        """Who has a claim that the preemptor names itself."""
        asks = (pod_set.devices for _, pod_sets in self.option.parts for pod_set in pod_sets)
        claims = {claim for ask in asks if ask is not None for claim in ask.claims}
        pods = (pod for claim in claims for pod in self.state.cluster.devices.holders.pods_of_claim(claim))
        return frozenset(self.queues.of_pod[pod] for pod in pods if pod in self.queues.of_pod)

    @cached_property
    def _followed(self) -> frozenset[HolderKey]:
        """Who leaves by itself, where somebody is to have what comes free."""
        return frozenset(self.queues.leaving.workloads if self.queues.kept_for() else ())

    @cached_property
    def _before(self) -> frozenset[str]:
        """Who of other queues had the preemptor evicted, where it would go beyond its own share."""
        if self.mode.others is None or not self.mode.borrowing:
            return frozenset()
        entries, found = self.queues.entries, self.queues.eviction_order.takers_before(self.entry.workload.base)
        return frozenset(key for key in found if key not in entries or entries[key].queue != self.entry.queue)

    def spared(self, key: HolderKey) -> bool:
        """Whether a holder is non-preemptible, and its queue holds no more that way than is its own."""
        held = self.queues.quotas.held.get(key)
        if held is None or not held.non_preemptible:
            return False
        overheld = self.queues.quotas.overheld
        # Another queue may take the excess: else naming a class would keep the nominal quota of others.
        return held.queue == self.entry.queue or not any(overheld(held.queue, name) > 0 for name in self.contested)

    def _protected(self, key: HolderKey) -> bool:
        """Whether a budget keeps a holder from being a victim."""
        if key not in self.queues.spared and key not in self.queues.budgets.guarded:
            return False
        other = self.queues.entries.get(key)
        # Within a queue budgets hold in every mode: taking back nominal quota is a matter between queues.
        return not self.mode.overriding or other is None or other.queue == self.entry.queue

    def _lacking_quotas(self) -> set[FlavorResource]:
        """The quotas that do not suffice."""
        quotas, own, amounts = self.queues.quotas, self.entry.queue, self.option.amounts
        found = {(m.flavor, m.resource) for m in self.queues.limits(self.entry).missing_quota(amounts)}
        # In a mode without borrowing it has to end up within its nominal
        # quota, so what others leave of the cohort's is no help.
        if not self.mode.borrowing:
            found |= {key for key, more in amounts.items() if quotas.used(own, key) + more > quotas.nominal(own, key)}
        return found
