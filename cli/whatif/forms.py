"""Machines, kubelets and pods as they are described to ``topogate whatif admit``; docs/whatif.md has the forms."""

from typing import Annotated, Literal

import msgspec

from engine.kubelet.admit import MOST_ZONES
from engine.kubelet.machine import (
    ContainerKind,
    Qos,
    Scope,
    TopologyPolicy,
)

Whole = Annotated[int, msgspec.Meta(ge=0)]
Quantity = int | float | str


class _Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ZoneForm(_Form, frozen=True):
    """One NUMA zone; ``uncore`` is the L3 id of each core."""

    id: Whole
    socket: Whole = 0
    cores: tuple[tuple[Whole, ...], ...] = ()
    uncore: tuple[Whole, ...] | None = None
    memory_bytes: Whole = 0
    reserved_memory_bytes: Whole = 0
    hugepages_1gi: Whole = 0
    distances: tuple[Whole, ...] = ()


class DeviceForm(_Form, frozen=True):
    """One device; no zones: its plugin says nothing about topology."""

    id: str
    numa: tuple[Whole, ...] = ()
    healthy: bool = True


class MachineForm(_Form, frozen=True):
    """The hardware; ``reserved_cpus`` as in ``0,4-7``. ``threads_per_core`` counts only where cores are not known."""

    numa: Annotated[tuple[ZoneForm, ...], msgspec.Meta(min_length=1, max_length=MOST_ZONES)]
    sockets: Whole | None = None
    threads_per_core: Annotated[int, msgspec.Meta(ge=1)] = 2
    reserved_cpus: str = ""
    devices: dict[str, tuple[DeviceForm, ...]] = {}


class KubeletForm(_Form, frozen=True):
    """The kubelet's settings by their names; options are strings, as in its configuration."""

    topology_manager_policy: TopologyPolicy = TopologyPolicy.NONE
    topology_manager_scope: Scope = Scope.CONTAINER
    topology_manager_policy_options: dict[str, str] = {}
    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: dict[str, str] = {}
    memory_manager_policy: str = "None"
    version: str = "1.36"


class MemoryForm(_Form, frozen=True):
    """One type of memory of a zone."""

    allocatable: Whole
    free: Whole


class CellsForm(_Form, frozen=True):
    """The memory manager's view of a zone."""

    cells: tuple[Whole, ...]
    assignments: Whole = 0
    resources: dict[str, MemoryForm] = {}


class StateForm(_Form, frozen=True):
    """What is free; ``free_cpus`` without reserved ones."""

    free_cpus: str = ""
    free_devices: dict[str, tuple[str, ...]] = {}
    memory: dict[str, CellsForm] | None = None
    running: msgspec.Raw = msgspec.Raw(b"")  # who holds the rest; not looked at


class ContainerForm(_Form, frozen=True):
    """One container."""

    name: str
    kind: ContainerKind = ContainerKind.APP
    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class PodForm(_Form, frozen=True):
    """A pod; init containers and sidecars come first, in the order of the spec.

    ``wish``, ``wish_resources`` and ``gpu_link``: its annotations numa-policy, numa-resources and gpu-link.
    """

    qos: Qos
    containers: Annotated[tuple[ContainerForm, ...], msgspec.Meta(min_length=1)]
    name: str = ""
    wish: TopologyPolicy = TopologyPolicy.NONE
    wish_resources: tuple[str, ...] = ()
    gpu_link: Literal["", "require", "prefer"] = ""


class AmountsForm(_Form, frozen=True):
    """One resource of a zone as NodeResourceTopology has it."""

    capacity: Quantity
    allocatable: Quantity
    available: Quantity


class NrtZoneForm(_Form, frozen=True):
    """One zone of NodeResourceTopology."""

    name: str
    type: str = "Node"
    costs: dict[str, int] = {}
    resources: dict[str, AmountsForm] = {}


class NrtForm(_Form, frozen=True):
    """A NodeResourceTopology, its lists with names as objects."""

    attributes: dict[str, str] = {}
    zones: Annotated[tuple[NrtZoneForm, ...], msgspec.Meta(max_length=MOST_ZONES)] = ()
