"""Why a pod set does or does not fit, domain by domain. Written to be read by people; not a hot path."""

from collections.abc import Iterator
from itertools import chain

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.claims.read.asks import resources_of
from engine.cluster.affinity import Cap, ConstrainedCounts, Constraints, Unsupported, room
from engine.cluster.filters import Mask
from engine.cluster.fit_counts import Counts, Shape, attach, known_shape
from engine.cluster.state import ClusterState
from engine.cluster.tree import Tree
from engine.kubelet.rebuild import inner
from engine.model import Amounts, PodSet
from engine.numa.refusal import kubelet_refusal
from engine.placement.slice_tail import sliced_counts
from engine.placement.slices import Unfit, layers_of
from engine.reasons import Reason


class DomainFit(msgspec.Struct, frozen=True):
    """How many pods of a pod set fit one domain, and what limits it.

    Of a pod set with slices, pods in whole slices count; where only single pods would fit, ``limit`` says so.
    ``nodes``: how many nodes of the domain pass every filter. ``limit``: the resource (or `DEVICES`, or the Reason)
    that runs out first; "" where the whole pod set fits. ``missing``: how much more of that resource the rest of the
    pods need. ``excluded``: nodes that take no pod at all, by the first reason. ``misaligned``: nodes that take fewer
    pods than their amounts allow, because their kubelet would refuse more; ``refusal``: the kubelet's words on one.
    ``devices``: where claims limit it, why one of its nodes takes no more pods. ``by_amounts``: how many pods its nodes
    that pass every filter have the amounts for, whatever kubelets and other pods say.
    """

    values: tuple[str, ...]
    fits: int
    nodes: int
    limit: str = ""
    missing: Amounts = msgspec.field(default_factory=dict)
    excluded: dict[Reason, int] = msgspec.field(default_factory=dict)
    misaligned: int = 0
    refusal: str = ""
    devices: str = ""
    by_amounts: int = 0

    @property
    def closeness(self) -> tuple[int, int, int]:
        """Of domains, the one with the greatest comes closest: most pods, then amounts for most, then most nodes."""
        return self.fits, self.by_amounts, self.nodes


def explain(state: ClusterState, flavor: str, pod_set: PodSet, level: str | None = None) -> tuple[DomainFit, ...]:
    """One entry a domain of ``level`` (the requested one where None; the widest for unconstrained), in tree order.

    Nodes of the flavor that lack a level label come last, as one entry without values. Raises ValueError for a flavor
    or level that does not exist. A constraint that cannot be honoured is the ``limit`` of every domain.
    """
    # The table shows where a pod fits that has the volumes of all: parts of a pod set are not shown one by one.
    pod_set = pod_set.together
    tree = state.tree(flavor)
    if tree is None:
        raise ValueError(f"no flavor {flavor!r}; there are: {', '.join(sorted(state.flavors)) or 'none'}")
    wanted = level or pod_set.topology.level or tree.flavor.levels[0]
    rank = tree.rank_of_level(wanted)
    if rank is None:
        raise ValueError(f"flavor {flavor!r} has no level {wanted!r}; levels are: {', '.join(tree.flavor.levels)}")
    found = [*_explained(state, tree, pod_set, rank)]
    if tree.lost(wanted):
        found = []
    lacking = tree.size if tree.lost(wanted) else sum(1 for _ in state.cluster.outside(tree.flavor))
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
        for domain in range(tree.count_domains(rank)):
            yield DomainFit(tree.path(rank, domain), 0, 0, Reason.UNSUPPORTED_CONSTRAINT)
        return
    view = _View(
        state,
        tree,
        pod_set,
        _count_whole_slices(tree, pod_set, left.counts_within(rank)),
        left.caps,
        _count_reasons(state, tree, pod_set),
        0,
    )
    for domain in range(tree.count_domains(rank)):
        yield view.domain(rank, domain)


def domain_fit(  # noqa: PLR0917 -- as its callers have it
    state: ClusterState, tree: Tree, pod_set: PodSet, left: ConstrainedCounts, rank: int, domain: int
) -> DomainFit:
    """One domain (rank -1: the whole flavor)."""
    first, last = (0, tree.size) if rank < 0 else tree.bounds[rank][domain : domain + 2].tolist()
    why = _count_reasons(state, tree, pod_set, slice(first, last))
    counts = _count_whole_slices(tree, pod_set, left.counts_within(rank))
    return _View(state, tree, pod_set, counts, left.caps, why, first).domain(rank, domain)


def _count_whole_slices(tree: Tree, pod_set: PodSet, counts: Counts) -> Counts:
    """Counts of whole slices, where the pod set has any that the flavor knows."""
    try:
        layers = layers_of(tree, pod_set.topology)
    except Unfit:
        return counts
    return sliced_counts(tree, counts.leaf, layers, pod_set.count) if layers else counts


class _Why(msgspec.Struct, frozen=True):
    """(reason, which of some leaves it excludes), each leaf under its first reason only; and what the leaves take.

    ``amounts``: pods that fit by amounts; ``taken``: pods that their kubelets would admit of those.
    """

    first: list[tuple[Reason, Mask]]
    amounts: Ints
    taken: Ints


def _count_reasons(state: ClusterState, tree: Tree, pod_set: PodSet, leaves: slice | None = None) -> _Why:
    nodes = state.cluster.columns
    leaves = leaves or slice(0, tree.size)
    span = slice(tree.lo + leaves.start, tree.lo + leaves.stop) if tree.index is None else tree.index[leaves]
    shape = Shape.compile_shape(nodes.table, tree, pod_set)
    others = ((reason, mask[leaves]) for reason, mask in Constraints(state, tree, pod_set).masks())
    left = np.ones(leaves.stop - leaves.start, np.bool_)
    found = []
    for reason, passing in chain(shape.filter.exclusion_masks(nodes, span), others):
        found.append((reason, left & ~passing))
        left = left & passing
    amounts = shape.fit_amounts(nodes, span)
    taken = amounts.copy()
    shape.cut(nodes, span, taken)
    none = left & (amounts == 0)
    if shape.devices is not None:
        unequipped = nodes.devices.count_by_node(shape.devices)[span] == 0
        found.append((Reason.INSUFFICIENT_DEVICES, none & unequipped))
        none = none & ~unequipped
    found.append((Reason.INSUFFICIENT_RESOURCE, none))
    found.append((Reason.NUMA_ALIGNMENT, left & (amounts > 0) & (taken == 0)))
    return _Why(found, amounts, taken)


_OF_AMOUNTS = (Reason.INSUFFICIENT_RESOURCE, Reason.INSUFFICIENT_DEVICES, Reason.NUMA_ALIGNMENT)
DEVICES = "devices of its claims"


class _View(msgspec.Struct, frozen=True):
    state: ClusterState
    tree: Tree
    pod_set: PodSet
    counts: Counts
    caps: tuple[Cap, ...]
    why: _Why
    begin: int  # the leaf that the masks of ``why`` begin with

    def domain(self, rank: int, domain: int) -> DomainFit:
        bounds = self.tree.bounds[rank] if rank >= 0 else np.array([0, self.tree.size])
        leaves = slice(int(bounds[domain]), int(bounds[domain + 1]))
        single = int(self.counts.leaf[leaves].sum())
        fits = int(self.counts.counts_of_rank(rank)[domain] if rank >= 0 else self.counts.count_all())
        excluded: dict[Reason, int] = {}
        passing = np.ones(leaves.stop - leaves.start, np.bool_)
        inside = slice(leaves.start - self.begin, leaves.stop - self.begin)
        for reason, mask in self.why.first:
            hit = mask[inside]
            if hit.any():
                excluded[reason] = excluded.get(reason, 0) + int(hit.sum())
            if reason not in _OF_AMOUNTS:
                passing &= ~hit
        values = self.tree.path(min(rank, self.tree.last), domain) if 0 <= rank <= self.tree.last else ()
        limit, missing = self._limit(leaves, passing, fits, excluded)
        amounts = self.why.amounts[inside] * passing
        fewer = amounts - self.why.taken[inside] * passing
        if fits < self.pod_set.count <= fits + int(fewer.sum()):
            limit, missing = Reason.NUMA_ALIGNMENT, {}
        if fits < self.pod_set.count <= single:
            limit, missing = Reason.SLICES, {}
        misaligned = fewer.nonzero()[0]
        refusal = self._refusal(leaves.start + int(misaligned[0])) if len(misaligned) else ""
        devices = self._explain_devices(leaves, passing) if limit in {DEVICES, Reason.INSUFFICIENT_DEVICES} else ""
        return DomainFit(
            *(values, fits, int(passing.sum()), limit, missing, excluded, len(misaligned), refusal, devices),
            by_amounts=int(amounts.sum()),
        )

    def _explain_devices(self, leaves: slice, passing: Mask) -> str:
        """Why one of the nodes takes no more pods with such claims: one that takes the fewest, and could take some."""
        ask, ledger = self.pod_set.devices, self.state.cluster.devices
        at = np.arange(leaves.start, leaves.stop)[passing]
        if ask is None or not len(at):
            return ""
        index = self.tree.columns_of_leaves(at)
        never = ledger.count_if_unclaimed(ask)[index] == 0
        node = self.tree.names[int(at[int(np.lexsort((ledger.count_by_node(ask)[index], never))[0])])]
        return f"{node}: {ledger.explain_devices(node, ask)}"

    def _refusal(self, leaf: int) -> str:
        """What the kubelet of a node says to the first pod that it would not take."""
        shape = inner(self.pod_set.shape)
        node, state = self.tree.names[leaf], self.state
        if shape is None:
            return ""
        ask, zones = self.pod_set.devices, state.cluster.claim_zones
        if ask is not None and ask.aligned and (told := zones.explain_zones(node, ask, shape, self.pod_set.count)):
            return told
        xpus = state.cluster.columns.xpus
        return kubelet_refusal(node, state.machines.get(node), state.state_inside(node), shape, xpus=xpus)

    def _limit(self, leaves: slice, passing: Mask, fits: int, excluded: dict[Reason, int]) -> tuple[str, Amounts]:
        short = self.pod_set.count - fits
        if short <= 0:
            return "", {}
        if not passing.any():
            # No node passes the filters, so amounts tell nothing: the filter that keeps out most nodes is the limit.
            return max(excluded, key=lambda reason: excluded[reason]), {}
        index = self.tree.columns_of_leaves(np.arange(leaves.start, leaves.stop)[passing])
        by_resource = self._by_resource(index)
        limit = min(by_resource, key=lambda resource: by_resource[resource])
        # Amounts alone would let more pods in, so it is a cap between pods that keeps them out.
        if by_resource[limit] > fits and self.caps:
            return self.caps[0].reason, {}
        each = self.pod_set.cut.get(limit) or self._needs.get(limit, 1)
        return limit, {limit: short * each} if limit != DEVICES else {}

    def _by_resource(self, index: Ints) -> dict[str, int]:
        """How many pods each resource alone would allow on these nodes."""
        table, needs = self.state.cluster.table, self._needs
        found = {
            resource: int((np.maximum(table.amounts(table.free, resource, index), 0) // amount).sum())
            for resource, amount in needs.items()
            if amount > 0
        }
        if (ask := self.pod_set.devices) is not None:
            fits = self.state.cluster.devices.count_by_node(ask)[index]
            for resource in resources_of(ask).intersection(needs):  # where plugins give it, devices are not asked
                fits = np.minimum(fits, np.maximum(table.amounts(table.free, resource, index), 0) // needs[resource])
            found[DEVICES] = int(fits.sum())
        return found | self._by_volumes(index)

    def _by_volumes(self, index: Ints) -> dict[str, int]:
        """The same for volumes that pods share, by limit."""
        if not self.pod_set.attached.shared:
            return {}
        columns, shape = (
            self.state.cluster.columns,
            Shape.compile_shape(self.state.cluster.table, self.tree, self.pod_set),
        )
        found = {}
        for limit, own, volumes in shape.shared:
            counts = np.full(len(index), self.pod_set.count, np.int64)
            have = columns.table.amounts(columns.table.free, limit, index)
            attach(counts, have, columns.volumes.count_unattached(volumes, limit)[index], own)
            found[limit] = int(counts.sum())
        return found

    @property
    def _needs(self) -> Amounts:
        return self.state.cluster.table.needs(self.pod_set)
