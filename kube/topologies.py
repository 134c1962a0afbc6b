"""Wire shapes of NodeResourceTopology and FlexTopo: the fields we read and no other, as in `kube.objects`.

Values that others write are taken as loosely as they may come, so that one bad number is a problem with a name
(`ungater.numa.sources`) and not an object that cannot be read.
"""

from kube.objects import Condition, Object, Quantity, StrMap, Struct

# --- NodeResourceTopology (topology.node.k8s.io/v1alpha2): no spec and no status -------------------------------------


class NamedValue(Struct, frozen=True):
    """An attribute, or the cost of another zone."""

    name: str = ""
    value: Quantity | None = None


class ZoneResource(Struct, frozen=True):
    """A resource of a zone: installed, for pods, and free."""

    name: str = ""
    capacity: Quantity | None = None
    allocatable: Quantity | None = None
    available: Quantity | None = None


class TopologyZone(Struct, frozen=True):
    """A zone; those of another type than ``Node`` are none of the kubelet's."""

    name: str = ""
    type: str = ""
    costs: tuple[NamedValue, ...] | None = None
    resources: tuple[ZoneResource, ...] | None = None


class NodeResourceTopology(Object, frozen=True):
    """What an exporter publishes of a node's zones; named as the node."""

    topology_policies: tuple[str, ...] | None = None
    attributes: tuple[NamedValue, ...] | None = None
    zones: tuple[TopologyZone, ...] | None = None


# --- FlexTopo (`crds.kinds.flex_topo` explains every field) -----------------------------------------------------------


class Component(Struct, frozen=True):
    """A component of the hardware graph."""

    id: str = ""
    type: str = ""
    attributes: StrMap | None = None


class Edge(Struct, frozen=True):
    """How two components relate."""

    source: str = ""
    target: str = ""
    type: str = ""
    attributes: StrMap | None = None


class FlexTopoSpec(Struct, frozen=True):
    """The hardware."""

    nodes: tuple[Component, ...] | None = None
    edges: tuple[Edge, ...] | None = None


class KubeletConfig(Struct, frozen=True):
    """What decides how the kubelet admits pods."""

    version: str | None = None
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: StrMap | None = None
    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: StrMap | None = None
    memory_manager_policy: str = "None"
    threads_per_core: int = 1
    online_cpus: str | None = None
    reserved_cpus: str | None = None


class Holder(Struct, frozen=True):
    """A container that holds something."""

    pod_uid: str = ""
    namespace: str | None = None
    pod: str | None = None


class CpuAssignment(Holder, frozen=True):
    """CPUs that one container holds for itself."""

    cpus: str = ""


class CpuState(Struct, frozen=True):
    """The CPU Manager's state."""

    default_set: str | None = None
    assignments: tuple[CpuAssignment, ...] | None = None


class MemoryAmount(Struct, frozen=True):
    """Memory of one type in one zone, in bytes."""

    type: str = ""
    total: int = 0
    allocatable: int = 0
    reserved: int = 0
    free: int = 0


class MemoryZone(Struct, frozen=True):
    """The Memory Manager's state of one zone."""

    zone: int = 0
    assignments: int = 0
    cells: tuple[int, ...] | None = None
    amounts: tuple[MemoryAmount, ...] | None = None


class MemoryAssignment(Holder, frozen=True):
    """Memory that one container holds, from ``zones`` as one group."""

    type: str = ""
    zones: tuple[int, ...] = ()
    size: int = 0


class MemoryState(Struct, frozen=True):
    """The Memory Manager's state."""

    zones: tuple[MemoryZone, ...] | None = None
    assignments: tuple[MemoryAssignment, ...] | None = None


class Device(Struct, frozen=True):
    """One device of a device plugin; ``zones`` absent: the plugin says none."""

    id: str = ""
    zones: tuple[int, ...] | None = None
    healthy: bool = True
    used_by: Holder | None = None


class DeviceState(Struct, frozen=True):
    """The Device Manager's state of one resource."""

    resource: str = ""
    devices: tuple[Device, ...] | None = None


class FlexTopoStatus(Struct, frozen=True):
    """Who holds what."""

    conditions: tuple[Condition, ...] | None = None
    kubelet: KubeletConfig | None = None
    cpus: CpuState | None = None
    memory: MemoryState | None = None
    devices: tuple[DeviceState, ...] | None = None


class FlexTopo(Object, frozen=True):
    """The hardware of one node as a graph, and what the kubelet has given to whom; named as the node."""

    spec: FlexTopoSpec = FlexTopoSpec()
    status: FlexTopoStatus = FlexTopoStatus()
