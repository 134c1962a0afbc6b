"""The last slice of a pod set whose pods do not divide into slices: a *tail* of fewer pods, all in one domain.

Rules, as in Kueue from 0.20 on (PR 15640, gate ``TASPartialSlices``)
- There is one layer of slices. With several, the size of the widest divides the pods.
- One domain of the slices' level, the *host*, holds the tail, and whole slices where that needs fewer domains. All
  others hold whole slices. The tail has the last ranks, wherever its host is in tree order.
- A domain that takes c pods takes c // size slices, and with the tail one slice fewer where the rest does not suffice
  for it (its *loss*). A container takes all where its slices less the least loss inside it suffice.
- What is sought is as without a tail: `engine.placement.slices`. The exact search has two tables a domain, without the
  tail and with it.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.cluster.fit_counts import Counts
from engine.cluster.tree import Tree
from engine.placement.choose import FIRST_LOOK, Chooser
from engine.placement.search.descent import Pick, Preference
from engine.placement.search.exact import OPERATION, Work
from engine.placement.slice_split import NEVER, Split
from engine.placement.slices import Layer, SlicedCounts, Slicer

NO_HOST: Final = 2  # the loss of a domain that does not even take the tail
_Ask = Callable[[Chooser], Pick | None]


def tail_of(layers: Sequence[Layer], count: int) -> int:
    """How many pods the last slice has where it is not whole; 0 where all are, and where none may be less."""
    return count % layers[0].size if len(layers) == 1 and not layers[0].alone else 0


def sliced_counts(tree: Tree, leaf: Ints, layers: Sequence[Layer], count: int) -> SlicedCounts:
    """What so many pods may find: whole slices, and a tail where they have one."""
    tail = tail_of(layers, count)
    return TailedCounts(tree, leaf, layers, tail) if tail else SlicedCounts(tree, leaf, layers)


def slicer(  # noqa: PLR0917  (what a question consists of)
    tree: Tree, leaf: Ints, need: int, layers: tuple[Layer, ...], work: Work, prefer: Preference | None
) -> Slicer:
    """The question about ``need`` pods in slices, the last of which may be a tail; ``leaf``: pods that fit by leaf."""
    if tail := tail_of(layers, need):
        return TailSlicer(tree, TailedCounts(tree, leaf, layers, tail), need, layers, work, prefer)
    return Slicer(tree, SlicedCounts(tree, leaf, layers), need, layers, work, prefer)


class TailedCounts(SlicedCounts):
    """Pods that fit as whole slices and one tail, for each domain of the slices' level and of each wider one.

    ``pods``: single pods that fit, for each domain of the slices' level. ``plain``: without the tail.
    """

    __slots__ = ("_losses", "_rank", "_size", "_tail", "_tailed", "plain", "pods")

    def __init__(self, tree: Tree, leaf: Ints, layers: Sequence[Layer], tail: int) -> None:
        super().__init__(tree, leaf, layers)
        self.plain = SlicedCounts(tree, leaf, layers)
        self._rank, self._size, self._tail = layers[0].rank, layers[0].size, tail
        self.pods = Counts(tree, leaf).counts_of_rank(self._rank)
        rest = np.where(self.pods % self._size >= tail, 0, 1)
        self._losses: list[Ints | None] = [None] * self._rank + [np.where(self.pods >= tail, rest, NO_HOST)]
        self._tailed: list[Ints | None] = [None] * (self._rank + 1)

    def losses(self, rank: int) -> Ints:
        """Whole slices that a domain of ``rank`` (the slices' or a wider one) has to leave for the tail, at least."""
        found = self._losses[rank]
        if found is None:
            below = self.losses(rank + 1)
            least = np.minimum.reduceat(below, self._tree.children[rank][:-1]) if len(below) else below
            found = self._losses[rank] = least
        return found

    def counts_of_rank(self, rank: int) -> Ints:
        """Counts of the domains of ``rank``. Do not modify."""
        if rank > self._rank:
            return self.whole_of_rank(rank)
        found = self._tailed[rank]
        if found is None:
            lost = self.losses(rank)
            whole = self.whole_of_rank(rank) - lost * self._size + self._tail
            found = self._tailed[rank] = np.where(lost < NO_HOST, whole, 0)
        return found

    def whole_of_rank(self, rank: int) -> Ints:
        """The same of whole slices alone. Do not modify."""
        return self.plain.counts_of_rank(rank)

    def most_of_rank(self, rank: int) -> Ints:
        """More pods than these are in no domain of ``rank``, whether it has the tail or not."""
        return np.maximum(self.whole_of_rank(rank), self.counts_of_rank(rank))

    def count_all(self) -> int:
        """Pods that the whole tree takes, with one tail."""
        lost = int(self.losses(0).min(initial=NO_HOST))
        return int(self.whole_of_rank(0).sum()) - lost * self._size + self._tail if lost < NO_HOST else 0


class TailSlicer(Slicer):
    """The same question about ``need`` pods of which the last are a tail. ``counts`` has it too."""

    counts: TailedCounts

    def used_first(self, rank: int = -1) -> Pick | None:
        """The fewest domains of the slices' level, wherever they are; of equal ones those in the fullest domains."""
        level = self._first_rank(rank)
        if rank >= 0:
            return self.in_one(rank, level)
        if not self._holds():
            return None
        return self._better(self._hosted(-1, 0, level, lambda chooser: chooser.used_first()), -1, 0, level)

    def _solve(self, rank: int, domain: int, level: int) -> Pick:
        cut = self.layers[0].rank
        # Inside one domain of the slices' level nothing is told apart: whole slices and tail are that many pods.
        if rank >= cut:
            return super()._solve(rank, domain, level)
        steps = tuple(range(max(min(level, cut), rank + 1), cut + 1))
        found = self._hosted(rank, domain, level, lambda chooser: chooser.solve(rank, domain, steps))
        return self._better(found, rank, domain, level)

    def _hosted(self, rank: int, domain: int, level: int, ask: _Ask) -> Pick:
        """Whole slices as ``ask`` puts them, and the tail beside them if it can be, else where it costs least.

        The container holds all of them.
        """
        cut, size = self.layers[0].rank, self.layers[0].size
        slices, tail = divmod(self.need, size)
        tree, counts = self.tree.cut(cut), self.counts
        first, last = (0, len(counts.pods)) if rank < 0 else tree.bounds[rank][domain : domain + 2].tolist()
        inside = slice(first, last)
        whole, lost = counts.whole_of_rank(cut) // size, counts.losses(cut)
        at_once = self._slices_by_domain(whole, slices, ask)
        left = counts.pods[inside] - at_once[inside] * size
        beside = np.flatnonzero((at_once[inside] > 0) & (left >= tail))
        if len(beside):
            host = first + int(beside[left[beside].argmin()])
            return self._expand(at_once, host, rank, level)
        fit = np.flatnonzero((lost[inside] < NO_HOST) & (int(whole[inside].sum()) - lost[inside] >= slices)) + first
        # The least loss first, then the least room that stays; a few are compared.
        order = np.lexsort((counts.pods[fit] - tail, at_once[fit] == 0, lost[fit]))[:FIRST_LOOK]
        best: Pick | None = None
        for host in fit[order].tolist():
            lowered = whole.copy()
            lowered[host] -= lost[host]
            pick = self._expand(self._slices_by_domain(lowered, slices, ask), host, rank, level)
            if best is None or pick.cost < best.cost:
                best = pick
        assert best is not None  # noqa: S101  (it holds all)
        return best

    def _slices_by_domain(self, whole: Ints, slices: int, ask: _Ask) -> Ints:
        """How many whole slices each domain of their level gets; ``whole``: how many each takes."""
        found = np.zeros_like(whole)
        if slices:
            tree = self.tree.cut(self.layers[0].rank)
            prefer = self.prefer if tree is self.tree else None
            pick = ask(Chooser(tree, Counts(tree, whole), slices, self.work, prefer, gather=False))
            assert pick is not None  # noqa: S101  (it holds all)
            found[pick.leaves] = pick.amounts
        return found

    def _expand(self, slices: Ints, host: int, rank: int, level: int) -> Pick:
        """Slices by domain of their level and the host of the tail, as pods by leaf."""
        cut, size = self.layers[0].rank, self.layers[0].size
        pods = slices * size
        pods[host] += self.need % size
        used = np.flatnonzero(pods)
        if cut == self.tree.leaf:
            leaves, amounts = used, pods[used]
        else:
            parts = [self._descend(cut, domain, int(pods[domain]), (), 0) for domain in used.tolist()]
            leaves = np.concatenate([part.leaves for part in parts])
            amounts = np.concatenate([part.amounts for part in parts])
        steps = self._steps(rank, level)
        cost = (len(leaves) if at == self.tree.leaf else len(np.unique(self.tree.owners[at][leaves])) for at in steps)
        return Pick(leaves, amounts, tuple(cost))

    def _split(self, units: Sequence[int], rank: int, domain: int, steps: Sequence[int]) -> Split:
        layer = self.layers[0]
        if rank >= layer.rank:
            return super()._split(units, rank, domain, steps)
        return TailSplit(
            self.tree,
            self.counts.plain,
            self.need,
            units,
            rank,
            domain,
            steps,
            self.work,
            self.prefer,
            tailed=self.counts,
            layer=layer,
        )


class TailSplit(Split, kw_only=True):
    """The exact split with a tail. ``counts`` are of whole slices; ``tailed``, ``layer``: of the slices.

    Each domain down to the slices' level has a second table: the least cost where it has the tail as well. A parent's
    is the least over the child that has it.
    """

    tailed: TailedCounts
    layer: Layer
    _hosting: dict[tuple[int, int], Ints] = msgspec.field(default_factory=dict)

    @property
    def tail(self) -> int:
        """How many pods the last slice has."""
        return self.need % self.layer.size

    def bound_domains(self, step: int) -> int:
        """No choice uses fewer domains of this step."""
        inside = self.tailed.most_of_rank(step)[self._down(self.domain, step) : self._down(self.domain + 1, step)]
        return int(np.cumsum(np.sort(inside)[::-1]).searchsorted(self.need)) + 1

    def solve(self) -> Pick | None:
        """The best choice; None where costs are too long for one number. Raises OutOfWork."""
        if not self._weigh_steps():
            return None
        slices = self.need // self.layer.size
        value = int(self._children_hosting(self.rank, self.domain, slices)[1][-1][slices])
        leaves: list[Ints] = []
        amounts: list[Ints] = []
        self._trace_hosting(self.rank, self.domain, slices, leaves, amounts)
        return self._as_pick(value, leaves, amounts)

    def _table_hosting(self, rank: int, domain: int) -> Ints:
        """The least cost of a domain that holds the tail and 0, 1, ... slices; empty where it cannot hold the tail."""
        key = (rank, domain)
        found = self._hosting.get(key)
        if found is None:
            found = self._hosting[key] = self._made_hosting(rank, domain)
        return found

    def _made_hosting(self, rank: int, domain: int) -> Ints:
        if self.tailed.losses(rank)[domain] >= NO_HOST:
            return np.empty(0, np.int64)
        size, weight = self.layer.size, self._weights[rank]
        if rank < self.layer.rank:
            most = min(int(self.counts.counts_of_rank(rank)[domain]), self.need) // size
            return self._children_hosting(rank, domain, most)[1][-1] + weight
        most = (min(int(self.tailed.pods[domain]), self.need) - self.tail) // size
        if rank == self.tree.leaf:
            return np.full(most + 1, weight)
        pods = most * size + self.tail
        below = self._lowest(domain, pods) if rank == self.tree.leaf - 1 else self._children(rank, domain, pods)[-1]
        return below[self.tail :: size][: most + 1] + weight

    def _children_hosting(self, rank: int, domain: int, most: int) -> tuple[list[Ints], list[Ints]]:
        """The least costs for 0 .. ``most`` slices of the first 0, 1, ... children: without the tail, and with it."""
        without = self._children(rank, domain, most)
        have = np.full(most + 1, NEVER)
        found = [have]
        for before, child in zip(without, self._span(rank, domain), strict=False):
            table, hosting = self._table(rank + 1, child), self._table_hosting(rank + 1, child)
            have = self._convolve_min(have, table) if len(table) > 1 else have.copy()
            self.work.spend_cells(len(hosting) * (OPERATION + len(have)))
            for amount in range(min(len(hosting), most + 1)):
                part = have[amount:]
                np.minimum(part, before[: most + 1 - amount] + hosting[amount], out=part)
            found.append(have)
        return without, found

    def _trace_hosting(self, rank: int, domain: int, amount: int, leaves: list[Ints], amounts: list[Ints]) -> None:
        """Walk back which child holds how many slices, and which the tail: the last one that may."""
        without, hosting = self._children_hosting(rank, domain, amount)
        children, open_ = self._span(rank, domain), True
        for at in range(len(children), 0, -1):
            child, want = children[at - 1], int((hosting if open_ else without)[at][amount])
            table = self._table_hosting(rank + 1, child)
            reach = min(len(table), amount + 1)
            costs = without[at - 1][amount - np.arange(reach)] + table[:reach]
            if open_ and len(here := np.flatnonzero(costs == want)):
                taken, open_ = int(here[0]), False
                self._place_hosting(rank + 1, child, taken, leaves, amounts)
            else:
                table, before = self._table(rank + 1, child), (hosting if open_ else without)[at - 1]
                reach = min(len(table), amount + 1)
                taken = int((before[amount - np.arange(reach)] + table[:reach] == want).argmax())
                if taken:
                    self._place_slices(rank + 1, child, taken, leaves, amounts)
            amount -= taken

    def _place_hosting(self, rank: int, domain: int, slices: int, leaves: list[Ints], amounts: list[Ints]) -> None:
        if rank < self.layer.rank:
            self._trace_hosting(rank, domain, slices, leaves, amounts)
            return
        pods = slices * self.layer.size + self.tail
        if rank == self.tree.leaf:
            leaves.append(np.array([domain]))
            amounts.append(np.array([pods]))
        else:
            self._trace(rank, domain, pods, leaves, amounts)
