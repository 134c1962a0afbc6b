"""A cluster read once into the engine's state: for commands that ask what the controller would decide.

Its objects come from the API server (`read`) or from files (`cli.dump`); `built` makes the same of both.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from crds.constants import Keys
from engine.numa.score import ZoneScore
from engine.placement import Assignment, Slice
from engine.state import ClusterState
from kube import convert, objects
from kube.client import Client
from kube.errors import NotFound
from kube.resources import (
    FLEX_TOPOS,
    JOBS,
    NODE_RESOURCE_TOPOLOGIES,
    NODES,
    PODS,
    RESOURCE_FLAVORS,
    WORKLOADS,
    Resource,
)
from kube.topologies import FlexTopo, NodeResourceTopology
from ungater.inside import Inside, Options, Sources
from ungater.jobs import MAIN, Owner, owner_of
from ungater.machines import Described
from ungater.workloads import Workload, known_of

FINISHED = ("Succeeded", "Failed")
T = TypeVar("T", bound=objects.Object)


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


async def read(client: Client, keys: Keys, options: Options | None = None) -> Snapshot:
    """List flavors, nodes, pods and workloads, and charge them as the controller does after a restart."""
    return built(await listed(client), keys, options)


async def listed(client: Client) -> Listing:
    """All of them from the API server."""
    (flavors, jobs, nodes, pods, workloads), (topologies, flexes) = await asyncio.gather(
        _listed(client), _published(client)
    )
    return Listing(flavors, jobs, nodes, pods, workloads, topologies, flexes)


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


async def _listed(
    client: Client,
) -> tuple[list[objects.ResourceFlavor], list[objects.Job], list[objects.Node], list[objects.Pod], list[Workload]]:
    return await asyncio.gather(
        client.list(RESOURCE_FLAVORS, type=objects.ResourceFlavor),
        client.list(JOBS, type=objects.Job),
        client.list(NODES, type=objects.Node),
        client.list(PODS, type=objects.Pod),
        client.list(WORKLOADS, type=Workload),
    )


async def _published(client: Client) -> tuple[dict[str, NodeResourceTopology], dict[str, FlexTopo]]:
    """What nodes publish of their inside."""
    return await asyncio.gather(
        _where_served(client, NODE_RESOURCE_TOPOLOGIES, NodeResourceTopology),
        _where_served(client, FLEX_TOPOS, FlexTopo),
    )


async def _where_served(client: Client, resource: Resource, kind: type[T]) -> dict[str, T]:
    """The objects by name; none where there is no such resource."""
    try:
        return {found.metadata.name: found for found in await client.list(resource, type=kind)}
    except NotFound:
        return {}


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
