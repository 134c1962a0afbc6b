"""A described machine in the engine's words, from hardware, kubelet and state.

Zones come in the order of their ids, devices in the order that is given.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from cli.whatif.forms import KubeletForm, MachineForm, PodForm, Quantity, StateForm, ZoneForm
from engine import quantity
from engine.kubelet.machine import (
    CPU,
    MEMORY,
    Container,
    DeviceLayout,
    Kubelet,
    Layout,
    MemoryCells,
    PodShape,
    State,
    Zone,
)
from engine.kubelet.resource_requests import is_memory

HUGEPAGES_1GI = "hugepages-1Gi"
MAX_CPUS = 8192
Rows = tuple[tuple[int, ...], ...]


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
    most_nodes = topology.get("max-allowable-numa-nodes", "8")
    if not most_nodes.isdecimal():
        raise ValueError(f"max-allowable-numa-nodes: expected a number, got {most_nodes!r}")
    return Kubelet(
        version=(int(version[1]), int(version[2])),
        policy=form.topology_manager_policy,
        scope=form.topology_manager_scope,
        static_cpu=form.cpu_manager_policy == "static",
        static_memory=form.memory_manager_policy == "Static",
        prefer_closest_numa_nodes=_is_option_set(topology, "prefer-closest-numa-nodes"),
        max_allowable_numa_nodes=int(most_nodes),
        full_pcpus_only=_is_option_set(cpu, "full-pcpus-only"),
        distribute_cpus_across_numa=_is_option_set(cpu, "distribute-cpus-across-numa"),
        distribute_cpus_across_cores=_is_option_set(cpu, "distribute-cpus-across-cores"),
        align_by_socket=_is_option_set(cpu, "align-by-socket"),
        prefer_align_cpus_by_uncorecache=_is_option_set(cpu, "prefer-align-cpus-by-uncorecache"),
        strict_cpu_reservation=_is_option_set(cpu, "strict-cpu-reservation"),
    )


def _is_option_set(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "false") == "true"


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
    # A state may list reserved CPUs as free; no pod ever gets them.
    free_cpus = cpu_mask(state.free_cpus) & ~reserved
    forms = [(listed.get(resource, ()), state.free_devices.get(resource, ())) for resource in resources]
    devices = tuple(
        tuple(DeviceLayout(zones=mask_of(index, one.numa), healthy=one.healthy) for one in some) for some, _ in forms
    )
    free_devices = tuple(sum(1 << at for at, one in enumerate(some) if one.id in ids) for some, ids in forms)
    healthy = [sum(1 << at for at, device in enumerate(some) if device.healthy) for some in devices]
    books = state.memory or {}

    def amounts(cpus: int, units: Sequence[int], memory: Callable[[ZoneForm, str], int]) -> Rows:
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

    def installed_memory(zone: ZoneForm, resource: str) -> int:
        return zone.memory_bytes if resource == MEMORY else _huge(zone)

    def free_memory(zone: ZoneForm, resource: str) -> int:
        book = books.get(str(zone.id))
        if book is None or resource not in book.resources:
            return _allocatable_memory(zone, resource)
        return book.resources[resource].free

    layout = Layout(
        zones=tuple(
            Zone(
                id=zone.id,
                socket=zone.socket,
                distances=tuple(zone.distances[at] for at in order) if len(zone.distances) == len(order) else (),
                cores=zone.cores,
                uncore=zone.uncore or (),
            )
            for zone in zones
        ),
        resources=resources,
        capacity=amounts(-1, [-1] * len(resources), installed_memory),
        allocatable=amounts(~reserved, healthy, _allocatable_memory),
        kubelet=settings,
        devices=devices,
        reserved_cpus=reserved,
        exact=True,
    )
    cells = tuple(
        MemoryCells(cells=1 << at)
        if (book := books.get(str(zone.id))) is None
        else MemoryCells(cells=mask_of(index, book.cells), assignments=book.assignments)
        for at, zone in enumerate(zones)
    )
    free = amounts(free_cpus, free_devices, free_memory)
    return layout, State(free=free, cpus=free_cpus, devices=free_devices, memory=cells)


def _check(machine: MachineForm) -> None:
    check_unique("machine.numa: zone", [zone.id for zone in machine.numa])
    check_unique("machine.numa: CPU", [cpu for zone in machine.numa for core in zone.cores for cpu in core])
    for resource, devices in machine.devices.items():
        check_unique(f"machine.devices: {resource}", [device.id for device in devices])
    for zone in machine.numa:
        if not all(zone.cores) or max((cpu for core in zone.cores for cpu in core), default=0) >= MAX_CPUS:
            raise ValueError(f"machine.numa: zone {zone.id}: a core has 1 CPU or more, with ids below {MAX_CPUS}")
        if zone.uncore is not None and len(zone.uncore) != len(zone.cores):
            raise ValueError(f"machine.numa: zone {zone.id}: uncore needs one id for each of {len(zone.cores)} cores")


def check_unique(what: str, found: Iterable[int | str]) -> None:
    """Raises ValueError where one is there twice."""
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
        # The bound comes before the loop: "0-9999999999" would run for minutes.
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
