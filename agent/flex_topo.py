"""The FlexTopo as the agent writes it; `crds.kinds.flex_topo` explains every field.

The same kind in shapes that cost the agent's process a tenth of what those models do. What has a default there has the
same one here, and is left out on the wire, whoever filled it in; what an API server knows beside these is not looked
at. `kube.topologies` has the fields that readers read, as loosely as anybody may have written them.
"""

from kube.objects import Condition, Object, StrMap, Struct
from kube.topologies import KubeletConfig

Zones = tuple[int, ...]


class Component(Struct, frozen=True):
    """A component of the hardware graph."""

    id: str
    type: str
    attributes: StrMap | None = None


class Edge(Struct, frozen=True):
    """How two components relate."""

    source: str
    target: str
    type: str
    attributes: StrMap | None = None


class FlexTopoSpec(Struct, frozen=True):
    """The hardware."""

    core_group_size: int = 8
    nodes: tuple[Component, ...] | None = None
    edges: tuple[Edge, ...] | None = None


class Holder(Struct, frozen=True, kw_only=True):
    """A container that holds something."""

    pod_uid: str
    namespace: str | None = None
    pod: str | None = None
    container: str


class ComponentUse(Struct, frozen=True):
    """Whether one component is in use."""

    id: str
    status: str
    used_by: tuple[Holder, ...] | None = None


class CpuAssignment(Holder, frozen=True, kw_only=True):
    """CPUs that one container holds for itself."""

    cpus: str


class CpuState(Struct, frozen=True):
    """The CPU Manager's state."""

    default_set: str | None = None
    assignments: tuple[CpuAssignment, ...] | None = None


class MemoryAmount(Struct, frozen=True, kw_only=True):
    """Memory of one type in one zone, in bytes."""

    type: str
    total: int
    system_reserved: int = 0
    allocatable: int
    reserved: int = 0
    free: int


class MemoryZone(Struct, frozen=True):
    """The Memory Manager's state of one zone."""

    zone: int
    assignments: int = 0
    cells: Zones | None = None
    amounts: tuple[MemoryAmount, ...] | None = None


class MemoryAssignment(Holder, frozen=True, kw_only=True):
    """Memory that one container holds, in bytes."""

    type: str
    zones: Zones
    size: int


class MemoryUse(Struct, frozen=True):
    """The Memory Manager's state."""

    zones: tuple[MemoryZone, ...] | None = None
    assignments: tuple[MemoryAssignment, ...] | None = None


class PluginDevice(Struct, frozen=True):
    """One device of a device plugin."""

    id: str
    zones: Zones | None = None
    healthy: bool = True
    used_by: Holder | None = None


class DeviceState(Struct, frozen=True):
    """The Device Manager's state of one resource."""

    resource: str
    devices: tuple[PluginDevice, ...] | None = None


class FlexTopoStatus(Struct, frozen=True):
    """Who holds what; ``observed_at`` in RFC 3339."""

    conditions: tuple[Condition, ...] | None = None
    observed_at: str | None = None
    kubelet: KubeletConfig | None = None
    cpus: CpuState | None = None
    memory: MemoryUse | None = None
    devices: tuple[DeviceState, ...] | None = None
    components: tuple[ComponentUse, ...] | None = None


class FlexTopo(Object, frozen=True):
    """The hardware of one node as a graph, and what its kubelet gave to whom; named as the node."""

    spec: FlexTopoSpec = FlexTopoSpec()
    status: FlexTopoStatus | None = None
