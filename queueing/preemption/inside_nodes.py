"""Victims in one domain where the inside of machines decides: node by node, as the kubelets there would admit.

The pods are put in one after the other, each where it costs least: on a node that takes it as things are, else where
the cheapest victims (`engine.preemption.search`) make room for it. A workload goes whole, so who was taken for one node
is gone from the others as well, for nothing. Equal nodes are evaluated once. What comes of it is a proposal; the
engine's own placement has the last word.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import msgspec

from engine.cluster.state import ClusterState
from engine.kubelet.charge import charge
from engine.kubelet.machine import Layout, NumaPlacement, PodShape, State, ZoneUse
from engine.kubelet.rebuild import asked, inner
from engine.model import PODS, Pod, PodSet
from engine.numa.fleet import granted
from engine.preemption.model import Choice, Key, Landing, NodeRoom, Preemptor, Rules, Victim
from engine.preemption.roster import Roster
from engine.preemption.search import cost_of, find

MOST_NODES: Final = 512  # of one domain that are looked into
EVERYBODY: Final = 1 << 62


@dataclass(frozen=True)
class Holder:
    """A unit that may be taken: its priority, and its workload with those of the pods that are bound.

    A node is in one domain, so what the workload has there is the unit's.
    """

    key: str
    priority: int
    pods: tuple[Pod, ...] = ()
    workload: str = ""


@dataclass
class NodesInside:
    """Nodes of one pod set with those on them that may be taken."""

    state: ClusterState
    pod_set: PodSet
    shape: PodShape
    rules: Rules
    _chosen: dict[tuple[object, ...], tuple[int, ...] | None] = field(default_factory=dict)
    _most: dict[tuple[Layout, State, int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, state: ClusterState, pod_set: PodSet, rules: Rules) -> "NodesInside | None":
        """None where the inside of machines does not decide about such pods."""
        shape = inner(pod_set.shape)
        return cls(state, pod_set, shape, rules) if shape is not None and state.machines else None

    def victims(self, nodes: Iterable[str], on: Mapping[str, list[Holder]]) -> tuple[list[str], bool]:
        """(whom to take so that these nodes take all pods, whether they would with everybody gone)."""
        rooms = {name: self._room(name, on.get(name, [])) for name in nodes}
        if sum(self._emptied(room) for room in rooms.values()) < self.pod_set.count:
            return [], False
        return self._greedy(rooms), True

    def _greedy(self, rooms: dict[str, NodeRoom]) -> list[str]:
        taken: dict[str, None] = {}
        on: dict[str, list[str]] = {}
        for name, room in rooms.items():
            for victim in room.victims:
                on.setdefault(victim.key, []).append(name)
        heap: list[tuple[Key, int, str, NodeRoom, tuple[int, ...]]] = []
        order = {name: at for at, name in enumerate(rooms)}

        def look(name: str) -> None:
            picked = self._cheapest(rooms[name])
            if picked is not None:
                cost = self.rules.key(cost_of([rooms[name].victims[at] for at in picked]), Landing.ZONE, 0)
                heapq.heappush(heap, (cost, order[name], name, rooms[name], picked))

        for name in rooms:
            look(name)
        left = self.pod_set.count
        while left and heap:
            _, _, name, room, picked = heapq.heappop(heap)
            if rooms[name] is not room:
                continue  # looked at again since
            gone = [room.victims[at].key for at in picked]
            others = {other for key in gone for other in on[key]} | {name}
            for other in others:
                rooms[other] = _without(rooms[other], gone)
            taken |= dict.fromkeys(gone)
            admitted = self._admitted(rooms[name])
            if admitted is not None:
                rooms[name] = admitted
                left -= 1
            for other in sorted(others):
                look(other)
        return list(taken)

    def _room(self, name: str, holders: Iterable[Holder]) -> NodeRoom:
        machine, now = self.state.machines.get(name), self.state.inside(name)
        victims = tuple([victim for holder in holders if (victim := self._victim(name, holder)) is not None])
        free = self.state.free(name)
        if machine is None or now is None:
            return NodeRoom(name, free, victims)
        return NodeRoom(name, free, victims, machine.layout, now, machine.device_ids)

    def _victim(self, name: str, holder: Holder) -> Victim | None:
        """What a workload would give back on one node, all its pods and slots there together."""
        requests: dict[str, int] = {}
        uses: list[ZoneUse] = []
        for pod in holder.pods:
            if pod.node == name:
                _add(requests, {PODS: 1, **pod.requests, **pod.attached.most}, 1)
                held = self.state.held_inside(pod)
                uses += held.zones if held is not None else ()
        for pod_set, assignment in self.state.assignments(holder.workload).items():
            units = self.state.unclaimed_on(holder.workload, pod_set, name)
            if units:
                _add(requests, {PODS: 1, **assignment.requests, **assignment.attached.most}, units)
                for placement in self.state.placements(holder.workload, pod_set, name):
                    uses += placement.zones
        if not requests:
            return None
        return Victim(holder.key, holder.priority, requests, NumaPlacement(zones=tuple(uses)))

    def _cheapest(self, room: NodeRoom) -> tuple[int, ...] | None:
        """Positions of the cheapest victims for one more pod; None where nobody's going would do."""
        free = tuple([room.free.get(name, 0) for name in self._needs])
        key = room.layout, room.state, free, tuple([self._outline(room, victim) for victim in room.victims])
        if key not in self._chosen:
            found = find(Roster([room]), Preemptor(self._needs, EVERYBODY, self.shape), self.rules)
            self._chosen[key] = None if found is None else _positions(room, found)
        return self._chosen[key]

    def _outline(self, room: NodeRoom, victim: Victim) -> tuple[object, ...]:
        """All that tells one victim from another; which devices are its own only where links matter."""
        uses = victim.placement.zones if victim.placement is not None else ()
        linked = room.layout is not None and any(room.layout.links)
        held = [
            (use.zone, *sorted(use.amounts.items()), *(sorted(use.devices.items()) if linked else ())) for use in uses
        ]
        return victim.priority, tuple([victim.requests.get(name, 0) for name in self._needs]), tuple(sorted(held))

    @cached_property
    def _needs(self) -> dict[str, int]:
        return {PODS: 1, **self.pod_set.requests, **self.state.cluster.table.limited(self.pod_set.attached.own)}

    def _emptied(self, room: NodeRoom) -> int:
        """How many pods the node would take with everybody gone."""
        room = _without(room, [victim.key for victim in room.victims])
        most = min((room.free.get(name, 0) // n for name, n in self._needs.items() if n > 0), default=0)
        most = max(min(most, self.pod_set.count), 0)
        if room.layout is None or room.state is None:
            return most
        key = room.layout, room.state, most
        if key not in self._most:
            self._most[key] = granted(room.layout, room.state, self.shape, most)
        return self._most[key]

    def _admitted(self, room: NodeRoom) -> NodeRoom | None:
        """The node with one more pod on it."""
        free = {name: have - self._needs.get(name, 0) for name, have in room.free.items()}
        if room.layout is None or room.state is None:
            return msgspec.structs.replace(room, free=free)
        admission = asked(room.layout, room.state, self.shape)
        return msgspec.structs.replace(room, free=free, state=admission.after) if admission.admitted else None


def _positions(room: NodeRoom, choice: Choice) -> tuple[int, ...]:
    keys = {victim.key for victim in choice.victims}
    return tuple([at for at, victim in enumerate(room.victims) if victim.key in keys])


def _without(room: NodeRoom, gone: Iterable[str]) -> NodeRoom:
    """The node with some of its victims gone."""
    keys, free, state = set(gone), dict(room.free), room.state
    for victim in room.victims:
        if victim.key in keys:
            _add(free, victim.requests, 1)
            if room.layout is not None and state is not None and victim.placement is not None:
                state = charge(room.layout, state, victim.placement, -1, room.device_ids)
    left = tuple([victim for victim in room.victims if victim.key not in keys])
    return msgspec.structs.replace(room, free=free, victims=left, state=state)


def _add(amounts: dict[str, int], more: Mapping[str, int], times: int) -> None:
    for resource, amount in more.items():
        amounts[resource] = amounts.get(resource, 0) + amount * times
