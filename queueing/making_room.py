"""Moves that make room for one who waits long (`queueing.cycle.backfill`): who goes, and where to. Pure.

Rules
- Only for a claimant whose one pod set has to be in one domain, that lacks no quota, and has waited for as long as one
  that runs is left alone (``MoveRules.rest``).
- Those go who are small beside it: all together at most as large as what it asks for, and none of a higher priority,
  but of one up to `MoveRules.room_priority`. Each of them has another place now, on no node that the claimant is to
  get, in no room that is kept for anybody else, and as its own request says. What is free counts as it is now, with
  all pods where they are.
- All or none: nobody goes unless the claimant fits once all of them are gone.
- Of the domains that lack least, the one for which the least goes; within it nodes are emptied in the order of how much
  has to go for each pod of the claimant. So the plan is greedy, and not always the smallest.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.cluster.assignment import Assignment, slots_removed
from engine.cluster.state import ClusterState
from engine.model import PodSet, Policy
from engine.placement.relocate import away, off, relocate
from engine.placement.upper_bounds import UpperBounds
from engine.reservation_key import ReservationKey, order_of, workload_of
from engine.results import Refusal
from queueing.moves import MoveRules, instead, relocated
from queueing.queues.claim import BackfillReservation
from queueing.queues.entry import AssumedAdmission
from queueing.queues.flavor_assigner import put
from queueing.queues.queues import Queues
from queueing.queues.usage import FlavorRows, Rows

AGAIN: Final = 600.0  # seconds until room is looked for again for the same claimant
SHARE: Final = 1.0  # of what the claimant asks for may go
DOMAINS: Final = 8  # that are looked into: those that lack least
TRIED: Final = 3  # of these, so many are tried


class Going(msgspec.Struct, frozen=True):
    """What may go of a workload: its pod sets as they are asked for where they are.

    ``pods``: the keys of its pods, as the engine knows them. ``as_one``: all of it goes, or nothing.
    """

    pod_sets: tuple[PodSet, ...]
    pods: tuple[str, ...] = ()
    as_one: bool = False


Asks = Callable[[str], Going | None]  # by key of a workload; None: it is not moved now
Allows = Callable[[str, AssumedAdmission], bool]  # whether the pods that would have to go for this may


class RoomTurns:
    """For which claimants room is looked for now."""

    def __init__(self, rules: MoveRules) -> None:
        self._rules = rules
        self._tried: dict[str, tuple[float, tuple[int, ...]]] = {}

    def due_claims(self, queues: Queues, now: float) -> list[BackfillReservation]:
        """In their order; without those for whom nothing was freed since room was looked for."""
        self._tried = {key: tried for key, tried in self._tried.items() if key in queues.claims}
        claims = sorted(queues.claims.values(), key=lambda claim: claim.order)
        return [claim for claim in claims if self._rules.room and self._is_due(queues, claim, now)]

    def _is_due(self, queues: Queues, claim: BackfillReservation, now: float) -> bool:
        at, free = self._tried.get(claim.key, (-np.inf, None))
        rested = now - claim.entry.since >= self._rules.rest and now - at >= AGAIN
        # Nothing came free since, so the same search would fail again; but for those who had not run for long enough.
        changed = free != _free_rooms(queues, claim) or queues.run_times.any_minimum
        return rested and not claim.hopeless and changed

    def record_search(self, queues: Queues, claim: BackfillReservation, now: float) -> None:
        """Room was looked for."""
        self._tried[claim.key] = now, _free_rooms(queues, claim)

    def next_search_time(self, queues: Queues, now: float) -> float | None:
        """When time alone has room be looked for; None: never."""
        if not self._rules.room:
            return None
        times = [
            max(claim.entry.since + self._rules.rest, self._tried.get(claim.key, (-np.inf,))[0] + AGAIN)
            for claim in queues.claims.values()
        ]
        return min((at for at in times if at > now), default=None)


def _free_rooms(queues: Queues, claim: BackfillReservation) -> tuple[int, ...]:
    return tuple([queues.pending.rooms.get(flavor, 0) for flavor in claim.option.rooms])


def make_room(
    state: ClusterState,
    queues: Queues,
    claim: BackfillReservation,
    most: int,
    *,
    asks: Asks,
    allows: Allows,
    priority: int | None = None,
) -> dict[str, AssumedAdmission]:
    """What each of at most ``most`` workloads is to hold instead, so that the claimant fits; {}: there is no way.

    The state is left as it was. They are to be held in this order, once what is kept for the claimant is lifted.
    ``priority``: up to this one workloads go whatever the claimant's is; None: of none that is higher than that.
    """
    parts = claim.option.parts
    # Without the quota the room would be emptied in vain; sums say nothing of several pod sets together.
    if claim.lacks or len(parts) != 1 or len(parts[0][1]) != 1:
        return {}
    flavor, (pod_set,) = parts[0]
    if pod_set.topology.policy is not Policy.REQUIRED:
        return {}
    checkpoint = state.begin()
    try:
        # Room that is kept for the claimant is its own: it counts as free here.
        state.release_workload(claim.holder)
        outlook, usage = UpperBounds.compute_bounds(state, flavor, pod_set), queues.holders.usage(state, flavor)
        if outlook is None or usage is None or not outlook.by_host or outlook.rank < 0:
            return {}
        own = claim.entry.workload.priority
        top = own if priority is None else max(own, priority)
        found = _Domains(outlook, usage, queues, top, most, asks)
        for _, keys in sorted(found.plans())[:TRIED]:
            if moved := _moved_grants(state, queues, claim, keys, asks=asks, allows=allows):
                return moved
        return {}
    finally:
        state.rollback(checkpoint)


def lift(state: ClusterState, claim: BackfillReservation) -> None:
    """Others may come to hold what is kept for a claimant, as it gets other room; the next cycle keeps it anew."""
    state.release_workload(claim.holder)
    claim.see(())


class _Domains:
    """The domains of the level that a claimant requires, and who is in them that might go."""

    def __init__(  # noqa: PLR0917  (what a search looks at)
        self,
        outlook: UpperBounds,
        usage: FlavorRows,
        queues: Queues,
        priority: int,
        most: int,
        asks: Asks,
    ) -> None:
        usage.drop_dead()
        self._outlook, self._keys, self._most = outlook, usage.keys, most
        self._asks = asks
        self._limit = SHARE * outlook.pod_set.count
        rows = usage.rows()
        rows = rows.select_rows(usage.alive[: len(usage.keys)][rows.owner])
        self._sizes = _sizes(outlook, usage, rows)
        # All owners at once, by columns; who may be asked to go is asked one by one later, of the few that are chosen.
        below = (self._sizes <= self._limit) & (usage.priority[: len(usage.keys)] <= priority)
        # Units that are parts of workloads or plain pods are no entries: only whole workloads move.
        below &= np.array([key in queues.entries for key in usage.keys], np.bool_)
        self._rows = rows.select_rows(below[rows.owner])
        self._now = outlook.bound_leaves()
        self._gain = (
            outlook.bound_leaves(usage.freed(self._rows, [resource for resource, _ in outlook.needs])) - self._now
        )
        self._known: dict[int, bool] = {}

    def plans(self) -> Iterator[tuple[float, list[str]]]:
        """How much would go, as pods of the claimant, and who, the largest first; by domain."""
        count, outlook = self._outlook.pod_set.count, self._outlook
        short = count - outlook.summed(self._now)
        # A domain that lacks nothing by sums and still does not take the claimant is not mended by moving anybody.
        possible = ((short > 0) & (outlook.summed(self._gain) >= short)).nonzero()[0]
        for domain in possible[np.argsort(short[possible], kind="stable")][:DOMAINS].tolist():
            owners = self._fewest(outlook.span(domain), int(short[domain]))
            if owners:
                ordered = sorted(owners, key=lambda owner: (-self._sizes[owner], order_of(self._keys[owner])))
                yield self._size(ordered), [workload_of(self._keys[owner]) for owner in ordered]

    def _fewest(self, span: range, short: int) -> set[int]:
        """Those who go from one domain, so that so many pods more fit; none where that is too much."""
        inside = self._rows.select_rows((self._rows.leaf >= span.start) & (self._rows.leaf < span.stop))
        on: dict[int, set[int]] = {}
        leaves: dict[int, set[int]] = {}
        for leaf, owner in zip(inside.leaf.tolist(), inside.owner.tolist(), strict=True):
            on.setdefault(leaf, set()).add(owner)
            leaves.setdefault(owner, set()).add(leaf)
        gains = {leaf: int(self._gain[leaf]) for leaf in on}
        cost = {leaf: self._size(there) / gains[leaf] for leaf, there in on.items() if gains[leaf] > 0}
        chosen: set[int] = set()
        emptied: set[int] = set()
        got = 0
        for leaf in sorted(cost, key=lambda leaf: (cost[leaf], leaf)):
            # Those chosen for an earlier node go from this one as well, for nothing.
            fresh = on[leaf] - chosen
            if not all(self._goes(owner) for owner in fresh):
                continue
            chosen |= fresh
            if len(chosen) > self._most or self._size(chosen) > self._limit:
                return set()
            # A node gives its pods only once all on it go; one that was emptied by the way counts too.
            done = {each for owner in fresh for each in leaves[owner] if on[each] <= chosen} - emptied
            emptied |= done
            got += sum(gains[each] for each in done)
            if got >= short:
                return chosen
        return set()

    def _size(self, owners: Collection[int]) -> float:
        return float(self._sizes[list(owners)].sum())

    def _goes(self, owner: int) -> bool:
        if owner not in self._known:
            key = self._keys[owner]
            self._known[owner] = isinstance(key, str) and self._asks(key) is not None
        return self._known[owner]


def _sizes(outlook: UpperBounds, usage: FlavorRows, rows: Rows) -> NDArray[np.float64]:
    """By owner, how many pods of the claimant are as large as all that it holds."""
    found = np.zeros(len(usage.keys))
    for resource, amount in outlook.needs:
        held = np.bincount(rows.owner, rows.units * usage.amounts(resource)[rows.kind], len(usage.keys))
        found = np.maximum(found, held / amount)
    return found


def _moved_grants(
    state: ClusterState,
    queues: Queues,
    claim: BackfillReservation,
    keys: Collection[str],
    *,
    asks: Asks,
    allows: Allows,
) -> dict[str, AssumedAdmission]:
    """What these hold instead, so that the claimant fits; {} where one of them has no other place, or may not go."""
    known = {key: going for key in keys if (going := asks(key)) is not None}
    nodes = _wanted_nodes(state, claim, known)
    found: dict[str, AssumedAdmission] = {}
    checkpoint = state.begin()
    try:
        for key in keys if nodes else ():
            grant, going = queues.entries[key].grant, known.get(key)
            if grant is None or going is None:
                return {}
            if not any(_slots_on_nodes(part, nodes) for part in grant.assignments):
                continue
            other = _place_elsewhere(state, key, grant, going, nodes)
            if other is None or not allows(key, other):
                return {}
            found[key] = other
            # The new places are held before the next one looks for its own, or two would go to the same node.
            state.reserve(key, other.assignments)
            # Until its pods are gone.
            state.reserve(ReservationKey.for_leaving(key), slots_removed(grant.assignments, other.assignments))
        state.release_all([ReservationKey.for_leaving(key) for key in found])
        there = {key: known[key] for key in found}
        # The last word is a placement: moved workloads may have taken what the claimant counts on.
        return found if found and _wanted_nodes(state, claim, there, moved=True) else {}
    finally:
        state.rollback(checkpoint)


def _wanted_nodes(
    state: ClusterState, claim: BackfillReservation, gone: Mapping[str, Going], *, moved: bool = False
) -> frozenset[str]:
    """The nodes that the claimant would get if these, or the pods of those that moved, were gone; none: it fits not."""
    checkpoint = state.begin()
    try:
        for pod in [pod for going in gone.values() for pod in going.pods if pod in state.pods]:
            state.remove_pod(pod)
        if not moved:
            state.release_all(list(gone))
        found = put(state, claim.key, claim.option)
        if isinstance(found, Refusal):
            return frozenset()
        return frozenset(node for part in found for piece in part.slices for node, _ in piece.nodes)
    finally:
        state.rollback(checkpoint)


def _slots_on_nodes(held: Assignment, nodes: Collection[str]) -> dict[tuple[str, ...], int]:
    """How many slots of each slice are on these nodes."""
    return {part.values: part.count for part in held.slices if any(node in nodes for node, _ in part.nodes)}


def _place_elsewhere(
    state: ClusterState, key: str, grant: AssumedAdmission, going: Going, nodes: frozenset[str]
) -> AssumedAdmission | None:
    """What one holds with its slots on these nodes elsewhere, with all of its pod set where the rest cannot stay."""
    asked = {pod_set.name: off(pod_set, nodes) for pod_set in going.pod_sets}
    if going.as_one:
        every = away(state, key, tuple(asked.values()))
        return None if isinstance(every, Refusal) else instead(grant, every)

    def search(name: str, held: Assignment) -> Assignment | Refusal | None:
        gone = _slots_on_nodes(held, nodes)
        if not gone:
            return None
        found = relocate(state, key, asked[name], gone)
        # The pods that stay may bind the rest to their domain; all of the pod set may go where a part of it may not.
        if isinstance(found, Refusal) and len(gone) < len(held.slices):
            return relocate(state, key, asked[name], {part.values: part.count for part in held.slices})
        return found

    found = relocated(state, key, grant, asked, search)
    return None if isinstance(found, Refusal) else found
