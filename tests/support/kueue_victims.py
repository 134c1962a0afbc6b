"""Whom Kueue 0.19.2 has evicted for one workload in a tree of cohorts: its rules, and ours in place of some.

Followed: pkg/scheduler/preemption/preemption.go (``classicalPreemptions``, ``fairPreemptions``), classical/* and
fairsharing/*. What nodes of the tree have and use is asked of `Quotas`.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import combinations

from support.tree_streams import Stream, Submit

from queueing.model import FlavorResource, Quantities, Reclaim, Share, Within
from queueing.preemption.cohort_reach import nodes_between
from queueing.queues.cohort_tree import TreeNode
from queueing.queues.eviction_order import EvictionOrder
from queueing.queues.held import Held
from queueing.queues.quota import Quotas

MOST_VICTIMS = 5  # of a plan that is the least of all
Contested = frozenset[FlavorResource]
Victims = list[tuple[str, str]]  # names with reasons


class Rule(StrEnum):
    """A rule of ours in place of Kueue's."""

    GATE = "own victims for more than nominal"
    HOLDS = "the preemptor holds what its victims give"
    RESERVE = "no quota is blocked for one that waits"
    LEAST = "the least plan"
    TOGETHER = "all resources in one plan"
    TURNS = "turns by rounds"
    RINGS = "who had it evicted stays"
    CONTESTED = "cohorts within their quota of what is contested keep it"
    OWN_LAST = "its own queue loses last"
    BOTH = "both comparisons of shares at once"
    LEVELS = "the level of all resources of a flavor"
    KEPT = "shares count with those of its own queue that stay"
    FIRST = "each search begins with the first flavor"


class RunningWorkloads:
    """A stream's tree, who is known, and who runs in which flavor.

    ``reverse``: of nodes of equal shares the other one comes first; Kueue leaves that to the order of a map of Go.
    """

    def __init__(self, stream: Stream, *, reverse: bool = False) -> None:
        self.fair, self.reverse = stream.fair, reverse
        self.quotas = Quotas()
        for cohort in stream.cohorts:
            self.quotas.set_cohort(cohort)
        for queue in stream.queues:
            self.quotas.set_queue(queue)
        self.queues = {queue.name: queue for queue in stream.queues}
        self.known: dict[str, Submit] = {}
        self.flavors: dict[str, str] = {}
        self.leaving: dict[str, str] = {}  # victims that hold their quota still, and for whom they go
        self.evictions = EvictionOrder()
        self.fresh: set[str] = set()  # those who are no victims, as they were admitted in this cycle

    def node_of(self, name: str) -> TreeNode:
        """The queue of a workload in the tree."""
        return self.quotas.tree.queues[self.known[name].queue]

    def priority_of(self, name: str) -> int:
        """The priority of a workload."""
        return self.known[name].priority

    def amounts_of(self, name: str, flavor: str) -> Quantities:
        """What one asks for in a flavor."""
        return {(flavor, resource): amount for resource, amount in self.known[name].units.items()}

    def fits(self, queue: str, amounts: Quantities) -> bool:
        """Whether there is quota for so much now."""
        return all(amount <= self.available(queue, key) for key, amount in amounts.items())

    def available(self, queue: str, key: FlavorResource) -> int:
        """Kueue's ``available`` (pkg/cache/scheduler/resource_node.go).

        What is used too much above is missing below, even of what is lent to nobody. Ours leaves a queue that; within
        a cycle of Kueue somebody may reserve more than there is.
        """
        node = self.quotas.tree.queues[queue]
        left = node.root.subtree.get(key, 0) - node.root.usage.get(key, 0)
        for one in node.limited:
            own, used = one.local.get(key, 0), one.usage.get(key, 0)
            if (borrowing := one.borrowing.get(key)) is not None:
                left = min(left, one.subtree.get(key, 0) - max(used, own) + borrowing)
            left += max(0, own - used)
        return max(0, left)

    def start(self, name: str, flavor: str) -> None:
        """One is admitted."""
        self.flavors[name] = flavor
        self.restore(name)

    def stop(self, name: str) -> None:
        """One runs no more."""
        self.quotas.release_quota(name)
        del self.flavors[name]

    def restore(self, name: str) -> None:
        """One that runs has its quota again."""
        self.quotas.charge_workload(name, Held(self.known[name].queue, self.amounts_of(name, self.flavors[name])))


class VictimSearch:
    """One search for ``name``, which asks for ``amounts``; ``contested``: of what others are to use too much."""

    def __init__(
        self, runs: RunningWorkloads, ours: frozenset[Rule], name: str, amounts: Quantities, contested: Contested
    ) -> None:
        self.runs, self.ours, self.name, self.amounts, self.contested = runs, ours, name, amounts, contested
        self.node, self.quotas = runs.node_of(name), runs.quotas
        self.policy = runs.queues[self.node.name].preemption
        before = set[str]()
        if Rule.RINGS in ours and self.quotas.borrows(self.node.name, amounts):
            before = runs.evictions.takers_before(name)
        self.left_alone = {one for one in before if one in runs.known and runs.node_of(one) is not self.node}

    def victims(self) -> Victims:
        """Names with reasons; [] where none would do. Leaves the quotas as they were."""
        depth = self.quotas.begin()
        try:
            return self._fair() if self.runs.fair else self._classical()
        finally:
            self.quotas.rollback(depth)

    # -- candidates ----------------------------------------------------------------------------------------------

    def _own(self) -> list[str]:
        if self.policy.within is Within.NEVER:
            return []
        return [one for one in self._holders(self.node) if self._outranks(one)]

    def _outranks(self, other: str) -> bool:
        return self.runs.priority_of(other) < self.runs.priority_of(self.name)

    def _of_others(self, node: TreeNode) -> list[str]:
        return [one for one in self._holders(node) if self.policy.reclaim is Reclaim.ANY or self._outranks(one)]

    def _holders(self, node: TreeNode) -> list[str]:
        return [
            one
            for one, flavor in self.runs.flavors.items()
            if one in self.quotas.held
            and one not in self.left_alone
            and one not in self.runs.fresh
            and self.runs.node_of(one) is node
            and not self.contested.isdisjoint(self.runs.amounts_of(one, flavor))
        ]

    def _ranked(self, names: list[str]) -> list[str]:
        """Those on their way first (pkg/scheduler/preemption/common/ordering.go)."""
        return sorted(names, key=lambda one: (one not in self.runs.leaving, self.runs.priority_of(one)))

    def exceeds(self, node: TreeNode) -> bool:
        """Whether it uses more than its own of something that is contested."""
        return any(node.usage.get(key, 0) > node.subtree.get(key, 0) for key in self.contested)

    # -- without fair sharing ------------------------------------------------------------------------------------

    def _classical(self) -> Victims:
        own = self._own()
        hierarchy, by_priority = self._reached()
        while_borrowing = {one for one in by_priority if self._may_take_borrowing(one)}
        ranked = [*self._ranked(hierarchy), *self._ranked(by_priority), *self._ranked(own)]
        ranked.sort(key=lambda one: one not in self.runs.leaving)
        for borrowing in self._attempts(hierarchy, by_priority):
            candidates = [one for one in ranked if not borrowing or one not in by_priority or one in while_borrowing]
            search = self._least if Rule.LEAST in self.ours else self._greedy
            if found := search(candidates, lambda borrowing=borrowing: self._suffices(borrowing=borrowing)):
                return [(one, _reason(one, own, while_borrowing)) for one in found]
        return []

    def _reached(self) -> tuple[list[str], list[str]]:
        """Those over whom it has advantage, and the others."""
        hierarchy, by_priority = list[str](), list[str]()
        if not self.node.path or self.policy.reclaim is Reclaim.NEVER:
            return hierarchy, by_priority
        advantage, rest = _fit_in_quota(self.node, self.amounts)
        before: TreeNode | None = None
        for above in self.node.path:
            found = hierarchy if advantage else by_priority
            for queue in self._exceeding_below(above, before):
                found += self._of_others(queue)
            fits, rest = _fit_in_quota(above, rest)
            advantage, before = advantage or fits, above
        return hierarchy, by_priority

    def _exceeding_below(self, above: TreeNode, before: TreeNode | None) -> Iterator[TreeNode]:
        for child in above.children.values():
            if child is before or child is self.node or not self.exceeds(child):
                continue
            if child.is_queue:
                yield child
            else:
                yield from self._exceeding_below(child, None)

    def _may_take_borrowing(self, other: str) -> bool:
        most = self.policy.threshold
        return (
            self.policy.borrowing and self._outranks(other) and (most is None or self.runs.priority_of(other) <= most)
        )

    def _attempts(self, hierarchy: list[str], by_priority: list[str]) -> list[bool]:
        """Whether it may borrow in the end, one attempt after the other."""
        under = all(self.node.usage.get(key, 0) < self.node.subtree.get(key, 0) for key in self.contested)
        if not (hierarchy or by_priority) or (not self.policy.borrowing and not under):
            return [True]
        return [False, True] if not self.policy.borrowing and not hierarchy else [True, False]

    def _suffices(self, *, borrowing: bool) -> bool:
        stays = borrowing or not self.quotas.borrows(self.node.name, self.amounts)
        return stays and self.runs.fits(self.node.name, self.amounts)

    def _is_valid(self, other: str) -> bool:
        theirs = self.runs.node_of(other)
        return theirs is self.node or all(map(self.exceeds, nodes_between(self.node, theirs)))

    def _greedy(self, candidates: Sequence[str], suffices: Callable[[], bool]) -> list[str]:
        depth, found = self.quotas.begin(), list[str]()
        for one in candidates:
            if self._is_valid(one):
                self.quotas.release_quota(one)
                found.append(one)
                if suffices():
                    found = self._filled_back(found, suffices)
                    self.quotas.rollback(depth)
                    return found
        self.quotas.rollback(depth)
        return []

    def _least(self, candidates: Sequence[str], suffices: Callable[[], bool]) -> list[str]:
        """Ours: the least highest priority, the least sum, the fewest."""
        ranked, best = self._ranked(list(candidates)), list[str]()
        least: tuple[int, int, int] | None = None
        for size in range(1, min(len(ranked), MOST_VICTIMS) + 1):
            for chosen in combinations(ranked, size):
                priorities = [self.runs.priority_of(one) for one in chosen]
                cost = max(priorities), sum(priorities), size
                if (least is None or cost < least) and self._would_do(chosen, suffices):
                    least, best = cost, list(chosen)
        return best

    def _would_do(self, chosen: Sequence[str], suffices: Callable[[], bool]) -> bool:
        depth = self.quotas.begin()
        try:
            for one in chosen:
                if not self._is_valid(one):
                    return False
                self.quotas.release_quota(one)
            return suffices()
        finally:
            self.quotas.rollback(depth)

    def _filled_back(self, found: list[str], suffices: Callable[[], bool]) -> list[str]:
        for at in range(len(found) - 2, -1, -1):
            self.runs.restore(found[at])
            if suffices():
                found[at] = found[-1]
                found.pop()
            else:
                self.quotas.release_quota(found[at])
        return found

    # -- with fair sharing ---------------------------------------------------------------------------------------

    def _fair(self) -> Victims:
        candidates = self._own()
        if self.node.path and self.policy.reclaim is not Reclaim.NEVER:
            for queue in self.runs.queues:
                theirs = self.quotas.tree.queues[queue]
                if theirs is not self.node and self.exceeds(theirs):
                    candidates += self._of_others(theirs)
        # Its request counts in all shares.
        asks = f"asks {self.name}"
        self.quotas.charge_workload(asks, Held(self.node.name, self.amounts))

        def suffices() -> bool:
            depth = self.quotas.begin()
            self.quotas.release_quota(asks)
            fits = self.runs.fits(self.node.name, self.amounts)
            self.quotas.rollback(depth)
            return fits

        others = [one for one in candidates if self.runs.node_of(one) is not self.node]
        # With our rule its own are looked at where others do not suffice, and after all of them.
        for among in (others, candidates) if Rule.OWN_LAST in self.ours else (candidates,):
            depth, reasons, again = self.quotas.begin(), dict[str, str](), list[str]()
            done = self._first_strategy(_FairOrder(self, self._ranked(among)), reasons, again, suffices)
            if done or self._second_strategy(_FairOrder(self, again), reasons, suffices):
                found = self._filled_back(list(reasons), suffices)
                if Rule.KEPT in self.ours and not self._may_go(found):
                    found = []
                return [(one, reasons[one]) for one in found]
            self.quotas.rollback(depth)
        return []

    def _may_go(self, found: Sequence[str]) -> bool:
        """Whether shares allow just these to go, where some that went before them are back."""
        if not self.exceeds(self.node):
            return True
        depth = self.quotas.begin()
        for one in found:
            self.runs.restore(one)
        left = dict.fromkeys(found)
        for _ in range(2):
            for one in list(left):
                if self._take_by_either(one):
                    del left[one]
        self.quotas.rollback(depth)
        return not left

    def _take_by_either(self, one: str) -> bool:
        """Take one out that may go by either comparison of shares, or as one of its own queue."""
        theirs = self.runs.node_of(one)
        if theirs is self.node:
            self.quotas.release_quota(one)
            return True
        mine, side = nodes_between(theirs, self.node)[-1], nodes_between(self.node, theirs)[-1]
        allowed = self.share_of(mine) < self.share_of(side)
        self.quotas.release_quota(one)
        if allowed or self.share_of(mine) <= self.share_of(side):
            return True
        self.runs.restore(one)
        return False

    def _first_strategy(
        self, order: "_FairOrder", reasons: dict[str, str], again: list[str], suffices: Callable[[], bool]
    ) -> bool:
        within = not self.exceeds(self.node)
        while (theirs := order.next_queue()) is not None:
            waiting = order.left[theirs.name]
            if theirs is self.node or within:
                one = waiting.pop(0)
                self.quotas.release_quota(one)
                reasons[one] = "InClusterQueue" if theirs is self.node else "InCohortReclamation"
                if suffices():
                    return True
                continue
            mine, side = nodes_between(theirs, self.node)[-1], nodes_between(self.node, theirs)[-1]
            while waiting:
                one = waiting.pop(0)
                allowed = Rule.BOTH in self.ours and self.share_of(mine) < self.share_of(side)
                self.quotas.release_quota(one)
                if allowed or self.share_of(mine) <= self.share_of(side):
                    reasons[one] = "InCohortFairSharing"
                    if suffices():
                        return True
                    break
                self.runs.restore(one)
                again.append(one)
        return False

    def _second_strategy(self, order: "_FairOrder", reasons: dict[str, str], suffices: Callable[[], bool]) -> bool:
        while (theirs := order.next_queue()) is not None:
            one = order.left[theirs.name].pop(0)
            mine, side = nodes_between(theirs, self.node)[-1], nodes_between(self.node, theirs)[-1]
            if self.share_of(mine) < self.share_of(side):
                self.quotas.release_quota(one)
                reasons[one] = "InCohortFairSharing"
                if suffices():
                    return True
            order.pruned.add(id(theirs))
        return False

    def share_of(self, node: TreeNode) -> Share:
        """The share of a node as things are."""
        return self.quotas.tree.share_of(node, {}, {})


class _FairOrder:
    """Which queue loses something next: Kueue's ``TargetClusterQueueOrdering``."""

    def __init__(self, search: VictimSearch, candidates: list[str]) -> None:
        self.search, self.taker = search, search.node
        self.left: dict[str, list[str]] = {queue: [] for queue in search.runs.queues}
        self.pruned: set[int] = set()
        for name in candidates:
            self.left[search.runs.known[name].queue].append(name)

    def next_queue(self) -> TreeNode | None:
        """None: nobody is left."""
        root = self.taker.root
        if root is self.taker:
            return root if self.left[root.name] and id(root) not in self.pruned else None
        while id(root) not in self.pruned:
            if (found := self._below(root)) is not None:
                return found
        return None

    def _below(self, cohort: TreeNode) -> TreeNode | None:
        children = [child for child in cohort.children.values() if id(child) not in self.pruned]
        for child in children:
            if self._is_pruned(child):
                self.pruned.add(id(child))
        left = [child for child in children if id(child) not in self.pruned]
        if not left:
            self.pruned.add(id(cohort))
            return None
        left = left[::-1] if self.search.runs.reverse else left
        # Of equal shares a cohort before a queue, and of queues the one whose first comes first of all.
        best = max(left, key=lambda child: (self.search.share_of(child), not child.is_queue, self._lowness(child)))
        return best if best.is_queue else self._below(best)

    def _is_pruned(self, child: TreeNode) -> bool:
        borrows = any(used > child.subtree.get(key, 0) for key, used in child.usage.items())
        if Rule.CONTESTED in self.search.ours:
            borrows = self.search.exceeds(child)
        if child.is_queue:
            return (not borrows and child is not self.taker) or not self.left[child.name]
        return not borrows and child not in self.taker.path

    def _lowness(self, child: TreeNode) -> tuple[bool, bool, int]:
        if not child.is_queue:
            return False, False, 0
        first, runs = self.left[child.name][0], self.search.runs
        return first in runs.leaving, child is not self.taker, -runs.priority_of(first)


def _reason(name: str, own: list[str], while_borrowing: set[str]) -> str:
    if name in own:
        return "InClusterQueue"
    return "InCohortReclaimWhileBorrowing" if name in while_borrowing else "InCohortReclamation"


def _fit_in_quota(node: TreeNode, amounts: Quantities) -> tuple[bool, Quantities]:
    fits = all(node.usage.get(key, 0) + amount <= node.subtree.get(key, 0) for key, amount in amounts.items())
    rest = {
        key: max(0, amount - max(0, node.local.get(key, 0) - node.usage.get(key, 0))) for key, amount in amounts.items()
    }
    return fits, rest
