"""Which leaves of a tree are the better places inside, where equally many pods would fit."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from engine.arrays import Ints
from engine.cluster.nodes import Nodes
from engine.cluster.tree import Tree
from engine.kubelet.machine import PodShape
from engine.numa.score import FULL, WORST, Trait, ZoneScore, quality

CANDIDATES: Final = 16  # equal nodes that are looked into one by one
_NOT_KNOWN: Final = 3  # in half zones: after one zone, before two


@dataclass
class Inner:
    """The preference among the leaves of one tree for pods of one shape."""

    nodes: Nodes
    tree: Tree
    shape: PodShape

    @classmethod
    def of(cls, nodes: Nodes, tree: Tree, shape: PodShape | None) -> "Inner | None":
        """None where no two nodes can differ."""
        if shape is None or not nodes.numa.machines:
            return None
        numa = nodes.numa
        several = numa.differing[Trait.ZONES] or (numa.differing[Trait.CONTAINERS] and len(shape.containers) > 1)
        unknown = len(numa.machines) < nodes.table.size
        if several or unknown or numa.differing[Trait.LINKS] or numa.score is not ZoneScore.LEAST_NUMA_NODES:
            return cls(nodes, tree, shape)
        return None

    @cached_property
    def zones(self) -> Ints:
        """By leaf, twice the zones that one more pod would be spread over."""
        needed = self.nodes.numa.fleet().zones_needed(self.shape)
        found = np.full(self.nodes.table.size, _NOT_KNOWN)
        known = needed >= 0
        found[: len(needed)][known] = 2 * needed[known]
        leaves: Ints = found[self.tree.span]
        return leaves

    def best(self, leaves: Ints, count: int) -> Ints:
        """Positions (ascending) of the ``count`` best of these leaves."""
        zones = self.zones[leaves]
        edge = int(np.partition(zones, count - 1)[count - 1])
        surely, equal = (zones < edge).nonzero()[0], (zones == edge).nonzero()[0]
        need = count - len(surely)
        if need < len(equal) and need <= CANDIDATES and self._differ(edge):
            looked_at = equal[: max(CANDIDATES, need)]
            order = sorted(range(len(looked_at)), key=lambda at: self._quality(int(leaves[looked_at[at]])))
            equal = looked_at[sorted(order[:need])]
        return np.sort(np.concatenate([surely, equal[:need]]))

    def domains(self, rank: int, domains: Ints) -> Ints:
        """By domain of ``rank``, how many zones its nodes spread a pod over, on average."""
        zones = self.zones
        if int(zones.min(initial=0)) == int(zones.max(initial=0)):
            return np.zeros(len(domains), np.int64)
        first, last = self.tree.bounds[rank][domains], self.tree.bounds[rank][domains + 1]
        sums = np.concatenate([[0], np.cumsum(zones)])
        found: Ints = FULL * (sums[last] - sums[first]) // (last - first)
        return found

    def _differ(self, zones: int) -> bool:
        """Whether nodes that spread a pod over equally many zones may still differ."""
        numa = self.nodes.numa
        scored = numa.score is not ZoneScore.LEAST_NUMA_NODES or numa.differing[Trait.LINKS] > 0
        return zones != _NOT_KNOWN and (zones > 2 or scored)

    def _quality(self, leaf: int) -> tuple[int, ...]:
        numa, name = self.nodes.numa, self.tree.names[leaf]
        machine, state = numa.machines.get(name), numa.state(name)
        return (WORST,) if machine is None or state is None else quality(machine.layout, state, self.shape, numa.score)
