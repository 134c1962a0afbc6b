"""What to do about a job that has a Workload: plain functions of what was seen, like its neighbours.

    waiting --(cycle admits)--> QuotaReserved --(checks ready)--> Admitted --> started --> PodsReady --> Finished
       ^                              |                              |            |             |
       |                              +------------ Evicted <--------+------------+-------------+
       +---- (backoff) <---- released <--- suspended <--- its pods are gone

Rules
- `live_on` looks at the level of things, not at changes: what it asks for is done when it shows in the next `Life`;
  asked again about the same `Life` it answers the same. So a restart at any point goes on where it stopped.
- What is evicted goes in this order: the condition Evicted, its pods one by one, the job suspended, the admission
  removed. Only then it gives back quota and room (`ClearAdmission`), and waits again.
- While a job is on its way out, nothing else is done with it.
- A job without a queue has a shorter life: nobody here suspends it, waits for its pods to be ready, or ends it after a
  time. It is evicted where it is made inactive, and where pods of lost nodes have no other place; pods that are made
  anew stay behind the gate.
- Times out of a condition are those of the API server (``lastTransitionTime``), in seconds, on the clock of ``wall``.
"""

from collections.abc import Iterator
from math import inf
from typing import Final

from engine.reasons import Reason
from kube.objects import condition, is_true
from ungater.model import conditions as names
from ungater.model.actions import (
    Action,
    ClearAdmission,
    Deactivate,
    Dequeue,
    Enqueue,
    Evict,
    EvictPods,
    EvictSome,
    FreeCapacity,
    LeaveOut,
    LoseTurns,
    Release,
    RequeueAfter,
    RestoreAdmission,
    Start,
    Suspend,
    Ungate,
    UpdateSpec,
    WriteConditions,
)
from ungater.model.conditions import WantedCondition, timestamp
from ungater.model.held_pods import HoldReason
from ungater.model.job_view import JobView
from ungater.model.life import ON_HOLD, RELEASE, CheckVerdict, Evicted, Life, LifeRules
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry
from ungater.model.workload_spec import fingerprint
from ungater.reconcile import boosts, missing_pods, moves, native_groups, nominated_nodes
from ungater.reconcile.context import ReconcileContext
from ungater.reconcile.life_seen import is_unseen, pods_to_leave, read_life
from ungater.reconcile.partial_eviction import lost
from ungater.reconcile.pods_ready import SOON, write_ready
from ungater.reconcile.said import waits
from ungater.reconcile.ungating import running

SEEN_WITHIN = 60.0  # seconds in which a controller is to say that its job is suspended; pods are waited for afterwards
MOST_DOUBLINGS: Final = 32
BY_HAND: Final = "the job was suspended by hand, and waits in its queue again; to stop it: `topogate hold`"
_SLOW: Final = frozenset(
    {
        Reason.PODS_READY_TIMEOUT,
        Reason.PODS_MISSING,
        Reason.PODS_CHANGE,
        Reason.CHECK_RETRY,
        Reason.REPLACEMENT_TIMEOUT,
        Reason.POD_GROUP_HELD,
    }
)  # back off
_LAST: Final = frozenset({Reason.CHECK_REJECTED, Reason.MAXIMUM_EXECUTION_TIME})  # it does not come back


_REFUSES: Final = {CheckVerdict.REJECTED: Reason.CHECK_REJECTED, CheckVerdict.RETRY: Reason.CHECK_RETRY}


def follow_life(entry: WorkloadEntry, rules: ReconcileContext, now: float, wall: float) -> list[Action]:
    """The actions for a job that has a Workload; ``now`` and ``wall`` as in `reconcile.reconcile`."""
    observed = entry.observed
    if observed is None:
        raise AssertionError(f"{entry.key}: no Workload")
    if entry.admission is not None and observed.admission is None:
        # Before anything else: pods run by what is held, and no pod may go before it is stored again.
        return [RestoreAdmission()]
    life = read_life(entry, rules)
    if alone := _left_running(entry, observed, rules, now) or _cut_short(entry, observed, life, rules):
        return alone
    done = [*boosts.follow_boost(entry, life.reserved_at, rules, wall), *live_on(life, rules.life, wall)]
    if entry.admission is None:
        return [*done, *_waiting(entry, observed, life, rules, now, wall)]
    # An eviction that begins at this look counts too, so that no pod is let go beside it.
    leaving = life.evicted is not None or any(isinstance(one, Evict) for one in done)
    stops = leaving or life.suspended
    if stops or life.admitted_at is None:
        return [*done, *(nominated_nodes.before_admission(entry, entry.slots_in, rules, now) if not stops else ())]
    losing, missing = rules.losing(entry), missing_pods.give_up_missing(entry, rules.missing_pods, now)
    # What is given up for missing pods changes how many are wanted: the next look decides about the others by that.
    if any(not isinstance(one, RequeueAfter) for one in missing):
        return [*done, *missing]
    going_on = lost(entry, losing, rules, now) if losing is not None else running(entry, rules, now)
    # Turns come after the groups: a pod that its PodGroup holds back loses its turn at the node, too.
    together = native_groups.hold_groups_together(entry, going_on, rules, now)
    going = {one.pod.metadata.uid for one in (together if entry.held else ()) if isinstance(one, Ungate)}
    # Pods that waited for their turn at a node, and do not go there now whoever is on the way: another may go ahead of
    # them for the claim that they share, or what they ask for was changed. Nobody overtakes those who wait for a turn,
    # so all others would wait for them as long as they stay gated.
    out = [uid for uid, held in entry.held.items() if uid not in going and held.why is not HoldReason.REFUSED]
    return [*done, *missing, *([LoseTurns(tuple(out))] if out else ()), *together]


def _left_running(
    entry: WorkloadEntry, observed: ObservedWorkload, rules: ReconcileContext, now: float
) -> list[Action]:
    """What is said of one that runs since before there was a webhook, and whose queue does not exist; [] elsewhere.

    To suspend it would end its pods for nothing: no queue could ever resume it. (Kueue 0.19 does suspend it.)
    """
    owner = entry.job
    if entry.admission is not None or owner.suspended or not (owner.queue and is_unseen(entry, rules.keys)):
        return []
    if (missing := rules.no_queue(entry)) is None:
        return []
    if _edited(owner, observed):
        return [Dequeue(), UpdateSpec()]
    text = (
        f"{missing}: {owner.called} was started without Topogate and is left running, counted in no queue. Once that "
        "is there, it is suspended until it is admitted"
    )
    return [Dequeue(), *waits(entry, Reason.NO_QUEUE, text, now)]


def _cut_short(entry: WorkloadEntry, observed: ObservedWorkload, life: Life, rules: ReconcileContext) -> list[Action]:
    """What ends an admission, whatever else is to be done; [] if nothing does.

    Its queue is stopped before its checks were ready, others need its room, or the job was edited.
    """
    if entry.admission is None or life.evicted is not None:
        return []
    owner = entry.job
    not_started = owner.queue and owner.suspendable and owner.suspended and not life.started
    ends: list[Action] = []
    # Before an eviction, by which a queue that is drained has admitted ones go: this one ran nothing, and just waits.
    if owner.queue and life.admitted_at is None and (stopped := rules.find_stop(entry)) is not None:
        ends = [Dequeue(), Release(names.nothing_held(Reason.QUEUE_STOPPED, stopped))]
    elif entry.evict is not None:
        ends = [entry.evict]
    elif not_started and observed.copy_of != fingerprint(owner):
        message = f"{owner.kind} {owner.name} was edited after it was admitted: it waits to be admitted as it is now"
        ends = [Dequeue(), Release(names.nothing_held(Reason.PENDING, message))]
    return ends


def _edited(owner: JobView, observed: ObservedWorkload) -> bool:
    """Whether the Workload no longer says what the job asks for. Pods that no template made have none to copy."""
    copied = owner.suspendable or owner.foretold or owner.kinds
    if not owner.queue:
        return bool(observed.queue) or (copied and observed.copy_of != fingerprint(owner))
    copy = fingerprint(owner) if copied else observed.copy_of
    counts, least = tuple([one.full for one in owner.pod_sets]), max([one.least for one in owner.pod_sets])
    said = observed.counts, observed.queue, observed.least, observed.most_execution, observed.copy_of
    return said != (counts, owner.queue, least, owner.most_execution, copy)


def _waiting(  # noqa: PLR0917
    entry: WorkloadEntry, observed: ObservedWorkload, life: Life, rules: ReconcileContext, now: float, wall: float
) -> Iterator[Action]:
    """What one that holds nothing waits for."""
    if life.on_hold:
        yield from waits(entry, Reason.DEACTIVATED, ON_HOLD, now)
        return
    if life.suspended and _edited(entry.job, observed):
        yield Dequeue()  # else it may be admitted as what it was, in the queue that it named
        yield UpdateSpec()
    elif life.suspended:
        yield from moves.ended(entry)
        requeued = condition(observed.conditions, names.REQUEUED)
        if requeued is not None and requeued.reason == str(Reason.BACKING_OFF) and (observed.requeue_at or 0.0) <= wall:
            yield WriteConditions(
                (WantedCondition(names.REQUEUED, True, Reason.REQUEUED, "it waits again"),), delay=SOON
            )
        yield Enqueue(until=observed.requeue_at or 0.0)
        if outsiders := rules.outsiders(entry):
            yield EvictSome(outsiders)
        if entry.refused is not None:
            yield from waits(entry, entry.refused.reason, entry.refused.message, now)
    yield from nominated_nodes.before_admission(entry, rules.planned(entry), rules, now)


def end_without_workload(entry: WorkloadEntry, why: str, rules: ReconcileContext) -> Action:
    """Have its pods go, and then what it holds, without a word on its Workload, which is not there."""
    bound = pods_to_leave(entry, rules)
    return EvictPods(tuple(sorted(bound, key=lambda pod: pod.metadata.name)), why) if bound else FreeCapacity()


# --- the rules of life ---------------------------------------------------------------------------------------------


def live_on(life: Life, limits: LifeRules, wall: float) -> Iterator[Action]:
    """What is to be done now, in order; nothing where nothing is, and nothing is to be waited for but events."""
    # Without a reservation, Evicted is the past of a workload that waits again.
    if life.reserved_at is None:
        if not life.active:
            yield Dequeue()
        if not life.suspended:
            yield Suspend(life.unadmitted)  # nobody admitted it, or its admission was removed
        elif life.active and life.requeue_at is not None and wall < life.requeue_at:
            yield RequeueAfter(life.requeue_at - wall)
    elif life.evicted is not None:
        # Pods before the suspension: suspending a Job deletes its pods without asking their PodDisruptionBudgets.
        if life.bound:
            yield EvictPods(life.bound, life.evicted.message)
        elif not life.suspended:
            yield Suspend()
        else:
            yield from _give_back(life, life.evicted, limits, wall)
    elif wrong := next(_what_ends_it(life), None):
        # Before the conditions and the start: what is to end must not be admitted or started first.
        yield wrong
    elif life.admitted_at is None:
        yield _say_admitted(life)
    elif life.suspended:
        yield _start_job(life, life.admitted_at, wall)
    else:
        yield from _while_running(life, limits, wall, life.admitted_at)


def _give_back(life: Life, evicted: Evicted, limits: LifeRules, wall: float) -> Iterator[Action]:
    try:
        reason = Reason(evicted.reason)
    except ValueError:
        # One that somebody else wrote is like a preemption: its workload may come back.
        reason = Reason.PREEMPTED
    slow, last = reason in _SLOW, reason in _LAST
    # A preemption is no failure of the workload: it neither backs off nor counts against the limit.
    requeues = life.requeues + 1 if slow else life.requeues
    over = slow and limits.backoff_limit is not None and requeues > limits.backoff_limit
    if life.active and last:
        yield Deactivate(reason, evicted.message)
    elif life.active and over:
        text = f"it was put back {life.requeues} times, which is the limit; the last time: {evicted.message}"
        yield Deactivate(Reason.REQUEUE_LIMIT, text)
    until = wall
    if slow or reason is Reason.SCHEDULER_REFUSED:
        # From the eviction on and not from now: a restart in between must not begin the pause again.
        until = evicted.at + (seconds_away(limits, requeues) if slow else life.pause)
    leave = over or last or not life.active
    said = _returned(life, reason, evicted.message, until if until > wall else None, leave=leave)
    yield ClearAdmission(said, until, requeues, leave)


def seconds_away(limits: LifeRules, requeues: int) -> float:
    """Seconds before return number ``requeues`` (from 1)."""
    # The exponent is bounded, as anybody may write ``requeues`` into a status, and a float overflows at 1,024.
    return min(limits.backoff_most, limits.backoff * 2.0 ** min(max(requeues - 1, 0), MOST_DOUBLINGS))


def _returned(
    life: Life, reason: Reason, message: str, until: float | None, *, leave: bool
) -> tuple[WantedCondition, ...]:
    """What is said of one that holds nothing any more. ``until``: when it comes back, where that is later."""
    wanted = [WantedCondition(names.QUOTA_RESERVED, False, reason if leave else Reason.PENDING, message)]
    wanted += (
        WantedCondition(type_, False, reason, message)
        for type_ in (names.ADMITTED, names.PODS_READY)
        if is_true(life.conditions, type_)
    )
    if leave:
        said = condition(life.conditions, names.REQUEUED)
        if said is None or (said.status, said.reason) != ("False", str(Reason.REQUEUE_LIMIT)):  # which says more
            text = f"it comes back once spec.active of its Workload is true again: {message}"
            wanted.append(WantedCondition(names.REQUEUED, False, reason, text))
    elif until is not None:
        text = f"it comes back at {timestamp(until)}: {message}"
        # `_waiting` looks for this reason to say that the pause is over.
        wanted.append(WantedCondition(names.REQUEUED, False, Reason.BACKING_OFF, text))
    else:
        wanted.append(WantedCondition(names.REQUEUED, True, Reason.REQUEUED, f"it waits again: {message}"))
    return tuple(wanted)


def _what_ends_it(life: Life) -> Iterator[Evict]:
    """What ends at once one that holds quota and room; the first counts."""
    if not life.active:
        yield Evict(Reason.DEACTIVATED, f"it was put on hold (spec.active is false): {RELEASE}")
    for check in life.checks:
        if check.state in _REFUSES:
            yield Evict(_REFUSES[check.state], f"admission check {check.name}: {check.message or check.state}")
    # Only once it was started: between its admission and its start it is suspended by right.
    if life.started and life.suspended:
        yield Evict(Reason.SUSPENDED, BY_HAND)


def _say_admitted(life: Life) -> Action:
    """It has quota, and its checks say when it is admitted."""
    pending = [check.name for check in life.checks if check.state is CheckVerdict.PENDING]
    reason = Reason.PENDING if pending else Reason.ADMITTED
    text = "quota is reserved and all checks are ready" if life.checks else "quota is reserved"
    text = f"waits for admission check {', '.join(pending)}" if pending else text
    return WriteConditions((WantedCondition(names.ADMITTED, not pending, reason, text),))


def _start_job(life: Life, admitted_at: float, wall: float) -> Action:
    """It is admitted: its job is resumed, once nothing of an earlier run is in its way."""
    # A controller that has not seen yet that its job was suspended would delete pods of the new run for it.
    left = admitted_at + SEEN_WITHIN - wall if life.resumed else 0.0
    if left > 0:
        return RequeueAfter(left)
    old = [pod for pod in life.bound if pod.spec.node_name and pod.metadata.deletion_timestamp is not None]
    if not old:
        return Start()
    # Its controller makes new pods beside those that end (Kubernetes 1.37).
    first, others = old[0].metadata.name, len(old) - 1
    message = f"pod {first} of an earlier run still ends: the job is resumed once it is gone"
    if others:
        message = f"pod {first} and {others} more of an earlier run still end: the job is resumed once they are gone"
    return write_ready(Reason.SLOT_OCCUPIED, message, lost=None)


def _while_running(life: Life, limits: LifeRules, wall: float, admitted_at: float) -> Iterator[Action]:
    """Its job runs: the earliest of its deadlines. That its pods are ready is said with what else is known of them."""
    all_ready = life.ready >= life.wanted
    if not all_ready and life.ready_at is not None:
        text = f"{life.ready} of {life.wanted} pods are ready"
        yield WriteConditions((WantedCondition(names.PODS_READY, False, Reason.PODS_NOT_READY, text),))
    # By time alone: actions have no order, and of equal times the first one that was named wins.
    deadlines = sorted(_deadlines(life, limits, admitted_at, all_ready=all_ready), key=lambda one: one[0])
    for at, evict in deadlines[:1]:
        if at > wall:
            yield RequeueAfter(at - wall)
            return
        if evict.reason is Reason.PODS_READY_TIMEOUT and life.unstarted:
            yield LeaveOut(life.unstarted)  # else it may come back to the same nodes
        yield evict


def _deadlines(life: Life, limits: LifeRules, admitted_at: float, *, all_ready: bool) -> Iterator[tuple[float, Evict]]:
    """(when, what is to be done then)."""
    if not all_ready and life.ending_until < inf:  # pods that kube-scheduler would not bind yet are late for nobody
        # Once all were ready the recovery timeout counts, also where nobody noted when that ended.
        again = life.unready_at is not None or life.ready_at is not None
        since = life.unready_at if life.unready_at is not None else life.ready_at if again else admitted_at
        limit = limits.recovery_timeout if again else limits.ready_timeout
        if limit is not None and since is not None:
            text = f"{life.ready} of {life.wanted} pods were ready after {limit:g} seconds"
            text = f"{text}; {life.unstarted_message}" if life.unstarted else text
            yield max(since, life.ending_until) + limit, Evict(Reason.PODS_READY_TIMEOUT, text)
    if life.lost_at is not None and limits.replacement is not None:
        text = f"pods of lost nodes had no other place for {limits.replacement:g} seconds"
        yield life.lost_at + limits.replacement, Evict(Reason.REPLACEMENT_TIMEOUT, text)
    if life.most_execution is not None:
        text = f"it ran for {life.most_execution:g} seconds, which is its limit (maximumExecutionTimeSeconds)"
        # Time that it ran before its last eviction counts, or an eviction a day would let it run for ever.
        at = admitted_at + life.most_execution - life.executed
        yield at, Evict(Reason.MAXIMUM_EXECUTION_TIME, text)
