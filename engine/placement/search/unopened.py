"""A rack in which nothing runs is left whole where one in use takes the pods on a few nodes more.

A rack that is opened for a small job is not there for those that need a whole one. *Rack* here is any domain just above
the nodes; *idle* is one on whose nodes nothing holds what the pods ask for.

Rules
- Only a pick inside one idle rack is looked at, so nobody gets more domains of any level above the nodes.
- Of the racks in use that hold all pods, the one that needs the fewest nodes takes its place, the tightest of equal
  ones, where these are at most ``spare`` more than in the idle rack: in other words, opening a rack costs ``spare``.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints
from engine.cluster.node_columns import Table
from engine.cluster.tree import Tree
from engine.kubelet.machine import CPU, MEMORY
from engine.kubelet.resource_requests import is_device
from engine.model import Amounts

Bools = NDArray[np.bool_]


def idle_leaves(table: Table, tree: Tree, requests: Amounts) -> Bools:
    """Leaves on which nothing holds what a pod asks for: its devices, else most of the CPUs and memory."""
    rows, part = _held_by(table, requests)
    found = np.ones(tree.size, np.bool_)
    for row in rows:
        found &= ~_in_use(table, row, part, tree.span, tree.spare)
    return found


def _in_use(table: Table, row: int, part: int, nodes: slice | Ints, spare: Ints | None = None) -> Bools:
    """``spare`` may lend memory of that size: fresh memory costs more than all the rest."""
    most: Ints = table.alloc[row, nodes]
    if part:
        held = np.floor_divide(most, part, out=spare)
        most = np.subtract(most, held, out=held)
    found: Bools = table.free[row, nodes] < most
    return found


def _held_by(table: Table, requests: Amounts) -> tuple[list[int], int]:
    """Rows of the table that say whether a node is in use, and the part of a node that may be held there: 1 / so much.

    0: nothing. DaemonSets are everywhere, so CPUs and memory are never all free.
    """
    rows = table.rows
    devices = [rows[name] for name, amount in requests.items() if amount and is_device(name) and name in rows]
    if devices:
        return devices, 0
    # Up to a tenth of a node may be held, which leaves room for DaemonSets, and the node still counts as idle.
    return [rows[name] for name in (CPU, MEMORY) if requests.get(name) and name in rows], 10


class Unopened(msgspec.Struct):
    """The racks of a tree in which nothing runs, for pods with such ``requests``."""

    tree: Tree
    table: Table
    requests: Amounts
    spare: int

    def opens(self, leaves: Ints) -> bool:
        """Whether ascending leaves lie in one rack, and that one is idle."""
        tree, free, whole = self.tree, self.table.free, self.table.alloc
        # The leaves ascend, so the first names the rack and the last tells whether all are in it.
        one, end, wide = int(leaves[0]), int(leaves[-1]), tree.grids[tree.leaf - 1][1]
        if wide:
            first = one - one % wide
            last = min(first + wide, tree.size)
        else:
            bounds, rack = tree.bounds[tree.leaf - 1], tree.owners[tree.leaf - 1][one]
            first, last = int(bounds[rack]), int(bounds[rack + 1])
        if end >= last:
            return False
        span = slice(tree.lo + first, tree.lo + last) if tree.index is None else tree.index[first:last]
        rows, part = _held_by(self.table, self.requests)
        if part:
            return not any(_in_use(self.table, row, part, span).any() for row in rows)
        # Of so few nodes nothing is compared faster.
        return all(free[row, span].tobytes() == whole[row, span].tobytes() for row in rows)

    def without_idle(self, counts: Ints) -> Ints | None:
        """Counts by leaf with those in idle racks set to 0; None where there is none."""
        idle = self._idle()
        return np.where(idle[self.tree.owners[self.tree.leaf - 1]], 0, counts) if idle.any() else None

    def in_use(self, racks: Ints, fits: Ints) -> Ints:
        """Those of ``racks`` that are not idle, tightest first; ``fits``: pods, by rack."""
        used = racks[~self._idle()[racks]]
        found: Ints = used[np.lexsort((used, fits[used]))]
        return found

    def _idle(self) -> Bools:
        """By rack, whether nothing runs there."""
        starts = self.tree.bounds[self.tree.leaf - 1][:-1]
        found: Bools = np.logical_and.reduceat(idle_leaves(self.table, self.tree, self.requests), starts)
        return found
