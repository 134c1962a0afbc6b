"""PCI devices that placement may care about, and how far apart two are.

Kept are GPUs, other accelerators, network and RDMA adapters, and NVMe disks; virtual functions only count on their
physical one, and a server's console VGA is no GPU.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from agent.machine import cpuset
from agent.machine.hardware import MachineZone, PciDevice

NVIDIA = 0x10DE
BAIDU = 0x1D22  # Kunlunxin XPUs
_CONSOLES = frozenset({0x1A03, 0x102B, 0x1013, 0x1234, 0x15AD, 0x1B36, 0x1AF4})  # BMCs and emulated VGA
_NETWORK, _DISPLAY, _ACCELERATOR = 0x02, 0x03, 0x12  # base classes
_CO_PROCESSOR, _NVME = 0x0B40, 0x0108  # base and sub class
_ADDRESS_PARTS = 3
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}").fullmatch


class Files(Protocol):
    """What is needed of `agent.machine.sysfs` here."""

    root: Path

    def list_folder(self, path: str, *, optional: bool = True) -> list[str]:
        """Names in a folder."""

    def record_problem(self, path: str, error: Exception | str) -> None:
        """Note a problem."""


def is_network(device: PciDevice) -> bool:
    """Ethernet, InfiniBand and the like."""
    return device.class_ >> 16 == _NETWORK


def is_gpu(device: PciDevice) -> bool:
    """A display controller that is no console: GPUs with and without a monitor's plug."""
    return device.class_ >> 16 == _DISPLAY and device.vendor not in _CONSOLES


def normal(address: str) -> str:
    """A PCI address as sysfs writes it, ``0000:3b:00.0``; NVML writes domains with eight digits."""
    parts = address.strip().lower().split(":")
    if len(parts) != _ADDRESS_PARTS:
        return address.strip().lower()
    return f"{int(parts[0], 16):04x}:{parts[1]}:{parts[2]}"


def devices(files: Files) -> Iterator[tuple[PciDevice, str]]:
    """Devices in order of their addresses, each with its list of local CPUs as text."""
    names: dict[str, tuple[str, ...]] = {}  # of network interfaces and RDMA devices, by PCI address
    for kind in ("net", "infiniband"):
        for name in files.list_folder(f"class/{kind}"):
            target = files.root / "class" / kind / name / "device"
            if target.exists():
                address = target.resolve().name
                names[address] = (*names.get(address, ()), name)
    functions: dict[str, int] = {}
    found: list[tuple[PciDevice, str]] = []
    for address in files.list_folder("bus/pci/devices"):
        try:
            read = _read(files.root / "bus/pci/devices" / address)
        except (OSError, ValueError) as error:
            files.record_problem(f"bus/pci/devices/{address}", error)
            continue
        if isinstance(read, str):
            functions[read] = functions.get(read, 0) + 1
            continue
        device, _ = read
        base, sub = device.class_ >> 16, device.class_ >> 8
        wanted = base in {_NETWORK, _ACCELERATOR} or sub in {_CO_PROCESSOR, _NVME}
        if wanted or device.vendor == BAIDU or is_gpu(device):
            found.append(read)
    for device, local in found:
        kept = replace(device, names=names.get(device.address, ()), functions=functions.get(device.address, 0))
        yield kept, local


def zoned(device: PciDevice, local: str, zones: tuple[MachineZone, ...]) -> PciDevice:
    """The device with its zone, see `agent.machine.sysfs`; ``local`` is its local_cpulist."""
    if device.zone is not None and any(zone.id == device.zone for zone in zones):
        return device
    if len(zones) == 1:
        return replace(device, zone=zones[0].id)
    try:
        cpus = cpuset.parse(local)
    except ValueError:
        return replace(device, zone=None)
    holding = [zone.id for zone in zones if cpus and cpus <= zone.cpus]
    return replace(device, zone=holding[0] if len(holding) == 1 else None)


def level(one: PciDevice, other: PciDevice) -> str:
    """How two devices are connected, in the words of ``nvidia-smi topo -m``.

    PIX: at most one PCIe bridge (or switch) on either side below the common one; PXB: more; PHB: only the host bridge
    is common; NODE: different host bridges of one NUMA zone; SYS: the link between zones, or not known.
    """
    # How many bridges from the root down are common.
    bridges = one.path[:-1], other.path[:-1]
    unlike = (i for i, pair in enumerate(zip(*bridges, strict=False)) if pair[0] != pair[1])
    shared = next(unlike, min(map(len, bridges)))
    if shared == 0:
        return "NODE" if one.zone is not None and one.zone == other.zone else "SYS"
    if shared == 1:
        return "PHB"
    below = max(len(one.path), len(other.path)) - 1 - shared
    return "PIX" if below <= 1 else "PXB"


def _read(folder: Path) -> tuple[PciDevice, str] | str:
    """The device and its local CPUs, or the address of its physical function where it is a virtual one."""
    if (physical := folder / "physfn").exists():
        return physical.resolve().name
    # sysfs has the devices as links into a tree of bridges, so the path itself is the topology.
    path = folder.resolve().parts
    bridges = path[next((i for i, part in enumerate(path) if _HOST_BRIDGE(part)), len(path) - 1) :]
    zone = _text(folder / "numa_node")
    device = PciDevice(
        address=folder.name,
        class_=int(_text(folder / "class"), 16),
        vendor=int(_text(folder / "vendor"), 16),
        device=int(_text(folder / "device"), 16),
        path=bridges,
        zone=int(zone) if zone and int(zone) >= 0 else None,
    )
    return device, _text(folder / "local_cpulist")


def _text(path: Path) -> str:
    """The file's text; "" where it is not there, which only ``numa_node`` and ``local_cpulist`` may be."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        if path.name in {"numa_node", "local_cpulist"}:
            return ""
        raise
