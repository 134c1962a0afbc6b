"""Plain data about the inside of a machine and the pods that ask for it. No behaviour beyond construction.

A `Layout` is everything that decides an admission and does not change as pods come and go; it names nothing, so that
equal hardware under equal kubelet settings has equal layouts. A `State` is what is left of it now; it is immutable and
hashable, so that equal states are evaluated once. A `Machine` is one node's layout and state, with its device ids.

Zones, resources and devices are known by their index in the layout; a set of zones, CPUs or devices is an int with one
bit for each (`mask`): bit i of a zone mask is ``layout.zones[i]``, whose kubelet id is ``zones[i].id`` (ids may be
sparse); bit i of a CPU mask is CPU i. Amounts are as in `engine.model`: cpu in milli-CPU, memory in bytes, devices in
units.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:  # the webhook reads these data too, and starts without numpy
    from engine.kubelet.devices.links import LinkGraph
    from engine.kubelet.devices.xpu import XpuBoard

CPU = "cpu"
MEMORY = "memory"
HUGEPAGES = "hugepages-"

Declared = tuple[tuple[str, int], ...]
Amounts = dict[str, int]  # by resource; the same as in engine.model, which builds on this module


class TopologyPolicy(StrEnum):
    """The kubelet's Topology Manager policy; `SOCKET` is only ever a workload's own wish."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE = "single-numa-node"
    SOCKET = "socket"


class Scope(StrEnum):
    """What the Topology Manager aligns."""

    CONTAINER = "container"
    POD = "pod"


class Qos(StrEnum):
    """A pod's quality of service class."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class ContainerKind(StrEnum):
    """What a container is: a sidecar is an init container with restartPolicy Always."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class _Struct(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    pass


class Container(_Struct, frozen=True):
    """One container; a resource that is asked for with amount 0 stays in, because a device limit of 0 constrains."""

    name: str
    kind: ContainerKind = ContainerKind.APP
    requests: tuple[tuple[str, int], ...] = ()  # sorted by resource
    limits: tuple[tuple[str, int], ...] = ()  # sorted by resource


class DeviceZones(_Struct, frozen=True, cache_hash=True):
    """Which zones the devices of a pod's claims come from, by their kubelet ids, ascending.

    ``fewest``: from how many they would come on an empty machine at least. () of no device that is wished for.
    """

    zones: tuple[int, ...]
    fewest: int = 1


class PodShape(_Struct, frozen=True, cache_hash=True):
    """What a kubelet looks at when it admits a pod: init containers and sidecars first, in the order of the spec.

    Hashable: pods of one template have equal shapes. ``pod_level``: the pod sets spec.resources, for which the CPU and
    memory managers neither align nor allocate. ``wish`` is the workload's own policy (``topogate.dev/numa-policy``) on
    top of the kubelet's, for ``wish_resources`` (() = all that the zones report); ``gpu_link`` is "", "require" or
    "prefer" (``topogate.dev/gpu-link``). ``claimed``: the devices of its claims, which are in the wish too; no kubelet
    looks at them. None where there are none, or it is not known yet which.
    """

    containers: tuple[Container, ...]
    qos: Qos
    pod_level: bool = False
    wish: TopologyPolicy = TopologyPolicy.NONE
    wish_resources: tuple[str, ...] = ()
    gpu_link: str = ""
    claimed: DeviceZones | None = None


class Kubelet(_Struct, frozen=True):
    """The kubelet's settings that decide an admission. ``version`` is (major, minor)."""

    version: tuple[int, int] = (1, 36)
    policy: TopologyPolicy = TopologyPolicy.NONE
    scope: Scope = Scope.CONTAINER
    static_cpu: bool = False
    static_memory: bool = False
    prefer_closest_numa_nodes: bool = False
    # The kubelet's default, and the least that it accepts. Its Topology Manager does not start on more zones.
    max_allowable_numa_nodes: int = 8
    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    distribute_cpus_across_cores: bool = False
    align_by_socket: bool = False
    prefer_align_cpus_by_uncorecache: bool = False
    strict_cpu_reservation: bool = False


class Zone(_Struct, frozen=True):
    """One NUMA zone. ``cores``: the CPU ids of each core (hardware threads together), ``uncore``: the L3 of each core.

    ``distances`` has one SLIT distance for each zone of the layout, in its order; () where unknown. Without full state
    ``cores`` is (), and only the amounts are known.
    """

    id: int
    socket: int = 0
    distances: tuple[int, ...] = ()
    cores: tuple[tuple[int, ...], ...] = ()
    uncore: tuple[int, ...] = ()


class DeviceLayout(_Struct, frozen=True):
    """One registered device: the zones it belongs to as a mask (0: the plugin says none), and its health."""

    zones: int
    healthy: bool = True


class Layout(_Struct, frozen=True, cache_hash=True):
    """What decides an admission and stays as pods come and go.

    ``capacity[z][r]`` and ``allocatable[z][r]`` are of zone z and resource r; a resource that a zone does not report is
    -1 there. ``devices[r]`` is () for what is no device resource, and where only amounts are known.

    ``links[r]`` says how the devices of resource r are chosen: by their links, or by the rules of XPUs; None where
    nothing is known, () where that is so for all. Where only amounts are known, device i of a graph is no known device.

    ``threads``: hardware threads a core, for where only amounts are known and the kubelet hands out whole cores.

    ``exact``: the kubelet's full state is known (FlexTopo status), not only amounts (NRT).
    """

    zones: tuple[Zone, ...]
    resources: tuple[str, ...]
    capacity: tuple[tuple[int, ...], ...]
    allocatable: tuple[tuple[int, ...], ...]
    kubelet: Kubelet = Kubelet()
    devices: tuple[tuple[DeviceLayout, ...], ...] = ()
    reserved_cpus: int = 0  # CPU mask
    links: "tuple[LinkGraph | XpuBoard | None, ...]" = ()
    ignored: tuple[str, ...] = ()  # resources that are not aligned whatever the zones report (ignoreList)
    # NodeResourceTopology does not tell it.
    threads: int = 2
    exact: bool = False


class MemoryCells(_Struct, frozen=True):
    """The Memory Manager's view of one zone: ``cells`` is the zone mask of its group, itself included."""

    cells: int
    assignments: int = 0


class State(_Struct, frozen=True, cache_hash=True):
    """What is left: ``free[z][r]``, -1 where the zone does not report the resource.

    The rest is known for exact layouts only: ``cpus`` is the mask of CPUs in the default set less the reserved ones,
    ``devices[r]`` the mask of healthy devices that nobody holds (by index in ``layout.devices[r]``), ``memory[z]``.
    ``free`` agrees with them. ``declared_free``: of other layouts, (resource, the devices of its link graph that the
    node says are free, as a mask); () where it says nothing. It may be older than ``free``.
    """

    free: tuple[tuple[int, ...], ...]
    cpus: int = 0
    devices: tuple[int, ...] = ()
    memory: tuple[MemoryCells, ...] = ()
    declared_free: Declared = ()


class Machine(_Struct, frozen=True):
    """One node's inside as it was reported.

    ``device_ids[resource][i]`` names device i of ``layout.devices``; {} where unknown. ``holds``: pod key -> placement
    of the pods that ``state`` already accounts for; None where the report does not say (NRT). ``pcie_roots``: the zone
    (kubelet id) of each PCIe root of which one is known, by its name.
    """

    node: str
    layout: Layout
    state: State
    device_ids: dict[str, tuple[str, ...]] = {}
    holds: "dict[str, NumaPlacement] | None" = None
    pcie_roots: dict[str, int] = {}


class ZoneUse(_Struct, frozen=True):
    """What one pod takes from one zone (by its kubelet id); ``devices``: resource -> ids, where known."""

    zone: int
    amounts: Amounts
    devices: dict[str, tuple[str, ...]] = {}


class NumaPlacement(_Struct, frozen=True):
    """Which zones a pod's CPUs, memory and devices come from, ascending.

    Two are the same where zones *and* amounts are.
    """

    zones: tuple[ZoneUse, ...]
