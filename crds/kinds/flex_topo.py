"""FlexTopo: one graph for any server's hardware, and the kubelet's allocations on it.

The object is named as its node. ``spec`` is the hardware and changes rarely; ``status`` is what the kubelet holds,
complete enough to predict its next admission exactly: manager policies and options, the CPUs, memory and devices that
are held by each container (ordinary init containers included), memory cells, and unhealthy devices.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from crds.kinds.common import (
    AGE,
    ATOMIC,
    ApiModel,
    ApiObject,
    Column,
    Conditions,
    Count,
    Definition,
    LabelName,
    ObjectName,
    ResourceName,
    Uid,
    by_key,
    cel,
    condition_column,
)

ComponentId = Annotated[str, Field(min_length=1, max_length=128)]
Word = Annotated[str, Field(min_length=1, max_length=63, pattern="^[A-Za-z][-A-Za-z0-9_]*$")]
CpuSet = Annotated[str, Field(max_length=16_384, pattern=r"^([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?$")]
ZoneId = Annotated[int, Field(ge=0, le=4095)]
Zones = Annotated[list[ZoneId], Field(max_length=64, json_schema_extra=ATOMIC)]
Bytes = Annotated[int, Field(ge=0)]
# Some machines number CPUs round the zones, so that a zone's list is as long as its CPUs are many.
Options = Annotated[dict[str, Annotated[str, Field(max_length=16_384)]], Field(max_length=64)]


class HardwareNode(ApiModel):
    """One component: a socket, a NUMA zone, a group of cores, a core, a device."""

    id: ComponentId
    """The id of the component, unique within the server, such as `gpu-GPU-3f1c` or `numa-3`."""
    type: Word
    """The type of the component: Socket, NUMANode, CPUCoreGroup, CPUCore, GPU, NIC, XPU, PCIeSwitch or another."""
    attributes: Options | None = None
    """Attributes, such as uuid, model, memory, cpus and pciAddress."""


class HardwareEdge(ApiModel):
    """How two components relate."""

    model_config = ConfigDict(
        json_schema_extra=cel(("self.source != self.target", "an edge must connect two different components"))
    )

    source: ComponentId
    """The id of the component at which the edge starts."""
    target: ComponentId
    """The id of the component to which the edge leads."""
    type: Literal["host", "contain", "localized", "nearby", "link", "distance"]
    """What the edge connects. host: a socket and its core groups. contain: a group and its cores. localized: a core
    group and its NUMA zone. nearby: a device and its NUMA zone. link: two devices. distance: two NUMA zones."""
    attributes: Options | None = None
    """Attributes, such as the kind and count of a link (NV12, PIX), or the distance in SLIT units."""


class FlexTopoSpec(ApiModel):
    """The hardware."""

    core_group_size: Annotated[int, Field(ge=1, le=1024)] = 8
    """The number of cores in a CPUCoreGroup. The last group of a zone may have fewer."""
    # Atomic, as are the components of the status: one writer makes them whole, and the API server then keeps no record
    # of who owns which entry, which would be larger than the graph itself.
    nodes: Annotated[list[HardwareNode], Field(max_length=8192, json_schema_extra=ATOMIC)] | None = None
    """The components of the hardware."""
    edges: Annotated[list[HardwareEdge], Field(max_length=65_536, json_schema_extra=ATOMIC)] | None = None
    """The relations between the components."""


class Holder(ApiModel):
    """A container that holds something."""

    pod_uid: Uid
    """The UID of the pod."""
    namespace: LabelName | None = None
    """The namespace of the pod, if the pod is known."""
    pod: ObjectName | None = None
    """The name of the pod, if the pod is known."""
    container: LabelName
    """The name of the container."""


class ComponentUse(ApiModel):
    """Whether one component of spec.nodes is in use."""

    id: ComponentId
    """The id of the component."""
    status: Literal["free", "allocated", "unhealthy", "reserved"]
    """The status of the component. free: it can be allocated. reserved: it is kept for the system."""
    used_by: Annotated[list[Holder], Field(max_length=512, json_schema_extra=ATOMIC)] | None = None
    """The containers that use the component."""


class KubeletConfig(ApiModel):
    """What decides how the kubelet admits pods."""

    version: Annotated[str, Field(max_length=64)] | None = None
    """The version of the kubelet, such as v1.36.3."""
    topology_manager_policy: Literal["none", "best-effort", "restricted", "single-numa-node"] = "none"
    """The policy of the Topology Manager."""
    topology_manager_scope: Literal["container", "pod"] = "container"
    """The scope of the Topology Manager: whether it aligns containers or pods."""
    topology_manager_policy_options: Options | None = None
    """Options of the Topology Manager, such as prefer-closest-numa-nodes."""
    cpu_manager_policy: Literal["none", "static"] = "none"
    """The policy of the CPU Manager."""
    cpu_manager_policy_options: Options | None = None
    """Options of the CPU Manager, such as full-pcpus-only."""
    memory_manager_policy: Literal["None", "Static"] = "None"
    """The policy of the Memory Manager."""
    threads_per_core: Annotated[int, Field(ge=1, le=16)] = 1
    """The number of hardware threads of a core."""
    online_cpus: CpuSet | None = None
    """The CPUs that are online, including reserved CPUs."""
    reserved_cpus: CpuSet | None = None
    """The CPUs that are kept for the system."""


class CpuAssignment(Holder):
    """CPUs that one container holds for itself."""

    cpus: CpuSet
    """The CPUs."""


class CpuState(ApiModel):
    """The CPU Manager's state."""

    default_set: CpuSet | None = None
    """The CPUs that no container holds exclusively, including reserved CPUs."""
    assignments: (
        Annotated[list[CpuAssignment], Field(max_length=4096, json_schema_extra=by_key("podUid", "container"))] | None
    ) = None
    """The CPUs that containers hold exclusively, including init containers that still count."""


class MemoryAmount(ApiModel):
    """Memory of one type in one NUMA zone, in bytes."""

    type: ResourceName
    """The type of memory: memory, hugepages-2Mi or hugepages-1Gi."""
    total: Bytes
    """The amount that is installed."""
    system_reserved: Bytes = 0
    """The amount that is kept for the system."""
    allocatable: Bytes
    """The amount that can be allocated to containers."""
    reserved: Bytes = 0
    """The amount that containers hold."""
    free: Bytes
    """The amount that is left."""


class MemoryZone(ApiModel):
    """The Memory Manager's state of one NUMA zone."""

    zone: ZoneId
    """The NUMA zone."""
    assignments: Count = 0
    """The number of containers that hold memory in this zone."""
    cells: Zones | None = None
    """The zones that form a group with this zone, including itself."""
    amounts: Annotated[list[MemoryAmount], Field(max_length=16, json_schema_extra=by_key("type"))] | None = None
    """The amounts of memory by type."""


class MemoryAssignment(Holder):
    """Memory that one container holds."""

    type: ResourceName
    """The type of memory: memory or huge pages."""
    zones: Zones
    """The zones that the memory comes from, as one group."""
    size: Bytes
    """The size in bytes."""


class MemoryState(ApiModel):
    """The Memory Manager's state."""

    zones: Annotated[list[MemoryZone], Field(max_length=64, json_schema_extra=by_key("zone"))] | None = None
    """The state of each NUMA zone."""
    assignments: Annotated[list[MemoryAssignment], Field(max_length=4096, json_schema_extra=ATOMIC)] | None = None
    """The memory that containers hold."""


class Device(ApiModel):
    """One device of a device plugin."""

    id: ComponentId
    """The id of the device, as its plugin reports it."""
    zones: Zones | None = None
    """The NUMA zones that the device belongs to. Absent if the plugin reports none."""
    healthy: bool = True
    """Whether the device can be allocated. An unhealthy device still counts in the width of a hint."""
    used_by: Holder | None = None
    """The container that holds the device."""


class DeviceState(ApiModel):
    """The Device Manager's state of one resource."""

    resource: ResourceName
    """The resource, such as nvidia.com/gpu."""
    devices: Annotated[list[Device], Field(max_length=4096, json_schema_extra=by_key("id"))] | None = None
    """The devices of the resource."""


class FlexTopoStatus(ApiModel):
    """Who holds what, and what the kubelet will make of the next pod."""

    conditions: Conditions | None = None
    """The conditions. `Ready` says whether all of the kubelet's state was read, and if not, what was missing."""
    observed_at: datetime | None = None
    """When a change of the kubelet's state was last read."""
    kubelet: KubeletConfig | None = None
    """The configuration of the kubelet."""
    cpus: CpuState | None = None
    """The allocation of CPUs."""
    memory: MemoryState | None = None
    """The allocation of memory."""
    devices: Annotated[list[DeviceState], Field(max_length=64, json_schema_extra=by_key("resource"))] | None = None
    """The allocation of devices, by resource."""
    components: Annotated[list[ComponentUse], Field(max_length=8192, json_schema_extra=ATOMIC)] | None = None
    """The use of those components of spec.nodes that are not free."""


class FlexTopo(ApiObject):
    """FlexTopo describes the hardware of a node as a graph, and what its kubelet allocated to which containers."""

    definition = Definition(
        plural="flextopos",
        singular="flextopo",
        short_names=("ft",),
        namespaced=False,
        columns=(
            Column("Policy", ".status.kubelet.topologyManagerPolicy", "string"),
            Column("Scope", ".status.kubelet.topologyManagerScope", "string"),
            condition_column("Ready", "Ready", "status"),
            condition_column("Reason", "Ready", "reason"),
            Column("Observed", ".status.observedAt", "date"),
            AGE,
            Column("Kubelet", ".status.kubelet.version", "string", 1),
        ),
    )

    spec: FlexTopoSpec = Field(default_factory=FlexTopoSpec)
    """The hardware."""
    status: FlexTopoStatus | None = None
    """The allocations."""
