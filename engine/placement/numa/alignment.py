"""Alignment before tightness: another choice of as many nodes and domains on which the pods come out better aligned.

Rules
- A pick is as good as its worst node (`engine.numa.alignment`): the same question is asked again about fewer and fewer
  leaves, those up to some rank alone, for as long as the answer uses no more domains or nodes at any step. Of the
  leaves that are left, the tightest are taken as ever. Where nodes take several pods, those count first that come out
  in one zone each: a node of a worse rank that splits none comes before one that splits some.
- Then single nodes are exchanged for better aligned ones of the same domain.
- ``AlignmentOverPacking`` says what that may cost: how many nodes or domains with nothing on them are taken beyond
  those of the tightest pick.
- It costs about one more placement where the best rank suffices, else one for each halving of the ranks there are, and
  nothing where the tightest pick is aligned as well as can be.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints
from engine.cluster.node_columns import Table
from engine.cluster.tree import Tree
from engine.model import Amounts
from engine.numa.score import AlignmentOverPacking
from engine.placement.numa.numa_preference import Inner
from engine.placement.search.descent import Pick
from engine.placement.search.unopened import idle_leaves

EXCHANGES: Final = 64  # nodes of a pick that are exchanged at most

AlignmentRequest = Callable[[Ints], Pick | None]  # the best pick, where these are the pods that fit each leaf
Bools = NDArray[np.bool_]


class _Level(msgspec.Struct, frozen=True):
    """What a pick may use: leaves up to a rank, and of each what comes out in one zone, where that is given.

    ``split``: leaves up to that rank with all that fits them, beside the others with their ``whole`` pods.
    """

    rank: int
    ranks: Ints
    whole: Ints | None = None
    split: bool = False

    def count_leaves(self, leaf: Ints) -> Ints:
        """The pods that fit each leaf."""
        if self.whole is None:
            return np.where(self.ranks <= self.rank, leaf, 0)
        if self.split:
            return np.where(self.ranks <= self.rank, leaf, self.whole)
        return np.where(self.ranks <= self.rank, self.whole, 0)


def _up_to(worst: int, ranks: Ints) -> list[int]:
    found: list[int] = np.unique(ranks[ranks <= worst]).tolist()
    return found


class Alignment(msgspec.Struct, dict=True):
    """How the picks of one pod set on one tree are bettered; ``requests``: of one pod."""

    tree: Tree
    table: Table
    inner: Inner
    requests: Amounts
    over_packing: AlignmentOverPacking

    def best_pick(self, leaf: Ints, ask: AlignmentRequest, *, exchange: bool = True) -> Pick | None:
        """The pick for these counts by leaf; ``exchange``: whether any leaf may take the place of another."""
        tightest = ask(leaf)
        if tightest is None or self.over_packing is AlignmentOverPacking.NEVER:
            return tightest
        levels = self._levels(leaf, tightest)
        if not levels:
            return tightest
        found, level = self._bounded(leaf, ask, tightest, levels)
        return (
            self._exchanged(found, level.count_leaves(leaf), tightest) if exchange and len(found.leaves) > 1 else found
        )

    def _levels(self, leaf: Ints, tightest: Pick) -> list[_Level]:
        """Levels, the best first, the last that of the tightest pick; none where nothing can be better."""
        ranks, usable = self.inner.ranks, leaf > 0
        worst, least = int(ranks[tightest.leaves].max()), int(ranks[usable].min())
        # With one pod a node the rank of the node says all; only several pods can differ in how they come out.
        whole = self.inner.in_one_zone(leaf) if int(tightest.amounts.max()) > 1 else None
        if whole is None:
            return [_Level(rank, ranks) for rank in _up_to(worst, ranks[usable])] if worst > least else []
        split = worst >= self.inner.several or bool((tightest.amounts > whole[tightest.leaves]).any())
        if worst == least and not split:
            return []
        single = ranks < self.inner.several
        kept = np.where(single, np.minimum(whole, leaf), 0)
        bound = self.inner.several if split else worst
        found = [_Level(rank, ranks, kept) for rank in _up_to(bound, ranks[usable & single])]
        return [*found, *(_Level(rank, ranks, kept, split=True) for rank in _up_to(worst, ranks[usable]) if split)]

    def _bounded(
        self, leaf: Ints, ask: AlignmentRequest, tightest: Pick, levels: Sequence[_Level]
    ) -> tuple[Pick, _Level]:
        """The pick of the best level that has one, by halves, the best first."""
        best, level = tightest, levels[-1]
        # The first question is about the best level alone, which
        # often suffices; only after that the search goes by halves.
        low, high, at = 0, len(levels) - 1, 0
        while low < high:
            found = self._pick_within(levels[at].count_leaves(leaf), ask, tightest)
            if found is not None:
                best, level, high = found, levels[at], at
            else:
                low = at + 1
            at = (low + high) // 2
        return best, level

    def _pick_within(self, leaf: Ints, ask: AlignmentRequest, tightest: Pick) -> Pick | None:
        """A pick on these leaves that costs no more than the tightest; None where there is none."""
        nodes = len(tightest.leaves)
        # Where even the largest of so many leaves do not suffice, there is no need to ask.
        if nodes < len(leaf) and int(np.partition(leaf, -nodes)[-nodes:].sum()) < int(tightest.amounts.sum()):
            return None
        for allowed in self._allowed(tightest):
            found = ask(leaf if allowed is None else np.where(allowed, leaf, 0))
            if found is None or found.cost > tightest.cost or len(found.leaves) > nodes:
                continue
            if self._affordable(found, tightest):
                return found
        return None

    # -- what it may cost -------------------------------------------------------------------------------------

    @cached_property
    def idle_leaves(self) -> Bools:
        """Leaves on which nothing holds what a pod asks for."""
        return idle_leaves(self.table, self.tree, self.requests)

    @cached_property
    def _owners(self) -> Ints:
        """By leaf, the domain just above it."""
        return self.tree.owners[self.tree.leaf - 1] if self.tree.leaf else np.zeros(self.tree.size, np.int64)

    @cached_property
    def _idle_domains(self) -> Bools:
        found: Bools = np.logical_and.reduceat(self.idle_leaves, self._starts)
        return found

    @cached_property
    def _starts(self) -> Ints:
        """The first leaf of each domain just above the leaves."""
        return self.tree.bounds[self.tree.leaf - 1][:-1] if self.tree.leaf else np.zeros(1, np.int64)

    def _allowed(self, tightest: Pick) -> Iterable[Bools | None]:
        """Which leaves to look at, all (None) first; fewer where those would cost too much."""
        yield None
        if self.over_packing is AlignmentOverPacking.ALWAYS:
            return
        domains = ~self._idle_domains
        domains[self._owners[tightest.leaves]] = True
        used = domains[self._owners]
        yield used
        if self.over_packing is AlignmentOverPacking.USED_NODES:
            nodes = ~self.idle_leaves
            nodes[tightest.leaves] = True
            yield nodes

    def _affordable(self, found: Pick, tightest: Pick) -> bool:
        if self.over_packing is AlignmentOverPacking.ALWAYS:
            return True
        if len(self._opened(found)) > len(self._opened(tightest)):
            return False
        nodes = self.over_packing is AlignmentOverPacking.USED_NODES
        return not nodes or int(self.idle_leaves[found.leaves].sum()) <= int(self.idle_leaves[tightest.leaves].sum())

    def _opened(self, pick: Pick) -> Ints:
        owners = np.unique(self._owners[pick.leaves])
        return owners[self._idle_domains[owners]]

    # -- node by node -----------------------------------------------------------------------------------------

    def _exchanged(self, pick: Pick, leaf: Ints, tightest: Pick) -> Pick:
        """The same with nodes exchanged for better aligned ones of their domain, the worst first."""
        ranks, owners, need = self.inner.ranks, self._owners, int(pick.amounts.sum())
        open_to = leaf > 0
        open_to[pick.leaves] = False
        spare = (
            int(self.idle_leaves[tightest.leaves].sum() - self.idle_leaves[pick.leaves].sum())
            if self._nodes_count
            else 0
        )
        # What the nodes could hold beyond the need: by so much all exchanges together may make them smaller.
        surplus, chosen = int(leaf[pick.leaves].sum()) - need, dict.fromkeys(pick.leaves.tolist())
        for node in self._promising(pick, open_to):
            # In the same domain only, so no exchange changes how many domains of any level are used.
            beside = (owners == owners[node]) & open_to & (ranks < ranks[node]) & (leaf >= leaf[node] - surplus)
            if self._nodes_count and spare <= 0 and not self.idle_leaves[node]:
                beside &= ~self.idle_leaves
            others = beside.nonzero()[0]
            if not len(others):
                continue
            other = int(others[np.lexsort((leaf[others], ranks[others]))[0]])
            surplus += int(leaf[other] - leaf[node])
            spare += int(self.idle_leaves[node]) - int(self.idle_leaves[other]) if self._nodes_count else 0
            open_to[node], open_to[other] = True, False
            del chosen[node]
            chosen[other] = None
        if not chosen:
            return pick
        # The better aligned nodes full, and the rest on the last.
        leaves = np.array(sorted(chosen))
        order = np.lexsort((leaves, -leaf[leaves], ranks[leaves]))
        amounts, full = np.zeros(len(leaves), np.int64), leaf[leaves[order]]
        amounts[order] = np.clip(need - (np.cumsum(full) - full), 0, full)
        return Pick(leaves, amounts, pick.cost)

    @property
    def _nodes_count(self) -> bool:
        return self.over_packing is AlignmentOverPacking.USED_NODES

    def _promising(self, pick: Pick, open_to: Bools) -> list[int]:
        """The nodes of a pick beside which a better one is not taken, the worst first."""
        ranks = self.inner.ranks
        least = np.minimum.reduceat(np.where(open_to, ranks, np.iinfo(np.int64).max), self._starts)
        worse = pick.leaves[least[self._owners[pick.leaves]] < ranks[pick.leaves]]
        found: list[int] = worse[np.argsort(-ranks[worse], kind="stable")][:EXCHANGES].tolist()
        return found
