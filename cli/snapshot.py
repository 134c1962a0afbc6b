"""A cluster read once into the engine's state: for commands that ask what the controller would decide.

Its objects come from the API server (`cli.snapshot_save`) or from files (`cli.dump`); `built` makes the same of both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from crds.constants import Keys
from engine.numa.score import ZoneScore
from engine.placement import Assignment, Slice
from engine.state import ClusterState
from kube import convert, objects
from kube.topologies import FlexTopo, NodeResourceTopology
from ungater.inside import Inside, Options, Sources
from ungater.jobs import MAIN, Owner, owner_of
from ungater.machines import Described
from ungater.workloads import Workload, known_of

FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Snapshot:
    """What the cluster held when it was read."""

    state: ClusterState
    pods: tuple[objects.Pod, ...]
    workloads: dict[str, Workload]  # by the uid of the job that controls them
    machines: Mapping[str, Described] = field(default_factory=dict)  # by node name, of nodes that publish something


@dataclass
class Listing:
    """The objects of a cluster. ``topologies`` and ``flexes``: what nodes publish of their inside, by node name."""

    flavors: list[objects.ResourceFlavor] = field(default_factory=list)
    jobs: list[objects.Job] = field(default_factory=list)
    nodes: list[objects.Node] = field(default_factory=list)
    pods: list[objects.Pod] = field(default_factory=list)
    workloads: list[Workload] = field(default_factory=list)
    topologies: dict[str, NodeResourceTopology] = field(default_factory=dict)
    flexes: dict[str, FlexTopo] = field(default_factory=dict)


def built(listing: Listing, keys: Keys, options: Options | None = None) -> Snapshot:
    """The state that these objects make."""
    options = options or Options()
    state = ClusterState(reconstruct_available=options.reconstruct_available, numa_score=ZoneScore(options.numa_score))
    inside = Inside(state, options)
    by_name = {node.metadata.name: node for node in listing.nodes}
    inside.sources = Sources(by_name.get, listing.topologies.get, listing.flexes.get)
    for flavor in filter(None, map(convert.flavor, listing.flavors)):
        state.set_flavor(flavor)
    for node in listing.nodes:
        state.set_node(convert.node(node))
        inside.refresh(node.metadata.name)
    owned = {
        owner.uid: workload for workload in listing.workloads if (owner := objects.controller_of(workload.metadata))
    }
    for job in listing.jobs:
        _restore(state, owner_of(job, keys), owned.get(job.metadata.uid))
    for pod in listing.pods:
        if pod.spec.node_name and pod.status.phase not in FINISHED:
            shape, placement = inside.of_pod(pod)
            claim, observed = _claim(pod, owned, keys), placement is not None and inside.observed(pod)
            state.set_pod(convert.pod(pod, claim, shape=shape, placement=placement, observed=observed))
    return Snapshot(state, tuple(listing.pods), owned, inside.described)


def _restore(state: ClusterState, owner: Owner, workload: Workload | None) -> None:
    slots = known_of(workload).slots if workload else None
    if slots is None or owner.over:
        return
    held = Assignment(
        pod_set=MAIN,
        flavor=slots.flavor,
        levels=slots.levels,
        requests=convert.pod_requests(owner.pod_sets[0].template.spec),
        shape=owner.pod_sets[0].shape,
        slices=[Slice(slot.values, slot.count) for slot in slots.slots],
    )
    state.restore(owner.workload_key, [held])


def _claim(pod: objects.Pod, owned: dict[str, Workload], keys: Keys) -> tuple[str, str] | None:
    """A pod fills a slot only if its controlling owner is the Workload's."""
    owner = objects.controller_of(pod.metadata)
    workload = owned.get(owner.uid) if owner else None
    if workload is None or keys.workload not in (pod.metadata.annotations or {}):
        return None
    return objects.key(workload), MAIN
