"""A number for each node, kept, and corrected by change."""

from collections.abc import Callable, Iterable, Sequence
from itertools import count as numbers

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.devices.changes import ChangeLog

_numbers = numbers()


class NodePlaces(msgspec.Struct):
    """Where nodes are: ``index`` gives a node's place, ``listed`` all nodes by their places."""

    index: Callable[[str], int | None]
    listed: Callable[[], list[str]]
    layout: int = 0  # grows whenever places do not hold any more
    _names: list[str] | None = None  # of this layout

    def clear_places(self) -> None:
        """Nodes have other places, or there are others."""
        self.layout += 1
        self._names = None

    def nodes_by_place(self) -> Sequence[str]:
        """All nodes by their places."""
        if self._names is None:
            self._names = self.listed()
        return self._names


class Counting(msgspec.Struct, frozen=True):
    """How numbers are found.

    ``one``: that of a node, None where it takes too long to find it now. ``whole``: those of all nodes, 0 where they
    were not found, and the nodes that are left; where there is no such way, nodes are asked one by one.
    """

    one: Callable[[str], int | None]
    whole: Callable[[], tuple[Ints, set[str]]] | None = None


class NodeCounts:
    """See the module. ``left``: nodes that were not counted yet, as that took too long; their number is 0."""

    def __init__(self) -> None:
        self.left: set[str] = set()
        self.number = next(_numbers)  # smaller than of those made later
        self.rounds = 0  # in which those were counted that were left
        self._values: Ints = np.zeros(0, np.int64)
        self._names: list[str] = []  # by place, where nodes are asked one by one
        self._seen = 0
        self._layout = -1

    def values(self, log: ChangeLog, table: NodePlaces, counting: Counting) -> Ints:
        """``(nodes,) int64`` by the places of nodes. Do not modify."""
        changed = log.changed_since(self._seen)
        self._seen = log.end
        if changed is None or table.layout != self._layout:
            self._count_all(changed, table, counting)
        else:
            self._count_nodes(changed, table, counting)
        return self._values

    def go_on(self, table: NodePlaces, counting: Counting) -> list[int]:
        """Count nodes that were left, as far as it goes; the places of those that are counted now."""
        before = self.left
        self.rounds += 1
        # Nothing is counted yet: all nodes together cost less than one after another.
        if counting.whole is not None and len(before) == len(table.nodes_by_place()):
            self._count_all(None, table, counting)
        else:
            self._count_nodes(sorted(before), table, counting)
        places = (table.index(name) for name in before - self.left)
        return [place for place in places if place is not None]

    def _count_all(self, changed: set[str] | None, table: NodePlaces, counting: Counting) -> None:
        self._layout = table.layout
        if counting.whole is not None:
            self._values, self.left = counting.whole()
            self._names = []
            return
        names = list(table.nodes_by_place())
        kept: dict[str, int] = {}
        if changed is not None:
            found = zip(self._names, self._values.tolist(), strict=False)
            kept = {name: value for name, value in found if name not in changed}
        # Nodes that are gone leave ``left`` too: its size is shown as the number of nodes that are not counted yet.
        self._names, self.left = names, self.left & set(names)
        self._values = np.zeros(len(names), np.int64)
        for place, name in enumerate(names):
            # A node that was left has the number 0, which is no count.
            if name in kept and name not in self.left:
                self._values[place] = kept[name]
            else:
                self._record_count(name, place, counting.one(name))

    def _count_nodes(self, names: Iterable[str], table: NodePlaces, counting: Counting) -> None:
        # A copy, for `go_on` compares with the set from before.
        self.left = set(self.left)
        for name in names:
            if (place := table.index(name)) is not None:
                self._record_count(name, place, counting.one(name))
            else:
                self.left.discard(name)

    def _record_count(self, name: str, place: int, found: int | None) -> None:
        (self.left.add if found is None else self.left.discard)(name)
        self._values[place] = found or 0


def each(names: Sequence[str], count: Callable[[str], int | None]) -> tuple[Ints, set[str]]:
    """What `Counting.whole` gives, where each node is asked."""
    found = [count(name) for name in names]
    left = {name for name, one in zip(names, found, strict=True) if one is None}
    return np.array([one or 0 for one in found], np.int64), left


def grouped(
    names: Sequence[str], looks: Ints, states: Ints, count: Callable[[str], int | None]
) -> tuple[Ints, set[str]]:
    """What `Counting.whole` gives, where nodes count alike that are equal in both numbers (below 2^31): asked once."""
    # Both numbers in one: looks in the upper half, states in the lower one. `_number_apart` gives states below 0, which
    # meet no others.
    _, first, groups = np.unique((looks << 32) + states, return_index=True, return_inverse=True)
    found = [count(names[place]) for place in first.tolist()]
    values = np.array([one or 0 for one in found], np.int64)[groups]
    if None not in found:
        return values, set()
    missing = np.array([one is None for one in found])[groups]
    return values, {names[place] for place in np.flatnonzero(missing).tolist()}
