"""How many pods of a pod set would fit at most if more were free: bounds for whoever looks for victims.

An upper bound: node filters count, inter-pod constraints and the inside of machines do not, devices of claims where
that is asked for. ``place`` has the last word. Where the narrowest level is not the host, pods of one domain may sit on
other nodes than they were packed on, so the bound is then that of the domain's sum.
"""

from functools import cached_property

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.cluster.filters import Mask, NodeFilter
from engine.cluster.state import ClusterState
from engine.cluster.tree import Tree
from engine.model import HOSTNAME_LABEL, PodSet, Policy
from engine.reasons import Reason


class UpperBounds(msgspec.Struct, frozen=True, dict=True):
    """One pod set on one flavor. ``needs``: (resource, amount a pod); arrays are by leaf of ``tree``.

    ``rank``: of the domain that must hold all pods; -1: the whole flavor. ``claimed``: for how many pods there are
    devices of claims; None where that does not count. Whoever asks may say for how many there would be.
    """

    tree: Tree
    pod_set: PodSet
    rank: int
    needs: tuple[tuple[str, int], ...]
    free: tuple[Ints, ...]  # by need
    passing: Ints  # 1 where node filters let pods in, else 0
    claimed: Ints | None = None

    @classmethod
    def compute_bounds(
        cls, state: ClusterState, flavor: str, pod_set: PodSet, *, claims: bool = False, leaves: Mask | None = None
    ) -> "UpperBounds | None":
        """The bound as things are now; None where flavor or level do not exist or there are no nodes.

        ``claims``: with the devices of claims. ``leaves``: those that it may go to; None: any.
        """
        tree = state.tree(flavor)
        if tree is None or not tree.size:
            return None
        # Of the domain that must hold all pods; preferred ones may spread in the end.
        policy, level = pod_set.topology.policy, pod_set.topology.level
        rank = tree.rank_of_level(level) if policy is Policy.REQUIRED and level is not None else -1
        if rank is None:
            return None
        table = state.cluster.table
        amounts = table.needs(pod_set)
        needs = tuple((resource, amount) for resource, amount in amounts.items() if amount > 0)
        free = tuple(table.amounts(table.free, resource, tree.span) for resource, _ in needs)
        passing = np.ones(tree.size, np.int64) if leaves is None else leaves.astype(np.int64)
        for reason, mask in NodeFilter.for_pod_set(pod_set, tree.flavor.tolerations).exclusion_masks(
            state.cluster.columns, tree.span
        ):
            if reason is not Reason.OTHER_COMPUTE_DOMAIN:  # it belongs to that while victims are there
                passing *= mask
        ask = pod_set.devices if claims else None
        claimed = state.cluster.devices.count_by_node(ask)[tree.span].copy() if ask is not None else None
        return cls(tree, pod_set, rank, needs, free, passing, claimed)

    @cached_property
    def by_host(self) -> bool:
        """Whether the bound is that of each node."""
        return self.tree.flavor.levels[-1] == HOSTNAME_LABEL

    def bound_leaves(self, more: dict[str, Ints] | None = None, claimed: Ints | None = None) -> Ints:
        """Pods that would fit each leaf if ``more`` (resource -> amounts by leaf) were free too."""
        fits = self.claimed if claimed is None else claimed
        for (resource, amount), free in zip(self.needs, self.free, strict=True):
            extra = (more or {}).get(resource)
            part = (free if extra is None else free + extra) // amount
            fits = part if fits is None else np.minimum(fits, part)
        if fits is None:
            return np.full(self.tree.size, self.pod_set.count, np.int64)
        return np.maximum(fits, 0) * self.passing

    def bound_domains(self, more: dict[str, Ints] | None = None, claimed: Ints | None = None) -> Ints:
        """Pods that would fit each domain that may hold all; one entry where anywhere will do."""
        if self.by_host or self.rank > self.tree.last:
            return self.summed(self.bound_leaves(more, claimed))
        claimed = self.claimed if claimed is None else claimed
        fits = None
        if claimed is not None:
            fits = np.add.reduceat(claimed * self.passing, self.tree.bounds[self.tree.last][:-1])
        for (resource, amount), free in zip(self.needs, self.free, strict=True):
            extra = (more or {}).get(resource)
            # An over-committed node has nothing, and takes nothing off what its neighbors have.
            room = (np.maximum(free, 0) if extra is None else np.maximum(free + extra, 0)) * self.passing
            part = np.add.reduceat(room, self.tree.bounds[self.tree.last][:-1]) // amount
            fits = part if fits is None else np.minimum(fits, part)
        assert fits is not None  # noqa: S101  (one of pods is always needed)
        leaf = np.zeros(self.tree.size, np.int64)
        # The number of a domain stands at its first leaf, so sums by leaf are sums by domain.
        leaf[self.tree.bounds[self.tree.last][:-1]] = fits
        return self.summed(leaf)

    def summed(self, leaf: Ints) -> Ints:
        """Numbers by leaf, summed by the domains that may hold all."""
        if self.rank < 0:
            return np.array([leaf.sum()])
        found: Ints = np.add.reduceat(leaf, self.tree.bounds[self.rank][:-1])
        return found

    def span(self, domain: int) -> range:
        """The leaves of one domain of ``rank``."""
        if self.rank < 0:
            return range(self.tree.size)
        bounds = self.tree.bounds[self.rank]
        return range(int(bounds[domain]), int(bounds[domain + 1]))

    @cached_property
    def owner(self) -> Ints:
        """The domain of each leaf."""
        return self.tree.owners[self.rank] if self.rank >= 0 else np.zeros(self.tree.size, np.int64)
