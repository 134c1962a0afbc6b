"""What is inside nodes, as they publish it: kept up to date in the engine, with what was wrong with it.

Objects come from the informers' stores; `NodeTopologies.reread_node` looks at one node again whenever one of its
objects changed.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from crds import constants
from crds.device_annotations import DEFAULT as DEVICE_ANNOTATIONS
from crds.device_annotations import XPU_RESOURCE, AnnotationRule, device_annotations
from crds.numa_placement import decode, encode, resolve
from engine.cluster.state import ClusterState
from engine.kubelet.devices.choose import REQUIRE
from engine.kubelet.machine import Machine, NumaPlacement, PodShape, TopologyPolicy
from engine.kubelet.numa_policy import unkept
from engine.kubelet.observed_devices import broken_promises
from engine.kubelet.rebuild import alignable
from engine.model import NODES_PER_OPENED_DOMAIN
from engine.numa.score import ALIGNMENT_OVER_PACKING, ZoneScore
from kube import objects
from kube.links import MATRIX_NAME
from kube.topologies import FlexTopo, NodeResourceTopology
from ungater.model.job_view import shape_of
from ungater.numa.sources import DescribedMachine, SourceRules, describe

if TYPE_CHECKING:
    from crds.settings import Settings

NOTHING = DescribedMachine()
NO_CLAIMS: Final[Mapping[int, tuple[str, ...]]] = MappingProxyType({})


class TopologyOptions(msgspec.Struct, frozen=True):
    """Settings of how nodes and their inside count (`crds.settings`)."""

    numa_ignored_resources: tuple[str, ...] = ()
    reconstruct_available: bool = True
    numa_score: str = ZoneScore.LEAST_NUMA_NODES
    alignment_over_packing: str = ALIGNMENT_OVER_PACKING
    nodes_per_opened_domain: int = NODES_PER_OPENED_DOMAIN
    device_annotations: tuple[AnnotationRule, ...] = DEVICE_ANNOTATIONS
    xpu_resources: tuple[str, ...] = (XPU_RESOURCE,)
    uncounted_resources: tuple[str, ...] = ()

    @classmethod
    def from_settings(cls, settings: "Settings") -> "TopologyOptions":
        """Those of all settings."""
        return cls(
            settings.numa_ignored_resources,
            settings.reconstruct_available,
            settings.numa_score,
            settings.alignment_over_packing,
            settings.nodes_per_opened_domain,
            settings.device_annotations,
            settings.xpu_resources,
            settings.uncounted_resources,
        )


class Sources(msgspec.Struct, frozen=True):
    """Where a node's objects are found by name."""

    node: Callable[[str], objects.Node | None]
    topology: Callable[[str], NodeResourceTopology | None]
    flex: Callable[[str], FlexTopo | None]


class NodeChanges(msgspec.Struct, frozen=True):
    """What another look at a node changed: anything, its zones, and whether it may take more than before."""

    anything: bool = False
    zones: bool = False
    more: bool = False


class NodeTopologies:
    """The machines of all nodes. ``tell`` is called where what is wrong with a node's data changed."""

    def __init__(
        self,
        state: ClusterState,
        options: TopologyOptions,
        sources: Sources,
        tell: Callable[[str, DescribedMachine, DescribedMachine], None],
    ) -> None:
        self.sources = sources
        self._tell = tell
        self.described: dict[str, DescribedMachine] = {}
        self._state = state
        self._options = options
        self._rules = SourceRules(options.numa_ignored_resources, options.xpu_resources)
        self._zones: dict[str, frozenset[int]] = {}

    def reread_node(self, name: str) -> NodeChanges:
        """Look at what a node publishes again."""
        before, now = self.described.get(name, NOTHING), NOTHING
        node, topology, flex = self.sources.node(name), self.sources.topology(name), self.sources.flex(name)
        if node is not None and (topology is not None or flex is not None or _annotations(node)):
            now = describe(node, topology=topology, flex=flex, rules=self._rules)
        if now == NOTHING:
            self.described.pop(name, None)
        else:
            self.described[name] = now
        # Exporters write again and again: the same problem is reported once.
        if (now.problems, now.disagreements) != (before.problems, before.disagreements):
            self._tell(name, before, now)
        # Taken out first: a node of which the kubelet's ids are no longer known is no longer predictable.
        zones_before = self._zones.pop(name, None)
        if now.machine is None:
            gone = self._state.remove_machine(name)
            return NodeChanges(gone, gone, gone)
        if now.zones_known:
            self._zones[name] = frozenset(zone.id for zone in now.machine.layout.zones)
        if not self._state.set_machine(now.machine):
            return NodeChanges()
        zones = before.machine is None or zones_before != self._zones.get(name)
        return NodeChanges(True, zones, _gained(before.machine, now.machine))

    def predictable(self, name: str) -> bool:
        """Whether the node's zones are known by the kubelet's ids, so that a placement in them means something."""
        return name in self._zones

    def placement_of_pod(
        self, pod: objects.Pod, in_flight: NumaPlacement | None = None
    ) -> tuple[PodShape | None, NumaPlacement | None]:
        """What a bound pod's kubelet looks at, and what the pod holds; None where its node's inside is not known."""
        name = pod.spec.node_name
        if name not in self._state.machines:
            return None, None
        annotations = pod.metadata.annotations or {}
        placement = resolve(
            observed=annotations.get(constants.NUMA_PLACEMENT_OBSERVED),
            in_flight=in_flight,
            predicted=annotations.get(constants.NUMA_PLACEMENT_PREDICTED),
            zones=self._zones.get(name, frozenset()),
        )
        return shape_of(pod.spec, annotations, qos_class=pod.status.qos_class), placement

    def broken(self, pod: objects.Pod) -> tuple[str, ...]:
        """Which promises about its devices the agent saw broken on a bound pod; () where all is well or not known."""
        annotations = pod.metadata.annotations or {}
        machine = self._state.machines.get(pod.spec.node_name)
        text = annotations.get(constants.NUMA_PLACEMENT_OBSERVED)
        observed = decode(text) if text else None
        if machine is None or observed is None or not any(machine.layout.links):
            return ()
        return broken_promises(machine, shape_of(pod.spec, annotations), observed)

    def unkept(self, pod: objects.Pod) -> str:
        """What a bound pod asks for of its zones and links and did not get, as its node says; "" where all is well."""
        annotations = pod.metadata.annotations or {}
        machine = self._state.machines.get(pod.spec.node_name)
        text = annotations.get(constants.NUMA_PLACEMENT_OBSERVED)
        observed = decode(text) if text else None
        if machine is None or observed is None or not self.predictable(pod.spec.node_name):
            return ""
        shape = shape_of(pod.spec, annotations, qos_class=pod.status.qos_class)
        # A link that was only preferred is no reason to move a pod.
        linked = self.broken(pod) if shape.gpu_link == REQUIRE else ()
        return unkept(machine.layout, shape, observed) or "; ".join(linked)

    def unreported(self, pod: objects.Pod) -> tuple[str, ...]:
        """What a pod asks for, and its kubelet may align, of which its node tells no zones: devices, by name.

        CPU and memory too where a Guaranteed pod asks for them and the node tells of no kubelet that aligns anything.
        """
        name = pod.spec.node_name
        shape = shape_of(pod.spec, pod.metadata.annotations or {}, qos_class=pod.status.qos_class)
        if name not in self._zones:
            return alignable(shape, cores=True)
        layout = self._state.machines[name].layout
        aligns = layout.kubelet.policy is not TopologyPolicy.NONE
        told = {
            resource
            for row, resource in enumerate(layout.resources)
            # -1 stands for a zone that does not report the resource.
            if resource not in layout.ignored and any(zone[row] >= 0 for zone in layout.capacity)
        }
        return tuple(resource for resource in alignable(shape, cores=not aligns) if resource not in told)

    def observed(self, pod: objects.Pod) -> bool:
        """Whether the node says what a bound pod holds, in zones that it has."""
        text = (pod.metadata.annotations or {}).get(constants.NUMA_PLACEMENT_OBSERVED)
        zones = self._zones.get(pod.spec.node_name, frozenset())
        return text is not None and resolve(observed=text, zones=zones) is not None

    def annotations(
        self, node: str, placement: NumaPlacement | None, claimed: Mapping[int, tuple[str, ...]] = NO_CLAIMS
    ) -> dict[str, str]:
        """What an ungating patch says of the inside of the node: the placement, and devices for plugins that listen.

        ``claimed``: by zone, the devices that the scheduler will give to the pod's claims.
        """
        if placement is None or not self.predictable(node):
            return {}
        chosen: dict[str, list[str]] = {}
        for use in placement.zones:
            for resource, ids in use.devices.items():
                chosen.setdefault(resource, []).extend(ids)
        known = self._state.machines[node].device_ids
        return {
            constants.NUMA_PLACEMENT_PREDICTED: encode(placement, claimed),
            **device_annotations(chosen, known, self._options.device_annotations),
        }

    def unrecorded(self) -> Mapping[str, int]:
        """By source, how many pods hold something in the zones of nodes, and no record says in which."""
        found: dict[str, int] = {}
        for name, described in self.described.items():
            if described.machine is not None:
                found[described.source] = found.get(described.source, 0) + self._state.unrecorded(name)
        return found

    def count_sources(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """How many nodes have their picture from which source; and on how many there are problems of which kind."""
        sources: dict[str, int] = {}
        mismatches = {"problem": 0, "disagreement": 0}
        for found in self.described.values():
            if found.machine is not None:
                sources[found.source] = sources.get(found.source, 0) + 1
            mismatches["problem"] += bool(found.problems)
            mismatches["disagreement"] += bool(found.disagreements)
        return sources, mismatches


def _gained(before: Machine | None, now: Machine) -> bool:
    """Whether a pod may fit now that did not before."""
    if before is None or before.layout != now.layout:
        return True
    old, new = before.state, now.state
    return (
        bool(new.cpus & ~old.cpus)
        or any(mine & ~theirs for mine, theirs in zip(new.devices, old.devices, strict=False))
        or (new.memory, new.declared_free) != (old.memory, old.declared_free)
        or any(
            mine > theirs
            for row, base in zip(new.free, old.free, strict=False)
            for mine, theirs in zip(row, base, strict=False)
        )
    )


def worth_a_look(old: objects.Node, new: objects.Node) -> bool:
    """Whether two versions of a node may have different insides."""
    # Most updates of a node are heartbeats, which change conditions alone.
    return _relevant_parts(old) != _relevant_parts(new)


def _relevant_parts(node: objects.Node) -> tuple[object, ...]:
    return _annotations(node), node.status.node_info, node.status.allocatable


def _annotations(node: objects.Node) -> dict[str, str]:
    """Those that say something about GPUs."""
    found = node.metadata.annotations or {}
    return {
        key: text for key, text in found.items() if key == constants.GPU_STATES or key.rpartition("/")[2] == MATRIX_NAME
    }
