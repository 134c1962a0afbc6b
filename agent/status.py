"""The status of a FlexTopo: who holds what, and the kubelet's state. Equal states make equal statuses."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from agent import graph
from agent.kubelet.held import KubeletDevice, KubeletPod, KubeletState, Owner
from agent.machine import cpuset
from agent.machine.gpus import Gpus
from agent.machine.hardware import Hardware
from crds import graph as words
from engine.reasons import Reason
from kube.objects import Condition
from kube.topologies import (
    ComponentUse,
    CpuAssignment,
    CpuState,
    DeviceState,
    Holder,
    KubeletConfig,
    MemoryAmount,
    MemoryAssignment,
    MemoryUse,
    MemoryZone,
    PluginDevice,
    WholeFlexTopoStatus,
)

READY = "Ready"
REPLICA = "::"  # NVIDIA's device plugin names the shares of a GPU <uuid>::<number>
_MESSAGE = 4096


def status(
    held: KubeletState, hardware: Hardware, gpus: Gpus, pods: Collection[KubeletPod], core_group_size: int
) -> WholeFlexTopoStatus:
    """The status without ``conditions`` and ``observed_at``, which change with it only."""
    names = {pod.uid: pod for pod in pods}
    assigned = tuple(
        CpuAssignment(cpus=cpuset.render(cpus), **_holder(owner, names)) for owner, cpus in sorted(held.cpus.items())
    )
    config = held.config
    topology, cpu = config.topology_manager_policy_options, config.cpu_manager_policy_options
    return WholeFlexTopoStatus(
        kubelet=KubeletConfig(
            version=held.version or None,
            topology_manager_policy=config.topology_manager_policy,
            topology_manager_scope=config.topology_manager_scope,
            topology_manager_policy_options=dict(sorted(topology.items())) if topology else None,
            cpu_manager_policy="static" if held.static_cpu else "none",
            cpu_manager_policy_options=dict(sorted(cpu.items())) if cpu else None,
            memory_manager_policy="Static" if held.static_memory else "None",
            threads_per_core=hardware.threads_per_core,
            online_cpus=cpuset.render(hardware.cpus),
            reserved_cpus=cpuset.render(held.reserved),
        ),
        cpus=CpuState(default_set=cpuset.render(held.default), assignments=assigned) if held.static_cpu else None,
        memory=_memory(held, names) if held.static_memory else None,
        devices=tuple(
            DeviceState(
                resource=resource,
                devices=tuple(
                    PluginDevice(
                        id=name,
                        zones=device.zones or None,
                        healthy=device.healthy,
                        used_by=Holder(**_holder(device.owner, names)) if device.owner else None,
                    )
                    for name, device in devices.items()
                ),
            )
            for resource, devices in held.devices.items()
        ),
        components=tuple(_components(held, hardware, gpus, names, core_group_size)),
    )


def ready(held: KubeletState, hardware: Hardware, gpus: Gpus) -> tuple[bool, Reason, str]:
    """Whether the kubelet's next admission can be predicted exactly: the condition's status, reason and message."""
    # A fault on the PCI bus changes no admission: the kubelet hears of devices and their zones from plugins.
    missing = [*held.missing, *(problem for problem in hardware.problems if not problem.startswith("bus/pci/"))]
    notes = [*(problem for problem in hardware.problems if problem.startswith("bus/pci/")), *gpus.problems]
    if gpus.absent:
        notes.append(f"no GPUs are described, for NVML is not there: {gpus.absent}")
    told = f"; beside that: {'; '.join(notes)}" if notes else ""
    if missing:
        return False, Reason.STATE_INCOMPLETE, f"could not be read: {'; '.join(missing)}{told}"[:_MESSAGE]
    return True, Reason.READY, f"the kubelet's state is known exactly{told}"[:_MESSAGE]


def condition(
    found: tuple[bool, Reason, str], before: Iterable[Condition] | None, now: str, generation: int
) -> Condition:
    """The condition `Ready`; its transition time is kept where the status is as it was. ``now`` in RFC 3339."""
    holds, reason, message = found
    value = "True" if holds else "False"
    last = next((each for each in before or () if each.type == READY), None)
    since = last.last_transition_time if last and last.status == value else now
    return Condition(
        type=READY,
        status=value,
        reason=reason.value,
        message=message,
        last_transition_time=since,
        observed_generation=generation,
    )


# --- the kubelet -----------------------------------------------------------------------------------------------------


def _holder(owner: Owner, names: Mapping[str, KubeletPod]) -> dict[str, str]:
    found = {"pod_uid": owner.uid, "container": owner.container}
    if pod := names.get(owner.uid):
        found |= {"namespace": pod.namespace, "pod": pod.name}
    return found


def _memory(held: KubeletState, names: Mapping[str, KubeletPod]) -> MemoryUse:
    return MemoryUse(
        zones=tuple(
            MemoryZone(
                zone=zone,
                assignments=node.number_of_assignments,
                cells=tuple(sorted(node.cells or (zone,))),
                amounts=tuple(
                    MemoryAmount(
                        type=kind,
                        total=table.total,
                        system_reserved=table.system_reserved,
                        allocatable=table.allocatable,
                        reserved=table.reserved,
                        free=table.free,
                    )
                    for kind, table in sorted((node.memory_map or {}).items())
                ),
            )
            for zone, node in sorted(held.memory_zones.items())
        ),
        assignments=tuple(
            MemoryAssignment(
                type=block.type,
                zones=tuple(sorted(block.numa_affinity or ())),
                size=block.size,
                **_holder(owner, names),
            )
            for owner, blocks in sorted(held.memory.items())
            for block in sorted(blocks, key=lambda block: (block.type, block.numa_affinity or ()))
        ),
    )


# --- components ------------------------------------------------------------------------------------------------------


def _components(
    held: KubeletState, hardware: Hardware, gpus: Gpus, names: Mapping[str, KubeletPod], size: int
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
            yield _component_use(group.id, "allocated", users, names)
        elif group.cpus <= held.reserved:
            yield _component_use(group.id, "reserved")
    for core in (core for group in groups for core in group.cores):
        if any(cpu in by_cpu for cpu in core.cpus):
            yield _component_use(words.core_id(core.cpus[0]), "allocated")
        elif held.reserved.issuperset(core.cpus):
            yield _component_use(words.core_id(core.cpus[0]), "reserved")
    yield from _gpus(held, gpus, names)


def _gpus(held: KubeletState, gpus: Gpus, names: Mapping[str, KubeletPod]) -> Iterator[ComponentUse]:
    by_gpu: dict[str, list[KubeletDevice]] = {}
    for name, device in (pair for devices in held.devices.values() for pair in devices.items()):
        by_gpu.setdefault(name.partition(REPLICA)[0], []).append(device)
    for gpu in gpus.gpus:
        devices = by_gpu.get(gpu.uuid, [])
        users = sorted({device.owner for device in devices if device.owner})
        if gpu.fault or not all(device.healthy for device in devices):
            yield _component_use(graph.gpu_id(gpu), "unhealthy", users, names)
        elif users:
            yield _component_use(graph.gpu_id(gpu), "allocated", users, names)


def _component_use(
    component: str, status_: str, users: Collection[Owner] = (), names: Mapping[str, KubeletPod] | None = None
) -> ComponentUse:
    # The kind takes no more, and one list that is too long would have the whole object refused.
    used_by = tuple(Holder(**_holder(owner, names or {})) for owner in list(users)[:512])
    return ComponentUse(id=component, status=status_, used_by=used_by or None)
