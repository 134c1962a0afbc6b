"""How long a workload keeps quota for which it has no place, and how it gives it back: plain functions.

What Kueue does with a check that says Retry (0.15 to 0.19.2: ``WorkloadReconciler``, pkg/cache/queue)
- With ``requeueAfterSeconds``: it evicts when that time is over. Until then the quota is kept for nothing.
- Without: it evicts at once, and requeues at once. Those who found no quota are woken a second later; so the same
  workload has its quota back before them, unless the ClusterQueue is StrictFIFO.
- A delay that is told after the eviction and before the requeueing is noted in ``requeueState``, and keeps the workload
  away for so long. As long as the check says Retry after that, it gets no quota.

So giving back has three steps, each one write: Retry; when Kueue has evicted, Retry with the delay; when it has noted
that, Pending. Where the second comes too late, a reservation tells so, and all of it is done again at once. Older
Kueues know no ``requeueAfterSeconds``; they are told by ``requeueState`` at once (`answers.body`).
"""

from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from engine.reasons import Cure, Reason
from kube.objects import condition, is_true
from ungater.kueue.answers import Side, shorten
from ungater.model import kueue_objects as kueue
from ungater.model.conditions import moment, timestamp
from ungater.model.kueue_objects import PENDING, REJECTED, RETRY, KueueCheckState, KueueWorkload

FIRST_BACKOFF, LONGEST_BACKOFF = 60, 1800  # seconds, as Kueue's own checks wait
TRIES = 5  # of one that has its quota back too early, before it is given time again
WANTED_AGAIN = 30.0  # seconds between two looks whether somebody waits for quota that is kept for long
_DOUBLINGS = 5  # from the first to the longest
_EVICTED_BY_RETRY = f"Reset to Pending after eviction. Previously: {RETRY}"  # Kueue's words: resetChecksOnEviction
_NO_REASON = "it had no place"  # where the controller has started anew since it knew

# Whatever becomes free, these do not go away by waiting: nodes, flavors or the job must change.
HOPELESS = frozenset(
    {
        *(reason for reason in Reason if reason.traits.hopeless),
        *(Reason.UNSUPPORTED_CONSTRAINT, Reason.RESOURCE_CLAIMS_NOT_COUNTED),
    }
)


class NeverFits(StrEnum):
    """What a check says of a workload that can never be placed."""

    REJECT = "Reject"  # Retry for some time, then Kueue deactivates it
    RETRY = "Retry"  # the quota goes to others, and it is tried again, each time after a longer while
    WAIT = "Wait"  # it stays Pending, and keeps its quota


class RetryLimits(msgspec.Struct, frozen=True):
    """In seconds. ``never_fits``: hopeless for so long; ``reject``: and then for so long; ``wait``: 0 is for ever."""

    policy: NeverFits = NeverFits.REJECT
    never_fits: float = 30.0
    reject: float = 600.0
    wait: float = 3600.0


class RetryVerdict(msgspec.Struct, frozen=True):
    """What is said of a workload that has quota and no place, for how many seconds: ``requeue_after``."""

    state: str
    requeue_after: float | None = None


class RetryAnswer(msgspec.Struct, frozen=True):
    """What was said with a Retry, and how many seconds the workload is to stay away. Known until Kueue has noted that.

    ``tries``: how often it may be said again at once, where Kueue gave the quota back before it was told the delay.
    """

    message: str = _NO_REASON
    seconds: int = FIRST_BACKOFF
    hopeless: bool = False
    tries: int = 0

    def at_once(self, side: Side) -> bool:
        """Whether one that has its quota back is to be sent away again without further patience."""
        return self.tries > 0 and side.reason is not None and (side.reason in HOPELESS) == self.hopeless


def verdict(
    workload: KueueWorkload,
    side: Side,
    limits: RetryLimits,
    *,
    since: float | None,
    times: int,
    others: Callable[[], bool],
    now: float,
) -> RetryVerdict:
    """Whether it may keep its quota. ``since``: from when on it is hopeless; times are seconds since the epoch.

    ``times``: how often it was sent away. ``others``: whether any wait for its quota, asked where its time is over.
    """
    reserved = condition(workload.status.conditions, kueue.QUOTA_RESERVED)
    held = now - (moment(reserved.last_transition_time if reserved else None) or now)
    if since is not None:
        if limits.policy is NeverFits.WAIT:
            return RetryVerdict(PENDING)
        # From the later of the two moments: one that was hopeless before it had quota cost nobody anything.
        left = limits.never_fits - min(held, now - since)
        if left > 0:
            return RetryVerdict(PENDING, left)
        last = (side.reason is not None and side.reason.traits.cure is Cure.REQUEST) or now - since >= limits.reject
        return RetryVerdict(REJECTED if last and limits.policy is NeverFits.REJECT else RETRY)
    if not limits.wait:
        return RetryVerdict(PENDING)
    left = limits.wait * 2 ** min(times, _DOUBLINGS) - held
    if left > 0:
        return RetryVerdict(PENDING, left)
    # Quota that nobody waits for is kept: another try would begin from nothing.
    return RetryVerdict(RETRY) if others() else RetryVerdict(PENDING, WANTED_AGAIN)


def backoff(times: int, *, hopeless: bool) -> int:
    """Seconds to stay away: doubled each time for one that is hopeless; else it is the time with quota that doubles."""
    return min(LONGEST_BACKOFF, FIRST_BACKOFF << min(times, _DOUBLINGS)) if hopeless else FIRST_BACKOFF


def times_of(workload: KueueWorkload, checks: Iterable[KueueCheckState]) -> int:
    """How often it has been sent away by these checks; older Kueues count for all of them."""
    state = workload.status.requeue_state
    return max((state.count or 0) if state else 0, *(check.retry_count or 0 for check in checks), 0)


def remembered(workload: KueueWorkload, said: KueueCheckState, before: RetryAnswer | None) -> RetryAnswer:
    """What is to be known of this Retry; ``before``: of an earlier one whose delay Kueue has not noted."""
    # Kueue gave the quota back before it was told the delay: the same answer again, a few times at most.
    if before is not None and before.tries:
        return replace(before, tries=before.tries - 1)
    ours = [check for check in workload.status.admission_checks or () if check.name == said.name]
    hopeless = said.message.partition(":")[0] in HOPELESS
    return RetryAnswer(said.message, backoff(times_of(workload, ours), hopeless=hopeless), hopeless, TRIES)


def next_step(workload: KueueWorkload, check: KueueCheckState, told: RetryAnswer, now: float) -> KueueCheckState | None:
    """The second and third step of giving quota back; None where it is not the time for either."""
    conditions, state = workload.status.conditions, workload.status.requeue_state
    if is_true(conditions, kueue.FINISHED) or not workload.spec.active or workload.metadata.deletion_timestamp:
        return None
    reserved, evicted = is_true(conditions, kueue.QUOTA_RESERVED), condition(conditions, kueue.EVICTED)
    leaving = evicted is not None and evicted.status == "True"
    again = moment(state.requeue_at if state else None)
    if check.state == RETRY and (leaving or not reserved):
        # The delay that was told counts from the moment of the Retry.
        back = (moment(check.last_transition_time) or now) + (check.requeue_after_seconds or 0)
        noted = again is not None and again >= back
        message = f"{told.message}; others have its quota until {timestamp(again)}" if again and noted else told.message
        pending = KueueCheckState(name=check.name, state=PENDING, message=shorten(message))
        return pending if noted or back <= now else None  # Kueue notes it with its next write
    by_check = leaving and evicted is not None and evicted.reason == kueue.BY_CHECK
    # Kueue resets all checks alike: its words are the only sign that ours had said Retry.
    by_us = by_check and check.state == PENDING and check.message == _EVICTED_BY_RETRY
    in_time = reserved or not is_true(conditions, kueue.REQUEUED)
    if not by_us or (again or now) > now:
        return None
    if not in_time:  # Kueue would keep it from its queue for good, but the reason need not be gone
        return KueueCheckState(name=check.name, state=PENDING, message=told.message)
    return KueueCheckState(name=check.name, state=RETRY, message=told.message, requeue_after_seconds=told.seconds)


class ContestedQueues(msgspec.Struct, frozen=True):
    """The ClusterQueues whose quota somebody waits for. ``unknown``: somebody waits, and nobody knows for whose."""

    queues: frozenset[str] = frozenset()
    unknown: bool = False

    def is_contested(self, workload: KueueWorkload) -> bool:
        """Whether others may wait for the quota that it has."""
        admission = workload.status.admission
        return self.unknown or (admission is not None and admission.cluster_queue in self.queues)


def wanted(workloads: Iterable[KueueWorkload], now: float) -> ContestedQueues:
    """Whose quota is waited for, as far as Workloads with quota tell which LocalQueue is of which ClusterQueue."""
    found = tuple(workloads)
    of_local = {_local(each): each.status.admission.cluster_queue for each in found if each.status.admission}
    # A LocalQueue whose ClusterQueue no Workload tells is "": it might be any.
    queues = {of_local.get(_local(each), "") for each in found if _waits_for_quota(each, now)}
    return ContestedQueues(frozenset(queues - {""}), "" in queues)


def _local(workload: KueueWorkload) -> tuple[str, str]:
    return workload.metadata.namespace, workload.spec.queue_name


def _waits_for_quota(workload: KueueWorkload, now: float) -> bool:
    conditions, state = workload.status.conditions, workload.status.requeue_state
    return (
        workload.spec.active
        and workload.metadata.deletion_timestamp is None
        and not any(is_true(conditions, kind) for kind in (kueue.QUOTA_RESERVED, kueue.FINISHED))
        and (moment(state.requeue_at if state else None) or now) <= now
    )
