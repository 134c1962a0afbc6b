"""Slices of a pod set: each run of ``size`` pods shares one domain of a level; and slices within slices.

Rules
- A domain of a slice level takes whole slices only: floor(what its inside takes / size), from the inside out.
- The last slice of a pod set with one layer may be a part of one, a *tail*: `engine.placement.slice_tail`.
- So an assignment is right where each domain of a layer's level holds a multiple of its size. Ranks go to slots in tree
  order, so slice k then holds the ranks k * size .. k * size + size - 1, each slice in one domain.
- What is sought is the same as without slices (``engine.placement.choose``): the fewest domains at the requested level,
  then at each narrower one. Down to the widest slice level that is the same question about slices instead of pods, on a
  tree whose leaves are the domains of that level; each chosen domain then is a question of its own. Which of equally
  many domains leave fewer below is left to ``engine.placement.slice_split``, where the former is not provably the best.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.cluster.fit_counts import Counts
from engine.cluster.tree import Tree
from engine.model import TopologyRequest
from engine.placement.choose import DESCENT, FIRST_LOOK, Chooser
from engine.placement.search.descent import Pick, Preference
from engine.placement.search.exact import OutOfWork, Work
from engine.placement.slice_split import Split

_FEWEST: Final = 5_000_000  # cells of work that a pod set with slices may take at least


class Layer(msgspec.Struct, frozen=True):
    """Domains of ``rank`` hold multiples of ``size`` pods; where they are to be ``alone``, no more than one."""

    rank: int
    size: int
    alone: bool = False

    def keep_whole_slices(self, counts: Ints) -> Ints:
        """What is left of counts of its domains."""
        counts = counts // self.size * self.size
        return np.minimum(counts, self.size) if self.alone else counts


class Unfit(Exception):  # noqa: N818  (a refusal on its way to the caller, not an error)
    """Slices that a flavor cannot honour; the text is for a person. ``unknown``: for want of a level."""

    def __init__(self, text: str, *, unknown: bool = False) -> None:
        super().__init__(text)
        self.unknown = unknown


def layers_of(tree: Tree, topology: TopologyRequest) -> tuple[Layer, ...]:
    """The layers that say anything (slices of one pod beside others do not), widest first. Raises Unfit."""
    found: list[Layer] = []
    levels = tree.flavor.levels
    above = -1 if topology.level is None else (tree.rank_of_level(topology.level) or 0) - 1
    named = topology.level or ""
    for part in topology.slices:
        rank = tree.rank_of_level(part.level)
        if rank is None:
            text = f"flavor {tree.flavor.name} has no level {part.level}; its levels are {', '.join(levels)}"
            raise Unfit(text, unknown=True)
        if rank <= above:
            raise Unfit(
                f"slices of {part.size} share one {part.level}, which is not narrower than {named}; the levels of "
                f"flavor {tree.flavor.name} from the widest to the narrowest are {', '.join(levels)}"
            )
        if part.size > 1 or part.alone:
            found.append(Layer(rank, part.size, part.alone))
        above, named = rank, part.level
    return tuple(found)


def in_words(topology: TopologyRequest) -> str:
    """The slices for a message: ``in slices of 4 of one cloud/rack``; "" where there are none."""
    parts = [f"of {part.size} {'alone in' if part.alone else 'of'} one {part.level}" for part in topology.slices]
    return f" in slices {', '.join(parts)}" if parts else ""


class SlicedCounts(Counts):
    """Pods that fit in whole slices, for each domain of each rank of one tree; single pods below the last layer."""

    __slots__ = ("_layers",)

    def __init__(self, tree: Tree, leaf: Ints, layers: Sequence[Layer]) -> None:
        self._layers = {layer.rank: layer for layer in layers}
        layer = self._layers.get(tree.leaf)
        super().__init__(tree, leaf if layer is None else layer.keep_whole_slices(leaf))

    def counts_of_rank(self, rank: int) -> Ints:
        """Counts of the domains of ``rank``. Do not modify."""
        found = self.levels[rank]
        if found is None:
            found = super().counts_of_rank(rank)
            layer = self._layers.get(rank)
            if layer is not None:
                found = self.levels[rank] = layer.keep_whole_slices(found)
        return found

    def whole_of_rank(self, rank: int) -> Ints:
        """The same of whole slices alone, whatever else a domain may take. Do not modify."""
        return self.counts_of_rank(rank)

    def most_of_rank(self, rank: int) -> Ints:
        """More pods than these are in no domain of ``rank``, whatever is in others. Do not modify."""
        return self.counts_of_rank(rank)


class Slicer(msgspec.Struct):
    """One question: ``need`` pods in whole slices on a tree with these counts. Asked like a ``Chooser``."""

    tree: Tree
    counts: SlicedCounts
    need: int
    layers: tuple[Layer, ...]
    work: Work
    prefer: Preference | None = None

    def __post_init__(self) -> None:
        """Slices are thought about for longer than single pods."""
        self.work.grant(_FEWEST)

    def in_one(self, rank: int, level: int, among: Ints | None = None) -> Pick | None:
        """The best single domain of ``rank`` (all, or ``among`` these), for a request of rank ``level``."""
        fits = self.counts.counts_of_rank(rank)
        found = (fits >= self.need).nonzero()[0] if among is None else among[fits[among] >= self.need]
        best: Pick | None = None
        for number, domain in enumerate(self._order(rank, level, found, fits)):
            # The first few are compared even where the budget is spent.
            if best is not None and (number >= FIRST_LOOK and self.work.spent):
                break
            self.work.spend(DESCENT)
            pick = self._solve(rank, domain, level)
            if best is None or pick.cost < best.cost:
                best = pick
            # At no step can a container do with fewer domains than if all of them took as much as the best.
            if all(
                have <= -(-self.need // max(int(self.counts.most_of_rank(step).max(initial=0)), 1))
                for have, step in zip(best.cost, self._steps(rank, level), strict=True)
            ):
                break
        return best

    def pick_anywhere(self, level: int) -> Pick | None:
        """Spread over the whole flavor."""
        return self._solve(-1, 0, level) if self._holds() else None

    def used_first(self, rank: int = -1) -> Pick | None:
        """The fewest domains of the widest layer, wherever they are; of equal ones those in the fullest domains."""
        level = self._first_rank(rank)
        if rank >= 0:
            return self.in_one(rank, level)
        if not self._holds():
            return None
        pick = self._chooser(level, self.layers[0].size, self.need).used_first()
        assert pick is not None  # noqa: S101  (it holds all)
        found = self._expand_layers(pick, self.layers)
        return self._better(found, -1, 0, level)

    def _holds(self) -> bool:
        return bool(self.tree.size) and self.counts.count_all() >= self.need

    def _first_rank(self, rank: int) -> int:
        """The rank at which slices are counted inside a domain of ``rank``."""
        return next((layer.rank for layer in self.layers if layer.rank > rank), self.tree.leaf)

    def _steps(self, rank: int, level: int) -> range:
        return range(max(min(level, self._first_rank(rank)), rank + 1), self.tree.leaf + 1)

    def _order(self, rank: int, level: int, found: Ints, fits: Ints) -> Iterator[int]:
        """Containers to look at: the one with the fewest domains down to the slices, then the tightest."""
        inner = [layer for layer in self.layers if layer.rank > rank]
        first = -1
        if len(found) > FIRST_LOOK and inner and self.need >= inner[0].size:
            pick = self._chooser(inner[0].rank, inner[0].size, self.need).in_one(rank, level, found)
            assert pick is not None  # noqa: S101  (each of them holds all)
            first = int(self.tree.cut(inner[0].rank).owners[rank][pick.leaves[0]])
            yield first
        raw = np.add.reduceat(self.counts.leaf, self.tree.bounds[rank][:-1])
        # Of domains that take equally many whole slices the one with fewer single pods to spare comes first.
        for domain in found[np.lexsort((raw[found], fits[found]))].tolist():
            if domain != first:
                yield domain

    def _chooser(self, rank: int, size: int, need: int) -> Chooser:
        """A question about slices of ``size`` in domains of ``rank``."""
        tree = self.tree.cut(rank)
        counts = Counts(tree, self.counts.whole_of_rank(rank) // size)
        # A preference names leaves of the whole tree; the leaves of a cut tree are domains.
        prefer = self.prefer if tree is self.tree else None
        return Chooser(tree, counts, need // size, self.work, prefer, gather=False)

    # -- inside one container ---------------------------------------------------------------------------------

    def _solve(self, rank: int, domain: int, level: int) -> Pick:
        layers = tuple(layer for layer in self.layers if layer.rank > rank)
        return self._better(self._descend(rank, domain, self.need, layers, level), rank, domain, level)

    def _descend(self, rank: int, domain: int, need: int, layers: tuple[Layer, ...], level: int) -> Pick:
        """Whole slices first, then the inside of each domain that has some."""
        if rank == self.tree.leaf:
            return Pick(np.array([domain]), np.array([need]), ())
        cut, size = (layers[0].rank, layers[0].size) if layers else (self.tree.leaf, 1)
        steps = tuple(range(max(min(level, cut), rank + 1), cut + 1))
        return self._expand_layers(self._chooser(cut, size, need).solve(rank, domain, steps), layers)

    def _expand_layers(self, pick: Pick, layers: tuple[Layer, ...]) -> Pick:
        """A choice of slices by domain of the first layer, as one of pods by leaf."""
        if not layers:
            return pick
        layer, inner = layers[0], layers[1:]
        if layer.rank == self.tree.leaf:
            return Pick(pick.leaves, pick.amounts * layer.size, pick.cost)
        parts = [
            self._descend(layer.rank, domain, slices * layer.size, inner, 0)
            for domain, slices in zip(pick.leaves.tolist(), pick.amounts.tolist(), strict=True)
        ]
        below = [sum(costs) for costs in zip(*(part.cost for part in parts), strict=True)]
        leaves = np.concatenate([part.leaves for part in parts])
        amounts = np.concatenate([part.amounts for part in parts])
        return Pick(leaves, amounts, (*pick.cost, *below))

    def _better(self, pick: Pick, rank: int, domain: int, level: int) -> Pick:
        """Search for a better pick where this one is not provably the best."""
        steps = self._steps(rank, level)
        # For each rank, of how many pods the domains of it below ``rank`` hold multiples.
        inner = [layer for layer in self.layers if layer.rank > rank]
        every = range(self.tree.leaf + 1)
        units = tuple(next((layer.size for layer in inner if layer.rank >= at), 1) for at in every)
        split = self._split(units, rank, domain, steps)
        if all(have <= split.bound_domains(step) for have, step in zip(pick.cost, steps, strict=True)):
            return pick
        try:
            other = split.solve()
        except OutOfWork:
            return pick
        return other if other is not None and other.cost < pick.cost else pick

    def _split(self, units: Sequence[int], rank: int, domain: int, steps: Sequence[int]) -> Split:
        """The search for the best pick of all."""
        return Split(self.tree, self.counts, self.need, units, rank, domain, steps, self.work, self.prefer)
