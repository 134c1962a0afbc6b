"""Victims: whom to evict so that a workload gets its quota and its room, chosen together.

Rules
- Candidates are what the queue's policies allow (`queueing.preemption.candidates`), asked again victim by victim as
  they are taken (`queueing.preemption.simulate`).
- A plan is tried on the real state, victims taken out, the workload placed, all rolled back: there is no plan under
  which the workload would not fit. It is minimal by inclusion: with any victim left alone it would not fit.
- What is sought, first things first: the least highest priority of a victim, the least sum of priorities, the fewest
  victims, where the preemptor lands inside its nodes (`queueing.preemption.landings`), what is left fragmented
  (`queueing.preemption.fragmentation`); or, where the rules say so, the fewest first.
  Where the candidates are few, every set is looked at; else the least highest priority is found by bisection over
  bounds; then the domains are ranked by what freeing just enough of their nodes costs, and the best few are tried.
  Where the inside of machines decides, domains are looked into node by node (`queueing.preemption.proposals`).
- A gang goes whole, or by its slices where it declared that; pods that no queue admitted may be taken where the rules
  say so, and only by pods that outrank them in Kubernetes too (`queueing.queues.eviction_units`).
- Devices of claims come free with the last of those who have them; those of claims whose pods are gone do so by
  themselves, so nobody goes for what these give back (`engine.devices.holders`).
- Who could not be evicted, as far as that is known, is no candidate, nor are victims of a plan who could not be evicted
  together (`queueing.queues.pdb`); but for one who takes back nominal quota, where nobody else would do and the rules
  say so.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby, islice
from typing import Final

from engine.cluster.assignment import Assignment
from engine.cluster.filters import Mask
from engine.cluster.state import ClusterState
from engine.model import Pod, PodSet
from engine.placement.shares import Shares
from engine.placement.upper_bounds import UpperBounds
from engine.preemption.model import ChoiceRules as VictimRules
from engine.reasons import Cure, Reason
from engine.reservation_key import HolderKey, Role, order_of, part_of, role_of, whole_of
from engine.results import Refusal
from queueing.preemption.candidates import Candidates, find_contested, modes
from queueing.preemption.domains import CandidateDomains
from queueing.preemption.fragmentation import CLAIMED, Fragmentation, counted, leftover, partly_free
from queueing.preemption.fragmentation import held as held_on
from queueing.preemption.landings import landings_of
from queueing.preemption.necessity import NecessityProof
from queueing.preemption.plan import Plan, PlannedVictim
from queueing.preemption.proposals import Proposal, Proposals
from queueing.preemption.relief import DeviceRelief
from queueing.preemption.simulate import RemovedUnit, SimulatedRemoval
from queueing.preemption.subsets import subsets
from queueing.queues.entry import Entry
from queueing.queues.eviction_units import split
from queueing.queues.flavor_assigner import FlavorAssignment, prefixes, put
from queueing.queues.held import Held
from queueing.queues.queues import Queues
from queueing.queues.successor import charge_coming

TRIES: Final = 4  # domains that are tried once one has been found; the best plan is taken
MOST_KEPT: Final = 16  # victims that are left alone because of others of a plan
SMALL: Final = 1024  # nodes up to which every set of a few candidates is looked at
FEW: Final = 8  # candidates of which every set is looked at
FEW_OF_SEVERAL: Final = 6  # the same where several pod sets are placed
WIDE_TRIES: Final = 12  # domains that are tried until one is found


def plan(state: ClusterState, queues: Queues, entry: Entry, option: FlavorAssignment) -> Plan | None:
    """Victims that make an option fit; None where no permitted set of them does."""
    # Before the search and never within it: who may be taken is noted by number, and so is who holds what.
    queues.holders.drop_dead(option.rooms)
    depth = queues.quotas.begin()
    try:
        quotas, leaving = queues.quotas, queues.leaving
        going = quotas.sharing(entry.queue, queues.holders.going())
        # Noted before the quota is freed: of these the successors are to have a part.
        back = [quotas.held[key] for key in set(going).intersection(leaving.workloads)]
        quotas.free_all(going)  # their quota is on its way back already
        charge_coming(quotas, queues.kept_for(), back, leaving)  # but for what successors are to have of it
        with state.cluster.devices.deallocated():  # and these devices
            # The mildest mode that finds a plan decides, though a harsher
            # one may find a cheaper plan: policies come before costs.
            # Only now: what is on its way back suffices without anybody's going, and is contested by nobody.
            contested = find_contested(queues, entry, option)
            for mode in modes(queues, entry, option, contested):
                candidates = partial(Candidates, state, queues, entry, option, mode, contested or option.amounts)
                search = partial(_search, candidates)
                found = search() if mode.overriding else _within_budgets(queues, search)
                if found is not None:
                    return found
        return None
    finally:
        queues.quotas.rollback(depth)


def _search(candidates: Callable[[], Candidates]) -> Plan | None:
    # Made for each search: they note what they found, and who is guarded changes between two.
    return _Search(candidates()).run()


def _within_budgets(queues: Queues, search: Callable[[], Plan | None]) -> Plan | None:
    """What ``search`` finds once those are left alone who are too many for a budget together."""
    budgets = queues.budgets
    kept: list[str] = []
    try:
        # One holder more is left alone each time, so the loop ends; past the
        # limit no plan is better than one that a budget refuses half way.
        while (found := search()) is not None and len(kept) < MOST_KEPT:
            victims = [(victim.priority, victim.key) for victim in found.victims if not victim.domains]
            over = budgets.exceeded_budget(victims, queues.holders.evicting)
            if over is None:
                return found
            kept.append(over)
            # As if its budget allowed nothing: the search is run again without it.
            budgets.guarded[over] = None
        return None
    finally:
        for key in kept:
            del budgets.guarded[key]


@dataclass
class _Search:
    """One search. Everything that changes the state happens between ``begin`` and ``rollback``."""

    candidates: Candidates
    _needed: NecessityProof | None = None

    def __post_init__(self) -> None:
        who = self.candidates
        self.state, self.queues, self.entry, self.option = who.state, who.queues, who.entry, who.option
        self.removal = SimulatedRemoval(who)

    def run(self) -> Plan | None:
        """See ``plan``."""
        if not self.candidates.anyone():
            return None
        self.queues.count_search()
        # Quota before room: it is a few sums, and most searches of full queues end here.
        if not self.removal.quota_reachable():
            return None
        refused = put(self.state, self.entry.workload.key, self.option)
        if not isinstance(refused, Refusal):
            return self._try_sets()  # only quota is lacking
        # Nobody's going makes a level, a label or a volume appear.
        if refused.reason.traits.cure is not Cure.OTHERS:
            return None
        self.candidates.contest_all()
        best, several = self._best_plan(refused), sum(len(pod_sets) for _, pod_sets in self.option.parts) > 1
        if best is None and several:
            best = self._one_by_one() or self._ever_more()
        return self._refined(best, several=several)

    def _best_plan(self, refused: Refusal) -> Plan | None:
        """The best plan among the cheapest domains for the pod set that was refused."""
        for site in self._sites(refused):
            best = self._best_plan_at(site)
            if best is not None:
                return best
        return None

    def _best_plan_at(self, site: CandidateDomains) -> Plan | None:
        best: Plan | None = None
        for spent, proposal in enumerate(islice(self._proposals(site), WIDE_TRIES)):
            # Proposals come cheapest first by bounds, so the first that cannot be better ends the search.
            if best is not None and (spent >= TRIES or self._no_better(site, proposal, best)):
                break
            # The proof adds up counts of nodes; where a leaf is a domain of several nodes it says nothing.
            self._needed = NecessityProof(site) if site.outlook.by_host else None
            found = self._try_sets(*proposal.sets)
            if found is not None and (best is None or found.key(self._rules) < best.key(self._rules)):
                best = found
        return best

    @cached_property
    def _rules(self) -> VictimRules:
        return self.queues.victim_rules(self.entry.queue)

    def _no_better(self, site: CandidateDomains, proposal: Proposal, best: Plan) -> bool:
        # A price leaves out fragmentation, the last part of the key:
        # a proposal of an equal price is taken for no better.
        if proposal.price:
            return proposal.price >= best.key(self._rules)[: len(proposal.price)]
        if self._rules.by_count:
            return False
        return proposal.most > best.cost[0] or proposal.cost >= site.worth(best)

    def _proposals(self, site: CandidateDomains) -> Iterator[Proposal]:
        """What to try there, the best first."""
        return iter(Proposals(self.state, self.queues, site, self._rules))

    def _sites(self, refused: Refusal) -> Iterator[CandidateDomains]:
        """The domains that may take it as things are; then, where some may not, all: its victims may be among those."""
        wanted = ((flavor, pod_set) for flavor, pod_sets in self.option.parts for pod_set in pod_sets)
        found = next((one for one in wanted if one[1].name == refused.pod_set), None)
        if found is not None:
            shares = Shares.of_pod_set(self.state, *found, self.entry.workload.key)
            if isinstance(shares, Shares) and shares.closed:
                yield from self._site(*found, shares.open_leaves)
            yield from self._site(*found)

    def _site(self, flavor: str, pod_set: PodSet, leaves: Mask | None = None) -> Iterator[CandidateDomains]:
        outlook = UpperBounds.compute_bounds(self.state, flavor, pod_set, claims=True, leaves=leaves)
        occupancy = self.queues.holders.usage(self.state, flavor)
        if outlook is not None and occupancy is not None:
            eligible = self.candidates.eligible(occupancy)
            levels = self.candidates.levels(occupancy)
            relief = DeviceRelief.from_removal(self.removal, outlook, occupancy, eligible, levels)
            yield CandidateDomains(outlook, occupancy, eligible, levels, relief)

    def _ever_more(self) -> Plan | None:
        """Several pod sets for which that finds nothing: ever more victims, the least important first."""
        self._needed = None
        order = sorted(self.candidates.all_units(), key=self.candidates.importance)
        # Powers of two: each try places all pod sets, and `_cut` spares whom the larger step took in vain.
        sizes = [1 << power for power in range(2, 1 + max(2, len(order).bit_length()))]
        return self._try_sets(*[order[:size] for size in sizes])

    def _one_by_one(self) -> Plan | None:
        """Room for one pod set after the other, each in the domain where that costs least, beside those before it."""
        self._needed = None
        quotas, state, key = self.queues.quotas, self.state, self.entry.workload.key
        depth, checkpoint = quotas.begin(), state.begin()
        taken: dict[HolderKey, RemovedUnit] = {}
        try:
            before: tuple[Assignment, ...] = ()
            for option in prefixes(self.option):
                found = put(state, key, option)
                if isinstance(found, Refusal):
                    # The pod sets before it are held while the domains for this
                    # one are ranked, or both would count the same room.
                    state.reserve(key, before)
                    site = next(self._sites(found), None)
                    state.release_workload(key)
                    beside = None if site is None else self._place_last_pod_set(site, option, taken)
                    if beside is None:
                        return None
                    found = beside
                before = found
        finally:
            state.rollback(checkpoint)
            quotas.rollback(depth)
        return self._try_sets(list(taken))

    def _place_last_pod_set(
        self, site: CandidateDomains, option: FlavorAssignment, taken: dict[HolderKey, RemovedUnit]
    ) -> tuple[Assignment, ...] | None:
        """Take out the victims of the cheapest domain that then takes the last pod set of an option."""
        quotas, state = self.queues.quotas, self.state
        for proposal in islice(self._proposals(site), TRIES):
            for keys in proposal.sets:
                depth, checkpoint, more = quotas.begin(), state.begin(), dict(taken)
                self.removal.take_all(keys, more)
                found = put(state, self.entry.workload.key, option)
                if not isinstance(found, Refusal):
                    # Kept for the pod sets that follow; the outer transaction still undoes all of it.
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
        units = self.candidates.few(FEW_OF_SEVERAL if several else FEW, most)
        levels = [self.candidates.level_of(unit) for unit in units]
        resources = self._resources
        frees = [self._frees(unit) for unit in units]
        self._needed = None
        # A bound of what evictions mend: no plan leaves fewer nodes
        # broken, so sets that cost more even so end the search.
        mended = -partly_free(self.state, resources)
        for chosen in subsets(levels, frees, self._rules):
            if best is not None and (*chosen.key, chosen.freed, mended) >= best.key(self._rules):
                break
            found = self._try_sets([units[at] for at in chosen.members])
            if found is not None and (best is None or found.key(self._rules) < best.key(self._rules)):
                best = found
        return best

    def _frees(self, unit: HolderKey) -> int:
        """What a unit that is in the state gives up of what counts."""
        pods = self.removal.pods_of_unit(unit)
        amounts = self.removal.amounts_by_node(unit, pods, self._resources)
        return sum(amounts.values()) + (self.removal.count_devices(unit, pods) if CLAIMED in self._resources else 0)

    @cached_property
    def _resources(self) -> frozenset[str]:
        """What counts of the room that is left (`queueing.preemption.fragmentation`)."""
        return counted(pod_set for _, pod_sets in self.option.parts for pod_set in pod_sets)

    # -- trying -----------------------------------------------------------------------------------------------

    def _try_sets(self, *sets: list[HolderKey]) -> Plan | None:
        """The plan that evicts the first of these sets that suffices, victims for quota added, cut to the needed."""
        quotas, state = self.queues.quotas, self.state
        depth, checkpoint = quotas.begin(), state.begin()
        taken: dict[HolderKey, RemovedUnit] = {}
        try:
            placed = self._place_option() if not sets else None
            for keys in sets:
                if self.removal.take_all(keys, taken):
                    placed = self._place_option()
                if placed is not None:
                    break
            if placed is None:
                return None
            # Room first, quota second: the victims for room give back quota too, and often all that lacks.
            if not self.removal.quota_fits():
                for key in self.removal.in_fair_order(self.candidates.by_quota()):
                    if self.removal.take_all([key], taken):
                        placed = None  # it may go elsewhere now
                    if self.removal.quota_fits():
                        break
            return self._cut(taken, placed) if taken and self.removal.quota_fits() else None
        finally:
            state.rollback(checkpoint)
            quotas.rollback(depth)

    def _place_option(self) -> tuple[Assignment, ...] | None:
        found = put(self.state, self.entry.workload.key, self.option)
        return None if isinstance(found, Refusal) else found

    def _cut(self, taken: dict[HolderKey, RemovedUnit], placed: tuple[Assignment, ...] | None) -> Plan | None:
        """Leave alone whom the plan does not need, the most important first; where numbers count, the smallest.

        ``placed``: where the workload goes as things are; None where that is to be asked.
        """
        quotas, state, needed, own_back = self.queues.quotas, self.state, self._needed, False
        if needed is not None:
            needed.start(state, taken)
        # The most important are tried first: of victims that could stand in for one another the least important go.
        for key in sorted(taken, key=lambda unit: self._spared(unit, taken[unit].held), reverse=True):
            if len(taken) == 1 or (needed is not None and needed.surely(key)):
                continue
            depth, checkpoint = quotas.begin(), state.begin()
            # Quota alone is asked before pods are put back: it costs far less than a placement.
            self.removal.restore_quota(key, taken[key].held)
            without = None
            if self.removal.quota_fits():
                # Slots before pods: a pod that comes back takes its own slot, and would count beside it otherwise.
                if role_of(key) is not Role.POD:
                    self.removal.reserve_rest(whole_of(key), (unit for unit in taken if unit != key))
                for pod in taken[key].pods:
                    state.set_pod(pod)
                without = self._place_option()
            if without is not None:
                placed = without
                quotas.commit(depth)
                state.commit(checkpoint)
                held = taken.pop(key).held
                own_back |= held is not None and held.queue == self.entry.queue
                if needed is not None:
                    needed.left_alone(key)
            else:
                state.rollback(checkpoint)
                quotas.rollback(depth)
        assignments = self._place_option() if placed is None else placed
        if assignments is None or (own_back and not self.removal.may_go(taken)):
            return None
        landings = landings_of(state, self.entry.workload.key, assignments)
        left = self._fragmentation_left(taken, assignments)
        level = quotas.borrowing_level(self.entry.queue, self.option.amounts)
        return Plan(tuple(self._victims(taken)), assignments, left, landings, level)

    def _fragmentation_left(
        self, taken: Mapping[HolderKey, RemovedUnit], assignments: Sequence[Assignment]
    ) -> Fragmentation:
        """What is left fragmented, while these are out of the state."""
        resources, parts, pods = self._resources, list[Assignment](), list[Pod]()
        for unit, one in taken.items():
            if role_of(unit) is Role.POD:
                pods += one.pods
            else:
                parts += self.removal.slots_of_unit(unit)
        gone = held_on(parts, pods, resources)
        devices = sum(one.devices for one in taken.values()) if CLAIMED in resources else 0
        left = leftover(self.state, gone, held_on(assignments, (), resources), resources)
        return left._replace(freed=left.freed + devices)

    def _spared(self, unit: HolderKey, given: Held | None) -> tuple[float | tuple[object, ...], ...]:
        if given is None or not self._rules.by_count:
            return self.candidates.importance(unit)
        wanted = self.option.amounts
        gives = sum(amount / wanted[key] for key, amount in given.amounts.items() if wanted.get(key))
        return -gives, *self.candidates.importance(unit)

    def _victims(self, units: Iterable[HolderKey]) -> Iterator[PlannedVictim]:
        """Workloads and pods; one that would lose all, or more than it can do without, goes whole."""
        for key, of_it in groupby(sorted(units, key=lambda unit: order_of(whole_of(unit))), key=whole_of):
            other = self.queues.entry_of_unit(key)
            workload, domains = other.workload, tuple(filter(None, map(part_of, of_it)))
            left = sum(part.count for part in split(self.removal.before[key], domains)[0]) if domains else 0
            # Below its least number of pods the rest is of no use to it.
            if left == 0 or left < max(workload.at_least.values(), default=0):
                domains = ()
            reason, cohort = Reason.IN_CLUSTER_QUEUE, ""
            if other.outside is not None:
                reason = Reason.OUTSIDE_QUEUES
            elif other.queue != self.entry.queue:
                reason, cohort = self.candidates.reason_for(other.queue)
            level = self.candidates.level_of(workload.key)
            yield PlannedVictim(workload.key, workload.uid, workload.priority, reason, domains, cohort, level)
