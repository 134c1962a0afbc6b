"""Exact search inside one container: can a step do with fewer domains, the steps before it kept at their least?

For a fixed number of domains at each step the most pods that can be placed is a knapsack over the tree (dynamic
programming, bottom up): ``table(domain)[k1, .., kr]`` is the most pods of a domain that uses at most k_i domains of
step i. Tables of children combine by (max, +) convolution. Least cost is found step by step, lexicographically.
"""

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from engine.arrays import Ints, distinct
from engine.cluster.fit_counts import Counts
from engine.cluster.tree import Tree

_Joined = tuple[int, Ints, Ints, Ints]  # a child, its table, the useful entries of it, the table before it joined
SMALL = 400  # leaves of a tree that is searched to the end
CHOICES = 4  # choices by price that are followed up
PRICES = 12
# A limit of its own, so that the wider domains of one container do not eat up what is left for the others.
GATHER = 20_000_000  # cells of a search for fewer wider domains
# Far below any sum of pods, and far enough from the end of an int64 to be added to.
_NEVER = -(1 << 40)
OPERATION = 2_000  # what one small numpy call costs, in cells


class OutOfWork(Exception):  # noqa: N818  (not an error: the search gives up, the greedy answer stands)
    """The budget is spent."""


class Work(msgspec.Struct):
    """A budget in cells (about a nanosecond each)."""

    left: int

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    def grant(self, cells: int) -> None:
        """There are so many left at least."""
        self.left = max(self.left, cells)

    def spend(self, cells: int) -> None:
        """Use some, though there may not be enough."""
        self.left -= cells

    def spend_cells(self, cells: int) -> None:
        """Use some; raises OutOfWork where there is not enough."""
        self.left -= cells
        if self.left < 0:
            raise OutOfWork


class Search(msgspec.Struct):
    """Searches below ``domain`` of ``rank`` (-1: the whole tree); ``steps`` are the ranks that count."""

    tree: Tree
    counts: Counts
    need: int
    rank: int
    domain: int
    steps: tuple[int, ...]
    _least: dict[int, int] = msgspec.field(default_factory=dict)
    _settled: int = 1  # steps before this one are known to be least

    @property
    def size(self) -> int:
        """How many leaves are searched."""
        leaf = self.tree.leaf
        return self._last(leaf) - self._first_domain(leaf)

    def bound_step(self, i: int) -> int:
        """Step ``i`` alone, whatever the others: largest first is exact for one step."""
        if i not in self._least:
            step = self.steps[i]
            values = np.sort(self.counts.counts_of_rank(step)[self._first_domain(step) : self._last(step)])[::-1]
            self._least[i] = int(np.cumsum(values).searchsorted(self.need)) + 1
        return self._least[i]

    def promising(self, cost: tuple[int, ...]) -> Iterator[tuple[int, Ints]]:
        """(step, domains to use at it): choices that are best where a domain of the next step has a price.

        Lagrangian relaxation of "at most cost[i - 1] domains of step i - 1, fewest of step i": at price p a domain of
        step i - 1 is worth the sum of max(0, fits - p) over what is below it, and the dearest cost[i - 1] of them are
        the best choice at that price. The worth at each price also bounds step i from below (see any text on
        Lagrangian duality, e.g. Boyd and Vandenberghe, Convex Optimization, chapter 5).
        """
        for i in range(1, len(self.steps)):
            if cost[i] <= self.bound_step(i):
                continue
            above, step = self.steps[i - 1], self.steps[i]
            first, last = self._first_domain(above), self._last(above)
            children = self.tree.children[above][first : last + 1]
            fits = self.counts.counts_of_rank(step)[children[0] : children[-1]]
            # Prices worth asking: 0, then values that occur, at most PRICES.
            values = distinct(np.sort(fits[fits > 0]))
            if len(values) > PRICES:
                values = values[np.linspace(0, len(values) - 1, PRICES).astype(np.int64)]
            prices = np.concatenate([[0], values])
            worth = np.add.reduceat(np.maximum(fits - prices[:, None], 0), children[:-1] - children[0], axis=1)
            best = np.argsort(-worth, axis=1, kind="stable")[:, : cost[i - 1]]
            most = worth[np.arange(len(worth))[:, None], best].sum(axis=1)
            # At price 0 there is no bound, so that row is left out.
            bound = -(-(self.need - most[1:]) // prices[1:])
            self._least[i] = max(self._least[i], int(bound.max(initial=0)))
            if cost[i] > self._least[i]:
                enough = worth[0][best].sum(axis=1) >= self.need
                by_bound = [*(np.argsort(-bound, kind="stable") + 1).tolist(), 0]
                choices = np.sort(best[[row for row in by_bound if enough[row]]], axis=1)
                different = list({tuple(row): None for row in choices.tolist()})[:CHOICES]
                yield from ((i - 1, np.array(row, np.int64) + first) for row in different)
            if cost[i] > self._least[i]:
                return  # what follows depends on how this step ends

    def _first_domain(self, step: int) -> int:
        return 0 if self.rank < 0 else self._down(self.domain, step)

    def _last(self, step: int) -> int:
        return self.tree.count_domains(step) if self.rank < 0 else self._down(self.domain + 1, step)

    def _down(self, at: int, step: int) -> int:
        for rank in range(self.rank, step):
            at = int(self.tree.children[rank][at])
        return at

    def better(self, cost: tuple[int, ...], work: Work) -> tuple[int, Ints] | None:
        """(step, domains to use at that step) where the first step that can be improved is improved; else None."""
        for i in range(self._settled, len(self.steps)):
            if cost[i] > self.bound_step(i):
                try:
                    found = _Stage(self, (*cost[:i], cost[i] - 1), work).solve()
                except OutOfWork:
                    return None
                if found is not None:
                    self._settled = i + 1
                    return i, found
            self._settled = i + 1
        return None

    def gathered(self, wider: tuple[int, ...], cost: tuple[int, ...], work: Work) -> Ints | None:
        """Leaves in fewer domains of the first steps than ``wider``, within ``cost`` at the others; None: no such."""
        budget = Work(min(work.left, GATHER))
        try:
            return _Stage(self, (*wider, *cost), budget).gathered(len(wider))
        except OutOfWork:
            return None
        finally:
            # Taken off whatever the end, so that a search that gave up is not free for the next one.
            work.spend(min(work.left, GATHER) - budget.left)


class _Stage:
    """One step: the least domains of it within ``most`` (a limit for each step up to this one)."""

    def __init__(self, search: Search, most: tuple[int, ...], work: Work) -> None:
        self.tree = search.tree
        self.search = search
        self.most = most
        self.steps = search.steps[: len(most)]
        self.bottom = self.steps[-1]
        self.values = search.counts.counts_of_rank(self.bottom)
        self.work = work

    def solve(self) -> Ints | None:
        """The domains to use at the bottom step; None where ``most`` cannot be met."""
        rank, domain = self.search.rank, self.search.domain
        table, history = self._combined(rank, domain)
        fits: Ints = table[self.most[:-1]]
        least = int(np.searchsorted(fits, self.search.need))
        if least == len(fits):
            return None
        chosen: list[int] = []
        self._trace(rank, history, (*self.most[:-1], least), int(fits[least]), chosen)
        return np.sort(np.array(chosen, np.int64))

    def gathered(self, wider: int) -> Ints | None:
        """Leaves that suffice in the fewest domains of the first ``wider`` steps, if below the most."""
        rank, domain = self.search.rank, self.search.domain
        table, history = self._combined(rank, domain)
        least = np.argwhere(table[(slice(None),) * wider + self.most[wider:]] >= self.search.need)
        first = tuple(least[0].tolist()) if len(least) else self.most[:wider]
        if first >= self.most[:wider]:
            return None
        at, chosen = (*first, *self.most[wider:]), list[int]()
        self._trace(rank, history, at, int(table[at]), chosen)
        return np.sort(np.array(chosen, np.int64))

    def _children(self, rank: int, domain: int) -> range:
        if rank < 0:
            return range(self.tree.count_domains(0))
        bounds = self.tree.children[rank]
        return range(int(bounds[domain]), int(bounds[domain + 1]))

    def _combined(self, rank: int, domain: int) -> tuple[Ints, list[_Joined]]:
        """(table of a domain, [(child, its table, useful entries of it, table before it)])."""
        counted = rank + 1 in self.steps
        # By the limits of the steps below ``rank``.
        have = np.zeros([most + 1 for step, most in zip(self.steps, self.most, strict=True) if step > rank], np.int64)
        history: list[_Joined] = []
        for child in self._children(rank, domain):
            if not self.search.counts.counts_of_rank(rank + 1)[child]:
                continue
            table = self._table(rank + 1, child)
            useful = _useful(table)
            history.append((child, table, useful, have))
            have = self._convolve_max(have, table, useful, counted)
        return have, history

    def _table(self, rank: int, domain: int) -> Ints:
        """The most pods below one domain, for each number of domains of the steps below ``rank``."""
        if rank + 1 == self.bottom:
            self.work.spend_cells(OPERATION * 4)
            own = self._children(rank, domain)
            ranked = np.sort(self.values[own.start : own.stop])[::-1][: self.most[-1]]
            return np.concatenate([[0], np.cumsum(ranked)])
        # Shorter tables make each convolution above them cheaper.
        return _trimmed(self._combined(rank, domain)[0])

    def _convolve_max(self, have: Ints, table: Ints, useful: Ints, counted: bool) -> Ints:
        """(max, +) convolution, at the entries of ``table`` that can matter."""
        if counted and table.ndim == 1 and have.ndim == 2:
            return self._joined_line(have, table)
        self.work.spend_cells(len(useful) * (OPERATION + have.size))
        joined = have.copy()
        for entry in useful.tolist():
            cost = (1, *entry) if counted else tuple(entry)
            if all(used < size for used, size in zip(cost, have.shape, strict=True)):
                into = joined[tuple(slice(used, None) for used in cost)]
                rest = have[tuple(slice(0, size - used) for used, size in zip(cost, have.shape, strict=True))]
                np.maximum(into, rest + table[tuple(entry)], out=into)
        return joined

    def _joined_line(self, have: Ints, table: Ints) -> Ints:
        """The commonest case at once: racks (counted) of nodes."""
        worth = table[1 : have.shape[1]]
        wide = len(worth)
        self.work.spend_cells(OPERATION * 4 + have.size * wide)
        rows, columns = have.shape
        # Cells that stand for more nodes than are allowed lose every maximum.
        padded = np.full((rows - 1, columns + wide - 1), _NEVER)
        padded[:, wide:] = have[:-1, : columns - 1]
        windows = sliding_window_view(padded, wide, axis=1)
        joined = have.copy()
        np.maximum(have[1:], (windows + worth[::-1]).max(axis=2), out=joined[1:])
        return joined

    def _trace(self, rank: int, history: list[_Joined], at: tuple[int, ...], value: int, chosen: list[int]) -> None:
        """Walk back through the tables to find which children make up ``value``, and how much of each."""
        for child, table, useful, before in reversed(history):
            # The value was there before this child joined: none of it comes from the child.
            if before[at] == value:
                continue
            at, entry = self._step_back(before, table, useful, at, value)
            value = int(before[at])
            self._descend(rank + 1, child, entry, int(table[entry]), chosen)

    @staticmethod
    def _step_back(
        before: Ints, table: Ints, useful: Ints, at: tuple[int, ...], value: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        for entry in useful.tolist():
            cost = (1, *entry) if before.ndim > table.ndim else tuple(entry)
            back = tuple(have - used for have, used in zip(at, cost, strict=True))
            if min(back) >= 0 and before[back] + table[tuple(entry)] == value:
                return back, tuple(entry)
        raise AssertionError("a value of the table has no origin")

    def _descend(self, rank: int, domain: int, at: tuple[int, ...], value: int, chosen: list[int]) -> None:
        if rank + 1 == self.bottom:
            own = self._children(rank, domain)
            best = np.argsort(-self.values[own.start : own.stop], kind="stable")[: at[-1]]
            chosen.extend((best + own.start).tolist())
        else:
            self._trace(rank, self._combined(rank, domain)[1], at, value, chosen)


def _trimmed(table: Ints) -> Ints:
    """Cut the end of each axis where more domains bring nothing."""
    for axis in range(table.ndim):
        ends = np.moveaxis(table, axis, 0)
        size = len(ends)
        while size > 1 and np.array_equal(ends[size - 1], ends[size - 2]):
            size -= 1
        table = table[(slice(None),) * axis + (slice(0, size),)]
    return table


def _useful(table: Ints) -> Ints:
    """Index vectors of entries above 0 that no entry with fewer domains equals."""
    useful = table > 0
    for axis in range(table.ndim):
        fewer = np.moveaxis(table, axis, 0)
        np.moveaxis(useful, axis, 0)[1:] &= fewer[1:] > fewer[:-1]
    return np.argwhere(useful)
