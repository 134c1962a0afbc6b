"""Slots of pod sets with slices: a rank goes where the rest of its slice is.

Rules
- Slice k of a layer holds the ranks k * size .. k * size + size - 1, and all of them are in one domain of its level.
- By rank order a fresh assignment does that by itself. After slots were moved or added, the order of domains and that
  of slices differ; so a rank whose slice has pods already goes to their domain, and the first of a slice to a domain
  with room for all of it.
- Slots are given back in whole slices, and a rank counts as done once its whole slice is.
- The last slice of one layer may be a part of one, a *tail* (`engine.placement.slice_tail`). It goes to the domain
  whose slots are no multiple of the size, and has the last ranks wherever that domain is in tree order.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from engine.model import SliceLayer

Interval = tuple[int, int]
Values = tuple[str, ...]


class RankLayer(msgspec.Struct, frozen=True):
    """Slices of ``size`` ranks in domains named by the first ``depth`` level values; ``ranks``: of all, 0 if untold."""

    depth: int
    size: int
    ranks: int = 0

    def size_of(self, number: int) -> int:
        """How many ranks a slice has: the last one what is left."""
        left = self.ranks - number * self.size
        return left if 0 < left < self.size else self.size

    def host_of(self, values: Sequence[Values], counts: Sequence[int]) -> tuple[Values | None, int]:
        """The domain of the tail, and how many slots that has; by slot, level values and units. (None, 0) for none."""
        sums: dict[Values, int] = {}
        for path, count in zip(values, counts, strict=True):
            sums[path[: self.depth]] = sums.get(path[: self.depth], 0) + count
        found = [(path, count % self.size) for path, count in sums.items() if count % self.size]
        # Slots that were lost leave several: then nothing tells which of them has the tail.
        return found[0] if len(found) == 1 else (None, 0)


def layers_of(slices: Sequence[SliceLayer], levels: Sequence[str], ranks: int) -> tuple[RankLayer, ...]:
    """The layers of a request for so many ranks in a flavor with these levels, the narrowest first."""
    known = [part for part in slices if part.level in levels and part.size > 1]
    told = ranks if len(known) == 1 else 0  # slices within slices have no tail
    made = (RankLayer(levels.index(part.level) + 1, part.size, told) for part in known)
    return tuple(sorted(made, key=lambda layer: -layer.depth))


class Homes:
    """Where slices are: fed with the ranks that hold slots, asked for those that wait.

    ``layers``: the narrowest first. ``values``: by slot, its level values; ``counts``: its units; ``free``: its free
    ones, which the caller keeps current.
    """

    def __init__(
        self, layers: Sequence[RankLayer], values: Sequence[Values], counts: Sequence[int], free: Sequence[int]
    ) -> None:
        self.layers = layers
        self._host = layers[0].host_of(values, counts)[0] if len(layers) == 1 else None
        self.values = values
        self.free = free
        self._at: dict[tuple[RankLayer, int], Values] = {}  # (layer, number of the slice) -> domain
        self._here: dict[tuple[RankLayer, int], int] = {}  # how many of its ranks are there
        self._of: dict[tuple[RankLayer, Values], list[int]] = {}  # slices in a domain
        self._slots: dict[Values, list[int]] = {(): list(range(len(values)))}
        for layer in layers:
            for index, path in enumerate(values):
                self._slots.setdefault(path[: layer.depth], []).append(index)

    def record_slot(self, rank: int, index: int) -> None:
        """A pod of this rank holds a slot there."""
        for layer in self.layers:
            key = (layer, rank // layer.size)
            domain = self._at.get(key)
            if domain is None:
                domain = self._at[key] = self.values[index][: layer.depth]
                self._of.setdefault((layer, domain), []).append(key[1])
            self._here[key] = self._here.get(key, 0) + 1

    def choose(self, rank: int, ordinary: int) -> int | None:
        """The slot for a rank; ``ordinary``: the one by rank order. None where its slice has no room now."""
        home: Values = ()
        for number, layer in enumerate(self.layers):
            known = self._at.get((layer, rank // layer.size))
            if known is not None:
                home, fresh = known, self.layers[:number]
                break
        else:
            fresh = self.layers
        # From the widest new layer inwards: each domain is chosen within the one before it.
        for layer in reversed(fresh):
            domain = self._roomy(layer, rank // layer.size, ordinary, home)
            if domain is None:
                return None
            home = domain
        if self.free[ordinary] > 0 and self.values[ordinary][: len(home)] == home:
            return ordinary
        return next((index for index in self._slots[home] if self.free[index] > 0), None)

    def _roomy(self, layer: RankLayer, number: int, ordinary: int, home: Values) -> Values | None:
        """A domain inside ``home`` with room for all of a slice: the one by rank order, else the first."""
        size = layer.size_of(number)
        # Anywhere else a tail would take a part of the room of a whole slice.
        if size < layer.size and self._host is not None:
            return self._host
        first = self.values[ordinary][: layer.depth]
        if first[: len(home)] == home and self._room(layer, first) >= size:
            return first
        domains = dict.fromkeys(self.values[index][: layer.depth] for index in self._slots[home])
        return next((domain for domain in domains if self._room(layer, domain) >= size), None)

    def _room(self, layer: RankLayer, domain: Values) -> int:
        """Free slots less those that slices which are there still need."""
        # Ranks of a begun slice that are still to come have their room here before any new slice.
        owed = sum(layer.size_of(number) - self._here[layer, number] for number in self._of.get((layer, domain), ()))
        return sum(self.free[index] for index in self._slots[domain]) - owed


def slots_to_give_back(
    layers: Sequence[RankLayer], values: Sequence[Values], counts: Sequence[int], free: Sequence[int], most: int
) -> dict[int, int]:
    """Which free slots to give back, as whole slices from the end of rank order: slot -> how many, at most ``most``.

    A tail goes where what remains would be whole slices without it. ``counts``: units by slot.
    """
    given: dict[int, int] = {}
    left = most
    host, tail = layers[0].host_of(values, counts) if len(layers) == 1 else (None, 0)
    if host is not None and most % layers[0].size == tail:
        own = [at for at, path in enumerate(values) if path[: layers[0].depth] == host]
        if sum(max(0, free[at]) for at in own) >= tail:
            left -= tail
            free = list(free)
            for at in reversed(own):
                if taken := min(tail, max(0, free[at])):
                    given[at] = taken
                    free[at] -= taken
                    tail -= taken
    inside = _FreeSlices(layers, values, free)
    for domain in reversed(inside.widest):
        left -= inside.take_slices(domain, left, given)
    return given


class _FreeSlices:
    """What is free in the domains of each layer, as whole slices: counted once, however many slices there are."""

    def __init__(self, layers: Sequence[RankLayer], values: Sequence[Values], free: Sequence[int]) -> None:
        self._sizes = [layer.size for layer in reversed(layers)]  # the widest first
        self._within: dict[tuple[int, Values | int], dict[Values | int, None]] = {}  # by rank of layer and domain
        self._free = free
        depths = [layer.depth for layer in reversed(layers)]
        for index, path in enumerate(values):
            chain: list[Values | int] = [*(path[:depth] for depth in depths), index]
            for rank, (place, part) in enumerate(pairwise(chain)):
                self._within.setdefault((rank, place), {})[part] = None
        self.widest: list[Values] = list(dict.fromkeys(path[: depths[0]] for path in values))
        self._room: dict[tuple[int, Values | int], int] = {}
        # From the narrowest layer up: a domain takes as many whole slices as the whole slices inside it add up to.
        for rank in range(len(layers) - 1, -1, -1):
            for (at, place), below in self._within.items():
                if at == rank:
                    found = sum(self._free_in_domain(rank + 1, each) for each in below)
                    self._room[rank, place] = found // self._sizes[rank] * self._sizes[rank]

    def _free_in_domain(self, rank: int, place: Values | int) -> int:
        """The free slots of a domain that whole slices of its layer take; of a slot, its own."""
        return max(0, self._free[place]) if isinstance(place, int) else self._room[rank, place]

    def take_slices(self, place: Values | int, most: int, given: dict[int, int], rank: int = 0) -> int:
        """Take whole slices from the end of a domain; how many slots that are."""
        if isinstance(place, int):
            if taken := min(most, self._free_in_domain(rank, place)):
                given[place] = given.get(place, 0) + taken
            return taken
        size = self._sizes[rank]
        left = taken = min(most, self._free_in_domain(rank, place)) // size * size
        for each in reversed(self._within[rank, place]):
            if not left:
                break
            left -= self.take_slices(each, left, given, rank + 1)
        return taken - left


def whole_slices(done: Iterable[Interval], size: int, ranks: int | None) -> tuple[Interval, ...]:
    """Of the ranks in closed intervals, in order, those whose whole slice is among them; ``ranks``: of all."""
    joined: list[Interval] = []
    for low, high in done:
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    # The start is rounded up and the end down: a slice of which one rank is not done stays. The last one may be short.
    cut = (
        (-(-low // size) * size, high if high + 1 == ranks else (high + 1) // size * size - 1) for low, high in joined
    )
    return tuple((low, high) for low, high in cut if low <= high)
