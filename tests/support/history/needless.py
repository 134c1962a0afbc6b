"""Nobody is evicted for room that was free, or that came free: judged in the moment in which a plan is made.

What is free is added up node by node, without the engine's search. So it says that a workload would have fitted only
where that is certain: within the nominal quota of its queue, its pod sets beside one another wherever they go. Of pod
sets that share a domain or are kept off some nodes, and of more pods for a workload that is admitted, it says nothing.

- A workload that would surely fit in what is free preempts nobody.
- Neither does one that would surely fit once the pods are gone that were told to stop, with what holds no more pods.
- Whoever is let into such room, though another one comes first and then fits no more, is not that one's victim a moment
  later: it was free a second before. Half of a cycle's looks go to those who have waited longest for one, whoever comes
  first (docs/queues.md, "Order"): of these it says nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from unittest.mock import patch

from engine.cluster.state import ClusterState
from engine.model import PODS, PodSet, Policy
from engine.reservation_key import ReservationKey, Role, order_of, role_of
from engine.results import Refusal
from queueing.cycle import cycle
from queueing.cycle.nominate import Fits, Outcome, Preempts
from queueing.model import Workload
from queueing.queues.entry import Entry, Phase
from queueing.queues.flavor_assigner import FlavorAssignment, put
from queueing.queues.held import Held
from queueing.queues.pending import EquivalenceClass
from queueing.queues.pending_workloads import PendingWorkloads
from queueing.queues.queues import Queues
from queueing.queues.quota import Quotas
from ungater import kinds
from ungater.cache.cache import Cache
from ungater.controller import Controller

BELIEVED = 30.0  # seconds for which whatever stops is taken to do so: half of what the controller takes
A_MOMENT = 20.0  # seconds after which whoever got in may be evicted again


@contextmanager
def judged_plans(
    say: Callable[[str], None], now: Callable[[], float], stopping: Callable[[], Iterable[str]]
) -> Iterator[None]:
    """Each plan of a cycle is judged as it is made; ``say`` is told what is wrong. ``now``: on the cycle's clock.

    ``stopping``: the pods that the controller has seen to be told to stop, on nodes that end them.
    """
    decide, judge = cycle.nominate, _Plans(say, now, stopping)

    def nominate(state: ClusterState, queues: Queues, entry: Entry) -> Outcome:
        judge.see_leavers(queues)
        outcome = decide(state, queues, entry)
        if isinstance(outcome, Preempts):
            judge.see_plan(state, queues, entry, outcome)
        elif isinstance(outcome, Fits):
            judge.see_admission(state, queues, entry, outcome)
        return outcome

    in_turn = PendingWorkloads.groups_in_turn

    def seen_in_turn(self: PendingWorkloads) -> Iterator[EquivalenceClass]:
        for group in in_turn(self):
            judge.in_turn = group
            yield group
            judge.in_turn = None

    with patch.object(cycle, "nominate", nominate), patch.object(PendingWorkloads, "groups_in_turn", seen_in_turn):
        yield


def stopping(controller: Controller) -> Iterator[str]:
    """The pods that a controller has seen to be told to stop, on nodes that end them."""
    nodes = controller.parts.cache.state.nodes
    for key, pod in controller.parts.informers.of(kinds.PODS).store.items():
        node = nodes.get(pod.spec.node_name)
        if pod.metadata.deletion_timestamp is not None and node is not None and node.ready:
            yield key


def kept(cache: Cache) -> Iterator[str]:
    """What is kept for successors though nothing leaves any more; between cycles nothing is held for them at all."""
    yield from (f"{key} follows those that leave, and nobody does" for key in cache.queues.successors)
    held = {*cache.state.workloads, *cache.queues.quotas.held}
    yield from (
        f"{key!r} is held between cycles" for key in sorted(held, key=order_of) if role_of(key) is Role.SUCCESSOR
    )


class _Passed(NamedTuple):
    """When one got in before another one, what that one wanted, and the workloads that were believed to leave then."""

    at: float
    wanted: Workload
    leaving: frozenset[str]


@dataclass
class _Plans:
    """See the module. ``passed``: who got in before another one, by both names."""

    say: Callable[[str], None]
    now: Callable[[], float]
    stopping: Callable[[], Iterable[str]]
    passed: dict[tuple[str, str], _Passed] = field(default_factory=dict)
    in_turn: EquivalenceClass | None = None  # that is looked at whatever its place
    claimed_at: float = -1.0  # when somebody was let in last while there were claims
    _since: dict[str, float] = field(default_factory=dict)  # who leaves, and when it was first seen to

    def see_leavers(self, queues: Queues) -> None:
        """Somebody is looked at: who leaves now is believed to from now on."""
        now = self.now()
        self._since = {key: self._since.get(key, now) for key in {*self.stopping(), *queues.holders.evicting}}

    def see_plan(self, state: ClusterState, queues: Queues, entry: Entry, outcome: Preempts) -> None:
        """Somebody is to have others evicted."""
        key, now, victims = entry.workload.key, self.now(), [victim.key for victim in outcome.plan.victims]
        told = f"{key} preempts {', '.join(victims)}, and "
        if would_fit(state, queues, entry, outcome.option):
            self.say(told + "would fit in what is free")
        elif not queues.claims and not self._waited(queues, entry):
            with self._without_leavers(state, queues):
                for one in queues.successors.values():
                    if one.holder in queues.quotas.held:  # who comes before it gets all that it waits for
                        queues.quotas.charge_workload(one.holder, Held(one.entry.queue, one.option.amounts))
                if would_fit(state, queues, entry, outcome.option):
                    self.say(told + f"would fit once those are gone that leave: {sorted(self._since)}")
        for victim in victims:
            passed = self.passed.get((victim, key))
            if passed is None or now - passed.at >= A_MOMENT or passed.wanted != entry.workload:
                continue
            # A workload whose pods ended is believed for ten seconds to leave. What it held did not come free if its
            # owner takes longer than that, and there was room for both only with it.
            if all(one in queues.leaving.workloads or one not in state.workloads for one in passed.leaving):
                self.say(told + f"{victim} got {now - passed.at:.1f} s ago what was coming free for it")

    def see_admission(self, state: ClusterState, queues: Queues, entry: Entry, made: Fits) -> None:
        """Somebody is let in: whoever came first for what it gets, and fits no more, is passed."""
        key = entry.workload.key
        for pair in [pair for pair in self.passed if pair[0] == key]:
            del self.passed[pair]
        if self.in_turn is not None and self.in_turn is entry.group:
            return
        if queues.claims:  # until then it keeps more than its own place from who was looked at before
            self.claimed_at = self.now()
        first = None if self.claimed_at == self.now() else self._first(state, queues)
        if first is not None and (first.workload.key in queues.leaving.spent or self._waited(queues, first)):
            return  # it was given up once, as it gave way to somebody, or waited for as long as anybody may
        if first is None or first is entry or not _comes_before(queues, first, entry, made.option):
            return
        option = _option(state, queues, first)
        with self._without_leavers(state, queues), _without_successors(state, queues):
            surely = would_fit(state, queues, first, option)
            state.reserve(key, made.assignments)
            queues.quotas.charge_workload(key, Held(entry.queue, made.option.amounts))
            if surely and not _fits(state, queues, first):
                leaving = frozenset(queues.leaving.workloads)
                self.passed[key, first.workload.key] = _Passed(self.now(), first.workload, leaving)

    def _waited(self, queues: Queues, entry: Entry) -> bool:
        """Whether one waited for those that leave for as long as anybody may, since it began to wait.

        Then it does not wait for others that begin to leave, and preempts as usual (docs/queues.md, "Room that comes
        free bit by bit").
        """
        long = self.now() - entry.since >= queues.rules.leaving
        return long and not queues.leaving.may_follow(entry.workload.key)

    def _first(self, state: ClusterState, queues: Queues) -> Entry | None:
        """The first in the order of those that fit once the others are gone that leave."""
        waiting = [one for one in queues.entries.values() if one.phase is Phase.WAITING and _is_next(queues, one)]
        waiting = [one for one in waiting if _option(state, queues, one) is not None and not one.workload.follows]
        waiting.sort(key=lambda one: queues.rank_of_entry(one, _option(state, queues, one).amounts))
        with self._without_leavers(state, queues), _without_successors(state, queues):
            return next((one for one in waiting if _fits(state, queues, one)), None)

    @contextmanager
    def _without_leavers(self, state: ClusterState, queues: Queues) -> Iterator[None]:
        """As things are once all are gone that leave; nothing that is done meanwhile stays."""
        now = self.now()
        gone = sorted(key for key, since in self._since.items() if now - since < BELIEVED)
        stop = {key for key in self.stopping() if key in state.pods}
        held = {*queues.leaving.workloads, *queues.holders.evicting.keys() & set(gone)} & queues.entries.keys()
        pods = {key for key in gone if key in stop}.union(*(queues.entries[key].pods for key in held))
        checkpoint, depth = state.begin(), queues.quotas.begin()
        try:
            for pod in sorted(pods):
                state.remove_pod(pod, deallocated=True)
            state.release_all(sorted(held))
            queues.quotas.free_all([*map(ReservationKey.for_orphan, sorted(pods)), *sorted(held)])
            yield
        finally:
            state.rollback(checkpoint)
            queues.quotas.rollback(depth)


@contextmanager
def _without_successors(state: ClusterState, queues: Queues) -> Iterator[None]:
    """Without what is kept for those who follow."""
    held = [one.holder for one in queues.successors.values()]
    checkpoint, depth = state.begin(), queues.quotas.begin()
    try:
        state.release_all(held)
        queues.quotas.free_all(held)
        yield
    finally:
        state.rollback(checkpoint)
        queues.quotas.rollback(depth)


def _is_next(queues: Queues, entry: Entry) -> bool:
    """Whether a workload that waits may be let in, and nobody of its queue is to be looked at before it."""
    group, queue = entry.group, queues.quotas.queues.get(entry.queue)
    if group is None or queue is None or not queue.claims or group.head != entry.order:
        return False
    place = queues.place_of(entry)
    if any(one.entry.queue == entry.queue and queues.place_of(one.entry) < place for one in queues.successors.values()):
        return False  # whoever passes that one, as both would borrow, passes this one too
    if queue.strict:
        return next(iter(queues.waiting(entry.queue)), "") == entry.workload.key
    following = group.line.next()
    return following is None or following.head is None or place <= queues.place_of(queues.entries[following.head.key])


def _comes_before(queues: Queues, first: Entry, other: Entry, option: FlavorAssignment) -> bool:
    """Whether one may have the other evicted, and so comes before it: by its priority, or as the other one borrows."""
    if first.queue == other.queue:
        return first.workload.priority > other.workload.priority
    return queues.quotas.borrows(other.queue, option.amounts)


def _option(state: ClusterState, queues: Queues, entry: Entry) -> FlavorAssignment | None:
    assert entry.group is not None
    return next(iter(queues.options_of(state, entry.group).found), None)


def _fits(state: ClusterState, queues: Queues, entry: Entry) -> bool:
    """Whether there is quota and room for one, as the engine has it."""
    option = _option(state, queues, entry)
    if option is None or not queues.limits(entry).fits_limits(option.amounts):
        return False
    return not isinstance(put(state, entry.workload.key, option), Refusal)


def would_fit(state: ClusterState, queues: Queues, entry: Entry, option: FlavorAssignment) -> bool:
    """Whether one surely could be admitted with nobody evicted."""
    quotas, queue = queues.quotas, entry.queue
    for key, amount in option.amounts.items():
        members = quotas.members(queue)
        left = sum(quotas.nominal(name, key) - quotas.used(name, key) for name in members)
        if quotas.used(queue, key) + amount > quotas.nominal(queue, key) or amount > left:
            return False
    # Of what a queue has in a tree others may have borrowed, and what the rest has may not be lent.
    if _has_tree(quotas) and not queues.limits(entry).fits_limits(option.amounts):
        return False
    return all(
        not part.group
        and part.node_affinity is None
        and part.count + sum(_beside(part, other) for other in parts if other is not part) <= room
        for flavor, parts in option.parts
        for part in parts
        for room in [_room(state, flavor, part)]
    )


def _has_tree(quotas: Quotas) -> bool:
    """Whether there is more than queues that lend each other all that they have."""
    groups = (group for queue in quotas.queues.values() for group in queue.groups)
    each = (quota for group in groups for flavor in group.flavors for quota in flavor.resources.values())
    return bool(quotas.cohorts) or any(not (quota.borrowing is None and quota.lending is None) for quota in each)


def _room(state: ClusterState, flavor: str, part: PodSet) -> int:
    """Most pods of a pod set that fit in one domain of its level, where it has to be in one."""
    has, level = state.flavors[flavor], part.topology.level
    required = part.topology.policy is Policy.REQUIRED and level is not None
    upper = has.levels[: has.levels.index(level) + 1] if required else ()
    wanted = {PODS: 1, **part.requests}
    refused = {node for term in part.node_affinity or () for need in term.fields for node in need.values}
    room: Counter = Counter()
    for name, node in state.nodes.items():
        labels = [*has.node_labels.items(), *part.node_selector.items()]
        fits = node.ready and not node.unschedulable and all(node.labels.get(key) == value for key, value in labels)
        if fits and name not in refused and flavor in state.flavors_on(name):
            free = state.free_on_node(name)
            takes = min(free.get(resource, 0) // amount for resource, amount in wanted.items() if amount)
            room[tuple(node.labels[key] for key in upper)] += max(0, takes)
    return max(room.values(), default=0)


def _beside(part: PodSet, other: PodSet) -> int:
    """Places for pods of a pod set that those of another may take, wherever they go."""
    each = [-(-other.requests.get(resource, 0) // amount) for resource, amount in part.requests.items() if amount]
    return other.count * max(1, *each) if each else other.count
