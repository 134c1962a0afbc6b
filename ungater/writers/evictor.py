"""Evicts pods through the Eviction API, so that PodDisruptionBudgets hold.

Rules
- Who wants a pod gone says so at every look (`request_eviction`); this keeps no plan of its own. What is on its way,
  was granted a moment ago, or waits after a refusal is not sent again, and the workload is looked at again when the
  wait is over. So a wish that ended is never carried out late.
- A budget that refuses delays: doubled each time, and no shorter than the API server asks for. `blocked` says since
  when.
- An evicted pod is no failure of its Job: a gang of 16 must not use up a `backoffLimit` of 6. So the pod leaves the
  Job's accounting just before, as the Job controller itself does it when it suspends a Job: its tracking finalizer
  goes. A dry run asks the budgets first, and where they refuse after all the finalizer comes back.
- What it finishes in its grace period is to count, where Kubernetes lets it (`ungater.jobs.failures`). Then the
  finalizer stays until the pod has ended, and goes at once where that is a failure.
- The pod's own grace period holds.
- Who takes back nominal quota may override a budget: the pod is deleted then. It may also bound the time that a pod has
  to stop, which else its owner chooses.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from clock import Clock
from clock.turns import TurnQueue
from engine.reasons import Reason
from kube.client import Client
from kube.errors import ApiError, Conflict, KubeError, NotFound, ServerError, TooManyRequests
from kube.events import EventRecorder, reference
from kube.informer import Event
from kube.objects import Job, Pod, controller_of, key
from kube.patches import PatchType
from kube.resources import PODS
from ungater.guard import Guard
from ungater.jobs.failures import counts_by_its_end
from ungater.metrics import ControllerMetrics
from ungater.model.conditions import moment
from ungater.model.job_view import is_job
from ungater.workqueue import backoff

TRACKING: Final = "batch.kubernetes.io/job-tracking"  # the Job controller's finalizer on the pods that it counts
# Doubled after each refusal (`ungater.workqueue.backoff`).
FIRST_DELAY: Final = 1.0  # seconds after the first refusal
LONGEST_DELAY: Final = 60.0
GONE_AFTER: Final = 2.0  # seconds until one that was found gone is looked for: not every conflict means another pod
UNASKED: Final = 120.0  # seconds after which an eviction is forgotten that nobody asks for any more
SEEN_AFTER: Final = 30.0  # seconds in which the informer should have shown that the pod is going
TIMEOUT: Final = 15.0  # seconds for one call, a wait that the API server asks for included
SPARE: Final = 5.0  # seconds that clocks may differ, and a deletion takes until it is seen

log = structlog.get_logger()


class Blocked(msgspec.Struct, frozen=True):
    """A budget refuses. ``since``: monotonic; ``message`` names the pod and the budget."""

    since: float
    message: str


class _Try(msgspec.Struct):
    """What is known of one pod's eviction."""

    uid: str  # of the workload's owner, as given to `request_eviction`
    pod: Pod
    why: str
    overriding: bool = False
    most_grace: int | None = None
    failures: int = 0
    not_before: float = 0.0
    blocked: Blocked | None = msgspec.field(default=None)

    def override(self) -> None:
        """No budget counts any more."""
        self.overriding = True

    def start_attempt(self, pod: Pod, why: str, most_grace: int | None) -> None:
        """It is asked for (again): nothing more is done until this attempt ends."""
        self.pod, self.why, self.most_grace = pod, why, most_grace
        self.not_before = float("inf")

    def grant(self, until: float) -> None:
        """It was granted, and should be seen by ``until``."""
        self.failures, self.blocked, self.not_before = 0, None, until

    def count_failure(self) -> int:
        """It failed; returns how often in a row."""
        self.failures += 1
        return self.failures

    def block(self, now: float, text: str) -> None:
        """A budget refuses it."""
        self.blocked = Blocked(self.blocked.since if self.blocked else now, text)

    def delay_until(self, until: float) -> None:
        """It is not tried again before ``until``."""
        self.not_before = until


class Evictor:
    """Evictions under way, by pod. ``requeue(uid, seconds)`` has a workload looked at again; ``job``: by its key."""

    def __init__(
        self,
        client: Client,
        *,
        concurrency: int,
        requeue: Callable[[str, float], None],
        recorder: EventRecorder,
        metrics: ControllerMetrics,
        guard: Guard,
        clock: Clock,
        job: Callable[[str], Job | None],
    ) -> None:
        self._client = client
        self._concurrency = concurrency
        self._requeue = requeue
        self._recorder = recorder
        self._metrics = metrics
        self._guard = guard
        self._clock = clock
        self._job = job
        self._ending: set[str] = set()  # uids of pods that keep the finalizer of their Job until they have ended
        self._tries: dict[str, _Try] = {}  # by pod uid
        self._of: dict[str, set[str]] = {}  # workload -> its pods here
        self._queue: TurnQueue[_Try | Pod] = TurnQueue(
            lambda one: (one if isinstance(one, Pod) else one.pod).metadata.namespace
        )

    async def run(self) -> None:
        """Evict what is asked for, for ever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._work())

    def request_eviction(
        self, uid: str, pod: Pod, why: str, *, overriding: bool = False, most_grace: int | None = None
    ) -> None:
        """Evict ``pod`` of workload ``uid`` soon; nothing where that is under way or its next attempt is not due.

        ``why`` is for the pod's event and the log. ``overriding``: whatever budgets say. ``most_grace``: seconds that
        it has to stop at most; one that terminates already, and has longer, gets no more.
        """
        meta, end = pod.metadata, moment(pod.metadata.deletion_timestamp)
        # deletionTimestamp is when the grace period ends, not when the deletion was asked for.
        lingers = most_grace is not None and end is not None and end - self._clock.now() > most_grace + SPARE
        # It is going: that is what was asked for.
        if meta.deletion_timestamp is not None and not lingers:
            self._forget_pod(meta.uid)
            return
        found = self._tries.get(meta.uid)
        if found is None:
            found = self._tries[meta.uid] = _Try(uid, pod, why, overriding)
            self._of.setdefault(uid, set()).add(meta.uid)
        elif meta.deletion_timestamp is not None and found.pod.metadata.deletion_timestamp is None:
            pass  # it terminates, and takes too long
        elif overriding and not found.overriding and found.blocked is not None:
            found.override()  # at once, whatever the last refusal asked to wait
        elif (left := found.not_before - self._clock.monotonic()) > 0:
            if left < float("inf"):
                self._requeue(uid, left)  # this look came before the one that was asked for then, and took its place
            return
        found.start_attempt(pod, why, most_grace)
        self._queue.put_nowait(found)

    def follow_evicted(self, event: Event[Pod]) -> None:
        """A pod that was evicted may have ended: where it failed, its Job is not to count it."""
        pod = event.new or event.old
        if pod is None or pod.metadata.uid not in self._ending:
            return
        # A pod that succeeds keeps the finalizer: the Job controller counts it, and takes the finalizer off itself.
        if event.new is None or pod.status.phase in {"Succeeded", "Failed"}:
            self._ending.discard(pod.metadata.uid)
            if event.new is not None and pod.status.phase == "Failed" and tracked(pod):
                self._queue.put_nowait(pod)

    def blocked(self, uid: str) -> Blocked | None:
        """What has held up the evictions of a workload for the longest time; None where nothing does."""
        found = [self._tries[pod].blocked for pod in self._of.get(uid, ())]
        return min((one for one in found if one is not None), key=lambda one: one.since, default=None)

    def has_granted(self, uid: str) -> bool:
        """Whether the API server let a pod of a workload go that is not seen to go yet."""
        tries = (self._tries[pod] for pod in self._of.get(uid, ()))
        # An attempt under way is due at infinity: nobody has answered it yet.
        return any(one.failures == 0 and one.not_before < float("inf") for one in tries)

    def cancel_evictions(self, uid: str) -> None:
        """Nobody wants pods of this workload gone any more."""
        for pod in self._of.pop(uid, set()):
            self._tries.pop(pod, None)

    def sweep(self) -> None:
        """Forget what nobody has asked for again since it was due: its workload is gone, or needs it no more."""
        now = self._clock.monotonic()
        # An attempt under way is due at infinity, so it is never taken for one that nobody asks for.
        for pod in [pod for pod, one in self._tries.items() if now - one.not_before > UNASKED]:
            self._forget_pod(pod)

    def _forget_pod(self, pod: str) -> None:
        found = self._tries.pop(pod, None)
        if found is not None and (pods := self._of.get(found.uid)) is not None:
            pods.discard(pod)
            if not pods:
                del self._of[found.uid]

    async def _work(self) -> None:
        while True:
            one = await self._queue.get()
            if isinstance(one, Pod):
                await self._leave_out(one)
                continue
            if self._tries.get(one.pod.metadata.uid) is not one:
                continue  # forgotten while it waited
            try:
                await self._evict(one)
            except NotFound:
                self._metrics.evictor.labels("gone").inc()
                self._forget_pod(one.pod.metadata.uid)
                self._requeue(one.uid, GONE_AFTER)
            except KubeError as error:
                self._handle_refusal(one, error)
            except Exception as error:  # noqa: BLE001  (told by the guard)
                self._guard.failed("pod", key(one.pod), error)
                self._handle_refusal(one, KubeError(f"{type(error).__name__}: {error}"))
            else:
                one.grant(self._clock.monotonic() + SEEN_AFTER)
                self._metrics.evictor.labels("evicted").inc()
                self._recorder.event(reference(PODS, one.pod), "Normal", Reason.EVICTED, "Evict", one.why)
                log.info("evicted", pod=one.pod.metadata.name, namespace=one.pod.metadata.namespace, why=one.why)
                self._requeue(one.uid, SEEN_AFTER)

    async def _leave_out(self, pod: Pod) -> None:
        try:
            await count(self._client, pod, counted=False)
        # The pod is gone, so there is no finalizer to put back.
        except NotFound:
            pass  # it was counted before, and is gone
        except KubeError as error:
            log.warning("an evicted pod may count as failed", pod=key(pod), error=str(error))

    async def _evict(self, one: _Try) -> None:
        """Raises KubeError; the pod is then counted by its Job as before."""
        pod, most = one.pod, one.most_grace
        terminates, asked = pod.metadata.deletion_timestamp is not None, pod.spec.termination_grace_period_seconds or 0
        # None leaves the pod its own period, which may be shorter than the bound.
        grace = most if most is not None and (terminates or asked > most) else None
        post = self._delete if one.overriding or terminates else self._post
        if terminates or not tracked(pod):
            await post(pod, grace, dry_run=False)
            return
        if not one.overriding and self._counts_by_its_end(pod):  # a deletion is no disruption that a Job may ignore
            # Before the call: the pod may have ended, and the watch told of it, when the answer comes.
            self._ending.add(pod.metadata.uid)
            try:
                await post(pod, grace, dry_run=False)
            except KubeError:
                self._ending.discard(pod.metadata.uid)
                raise
            return
        # The budgets first: a pod that stays must stay counted.
        await post(pod, grace, dry_run=True)
        await count(self._client, pod, counted=False)
        try:
            await post(pod, grace, dry_run=False)
        except NotFound:
            raise
        except KubeError:
            await count(self._client, pod, counted=True)
            raise

    def _counts_by_its_end(self, pod: Pod) -> bool:
        owner = controller_of(pod.metadata)
        job = self._job(f"{pod.metadata.namespace}/{owner.name}") if owner is not None else None
        # By uid: a Job that was made again under the name does not count this pod.
        return job is not None and owner is not None and job.metadata.uid == owner.uid and counts_by_its_end(job)

    async def _post(self, pod: Pod, grace: int | None, *, dry_run: bool) -> None:
        meta = pod.metadata
        try:
            await self._client.evict(
                meta.name, meta.namespace, uid=meta.uid, grace_period=grace, dry_run=dry_run, timeout=TIMEOUT
            )
        except Conflict as error:
            raise _made_again(pod) from error

    async def _delete(self, pod: Pod, grace: int | None, *, dry_run: bool) -> None:
        meta = pod.metadata
        try:
            await self._client.delete(
                PODS, meta.name, meta.namespace, uid=meta.uid, grace_period=grace, dry_run=dry_run, timeout=TIMEOUT
            )
        except Conflict as error:
            raise _made_again(pod) from error

    def _handle_refusal(self, one: _Try, error: KubeError) -> None:
        now, meta = self._clock.monotonic(), one.pod.metadata
        delay = backoff(one.count_failure(), first=FIRST_DELAY, longest=LONGEST_DELAY)
        # It answers 500 where two budgets select one pod, which only an administrator can change.
        several = isinstance(error, ServerError) and "more than one PodDisruptionBudget" in error.message
        budget = isinstance(error, TooManyRequests) or several
        if budget:
            said = [str(error)]
            if isinstance(error, ApiError):
                causes = error.details.causes if error.details else ()
                said = [error.message, *(cause.message for cause in causes if cause.message)]
            text = not_now(one.pod, "; ".join(said))
            # One event for each time that a budget begins to refuse, however many attempts follow.
            if one.blocked is None:
                self._recorder.event(reference(PODS, one.pod), "Warning", Reason.EVICTION_BLOCKED, "Evict", text)
            one.block(now, text)
            if isinstance(error, TooManyRequests) and error.retry_after:
                delay = max(delay, error.retry_after)
        one.delay_until(now + delay)
        self._metrics.evictor.labels("blocked" if budget else "failed").inc()
        log.warning("pod was not evicted", pod=meta.name, namespace=meta.namespace, again=delay, error=str(error))
        self._requeue(one.uid, delay)


def not_now(pod: Pod, why: str) -> str:
    """What people are told of a pod that a budget keeps."""
    return f"pod {pod.metadata.namespace}/{pod.metadata.name} cannot be evicted now: {why}"


def tracked(pod: Pod) -> bool:
    """Whether a Job would count the end of this pod as a failure."""
    return is_job(controller_of(pod.metadata)) and TRACKING in pod.metadata.finalizers


async def count(client: Client, pod: Pod, *, counted: bool) -> None:
    """Have the pod's Job count its end, or not. Raises KubeError; NotFound where the pod is gone."""
    meta = pod.metadata
    # A strategic merge patch adds to this list or takes from it: finalizers that others write meanwhile stay.
    key = "finalizers" if counted else "$deleteFromPrimitiveList/finalizers"
    body = {"metadata": {"uid": meta.uid, key: [TRACKING]}}
    try:
        await client.patch(
            PODS, meta.name, meta.namespace, body=body, content_type=PatchType.STRATEGIC, timeout=TIMEOUT
        )
    except Conflict as error:
        raise _made_again(pod) from error


def _made_again(pod: Pod) -> NotFound:
    return NotFound(404, "NotFound", f"pod {pod.metadata.namespace}/{pod.metadata.name} was made again")
