"""The rules by which Kueue 0.19.2 admits and preempts in a tree of cohorts, cycle by cycle, and ours in place of some.

A difference between Kueue and ours is explained by the fewest rules of ours that, put in place of Kueue's, make of this
model what ours did. That the model is Kueue's is seen beside the real one, which has to do the same.

Followed: pkg/scheduler/scheduler.go (``schedule``, ``processEntry``, ``reserveCapacityForUnreclaimablePreempt``, and
``markSkipped`` and ``lastAssignmentOutdated``: who got nothing and is looked at again in the next cycle goes on after
the flavor that it came to, by the feature gate FlavorFungibilityPreserveScanProgress, which is on), and
fair_sharing_iterator.go, flavorassigner/flavorassigner.go (``findFlavorForPodSets``, ``fitsResourceQuota``),
preemption/preemption_oracle.go, and pkg/cache/queue: who is looked at again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from support.kueue_victims import Rule, RunningWorkloads, VictimSearch
from support.tree_streams import Move, Seen, Stream, Submit

from queueing.model import ClusterQueue, FlavorResource, Quantities, Reclaim
from queueing.queues.cohort_tree import TreeNode
from queueing.queues.held import Held

MOST_CYCLES = 60
MOST_WAITED = 6  # cycles before victims are gone
NO_FIT, NO_CANDIDATES, PREEMPT, RECLAIM, FIT = range(5)


class EndlessEvictionsError(Exception):
    """Workloads evict each other without end."""


class Look(NamedTuple):
    """What one would get: how (`FIT` and so on), in which flavor, how high it borrows, and its victims with reasons.

    ``tried``: the last flavor that was looked at, where others come after it; else -1.
    """

    mode: int
    flavor: str
    level: int
    victims: tuple[tuple[str, str], ...] = ()
    tried: int = -1

    @property
    def possible(self) -> bool:
        """Whether it would get anything."""
        return self.mode == FIT or bool(self.victims)


class Event(Enum):
    """What may happen between two cycles, or not, as events come in.

    ``WAKE``: workloads that were refused are looked at again. That is due a second after something was freed
    (pkg/cache/queue/inadmissible_workloads.go: ``requeueBatchPeriod``), whatever else goes on meanwhile.
    ``WAIT``: another cycle comes before victims are gone.
    ``APART``: only the victims of one workload are gone, or only one victim.
    ``BEHIND``: victims are gone after a cycle has taken its heads and before it takes its snapshot
    (pkg/scheduler/scheduler.go: ``schedule``). The heads find their quota, and the victims are not among the heads.
    ``MISSED``: what the status of a queue brings about comes after the step has ended. It takes a second longer
    (pkg/controller/core/clusterqueue_controller.go: ``UpdatesBatchPeriod``), on a loaded machine more.
    """

    WAKE, WAIT, APART, BEHIND, MISSED = range(5)


# Of an event and in how many ways it may happen: in which of them it does; 0: it does not.
Choose = Callable[[Event, int], int]


class Chance(NamedTuple):
    """What is left to chance; ``reverse``: which of two equal nodes comes first."""

    choose: Choose = lambda *_: 0
    reverse: bool = False


class KueueRules:
    """Kueue with the tree of a stream."""

    def __init__(self, stream: Stream, ours: frozenset[Rule] = frozenset(), chance: Chance = Chance()) -> None:  # noqa: B008
        self.ours, self.chance = ours, chance
        self.runs = RunningWorkloads(stream, reverse=chance.reverse)
        self.known, self.quotas, self.queues = self.runs.known, self.runs.quotas, self.runs.queues
        self.active: dict[str, None] = {}
        self.parked: dict[str, None] = {}
        self.leaving = self.runs.leaving
        self.sticky: dict[str, str] = {}  # by queue, who had victims last and is not admitted yet
        self.waited = 0  # for how many cycles
        self.behind: dict[str, None] = {}  # victims that are gone, and no heads of the next cycle
        self.due = False  # whether those who were refused are to be looked at again
        self.roused = False  # the same, by the status of a queue
        self.cycles = 0
        self.tried: dict[str, tuple[int, int]] = {}  # after which flavor the next search begins, and since which cycle
        self.freed: dict[str, int] = {}  # the cycle in which something of a queue was last gone
        self.planned: dict[str, str] = {}  # the flavors of those who had victims
        # With `Rule.TURNS`: to whom ours gives something, cycle by cycle of ours, the next one at the end.
        self.turns: list[Sequence[str]] = []

    # -- steps ---------------------------------------------------------------------------------------------------

    def become(self, seen: Seen, known: Mapping[str, Submit], evictions: Sequence[Move]) -> None:
        """Take over who runs and who waits, in rest, and who was evicted for whom; once, before the first step."""
        self.known.update(known)
        for name, flavor in sorted(seen.admitted):
            self.runs.start(name, flavor)
        self.parked = {name: None for name in known if name not in self.runs.flavors}
        # It may have been missed in the step before.
        self.roused = any(self._rouses(move.name) for move in seen.moves if move.name in known)
        for move in evictions:
            if move.taker in known and move.name in known:
                self.runs.evictions.record_evictions(move.taker, [move.name])

    def moves(
        self, event: Submit | str, turns: Sequence[Sequence[str]] = (), most: int = MOST_CYCLES
    ) -> Iterator[Move]:
        """The moves of a step, as they come, in so many cycles at most.

        ``turns``: to whom ours gives something, in cycle after cycle. Raises EndlessEvictionsError.
        """
        self.turns = list(reversed(turns)) if Rule.TURNS in self.ours else []
        if isinstance(event, Submit):
            self.known[event.name] = event
            self.active[event.name] = None
            self.roused |= self._rouses(event.name)
        elif event:
            self.runs.stop(event)
            self._wake()
            self.roused = self._rouses(event)
            del self.known[event]
        for _ in range(most):
            if not self.active and not self.turns:
                if not (self.due or (self.roused and not self.chance.choose(Event.MISSED, 2))):
                    return
                self._wake()
            moves = self._turn() if self.turns else self._cycle(self._heads())
            yield from moves
            self.roused |= any(self._rouses(move.name) for move in moves)
            self._happen({move.name: move.taker for move in moves if move.taker})
            if Rule.HOLDS in self.ours:
                yield from self._start_planned()
        raise EndlessEvictionsError

    def _happen(self, leaving: Mapping[str, str]) -> None:
        """What happens between two cycles; ``leaving``: who was evicted in the last one."""
        self.active |= self.behind
        self.behind = {}
        self.leaving |= leaving
        choose = self.chance.choose
        if self.leaving and (not self.active or self.waited == MOST_WAITED or not choose(Event.WAIT, 2)):
            gone = self._release_some()
            behind = self.behind if self.active and choose(Event.BEHIND, 2) else self.active
            behind |= dict.fromkeys(gone)
            self.due, self.waited = True, 0
        elif self.leaving:
            self.waited += 1
        if (self.due or self.roused) and self.active and choose(Event.WAKE, 2):
            self._wake()

    def _release_some(self) -> list[str]:
        """Victims are gone; returns them."""
        gone = list(self.leaving)
        apart = self.chance.choose(Event.APART, 3) if len(gone) > 1 else 0
        if apart:
            gone = [name for name in gone if self.leaving[name] == self.leaving[gone[0]]] if apart == 1 else gone[:1]
        for name in gone:
            self.runs.evictions.record_evictions(self.leaving.pop(name), [name])
            self.freed[self.known[name].queue] = self.cycles
            self.runs.stop(name)
        return gone

    def _rouses(self, name: str) -> bool:
        """Whether all are looked at again, a second later, as numbers in the status of a workload's queue change.

        Each change of a ClusterQueue is one for all cohorts above it but the root (pkg/controller/core:
        ``NotifyClusterQueueUpdate``, ``ClusterQueueAncestors``), and with that for who waits below that root
        (pkg/cache/queue: ``AddOrUpdateCohort``, ``notifyCohort``).
        """
        return len(self.runs.node_of(name).path) > 1

    def _start_planned(self) -> Iterator[Move]:
        for name, flavor in list(self.planned.items()):
            if name not in self.leaving.values():
                del self.planned[name], self.active[name]
                self.runs.start(name, flavor)
                yield Move(name, flavor)

    def _wake(self) -> None:
        self.active |= self.parked
        self.parked, self.due, self.roused = {}, False, False

    def _heads(self) -> list[str]:
        """The first of each queue: who had victims last, or the highest priority (pkg/cache/queue/cluster_queue.go)."""
        heads: dict[str, str] = {}
        for name in sorted(self.active, key=lambda one: (one in self.sticky.values(), self.runs.priority_of(one))):
            heads[self.known[name].queue] = name
        return list(heads.values())

    # -- our order of turns --------------------------------------------------------------------------------------

    def _turn(self) -> list[Move]:
        """A cycle of ours: to whom it gives something, where nobody comes before by our rules; others end it all.

        Victims are gone after it. Until then the preemptor has what they give, and nobody who was admitted in it goes:
        one who finds nobody else is looked at in the next cycle.
        """
        group, later, made = self.turns.pop(), list[str](), list[Move]()
        self.runs.fresh = {name for name in group if name in self.runs.flavors}
        left = [name for name in group if name not in self.runs.fresh]
        while left:
            self._wake()
            heads = self._heads()
            turn = (
                one for one in left if one in self.active and not any(self._precedes(other, one) for other in heads)
            )
            if not (name := next(turn, "")):
                self.turns = []
                break
            left.remove(name)
            moves = self._cycle([name])
            made += moves
            later += [] if moves else [name]
            self._hold(name, moves)
        if made and later and not left:
            self.turns.append(later)
        for move in made:
            if move.taker:
                self.quotas.release_quota(f"planned {move.taker}")
                self.runs.restore(move.name)
                self.active[move.taker] = None
        self.runs.fresh = set()
        return made

    def _hold(self, name: str, moves: Sequence[Move]) -> None:
        victims = [move.name for move in moves if move.taker]
        for victim in victims:
            self.quotas.release_quota(victim)
        if victims:
            del self.active[name]
            amounts = self.runs.amounts_of(name, self.planned[name])
            self.quotas.charge_workload(f"planned {name}", Held(self.known[name].queue, amounts))
        elif moves:
            self.runs.fresh.add(name)

    def _precedes(self, other: str, name: str) -> bool:
        """Whether one that would get something comes before another one: nearer its quota, or first in their queue."""
        if other == name or not self.look(other).possible:
            return False
        if self.runs.node_of(other) is self.runs.node_of(name):
            return self.runs.priority_of(other) > self.runs.priority_of(name)
        of_queue = [one for one in self.active if self.runs.node_of(one) is self.runs.node_of(name)]
        return not self.runs.fair and min(map(self._level_of, of_queue)) > self._level_of(other)

    def _level_of(self, name: str) -> int:
        queue = self.queues[self.known[name].queue]
        return self.quotas.borrowing_level(queue.name, self.runs.amounts_of(name, queue.groups[0].flavors[0].flavor))

    # -- one cycle -----------------------------------------------------------------------------------------------

    def _cycle(self, heads: Sequence[str]) -> list[Move]:
        self.cycles += 1
        looks = {name: self.look(name) for name in heads}
        depth, gone, moves = self.quotas.begin(), dict[str, None](), list[Move]()
        for name in self._order(looks):
            look = looks[name]
            del self.active[name]
            self.tried.pop(name, None)
            if not look.possible:
                self._requeue(name, look.tried, at_once=look.tried >= 0 and Rule.FIRST not in self.ours)
                if look.mode != NO_FIT and Rule.RESERVE not in self.ours:
                    self._reserve(name, look)
                continue
            amounts, victims = self.runs.amounts_of(name, look.flavor), dict.fromkeys(one for one, _ in look.victims)
            if victims.keys() & gone.keys() or not self._fits_without(name, amounts, gone | victims):
                self._requeue(name, look.tried, at_once=True)
                continue
            gone |= victims
            self.quotas.charge_workload(f"assumed {name}", Held(self.known[name].queue, amounts))
            moves += [Move(one, reason, name) for one, reason in look.victims if one not in self.leaving]
            if look.mode == FIT:
                moves.append(Move(name, look.flavor))
            else:
                self.active[name], self.planned[name] = None, look.flavor
                self.sticky[self.known[name].queue] = name
        self.quotas.rollback(depth)
        for move in moves:
            if not move.taker:
                self.runs.start(move.name, move.what)
                self.sticky = {queue: name for queue, name in self.sticky.items() if name != move.name}
        return moves

    def _requeue(self, name: str, tried: int, *, at_once: bool) -> None:
        """One that got nothing."""
        if at_once:
            self.active[name] = None
            self.tried[name] = tried, self.cycles
        else:
            self.parked[name] = None

    def _next_flavor(self, name: str) -> int:
        """The flavor with which a search begins (``lastAssignmentOutdated``, ``NextFlavorToTryForPodSetResource``)."""
        tried, since = self.tried.get(name, (-1, 0))
        outdated = self.cycles > since + 1 and self.freed.get(self.known[name].queue, -1) >= since
        return 0 if outdated or Rule.FIRST in self.ours else tried + 1

    def _reserve(self, name: str, look: Look) -> None:
        """Nobody behind it gets in this cycle what it waits for, unless its queue may take all back."""
        queue = self.queues[self.known[name].queue]
        if queue.preemption.reclaim is Reclaim.ANY:
            return
        reserved: Quantities = {}
        for key, amount in self.runs.amounts_of(name, look.flavor).items():
            quota = self.runs.node_of(name).quota[key]
            left = quota.nominal - self.quotas.used(queue.name, key)
            if not look.level:
                reserved[key] = max(0, min(amount, left))
            else:
                reserved[key] = amount if quota.borrowing is None else min(amount, left + quota.borrowing)
        self.quotas.charge_workload(f"reserved {name}", Held(queue.name, reserved))

    def _fits_without(self, name: str, amounts: Quantities, gone: Mapping[str, None]) -> bool:
        depth = self.quotas.begin()
        for one in gone:
            self.quotas.release_quota(one)
        fits = self.runs.fits(self.known[name].queue, amounts)
        self.quotas.rollback(depth)
        return fits

    def _order(self, looks: Mapping[str, Look]) -> Iterator[str]:
        if not self.runs.fair:
            yield from sorted(looks, key=lambda name: (looks[name].level, -self.runs.priority_of(name)))
            return
        left = dict(looks)
        while left:
            name = self._tournament(self.runs.node_of(next(iter(left))).root, left)
            assert name is not None
            del left[name]
            yield name

    def _tournament(self, node: TreeNode, left: Mapping[str, Look]) -> str | None:
        if node.is_queue:
            return next((name for name in left if self.runs.node_of(name) is node), None)
        winners = ((child, self._tournament(child, left)) for child in node.children.values())
        ranks = [(self._rank(child, name, left[name]), name) for child, name in winners if name is not None]
        return min(ranks)[1] if ranks else None

    def _rank(self, child: TreeNode, name: str, look: Look) -> tuple[object, ...]:
        amounts = self.runs.amounts_of(name, look.flavor) if look.flavor else {}
        tree, node = self.quotas.tree, self.runs.node_of(name)
        more = tree.handed_up_to(node, child, amounts)
        borrows = any(child.usage.get(key, 0) + more.get(key, 0) > child.subtree.get(key, 0) for key in amounts)
        return borrows, tree.share_of(child, more, {}), -self.runs.priority_of(name)

    # -- one look ------------------------------------------------------------------------------------------------

    def look(self, name: str) -> Look:
        """What one gets as things are."""
        queue = self.queues[self.known[name].queue]
        best, modes = Look(NO_FIT, "", 0), dict[FlavorResource, tuple[int, int]]()
        flavors, tried = [quotas.flavor for group in queue.groups for quotas in group.flavors], -1
        for tried in range(self._next_flavor(name), len(flavors)):
            flavor = flavors[tried]
            found = {
                key: self._fits_resource(name, key, amount)
                for key, amount in self.runs.amounts_of(name, flavor).items()
            }
            worst = FIT, 0
            for each in found.values():
                worst = each if _is_preferred(worst, each) else worst
            if Rule.LEVELS in self.ours:
                worst = worst[0], max((level for _, level in found.values()), default=0)
            ends = _ends_search(queue, *worst)
            if ends or _is_preferred(worst, (best.mode, best.level)):
                best, modes = Look(worst[0], flavor, worst[1]), found
            if ends:
                break
        level = max((level for _, level in modes.values()), default=0)
        best = best._replace(tried=-1 if best.mode == NO_FIT or tried == len(flavors) - 1 else tried)
        if best.mode in {NO_FIT, FIT}:
            return best._replace(level=level)
        contested = frozenset(key for key, (mode, _) in modes.items() if mode < FIT)
        amounts = self.runs.amounts_of(name, best.flavor)
        victims = VictimSearch(self.runs, self.ours, name, amounts, contested).victims()
        return best._replace(level=level, victims=tuple(victims))

    def _fits_resource(self, name: str, key: FlavorResource, amount: int) -> tuple[int, int]:
        """The mode, and how high it borrows; where it preempts, once its victims are gone."""
        node = self.runs.node_of(name)
        if amount > self.quotas.limit(node.name, key):
            return NO_FIT, 0
        level, below_root = self._lowest_subtree(node, key, amount)
        if amount <= self.runs.available(node.name, key):
            return FIT, level
        policy = self.queues[node.name].preemption
        if not (
            node.quota[key].nominal >= amount
            or below_root
            or policy.borrowing
            or (self.runs.fair and policy.reclaim is not Reclaim.NEVER)
            or Rule.GATE in self.ours
        ):
            return NO_FIT, level
        amounts, contested = {key: amount}, frozenset({key})
        if Rule.TOGETHER in self.ours:
            amounts = self.runs.amounts_of(name, key[0])
            contested = frozenset(k for k, asked in amounts.items() if asked > self.runs.available(node.name, k))
        found = VictimSearch(self.runs, self.ours, name, amounts, contested).victims()
        if not found:
            return NO_CANDIDATES, level
        depth = self.quotas.begin()
        for victim, _ in found:
            self.quotas.release_quota(victim)
        level, _ = self._lowest_subtree(node, key, amount)
        self.quotas.rollback(depth)
        own = any(self.runs.node_of(victim) is node for victim, _ in found)
        return (PREEMPT if own else RECLAIM), level

    def _lowest_subtree(self, node: TreeNode, key: FlavorResource, amount: int) -> tuple[int, bool]:
        """The height of the lowest subtree that has so much, and whether that is not all of the tree."""
        used = node.usage.get(key, 0)
        if used + amount <= node.subtree.get(key, 0) or not node.path:
            return 0, bool(node.path)
        rest = amount - max(0, node.local.get(key, 0) - used)
        for above in node.path:
            if above.usage.get(key, 0) + rest <= above.subtree.get(key, 0):
                return self.quotas.tree.height_of(above), bool(above.path)
            rest -= max(0, above.local.get(key, 0) - above.usage.get(key, 0))
        return self.quotas.tree.height_of(node.root), False


def _ends_search(queue: ClusterQueue, mode: int, level: int) -> bool:
    if mode in {NO_FIT, NO_CANDIDATES} or (mode != FIT and not queue.preempt_first):
        return False
    return not level or queue.borrow_first


def _is_preferred(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Kueue's ``isPreferred``, with the preference BorrowingOverPreemption."""
    if NO_FIT in {one[0], other[0]}:
        return one[0] != NO_FIT
    return one[0] > other[0] if one[0] != other[0] else one[1] < other[1]
