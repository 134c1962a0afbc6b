"""Fewer wider domains: where racks were asked for and those of a choice lie in several blocks, the fewest blocks.

Rules
- A choice takes the place of another only where it uses no more domains at any step and no more nodes.
- The widest level counts first: of as many zones, the fewest blocks.
- A wider domain is worth what its best domains of the first step have above the price of one of them; those worth most
  are tried, fewer and fewer by halves. The price of a node is what the last node takes; it keeps the nodes few. The
  bound of Lagrangian duality (as in `exact`) says how few domains may do, and often that there is
  nothing to try.
"""

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from engine.arrays import Ints, distinct, highest, ranges
from engine.cluster.fit_counts import Counts
from engine.cluster.tree import Tree

TRIES: Final = 1  # routes followed to the nodes on large trees, for each wider level

Pool = slice | Ints  # domains of one rank to choose from, each once


class Route(msgspec.Struct):
    """Leaves to choose from, what the fewest of them cost at each step, and what the last of these could take."""

    pool: Pool
    cost: tuple[int, ...]
    edge: int


Down = Callable[[Ints, tuple[int, ...]], Route]  # the route below chosen domains, given what the steps so far cost


def spread(tree: Tree, leaves: Ints, ranks: range) -> tuple[int, ...]:
    """How many domains of each rank ascending leaves lie in."""
    return tuple(len(distinct(tree.owners[rank][leaves])) for rank in ranks)


class Gathering(msgspec.Struct):
    """``need`` pods over domains of rank ``step``; ``wider``: the ranks between that one and the container."""

    tree: Tree
    counts: Counts
    need: int
    step: int
    wider: range
    down: Down
    tries: int

    def gathered(self, route: Route) -> Route:
        """The same or a route in fewer wider domains; its pool has no leaves but those below chosen domains."""
        for rank in self.wider:
            among = np.zeros(self.tree.count_domains(rank), np.bool_)
            among[self.tree.owners[rank][route.pool]] = True  # a tight route's pool has its last domain at the end
            used = among.nonzero()[0]
            if len(used) > 1:
                route = self._in_fewer(rank, used, route)
        return route

    def _in_fewer(self, rank: int, used: Ints, route: Route) -> Route:
        """By halves: in how few of the ``used`` domains of ``rank`` there is a route that costs no more."""
        # The ranges of domains of the step below the used ones.
        first, last = used, used + 1
        for between in range(rank, self.step):
            children = self.tree.children[between]
            first, last = children[first], children[last]
        domains, sizes = ranges(first, last), last - first
        values, enough = self._values(domains, route)
        count = route.cost[0]
        # A value and no position is read from the partition, so it is the same on every processor.
        price = int(np.partition(values, -count)[-count])
        surplus = np.add.reduceat(np.maximum(values - price, 0), sizes.cumsum() - sizes)
        order = (-surplus).argsort(kind="stable")
        # By the bound of duality fewer domains than this cannot hold
        # the pods as cheaply, so the search by halves begins here.
        low = int((surplus[order].cumsum() + count * price).searchsorted(enough)) + 1
        place = np.empty(len(used), np.int64)
        place[order] = np.arange(len(used))
        places, high, tries = np.repeat(place, sizes), len(used), self.tries
        while low < high and tries:
            middle = (low + high) // 2
            chosen = self._chosen(domains, np.where(places < middle, values, -1), count, enough)
            if chosen is not None:
                tries -= 1
                found = self.down(chosen, (count,))
                # No step may cost more, nodes included: fewer blocks are never bought with one node more.
                if all(new <= old for new, old in zip(found.cost, route.cost, strict=True)):
                    route, high = found, middle
                    continue
            low = middle + 1
        return route

    def _chosen(self, domains: Ints, values: Ints, count: int, enough: int) -> Ints | None:
        """The domains worth most, if their sum is ``enough`` and they hold all; values of -1 are left out."""
        best = highest(values, count)
        worth = values[best]
        if int(worth.sum()) < enough or int(worth.min()) < 0:
            return None
        chosen = domains[best]
        if int(self.counts.counts_of_rank(self.step)[chosen].sum()) < self.need:
            return None
        return chosen

    def _values(self, domains: Ints, route: Route) -> tuple[Ints, int]:
        """What each domain is worth above the price of its nodes, and the least sum for as few nodes as the route's."""
        if self.step == self.tree.leaf:
            return self.counts.leaf[domains], self.need
        price = route.edge
        grid = self.counts.grid(self.step) if self.step == self.tree.leaf - 1 else None
        if grid is not None:
            fits = grid[domains].reshape(-1)
            starts = np.arange(0, len(fits), grid.shape[1])
        else:
            bounds = self.tree.bounds[self.step]
            first, last = bounds[domains], bounds[domains + 1]
            fits, sizes = self.counts.leaf[ranges(first, last)], last - first
            starts = sizes.cumsum() - sizes
        worth = np.add.reduceat(np.maximum(fits - price, 0), starts)
        return worth, self.need - price * route.cost[-1]
