"""The greedy way down: at each step the fewest domains below those chosen before, and at the end the fewest nodes."""

from typing import Final, Protocol

import msgspec
import numpy as np

from engine.arrays import Ints, highest, ranges
from engine.cluster.fit_counts import Counts
from engine.cluster.tree import Tree
from engine.placement.largest_first import Best, cover, edge_of
from engine.placement.search.gather import Pool, Route

WIDE: Final = 64  # and four times as many as are needed: so many domains, the largest, are priced
_ABOVE: Final = 1 << 31  # puts one number above another in a key


class Preference(Protocol):
    """Which of equal nodes or domains to take; equally good ones come in tree order."""

    def choose_leaves(self, leaves: Ints, count: int) -> Ints:
        """Positions (ascending) of the ``count`` best of these leaves."""

    def rate_domains(self, rank: int, domains: Ints) -> Ints:
        """A number for each domain of ``rank``: less is better."""


class Pick(msgspec.Struct):
    """``amounts[i]`` > 0 pods on leaf ``leaves[i]`` (ascending).

    ``cost``: domains used at each step; then, where picks are gathered, at each rank between container and first step.
    """

    leaves: Ints
    amounts: Ints
    cost: tuple[int, ...]


class Descent(msgspec.Struct):
    """``need`` pods on a tree with these counts."""

    tree: Tree
    counts: Counts
    need: int
    prefer: Preference | None = None

    def best_of(self, pool: Pool | None) -> Best | None:
        """How to take some of equal leaves, given by their positions in a pool (None: of all leaves)."""
        prefer = self.prefer
        if prefer is None:
            return None
        if pool is None:
            return lambda positions, count: positions[prefer.choose_leaves(positions, count)]
        return lambda positions, count: positions[prefer.choose_leaves(domains_inside(pool, positions), count)]

    def pick(self, pool: Pool, steps: tuple[int, ...], *, tight: bool, upper: tuple[int, ...] = ()) -> Pick:
        """The pick of a greedy route."""
        pool, cost = self._down(pool, steps, tight=tight, upper=upper)
        return self.fewest_leaves(Route(pool, (*cost, 0), 0))

    def fewest_leaves(self, route: Route) -> Pick:
        """The fewest leaves of a route's pool, the last of them the smallest that suffices."""
        fits = self.counts.leaf[route.pool]
        picked, rest = cover(fits, self.need, tight=True, best=self.best_of(route.pool))
        return as_pick(domains_inside(route.pool, picked), fits[picked], rest, route.cost[:-1])

    def route(self, pool: Pool, steps: tuple[int, ...], *, tight: bool, upper: tuple[int, ...] = ()) -> Route:
        """A greedy route, and how many leaves it takes: only the best of several is made a pick."""
        pool, cost = self._down(pool, steps, tight=tight, upper=upper)
        whole, edge, _ = edge_of(self.counts.leaf[pool], self.need)
        return Route(pool, (*cost, whole + 1), edge)

    def loosened(self, pool: Pool, steps: tuple[int, ...], tight: Route) -> tuple[Route, bool]:
        """The tight route, or one as wide at the first step that costs less; and whether no other can cost less."""
        chosen, least = self._dearest(pool, steps[0], tight.cost[0])
        bound = tight.cost[0], least if steps[1:] == (self.tree.leaf,) else 0
        if tight.cost <= bound:
            return tight, True
        children = self.tree.children[steps[0]]
        below = ranges(children[chosen], children[chosen + 1])
        # As many domains at the first step as the tight route, but the ones that are worth most to the next step.
        loose = self.route(below, steps[1:], tight=False, upper=(len(chosen),))
        found = loose if loose.cost < tight.cost else tight
        return found, found.cost <= bound

    def is_fewest(self, pool: Pool, steps: tuple[int, ...], cost: tuple[int, ...]) -> bool:
        """Whether as many domains at the first step have no fewer nodes, as far as that is easily seen."""
        return steps[1:] == (self.tree.leaf,) and self._dearest(pool, steps[0], cost[0])[1] >= cost[1]

    def _down(
        self, pool: Pool, steps: tuple[int, ...], *, tight: bool, upper: tuple[int, ...]
    ) -> tuple[Pool, tuple[int, ...]]:
        """Greedy: at each step the fewest of the domains below those chosen before; (leaves, what the steps cost).

        ``tight``: the largest, the last one the smallest that suffices. Otherwise the ones worth most to the next step.
        """
        cost = list(upper)
        for step in steps[:-1]:
            picked = cover(self.counts.counts_of_rank(step)[pool], self.need, tight=tight)[0]
            chosen = domains_inside(pool, picked) if tight else self._dearest(pool, step, len(picked))[0]
            cost.append(len(chosen))
            children = self.tree.children[step]
            pool = ranges(children[chosen], children[chosen + 1])
        return pool, tuple(cost)

    def _dearest(self, pool: Pool, step: int, count: int) -> tuple[Ints, int]:
        """The ``count`` domains of the pool that suffice and have most in large domains of the next step.

        And how many domains of the next step any ``count`` need at least, by the bound of Lagrangian duality.

        What a domain has is the sum of what its children take above a price (as in ``Search.promising``). The price is
        what the last of the fewest children takes if the step before did not matter, or half of that, or nothing.
        """
        first, grid = self.tree.children[step], self.counts.grid(step)
        totals = self.counts.counts_of_rank(step)[pool]
        whole, least = len(totals) <= 4 * count + WIDE, 0
        if not whole:
            most = highest(totals, 4 * count + WIDE)
            pool, totals = domains_inside(pool, most), totals[most]
        chosen = np.arange(pool.start, pool.stop) if isinstance(pool, slice) else pool
        if grid is not None:
            fits = grid[pool].reshape(-1)
            starts = np.arange(0, len(fits), grid.shape[1])
        elif isinstance(pool, slice):
            starts = first[pool.start : pool.stop + 1]
            fits = self.counts.counts_of_rank(step + 1)[starts[0] : starts[-1]]
            starts = starts[:-1] - starts[0]
        else:
            sizes = first[pool + 1] - first[pool]
            fits = self.counts.counts_of_rank(step + 1)[ranges(first[pool], first[pool + 1])]
            starts = sizes.cumsum() - sizes
        _, edge, _ = edge_of(fits, self.need)
        for price in (max(edge - 1, 0), edge >> 1, 0):
            row = np.add.reduceat(np.maximum(fits - price, 0), starts) if price else totals
            # Worth above, total below: counts below 2^31 do not touch the number above them.
            best = highest(row * _ABOVE + totals, count)
            if whole and price:
                # Only where all domains are priced: of some of them the sum is no bound for the others.
                least = max(least, -(-(self.need - int(row[best].sum())) // price))
            if int(totals[best].sum()) >= self.need:
                break
        return chosen[best], least


def domains_inside(pool: Pool, positions: Ints) -> Ints:
    """The domains at positions of a pool."""
    return positions + pool.start if isinstance(pool, slice) else pool[positions]


def as_pick(leaves: Ints, amounts: Ints, rest: int, cost: tuple[int, ...]) -> Pick:
    """So many pods on each leaf, on the last of them the ``rest``; ``amounts`` is changed. The nodes end the cost."""
    amounts[-1] = rest
    if len(leaves) > 1:
        order = leaves.argsort(kind="stable")  # ascending runs, which it merges
        leaves, amounts = leaves[order], amounts[order]
    return Pick(leaves, amounts, (*cost, len(leaves)))
