"""A simulated machine and its kubelet's settings: plain data, and what follows from it alone.

Zones (NUMA nodes) are known by their position, in ascending order of their ids; a set of zones or CPUs is an int with
one bit for each. Memory is in bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from localcluster.programs.build import KUBERNETES_VERSION

NONE = "none"
BEST_EFFORT = "best-effort"
RESTRICTED = "restricted"
SINGLE = "single-numa-node"
POLICIES = (NONE, BEST_EFFORT, RESTRICTED, SINGLE)
SCOPES = ("container", "pod")
CPU_OPTIONS = (
    "full-pcpus-only",
    "distribute-cpus-across-numa",
    "distribute-cpus-across-cores",
    "align-by-socket",
    "prefer-align-cpus-by-uncorecache",
    "strict-cpu-reservation",
)
TOPOLOGY_OPTIONS = ("prefer-closest-numa-nodes",)


@dataclass(frozen=True)
class PlayedCore:
    """One core: its hardware threads, and the L3 it belongs to (None: the machine says nothing about caches)."""

    cpus: tuple[int, ...]
    uncore: int | None = None


@dataclass(frozen=True)
class PlayedZone:
    """One NUMA zone. ``distances`` has one value for each zone of the machine, in their order."""

    id: int
    socket: int
    cores: tuple[PlayedCore, ...]
    memory: int
    reserved_memory: int = 0
    hugepages: Mapping[str, int] = field(default_factory=dict)  # resource -> bytes
    distances: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlayedDevice:
    """One device of a plugin; ``zones`` holds zone ids, () where the plugin names none."""

    id: str
    zones: tuple[int, ...] = ()
    healthy: bool = True


@dataclass(frozen=True)
class PlayedHardware:
    """One machine."""

    zones: tuple[PlayedZone, ...]
    sockets: int
    reserved_cpus: int = 0
    devices: Mapping[str, tuple[PlayedDevice, ...]] = field(default_factory=dict)

    @cached_property
    def zone_cpus(self) -> tuple[int, ...]:
        """All CPUs of each zone."""
        return tuple(mask_of(cpu for core in zone.cores for cpu in core.cpus) for zone in self.zones)

    @cached_property
    def cpus(self) -> int:
        """All CPUs."""
        return mask_of(cpu for zone in self.zones for core in zone.cores for cpu in core.cpus)

    @cached_property
    def threads(self) -> int:
        """Hardware threads of a core, as the kubelet counts them: all CPUs by all cores."""
        cores = sum(len(zone.cores) for zone in self.zones)
        return self.cpus.bit_count() // cores if cores else 1

    def zone_mask(self, ids: tuple[int, ...]) -> int:
        """The positions of these zone ids as a mask; ids that the machine does not have are left out."""
        return mask_of(position for position, zone in enumerate(self.zones) if zone.id in ids)

    def zone_ids(self, mask: int) -> list[int]:
        """The ids of the zones of a mask."""
        return [self.zones[position].id for position in bits(mask)]


@dataclass(frozen=True)
class PlayedSettings:
    """What of a kubelet's configuration decides an admission."""

    policy: str = RESTRICTED
    scope: str = "container"
    static_cpu: bool = True
    static_memory: bool = True
    cpu_options: frozenset[str] = frozenset()
    topology_options: frozenset[str] = frozenset()
    version: str = f"v{KUBERNETES_VERSION}"

    def __post_init__(self) -> None:
        """ValueError for what a kubelet would not start with."""
        wrong = (
            *_unknown("policy", {self.policy}, POLICIES),
            *_unknown("scope", {self.scope}, SCOPES),
            *_unknown("CPU manager option", self.cpu_options, CPU_OPTIONS),
            *_unknown("topology manager option", self.topology_options, TOPOLOGY_OPTIONS),
        )
        if wrong:
            raise ValueError("; ".join(wrong))
        # Combinations that the kubelet refuses at its start.
        if "align-by-socket" in self.cpu_options and self.policy == SINGLE:
            raise ValueError(f"align-by-socket cannot be used with {SINGLE}")
        spread = "distribute-cpus-across-cores" in self.cpu_options
        packed = self.cpu_options & {
            "full-pcpus-only",
            "distribute-cpus-across-numa",
            "prefer-align-cpus-by-uncorecache",
        }
        if spread and packed:
            raise ValueError(f"distribute-cpus-across-cores cannot be used with {', '.join(sorted(packed))}")
        if {"prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"} <= self.cpu_options:
            raise ValueError("prefer-align-cpus-by-uncorecache cannot be used with distribute-cpus-across-numa")


def _unknown(what: str, values: "set[str] | frozenset[str]", allowed: tuple[str, ...]) -> list[str]:
    return [f"{what} {value!r}: expected one of {', '.join(allowed)}" for value in sorted(values - set(allowed))]


def mask_of(members: Iterator[int]) -> int:
    """The set of these numbers as an int."""
    mask = 0
    for member in members:
        mask |= 1 << member
    return mask


def bits(mask: int) -> Iterator[int]:
    """The members of a set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def cpu_list(mask: int) -> str:
    """A CPU set as the kubelet writes it: ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in bits(mask):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_cpu_list(text: str) -> int:
    """The inverse of ``cpu_list``. ValueError for other text."""
    mask = 0
    for run in filter(None, text.split(",")):
        first, _, last = run.partition("-")
        for cpu in range(int(first), int(last or first) + 1):
            mask |= 1 << cpu
    return mask
