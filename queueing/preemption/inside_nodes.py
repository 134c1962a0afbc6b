"""Victims in one domain where the inside of machines decides: node by node, as the kubelets there would admit.

The pods are put in one after the other, each where it costs least, and of what costs the same where it lands best: on a
node that takes it as things are, else where the cheapest victims (`engine.preemption.search`) make room for it. A
workload goes whole, so who was taken for one node is gone from the others as well, for nothing. Equal nodes are
evaluated once, and a node only while what it costs by amounts alone is the least known. What comes of it is a proposal;
the engine's own placement has the last word.
"""

import heapq
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import count
from typing import Final, NamedTuple

import msgspec

from engine.cluster.state import ClusterState
from engine.kubelet.charge import charge
from engine.kubelet.machine import Layout, NumaPlacement, PodShape, State, TopologyPolicy, ZoneUse
from engine.kubelet.numa_policy import LENIENT
from engine.kubelet.rebuild import asked, fits_zones, inner
from engine.kubelet.resource_requests import is_device
from engine.model import PODS, Pod, PodSet
from engine.numa.fleet import granted
from engine.preemption.blocks import MachineNeeds, blocks_of, kind_of, wanted
from engine.preemption.cover import Amount, Item, cheapest
from engine.preemption.model import NOBODY, ChoiceRules, Cost, Key, Landing, NodeRoom, Preemptor, VictimPod
from engine.preemption.one_room import OneRoom, least_landing
from engine.preemption.search import find
from engine.reservation_key import HolderKey
from queueing.preemption.landings import Landings
from queueing.preemption.plan import ranked

# Above every priority: who may be taken was decided by the queues' policies before the nodes are looked into.
EVERYBODY: Final = 1 << 62

Offer = tuple[int, int, Amount]  # priority, its part of the sum, what a victim gives back of what is short


class EvictableUnit(msgspec.Struct, frozen=True, gc=False):
    """A unit that may be taken: its priority, and its workload with those of the pods that are bound.

    ``priority``: in a queue by use what stands for it (`queueing.preemption.candidates.Candidates.level_of`).
    A node is in one domain, so what the workload has there is the unit's.
    """

    key: HolderKey
    priority: int
    pods: tuple[Pod, ...] = ()
    workload: HolderKey = ""


class NodePick(NamedTuple):
    """Room for one more pod on a node: whom to take (positions), where it lands, how many devices that frees."""

    victims: tuple[int, ...]
    landing: Landing
    freed: int


class _Least(NamedTuple):
    """What no victims who give back as much as is short cost less than, and the devices that are short."""

    cost: Cost
    freed: int


class Proposed(NamedTuple):
    """Whom to take so that all pods land, and what is compared of that but for what it leaves fragmented, less first.

    ``settled``: no pod could land better on any of these machines.
    """

    keys: list[HolderKey]
    price: Key
    settled: bool


class NodesInside(msgspec.Struct, dict=True):
    """Nodes of one pod set with those on them that may be taken."""

    state: ClusterState
    pod_set: PodSet
    shape: PodShape
    rules: ChoiceRules
    _chosen: "dict[tuple[object, ...], NodePick | None]" = msgspec.field(default_factory=dict)
    _bounds: "dict[tuple[object, ...], _Least | None]" = msgspec.field(default_factory=dict)
    _ideals: dict[Layout | None, Landing] = msgspec.field(default_factory=dict)
    _outlines: dict[tuple[str, HolderKey], tuple[object, ...]] = msgspec.field(
        default_factory=dict
    )  # by node and victim
    _most: dict[tuple[Layout, State, int], int] = msgspec.field(default_factory=dict)

    @classmethod
    def for_pod_set(cls, state: ClusterState, pod_set: PodSet, rules: ChoiceRules) -> "NodesInside | None":
        """None where the inside of machines does not decide about such pods."""
        shape = inner(pod_set.shape)
        return cls(state, pod_set, shape, rules) if shape is not None and state.machines else None

    def victims(self, nodes: Iterable[str], on: Mapping[str, list[EvictableUnit]]) -> "Proposed | None":
        """Whom to take so that these nodes take all pods; None where they would not with everybody gone."""
        rooms = {name: self.room_of_node(name, on.get(name, [])) for name in nodes}
        possible = 0
        for room in rooms.values():
            possible += self.count_if_empty(room)
            # The cheap question first: with everybody gone the nodes must
            # take all pods, or the search inside them is in vain.
            if possible >= self.pod_set.count:
                return _Greedy(self, rooms).run()
        return None

    def price(self, room: NodeRoom, pick: "NodePick") -> Key:
        """What is compared of one more pod on a node, less first: as of a plan for that pod alone."""
        priorities = [room.victims[at].priority for at in pick.victims]
        return self.price_of(priorities, [pick.landing], pick.freed)

    def price_of(self, priorities: Iterable[int], landings: Iterable[Landing], freed: int) -> Key:
        """The same of victims of these priorities and of several pods; the last is ``freed``, devices in all."""
        values = list(priorities)
        total = sum([max(value, 0) for value in values])
        return (
            *ranked(self.rules, max(values, default=NOBODY), total, len(values), Landings.count_landings(landings)),
            freed,
        )

    def bound_price(self, room: NodeRoom) -> Key | None:
        """A price that none is less than, by amounts and the best landing of the machine; None where nobody does."""
        least = self._least_victims(room)
        return None if least is None else self._priced(least, self.ideal(room.layout))

    def bound_inside(self, room: NodeRoom) -> Key | None:
        """The same with the best landing that so many victims could allow by what zones have and they hold there.

        Where it is known already who has to go, it is ``bound_price``: asking costs nothing then.
        """
        least, needs = self._least_victims(room), self._machine_needs(room.layout)
        if least is None or needs is None or self._outline_of(room) in self._chosen:
            return self.bound_price(room)
        return self._priced(least, least_landing(room, needs, least.cost.highest, least.cost.size))

    def _priced(self, least: "_Least", landing: Landing) -> Key:
        return (*ranked(self.rules, *least.cost, Landings.count_landings([landing])), least.freed)

    def _least_victims(self, room: NodeRoom) -> "_Least | None":
        rows = [(name, amount - room.free.get(name, 0)) for name, amount in self._needs.items()]
        short = [(name, missing) for name, missing in rows if missing > 0]
        if not short:
            return _Least(Cost(), 0)
        names, missing = tuple([name for name, _ in short]), tuple([amount for _, amount in short])
        offers = tuple(
            [
                (victim.priority, victim.weight, tuple([victim.requests.get(name, 0) for name in names]))
                for victim in room.victims
            ]
        )
        # Nodes that lack the same and whose victims give the same share the answer.
        key = names, missing, offers
        if key not in self._bounds:
            cost = self._least_cost(missing, offers)
            freed = sum([amount for name, amount in short if is_device(name)])
            self._bounds[key] = None if cost is None else _Least(cost, freed)
        return self._bounds[key]

    def _least_cost(self, missing: Amount, offers: tuple[Offer, ...]) -> Cost | None:
        """The least cost of victims who give back as much; the highest priority is no bound where numbers count."""
        highest = EVERYBODY
        if not self.rules.by_count:
            # The least highest priority comes first in every comparison, so no victim above it can be in the least set.
            for highest in sorted({priority for priority, _, _ in offers}):
                gains = [gives for priority, _, gives in offers if priority <= highest]
                if all(sum(row) >= amount for row, amount in zip(zip(*gains, strict=True), missing, strict=True)):
                    break
            else:
                return None
        by_count = self.rules.by_count
        items = [
            Item(gives, (1, weight) if by_count else (weight, 1))
            for priority, weight, gives in offers
            if priority <= highest
        ]
        # A knapsack over amounts: a lower bound by numbers, as it knows nothing of zones.
        found = cheapest(missing, items)
        if found is None:
            return None
        return Cost(highest, sum([items[at].price[by_count] for at in found]), len(found))

    def ideal(self, layout: Layout | None) -> Landing:
        """The best landing that a machine has for such a pod when it is empty."""
        if layout not in self._ideals:
            self._ideals[layout] = self._best_landing(layout)
        return self._ideals[layout]

    def _best_landing(self, layout: Layout | None) -> Landing:
        needs = self._machine_needs(layout)
        if layout is None or needs is None:
            return Landing.UNKNOWN
        rows = {name: at for at, name in enumerate(layout.resources)}
        asked_for = [(rows[name], amount) for (inside, name), amount in needs.needs if inside]
        # From one zone to the whole machine: the first block that is large enough when empty is the best there is.
        for landing, zones in sorted(blocks_of(layout)):
            within = [row for at, row in enumerate(layout.allocatable) if zones >> at & 1]
            if all(sum(max(row[at], 0) for row in within) >= amount for at, amount in asked_for):
                return landing
        return Landing.ACROSS

    def _machine_needs(self, layout: Layout | None) -> MachineNeeds | None:
        """What such a pod needs of a machine; None where it can never land there."""
        return wanted(kind_of(layout), self.preemptor)

    def room_of_node(self, name: str, holders: Iterable[EvictableUnit]) -> NodeRoom:
        """A node with those on it that may be taken."""
        machine, now = self.state.machines.get(name), self.state.state_inside(name)
        victims = tuple([victim for holder in holders if (victim := self._victim(name, holder)) is not None])
        free = self.state.free_on_node(name)
        if machine is None or now is None:
            return NodeRoom(name, free, victims)
        return NodeRoom(name, free, victims, machine.layout, now, machine.device_ids)

    def _victim(self, name: str, holder: EvictableUnit) -> VictimPod | None:
        """What a workload would give back on one node, all its pods and slots there together."""
        requests: dict[str, int] = {}
        uses: list[ZoneUse] = []
        for pod in holder.pods:
            if pod.node == name:
                _add(requests, {PODS: 1, **pod.requests, **pod.attached.most}, 1)
                held = self.state.held_inside(pod)
                uses += held.zones if held is not None else ()
        for pod_set, assignment in self.state.assignments(holder.workload).items():
            # Slots without a pod hold room too: their pods are to come, and would be refused if another took it.
            units = self.state.unclaimed_on(holder.workload, pod_set, name)
            if units:
                _add(requests, {PODS: 1, **assignment.requests, **assignment.attached.most}, units)
                for placement in self.state.placements(holder.workload, pod_set, name):
                    uses += placement.zones
        if not requests:
            return None
        return VictimPod(holder.key, holder.priority, requests, NumaPlacement(zones=tuple(uses)))

    def cheapest(self, room: NodeRoom) -> "NodePick | None":
        """The cheapest victims for one more pod; None where nobody's going would do."""
        key = self._outline_of(room)
        if key not in self._chosen:
            found = find(OneRoom(room), self.preemptor, self.rules)
            pick = None
            if found is not None:
                taken = {victim.key for victim in found.victims}
                positions = tuple([at for at, victim in enumerate(room.victims) if victim.key in taken])
                pick = NodePick(positions, found.landing, found.freed)
            self._chosen[key] = pick
        return self._chosen[key]

    def _outline_of(self, room: NodeRoom) -> tuple[object, ...]:
        """All that tells one node from another."""
        free = tuple([room.free.get(name, 0) for name in self._needs])
        return room.layout, room.state, free, tuple([self._outline(room, victim) for victim in room.victims])

    def _outline(self, room: NodeRoom, victim: VictimPod) -> tuple[object, ...]:
        """All that tells one victim from another; which devices are its own only where links matter."""
        found = self._outlines.get((room.node, victim.key))
        if found is None:
            uses = victim.placement.zones if victim.placement is not None else ()
            # Without links one device is as good as another, so nodes that differ in device numbers alone are equal.
            linked = room.layout is not None and any(room.layout.links)
            held = [
                (use.zone, *sorted(use.amounts.items()), *(sorted(use.devices.items()) if linked else ()))
                for use in uses
            ]
            requests = tuple([victim.requests.get(name, 0) for name in self._needs])
            found = self._outlines[room.node, victim.key] = victim.priority, requests, tuple(sorted(held))
        return found

    @cached_property
    def preemptor(self) -> Preemptor:
        """One pod, as the search inside a node looks at it; whom it may take was decided before."""
        return Preemptor(self._needs, EVERYBODY, self.shape)

    @cached_property
    def _needs(self) -> dict[str, int]:
        return self.state.cluster.table.needs(self.pod_set)

    def hopeless(self, room: NodeRoom) -> bool:
        """Whether the node is known not to take a pod with everybody gone, where `cheapest` would not find out soon."""
        if room.layout is None or self.shape.wish in LENIENT or room.layout.kubelet.policy is TopologyPolicy.SINGLE:
            return False  # more room never harms there
        return not self.count_if_empty(room)

    def count_if_empty(self, room: NodeRoom) -> int:
        """How many pods the node would take with everybody gone."""
        room = _node_without(room, [victim.key for victim in room.victims])
        most = min((room.free.get(name, 0) // n for name, n in self._needs.items() if n > 0), default=0)
        most = max(min(most, self.pod_set.count), 0)
        if room.layout is None or room.state is None:
            return most
        key = room.layout, room.state, most
        if key not in self._most:
            self._most[key] = granted(room.layout, room.state, self.shape, most)
        return self._most[key]

    def admitted(self, room: NodeRoom) -> NodeRoom | None:
        """The node with one more pod on it."""
        free = {name: have - self._needs.get(name, 0) for name, have in room.free.items()}
        if room.layout is None or room.state is None:
            return msgspec.structs.replace(room, free=free)
        admission = asked(room.layout, room.state, self.shape)
        return msgspec.structs.replace(room, free=free, state=admission.after) if admission.admitted else None


class _Greedy:
    """All pods put in, one after the other, each on the node where that is the best now.

    What is freed beyond the need of one pod is not compared here: the next pod may take it.
    """

    def __init__(self, inner: NodesInside, rooms: dict[str, NodeRoom]) -> None:
        self._inner, self._rooms = inner, rooms
        self._order = {name: at for at, name in enumerate(rooms)}
        self._on: dict[HolderKey, list[str]] = {}
        for name, room in rooms.items():
            for victim in room.victims:
                self._on.setdefault(victim.key, []).append(name)
        self._heap: list[tuple[Key, int, int, NodeRoom, NodePick | None]] = []
        self._pushed = count()  # rooms have no order: one that was looked at again may cost as much as before
        self._taken: dict[HolderKey, int] = {}
        self._landed: list[Landing] = []

    def run(self) -> Proposed:
        """See the class."""
        inner, rooms = self._inner, self._rooms
        ideal = min(inner.ideal(room.layout) for room in rooms.values())
        for name in rooms:
            self._push_bound(name)
        while len(self._landed) < inner.pod_set.count and self._heap:
            _, _, _, room, pick = heapq.heappop(self._heap)
            # Rooms are never changed in place: another object means that
            # victims went or a pod came since it was pushed.
            if rooms[room.node] is not room:
                continue  # looked at again since
            if pick is not None:
                self._place_pod(room, pick)
            elif (pick := inner.cheapest(room)) is not None:
                # Ties go to nodes in their order: the bound of an earlier node
                # is looked into before an equal price of a later one is taken.
                self._push(inner.price(room, pick), 2 * self._order[room.node], room, pick)
        settled = len(self._landed) == inner.pod_set.count and max(self._landed, default=ideal) <= ideal
        return Proposed(list(self._taken), inner.price_of(self._taken.values(), self._landed, 0)[:-1], settled)

    def _push_bound(self, name: str) -> None:
        room = self._rooms[name]
        bound = self._inner.bound_price(room)
        if bound is not None:
            self._push(bound, 2 * self._order[name] + 1, room)

    def _push(self, price: Key, order: int, room: NodeRoom, pick: NodePick | None = None) -> None:
        heapq.heappush(self._heap, (price[:-1], order, next(self._pushed), room, pick))

    def _place_pod(self, room: NodeRoom, pick: NodePick) -> None:
        """Have one more pod on a node."""
        rooms, gone = self._rooms, [room.victims[at] for at in pick.victims]
        keys = [victim.key for victim in gone]
        # A workload goes whole: its other nodes have more room now, and their bounds are stale.
        others = {other for key in keys for other in self._on[key]} | {room.node}
        for other in others:
            rooms[other] = _node_without(rooms[other], keys)
        self._taken |= {victim.key: victim.priority for victim in gone}
        admitted = self._inner.admitted(rooms[room.node])
        # The kubelet may refuse after all; the victims stay taken, and the node is asked again with what they left.
        if admitted is not None:
            rooms[room.node] = admitted
            self._landed.append(pick.landing)
        for other in sorted(others):
            self._push_bound(other)


def _node_without(room: NodeRoom, gone: Iterable[HolderKey]) -> NodeRoom:
    """The node with some of its victims gone."""
    keys, free, state = set(gone), dict(room.free), room.state
    uses: list[ZoneUse] = []
    for victim in room.victims:
        if victim.key in keys:
            _add(free, victim.requests, 1)
            # A placement that names zones which the machine does not have (a stale report) is no room inside it.
            if room.layout is not None and victim.placement is not None and fits_zones(room.layout, victim.placement):
                uses += victim.placement.zones
    if uses and room.layout is not None and state is not None:
        state = charge(room.layout, state, NumaPlacement(zones=tuple(uses)), -1, room.device_ids)
    left = tuple([victim for victim in room.victims if victim.key not in keys])
    return msgspec.structs.replace(room, free=free, victims=left, state=state)


def _add(amounts: dict[str, int], more: Mapping[str, int], times: int) -> None:
    for resource, amount in more.items():
        amounts[resource] = amounts.get(resource, 0) + amount * times
