"""The status of a FlexTopo: who holds what, and the kubelet's state. Equal states make equal statuses."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime

from agent import graph
from agent.kubelet.checkpoints import MemoryNode
from agent.kubelet.held import Device, Held, Owner, Pod
from agent.machine import cpuset
from agent.machine.gpus import Gpus
from agent.machine.hardware import Hardware
from crds import graph as words
from crds.kinds.common import Condition
from crds.kinds.flex_topo import (
    ComponentUse,
    CpuAssignment,
    CpuState,
    DeviceState,
    FlexTopoStatus,
    Holder,
    KubeletConfig,
    MemoryAmount,
    MemoryAssignment,
    MemoryState,
    MemoryZone,
)
from crds.kinds.flex_topo import Device as DeviceModel
from engine.reasons import Reason

READY = "Ready"
REPLICA = "::"  # NVIDIA's device plugin names the shares of a GPU <uuid>::<number>
_MESSAGE = 4096


def status(held: Held, hardware: Hardware, gpus: Gpus, pods: Collection[Pod], core_group_size: int) -> FlexTopoStatus:
    """The status without ``conditions`` and ``observed_at``, which change with it only."""
    names = {pod.uid: pod for pod in pods}
    return FlexTopoStatus(
        kubelet=_kubelet(held, hardware),
        cpus=_cpus(held, names) if held.static_cpu else None,
        memory=_memory(held, names) if held.static_memory else None,
        devices=[_resource(resource, devices, names) for resource, devices in held.devices.items()],
        components=list(_components(held, hardware, gpus, names, core_group_size)),
    )


def ready(held: Held, hardware: Hardware, gpus: Gpus) -> tuple[bool, Reason, str]:
    """Whether the kubelet's next admission can be predicted exactly: the condition's status, reason and message."""
    missing = [*held.missing, *(problem for problem in hardware.problems if not problem.startswith("bus/pci/"))]
    notes = [*(problem for problem in hardware.problems if problem.startswith("bus/pci/")), *gpus.problems]
    if gpus.absent:
        notes.append(f"no GPUs are described, for NVML is not there: {gpus.absent}")
    told = f"; beside that: {'; '.join(notes)}" if notes else ""
    if missing:
        return False, Reason.STATE_INCOMPLETE, f"could not be read: {'; '.join(missing)}{told}"[:_MESSAGE]
    return True, Reason.READY, f"the kubelet's state is known exactly{told}"[:_MESSAGE]


def condition(
    found: tuple[bool, Reason, str], before: Iterable[Condition] | None, now: datetime, generation: int | None
) -> Condition:
    """The condition `Ready`; its transition time is kept where the status is as it was."""
    holds, reason, message = found
    value = "True" if holds else "False"
    last = next((each for each in before or () if each.type == READY), None)
    since = last.last_transition_time if last and last.status == value else now
    made = Condition(type=READY, status=value, reason=reason.value, message=message, last_transition_time=since)  # type: ignore[arg-type] # a Literal
    if generation:
        made.observed_generation = generation
    return made


# --- the kubelet -----------------------------------------------------------------------------------------------------


def _kubelet(held: Held, hardware: Hardware) -> KubeletConfig:
    config = held.config
    made = KubeletConfig(
        topology_manager_policy=config.topology_manager_policy,
        topology_manager_scope=config.topology_manager_scope,
        cpu_manager_policy="static" if held.static_cpu else "none",
        memory_manager_policy="Static" if held.static_memory else "None",
        threads_per_core=hardware.threads_per_core,
        online_cpus=cpuset.render(hardware.cpus),
        reserved_cpus=cpuset.render(held.reserved),
    )
    if held.version:
        made.version = held.version
    if config.topology_manager_policy_options:
        made.topology_manager_policy_options = dict(sorted(config.topology_manager_policy_options.items()))
    if config.cpu_manager_policy_options:
        made.cpu_manager_policy_options = dict(sorted(config.cpu_manager_policy_options.items()))
    return made


def _holder(owner: Owner, names: Mapping[str, Pod]) -> dict[str, str]:
    found = {"pod_uid": owner.uid, "container": owner.container}
    if pod := names.get(owner.uid):
        found |= {"namespace": pod.namespace, "pod": pod.name}
    return found


def _cpus(held: Held, names: Mapping[str, Pod]) -> CpuState:
    return CpuState(
        default_set=cpuset.render(held.default),
        assignments=[
            CpuAssignment(cpus=cpuset.render(cpus), **_holder(owner, names))
            for owner, cpus in sorted(held.cpus.items())
        ],
    )


def _memory(held: Held, names: Mapping[str, Pod]) -> MemoryState:
    return MemoryState(
        zones=[_memory_zone(zone, node) for zone, node in sorted(held.memory_zones.items())],
        assignments=[
            MemoryAssignment(
                type=block.type,
                zones=sorted(block.numa_affinity or ()),
                size=block.size,
                **_holder(owner, names),
            )
            for owner, blocks in sorted(held.memory.items())
            for block in sorted(blocks, key=lambda block: (block.type, block.numa_affinity or ()))
        ],
    )


def _memory_zone(zone: int, node: MemoryNode) -> MemoryZone:
    return MemoryZone(
        zone=zone,
        assignments=node.number_of_assignments,
        cells=sorted(node.cells or (zone,)),
        amounts=[
            MemoryAmount(
                type=kind,
                total=table.total,
                system_reserved=table.system_reserved,
                allocatable=table.allocatable,
                reserved=table.reserved,
                free=table.free,
            )
            for kind, table in sorted((node.memory_map or {}).items())
        ],
    )


def _resource(resource: str, devices: Mapping[str, Device], names: Mapping[str, Pod]) -> DeviceState:
    return DeviceState(resource=resource, devices=[_device(name, found, names) for name, found in devices.items()])


def _device(name: str, found: Device, names: Mapping[str, Pod]) -> DeviceModel:
    made = DeviceModel(id=name, healthy=found.healthy)
    if found.zones:
        made.zones = list(found.zones)
    if found.owner:
        made.used_by = Holder(**_holder(found.owner, names))
    return made


# --- components ------------------------------------------------------------------------------------------------------


def _components(
    held: Held, hardware: Hardware, gpus: Gpus, names: Mapping[str, Pod], size: int
) -> Iterator[ComponentUse]:
    """Core groups, cores and GPUs that are not free, as the graph orders them."""
    by_cpu: dict[int, list[Owner]] = {}
    for owner, cpus in sorted(held.cpus.items()):
        for cpu in cpus:
            by_cpu.setdefault(cpu, []).append(owner)
    groups = list(graph.groups(hardware, size))
    for group in groups:
        users = sorted({owner for cpu in group.cpus for owner in by_cpu.get(cpu, ())})
        if users:
            yield _use(group.id, "allocated", users, names)
        elif group.cpus <= held.reserved:
            yield _use(group.id, "reserved")
    for core in (core for group in groups for core in group.cores):
        if any(cpu in by_cpu for cpu in core.cpus):
            yield _use(words.core_id(core.cpus[0]), "allocated")
        elif held.reserved.issuperset(core.cpus):
            yield _use(words.core_id(core.cpus[0]), "reserved")
    yield from _gpus(held, gpus, names)


def _gpus(held: Held, gpus: Gpus, names: Mapping[str, Pod]) -> Iterator[ComponentUse]:
    by_gpu: dict[str, list[Device]] = {}
    for name, device in (pair for devices in held.devices.values() for pair in devices.items()):
        by_gpu.setdefault(name.partition(REPLICA)[0], []).append(device)
    for gpu in gpus.gpus:
        devices = by_gpu.get(gpu.uuid, [])
        users = sorted({device.owner for device in devices if device.owner})
        if gpu.fault or not all(device.healthy for device in devices):
            yield _use(graph.gpu_id(gpu), "unhealthy", users, names)
        elif users:
            yield _use(graph.gpu_id(gpu), "allocated", users, names)


def _use(
    component: str, status_: str, users: Collection[Owner] = (), names: Mapping[str, Pod] | None = None
) -> ComponentUse:
    used_by = [Holder(**_holder(owner, names or {})) for owner in list(users)[:512]]
    return ComponentUse.model_validate({"id": component, "status": status_, **({"used_by": used_by} if users else {})})
