"""Plain data about a machine's hardware, as the kernel describes it. No behaviour beyond look-ups.

CPUs are online ones. Zones are in ascending order of the kernel's ids, which may be sparse; a zone may have no CPUs
(memory on CXL) or no memory.
"""

from functools import cached_property

import msgspec

from agent.machine.cpuset import Cpus

MEMORY = "memory"
HUGEPAGES = "hugepages-"


class MachineZone(msgspec.Struct, frozen=True):
    """One NUMA zone. ``memory`` in bytes; ``hugepages``: resource name -> bytes; ``distances``: zone id -> SLIT."""

    id: int
    cpus: Cpus = frozenset()
    memory: int = 0
    hugepages: dict[str, int] = msgspec.field(default_factory=dict)
    distances: dict[int, int] = msgspec.field(default_factory=dict)


class MachineCore(msgspec.Struct, frozen=True):
    """One core: its hardware threads, ascending. ``l3`` is the id of its L3 cache, where there is one."""

    cpus: tuple[int, ...]
    zone: int
    socket: int = 0
    l3: int | None = None


class PciDevice(msgspec.Struct, frozen=True):
    """One PCI function that placement may care about.

    ``path``: the host bridge, then the bridges above the device from the root down, then the device itself. ``zone``:
    None where the kernel does not know it. ``functions``: how many virtual functions it has.
    """

    address: str
    class_: int
    vendor: int
    device: int
    path: tuple[str, ...] = ()
    zone: int | None = None
    names: tuple[str, ...] = ()
    functions: int = 0

    @property
    def root(self) -> str:
        """The host bridge that it is behind (``pci0000:16``); "" where the kernel tells no path."""
        return self.path[0] if len(self.path) > 1 else ""


class Hardware(msgspec.Struct, frozen=True, dict=True):
    """One machine. ``problems`` says what could not be read, one line each; what they name is left out."""

    zones: tuple[MachineZone, ...]
    cores: tuple[MachineCore, ...] = ()
    pci: tuple[PciDevice, ...] = ()
    problems: tuple[str, ...] = ()

    @cached_property
    def cpus(self) -> Cpus:
        """All CPUs that are online."""
        return frozenset(cpu for core in self.cores for cpu in core.cpus)

    @cached_property
    def zone_of_cpu(self) -> dict[int, int]:
        """CPU -> zone id."""
        return {cpu: core.zone for core in self.cores for cpu in core.cpus}

    @property
    def threads_per_core(self) -> int:
        """Hardware threads of a core, where cores differ the most."""
        return max((len(core.cpus) for core in self.cores), default=1)

    def by_address(self) -> dict[str, PciDevice]:
        """PCI address -> device."""
        return {device.address: device for device in self.pci}
