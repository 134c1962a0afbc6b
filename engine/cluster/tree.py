"""The nodes of one flavor in tree order: every domain at every level is one contiguous range of leaves.

Ranks count downwards: rank 0 is the widest level, rank ``leaf`` the nodes. Where each domain of the narrowest level has
exactly one node (``kubernetes.io/hostname``), that level *is* the leaf rank; otherwise the nodes are one rank below it,
because pods fit nodes and never the sum of their fragments. A Tree is immutable; a new one replaces it when nodes come,
go or move.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
from msgspec import structs

from engine.arrays import Ints
from engine.model import Flavor

Path = tuple[str, ...]

SHAPES_KEPT: Final = 64


class Tree:
    """``size`` leaves; leaf i is node ``names[i]`` at ``paths[i]`` (one value a level).

    ``bounds[r]``: leaf offsets of the domains of rank r (length domains + 1). ``children[r]``: the same, counted in
    domains of rank r + 1. ``lo``: table index of leaf 0 where the leaves lie side by side in the table, else ``index``
    maps each leaf. ``grids[r]``: (domains of rank r, children of each) where all but a smaller last one have equally
    many, else (0, 0): regular trees are compared without looking every child up.
    """

    def __init__(self, flavor: Flavor, names: Sequence[str], paths: Sequence[Path], index: Ints) -> None:
        self.flavor = flavor
        self.names = names
        self.paths = paths
        self.size = len(names)
        self.lo = int(index[0]) if self.size else 0
        self.index = None if not len(index) or (np.diff(index) == 1).all() else index
        bounds = _bounds(paths, len(flavor.levels))
        if len(bounds[-1]) != self.size + 1:
            bounds.append(np.arange(self.size + 1, dtype=np.int64))
        self.bounds = bounds
        self.leaf = len(bounds) - 1
        self.last = len(flavor.levels) - 1
        self.children = [np.searchsorted(low, high) for high, low in pairwise(bounds)]
        self.span = slice(self.lo, self.lo + self.size) if self.index is None else self.index
        self.kept: dict[object, Any] = {}  # what others count on this tree; dropped when it is replaced
        # Lent to one count at a time: at 5,000 nodes a fresh array of 40 KB costs more than what is computed in it.
        self.spare = np.empty(self.size, np.int64)
        self.grids = [_grid(children) for children in self.children]

    def lend(self) -> Ints:
        """Memory for one number a leaf; zeros behind it fill the grid up."""
        rows, columns = self.grids[-1] if self.leaf else (0, 0)
        # The base of this slice has a cell for each cell of the
        # grid: `Counts.grid` reads it as a matrix without a copy.
        return np.zeros(max(rows * columns, self.size), np.int64)[: self.size]

    def rank_of_level(self, level: str) -> int | None:
        """The rank of a level key; None where the flavor has no such level."""
        levels = self.flavor.levels
        return levels.index(level) if level in levels else None

    def count_domains(self, rank: int) -> int:
        """How many domains there are at ``rank``."""
        return len(self.bounds[rank]) - 1

    def lost(self, level: str) -> bool:
        """Whether no node has a value of a level (`engine.cluster.levels`); False for one of another flavor."""
        rank = self.rank_of_level(level)
        return rank is not None and bool(self.size) and not self.paths[0][rank]

    def path(self, rank: int, domain: int) -> Path:
        """The values of a domain, widest first (the node's name is not part of it)."""
        return self.paths[int(self.bounds[rank][domain])][: rank + 1]

    def columns_of_leaves(self, leaves: Ints) -> Ints:
        """Table indices of leaves."""
        found: Ints = leaves + self.lo if self.index is None else self.index[leaves]
        return found

    def cut(self, rank: int) -> "Tree":
        """The same tree with the domains of ``rank`` as its leaves; kept."""
        if rank == self.leaf:
            return self
        found = self._cuts.get(rank)
        if found is None:
            paths = [self.path(rank, domain) for domain in range(self.count_domains(rank))]
            flavor = structs.replace(self.flavor, levels=self.flavor.levels[: rank + 1])
            # The index of a cut tree counts domains and leads to no node: it answers questions about counts alone.
            found = Tree(flavor, ["/".join(path) for path in paths], paths, np.arange(len(paths)))
            self._cuts[rank] = found
        return found

    @cached_property
    def _cuts(self) -> "dict[int, Tree]":
        return {}

    @cached_property
    def other(self) -> Ints:
        """More memory for one number a leaf, for questions that are asked one at a time."""
        return np.empty(self.size, np.int64)

    @cached_property
    def owners(self) -> list[Ints]:
        """For each rank, the domain of each leaf."""
        sizes = [np.diff(bound) for bound in self.bounds]
        return [np.repeat(np.arange(len(size)), size) for size in sizes]

    @cached_property
    def leaf_at(self) -> dict[int, int]:
        """Table index -> leaf, for trees whose leaves are scattered."""
        index = range(self.lo, self.lo + self.size) if self.index is None else self.index.tolist()
        return {at: leaf for leaf, at in enumerate(index)}

    @cached_property
    def domain_of(self) -> dict[Path, int]:
        """Values of a domain of the narrowest level -> its number."""
        # Not by the leaf rank: several nodes may share a domain of the narrowest level, and slices name domains.
        return {self.path(self.last, d): d for d in range(self.count_domains(self.last))}

    def find(self, rank: int, path: Path) -> int | None:
        """The domain of ``rank`` with these values; None where there is none."""
        return next((d for d in range(self.count_domains(rank)) if self.path(rank, d) == path), None)

    def leaves_among(self, index: Ints) -> Ints:
        """The leaves among table indices (in their order); indices of other nodes are dropped."""
        if self.index is None:
            leaves = index - self.lo
            return leaves[(leaves >= 0) & (leaves < self.size)]
        known = self.leaf_at
        return np.fromiter((known[at] for at in index.tolist() if at in known), np.int64)


def _grid(children: Ints) -> tuple[int, int]:
    sizes = np.diff(children)
    regular = len(sizes) and bool((sizes[:-1] == sizes[0]).all()) and sizes[-1] <= sizes[0]
    return (len(sizes), int(sizes[0])) if regular else (0, 0)


def _bounds(paths: Sequence[Path], levels: int) -> list[Ints]:
    """Leaf offsets of the domains of each level; a domain ends where any of its own or its parents' values changes."""
    found: list[list[int]] = [[] for _ in range(levels)]
    before: Path = ()
    for leaf, path in enumerate(paths):
        if path == before:
            continue
        # Nothing is before the first leaf, so it starts a domain at every level.
        first = next((r for r, value in enumerate(before) if path[r] != value), 0)
        for starts in found[first:]:
            starts.append(leaf)
        before = path
    return [np.array([*starts, len(paths)], dtype=np.int64) for starts in found]
