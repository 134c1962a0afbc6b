"""One node as a search looks at it, without columns: the same places and bounds as a roster of that node alone.

`engine.preemption.roster` compares many nodes at once, and has to be built for that. Who asks about one node that may
change before the next question (`queueing.preemption.inside_nodes`) is answered sooner from the node itself. Only the
rows that are wanted are looked at.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from engine.kubelet.machine import Layout
from engine.kubelet.resource_requests import is_device
from engine.preemption.blocks import (
    KEPT,
    Block,
    MachineKind,
    MachineNeeds,
    Row,
    blocks_of,
    free_in,
    kind_of,
    offers,
)
from engine.preemption.cover import Amount, Item, cheapest
from engine.preemption.model import NOBODY, Landing, NodeRoom
from engine.preemption.roster import SAFE, Bound, RosterPlace


class OneRoom:
    """A roster of one node that does not change."""

    def __init__(self, room: NodeRoom) -> None:
        self.room = room
        self._blocks: dict[Landing, list[Block]] = {}
        for block in blocks_of(room.layout):
            self._blocks.setdefault(block.landing, []).append(block)

    def tables(self) -> Iterator[tuple[MachineKind | None, dict[Landing, "RoomTable"]]]:
        """Its blocks by width, the narrowest first."""
        tables = {landing: RoomTable(self.room, tuple(blocks)) for landing, blocks in sorted(self._blocks.items())}
        yield kind_of(self.room.layout), tables

    def ranks(self) -> dict[str, int]:
        """It comes first."""
        return {self.room.node: 0}

    def cheapest_cover(self, missing: Amount, items: tuple[Item, ...]) -> tuple[int, ...] | None:
        """The cheapest cover."""
        return cheapest(missing, items)


class _Lack(NamedTuple):
    """What a place lacks of one row, and what each of its victims that may go gives of it: (priority, weight, gain)."""

    row: Row
    missing: int
    gains: tuple[tuple[int, int, int], ...]

    def upto(self, highest: int) -> int:
        """What all victims up to a priority give."""
        return sum([gain for priority, _, gain in self.gains if priority <= highest])

    def unit(self, lowest: int, highest: int) -> float:
        """The least weight of a unit among victims of these priorities."""
        units = [weight / gain for at, weight, gain in self.gains if gain > 0 and lowest <= at <= highest]
        return min(units, default=math.inf)

    def price(self, least: int, below: int, highest: int) -> float:
        """What covering it costs at least, if the highest priority of a victim is ``highest``.

        ``least``, ``below``: the lowest priority there is, and the highest one under ``highest``.
        """
        flat = self.missing * self.unit(least, highest)
        if below < least:
            return flat
        cheap_units = min(self.upto(below), self.missing)
        rest = self.missing - cheap_units
        cheap = self.unit(least, below) if cheap_units else 0.0
        dear = self.unit(highest, highest) if rest else 0.0
        return max(flat, cheap_units * cheap + rest * dear) if cheap <= dear else flat

    def size(self, highest: int) -> int:
        """How many victims covering it takes at least."""
        return -(-self.missing // max([gain for priority, _, gain in self.gains if priority <= highest]))


class RoomTable:
    """The blocks of one width."""

    def __init__(self, room: NodeRoom, blocks: tuple[Block, ...]) -> None:
        self._room, self._blocks = room, blocks

    def rows_of(self, needs: MachineNeeds) -> list[int] | None:
        """Places have the rows that are wanted, in that order."""
        return list(range(len(needs.needs)))

    def bounds(self, needs: MachineNeeds, above: int, *, by_count: bool) -> Iterator[Bound]:
        """As `engine.preemption.roster.RosterTable.bounds`."""
        rows, found = tuple([row for row, _ in needs.needs]), list[tuple[tuple[int, ...], Bound]]()
        inside = () if self._room.layout is None else self._room.layout.resources
        if any(of_zones and name not in inside for of_zones, name in rows):
            return
        blocks = _large_enough(self._room.layout, self._blocks, needs.needs)
        by_victim = [offers(self._room, victim, rows, blocks) for victim in self._room.victims] if blocks else []
        for at, block in enumerate(blocks):
            gives = tuple([each[at] for each in by_victim])
            place = RosterPlace(self._room, block, tuple(free_in(self._room, block, rows)), gives)
            bound = _bound_place(place, needs, above, by_count=by_count)
            if bound is not None:
                highest, total, size, freed, _ = bound
                # The position is unique, so the bounds behind it are never compared, and equal blocks keep their order.
                order = (size, total, freed, at) if by_count else (highest, total, size, freed, at)
                found.append((order, bound))
        for _, bound in sorted(found, key=lambda one: one[0]):
            yield bound


def least_landing(room: NodeRoom, needs: MachineNeeds, highest: int, size: int) -> Landing:
    """No ``size`` victims of up to a priority have the pod land better, by what blocks have and victims give back.

    Each row of a block is compared with the largest gains alone; the victims of one row need not be those of another.
    """
    layout, state = room.layout, room.state
    wanted = [(name, amount) for (inside, name), amount in needs.needs if inside]
    if layout is None or state is None:
        return Landing.UNKNOWN
    places, rows = {zone.id: 1 << at for at, zone in enumerate(layout.zones)}, list[tuple[int, str, int]]()
    for name, amount in wanted:
        if name not in layout.resources:
            return Landing.ACROSS
        rows.append((layout.resources.index(name), name, amount))
    uses = [
        [(places.get(use.zone, 0), use.amounts) for use in victim.placement.zones]
        for victim in room.victims
        if victim.priority <= highest and victim.placement is not None
    ]
    *narrow, _ = sorted(blocks_of(layout))
    for landing, zones in _large_enough(layout, tuple(narrow), needs.needs):
        for row, name, amount in rows:
            free = sum([max(have[row], 0) for at, have in enumerate(state.free) if zones >> at & 1])
            if free < amount:
                gains = [sum([amounts.get(name, 0) for at, amounts in use if at & zones]) for use in uses]
                # The victims that give most of this row alone: more than
                # any one choice gives of all rows, so a bound that is safe.
                if free + sum(sorted(gains, reverse=True)[:size]) < amount:
                    break
        else:
            return landing
    return Landing.ACROSS


@lru_cache(maxsize=KEPT)
def _large_enough(
    layout: Layout | None, blocks: tuple[Block, ...], needs: tuple[tuple[Row, int], ...]
) -> tuple[Block, ...]:
    """Those that have what is wanted of zones when they are empty."""
    if layout is None:
        return blocks
    rows = [(layout.resources.index(name), amount) for (inside, name), amount in needs if inside]
    return tuple(
        [
            block
            for block in blocks
            if all(
                sum([max(has[row], 0) for at, has in enumerate(layout.allocatable) if block.zones >> at & 1]) >= amount
                for row, amount in rows
            )
        ]
    )


def _bound_place(place: RosterPlace, needs: MachineNeeds, above: int, *, by_count: bool) -> Bound | None:
    """None where the victims below a priority do not suffice."""
    may = [offer for offer in place.offers if offer.priority < above]
    lacks = [
        _Lack(row, amount - have, tuple([(offer.priority, offer.weight, offer.gains[at]) for offer in may]))
        for at, ((row, amount), have) in enumerate(zip(needs.needs, place.free, strict=True))
        if amount > have
    ]
    if not lacks:
        return Bound(NOBODY, 0, 0, 0, place)
    levels = sorted({offer.priority for offer in may})
    if not levels or any(lack.upto(levels[-1]) < lack.missing for lack in lacks):
        return None
    at = len(levels) - 1
    if not by_count:
        # The least level at which all rows suffice is no bound but exact: victims up to it do, and those below do not.
        at = next(number for number, level in enumerate(levels) if all(one.upto(level) >= one.missing for one in lacks))
    highest, least = levels[at], levels[0]
    below = least - 1 if by_count or not at else levels[at - 1]
    # The dearest row and not the sum of rows: one victim may give back several resources at once.
    total = math.ceil(max([lack.price(least, below, highest) for lack in lacks]) * SAFE)
    freed: dict[str, int] = {}
    for (_, name), missing, _ in lacks:
        if is_device(name):
            freed[name] = max(freed.get(name, 0), missing)
    size = max([lack.size(highest) for lack in lacks])
    return Bound(0 if by_count else highest, total, size, sum(freed.values()), place)
