"""Why a pod set does or does not fit, domain by domain. Written to be read by people; not a hot path."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from engine.affinity import Cap, Constraints, Room, Unsupported, room
from engine.count import Counts, Shape, known_shape
from engine.filters import Mask
from engine.model import PODS, Amounts, PodSet
from engine.reasons import Reason
from engine.state import ClusterState
from engine.table import Ints
from engine.tree import Tree


@dataclass(frozen=True)
class DomainFit:
    """How many pods of a pod set fit one domain, and what limits it.

    ``nodes``: how many nodes of the domain pass every filter. ``limit``: the resource (or the Reason) that runs out
    first; "" where the whole pod set fits. ``missing``: how much more of that resource the rest of the pods need.
    ``excluded``: nodes that take no pod at all, by the first reason.
    """

    values: tuple[str, ...]
    fits: int
    nodes: int
    limit: str = ""
    missing: Amounts = field(default_factory=dict)
    excluded: dict[Reason, int] = field(default_factory=dict)


def explain(state: ClusterState, flavor: str, pod_set: PodSet, level: str | None = None) -> tuple[DomainFit, ...]:
    """One entry a domain of ``level`` (the requested one where None; the widest for unconstrained), in tree order.

    Nodes of the flavor that lack a level label come last, as one entry without values. Raises ValueError for a flavor
    or level that does not exist. A constraint that cannot be honoured is the ``limit`` of every domain.
    """
    tree = state.tree(flavor)
    if tree is None:
        raise ValueError(f"no flavor {flavor!r}; there are: {', '.join(sorted(state.flavors)) or 'none'}")
    wanted = level or pod_set.topology.level or tree.flavor.levels[0]
    rank = tree.rank(wanted)
    if rank is None:
        raise ValueError(f"flavor {flavor!r} has no level {wanted!r}; levels are: {', '.join(tree.flavor.levels)}")
    found = [*_explained(state, tree, pod_set, rank)]
    lacking = sum(1 for _ in state.cluster.outside(tree.flavor))
    if lacking:
        reason = Reason.MISSING_LEVEL_LABEL
        found.append(DomainFit((), 0, 0, reason, excluded={reason: lacking}))
    return tuple(found)


def _explained(state: ClusterState, tree: Tree, pod_set: PodSet, rank: int) -> Iterator[DomainFit]:
    if not tree.size:
        return
    try:
        left = room(state, tree, pod_set, known_shape(state.cluster.columns, tree, pod_set).counts)
    except Unsupported:
        for domain in range(tree.domains(rank)):
            yield DomainFit(tree.path(rank, domain), 0, 0, Reason.UNSUPPORTED_CONSTRAINT)
        return
    view = _View(state, tree, pod_set, left.within(rank), left.caps, _first_reasons(state, tree, pod_set), 0)
    for domain in range(tree.domains(rank)):
        yield view.domain(rank, domain)


def domain_fit(state: ClusterState, tree: Tree, pod_set: PodSet, left: Room, rank: int, domain: int) -> DomainFit:  # noqa: PLR0917
    """One domain (rank -1: the whole flavor)."""
    first, last = (0, tree.size) if rank < 0 else tree.bounds[rank][domain : domain + 2].tolist()
    reasons = _first_reasons(state, tree, pod_set, slice(first, last))
    return _View(state, tree, pod_set, left.within(rank), left.caps, reasons, first).domain(rank, domain)


def _first_reasons(
    state: ClusterState, tree: Tree, pod_set: PodSet, leaves: slice | None = None
) -> list[tuple[Reason, Mask]]:
    """(reason, which of the leaves it excludes), each leaf under its first reason only."""
    nodes = state.cluster.columns
    leaves = leaves or slice(0, tree.size)
    span = slice(tree.lo + leaves.start, tree.lo + leaves.stop) if tree.index is None else tree.index[leaves]
    shape = Shape.of(nodes.table, tree, pod_set)
    others = ((reason, mask[leaves]) for reason, mask in Constraints(state, tree, pod_set).masks())
    left = np.ones(leaves.stop - leaves.start, np.bool_)
    found = []
    for reason, passing in chain(shape.filter.parts(nodes, span), others):
        found.append((reason, left & ~passing))
        left = left & passing
    return [*found, (Reason.INSUFFICIENT_RESOURCE, left & (shape.fit(nodes, span) == 0))]


@dataclass(frozen=True)
class _View:
    state: ClusterState
    tree: Tree
    pod_set: PodSet
    counts: Counts
    caps: tuple[Cap, ...]
    first: list[tuple[Reason, Mask]]
    begin: int  # the leaf that the masks of ``first`` begin with

    def domain(self, rank: int, domain: int) -> DomainFit:
        bounds = self.tree.bounds[rank] if rank >= 0 else np.array([0, self.tree.size])
        leaves = slice(int(bounds[domain]), int(bounds[domain + 1]))
        fits = int(self.counts.leaf[leaves].sum())
        excluded: dict[Reason, int] = {}
        passing = np.ones(leaves.stop - leaves.start, np.bool_)
        for reason, mask in self.first:
            hit = mask[leaves.start - self.begin : leaves.stop - self.begin]
            if hit.any():
                excluded[reason] = excluded.get(reason, 0) + int(hit.sum())
            if reason is not Reason.INSUFFICIENT_RESOURCE:
                passing &= ~hit
        values = self.tree.path(min(rank, self.tree.last), domain) if 0 <= rank <= self.tree.last else ()
        limit, missing = self._limit(leaves, passing, fits, excluded)
        return DomainFit(values, fits, int(passing.sum()), limit, missing, excluded)

    def _limit(self, leaves: slice, passing: Mask, fits: int, excluded: dict[Reason, int]) -> tuple[str, Amounts]:
        short = self.pod_set.count - fits
        if short <= 0:
            return "", {}
        if not passing.any():
            return max(excluded, key=lambda reason: excluded[reason]), {}
        index = self.tree.where(np.arange(leaves.start, leaves.stop)[passing])
        by_resource = self._by_resource(index)
        limit = min(by_resource, key=lambda resource: by_resource[resource])
        if by_resource[limit] > fits and self.caps:
            return self.caps[0].reason, {}
        return limit, {limit: short * {PODS: 1, **self.pod_set.requests}[limit]}

    def _by_resource(self, index: Ints) -> dict[str, int]:
        """How many pods each resource alone would allow on these nodes."""
        table = self.state.cluster.table
        needs = {PODS: 1, **self.pod_set.requests}
        return {
            resource: int((np.maximum(table.free[table.row(resource)][index], 0) // amount).sum())
            for resource, amount in needs.items()
            if amount > 0
        }
