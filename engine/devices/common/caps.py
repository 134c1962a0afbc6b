"""For how many pods devices that several nodes reach will do: a cap on the sum over these nodes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints
from engine.claims.asks import DeviceAsk
from engine.claims.counting.draws import DeviceSet, Draws
from engine.devices.changes import ChangeLog
from engine.devices.common.demand import CommonDemand, DrawsAt
from engine.devices.node_counts import NodePlaces
from engine.devices.of_node import UNLIMITED
from engine.latest import Latest

Codes = NDArray[np.int32]

# Each entry has arrays of all nodes.
KEPT: Final = 64


class CommonCap(msgspec.Struct, frozen=True):
    """At most ``most[code]`` more pods on all nodes (by table index) with that code together; code 0 is not capped."""

    codes: Codes
    most: Ints


class _MeetingSets(msgspec.Struct):
    """Sets that have devices in common, however far apart: how many pods take of them is one question.

    ``sets``: and whether such pods count on getting theirs of it. ``each``: what a pod takes of them, at most. ``odd``:
    it is not asked, as nodes ask in too many ways, or it takes too many steps to know in which.
    """

    sets: dict[DeviceSet, bool]
    each: int = 0
    odd: bool = False

    def count(self, each: int, *, odd: bool) -> None:
        """A node has pods take so many; ``odd`` as above."""
        self.each, self.odd = max(self.each, each), self.odd or odd

    def add(self, devices: DeviceSet, *, kept: bool) -> None:
        """A node draws on a set."""
        self.sets[devices] = self.sets.get(devices, False) or kept

    def merge(self, other: "_MeetingSets") -> None:
        """All of another one are of this."""
        for devices, kept in other.sets.items():
            self.add(devices, kept=kept)


class _Kin(msgspec.Struct):
    """Of one kind of pods: what nodes draw on. ``together``: the same for nodes that all reach the same devices.

    ``layers``: of nodes the parts that they draw on, by `CommonCap.codes`.
    """

    parts: dict[DeviceSet, _MeetingSets]
    layers: list[tuple[Codes, list[_MeetingSets]]]
    together: Ints
    several: bool


class CommonCaps:
    """See the module. ``there`` has the nodes that have other devices.

    ``published``: whether any devices are published that several nodes may reach.
    """

    def __init__(
        self, places: NodePlaces, there: ChangeLog, published: Callable[[], bool], demand: CommonDemand
    ) -> None:
        self._places = places
        self._any = published
        self._there = there
        self._demand = demand
        self._draws = demand.draws
        self._waiting = demand.waiting
        self._known: Latest[DeviceAsk, tuple[object, _Kin]] = Latest(KEPT)

    def devices_changed(self) -> None:
        """There are other devices, or classes."""
        self._known.clear()

    def claim_changed(self, claim: str) -> None:
        """A claim has devices, or has none any more: who names it asks for something else."""
        for ask in [one for one in self._known if claim in one.claims]:
            del self._known[ask]

    def caps(self, ask: DeviceAsk, *, emptied: bool = False) -> tuple[CommonCap, ...]:
        """On sums of what fits nodes by themselves; ``emptied``: as if no claim held anything, and nobody waited."""
        if not self._any():
            return ()
        found = []
        for codes, parts in self._kin(ask).layers:
            # Code 0 is that of nodes that draw on no part of the layer. It has no cap, so its number does not matter.
            most = [0, *(self._most_pods(ask, part, emptied=emptied) for part in parts)]
            found.append(CommonCap(codes, np.array(most, np.int64)))
        return tuple(found)

    def may_get_devices(self, name: str, ask: DeviceAsk) -> bool:
        """Whether such a pod may be given devices on a node that others reach too."""
        found = self._draws(name, ask) if self._any() else None
        return found is not None and bool(found.parts)

    def spread(self, ask: DeviceAsk) -> bool:
        """Whether pods that share a claim without devices may stand on several nodes: all reach what it may get."""
        return self._any() and self._kin(ask).several

    def together_by_node(self, ask: DeviceAsk) -> tuple[Ints, NDArray[np.bool_] | None]:
        """A number for each node, by table index: pods that share a claim go where it is the same.

        And where they may go at all, where such pods wait already; None for everywhere.
        """
        numbers = self._kin(ask).together
        nodes = self._waiting.naming(ask.claims[0]) if ask.claims else ()
        places = [self._places.index(name) for name in nodes if ask in self._waiting.waiting_on_node(name)]
        held = [place for place in places if place is not None]
        return numbers, np.isin(numbers, numbers[held]) if held else None

    def explain_caps(self, name: str, ask: DeviceAsk) -> list[str]:
        """In words, what stands against one more pod on a node as far as such devices go."""
        found = self._draws(name, ask) if self._any() else None
        if found is None:
            return []
        texts, demand, parts = [], self._demand, self._kin(ask).parts
        for devices, each in found.sets:
            left, held = demand.count_left(devices, ask), demand.count_held(devices)
            size = f"{len(devices)} {'device' if len(devices) == 1 else 'devices'} that nodes share"
            if parts[devices].odd:
                texts.append(f"{size} cannot be counted, as too many combinations of nodes reach them")
            elif left < each:
                kept = len(devices) - held - left
                texts.append(f"of {size}, {held} held and {kept} kept for pods on these nodes")
        if found.unknown:
            texts.append("it takes too many steps to find out which shared devices such pods may get")
        elif found.loose and demand.count_left(found.loose, ask, kept=False) < found.most:
            texts.append("pods on other nodes get devices first that such pods could also use")
        return texts

    def overdrawn(self, ask: DeviceAsk, units: Mapping[str, int]) -> str:
        """A node among those on which so many pods are to get devices that all together do not get; "" for none."""
        places = {name: place for name in units if (place := self._places.index(name)) is not None}
        for cap in self.caps(ask):
            wanted = np.zeros(len(cap.most), np.int64)
            for name, place in places.items():
                wanted[cap.codes[place]] += units[name]
            short = wanted > cap.most
            short[0] = False
            for name, place in places.items():
                if short[cap.codes[place]]:
                    return name
        return ""

    def _most_pods(self, ask: DeviceAsk, part: _MeetingSets, *, emptied: bool) -> int:
        if part.odd:
            return 0
        demand = self._demand
        left = min(
            # On empty nodes a set that pods only may be given bounds nothing.
            (len(devices) if kept else UNLIMITED) if emptied else demand.count_left(devices, ask, kept=kept)
            for devices, kept in part.sets.items()
        )
        return UNLIMITED * (left >= part.each) if ask.shared else left // part.each

    def _kin(self, ask: DeviceAsk) -> _Kin:
        key = self._there.end, self._places.layout
        found = self._known.get(ask)
        if found is None or found[0] != key:
            # `get_or_make` would return the old entry.
            self._known.pop(ask, None)
            found = self._known.get_or_make(
                ask, lambda: (key, _kin_of(self._places.nodes_by_place(), ask, self._draws))
            )
        return found[1]


def _kin_of(names: Sequence[str], ask: DeviceAsk, draws: DrawsAt) -> _Kin:
    together, whole, drawn = np.arange(len(names)), dict[object, int](), dict[int, Draws]()
    for place, name in enumerate(names):
        found = draws(name, ask)
        if found is None or found.whole:
            # Below 0, so that a number of a set is never the place of another node.
            together[place] = -1 - whole.setdefault(found and found.sets, len(whole))
        if found is not None and found.parts:
            drawn[place] = found
    parts = _meeting_sets(drawn.values())
    return _Kin(parts, _layers(len(names), drawn, parts), together, len(np.unique(together)) < len(names))


def _layers(
    size: int, drawn: Mapping[int, Draws], of: Mapping[DeviceSet, _MeetingSets]
) -> list[tuple[Codes, list[_MeetingSets]]]:
    """The parts such that no node draws on two of one layer."""
    layers, where = list[tuple[Codes, list[_MeetingSets]]](), dict[int, tuple[int, int]]()
    for place, found in drawn.items():
        each: dict[int, int] = {}  # by part
        for devices, some in found.parts:
            each[id(of[devices])] = each.get(id(of[devices]), 0) + some
        used: set[int] = set()
        for part in {id(of[one]): of[one] for one, _ in found.parts}.values():
            if id(part) not in where:
                # The first layer on which this node draws on nothing yet. Caps of one layer then never count a node
                # twice.
                layer = next(at for at in range(len(layers) + 1) if at not in used)
                if layer == len(layers):
                    layers.append((np.zeros(size, np.int32), []))
                layers[layer][1].append(part)
                where[id(part)] = layer, len(layers[layer][1])
            layer, code = where[id(part)]
            # A part that lies in a layer which this node uses already cannot have its code there, so it is given to
            # nobody.
            part.count(each[id(part)], odd=layer in used or found.unknown)
            used.add(layer)
            layers[layer][0][place] = code
    return layers


def _meeting_sets(drawn: Iterable[Draws]) -> dict[DeviceSet, _MeetingSets]:
    """Of each set the part that it belongs to."""
    of: dict[DeviceSet, _MeetingSets] = {}
    first: dict[tuple[str, str, str], DeviceSet] = {}
    for found in drawn:
        for devices, _ in found.parts:
            if devices in of:
                of[devices].add(devices, kept=not found.loose)
                continue
            of[devices] = mine = _MeetingSets({devices: not found.loose})
            # Sets that share a device become one part. The first set with each device stands for all that have it.
            for other in {first.setdefault(device, devices) for device in devices} - {devices}:
                if of[other] is not mine:
                    mine.merge(of[other])
                    of |= dict.fromkeys(of[other].sets, mine)
    return of
