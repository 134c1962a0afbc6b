"""The exact split of slices over the domains inside one container, by dynamic programming over the amounts.

The cost of a domain that holds m pods is a vector (domains used at each step). Costs of siblings add up, and adding the
same vector to both sides keeps a lexicographic order, so the least cost of a parent for m pods is the least sum over
the ways to split m among its children (a knapsack; Kellerer, Pferschy, Pisinger: Knapsack Problems, chapter 11). A
vector is kept as one integer with a digit a step. Amounts are counted in slices, so that tables stay short.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.cluster.fit_counts import Counts
from engine.cluster.tree import Tree
from engine.placement.largest_first import cover
from engine.placement.search.descent import Pick, Preference
from engine.placement.search.exact import OPERATION, Work

_BITS: Final = 60
NEVER: Final = np.int64(1 << _BITS)


class Split(msgspec.Struct):
    """``need`` pods below ``domain`` of ``rank`` (-1: the whole tree); ``steps`` are the ranks that count.

    ``units[r]``: domains of rank r hold multiples of so many pods; each divides the one before. ``counts`` are floored
    to them.
    """

    tree: Tree
    counts: Counts
    need: int
    units: Sequence[int]
    rank: int
    domain: int
    steps: Sequence[int]
    work: Work
    prefer: Preference | None = None
    _weights: list[int] = msgspec.field(default_factory=list)
    _tables: dict[tuple[int, int], Ints] = msgspec.field(default_factory=dict)
    _alike: dict[bytes, Ints] = msgspec.field(default_factory=dict)

    def bound_domains(self, step: int) -> int:
        """No choice uses fewer domains of this step."""
        values = np.sort(
            self.counts.counts_of_rank(step)[self._down(self.domain, step) : self._down(self.domain + 1, step)]
        )
        return int(np.cumsum(values[::-1]).searchsorted(self.need)) + 1

    def solve(self) -> Pick | None:
        """The best choice; None where costs are too long for one number. Raises OutOfWork."""
        if not self._weigh_steps():
            return None
        amount = self.need // self.units[self.rank + 1]
        value = int(self._children(self.rank, self.domain, amount)[-1][amount])
        leaves: list[Ints] = []
        amounts: list[Ints] = []
        self._trace(self.rank, self.domain, amount, leaves, amounts)
        return self._as_pick(value, leaves, amounts)

    def _weigh_steps(self) -> bool:
        """Give each step its digit; False where they do not fit one number."""
        widths = {step: self.tree.count_domains(step).bit_length() for step in self.steps}
        # All digits of a cost share one int64, below the number that stands for never.
        if sum(widths.values()) >= _BITS:
            return False
        self._weights = [0] * (self.tree.leaf + 1)
        shift = 0
        for step in reversed(self.steps):
            self._weights[step] = 1 << shift
            shift += widths[step]
        return True

    def _as_pick(self, value: int, leaves: Sequence[Ints], amounts: Sequence[Ints]) -> Pick:
        """What was traced, with the digits of its cost."""
        widths = (self.tree.count_domains(step).bit_length() for step in self.steps)
        cost = tuple(
            (value // self._weights[step]) % (1 << width) for step, width in zip(self.steps, widths, strict=True)
        )
        order = np.argsort(np.concatenate(leaves))
        return Pick(np.concatenate(leaves)[order], np.concatenate(amounts)[order], cost)

    def _down(self, at: int, step: int) -> int:
        if self.rank < 0:
            return 0 if at == 0 else self.tree.count_domains(step)
        for rank in range(self.rank, step):
            at = int(self.tree.children[rank][at])
        return at

    def _span(self, rank: int, domain: int) -> range:
        if rank < 0:
            return range(self.tree.count_domains(0))
        bounds = self.tree.children[rank]
        return range(int(bounds[domain]), int(bounds[domain + 1]))

    def _table(self, rank: int, domain: int) -> Ints:
        """The least cost of a domain that holds 0, 1, ... units."""
        key = (rank, domain)
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = self._made(rank, domain)
        return found

    def _made(self, rank: int, domain: int) -> Ints:
        unit = self.units[rank]
        most = min(int(self.counts.counts_of_rank(rank)[domain]), self.need) // unit
        weight = self._weights[rank]
        if rank == self.tree.leaf:
            table = np.full(most + 1, weight)
        else:
            ratio = unit // self.units[rank + 1]
            below = self._lowest(domain, most * ratio) if rank == self.tree.leaf - 1 else None
            if below is None:
                below = self._children(rank, domain, most * ratio)[-1]
            table = below[::ratio][: most + 1] + weight
        # A domain that holds nothing is not used, so it costs nothing at its own level either.
        table[0] = 0
        return table

    def _lowest(self, domain: int, most: int) -> Ints:
        """The fewest leaves of a domain just above them, for 0, 1, ... units; largest first."""
        bounds = self.tree.bounds[self.tree.leaf - 1]
        fits = self.counts.leaf[int(bounds[domain]) : int(bounds[domain + 1])] // self.units[-1]
        ranked = np.sort(fits)[::-1]
        # Racks with the same counts in any order are one table: in a regular cluster most are.
        key = ranked.tobytes() + most.to_bytes(8, "little")
        found = self._alike.get(key)
        if found is None:
            self.work.spend_cells(OPERATION * 4)
            leaves = np.cumsum(ranked).searchsorted(np.arange(most + 1)) + 1
            leaves[0] = 0
            found = self._alike[key] = leaves * self._weights[-1]
        return found

    def _children(self, rank: int, domain: int, most: int) -> list[Ints]:
        """The least costs for 0 .. ``most`` units of the first 0, 1, ... children."""
        have = np.full(most + 1, NEVER)
        have[0] = 0
        found = [have]
        for child in self._span(rank, domain):
            table = self._table(rank + 1, child)
            have = self._convolve_min(have, table) if len(table) > 1 else have
            found.append(have)
        return found

    def _convolve_min(self, have: Ints, table: Ints) -> Ints:
        """The (min, +) convolution, as long as ``have``."""
        # Charged before it is done: a budget that does not suffice ends the search before the costly part.
        self.work.spend_cells(len(table) * (OPERATION + len(have)))
        joined = have.copy()
        for amount in range(1, min(len(table), len(have))):
            part = joined[amount:]
            np.minimum(part, have[:-amount] + table[amount], out=part)
        return joined

    def _trace(self, rank: int, domain: int, amount: int, leaves: list[Ints], amounts: list[Ints]) -> None:
        """Walk back which child holds how much: as little as can be in the last ones, which puts most in the first."""
        if rank == self.tree.leaf - 1:
            self._onto_leaves(rank, domain, amount, leaves, amounts)
            return
        before = self._children(rank, domain, amount)
        children = self._span(rank, domain)
        for at in range(len(children), 0, -1):
            table = self._table(rank + 1, children[at - 1])
            reach = min(len(table), amount + 1)
            costs = before[at - 1][amount - np.arange(reach)] + table[:reach]
            taken = int((costs == before[at][amount]).argmax())
            if taken:
                self._place_slices(rank + 1, children[at - 1], taken, leaves, amounts)
                amount -= taken

    def _place_slices(self, rank: int, domain: int, amount: int, leaves: list[Ints], amounts: list[Ints]) -> None:
        if rank == self.tree.leaf:
            leaves.append(np.array([domain]))
            amounts.append(np.array([amount * self.units[rank]]))
        else:
            self._trace(rank, domain, amount * (self.units[rank] // self.units[rank + 1]), leaves, amounts)

    def _onto_leaves(self, rank: int, domain: int, amount: int, leaves: list[Ints], amounts: list[Ints]) -> None:
        span = self._span(rank, domain)
        fits = self.counts.leaf[span.start : span.stop] // self.units[-1]
        prefer = self.prefer
        best = None
        if prefer is not None:
            best = lambda positions, count: positions[prefer.choose_leaves(positions + span.start, count)]  # noqa: E731
        picked, rest = cover(fits, amount, tight=True, best=best)
        onto = fits[picked]
        onto[-1] = rest
        leaves.append(picked + span.start)
        amounts.append(onto * self.units[-1])
