"""Whose turn it is by shares in a tree of cohorts of several levels.

In each cohort its children compete: a queue with the first workload that it has to look at, a cohort with the one that
won inside of it. First comes who would not borrow anything that this workload asks for, at this level; then the least
share with it; then rounds, priority and time, and names where even these are equal (in Kueue's runTournament, 0.19.2,
their order is that of a map). An order by the shares from the root down would be another one: who loses inside has no
say outside, however little it asks for.

A cohort that goes by use over time (`queueing.queues.over_time.cohort_use`) compares what its children used by then in
place of their present shares. Without fair sharing the other cohorts of such a tree compare no shares, and in all of it
comes first who finds what it borrows further down.
"""

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from queueing.model import Quantities, Share
from queueing.queues.cohort_tree import TreeNode, sides_of

if TYPE_CHECKING:
    from queueing.model import Order
    from queueing.queues.quota import Quotas

Tail = tuple[int, int, "Order"]  # how high up the queue's first would borrow, rounds so far, order
Turn = tuple[int, Share, int, int, "Order", str]  # whether it borrows at this level, its share, a tail, the queue


class Contender(NamedTuple):
    """A queue with a workload to look at: what that asks for, and by how much the usage of its queue would change.

    ``level``: how high up it would borrow; with fair sharing 0, as each cohort asks for itself then.
    """

    node: TreeNode
    asks: Quantities
    change: Quantities
    tail: Tail
    level: int = 0


class Tournament:
    """See the module. One for each tree; ``top`` is whose turn it is."""

    def __init__(self, quotas: "Quotas", *, fair: bool) -> None:
        self.quotas = quotas
        self.fair = fair
        self._contenders: dict[str, Contender] = {}
        # By cohort, a heap of (turn, version, child); only the newest version of a child counts.
        self._heaps: dict[int, list[tuple[Turn, int, int]]] = {}
        self._versions: dict[int, int] = {}
        self._made = 0

    def enter_queue(self, contender: Contender) -> None:
        """A queue takes part, or does with another workload."""
        self._contenders[contender.node.name] = contender
        self._refresh_path(contender.node)

    def leave_queue(self, node: TreeNode) -> None:
        """A queue takes no part any more; with those that it beat, cohorts above it compete again."""
        self._contenders.pop(node.name, None)
        self._refresh_path(node)

    def top(self) -> Turn | None:
        """Whose turn it is, as the child of the root that won has it."""
        # All trees of one tournament are one tree: any contender knows its root.
        one = next(iter(self._contenders.values()), None)
        return self._winner_in(one.node.root) if one is not None else None

    def __contains__(self, queue: str) -> bool:
        return queue in self._contenders

    def queues_left(self) -> Iterator[str]:
        """The queues that still take part."""
        return iter(self._contenders)

    def _refresh_path(self, node: TreeNode) -> None:
        """What a queue uses or asks for changed: it and the cohorts above it compete with that, no others do."""
        contender = self._contenders.get(node.name)
        change = contender.change if contender is not None else {}
        for above in node.path:
            self._made += 1
            self._versions[id(node)] = self._made
            if contender is not None:
                share = _share_at(self.quotas, node, contender, change, fair=self.fair)
                turn = (*share, *contender.tail, contender.node.name)
                heapq.heappush(self._heaps.setdefault(id(above), []), (turn, self._made, id(node)))
            winner = self._winner_in(above)
            best = self._contenders[winner[-1]] if winner is not None else None
            # Level by level while the same queue wins: nothing bounds how deep cohorts are, and from the queue up each
            # time would be the square of that.
            if best is contender:
                change = self.quotas.tree.handed_up_to(node, above, change)
            elif best is not None:
                change = self.quotas.tree.handed_up_to(best.node, above, best.change)
            contender, node = best, above

    def _winner_in(self, cohort: TreeNode) -> Turn | None:
        heap = self._heaps.get(id(cohort), [])
        # Turns are never searched for: those that were replaced are dropped when they come to the top.
        while heap and self._versions[heap[0][2]] != heap[0][1]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None


def comes_before(quotas: "Quotas", one: Contender, other: Contender, *, fair: bool) -> bool:
    """Whether one queue comes before another of its tree: by the two nodes below the lowest cohort above both.

    No order to sort by: among three queues each may come before the next one.
    """
    sides = sides_of(one.node, other.node)
    if sides is None:
        return one.tail[-1] < other.tail[-1]
    mine, theirs = (
        (
            *_share_at(quotas, node, each, quotas.tree.handed_up_to(each.node, node, each.change), fair=fair),
            each.tail[-1],
        )
        for node, each in zip(sides, (one, other), strict=True)
    )
    return mine < theirs


def _share_at(
    quotas: "Quotas", node: TreeNode, contender: Contender, change: Quantities, *, fair: bool
) -> tuple[int, Share]:
    """Whether a queue, or a cohort above one, would borrow anything that is asked for, and its share with a change."""
    level = contender.level
    # Asked in each cohort anew: who borrows of its cohort may take what is the cohort's own one level further up.
    if fair:
        usage, subtree, asks = node.usage, node.subtree, contender.asks
        level = int(
            any(amount > 0 and usage.get(key, 0) + change[key] > subtree.get(key, 0) for key, amount in asks.items())
        )
    return level, quotas.share_beside(node, change, fair=fair)
