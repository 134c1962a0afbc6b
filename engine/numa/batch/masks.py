"""Sums over sets of zones, for many machines at once.

All sets of one width are asked together. Such a set is a subset of the lower half of the zones with a subset of the
upper half. The sums over the subsets of a half are few (16 of 4 zones); whether a set of w zones holds an amount is one
comparison of a lower sum with what is missing above, and all sets with i zones in the lower half are one broadcast.
Amounts are first cut down to what is asked and to the smallest integers that keep every sum exact.
"""

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints

Bools = NDArray[np.bool_]
EXACT: Final = 1 << 53  # a float64 has no gaps between integers below
_Numbers = NDArray[Any]  # integers of some width
WIDEST: Final = 8  # zones; beyond, the sets of zones are too many
FEW: Final = 8  # machines up to which fewer, slower steps are faster
AT_ONCE: Final = 8192  # machines; more in one go would only need more memory


class Half(NamedTuple):
    """Subsets of the zones ``first`` to ``last`` (not included); ``masks[sizes[i]]`` are those of i zones."""

    first: int
    last: int
    masks: NDArray[np.int64]
    sizes: tuple[slice, ...]


class Sets(NamedTuple):
    """All sets of ``width`` of so many zones; ``masks[i]`` is what row i of `holding` is about.

    ``members[i, z]`` is 1 where it has zone z, and so is ``weights``, whose floats multiply faster. ``splits`` are
    pairs of slices of ``low.masks`` and of ``high.masks``; each set is in one pair.
    """

    width: int
    low: Half
    high: Half
    splits: tuple[tuple[slice, slice], ...]
    masks: NDArray[np.int64]
    members: NDArray[np.int64]
    weights: NDArray[np.float64]


@cache
def sets_of(zones: int, width: int) -> Sets:
    """The sets of ``width`` of ``zones`` zones."""
    middle = (zones + 1) // 2
    pairs = [(i, width - i) for i in range(middle + 1) if 0 <= width - i <= zones - middle]
    low = _half(0, middle, sorted({i for i, _ in pairs}))
    high = _half(middle, zones, sorted({j for _, j in pairs}))
    splits = tuple((low.sizes[i], high.sizes[j]) for i, j in pairs)
    masks = np.concatenate([np.bitwise_or.outer(low.masks[a], high.masks[b]).reshape(-1) for a, b in splits])
    members = (masks[:, None] >> np.arange(zones)) & 1
    return Sets(width, low, high, splits, masks, members, members.astype(np.float64))


def _half(first: int, last: int, sizes: list[int]) -> Half:
    every = range(1 << (last - first))
    masks: list[int] = []
    where = [slice(0, 0)] * (last - first + 1)
    for size in sizes:
        start = len(masks)
        masks += [mask << first for mask in every if mask.bit_count() == size]
        where[size] = slice(start, len(masks))
    return Half(first, last, np.array(masks, np.int64), tuple(where))


class Workspace:
    """Memory that a question is worked out in, kept for the next one: fresh memory costs more than the sums."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, type], _Numbers] = {}

    def get(self, name: str, kind: type, *shape: int) -> _Numbers:
        """An array of that shape, with anything in it. The same name gives the same memory again."""
        size = prod(shape)
        kept = self._kept.get((name, kind))
        if kept is None or len(kept) < size:
            kept = self._kept[name, kind] = np.empty(size, kind)
        return kept[:size].reshape(shape)


def holding(sets: Sets, have: Sequence[Ints], amounts: Sequence[int], space: Workspace) -> Bools:
    """Which sets hold every amount: ``have[r][z, m]`` of machine m against ``amounts[r]``. Shape (sets, machines).

    The answer may lie in ``space``.
    """
    machines = have[0].shape[1]
    found: Bools
    if machines <= FEW:
        column = np.array(amounts).reshape(-1, 1, 1)
        cut = np.minimum(np.stack(have), column)
        exact = max(amounts) * len(sets.members[0]) < EXACT
        found = np.logical_and.reduce((sets.weights @ cut if exact else sets.members @ cut) >= column)
        return found
    found = space.get("found", np.bool_, len(sets.masks), machines)
    for first in range(0, machines, AT_ONCE):
        part = slice(first, first + AT_ONCE)
        _holding(sets, *_small([each[:, part] for each in have], amounts, space), found[:, part], space)
    return found


def _holding(sets: Sets, have: _Numbers, amounts: _Numbers, out: Bools, space: Workspace) -> None:
    low = _sums(have, sets.low, space, "low")
    high = _sums(have, sets.high, space, "high")
    missing = np.subtract(amounts[:, None, None], high, out=high)
    start = 0
    for a, b in sets.splits:
        some, rest = low[:, a, None], missing[:, None, b]
        shape = some.shape[1], rest.shape[2], have.shape[2]
        block = out[start : start + shape[0] * shape[1]].reshape(shape)
        also = space.get("also", np.bool_, *shape)
        np.greater_equal(some[0], rest[0], out=block)
        for row in range(1, len(some)):
            block &= np.greater_equal(some[row], rest[row], out=also)
        start += shape[0] * shape[1]


def _small(have: Sequence[Ints], amounts: Sequence[int], space: Workspace) -> tuple[_Numbers, _Numbers]:
    """The same question in 32 bits where that is exact: no zone counts for more than is asked, common zeros go."""
    zones, machines = have[0].shape
    # An amount below this stays below 2^31 when it is summed over all zones.
    limit = (1 << 31) // zones
    asked = list(amounts)
    cut = space.get("cut", np.int64, len(asked), zones, machines)
    for row, (part, amount) in enumerate(zip(have, amounts, strict=True)):
        np.minimum(part, amount, out=cut[row])
        if amount >= limit:
            # Memory comes in bytes and mostly in whole pages: without the
            # zero bits that all amounts share comparisons stay exact.
            together = int(np.bitwise_or.reduce(cut[row], axis=None)) | amount
            shift = (together & -together).bit_length() - 1
            if amount >> shift >= limit:
                return _large(have, amounts, cut)
            cut[row] >>= shift
            asked[row] = amount >> shift
    small = space.get("small", np.int32, *cut.shape)
    np.copyto(small, cut, casting="unsafe")
    return small, np.array(asked, np.int32)


def _large(have: Sequence[Ints], amounts: Sequence[int], cut: _Numbers) -> tuple[_Numbers, _Numbers]:
    for row, (part, amount) in enumerate(zip(have, amounts, strict=True)):
        np.minimum(part, amount, out=cut[row])
    return cut, np.array(amounts, np.int64)


def _sums(have: _Numbers, half: Half, space: Workspace, name: str) -> _Numbers:
    """Sums over the subsets of a half: (resources, subsets, machines)."""
    resources, _, machines = have.shape
    kind = have.dtype.type
    sums = space.get("sums", kind, resources, 1 << (half.last - half.first), machines)
    sums[:, 0] = 0
    for bit in range(half.last - half.first):
        # The sums over subsets with this zone are those over subsets of the zones before it, plus what the zone has.
        np.add(sums[:, : 1 << bit], have[:, None, half.first + bit], out=sums[:, 1 << bit : 2 << bit])
    chosen = space.get(name, kind, resources, len(half.masks), machines)
    return sums.take(half.masks >> half.first, axis=1, out=chosen, mode="clip")
