"""CPUs and devices while one pod is admitted: what is free, and what init containers leave to later containers.

Ordinary init containers keep what they got and lend it to the containers after them; sidecars and apps take theirs out
of that. Later hints have to cover the zones of what is still lent: so an init container pins the pod.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from engine.kubelet.cpu_manager import Cpus, cpus_of, take_by_topology
from engine.kubelet.device_manager import DeviceRefusal, pick, pick_zones
from engine.kubelet.devices.choose import DeviceChoice
from engine.kubelet.devices.links import bits
from engine.kubelet.devices.xpu import XpuBoard
from engine.kubelet.hint_merge import IMPOSSIBLE, NO_PREFERENCE, Hints, space_of
from engine.kubelet.hints import DEVICES_WHERE_THEY_ARE, of_sets, of_sums, within_sockets
from engine.kubelet.machine import CPU, ContainerKind, Layout, State

LAYOUTS_KEPT: Final = 4096


class AllocationFailure(NamedTuple):
    """An allocation that fails, in the kubelet's words."""

    reason: str
    message: str


UNEXPECTED: Final = "UnexpectedAdmissionError"
SMT: Final = "SMTAlignmentError"


def unexpected(text: str) -> AllocationFailure:
    """An allocation that fails though the hints allowed it."""
    return AllocationFailure(UNEXPECTED, f"Allocate failed due to {text}, which is unexpected")


class InstalledUnits(NamedTuple):
    """What a layout has of one resource: units by zone, and the zones that have any."""

    units: tuple[int, ...]
    zones: int


@lru_cache(maxsize=LAYOUTS_KEPT * 4)
def installed(layout: Layout, row: int) -> InstalledUnits:
    """CPUs and devices, unhealthy and reserved ones included."""
    if layout.exact and layout.resources[row] == CPU:
        units = tuple([mask.bit_count() for mask in cpus_of(layout).zones])
    elif layout.exact and layout.devices and layout.devices[row]:
        # A device of two zones counts in both. Sums of such zones are wrong, so `DeviceRoom.hints_for_count` takes
        # `of_sets` for them.
        units = tuple([mask.bit_count() for mask in devices_by_zone(layout, row)])
    else:
        scale = 1000 if layout.resources[row] == CPU else 1
        units = tuple([max(zone[row], 0) // scale for zone in layout.capacity])
    return InstalledUnits(units, sum(1 << at for at, count in enumerate(units) if count))


@lru_cache(maxsize=LAYOUTS_KEPT * 4)
def devices_by_zone(layout: Layout, row: int) -> tuple[int, ...]:
    """The devices of each zone, as masks."""
    found = [0] * len(layout.zones)
    for index, device in enumerate(layout.devices[row]):
        for zone in bits(device.zones):
            found[zone] |= 1 << index
    return tuple(found)


@lru_cache(maxsize=LAYOUTS_KEPT * 4)
def devices_apart(layout: Layout, row: int) -> bool:
    """Whether no device belongs to several zones."""
    return all(device.zones.bit_count() <= 1 for device in layout.devices[row])


@lru_cache(maxsize=256)
def row_of(resources: tuple[str, ...], resource: str) -> int:
    """The row of a resource; -1 where there is none."""
    return resources.index(resource) if resource in resources else -1


class CpuRoom:
    """CPUs of a layout whose state is known exactly: ``free``, ``spare`` and ``held`` by the pod are masks."""

    __slots__ = ("cpus", "free", "held", "layout", "spare")

    def __init__(self, layout: Layout, state: State) -> None:
        self.layout = layout
        self.cpus: Cpus = cpus_of(layout)
        self.free = state.cpus
        self.spare = self.held = 0

    def free_one(self, unit: int) -> None:
        """One that was not free is."""
        self.free |= 1 << unit

    def hints_for_count(self, count: int, *, narrow: bool = False) -> Hints:
        """Hints of one container, or of the whole pod; ``narrow``: single zones suffice (`of_sums`)."""
        # The width below comes from installed CPUs, reserved ones included, and what fits comes from usable ones. A
        # request between the two (15 of 16 with 2 reserved) is refused under restricted, as the kubelet does.
        usable, must = self.free | self.spare, 0
        have = tuple([(usable & mask).bit_count() for mask in self.cpus.zones])
        # As kubelet 1.36.3 does: each later hint has to hold all zones of the CPUs that an init container still lends.
        # After an init container with 12 CPUs of two zones, an app with 2 CPUs is refused under restricted.
        if self.spare:
            must = sum(1 << zone for zone, mask in enumerate(self.cpus.zones) if mask & self.spare)
        row = row_of(self.layout.resources, CPU)
        also = self._aligned_by_socket(count) if self.layout.kubelet.align_by_socket and not narrow else 0
        units = installed(self.layout, row).units
        return of_sums(have, units, count, self.cpus.with_cpus, must=must, also=also, narrow=narrow)

    def _aligned_by_socket(self, count: int) -> int:
        """The family of masks on no more sockets than are needed."""
        # As cpumanager/policy_static.go `isHintSocketAligned` divides zones by sockets: on machines with uneven sockets
        # the number is wrong, there as here.
        a_socket = self.cpus.with_cpus.bit_count() // len(self.cpus.sockets)
        if not a_socket:
            return 0
        space = space_of(len(self.layout.zones))
        units = tuple([mask.bit_count() for mask in self.cpus.zones])
        empty = of_sums(units, units, count, self.cpus.with_cpus)
        fewest = next((w for w in range(1, space.zones) if empty.preferred & space.widths[w]), space.zones)
        fewest = min(fewest, self.cpus.with_cpus.bit_count())
        zones = zip(self.layout.zones, self.cpus.zones, strict=True)
        return within_sockets(tuple([zone.socket if mask else -1 for zone, mask in zones]), -(-fewest // a_socket))

    def allocate_count(self, count: int, mask: int | None, kind: ContainerKind) -> int | AllocationFailure:
        """Take CPUs for a container; returns the zones that they may come from, as a mask."""
        kubelet = self.layout.kubelet
        if kubelet.full_pcpus_only:
            # Free CPUs alone, without the ones that are lent: the kubelet checks the whole node and ignores what init
            # containers give back. Init 20 and app 20 of 34 free CPUs are refused.
            whole = (self.free & ~self.cpus.reserved_cores).bit_count()
            refused = _whole_cores(count, self.cpus.threads, whole)
            if refused is not None:
                return refused
        usable, chosen = self.free | self.spare, 0
        if mask is not None:
            near = 0
            for zone in bits(mask):
                near |= self.cpus.zones[zone]
            if kubelet.align_by_socket:
                # With align-by-socket the CPUs may lie outside the merged mask, on the same socket.
                near = sum(socket for socket in self.cpus.sockets.values() if socket & near)
            aligned = usable & near
            # As many as the mask has, and the rest from anywhere below: a mask of best-effort may be too small.
            chosen = take_by_topology(self.cpus, kubelet, aligned, min(count, aligned.bit_count())) or 0
        rest = count - chosen.bit_count()
        more = take_by_topology(self.cpus, kubelet, usable & ~chosen, rest)
        if more is None:
            have = (usable & ~chosen).bit_count()
            text = f"not enough cpus available to satisfy request: requested={rest}, available={have}"
            return unexpected(text)
        chosen |= more
        self.free &= ~chosen
        self.held |= chosen
        # An init container keeps its CPUs and lends them; any other container takes them out of what is lent for good.
        self.spare = self.spare | chosen if kind is ContainerKind.INIT else self.spare & ~chosen
        return sum(1 << zone for zone, part in enumerate(self.by_zone(chosen)) if part)

    def by_zone(self, chosen: int) -> tuple[int, ...]:
        """How many of some CPUs each zone has."""
        return tuple([(chosen & mask).bit_count() for mask in self.cpus.zones])


def _whole_cores(count: int, threads: int, free: int) -> AllocationFailure | None:
    """Why full-pcpus-only refuses, if it does: ``free`` are CPUs nobody holds, on cores without a reserved CPU."""
    if count % threads:
        text = f"SMT Alignment Error: requested {count} cpus not multiple cpus per core = {threads}"
        return AllocationFailure(SMT, text)
    if count > free:
        return AllocationFailure(
            SMT,
            f"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {free}, "
            f"requested CPUs = {count}, CPUs per core = {threads}",
        )
    return None


class CountRoom:
    """Units by zone, of a resource of which only amounts are known: CPUs or devices."""

    __slots__ = ("free", "held", "layout", "others", "row", "spare")

    def __init__(self, layout: Layout, row: int, free: Sequence[int]) -> None:
        self.layout = layout
        self.row = row
        self.free = [max(count, 0) for count in free]
        self.spare = [0] * len(self.free)
        self.held = [0] * len(self.free)
        self.others = [0] * len(self.free)  # taken of what is lent, or others in their place

    def hints_for_count(self, count: int, *, narrow: bool = False) -> Hints:
        """Hints of one container, or of the whole pod; ``narrow``: single zones suffice (`of_sums`)."""
        known = installed(self.layout, self.row)
        have = tuple([free + spare for free, spare in zip(self.free, self.spare, strict=True)])
        # Before the masks: the kubelet gives an empty list of hints, which no merge turns into a preferred one.
        if sum(have) < count:
            return IMPOSSIBLE
        must = sum(1 << zone for zone, spare in enumerate(self.spare) if spare)
        among = known.zones
        if self.layout.resources[self.row] != CPU and self.layout.kubelet.version < DEVICES_WHERE_THEY_ARE:
            among = (1 << len(have)) - 1
        return of_sums(have, known.units, count, among, must=must, narrow=narrow)

    def allocate_count(self, count: int, mask: int | None, kind: ContainerKind) -> int | AllocationFailure:
        """Take units: those lent first, then of the mask's zones in their order, then of the others."""
        free, lent = sum(self.free), sum(self.spare)
        resource = self.layout.resources[self.row]
        if resource == CPU and self.layout.kubelet.full_pcpus_only:
            refused = _whole_cores(count, self.layout.threads, free)
            if refused is not None:
                return refused
        if free + lent < count:
            if resource == CPU:
                text = f"not enough cpus available to satisfy request: requested={count}, available={free + lent}"
            else:
                text = unavailable(resource, count - lent, free)
            return unexpected(text)
        zones = range(len(self.free))
        inside = (1 << len(self.free)) - 1 if mask is None else mask
        order = [zone for zone in zones if inside >> zone & 1] + [zone for zone in zones if not inside >> zone & 1]
        # Whether CPUs are asked for, or lent, that are not whole cores.
        threads = max(self.layout.threads, 1)
        uneven = resource == CPU and any(part % threads for part in (count, *self.spare))
        got, rest = [0] * len(self.free), count
        aligned = sum(self.free[zone] + self.spare[zone] for zone in zones if inside >> zone & 1)
        reach = sum(
            1 << zone
            for zone in zones
            if self.free[zone] + self.spare[zone] and (inside >> zone & 1 or aligned < count)
        )
        for source in (self.spare, self.free):
            for zone in order:
                part = min(source[zone], rest)
                if part:
                    got[zone] += part
                    rest -= part
                    source[zone] -= part
                    # With whole cores the container gets just the CPUs that are lent; otherwise the kubelet may pick
                    # others in their place.
                    if source is self.free:
                        self.held[zone] += part
                    elif uneven:
                        self.others[zone] += part
        # After the loop: what this container got is lent to the next ones, and not to itself.
        if kind is ContainerKind.INIT:
            self.spare = [spare + part for spare, part in zip(self.spare, got, strict=True)]
        return reach if count else 0

    def keep_others(self) -> None:
        """Hold as many as the pod may: its containers may have got other CPUs than its init containers keep.

        A kubelet picks them by cores (an init container has the last thread of one, the container after it a whole
        one: three are held of two that are asked for, seen on 1.37.1), and amounts do not tell which.
        """
        for zone, others in enumerate(self.others):
            # No more than the zone has: a reservation beyond that would make the free amount negative.
            more = min(others, self.free[zone])
            self.free[zone] -= more
            self.held[zone] += more

    def take_split(self, split: Sequence[int], kind: ContainerKind) -> int:
        """Take exactly so many of each zone; returns these zones as a mask."""
        for zone, part in enumerate(split):
            lent = min(self.spare[zone], part)
            self.spare[zone] -= lent
            self.free[zone] -= part - lent
            self.held[zone] += part - lent
            if kind is ContainerKind.INIT:
                self.spare[zone] += part
        return sum(1 << zone for zone, part in enumerate(split) if part)


def unavailable(resource: str, needed: int, free: int) -> str:
    """The device manager's words for too few devices."""
    return f"requested number of devices unavailable for {resource}. Requested: {needed}, Available: {free}"


class DeviceRoom:
    """Devices of one resource whose state is known exactly: ``free``, ``spare`` and ``held`` are masks of devices."""

    __slots__ = ("free", "held", "layout", "row", "spare", "zones")

    def __init__(self, layout: Layout, row: int, free: int) -> None:
        self.layout = layout
        self.row = row
        self.zones = devices_by_zone(layout, row)
        self.free = free
        self.spare = self.held = 0

    def free_one(self, unit: int) -> None:
        """One that was not free is."""
        self.free |= 1 << unit

    def hints_for_count(self, count: int, *, narrow: bool = False) -> Hints:
        """Hints of one container, or of the whole pod; ``narrow``: single zones suffice (`of_sums`)."""
        known = installed(self.layout, self.row)
        # Devices of a plugin without topology accept every mask.
        if not known.zones:
            return NO_PREFERENCE
        usable = self.free | self.spare
        if usable.bit_count() < count:
            return IMPOSSIBLE
        among = known.zones
        if self.layout.kubelet.version < DEVICES_WHERE_THEY_ARE:
            among = (1 << len(self.zones)) - 1
        # By sums, which are cached by amounts. Devices of several zones need a union for each mask.
        if devices_apart(self.layout, self.row):
            have = tuple([(usable & mask).bit_count() for mask in self.zones])
            must = sum(1 << zone for zone, mask in enumerate(self.zones) if mask & self.spare)
            return of_sums(have, known.units, count, among, must=must, narrow=narrow)
        listed = self.layout.devices[self.row]
        placed = [listed[index].zones for index in bits(self.spare) if listed[index].zones]
        return of_sets(
            [self.free & mask for mask in self.zones],
            self.zones,
            count,
            among,
            # How many lent devices a zone mask has; -1 where one of them has no zone in it.
            lambda mask: len(placed) if all(zones & mask for zones in placed) else -1,
        )

    def candidates(self, count: int, mask: int | None) -> tuple[int, int] | AllocationFailure:
        """(devices that the container gets whatever the plugin prefers, devices out of which the rest comes)."""
        resource = self.layout.resources[self.row]
        if not any(device.healthy for device in self.layout.devices[self.row]):
            return unexpected(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        # Reusable devices first, as devicemanager/manager.go `devicesToAllocate` does; if they suffice, the mask is not
        # looked at.
        if self.spare.bit_count() >= count:
            return 0, self.spare
        needed = count - self.spare.bit_count()
        if self.free.bit_count() < needed:
            return unexpected(unavailable(resource, needed, self.free.bit_count()))
        aligned = 0
        for zone in bits(mask or 0):
            aligned |= self.zones[zone] & self.free
        # More aligned devices than needed: the plugin's GetPreferredAllocation chooses among them. Otherwise the
        # container gets all aligned ones, and the plugin chooses the rest.
        if needed < aligned.bit_count():
            return self.spare, aligned
        return self.spare | aligned, self.free & ~aligned

    def take_devices(self, chosen: int, kind: ContainerKind, reach: int) -> int:
        """Take these devices; ``reach``: all that might have been taken instead. Returns its zones as a mask."""
        self.free &= ~chosen
        self.held |= chosen
        self.spare = self.spare | chosen if kind is ContainerKind.INIT else self.spare & ~chosen
        return sum(1 << zone for zone, mask in enumerate(self.zones) if mask & reach)


def lowest_of(devices: int, count: int) -> int:
    """The first ``count`` devices of a mask."""
    found = 0
    for index in bits(devices):
        if not count:
            break
        found |= 1 << index
        count -= 1
    return found


def allocate_devices(
    room: DeviceRoom, count: int, mask: int | None, kind: ContainerKind, *, mode: str, held: int, later: int
) -> int | AllocationFailure:
    """Take devices for a container: by the rules of the layout and the pod's wish for links, else the first ones.

    ``mode``, ``held`` and ``later`` as in `engine.kubelet.devices.choose.DeviceChoice`.
    """
    found = room.candidates(count, mask)
    # A limit of 0 devices has hints, and so constrains the zones; it allocates none.
    if isinstance(found, AllocationFailure) or not count:
        return found if isinstance(found, AllocationFailure) else 0
    must, within = found
    layout = room.layout
    rules = layout.links[room.row] if layout.links else None
    if rules is not None or mode:
        wanted = DeviceChoice(count=count, free=room.free, mode=mode, within=within, must=must, held=held, later=later)
        picked = pick(layout.resources[room.row], rules, wanted)
        if isinstance(picked, DeviceRefusal):
            return AllocationFailure(picked.reason, picked.message)
        if picked is not None:
            # Cards of XPUs follow the vendor's rule. GPUs may come from all candidates, because a plugin need not know
            # the links.
            free_to_choose = not isinstance(rules, XpuBoard) and count > must.bit_count()
            return room.take_devices(picked, kind, must | within if free_to_choose else picked)
    chosen = must | lowest_of(within & ~must, count - must.bit_count())
    return room.take_devices(chosen, kind, must | (within if count > must.bit_count() else 0))


def allocate_units(
    room: CountRoom,
    count: int,
    mask: int | None,
    kind: ContainerKind,
    *,
    mode: str,
    whole: int,
    declared: int | None = None,
) -> int | AllocationFailure:
    """The same where only amounts are known; ``whole``: devices of this resource that all containers have together.

    ``declared``: those that the node says are free, by index in the link graph.
    """
    layout = room.layout
    rules = layout.links[room.row] if layout.links else None
    if count and (rules is not None or mode):
        # No mask means no affinity: the units may come from any zone.
        zones = (1 << len(room.free)) - 1 if mask is None else mask
        free = tuple([have + spare for have, spare in zip(room.free, room.spare, strict=True)])
        resource = layout.resources[room.row]
        split = pick_zones(resource, rules, count, free=free, zones=zones, mode=mode, whole=whole, declared=declared)
        if isinstance(split, DeviceRefusal):
            return AllocationFailure(split.reason, split.message)
        if split is not None:
            return room.take_split(split, kind)
    return room.allocate_count(count, mask, kind)
