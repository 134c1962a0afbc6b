"""Which domains take the pods: fewest at the requested level, then at each narrower one, then fewest nodes.

A *container* is the domain that must hold all pods: one of the requested level, else (preferred) of a wider one, else
the whole flavor. Inside a container the *steps* are the requested level and each narrower one down to the node. What is
sought is the least vector (domains used at step 1, at step 2, ..., nodes), first things first, then the fewest domains
of the levels between the container and step 1 (``gather``); among containers that tie, the tightest, then tree order.

The first step is exact by largest first (``largest_first``). Later steps are a knapsack: which of the equally many
racks leads to fewer nodes. Greedy descents give an answer and bounds often prove it; else ``exact`` searches, within a
budget of work that is a count of operations, never a clock, so equal inputs give equal outputs.

A rack in which nothing runs is left whole where one in use takes the pods on a few nodes more (``Unopened``).

Where nodes (or containers) are equal in all of this, a ``Preference`` says which are better inside; else tree order.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from engine.arrays import Ints, ranges
from engine.cluster.fit_counts import Counts
from engine.cluster.tree import Tree
from engine.placement.largest_first import FEW, LOW, cover, cover_few, fewest_in, fewest_nodes, fewest_of
from engine.placement.search.descent import Descent, Pick, Preference, as_pick
from engine.placement.search.exact import CHOICES, PRICES, SMALL, Search, Work
from engine.placement.search.gather import TRIES, Gathering, Route, spread
from engine.placement.search.unopened import Unopened

FIRST_LOOK: Final = 16  # containers compared at first, the tightest; more only if none of them is provably the best
GRID: Final = 1 << 20  # cells of a comparison table at most
DESCENT: Final = 100_000  # what a greedy descent costs, in cells of work


@dataclass(slots=True)
class Chooser:
    """One question: ``need`` pods on a tree with these counts."""

    tree: Tree
    counts: Counts
    need: int
    work: Work
    prefer: Preference | None = None
    unopened: Unopened | None = None
    gather: bool = True  # of equal choices one in fewer domains of levels wider than the steps; the cost ends with them
    _greedy: Descent | None = field(default=None, init=False)
    _bounds: dict[int, int] = field(default_factory=dict, init=False)

    @property
    def greedy(self) -> Descent:
        """The same question to who goes down greedily."""
        if self._greedy is None:
            self._greedy = Descent(self.tree, self.counts, self.need, self.prefer)
        return self._greedy

    # -- containers -------------------------------------------------------------------------------------------

    def in_one(self, rank: int, level: int, among: Ints | None = None) -> Pick | None:
        """The best single domain of ``rank`` (all, or ``among`` these), for a request of rank ``level``."""
        fits = self.counts.counts_of_rank(rank)
        found = (fits >= self.need).nonzero()[0] if among is None else among[fits[among] >= self.need]
        if not len(found):
            return None
        if rank == self.tree.leaf:
            best = found[fits[found].argmin()]
            if self.prefer is not None:
                equal = found[fits[found] == fits[best]]
                best = equal[self.prefer.choose_leaves(equal, 1)[0]]
            return Pick(best[None], np.array([self.need]), (1,))
        steps = tuple(range(max(level, rank + 1), self.tree.leaf + 1))
        single = len(found) == 1
        pick = self.solve(rank, int(found[0]), steps) if single else self._best_container(rank, found, fits, steps)
        if self.unopened is None or among is not None or level >= self.tree.leaf:
            return pick
        if single and rank == self.tree.leaf - 1:
            return pick  # no other rack takes them
        return self._in_use(pick, len(steps)) if self.unopened.opens(pick.leaves) else pick

    def _in_use(self, pick: Pick, steps: int) -> Pick:
        """The pick, which opens a rack, or one in a rack in use (see `Unopened`)."""
        assert self.unopened is not None  # noqa: S101  (the caller looked)
        rack = self.tree.leaf - 1
        fits = self.counts.counts_of_rank(rack)
        used = self.unopened.in_use((fits >= self.need).nonzero()[0], fits)
        nodes, ties = _fewest(self._needed(rack, used, self.tree.leaf), used) if len(used) else (LOW, used)
        # More nodes than a whole rack is worth: the idle rack is opened.
        if nodes > len(pick.leaves) + self.unopened.spare:
            return pick
        if self.prefer is not None and len(ties) > 1:
            ties = self._preferred(rack, ties, fits)
        found = self._leaves_of(rack, int(ties[0]))
        return Pick(found.leaves, found.amounts, (*pick.cost[: steps - 1], nodes, *pick.cost[steps:]))

    def pick_anywhere(self, level: int) -> Pick | None:
        """Spread over the whole flavor."""
        return self.solve(-1, 0, tuple(range(level, self.tree.leaf + 1))) if self._holds() else None

    def used_first(self, rank: int = -1) -> Pick | None:
        """The fewest nodes, wherever they are; of equally many those together in racks in use, the fullest first.

        ``rank``: inside one domain of it.
        """
        if rank >= 0:
            return self.in_one(rank, self.tree.leaf)
        if not self._holds():
            return None
        leaf = self.tree.leaf
        room = (self.counts.counts_of_rank(leaf - 1), self.tree.owners[leaf - 1]) if leaf else None
        picked, rest = cover(self.counts.leaf, self.need, tight=True, ties=room, best=self.greedy.best_of(None))
        pick = as_pick(picked, self.counts.leaf[picked], rest, ())
        return self._pack_pick(pick) if self.gather and leaf and len(picked) > 1 else pick

    def _pack_pick(self, pick: Pick) -> Pick:
        """As few nodes in the fewest domains of the widest level and the next ones: in racks in use, if these will do.

        Of single domains that take all, the tightest.
        """
        leaf, nodes = self.tree.leaf, len(pick.leaves)
        # One rack lies in one domain of every wider level too.
        if max(spread(self.tree, pick.leaves, range(leaf - 1, leaf))) == 1:
            return pick
        used = None if self.unopened is None else self.unopened.without_idle(self.counts.leaf)
        asked = self
        if used is not None and fewest_nodes(used, self.need) == nodes:
            # Without `unopened`: these counts have nothing in idle racks, so no pick opens one.
            asked = Chooser(self.tree, Counts(self.tree, used), self.need, self.work, self.prefer)
        for rank in range(leaf - 1, -1, -1):
            found = asked.in_one(rank, leaf)
            if found is not None and len(found.leaves) == nodes:
                return Pick(found.leaves, found.amounts, pick.cost)
        found = asked.pick_anywhere(leaf)
        assert found is not None  # noqa: S101  (they hold all)
        return Pick(found.leaves, found.amounts, pick.cost)

    def _holds(self) -> bool:
        return bool(self.tree.size) and int(self.counts.counts_of_rank(0).sum()) >= self.need

    def _best_container(self, rank: int, found: Ints, fits: Ints, steps: tuple[int, ...]) -> Pick:
        """Compare containers, tightest first."""
        keys = fits[found]
        # Tightness above and the domain below in one number: one
        # sort puts the tightest first, and equal ones in tree order.
        keys <<= 32
        keys |= found
        if len(keys) > FIRST_LOOK:
            # The keys are unique, so a partition gives the same head on every processor.
            keys.partition(FIRST_LOOK - 1)
        head = keys[:FIRST_LOOK]
        head.sort()
        domains = head & LOW
        needed = self._needed(rank, domains, steps[0])
        at = needed.argmin()
        fewest, ties = int(needed[at]), domains[at : at + 1]
        # Just above the nodes the first of equal containers is the
        # answer: there is nothing below by which they could differ.
        if self.prefer is not None or rank < self.tree.leaf - 1:
            ties = domains[needed == fewest]
        if len(keys) > FIRST_LOOK and fewest > self._fewest_domains(steps[0]):
            fewest, ties = self._look_on(rank, keys[FIRST_LOOK:], steps[0], fewest, ties)
        if self.prefer is not None and len(ties) > 1:
            ties = self._preferred(rank, ties, fits)
        pick = self.solve(rank, int(ties[0]), steps)
        return pick if rank == self.tree.leaf - 1 or len(ties) == 1 else self._compare(rank, ties, steps, pick)

    def _preferred(self, rank: int, ties: Ints, fits: Ints) -> Ints:
        """The same containers, equally tight ones with the better nodes first."""
        assert self.prefer is not None  # noqa: S101  (the caller looked)
        return ties[np.lexsort((self.prefer.rate_domains(rank, ties), fits[ties]))]

    def _look_on(self, rank: int, keys: Ints, step: int, fewest: int, ties: Ints) -> tuple[int, Ints]:
        """Compare the containers that were not looked at first, until some are provably the best."""
        keys.sort()
        least, at, size = self._fewest_domains(step), 0, 4 * FIRST_LOOK
        while at < len(keys) and fewest > least:
            domains = keys[at : at + size] & LOW
            # In growing batches: what is looked at first is often provably
            # the best, and numpy calls cost more than their cells.
            other, more = _fewest(self._needed(rank, domains, step), domains)
            if other < fewest:
                fewest, ties = other, more
            elif other == fewest:
                ties = np.concatenate([ties, more])
            at, size = at + size, 4 * size
        return fewest, ties

    def _compare(self, rank: int, ties: Ints, steps: tuple[int, ...], best: Pick) -> Pick:
        """Containers that tie at the first step: solve them one by one until none left can be better."""
        least = (
            best.cost[0],
            *(self._fewest_domains(step) for step in steps[1:]),
            *(1 for _ in best.cost[len(steps) :]),
        )
        for domain in ties[1:].tolist():
            if best.cost <= least or self.work.spent:
                break
            self.work.spend(DESCENT)
            if len(best.cost) == len(steps) and self.greedy.is_fewest(
                self._pool(rank, domain, steps[0]), steps, best.cost
            ):
                continue  # it ties at the first step, and needs as many nodes
            other = self.solve(rank, domain, steps)
            if other.cost < best.cost:
                best = other
        return best

    def _fewest_domains(self, step: int) -> int:
        """No container can do with fewer domains at this step."""
        if step not in self._bounds:
            most = self.counts.peak if step == self.tree.leaf else int(self.counts.counts_of_rank(step).max())
            self._bounds[step] = -(-self.need // max(most, 1))
        return self._bounds[step]

    def _needed(self, rank: int, domains: Ints, step: int) -> Ints:
        """How many domains of rank ``step`` each of the containers needs at least."""
        grid = self.counts.grid(rank) if step == rank + 1 else None
        if grid is not None and len(domains) * grid.shape[1] <= GRID:
            return fewest_in(grid[domains], self.need)
        first, last = self._span(rank, domains, step)
        width = int((last - first).max())
        values = self.counts.counts_of_rank(step)
        batch = GRID // width + 1
        if len(domains) <= batch:
            return fewest_of(values, first, last, width, self.need)
        starts = range(0, len(domains), batch)
        parts = [fewest_of(values, first[i : i + batch], last[i : i + batch], width, self.need) for i in starts]
        return np.concatenate(parts)

    def _span(self, rank: int, domains: Ints, step: int) -> tuple[Ints, Ints]:
        """The ranges of domains of rank ``step`` inside domains of ``rank``."""
        first, last = domains, domains + 1
        for between in range(rank, step):
            children = self.tree.children[between]
            first, last = children[first], children[last]
        return first, last

    # -- inside one container ---------------------------------------------------------------------------------

    def _leaves_of(self, rank: int, domain: int) -> Pick:
        """The fewest leaves of a domain just above them."""
        bounds = self.tree.bounds[rank]
        first, last = int(bounds[domain]), int(bounds[domain + 1])
        fits = self.counts.leaf[first:last]
        if last - first <= FEW:
            best = None if self.prefer is None else self.greedy.best_of(slice(first, last))
            chosen, amounts = cover_few(fits, self.need, best)
            return Pick(np.array([at + first for at in chosen]), np.array(amounts), (len(chosen),))
        picked, rest = cover(fits, self.need, tight=True, best=self.greedy.best_of(slice(first, last)))
        return as_pick(picked + first, fits[picked], rest, ())

    def solve(self, rank: int, domain: int, steps: tuple[int, ...]) -> Pick:
        """The best pick inside one container, which must hold all; ``steps``: the ranks that count, leaf rank last."""
        if 0 <= rank == self.tree.leaf - 1:
            return self._leaves_of(rank, domain)
        pool = self._pool(rank, domain, steps[0])
        wider = range(rank + 1, steps[0] if self.gather else 0)
        if len(steps) == 1:
            pick = self.greedy.pick(pool, steps, tight=True)
            return self._gathered(rank, domain, steps, pick) if wider else pick
        route = self.greedy.route(pool, steps, tight=True)
        best = settled = all(have <= self._fewest_domains(step) for have, step in zip(route.cost, steps, strict=True))
        if not settled and self.tree.size > SMALL:
            route, best = self.greedy.loosened(pool, steps, route)
        if not settled and self.work.left >= CHOICES * DESCENT:
            pick = self.greedy.fewest_leaves(route)
            if not best:
                # The greedy pick stands unless the search finds a cheaper
                # one, so a spent budget never makes an answer worse.
                pick = self._improved(Search(self.tree, self.counts, self.need, rank, domain, steps), pick)
            return self._gathered(rank, domain, steps, pick) if wider else pick
        if not wider:
            return self.greedy.fewest_leaves(route)
        if self.tree.size <= SMALL:
            return self._gathered(rank, domain, steps, self.greedy.fewest_leaves(route))
        pick = self.greedy.fewest_leaves(self._gathering(steps, wider).gathered(route))
        return Pick(pick.leaves, pick.amounts, (*pick.cost, *spread(self.tree, pick.leaves, wider)))

    def _gathering(self, steps: tuple[int, ...], wider: range) -> Gathering:
        def down(chosen: Ints, upper: tuple[int, ...]) -> Route:
            if len(steps) == 1:
                return self.greedy.route(chosen, steps, tight=True)
            children = self.tree.children[steps[0]]
            return self.greedy.route(ranges(children[chosen], children[chosen + 1]), steps[1:], tight=True, upper=upper)

        tries = self.tree.size if self.tree.size <= SMALL else TRIES
        return Gathering(self.tree, self.counts, self.need, steps[0], wider, down, tries)

    def _gathered(self, rank: int, domain: int, steps: tuple[int, ...], pick: Pick) -> Pick:
        """The same or a pick in fewer of the domains between the container and the first step."""
        wider = range(rank + 1, steps[0])
        before = spread(self.tree, pick.leaves, wider)
        if max(before) > 1:
            route = Route(pick.leaves, pick.cost, int(self.counts.leaf[pick.leaves].min()))
            found = self._gathering(steps, wider).gathered(route)
            if found is not route:
                pick = self.greedy.fewest_leaves(found)
                before = spread(self.tree, pick.leaves, wider)
        if max(before) > 1 and self.tree.size <= SMALL:
            # The heuristic above may miss a way; trees that are this small can afford the exact search.
            search = Search(self.tree, self.counts, self.need, rank, domain, (*wider, *steps))
            leaves = search.gathered(before, pick.cost, self.work)
            if leaves is not None:
                pick = self._from(leaves, steps, len(steps) - 1)
                before = spread(self.tree, pick.leaves, wider)
        return Pick(pick.leaves, pick.amounts, (*pick.cost, *before))

    def _improved(self, search: Search, pick: Pick) -> Pick:
        """Search for a better pick until there is none or the budget is spent."""
        steps = search.steps
        self.work.spend(search.size * PRICES)
        for step, chosen in search.promising(pick.cost):
            if self.work.spent:
                return pick
            self.work.spend(DESCENT)
            if step + 2 == len(steps) and pick.cost[-1] <= search.bound_step(step + 1):
                continue  # one of the choices before is the best
            other = self._from(chosen, steps, step)
            if other.cost < pick.cost:
                pick = other
        found = search.better(pick.cost, self.work)
        while found is not None:
            pick = self._from(found[1], steps, found[0])
            found = search.better(pick.cost, self.work)
        return pick

    def _from(self, chosen: Ints, steps: tuple[int, ...], step: int) -> Pick:
        """Go down from the domains chosen at ``steps[step]``."""
        leaves = self.tree.bounds[steps[step]][chosen]
        upper = tuple(len(np.unique(self.tree.owners[rank][leaves])) for rank in steps[:step])
        if step == len(steps) - 1:
            return self.greedy.pick(chosen, steps[step:], tight=False, upper=upper)
        pool = ranges(*self._span(steps[step], chosen, steps[step + 1]))
        upper = (*upper, len(chosen))
        tight = self.greedy.pick(pool, steps[step + 1 :], tight=True, upper=upper)
        loose = self.greedy.pick(pool, steps[step + 1 :], tight=False, upper=upper) if len(steps) - step > 2 else tight
        return loose if loose.cost < tight.cost else tight

    def _pool(self, rank: int, domain: int, step: int) -> slice:
        if rank < 0:
            return slice(0, self.tree.count_domains(step))
        first, last = domain, domain + 1
        for between in range(rank, step):
            children = self.tree.children[between]
            first, last = int(children[first]), int(children[last])
        return slice(first, last)


def _fewest(needed: Ints, domains: Ints) -> tuple[int, Ints]:
    """The least that any of the domains needs, and which need so little."""
    least = int(needed[needed.argmin()])
    return least, domains[needed == least]
