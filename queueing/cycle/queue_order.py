"""The queues that have somebody to look at, in order: by rank, where shares count at several levels by a tournament."""

import heapq
from collections.abc import Callable, Iterator

from queueing.cycle.tournament import Contender, Tail, Tournament, Turn, comes_before
from queueing.model import Quantities, Rank
from queueing.queues.entry import Entry
from queueing.queues.pending import EquivalenceClass
from queueing.queues.queues import Queues


class QueueOrder:
    """A heap of queues; trees beside each other are in one heap, each with its winner where it has a tournament."""

    def __init__(self, queues: Queues, asks_of: Callable[[EquivalenceClass], Quantities]) -> None:
        self.queues = queues
        self._asks_of = asks_of
        # How high up the queue's best would borrow, its share, a tail, the queue.
        self._heap: list[Turn] = []
        self._tournaments: dict[str, Tournament] = {}  # by the name of the root, of trees that have one

    def __bool__(self) -> bool:
        """Whether anybody may be left; what does not win any more is dropped later."""
        return bool(self._heap)

    def push_group(self, best: EquivalenceClass, rank: Rank, tail: Tail) -> None:
        """A queue takes part with the rank of the first of one of its groups."""
        queue = best.line.queue
        tournament = self._tournament_of(queue)
        if tournament is None:
            heapq.heappush(self._heap, (rank.level, rank.share, *tail, queue))
            return
        entry = self.queues.entries[head_of(best)]
        tournament.enter_queue(contender_of(self.queues, queue, entry, self._asks_of(best))._replace(tail=tail))
        # Not its own turn: with other trees only the winner of its tree competes, which may be another queue.
        self._push_top(tournament)

    def pop_queue(self) -> str | None:
        """The queue that is next; None where that one has lost its turn."""
        turn = heapq.heappop(self._heap)
        queue = turn[-1]
        tournament = self._tournament_of(queue)
        if tournament is not None:
            # Turns in the heap are not searched for: whatever gave the tree another winner pushed that one's.
            if tournament.top() != turn:
                return None
            tournament.leave_queue(self.queues.quotas.tree.queues[queue])
        return queue

    def let_others(self, queue: str) -> None:
        """Of the cohorts above a queue that has nobody left, others compete with what is used now."""
        tournament = self._tournament_of(queue)
        if tournament is not None and queue not in tournament:
            tournament.leave_queue(self.queues.quotas.tree.queues[queue])
            self._push_top(tournament)

    def queues_left(self) -> Iterator[str]:
        """The queues that had no turn any more."""
        yield from (queue for *_, queue in self._heap if self._tournament_of(queue) is None)
        for each in self._tournaments.values():
            yield from each.queues_left()

    def _push_top(self, tournament: Tournament) -> None:
        if (top := tournament.top()) is not None:
            heapq.heappush(self._heap, top)

    def _tournament_of(self, queue: str) -> Tournament | None:
        """The tournament that a queue takes part in; None where it competes by its own share alone, or by none."""
        quotas, fair = self.queues.quotas, self.queues.rules.fair
        if not quotas.competes_by_levels(queue, fair=fair):
            return None
        root = quotas.tree.queues[queue].root.name
        found = self._tournaments.get(root)
        if found is None:
            found = self._tournaments[root] = Tournament(quotas, fair=fair)
        return found


def contender_of(queues: Queues, queue: str, entry: Entry, asks: Quantities) -> Contender:
    """A queue with one that waits or is admitted there and asks for so much, as it competes with other queues."""
    less = queues.not_counted(entry) or {}
    change = {name: asks.get(name, 0) - less.get(name, 0) for name in {*asks, *less}}
    level = 0 if queues.rules.fair else queues.quotas.borrowing_level(queue, asks, less)
    return Contender(queues.quotas.tree.queues[queue], asks, change, (0, 0, entry.order), level)


def competes_in_tree(queues: Queues, one: str, other: str) -> bool:
    """Whether shares are to be compared at several levels between two queues, which are not one and the same."""
    nodes = queues.quotas.tree.queues
    # Somebody who grows may hold what a queue gave that is gone by now: it is in no tree, and competes alone.
    node, beside = nodes.get(one), nodes.get(other)
    if node is None or beside is None or node is beside or node.root is not beside.root:
        return False
    return queues.quotas.competes_by_levels(one, fair=queues.rules.fair)


def precedes_in_tree(queues: Queues, one: Entry, wanted: Quantities, other: Entry, theirs: Quantities) -> bool:
    """Whether one that asks for so much comes before one of another queue of its tree that asks for ``theirs``."""
    return precedes_contender(queues, contender_of(queues, one.queue, one, wanted), other, theirs)


def precedes_contender(queues: Queues, mine: Contender, other: Entry, theirs: Quantities) -> bool:
    """`precedes_in_tree` for one that is compared with many."""
    beside = contender_of(queues, other.queue, other, theirs)
    return comes_before(queues.quotas, mine, beside, fair=queues.rules.fair)


def head_of(group: EquivalenceClass) -> str:
    """The key of the first of a group."""
    return group.head.key if group.head is not None else ""
