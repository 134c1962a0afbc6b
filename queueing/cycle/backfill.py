"""Keeping room and quota for one that has waited long: why nobody starves.

Rules
- Who has waited for ``Rules.patience`` and still does not fit becomes a *claimant*, first things first in the order of
  all queues; at most one a flavor at a time. A claim ends when its workload is admitted, or waits no more. How long one
  waits is stored: after a restart it claims as soon as it is refused, before anybody behind it is looked at.
- Room: of one domain that the claimant would fit if all that queues admitted were gone as many nodes are closed as
  would do: what is free there, and what becomes free, is held (all of ``pods`` on its nodes). The domain is chosen once
  and kept; the nodes are those where most is free, and others are taken only where more is free on them in all, so that
  the claimant gets nearer with each change. Where nothing of ours is left on them and the claimant still does not fit,
  the whole domain is closed, and then the next one. A request that one domain need not hold closes nodes anywhere in
  the flavor; one of several pod sets closes the flavor.
- Until the claimant has waited for ``Rules.hold`` its claim is *soft*: who comes after it and fits nowhere else takes
  of the room, and so does who would have pods cross sockets elsewhere, and fewer there. So the room is left to it where
  that costs nobody anything, and none stays idle. One that grows takes none of it where the claimant may evict it: it
  would lose all that it has, and not what it got alone.
- No room is closed for what would not fit there were all gone that queues admitted (`queueing.cycle.emptied`): who
  waits for other pods, for volumes, for devices that nobody has, claims nothing. It is asked when one would claim, of
  the domain that is chosen, and again each ``Rules.patience``; for one workload of a line a cycle, as it takes long.
- Room is closed only while no quota is lacking: one that waits for quota alone keeps no nodes idle.
- Quota: who comes after the claimant may not take quota that the claimant was seen to lack, except a queue within its
  own nominal quota.
- Who comes before a claimant (higher priority, or earlier) is not stopped by its claim: neither one that waits, nor one
  that is admitted and wants more pods, or others for lost ones. Else one could wait for the end of the other, which
  lacks a pod to get there.
- Without a queue nobody claims: a job that asks for all nodes would close them to everybody who has quota. So a large
  job without a queue may wait for as long as small ones come.
- In one queue who comes before whom is their place there: where its LocalQueues take turns by use, the score decides
  until one has waited for ``Rules.hold``. So a claim of a heavy LocalQueue stops no lighter one until then, and all
  that came later afterwards. The same holds between the children of a cohort that goes by use over time. Scores cross
  as time goes on, so whoever is kept out by them is looked at again after a pause (`await_crossing`).
- A claimant waits only for what runs, and for claimants before it: there is no cycle, so no deadlock.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from engine.arrays import Ints
from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from engine.model import PODS, PodSet, Policy, TopologyRequest
from engine.placement.upper_bounds import UpperBounds
from queueing.cycle.emptied import fits_emptied
from queueing.cycle.shield import Shield
from queueing.model import Order, Reclaim, Within
from queueing.queues.claim import BackfillLine, BackfillReservation
from queueing.queues.entry import Entry, Phase
from queueing.queues.flavor_assigner import FlavorAssignment
from queueing.queues.queues import Queues
from queueing.queues.quota import Missing
from queueing.queues.successor import without_successors

if TYPE_CHECKING:
    from queueing.queues.pending import Place

# One pod and nothing else: a node whose last free place for a pod is held takes no pod of any size.
_HELD = PodSet(name="claim", count=0, requests={PODS: 1}, topology=TopologyRequest(policy=Policy.UNCONSTRAINED))


def renew(state: ClusterState, queues: Queues, shield: Shield) -> list[Entry]:
    """End the claims of those who do not wait any more, let the next ones claim, and close what became free.

    Returns those who have waited long and were not looked at since the start, in their order: they are to be before
    anybody behind them. `look_again` has them back.
    """
    unseen: list[Entry] = []
    now = shield.now
    # Ended claims go first: a claim that is still listed keeps the next workload of its line out in `_next`.
    for claim in list(queues.claims.values()):
        settle(state, queues, claim, now)
    while queues.pending.aging and queues.pending.aging[0][0] <= now:
        _, key = heapq.heappop(queues.pending.aging)
        entry = queues.entries.get(key)
        if entry is None or not _is_waiting(entry) or not _keeps_room(queues, entry):
            continue
        # It began to wait again since this heap entry was pushed;
        # joining its line pushed another entry with the later time.
        if entry.since + queues.rules.patience > now:
            continue
        # Its group was never refused, so it may fit as things are: it
        # gets a look before anybody behind it, not a claim.
        if entry.group is not None and entry.group.refusal is None:
            unseen.append(entry)
        else:
            with shield(key):
                _enlist(state, queues, entry, now)
    for line in _lines_in_turn(queues, list(queues.aged)):
        _next(state, queues, shield, line, queues.aged[line])
    for claim in queues.claims.values():
        was_soft = claim.soft
        claim.age(now - claim.entry.since, queues.rules.hold)
        # Another priority or boost gives nothing back: no other event tells those who come before it from now on.
        if claim.fell():
            _wake_kept_out(queues, claim)
        if was_soft and not claim.soft and queues.quotas.over_time.scopes:
            # From now on order decides between it and those of other queues, where so far what they used did.
            queues.pending.keeps_less(claim.key, claim.entry.queue)
        # A domain that once would do may lose nodes, or gain pods that no queue admitted. The proof costs a placement
        # in the emptied cluster, so it is repeated rarely.
        if claim.waited - claim.proved_at >= queues.rules.patience:
            with shield(claim.key):
                _prove(state, queues, claim)
        rooms = tuple(queues.pending.rooms.get(flavor, 0) for flavor in claim.option.rooms)
        lacks = bool(_missing(queues, claim))
        # The room that is kept depends on what became free and on the quota that is lacking, on nothing else. Closing
        # without a change would wake everybody in every cycle.
        if (rooms, lacks) != (claim.seen, claim.lacks):
            claim.see(rooms)
            with shield(claim.key):
                close(state, queues, claim)
    return sorted(unseen, key=lambda entry: entry.order)


def look_again(queues: Queues, entry: Entry, now: float, *, soon: bool) -> None:
    """One was looked at, or is to be: in the next cycle where that is to be ``soon``."""
    heapq.heappush(queues.pending.aging, (now if soon else now + queues.rules.patience, entry.workload.base))


def reserve_refused(state: ClusterState, queues: Queues, entry: Entry, shield: Shield) -> None:
    """One was refused for the first time: if it waits for long already, nobody behind it takes its room."""
    now = shield.now
    if (
        entry.since + queues.rules.patience > now
        or entry.workload.base in queues.claims
        or not _may_claim(queues, entry)
    ):
        return
    line = _enlist(state, queues, entry, now)
    if line is None:
        return
    others = (
        [one for one in queues.aged if one.flavor == line.flavor and one.pool == line.pool] if line.part else [line]
    )
    for one in _lines_in_turn(queues, others):
        if one in queues.aged:
            _next(state, queues, shield, one, queues.aged[one])


def settle(state: ClusterState, queues: Queues, claim: BackfillReservation, now: float) -> bool:
    """End a claim that is of no use any more; True where it goes on."""
    if _may_claim(queues, claim.entry) and not claim.hopeless:
        return True
    end(state, queues, claim)
    # It may claim again, but not before another patience: else a hopeless one would be proved in every cycle.
    if _is_waiting(claim.entry):
        heapq.heappush(queues.pending.aging, (now + queues.rules.patience, claim.key))
    return False


def _missing(queues: Queues, claim: BackfillReservation) -> tuple[Missing, ...]:
    return queues.limits(claim.entry).missing_quota(claim.option.asked)


def _is_waiting(entry: Entry) -> bool:
    return entry.phase is Phase.WAITING


def _may_claim(queues: Queues, entry: Entry) -> bool:
    """Whether it waits for others to end, in a queue of those that keep room."""
    group = entry.group
    return _is_waiting(entry) and group is not None and not group.aside and _keeps_room(queues, entry)


def _keeps_room(queues: Queues, entry: Entry) -> bool:
    queue = queues.quotas.queues.get(entry.queue)
    return queue is not None and queue.claims


def _enlist(state: ClusterState, queues: Queues, entry: Entry, now: float) -> BackfillLine | None:
    """Put one in the line for the claim on the first flavor that could ever take it. Which line; None if in none."""
    group = entry.group
    if group is None or not _may_claim(queues, entry):
        # It does not wait for others.
        heapq.heappush(queues.pending.aging, (now + queues.rules.patience, entry.workload.base))
        return None
    # A claim on a flavor whose quota is too small even when idle would keep room that its workload may never use.
    option = next((o for o in queues.options_of(state, group).found if queues.limits(entry).ever(o.asked)), None)
    if option is None and not queues.quotas.queues[entry.queue].unlimited:
        heapq.heappush(queues.pending.aging, (now + queues.rules.patience, entry.workload.base))
        return None
    option = option or next(iter(queues.options_of(state, group).found), None)
    if option is None:
        return None
    # Without a topology the workload waits for quota alone, so its line is that of the pool and of one of its flavors.
    pool = "" if option.rooms else queues.quotas.pool(entry.queue)
    line = BackfillLine(option.rooms[0] if option.rooms else min(option.amounts)[0], pool, group.part)
    heapq.heappush(queues.aged.setdefault(line, []), (entry.order, entry.workload.base))
    return line


def _lines_in_turn(queues: Queues, lines: list[BackfillLine]) -> list[BackfillLine]:
    """Lines in the order in which their firsts may claim: of a queue by use that of the LocalQueue which is next."""
    if not any(line.part for line in lines):
        return lines
    # By what they wait for, and there by queue, the last place first.
    waiting: dict[tuple[str, str], dict[str, list[tuple[Place, BackfillLine]]]] = {}
    found: list[BackfillLine] = []
    for line in lines:
        heap = queues.aged[line]
        entry = queues.entries.get(heap[0][1]) if heap else None
        if entry is None:
            found.append(line)  # `_next` drops what left
            continue
        place = queues.place_of(entry) if line.part else (1, 0.0, heap[0][0])
        queue = entry.queue if line.part else ""
        waiting.setdefault((line.flavor, line.pool), {}).setdefault(queue, []).append((place, line))
    for queues_there in waiting.values():
        for places in queues_there.values():
            places.sort(reverse=True)
        while queues_there:
            # Between queues time decides, as scores of one say nothing to the other.
            first = min(queues_there, key=lambda queue: queues_there[queue][-1][0][-1])
            found.append(queues_there[first].pop()[1])
            if not queues_there[first]:
                del queues_there[first]
    return found


def _next(
    state: ClusterState, queues: Queues, shield: Shield, line: BackfillLine, heap: list[tuple[Order, str]]
) -> None:
    """The first in the line for one claim takes it, unless somebody has it."""
    while heap:
        order, key = heap[0]
        entry, option = queues.entries.get(key), None
        # The heap is never searched: entries of workloads that left,
        # changed their priority or claimed meanwhile are dropped here.
        stands = entry is not None and _is_waiting(entry) and entry.order == order and key not in queues.claims
        if entry is not None and stands:
            with shield(key):
                option = _claimable(state, queues, line, entry)
        if entry is None or option is None:
            heapq.heappop(heap)
            if entry is not None and stands and _is_waiting(entry):
                heapq.heappush(queues.pending.aging, (shield.now + queues.rules.patience, key))
            continue
        # Two claims on one flavor could each hold half of what either of them needs, and neither would ever get in.
        if any(_meets(queues, claim, entry, option) for claim in queues.claims.values()):
            return
        heapq.heappop(heap)
        seen = tuple(queues.pending.rooms.get(flavor, 0) for flavor in option.rooms)
        claim = BackfillReservation(entry, option, seen=seen)
        # Aged before it is proved: `prove` notes the time of waiting at which it holds.
        claim.age(shield.now - entry.since, queues.rules.hold)
        with shield(key):
            if _prove(state, queues, claim):
                queues.claims[key] = claim
                close(state, queues, claim)
        if claim.hopeless and _is_waiting(entry):
            heapq.heappush(queues.pending.aging, (shield.now + queues.rules.patience, key))
        return  # the next in line has its turn in the next cycle
    del queues.aged[line]


def _claimable(state: ClusterState, queues: Queues, line: BackfillLine, entry: Entry) -> FlavorAssignment | None:
    """What one may claim in this line; None where nothing."""
    if not _may_claim(queues, entry) or entry.group is None:
        return None
    options = [
        o
        for o in queues.options_of(state, entry.group).found
        if not o.rooms or (line.flavor in o.rooms and not line.pool)
    ]
    return next((o for o in options if queues.limits(entry).ever(o.asked)), None)


def _prove(state: ClusterState, queues: Queues, claim: BackfillReservation) -> bool:
    """Whether it would fit were all gone that queues admitted; where not, its claim is to end."""
    # A placement in the emptied cluster takes about as long as a
    # search for victims, and counts so against the cycle's looks.
    queues.count_search()
    found = fits_emptied(state, queues, claim.key, claim.option)
    if found is None:
        claim.mark_hopeless()
        return False
    claim.prove({one.flavor: one.slices[0].values for one in found if one.slices})
    return True


def _meets(queues: Queues, claim: BackfillReservation, entry: Entry, option: FlavorAssignment) -> bool:
    """Whether two claims would want the same."""
    if set(claim.option.rooms) & set(option.rooms):
        return True
    same = queues.quotas.pool(claim.entry.queue) == queues.quotas.pool(entry.queue)
    return same and bool(claim.option.amounts.keys() & option.amounts.keys())


def end(state: ClusterState, queues: Queues, claim: BackfillReservation) -> None:
    """Give back what was kept."""
    queues.claims.pop(claim.key, None)
    state.release_workload(claim.holder)
    _wake_kept_out(queues, claim)


def _wake_kept_out(queues: Queues, claim: BackfillReservation) -> None:
    queues.pending.room_freed(claim.option.rooms)
    queues.pending.keeps_less(claim.key, claim.entry.queue)


def open_(state: ClusterState, claims: Iterable[BackfillReservation]) -> None:
    """Let one that comes before them look at the room that is kept; ``close`` it again afterwards."""
    for claim in claims:
        state.release_workload(claim.holder)


def comes_before(queues: Queues, claim: BackfillReservation, entry: Entry) -> bool:
    """Whether a claim is of one that comes before this workload: by their places in one queue, by use or by order."""
    # By time alone each queue by use that is always full would go by age after one patience, and no score would ever
    # count. One that is late, as each with a hard claim is, has its place before all scores.
    if claim.entry.queue == entry.queue:
        return queues.place_of(claim.entry) < queues.place_of(entry)
    # Likewise between the children of a cohort that goes by use over time. The one that waits is not late either: a
    # stream of lighter claimants would else keep it out for ever.
    # Compared as in `PendingWorkloads.wake_due`: rounded otherwise it might be woken as late and not be late here.
    if claim.soft and entry.since + queues.rules.hold > queues.quotas.over_time.now:
        if queues.quotas.has_used_less(claim.entry.queue, entry.queue):
            return True
        if queues.quotas.has_used_less(entry.queue, claim.entry.queue):
            return False
    return claim.order < entry.order


def await_crossing(queues: Queues, claim: BackfillReservation, entry: Entry) -> None:
    """A claim keeps quota from one: where what both used so far decides that, it is looked at again as time passes."""
    if claim.entry.queue == entry.queue:
        (on_time, score, _), (beside, other, _) = queues.place_of(claim.entry), queues.place_of(entry)
        by_use = bool(on_time and beside) and score != other
    else:
        by_use = queues.quotas.has_used_less(claim.entry.queue, entry.queue)
    # No event says that scores cross, and the claim may last: until then the quota would be left to nobody.
    if by_use:
        queues.quotas.over_time.bar_queue(entry.queue)


def claims_behind(queues: Queues, entry: Entry) -> list[BackfillReservation]:
    """The claims of those who do not come before a workload: they do not stop it."""
    # Its own claim is among these, so a claimant sees the room that is kept for it.
    return [claim for claim in queues.claims.values() if not comes_before(queues, claim, entry)]


def yielding(queues: Queues, entry: Entry) -> list[BackfillReservation]:
    """The claims of which one that is admitted may take for slots that it lost: those behind it, and soft ones."""
    return [claim for claim in queues.claims.values() if claim.soft or not comes_before(queues, claim, entry)]


def open_to_growth(queues: Queues, entry: Entry) -> list[BackfillReservation]:
    """The claims of which one that is admitted may take for more pods: as above, but of nobody who may evict it."""
    return [
        claim
        for claim in yielding(queues, entry)
        if not comes_before(queues, claim, entry) or not may_take(queues, claim.entry, entry)
    ]


def may_take(queues: Queues, taker: Entry, entry: Entry) -> bool:
    """Whether its queue's rules may let one that waits evict one that is admitted."""
    quotas, rules = queues.quotas, queues.quotas.queues[taker.queue].preemption
    if not taker.workload.preempts:
        return False
    if taker.queue == entry.queue:
        return rules.within is not Within.NEVER
    return rules.reclaim is not Reclaim.NEVER and quotas.pool(taker.queue) == quotas.pool(entry.queue)


@contextmanager
def opened(
    state: ClusterState, queues: Queues, shield: Shield, lifted: Collection[BackfillReservation]
) -> Iterator[None]:
    """Let a workload look at the room that these claims keep, and take of it; what is left is kept again."""
    open_(state, lifted)
    try:
        yield
    finally:
        for claim in lifted:
            with shield(claim.key):
                # The one that looked may be the claimant itself, and be
                # admitted by now: then the claim ends instead of closing again.
                if settle(state, queues, claim, shield.now):
                    close(state, queues, claim)
                    # Closing may find that no domain is of use any more, and
                    # marks the claim so; it must not stay until the next cycle.
                    settle(state, queues, claim, shield.now)


def reopen(state: ClusterState, queues: Queues, entry: Entry) -> None:
    """A workload took of the room that is kept for others: the next cycle keeps what is left."""
    for claim in yielding(queues, entry):
        state.release_workload(claim.holder)
        claim.see(())


def close(state: ClusterState, queues: Queues, claim: BackfillReservation) -> None:
    """Keep what is free now in the claimed domains, and note which quota is lacking.

    Room is kept for successors while others are looked at, and not between cycles. What a claim lacks, and where it is,
    must not depend on that: it would change with each look, and wake everybody each time.
    """
    # Room that it keeps already would count as taken, and each closing would find less than the one before.
    state.release_workload(claim.holder)
    held, chosen = not claim.lacks, list[tuple[str, UpperBounds, Ints]]()
    with without_successors(state, queues.quotas, queues.successors.values()):
        missing = {(one.flavor, one.resource): one.cohort for one in _missing(queues, claim)}
        claim.lack(missing)
        for flavor, pod_sets in claim.option.parts if not missing else ():  # else room is of no use to it yet
            if (outlook := UpperBounds.compute_bounds(state, flavor, pod_sets[0])) is not None:
                chosen.append((flavor, outlook, _leaves(state, queues, claim, outlook, len(pod_sets))))
    # It held room until now and lacks quota: workloads that were refused for that room are looked at again.
    if missing and held:
        queues.pending.room_freed(claim.option.rooms)
    rooms: list[Assignment] = []
    for flavor, outlook, leaves in chosen:
        # Row 0 of the table is ``pods``. It is negative where a node holds more pods than it may.
        free = np.maximum(state.cluster.table.free[0][outlook.tree.span][leaves], 0)
        if (free > 0).any():
            counts = free[free > 0]
            rooms.append(
                Assignment.packed(
                    PodSet(name=flavor, count=0, requests=_HELD.requests, topology=_HELD.topology),
                    outlook.tree,
                    leaves[free > 0],
                    counts,
                    int(counts.sum()),
                )
            )
    if rooms:
        state.reserve(claim.holder, rooms)


def _leaves(state: ClusterState, queues: Queues, claim: BackfillReservation, outlook: UpperBounds, sets: int) -> Ints:
    """The leaves that are kept of a flavor: in the claimed domain, and of it as many as would do."""
    flavor, tree = outlook.tree.flavor.name, outlook.tree
    # Sums over one pod set say nothing of where several fit together, so no choice of nodes could be justified.
    if sets > 1:
        claim.domains[flavor] = ()
        return np.arange(tree.size)
    occupancy = queues.holders.usage(state, flavor)
    if occupancy is None:
        return np.zeros(0, np.int64)
    occupancy.drop_dead()
    rows = occupancy.rows()
    # Rows of workloads that left stay until they are many (`queueing.queues.usage`); they free nothing.
    rows = rows.select_rows(occupancy.alive[: len(occupancy.keys)][rows.owner])
    freed = occupancy.freed(rows, [resource for resource, _ in outlook.needs])
    on = np.bincount(rows.leaf, minlength=tree.size)
    used = np.bincount(outlook.owner, on).astype(np.int64)
    domain = _domain(state, queues, claim, outlook, outlook.bound_domains(freed), used)
    # The path is dropped as well, so that a later look chooses freely among all domains that did not fail.
    if domain is None:
        claim.domains.pop(flavor, None)
        claim.mark_hopeless()
        return np.zeros(0, np.int64)
    claim.domains[flavor] = _path(outlook, domain)
    span = outlook.span(domain)
    leaves = np.arange(span.start, span.stop)
    if not outlook.by_host or flavor in claim.whole:
        return leaves
    then, now = outlook.bound_leaves(freed)[leaves], outlook.bound_leaves()[leaves]
    kept = np.isin(leaves, occupancy.leaves_of_nodes(claim.nodes.get(flavor, ())))
    # Last key first: leaves that could never take a pod come last;
    # then most room now, least held by workloads, kept ones.
    best = np.lexsort((~kept, on[leaves], -now, then == 0))
    enough = int(np.searchsorted(then[best].cumsum(), outlook.pod_set.count)) + 1
    chosen = np.sort(best[:enough])
    # Other nodes are taken only for more room in all. Swapping equals would move the claim about.
    if kept.any() and then[kept].sum() >= outlook.pod_set.count and now[kept].sum() >= now[chosen].sum():
        chosen = kept.nonzero()[0]
    # Nothing of ours can end there any more and the kubelets still refuse, so counts per node promised too much.
    if not on[leaves[chosen]].any() and claim.refused:
        claim.whole.add(flavor)
        return leaves
    claim.nodes[flavor] = tuple(tree.names[leaf] for leaf in leaves[chosen].tolist())
    return leaves[chosen]


def _domain(  # noqa: PLR0917  (what is known of the domains)
    state: ClusterState,
    queues: Queues,
    claim: BackfillReservation,
    outlook: UpperBounds,
    then: Ints,
    used: Ints,
) -> int | None:
    """The claimed domain; chooses one where none is claimed, or that one is of no use; None where none is of use."""
    flavor = outlook.tree.flavor.name
    best, proved = None, None
    # Last key first: the domain with most room now, and of equal ones that in which workloads hold least.
    order: list[int] = np.lexsort((used, -outlook.bound_domains())).tolist()
    for domain in order:
        if then[domain] < outlook.pod_set.count:
            continue
        path = _path(outlook, domain)
        if claim.refused and not used[domain]:
            claim.failed.add((flavor, path))  # nothing of ours is there, and it was refused
        if (flavor, path) in claim.failed:
            continue
        if path == claim.domains.get(flavor):
            return domain
        best = domain if best is None else best
        if path == claim.proved.get(flavor, ())[: len(path)]:
            proved = domain
    if best is None or best == proved:
        return best
    # The bound knows nothing of other pods and of the inside of nodes: the best domain may not do, the proved one does.
    within = {flavor: _path(outlook, best)}
    return best if fits_emptied(state, queues, claim.key, claim.option, within) is not None else proved


def _path(outlook: UpperBounds, domain: int) -> tuple[str, ...]:
    """A domain that may hold all, widest first, a node's name at the end; () for the whole flavor."""
    if outlook.rank < 0:
        return ()
    tree = outlook.tree
    name = (tree.names[domain],) if outlook.rank > tree.last else ()
    return tuple(tree.path(min(outlook.rank, tree.last), domain)) + name


def keeping(queues: Queues, entry: Entry, rooms: Iterable[str]) -> list[BackfillReservation]:
    """The claims of those before this workload that keep room in some of these flavors."""
    wanted = set(rooms)
    return [
        claim
        for claim in queues.claims.values()
        if not claim.lacks and wanted & set(claim.option.rooms) and comes_before(queues, claim, entry)
    ]


def barring_claim(queues: Queues, entry: Entry, option: FlavorAssignment) -> BackfillReservation | None:
    """The claim of one before this workload that keeps quota which it would take."""
    quotas = queues.quotas
    for claim in queues.claims.values():
        if quotas.pool(claim.entry.queue) != quotas.pool(entry.queue) or not comes_before(queues, claim, entry):
            continue
        own = claim.entry.queue == entry.queue
        for key in claim.bars.keys() & option.amounts.keys():
            amount = option.amounts[key]
            # Where the limit of a cohort stops the claimant, what is taken elsewhere in the tree does not.
            if not quotas.is_below(entry.queue, claim.bars[key]):
                continue
            if amount > 0 and (own or quotas.used(entry.queue, key) + amount > quotas.nominal(entry.queue, key)):
                return claim
    return None
