"""A described machine in the engine's words: from hardware, kubelet and state, or from a NodeResourceTopology alone.

The forms are those of ``topogate whatif admit`` (docs/whatif.md). Zones come in the order of their ids, devices in the
order that is given.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal

import msgspec

from engine import quantity
from engine.kubelet.admit import MOST_ZONES
from engine.kubelet.machine import (
    CPU,
    MEMORY,
    Container,
    ContainerKind,
    DeviceLayout,
    Kubelet,
    Layout,
    MemoryCells,
    PodShape,
    Qos,
    Scope,
    State,
    TopologyPolicy,
    Zone,
)
from engine.kubelet.resource_requests import is_memory

HUGEPAGES_1GI = "hugepages-1Gi"
MAX_CPUS = 8192

Whole = Annotated[int, msgspec.Meta(ge=0)]
Quantity = int | float | str


class _Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ZoneForm(_Form, frozen=True):
    """One NUMA zone; ``uncore`` is the L3 id of each core."""

    id: Whole
    socket: Whole = 0
    cores: tuple[tuple[Whole, ...], ...] = ()
    uncore: tuple[Whole, ...] | None = None
    memory_bytes: Whole = 0
    reserved_memory_bytes: Whole = 0
    hugepages_1gi: Whole = 0
    distances: tuple[Whole, ...] = ()


class DeviceForm(_Form, frozen=True):
    """One device; no zones: its plugin says nothing about topology."""

    id: str
    numa: tuple[Whole, ...] = ()
    healthy: bool = True


class MachineForm(_Form, frozen=True):
    """The hardware; ``reserved_cpus`` as in ``0,4-7``. ``threads_per_core`` counts only where cores are not known."""

    numa: Annotated[tuple[ZoneForm, ...], msgspec.Meta(min_length=1, max_length=MOST_ZONES)]
    sockets: Whole | None = None
    threads_per_core: Annotated[int, msgspec.Meta(ge=1)] = 2
    reserved_cpus: str = ""
    devices: dict[str, tuple[DeviceForm, ...]] = {}


class KubeletForm(_Form, frozen=True):
    """The kubelet's settings by their names; options are strings, as in its configuration."""

    topology_manager_policy: TopologyPolicy = TopologyPolicy.NONE
    topology_manager_scope: Scope = Scope.CONTAINER
    topology_manager_policy_options: dict[str, str] = {}
    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: dict[str, str] = {}
    memory_manager_policy: str = "None"
    version: str = "1.36"


class MemoryForm(_Form, frozen=True):
    """One type of memory of a zone."""

    allocatable: Whole
    free: Whole


class CellsForm(_Form, frozen=True):
    """The memory manager's view of a zone."""

    cells: tuple[Whole, ...]
    assignments: Whole = 0
    resources: dict[str, MemoryForm] = {}


class StateForm(_Form, frozen=True):
    """What is free; ``free_cpus`` without reserved ones."""

    free_cpus: str = ""
    free_devices: dict[str, tuple[str, ...]] = {}
    memory: dict[str, CellsForm] | None = None
    running: msgspec.Raw = msgspec.Raw(b"")  # who holds the rest; not looked at


class ContainerForm(_Form, frozen=True):
    """One container."""

    name: str
    kind: ContainerKind = ContainerKind.APP
    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class PodForm(_Form, frozen=True):
    """A pod; init containers and sidecars come first, in the order of the spec.

    ``wish``, ``wish_resources`` and ``gpu_link``: its annotations numa-policy, numa-resources and gpu-link.
    """

    qos: Qos
    containers: Annotated[tuple[ContainerForm, ...], msgspec.Meta(min_length=1)]
    name: str = ""
    wish: TopologyPolicy = TopologyPolicy.NONE
    wish_resources: tuple[str, ...] = ()
    gpu_link: Literal["", "require", "prefer"] = ""


class AmountsForm(_Form, frozen=True):
    """One resource of a zone as NodeResourceTopology has it."""

    capacity: Quantity
    allocatable: Quantity
    available: Quantity


class NrtZoneForm(_Form, frozen=True):
    """One zone of NodeResourceTopology."""

    name: str
    type: str = "Node"
    costs: dict[str, int] = {}
    resources: dict[str, AmountsForm] = {}


class NrtForm(_Form, frozen=True):
    """A NodeResourceTopology, its lists with names as objects."""

    attributes: dict[str, str] = {}
    zones: Annotated[tuple[NrtZoneForm, ...], msgspec.Meta(max_length=MOST_ZONES)] = ()


_ZONE_NAME = re.compile(r"node-(\d+)")
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


def pod_shape(form: PodForm) -> PodShape:
    """What a kubelet looks at in a described pod."""
    return PodShape(
        containers=tuple(
            Container(
                name=each.name,
                kind=each.kind,
                requests=_amounts(each.requests or {}),
                limits=_amounts(each.limits or {}),
            )
            for each in form.containers
        ),
        qos=form.qos,
        wish=form.wish,
        wish_resources=form.wish_resources,
        gpu_link=form.gpu_link,
    )


def _amounts(quantities: Mapping[str, Quantity]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((resource, amount_of(resource, value)) for resource, value in quantities.items()))


def amount_of(resource: str, value: Quantity) -> int:
    """A quantity in the engine's units; raises ValueError with the resource where it is none."""
    try:
        return quantity.bounded(quantity.parse(resource, str(value)))
    except ValueError as error:
        raise ValueError(f"{resource}: {error}") from error


def kubelet_of(form: KubeletForm) -> Kubelet:
    """The settings that decide an admission."""
    topology, cpu = form.topology_manager_policy_options, form.cpu_manager_policy_options
    version = _VERSION.match(form.version)
    if version is None:
        raise ValueError(f"kubelet.version: expected one such as 1.36, got {form.version!r}")
    return Kubelet(
        version=(int(version[1]), int(version[2])),
        policy=form.topology_manager_policy,
        scope=form.topology_manager_scope,
        static_cpu=form.cpu_manager_policy == "static",
        static_memory=form.memory_manager_policy == "Static",
        prefer_closest_numa_nodes=_on(topology, "prefer-closest-numa-nodes"),
        max_allowable_numa_nodes=_number(topology, "max-allowable-numa-nodes", 8),
        full_pcpus_only=_on(cpu, "full-pcpus-only"),
        distribute_cpus_across_numa=_on(cpu, "distribute-cpus-across-numa"),
        distribute_cpus_across_cores=_on(cpu, "distribute-cpus-across-cores"),
        align_by_socket=_on(cpu, "align-by-socket"),
        prefer_align_cpus_by_uncorecache=_on(cpu, "prefer-align-cpus-by-uncorecache"),
        strict_cpu_reservation=_on(cpu, "strict-cpu-reservation"),
    )


def _on(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false") == "true"


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    value = options.get(name, str(default))
    if not value.isdecimal():
        raise ValueError(f"{name}: expected a number, got {value!r}")
    return int(value)


def from_state(machine: MachineForm, kubelet: KubeletForm, state: StateForm) -> tuple[Layout, State]:
    """Layout and state of a machine that is fully known; raises ValueError where the parts do not agree."""
    _check(machine)
    zones = sorted(machine.numa, key=lambda zone: zone.id)
    order = [machine.numa.index(zone) for zone in zones]
    index = {zone.id: at for at, zone in enumerate(zones)}
    settings = kubelet_of(kubelet)
    hugepages = (HUGEPAGES_1GI,) if any(zone.hugepages_1gi for zone in zones) else ()
    listed = dict(sorted(machine.devices.items()))
    resources = (CPU, MEMORY, *hugepages, *listed)
    reserved = cpu_mask(machine.reserved_cpus)
    free_cpus = cpu_mask(state.free_cpus)
    devices = tuple(
        tuple(DeviceLayout(zones=mask_of(index, device.numa), healthy=device.healthy) for device in listed[resource])
        if resource in listed
        else ()
        for resource in resources
    )
    free_devices = tuple(
        sum(1 << at for at, device in enumerate(listed[resource]) if device.id in state.free_devices.get(resource, ()))
        if resource in listed
        else 0
        for resource in resources
    )
    healthy = [sum(1 << at for at, device in enumerate(some) if device.healthy) for some in devices]
    books = state.memory or {}

    def amounts(cpus: int, units: tuple[int, ...] | list[int], memory: Callable[[ZoneForm, str], int]) -> Rows:
        return tuple(
            tuple(
                _cpus_in(zone, cpus)
                if resource == CPU
                else memory(zone, resource)
                if is_memory(resource)
                else _devices_in(devices[row], units[row], at)
                for row, resource in enumerate(resources)
            )
            for at, zone in enumerate(zones)
        )

    layout = Layout(
        zones=tuple(
            Zone(
                id=zone.id,
                socket=zone.socket,
                distances=tuple(zone.distances[at] for at in order) if len(zone.distances) == len(zones) else (),
                cores=zone.cores,
                uncore=zone.uncore or (),
            )
            for zone in zones
        ),
        resources=resources,
        capacity=amounts(-1, [-1] * len(resources), _installed_memory),
        allocatable=amounts(~reserved, healthy, _allocatable_memory),
        kubelet=settings,
        devices=devices,
        reserved_cpus=reserved,
        exact=True,
    )
    cells = tuple(
        MemoryCells(cells=mask_of(index, books[str(zone.id)].cells), assignments=books[str(zone.id)].assignments)
        if str(zone.id) in books
        else MemoryCells(cells=1 << at)
        for at, zone in enumerate(zones)
    )

    def free_memory(zone: ZoneForm, resource: str) -> int:
        book = books.get(str(zone.id))
        if book is None or resource not in book.resources:
            return _allocatable_memory(zone, resource)
        return book.resources[resource].free

    free = amounts(free_cpus & ~reserved, free_devices, free_memory)
    return layout, State(free=free, cpus=free_cpus & ~reserved, devices=free_devices, memory=cells)


Rows = tuple[tuple[int, ...], ...]


def _check(machine: MachineForm) -> None:
    _check_unique("machine.numa: zone", [zone.id for zone in machine.numa])
    _check_unique("machine.numa: CPU", [cpu for zone in machine.numa for core in zone.cores for cpu in core])
    for resource, devices in machine.devices.items():
        _check_unique(f"machine.devices: {resource}", [device.id for device in devices])
    for zone in machine.numa:
        if not all(zone.cores) or max((cpu for core in zone.cores for cpu in core), default=0) >= MAX_CPUS:
            raise ValueError(f"machine.numa: zone {zone.id}: a core has 1 CPU or more, with ids below {MAX_CPUS}")
        if zone.uncore is not None and len(zone.uncore) != len(zone.cores):
            raise ValueError(f"machine.numa: zone {zone.id}: uncore needs one id for each of {len(zone.cores)} cores")


def _check_unique(what: str, found: Iterable[int | str]) -> None:
    seen: set[int | str] = set()
    for one in found:
        if one in seen:
            raise ValueError(f"{what} {one!r} is there more than once")
        seen.add(one)


def _cpus_in(zone: ZoneForm, cpus: int) -> int:
    if not zone.cores:
        return -1
    return 1000 * sum(1 for core in zone.cores for cpu in core if cpus >> cpu & 1)


def _devices_in(devices: tuple[DeviceLayout, ...], units: int, zone: int) -> int:
    here = [at for at, device in enumerate(devices) if device.zones >> zone & 1]
    return sum(units >> at & 1 for at in here) if here else -1


def _installed_memory(zone: ZoneForm, resource: str) -> int:
    return zone.memory_bytes if resource == MEMORY else _huge(zone)


def _allocatable_memory(zone: ZoneForm, resource: str) -> int:
    if resource != MEMORY:
        return _huge(zone)
    return max(zone.memory_bytes - zone.reserved_memory_bytes - _huge(zone), 0)


def _huge(zone: ZoneForm) -> int:
    return zone.hugepages_1gi << 30


def cpu_mask(text: str) -> int:
    """The CPUs of a list such as ``0-3,8``; raises ValueError where it is none."""
    found = 0
    for part in filter(None, text.split(",")):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or int(last or first) >= MAX_CPUS:
            raise ValueError(f"expected CPUs such as 0-3,8, got {text!r}")
        for cpu in range(int(first), int(last or first) + 1):
            found |= 1 << cpu
    return found


def mask_of(index: Mapping[int, int], ids: Iterable[int]) -> int:
    """The zone mask of some kubelet ids; raises ValueError where one is not a zone of the machine."""
    found = 0
    for zone in ids:
        if zone not in index:
            raise ValueError(f"there is no NUMA zone {zone}")
        found |= 1 << index[zone]
    return found


def from_nrt(nrt: NrtForm, options: Kubelet | None = None, threads: int = 2) -> tuple[Layout, State]:
    """Layout and state as far as a NodeResourceTopology tells.

    The CPU manager is static, and the memory manager Static, where any zone has CPUs or memory to give away. Options
    and threads a core are not in it; they may be given besides.
    """
    named = [(int(found[1]), zone) for zone in nrt.zones if zone.type == "Node" and (found := _id(zone)) is not None]
    named.sort(key=lambda item: item[0])
    _check_unique("nrt.zones:", [zone.name for _, zone in named])
    zones = [zone for _, zone in named]
    resources = tuple(sorted({resource for zone in zones for resource in zone.resources}))

    def rows(amount: Callable[[AmountsForm], Quantity]) -> Rows:
        return tuple(
            tuple(
                amount_of(resource, amount(zone.resources[resource])) if resource in zone.resources else -1
                for resource in resources
            )
            for zone in zones
        )

    allocatable = rows(lambda amounts: amounts.allocatable)
    manages = {resource for row in allocatable for resource, amount in zip(resources, row, strict=True) if amount > 0}
    layout = Layout(
        zones=tuple(
            Zone(id=zone_id, distances=tuple(zone.costs.get(other.name, 0) for other in zones) if zone.costs else ())
            for zone_id, zone in named
        ),
        resources=resources,
        capacity=rows(lambda amounts: amounts.capacity),
        allocatable=allocatable,
        kubelet=msgspec.structs.replace(
            options or Kubelet(),
            policy=TopologyPolicy(nrt.attributes.get("topologyManagerPolicy", TopologyPolicy.NONE)),
            scope=Scope(nrt.attributes.get("topologyManagerScope", Scope.CONTAINER)),
            static_cpu=CPU in manages,
            static_memory=any(is_memory(resource) for resource in manages),
        ),
        threads=threads,
    )
    return layout, State(free=rows(lambda amounts: amounts.available))


def _id(zone: NrtZoneForm) -> re.Match[str] | None:
    return _ZONE_NAME.fullmatch(zone.name)
