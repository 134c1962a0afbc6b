"""Whose turn it is in a cycle: among those who wait, and among those that are admitted and want more pods.

Rules
- Half of a cycle's looks go by rank, the other half to whoever has waited longest for a look, one namespace after the
  other (`queueing.queues.rotation`): events that help wake all whom they may help, so those at the front may be worth a
  look again in each cycle. Where one half is enough for all, rank alone decides.
- By rank queues whose first need not borrow come first: who may take back what others borrow is looked at before
  anybody borrows it, or would evict him in the next cycle. Then come those with somebody behind their first who need
  not: a queue is looked at in its own order, but before others borrow what is his. In a tree of cohorts those who find
  what they borrow further down come before those who find it further up, for the same reason. Of several flavors the
  one that they would get by quota counts, and the first if there is none. With fair sharing the least share (with what
  its first wants) is next, in a tree of several levels by `queueing.cycle.tournament`; so it is between the children of
  a cohort that goes by use over time, with what each used by then for its share. Each queue has one turn a round;
  within a round: priority, then time. A queue that had nobody joins at the present round: it neither catches up nor
  falls behind.
- Who has waited long and was not looked at since the start comes before those behind it by rank, whatever turns they
  had, and after those before it: it would keep room from the first ones, and the others may have it evicted again.
- Who wants more pods takes the place that it would have if it waited for them: in its own queue by priority, then time,
  and between queues as above. So it gets nothing that somebody before it could use in the same cycle: that one might
  evict it for that, with all that it has. So the other half of their looks is for those alone who lose nothing by it.
"""

import heapq
from collections.abc import Collection, Iterator
from functools import reduce
from itertools import islice
from typing import Final, NamedTuple

from engine.cluster.state import ClusterState
from queueing.cycle import backfill, elastic
from queueing.cycle.queue_order import QueueOrder, competes_in_tree, head_of, precedes_in_tree
from queueing.cycle.shield import Shield
from queueing.model import Quantities, Rank
from queueing.queues.entry import Entry
from queueing.queues.pending import EquivalenceClass, PendingQueue
from queueing.queues.queues import Queues
from queueing.queues.rotation import of_namespace

SEARCH: Final = 8  # looks that a search for victims counts for
OWNERS: Final = 256  # groups of a queue, the oldest that are worth a look, that are asked whether they need not borrow


class WaitingRanks:
    """The ranks of those who wait, in one cycle."""

    def __init__(self, state: ClusterState, queues: Queues) -> None:
        self.state = state
        self.queues = queues
        # By queue, a heap of those who may have a lower level than its first: their ranks when they were asked.
        self._owners: dict[str, list[tuple[Rank, int, EquivalenceClass]]] = {}

    def of_group(self, group: EquivalenceClass) -> Rank:
        """The rank of the first of a group."""
        head = group.head
        assert head is not None  # noqa: S101  (``next`` gives groups that have one)
        queues = self.queues
        # Without a cohort nothing is borrowed or shared, so the options need not be made for the rank.
        asks = self.asks_of(group) if queues.quotas.shares(group.line.queue) else {}
        return queues.rank_of_entry(queues.entries[head.key], asks)

    def asks_of(self, group: EquivalenceClass) -> Quantities:
        """What the first of a group asks for in the flavors that it would get by quota; if in none, in the first."""
        found = self.queues.options_of(self.state, group).found
        if len(found) < 2:
            return found[0].amounts if found else {}
        quotas, line = self.queues.quotas, group.line
        limits = self.queues.limits(self.queues.entries[head_of(group)])
        fitting = [option.amounts for option in found if limits.fits_limits(option.asked)]
        if not fitting or quotas.queues[line.queue].borrow_first:
            return fitting[0] if fitting else found[0].amounts
        # One that need not borrow in a later flavor takes that one, and then others may not borrow it before.
        return min(fitting, key=lambda amounts: quotas.borrowing_level(line.queue, amounts))

    def of_queue(self, group: EquivalenceClass, rank: Rank) -> Rank:
        """Of a queue whose first group has this rank: that of the first behind it that borrows less high up, if any."""
        return self.best_of_queue(group, rank)[0]

    def best_of_queue(self, group: EquivalenceClass, rank: Rank) -> tuple[Rank, EquivalenceClass]:
        """The same, and whose rank it is."""
        line = group.line
        # In a StrictFIFO queue nobody behind the first is looked at, so nobody behind it can lend the queue its rank.
        if not rank.level or line.strict or len(line.groups) == 1:
            return rank, group
        owners = self._owners.get(line.queue)
        if owners is None:
            owners = self._owners[line.queue] = self._owners_in(line)
        while owners and owners[0][0].level < rank.level:
            known, at, one = owners[0]
            if one.inadmissible or one.head is None:
                heapq.heappop(owners)
                continue
            found = self.of_group(one)
            if found.level <= known.level:
                return found, one
            # The ranks change as others are admitted. Levels only rise in a cycle, so one that rose goes back in line.
            heapq.heapreplace(owners, (found, at, one))
        return rank, group

    def _owners_in(self, line: PendingQueue) -> list[tuple[Rank, int, EquivalenceClass]]:
        groups = (group for group in line.groups.values() if not group.inadmissible and group.head is not None)
        most = self.queues.quotas.highest_level(line.queue, fair=self.queues.rules.fair)
        ranks = ((self.of_group(group), at, group) for at, group in enumerate(islice(groups, OWNERS)))
        found = [one for one in ranks if one[0].level < most]
        heapq.heapify(found)
        return found


class Turns:
    """Whose turn it is of those who wait."""

    def __init__(self, queues: Queues, shield: Shield, ranks: WaitingRanks) -> None:
        self.queues = queues
        self.shield = shield
        self.ranks = ranks
        # With a tail of the level of the queue's first, rounds so far, order.
        self.order = QueueOrder(queues, ranks.asks_of)
        for line in queues.pending.lines.values():
            self.enter_queue(line)

    def enter_queue(self, line: PendingQueue) -> None:
        """A queue takes part if it has somebody to look at."""
        while (group := line.next()) is not None and line.queue in self.queues.quotas.queues:
            # It joins at the present round: with the rounds that it missed it would be served alone until it caught up.
            if not line.active:
                line.join(self.queues.pending.turn)
            with self.shield(head_of(group)):
                first = self.ranks.of_group(group)
                rank, best = self.ranks.best_of_queue(group, first)
                self.order.push_group(best, rank, (first.level, line.turn, rank.order))
                return
        if line.active:
            line.rest_all()

    def _settle(self, line: PendingQueue) -> None:
        """A queue had its turn, and takes part again if it has somebody left."""
        self.enter_queue(line)
        self.order.let_others(line.queue)

    def first(self, by_rank: int, by_turns: int) -> Iterator[EquivalenceClass]:
        """The groups whose first is to be looked at, one after the other; so many looks by each of both, about."""
        while self.order and by_rank > 0:
            queue = self.order.pop_queue()
            if queue is None:
                continue
            line = self.queues.pending.lines[queue]
            group = line.next()
            if group is None:
                self.order.let_others(queue)
                continue
            # Its round counts before the look, so that a look that fails costs the queue its turn as any other does.
            searches = self._serve(line)
            yield group
            by_rank -= looks_since(self.queues, searches)
            # Entered again with the rank of whoever is first now; the old entry is off the heap already.
            self._settle(line)
        # The second half only starts with a queue left on the heap: where rank served all, it costs nothing.
        rotation = self.queues.pending.groups_in_turn()
        while self.order and by_turns > 0 and (group := next(rotation, None)) is not None:
            searches = self._serve(group.line)
            yield group
            by_turns -= looks_since(self.queues, searches)

    def _serve(self, line: PendingQueue) -> int:
        """A queue has its turn; returns how many searches there were before."""
        self.queues.pending.serve(line)
        return self.queues.searches

    def groups_left(self) -> list[EquivalenceClass]:
        """The first groups of the queues that had no turn any more."""
        found = [self.queues.pending.lines[queue].next() for queue in self.order.queues_left()]
        return [group for group in found if group is not None]


class ByRank:
    """The first of all queues by rank alone, up to those who have waited long; nobody without such ones."""

    def __init__(self, queues: Queues, shield: Shield, ranks: WaitingRanks, waited: Collection[Entry]) -> None:
        self.queues = queues
        self.shield = shield
        self.ranks = ranks
        self.order = QueueOrder(queues, ranks.asks_of)
        for line in queues.pending.lines.values() if waited else ():
            self._enter_queue(line)

    def _enter_queue(self, line: PendingQueue) -> None:
        while (group := line.next()) is not None and line.queue in self.queues.quotas.queues:
            with self.shield(head_of(group)):
                first = self.ranks.of_group(group)
                rank, best = self.ranks.best_of_queue(group, first)
                # The first's own level too, as in `Turns`: it is looked at in the place of the one behind it, and
                # would take by borrowing what the first of another queue has within its own quota.
                self.order.push_group(best, rank, (first.level, 0, rank.order))
                return

    def up_to(self, entry: Entry) -> Iterator[EquivalenceClass]:
        """The groups whose first is to be looked at, one after the other, up to that of one who is next."""
        while self.order and is_next(entry):
            if (queue := self.order.pop_queue()) is None:
                continue
            line = self.queues.pending.lines[queue]
            if (group := line.next()) is not None:
                yield group
                self._enter_queue(line)
            self.order.let_others(queue)
            if group is entry.group:
                return


class _First(NamedTuple):
    """The first of a queue of those who want more pods, and what of quota it asks for."""

    rank: Rank
    queue: str
    key: str
    asks: Quantities


class Growers:
    """Whose turn it is of those who wanted more pods when the cycle came to them; ``limit``: about so many looks."""

    def __init__(self, queues: Queues, shield: Shield, ranks: WaitingRanks, limit: int) -> None:
        self.queues = queues
        self.shield = shield
        self.ranks = ranks
        self.by_turns = limit // 2
        self.by_rank = limit - self.by_turns
        self.lines: dict[str, list[str]] = {}  # by queue, the first at the end
        # Taken once a cycle: who is refused and wants more still does not have a second turn in the same cycle.
        for key in sorted(elastic.eager(queues), key=lambda key: queues.place_of(queues.entries[key]), reverse=True):
            self.lines.setdefault(queues.entries[key].queue, []).append(key)

    def before(self, groups: Collection[EquivalenceClass]) -> Iterator[str]:
        """Those who come before the first of each of these groups, one after the other."""
        while self.lines and self.by_rank > 0:
            firsts = [first for queue in list(self.lines) if (first := self._first_of_queue(queue)) is not None]
            before = [one for one in firsts if all(self._precedes(one, group) for group in groups)]
            if not before:
                return
            queue = reduce(self._earlier, before).queue
            key, searches = self._pop(queue), self.queues.searches
            yield key
            self.by_rank -= looks_since(self.queues, searches)

    def least_recent(self, groups: Collection[EquivalenceClass]) -> Iterator[str]:
        """Those who were looked at longest ago, one of each namespace after the other.

        Nobody whom the first of one of these groups may evict: it would lose all that it has for what it gets here.
        """
        left, rotation = {key for line in self.lines.values() for key in line}, self.queues.growers
        rotation.set_members([key for key in self.queues.growing if key in left], of_namespace)
        for key in rotation.members_in_turn(lambda key: key if self.by_turns > 0 else None):
            rotation.leave_party(key)  # it had its turn in this cycle
            # Asked again here: a look of this cycle may have made it a victim since the members were set.
            if key not in self.queues.growing or not elastic.may_grow(self.queues, key) or self._may_lose(key, groups):
                continue
            queue, searches = self.queues.entries[key].queue, self.queues.searches
            self._remove(queue, key)
            yield key
            self.by_turns -= looks_since(self.queues, searches)

    def _may_lose(self, key: str, groups: Collection[EquivalenceClass]) -> bool:
        entry = self.queues.entries[key]
        firsts = (self.queues.entries[head_of(group)] for group in groups)
        # It would lose all that it has for a pod more: its place in the order alone gets it room in front of these.
        return any(
            backfill.may_take(self.queues, first, entry)
            for first in firsts
            if first.queue != entry.queue or self.queues.place_of(first) < self.queues.place_of(entry)
        )

    def _earlier(self, one: "_First", other: "_First") -> "_First":
        if not competes_in_tree(self.queues, one.queue, other.queue):
            return min(one, other, key=lambda first: (first.rank, first.queue))
        entries = self.queues.entries
        precedes = precedes_in_tree(self.queues, entries[one.key], one.asks, entries[other.key], other.asks)
        return one if precedes else other

    def _first_of_queue(self, queue: str) -> "_First | None":
        """The rank of the first of those of a queue, and the queue; who is to go for somebody now grows no more."""
        while line := self.lines.get(queue):
            key = line[-1]
            if key in self.queues.growing and elastic.may_grow(self.queues, key):
                with self.shield(key):
                    more = elastic.lacking(self.queues, key) if self.queues.quotas.shares(queue) else {}
                    return _First(self.queues.rank_of_entry(self.queues.entries[key], more), queue, key, more)
            self._pop(queue)
        return None

    def _pop(self, queue: str) -> str:
        key = self.lines[queue][-1]
        self._remove(queue, key)
        return key

    def _remove(self, queue: str, key: str) -> None:
        self.lines[queue].remove(key)
        if not self.lines[queue]:
            del self.lines[queue]

    def _precedes(self, first: "_First", group: EquivalenceClass) -> bool:
        rank, head = first.rank, group.head
        if head is None:
            return True
        if first.queue == group.line.queue:
            entries, place_of = self.queues.entries, self.queues.place_of
            return place_of(entries[first.key]) < place_of(entries[head.key])
        with self.shield(head.key):
            if competes_in_tree(self.queues, first.queue, group.line.queue):
                _, best = self.ranks.best_of_queue(group, self.ranks.of_group(group))
                one, other = (self.queues.entries[key] for key in (first.key, head_of(best)))
                return precedes_in_tree(self.queues, one, first.asks, other, self.ranks.asks_of(best))
            return rank < self.ranks.of_queue(group, self.ranks.of_group(group))
        return True  # that one is put off


def is_next(entry: Entry) -> bool:
    """Whether one may be looked at, or those before it in its queue, and then it."""
    group = entry.group
    if group is None or group.head != entry.order or group.inadmissible:
        return False
    return not group.line.strict or group.line.next() is group


def looks_since(queues: Queues, searches: int) -> int:
    """For how many looks one look counts, by how many searches there were before it."""
    return 1 + SEARCH * (queues.searches - searches)
