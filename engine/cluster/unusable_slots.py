"""Which of the slots that a workload holds no pod can start in any more, and which a pod's volumes reach.

Changes nothing.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.cluster.filters import Mask, NodeFilter
from engine.cluster.levels import domain_labels, selected
from engine.cluster.state import ClusterState
from engine.cluster.tree import Path
from engine.model import HOSTNAME_LABEL, Flavor, NodeTerm, PodSet, Policy, TopologyRequest

ANYWHERE: Final = TopologyRequest(policy=Policy.UNCONSTRAINED)


def closed(
    state: ClusterState, flavor: str, levels: tuple[str, ...], pod_set: PodSet, slots: Sequence[tuple[Path, str]]
) -> list[bool]:
    """For each slot (its level values, and its node where it is one) whether it is closed to pods of this pod set.

    It is where none of its nodes is left that is there, ready, schedulable, without a taint that the pods (or the
    flavor) do not tolerate, with the labels that the slot, the pods' selectors and the flavor name. A host that became
    too small for what is held on it is closed too. ``flavor``: one that is not known asks for no labels.
    """
    known = state.flavors.get(flavor)
    if known is not None and known.levels != levels:
        known = None  # another one of that name; who stands in the old one is not to move for that
    if not all(name for _, name in slots):
        state.tree("")  # nodes may change their place in the table here, and not below
    look = _SlotCheck(
        state, known, levels, NodeFilter.for_pod_set(pod_set, known.tolerations if known is not None else ()), pod_set
    )
    # All hosts of a job are looked at in one go: with 1,250 of them
    # single looks cost more in numpy calls than in comparisons.
    hosts = [look.host(values, name) if name else -1 for values, name in slots]
    index = np.array([at for at in hosts if at >= 0], np.int64)
    free = iter(look.open(index).tolist())
    return [
        not (next(free) if at >= 0 else not name and bool(look.open(look.domain(values)).any()))
        for at, (values, name) in zip(hosts, slots, strict=True)
    ]


class SlotNodes:
    """The nodes of some slots, looked up once: asked for the volumes of one pod after the other."""

    def __init__(
        self, state: ClusterState, flavor: str, levels: tuple[str, ...], slots: Sequence[tuple[Path, str]]
    ) -> None:
        known = state.flavors.get(flavor)
        if known is not None and known.levels != levels:
            known = None
        if not all(name for _, name in slots):
            # Nodes change their place in the table here, before their indices are noted below.
            state.tree("")
        by_name = state.cluster.by_name
        look = _SlotCheck(state, known, levels, NodeFilter(), PodSet(name="", count=1, requests={}, topology=ANYWHERE))
        nodes: list[Ints] = []
        for values, name in slots:
            record = by_name.get(name) if name else None
            there = [record.index] if record is not None and record.node is not None else []
            nodes.append(np.array(there, np.int64) if name else look.domain(values))
        sizes = [len(each) for each in nodes]
        self._columns = state.cluster.columns
        self._index = np.concatenate([*nodes, np.zeros(0, np.int64)])
        self._slot = np.repeat(np.arange(len(slots)), sizes)
        self._empty = np.array(sizes, np.int64) == 0

    def reached(self, nodes: tuple[tuple[NodeTerm, ...], ...]) -> frozenset[int]:
        """Which of the slots have a node where all of these let pods in (`PodSet.volume_nodes`), be they free or not.

        A slot without any node that is there is one: `closed` tells of those.
        """
        mask = NodeFilter(volumes=nodes).mask(self._columns, self._index)
        found = self._empty.copy()
        found[self._slot if mask is None else self._slot[mask]] = True
        return frozenset(found.nonzero()[0].tolist())


class _SlotCheck(msgspec.Struct, frozen=True, dict=True):
    """What is asked of every node."""

    state: ClusterState
    flavor: Flavor | None
    levels: tuple[str, ...]
    filter: NodeFilter
    pod_set: PodSet

    def host(self, values: Path, name: str) -> int:
        """The table index of a node whose labels are still those of its slot; -1 where there is none."""
        record = self.state.cluster.by_name.get(name)
        node = record.node if record is not None else None
        if record is None or node is None or (self.flavor is not None and not selected(self.flavor, node)):
            return -1
        flavor, labels = self.flavor, node.labels
        for level, value in domain_labels(self.levels, values).items():
            if (labels.get(level) if flavor is None else flavor.value(labels, level)) != value:
                return -1
        return record.index

    def domain(self, values: Path) -> Ints:
        """The table indices of all nodes with these values."""
        tree = self.state.tree(self.flavor.name) if self.flavor is not None else None
        if tree is None:
            return np.array(self._by_values.get(values, ()), np.int64)
        found = tree.domain_of.get(values)
        if found is None:
            return np.array([], np.int64)
        first, last = tree.bounds[tree.last][found : found + 2].tolist()
        return tree.columns_of_leaves(np.arange(first, last, dtype=np.int64))

    @cached_property
    def _by_values(self) -> dict[Path, list[int]]:
        """The table indices of all nodes by their values."""
        found: dict[Path, list[int]] = {}
        levels = set(self.levels)
        for node in self.state.nodes.values():
            if node.labels.keys() >= levels:
                values = tuple([node.labels[key] for key in self.levels])
                found.setdefault(values, []).append(self.state.cluster.by_name[node.name].index)
        return found

    def open(self, index: Ints) -> Mask:
        """Which of these nodes a pod could start on."""
        table = self.state.cluster.table
        needs = table.vector(self.pod_set.requests)
        found = self.filter.mask(self.state.cluster.columns, index)
        if found is None:
            found = np.ones(len(index), np.bool_)
        if self.levels[-1] == HOSTNAME_LABEL:
            asked = np.flatnonzero(needs)
            # Free is what is left beside the slot itself: below zero the host no longer has what is held on it.
            found &= (table.free[asked[:, None], index] >= 0).all(axis=0)
        return found
