"""Wire shapes of NodeResourceTopology and FlexTopo, for the agent that writes them and all who read them.

Of NodeResourceTopology there are the fields that are read and no other. Values that others write are taken as loosely
as they may come, so that one bad number is a problem with a name (`ungater.numa.sources`) and not an object that cannot
be read.

A FlexTopo costs the agent's process a tenth of what the models in `crds.kinds.flex_topo` do, which explain every field.
What has a default there has the same one here, and is left out on the wire, whoever filled it in. What is required
there is always written, and read where it is missing too: an agent of another version may have left it out.
`WholeFlexTopo` has, besides, what the agent writes for people alone, which readers of many nodes need not keep.
"""

import msgspec

from kube.objects import Condition, Object, Quantity, StrMap, Struct

Zones = tuple[int, ...]

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


# --- FlexTopo ---------------------------------------------------------------------------------------------------------


def _no_zones() -> Zones:
    # A function: an empty tuple by default, or made by `tuple`, would be left out on the wire.
    return ()


class Component(Struct, frozen=True):
    """A component of the hardware graph."""

    id: str = msgspec.field(default_factory=str)
    type: str = msgspec.field(default_factory=str)
    attributes: StrMap | None = None


class Edge(Struct, frozen=True):
    """How two components relate."""

    source: str = msgspec.field(default_factory=str)
    target: str = msgspec.field(default_factory=str)
    type: str = msgspec.field(default_factory=str)
    attributes: StrMap | None = None


class FlexTopoSpec(Struct, frozen=True):
    """The hardware."""

    core_group_size: int = 8
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

    pod_uid: str = msgspec.field(default_factory=str)
    namespace: str | None = None
    pod: str | None = None
    container: str = msgspec.field(default_factory=str)


class CpuAssignment(Holder, frozen=True):
    """CPUs that one container holds for itself."""

    cpus: str = msgspec.field(default_factory=str)


class CpuState(Struct, frozen=True):
    """The CPU Manager's state."""

    default_set: str | None = None
    assignments: tuple[CpuAssignment, ...] | None = None


class MemoryAmount(Struct, frozen=True):
    """Memory of one type in one zone, in bytes."""

    type: str = msgspec.field(default_factory=str)
    total: int = msgspec.field(default_factory=int)
    system_reserved: int = 0
    allocatable: int = msgspec.field(default_factory=int)
    reserved: int = 0
    free: int = msgspec.field(default_factory=int)


class MemoryZone(Struct, frozen=True):
    """The Memory Manager's state of one zone."""

    zone: int = msgspec.field(default_factory=int)
    assignments: int = 0
    cells: Zones | None = None
    amounts: tuple[MemoryAmount, ...] | None = None


class MemoryAssignment(Holder, frozen=True):
    """Memory that one container holds, in bytes, from ``zones`` as one group."""

    type: str = msgspec.field(default_factory=str)
    zones: Zones = msgspec.field(default_factory=_no_zones)
    size: int = msgspec.field(default_factory=int)


class MemoryUse(Struct, frozen=True):
    """The Memory Manager's state."""

    zones: tuple[MemoryZone, ...] | None = None
    assignments: tuple[MemoryAssignment, ...] | None = None


class PluginDevice(Struct, frozen=True):
    """One device of a device plugin; ``zones`` absent: the plugin says none."""

    id: str = msgspec.field(default_factory=str)
    zones: Zones | None = None
    healthy: bool = True
    used_by: Holder | None = None


class DeviceState(Struct, frozen=True):
    """The Device Manager's state of one resource."""

    resource: str = msgspec.field(default_factory=str)
    devices: tuple[PluginDevice, ...] | None = None


class ComponentUse(Struct, frozen=True):
    """Whether one component is in use."""

    id: str = msgspec.field(default_factory=str)
    status: str = msgspec.field(default_factory=str)
    used_by: tuple[Holder, ...] | None = None


class FlexTopoStatus(Struct, frozen=True):
    """Who holds what."""

    conditions: tuple[Condition, ...] | None = None
    kubelet: KubeletConfig | None = None
    cpus: CpuState | None = None
    memory: MemoryUse | None = None
    devices: tuple[DeviceState, ...] | None = None


class WholeFlexTopoStatus(FlexTopoStatus, frozen=True):
    """Who holds what, with what follows from it for each component; ``observed_at`` in RFC 3339."""

    observed_at: str | None = None
    components: tuple[ComponentUse, ...] | None = None


class FlexTopo(Object, frozen=True):
    """The hardware of one node as a graph, and what its kubelet gave to whom; named as the node."""

    spec: FlexTopoSpec = FlexTopoSpec()
    status: FlexTopoStatus = FlexTopoStatus()


class WholeFlexTopo(FlexTopo, frozen=True):
    """The same with all that the agent writes."""

    status: WholeFlexTopoStatus = WholeFlexTopoStatus()
