"""Where to make room: the domains that could take a pod set if candidates were gone, the cheapest first.

Everything here is sums over the nodes of one flavor, and counts of devices (`queueing.preemption.relief`). It ranks;
whether a plan holds is for the engine to say.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints
from engine.kubelet.resource_requests import is_device
from engine.placement.upper_bounds import UpperBounds
from engine.reservation_key import HolderKey
from queueing.preemption.fragmentation import counted
from queueing.preemption.plan import Plan
from queueing.preemption.relief import DeviceRelief
from queueing.queues.usage import FlavorRows, Mask, Rows

Floats = NDArray[np.float64]
Number = TypeVar("Number", np.int64, np.float64)
_LARGER: Final = 1e-3  # of equal priorities those cost less that free less,
_OLDER: Final = 1e-6  # and then the newer ones
SAME: Final = 1.002  # what costs so many times as much at most may differ in these two alone


class CandidateDomain(msgspec.Struct, frozen=True):
    """Owners by number whose slots are in one domain; ``narrow``: on as many nodes as it takes, ``wide``: on all.

    ``cost``: what freeing just enough costs, 1 to 2 for each whole victim. ``leaves``: its nodes, those that cost least
    for what they give first. ``most``: the highest priority of those that may be taken.
    """

    narrow: Ints
    wide: Ints
    cost: float
    leaves: Ints
    most: int


class NodeBound(NamedTuple):
    """No victims that make room for one pod on a node (by leaf) cost less, by amounts; at least one has to go.

    The highest priority (no bound where the number comes first), the sum of priorities, the number, devices freed.
    """

    highest: int
    total: int
    size: int
    freed: int
    leaf: int


class CandidateDomains(msgspec.Struct, frozen=True, dict=True):
    """One pod set on one flavor, and the owners of slots there that may be taken (by number).

    ``levels``: by owner, its priority, or in a queue by use what stands for it (`Candidates.level_of`).
    ``relief``: where their going frees devices of claims.
    """

    outlook: UpperBounds
    occupancy: FlavorRows
    eligible: Mask
    levels: Ints
    relief: DeviceRelief | None = None

    @property
    def need(self) -> int:
        """Pods to place."""
        return self.outlook.pod_set.count

    @property
    def resources(self) -> list[str]:
        """What a pod needs."""
        return [resource for resource, _ in self.outlook.needs]

    @cached_property
    def rows(self) -> Rows:
        """What the candidates hold."""
        rows = self.occupancy.rows()
        return rows.select_rows(self.eligible[rows.owner])

    def level_of_unit(self, unit: HolderKey) -> int:
        """The level of a candidate that holds something in this flavor."""
        return int(self.levels[self.occupancy.numbers[unit]])

    def keys(self, numbers: Ints) -> list[HolderKey]:
        """Workloads by number."""
        return [self.occupancy.keys[number] for number in numbers.tolist()]

    def worth(self, plan: Plan) -> float:
        """The cost of a plan, as regions count it."""
        return self.cost(victim.level for victim in plan.victims)

    def cost(self, priorities: Iterable[int]) -> float:
        """The same of victims of these priorities."""
        low, high = int(self._priorities[0]), int(self._priorities[-1])
        span = float(max(high - low, 1))
        return sum([1.0 + float(priority - low) / span for priority in priorities])

    @cached_property
    def _priorities(self) -> Ints:
        return np.unique(self.levels[self.rows.owner])

    def regions(self, *, every: bool = False, by_count: bool = False) -> Iterator[CandidateDomain]:
        """Domains that would take the pod set with victims of the least highest priority; then with all candidates.

        ``every``: with those of each priority in between as well, for where sums may promise too much. ``by_count``:
        where the number of victims comes first, whatever their priorities; a victim costs 1 then.
        """
        # With all candidates gone nothing would fit: one sum ends most hopeless searches.
        if not len(self.rows.owner) or not self._suffices(len(self._priorities) - 1):
            return
        low, high = 0, len(self._priorities) - 1
        # Bisection: what suffices with victims up to one priority suffices with more of them.
        while low < high:
            middle = (low + high) // 2
            if self._suffices(middle):
                high = middle
            else:
                low = middle + 1
        last = len(self._priorities) - 1
        if by_count:
            # Where the number comes first no priority is too high, so all candidates are looked at together.
            low = last
        for at in range(low, last + 1) if every else sorted({low, last}):
            yield from self._ranked(at, by_count=by_count)

    def _up_to(self, at: int) -> tuple[Rows, dict[str, Ints]]:
        """What all up to this one of the priorities hold, and by resource what would be free without them."""
        found = self._looked_at.get(at)
        # Each step of the bisection, and each rank after it, would else sum the same rows.
        if found is None:
            rows = self.rows.select_rows(self.levels[self.rows.owner] <= self._priorities[at])
            found = self._looked_at[at] = rows, self.occupancy.freed(rows, self.resources)
        return found

    @cached_property
    def _looked_at(self) -> dict[int, tuple[Rows, dict[str, Ints]]]:
        return {}

    def _suffices(self, at: int) -> bool:
        """Whether some domain would take the pod set if all up to this one of the priorities were gone."""
        _, freed = self._up_to(at)
        return (
            int(self.outlook.bound_domains(freed, self._claimed(int(self._priorities[at]))).max(initial=0)) >= self.need
        )

    def _claimed(self, most: int) -> Ints | None:
        """By leaf, for how many pods there are devices once all up to a priority are gone; None: for as many as now."""
        return None if self.relief is None else self.relief.count_relieved(most)

    def _ranked(self, up_to: int, *, by_count: bool) -> Iterator[CandidateDomain]:
        outlook, need, owner = self.outlook, self.need, self.outlook.owner
        (rows, freed), most = self._up_to(up_to), int(self._priorities[up_to])
        claimed = self._claimed(most)
        now, then = outlook.bound_leaves(), outlook.bound_leaves(freed, claimed)
        prices, gain = self._prices(rows, by_count=by_count), then - now
        cost = np.bincount(rows.leaf, weights=prices, minlength=outlook.tree.size)
        enough = outlook.bound_domains(freed, claimed) >= need
        have = outlook.summed(now)
        leaves = (enough[owner] & (gain > 0)).nonzero()[0]
        # Greedy within a domain: nodes by what a freed pod costs there, until as many are freed as lack.
        each = cost[leaves] / gain[leaves]
        leaves = leaves[np.lexsort((each, owner[leaves]))]
        before = gain[leaves].cumsum() - gain[leaves]
        domain = owner[leaves]
        starts = np.searchsorted(domain, np.arange(len(enough) + 1))
        # Running sums start again in each domain; the 0 serves where no leaf is left at all.
        offset = np.append(before, 0)[np.minimum(starts[domain], len(before))]
        used = before - offset < need - have[domain]
        price = np.bincount(domain[used], weights=cost[leaves[used]], minlength=len(enough))
        # Of domains that cost the same the one with less room comes first: it leaves larger ones whole.
        for at in np.lexsort((outlook.summed(then), price)).tolist():
            if enough[at]:
                span = outlook.span(at)
                inside = rows.owner[(rows.leaf >= span.start) & (rows.leaf < span.stop)]
                chosen = np.zeros(outlook.tree.size, np.bool_)
                chosen[leaves[used & (domain == at)]] = True
                first = leaves[domain == at]
                # Nodes that take pods without any victim come first; those of ``first`` need some.
                ready = now[span] > 0
                ready[first - span.start] = False
                wide, cost_of = self._distinct(inside), float(price[at])
                narrow = self._distinct(rows.owner[chosen[rows.leaf]])
                nodes = np.concatenate([ready.nonzero()[0] + span.start, first])
                yield CandidateDomain(narrow, wide, cost_of, nodes, most)

    def _distinct(self, owners: Ints) -> Ints:
        """Each number once, ascending."""
        there = np.zeros(len(self.occupancy.keys), np.bool_)
        there[owners] = True
        return there.nonzero()[0]

    def owners_on(self, region: CandidateDomain) -> dict[str, list[HolderKey]]:
        """By node of a region, the candidates that hold something there."""
        found: dict[str, list[HolderKey]] = {}
        rows = self.rows.select_rows(np.isin(self.rows.leaf, region.leaves))
        rows = rows.select_rows(self.levels[rows.owner] <= region.most)
        names, keys = self.outlook.tree.names, self.occupancy.keys
        for leaf, owner in sorted(set(zip(rows.leaf.tolist(), rows.owner.tolist(), strict=True))):
            found.setdefault(names[leaf], []).append(keys[owner])
        return found

    def bounded_nodes(self, *, by_count: bool = False) -> list[NodeBound]:
        """Nodes where one pod would fit, by amounts, with candidates gone: the least bound first.

        ``by_count``: the one of the least number. Of equal bounds what costs least first, as far as sums tell.
        """
        rows, outlook, priorities = self.rows, self.outlook, self.levels
        if not len(rows.owner):
            return []
        price = self._prices(rows, by_count=by_count)
        rows, price = _sorted(rows, price, priorities)
        starts = np.searchsorted(rows.leaf, rows.leaf)  # by row, the first one of its node
        # Nodes that filters refuse (selectors, taints, affinity) are out, whatever is freed on them.
        enough = outlook.passing[rows.leaf] > 0
        lacks: list[tuple[Ints, Ints]] = []  # by resource and row: what the node lacks, what the row gives
        for (resource, need), free in zip(outlook.needs, outlook.free, strict=True):
            gives = rows.units * self.occupancy.amounts(resource)[rows.kind]
            lacks.append((need - free[rows.leaf], gives))
            # Rows of a node are in the order of priority, so running sums say with which row each resource suffices.
            enough &= (lacks[-1][0] <= 0) | (_up_to_here(gives, starts) >= lacks[-1][0])
        first = enough.nonzero()[0]
        # The first row of each node at which all resources suffice: its priority bounds the highest one from below.
        leaves, at = np.unique(rows.leaf[first], return_index=True)
        first, price = first[at], _up_to_here(price, starts)[first[at]]
        most, least = priorities[rows.owner[first]], np.maximum(priorities[rows.owner[starts[first]]], 0)
        limit = np.full(outlook.tree.size, np.iinfo(np.int64).min)
        limit[leaves] = np.iinfo(np.int64).max if by_count else most
        may = priorities[rows.owner] <= limit[rows.leaf]
        size, freed = np.ones(len(leaves), np.int64), np.zeros(len(leaves), np.int64)
        for (resource, _), (lacking, gives) in zip(outlook.needs, lacks, strict=True):
            freed += np.maximum(lacking[first], 0) if is_device(resource) else 0
            largest = np.zeros(outlook.tree.size, np.int64)
            np.maximum.at(largest, rows.leaf[may], gives[may])
            # As many victims as it takes if each gave as much as the largest one does.
            size = np.maximum(size, -(-lacking[first] // np.maximum(largest[leaves], 1)))
        # Negative priorities count as 0 in sums, as in plans, so the bound never exceeds what a plan costs.
        total = least * size if by_count else np.maximum(most, 0) + least * (size - 1)
        order = np.lexsort((leaves, price, total, size) if by_count else (leaves, price, size, total, most))
        columns = [column[order].tolist() for column in (most, total, size, freed, leaves)]
        return [NodeBound(*each) for each in zip(*columns, strict=True)]

    def owners_of(self, leaf: int) -> list[HolderKey]:
        """The candidates that hold something on a node."""
        order, leaves = self._by_leaf
        first, behind = np.searchsorted(leaves, (leaf, leaf + 1))
        return self.keys(np.unique(self.rows.owner[order[first:behind]]))

    @cached_property
    def _by_leaf(self) -> tuple[Ints, Ints]:
        """(rows in the order of their nodes, the nodes)."""
        order = np.argsort(self.rows.leaf, kind="stable")
        return order, self.rows.leaf[order]

    def _prices(self, rows: Rows, *, by_count: bool) -> Floats:
        """By row, what taking it costs; a workload on several leaves costs a part on each."""
        size = len(self.occupancy.keys)
        weight = np.zeros(size)
        low, high = float(self._priorities[0]), float(self._priorities[-1])
        created = self.occupancy.created[rows.owner]
        age = (created.max() - created) / max(float(created.max() - created.min()), 1.0)
        important = (self.levels[rows.owner] - low) / max(high - low, 1.0)
        weight[rows.owner] = 1.0 + important * (_LARGER if by_count else 1.0) + _OLDER * age
        # Where priorities come first and span less than 1,000, sizes and ages stay below the step between two of them.
        weight += _LARGER * self._sizes(rows)
        # A gang on many nodes goes once: counted whole on each, it would look dearer than as many small workloads.
        spread = np.maximum(np.bincount(rows.owner, minlength=size), 1)
        found: Floats = (weight / spread)[rows.owner]
        return found

    def _sizes(self, rows: Rows) -> Floats:
        """By owner, how much of what counts it holds, as a part of the most that one holds."""
        resources = counted([self.outlook.pod_set])
        each = sum((self.occupancy.amounts(name) for name in resources), np.zeros(1, np.int64))
        size = len(self.occupancy.keys)
        held = np.bincount(rows.owner, weights=rows.units * each[rows.kind], minlength=size)
        if self.relief is not None:
            held = held + self.relief.sizes(size)
        found: Floats = held / max(float(held.max(initial=0)), 1.0)
        return found

    def holdings(self, keys: Iterable[HolderKey]) -> "SlotHoldings":
        """What each of some workloads holds on each leaf, of each needed resource."""
        numbers = {key: self.occupancy.numbers[key] for key in keys if key in self.occupancy.numbers}
        chosen = np.full(len(self.occupancy.keys), -1, np.int64)
        chosen[list(numbers.values())] = np.arange(len(numbers))
        rows = self.rows.select_rows(chosen[self.rows.owner] >= 0)
        place, where = np.unique(chosen[rows.owner] * self.outlook.tree.size + rows.leaf, return_inverse=True)
        amounts = []
        for name in self.resources:
            part = rows.units * self.occupancy.amounts(name)[rows.kind]
            amounts.append(np.bincount(where, weights=part, minlength=len(place)).astype(np.int64))
        owner, leaf = np.divmod(place, self.outlook.tree.size)
        return SlotHoldings({key: at for at, key in enumerate(numbers)}, owner, leaf, amounts)


def _sorted(rows: Rows, price: Floats, priorities: Ints) -> tuple[Rows, Floats]:
    """Rows by node, then by priority, then by price."""
    order = np.lexsort((price, priorities[rows.owner], rows.leaf))
    return Rows(rows.owner[order], rows.leaf[order], rows.units[order], rows.kind[order]), price[order]


def _up_to_here(amounts: NDArray[Number], starts: Ints) -> NDArray[Number]:
    """By row, the sum from the first row of its node on; ``starts``: by row, the number of that one."""
    summed = amounts.cumsum()
    return summed - (summed - amounts)[starts]


class SlotHoldings(msgspec.Struct, frozen=True):
    """Workload ``owner[i]`` (by ``numbers``) holds ``amounts[r][i]`` of resource r on ``leaf[i]``; each pair once."""

    numbers: dict[HolderKey, int]
    owner: Ints
    leaf: Ints
    amounts: list[Ints]
