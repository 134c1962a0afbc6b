"""Machines in columns: one column a distinct (layout, state), one group of columns for each kind of layout.

Layouts are of one kind where they differ in nothing but amounts: the same number of zones, resources and kubelet
settings. So what a pod asks of a kind is worked out once (`engine.numa.batch.admitted`) and then evaluated for all its
columns. Equal (layout, state) share a column, and a column that nobody uses any more is used again.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints
from engine.kubelet.machine import CPU, Layout, State
from engine.numa.layout_class import Traits, reach_of, room_of

_START: Final = 16
_NOBODY: Final = (-1, State(free=()))


class KnownLayout:
    """A layout that some machine has: column ``place`` among the layouts of its kind; so many machines have it."""

    __slots__ = ("kind", "layout", "place", "uses")

    def __init__(self, layout: Layout, kind: "LayoutColumns") -> None:
        self.layout = layout
        self.kind = kind
        self.place = kind.take_in(layout)
        self.uses = 0

    def use(self) -> None:
        """One more machine has it."""
        self.uses += 1

    def drop_machine(self) -> bool:
        """One machine less has it; True where none has."""
        self.uses -= 1
        return not self.uses


class LayoutColumns:
    """The columns of one kind of layout; the first ``used`` have been taken at some time.

    ``free[r, z, c]``: what zone z of column c has left of resource r, 0 where it does not report r; ``units``: in whole
    numbers of these. ``group[z, c]``: the zones that share memory with zone z, as a mask; 0 where nothing of its memory
    is taken. ``grouped``: whether there ever was such memory, as far as that is known. ``layout[c]`` is the column of
    its layout: ``room[r, z, l]`` is what zone z has in all, ``allocatable[r, z, l]`` what pods may have of it, and
    ``reach[r, w, l]`` the most that w + 1 zones have together; the first ``layouts`` of them have been taken at some
    time, and ``layouts_made`` grows with each. ``at[c]`` is what column c stands for, None while it is spare.
    """

    def __init__(self, number: int, traits: Traits) -> None:
        self.number = number
        self.traits = traits
        self.used = self.layouts = self.layouts_made = 0
        self.grouped = False
        self.units = [1000 if resource == CPU else 1 for resource in traits.resources]
        self.at: list[tuple[Layout, State] | None] = []
        shape = len(traits.resources), traits.zones, _START
        self._free: Ints = np.zeros(shape, np.int64)
        self._group: Ints = np.zeros(shape[1:], np.int64)
        self._unwritten: list[int] = []
        self.layout: Ints = np.zeros(_START, np.int64)
        self.room: Ints = np.zeros(shape, np.int64)
        self.allocatable: Ints = np.zeros(shape, np.int64)
        self.reach: Ints = np.zeros(shape, np.int64)
        self.layout_at: dict[int, Layout] = {}  # by its column
        self._keys: list[tuple[int, State]] = []
        self._slots: dict[tuple[int, State], int] = {}
        self._uses: list[int] = []
        self._spare: list[int] = []
        self._spare_layouts: list[int] = []

    def __len__(self) -> int:
        return len(self._slots)

    def take_in(self, layout: Layout) -> int:
        """A column for a layout."""
        if self._spare_layouts:
            place = self._spare_layouts.pop()
        else:
            place = self.layouts
            self.layouts += 1
            if place == self.room.shape[2]:
                self.room, self.reach, self.allocatable = map(_grown, (self.room, self.reach, self.allocatable))
        # A place serves another layout later, so the number of layouts
        # alone does not tell `ZoneRequest.widths` that it is stale.
        self.layouts_made += 1
        self.layout_at[place] = layout
        room = room_of(layout)
        self.room[:, :, place] = room
        self.allocatable[:, :, place] = np.maximum(np.array(layout.allocatable, np.int64).T, 0)
        self.reach[:, :, place] = reach_of(room)
        return place

    def drop_layout(self, place: int) -> None:
        """Nobody has that layout any more."""
        self._spare_layouts.append(place)

    def acquire_column(self, known: KnownLayout, state: State) -> int:
        """The column of a state of a layout, which has one user more now."""
        key = (known.place, state)
        slot = self._slots.get(key)
        if slot is not None:
            self._uses[slot] += 1
            return slot
        slot = self._slots[key] = self._empty()
        self._keys[slot] = key
        self._uses[slot] = 1
        self.at[slot] = known.layout, state
        self.layout[slot] = known.place
        self._unwritten.append(slot)
        # It never goes back: to know that no column has such memory any more would take a look at all of them.
        self.grouped = self.grouped or any(cells.assignments for cells in state.memory)
        return slot

    @property
    def free(self) -> Ints:
        """See the class."""
        if self._unwritten:
            self._write()
        return self._free

    @property
    def group(self) -> Ints:
        """See the class."""
        if self._unwritten:
            self._write()
        return self._group

    def _write(self) -> None:
        """Write the columns taken since the last time: many at once, and only when somebody reads them."""
        new = {slot: at[1] for slot in self._unwritten if (at := self.at[slot]) is not None}
        self._unwritten.clear()
        slots = list(new)
        zones = len(self._group)
        free = np.array([state.free for state in new.values()], np.int64).reshape(len(slots), zones, len(self._free))
        np.maximum(free, 0, out=free)
        for row, unit in enumerate(self.units):
            if unit > 1:
                # CPUs are pinned whole: a part of one that is left serves nobody.
                free[:, :, row] -= free[:, :, row] % unit
        self._free[:, :, slots] = free.T
        if self.grouped:
            groups = [[each.cells if each.assignments else 0 for each in state.memory] for state in new.values()]
            self._group[:, slots] = np.array([group or [0] * zones for group in groups], np.int64).T

    def drop(self, slot: int) -> None:
        """One user fewer."""
        self._uses[slot] -= 1
        if not self._uses[slot]:
            del self._slots[self._keys[slot]]
            self.at[slot] = None
            # The key holds a state, which is large: it must not stay with a column that nobody uses.
            self._keys[slot] = _NOBODY
            self._spare.append(slot)

    def _empty(self) -> int:
        if self._spare:
            return self._spare.pop()
        slot = self.used
        if slot == len(self.layout):
            self._free, self._group, self.layout = (_grown(rows) for rows in (self._free, self._group, self.layout))
        self.used += 1
        self.at.append(None)
        self._uses.append(0)
        self._keys.append(_NOBODY)
        return slot


class View:
    """Some columns of a kind, in the order of ``where``; arrays are (zones, columns) and not to be changed.

    A slice has a start, a stop and no step.
    """

    __slots__ = ("kind", "where", "width", "zones")

    def __init__(self, kind: LayoutColumns, where: slice | Ints) -> None:
        self.kind = kind
        self.where = where
        self.width = int(where.stop - where.start) if isinstance(where, slice) else len(where)
        self.zones = kind.traits.zones

    @property
    def column_numbers(self) -> list[int]:
        """Which columns these are."""
        where = self.where
        return list(range(where.start, where.stop)) if isinstance(where, slice) else where.tolist()

    def select_columns(self, places: Ints) -> "View":
        """Of these columns, those at ``places`` (ascending, each once)."""
        return self if len(places) == self.width else View(self.kind, self._at(places))

    def free(self, row: int) -> Ints:
        """What is free of a resource."""
        found: Ints = self.kind.free[row][:, self.where]
        return found

    def all_free(self, rows: Sequence[int]) -> Ints:
        """What is free of some resources, (resources, zones, columns)."""
        if isinstance(self.where, slice):
            return self.kind.free[rows, :, self.where]
        if not rows:  # all that is asked for is 0 of a device
            return np.zeros((0, self.zones, self.width), np.int64)
        return np.stack([self.free(row) for row in rows])

    def capacity_of(self, row: int) -> Ints:
        """What there is of a resource."""
        found: Ints = self.kind.room[row][:, self.layout]
        return found

    @property
    def layout(self) -> Ints:
        """The columns of their layouts."""
        return self.kind.layout[self.where]

    @property
    def group(self) -> Ints:
        """Which zones share memory."""
        return self.kind.group[:, self.where]

    @property
    def grouped(self) -> bool:
        """Whether any memory is known to be in use."""
        return self.kind.grouped

    def _at(self, places: Ints) -> Ints:
        return places + self.where.start if isinstance(self.where, slice) else self.where[places]


class Scratch(View):
    """The same to be changed: what is free, ``left[r, z, c]``; who shares memory, ``shares[z, c]``, where that matters.

    ``lost[c]``: what is left of column c is not known any more.
    """

    __slots__ = ("left", "lost", "shares", "sharing")

    def __init__(self, view: View, left: Ints, shares: Ints, lost: NDArray[np.bool_], *, sharing: bool) -> None:
        super().__init__(view.kind, view.where)
        self.left = left
        self.shares = shares
        self.lost = lost
        self.sharing = sharing

    @classmethod
    def copy_view(cls, view: View, *, sharing: bool) -> "Scratch":
        """A copy of what a view shows."""
        left = np.array(view.all_free(range(len(view.kind.traits.resources))))
        return cls(view, left, np.array(view.group), np.zeros(view.width, np.bool_), sharing=sharing)

    def select_columns(self, places: Ints) -> "Scratch":
        """Of these columns, those at ``places`` (ascending, each once): a copy, unless that is all of them."""
        if len(places) == self.width:
            return self
        part = View(self.kind, self._at(places))
        left, shares, lost = self.left[:, :, places], self.shares[:, places], self.lost[places]
        return Scratch(part, left, shares, lost, sharing=self.sharing)

    def free(self, row: int) -> Ints:
        """What is free of a resource."""
        found: Ints = self.left[row]
        return found

    def all_free(self, rows: Sequence[int]) -> Ints:
        """What is free of some resources, (resources, zones, columns)."""
        return self.left[rows]

    @property
    def group(self) -> Ints:
        """Which zones share memory."""
        return self.shares

    @property
    def grouped(self) -> bool:
        """Whether any memory may be known to be in use."""
        return self.sharing


def _grown(rows: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([rows, np.zeros_like(rows)], axis=-1)
