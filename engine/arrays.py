"""Arrays of numbers: their type, ranges of them, which differ, and which are largest."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

SORTED: Final = 512  # up to so many values, sorting all of them beats looking for the edge


def ranges(starts: Ints, ends: Ints) -> Ints:
    """The concatenation of ``arange(starts[i], ends[i])``."""
    # One range needs none of the arrays below.
    if len(starts) == 1:
        return np.arange(starts[0], ends[0])
    sizes = ends - starts
    # Each range repeats its offset, to which its place in the whole is added: so empty ranges need no care.
    found: Ints = (ends - sizes.cumsum()).repeat(sizes)
    found += np.arange(len(found))
    return found


def quotient(values: Ints, by: int, out: Ints | None) -> Ints:
    """Rounded down, as ``//``; by a power of two, which most amounts of memory are, in a third of the time."""
    if by & (by - 1):
        return np.floor_divide(values, by, out=out)
    return np.right_shift(values, by.bit_length() - 1, out=out)


def distinct(values: Ints) -> Ints:
    """The values of an ascending array, each once."""
    first = np.empty(len(values), np.bool_)
    first[:1] = True
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def capped(sizes: Ints, owner: Ints, codes: NDArray[np.int32], most: Ints) -> Ints:
    """Cut to caps: of those with one owner and one code the largest are kept, up to ``most[code]``; code 0 has no cap.

    Of equal ones those that come first.
    """
    group = owner * len(most) + codes
    # Stable, and by size within each group: equal sizes keep their order, as the callers rely on.
    order = np.lexsort((-sizes, group))
    values, groups = sizes[order], group[order]
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    before = np.cumsum(values) - values
    # The running total starts again in each group.
    before -= np.repeat(before[starts], np.diff(starts, append=len(groups)))
    ordered = codes[order]
    kept = np.where(ordered == 0, values, np.clip(most[ordered] - before, 0, values))
    found = np.empty_like(sizes)
    found[order] = kept
    return found


def highest(values: Ints, count: int) -> Ints:
    """The positions (ascending) of the ``count`` largest, 1 to all of them; of equal values those that come first.

    numpy's partition of positions takes any of equal values, and not the same on every processor.
    """
    # Negated, because a stable sort has to put the first of equal values first.
    if len(values) <= SORTED:
        found: Ints = (-values).argsort(kind="stable")[:count]
        found.sort()
        return found
    # The value at the edge is the same on every processor; which positions a partition takes is not.
    edge = np.partition(values, -count)[-count]
    chosen = values > edge
    equal = (values == edge).nonzero()[0]
    # Everything above the edge, and of those on it the first ones.
    chosen[equal[: count - int(np.count_nonzero(chosen))]] = True
    places: Ints = chosen.nonzero()[0]
    return places
