"""Whose turn it is in a cycle: among those who wait, and among those that are admitted and want more pods.

Rules
- Every queue with somebody to look at has one turn a round. Within a round: who does not borrow first, then priority,
  then time; who would borrow comes with those of the next round. With fair sharing the least share (with what its first
  wants) comes before rounds. A queue that had nobody joins at the present round: it neither catches up nor falls
  behind.
- Who wants more pods takes the place that it would have if it waited for them: in its own queue by priority, then time,
  and between queues as above. So it gets nothing that somebody before it could use in the same cycle: that one might
  evict it for that, with all that it has.
"""

import heapq
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from engine.cluster.state import ClusterState
from queueing.cycle import elastic
from queueing.cycle.shield import Shield
from queueing.model import Rank
from queueing.queues.pending import EquivalenceClass, PendingQueue
from queueing.queues.queues import Queues

if TYPE_CHECKING:
    from queueing.model import Order

SEARCH: Final = 8  # looks that a search for victims counts for


class Turns:
    """Whose turn it is of those who wait."""

    def __init__(self, state: ClusterState, queues: Queues, shield: Shield) -> None:
        self.state = state
        self.queues = queues
        self.shield = shield
        self.heap: list[tuple[float, int, bool, Order, str]] = []
        for line in queues.lines.values():
            self.enter_queue(line)
        heapq.heapify(self.heap)

    def enter_queue(self, line: PendingQueue) -> None:
        """A queue takes part if it has somebody to look at."""
        while (group := line.next()) is not None and line.queue in self.queues.quotas.queues:
            if not line.active:
                line.join(self.queues.pending.turn)
            with self.shield(head_of(group)):
                share, borrows, head = _rank(self.state, self.queues, group)
                # Who would borrow counts as one round later: who may take that back has its turn before, also where it
                # had one more so far. Else it would get in, and be evicted in the next cycle.
                heapq.heappush(self.heap, (share, line.turn + borrows, borrows, head, line.queue))
                return
        if line.active:
            line.rest()

    def first(self, limit: int) -> Iterator[EquivalenceClass]:
        """The groups whose first is to be looked at, one after the other."""
        left = limit
        while self.heap and left > 0:
            line = self.queues.lines[heapq.heappop(self.heap)[-1]]
            group = line.next()
            if group is None:
                continue
            searches = self.queues.searches
            self.queues.pending.serve(line)
            yield group
            left -= 1 + SEARCH * (self.queues.searches - searches)
            self.enter_queue(line)

    def left(self) -> list[EquivalenceClass]:
        """The first groups of the queues that had no turn any more."""
        found = [self.queues.lines[queue].next() for *_, queue in self.heap]
        return [group for group in found if group is not None]


class Growers:
    """Whose turn it is of those who wanted more pods when the cycle came to them; ``limit``: about so many looks."""

    def __init__(self, state: ClusterState, queues: Queues, shield: Shield, limit: int) -> None:
        self.state = state
        self.queues = queues
        self.shield = shield
        self.limit = limit
        self.lines: dict[str, list[str]] = {}  # by queue, the first at the end
        for key in reversed(elastic.eager(queues)):
            self.lines.setdefault(queues.entries[key].queue, []).append(key)

    def __bool__(self) -> bool:
        """Whether somebody is still to be looked at."""
        return bool(self.lines)

    def before(self, groups: Collection[EquivalenceClass]) -> Iterator[str]:
        """Those who come before the first of each of these groups, one after the other."""
        while self.lines and self.limit > 0:
            firsts = [first for queue in list(self.lines) if (first := self._first(queue)) is not None]
            before = [one for one in firsts if all(self._precedes(one, group) for group in groups)]
            if not before:
                return
            _, queue = min(before)
            key, searches = self._pop(queue), self.queues.searches
            yield key
            self.limit -= 1 + SEARCH * (self.queues.searches - searches)

    def _first(self, queue: str) -> tuple[Rank, str] | None:
        """The rank of the first of those of a queue, and the queue; who is to go for somebody now grows no more."""
        while line := self.lines.get(queue):
            key = line[-1]
            if key in self.queues.growing and elastic.may_grow(self.queues, key):
                with self.shield(key):
                    more = elastic.lacking(self.queues, key) if self.queues.quotas.shares(queue) else {}
                    return self.queues.rank(self.queues.entries[key], more), queue
            self._pop(queue)
        return None

    def _pop(self, queue: str) -> str:
        key = self.lines[queue].pop()
        if not self.lines[queue]:
            del self.lines[queue]
        return key

    def _precedes(self, first: tuple[Rank, str], group: EquivalenceClass) -> bool:
        (rank, queue), head = first, group.head
        if head is None:
            return True
        if queue == group.line.queue:
            return rank[-1] < head
        with self.shield(head[2]):
            return rank < _rank(self.state, self.queues, group)
        return True  # that one is put off


def _rank(state: ClusterState, queues: Queues, group: EquivalenceClass) -> Rank:
    """The rank of the first of a group."""
    head = group.head
    assert head is not None  # noqa: S101  (``next`` gives groups that have one)
    found = queues.options_of(state, group).found if queues.quotas.shares(group.line.queue) else ()
    return queues.rank(queues.entries[head[2]], found[0].amounts if found else {})


def head_of(group: EquivalenceClass) -> str:
    """The key of the first of a group."""
    return group.head[2] if group.head is not None else ""
