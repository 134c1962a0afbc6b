"""The hardware as the graph of a FlexTopo; `crds.graph` has its words. Equal hardware makes equal lists, in order."""

from collections.abc import Iterator
from itertools import combinations, permutations

import msgspec

from agent.machine import cpuset, pci
from agent.machine.cpuset import Cpus
from agent.machine.gpus import Gpu, Gpus
from agent.machine.hardware import Hardware, MachineCore, PciDevice
from crds import graph
from kube.topologies import Component, Edge, FlexTopoSpec


class Group(msgspec.Struct, frozen=True):
    """Cores of one zone and socket that are looked at together."""

    zone: int
    socket: int
    cores: tuple[MachineCore, ...]

    @property
    def id(self) -> str:
        """The component's id."""
        return graph.group_id(min(self.cpus))

    @property
    def cpus(self) -> Cpus:
        """All its CPUs."""
        return frozenset(cpu for core in self.cores for cpu in core.cpus)


def groups(hardware: Hardware, size: int) -> Iterator[Group]:
    """Core groups of ``size`` cores: by zone and socket, in order of their lowest CPU; the last one may have fewer."""
    by_place: dict[tuple[int, int], list[MachineCore]] = {}
    for core in hardware.cores:
        by_place.setdefault((core.zone, core.socket), []).append(core)
    for (zone, socket), cores in sorted(by_place.items()):
        for start in range(0, len(cores), size):
            yield Group(zone, socket, tuple(cores[start : start + size]))


def gpu_id(gpu: Gpu) -> str:
    """The component id of a GPU."""
    return graph.device_id(graph.GPU, gpu.uuid or gpu.address)


def spec(hardware: Hardware, gpus: Gpus, core_group_size: int) -> FlexTopoSpec:
    """The spec of this machine's FlexTopo."""
    cores = list(groups(hardware, core_group_size))
    by_nvml = {gpu.address for gpu in gpus.gpus}
    devices = [device for device in hardware.pci if device.address not in by_nvml]
    return FlexTopoSpec(
        core_group_size=core_group_size,
        nodes=(*_core_components(hardware, cores), *_device_components(hardware, gpus, devices)),
        edges=(*_core_edges(hardware, cores), *_device_edges(gpus, devices)),
    )


def _kind(device: PciDevice) -> str:
    if device.vendor == pci.BAIDU:
        return graph.XPU
    if pci.is_gpu(device):
        return graph.GPU
    return graph.NIC if pci.is_network(device) else graph.PCI_DEVICE


def _pci_id(device: PciDevice) -> str:
    return graph.device_id(_kind(device), device.address)


# --- components ------------------------------------------------------------------------------------------------------


def _node(id_: str, type_: str, /, **attributes: str | int | None) -> Component:
    """A component with the attributes that are known."""
    known = {name: str(value) for name, value in attributes.items() if value is not None}
    return Component(id=id_, type=type_, attributes=known or None)


def _core_components(hardware: Hardware, found: list[Group]) -> Iterator[Component]:
    """Sockets, NUMA zones, core groups and cores."""
    for socket in sorted({core.socket for core in hardware.cores}):
        yield _node(graph.socket_id(socket), graph.SOCKET)
    # From the last core to the first, so that the first one counts where a zone spans sockets.
    sockets = {core.zone: core.socket for core in reversed(hardware.cores)}
    for zone in hardware.zones:
        pages = dict(sorted(zone.hugepages.items()))
        yield _node(
            graph.zone_id(zone.id),
            graph.NUMA_NODE,
            cpus=cpuset.render(zone.cpus),
            memory=zone.memory,
            socket=sockets.get(zone.id),
            **pages,
        )
    for group in found:
        yield _node(group.id, graph.CORE_GROUP, cpus=cpuset.render(group.cpus))
    for core in (core for group in found for core in group.cores):
        yield _node(graph.core_id(core.cpus[0]), graph.CORE, cpus=cpuset.render(core.cpus), l3=core.l3)


def _device_components(hardware: Hardware, gpus: Gpus, devices: list[PciDevice]) -> Iterator[Component]:
    """NVML's GPUs, and the other PCI devices."""
    known = hardware.by_address()
    for gpu in gpus.gpus:
        yield _node(
            gpu_id(gpu),
            graph.GPU,
            uuid=gpu.uuid or None,
            # A GPU that never answered has no index: the 0 of its record is another one's.
            index=gpu.index if gpu.uuid else None,
            model=gpu.model or None,
            memory=gpu.memory or None,
            pciAddress=gpu.address,
            pcieRoot=known[gpu.address].root or None if gpu.address in known else None,
            fault=gpu.fault[:256] or None,
        )
    for device in devices:
        yield _node(
            _pci_id(device),
            _kind(device),
            pciAddress=device.address,
            pcieRoot=device.root or None,
            **{"class": f"{device.class_:06x}"},
            vendor=f"{device.vendor:04x}",
            device=f"{device.device:04x}",
            names=",".join(device.names)[:256] or None,
            virtualFunctions=device.functions or None,
        )


# --- edges -----------------------------------------------------------------------------------------------------------


def _edge(source: str, target: str, type_: str, /, **attributes: str | int | None) -> Edge:
    known = {name: str(value) for name, value in attributes.items() if value is not None}
    return Edge(source=source, target=target, type=type_, attributes=known or None)


def _core_edges(hardware: Hardware, found: list[Group]) -> Iterator[Edge]:
    """Where core groups and cores belong, and how far apart zones are."""
    for group in found:
        yield _edge(graph.socket_id(group.socket), group.id, graph.HOST)
    for group in found:
        for core in group.cores:
            yield _edge(group.id, graph.core_id(core.cpus[0]), graph.CONTAIN)
    for group in found:
        yield _edge(group.id, graph.zone_id(group.zone), graph.LOCALIZED)
    for one, other in permutations(hardware.zones, 2):
        if (distance := one.distances.get(other.id)) is not None:
            yield _edge(graph.zone_id(one.id), graph.zone_id(other.id), graph.DISTANCE, distance=distance)


def _device_edges(gpus: Gpus, devices: list[PciDevice]) -> Iterator[Edge]:
    """The zones of devices, and their links."""
    for gpu in gpus.gpus:
        if gpu.zone is not None:
            yield _edge(gpu_id(gpu), graph.zone_id(gpu.zone), graph.NEARBY)
    for device in devices:
        if device.zone is not None:
            yield _edge(_pci_id(device), graph.zone_id(device.zone), graph.NEARBY)
    # Links by NVML; of GPUs and XPUs that it does not know, those by PCIe.
    ids = {gpu.address: gpu_id(gpu) for gpu in gpus.gpus}
    for link in gpus.links:
        if link.one in ids and link.other in ids:
            nvlinks, version = link.nvlinks or None, link.version or None
            ends = ids[link.one], ids[link.other]
            yield _edge(*ends, graph.LINK, kind=link.kind, nvlinks=nvlinks, nvlinkVersion=version, pcie=link.pcie)
    for kind in (graph.GPU, graph.XPU):
        for one, other in combinations([device for device in devices if _kind(device) == kind], 2):
            level = pci.level(one, other)
            yield _edge(_pci_id(one), _pci_id(other), graph.LINK, kind=level, pcie=level)
