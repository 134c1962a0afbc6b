"""More pods for a pod set with slices: what its slices lack first, each in its own domain, then whole slices.

Rules
- Pods that stay are never moved, so what a slice lacks can only come to the domain where the rest of it is.
- Of a pod set with one layer, the last slice may be a part of one, a tail (`engine.placement.slice_tail`). More pods
  make a whole slice of it first, where the rest of it is; what then remains is whole slices, and a tail again.
- What was lost from a domain of the narrowest layer goes back into it where it has room, as then no slice changes its
  domain. Where it has none, slices that are lost whole (by rank order) may go elsewhere: inner ones within their outer
  slice's domain, outer ones wherever the request allows.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from enum import StrEnum
from itertools import pairwise

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.cluster.assignment import Assignment, Slice
from engine.cluster.tree import Path, Tree
from engine.placement.fit import ANYWHERE
from engine.placement.grow import Growth, keep_inside
from engine.placement.search.descent import Pick
from engine.placement.slice_tail import slicer, tail_of
from engine.placement.slices import Layer, SlicedCounts, Slicer


class Refill(StrEnum):
    """Why there is no place; the text is for a person."""

    UNEVEN = "they are not a whole number of slices"
    APART = "the rest of a slice must go where the slice is, and there is no room there"
    NO_ROOM = ""


class _Gap(msgspec.Struct, frozen=True):
    """So many pods must go into the domain of ``rank`` with these values, in slices of ``layers``."""

    rank: int
    path: Path
    count: int
    layers: tuple[Layer, ...] = ()


class _Plan(msgspec.Struct, frozen=True):
    """Gaps, the narrowest first, and pods in whole slices of the first layer."""

    gaps: tuple[_Gap, ...]
    whole: int = 0


def refill(growth: Growth, held: Assignment, stays: Collection[Slice], lost: Collection[str]) -> Pick | Refill:
    """Places for ``growth.by`` pods; ``lost``: nodes whose slots are to move, where it is not for want of more."""
    why = Refill.UNEVEN
    layers = growth.fit.layers
    for plan in _moves(held, layers, lost) if lost else _grows(stays, layers, growth.by):
        why = Refill.NO_ROOM if plan.whole else Refill.APART
        for rank, domain in growth.containers(held):
            onto = _carried_out(growth, plan, rank, domain)
            if onto is not None:
                leaves = np.flatnonzero(onto)
                return Pick(leaves, onto[leaves], (len(leaves),))
    return why


def _grows(stays: Collection[Slice], layers: tuple[Layer, ...], by: int) -> Iterator[_Plan]:
    """Complete what is not whole, from the inside out; the rest are more slices."""
    gaps: list[_Gap] = []
    have = {part.values: 0 for part in stays}
    for part in stays:
        have[part.values] += part.count
    inner: tuple[Layer, ...] = ()
    for layer in reversed(layers):
        sums: dict[Path, int] = {}
        for values, count in have.items():
            path = values[: layer.rank + 1]
            sums[path] = sums.get(path, 0) + count
        gaps += [
            _Gap(layer.rank, path, -count % layer.size, inner) for path, count in sums.items() if count % layer.size
        ]
        have = {path: count + -count % layer.size for path, count in sums.items()}
        inner = (layer, *inner)
    whole = by - sum(gap.count for gap in gaps)
    tails = len(layers) == 1 and not layers[0].alone
    if tails and whole < 0 and len(gaps) == 1:  # the tail becomes a longer one
        yield _Plan((_Gap(gaps[0].rank, gaps[0].path, by),))
    elif whole >= 0 and (tails or whole % layers[0].size == 0):
        yield _Plan(tuple(gaps), whole)


def _moves(held: Assignment, layers: tuple[Layer, ...], lost: Collection[str]) -> Iterator[_Plan]:
    """Back into the same domains of the narrowest layer; else slices that are lost whole elsewhere."""
    gone: list[bool] = []
    paths: list[Path] = []
    for part in held.slices:
        for name, pods in part.nodes:
            # Slots in tree order are ranks in order, so a position in this list is a rank.
            gone += [name in lost] * pods
            paths += [part.values] * pods
    tail = _tail_last(gone, paths, layers)
    narrow = layers[-1].rank
    yield _Plan(tuple(_gaps(paths, [at for at, is_gone in enumerate(gone) if is_gone], narrow)))
    # Outer slices first: they are struck off `gone`, so the inner ones below count only what is left.
    whole = _whole_groups(gone, layers[0].size)
    if tail and all(gone[-tail:]):
        whole += range(len(gone) - tail, len(gone))
        gone[-tail:] = [False] * tail
    gaps: list[_Gap] = []
    for outer, layer in pairwise(layers):
        moved = _whole_groups(gone, layer.size)
        gaps += _gaps(paths, moved, outer.rank, layers[layers.index(layer) :])
    left = [at for at, is_gone in enumerate(gone) if is_gone]
    yield _Plan((*_gaps(paths, left, narrow), *reversed(gaps)), len(whole))


def _tail_last(gone: list[bool], paths: list[Path], layers: tuple[Layer, ...]) -> int:
    """Put the ranks of a tail last, wherever its domain is in tree order; how many they are."""
    tail, depth, size = tail_of(layers, len(gone)), layers[0].rank + 1, layers[0].size
    if tail:
        sums = Counter(path[:depth] for path in paths)
        hosts = [path for path, count in sums.items() if count % size == tail]
        # Slots that were lost without a trace leave more than one: which of them has the tail is not known then.
        if len(hosts) == 1:
            last = [at for at, path in enumerate(paths) if path[:depth] == hosts[0]][-tail:]
            moved = set(last)
            order = [at for at in range(len(gone)) if at not in moved] + last
            gone[:] = [gone[at] for at in order]
            paths[:] = [paths[at] for at in order]
    return tail


def _whole_groups(gone: list[bool], size: int) -> list[int]:
    """The positions of groups of ``size`` that are gone whole; they are struck off ``gone``."""
    found: list[int] = []
    for first in range(0, len(gone) - size + 1, size):
        if all(gone[first : first + size]):
            found += range(first, first + size)
            gone[first : first + size] = [False] * size
    return found


def _gaps(paths: list[Path], positions: list[int], rank: int, layers: tuple[Layer, ...] = ()) -> list[_Gap]:
    counts: dict[Path, int] = {}
    for at in positions:
        path = paths[at][: rank + 1]
        counts[path] = counts.get(path, 0) + 1
    return [_Gap(rank, path, count, layers) for path, count in counts.items()]


def _carried_out(growth: Growth, plan: _Plan, rank: int, domain: int) -> Ints | None:
    """Pods by leaf; None where the plan does not work in this container."""
    counts = growth.count_room(rank, domain)
    onto = np.zeros_like(counts)
    for gap in plan.gaps:
        # Narrow gaps come first and take their room off the counts:
        # a wider one could use up the only room of a narrow one.
        if not _add(counts, onto, _closed(growth, gap, _counts_apart(growth, gap.layers, counts, onto))):
            return None
    if plan.whole:
        counts = _counts_apart(growth, growth.fit.layers, counts, onto)
        if not _add_whole(growth, plan.whole, rank, domain, counts, onto):
            return None
    return onto


def _counts_apart(growth: Growth, layers: tuple[Layer, ...], counts: Ints, onto: Ints) -> Ints:
    """Counts for whole slices: none where there is one already that is to be alone in its domain."""
    room, used = growth.fit.room, np.union1d(growth.used, np.flatnonzero(onto))
    for one in room.alone:
        if any(one.rank == layer.rank for layer in layers):
            left = np.where(np.isin(one.codes, one.codes[used]), 0, counts)
            # One owner for all leaves: of the domains of one label
            # value a single one may take slices, wherever it lies.
            counts = one.kept(room.tree, left, np.zeros_like(left))
    return counts


def _add(counts: Ints, onto: Ints, pick: Pick | None) -> bool:
    if pick is None:
        return False
    counts[pick.leaves] -= pick.amounts
    onto[pick.leaves] += pick.amounts
    return True


def _closed(growth: Growth, gap: _Gap, counts: Ints) -> Pick | None:
    tree = growth.fit.tree
    domain = tree.find(gap.rank, gap.path)
    if domain is None:
        return None
    inside = keep_inside(tree, counts.copy(), gap.rank, domain)
    if gap.layers:
        return _slicer(growth, inside, gap.count, gap.layers).in_one(gap.rank, gap.rank + 1, np.array([domain]))
    return Growth(growth.fit, growth.used, growth.lost, gap.count).onto(inside, gap.rank)


def _add_whole(growth: Growth, whole: int, rank: int, domain: int, counts: Ints, onto: Ints) -> bool:  # noqa: PLR0917
    """Whole slices: in used domains of their level first, then in used wider domains as narrow as can be."""
    fit, tree = growth.fit, growth.fit.tree
    layer = fit.layers[0]
    left = whole
    if layer.rank > rank:
        near = _near(tree, counts, growth.used, layer.rank)
        room = int(SlicedCounts(tree, near, fit.layers).counts_of_rank(layer.rank).sum())
        some = min(room, whole)
        if some and not _add(counts, onto, _pick_inside(growth, near, some, rank, domain)):
            return False
        left -= some
        if not left:
            return True
        counts = counts - _near(tree, counts, growth.used, layer.rank)
        for narrow in range(layer.rank - 1, rank, -1):
            near = _near(tree, counts, growth.used, narrow)
            if int(SlicedCounts(tree, near, fit.layers).counts_of_rank(0).sum()) >= left:
                counts = near
                break
    return _add(counts, onto, _pick_inside(growth, counts, left, rank, domain))


def _near(tree: Tree, counts: Ints, used: Ints, rank: int) -> Ints:
    """Counts in the domains of ``rank`` that are used, 0 elsewhere."""
    owners = tree.owners[rank]
    return np.where(np.isin(owners, owners[used]), counts, 0)


def _pick_inside(growth: Growth, counts: Ints, need: int, rank: int, domain: int) -> Pick | None:
    slicer, level = _slicer(growth, counts, need, growth.fit.layers), growth.fit.rank
    return slicer.pick_anywhere(level) if rank == ANYWHERE else slicer.in_one(rank, level, np.array([domain]))


def _slicer(growth: Growth, counts: Ints, need: int, layers: tuple[Layer, ...]) -> Slicer:
    return slicer(growth.fit.tree, counts, need, layers, growth.fit.work, growth.fit.prefer)
