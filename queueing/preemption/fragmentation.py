"""What a plan of evictions leaves fragmented: compared where priorities and number of victims are equal.

*Freed*: units of the devices that the preemptor asks for (CPUs where it asks for none) that the victims give up in all;
where it asks by claims, devices of their claims.
What is freed beyond the need lies idle, so less is better; the search for one pod compares the same.
*Broken*: how many more nodes have some of these free and some in use than had before. A node that is free as a whole
takes a large pod; a broken one takes crumbs.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from engine.kubelet.resource_requests import is_device
from engine.model import Amounts, Pod, PodSet


class Fragmentation(NamedTuple):
    """See the module; less is better."""

    freed: int = 0
    broken: int = 0


NOTHING: Final = Fragmentation()
CLAIMED: Final = "devices of claims"  # no legal name of a resource: no amounts of it are on nodes


def counted(pod_sets: Iterable[PodSet]) -> frozenset[str]:
    """The resources that count for a preemptor; `CLAIMED` among them where it asks for devices by claims."""
    sets = tuple(pod_sets)
    found = {name for pod_set in sets for name, amount in pod_set.requests.items() if amount > 0 and is_device(name)}
    claimed = [CLAIMED] if any(pod_set.devices is not None for pod_set in sets) else []
    return frozenset([*found, *claimed]) or frozenset({"cpu"})


def amount_of(requests: Amounts, resources: frozenset[str]) -> int:
    """What one pod has of them, together."""
    total = 0
    for name in resources:
        total += requests.get(name, 0)
    return total


def held(parts: Iterable[Assignment], pods: Iterable[Pod], resources: frozenset[str]) -> dict[str, int]:
    """By node, what slots and pods have of some resources together; a pod in a slot is not to be given as well."""
    found: dict[str, int] = {}
    for part in parts:
        each = amount_of(part.requests, resources)
        for piece in part.slices if each else ():
            for name, count in piece.nodes:
                found[name] = found.get(name, 0) + each * count
    for pod in pods:
        found[pod.node] = found.get(pod.node, 0) + amount_of(pod.requests, resources)
    return found


def leftover(
    state: ClusterState, gone: Mapping[str, int], comes: Mapping[str, int], resources: frozenset[str]
) -> Fragmentation:
    """Of a state that the victims are out of and the preemptor is not in; ``gone``, ``comes``: by node, of both."""
    broken = 0
    for name in {**gone, **comes}:
        node = state.nodes.get(name)
        if node is None:
            continue
        total, free = amount_of(node.allocatable, resources), amount_of(state.free_on_node(name), resources)
        # Before the evictions the node had less free by what is gone; after them it has less by what comes.
        broken += 0 < free - comes.get(name, 0) < total
        broken -= 0 < free - gone.get(name, 0) < total
    return Fragmentation(sum(gone.values()), broken)


def partly_free(state: ClusterState, resources: frozenset[str]) -> int:
    """How many nodes have some of these free and some in use: no plan mends more."""
    table = state.cluster.table
    rows = [table.rows[name] for name in resources if name in table.rows]
    total, free = table.alloc[rows].sum(axis=0), table.free[rows].sum(axis=0)
    return int(((free > 0) & (free < total)).sum())
