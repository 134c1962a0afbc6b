"""Room that comes free bit by bit: it is kept for the first in the order who fits once all of it is free.

Pods of a gang end one by one. Were each node given away as it becomes free, whoever needs them all would have those
evicted who got in a second before.

Rules
- Who fits neither now nor by somebody's going that nobody has to ask for (`queueing.queues.leaving`), waits or preempts
  as ever. Who fits once those are gone that leave by themselves is their *successor*: it has nobody evicted, and while
  somebody else is looked at the place where it will go is taken, and so is the quota that it will have and those do not
  have now.
- As somebody begins to leave whom nobody evicts for himself, whoever waits for such room or quota is looked at: else
  somebody who comes now would take what is free already.
- One that was given up does not follow the same leavers again: two that give way to each other would be looked at for
  ever. It waits for them, with nothing kept for it, and has nobody evicted either.
- Who comes before it is not stopped: by share where that is fair, then who need not borrow, then by priority, then by
  time; what leaves is not counted for that. Nor is who comes before one of its own queue that is to be looked at
  before it and would have what is kept for it: that one would be evicted again. What is left is kept for the
  successor again, where it is still enough.
- A successor is asked again in every cycle: it keeps its place as long as that would do, else another one, else none.
  So nothing is kept for one that cannot use it, nor longer than it is believed that somebody leaves. Then it is
  looked at again at once, and whoever was kept out too.
- Where it fits at once by now, a place that is free is kept for it until its turn. Else somebody behind it would get
  in there, and it would wait on for those who may not leave after all.
- Who would fit but for a successor evicts nobody for that: that room is free.
- Between cycles nothing is held for it. Without a queue nobody is one, as nobody claims (`queueing.cycle.backfill`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial, reduce
from typing import Final

from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from engine.reservation_key import ReservationKey, workload_of
from engine.results import Refusal
from queueing.cycle.backfill import claims_behind, open_
from queueing.cycle.queue_order import competes_in_tree, contender_of, precedes_contender, precedes_in_tree
from queueing.cycle.shield import Shield
from queueing.cycle.tournament import Contender
from queueing.model import Quantities, Rank
from queueing.queues.entry import Entry, Phase
from queueing.queues.flavor_assigner import FlavorAssignment, put
from queueing.queues.held import Held
from queueing.queues.pending_workloads import Event
from queueing.queues.queues import Queues
from queueing.queues.successor import Successor, release_all, without_successors

MOST: Final = 32  # successors
FEW: Final = 64  # pods that leave, up to which a look with them gone counts as part of any other


def place_once_gone(
    state: ClusterState, queues: Queues, entry: Entry, option: FlavorAssignment
) -> tuple[Assignment, ...] | None:
    """Where one goes once those are gone that leave by themselves; None where that does not help it."""
    # Its minute of waiting begins only with room that it would really get.
    found = _once_gone(state, queues, entry, option)
    if found is not None:
        queues.leaving.watch_workload(entry.workload.key)
    return found


def level_once_gone(queues: Queues, entry: Entry, option: FlavorAssignment) -> int:
    """How high up it borrows for an option once those are gone that leave by themselves."""
    with queues.leaving.quota_without_leaving():
        return queues.quotas.borrowing_level(entry.queue, option.amounts)


def fits_once_given_up(state: ClusterState, queues: Queues, entry: Entry, option: FlavorAssignment) -> bool:
    """Whether a workload would have enough of what comes free if nothing of that were kept for successors."""
    kept = queues.kept_for()
    if not kept:
        return False
    with without_successors(state, queues.quotas, kept):
        return _once_gone(state, queues, entry, option) is not None


def _once_gone(
    state: ClusterState, queues: Queues, entry: Entry, option: FlavorAssignment
) -> tuple[Assignment, ...] | None:
    queue, leaving = queues.quotas.queues[entry.queue], queues.leaving
    if not leaving or not queue.claims or not leaving.may_follow(entry.workload.key):
        return None
    # Taking many pods out of the state takes as long as a search, and counts so.
    if len(leaving.pods) > FEW:
        queues.count_search()
    with leaving.quota_without_leaving():
        for one in queues.kept_for():  # what those who leave cover now, it takes of the quota then
            queues.quotas.charge_workload(one.holder, Held(one.entry.queue, one.option.amounts))
        # Quota before room: it costs a few look-ups, while room means taking out every pod that leaves. This and the
        # places that `opened` puts back save about half of a cycle with 1,200 waiting workloads.
        if not queues.limits(entry).fits_limits(option.asked):
            return None
        with leaving.room_without_leaving(state):
            return _place_option(state, entry, option)


def _place_option(state: ClusterState, entry: Entry, option: FlavorAssignment) -> tuple[Assignment, ...] | None:
    found = put(state, entry.workload.key, option)
    return None if isinstance(found, Refusal) else found


@contextmanager
def keep_room(state: ClusterState, queues: Queues, shield: Shield) -> Iterator[None]:
    """Keep what successors will have, as things are now, while others are looked at."""
    late = queues.leaving.review_leaving(state, shield.now)
    if late is not None:  # who waited for that alone has to look elsewhere
        queues.pending.room_freed(late)
        queues.growing.try_again(list(queues.growing))
    # As soon as somebody begins to leave: waiting for the first pod
    # to be gone would let a borrower take what is free already.
    queues.pending.move_events_to_active(dict.fromkeys(_coming(state, queues)))
    # These have waited for as long as anybody may, and are looked at as if nobody left.
    for key in queues.leaving.waited:
        queues.pending.move_events_to_active([("claim", str(key))])
        queues.growing.try_again([workload_of(key)])
    _settle_successors(state, queues, shield, list(queues.successors.values()))
    for one in queues.successors.values() if not queues.leaving else ():
        queues.pending.move_events_to_active([("claim", one.key)])
    try:
        yield
    finally:
        _lift(state, queues, queues.successors.values())


def _coming(state: ClusterState, queues: Queues) -> Iterator[Event]:
    """What those bring who have begun to leave, but for victims of somebody: theirs is promised."""
    promised = {victim for key in queues.holders.nominated for victim in queues.entries[key].victims}
    for key in queues.leaving.begun:
        # Waking anybody for room that is promised to the preemptor would only cost looks.
        name = workload_of(key)
        if key in promised or queues.of_pod.get(name, "") in promised:
            continue
        pod = state.pods.get(name)
        held = queues.quotas.held.get(key) or queues.quotas.held.get(ReservationKey.for_orphan(name))
        flavors = [part.flavor for part in state.assignments(key).values()]
        yield from (("room", flavor) for flavor in (flavors if pod is None else state.flavors_on(pod.node)))
        if held is not None and held.queue in queues.quotas.queues:
            pool = queues.quotas.pool(held.queue)
            yield from (("quota", pool, *name) for name in held.amounts)


@contextmanager
def opened(state: ClusterState, queues: Queues, shield: Shield, entry: Entry, amounts: Quantities) -> Iterator[None]:
    """Let one look at what is kept for itself and for those whom it precedes; what is left is kept again."""
    held = [one for one in queues.successors.values() if one.entry is not entry]
    # Its own place first: with its quota held it would seem to borrow, and rank behind workloads that it precedes.
    _lift(state, queues, [one for one in queues.successors.values() if one.entry is entry])
    # Remembered before lifting, which clears what is covered: where nobody got anything it is put back as it was.
    lifted = {one.key: (one, one.covered) for one in _preceded(state, queues, entry, amounts, held)}
    _lift(state, queues, [one for one, _ in lifted.values()])
    try:
        yield
    finally:
        kept = queues.kept_for()
        others = [one for one in queues.successors.values() if one not in kept]
        stays = entry.grant is None and all(one.key in lifted and _has_turn(queues, one) for one in others)
        # Settling searches a place for each successor: too dear after each look in vain.
        if stays:  # it got nothing, so they keep what they had
            for one in others:
                _keep_for_successor(state, queues, one, lifted[one.key][1])
        else:
            _settle_successors(state, queues, shield, others)


def _preceded(
    state: ClusterState, queues: Queues, entry: Entry, amounts: Quantities, held: list[Successor]
) -> list[Successor]:
    """Those of some successors before whom a workload comes."""
    if not held:  # as in most looks of a cycle, and its rank costs as much as all else here
        return []
    rank = _rank(queues, entry, amounts)  # without what is held for it
    # Made once, for all that it is compared with: nothing that is held changes until all are asked.
    mine = cache(partial(contender_of, queues, entry.queue, entry, amounts))
    return [one for one in held if _precedes(state, queues, entry, mine, rank, one)]


def _precedes(  # noqa: PLR0917  (one that is looked at, and another one)
    state: ClusterState, queues: Queues, entry: Entry, mine: Callable[[], Contender], rank: Rank, other: Successor
) -> bool:
    if entry.queue == other.entry.queue:
        return queues.place_of(entry) < queues.place_of(other.entry)
    in_tree = competes_in_tree(queues, entry.queue, other.entry.queue)
    precedes = precedes_contender(queues, mine(), other.entry, other.option.amounts) if in_tree else rank < other.rank
    # A successor counts no better than the one before it in its queue that would take its place first: that one may
    # borrow what is kept, and would be evicted for the workload that was stopped.
    if precedes or (before := _find_next(state, queues, other)) is None:
        return precedes
    return precedes_contender(queues, mine(), *before) if in_tree else rank < queues.rank_of_entry(*before)


def _find_next(state: ClusterState, queues: Queues, one: Successor) -> tuple[Entry, Quantities] | None:
    """The one that is looked at before a successor in its queue, and what it asks for, where that is in its quota then.

    What is kept for the successor is that one's. It would borrow, and be evicted for whoever was stopped by the other.
    """
    group = one.entry.group
    first = group.line.next() if group is not None else None
    if first is None or first.head is None:
        return None
    entry = queues.entries[first.head.key]
    place = queues.place_of(entry)
    if not place < queues.place_of(one.entry) or not (found := queues.options_of(state, first).found):
        return None
    behind = [one for one in queues.kept_for() if entry.queue == one.entry.queue and place < queues.place_of(one.entry)]
    with without_successors(state, queues.quotas, behind):
        fits = queues.limits(entry).fits_limits(found[0].asked)
    return (entry, found[0].amounts) if fits else None


def _rank(queues: Queues, entry: Entry, *amounts: Quantities) -> Rank:
    """The rank of one with all these amounts."""
    return queues.rank_of_entry(entry, _summed(*amounts))


def _summed(*amounts: Quantities) -> Quantities:
    total: Quantities = {}
    for part in amounts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total


def add_successor(queues: Queues, entry: Entry, option: FlavorAssignment, assignments: tuple[Assignment, ...]) -> None:
    """One is the successor of those that leave; past some of them nothing is kept for it."""
    # Past the limit it waits with nothing kept for it. The places
    # of all are settled in each cycle, so the number is bounded.
    if len(queues.successors) >= MOST and entry.workload.key not in queues.successors:
        return
    rank = _rank(queues, entry, option.amounts)
    queues.successors[entry.workload.base] = Successor(entry, option, assignments, rank)


def remove_successor(queues: Queues, key: str) -> None:
    """One was looked at and is nobody's successor (any more): who was kept out by it is looked at."""
    if (gone := queues.successors.pop(key, None)) is not None:
        # Cleared as soon as anybody else begins to leave, or one of those is gone (`Leaving.review_leaving`).
        queues.leaving.spent.add(key)
        queues.pending.keeps_less(key, gone.entry.queue)


def _lift(state: ClusterState, queues: Queues, successors: Collection[Successor]) -> None:
    if not successors:
        return
    release_all(state, queues.quotas, successors)
    for one in successors:
        queues.leaving.promise(one.covered, -1)
        one.cover({})


def _settle_successors(state: ClusterState, queues: Queues, shield: Shield, successors: list[Successor]) -> None:
    """Have those keep what they will have who still fit once the others are gone; the others are none any more."""
    if not successors:
        return
    stand: list[Successor] = []
    in_order = list(_in_order(queues, successors))  # first, as in their ranks what leaves does not count anyway
    with queues.leaving.without_leaving(state):
        # All places are found with the leavers gone, each beside
        # those before it; what is held there is undone with them.
        for one in in_order:
            with shield(one.key):
                found = _still(state, queues, one) if queues.leaving.may_follow(one.key) else None
                if found is not None:
                    one.aim(found)
                    state.reserve(one.holder, found)
                    queues.quotas.charge_workload(one.holder, Held(one.entry.queue, one.option.amounts))
                    stand.append(one)
    for one in successors:
        if one not in stand:
            remove_successor(queues, one.key)
    for one in stand:
        there = None
        with shield(one.key):
            # A second pass, with the leavers still there: a place that is
            # free by now is better than one that may never come free.
            there = _now(state, queues, one)
        if there is not None:
            one.aim(there)
        _keep_for_successor(state, queues, one, {} if there is not None else _covered(queues, one))


def _in_order(queues: Queues, successors: Iterable[Successor]) -> Iterator[Successor]:
    """Of each queue in its order, though the first would borrow and the next one need not; between queues by rank.

    Whether one would borrow depends on what those before it have by then.
    """
    lines: dict[str, list[Successor]] = {}
    for one in sorted(successors, key=lambda one: queues.place_of(one.entry), reverse=True):
        lines.setdefault(one.entry.queue, []).append(one)
    taken: dict[str, list[Quantities]] = {queue: [] for queue in lines}
    while lines:
        for queue, line in lines.items():
            line[-1].line_up(_rank(queues, line[-1].entry, line[-1].option.amounts, *taken[queue]))
        first = reduce(partial(_earlier, queues, lines, taken), lines)
        taken[first].append(lines[first][-1].option.amounts)
        yield lines[first].pop()
        if not lines[first]:
            del lines[first]


def _earlier(
    queues: Queues, lines: dict[str, list[Successor]], taken: dict[str, list[Quantities]], queue: str, other: str
) -> str:
    """Which of two queues is next with the last in its line; ``taken``: what those of them have who were before."""
    one, beside = lines[queue][-1], lines[other][-1]
    if not competes_in_tree(queues, queue, other):
        return other if beside.rank < one.rank else queue
    wanted, theirs = (_summed(each.option.amounts, *taken[each.entry.queue]) for each in (one, beside))
    return queue if precedes_in_tree(queues, one.entry, wanted, beside.entry, theirs) else other


def _has_turn(queues: Queues, one: Successor) -> bool:
    """Whether a successor waits and would be looked at once there is room, as nobody came before it who holds it up."""
    entry, group = one.entry, one.entry.group
    if entry.phase is not Phase.WAITING or queues.entries.get(one.key) is not entry or group is None:
        return False
    there = entry.queue in queues.quotas.queues
    return there and group.head == entry.order and not group.line.holds_up(group)


def _still(state: ClusterState, queues: Queues, one: Successor) -> tuple[Assignment, ...] | None:
    """Where a successor goes now; where it was to go, as long as there is room."""
    if not _has_turn(queues, one) or not queues.limits(one.entry).fits_limits(one.option.asked):
        return None
    names = {name for part in one.assignments for piece in part.slices for name, _ in piece.nodes}
    checkpoint = state.begin()
    try:
        open_(state, claims_behind(queues, one.entry))  # as when it is looked at: these do not stop it
        before = state.begin()
        state.reserve(one.holder, one.assignments)
        known = (state.nodes.get(name) for name in names)
        stays = all(node is not None and node.ready and not node.unschedulable for node in known) and all(
            min(state.free_on_node(name).values(), default=0) >= 0 for name in names
        )
        state.rollback(before)
        return one.assignments if stays else _place_option(state, one.entry, one.option)
    finally:
        state.rollback(checkpoint)


def _now(state: ClusterState, queues: Queues, one: Successor) -> tuple[Assignment, ...] | None:
    """Where a successor goes at once, beside those before it, where something came free since it was looked at."""
    group = one.entry.group
    if group is None or group.inadmissible or not queues.limits(one.entry).fits_limits(one.option.asked):
        return None
    checkpoint = state.begin()
    try:
        open_(state, claims_behind(queues, one.entry))
        return _place_option(state, one.entry, one.option)
    finally:
        state.rollback(checkpoint)


def _covered(queues: Queues, one: Successor) -> dict[str, Quantities]:
    """What it will have of those who leave, by cluster queue: in its own, and what others of its cohort borrow."""
    quotas, left = queues.quotas, dict(one.option.amounts)
    covered: dict[str, Quantities] = {}
    # Its own queue first: what comes back there needs no lender. Then by name, so that equal states give equal answers.
    members = quotas.members(one.entry.queue)
    leaving = (queue for queue in queues.leaving.amounts if queue in members)
    for queue in sorted(leaving, key=lambda name: (name != one.entry.queue, name)):
        for name, amount in left.items():
            # Of another queue only what it borrows: the rest comes back to that queue's own workloads.
            most = amount if queue == one.entry.queue else quotas.used(queue, name) - quotas.nominal(queue, name)
            taken = min(amount, most, queues.leaving.unclaimed_quota(queue, name))
            if taken > 0:
                left[name] = amount - taken
                covered.setdefault(queue, {})[name] = taken
    return covered


def _keep_for_successor(state: ClusterState, queues: Queues, one: Successor, covered: dict[str, Quantities]) -> None:
    """Keep its place, and of the quota what it takes beyond what those have who leave."""
    one.cover(covered)
    queues.leaving.promise(covered)
    beyond = dict(one.option.amounts)
    for amounts in covered.values():
        for name, amount in amounts.items():
            beyond[name] -= amount
    state.reserve(one.holder, one.assignments)
    queues.quotas.charge_workload(one.holder, Held(one.entry.queue, beyond))
