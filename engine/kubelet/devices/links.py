"""How the devices of one resource on one machine are connected.

A pair's weight is its PCIe level (SYS 10, NODE 20, PHB 30, PXB 40, PIX 50, same board 60) plus 100 for each NVLink.
Weights are symmetric, 0 on the diagonal and where nothing is known. A clique is a set of devices each two of which have
an NVLink between them (through a switch or not); a single device is a clique. Sets of devices are masks: bit i is
device i.

Graphs are equal where the hardware is, and name nothing, so that what is worked out for one machine serves all of its
kind: for up to `TABLE_DEVICES` devices, tables by mask say what any set is worth.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = Sequence[Sequence[str]]

LEVELS: Final = {"SYS": 10, "NODE": 20, "PHB": 30, "PXB": 40, "PIX": 50, "PSB": 60}  # PSB: two GPUs of one board
NVLINK: Final = 100  # for each link
LINK_SPEED: Final = {1: 20, 2: 25, 3: 25, 4: 25}  # GB/s of one NVLink each way, by generation
FASTER: Final = 50  # from generation 5 on
TABLE_DEVICES: Final = 16

_NVLINK_WORD: Final = re.compile(r"NV([1-9][0-9]{0,2})")
# A table for 16 devices takes some 2 MiB (four arrays of 65,536 numbers); few kinds of hardware are in one cluster.
_KEPT: Final = 64


class LinkError(ValueError):
    """A description of links that cannot be one; the text names the pair."""


class LinkGraph(msgspec.Struct, frozen=True, dict=True, cache_hash=True):
    """Weights and NVLinks of each pair of devices.

    ``zones`` has the zone mask of each device, () where unknown; ``generation`` is the NVLinks', 0 where unknown.
    """

    weights: tuple[tuple[int, ...], ...]
    nvlinks: tuple[tuple[int, ...], ...]
    zones: tuple[int, ...] = ()
    generation: int = 0

    @property
    def size(self) -> int:
        """How many devices there are."""
        return len(self.weights)

    @property
    def all(self) -> int:
        """The mask of all devices."""
        return (1 << self.size) - 1

    @cached_property
    def neighbours(self) -> tuple[int, ...]:
        """For each device the mask of those it has NVLinks to."""
        return tuple(mask_of(other for other, links in enumerate(row) if links) for row in self.nvlinks)

    def beside(self, one: int, other: int) -> bool:
        """Whether two devices share a NUMA zone, as far as zones are known."""
        return bool(self.zones and self.zones[one] & self.zones[other])

    def weight_of_set(self, mask: int) -> int:
        """The sum of the weights of all pairs of a set."""
        return sum(self.weights[one][other] for one, other in combinations(bits(mask), 2))

    def pairs_in_zone(self, mask: int) -> int:
        """How many pairs of a set share a NUMA zone."""
        return sum(self.beside(one, other) for one, other in combinations(bits(mask), 2))

    def is_clique(self, mask: int) -> bool:
        """Whether each two devices of the set have an NVLink."""
        return all(not mask & ~(self.neighbours[device] | 1 << device) for device in bits(mask))

    def common(self, mask: int) -> int:
        """The devices that have an NVLink to every one of the set; all devices for the empty set."""
        found = self.all
        for device in bits(mask):
            found &= self.neighbours[device]
        return found


def bits(mask: int) -> Iterator[int]:
    """The positions of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(positions: Iterator[int] | Sequence[int]) -> int:
    """The mask with these bits."""
    found = 0
    for position in positions:
        found |= 1 << position
    return found


def from_words(words: Words, *, pcie: Words = (), zones: Sequence[int] = (), generation: int = 0) -> LinkGraph:
    """A graph from what ``nvidia-smi topo -m`` prints for each pair: ``X``, ``NV12``, ``PIX``, ``SYS``; "" is unknown.

    That table hides the PCIe level behind NVLinks: ``pcie`` gives it where it is known. Where it is not, a linked pair
    gets the least it can be: NODE within one NUMA zone, SYS otherwise. Raises LinkError where the table is not square,
    not symmetric, or holds another word.
    """
    size = len(words)
    for table in (words, pcie or words):
        if len(table) != size or any(len(row) != size for row in table):
            raise LinkError(f"expected {size} rows of {size} links")
    if zones and len(zones) != size:
        raise LinkError(f"expected the zones of {size} devices, found {len(zones)}")
    weights = [[0] * size for _ in range(size)]
    nvlinks = [[0] * size for _ in range(size)]
    for one, other in combinations(range(size), 2):
        if words[one][other] != words[other][one]:
            raise LinkError(
                f"devices {one} and {other}: {words[one][other]!r} one way, {words[other][one]!r} the other"
            )
        together = bool(zones and zones[one] & zones[other])
        linked = _NVLINK_WORD.fullmatch(words[one][other])
        links = int(linked[1]) if linked else 0
        hidden = pcie[one][other] if pcie else ""
        word = hidden if linked else words[one][other]
        if word and word not in LEVELS:
            raise LinkError(
                f"devices {one} and {other}: {word!r} is not a link; known are NV1 and more, {', '.join(LEVELS)}"
            )
        level = LEVELS.get(word, 0)
        # The least, so that a pair whose level is hidden never beats one whose level is known.
        if links and not level:
            level = LEVELS["NODE" if together else "SYS"]
        weights[one][other] = weights[other][one] = level + NVLINK * links
        nvlinks[one][other] = nvlinks[other][one] = links
    return LinkGraph(tuple(map(tuple, weights)), tuple(map(tuple, nvlinks)), tuple(zones), generation)


def cliques(graph: LinkGraph, within: int | None = None) -> tuple[int, ...]:
    """All maximal cliques among the devices of ``within`` (None: all), largest first, then by lowest devices."""
    free = graph.all if within is None else within & graph.all
    found: list[int] = []

    def grow(clique: int, candidates: int, done: int) -> None:
        if not candidates:
            # Devices in ``done`` were expanded before: a clique that one of them extends was found there already.
            if clique and not done:
                found.append(clique)
            return
        # The pivot has most neighbours among the candidates: only cliques without it or a neighbour of it branch here.
        pivot = max(bits(candidates | done), key=lambda device: (graph.neighbours[device] & candidates).bit_count())
        for device in bits(candidates & ~graph.neighbours[pivot]):
            grow(clique | 1 << device, candidates & graph.neighbours[device], done & graph.neighbours[device])
            candidates &= ~(1 << device)
            done |= 1 << device

    grow(0, free, 0)
    return tuple(sorted(found, key=lambda clique: (-clique.bit_count(), tuple(bits(clique)))))


def largest_clique(graph: LinkGraph, free: int) -> int:
    """How many devices the largest clique among the free ones has."""
    free &= graph.all
    if graph.size <= TABLE_DEVICES:
        return int(tables(graph).clique[free])
    return max((clique.bit_count() for clique in cliques(graph, free)), default=0)


def closeness(graph: LinkGraph, devices: int) -> int:
    """How well a set is connected, to compare sets of one size on different machines; 0 for a single device.

    The mean weight of its pairs in tenths, where an NVLink of 25 GB/s counts 100, and others in proportion.
    """
    members = tuple(bits(devices & graph.all))
    pairs = len(members) * (len(members) - 1) // 2
    if not pairs:
        return 0
    links = sum(graph.nvlinks[one][other] for one, other in combinations(members, 2))
    # An unknown generation counts as 25 GB/s, so that a graph without one compares as its weights do.
    speed = LINK_SPEED.get(graph.generation, FASTER) if graph.generation else LINK_SPEED[4]
    return (
        10 * (graph.weight_of_set(devices) - NVLINK * links) + 10 * NVLINK * links * speed // LINK_SPEED[4]
    ) // pairs


class Tables:
    """What every set of devices of one small graph is worth, by mask."""

    __slots__ = ("clique", "common", "in_zone", "peak", "weight")

    def __init__(self, graph: LinkGraph) -> None:
        size = graph.size
        self.weight = _pair_sums(graph.weights)
        self.in_zone = _pair_sums([[int(graph.beside(a, b)) for b in range(size)] for a in range(size)])
        self.clique: Ints = np.zeros(1 << size, dtype=np.int64)
        self.common: Ints = np.full(1 << size, graph.all, dtype=np.int64)
        masks = np.arange(1 << size)
        for device, near in enumerate(graph.neighbours):
            half = 1 << device
            lower = self.clique[:half]
            # Masks below the device are done: the largest clique is without it, or it and the largest among its
            # neighbors there.
            self.clique[half : 2 * half] = np.maximum(lower, 1 + self.clique[masks[:half] & near])
            self.common[half : 2 * half] = self.common[:half] & near
        # The most that a set of each size can be connected: its weight, and one more for each pair in one zone.
        self.peak: Ints = np.zeros(size + 1, dtype=np.int64)
        np.maximum.at(self.peak, np.bitwise_count(masks).astype(np.int64), self.weight + self.in_zone)


def _pair_sums(pairs: Sequence[Sequence[int]]) -> Ints:
    """For every mask the sum over its pairs: each device adds its row's sum over the devices below it."""
    sums: Ints = np.zeros(1 << len(pairs), dtype=np.int64)
    for device, row in enumerate(pairs):
        to_device: Ints = np.zeros(1 << device, dtype=np.int64)
        for other in range(device):
            half = 1 << other
            to_device[half : 2 * half] = to_device[:half] + row[other]
        sums[1 << device : 2 << device] = sums[: 1 << device] + to_device
    return sums


@lru_cache(maxsize=_KEPT)
def tables(graph: LinkGraph) -> Tables:
    """The tables of a graph of up to `TABLE_DEVICES` devices; equal graphs share them."""
    return Tables(graph)


@lru_cache(maxsize=512)
def subsets(size: int, count: int) -> Ints:
    """The masks of all sets of ``count`` out of ``size`` devices, lowest devices first. Do not modify."""
    return np.array([mask_of(chosen) for chosen in combinations(range(size), count)], dtype=np.int64)


@lru_cache(maxsize=_KEPT)
def part(graph: LinkGraph, kept: int) -> LinkGraph:
    """The graph of some of the devices, in their order."""
    devices = tuple(bits(kept & graph.all))
    return LinkGraph(
        tuple(tuple(graph.weights[a][b] for b in devices) for a in devices),
        tuple(tuple(graph.nvlinks[a][b] for b in devices) for a in devices),
        tuple(graph.zones[device] for device in devices) if graph.zones else (),
        graph.generation,
    )
