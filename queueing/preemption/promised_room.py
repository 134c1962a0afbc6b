"""Room that is promised and still in use, counted once.

Who is nominated holds slots beside its victims, who hold theirs until they are gone (`queueing.queues.holders`). Where
both are counted, a node looks fuller than it ever gets, and more victims seem to be needed there than are.

Rules
- A slot that is promised counts for nothing while what victims hold on its node covers it: its amounts, and what it
  will have of each zone. The victims count in full. So what fits then fits now, beside the victims, and later, beside
  whom they go for; it waits for nobody's going.
- A slot that is covered in part counts in full, as does one that others look at (anti-affinity) or whose pods have
  claims or shared volumes. Nothing is left out for one that looks at other pods.
- Once all victims are gone a kubelet may give either of them any zone. So it is tried in both orders, and where one of
  them does not work out both are counted, as they are on more than ``MOST`` nodes.
- Only workloads that would have somebody evicted are looked at so: others have time until the victims are gone.
- On nodes whose inside is known, no workload gets room, with victims or without, if the kubelet would then refuse a
  pod of a workload that is promised room there (`PromisedRoom.spared`): it waits until that one is in.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from engine.cluster.assignment import Assignment, Slice, with_slices
from engine.cluster.state import ClusterState
from engine.kubelet.machine import NumaPlacement
from engine.kubelet.rebuild import inner
from engine.model import PODS
from engine.reservation_key import HolderKey, order_of
from engine.results import Refusal
from queueing.model import looks_at_pods
from queueing.preemption.plan import Plan, PlannedVictim
from queueing.preemption.search import plan
from queueing.queues.entry import Entry
from queueing.queues.flavor_assigner import FlavorAssignment, put
from queueing.queues.queues import Queues

MOST: Final = 64  # nodes with promised slots that are looked at
TRIES: Final = 4  # plans that are looked for, each without the nodes of those that do not work out in some order

Amounts = dict[str, int]
Slots = dict[HolderKey, list[Assignment]]


class PromisedRoom(msgspec.Struct, frozen=True):
    """What one who waits could have on nodes where room is promised."""

    state: ClusterState
    queues: Queues
    entry: Entry
    option: FlavorAssignment
    _left: dict[frozenset[str], Slots] = msgspec.field(default_factory=dict)

    def cheaper(self, made: Plan) -> Plan:
        """The plan with fewer, or less important, victims where there is one beside the victims of others."""
        rules, twice = self.queues.victim_rules(self.entry.queue), frozenset[str]()
        for _ in range(TRIES):
            with self._counted_once(twice) as differs:
                found = plan(self.state, self.queues, self.entry, self.option) if differs else None
            # Only a cheaper plan is worth counting promised room once.
            if found is None or found.key(rules) >= made.key(rules):
                return made
            if self._lasts(found.assignments, found.victims):
                return found
            # On these nodes one of the two orders fails, so all slots
            # count there from now on; the next try goes elsewhere.
            twice |= frozenset(_nodes(found.assignments))
        return made

    def put(self) -> tuple[Assignment, ...] | None:
        """Where the pods go, if there is room for them beside the victims of others, as things are."""
        twice = frozenset[str]()
        for _ in range(TRIES):
            with self._counted_once(twice) as differs:
                found = put(self.state, self.entry.workload.key, self.option) if differs else None
            if found is None or isinstance(found, Refusal):
                return None
            if self._lasts(found):
                return found
            twice |= frozenset(_nodes(found))
        return None

    @contextmanager
    def _counted_once(self, twice: frozenset[str]) -> Iterator[bool]:
        """Look at the state without slots that victims cover; False where there are none.

        ``twice``: nodes where all slots count.
        """
        if twice not in self._left:
            # For one that looks at other pods, a slot that is left out would be a pod that it does not see.
            looks = any(looks_at_pods(pod_set) for _, parts in self.option.parts for pod_set in parts)
            self._left[twice] = {} if looks else _uncovered_slots(self.state, self.queues, twice)
        checkpoint = self.state.begin()
        try:
            for key, parts in self._left[twice].items():
                self.state.reserve(key, parts)
            yield bool(self._left[twice])
        finally:
            self.state.rollback(checkpoint)

    def spared(self, assignments: Sequence[Assignment], victims: Collection[PlannedVictim] = ()) -> bool:
        """Whether the kubelets of these nodes would still take those who are promised room there.

        A slot that fits in no zone before its victims are gone is counted in amounts alone until then.
        """
        # Three sets before the trial: on most clusters one of them is empty, and nothing is tried.
        names = self.state.machines.keys() & _nodes(assignments)
        promised = names and {
            name for key in self.queues.holders.promised() for name in _nodes(self.state.assignments(key).values())
        }
        # Victims that lose some slices keep pods on their nodes; what
        # those leave is not worked out here, so the plan passes.
        parted = any(victim.domains for victim in victims)
        return parted or not (names and promised and names & promised) or self._lasts(assignments, victims)

    def _lasts(self, assignments: Sequence[Assignment], victims: Collection[PlannedVictim] = ()) -> bool:
        """Whether this and what is promised fit together once all victims are gone, whoever comes first."""
        if any(victim.domains for victim in victims):
            return False
        state, key, names = self.state, self.entry.workload.key, set(_nodes(assignments))
        held = {other: tuple(state.assignments(other).values()) for other in self.queues.holders.promised()}
        near = {other: parts for other, parts in held.items() if not names.isdisjoint(_nodes(parts))}
        checkpoint = state.begin()
        try:
            _take_out(state, self.queues, [*_going(self.queues), *(victim.key for victim in victims)])
            # The kubelet serves whichever pods come first, and nothing says which do.
            for order in ({**near, key: assignments}, {key: assignments, **near}):
                state.release_all(order)
                for one, parts in order.items():
                    state.reserve(one, parts)
                if not all(_can_take_slots(state, one, part, names) for one, parts in order.items() for part in parts):
                    return False
            return all(min(state.free_on_node(name).values(), default=0) >= 0 for name in names)
        finally:
            state.rollback(checkpoint)


def _uncovered_slots(state: ClusterState, queues: Queues, twice: Collection[str]) -> Slots:
    """What counts of what is promised, of those of whose slots some are covered."""
    held = {key: tuple(state.assignments(key).values()) for key in queues.holders.promised()}
    names = [name for name in _nodes(part for parts in held.values() for part in parts) if name not in twice]
    # Each node is compared zone by zone, twice.
    if not names or len(names) > MOST:
        return {}
    checkpoint = state.begin()
    try:
        # Measured without what is promised: else a gain would be what
        # is left after the promise, not what the victims give.
        state.release_all(held)
        before = {name: _Room.room_on_node(state, name) for name in names}
        _take_out(state, queues, _going(queues))
        gains = {name: _Room.room_on_node(state, name).less(before[name]) for name in names}
        for key, parts in held.items():
            state.reserve(key, parts)
        return {key: left for key, parts in held.items() if (left := _uncovered(state, key, parts, gains)) is not None}
    finally:
        state.rollback(checkpoint)


def _going(queues: Queues) -> list[HolderKey]:
    """The victims that go as a whole."""
    victims = {victim for key in queues.holders.promised() for victim in queues.entries[key].victims}
    return sorted(victims.difference(queues.holders.losing), key=order_of)


def _take_out(state: ClusterState, queues: Queues, units: Collection[HolderKey]) -> None:
    for pod in sorted(pod for unit in units for pod in queues.entry_of_unit(unit).pods):
        state.remove_pod(pod)
    state.release_all(units)


def _can_take_slots(state: ClusterState, key: HolderKey, part: Assignment, names: Collection[str]) -> bool:
    """Whether the kubelets of some nodes would take all slots there."""
    if inner(part.shape) is None:
        return True
    return all(
        len(state.placements(key, part.pod_set, name)) >= state.unclaimed_on(key, part.pod_set, name)
        for name in _nodes([part])
        if name in names and name in state.machines
    )


def _nodes(parts: Iterable[Assignment]) -> list[str]:
    return sorted({name for part in parts for piece in part.slices for name, _ in piece.nodes})


class _Room(msgspec.Struct):
    """What is free on a node, and in each of its zones (by resource) where they are known; or the difference of two."""

    amounts: Amounts
    zones: dict[int, Amounts] = msgspec.field(default_factory=dict)

    @classmethod
    def room_on_node(cls, state: ClusterState, name: str) -> "_Room":
        machine, inside = state.machines.get(name), state.state_inside(name)
        if machine is None or inside is None:
            return cls(state.free_on_node(name))
        zones, resources = machine.layout.zones, machine.layout.resources
        free = {zone.id: dict(zip(resources, row, strict=True)) for zone, row in zip(zones, inside.free, strict=True)}
        return cls(state.free_on_node(name), free)

    def less(self, other: "_Room") -> "_Room":
        zones = {zone: _less(row, other.zones.get(zone, {})) for zone, row in self.zones.items()}
        return _Room(_less(self.amounts, other.amounts), zones)

    def take_slot(self, takes: Amounts, placement: NumaPlacement | None) -> bool:
        """Take a slot off, if there is room for it."""
        uses = {use.zone: use.amounts for use in placement.zones} if placement is not None else {}
        rows = [(self.amounts, takes), *((self.zones.get(zone, {}), amounts) for zone, amounts in uses.items())]
        if any(row.get(name, 0) < amount for row, amounts in rows for name, amount in amounts.items()):
            return False
        # Taken off at once: the next slot must not be covered by the same room.
        for row, amounts in rows:
            row.update(_less({name: row.get(name, 0) for name in amounts}, amounts))
        return True


def _less(amounts: Amounts, other: Mapping[str, int]) -> Amounts:
    return {name: amount - other.get(name, 0) for name, amount in amounts.items()}


def _uncovered(
    state: ClusterState, key: HolderKey, parts: Iterable[Assignment], gains: Mapping[str, _Room]
) -> list[Assignment] | None:
    """What counts of what one is promised; None where that is all of it."""
    left, fewer = list[Assignment](), False
    for part in parts:
        plain = part.devices is None and not part.attached.shared
        # Devices and shared volumes are not amounts of a node, and an anti-affine slot keeps others out by being there.
        if not plain or (part.source is not None and part.source.anti_affinity):
            left.append(part)
            continue
        covered = {name: _covered(state, key, part, name, gains[name]) for name in _nodes([part]) if name in gains}
        fewer |= any(covered.values())
        left.append(with_slices(part, _reduced(part.slices, covered)) if any(covered.values()) else part)
    return left if fewer else None


def _covered(state: ClusterState, key: HolderKey, part: Assignment, name: str, gain: _Room) -> int:
    """How many slots of a pod set on a node are covered."""
    zoned = gain.zones and inner(part.shape) is not None
    places = state.placements(key, part.pod_set, name) if zoned else ()
    takes = {PODS: 1, **part.takes}
    count = state.unclaimed_on(key, part.pod_set, name)
    slots = places[:count] if zoned else (None,) * count
    return sum(gain.take_slot(takes, place) for place in slots)


def _reduced(slices: Iterable[Slice], covered: Mapping[str, int]) -> Iterator[Slice]:
    """The slices with so many slots fewer on each node."""
    off = dict(covered)
    for piece in slices:
        nodes = list[tuple[str, int]]()
        for name, count in piece.nodes:
            gone = min(count, off.get(name, 0))
            off[name] = off.get(name, 0) - gone
            if count > gone:
                nodes.append((name, count - gone))
        if nodes:
            yield msgspec.structs.replace(piece, count=sum(count for _, count in nodes), nodes=tuple(nodes))
        elif not piece.nodes:
            yield piece  # its domain is not there
