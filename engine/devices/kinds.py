"""How many pods of one kind, those with equal claims, get their devices on each node.

What such a count may cost is limited: a kind that takes too many steps on some nodes is counted on none, until devices
or classes change.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import count as numbers
from typing import Final

import numpy as np

from engine.arrays import Ints
from engine.claims.allocate import prepare
from engine.claims.beside import count_beside
from engine.claims.budget import Budget
from engine.claims.cel.selectors import Selectors
from engine.claims.count import ClaimCounter, NodeDevices
from engine.claims.model import Claim, DeviceClass
from engine.claims.searching.requests import Known
from engine.devices.changes import ChangeLog

MOST_PODS: Final = 256  # of one kind on one node that are counted
LOOK_STEPS: Final = 100_000  # for one state of a node; of 600 cases made after real drivers one takes more
CALL_STEPS: Final = 1_000_000  # for all nodes that changed since the last look
MOST_GIVEN_UP: Final = 2  # states that took too many steps, before the kind is given up
_REMEMBERED: Final = 1 << 14
_numbers = numbers()


@dataclass(slots=True)
class NodePlaces:
    """Where nodes are: ``index`` gives a node's place, ``names`` all nodes by their places."""

    index: Callable[[str], int | None]
    names: Callable[[], list[str]]
    layout: int = 0  # grows whenever places do not hold any more

    def moved(self) -> None:
        """Nodes have other places, or there are others."""
        self.layout += 1


class Kind:
    """Pods with equal claims; made anew when a class changes."""

    def __init__(self, claims: Sequence[Claim], classes: dict[str, DeviceClass], selectors: Selectors) -> None:
        self.claims = claims
        self.number = next(_numbers)  # no other kind has it
        self.now = NodeCounts()
        self.bare = NodeCounts()
        self._known = classes, selectors
        self._counter = ClaimCounter(claims, classes, selectors, MOST_PODS, own=True)
        self._costly: dict[Hashable, int] = {}  # what was found of states that took too many steps
        self._given_up: set[Hashable] = set()  # those of them that were so, and not only thought
        self._over = False
        self._beside: dict[Hashable, int] = {}

    @property
    def refused(self) -> bool:
        """Whether it took too many steps to be counted."""
        return self._over or len(self._given_up) >= MOST_GIVEN_UP

    def devices_changed(self) -> None:
        """Nodes have other devices than before."""
        self._costly.clear()
        self._given_up.clear()
        self._over = False

    def look(self, node: NodeDevices) -> Hashable:
        """What tells states of nodes apart to this kind."""
        return self._counter.look(node)

    def count(
        self, node: NodeDevices, waiting: "Sequence[tuple[Kind, int]]", whole: Budget, *, real: bool = True
    ) -> int:
        """How many more pods fit a node beside those that wait there, pods of this kind among them.

        Not ``real``: it is only thought to be so, and what that costs gives nobody up.
        """
        if self.refused or whole.left < 0:
            return 0
        same = sum(count for kind, count in waiting if kind is self)
        look = self.look(node)
        most = self._within(whole, look, lambda budget: self._counter.count_on(node, budget, look), real=real) - same
        others = [(kind, count) for kind, count in waiting if kind is not self]
        if most <= 0 or not others:
            return max(most, 0)
        key = (look, same, tuple([(kind.number, kind.look(node), count) for kind, count in others]))
        found = self._beside.get(key)
        if found is None:
            if len(self._beside) >= _REMEMBERED:
                self._beside.clear()
            found = self._beside[key] = self._within(
                whole, key, lambda budget: self._count_beside(node, others, most + same, budget) - same, real=real
            )
        return max(found, 0)

    def _count_beside(self, node: NodeDevices, others: "Sequence[tuple[Kind, int]]", limit: int, budget: Budget) -> int:
        known = Known(*self._known, budget)
        waiting = [(prepare(node.hardware, kind.claims, known), count) for kind, count in others]
        return count_beside(waiting, prepare(node.hardware, self.claims, known), node.in_use, limit, budget)

    def _within(self, whole: Budget, state: Hashable, counted: Callable[[Budget], int], *, real: bool) -> int:
        """What is counted of a state of a node, within the budget of one."""
        if state not in self._costly:
            budget = Budget(LOOK_STEPS)
            found = counted(budget)
            whole.charge(LOOK_STEPS - budget.left)
            self._over = self._over or (real and whole.left < 0)
            if budget.left >= 0:
                return found
            self._costly[state] = found
        if real:
            self._given_up.add(state)
        return self._costly[state]


class NodeCounts:
    """A number for each node, corrected by change."""

    def __init__(self) -> None:
        self._by_name: dict[str, int] = {}
        self._values: Ints = np.zeros(0, np.int64)
        self._seen = 0
        self._layout = -1

    def values(self, log: ChangeLog, table: NodePlaces, count: Callable[[str], int]) -> Ints:
        """``(nodes,) int64`` by the places of nodes. Do not modify."""
        changed = log.since(self._seen)
        self._seen = log.end
        if changed is None or table.layout != self._layout:
            names = table.names()
            kept = self._by_name if changed is not None else {}
            stale = changed or set()
            self._by_name = {name: kept[name] if name in kept and name not in stale else count(name) for name in names}
            self._values = np.fromiter(self._by_name.values(), np.int64, len(names))
            self._layout = table.layout
            return self._values
        for name in changed:
            if (place := table.index(name)) is not None:
                self._by_name[name] = self._values[place] = count(name)
        return self._values
