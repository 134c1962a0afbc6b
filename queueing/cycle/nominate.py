"""One look at one workload: what it can be given now, by whom it is kept waiting, or whom it may preempt.

The order of wishes: all its pods where they fit; all of them by preemption; fewer (`Workload.at_least`, or of a
rollout: `queueing.cycle.rollout`) where they fit.
Flavors are tried in order; whether borrowing, or preempting, in a flavor comes before the next flavor is the queue's
(`queueing.cycle.flavor_choice`).
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from engine.cluster.assignment import Assignment
from engine.cluster.natural_order import natural
from engine.cluster.state import ClusterState
from engine.numa.score import AlignmentOverPacking
from engine.placement.beyond_nodes import beyond_every_node
from engine.reasons import Cure, Reason
from engine.results import Refusal
from queueing import messages
from queueing.cycle import elastic, rollout, successors
from queueing.cycle.backfill import await_crossing, barring_claim, claims_behind, keeping, open_
from queueing.cycle.bisection import most
from queueing.cycle.emptied import asks_for_more_than_room, fits_emptied
from queueing.cycle.flavor_choice import MOST_PLANS, OptionCost, OptionPrice, cost_of, is_unbeatable
from queueing.model import ClusterQueue, Workload, looks_at_pods
from queueing.preemption.landings import crossing_without_need
from queueing.preemption.plan import Plan
from queueing.preemption.promised_room import PromisedRoom
from queueing.preemption.search import plan
from queueing.queues.claim import BackfillReservation
from queueing.queues.entry import Entry, Phase
from queueing.queues.flavor_assigner import FlavorAssignment, options, put, scaled
from queueing.queues.pending_workloads import RING_OPENED, Event
from queueing.queues.queues import Queues
from queueing.queues.quota import Limits
from queueing.queues.successor import without_successors

MEMO: Final = 4096
COUNTED: Final[Event] = ("counted",)  # devices are counted further


class Fits(msgspec.Struct, frozen=True):
    """It can be admitted: ``counts`` pods by pod set; ``over``: soft claims, of whose room it takes."""

    option: FlavorAssignment
    assignments: tuple[Assignment, ...]
    counts: dict[str, int]
    over: tuple[BackfillReservation, ...] = ()


class Preempts(msgspec.Struct, frozen=True):
    """It can be admitted once these victims are gone."""

    option: FlavorAssignment
    plan: Plan
    counts: dict[str, int]


class Follows(msgspec.Struct, frozen=True):
    """Where it goes once those are gone that leave by themselves."""

    option: FlavorAssignment
    assignments: tuple[Assignment, ...]


class Noted(NamedTuple):
    """A refusal of an option; its text is made when somebody asks. ``near`` is `Refusal.near`."""

    reason: Reason
    text: Callable[[], Refusal]
    near: int = 0


class Waits(msgspec.Struct):
    """It cannot: why, the events that could change that, and whether it waits for nobody of ours (``aside``).

    ``follows``: it is the successor of those that leave. ``left_alone``: who run and had it evicted, so that it has not
    them evicted in order to borrow. ``safe``: until when some are safe from it that have not run for long enough.
    """

    refusals: list[Noted] = msgspec.field(default_factory=list)
    events: dict[Event, None] = msgspec.field(default_factory=dict)
    aside: bool = False
    follows: Follows | None = None
    left_alone: tuple[str, ...] = ()
    safe: str = ""

    @property
    def reason(self) -> Reason:
        """The reason of the option that came closest."""
        return min(self.refusals, key=_gravity).reason

    def refusal(self) -> Refusal:
        """The refusal of the option that came closest; its text is made when somebody asks."""
        found = min(self.refusals, key=_gravity).text()
        if self.left_alone:
            found = messages.leaving_alone(found, self.left_alone)
        if self.safe:
            found = replace(found, message=f"{found.message}; {self.safe}")
        return found if self.follows is None else messages.following(found)

    def wait_for(self, events: Iterable[Event]) -> None:
        """Note events that could change it."""
        self.events.update(dict.fromkeys(events))

    def leave_alone(self, titles: Iterable[str]) -> None:
        """Note those that it does not have evicted; it is looked at again when the ring of evictions is open."""
        self.left_alone = tuple(titles)
        self.events[RING_OPENED] = None

    def add(self, refusal: Refusal) -> None:
        """Note a refusal that is at hand."""
        self.refusals.append(Noted(refusal.reason, lambda: refusal, refusal.near))


def _gravity(one: Noted) -> tuple[int, int]:
    return one.reason.traits.gravity, -one.near


Outcome = Fits | Preempts | Waits


class PricedOption(NamedTuple):
    """What is made of an option, and at which price."""

    price: OptionPrice
    made: Outcome


class _QueueNominator(msgspec.Struct):
    state: ClusterState
    queues: Queues
    entry: Entry
    waits: Waits = msgspec.field(default_factory=Waits)
    over: tuple[BackfillReservation, ...] = ()  # soft claims that the last placement took of
    # Options that would fit without the successors of workloads that leave.
    free: set[bytes] = msgspec.field(default_factory=set)
    # Options in which it may preempt once all were tried.
    possible: list[FlavorAssignment] = msgspec.field(default_factory=list)
    planned: int = 0  # plans that were found

    def run(self, found: tuple[FlavorAssignment, ...], wrong: Refusal | None) -> Outcome:
        """See ``nominate``."""
        counts = {pod_set.name: pod_set.count for pod_set in self.entry.workload.pod_sets}
        made = self.best_option(found, counts)
        made = made or (self.fewer() if self.entry.workload.at_least else self._begun(found))
        if made is not None:
            return made
        if wrong is not None:
            self.waits.add(wrong)
        if (end := self.queues.run_times.await_end(self.entry.queue)) is not None:
            self.waits.wait_for([end])
        safe = messages.safe_yet(self.queues)
        return replace(self.waits, aside=self._is_hopeless(found), safe=safe)

    def best_option(self, found: tuple[FlavorAssignment, ...], counts: dict[str, int]) -> Outcome | None:
        """All its pods in the option that `queueing.cycle.flavor_choice` says; None where none is possible."""
        best: PricedOption | None = None
        for option in found:
            choice = self.try_option(option, counts)
            if choice is None:
                continue
            if choice.price.ends_search(self._queue):
                return choice.made
            best = self._better(best, choice)
        if best is not None and best.price.cost is OptionCost.NOTHING and not self._queue.preempt_before_borrow:
            return best.made
        # Free room comes first, then room that comes free by itself,
        # then evictions: each costs others more than the one before.
        if best is None and (later := self.place_later(found, counts)) is not None:
            return later
        for option in self.possible:
            if best is not None and is_unbeatable(best.price, self._queue, self.queues.rules):
                break
            # That those leave by themselves was asked of all options where it fits in none.
            room = best is not None and best.price.cost is OptionCost.NOTHING
            best = self._better(best, self.make_room(option, counts) if room else self.preempt_in(option, counts))
        return None if best is None else best.made

    def try_option(self, option: FlavorAssignment, counts: dict[str, int]) -> PricedOption | None:
        """What an option comes to as things are, or by preemption where that comes before later options."""
        placed = self.place_option(option)
        if placed is not None:
            return PricedOption(
                OptionPrice(OptionCost.NOTHING, self._level(option)), Fits(option, placed, counts, self.over)
            )
        if not self._may_preempt or not self._ever(option) or option.request in self.free:
            return None
        if self._queue.preempt_first:
            return self.make_room(option, counts)
        # Kept only where it is not tried here: a search for victims is too dear to repeat.
        self.possible.append(option)
        return None

    def make_room(self, option: FlavorAssignment, counts: dict[str, int]) -> PricedOption | None:
        """What an option comes to once those are gone who leave by themselves, else once somebody is evicted."""
        later = self.place_later([option], counts)
        if later is None:
            return self.preempt_in(option, counts)
        if isinstance(later, Fits):
            return PricedOption(OptionPrice(OptionCost.NOTHING, self._level(option)), later)
        # Priced as if it had them evicted, since it waits as long: an option in which it fits at once comes first.
        level = successors.level_once_gone(self.queues, self.entry, option)
        return PricedOption(OptionPrice(OptionCost.OTHERS, level), later)

    def preempt_in(self, option: FlavorAssignment, counts: dict[str, int]) -> PricedOption | None:
        """What an option comes to once somebody is evicted; None where that is nobody who may be."""
        if self.planned >= MOST_PLANS:
            return None
        made = self.preempts(option, counts)
        # Not counted: most searches that find nobody end before they look at anyone.
        if made is None:
            return None
        self.planned += 1
        if isinstance(made, Fits):
            return PricedOption(OptionPrice(OptionCost.NOTHING, self._level(option)), made)
        return PricedOption(OptionPrice(cost_of(made.plan), made.plan.level), made)

    def _better(self, best: PricedOption | None, other: PricedOption | None) -> PricedOption | None:
        if best is None or other is None:
            return best or other
        return other if other.price.rank_in(self._queue) < best.price.rank_in(self._queue) else best

    @property
    def _queue(self) -> ClusterQueue:
        return self.queues.quotas.queues[self.entry.queue]

    def _level(self, option: FlavorAssignment) -> int:
        """How high up it borrows as things are."""
        return self.queues.quotas.borrowing_level(self.entry.queue, option.amounts)

    def place_later(self, found: Iterable[FlavorAssignment], counts: dict[str, int]) -> Fits | Waits | None:
        """That it waits for those that leave, as an option fits once they are gone; None where none does.

        One that would have somebody evicted, and fits beside victims of others, waits for nobody.
        """
        pieces = sum(counts.values())
        if not self.queues.leaving or (pieces <= 1 and not self._may_preempt):
            return None  # what comes free bit by bit is one bit for it, and it has nobody evicted
        if self.entry.workload.follows:
            return None  # an old revision leaves only as pods of the new one run
        # Nobody's going mends any other reason, so it would follow the leavers in vain.
        if not any(one.reason.traits.cure is Cure.OTHERS for one in self.waits.refusals):
            return None
        for option in found:
            # Quota that a claimant before it lacks is the claimant's, also when it comes back.
            if barring_claim(self.queues, self.entry, option) is not None:
                continue
            placed = successors.place_once_gone(self.state, self.queues, self.entry, option)
            if placed is None:
                if successors.fits_once_given_up(self.state, self.queues, self.entry, option):
                    self.waits.wait_for(("claim", one.key) for one in self.queues.kept_for())
                continue
            # A promised slot and its victims count twice on a node. Counted once, there may be room for it at once.
            promised = PromisedRoom(self.state, self.queues, self.entry, option)
            if self._may_preempt and self._suffices(option) and (now := promised.put()) is not None:
                return Fits(option, now, counts)
            # Woken under its own name: `Leaving` says so when it has
            # waited long enough, and successors when its place is lost.
            self.waits.events["claim", self.entry.workload.base] = None
            # One that gave up its place waits for the same leavers without one: two that give way to each other would
            # else be taken on and given up in turn, for ever.
            again = self.entry.workload.base in self.queues.leaving.spent
            return Waits(self.waits.refusals, self.waits.events, follows=None if again else Follows(option, placed))
        return None

    def place_option(self, option: FlavorAssignment) -> tuple[Assignment, ...] | None:
        """Where the pods go if quota and room are there; else None, with the reason noted."""
        placed = self._fits(option)
        # Amounts may be free while zones are not. The kubelet gives zones to the pod
        # that comes first, and would then refuse the pod whose victims went for them.
        if placed is not None and not PromisedRoom(self.state, self.queues, self.entry, option).spared(placed):
            self._wait_for_zones(option)
            return None
        # Whether the successors are all that stops it: then it waits for them, and evicts nobody for room that is free.
        if placed is None and (first := self.queues.kept_for()):
            with without_successors(self.state, self.queues.quotas, first):
                fits = self.queues.limits(self.entry).fits_limits(option.asked)
                fits = fits and not isinstance(put(self.state, self.entry.workload.key, option), Refusal)
            if fits:
                self.free.add(option.request)
                self.waits.wait_for(("claim", one.key) for one in first)
                self.waits.add(messages.behind_successors([self.queues.title_of(one.key) for one in first]))
        return placed

    def _fits(self, option: FlavorAssignment) -> tuple[Assignment, ...] | None:
        queues, queue, waits = self.queues, self.entry.queue, self.waits
        limits = queues.limits(self.entry)
        if not limits.ever(option.asked):
            waits.refusals.append(Noted(Reason.EXCEEDS_QUOTA, partial(self._exceeds, limits, option)))
            return None
        missing = limits.missing_quota(option.asked)
        pool = queues.quotas.pool(queue)
        if missing:
            waits.wait_for(("quota", pool, m.flavor, m.resource) for m in missing)
            # A plan of evictions is judged by room as well, so room that
            # comes free may make one possible though quota lacks.
            waits.wait_for(("room", flavor) for flavor in option.rooms if self._may_preempt)
            text = partial(messages.insufficient, queues, queue, missing)
            waits.refusals.append(Noted(Reason.INSUFFICIENT_QUOTA, text))
            return None
        claim = barring_claim(queues, self.entry, option)
        if claim is not None:
            waits.events["claim", claim.key] = None
            await_crossing(queues, claim, self.entry)
            # The claim may last, and end for this one: it bars nobody from the nominal quota of another queue, of which
            # some may come back.
            if claim.entry.queue != queue:
                waits.wait_for(("quota", pool, *key) for key in option.amounts)
            waits.add(messages.kept_quota_refusal(queues.title_of(claim.key), pool))
            return None
        found = self._place_option(option)
        if isinstance(found, Refusal):
            waits.wait_for(("room", flavor) for flavor in option.rooms)
            if _looks_at_pods(option):
                # With affinity an admission may help as well as an end, in any flavor.
                waits.events["placed",] = waits.events["gone",] = None
            if found.reason is Reason.BEHIND_OTHERS:
                waits.wait_for(("claim", key) for key in queues.claims)
            waits.add(found)
            return None
        return found

    def _exceeds(self, limits: Limits, option: FlavorAssignment) -> Refusal:
        pod_sets = (pod_set for _, each in option.parts for pod_set in each)
        beyond = next(filter(None, (beyond_every_node(self.state, one) for one in pod_sets)), "")
        return messages.exceeds(limits, option.asked, beyond)

    @property
    def _may_preempt(self) -> bool:
        return self.entry.workload.preempts and self._queue.preemption.any

    def _ever(self, option: FlavorAssignment) -> bool:
        """Whether its queue may take as much when nobody uses anything."""
        return self.queues.limits(self.entry).ever(option.asked)

    def _place_option(self, option: FlavorAssignment) -> tuple[Assignment, ...] | Refusal:
        """Place it, also in room that soft claims keep where it fits nowhere else, or would cross sockets."""
        self.over = ()
        found = self._into_room(option)
        return found if self.over or isinstance(found, Refusal) else self._aligned(option, found)

    def _into_room(self, option: FlavorAssignment) -> tuple[Assignment, ...] | Refusal:
        """Place it, unless an equal request was refused since room was last freed."""
        queues = self.queues
        # The memo holds for room that everybody sees alike. Here
        # claims behind it are open, or successors keep room from it.
        if queues.successors or claims_behind(queues, self.entry):
            found = put(self.state, self.entry.workload.key, option)  # room is open, or closed, that is not to others
            return self._place_over_claims(option, found) if isinstance(found, Refusal) else found
        key = option.request
        # These counters only grow, so equal ones mean that nothing
        # has come free; what was taken since refuses all the more.
        now = tuple(queues.pending.rooms.get(flavor, 0) for flavor in option.rooms)
        known = queues.memo.get(key)
        if known is not None and known[0] == now:
            return known[1]
        found = put(self.state, self.entry.workload.key, option)
        if isinstance(found, Refusal):
            found = self._place_over_claims(option, found)
        # An admission could help one with affinity without freeing room, so its refusals are not kept.
        if isinstance(found, Refusal) and not _looks_at_pods(option):
            # Anybody makes shapes. Emptied as a whole: the memo saves time and nothing depends on it.
            if len(queues.memo) >= MEMO:
                queues.memo.clear()
            queues.memo[key] = (now, found)
        return found

    def _place_over_claims(self, option: FlavorAssignment, refusal: Refusal) -> tuple[Assignment, ...] | Refusal:
        """Where the pods go that fit only into room that soft claims keep; else why they do not fit."""
        kept = keeping(self.queues, self.entry, option.rooms)
        soft = tuple([claim for claim in kept if claim.soft])
        found = self._place_ignoring_claims(soft, option) if soft else refusal
        if not isinstance(found, Refusal):
            self.over = soft
            return found
        # It would fit if nothing were kept: then the refusal names who is before it, instead of a lack of room.
        if len(kept) > len(soft) and not isinstance(self._place_ignoring_claims(kept, option), Refusal):
            return messages.behind_in_room([self.queues.title_of(claim.key) for claim in kept if not claim.soft])
        return refusal

    def _aligned(self, option: FlavorAssignment, found: tuple[Assignment, ...]) -> tuple[Assignment, ...]:
        """Where the pods go that fit elsewhere too, and of which fewer cross sockets in room that soft claims keep."""
        soft = tuple([claim for claim in keeping(self.queues, self.entry, option.rooms) if claim.soft])
        if not soft or self.state.alignment_over_packing is AlignmentOverPacking.NEVER:
            return found
        key = self.entry.workload.key
        crossing = crossing_without_need(self.state, key, found)
        other = self._place_ignoring_claims(soft, option) if crossing else found
        # Kept room is entered only for a gain; of equal landings the room stays with the claimant.
        if not crossing or isinstance(other, Refusal) or crossing_without_need(self.state, key, other) >= crossing:
            return found
        self.over = soft
        return other

    def _place_ignoring_claims(
        self, claims: Iterable[BackfillReservation], option: FlavorAssignment
    ) -> tuple[Assignment, ...] | Refusal:
        checkpoint = self.state.begin()
        try:
            open_(self.state, claims)
            return put(self.state, self.entry.workload.key, option)
        finally:
            self.state.rollback(checkpoint)

    def preempts(self, option: FlavorAssignment, counts: dict[str, int]) -> Fits | Preempts | None:
        """Victims for an option, or that it needs none beside those of others; None where none would do."""
        if barring_claim(self.queues, self.entry, option) is not None:
            return None
        # Only one that would have somebody evicted may look at promised room, so a plan comes first.
        made = plan(self.state, self.queues, self.entry, option)
        promised = PromisedRoom(self.state, self.queues, self.entry, option)
        if made is not None and self._suffices(option) and (placed := promised.put()) is not None:
            return Fits(option, placed, counts)
        if made is None:
            quotas = self.queues.quotas
            self.waits.wait_for(("room", flavor) for flavor in option.rooms)
            if quotas.shares(self.entry.queue):
                self.waits.events["borrow", quotas.pool(self.entry.queue)] = None
            if self.queues.fresh:
                self.waits.events["placed",] = None  # in the next cycle they may be victims
            if before := self.queues.eviction_order.takers_before(self.entry.workload.base):
                self.waits.leave_alone(self._titles_running_elsewhere(before))
            return None
        best = promised.cheaper(made)
        # Its victims may hold other zones than its pods get then: the
        # kubelet is free to give them those of the promised slot.
        if not promised.spared(best.assignments, best.victims):
            self._wait_for_zones(option)
            return None
        return Preempts(option, best, counts)

    def _titles_running_elsewhere(self, keys: Iterable[str]) -> Iterator[str]:
        members = self.queues.quotas.members(self.entry.queue)
        for key in sorted(keys, key=natural):
            one = self.queues.entries.get(key)
            if (
                one is not None
                and one.phase is Phase.ADMITTED
                and one.queue in members
                and one.queue != self.entry.queue
            ):
                yield one.workload.title

    def _wait_for_zones(self, option: FlavorAssignment) -> None:
        """It is looked at again once those have come in who are promised them, or need them no more."""
        self.free.add(option.request)
        self.waits.wait_for(("room", flavor) for flavor in option.rooms)
        self.waits.wait_for([("placed",)])
        self.waits.add(messages.beside_promised_zones())

    def _suffices(self, option: FlavorAssignment) -> bool:
        """Whether there is quota for an option now, and it may be taken before anybody is preempted."""
        quotas, queue = self.queues.quotas, self.entry.queue
        borrows = quotas.borrows(queue, option.amounts) and not quotas.queues[queue].borrow_first
        return not borrows and self.queues.limits(self.entry).fits_limits(option.asked)

    def fewer(self) -> Fits | None:
        """As many pods as fit, of the pod set that may have fewer; by bisection, no fewer than the least.

        Of a pod set with slices, whole ones.
        """
        workload = self.entry.workload
        name, least = next(iter(workload.at_least.items()))
        pod_set = next((p for p in workload.pod_sets if p.name == name), None)
        size = pod_set.topology.slices[0].size if pod_set is not None and pod_set.topology.slices else 1
        # Whole slices, at least as many pods as ``least``; all of
        # them were refused already, so the search ends below that.
        low, high = -(-least // size), ((pod_set.count if pod_set is not None else 0) - 1) // size
        return most(low, high, lambda units: self._fit_with_count(workload, name, units * size))

    def _begun(self, found: tuple[FlavorAssignment, ...]) -> Fits | None:
        """As many pods of a rollout's new revision as fit where all of them will be."""
        workload = self.entry.workload
        for within in rollout.narrowed(self.state, self.queues, workload, found) if workload.follows else ():
            (pod_set,) = within.pod_sets
            best = most(1, pod_set.count - 1, partial(self._fit_with_count, within, pod_set.name))
            if best is not None:
                return best
        return None

    def _fit_with_count(self, whole: Workload, name: str, count: int) -> Fits | None:
        workload = scaled(whole, {name: count})
        queue = self.queues.quotas.queues[self.entry.queue]
        # Options of the smaller workload are made for it: their amounts depend on the counts.
        for option in options(self.state, queue, self.queues.config.plain, workload).found:
            placed = self.place_option(option)
            if placed is not None:
                return Fits(option, placed, {pod_set.name: pod_set.count for pod_set in workload.pod_sets}, self.over)
        return None

    def _is_hopeless(self, found: tuple[FlavorAssignment, ...]) -> bool:
        """Whether nothing that ends could help: it can never fit, or nobody holds anything that it waits for.

        That its pods ask for something other than room is looked at where it would hold up others.
        """
        # Aside: in a StrictFIFO queue one that can never run would hold up everybody behind it.
        if all(one.reason.traits.hopeless for one in self.waits.refusals):
            return True
        if not any(self._may_come(event) for event in self.waits.events):
            return True
        possible = [option for option in found if self._ever(option)]
        # The proof costs a placement in the emptied cluster; only in
        # a StrictFIFO queue somebody pays for not having it.
        if not self._queue.strict or not all(map(asks_for_more_than_room, possible)):
            return False
        self.queues.count_search()
        key = self.entry.workload.base
        return all(fits_emptied(self.state, self.queues, key, option) is None for option in possible)

    def _may_come(self, event: Event) -> bool:
        """Whether something of ours that ends brings this event."""
        quotas = self.queues.quotas
        match event:
            case ("claim", _) | ("safe", _):
                return True
            case ("room", flavor):
                return self.queues.holders.by_flavor.get(flavor, 0) > 0
            case ("quota", _, flavor, resource):
                return quotas.anyone_uses(self.entry.queue, (flavor, resource))
        return False  # what an admission brings, not an end


def nominate(state: ClusterState, queues: Queues, entry: Entry) -> Outcome:
    """What one workload can be given now. Leaves state and quota as they were."""
    assert entry.group is not None  # noqa: S101  (only who waits in a line is looked at)
    # No event ends this: a change of the tree wakes the lines below it. Aside, as what ends does not help it either.
    if names := queues.quotas.cycle_of(entry.queue):
        refused = Waits(aside=True)
        refused.add(messages.cohort_cycle(names))
        return refused
    queues.run_times.begin_look()
    known = queues.options_of(state, entry.group)
    pod_sets = (pod_set for option in known.found for _, parts in option.parts for pod_set in parts)
    if (uncounted := elastic.refuse_uncounted(state, entry, pod_sets)) is not None:  # before any search
        waits = Waits(events={COUNTED: None})
        waits.add(uncounted)
        return waits
    return _QueueNominator(state, queues, entry).run(known.found, known.refusal)


def _looks_at_pods(option: FlavorAssignment) -> bool:
    """Whether more pods elsewhere could help, or a refusal depends on whose pods they are."""
    return any(looks_at_pods(pod_set) for _, pod_sets in option.parts for pod_set in pod_sets)
