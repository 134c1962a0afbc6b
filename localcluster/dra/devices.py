"""The devices of one simulated machine as drivers publish them (``PlayedDevice`` of resource.k8s.io/v1).

GPUs are H100s of 80 GB: devices, counters and the attributes that selectors read have the names of NVIDIA's driver;
partitions have the placements, memory and multiprocessors of five of the card's profiles (``nvidia-smi mig -lgipp`` and
``-lgip``). NICs are named as dranet names them. Both say ``numaNode`` and ``pcieRoot``, which not all drivers do. A GPU
and a NIC of one NUMA zone share a PCIe root, each GPU with the NIC that comes at its turn.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from localcluster.dra.driver import PARTITIONS, SHARED, Driver
from localcluster.kubelets.hardware import PlayedDevice, PlayedHardware
from localcluster.kubelets.specs import GPU, NIC

GPU_DRIVER = "gpu.nvidia.com"
NIC_DRIVER = "dra.net"
NUMA_NODE = "resource.kubernetes.io/numaNode"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
BUS_ID = "resource.kubernetes.io/pciBusID"
PRODUCT = "NVIDIA H100 80GB HBM3"
MEMORY = "81559Mi"
MULTIPROCESSORS = 132
MEMORY_SLICES = 8
SHARED_MEMORY = "80Gi"  # a multiple of the step, as the API server wants it; the real amount is none
BANDWIDTH = "400G"
TAINT = {"key": f"{GPU_DRIVER}/unhealthy", "value": "simulated", "effect": "NoSchedule"}
_ROOTS = 15  # of one PCI segment: 10, 20, ... f0
_GPU_SLOT, _NIC_SLOT = 1, 12

Json = dict[str, Any]


@dataclass(frozen=True)
class Profile:
    """A MIG profile; ``starts`` are the memory slices at which ``size`` of them may begin, ``memory`` is a quantity."""

    name: str
    id: int
    size: int
    starts: tuple[int, ...]
    memory: str
    multiprocessors: int


PROFILES = (
    Profile("1g.10gb", 19, 1, tuple(range(7)), "9856Mi", 16),
    Profile("2g.20gb", 14, 2, (0, 2, 4), "20096Mi", 32),
    Profile("3g.40gb", 9, 4, (0, 4), "40448Mi", 60),
    Profile("4g.40gb", 5, 4, (0,), "40448Mi", 64),
    Profile("7g.80gb", 0, 8, (0,), "81152Mi", 132),
)


@dataclass(frozen=True)
class _Slot:
    """Where a device is plugged in: the number of its PCIe root, and the bus behind it."""

    root: int
    bus: int

    @property
    def name(self) -> str:
        return f"pci{self._segment:04x}:{self._base:02x}"

    @property
    def address(self) -> str:
        return f"{self._segment:04x}:{self._base + self.bus:02x}:00.0"

    @property
    def _segment(self) -> int:
        return self.root // _ROOTS

    @property
    def _base(self) -> int:
        return (self.root % _ROOTS + 1) << 4


def gpus(hardware: PlayedHardware, driver: Driver) -> Iterator[Json]:
    """The GPUs in their order, each followed by its partitions where there are any."""
    found = hardware.devices.get(GPU, ())
    for number, gpu in enumerate(found):
        # The last one only: the first devices stay usable, because the allocator takes devices in order.
        tainted = {"taints": [dict(TAINT)]} if driver.tainted and number == len(found) - 1 else {}
        where = _place_attributes(gpu, _Slot(number, _GPU_SLOT))
        whole: Json = {
            "name": f"gpu-{number}",
            "attributes": {**_gpu(), **where, "type": {"string": "gpu"}, "uuid": {"string": gpu.id}},
            "capacity": {"memory": {"value": MEMORY}},
            **tainted,
        }
        if driver.form == SHARED:
            whole |= {"allowMultipleAllocations": True, "capacity": {"memory": _share(SHARED_MEMORY, "1Gi")}}
        if driver.form != PARTITIONS:
            yield whole
            continue
        # The whole card takes all counters, so it and its partitions exclude each other.
        yield whole | {"consumesCounters": [{"counterSet": _set_name(number), "counters": _counters()}]}
        yield from ({**one, **tainted} for one in _partitions(gpu, number, where))


def counter_sets(hardware: PlayedHardware, driver: Driver) -> list[Json]:
    """What the partitions of each GPU share."""
    if driver.form != PARTITIONS:
        return []
    count = len(hardware.devices.get(GPU, ()))
    return [{"name": _set_name(number), "counters": _counters()} for number in range(count)]


def _partitions(gpu: PlayedDevice, number: int, where: Json) -> Iterator[Json]:
    for profile in PROFILES:
        for start in profile.starts:
            attributes = {"type": {"string": "mig"}, "profile": {"string": profile.name}}
            used = {
                "memory": {"value": profile.memory},
                "multiprocessors": {"value": str(profile.multiprocessors)},
            }
            # Which slices a partition covers decides what fits beside it, not only how much memory it has.
            slices = {f"memory-slice-{at}": {"value": "1"} for at in range(start, start + profile.size)}
            yield {
                "name": f"gpu-{number}-mig-{profile.name.replace('.', '')}-{profile.id}-{start}",
                "attributes": {**_gpu(), **where, **attributes, "parentUUID": {"string": gpu.id}},
                "capacity": used,
                "consumesCounters": [{"counterSet": _set_name(number), "counters": used | slices}],
            }


def _gpu() -> Json:
    return {
        "productName": {"string": PRODUCT},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
    }


def _counters() -> Json:
    slices = {f"memory-slice-{number}": {"value": "1"} for number in range(MEMORY_SLICES)}
    return {"memory": {"value": MEMORY}, "multiprocessors": {"value": str(MULTIPROCESSORS)}, **slices}


def _set_name(number: int) -> str:
    return f"gpu-{number}-counter-set"


def nics(hardware: PlayedHardware, driver: Driver) -> Iterator[Json]:
    """The NICs in their order."""
    for number, (nic, slot) in enumerate(_nic_slots(hardware)):
        made: Json = {
            "name": "pci-" + slot.address.replace(":", "-").replace(".", "-"),
            "attributes": {
                f"{NIC_DRIVER}/ifName": {"string": f"eth{number + 1}"},
                f"{NIC_DRIVER}/rdma": {"bool": True},
                f"{NIC_DRIVER}/rdmaDevice": {"string": nic.id},
                f"{NIC_DRIVER}/virtual": {"bool": False},
                **_numa(nic, f"{NIC_DRIVER}/numaNode"),
                **_place_attributes(nic, slot),
            },
        }
        if driver.form == SHARED:
            made |= {
                "allowMultipleAllocations": True,
                "capacity": {f"{NIC_DRIVER}/bandwidth": _share(BANDWIDTH, "1G")},
            }
        yield made


def _nic_slots(hardware: PlayedHardware) -> Iterator[tuple[PlayedDevice, _Slot]]:
    """Each NIC at the root of a GPU of its zone, one after another; behind all GPUs where its zone has none."""
    found, turns = hardware.devices.get(GPU, ()), dict[tuple[int, ...], int]()
    further = len(found)
    for nic in hardware.devices.get(NIC, ()):
        # GPUs of exactly the same zones: a root belongs to one place.
        beside = [number for number, gpu in enumerate(found) if gpu.zones == nic.zones]
        turn = turns[nic.zones] = turns.get(nic.zones, -1) + 1
        if turn < len(beside):
            yield nic, _Slot(beside[turn], _NIC_SLOT)
        else:
            yield nic, _Slot(further, _NIC_SLOT)
            further += 1


def _place_attributes(device: PlayedDevice, slot: _Slot) -> Json:
    return {**_numa(device, NUMA_NODE), PCIE_ROOT: {"string": slot.name}, BUS_ID: {"string": slot.address}}


def _numa(device: PlayedDevice, attribute: str) -> Json:
    return {attribute: {"int": device.zones[0]}} if device.zones else {}


def _share(whole: str, step: str) -> Json:
    """A capacity of which shares are taken; a request that names no amount takes all of it."""
    return {
        "value": whole,
        "requestPolicy": {"default": whole, "validRange": {"min": step, "step": step, "max": whole}},
    }
