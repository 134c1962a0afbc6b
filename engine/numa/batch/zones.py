"""Which zones, and which sets of zones, hold what a pod asks for: for many machines at once.

Arrays are (zones, machines) or (sets, machines); amounts are compared, never changed.
"""

from collections.abc import Iterator

import numpy as np

from engine.arrays import Ints
from engine.kubelet.machine import State
from engine.numa.batch.masks import EXACT, FEW, WIDEST, Bools, Sets, Workspace, holding, sets_of
from engine.numa.columns import View
from engine.numa.zone_requests import ZoneRequest


def in_one_zone(view: View, ask: ZoneRequest, most: int, space: Workspace) -> Ints:
    """Pods that fit into zones, none of them into more than one."""
    if most == 1 or not ask.rows:
        return np.multiply(holds_zone(view, ask, space).any(axis=0), most, dtype=np.int64)
    fits: Ints
    if view.width <= FEW:
        fits = np.minimum.reduce(view.all_free(ask.rows) // ask.column)
    else:
        fits, part = (space.get(name, np.int64, view.zones, view.width) for name in ("fits", "part"))
        for at, (row, amount) in enumerate(ask.pairs):
            have = view.free(row)
            if not at:
                np.floor_divide(have, amount, out=fits)
            else:
                np.minimum(fits, have if amount == 1 else np.floor_divide(have, amount, out=part), out=fits)
    for zones in barred_zones(view, ask):
        fits[zones] = 0
    found: Ints = np.add.reduce(fits)
    return np.minimum(found, most, out=found)


def holds_zone(view: View, ask: ZoneRequest, space: Workspace) -> Bools:
    """Which zones hold a pod: (zones, machines)."""
    found: Bools
    if view.width <= FEW:
        found = np.logical_and.reduce(view.all_free(ask.rows) >= ask.column)
    else:
        found, also = (space.get(name, np.bool_, view.zones, view.width) for name in ("holds", "also"))
        if not ask.rows:
            found[:] = True
        for at, (row, amount) in enumerate(ask.pairs):
            np.greater_equal(view.free(row), amount, out=also if at else found)
            if at:
                found &= also
    for zones in barred_zones(view, ask):
        found[zones] = False
    return found


def barred_zones(view: View, ask: ZoneRequest) -> list[Bools]:
    """Zones out of the question whatever is free: without the device at all, or sharing their memory with others."""
    found: list[Bools] = [view.capacity_of(row) == 0 for row in ask.present]
    if ask.memory and view.grouped:
        found.append(view.group & (view.group - 1) != 0)
    return found


def in_one_zone_of(state: State, ask: ZoneRequest, most: int) -> int:
    """The same as `in_one_zone` for one machine, and much faster for one."""
    found = 0
    for zone, have in enumerate(state.free):
        fits = most
        for row, amount in ask.pairs:
            if have[row] < amount:
                fits = 0
                break
            fits = min(fits, have[row] // amount)
        if fits and not (ask.memory and state.memory and state.memory[zone].cells.bit_count() > 1):
            found += fits
            if found >= most:
                return most
    return found


def widths_of(view: View, ask: ZoneRequest) -> Ints:
    """The fewest zones that would hold the pod if they were empty; 0 where its resources do not agree, or none do."""
    kind, known = view.kind, ask.widths
    if known is None or known[0] != kind.layouts_made:
        widths = [(kind.reach[row, :, : kind.layouts] < amount).sum(axis=0) for row, amount in ask.pairs]
        found: Ints = widths[0] + 1
        for width in widths[1:]:
            found *= width == widths[0]
        found *= found <= view.zones
        known = ask.note_widths(kind.layouts_made, found)
    return known[1][view.layout]


def may_share(masks: Ints, group: Ints) -> Bools:
    """Which sets of several zones may hold memory together: nothing is taken there, or they share it already."""
    taken = np.bitwise_or.reduce((group != 0) << np.arange(len(group))[:, None], axis=0)
    lowest = [(mask & -mask).bit_length() - 1 for mask in masks.tolist()]
    shared: Bools = (group[lowest] == masks[:, None]) | (taken & masks[:, None] == 0)
    return shared


def knows_sets(view: View, ask: ZoneRequest) -> bool:
    """Whether `in_sets` can tell: several types of memory have one width together, which is not looked for."""
    return ask.narrow or (view.zones <= WIDEST and ask.memory < 2)


def fits_set_of(view: View, state: State, ask: ZoneRequest) -> bool | None:
    """Whether a pod that needs several zones fits the one machine of a view, in this state; None: ask `in_sets`."""
    if ask.narrow:
        return False
    if view.grouped or not knows_sets(view, ask) or max(ask.amounts) > EXACT // view.zones:
        return None
    width = int(widths_of(view, ask)[0])
    if width < 2:
        return False
    units = [(row, view.kind.units[row]) for row in ask.rows]
    free = np.array([[zone[row] - zone[row] % unit for row, unit in units] for zone in state.free], np.float64)
    enough = sets_of(view.zones, width).weights @ np.maximum(free, 0, out=free) >= ask.column[:, 0, 0]
    return bool(np.logical_and.reduce(enough, axis=1).any())


def in_sets(view: View, ask: ZoneRequest, space: Workspace) -> Iterator[tuple[Ints, Sets, Bools]]:
    """Where a pod needs several zones even if they were empty: the machines, sets of so many zones, which hold it.

    The masks of the sets are in no order. What is given lies in ``space``, until the next is asked for.
    """
    if ask.narrow:
        return
    widths = widths_of(view, ask)
    for width in range(2, view.zones + 1) if view.width > FEW else {*widths.tolist()} - {0, 1}:
        some = (widths == width).nonzero()[0]
        if len(some):
            part, sets = view.select_columns(some), sets_of(view.zones, width)
            holds = holding(sets, [part.free(row) for row in ask.rows], ask.amounts, space)
            if ask.memory and view.grouped:
                holds &= may_share(sets.masks, part.group)
            yield some, sets, holds
