"""The admission cycle: one function, a recipe. What it decides is held already when it returns.

The caller stores what was admitted and what preempts, and carries out the evictions; where storing fails it calls
``queues.back``. Everything it needs to know for that is in `Decisions`.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

from engine.cluster.state import ClusterState
from engine.model import PODS
from engine.reasons import Reason
from engine.results import Refusal
from queueing import messages
from queueing.cycle import backfill, elastic
from queueing.cycle.nominate import Fits, Preempts, Waits, nominate
from queueing.cycle.shield import Failed, Shield
from queueing.model import asks_of
from queueing.preemption.plan import Victim
from queueing.queues.entry import AssumedAdmission, Entry, Phase
from queueing.queues.pending import EquivalenceClass, PendingQueue
from queueing.queues.queues import Queues

if TYPE_CHECKING:
    from queueing.model import Order, Workload

SEARCH: Final = 8  # looks that a search for victims counts for
DETAILS: Final = 10.0  # seconds for which the text of a refusal is good enough, while its reason stays the same


@dataclass(frozen=True)
class Admitted:
    """Store the grant (``status.admission``), then let the workload run. ``partly``: with fewer pods than it wants."""

    key: str
    grant: AssumedAdmission
    message: str
    partly: bool = False
    preempted: bool = False  # its victims are gone now


@dataclass(frozen=True)
class Preempting:
    """Store the nomination (grant, victims), then evict the victims; `Queues.release` each once its pods are gone."""

    key: str
    grant: AssumedAdmission
    victims: tuple[Victim, ...]
    message: str

    def told(self, victim: Victim) -> str:
        """What a victim is told."""
        return messages.preempted(self.key, self.grant.queue, victim.reason)


@dataclass(frozen=True)
class Waiting:
    """Say why it waits (``QuotaReserved=False``)."""

    key: str
    reason: Reason
    message: str


@dataclass(frozen=True)
class Drained:
    """Evict it: its queue is drained."""

    key: str
    reason: Reason
    message: str


@dataclass
class Decisions:
    """What one cycle decided.

    ``given_up``: nominations to remove from the API server, before anything else. ``more``: there is somebody to look
    at now; ``next_time``: when time alone helps next.
    """

    admitted: list[Admitted] = field(default_factory=list)
    preempting: list[Preempting] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    evict: list[Drained] = field(default_factory=list)
    resized: list[elastic.Resized] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    given_up: list[Waiting] = field(default_factory=list)
    more: bool = False
    next_time: float | None = None


def cycle(state: ClusterState, queues: Queues, now: float, limit: int = 64) -> Decisions:
    """One cycle with about ``limit`` looks at most; a search for victims counts for several.

    ``now`` in seconds, on the clock of the workloads' creation times. An error that one workload leads to is that
    workload's alone (`Failed`).
    """
    made = Decisions()
    shield = Shield(state, queues, now, made.failed)
    queues.fresh &= queues.storing  # the others are stored by now
    # 1. Time: who was put off and is due waits again.
    queues.due(now)
    # 2. Drained queues: what is admitted there goes.
    made.evict += _drained(queues)
    # 3. Nominated: one whose victims are all gone is admitted, into the room that was kept for it.
    for key in list(queues.nominated):
        with shield(key):
            _made_room(state, queues, now, key, made)
    # 4. Claims: who has waited too long keeps the room and the quota it needs from those behind it. After a restart,
    #    who has is looked at before anybody else.
    for entry in backfill.renew(state, queues, shield):
        if (group := entry.group) is not None and group.head == entry.order and _may_be_next(group):
            with shield(entry.workload.key):
                _decide(state, queues, shield, group, made)
    # 5. Growth: who is admitted and wants more pods gets them before anybody new.
    for key in elastic.eager(queues):
        with shield(key):
            made.resized += elastic.grow(state, queues, key)
    # 6. Turns: one queue after the other, the first of each, until nobody is left or the limit is reached.
    turns = _Turns(state, queues, shield)
    for group in turns.first(limit):
        with shield(head_of(group)):
            _decide(state, queues, shield, group, made)
    # 7. Admissions help few: who looks at other pods, who may take back what somebody borrows now, and who waits until
    #    those that were just admitted may be victims.
    queues.pending.wake(set(chain.from_iterable(queues.took(one.grant) for one in made.admitted)))
    # 8. Whoever joined those who wait and was not looked at hears why.
    made.waiting += _told(queues, limit)
    made.more = any(line.next() is not None for line in queues.lines.values())
    made.next_time = queues.next_time()
    return made


def _may_be_next(group: EquivalenceClass) -> bool:
    return not group.parked and (not group.line.strict or group.line.next() is group)


def _drained(queues: Queues) -> Iterator[Drained]:
    for key in sorted(queues.drains):
        entry = queues.entries[key]
        if not entry.drained:
            entry.drained = True
            queues.evict(key)
            yield Drained(
                key, Reason.QUEUE_DRAINED, f"cluster queue {entry.queue} is drained (stopPolicy HoldAndDrain)"
            )


def _made_room(state: ClusterState, queues: Queues, now: float, key: str, made: Decisions) -> None:
    """Admit one for whom all victims are gone."""
    entry = queues.entries[key]
    grant = entry.grant
    if entry.victims or grant is None:
        return
    why = ""
    if _overfull(state, queues, entry.workload, grant):
        why = "a node of the room that was made for it is lost, or too small now"
    elif not _quota_suffices(queues, key, grant):
        if queues.quotas.sharing(grant.queue, queues.evicting):
            return  # it does once others have gone too, who were on their way out when it was planned
        why = "the quota that was made free for it was lowered, or is used by others now"
    if why:
        queues.back(state, key, now)
        made.given_up.append(Waiting(key, Reason.PENDING, f"{why}; it waits again"))
        return
    queues.grant(state, key, grant)
    queues.fresh.add(key)
    made.admitted.append(Admitted(key, grant, _admitted(grant, partly=False), preempted=True))


def _quota_suffices(queues: Queues, key: str, grant: AssumedAdmission) -> bool:
    """Whether what a nominated workload is to get fits beside what others hold, but for what their victims hold too."""
    quotas = queues.quotas
    depth = quotas.begin()
    quotas.free_all([key, *queues.quotas.sharing(grant.queue, queues.promised())])
    fits = quotas.fits(grant.queue, grant.amounts, non_preemptible=queues.spared_in_queue(queues.entries[key]))
    quotas.rollback(depth)
    return fits


def _overfull(state: ClusterState, queues: Queues, workload: "Workload", grant: AssumedAdmission) -> bool:
    """Whether a node is too small for what is to go there. What others wait for, their victims hold as well.

    Pods that no queue admitted may have come since, perhaps in place of those that were evicted: kube-scheduler lets
    ours preempt them. Evicting each of them here would go on for ever.
    """
    names = {name for part in grant.assignments for piece in part.slices for name, _ in piece.nodes}
    if any(name not in state.nodes for name in names):
        return True
    with queues.counted_once(state):
        free = {name: dict(state.free(name)) for name in names}
    short = {name for name, amounts in free.items() if min(amounts.values(), default=0) < 0}
    for entry in queues.outside.values() if short else ():
        pod = entry.outside
        if pod is not None and pod.node in short and pod.priority < workload.outranks:
            for resource, amount in {PODS: 1, **pod.requests}.items():
                free[pod.node][resource] = free[pod.node].get(resource, 0) + amount
    return any(min(free[name].values(), default=0) < 0 for name in short)


class _Turns:
    """Whose turn it is.

    Every queue with somebody to look at has one turn a round. Within a round: who does not borrow first, then priority,
    then time. With fair sharing the least share (with what its first wants) comes before rounds. A queue that had
    nobody joins at the present round: it neither catches up nor falls behind.
    """

    def __init__(self, state: ClusterState, queues: Queues, shield: Shield) -> None:
        self.state = state
        self.queues = queues
        self.shield = shield
        self.heap: list[tuple[float, int, bool, Order, str]] = []
        for line in queues.lines.values():
            self.enter(line)
        heapq.heapify(self.heap)

    def enter(self, line: PendingQueue) -> None:
        """A queue takes part if it has somebody to look at."""
        while (group := line.next()) is not None and line.queue in self.queues.quotas.queues:
            if not line.active:
                line.active, line.turn = True, max(line.turn, self.queues.turn)
            with self.shield(head_of(group)):
                share, borrows = self._claim(line, group)
                head = group.head
                assert head is not None  # noqa: S101  (``next`` gives groups that have one)
                heapq.heappush(self.heap, (share, line.turn, borrows, head, line.queue))
                return
        line.active = False

    def _claim(self, line: PendingQueue, group: EquivalenceClass) -> tuple[float, bool]:
        quotas = self.queues.quotas
        if not quotas.queues[line.queue].cohort:
            return 0.0, False
        found = self.queues.options_of(self.state, group).found
        amounts = found[0].amounts if found else {}
        share = quotas.share(line.queue, more=amounts) if self.queues.rules.fair else 0.0
        return share, quotas.borrows(line.queue, amounts)

    def first(self, limit: int) -> Iterator[EquivalenceClass]:
        """The groups whose first is to be looked at, one after the other."""
        left = limit
        while self.heap and left > 0:
            line = self.queues.lines[heapq.heappop(self.heap)[-1]]
            group = line.next()
            if group is None:
                continue
            searches = self.queues.searches
            self.queues.turn = max(self.queues.turn, line.turn)
            line.turn += 1
            yield group
            left -= 1 + SEARCH * (self.queues.searches - searches)
            self.enter(line)


def head_of(group: EquivalenceClass) -> str:
    """The key of the first of a group."""
    return group.head[2] if group.head is not None else ""


def _decide(state: ClusterState, queues: Queues, shield: Shield, group: EquivalenceClass, made: Decisions) -> None:
    """Look at the first of a group, hold what it gets, or park the group."""
    head = group.head
    assert head is not None  # noqa: S101  (``_Turns`` gives groups that have one)
    entry = queues.entries[head[2]]
    lifted = [claim for claim in queues.claims.values() if claim.order >= entry.order]
    backfill.open_(state, lifted)
    try:
        _look_at(state, queues, shield, entry, made)
    finally:
        for claim in lifted:
            with shield(claim.key):
                if backfill.settle(state, queues, claim, shield.now):
                    backfill.close(state, queues, claim)
                    backfill.settle(state, queues, claim, shield.now)


def _look_at(state: ClusterState, queues: Queues, shield: Shield, entry: Entry, made: Decisions) -> None:
    key, outcome = entry.workload.key, nominate(state, queues, entry)
    match outcome:
        case Fits(option, assignments, counts):
            asks = asks_of(entry.workload)
            grant = AssumedAdmission(entry.queue, counts, option.flavors, option.amounts, assignments, asks)
            queues.grant(state, key, grant)
            queues.fresh.add(key)
            partly = any(counts[p.name] < p.count for p in entry.workload.pod_sets)
            made.admitted.append(Admitted(key, grant, _admitted(grant, partly=partly), partly))
        case Preempts(option, plan, counts):
            asks = asks_of(entry.workload)
            grant = AssumedAdmission(entry.queue, counts, option.flavors, option.amounts, plan.assignments, asks)
            parts = {victim.key: victim.domains for victim in plan.victims if victim.domains}
            queues.grant(state, key, grant, nominated=[victim.key for victim in plan.victims], parts=parts)
            made.preempting.append(Preempting(key, grant, plan.victims, messages.preempting(plan)))
        case Waits():
            if _wait(queues, shield.now, entry, outcome, made):
                backfill.refused(state, queues, entry, shield)


def _wait(queues: Queues, now: float, entry: Entry, waits: Waits, made: Decisions) -> bool:
    """Park its group. Returns whether it was refused for the first time."""
    group, key = entry.group, entry.workload.key
    assert group is not None  # noqa: S101  (it was looked at in its line)
    queues.pending.park(group, waits.events, aside=waits.aside)
    before = group.refusal
    if before is None or before.reason is not waits.reason or now - group.refused_at >= DETAILS:
        group.refusal, group.refused_at = waits.refusal(), now
    if entry.refusal != group.refusal and group.refusal is not None:
        entry.refusal = group.refusal
        made.waiting.append(Waiting(key, group.refusal.reason, group.refusal.message))
    queues.news.pop(key, None)
    return before is None


def _told(queues: Queues, limit: int) -> Iterator[Waiting]:
    for key in list(queues.news)[:limit]:
        del queues.news[key]
        entry = queues.entries.get(key)
        if entry is None or entry.phase not in {Phase.STUCK, Phase.WAITING}:
            continue
        refusal = entry.refusal or _behind(queues, entry)
        if refusal is None:
            queues.news[key] = None  # its turn comes
        else:
            entry.refusal = refusal
            yield Waiting(key, refusal.reason, refusal.message)


def _behind(queues: Queues, entry: Entry) -> Refusal | None:
    """Why one waits that is not looked at, because somebody before it would be."""
    group = entry.group
    if group is None:
        return None
    first = queues.entries[group.head[2]] if group.head else entry
    if group.parked and group.refusal is not None:
        text = f"{first.workload.key}, which wants the same, comes before it in cluster queue {entry.queue} and waits: "
        return Refusal(group.refusal.reason, text + group.refusal.message, flavor=group.refusal.flavor)
    blocker = next(iter(queues.waiting(entry.queue)), "") if group.line.next() is None else ""
    if blocker and blocker != entry.workload.key:
        text = f"cluster queue {entry.queue} is StrictFIFO, and {blocker} before it waits"
        return Refusal(Reason.BEHIND_OTHERS, text)
    return None


def _admitted(grant: AssumedAdmission, *, partly: bool) -> str:
    flavors = [flavor for by_resource in grant.flavors.values() for flavor in by_resource.values()]
    flavors += [part.flavor for part in grant.assignments]
    return messages.admitted(grant.queue, dict(grant.counts), flavors, partly=partly)
