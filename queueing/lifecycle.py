"""A workload's life after it was submitted: from what is known of it to what is to be done next. Pure.

    waiting --(cycle admits)--> QuotaReserved --(checks ready)--> Admitted --> started --> PodsReady --> Finished
       ^                              |                              |            |             |
       |                              +------------ Evicted <--------+------------+-------------+
       +---- (backoff) <---- released <--- suspended <--- its pods are gone

Rules
- ``decide`` looks at the level of things, not at changes: what it asks for is done when it shows in the next `Life`;
  asked again about the same `Life` it answers the same. So a restart at any point goes on where it stopped.
- What is evicted goes in this order: the condition Evicted, its pods one by one, the job suspended, the admission
  removed. Only then it gives back quota and room (``ReleaseStep``), and waits again.
- Times out of a condition are those of the API server (``lastTransitionTime``), in seconds, on the clock of ``now``.
"""

from collections.abc import Iterator
from enum import StrEnum
from math import inf
from typing import Final

import msgspec

from engine.reasons import Reason

MOST_DOUBLINGS: Final = 32
RELEASE: Final = "`topogate release` has it wait again"
ON_HOLD: Final = f"it is on hold (spec.active is false): {RELEASE}"
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


class WorkloadCondition(StrEnum):
    """The conditions of a Workload."""

    QUOTA_RESERVED = "QuotaReserved"
    ADMITTED = "Admitted"
    PODS_READY = "PodsReady"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    REQUEUED = "Requeued"
    FINISHED = "Finished"


class CheckVerdict(StrEnum):
    """What an admission check says."""

    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"
    REJECTED = "Rejected"


class _Struct(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    pass


class LifeRules(_Struct, frozen=True):
    """Timeouts in seconds; None: none.

    ``ready_timeout``: until all pods are ready, from admission on (waitForPodsReady); ``recovery_timeout``: until they
    are ready again, once they were. ``backoff``: before the first return after a timeout, doubled each time up to
    ``backoff_most``; after ``backoff_limit`` returns (None: no limit) the workload is deactivated. ``replacement``: how
    long pods of lost nodes may be without another place. ``retention``: how long a finished Workload is kept.
    """

    ready_timeout: float | None = None
    recovery_timeout: float | None = None
    backoff: float = 60.0
    backoff_most: float = 3600.0
    backoff_limit: int | None = None
    replacement: float | None = None
    retention: float | None = None


class Check(_Struct, frozen=True):
    """One admission check's answer."""

    name: str
    state: CheckVerdict
    message: str = ""


class Evicted(_Struct, frozen=True):
    """The condition Evicted, while it is True."""

    reason: str
    message: str
    at: float


class Life(_Struct, frozen=True):
    """What is known of one workload. Times of things that are not so are None.

    ``outcome``: Succeeded or Failed once its job ended. ``bound``: its pods that hold room on a node. ``started``: its
    job was unsuspended since it was admitted. ``wanted`` and ``ready`` count pods, finished ones as ready.
    ``unready_at``: since when not all are ready, where they were. ``lost_at``: since when pods of lost nodes have no
    place. ``ending_until``: until when its gates were kept as pods of its PodGroup ended; inf while some do.
    ``executed``: seconds it was admitted before its last eviction. ``most_execution``: how long it may run.
    ``pause``: seconds for which it stays away after an eviction that is not its own trouble (SchedulerRefused).
    """

    key: str
    active: bool = True
    outcome: Reason | None = None
    outcome_message: str = ""
    finished_at: float | None = None
    reserved_at: float | None = None
    admitted_at: float | None = None
    checks: tuple[Check, ...] = ()
    suspended: bool = True
    started: bool = False
    wanted: int = 0
    ready: int = 0
    bound: int = 0
    ready_at: float | None = None
    unready_at: float | None = None
    evicted: Evicted | None = None
    requeues: int = 0
    requeue_at: float | None = None
    lost_at: float | None = None
    ending_until: float = 0.0
    executed: float = 0.0
    most_execution: float | None = None
    pause: float = 0.0


class Set(_Struct, frozen=True):
    """Write a condition."""

    type: WorkloadCondition
    status: bool
    reason: Reason
    message: str


class EvictStep(_Struct, frozen=True):
    """Write Evicted, and Preempted where ``detail`` says by which rule; `Queues.evict`."""

    reason: Reason
    message: str
    detail: Reason | None = None


class EvictPodsStep(_Struct, frozen=True):
    """Evict the pods that are still bound, by the Eviction API; 429 means later."""

    left: int


class SuspendStep(_Struct, frozen=True):
    """Suspend the job: pods that are not bound go with it."""


class ReleaseStep(_Struct, frozen=True):
    """Remove the admission, write ``requeues`` and ``until``; then `Queues.release_and_requeue`.

    With ``leave``, `Queues.remove_workload`.
    """

    reason: Reason
    message: str
    until: float
    requeues: int
    leave: bool = False


class DeactivateStep(_Struct, frozen=True):
    """Set spec.active to false: it does not come back by itself."""

    reason: Reason
    message: str


class Leave(_Struct, frozen=True):
    """It is not to wait: `Queues.remove_workload`."""

    reason: Reason
    message: str


class StartStep(_Struct, frozen=True):
    """Unsuspend the job."""


class Finish(_Struct, frozen=True):
    """Write Finished; `Queues.remove_workload` gives back all."""

    reason: Reason
    message: str


class RemoveStep(_Struct, frozen=True):
    """Delete the Workload."""


class LookAgain(_Struct, frozen=True):
    """Nothing to do before this time."""

    at: float


Instruction = (
    Set
    | EvictStep
    | EvictPodsStep
    | SuspendStep
    | ReleaseStep
    | DeactivateStep
    | Leave
    | StartStep
    | Finish
    | RemoveStep
    | LookAgain
)


def decide(life: Life, rules: LifeRules, now: float) -> tuple[Instruction, ...]:
    """What is to be done now, in order; () where nothing is, and nothing is to be waited for but events."""
    # A finished job before everything else: an eviction under way has nothing left to evict.
    if life.outcome is not None:
        return tuple(_ended(life, life.outcome, rules, now))
    # Without a reservation, Evicted is the past of a workload that waits again.
    if life.evicted is not None and life.reserved_at is not None:
        return tuple(_going(life, life.evicted, rules, now))
    if life.reserved_at is not None:
        return tuple(_holding(life, rules, now))
    return tuple(_waiting(life, now))


def preempted(detail: Reason, message: str) -> EvictStep:
    """What a victim of a plan gets."""
    return EvictStep(reason=Reason.PREEMPTED, message=message, detail=detail)


def backoff(rules: LifeRules, requeues: int) -> float:
    """Seconds before return number ``requeues`` (from 1)."""
    # The exponent is bounded, as anybody may write ``requeues`` into a status, and a float overflows at 1,024.
    return min(rules.backoff_most, rules.backoff * 2.0 ** min(max(requeues - 1, 0), MOST_DOUBLINGS))


def _ended(life: Life, outcome: Reason, rules: LifeRules, now: float) -> Iterator[Instruction]:
    if life.finished_at is None:
        yield Finish(reason=outcome, message=life.outcome_message or f"the job {outcome.lower()}")
    elif rules.retention is not None:
        gone = life.finished_at + rules.retention
        yield RemoveStep() if now >= gone else LookAgain(at=gone)


def _going(life: Life, evicted: Evicted, rules: LifeRules, now: float) -> Iterator[Instruction]:
    """On its way out, one step at a time."""
    # Pods before the suspension: suspending a Job deletes its pods without asking their PodDisruptionBudgets.
    if life.bound:
        yield EvictPodsStep(left=life.bound)
        return
    if not life.suspended:
        yield SuspendStep()
        return
    reason = _eviction_reason(evicted.reason)
    slow, last = reason in _SLOW, reason in _LAST
    # A preemption is no failure of the workload: it neither backs off nor counts against the limit.
    requeues = life.requeues + 1 if slow else life.requeues
    over = slow and rules.backoff_limit is not None and requeues > rules.backoff_limit
    if life.active and last:
        yield DeactivateStep(reason=reason, message=evicted.message)
    elif life.active and over:
        text = f"it was put back {life.requeues} times, which is the limit; the last time: {evicted.message}"
        yield DeactivateStep(reason=Reason.REQUEUE_LIMIT, message=text)
    until = now
    if slow or reason is Reason.SCHEDULER_REFUSED:
        # From the eviction on and not from now: a restart in between must not begin the pause again.
        until = evicted.at + (backoff(rules, requeues) if slow else life.pause)
    leave = over or last or not life.active
    yield ReleaseStep(reason=reason, message=evicted.message, until=until, requeues=requeues, leave=leave)


def _eviction_reason(reason: str) -> Reason:
    """The reason of an eviction. One that somebody else wrote is like a preemption: its workload may come back."""
    try:
        return Reason(reason)
    except ValueError:
        return Reason.PREEMPTED


def _holding(life: Life, rules: LifeRules, now: float) -> Iterator[Instruction]:
    """It holds quota and room."""
    # Before the conditions and the start: what is to end must not be admitted or started first.
    wrong = _wrong(life)
    if wrong is not None:
        yield from wrong
        return
    if life.admitted_at is None:
        pending = [check.name for check in life.checks if check.state is CheckVerdict.PENDING]
        if pending:
            text = f"waits for admission check {', '.join(pending)}"
            yield Set(type=WorkloadCondition.ADMITTED, status=False, reason=Reason.PENDING, message=text)
        else:
            text = "quota is reserved and all checks are ready" if life.checks else "quota is reserved"
            yield Set(type=WorkloadCondition.ADMITTED, status=True, reason=Reason.ADMITTED, message=text)
        return
    if life.suspended:
        yield StartStep()
        return
    yield from _running(life, rules, now, life.admitted_at)


def _wrong(life: Life) -> tuple[Instruction, ...] | None:
    """What ends it at once."""
    if not life.active:
        return (EvictStep(reason=Reason.DEACTIVATED, message=f"it was put on hold (spec.active is false): {RELEASE}"),)
    for check in life.checks:
        text = f"admission check {check.name}: {check.message or check.state}"
        if check.state is CheckVerdict.REJECTED:
            return (EvictStep(reason=Reason.CHECK_REJECTED, message=text),)
        if check.state is CheckVerdict.RETRY:
            return (EvictStep(reason=Reason.CHECK_RETRY, message=text),)
    # Only once it was started: between its admission and its start it is suspended by right.
    if life.started and life.suspended:
        return (EvictStep(reason=Reason.SUSPENDED, message=BY_HAND),)
    return None


def _running(life: Life, rules: LifeRules, now: float, admitted_at: float) -> Iterator[Instruction]:
    """Its job runs: conditions, and the earliest of its deadlines."""
    all_ready = life.ready >= life.wanted
    if all_ready and life.ready_at is None:
        which = f"all {life.wanted} pods are" if life.wanted > 1 else "its pod is"
        text = f"{which} ready or finished"
        yield Set(type=WorkloadCondition.PODS_READY, status=True, reason=Reason.PODS_READY, message=text)
    elif not all_ready and life.ready_at is not None:
        text = f"{life.ready} of {life.wanted} pods are ready"
        yield Set(type=WorkloadCondition.PODS_READY, status=False, reason=Reason.PODS_NOT_READY, message=text)
    # By time alone: instructions have no order, and of equal times the first one that was named wins.
    deadlines = sorted(_deadlines(life, rules, admitted_at, all_ready=all_ready), key=lambda one: one[0])
    for at, instructions in deadlines:
        if at <= now:
            yield from instructions
            return
    if deadlines:
        yield LookAgain(at=deadlines[0][0])


def _deadlines(
    life: Life, rules: LifeRules, admitted_at: float, *, all_ready: bool
) -> Iterator[tuple[float, tuple[Instruction, ...]]]:
    """(when, what is to be done then)."""
    if not all_ready and life.ending_until < inf:  # pods that kube-scheduler would not bind yet are late for nobody
        # Once all were ready the recovery timeout counts, also where nobody noted when that ended.
        again = life.unready_at is not None or life.ready_at is not None
        since = life.unready_at if life.unready_at is not None else life.ready_at if again else admitted_at
        limit = rules.recovery_timeout if again else rules.ready_timeout
        if limit is not None and since is not None:
            text = f"{life.ready} of {life.wanted} pods were ready after {limit:g} seconds"
            yield max(since, life.ending_until) + limit, (EvictStep(reason=Reason.PODS_READY_TIMEOUT, message=text),)
    if life.lost_at is not None and rules.replacement is not None:
        text = f"pods of lost nodes had no other place for {rules.replacement:g} seconds"
        yield life.lost_at + rules.replacement, (EvictStep(reason=Reason.REPLACEMENT_TIMEOUT, message=text),)
    if life.most_execution is not None:
        text = f"it ran for {life.most_execution:g} seconds, which is its limit (maximumExecutionTimeSeconds)"
        # Time that it ran before its last eviction counts, or an eviction a day would let it run for ever.
        at = admitted_at + life.most_execution - life.executed
        yield at, (EvictStep(reason=Reason.MAXIMUM_EXECUTION_TIME, message=text),)


def _waiting(life: Life, now: float) -> Iterator[Instruction]:
    """It holds nothing."""
    if not life.active:
        yield Leave(reason=Reason.DEACTIVATED, message=ON_HOLD)
    elif not life.suspended:
        yield SuspendStep()  # nobody admitted it, or its admission was removed
    elif life.requeue_at is not None and now < life.requeue_at:
        yield LookAgain(at=life.requeue_at)
