"""The live cluster read once into the engine's state: for commands that ask what the controller would decide."""

import asyncio
from dataclasses import dataclass

from crds.constants import Keys
from engine.placement import Assignment, Slice
from engine.state import ClusterState
from kube import convert, objects
from kube.client import Client
from kube.resources import JOBS, NODES, PODS, RESOURCE_FLAVORS, WORKLOADS
from ungater.jobs import MAIN, Owner, owner_of
from ungater.workloads import Workload, known_of

FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Snapshot:
    """What the cluster held when it was read."""

    state: ClusterState
    pods: tuple[objects.Pod, ...]
    workloads: dict[str, Workload]  # by the uid of the job that controls them


async def read(client: Client, keys: Keys) -> Snapshot:
    """List flavors, nodes, pods and workloads, and charge them as the controller does after a restart."""
    flavors, jobs, nodes, pods, workloads = await asyncio.gather(
        client.list(RESOURCE_FLAVORS, type=objects.ResourceFlavor),
        client.list(JOBS, type=objects.Job),
        client.list(NODES, type=objects.Node),
        client.list(PODS, type=objects.Pod),
        client.list(WORKLOADS, type=Workload),
    )
    state = ClusterState()
    for flavor in filter(None, map(convert.flavor, flavors)):
        state.set_flavor(flavor)
    for node in nodes:
        state.set_node(convert.node(node))
    owned = {owner.uid: workload for workload in workloads if (owner := objects.controller_of(workload.metadata))}
    for job in jobs:
        _restore(state, owner_of(job, keys), owned.get(job.metadata.uid))
    for pod in pods:
        if pod.spec.node_name and pod.status.phase not in FINISHED:
            state.set_pod(convert.pod(pod, _claim(pod, owned, keys)))
    return Snapshot(state, tuple(pods), owned)


def _restore(state: ClusterState, owner: Owner, workload: Workload | None) -> None:
    slots = known_of(workload).slots if workload else None
    if slots is None or owner.over:
        return
    held = Assignment(
        pod_set=MAIN,
        flavor=slots.flavor,
        levels=slots.levels,
        requests=convert.pod_requests(owner.pod_sets[0].template.spec),
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
