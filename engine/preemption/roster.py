"""The blocks of many nodes in columns, so that one look says where which victims could suffice, and what at least.

A table has the blocks of one kind of machine and one width. Its columns hold what is free now and, by priority, what is
free with every victim of up to that priority gone; so the least highest priority of a victim is exact at once, for all
blocks. The least sum of priorities is bounded from below by the cheapest offer for each unit that is missing, the
number of victims by the largest offer.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints
from engine.kubelet.machine import Layout
from engine.kubelet.resource_requests import is_device
from engine.preemption.blocks import (
    Block,
    MachineKind,
    MachineNeeds,
    Offer,
    Row,
    blocks_of,
    free_in,
    kind_of,
    offers,
)
from engine.preemption.cover import Amount, Item, cheapest
from engine.preemption.model import NOBODY, Landing, NodeRoom

COVERS_KEPT: Final = 1 << 14
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
SAFE: Final = 1 - 1e-9  # a bound that is computed in floats must not come out too high


class RosterPlace(NamedTuple):
    """One block of one node, and what each of its victims (by position in the room) would give back."""

    room: NodeRoom
    block: Block
    free: tuple[int, ...]
    offers: tuple[Offer, ...]


class Bound(NamedTuple):
    """No set of victims that covers a place is cheaper than this."""

    highest: int
    total: int
    size: int
    freed: int
    place: RosterPlace


class _Arrays(msgspec.Struct, frozen=True):
    """By level: what is free with all up to it gone; the least weight of a unit; the most that one victim gives.

    ``own`` is the least weight of a unit among the victims of that very level, ``each`` among all up to it.
    """

    have: Ints
    own: Floats
    each: Floats
    most: Ints

    def add_up(self, columns: slice) -> None:
        """From what each level adds to what it comes to."""
        have, own, each, most = (array[:, :, columns] for array in (self.have, self.own, self.each, self.most))
        have[:] = np.cumsum(have, axis=0)
        each[:] = np.minimum.accumulate(own, axis=0)
        most[:] = np.maximum.accumulate(most, axis=0)


class RosterTable(msgspec.Struct):
    """See the module. Arrays: level (0: nobody gone, then by priority) x row x column.

    Columns of nodes that left stay empty until the table is built anew, as it is for a new priority or a new node.
    """

    rows: tuple[Row, ...]
    landing: Landing
    at: dict[str, list[RosterPlace]] = msgspec.field(default_factory=dict)
    places: list[RosterPlace] = msgspec.field(default_factory=list)
    levels: list[int] = msgspec.field(default_factory=list)
    _columns: dict[str, range] = msgspec.field(default_factory=dict)
    _arrays: "_Arrays | None" = None
    _low: list[int] = msgspec.field(default_factory=list)  # by row: no column has less free
    _high: list[list[int]] = msgspec.field(default_factory=list)  # by level and row: no column has more
    _looks: "dict[tuple[tuple[Row, int], ...], _ScarceRows | None]" = msgspec.field(default_factory=dict)
    _chosen: dict[tuple[Row, ...], list[int] | None] = msgspec.field(default_factory=dict)

    def put(self, node: str, places: list[RosterPlace]) -> None:
        """A node has exactly these blocks now."""
        if self.at.get(node) == places:
            return
        self._looks.clear()
        self.at[node] = places
        columns = self._columns.get(node, range(0))
        known = all(offer.priority in self.levels for place in places for offer in place.offers)
        # Columns are corrected in place only where as many blocks have victims of known priorities.
        if self._arrays is None or not places or len(columns) != len(places) or not known:
            self._arrays = None
            return
        for column, place in zip(columns, places, strict=True):
            self.places[column] = place
            self._fill(self._arrays, column, place)
        self._arrays.add_up(slice(columns.start, columns.stop))
        have = self._arrays.have[:, :, columns.start : columns.stop]
        self._low = list(map(min, self._low, have[0].min(axis=1).tolist()))  # too wide only costs a look
        self._high = [list(map(max, *pair)) for pair in zip(self._high, have.max(axis=2).tolist(), strict=True)]

    def built(self) -> "_Arrays":
        """The columns."""
        if self._arrays is not None:
            return self._arrays
        self.places, self._columns = [], {}
        for node, places in sorted(self.at.items()):  # so that of equal bounds the first node comes first
            self._columns[node] = range(len(self.places), len(self.places) + len(places))
            self.places += places
        self.levels = sorted({offer.priority for place in self.places for offer in place.offers})
        shape = len(self.levels) + 1, len(self.rows), len(self.places)
        arrays = _Arrays(np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64))
        for column, place in enumerate(self.places):
            self._fill(arrays, column, place)
        arrays.add_up(slice(None))
        if self.places:
            self._low, self._high = arrays.have[0].min(axis=1).tolist(), arrays.have.max(axis=2).tolist()
        self._arrays = arrays
        return arrays

    def _fill(self, arrays: "_Arrays", column: int, place: RosterPlace) -> None:
        """What each level adds."""
        have, own, most = (array[:, :, column] for array in (arrays.have, arrays.own, arrays.most))
        have[:], own[:], most[:] = 0, np.inf, 0
        have[0] = place.free
        for offer in place.offers:
            level = bisect_left(self.levels, offer.priority) + 1
            gains = np.array(offer.gains, np.int64)
            have[level] += gains
            np.maximum(most[level], gains, out=most[level])
            some = gains > 0
            # A victim of weight 0 gives units for nothing; the bound is 0 then, which is too low and so safe.
            own[level, some] = np.minimum(own[level, some], offer.weight / gains[some])

    def rows_of(self, wanted: MachineNeeds) -> list[int] | None:
        """The numbers of the rows that are wanted; None where a resource is nowhere here."""
        names = tuple([row for row, _ in wanted.needs])
        if names not in self._chosen:
            at = {row: number for number, row in enumerate(self.rows)}
            self._chosen[names] = [at[row] for row in names] if at.keys() >= set(names) else None
        return self._chosen[names]

    def bounds(self, wanted: MachineNeeds, above: int, *, by_count: bool) -> Iterator[Bound]:
        """Places that suffice with every victim below ``above`` gone, the least bound first, then by name.

        By highest priority, sum, number and devices freed; ``by_count``: by number, sum and devices freed.
        """
        self.built()
        if wanted.needs not in self._looks:
            self._looks[wanted.needs] = self._scarce_rows(wanted)
        look = self._looks[wanted.needs]
        if look is None:
            return
        if not look.amounts:
            yield from [Bound(NOBODY, 0, 0, 0, place) for place in self.places]
            return
        upto = bisect_left(self.levels, above) + 1
        if by_count:
            yield from look.by_count(upto - 1)
            return
        before: Bools | None = None
        for level in range(upto):
            now = look.enough(level)
            if now is not None:
                # A place that suffices at a lower level came at that level already.
                columns = (now if before is None else now & ~before).nonzero()[0]
                before = now
                if len(columns):
                    yield from look.by_total(columns, level)

    def _scarce_rows(self, wanted: MachineNeeds) -> "_ScarceRows | None":
        """The rows that may be scarce; None where not even all victims would do."""
        rows = self.rows_of(wanted)
        if rows is None or not self.places:
            return None
        scarce: list[int] = []
        need: list[int] = []
        devices: dict[str, list[int]] = {}
        for row, (_, amount) in zip(rows, wanted.needs, strict=True):
            # The last level has every victim gone: where no column has as much then, no node ever will.
            if amount > self._high[-1][row]:
                return None
            if amount > self._low[row]:
                if is_device(self.rows[row][1]):
                    devices.setdefault(self.rows[row][1], []).append(len(scarce))
                scarce.append(row)
                need.append(amount)
        return _ScarceRows(self, scarce, need, list(devices.values()))


class _ScarceRows:
    """One look at a table: ``rows`` and how much is needed of each; ``devices``: positions of those by resource."""

    def __init__(self, table: RosterTable, rows: list[int], need: list[int], devices: list[list[int]]) -> None:
        arrays = table.built()
        self.table = table
        self.amounts = list(zip(rows, need, strict=True))
        self.need = np.array(need, np.int64).reshape(-1, 1)
        self.devices = devices
        have, own, each, most = arrays.have, arrays.own, arrays.each, arrays.most
        self.arrays = _Arrays(have[:, rows], own[:, rows], each[:, rows], most[:, rows])  # the rows that are wanted

    def enough(self, level: int) -> Bools | None:
        """By column, whether all that is needed is there with everyone up to a level gone; None: nowhere."""
        high = self.table._high[level]  # noqa: SLF001  (a part of the table)
        for row, amount in self.amounts:
            if amount > high[row]:
                return None
        found: Bools = np.logical_and.reduce(self.arrays.have[level] >= self.need)
        return found

    def by_total(self, columns: Ints, level: int) -> Iterator[Bound]:
        """Places whose least highest priority is that of a level."""
        table = self.table
        if not level:
            yield from [Bound(NOBODY, 0, 0, 0, table.places[column]) for column in columns.tolist()]
            return
        have, most = self.arrays.have[0].take(columns, axis=1), self.arrays.most[level].take(columns, axis=1)
        missing = np.maximum(self.need - have, 0)
        totals = self._least_priorities(missing, columns, level, strict=level > 1)
        yield from self._in_order(table.levels[level - 1], totals, missing, most, columns)

    def _least_priorities(self, missing: Ints, columns: Ints, level: int, *, strict: bool = False) -> Ints:
        """The least sum of priorities; ``strict``: the levels below do not suffice."""
        parts = missing * np.where(missing, self.arrays.each[level].take(columns, axis=1), 0.0)
        if strict:
            # What it costs at least, counting that the levels below do not give all of it.
            have, own, each = self.arrays.have, self.arrays.own, self.arrays.each
            below = np.minimum((have[level - 1] - have[0]).take(columns, axis=1), missing)
            rest = missing - below
            cheap = np.where(below, each[level - 1].take(columns, axis=1), 0.0)
            dear = np.where(rest, own[level].take(columns, axis=1), 0.0)
            # Where the units of this level are the cheaper ones nothing
            # says that those below are used: the other bound stands.
            parts = np.maximum(parts, np.where(cheap <= dear, below * cheap + rest * dear, 0.0))
        # The dearest row and not the sum of rows: one victim may give back several resources at once.
        found: Ints = np.ceil(np.maximum.reduce(parts) * SAFE).astype(np.int64)
        return found

    def by_count(self, level: int) -> Iterator[Bound]:
        """Places by the number of victims that it takes at least."""
        enough = self.enough(level)
        if enough is None:
            return
        columns = enough.nonzero()[0]
        have, most = self.arrays.have[0].take(columns, axis=1), self.arrays.most[level].take(columns, axis=1)
        missing = np.maximum(self.need - have, 0)
        totals = self._least_priorities(missing, columns, level)
        yield from self._in_order(0, totals, missing, most, columns, by_count=True)

    def _in_order(
        self, highest: int, totals: Ints, missing: Ints, most: Ints, columns: Ints, *, by_count: bool = False
    ) -> Iterator[Bound]:
        # The row that takes most victims, for the same reason: the victims of one row may serve the others too.
        sizes = np.maximum.reduce(-(-missing // np.maximum(most, 1)))
        freed = np.zeros(len(columns), np.int64)
        for one, *more in self.devices:
            part = missing[one]
            # A resource has a row of the node and one of its zones, and both are about the same devices.
            for other in more:
                part = np.maximum(part, missing[other])
            freed += part
        first, then = (sizes, totals) if by_count else (totals, sizes)
        order = list(zip(first.tolist(), then.tolist(), freed.tolist(), columns.tolist(), strict=True))
        heapify(order)  # few of them are ever looked at
        while order:
            most_of, least_of, devices, column = heappop(order)
            total, size = (least_of, most_of) if by_count else (most_of, least_of)
            yield Bound(highest if size else NOBODY, total, size, devices, self.table.places[column])


class Roster:
    """Nodes with what may be evicted there, in columns; kept as nodes change."""

    def __init__(self, rooms: Iterable[NodeRoom] = ()) -> None:
        self.rooms: dict[str, NodeRoom] = {}
        self.rank: dict[str, int] = {}
        self._order: list[str] = []
        self._tables: dict[MachineKind | None, dict[Landing, RosterTable]] = {}
        self._resources: dict[str, None] = {}
        self._covers: dict[tuple[Amount, tuple[Item, ...]], tuple[int, ...] | None] = {}
        for room in rooms:
            self.set(room)

    def set(self, room: NodeRoom) -> None:
        """A node came or changed."""
        old = self.rooms.get(room.node)
        # Before the new room is noted: `remove` finds the table by the layout of the old one.
        if old is not None and kind_of(old.layout) != kind_of(room.layout):
            self.remove(room.node)
        if room.node not in self.rooms:
            insort(self._order, room.node)
            self.rank = {}
        self.rooms[room.node] = room
        named = {*room.free, *(name for victim in room.victims for name in victim.requests)}
        if not named <= self._resources.keys():
            # A resource is a row of every table, so a new one has all tables made again. Sorted, as a set has no order.
            self._resources |= dict.fromkeys(sorted(named))
            self._tables = {}
            for each in self.rooms.values():
                self._place(each)
        else:
            self._place(room)

    def remove(self, node: str) -> None:
        """A node is gone."""
        room = self.rooms.pop(node, None)
        if room is not None:
            self._order.remove(node)
            self.rank = {}
            for table in self._tables[kind_of(room.layout)].values():
                table.put(node, [])

    def _place(self, room: NodeRoom) -> None:
        kind = kind_of(room.layout)
        tables = self._tables.setdefault(kind, {})
        places = places_of(room, tuple(self._resources))
        for landing in {*tables, *(place.block.landing for place in places)}:
            if landing not in tables:
                tables[landing] = RosterTable(rows_of(room.layout, tuple(self._resources)), landing)
            tables[landing].put(room.node, [place for place in places if place.block.landing is landing])

    def tables(self) -> Iterator[tuple[MachineKind | None, dict[Landing, RosterTable]]]:
        """Every kind of machine with its tables."""
        yield from self._tables.items()

    def build(self) -> None:
        """Have everything ready, so that the next search takes no longer than those after it."""
        for tables in self._tables.values():
            for table in tables.values():
                table.built()

    def cheapest_cover(self, missing: Amount, items: tuple[Item, ...]) -> tuple[int, ...] | None:
        """The cheapest cover; equal places are evaluated once."""
        key = missing, items
        if key not in self._covers:
            # What victims give back changes with the pods that run, so old covers are of no more use.
            if len(self._covers) >= COVERS_KEPT:
                self._covers.clear()
            self._covers[key] = cheapest(missing, items)
        return self._covers[key]

    def ranks(self) -> dict[str, int]:
        """Nodes by name: ties go to the first."""
        if not self.rank:
            self.rank = {node: at for at, node in enumerate(self._order)}
        return self.rank


def rows_of(layout: Layout | None, resources: tuple[str, ...]) -> tuple[Row, ...]:
    """The rows of a node: its own resources, then those that its zones report."""
    inside = () if layout is None else layout.resources
    return (*[(False, name) for name in resources], *[(True, name) for name in inside])


def places_of(room: NodeRoom, resources: tuple[str, ...]) -> list[RosterPlace]:
    """Every block of a node with what is free there and what its victims give back."""
    rows, blocks = rows_of(room.layout, resources), blocks_of(room.layout)
    by_victim = [offers(room, victim, rows, blocks) for victim in room.victims]
    return [
        RosterPlace(room, block, tuple(free_in(room, block, rows)), tuple([each[at] for each in by_victim]))
        for at, block in enumerate(blocks)
    ]
