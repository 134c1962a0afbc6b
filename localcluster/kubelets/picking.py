"""Which CPUs of a set the CPU Manager takes: packed into whole sockets, zones and cores, or spread over zones.

Written after the kubelet's accumulator: parts with fewer free CPUs first, then by number.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from localcluster.kubelets.hardware import PlayedHardware, bits, mask_of

SPREAD_CORES = "distribute-cpus-across-cores"
SPREAD_ZONES = "distribute-cpus-across-numa"
WHOLE_CORES = "full-pcpus-only"
WHOLE_CACHES = "prefer-align-cpus-by-uncorecache"

Parts = Mapping[int, int]  # id of a socket, zone position, cache or core -> its CPUs


class CpuTopology:
    """The CPUs of a machine by socket, zone, L3 and core (named by its lowest CPU)."""

    def __init__(self, hardware: PlayedHardware) -> None:
        """Zones without CPUs do not occur."""
        sockets: dict[int, int] = {}
        caches: dict[int, int] = {}
        cores: dict[int, int] = {}
        for zone in hardware.zones:
            for core in zone.cores:
                cpus = mask_of(iter(core.cpus))
                sockets[zone.socket] = sockets.get(zone.socket, 0) | cpus
                cache = zone.socket if core.uncore is None else core.uncore
                caches[cache] = caches.get(cache, 0) | cpus
                cores[min(core.cpus)] = cpus
        self.sockets: Parts = sockets
        self.caches: Parts = caches
        self.cores: Parts = cores
        self.zones: Parts = {position: cpus for position, cpus in enumerate(hardware.zone_cpus) if cpus}
        self.cpus = hardware.cpus
        self.threads = hardware.threads
        self.socket_size = self.cpus.bit_count() // max(1, hardware.sockets)
        self.cache_size = self.cpus.bit_count() // max(1, len(caches))
        self.zones_first = hardware.sockets >= len(self.zones)

    def with_siblings(self, cpus: int) -> int:
        """These CPUs and all that share a core with one."""
        return mask_of(cpu for core in self.cores.values() if core & cpus for cpu in bits(core))


def take_by_topology(topology: CpuTopology, usable: int, wanted: int, options: frozenset[str]) -> int:
    """``wanted`` CPUs of ``usable``, which has that many."""
    spread = SPREAD_CORES in options
    if SPREAD_ZONES in options:
        group = topology.threads if WHOLE_CORES in options else 1
        return _across_zones(topology, usable, wanted, group, spread=spread)
    return _packed(topology, usable, wanted, spread=spread, caches=WHOLE_CACHES in options)


def _packed(topology: CpuTopology, usable: int, wanted: int, *, spread: bool, caches: bool = False) -> int:
    picker = _Picker(topology, usable, wanted)
    steps: list[Callable[[], None]] = [picker.whole_sockets, picker.whole_zones]
    if topology.zones_first:
        steps.reverse()
    if caches:
        steps.append(picker.from_caches)
    # With the option no whole core is taken.
    if not spread:
        steps.append(picker.whole_cores)
    for step in steps:
        if picker.needed > 0:
            step()
    picker.take_first(picker.spread_order() if spread else picker.packed_order())
    return picker.taken


class _Picker:
    """CPUs taken so far, and how many are missing."""

    def __init__(self, topology: CpuTopology, usable: int, wanted: int) -> None:
        self._topology, self._free, self.needed, self.taken = topology, usable, wanted, 0

    def _take_cpus(self, cpus: int) -> None:
        self.taken |= cpus
        self._free &= ~cpus
        self.needed -= cpus.bit_count()

    def take_first(self, cpus: Iterable[int]) -> None:
        """The first CPUs of a list, as many as are missing."""
        for cpu in cpus:
            if self.needed <= 0:
                return
            self._take_cpus(1 << cpu)

    # Order: fewer free CPUs first, then by number

    def _sorted(self, parts: Parts, within: int) -> list[int]:
        """Parts with free CPUs in ``within``."""
        free = self._free
        found = [name for name, cpus in parts.items() if cpus & free & within]
        return sorted(found, key=lambda name: ((parts[name] & free).bit_count(), name))

    def _nested(self, outer: list[int], outer_parts: Parts, inner: Parts) -> list[int]:
        return [name for part in outer for name in self._sorted(inner, outer_parts[part])]

    def sockets(self) -> list[int]:
        """Sockets with free CPUs."""
        t = self._topology
        if t.zones_first:
            return self._nested(self._sorted(t.zones, -1), t.zones, t.sockets)
        return self._sorted(t.sockets, -1)

    def zones_with_free(self) -> list[int]:
        """Zones with free CPUs."""
        t = self._topology
        if t.zones_first:
            return self._sorted(t.zones, -1)
        return self._nested(self._sorted(t.sockets, -1), t.sockets, t.zones)

    def cores(self) -> list[int]:
        """Cores with free CPUs."""
        t = self._topology
        if t.zones_first:
            return self._nested(self.sockets(), t.sockets, t.cores)
        return self._nested(self.zones_with_free(), t.zones, t.cores)

    def packed_order(self) -> list[int]:
        """Free CPUs, core by core."""
        return [cpu for core in self.cores() for cpu in bits(self._topology.cores[core] & self._free)]

    def spread_order(self) -> list[int]:
        """Free CPUs, socket by socket."""
        return [cpu for socket in self.sockets() for cpu in bits(self._topology.sockets[socket] & self._free)]

    # Wholes

    def _wholes(self, parts: Parts, order: Sequence[int], size: int | None = None) -> None:
        """Take parts that are free as a whole while they are needed as a whole."""
        # As it was at the start: the kubelet lists free parts once, and goes through the list.
        free = self._free
        for name in order:
            cpus = parts[name]
            if (cpus & free).bit_count() == (size or cpus.bit_count()) and self.needed >= cpus.bit_count():
                self._take_cpus(cpus)

    def whole_sockets(self) -> None:
        """Free sockets; the kubelet takes all sockets to be of one size."""
        self._wholes(self._topology.sockets, self.sockets(), self._topology.socket_size)

    def whole_zones(self) -> None:
        """Free zones."""
        self._wholes(self._topology.zones, self.zones_with_free())

    def whole_cores(self) -> None:
        """Free cores."""
        self._wholes(self._topology.cores, self.cores(), self._topology.threads)

    def from_caches(self) -> None:
        """Free L3s, and for the rest an L3 that can hold all of it."""
        t = self._topology
        for cache in self._nested(self.zones_with_free(), t.zones, t.caches):
            if self.needed >= t.cache_size:
                self._wholes(t.caches, self._nested(self.zones_with_free(), t.zones, t.caches))
            if self.needed > 0:
                self._rest_from_cache(t.caches[cache])
            if self.needed <= 0:
                return

    def _rest_from_cache(self, cache: int) -> None:
        threads = self._topology.threads
        cores = sorted(name for name, cpus in self._topology.cores.items() if cpus & cache & self._free)
        cores = cores[: -(-self.needed // threads)]
        cpus = [cpu for cpu in bits(self._free) if any(self._topology.cores[core] >> cpu & 1 for core in cores)]
        # An odd request leaves the last thread to others.
        if self.needed % 2 and threads > 1 and len(cpus) > self.needed:
            cpus = cpus[:-1]
        if len(cpus) == self.needed:
            self._take_cpus(mask_of(iter(cpus)))


def _across_zones(topology: CpuTopology, usable: int, wanted: int, group: int, *, spread: bool) -> int:
    """Evenly over the fewest zones where that works, else packed."""
    if wanted % group or wanted <= 0:
        return _packed(topology, usable, wanted, spread=spread)
    free = {name: (cpus & usable).bit_count() for name, cpus in topology.zones.items()}
    # The order in which combinations are tried decides between equally good ones.
    order = [name for name in _Picker(topology, usable, wanted).zones_with_free() if free[name]]
    groups = -(-wanted // group)
    all_groups = -(-topology.cpus.bit_count() // group)
    a_zone = -(-all_groups // len(topology.zones))
    for size in range(-(-groups // a_zone), min(groups, len(order)) + 1):
        found = _most_even(order, free, size, wanted, group)
        if found is not None:
            return _deal(topology, usable, wanted, group, spread=spread, zones=found[0], rest=found[1])
    return _packed(topology, usable, wanted, spread=spread)


def _deal(
    topology: CpuTopology,
    usable: int,
    wanted: int,
    group: int,
    *,
    spread: bool,
    zones: Sequence[int],
    rest: Sequence[int],
) -> int:
    """The same number from each zone, and what is left over one group at a time from the zones of ``rest``."""
    share = wanted // len(zones) // group * group
    taken = 0
    for zone in zones:
        taken |= _packed(topology, usable & topology.zones[zone], share, spread=spread)
    while taken.bit_count() < wanted:
        before = taken
        for zone in rest:
            left = usable & topology.zones[zone] & ~taken
            if taken.bit_count() < wanted and left.bit_count() >= group:
                taken |= _packed(topology, left, group, spread=spread)
        if taken == before:  # nothing in those zones: the kubelet would not come out of this loop
            return _packed(topology, usable, wanted, spread=spread)
    return taken


def _most_even(
    order: Sequence[int], free: Mapping[int, int], size: int, wanted: int, group: int
) -> tuple[list[int], list[int]] | None:
    """The zones, and those that take the remainder, that leave the zones of the machine most evenly free."""
    best, found = math.inf, None
    share = wanted // size // group * group
    for zones in _combinations(order, size):
        # The kubelet stops here too. Going on would write over the combination that is kept (`_GoSlice`).
        if best == 0:
            break
        members = zones.now()
        if sum(free[zone] // group for zone in members) * group < wanted or any(free[z] < share for z in members):
            continue
        left = {zone: free[zone] - (share if zone in members else 0) for zone in order}
        balance, rest = _best_rest(members, left, wanted - share * size, group)
        # Strictly: the first of equally good ones stays.
        if balance < best:
            best, found = balance, (zones, rest)
    return None if found is None else (found[0].now(), found[1].now() if found[1] else [])


def _best_rest(
    members: Sequence[int], left: Mapping[int, int], remainder: int, group: int
) -> "tuple[float, _GoSlice | None]":
    if not remainder:
        return _deviation(left.values()), None
    able = [zone for zone in members if left[zone] >= group]
    best: tuple[float, _GoSlice | None] = (math.inf, None)
    for size in range(len(able), 0, -1):
        for subset in _combinations(able, size):
            zones = subset.now()
            if sum(left[zone] for zone in zones) < remainder:
                continue
            balance = _deviation(_after(left, zones, remainder, group).values())
            if balance < best[0]:
                best = (balance, subset)
    return best


def _after(left: Mapping[int, int], zones: Sequence[int], remainder: int, group: int) -> dict[int, int]:
    after = dict(left)
    while remainder > 0:
        before = remainder
        for zone in zones:
            if remainder and after[zone] >= group:
                after[zone] -= group
                remainder -= group
        if remainder == before:
            break
    return after


def _deviation(values: Iterable[int]) -> float:
    numbers = list(values)
    mean = _rounded(sum(numbers) / len(numbers))
    return _rounded(math.sqrt(sum((number - mean) ** 2 for number in numbers) / len(numbers)))


def _rounded(number: float) -> float:
    return math.floor(number * 1000 + 0.5) / 1000


class _GoSlice:
    """One combination as the kubelet keeps it: from four members on, its last ones may be written over by the next."""

    def __init__(self, backing: list[int], size: int) -> None:
        self._backing, self._size = backing, size

    def now(self) -> list[int]:
        return self._backing[: self._size]

    def append(self, member: int) -> "_GoSlice":
        if self._size < len(self._backing):
            self._backing[self._size] = member
            return _GoSlice(self._backing, self._size + 1)
        # Go doubles small slices when they are full.
        room = max(1, 2 * self._size)
        return _GoSlice([*self._backing[: self._size], member, *[-1] * (room - self._size - 1)], self._size + 1)


def _combinations(members: Sequence[int], size: int) -> "Iterator[_GoSlice]":
    """All subsets of one size in lexicographic order, sharing memory as Go's append does."""
    return _extend(_GoSlice([], 0), members, size, 0)


def _extend(prefix: _GoSlice, members: Sequence[int], size: int, start: int) -> Iterator[_GoSlice]:
    if size == 0:
        yield prefix
        return
    for position in range(start, len(members) - size + 1):
        yield from _extend(prefix.append(members[position]), members, size - 1, position + 1)
