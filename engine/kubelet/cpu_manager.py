"""Which CPUs the kubelet's static CPU manager picks out of those it may: packed, spread over zones, or by L3 cache.

Packed: whole sockets and zones where that many are asked for, then whole cores, then single threads; at each level
those with fewer free CPUs first, then the lowest id. Zones are looked at socket by socket, or sockets zone by zone
where a zone has several. Sets of CPUs are masks.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import floor, sqrt
from typing import Final, NamedTuple

from engine.kubelet.devices.links import bits
from engine.kubelet.machine import Kubelet, Layout

LAYOUTS_KEPT: Final = 4096


class CpuCore(NamedTuple):
    """One core; its ``id`` is its lowest CPU."""

    id: int
    cpus: int
    zone: int


class Cpus(NamedTuple):
    """The CPUs of a layout. ``zones`` (by zone of the layout), ``sockets`` and ``caches`` (by id) are masks of CPUs."""

    all: int
    zones: tuple[int, ...]
    with_cpus: int  # zone mask
    sockets: dict[int, int]
    caches: dict[int, int]
    cores: tuple[CpuCore, ...]  # by id
    cores_in: dict[int, tuple[CpuCore, ...]]  # by socket id where zones come first, else by zone
    threads: int  # a core
    reserved_cores: int  # the reserved CPUs with their siblings

    @property
    def zones_first(self) -> bool:
        """Whether a zone has one socket or more."""
        return len(self.sockets) >= self.with_cpus.bit_count()


@lru_cache(maxsize=LAYOUTS_KEPT)
def cpus_of(layout: Layout) -> Cpus:
    """The CPUs of a layout; all zero where only amounts are known."""
    cores: list[CpuCore] = []
    zones: list[int] = []
    sockets: dict[int, int] = {}
    caches: dict[int, int] = {}
    for at, zone in enumerate(layout.zones):
        here = 0
        for index, core in enumerate(zone.cores):
            mask = 0
            for cpu in core:
                mask |= 1 << cpu
            here |= mask
            cores.append(CpuCore(min(core), mask, at))
            # Without a known L3 each socket counts as one cache.
            cache = zone.uncore[index] if zone.uncore else zone.socket
            caches[cache] = caches.get(cache, 0) | mask
        zones.append(here)
        if here:
            sockets[zone.socket] = sockets.get(zone.socket, 0) | here
    cores.sort()
    every = 0
    for mask in zones:
        every |= mask
    # An average, as the kubelet has it (CPUs by cores): on machines with mixed cores it is rounded down.
    threads = every.bit_count() // len(cores) if cores else 1
    reserved = 0
    for core in cores:
        if core.cpus & layout.reserved_cpus:
            reserved |= core.cpus
    with_cpus = sum(1 << at for at, mask in enumerate(zones) if mask)
    groups = sockets if len(sockets) >= with_cpus.bit_count() else dict(enumerate(zones))
    cores_in = {key: tuple([core for core in cores if core.cpus & mask]) for key, mask in groups.items()}
    return Cpus(every, tuple(zones), with_cpus, sockets, caches, tuple(cores), cores_in, threads, reserved)


def take_by_topology(cpus: Cpus, kubelet: Kubelet, available: int, count: int) -> int | None:
    """The CPUs that are picked, as a mask; None where there are not enough."""
    if count <= 0:
        return 0
    if count > available.bit_count():
        return None
    if kubelet.distribute_cpus_across_numa:
        group = cpus.threads if kubelet.full_pcpus_only else 1
        # A count that is no multiple of a core is packed, as cpu_assignment.go `takeByTopologyNUMADistributed` does.
        if not count % group:
            return _distributed(cpus, kubelet, available, count, group)
    return _packed(cpus, kubelet, available, count)


class _CpuSelection:
    """CPUs being picked: ``free`` may still be, ``need`` more are wanted."""

    __slots__ = ("cpus", "free", "need", "result")

    def __init__(self, cpus: Cpus, free: int, need: int) -> None:
        self.cpus = cpus
        self.free = free
        self.need = need
        self.result = 0

    def take_cpus(self, mask: int) -> None:
        self.result |= mask
        self.free &= ~mask
        self.need -= mask.bit_count()

    # -- what has free CPUs, fewest first -----------------------------------------------------------------------

    def _ranked(self, groups: dict[int, int], inside: int) -> list[int]:
        """Ids of those groups that have free CPUs in ``inside``, by how many they have free in all."""
        some = [(mask & self.free).bit_count() << 32 | key for key, mask in groups.items() if mask & self.free & inside]
        return [rank & 0xFFFFFFFF for rank in sorted(some)]

    def free_by_zone(self) -> list[int]:
        """By zone of the layout."""
        zones = dict(enumerate(self.cpus.zones))
        if self.cpus.zones_first:
            return self._ranked(zones, self.free)
        return [zone for socket in self.sockets() for zone in self._ranked(zones, self.cpus.sockets[socket])]

    def sockets(self) -> list[int]:
        """By id of the socket."""
        sockets = self.cpus.sockets
        if not self.cpus.zones_first:
            return self._ranked(sockets, self.free)
        return [socket for zone in self.free_by_zone() for socket in self._ranked(sockets, self.cpus.zones[zone])]

    def caches(self) -> list[int]:
        """By id of the L3."""
        return [
            cache for zone in self.free_by_zone() for cache in self._ranked(self.cpus.caches, self.cpus.zones[zone])
        ]

    def cores(self) -> Iterator[CpuCore]:
        """Cores with CPUs that are free now."""
        # The caller takes cores while this generator runs. The order is that of the free CPUs at the start, as in the
        # kubelet.
        free = self.free
        for key in self.sockets() if self.cpus.zones_first else self.free_by_zone():
            inside = [core for core in self.cpus.cores_in[key] if core.cpus & free]
            inside.sort(key=lambda core: (core.cpus & free).bit_count())  # stable: by id among equals
            yield from inside

    # -- what is taken, whole --------------------------------------------------------------------------------------

    # The kubelet takes a socket (or core) for free where as many of its CPUs are free as sockets (cores) have on
    # average, and then takes all of it. On uneven machines that hands out CPUs that are reserved or in use.

    def take_whole_groups(self, groups: list[int], masks: Sequence[int] | dict[int, int], usual: int = 0) -> None:
        """``usual``: how many CPUs one of the groups is thought to have; 0: each as many as it has."""
        # Which groups are whole is decided for all before the first one is taken, as the kubelet makes its list first.
        sizes = [(masks[key], usual or masks[key].bit_count()) for key in groups]
        for mask in [mask for mask, size in sizes if (mask & self.free).bit_count() == size]:
            if self.need >= mask.bit_count():
                self.take_cpus(mask)

    def whole_cores(self) -> None:
        threads, free = self.cpus.threads, self.free
        for core in self.cores():
            if (core.cpus & free).bit_count() == threads and self.need >= core.cpus.bit_count():
                self.take_cpus(core.cpus)
                if not self.need:
                    return

    def take_single_threads(self, spread: bool) -> None:
        """Single threads, until there are enough."""
        if spread:
            groups = [self.cpus.sockets[socket] & self.free for socket in self.sockets()]
        else:
            groups = [core.cpus & self.free for core in self.cores()]
        for group in groups:
            for cpu in bits(group):
                self.take_cpus(1 << cpu)
                if not self.need:
                    return

    def by_cache(self) -> None:
        """Whole L3s while that many are needed, then all that is needed out of one."""
        each, threads = self.cpus.all.bit_count() // len(self.cpus.caches), self.cpus.threads
        for cache in self.caches():
            # Asked again for each cache: the one before may have taken so much that only a part of an L3 is needed.
            if self.need >= each:
                self.take_whole_groups(self.caches(), self.cpus.caches)
            if self.need > 0:
                inside = self.cpus.caches[cache] & self.free
                wanted = -(-self.need // threads)
                found = 0
                for core in [core for core in self.cpus.cores if core.cpus & inside][:wanted]:
                    found |= core.cpus & self.free
                # An odd request leaves one thread of its last core to others.
                if self.need % 2 and threads > 1 and found.bit_count() > self.need:
                    found &= ~(1 << (found.bit_length() - 1))
                # A cache that does not have all of it gives none: CPUs of one request are not split over partly free
                # caches here.
                if found.bit_count() == self.need:
                    self.take_cpus(found)
            if not self.need:
                return


def _packed(cpus: Cpus, kubelet: Kubelet, available: int, count: int) -> int | None:
    taking = _CpuSelection(cpus, available, count)
    if not count:
        return 0
    if count > available.bit_count():
        return None
    spread = kubelet.distribute_cpus_across_cores
    levels: list[Callable[[], None]] = [
        lambda: taking.take_whole_groups(taking.free_by_zone(), cpus.zones),
        lambda: taking.take_whole_groups(taking.sockets(), cpus.sockets, cpus.all.bit_count() // len(cpus.sockets)),
    ]
    # Zones before sockets where a zone holds whole sockets, otherwise sockets before zones.
    for level in levels if cpus.zones_first else levels[::-1]:
        level()
        if not taking.need:
            return taking.result
    if kubelet.prefer_align_cpus_by_uncorecache:
        taking.by_cache()
    # With distribute-cpus-across-cores no whole core is taken: CPUs come by their ids, which number the first threads
    # of all cores before the second ones on most machines.
    if taking.need and not spread:
        taking.whole_cores()
    if taking.need:
        taking.take_single_threads(spread)
    return taking.result


# -- evenly over zones (distribute-cpus-across-numa) -----------------------------------------------------------------


class _Slice:
    """A slice as Go has it: appending writes into the shared array where there is room.

    The kubelet keeps such slices of zone ids while it goes on to append to them, so that what it remembers as its best
    combination of four or of six to eight zones changes under it. Kept, because it decides which CPUs a pod gets.
    """

    __slots__ = ("array", "length")

    def __init__(self, array: list[int], length: int) -> None:
        self.array = array
        self.length = length

    def append(self, item: int) -> "_Slice":
        room = len(self.array)
        array = self.array
        if self.length == room:
            # A new array of double size, as Go's append allocates it for small slices. The old one stays with whoever
            # has it.
            array = array + [0] * (room or 1)
        array[self.length] = item
        return _Slice(array, self.length + 1)

    @property
    def items(self) -> list[int]:
        return self.array[: self.length]


def _combinations(items: list[int], count: int) -> Iterator[_Slice]:
    def grow(so_far: _Slice, start: int, left: int) -> Iterator[_Slice]:
        if not left:
            yield so_far
            return
        for at in range(start, len(items) - left + 1):
            yield from grow(so_far.append(items[at]), at + 1, left - 1)

    if count > 0:
        yield from grow(_Slice([], 0), 0, count)


def _deviation(values: Sequence[int]) -> float:
    # Rounded to three digits at both places, as cpu_assignment.go does: ties between zones depend on it.
    mean = _rounded(sum(values) / len(values))
    return _rounded(sqrt(sum((value - mean) ** 2 for value in values) / len(values)))


def _rounded(value: float) -> float:
    return floor(value * 1000 + 0.5) / 1000


def _distributed(cpus: Cpus, kubelet: Kubelet, available: int, count: int, group: int) -> int | None:
    taking = _CpuSelection(cpus, available, count)
    zones = taking.free_by_zone()
    groups = (cpus.all.bit_count() - 1) // group + 1
    a_zone = (groups - 1) // cpus.with_cpus.bit_count() + 1
    needed = (count - 1) // group + 1
    # From the fewest zones that could hold the request. The first width with any combination wins.
    for width in range((needed - 1) // a_zone + 1, min(needed, len(zones)) + 1):
        best = _best_zones(taking, zones, width, group)
        if best is None:
            continue
        combination, extra = best[0].items, best[1].items if best[1] else []
        each = count // len(combination) // group * group
        for zone in combination:
            taking.take_cpus(_packed(cpus, kubelet, taking.free & cpus.zones[zone], each) or 0)
        rest = count - each * len(combination)
        # The remainder goes round the chosen zones, one group of CPUs each.
        while rest > 0:
            before = rest
            for zone in extra:
                if rest and (taking.free & cpus.zones[zone]).bit_count() >= group:
                    taking.take_cpus(_packed(cpus, kubelet, taking.free & cpus.zones[zone], group) or 0)
                    rest -= group
            # No zone of the combination has a whole group left; without this the loop never ends.
            if rest == before:
                return None
        return None if taking.need else taking.result
    return _packed(cpus, kubelet, available, count)


def _best_zones(taking: _CpuSelection, zones: list[int], width: int, group: int) -> tuple[_Slice, _Slice | None] | None:
    """The zones to share the CPUs equally, and those that take what is over: the best balance of what stays free."""
    free = {zone: (taking.free & taking.cpus.zones[zone]).bit_count() for zone in zones}
    best: tuple[_Slice, _Slice | None] | None = None
    balance = float("inf")
    for combination in _combinations(zones, width):
        # The kubelet stops here too. Going on would also change the combination that it remembers (`_Slice`).
        if balance == 0:
            break
        members = combination.items
        each = taking.need // width // group * group
        if sum(free[zone] // group for zone in members) * group < taking.need or min(free[z] for z in members) < each:
            continue
        left = {zone: have - each if zone in members else have for zone, have in free.items()}
        found, extra = _best_rest(left, members, taking.need - each * width, group)
        if found < balance:
            # Strictly better only: of equally good combinations the first one stays.
            balance, best = found, (combination, extra)
    return best


def _best_rest(left: dict[int, int], members: list[int], rest: int, group: int) -> tuple[float, _Slice | None]:
    if not rest:
        return _deviation(list(left.values())), None
    able = [zone for zone in members if left[zone] >= group]
    best: tuple[float, _Slice | None] = float("inf"), None
    for width in range(len(able), 0, -1):
        for subset in _combinations(able, width):
            after, over, some = dict(left), rest, subset.items
            if sum(after[zone] for zone in some) < over:
                continue
            while over > 0:
                before = over
                for zone in some:
                    if over and after[zone] >= group:
                        after[zone] -= group
                        over -= group
                if over == before:
                    break
            # Over all zones with free CPUs, not only over the ones that are chosen: the node stays even.
            balance = _deviation(list(after.values()))
            if not over and balance < best[0]:
                best = balance, subset
    return best
