"""Machines in columns: one column a distinct (layout, state), one group of columns for each kind of layout.

Layouts are of one kind where they differ in nothing but amounts: the same number of zones, resources and kubelet
settings. So what a pod asks of a kind is worked out once (`engine.numa.batch`) and then evaluated for all its columns.
Equal (layout, state) share a column, and a column that nobody uses any more is used again.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.numa.machine import Layout, State
from engine.numa.traits import Traits, reach_of, room_of
from engine.table import Ints

_START: Final = 16
_NOBODY: Final = (-1, State(free=()))


class Known:
    """A layout that some machine has, and what its columns take over from it; ``uses``: how many machines have it."""

    __slots__ = ("kind", "layout", "number", "reach", "room", "uses")

    def __init__(self, number: int, layout: Layout, kind: "Kind") -> None:
        self.number = number
        self.layout = layout
        self.kind = kind
        self.uses = 0
        self.room = room_of(layout)
        self.reach = reach_of(self.room)


class Kind:
    """The columns of one kind of layout; the first ``used`` have been taken at some time.

    ``free[r, z, c]``: what zone z of column c has left of resource r, 0 where it does not report r. ``room`` is what
    the zone has in all, and ``reach[r, w, c]`` the most that w + 1 zones have together. ``group[z, c]``: the zones that
    share memory with zone z, as a mask; 0 where nothing of its memory is taken. ``at[c]`` is what column c stands for,
    None while it is spare; ``keys[c]`` is (number of the layout, state).
    """

    def __init__(self, number: int, traits: Traits) -> None:
        self.number = number
        self.traits = traits
        self.used = 0
        self.grouped = 0  # columns ever taken with memory in use, as far as that is known
        self.at: list[tuple[Layout, State] | None] = []
        shape = len(traits.resources), traits.zones, _START
        self.free: Ints = np.zeros(shape, np.int64)
        self.room: Ints = np.zeros(shape, np.int64)
        self.reach: Ints = np.zeros(shape, np.int64)
        self.group: Ints = np.zeros(shape[1:], np.int64)
        self._slots: dict[tuple[int, State], int] = {}
        self.keys: list[tuple[int, State]] = []
        self._uses: list[int] = []
        self._spare: list[int] = []

    def __len__(self) -> int:
        return len(self._slots)

    def take(self, known: Known, state: State) -> int:
        """The column of a state of a layout, which has one user more now."""
        key = (known.number, state)
        slot = self._slots.get(key)
        if slot is not None:
            self._uses[slot] += 1
            return slot
        slot = self._slots[key] = self._empty()
        self.keys[slot] = key
        self._uses[slot] = 1
        self.at[slot] = known.layout, state
        np.maximum(np.array(state.free, np.int64).T, 0, out=self.free[:, :, slot])
        self.room[:, :, slot] = known.room
        self.reach[:, :, slot] = known.reach
        if state.memory:
            groups = [cells.cells if cells.assignments else 0 for cells in state.memory]
            self.group[:, slot] = groups
            self.grouped += any(groups)
        return slot

    def drop(self, slot: int) -> None:
        """One user fewer."""
        self._uses[slot] -= 1
        if not self._uses[slot]:
            del self._slots[self.keys[slot]]
            self.at[slot] = None
            self.keys[slot] = _NOBODY
            self._spare.append(slot)

    def _empty(self) -> int:
        if self._spare:
            slot = self._spare.pop()
            self.group[:, slot] = 0
            return slot
        slot = self.used
        if slot == self.group.shape[1]:
            self.free, self.room, self.reach, self.group = (
                _grown(rows) for rows in (self.free, self.room, self.reach, self.group)
            )
        self.used += 1
        self.at.append(None)
        self._uses.append(0)
        self.keys.append(_NOBODY)
        return slot


class View(NamedTuple):
    """Some columns of a kind, in the order of ``where``; arrays are (zones, columns).

    A slice has a start, a stop and no step.
    """

    kind: Kind
    where: slice | Ints

    @property
    def width(self) -> int:
        """How many columns these are."""
        return int(self.where.stop - self.where.start) if isinstance(self.where, slice) else len(self.where)

    @property
    def slots(self) -> list[int]:
        """Which columns these are."""
        where = self.where
        return list(range(where.start, where.stop)) if isinstance(where, slice) else where.tolist()

    @property
    def zones(self) -> int:
        """How many zones each machine has."""
        return self.kind.traits.zones

    def only(self, places: Ints) -> "View":
        """Of these columns, those at ``places``."""
        return View(self.kind, places + self.where.start if isinstance(self.where, slice) else self.where[places])

    def free(self, row: int) -> Ints:
        """What is free of a resource."""
        found: Ints = self.kind.free[row][:, self.where]
        return found

    def room(self, row: int) -> Ints:
        """What there is of a resource."""
        found: Ints = self.kind.room[row][:, self.where]
        return found

    def reach(self, row: int) -> Ints:
        """What 1, 2, ... zones have of a resource at the most."""
        found: Ints = self.kind.reach[row][:, self.where]
        return found

    @property
    def group(self) -> Ints:
        """Which zones share memory."""
        return self.kind.group[:, self.where]

    def all_free(self, rows: Sequence[int]) -> Ints:
        """What is free of some resources, (resources, zones, columns), to be changed."""
        if isinstance(self.where, slice):
            return self.kind.free[rows, :, self.where]
        return np.stack([self.free(row) for row in rows])


def _grown(rows: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([rows, np.zeros_like(rows)], axis=-1)
