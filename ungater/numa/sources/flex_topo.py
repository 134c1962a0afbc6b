"""A machine from its FlexTopo: the graph in the spec is the hardware, the status what the kubelet holds.

The machine is exact where the status says that the kubelet's state could be read whole, and every CPU and memory zone
is in it. Else only the amounts are used, and they are amounts of what is installed less what is held.

Devices are numbered by the index that the driver gives them where the graph has it, else by their ids in natural order
(``gpu-2`` before ``gpu-10``).
"""

import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from crds import graph
from engine.kubelet.devices.links import LinkGraph
from engine.kubelet.devices.xpu import XpuBoard
from engine.kubelet.machine import CPU, DeviceLayout, Kubelet, Layout, Machine, MemoryCells, State, TopologyPolicy
from engine.quantity import bounded
from kube import objects
from kube.links import XPU_RESOURCE, device_links
from kube.topologies import FlexTopo, FlexTopoStatus, KubeletConfig, MemoryZone, PluginDevice
from ungater.numa.sources.checked import Problems
from ungater.numa.sources.flex_hardware import FlexHardware, hardware_of
from ungater.numa.sources.flex_holds import Columns, natural, placements_by_pod
from ungater.numa.sources.nrt import MAX_ALLOWABLE, OPTIONS, POLICIES, SCOPES

KIND = "FlexTopo"
READY = "Ready"
STATIC = "static"
NEWEST = Kubelet().version
UNKNOWN_THREADS = 2  # of a core, where nothing says: what most servers have
# Bounded: a node's status may say anything, and `int` raises ValueError for more than 4,300 digits.
_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,3})")


class _Reading(msgspec.Struct):
    """One object, as far as it is read."""

    topo: FlexTopo
    hardware: FlexHardware
    kubelet: Kubelet
    reserved: int  # CPU mask
    problems: Problems
    columns: Columns = msgspec.field(default_factory=Columns)

    @property
    def status(self) -> FlexTopoStatus:
        """What the kubelet holds."""
        return self.topo.status

    @property
    def ready(self) -> bool:
        """Whether the agent read the kubelet's state whole; where it does not say, what is there is taken for all."""
        found = objects.condition(self.status.conditions, READY)
        return found is None or found.status == "True"


def version_of(text: str | None) -> tuple[int, int]:
    """(major, minor) of ``v1.36.3``; of the newest known kubelet where that is not said."""
    found = _VERSION.match(text or "")
    return (int(found[1]), int(found[2])) if found else NEWEST


def machine_of(
    topo: FlexTopo,
    problems: Problems,
    *,
    version: tuple[int, int],
    ignored: tuple[str, ...] = (),
    annotations: Mapping[str, str] | None = None,
    xpus: Collection[str] = (XPU_RESOURCE,),
) -> Machine | None:
    """The machine; None where the graph has no zone.

    ``version``: of the node's kubelet, where the status has none; ``annotations``: of the node; ``xpus``: resources.
    """
    hardware = hardware_of(topo.spec, problems)
    if not hardware.zones:
        problems.report_missing("spec.nodes", "at least one component of type NUMANode, with id numa-<id>")
        return None
    config = topo.status.kubelet
    kubelet = _kubelet(config, version, problems) if config else Kubelet(version=version)
    reserved = problems.parse_cpu_set("status.kubelet.reservedCpus", config.reserved_cpus) if config else 0
    read = _Reading(topo, hardware, kubelet, reserved, problems)
    cpus, memory, devices = _cpus(read), _memory(read), _read_devices(read)
    exact = config is not None and cpus is not None and memory is not None and read.ready
    resources = tuple(sorted({*read.columns.capacity, *devices}))
    known = [devices.get(resource, []) if exact else [] for resource in resources]
    layout = Layout(
        zones=tuple(map(hardware.zone, hardware.zones)),
        resources=resources,
        capacity=_table(read.columns.capacity, hardware.zones, resources),
        allocatable=_table(read.columns.allocatable, hardware.zones, resources),
        kubelet=kubelet,
        devices=tuple(
            tuple(DeviceLayout(zones=hardware.mask(device.zones), healthy=device.healthy) for device in here)
            for here in known
        )
        if exact
        else (),
        reserved_cpus=reserved if exact else 0,
        threads=max(1, config.threads_per_core) if config else UNKNOWN_THREADS,
        links=_links(read, resources, devices, annotations, xpus),
        ignored=ignored,
        exact=exact,
    )
    free = _table(read.columns.free, hardware.zones, resources)
    if not exact:
        return Machine(node=topo.metadata.name, layout=layout, state=State(free=free))
    unused = (
        sum(1 << at for at, device in enumerate(here) if device.healthy and device.used_by is None) for here in known
    )
    return Machine(
        node=topo.metadata.name,
        layout=layout,
        state=State(free=free, cpus=cpus or 0, devices=tuple(unused), memory=memory or ()),
        device_ids={
            resource: tuple(device.id for device in here)
            for resource, here in zip(resources, known, strict=True)
            if here
        },
        holds=placements_by_pod(topo.status, hardware, read.columns),
    )


def _kubelet(config: KubeletConfig, version: tuple[int, int], problems: Problems) -> Kubelet:
    place = "status.kubelet"
    policy = problems.choice(f"{place}.topologyManagerPolicy", config.topology_manager_policy, POLICIES)
    scope = problems.choice(f"{place}.topologyManagerScope", config.topology_manager_scope, SCOPES)
    options: dict[str, bool] = {}
    most = Kubelet().max_allowable_numa_nodes
    for given in (config.topology_manager_policy_options, config.cpu_manager_policy_options):
        for name, value in (given or {}).items():
            # Kubelets write options with hyphens and exporters without them: one table serves both.
            plain = name.replace("-", "").lower()
            if plain == MAX_ALLOWABLE:
                most = problems.parse_whole_number(f"{place}.topologyManagerPolicyOptions[{name}]", value) or most
            elif flag := OPTIONS.get(plain):
                options[flag] = value.lower() == "true"
    return Kubelet(
        version=version_of(config.version) if config.version else version,
        policy=policy or TopologyPolicy.NONE,
        scope=scope or Kubelet().scope,
        static_cpu=config.cpu_manager_policy == STATIC,
        static_memory=config.memory_manager_policy.lower() == STATIC,
        max_allowable_numa_nodes=most,
        **options,
    )


def _cpus(read: _Reading) -> int | None:
    """CPUs that nobody holds, reserved ones left out; None where that is not known. Without the static policy: 0."""
    if not read.kubelet.static_cpu:
        return 0
    hardware, problems, state = read.hardware, read.problems, read.status.cpus
    online = (read.status.kubelet or KubeletConfig()).online_cpus
    in_zones = in_cores = 0
    for zone in hardware.zones:
        in_zones |= hardware.cpus[zone]
        for threads, _ in hardware.cores.get(zone, ()):
            in_cores |= sum(1 << cpu for cpu in threads)
    installed = problems.parse_cpu_set("status.kubelet.onlineCpus", online) or in_zones
    if installed & ~in_zones:
        problems.add("status.kubelet.onlineCpus", online, "CPUs of the NUMANodes alone")
    free = problems.parse_cpu_set("status.cpus.defaultSet", state.default_set) if state else 0
    if state is not None and free & ~installed:
        problems.add("status.cpus.defaultSet", state.default_set, "CPUs that are online")
    # The static policy keeps reserved CPUs in its default set, and gives none of them to a container of its own.
    free &= installed & ~read.reserved
    for zone in hardware.zones:
        here = hardware.cpus[zone] & installed
        counts = [mask.bit_count() * 1000 for mask in (here, here & ~read.reserved, here & free)]
        if here:
            read.columns.put(CPU, zone, (counts[0], counts[1], counts[2]))
    # A CPU of no known core: which threads go together is then not known, and no CPU can be foreseen.
    if state is None or state.default_set is None or installed & ~in_cores:
        if read.ready:
            problems.report_missing(
                "status.cpus.defaultSet", "the CPU manager's state, and every online CPU in a CPUCore"
            )
        return None
    return free


def _memory(read: _Reading) -> tuple[MemoryCells, ...] | None:
    """One entry a zone; None where the Memory Manager's state is not known. Without it: each zone its own group."""
    zones, problems, state = read.hardware.zones, read.problems, read.status.memory
    if not read.kubelet.static_memory:
        return tuple(MemoryCells(cells=1 << at) for at in range(len(zones)))
    found: dict[int, MemoryZone] = {}
    for at, wire in enumerate((state.zones if state else None) or ()):
        if wire.zone not in zones:
            problems.add(f"status.memory.zones[{at}].zone", wire.zone, "the id of one of the NUMANodes")
            continue
        found[wire.zone] = wire
        for amount in wire.amounts or ():
            if amount.free > amount.allocatable:
                place = f"status.memory.zones[{at}].amounts[{amount.type}].free"
                problems.add(place, amount.free, f"at most what is allocatable, {amount.allocatable}")
            # More free than allocatable was told above as a problem, and counts as the smaller of the two.
            total, allocatable = bounded(amount.total), bounded(amount.allocatable)
            read.columns.put(amount.type, wire.zone, (total, allocatable, min(bounded(amount.free), allocatable)))
    if set(found) != set(zones):
        if read.ready:
            problems.report_missing("status.memory.zones", "the Memory Manager's state of every NUMANode")
        return None
    return tuple(
        # Whatever the status says, a zone is in its own group.
        MemoryCells(cells=read.hardware.mask(found[zone].cells) | 1 << at, assignments=found[zone].assignments)
        for at, zone in enumerate(zones)
    )


def _read_devices(read: _Reading) -> dict[str, list[PluginDevice]]:
    """Devices of each resource in their order."""
    zones, gpus = read.hardware.zones, [one for one in read.topo.spec.nodes or () if one.type == graph.GPU]
    told = [gpu.attributes or {} for gpu in gpus]
    # The driver's index of each GPU by its uuid.
    indexes = {gpu["uuid"]: int(gpu["index"]) for gpu in told if "uuid" in gpu and gpu.get("index", "").isdecimal()}
    found: dict[str, list[PluginDevice]] = {}
    for at, wire in enumerate(read.status.devices or ()):
        for place, device in enumerate(wire.devices or ()):
            for zone in device.zones or ():
                if zone not in zones:
                    where = f"status.devices[{at}].devices[{place}].zones"
                    read.problems.add(where, zone, "the id of one of the NUMANodes")
        # Those of which the graph has no index come after all that have one.
        devices = sorted(wire.devices or (), key=lambda one: (indexes.get(one.id, len(indexes)), natural(one.id)))
        found[wire.resource] = devices
        for zone in zones:
            here = [device for device in devices if zone in (device.zones or ())]
            healthy = [device for device in here if device.healthy]
            if here:
                free = sum(device.used_by is None for device in healthy)
                read.columns.put(wire.resource, zone, (len(here), len(healthy), free))
    return found


def _links(
    read: _Reading,
    resources: Sequence[str],
    devices: Mapping[str, list[PluginDevice]],
    annotations: Mapping[str, str] | None,
    xpus: Collection[str],
) -> tuple[LinkGraph | XpuBoard | None, ...]:
    found: list[LinkGraph | XpuBoard | None] = []
    for resource in resources:
        here = devices.get(resource, [])
        links = device_links(
            resource,
            len(here),
            ids=[device.id for device in here],
            zones=[read.hardware.mask(device.zones) for device in here],
            zone_ids=read.hardware.zones,
            spec=read.topo.spec,
            annotations=annotations,
            xpus=xpus,
        )
        read.problems.add_problems(links.problems)
        found.append(links.found)
    return tuple(found) if any(each is not None for each in found) else ()


def _table(
    columns: Mapping[str, Mapping[int, int]], zones: Sequence[int], resources: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    nothing: Mapping[int, int] = {}
    return tuple(tuple(columns.get(resource, nothing).get(zone, -1) for resource in resources) for zone in zones)
