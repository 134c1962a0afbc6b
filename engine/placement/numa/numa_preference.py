"""Which leaves of a tree are the better places inside, where equally many pods would fit."""

from functools import cached_property

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.cluster.fit_counts import PODS_OF_A_NODE
from engine.cluster.nodes import Nodes
from engine.cluster.tree import Tree
from engine.kubelet.machine import PodShape
from engine.numa.alignment import AT_ZONES, NOT_KNOWN, TIES, UNKNOWN_NODE, half_zones
from engine.numa.score import FULL, Trait, ZoneScore


class Inner(msgspec.Struct, dict=True):
    """The preference among the leaves of one tree for pods of one shape."""

    nodes: Nodes
    tree: Tree
    shape: PodShape

    @classmethod
    def for_shape(cls, nodes: Nodes, tree: Tree, shape: PodShape | None) -> "Inner | None":
        """None where no two nodes can differ."""
        if shape is None or not nodes.numa.machines:
            return None
        numa = nodes.numa
        several = numa.differing[Trait.ZONES] or (numa.differing[Trait.CONTAINERS] and len(shape.containers) > 1)
        # A node of which nothing is known inside comes after one where one zone suffices, so it makes nodes differ too.
        unknown = len(numa.machines) < nodes.table.size
        if several or unknown or numa.differing[Trait.LINKS] or numa.score is not ZoneScore.LEAST_NUMA_NODES:
            return cls(nodes, tree, shape)
        return None

    @cached_property
    def alignments(self) -> Ints:
        """By leaf, how well one more pod is aligned (`engine.numa.alignment`); less is better."""
        return self._by_leaf(self.nodes.numa.alignments(self.shape), UNKNOWN_NODE)

    def _by_leaf(self, known: Ints, otherwise: int) -> Ints:
        """What is known by table index; ``otherwise`` for nodes behind the last one."""
        missing = self.nodes.table.size - len(known)
        if missing > 0:
            known = np.concatenate([known, np.full(missing, otherwise)])
        leaves: Ints = known[self.tree.span]
        return leaves

    @property
    def several(self) -> int:
        """The least rank of a leaf where one pod needs several zones, or that is not known."""
        # Ranks lack the bits of `TIES`, so the half zones begin that much lower in them.
        return NOT_KNOWN << AT_ZONES - TIES

    @cached_property
    def ranks(self) -> Ints:
        """The same without what decides among equally tight nodes only."""
        found: Ints = self.alignments >> TIES
        return found

    def in_one_zone(self, leaf: Ints) -> Ints | None:
        """Of the pods that fit each leaf, those that come out in one zone each, or more; -1 where that is not known.

        None where it is all of them.
        """
        if not self.nodes.numa.differing[Trait.ZONES]:
            return None
        # A power of two: each other bound would be another answer to work out and keep.
        most = min(1 << (int(leaf.max(initial=1)) - 1).bit_length(), PODS_OF_A_NODE)
        known = self.nodes.numa.in_one_zone(self.shape, most)
        return self._by_leaf(known, -1)

    def choose_leaves(self, leaves: Ints, count: int) -> Ints:
        """Positions (ascending) of the ``count`` best of these leaves."""
        keys = self.alignments[leaves]
        # Only the value is read: which of equal keys a partition puts first depends on the processor.
        edge = np.partition(keys, count - 1)[count - 1]
        surely, equal = (keys < edge).nonzero()[0], (keys == edge).nonzero()[0]
        return np.sort(np.concatenate([surely, equal[: count - len(surely)]]))

    def rate_domains(self, rank: int, domains: Ints) -> Ints:
        """By domain of ``rank``, how many zones its nodes spread a pod over, on average."""
        zones = half_zones(self.alignments)
        if int(zones.min(initial=0)) == int(zones.max(initial=0)):
            return np.zeros(len(domains), np.int64)
        first, last = self.tree.bounds[rank][domains], self.tree.bounds[rank][domains + 1]
        sums = np.concatenate([[0], np.cumsum(zones)])
        found: Ints = FULL * (sums[last] - sums[first]) // (last - first)
        return found
