"""The admission cycle: one function, a recipe. What it decides is held already when it returns.

The caller stores what was admitted and what preempts, and carries out the evictions; where storing fails it calls
`Queues.release_and_requeue`. Everything it needs to know for that is in `Decisions`.
"""

from collections.abc import Collection, Iterator
from itertools import chain
from typing import Final

import msgspec

from engine.cluster.state import ClusterState
from engine.reasons import Reason
from engine.reservation_key import HolderKey, ReservationKey, Role, order_of, role_of, workload_of
from engine.results import Refusal
from queueing import messages
from queueing.cycle import backfill, elastic, growth, successors
from queueing.cycle.nominate import COUNTED, Fits, Preempts, Waits, nominate
from queueing.cycle.nominated import awaited_claims, obstacle
from queueing.cycle.queue_order import head_of
from queueing.cycle.shield import Failed, Shield
from queueing.cycle.turns import ByRank, Growers, Turns, WaitingRanks, is_next, looks_since
from queueing.model import asks_of
from queueing.preemption.plan import PlannedVictim
from queueing.queues.entry import AssumedAdmission, Entry, Phase
from queueing.queues.pending import EquivalenceClass
from queueing.queues.queues import Queues
from queueing.queues.rotation import of_namespace

DEALLOCATED: Final = 10.0  # seconds in which claims are to be, before anybody is told that they are not
TURN: Final = 60.0  # seconds after which scores of LocalQueues are compared again, though nothing happened
DETAILS: Final = 10.0  # seconds for which the text of a refusal is good enough, while its reason stays the same


class Admitted(msgspec.Struct, frozen=True):
    """Store the grant (``status.admission``), then let the workload run."""

    key: str
    grant: AssumedAdmission
    message: str
    preempted: bool = False  # its victims are gone now


class Preempting(msgspec.Struct, frozen=True):
    """Store the nomination (grant, victims), then evict the victims; `Queues.release_workload` once its pods are gone.

    ``grows``: it is admitted, and ``grant`` is what it gets beside what it has.
    """

    key: str
    grant: AssumedAdmission
    victims: tuple[PlannedVictim, ...]
    message: str
    grows: bool = False
    title: str = ""

    def message_to(self, victim: PlannedVictim) -> str:
        """What a victim is told."""
        return messages.preempted(self.title or self.key, self.grant.queue, victim.reason, victim.cohort)


class Waiting(msgspec.Struct, frozen=True):
    """Say why it waits (``QuotaReserved=False``).

    ``grows``: it is admitted, and waits for more pods. ``victims``: who was to go for it, and stays.
    """

    key: str
    reason: Reason
    message: str
    grows: bool = False
    victims: tuple[HolderKey, ...] = ()


class Drained(msgspec.Struct, frozen=True):
    """Evict it: its queue is drained."""

    key: str
    reason: Reason
    message: str


class Decisions(msgspec.Struct):
    """What one cycle decided.

    ``given_up``: nominations to remove from the API server, before anything else. ``refused_growth``: who is admitted,
    was looked at, and did not get all the pods that it wants (`Entry.refusal`). ``untold``: who was refused again for
    the same reason, with the text of the time before; and when the text may be made again. ``more``: there is somebody
    to look at now; ``next_time``: when time alone helps next.
    """

    admitted: list[Admitted] = msgspec.field(default_factory=list)
    preempting: list[Preempting] = msgspec.field(default_factory=list)
    waiting: list[Waiting] = msgspec.field(default_factory=list)
    evict: list[Drained] = msgspec.field(default_factory=list)
    resized: list[elastic.Resized] = msgspec.field(default_factory=list)
    failed: list[Failed] = msgspec.field(default_factory=list)
    given_up: list[Waiting] = msgspec.field(default_factory=list)
    refused_growth: set[str] = msgspec.field(default_factory=set)
    untold: dict[str, float] = msgspec.field(default_factory=dict)
    more: bool = False
    next_time: float | None = None

    def come_back(self, at: float) -> None:
        """Time helps at this time, if not before."""
        self.next_time = at if self.next_time is None else min(at, self.next_time)


def cycle(state: ClusterState, queues: Queues, now: float, limit: int = 64) -> Decisions:
    """One cycle with about ``limit`` looks at most; a search for victims counts for several.

    ``now`` in seconds, on the clock of the workloads' creation times. An error that one workload leads to is that
    workload's alone (`Failed`).
    """
    made = Decisions()
    shield = Shield(state, queues, now, made.failed)
    # A workload that was admitted in the last cycle is nobody's victim until its
    # write has ended: evicting it would evict what the API server does not know yet.
    for admitted in queues.fresh - queues.storing:  # these are stored by now
        queues.stored(admitted)
    # 1. Time: who was put off and is due waits again, and so does who waits until its devices are counted.
    queues.wake_due(now)
    if state.cluster.devices.counting.next_round():
        queues.pending.move_events_to_active([COUNTED])
        queues.growing.devices_counted()
    # 2. Drained queues: what is admitted there goes.
    made.evict.extend(_drained(queues))
    # 3. Nominated: one whose victims are all gone is admitted, into the room that was kept for it.
    # Before claims and turns: what these hold is theirs already, and what one of them gives up is free for all turns.
    for key in list(queues.holders.nominated):
        workload = workload_of(key)
        with shield(workload):
            settle = _has_grown if role_of(key) is Role.GROWTH else _made_room
            settle(state, queues, now, workload, made)
    # 4. Claims: who has waited too long keeps the room and the quota it needs from those behind it. After a restart,
    #    who has is looked at before those behind it, whatever turns their queues had.
    unseen, by_turns = backfill.renew(state, queues, shield), limit // 2
    by_rank = limit - by_turns
    # 5. Who fits once those are gone that leave by themselves keeps what is free of that already.
    with successors.keep_room(state, queues, shield):
        ranks = WaitingRanks(state, queues)
        growers = Growers(queues, shield, ranks, limit)
        order = ByRank(queues, shield, ranks, unseen)
        for entry in unseen:
            for group in order.up_to(entry) if by_rank > 0 else ():
                if by_rank <= 0:
                    break
                searches = queues.searches
                _look_in_order(state, queues, shield, group, growers, made)
                by_rank -= looks_since(queues, searches)
            # With no looks left it is the first of the next cycle; a
            # whole patience later somebody behind it would have its room.
            backfill.look_again(queues, entry, now, soon=by_rank <= 0 and is_next(entry))
        # 6. Turns: one queue after the other, the first of each, until nobody is left or the limit is reached. Who is
        #    admitted and wants more pods gets them in its place among them, or nominates victims for them.
        turns = Turns(queues, shield, ranks)
        for group in turns.first(by_rank, by_turns):
            _look_in_order(state, queues, shield, group, growers, made)
        # 7. Growth of those who come after all that were looked at, and before all that are still to be.
        #    Half of these looks too go to those who were looked at longest ago, whoever comes before them.
        later = turns.groups_left()
        _grow_before(state, queues, shield, later, growers, made)
        _grow(state, queues, shield, growers.least_recent(later), made)
    # 8. Admissions help few: who looks at other pods, who may take back what somebody borrows now, and who waits until
    #    the ones that were just admitted may be victims.
    # Woken once, after all turns: an admission in the middle would
    # wake groups that had their turn, and they would have another.
    granted = [one.grant for one in made.admitted]
    queues.pending.move_events_to_active(
        dict.fromkeys(chain.from_iterable(map(queues.pending.helped_by_grant, granted)))
    )
    # 9. Whoever joined those who wait and was not looked at hears why.
    made.waiting.extend(_take_news(queues, limit))
    made.more = bool(elastic.eager(queues)) or any(line.next() is not None for line in queues.pending.lines.values())
    made.more |= state.cluster.devices.counting.unfinished
    if any(line.waits_for_time for line in queues.pending.lines.values()):
        made.come_back(now + TURN)
    if (next_time := queues.next_change_time()) is not None:
        made.come_back(next_time)
    return made


def _drained(queues: Queues) -> Iterator[Drained]:
    for key in sorted(queues.drains):
        entry = queues.entries[key]
        # Told once: the caller stores the eviction, and the entry stays in ``drains`` until its pods are gone.
        if not entry.drained:
            entry.mark_drained()
            # Leaving from now on, so that no plan of this cycle takes it for a victim of its own.
            queues.holders.mark_leaving(key)
            yield Drained(key, Reason.QUEUE_DRAINED, queues.config.find_drain(entry.workload, entry.queue) or "")


def _made_room(state: ClusterState, queues: Queues, now: float, key: str, made: Decisions) -> None:
    """Admit one for whom all victims are gone."""
    entry = queues.entries[key]
    grant = entry.grant
    # Also with victims left: those that were not evicted yet stay, and their status says so.
    if (stopped := queues.config.find_stop(entry.workload, entry.queue)) is not None:
        victims = tuple(sorted(entry.victims, key=order_of))
        queues.release_and_requeue(state, key, now)
        made.given_up.append(Waiting(key, Reason.QUEUE_STOPPED, stopped, victims=victims))
        return
    # Slots that victims still hold would be held twice, and a kubelet would refuse the second pod.
    if entry.victims or grant is None:
        return
    if (why := obstacle(state, queues, key)) is None:
        if refusal := _held_up(state, queues, now, entry, made):
            made.waiting.append(Waiting(key, refusal.reason, refusal.message))
            entry.record_refusal(refusal)
        return
    if why:
        # Given back before it waits: it is looked at again in this very cycle, and must find its own room free.
        queues.release_and_requeue(state, key, now)
        made.given_up.append(Waiting(key, Reason.PENDING, f"{why}; it waits again"))
        return
    queues.grant(state, key, grant)
    queues.fresh.add(key)
    made.admitted.append(Admitted(key, grant, _admitted(grant, partly=False), preempted=True))


def _held_up(state: ClusterState, queues: Queues, now: float, entry: Entry, made: Decisions) -> Refusal | None:
    """What one is told whose victims are gone, where claims that they had take long to be deallocated."""
    claims = awaited_claims(state, queues, entry.workload.key)
    # kube-controller-manager deallocates a claim a moment after its
    # last pod went. A message at once would be wrong most of the time.
    late = entry.hold_up(now) + DEALLOCATED if claims else now
    if late > now:
        made.come_back(late)
    refusal = Refusal(Reason.CLAIMS_NOT_DEALLOCATED, messages.deallocating(claims)) if claims and late <= now else None
    return refusal if refusal != entry.refusal else None


def _has_grown(state: ClusterState, queues: Queues, now: float, key: str, made: Decisions) -> None:
    """Give one that is admitted the pods for which all victims are gone."""
    more, base = queues.entries[ReservationKey.for_growth(key)], queues.entries[key]
    victims = tuple(sorted(more.victims, key=order_of))
    match growth.settle_growth(state, queues, key):
        case elastic.Resized() as resized:
            made.resized.append(resized)
        case str(why):
            made.given_up.append(Waiting(key, Reason.PENDING, why, grows=True, victims=victims))
        case None if not victims and (refusal := _held_up(state, queues, now, more, made)):
            more.record_refusal(refusal)
            base.record_refusal(refusal)
            made.refused_growth.add(key)


def _grow_before(  # noqa: PLR0917  (the parts of a cycle)
    state: ClusterState,
    queues: Queues,
    shield: Shield,
    groups: Collection[EquivalenceClass],
    growers: Growers,
    made: Decisions,
) -> None:
    """Give those that come before the first of all these groups more pods, or nominate victims for them."""
    _grow(state, queues, shield, growers.before(groups), made)


def _grow(state: ClusterState, queues: Queues, shield: Shield, keys: Iterator[str], made: Decisions) -> None:
    for key in keys:
        entry = queues.entries[key]
        with (
            shield(key),
            backfill.opened(state, queues, shield, backfill.open_to_growth(queues, entry)),
            successors.opened(state, queues, shield, entry, elastic.lacking(queues, key) if queues.successors else {}),
        ):
            # Free room comes before victims: growth that fits evicts nobody.
            made.resized.extend(elastic.grow(state, queues, key))
            if key not in queues.growing:
                continue
            made.refused_growth.add(key)
            # Some of the pods only where none can be had by preemption: a
            # partial growth would take the room that the plan counts on.
            if (found := growth.nominate_growth(state, queues, key)) is None:
                made.resized.extend(elastic.grow_partly(state, queues, key))
            else:
                # A workload that is looked at later in this cycle may follow these victims instead of evicting others.
                queues.note_victims(key, [victim.key for victim in found.plan.victims], shield.now)
                text = messages.preempting(queues, found.plan)
                made.preempting.append(
                    Preempting(key, found.grant, found.plan.victims, text, grows=True, title=entry.workload.title)
                )


def _look_in_order(  # noqa: PLR0917  (the parts of a cycle)
    state: ClusterState,
    queues: Queues,
    shield: Shield,
    group: EquivalenceClass,
    growers: Growers,
    made: Decisions,
) -> None:
    """Look at the first of a group, after those who grow and come before it."""
    _grow_before(state, queues, shield, (group,), growers, made)
    with shield(head_of(group)):
        _decide(state, queues, shield, group, made)


def _decide(state: ClusterState, queues: Queues, shield: Shield, group: EquivalenceClass, made: Decisions) -> None:
    """Look at the first of a group, hold what it gets, or park the group."""
    head = group.head
    assert head is not None  # noqa: S101  (``Turns`` gives groups that have one)
    entry = queues.entries[head.key]
    # Its rank against successors goes by its first option: which one fits is not known before the look.
    found = queues.options_of(state, group).found
    with (
        backfill.opened(state, queues, shield, backfill.claims_behind(queues, entry)),
        successors.opened(state, queues, shield, entry, found[0].amounts if found else {}),
    ):
        _look_at(state, queues, shield, entry, made)


def _look_at(state: ClusterState, queues: Queues, shield: Shield, entry: Entry, made: Decisions) -> None:
    key, outcome = entry.workload.base, nominate(state, queues, entry)
    # Before its group is parked: giving up a place wakes the
    # groups that wait for it, and this one may wait for it next.
    if isinstance(outcome, Waits) and outcome.follows is not None:
        successors.add_successor(queues, entry, outcome.follows.option, outcome.follows.assignments)
    else:
        successors.remove_successor(queues, key)
    match outcome:
        case Fits(option, assignments, counts, over):
            asks = asks_of(entry.workload)
            grant = AssumedAdmission(entry.queue, counts, option.flavors, option.amounts, assignments, asks)
            # The place lies in room that soft claims keep: without
            # lifting them the reservation would overdraw the nodes.
            with backfill.opened(state, queues, shield, over):
                queues.grant(state, key, grant)
            # Before anybody else has a turn: later plans of this cycle must not name it.
            queues.fresh.add(key)
            partly = any(counts[p.name] < p.count for p in entry.workload.pod_sets)
            made.admitted.append(Admitted(key, grant, _admitted(grant, partly=partly)))
        case Preempts(option, plan, counts):
            asks = asks_of(entry.workload)
            grant = AssumedAdmission(entry.queue, counts, option.flavors, option.amounts, plan.assignments, asks)
            parts = {victim.key: victim.domains for victim in plan.victims if victim.domains}
            victims = [victim.key for victim in plan.victims]
            # Held at once, beside what the victims hold: nobody behind it may take the room while the victims end.
            queues.grant(state, key, grant, nominated=victims, parts=parts)
            queues.note_victims(key, victims, shield.now)
            text, title = messages.preempting(queues, plan), entry.workload.title
            made.preempting.append(Preempting(key, grant, plan.victims, text, title=title))
        case Waits():
            # On the first refusal after a start it may have waited for
            # long already, and claims before anybody behind it has a turn.
            if _wait(queues, shield.now, entry, outcome, made):
                backfill.reserve_refused(state, queues, entry, shield)


def _wait(queues: Queues, now: float, entry: Entry, waits: Waits, made: Decisions) -> bool:
    """Park its group. Returns whether it was refused for the first time."""
    group, key = entry.group, entry.workload.base
    assert group is not None  # noqa: S101  (it was looked at in its line)
    queues.pending.mark_inadmissible(group, waits.events, aside=waits.aside)
    before = group.refusal
    # A text lists users of quota and what would never fit, which
    # is not cheap. The decision depends on the reason alone.
    if before is None or before.reason is not waits.reason or now >= group.refused_at + DETAILS:
        group.record_refusal(waits.refusal(), now)
    else:
        made.untold[key] = group.refused_at + DETAILS
    if entry.refusal != group.refusal and group.refusal is not None:
        entry.record_refusal(group.refusal)
        made.waiting.append(Waiting(key, group.refusal.reason, group.refusal.message))
    queues.pending.news.leave_party(key)
    return before is None


def _take_news(queues: Queues, limit: int) -> Iterator[Waiting]:
    for key in queues.pending.news.take_members(limit):
        entry = queues.entries.get(key)
        if entry is None or entry.phase not in {Phase.STUCK, Phase.WAITING}:
            continue
        refusal = _refusal_of(queues, entry)
        if refusal is None:
            queues.pending.news.join_party(key, of_namespace(key))  # its turn comes
        elif entry.phase is Phase.STUCK or refusal != entry.refusal:
            entry.record_refusal(refusal)
            yield Waiting(key, refusal.reason, refusal.message)


def _refusal_of(queues: Queues, entry: Entry) -> Refusal | None:
    """Why one waits, as things stand; None where its turn is still to come and nothing was said before."""
    group = entry.group
    if group is not None and group.inadmissible and group.head == entry.order:
        return group.refusal
    return _behind(queues, entry) or entry.refusal


def _behind(queues: Queues, entry: Entry) -> Refusal | None:
    """Why one waits that is not looked at, because somebody before it would be."""
    group = entry.group
    if group is None:
        return None
    first = queues.entries[group.head.key] if group.head else entry
    if group.inadmissible and group.refusal is not None:
        if group.refusal.reason.traits.hopeless:
            return group.refusal  # whoever comes before it
        where = "" if queues.quotas.queues[entry.queue].unlimited else f" in cluster queue {entry.queue}"
        text = f"{first.workload.title}, which wants the same, comes before it{where} and waits: "
        return Refusal(group.refusal.reason, text + group.refusal.message, flavor=group.refusal.flavor)
    blocker = next(iter(queues.waiting(entry.queue)), "") if group.line.next() is None else ""
    if blocker and blocker != entry.workload.key:
        text = f"cluster queue {entry.queue} is StrictFIFO, and {queues.title_of(blocker)} before it waits"
        return Refusal(Reason.BEHIND_OTHERS, text)
    return None


def _admitted(grant: AssumedAdmission, *, partly: bool) -> str:
    flavors = [flavor for by_resource in grant.flavors.values() for flavor in by_resource.values()]
    flavors += [part.flavor for part in grant.assignments]
    placed = {part.pod_set for part in grant.assignments}  # where these go is told with how many there are
    counts = {name: count for name, count in grant.counts.items() if name not in placed}
    return messages.admitted(grant.queue, counts, flavors, partly=partly)
