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
    """Unique within the server, such as `gpu-GPU-3f1c` or `numa-3`."""
    type: Word
    """Socket, NUMANode, CPUCoreGroup, CPUCore, GPU, NIC, XPU, PCIeSwitch or another."""
    attributes: Options | None = None
    """Such as uuid, model, memory, cpus, pciAddress."""


class HardwareEdge(ApiModel):
    """How two components relate."""

    model_config = ConfigDict(
        json_schema_extra=cel(("self.source != self.target", "an edge needs two different components"))
    )

    source: ComponentId
    """The id it starts from."""
    target: ComponentId
    """The id it leads to."""
    type: Literal["host", "contain", "localized", "nearby", "link", "distance"]
    """host: a socket and its core groups; contain: a group and its cores; localized: a core group and its NUMA zone;
    nearby: a device and its NUMA zone; link: two devices; distance: two NUMA zones."""
    attributes: Options | None = None
    """Such as kind and count of a link (NV12, PIX), the distance in SLIT units."""


class FlexTopoSpec(ApiModel):
    """The hardware."""

    core_group_size: Annotated[int, Field(ge=1, le=1024)] = 8
    """Cores in a CPUCoreGroup; the last one of a zone may have fewer."""
    # Atomic, as are the components of the status: one writer makes them whole, and the API server then keeps no record
    # of who owns which entry, which would be larger than the graph itself.
    nodes: Annotated[list[HardwareNode], Field(max_length=8192, json_schema_extra=ATOMIC)] | None = None
    """The components."""
    edges: Annotated[list[HardwareEdge], Field(max_length=65_536, json_schema_extra=ATOMIC)] | None = None
    """Their relations."""


class Holder(ApiModel):
    """A container that holds something."""

    pod_uid: Uid
    """The pod's uid."""
    namespace: LabelName | None = None
    """The pod's namespace, where the pod is known."""
    pod: ObjectName | None = None
    """The pod's name, where the pod is known."""
    container: LabelName
    """The container."""


class ComponentUse(ApiModel):
    """Whether one component of spec.nodes is in use."""

    id: ComponentId
    """The component."""
    status: Literal["free", "allocated", "unhealthy", "reserved"]
    """free: may be given out; reserved: kept for the system."""
    used_by: Annotated[list[Holder], Field(max_length=512, json_schema_extra=ATOMIC)] | None = None
    """Who uses it."""


class KubeletConfig(ApiModel):
    """What decides how the kubelet admits pods."""

    version: Annotated[str, Field(max_length=64)] | None = None
    """The kubelet's version, such as v1.36.3."""
    topology_manager_policy: Literal["none", "best-effort", "restricted", "single-numa-node"] = "none"
    """The Topology Manager's policy."""
    topology_manager_scope: Literal["container", "pod"] = "container"
    """What the Topology Manager aligns."""
    topology_manager_policy_options: Options | None = None
    """Such as prefer-closest-numa-nodes."""
    cpu_manager_policy: Literal["none", "static"] = "none"
    """The CPU Manager's policy."""
    cpu_manager_policy_options: Options | None = None
    """Such as full-pcpus-only."""
    memory_manager_policy: Literal["None", "Static"] = "None"
    """The Memory Manager's policy."""
    threads_per_core: Annotated[int, Field(ge=1, le=16)] = 1
    """Hardware threads of a core."""
    online_cpus: CpuSet | None = None
    """CPUs that are online, reserved ones included."""
    reserved_cpus: CpuSet | None = None
    """CPUs that are kept for the system."""


class CpuAssignment(Holder):
    """CPUs that one container holds for itself."""

    cpus: CpuSet
    """The CPUs."""


class CpuState(ApiModel):
    """The CPU Manager's state."""

    default_set: CpuSet | None = None
    """CPUs that no container holds for itself, reserved ones included."""
    assignments: (
        Annotated[list[CpuAssignment], Field(max_length=4096, json_schema_extra=by_key("podUid", "container"))] | None
    ) = None
    """CPUs held by containers, also by init containers that still count."""


class MemoryAmount(ApiModel):
    """Memory of one type in one NUMA zone, in bytes."""

    type: ResourceName
    """memory, hugepages-2Mi or hugepages-1Gi."""
    total: Bytes
    """Installed."""
    system_reserved: Bytes = 0
    """Kept for the system."""
    allocatable: Bytes
    """What containers can get."""
    reserved: Bytes = 0
    """What containers hold."""
    free: Bytes
    """What is left."""


class MemoryZone(ApiModel):
    """The Memory Manager's state of one NUMA zone."""

    zone: ZoneId
    """The NUMA zone."""
    assignments: Count = 0
    """Containers that hold memory here."""
    cells: Zones | None = None
    """The zones that are one group with this one, itself included."""
    amounts: Annotated[list[MemoryAmount], Field(max_length=16, json_schema_extra=by_key("type"))] | None = None
    """Memory by type."""


class MemoryAssignment(Holder):
    """Memory that one container holds."""

    type: ResourceName
    """memory or hugepages."""
    zones: Zones
    """The zones it comes from, as one group."""
    size: Bytes
    """Bytes."""


class MemoryState(ApiModel):
    """The Memory Manager's state."""

    zones: Annotated[list[MemoryZone], Field(max_length=64, json_schema_extra=by_key("zone"))] | None = None
    """State by NUMA zone."""
    assignments: Annotated[list[MemoryAssignment], Field(max_length=4096, json_schema_extra=ATOMIC)] | None = None
    """Memory held by containers."""


class Device(ApiModel):
    """One device of a device plugin."""

    id: ComponentId
    """The plugin's id."""
    zones: Zones | None = None
    """NUMA zones it belongs to; absent: the plugin says none."""
    healthy: bool = True
    """Whether it may be given out; if not, it still counts in the width of a hint."""
    used_by: Holder | None = None
    """Who holds it."""


class DeviceState(ApiModel):
    """The Device Manager's state of one resource."""

    resource: ResourceName
    """Such as nvidia.com/gpu."""
    devices: Annotated[list[Device], Field(max_length=4096, json_schema_extra=by_key("id"))] | None = None
    """Its devices."""


class FlexTopoStatus(ApiModel):
    """Who holds what, and what the kubelet will make of the next pod."""

    conditions: Conditions | None = None
    """`Ready`: whether the kubelet's state was read whole, and what was missing."""
    observed_at: datetime | None = None
    """When the kubelet's state was read, if it had changed."""
    kubelet: KubeletConfig | None = None
    """The kubelet's configuration."""
    cpus: CpuState | None = None
    """CPUs."""
    memory: MemoryState | None = None
    """Memory."""
    devices: Annotated[list[DeviceState], Field(max_length=64, json_schema_extra=by_key("resource"))] | None = None
    """Devices by resource."""
    components: Annotated[list[ComponentUse], Field(max_length=8192, json_schema_extra=ATOMIC)] | None = None
    """Use of the components of spec.nodes that are not free."""


class FlexTopo(ApiObject):
    """FlexTopo is the hardware of one node as a graph, and what its kubelet gave to whom."""

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
