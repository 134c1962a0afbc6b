"""A machine's hardware from sysfs, under a root that is given.

Rules
- What cannot be read is left out and told in ``problems``; one bad CPU, zone or device hides no other.
- A kernel without NUMA has one zone, 0, with all CPUs and memory.
- A device whose zone the kernel does not know (numa_node -1) is in the only zone, where there is one; else in the zone
  that has all its local CPUs, where those are not just all; else in none.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from agent.machine import cpuset, pci
from agent.machine.cpuset import Cpus
from agent.machine.hardware import HUGEPAGES, Hardware, MachineCore, MachineZone

T = TypeVar("T")
KIB = 1024


def read(root: Path, proc: Path) -> Hardware:
    """The machine whose sysfs is mounted at ``root`` and whose procfs at ``proc``. Never raises for what is missing."""
    reader = _Reader(root)
    online = reader.read_cpu_list("devices/system/cpu/online")
    zones = tuple(_read_zones(reader, online)) or (_only_zone(reader, proc, online),)
    cores = tuple(_cores(reader, online, {cpu: zone.id for zone in zones for cpu in zone.cpus}))
    known = frozenset(cpu for core in cores for cpu in core.cpus)
    # A CPU whose core could not be read is in no zone either, so that zones and cores add up to the same CPUs.
    zones = tuple(replace(zone, cpus=zone.cpus & known) for zone in zones)
    devices = tuple(pci.zoned(device, local, zones) for device, local in pci.devices(reader))
    return Hardware(zones, cores, devices, tuple(reader.problems))


class _Reader:
    """Files under a root; what fails is noted once and answered with a default."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.problems: list[str] = []

    def value(self, path: str | Path, make: Callable[[str], T], default: T, *, optional: bool = False) -> T:
        """The file's text made into a value; ``optional``: that it is not there is no problem."""
        try:
            return make((self.root / path).read_text(encoding="ascii", errors="replace").strip())
        except (OSError, ValueError, IndexError) as error:
            if not (optional and isinstance(error, FileNotFoundError)):
                self.record_problem(path, error)
            return default

    def read_cpu_list(self, path: str | Path, *, optional: bool = False) -> Cpus:
        """A CPU list; none where it cannot be read."""
        return self.value(path, cpuset.parse, frozenset(), optional=optional)

    def list_folder(self, path: str | Path, *, optional: bool = True) -> list[str]:
        """Names in a folder, sorted."""
        try:
            return sorted(entry.name for entry in (self.root / path).iterdir())
        except OSError as error:
            if not (optional and isinstance(error, FileNotFoundError)):
                self.record_problem(path, error)
            return []

    def record_problem(self, path: str | Path, error: Exception | str) -> None:
        """Note a problem."""
        text = (error.strerror if isinstance(error, OSError) else None) or str(error)
        self.problems.append(f"{path}: {text}")


def _read_zones(reader: _Reader, online: Cpus) -> Iterator[MachineZone]:
    folder = "devices/system/node"
    # Zones that are online. The list has the form of a CPU list; older kernels have none.
    ids = sorted(reader.read_cpu_list(f"{folder}/online", optional=True))
    if not ids:
        found = (name.removeprefix("node") for name in reader.list_folder(folder) if name.startswith("node"))
        ids = sorted(int(number) for number in found if number.isdigit())
    for number in ids:
        path = f"{folder}/node{number}"
        distances: list[int] = reader.value(f"{path}/distance", lambda text: [*map(int, text.split())], [])
        if len(distances) != len(ids):
            if distances:
                reader.record_problem(f"{path}/distance", f"{len(distances)} distances for {len(ids)} zones")
            distances = []
        yield MachineZone(
            id=number,
            cpus=reader.read_cpu_list(f"{path}/cpulist") & online,
            memory=reader.value(f"{path}/meminfo", _mem_total, 0),
            hugepages=_hugepages(reader, f"{path}/hugepages"),
            # The i-th number is of the i-th zone that is online, whatever its id: ids may be sparse.
            distances=dict(zip(ids, distances, strict=False)),
        )


def _only_zone(reader: _Reader, proc: Path, online: Cpus) -> MachineZone:
    """The zone of a kernel without NUMA."""
    try:
        memory = _mem_total((proc / "meminfo").read_text(encoding="ascii", errors="replace"))
    except (OSError, ValueError) as error:
        reader.record_problem(proc / "meminfo", error)
        memory = 0
    return MachineZone(0, online, memory, _hugepages(reader, "kernel/mm/hugepages"), {0: 10})


def _hugepages(reader: _Reader, folder: str) -> dict[str, int]:
    """Resource name -> bytes, of the sizes that have pages."""
    found: dict[str, int] = {}
    for name in reader.list_folder(folder):
        size = name.removeprefix("hugepages-").removesuffix("kB")
        if not size.isdigit():
            continue
        pages = reader.value(f"{folder}/{name}/nr_hugepages", int, 0)
        if pages:
            found[HUGEPAGES + _binary(int(size) * KIB)] = pages * int(size) * KIB
    return found


def _binary(size: int) -> str:
    """A size in bytes as Kubernetes names hugepages: 2Mi, 1Gi."""
    for unit in ("", "Ki", "Mi", "Gi"):
        if size % KIB or unit == "Gi":
            return f"{size}{unit}"
        size //= KIB
    raise AssertionError("the last unit takes every size")


def _cores(reader: _Reader, online: Cpus, zone_of: dict[int, int]) -> Iterator[MachineCore]:
    """Cores in order of zone and lowest CPU."""
    cores: dict[tuple[int, ...], MachineCore] = {}
    for cpu in sorted(online):
        path = f"devices/system/cpu/cpu{cpu}"
        if cpu not in zone_of:
            reader.record_problem(path, "in no NUMA zone")
            continue
        siblings = reader.read_cpu_list(f"{path}/topology/thread_siblings_list") & online
        if cpu not in siblings:
            if siblings:
                reader.record_problem(path, "not among its own siblings")
            continue
        threads = tuple(sorted(siblings))
        if threads in cores:
            continue
        socket = reader.value(f"{path}/topology/physical_package_id", int, 0)
        # Kernels without ids of caches (or caches that have none) know the L3 cache by its lowest CPU.
        l3: int | None = reader.value(f"{path}/cache/index3/id", int, None, optional=True)
        if l3 is None:
            shared = reader.read_cpu_list(f"{path}/cache/index3/shared_cpu_list", optional=True)
            l3 = min(shared, default=None)
        # The kernel says -1 where the firmware names no package.
        cores[threads] = MachineCore(threads, zone_of[cpu], max(socket, 0), l3)
    yield from sorted(cores.values(), key=lambda core: (core.zone, core.cpus))


def _mem_total(text: str) -> int:
    """Bytes, from ``Node 0 MemTotal:  1024 kB`` or ``MemTotal: 1024 kB``."""
    for line in text.splitlines():
        head, found, tail = line.partition("MemTotal:")
        if found and (not head or head.startswith("Node ")):
            return int(tail.split()[0]) * KIB
    raise ValueError("no MemTotal in it")
