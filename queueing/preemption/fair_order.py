"""Fair sharing between those who take and those who lose, in a tree of cohorts.

Rules, as in Kueue 0.19.2 (pkg/scheduler/preemption/fairsharing)
- Compared are the two nodes below the lowest cohort above both: the share of the preemptor's with its request has to be
  below what the victim's has now (LessThanInitialShare), or not above what it has without the victim
  (LessThanOrEqualToFinalShare).
- Where that cohort goes by use over time (`queueing.queues.over_time.cohort_use`), the preemptor's side may not have
  used more than the victim's besides, and in each such cohort the child that used most is the one with the largest
  share. That takes rights away and gives none, so whoever has another one evicted may not lose its place to it in turn
  as their shares cross: present shares allow one of both directions at most.
- Where quota alone lacks, the queue with the largest share loses somebody next, as shares are then. In a cohort of one
  level both comparisons count at once, and the preemptor's own queue is last. In a tree of several levels the next
  victim is looked for from the root down, always in the child with the largest share that has somebody left; of equal
  ones in a cohort before a queue. Those who may go by the second comparison come before all who may go by the first
  alone; of these one a queue.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import Any

from engine.reservation_key import HolderKey
from queueing.model import Quantities, Share
from queueing.preemption.cohort_reach import nodes_between
from queueing.queues.cohort_tree import TreeNode
from queueing.queues.quota import Quotas

_NOTHING: Quantities = {}


class FairComparison:
    """Of a queue that wants ``amounts`` with the queues that it would take from, as things are when it is asked."""

    def __init__(self, quotas: Quotas, queue: str, amounts: Quantities, *, fair: bool) -> None:
        self.quotas = quotas
        self.tree = quotas.tree
        self.taker = quotas.tree.queues[queue]
        self.amounts = amounts
        self.fair = fair
        self._sides: dict[str, tuple[TreeNode, TreeNode]] = {}

    def allows(self, queue: str, given: Quantities) -> bool:
        """Whether a queue may lose so much to it."""
        mine, theirs = self._sides_of(queue)
        share = self._share_with(mine)
        allowed = share < self.tree.share_of(theirs, {}, {}) or share <= self._share_without(queue, theirs, given)
        # Last, as it has an effect: a queue that present shares stop anyway would be woken each minute for nothing.
        return allowed and not self._has_used_more(mine, theirs)

    def allows_first(self, queue: str, given: Quantities) -> bool:
        """Whether it may by what its side has without that."""
        mine, theirs = self._sides_of(queue)
        return self._share_with(mine) <= self._share_without(queue, theirs, given)

    def shares_now(self) -> Callable[[TreeNode], Share]:
        """By what any node is compared with others of its cohort now, with what is asked for where that is below it."""
        # Once for all nodes: walking up from the preemptor for each costs the square of the depth of the tree.
        handed = self.tree.handed_along(self.taker, self.amounts)
        return lambda node: self.quotas.share_beside(node, handed.get(id(node), _NOTHING), fair=self.fair)

    def _has_used_more(self, mine: TreeNode, theirs: TreeNode) -> bool:
        """Whether the preemptor's side used more over time, where that counts; then it is looked at again later."""
        if mine.parent is None or not mine.parent.by_use:
            return False
        over_time, more = self.quotas.over_time, self.tree.handed_up_to(self.taker, mine, self.amounts)
        if over_time.share_of(mine, more, {}) <= over_time.share_of(theirs, {}, {}):
            return False
        over_time.bar_queue(self.taker.name)
        return True

    def _share_with(self, node: TreeNode) -> Share:
        return self.tree.share_of(node, self.tree.handed_up_to(self.taker, node, self.amounts), {})

    def _share_without(self, queue: str, node: TreeNode, given: Quantities) -> Share:
        less = {key: -amount for key, amount in given.items()}
        return self.tree.share_of(node, self.tree.handed_up_to(self.tree.queues[queue], node, less), {})

    def _sides_of(self, queue: str) -> tuple[TreeNode, TreeNode]:
        """The nodes below the lowest cohort above both, on either side."""
        found = self._sides.get(queue)
        if found is None:
            other = self.tree.queues[queue]
            sides = nodes_between(other, self.taker)[-1], nodes_between(self.taker, other)[-1]
            found = self._sides[queue] = sides
        return found


class FairOrder:
    """Which of some units goes next; ``units``: by queue, the least important at the end. Asked again after each."""

    def __init__(self, comparison: FairComparison, units: dict[str, list[HolderKey]]) -> None:
        self.comparison = comparison
        self.units = units
        nodes = comparison.tree.queues
        self._left: Counter[int] = Counter()  # by node, the queues below it that have somebody left
        for queue in units:
            self._left.update(map(id, (nodes[queue], *nodes[queue].path)))

    def in_turn(self, given: Callable[[HolderKey], Quantities]) -> Iterator[HolderKey]:
        """One after the other, while shares change as they are taken; ``given``: what a unit gives back."""
        own, kept = self.comparison.taker.name, dict[str, list[HolderKey]]()
        while (queue := self._next_queue()) is not None:
            unit = self._pop(queue)
            if queue == own or self.comparison.allows_first(queue, given(unit)):
                yield unit
            else:
                kept.setdefault(queue, []).append(unit)
        again = FairOrder(self.comparison, {queue: units[:1] for queue, units in kept.items()})
        while (queue := again._next_queue()) is not None:
            yield again._pop(queue)

    def _next_queue(self) -> str | None:
        node, left = self.comparison.taker.root, self._left
        if not left[id(node)]:
            return None
        share_of = self.comparison.shares_now()
        while not node.is_queue:
            children = (child for child in node.children.values() if left[id(child)])
            # By name last, as equal ones come in the order in which they were made otherwise.
            node = max(children, key=lambda child: (share_of(child), not child.is_queue, child.name))
        return node.name

    def _pop(self, queue: str) -> HolderKey:
        units = self.units[queue]
        unit = units.pop()
        if not units:
            node = self.comparison.tree.queues[queue]
            self._left.subtract(map(id, (node, *node.path)))
        return unit


def largest_first(
    comparison: FairComparison, units: dict[str, list[HolderKey]], rank: Callable[[HolderKey], tuple[Any, ...]]
) -> Iterator[HolderKey]:
    """Which of some units goes next in a cohort of one level; of equal shares the one of the least rank.

    ``units``: as of `FairOrder`. Only the share of the queue that loses something changes.
    """
    own, nodes, share_of = comparison.taker.name, comparison.tree.queues, comparison.shares_now()

    def place_of(queue: str) -> tuple[bool, bool, float, tuple[Any, ...], str]:
        infinite, ratio = share_of(nodes[queue])
        return queue == own, not infinite, -ratio, rank(units[queue][-1]), queue

    places = [place_of(queue) for queue in units]
    heapify(places)
    while places:
        *_, queue = places[0]
        yield units[queue].pop()
        if units[queue]:
            heapreplace(places, place_of(queue))
        else:
            heappop(places)


def by_queue(units: Iterable[HolderKey], queue_of: Callable[[HolderKey], str]) -> dict[str, list[HolderKey]]:
    """Units in order, the first of each queue at the end of its list."""
    found: dict[str, list[HolderKey]] = {}
    for unit in units:
        found.setdefault(queue_of(unit), []).append(unit)
    return {queue: each[::-1] for queue, each in found.items()}
