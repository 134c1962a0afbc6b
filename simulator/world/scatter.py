"""Where a scheduler that knows no topology puts pods: one after another, each on the node with the best score.

The score is kube-scheduler's NodeResourcesFit, in whole points of a hundred: LeastAllocated over cpu and memory, its
default, or MostAllocated over these and the devices that are asked for, as GPU clusters are advised to set it. Among
nodes with the best score one is drawn, as kube-scheduler does. Its other default scores are left out: they are equal
for equal nodes, or look at images and zones.

Whether the pods fit at all was decided before, by the engine. Pod sets that look at other pods stay where it put them.
"""

import random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.cluster.assignment import Assignment, Slice, slices_of
from engine.cluster.state import ClusterState
from engine.model import PODS, PodSet
from engine.placement.fit import Fit
from engine.results import Refusal
from simulator.model import Placing

Ints = NDArray[np.int64]
COMPUTE: Final = ("cpu", "memory")


def scattered(state: ClusterState, placed: Assignment, placing: Placing, dice: random.Random) -> Assignment:
    """The same pods elsewhere, where ``state`` has room; it must not hold any of them."""
    pod_set = placed.source
    if pod_set is None or pod_set.affinity or pod_set.anti_affinity or pod_set.spread:
        return placed
    fit = Fit.count_pod_set(state, placed.flavor, pod_set)
    if isinstance(fit, Refusal):
        return placed
    counts = _counts(state, fit, pod_set, placing, dice)
    if int(counts.sum()) < pod_set.count:
        return placed
    leaves = np.flatnonzero(counts)
    tree = fit.tree
    return Assignment(
        pod_set=placed.pod_set,
        flavor=placed.flavor,
        levels=placed.levels,
        requests=placed.requests,
        source=pod_set,
        slices=[Slice(p.values, p.count, p.nodes) for p in slices_of(tree, leaves, counts[leaves])],
    )


def _counts(state: ClusterState, fit: Fit, pod_set: PodSet, placing: Placing, dice: random.Random) -> Ints:
    """Pods by leaf."""
    # A copy, because the tree keeps these counts for the next question.
    left = fit.known.counts.leaf[: fit.tree.size].copy()
    scored = list(COMPUTE)
    if placing is Placing.PACK:
        scored += (name for name in sorted(pod_set.requests) if name not in {*COMPUTE, PODS})
    # What is free and what is allocatable by scored resource and leaf, and what one pod asks.
    table, where = state.cluster.table, fit.tree.columns_of_leaves(np.arange(fit.tree.size))
    free, have = (np.stack([table.amounts(rows, name, where) for name in scored]) for rows in (table.free, table.alloc))
    asks = np.array([[pod_set.requests.get(resource, 0)] for resource in scored], np.int64)
    taken = np.zeros(fit.tree.size, np.int64)
    points = _points(free - asks, have, placing)
    # Below any score: whether a pod fits is the engine's to say, and points only rank.
    points[left <= 0] = -1
    for _ in range(pod_set.count):
        best = int(points.max(initial=-1))
        if best < 0:
            break
        ties = np.flatnonzero(points == best)
        at = int(ties[dice.randrange(len(ties))]) if len(ties) > 1 else int(ties[0])
        taken[at] += 1
        left[at] -= 1
        free[:, at] -= asks[:, 0]
        points[at] = _points(free[:, [at]] - asks, have[:, [at]], placing)[0] if left[at] > 0 else -1
    return taken


def _points(free: Ints, have: Ints, placing: Placing) -> Ints:
    """0 to 100 by leaf, from what would be free with the pod on it."""
    share = np.clip(free, 0, None) * 100 // np.maximum(have, 1)
    if placing is Placing.PACK:
        share = 100 - share
    found: Ints = share.sum(axis=0) // len(share)
    return found
