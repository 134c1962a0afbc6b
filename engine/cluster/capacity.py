"""What the domains of one flavor have, and how much of it is free: sums over ranges of leaves, no loop over nodes.

Only nodes that are ready and schedulable count as free, and one that is over-committed counts as nothing, not as less.
So what is free is not what is allocatable less what is taken.
"""

from functools import cached_property
from typing import Final

import numpy as np

from engine.arrays import Ints, capped
from engine.claims.asks import DeviceAsk
from engine.cluster.state import ClusterState
from engine.cluster.tree import Tree

GANGS: Final = (8, 64, 512)  # devices of the gangs that are told of
# Without a bound a node that publishes thousands of resources costs 0.24 s of metrics.
MOST_DEVICES: Final = 64  # resources that are told of
WHOLE: Final = -1  # in place of a rank: the flavor as a whole is one domain


class Capacity:
    """A flavor as it is now; read it before the state changes. Every method has one number for each domain of a rank.

    Ranks and domains are those of ``tree``; `WHOLE` has one domain.
    """

    def __init__(self, state: ClusterState, tree: Tree) -> None:
        self.tree = tree
        self._table = table = state.cluster.table
        self._devices = state.cluster.devices
        self._where = np.arange(tree.size, dtype=np.int64)
        if tree.size:
            self._where = tree.columns_of_leaves(self._where)
        codes = table.status[self._where]
        ready = np.array([status.ready for status in table.statuses], np.bool_)
        off = np.array([status.unschedulable for status in table.statuses], np.bool_)
        self._ready, self._cordoned = ready[codes], off[codes]

    @cached_property
    def _usable(self) -> "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]":
        return self._ready & ~self._cordoned

    def count_nodes(self, rank: int) -> Ints:
        """Nodes."""
        return self._sums(np.ones(self.tree.size, np.int64), rank)

    def not_ready(self, rank: int) -> Ints:
        """Nodes that are not ready."""
        return self._sums(~self._ready, rank)

    def cordoned(self, rank: int) -> Ints:
        """Nodes that are ready, but not schedulable."""
        return self._sums(self._ready & self._cordoned, rank)

    def allocatable(self, resource: str, rank: int) -> Ints:
        """What the nodes have for pods, whatever their state."""
        return self._sums(self._row(self._table.alloc, resource), rank)

    def taken_amounts(self, resource: str, rank: int) -> Ints:
        """What pods and slots that are kept for pods take, on all nodes."""
        return self._sums(self._row(self._table.alloc, resource) - self._row(self._table.free, resource), rank)

    def free_amounts(self, resource: str, rank: int) -> Ints:
        """What is free on nodes that are ready and schedulable."""
        return self._sums(self._free_row(resource), rank)

    def count_idle_nodes(self, resource: str, rank: int) -> Ints:
        """Nodes that have some of the resource, all of it free."""
        have = self._row(self._table.alloc, resource)
        return self._sums((have > 0) & (self._free_row(resource) == have), rank)

    def count_whole_domains(self, resource: str, rank: int) -> int:
        """How many domains have all that they have of the resource free, on nodes that are all in order."""
        have = self.allocatable(resource, rank)
        return int(((have > 0) & (self.free_amounts(resource, rank) == have)).sum())

    def gangs(self, resource: str, devices: int, rank: int) -> Ints:
        """How many gangs of so many devices would start now, each inside one domain.

        A gang's pods take all devices of a node, as most nodes have them; a gang that is smaller is one pod. What else
        pods ask for, and what is inside of nodes, is not looked at.
        """
        have = self._row(self._table.alloc, resource)
        sizes, counts = np.unique(have[have > 0], return_counts=True)
        if not sizes.size:
            return self._sums(np.zeros(self.tree.size, np.int64), rank)
        # The counts are reversed because argmax takes the first:
        # of equally common sizes of nodes the largest is the pod.
        pod = min(devices, int(sizes[len(sizes) - 1 - int(np.argmax(counts[::-1]))]))
        found: Ints = self._sums(self._free_row(resource) // pod, rank) // -(-devices // pod)
        return found

    def equipped(self, ask: DeviceAsk, rank: int) -> tuple[Ints, Ints]:
        """For how many pods with such claims there are devices, and for how many some are free (`free_amounts`)."""
        have, left = (
            part[self._where] for part in (self._devices.count_if_unclaimed(ask), self._devices.count_by_node(ask))
        )
        owner = self.tree.owners[rank] if rank != WHOLE else np.zeros(self.tree.size, np.int64)
        # Before the caps: devices that several nodes share are then given to usable nodes alone.
        left = np.where(self._usable, left, 0)
        for cap in self._devices.common.caps(ask, emptied=True):
            have = capped(have, owner, cap.codes[self._where], cap.most)
        for cap in self._devices.common.caps(ask):
            left = capped(left, owner, cap.codes[self._where], cap.most)
        return self._sums(have, rank), self._sums(left, rank)

    def _free_row(self, resource: str) -> Ints:
        found: Ints = np.where(self._usable, np.maximum(self._row(self._table.free, resource), 0), 0)
        return found

    def _row(self, rows: Ints, resource: str) -> Ints:
        """One number a leaf; zeros for a resource that nobody named yet."""
        return self._table.published(rows, resource, self._where)

    def _sums(self, leaves: "np.ndarray[tuple[int, ...], np.dtype[np.int64 | np.bool_]]", rank: int) -> Ints:
        leaves = leaves.astype(np.int64)
        if rank == WHOLE:
            return np.array([leaves.sum()], np.int64)
        if not self.tree.size:
            return np.zeros(0, np.int64)
        found: Ints = np.add.reduceat(leaves, self.tree.bounds[rank][:-1])
        return found


def measured(state: ClusterState) -> tuple[str, ...]:
    """The resources worth telling about: devices, each by name, then cpu and memory; of those that any node has.

    Of more than `MOST_DEVICES` those that most nodes have: one node may publish thousands.
    """
    table = state.cluster.table
    # By the number of nodes and not by amounts: one node may publish any amount of anything.
    nodes = (table.alloc > 0).sum(axis=1).tolist()
    # A node whose devices of claims stand in for a plugin has NO_LIMIT in its column, which is no device of its own.
    for name in table.delegated & table.rows.keys():
        nodes[table.rows[name]] = int((table.published(table.alloc, name, slice(None)) > 0).sum())
    have = {name: nodes[row] for name, row in table.rows.items() if nodes[row]}
    devices = sorted((name for name in have if "/" in name), key=lambda name: (-have[name], name))
    return (*sorted(devices[:MOST_DEVICES]), *(name for name in ("cpu", "memory") if name in have))
