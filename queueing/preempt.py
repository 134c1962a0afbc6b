"""Victims: whom to evict so that a workload gets its quota and its room, chosen together.

Rules
- Candidates are what the queue's policies allow: own workloads of lower (or equal and newer) priority; workloads of
  other queues of the cohort only while their queue uses more than its nominal quota, counted victim by victim.
- A plan is tried on the real state, victims taken out, the workload placed, all rolled back: there is no plan under
  which the workload would not fit. It is minimal by inclusion: with any victim left alone it would not fit.
- What is sought, first things first: the least highest priority of a victim, the least sum of priorities, the fewest
  victims, what is left fragmented (`queueing.leftover`); or, where the rules say so, the fewest first. Where the
  candidates are few, every set is looked at; else the least highest priority is found by bisection over bounds;
  then the domains are ranked by what freeing just enough of their nodes costs, and the best few are tried. Where the
  inside of machines decides, domains are looked into node by node (`queueing.inner`).
- A gang goes whole, or by its slices where it declared that; pods that no queue admitted may be taken where the rules
  say so, and only by pods that outrank them in Kubernetes too (`queueing.units`).
- Who is leaving already, or nominated, is nobody's victim; nor is who could not be evicted, as far as that is known
  (`queueing.budgets`), by itself or together with the others of a plan.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, islice
from typing import Final

import numpy as np

from engine.model import Pod
from engine.outlook import Outlook
from engine.placement import Assignment, Refusal
from engine.preempt.model import Rules as VictimRules
from engine.reasons import Reason
from engine.state import ClusterState
from queueing.flavors import Option, prefixes, put
from queueing.inner import MOST_NODES, Holder, Inner
from queueing.leftover import NOTHING, Leftover, counted, leftover, partly_free
from queueing.leftover import held as held_on
from queueing.model import FlavorResource, Preemption, Reclaim, Within
from queueing.needed import Needed
from queueing.occupancy import OUTSIDE as OUTSIDE_NUMBER
from queueing.occupancy import Mask, Occupancy
from queueing.queues import OUTSIDE, Entry, Phase, Queues
from queueing.quota import Held
from queueing.site import Region, Site
from queueing.subsets import subsets
from queueing.units import Path, domain_of, holder_of, is_pod, split, units_of

TRIES: Final = 4  # domains that are tried once one has been found; the best plan is taken
LOOKED: Final = 64  # domains that are looked into node by node, where the inside of machines decides
HELPED: Final = (Reason.DOES_NOT_FIT, Reason.NUMA_ALIGNMENT, Reason.UNSUPPORTED_CONSTRAINT)  # by others' going
MOST_KEPT: Final = 16  # victims that are left alone because of others of a plan
SMALL: Final = 1024  # nodes up to which every set of a few candidates is looked at
FEW: Final = 8  # candidates of which every set is looked at
FEW_OF_SEVERAL: Final = 6  # the same where several pod sets are placed
WIDE_TRIES: Final = 12  # domains that are tried until one is found


@dataclass(frozen=True)
class Victim:
    """A workload or pod that is to make room, and by which rule.

    ``domains``: it loses the slices that it has in these, each of them a victim of its own in sums and numbers; () it
    goes whole.
    """

    key: str
    uid: str
    priority: int
    reason: Reason
    domains: tuple[Path, ...] = ()

    @property
    def is_pod(self) -> bool:
        """Whether it is a pod that no queue admitted; ``key`` is then ``namespace/name`` behind a prefix."""
        return is_pod(self.key)

    @property
    def units(self) -> int:
        """How many victims it counts as."""
        return len(self.domains) or 1


@dataclass(frozen=True)
class Plan:
    """Evict these; then the workload goes there."""

    victims: tuple[Victim, ...]
    assignments: tuple[Assignment, ...]
    leftover: Leftover = NOTHING

    def key(self, rules: VictimRules) -> tuple[int, ...]:
        """What is compared, less first."""
        return (*ranked(rules, *self.cost), *self.leftover)

    @property
    def cost(self) -> tuple[int, int, int]:
        """(highest priority of a victim, sum of priorities, victims): less is better."""
        total = sum(max(victim.priority, 0) * victim.units for victim in self.victims)
        return max(victim.priority for victim in self.victims), total, sum(victim.units for victim in self.victims)


def ranked(rules: VictimRules, highest: int, total: int, size: int) -> tuple[int, ...]:
    """What is compared of victims, less first. A negative priority counts as 0 in the sum."""
    return (size, total) if rules.by_count else (highest, total, size)


@dataclass(frozen=True)
class _Mode:
    """Whose workloads may be taken: of other queues up to ``others`` (None: of no other queue).

    ``borrowing``: whether the preemptor may end up above its nominal quota.
    """

    others: int | None
    borrowing: bool
    reason: Reason = Reason.IN_CLUSTER_QUEUE


def plan(state: ClusterState, queues: Queues, entry: Entry, option: Option) -> Plan | None:
    """Victims that make an option fit; None where no permitted set of them does."""
    depth = queues.quotas.begin()
    try:
        queues.quotas.free_all(_on_their_way_out(queues, entry.queue))  # their quota is on its way back already
        return _within_budgets(queues, lambda: _search(state, queues, entry, option))
    finally:
        queues.quotas.rollback(depth)


def _search(state: ClusterState, queues: Queues, entry: Entry, option: Option) -> Plan | None:
    searches = (_Search(state, queues, entry, option, mode) for mode in _modes(queues, entry, option))
    return next((found for search in searches if (found := search.run()) is not None), None)


def _within_budgets(queues: Queues, search: Callable[[], Plan | None]) -> Plan | None:
    """What ``search`` finds once those are left alone who are too many for a budget together."""
    budgets = queues.budgets
    kept: list[str] = []
    try:
        while (found := search()) is not None and len(kept) < MOST_KEPT:
            victims = [(victim.priority, victim.key) for victim in found.victims if not victim.domains]
            over = budgets.over(victims, queues.evicting)
            if over is None:
                return found
            kept.append(over)
            budgets.guarded[over] = None
        return None
    finally:
        for key in kept:
            del budgets.guarded[key]


def _on_their_way_out(queues: Queues, queue: str) -> Iterator[str]:
    """Those who leave and share the limits of a cluster queue; the others' quota changes nothing for it."""
    pool = queues.quotas.pool(queue)
    for key in queues.evicting:
        held = queues.quotas.held.get(key)
        if held is not None and queues.quotas.pool(held.queue) == pool:
            yield key


def _modes(queues: Queues, entry: Entry, option: Option) -> Iterator[_Mode]:
    quotas, policy = queues.quotas, _policy(queues, entry)
    queue, priority = quotas.queues[entry.queue], entry.workload.priority
    most = priority - 1 if policy.reclaim is Reclaim.LOWER else (1 << 62)
    if queue.cohort and policy.reclaim is not Reclaim.NEVER:
        if queues.rules.fair:
            yield _Mode(most, borrowing=True, reason=Reason.FAIR_SHARING)
            return
        if not quotas.borrows(entry.queue, option.amounts):
            yield _Mode(most, borrowing=False, reason=Reason.RECLAIMED)
        elif policy.borrowing:
            most = priority - 1 if policy.threshold is None else min(priority - 1, policy.threshold)
            yield _Mode(most, borrowing=True, reason=Reason.RECLAIMED_WHILE_BORROWING)
    if policy.within is not Within.NEVER:
        yield _Mode(None, borrowing=True)


def _policy(queues: Queues, entry: Entry) -> Preemption:
    return queues.quotas.queues[entry.queue].preemption


@dataclass(frozen=True)
class _Taken:
    """A unit that was taken out, and what it takes to put it back."""

    entry: Entry
    held: Held | None  # None of a pod: it has no quota
    pods: tuple[Pod, ...]


@dataclass
class _Search:
    """One search. Everything that changes the state happens between ``begin`` and ``rollback``."""

    state: ClusterState
    queues: Queues
    entry: Entry
    option: Option
    mode: _Mode
    _share: dict[str, float] = field(default_factory=dict)
    _before: dict[str, tuple[Assignment, ...]] = field(default_factory=dict)  # of those whose units were taken
    _needed: Needed | None = None
    _borrowers: list[str] | None = None

    def run(self) -> Plan | None:
        """See ``plan``."""
        if not self._anyone():
            return None
        self.queues.searches += 1
        if not self._quota_reachable():
            return None
        refused = put(self.state, self.entry.workload.key, self.option)
        if not isinstance(refused, Refusal):
            return self._tried()  # only quota is lacking
        if refused.reason not in HELPED:
            return None
        best, several = self._best(refused), sum(len(pod_sets) for _, pod_sets in self.option.parts) > 1
        if best is None and several:
            best = self._one_by_one() or self._ever_more()
        return self._refined(best, several=several)

    def _best(self, refused: Refusal) -> Plan | None:
        """The best plan among the cheapest domains for the pod set that was refused."""
        site = self._site(refused)
        best: Plan | None = None
        if site is None:
            return None
        for spent, (region, sets) in enumerate(islice(self._proposals(site), WIDE_TRIES)):
            if best is not None and (spent >= TRIES or self._no_better(site, region, best)):
                break
            self._needed = Needed(site) if site.outlook.by_host else None
            found = self._tried(*sets)
            if found is not None and (best is None or found.key(self._rules) < best.key(self._rules)):
                best = found
        return best

    @property
    def _rules(self) -> VictimRules:
        return self.queues.rules.victims

    def _no_better(self, site: Site, region: Region, best: Plan) -> bool:
        if self._rules.by_count:
            return False
        return region.most > best.cost[0] or region.cost >= site.worth(best)

    def _proposals(self, site: Site) -> Iterator[tuple[Region, list[list[str]]]]:
        """Regions with the sets to try there, the cheapest first: by sums, or node by node as kubelets admit."""
        inner, by_count = Inner.of(self.state, site.outlook.pod_set, self._rules), self._rules.by_count
        if inner is None or (site.outlook.rank < 0 and site.outlook.tree.size > MOST_NODES):
            yield from (
                (region, [site.keys(region.narrow), site.keys(region.wide)])
                for region in site.regions(by_count=by_count)
            )
            return
        for _, regions in groupby(site.regions(every=True, by_count=by_count), lambda region: region.most):
            found: list[tuple[tuple[int, ...], int, Region, list[str]]] = []
            least = math.inf
            for number, region in enumerate(islice(regions, LOOKED)):
                if region.cost >= least:
                    break  # by sums alone those that follow cost as much as one that was looked into
                chosen, possible = self._chosen(inner, site, region)
                if possible:
                    found.append((self._price(chosen), number, region, chosen))
                    least = min(least, site.cost(self.queues.holder(key).workload.priority for key in chosen))
            for _, _, region, chosen in sorted(found, key=lambda one: one[:2]):
                yield region, [chosen, site.keys(region.wide)]

    def _price(self, keys: Iterable[str]) -> tuple[int, ...]:
        priorities = [self.queues.holder(key).workload.priority for key in keys]
        total = sum([max(priority, 0) for priority in priorities])
        return ranked(self._rules, max(priorities, default=0), total, len(priorities))

    def _chosen(self, inner: Inner, site: Site, region: Region) -> tuple[list[str], bool]:
        """Whom the kubelets of a region need gone, and whether they could take the pods at all."""
        names = [site.outlook.tree.names[leaf] for leaf in region.leaves.tolist() if site.outlook.passing[leaf]]
        holders: dict[str, Holder] = {}
        on: dict[str, list[Holder]] = {}
        for name, keys in site.owners_on(region).items():
            for key in keys:
                if key not in holders:
                    other = self.queues.holder(key)
                    pods = [self.state.pods[pod] for pod in sorted(other.pods) if pod in self.state.pods]
                    holders[key] = Holder(key, other.workload.priority, tuple(pods), other.workload.key)
                on.setdefault(name, []).append(holders[key])
        return inner.victims(names, on)

    def _site(self, refused: Refusal) -> Site | None:
        for flavor, pod_sets in self.option.parts:
            for pod_set in pod_sets:
                if pod_set.name == refused.pod_set:
                    outlook = Outlook.of(self.state, flavor, pod_set)
                    occupancy = self.queues.occupancy(self.state, flavor)
                    if outlook is not None and occupancy is not None:
                        return Site(outlook, occupancy, self._eligible(occupancy))
        return None

    def _ever_more(self) -> Plan | None:
        """Several pod sets for which that finds nothing: ever more victims, the least important first."""
        self._needed = None
        order = sorted(self._candidates(), key=self._importance)
        sizes = [1 << power for power in range(2, 1 + max(2, len(order).bit_length()))]
        return self._tried(*(order[:size] for size in sizes))

    def _candidates(self) -> dict[str, None]:
        """All units that may be taken in the flavors of the option."""
        found: dict[str, None] = {}
        for flavor in dict.fromkeys(self.option.rooms):
            occupancy = self.queues.occupancy(self.state, flavor)
            if occupancy is not None:
                eligible = self._eligible(occupancy).nonzero()[0].tolist()
                found |= dict.fromkeys(occupancy.keys[number] for number in eligible)
        return found

    def _one_by_one(self) -> Plan | None:
        """Room for one pod set after the other, each in the domain where that costs least, beside those before it."""
        self._needed = None
        quotas, state, key = self.queues.quotas, self.state, self.entry.workload.key
        depth, checkpoint = quotas.begin(), state.begin()
        taken: dict[str, _Taken] = {}
        try:
            before: tuple[Assignment, ...] = ()
            for option in prefixes(self.option):
                found = put(state, key, option)
                if isinstance(found, Refusal):
                    state.reserve(key, before)
                    site = self._site(found)
                    state.release(key)
                    beside = None if site is None else self._beside(site, option, taken)
                    if beside is None:
                        return None
                    found = beside
                before = found
        finally:
            state.rollback(checkpoint)
            quotas.rollback(depth)
        return self._tried(list(taken))

    def _beside(self, site: Site, option: Option, taken: dict[str, _Taken]) -> tuple[Assignment, ...] | None:
        """Take out the victims of the cheapest domain that then takes the last pod set of an option."""
        quotas, state = self.queues.quotas, self.state
        for _, sets in islice(self._proposals(site), TRIES):
            for keys in sets:
                depth, checkpoint, more = quotas.begin(), state.begin(), dict(taken)
                self._take_all(keys, more)
                found = put(state, self.entry.workload.key, option)
                if not isinstance(found, Refusal):
                    quotas.commit(depth)
                    state.commit(checkpoint)
                    taken |= more
                    return found
                state.rollback(checkpoint)
                quotas.rollback(depth)
        return None

    def _refined(self, best: Plan | None, *, several: bool) -> Plan | None:
        """The best of all sets of candidates, where they are few and the inside of machines does not decide."""
        if best is None and not several:
            return None
        if self.state.machines or len(self.state.nodes) > SMALL:
            return best  # slots that no pod is in yet might be thought elsewhere inside their nodes
        most = None if best is None or self._rules.by_count else best.cost[0]
        units = self._few(FEW_OF_SEVERAL if several else FEW, most)
        priorities = [self.queues.holder(unit).workload.priority for unit in units]
        resources = self._resources
        frees = [sum(self._holds(unit, self._pods(unit), resources).values()) for unit in units]
        self._needed = None
        mended = -partly_free(self.state, resources)
        for chosen in subsets(priorities, frees, self._rules):
            if best is not None and (*chosen.key, chosen.freed, mended) >= best.key(self._rules):
                break
            found = self._tried([units[at] for at in chosen.members])
            if found is not None and (best is None or found.key(self._rules) < best.key(self._rules)):
                best = found
        return best

    def _few(self, limit: int, most: int | None) -> list[str]:
        """All units of up to a priority that may be taken; [] where they are more than ``limit``."""
        found: list[str] = []
        for flavor in dict.fromkeys(self.option.rooms):
            occupancy = self.queues.occupancy(self.state, flavor)
            if occupancy is None:
                continue
            eligible = self._eligible(occupancy)
            if most is not None:
                eligible &= occupancy.priority[: len(eligible)] <= most
            if np.count_nonzero(eligible) + len(found) > limit:
                return []
            found += [occupancy.keys[number] for number in eligible.nonzero()[0].tolist()]
        return found

    @cached_property
    def _resources(self) -> frozenset[str]:
        """What counts of the room that is left (`queueing.leftover`)."""
        return counted(pod_set for _, pod_sets in self.option.parts for pod_set in pod_sets)

    def _holds(self, unit: str, pods: Iterable[Pod], resources: frozenset[str]) -> dict[str, int]:
        """By node, what a unit with these pods has of some resources."""
        if is_pod(unit):
            return held_on((), pods, resources)
        parts = self._before.get(holder_of(unit)) or tuple(self.state.assignments(holder_of(unit)).values())
        return held_on(split(parts, [domain_of(unit)])[1] if domain_of(unit) else parts, (), resources)

    # -- who may be taken -------------------------------------------------------------------------------------

    def _anyone(self) -> bool:
        """Whether there may be a candidate at all: most searches end here."""
        within, mine = _policy(self.queues, self.entry).within, self.entry.workload.priority
        lowest = self.queues.lowest(self.entry.queue)
        newer = within is Within.LOWER_OR_NEWER
        if lowest is not None and within is not Within.NEVER and (lowest < mine or (lowest == mine and newer)):
            return True
        lowest = self.queues.lowest(OUTSIDE) if self.queues.rules.pods else None
        if lowest is not None and lowest < self.entry.workload.outranks:
            return True
        most = self.mode.others
        return most is not None and any(
            (low := self.queues.lowest(name)) is not None and low <= most for name in self._others()
        )

    def _others(self) -> list[str]:
        """Queues of the cohort that use more than their nominal quota of something that is wanted, as things are."""
        if self._borrowers is None:
            self._borrowers = self._find_others() if self.mode.others is not None else []
        return self._borrowers

    def _find_others(self) -> list[str]:
        quotas, own = self.queues.quotas, self.entry.queue
        return [
            name
            for name in sorted(quotas.members(own))
            if name != own and any(quotas.over(name, key) > 0 for key in self.option.amounts)
        ]

    def _static(self, other: Entry, others: Iterable[str]) -> bool:
        """Whether the policies allow one victim, whatever else is taken."""
        key = other.workload.key
        queues = self.queues
        if other.phase is not Phase.ADMITTED or key in queues.fresh or key in queues.spared or key in queues.losing:
            return False
        if key in queues.budgets.guarded:
            return False
        held = self.queues.quotas.held.get(key)
        if held is None or held.leaving:
            return False
        priority, mine = other.workload.priority, self.entry.workload
        if other.queue == self.entry.queue:
            within = _policy(self.queues, self.entry).within
            newer = within is Within.LOWER_OR_NEWER and other.workload.created > mine.created
            return within is not Within.NEVER and (priority < mine.priority or (priority == mine.priority and newer))
        return self.mode.others is not None and priority <= self.mode.others and other.queue in others

    def _eligible(self, occupancy: Occupancy) -> Mask:
        """The same for all owners of slots in a flavor at once."""
        size = len(occupancy.keys)
        priority, queue = occupancy.priority[:size], occupancy.queue[:size]
        mine, within = self.entry.workload, _policy(self.queues, self.entry).within
        found = np.zeros(size, np.bool_)
        if within is not Within.NEVER:
            found = priority < mine.priority
            if within is Within.LOWER_OR_NEWER:
                found |= (priority == mine.priority) & (occupancy.created[:size] > mine.created)
            found &= queue == self.queues.number(self.entry.queue)
        others = [self.queues.number(name) for name in self._others()]
        if others and self.mode.others is not None:
            found |= np.isin(queue, others) & (priority <= self.mode.others)
        if self.queues.rules.pods:
            found |= (queue == OUTSIDE_NUMBER) & (priority < mine.outranks)
        found &= occupancy.alive[:size]
        queues = self.queues
        kept = (*queues.spared, *queues.budgets.guarded)
        for key in (*queues.nominated, *queues.evicting, *queues.fresh, *queues.losing, *kept):
            for unit in occupancy.units(key):
                found[occupancy.numbers[unit]] = False
        return found

    def _lacking(self) -> set[FlavorResource]:
        """The quotas that do not suffice."""
        quotas, own, amounts = self.queues.quotas, self.entry.queue, self.option.amounts
        found = {(m.flavor, m.resource) for m in quotas.missing(own, amounts)}
        if not self.mode.borrowing:
            found |= {key for key, more in amounts.items() if quotas.used(own, key) + more > quotas.nominal(own, key)}
        return found

    def _givers(self) -> Iterator[Entry]:
        """Candidates that would give back some of the quota that is lacking, in no order."""
        others, lacking = self._others(), self._lacking()
        for name in (self.entry.queue, *others):
            for key in self.queues.held_in(name):
                other = self.queues.entries[key]
                grant = other.grant
                if grant is None or not self._static(other, others):
                    continue
                for wanted in lacking:
                    if grant.amounts.get(wanted, 0) > 0:
                        yield other
                        break

    def _by_quota(self) -> list[str]:
        """The units of the same, the least important first."""
        givers = sorted(self._givers(), key=lambda other: self._importance(other.workload.key))
        return [
            unit
            for other in givers
            for unit in units_of(other.workload, self.state.assignments(other.workload.key).values())
        ]

    def _importance(self, unit: str) -> tuple[float, int, float, str]:
        """Whom to take first: with fair sharing those of the largest share; low priority, then the newest."""
        share, other = 0.0, self.queues.holder(unit)
        if self.queues.rules.fair and other.queue != self.entry.queue:
            if other.queue not in self._share:
                self._share[other.queue] = -self.queues.quotas.share(other.queue)
            share = self._share[other.queue]
        return share, other.workload.priority, -other.workload.created, unit

    # -- quota ------------------------------------------------------------------------------------------------

    def _quota_reachable(self) -> bool:
        """Whether quota would suffice once every candidate that gives some back were gone: fails fast."""
        quotas = self.queues.quotas
        if not quotas.ever(self.entry.queue, self.option.amounts):
            return False
        if self._quota_fits():
            return True
        depth, givers, fits, some = quotas.begin(), self._givers(), False, 1
        while not fits and (keys := [other.workload.key for other in islice(givers, some)]):
            fits = bool(self._take_each(keys)) and self._quota_fits()
            some *= 2
        quotas.rollback(depth)
        return fits

    def _quota_fits(self) -> bool:
        quotas, queue, amounts = self.queues.quotas, self.entry.queue, self.option.amounts
        return quotas.fits(queue, amounts) and (self.mode.borrowing or not quotas.borrows(queue, amounts))

    def _take_each(self, keys: list[str]) -> list[str]:
        """Take the quota of units away, one after the other, of those that may still be taken; returns those."""
        quotas, own = self.queues.quotas, self.entry.queue
        held = [quotas.held.get(key) for key in keys]
        if all(one is not None and one.queue == own for one in held):
            quotas.free_all(keys)
            return keys
        return [key for key in keys if self._take(key)]

    def _take(self, unit: str) -> bool:
        """Take a unit's quota away, if its queue may still be taken from."""
        if is_pod(unit):
            return True
        quotas, key = self.queues.quotas, holder_of(unit)
        held = quotas.held.get(key)
        given = self._given(unit)
        if held is None or given is None:
            return False
        if held.queue != self.entry.queue:
            if not any(quotas.over(held.queue, name) > 0 for name in self.option.amounts):
                return False
            if self.queues.rules.fair:
                mine = quotas.share(self.entry.queue, more=self.option.amounts)
                before = quotas.share(held.queue)
                if mine >= before and mine > quotas.share(held.queue, less=given.amounts):
                    return False
        if given is held:
            quotas.free(key)
        else:
            left = {name: amount - given.amounts.get(name, 0) for name, amount in held.amounts.items()}
            quotas.hold(key, Held(held.queue, left, held.leaving))
        return True

    def _given(self, unit: str) -> Held | None:
        """The quota that a unit holds: all that its workload does, or the part of some of its slices."""
        key, domain = holder_of(unit), domain_of(unit)
        held = self.queues.quotas.held.get(key)
        if held is None or not domain:
            return held
        grant = self.queues.entries[key].grant
        if grant is None:
            return None
        lost = sum(part.count for part in split(grant.assignments, [domain])[1])
        total = max(sum(grant.counts.values()), 1)
        amounts = {name: amount // total * lost for name, amount in grant.amounts.items()}
        return Held(held.queue, amounts, held.leaving)

    # -- trying -----------------------------------------------------------------------------------------------

    def _tried(self, *sets: list[str]) -> Plan | None:
        """The plan that evicts the first of these sets that suffices, victims for quota added, cut to the needed."""
        quotas, state = self.queues.quotas, self.state
        depth, checkpoint = quotas.begin(), state.begin()
        taken: dict[str, _Taken] = {}
        try:
            placed = self._placed() if not sets else None
            for keys in sets:
                if self._take_all(keys, taken):
                    placed = self._placed()
                if placed is not None:
                    break
            if placed is not None and not self._quota_fits():
                for key in self._by_quota():
                    self._take_all([key], taken)
                    if self._quota_fits():
                        break
            if placed is None or not taken or not self._quota_fits():
                return None
            return self._cut(taken)
        finally:
            state.rollback(checkpoint)
            quotas.rollback(depth)

    def _take_all(self, units: Iterable[str], taken: dict[str, _Taken]) -> bool:
        """Take out whom the rules still allow; True where anybody was taken."""
        ranked = sorted({unit: None for unit in units if unit not in taken}, key=self._importance)
        held = {unit: self._given(unit) for unit in ranked}
        gone = self._take_each(ranked)
        whole: list[str] = []
        for unit in gone:
            key, other = holder_of(unit), self.queues.holder(unit)
            if key not in self._before:
                self._before[key] = tuple(self.state.assignments(key).values())
            pods = self._pods(unit)
            taken[unit] = _Taken(other, held[unit], pods)
            for pod in pods:
                self.state.remove_pod(pod.key)
            if not domain_of(unit):
                whole.append(key)
        self.state.release_all(whole)
        for key in dict.fromkeys(holder_of(unit) for unit in gone if domain_of(unit)):
            self._leave(key, taken)
        return bool(gone)

    def _pods(self, unit: str) -> tuple[Pod, ...]:
        """The bound pods of a unit: a node is in one domain, so those on its nodes."""
        pods = [self.state.pods[pod] for pod in self.queues.holder(unit).pods if pod in self.state.pods]
        if domain := domain_of(unit):
            lost = split(self.state.assignments(holder_of(unit)).values(), [domain])[1]
            nodes = {name for part in lost for piece in part.slices for name, _ in piece.nodes}
            pods = [pod for pod in pods if pod.node in nodes]
        return tuple(pods)

    def _leave(self, key: str, taken: Iterable[str]) -> None:
        """Have a workload hold what it held less its units that are taken."""
        domains = [domain_of(unit) for unit in taken if holder_of(unit) == key]
        self.state.reserve(key, split(self._before[key], domains)[0])

    def _placed(self) -> tuple[Assignment, ...] | None:
        found = put(self.state, self.entry.workload.key, self.option)
        return None if isinstance(found, Refusal) else found

    def _cut(self, taken: dict[str, _Taken]) -> Plan | None:
        """Leave alone whom the plan does not need, the most important first; where numbers count, the smallest."""
        quotas, state, needed = self.queues.quotas, self.state, self._needed
        if needed is not None:
            needed.start(state, taken)
        for key in sorted(taken, key=lambda unit: self._spared(unit, taken[unit].held), reverse=True):
            if len(taken) == 1 or (needed is not None and needed.surely(key)):
                continue
            depth, checkpoint = quotas.begin(), state.begin()
            self._hold_again(key, taken[key].held)
            fits = self._quota_fits()
            if fits:
                if not is_pod(key):
                    self._leave(holder_of(key), (unit for unit in taken if unit != key))
                for pod in taken[key].pods:
                    state.set_pod(pod)
                fits = self._placed() is not None
            if fits:
                quotas.commit(depth)
                state.commit(checkpoint)
                del taken[key]
                if needed is not None:
                    needed.left_alone(key)
            else:
                state.rollback(checkpoint)
                quotas.rollback(depth)
        assignments = self._placed()
        if assignments is None:
            return None
        return Plan(tuple(self._victims(taken)), assignments, self._left(taken, assignments))

    def _left(self, taken: Mapping[str, _Taken], assignments: Sequence[Assignment]) -> Leftover:
        """What is left fragmented, while these are out of the state."""
        resources, gone = self._resources, dict[str, int]()
        for unit, one in taken.items():
            for name, amount in self._holds(unit, one.pods, resources).items():
                gone[name] = gone.get(name, 0) + amount
        return leftover(self.state, gone, held_on(assignments, (), resources), resources)

    def _hold_again(self, unit: str, given: Held | None) -> None:
        """Give a unit its quota back."""
        if given is None:
            return
        quotas, key = self.queues.quotas, holder_of(unit)
        now = quotas.held.get(key)
        amounts = dict(given.amounts)
        if domain_of(unit) and now is not None:
            amounts = {name: amount + amounts.get(name, 0) for name, amount in now.amounts.items()}
        quotas.hold(key, Held(given.queue, amounts, given.leaving))

    def _spared(self, unit: str, given: Held | None) -> tuple[float | str, ...]:
        if given is None or not self._rules.by_count:
            return self._importance(unit)
        wanted = self.option.amounts
        gives = sum(amount / wanted[key] for key, amount in given.amounts.items() if wanted.get(key))
        return -gives, *self._importance(unit)

    def _victims(self, units: Iterable[str]) -> Iterator[Victim]:
        """Workloads and pods; one that would lose all, or more than it can do without, goes whole."""
        for key, of_it in groupby(sorted(units, key=holder_of), key=holder_of):
            other = self.queues.holder(key)
            workload, domains = other.workload, tuple(filter(None, map(domain_of, of_it)))
            left = sum(part.count for part in split(self._before[key], domains)[0]) if domains else 0
            if left == 0 or left < max(workload.at_least.values(), default=0):
                domains = ()
            own = other.queue == self.entry.queue
            reason = Reason.IN_CLUSTER_QUEUE if own else self.mode.reason
            reason = Reason.OUTSIDE_QUEUES if other.outside is not None else reason
            yield Victim(workload.key, workload.uid, workload.priority, reason, domains)
