"""Sends ungating patches and deletions of pods: many at a time, each with its outcome taken back into the entry.

An expectation is recorded before its patch is sent and stays until the informer shows the pod ungated or gone. Whatever
goes wrong, the expectation keeps its slot and the same patch is sent again later: a patch whose answer was lost cannot
put two pods into one slot.

A conflict is a failure like any other, and tried again. Another pod may have the name, of which the watch tells; but
the API server also answers so where others keep writing the pod (it tries a patch six times:
``MaxRetryWhenPatchConflicts`` in pkg/endpoints/handlers/patch.go of k8s.io/apiserver), and then no event need follow.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import NamedTuple

import msgspec
import structlog

from clock import Clock
from clock.turns import TurnQueue
from crds.admitted_quota import AdmittedQuota, encode
from crds.constants import Keys
from engine.kubelet.machine import NumaPlacement
from engine.reasons import Reason
from kube.client import Client
from kube.connection.answers import decode
from kube.errors import ApiError, Forbidden, Invalid, KubeError, NotFound
from kube.events import EventRecorder, reference
from kube.objects import Pod, key
from kube.patches import PatchType
from kube.resources import EVENTS, PODS
from kube.told_events import ToldEvent
from ungater.guard import Guard
from ungater.jobs.pod_template import Added
from ungater.metrics import ControllerMetrics
from ungater.model.conditions import shorten
from ungater.model.nominated_node import NominatedNode
from ungater.model.pod_slots import Expectation, Slot
from ungater.model.ungate_patch import UngatePatches
from ungater.model.unscheduled import MOST_WORDS
from ungater.model.workload_entry import WorkloadEntry
from ungater.workqueue import backoff
from ungater.writers.evictor import count, tracked

READ_SECONDS = 5.0  # for events that a message is better with
MOST_EVENTS = 100

log = structlog.get_logger()
_NOTHING: Mapping[str, str] = {}


class _Write(NamedTuple):
    """A patch or a deletion that is to be sent."""

    namespace: str
    send: Callable[[], Awaitable[None]]


class PodWriter:
    """A queue of patches and deletions with ``concurrency`` workers.

    ``added``: what its admission adds to the pods of a pod set.
    """

    def __init__(
        self,
        client: Client,
        keys: Keys,
        added: Callable[[WorkloadEntry, str], Added],
        *,
        concurrency: int,
        timeout: float,
        requeue: Callable[[str, float], None],
        stayed: Callable[[Pod, str], None],
        metrics: ControllerMetrics,
        recorder: EventRecorder,
        guard: Guard,
        clock: Clock,
    ) -> None:
        self._client = client
        self._keys = keys
        self._added = added
        self._concurrency = concurrency
        self._timeout = timeout
        self._requeue = requeue
        self._stayed = stayed
        self._metrics = metrics
        self._recorder = recorder
        self._guard = guard
        self._clock = clock
        self._ungated = metrics.patches.labels("ungated")
        self._queue: TurnQueue[_Write] = TurnQueue(lambda write: write.namespace)
        self._under_way = 0
        self._answered = -math.inf  # the last of them, monotonic

    async def run(self) -> None:
        """Send, for ever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._work())

    def ungate(
        self,
        entry: WorkloadEntry,
        pod: Pod,
        slot: Slot,
        placement: NumaPlacement | None = None,
        annotations: Mapping[str, str] = _NOTHING,
    ) -> None:
        """Note the expectation and send the patch soon, with what is predicted for the pod and its own annotations."""
        before = entry.expectations.get(pod.metadata.uid)
        attempts = before.attempts + 1 if before else 1
        deadline = self._clock.monotonic() + self._timeout
        # Noted here and not by the worker: the next look counts the slot as taken while the patch waits in the queue.
        entry.expectations[pod.metadata.uid] = Expectation(slot.values, deadline, attempts, placement=placement)
        self._queue_write(entry, pod, partial(self._ungate, entry, pod, slot, annotations))

    def mark(self, entry: WorkloadEntry, pod: Pod) -> None:
        """Write on a pod that Kueue let go whose it is here, soon; not again before the timeout."""
        uid, now = pod.metadata.uid, self._clock.monotonic()
        if (due := entry.marking.get(uid, now)) > now:
            self._requeue(entry.id, due - now)  # this look came before the one that was asked for, and took its place
            return
        entry.marking[uid] = now + self._timeout
        self._queue_write(entry, pod, partial(self._mark, entry, pod))

    def nominate(self, entry: WorkloadEntry, pod: Pod, node: str) -> None:
        """Have kube-scheduler keep room for a gated pod on a node soon; "": on none any more."""
        uid = pod.metadata.uid
        entry.nominated[uid] = NominatedNode.after(entry.nominated.get(uid), node, self._clock.monotonic())
        self._queue_write(entry, pod, partial(self._nominate, entry, pod, node))

    def forget_nomination(self, pod: Pod) -> None:
        """The same of a gated pod that no workload has: no room is kept for it any more."""
        send = partial(self._clear, pod)
        self._queue.put_nowait(_Write(pod.metadata.namespace, send))

    def delete(self, entry: WorkloadEntry, pod: Pod, *, at_once: bool = False) -> None:
        """Delete a pod soon, ``at_once`` without waiting for it to stop; not again before the timeout."""
        # Noted before it is sent, as expectations are: each look until then would ask for it again.
        entry.deleting[pod.metadata.uid] = self._clock.monotonic() + self._timeout
        self._queue_write(entry, pod, partial(self._delete, entry, pod, 0 if at_once else None))

    def _queue_write(self, entry: WorkloadEntry, pod: Pod, send: Callable[[], Awaitable[None]]) -> None:
        self._queue.put_nowait(_Write(pod.metadata.namespace, partial(self._guarded, entry, pod, send)))

    async def _guarded(self, entry: WorkloadEntry, pod: Pod, send: Callable[[], Awaitable[None]]) -> None:
        """Send; an error that nobody foresaw is this pod's alone, which is looked at again when its time is over."""
        sent = False
        with self._guard("pod", key(pod)):
            await send()
            sent = True
        if not sent:
            self._requeue(entry.id, self._timeout)

    async def _work(self) -> None:
        while True:
            write = await self._queue.get()
            self._under_way += 1
            try:
                await write.send()  # never raises what is not the end of all
            finally:
                self._under_way -= 1
                self._answered = self._clock.monotonic()

    def quiet(self, seconds: float) -> bool:
        """Whether every patch and deletion was answered, and the last one so long ago."""
        # A call that is not answered yet counts as busy: a server that stands still has no time for what can wait.
        return not self._under_way and self._queue.empty() and self._clock.monotonic() - self._answered > seconds

    def _may_still_go(self, entry: WorkloadEntry, pod: Pod, slot: Slot) -> bool:
        """Whether the expectation still holds after the wait in the queue."""
        expectation = entry.expectations.get(pod.metadata.uid)
        # While the patch waited in the queue its pod may have gone, its slot moved, or its admission begun to end.
        if expectation is None or expectation.values != slot.values or entry.closing:
            return False
        if entry.leaving and (entry.pod_set_of(pod), slot.values) in entry.leaving:
            return False
        slots = entry.slots_of(pod)
        if slots is None:
            return not slot.values and entry.admission is not None
        return slots.index(slot.values) is not None

    async def _ungate(self, entry: WorkloadEntry, pod: Pod, slot: Slot, annotations: Mapping[str, str]) -> None:
        if not self._may_still_go(entry, pod, slot):
            self._stayed(pod, entry.job.workload)
            return
        meta, slots, name = pod.metadata, entry.slots_of(pod), entry.pod_set_of(pod)
        levels, patches = slots.levels if slots is not None else (), entry.patches.get(name)
        if patches is None or patches.levels != levels:
            # Before the call, without an await in between: the admission that
            # it carries is the one that `_may_still_go` was asked about.
            patches = entry.patches[name] = self._patches(entry, name, levels)
        body = patches.body(pod, slot, annotations)
        entry.writes.begin_patch()
        try:
            await self._client.patch(PODS, meta.name, meta.namespace, body=body, content_type=PatchType.MERGE)
        except NotFound:
            # The slot is free from now on; the watch, which still shows the pod, must not fill it again.
            self._record_outcome(entry, pod, gone=True)
            self._metrics.patches.labels("gone").inc()
        except KubeError as error:
            self._failed(entry, pod, error)
        else:
            self._ungated.inc()
            self._metrics.ungate.observe(age(meta.creation_timestamp, self._clock.now()))
        finally:
            entry.writes.end_patch()
            if entry.lost and not entry.writes.patches:
                self._requeue(entry.id, 0.0)  # its slots are not moved before

    async def _mark(self, entry: WorkloadEntry, pod: Pod) -> None:
        meta, slots, name = pod.metadata, entry.slots_of(pod), entry.pod_set_of(pod)
        if meta.uid not in entry.adopting or entry.admission is None or entry.closing:
            return
        body = self._patches(entry, name, slots.levels if slots is not None else ()).marks(pod)
        try:
            await self._client.patch(PODS, meta.name, meta.namespace, body=body, content_type=PatchType.MERGE)
        except NotFound:
            return  # the watch tells of it
        except KubeError as error:
            log.warning("a pod of Kueue was not marked", workload=entry.key, pod=meta.name, error=str(error))
            self._requeue(entry.id, self._timeout)
        else:
            self._metrics.adopted_pods.inc()

    def _patches(self, entry: WorkloadEntry, name: str, levels: tuple[str, ...]) -> UngatePatches:
        """What all pods of a pod set are sent."""
        admission = entry.admission
        part = admission.pod_set_named(name) if admission is not None else None
        flavors = part.flavors if part is not None else {}
        queue = admission.queue if admission is not None else ""
        quota = encode(AdmittedQuota(queue, dict(flavors))) if queue else ""
        more = self._added(entry, name)
        return UngatePatches(
            self._keys,
            entry.job.workload,
            name,
            levels,
            more.node_selector,
            tolerations=tuple(more.tolerations),
            quota=quota,
        )

    def _record_outcome(
        self, entry: WorkloadEntry, pod: Pod, *, after: float | None = None, gone: bool = False, refused: bool = False
    ) -> None:
        expectation = entry.expectations.get(pod.metadata.uid)
        if expectation is not None:
            deadline = self._clock.monotonic() + (self._timeout if after is None else after)
            expectation = msgspec.structs.replace(expectation, deadline=deadline, gone=gone, refused=refused)
            entry.expectations[pod.metadata.uid] = expectation
        elif gone or refused:
            self._stayed(pod, entry.job.workload)

    def _failed(self, entry: WorkloadEntry, pod: Pod, error: KubeError) -> None:
        expectation = entry.expectations.get(pod.metadata.uid)
        delay = backoff(expectation.attempts if expectation else 1)
        # Invalid may mean that it is behind its gate no more: an earlier patch arrived, whose answer did not.
        stayed = isinstance(error, ApiError) and error.status < 500 and not isinstance(error, Invalid)
        # A 5xx or a timeout leaves open whether the patch arrived: the
        # slot stays taken until the watch or a new try tells.
        self._record_outcome(entry, pod, after=delay, refused=stayed)
        self._requeue(entry.id, delay)
        refused = isinstance(error, Invalid | Forbidden)
        self._metrics.patches.labels("refused" if refused else "failed").inc()
        log.warning("pod was not ungated", workload=entry.key, pod=pod.metadata.name, error=str(error))
        if refused:
            message = gate_kept(error)
            self._recorder.event(reference(PODS, pod), "Warning", Reason.UNGATE_FAILED, "Ungate", message)

    async def _nominate(self, entry: WorkloadEntry, pod: Pod, node: str) -> None:
        uid = pod.metadata.uid
        sent = entry.nominated.get(uid)
        if sent is None or sent.node != node or (node and (uid in entry.expectations or entry.closing)):
            return  # it goes, or something else was sent meanwhile
        try:
            await self._write_nomination(pod, node)
        except NotFound:
            return  # the watch tells of it
        except KubeError as error:
            if uid not in entry.expectations:  # else it was let go first, and needs none
                log.warning("a pod was not nominated", workload=entry.key, pod=pod.metadata.name, error=str(error))
                self._requeue(entry.id, max(0.0, sent.again - self._clock.monotonic()))

    async def _clear(self, pod: Pod) -> None:
        with self._guard("pod", key(pod)):
            try:
                await self._write_nomination(pod, "")
            except KubeError as error:
                log.info("a nomination is still there", pod=key(pod), error=str(error))

    async def _write_nomination(self, pod: Pod, node: str) -> None:
        """One merge patch a pod; its uid makes the API server refuse it where another pod has taken the name (409)."""
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid}, "status": {"nominatedNodeName": node or None}}
        await self._client.patch(
            PODS, meta.name, meta.namespace, body=body, content_type=PatchType.MERGE, subresource="status"
        )
        self._metrics.nominations.labels("kept" if node else "removed").inc()

    async def last_warning(self, pod: Pod) -> str:
        """What the newest warning of a pod says, as kubelets and controllers tell by events alone; "" for none.

        Nothing depends on it but a message, so a server that does not answer costs no more than a few seconds.
        """
        meta = pod.metadata
        about = f"regarding.kind=Pod,regarding.name={meta.name}"
        try:
            # One page alone: whoever may write events of his namespace may write as many as he likes.
            pages = self._client.pages(
                EVENTS, meta.namespace, field_selector=about, limit=MOST_EVENTS, timeout=READ_SECONDS
            )
            async with aclosing(pages):
                page, _ = await anext(pages)
            found = [decode(ToldEvent, item, EVENTS) for item in page.items or ()]
        except KubeError as error:
            log.info("events of a pod cannot be read", pod=key(pod), error=str(error))
            return ""
        # Events outlive their pod, and the field selector knows its name
        # alone: by the uid, none of an earlier pod counts.
        warnings = (one for one in found if one.type == "Warning" and one.regarding.uid == meta.uid)
        newest = max(warnings, key=lambda one: one.last, default=None)
        return shorten(f"{newest.reason}: {newest.note}", MOST_WORDS) if newest is not None else ""

    async def _delete(self, entry: WorkloadEntry, pod: Pod, grace: int | None) -> None:
        meta = pod.metadata
        try:
            # Before the deletion: the Job controller counts a tracked pod as soon as it sees it end.
            if tracked(pod):
                await count(self._client, pod, counted=False)  # no failure of its Job
            await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_period=grace)
        except NotFound:
            return
        except KubeError as error:
            delay = backoff(1)
            entry.deleting[meta.uid] = self._clock.monotonic() + delay
            self._requeue(entry.id, delay)
            log.warning("pod was not deleted", workload=entry.key, pod=meta.name, error=str(error))


def age(stamp: str | None, now: float) -> float:
    """Seconds from RFC 3339 text until ``now`` (seconds since the epoch); 0.0 where there is none, or it is later."""
    return max(0.0, now - datetime.fromisoformat(stamp).timestamp()) if stamp else 0.0


def gate_kept(error: object) -> str:
    """What people are told of a pod whose ungating the API server refuses."""
    return f"the scheduling gate could not be removed, another attempt follows: {error}"
