"""Pod sets whose pods are not alike in one thing: where the volumes of each of them reach.

All pods where all volumes reach is tried first. Where that fails, those whose volumes reach the same nodes are placed
one such part after the other, the one with the fewest nodes first, each as near to those before it as it goes; what is
required is held by all of them together. So there is a slot for each pod that its volumes reach. Pod sets with slices,
and those that share a domain with others, are placed where all volumes reach, or not at all.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from engine.cluster.assignment import Assignment
from engine.cluster.filters import Mask, NodeFilter
from engine.cluster.state import ClusterState
from engine.model import Amounts, Pinned, PodSet, Policy
from engine.placement import refusals, resize
from engine.placement.fit import ANYWHERE, Fit
from engine.results import Refusal

SITES: Final = 16  # domains of a level that are tried
TRIALS: Final = 512  # parts that are placed for that in all, as long as any domain is left to try
_TRIAL: Final = "\0pinned"

REST: Final = Pinned(nodes=(), count=0)  # the pods that go anywhere


def place_pinned(state: ClusterState, flavor: str, pod_set: PodSet, effort: int = 0) -> Assignment | Refusal:
    """One pod set on one flavor, or why it does not fit. Changes nothing."""
    fit = Fit.of(state, flavor, pod_set, effort)
    if isinstance(fit, Refusal):
        return fit
    pick = fit.pick()
    if pick is not None:
        return fit.assignment(pick)
    found = _apart(state, flavor, pod_set, effort) if pod_set.pinned and not pod_set.topology.slices else None
    return found or refusals.does_not_fit(state, fit)


def extend(state: ClusterState, workload: str, pod_set: PodSet, by: int) -> Assignment | Refusal:
    """`resize.extend`, such that each pod has a slot that its volumes reach."""
    if not pod_set.pinned or by <= 0 or pod_set.topology.slices:
        return resize.extend(state, workload, pod_set, by)
    others = [part for name, part in state.assignments(workload).items() if name != pod_set.name]
    found: Assignment | Refusal = state.assignments(workload)[pod_set.name]
    checkpoint = state.begin()
    try:
        for part, count in _unserved(state, state.assignments(workload)[pod_set.name], pod_set, by):
            found = resize.extend(state, workload, _part(pod_set, part, count), count)
            if isinstance(found, Refusal):
                return found
            state.reserve(workload, [*others, found])
    finally:
        state.rollback(checkpoint)
    return found


def _part(pod_set: PodSet, part: Pinned, count: int) -> PodSet:
    """So many pods of a part as a pod set of their own."""
    own = pod_set.attached.own if part is REST else part.own
    return msgspec.structs.replace(
        pod_set,
        count=count,
        volume_nodes=(*pod_set.volume_nodes, *part.nodes),
        pinned=(),
        attached=msgspec.structs.replace(pod_set.attached, own=own),
    )


def _apart(state: ClusterState, flavor: str, pod_set: PodSet, effort: int) -> Assignment | None:
    """The pods of each part where its volumes reach."""
    fit = Fit.of(state, flavor, msgspec.structs.replace(pod_set, pinned=()), effort)
    if isinstance(fit, Refusal):
        return None
    masks = [NodeFilter(volumes=part.nodes).mask(state.cluster.columns, fit.tree.span) for part in pod_set.pinned]
    parts = _parts(pod_set, [fit.tree.size if mask is None else int(mask.sum()) for mask in masks])
    for site in _sites(fit, [mask for mask in masks if mask is not None], max(TRIALS // len(pod_set.pinned), 1)):
        found = _placed(
            state, flavor, msgspec.structs.replace(pod_set, node_selector=pod_set.node_selector | site), parts
        )
        if found is not None:
            return Assignment(
                pod_set=pod_set.name,
                flavor=flavor,
                levels=found.levels,
                requests=pod_set.requests,
                slices=found.slices,
                source=pod_set,
                attached=msgspec.structs.replace(pod_set.attached, own=_least(pod_set)),
            )
    return None


def _least(pod_set: PodSet) -> Amounts:
    """How many volumes each pod has alone: they are held alike for all, so what only some of them take is not."""
    parts = [part.own for part in pod_set.pinned]
    return {limit: least for limit in pod_set.attached.own if (least := min(own.get(limit, 0) for own in parts))}


def _parts(pod_set: PodSet, reached: Sequence[int]) -> list[tuple[Pinned, int]]:
    """The parts in the order in which they are placed, with how many pods; those that go anywhere last.

    ``reached``: of each part, how many nodes.
    """
    left = pod_set.count
    found: list[tuple[Pinned, int]] = []
    for part, _ in sorted(zip(pod_set.pinned, reached, strict=True), key=lambda one: one[1]):
        if (count := min(part.count, left)) > 0:
            left -= count
            found.append((part, count))
    return [*found, (REST, left)] if left else found


def _sites(fit: Fit, reached: Sequence[Mask], most: int) -> Iterator[dict[str, str]]:
    """The labels of domains that have room for as many pods, the tightest first; {} for the flavor as a whole.

    ``reached``: the nodes of each part, of which a domain has some; ``most``: how many domains there are at most.
    """
    tree = fit.tree
    for container in fit.containers():
        if container == ANYWHERE or fit.pod_set.topology.policy is Policy.UNCONSTRAINED:
            yield {}
            continue
        rank = min(container, tree.last)
        counts, starts = fit.counts(rank).at(rank), tree.bounds[rank][:-1]
        possible = counts >= fit.pod_set.count
        for mask in reached:
            possible &= np.logical_or.reduceat(mask, starts)
        enough = np.flatnonzero(possible)
        for domain in enough[np.argsort(counts[enough], kind="stable")][: min(SITES, most)].tolist():
            most -= 1
            yield dict(zip(tree.flavor.levels, tree.path(rank, domain), strict=False))


def _placed(
    state: ClusterState, flavor: str, pod_set: PodSet, parts: Collection[tuple[Pinned, int]]
) -> Assignment | None:
    """The parts one after the other; where they have to be is in the node selector."""
    if pod_set.topology.policy is Policy.REQUIRED:
        topology = msgspec.structs.replace(pod_set.topology, policy=Policy.PREFERRED)
        pod_set = msgspec.structs.replace(pod_set, topology=topology)
    found: Assignment | None = None
    checkpoint = state.begin()
    try:
        for pinned, count in parts:
            part = _part(pod_set, pinned, count)
            more = _first(state, flavor, part) if found is None else resize.extend(state, _TRIAL, part, count)
            if more is None or isinstance(more, Refusal):
                return None
            found = more
            state.reserve(_TRIAL, [found])
    finally:
        state.rollback(checkpoint)
    return found


def _first(state: ClusterState, flavor: str, part: PodSet) -> Assignment | None:
    fit = Fit.of(state, flavor, part)
    pick = fit.pick() if isinstance(fit, Fit) else None
    return fit.assignment(pick) if isinstance(fit, Fit) and pick is not None else None


def _unserved(state: ClusterState, held: Assignment, pod_set: PodSet, by: int) -> Iterator[tuple[Pinned, int]]:
    """The parts that ``by`` more pods are of: those first that have fewer slots than pods."""
    free: dict[str, int] = {}
    for piece in held.slices:
        for name, count in piece.nodes:
            free[name] = free.get(name, 0) + count
    names = [name for name in free if name in state.nodes]
    index = np.array([state.cluster.by_name[name].index for name in names], np.int64)
    reached: list[tuple[list[str], Pinned]] = []
    for part in pod_set.pinned:
        mask = NodeFilter(volumes=part.nodes).mask(state.cluster.columns, index)
        reached.append(([name for at, name in enumerate(names) if mask is None or bool(mask[at])], part))
    for inside, part in sorted(reached, key=lambda one: len(one[0])):
        need = part.count
        for name in inside:
            taken = min(need, free[name])
            free[name] -= taken
            need -= taken
        if (some := min(need, by)) > 0:
            by -= some
            yield part, some
    if by > 0:
        yield REST, by
