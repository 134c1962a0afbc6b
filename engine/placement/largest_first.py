"""The fewest values whose sum suffices: the largest first.

Rules
- The last value that is taken may be the smallest that suffices (*tight*). Equal values are taken in order of position,
  unless something says which of them are better.
- A few values are covered in plain Python, which beats numpy there; the answer is the same.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from engine.arrays import Ints

TALLIED: Final = 256  # more values than this, all smaller than this, are tallied instead of sorted
FEW: Final = 48  # up to so many values, plain Python beats numpy; smaller ones than this are tallied, however many
LOW: Final = (1 << 32) - 1  # the lower number of a key that has two

Best = Callable[[Ints, int], Ints]  # takes so many of some equal ones, given by their positions


def cover(
    values: Ints,
    need: int,
    *,
    tight: bool,
    ties: tuple[Ints, Ints] | None = None,
    best: Best | None = None,
) -> tuple[Ints, int]:
    """Positions of the fewest ``values`` whose sum is at least ``need``, and what the last of them must hold.

    Largest first, equal ones in order of position. With ``tight`` the last one is the smallest that suffices. ``ties``
    = (weights, owner of each position) puts equal ones in order of their owner's weight first. ``best`` takes some of
    those that are still equal. The caller has made sure that all together suffice.
    """
    if len(values) <= FEW and ties is None and best is None:
        return _covered_few(values, need, tight=tight)
    last, edge, rest = edge_of(values, need)
    above = (values > edge).nonzero()[0] if last else _NONE
    full = last - len(above)
    if tight and rest < edge:
        enough = values[values >= rest].min()
        if enough < edge:
            final = _first_positions((values == enough).nonzero()[0], 1, ties, best)
            return np.concatenate(
                [above, _first_positions((values == edge).nonzero()[0], full, ties, best), final]
            ), rest
    return np.concatenate([above, _first_positions((values == edge).nonzero()[0], full + 1, ties, best)]), rest


_NONE: Final = np.zeros(0, np.int64)


def cover_few(values: Ints, need: int, best: Best | None = None) -> tuple[list[int], list[int]]:
    """``cover`` with ``tight`` for a few values: the positions (ascending), and what each of them must hold."""
    fits = values.tolist()
    order, full, last, rest = _taken_of_few(fits, need, tight=True)
    chosen = order[:full]
    if best is not None:
        chosen, last = _better_few(fits, chosen, last, best)
    fits[last] = rest
    chosen.append(last)
    chosen.sort()
    return chosen, [fits[at] for at in chosen]


def _covered_few(values: Ints, need: int, *, tight: bool) -> tuple[Ints, int]:
    """``cover`` of a few values of which none is better than its equals."""
    fits = values.tolist()
    order, full, last, rest = _taken_of_few(fits, need, tight=tight)
    edge = fits[order[full]]
    above = sorted([at for at in order[:full] if fits[at] > edge])
    return np.array([*above, *order[len(above) : full], last]), rest


def _taken_of_few(fits: list[int], need: int, *, tight: bool) -> tuple[list[int], int, int, int]:
    """(all positions, largest first; how many of these are full; the last that is taken; what it must hold)."""
    order = sorted(range(len(fits)), key=fits.__getitem__, reverse=True)
    full = 0
    while fits[order[full]] < need:
        need -= fits[order[full]]
        full += 1
    last = order[full]
    for at in order[full + 1 :] if tight else ():  # the order is stable: of equals the first is meant
        if fits[at] < need:
            break
        if fits[at] < fits[last]:
            last = at
    return order, full, last, need


def _better_few(fits: list[int], chosen: list[int], last: int, best: Best) -> tuple[list[int], int]:
    """The same choice with the best of equal ones: (all but the last, the last)."""
    wanted: dict[int, int] = {}
    for at in (*chosen, last):
        wanted[fits[at]] = wanted.get(fits[at], 0) + 1
    found: list[int] = []
    for value, count in wanted.items():
        equal = [at for at, fit in enumerate(fits) if fit == value]
        found += equal if len(equal) == count else best(np.array(equal), count).tolist()
    # The last one keeps its value and may be another position: which of equal ones is best was decided above.
    last = next(at for at in reversed(found) if fits[at] == fits[last])
    found.remove(last)
    return found, last


def largest(values: Ints, need: int) -> Ints:
    """Values in descending order, as many as can matter: each that is used holds at least one."""
    if len(values) > 4 * need and 2 * np.count_nonzero(values) < len(values):
        ranked = values[values > 0]  # a partition of a great many equal values takes a hundred times as long
        if len(ranked) < need:
            ranked = np.concatenate([np.zeros(need - len(ranked), np.int64), ranked])
    else:
        ranked = values.copy()
    if len(ranked) > 4 * need:
        # Of more values than can matter the largest are set apart first: a sort of all would cost more.
        ranked.partition(len(ranked) - need)
        ranked = ranked[-need:]
    ranked.sort()
    return ranked[::-1] if len(values) <= 4 * need else ranked[: -need - 1 : -1]


def fewest_nodes(values: Ints, need: int) -> int:
    """How many of the largest values ``need`` takes; more than there are where all do not suffice."""
    return edge_of(values, need)[0] + 1


def edge_of(values: Ints, need: int) -> tuple[int, int, int]:
    """(how many of the largest values are taken whole, the last one that is taken, what that must hold).

    Where all do not suffice all are whole, and the last is the smallest that counts.
    """
    if int(values[values.argmax()]) < (TALLIED if len(values) > TALLIED else FEW):
        whole, left = 0, need
        tally = np.bincount(values).tolist()
        for value in range(len(tally) - 1, 0, -1):
            if (held := tally[value] * value) >= left:
                more = (left - 1) // value
                return whole + more, value, left - more * value
            whole, left = whole + tally[value], left - held
    ranked = largest(values, need)
    before = ranked.cumsum()
    whole = int(before.searchsorted(need))
    return whole, int(ranked[min(whole, len(ranked) - 1)]), need - int(before[whole - 1]) if whole else need


def _first_positions(positions: Ints, count: int, ties: tuple[Ints, Ints] | None, best: Best | None) -> Ints:
    """The first ``count`` positions: by the weight of their owners if ``ties`` are given, then the best."""
    if len(positions) <= count or not count:
        return positions[:count]
    if best is not None:
        return _first_best(positions, count, ties, best)
    if ties is None:
        return positions[:count]
    # The weight of the owner above and the position below: the keys are unique, so a partition is the same everywhere.
    keys = (ties[0][ties[1][positions]] << 32) | positions
    keys.partition(count - 1)
    keys = keys[:count]
    keys.sort()
    return keys & LOW


def _first_best(positions: Ints, count: int, ties: tuple[Ints, Ints] | None, best: Best) -> Ints:
    if ties is None:
        return best(positions, count)
    weights = ties[0][ties[1][positions]]
    # Only the value at the edge is read; numpy may order equal values by the instructions that a processor has.
    edge = np.partition(weights, count - 1)[count - 1]
    surely = positions[weights < edge]
    return np.concatenate([surely, best(positions[weights == edge], count - len(surely))])


def fewest_of(values: Ints, first: Ints, last: Ints, width: int, need: int) -> Ints:
    """For each range [first, last) of ``values``, none wider than ``width``, how many of its largest ``need`` takes."""
    at = first[:, None] + np.arange(width)
    if int((last - first).min()) == width:
        grid = values[at]
    else:
        # Ranges of different widths share one grid: cells behind a range are read from somewhere and count as 0.
        inside = at < last[:, None]
        np.minimum(at, len(values) - 1, out=at)
        grid = values[at]
        grid *= inside
    return fewest_in(grid, need)


def fewest_in(grid: Ints, need: int) -> Ints:
    """For each row, how many of its largest ``need`` takes; each row suffices."""
    largest_first = -grid
    largest_first.sort(axis=1)
    fewest: Ints = (np.add.accumulate(largest_first, 1) <= -need).argmax(1)
    fewest += 1
    return fewest
