"""Carries out what was decided about one workload: one method for each action that takes more than a line.

An action that awaits the API server is the last one of its look: what was decided beside it may be stale then.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from engine.reasons import Reason
from kube.errors import BadRequest, Forbidden, Invalid, KubeError, TooLarge
from kube.events import EventRecorder, reference
from kube.resources import PODS
from ungater.cache.cache import Cache
from ungater.executor.deferred import DeferredWrites
from ungater.executor.lifecycle import Lifecycle
from ungater.model import conditions
from ungater.model.actions import (
    ClearAdmission,
    Create,
    Deactivate,
    Delete,
    Dequeue,
    DoubtNamespace,
    EmitEvent,
    Enqueue,
    Evict,
    EvictPods,
    EvictSome,
    Free,
    Instruction,
    Release,
    Remove,
    RequeueAfter,
    RestoreAdmission,
    Shorten,
    Shrink,
    ShrinkLater,
    Start,
    Suspend,
    Ungate,
    UpdateSpec,
    WriteConditions,
)
from ungater.model.conditions import WantedCondition
from ungater.model.pod_slots import Slot
from ungater.model.workload_entry import Admission, LastEvent, WorkloadEntry
from ungater.model.workload_object import unhealthy_nodes
from ungater.numa.predictions import Predictions
from ungater.reconcile import granted
from ungater.reconcile.resize import SHRINK_AFTER
from ungater.scheduling.replacement import reclaimed
from ungater.scheduling.scheduler import Scheduler, admitted_as, pending
from ungater.writers.events import emit
from ungater.writers.evictor import Evictor
from ungater.writers.pods import PodWriter
from ungater.writers.workloads import NameTakenError, Overtaken, WorkloadWriter

LASTING = (BadRequest, Forbidden, Invalid, TooLarge, NameTakenError)  # answers that stay the same until somebody acts
PAUSE = 0.05  # seconds until a release is tried again that waits for a patch under way


class Executor:
    """``saw``: told of a job that waits in a queue now; ``idle``: whether nothing better is to be done."""

    def __init__(
        self,
        cache: Cache,
        scheduler: Scheduler,
        lifecycle: Lifecycle,
        *,
        pods: PodWriter,
        workloads: WorkloadWriter,
        evictor: Evictor,
        recorder: EventRecorder,
        requeue: Callable[[str, float], None],
        idle: Callable[[], bool],
        saw: Callable[[str], None],
    ) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._lifecycle = lifecycle
        self._pods = pods
        self._workloads = workloads
        self._evictor = evictor
        self._recorder = recorder
        self._requeue = requeue
        self._saw = saw
        self.deferred = DeferredWrites(idle, lambda job: requeue(job, 0.0), cache.records.keys)
        self._carry: dict[type, Callable[[WorkloadEntry, Any], Awaitable[bool]]] = {
            Create: self._create,
            UpdateSpec: self._respec,
            Release: self._release,
            RestoreAdmission: self._readmit,
            Shrink: self._shrink,
            WriteConditions: self._write,
            Start: lambda record, _: lifecycle.start(record),
            Suspend: lambda record, _: lifecycle.suspend(record),
            Evict: lifecycle.evict,
            EvictPods: lifecycle.evict_pods,
            EvictSome: lifecycle.evict_some,
            ClearAdmission: lifecycle.give_back,
            Deactivate: lifecycle.deactivate,
            Remove: lambda record, _: lifecycle.remove(record),
        }

    async def carry_out(self, record: WorkloadEntry, instruction: Instruction) -> bool:
        """Do it; True where something was awaited, so that the rest may be stale."""
        cache = self._cache
        match instruction:
            case Enqueue(lost, until, asked):
                record.refused = record.refused if asked == record.asked else None  # that was about something else
                record.lost, record.asked = lost, asked
                record.lost_at = (record.lost_at or time.time()) if lost else None
                cache.enter(record, until)
                self._saw(record.id)
                self._scheduler.withdraw(record)
            case Dequeue():
                record.lost, record.lost_at, record.asked = {}, None, {}
                cache.leave(record)
                self._scheduler.withdraw(record)
            case Free():
                self._evictor.forget(record.id)
                cache.free(record)
            case Shorten(counts):
                record.late = {**record.late, **counts}
            case DoubtNamespace():
                cache.doubts.note(record.owner.namespace)
            case EmitEvent():
                self._tell(record, instruction)
            case Delete(pod, reason, message, at_once):
                self._recorder.event(reference(PODS, pod), "Warning", reason, "Replace", message)
                self._pods.delete(record, pod, at_once=at_once)
            case ShrinkLater():
                record.shrink_at = time.monotonic() + SHRINK_AFTER
                self._requeue(record.id, SHRINK_AFTER)
            case RequeueAfter(after):
                self._requeue(record.id, after)
            case _:
                return await self._carry[type(instruction)](record, instruction)
        return False

    def ungate(self, record: WorkloadEntry, ungate: Ungate, predictions: Predictions | None) -> None:
        """Let a pod go to its slot, with what is predicted for it there."""
        slots = record.slots_of(ungate.pod)
        if slots is None:
            self._pods.ungate(record, ungate.pod, Slot((), 1))
            return
        slot, pod = slots.slots[ungate.index], ungate.pod
        if pod.metadata.uid not in record.intents and not self._cache.arrivals.may_go(record, pod, slot.node):
            return
        self._cache.arrivals.sent(record, pod, slot.node)
        placement = predictions.take(pod, slot) if predictions is not None else None
        more = self._cache.inside.annotations(slot.node, placement)
        self._pods.ungate(record, pod, slot, placement, more)

    def _tell(self, record: WorkloadEntry, tell: EmitEvent) -> None:
        if tell.once:
            if tell.once in record.noted:
                return
            record.noted.add(tell.once)
        else:
            record.told = LastEvent(str(tell.reason), tell.message, time.monotonic())
        if tell.pod is None:
            emit(self._recorder, record, tell.type, tell.reason, tell.action, message=tell.message)
            return
        text = conditions.shorten(tell.message)
        self._recorder.event(reference(PODS, tell.pod), tell.type, tell.reason, tell.action, text)

    async def _create(self, record: WorkloadEntry, _: Create) -> bool:
        record.busy += 1
        known, owner = None, granted.as_admitted(record)
        try:
            async with record.lock:
                known = await self._workloads.create(owner, self._cache.priority(owner), record.admission)
        except KubeError as error:
            if isinstance(error, LASTING) or "too large" in str(error):
                text = f"its Workload cannot be made: {error}"
                self._tell(record, EmitEvent("Warning", Reason.WRITE_FAILED, "Admit", text, once="unmakeable"))
            raise
        finally:
            self._cache.written(record, known)
        if self._cache.unknown_class(record.owner):
            label, named = self._cache.keys.priority_class, record.owner.workload_class
            text = (
                f"label {label}: {named} is no WorkloadPriorityClass, and not the PriorityClass of the pods: the "
                "priority of the pods counts"
            )
            emit(self._recorder, record, "Warning", Reason.UNKNOWN_PRIORITY_CLASS, "Admit", message=text)
        return True

    async def _respec(self, record: WorkloadEntry, _: UpdateSpec) -> bool:
        owner = record.owner
        if record.admission is not None:
            counts = [pod_set.full for pod_set in owner.pod_sets]
            await self._lifecycle.writing(record, lambda known: self._workloads.counts(owner.namespace, known, counts))
            return True
        await self._lifecycle.writing(record, lambda known: self._workloads.spec(owner, known, known.priority))
        return True

    async def _write(self, record: WorkloadEntry, write: WriteConditions) -> bool:
        known = record.known
        if known is None:
            return False
        more = unhealthy_nodes(known, write.lost, time.time()) if write.lost is not None else {}
        if conditions.is_so(known.conditions, write.wanted) and not more:
            self.deferred.needless(record.id)
            return False
        if self.deferred.put_off(record.id, write.delay):
            return False
        self.deferred.done(record.id)
        namespace = record.owner.namespace
        await self._lifecycle.writing(
            record, lambda known: self._workloads.conditions(namespace, known, write.wanted, more)
        )
        if record.owner.over or (record.owner.queue and not write.delay):
            self._requeue(record.id, 0.0)  # the time for which it is kept begins, or its life goes on
        return True

    async def _release(self, record: WorkloadEntry, release: Release) -> bool:
        """Remove the admission, and only then give the capacity away: nobody else may be told of it before."""
        record.closing = True
        if record.sending:
            self._requeue(record.id, PAUSE)  # a patch on its way may still use a slot
            return False
        if record.known is None or await self._store(record, None, release.wanted):
            self._cache.free(record)
        return True

    async def _readmit(self, record: WorkloadEntry, _: RestoreAdmission) -> bool:
        if record.admission is not None:
            checks = self._cache.checks_of(record) if record.owner.suspended else ()  # who runs has passed them
            wanted = admitted_as(record.known, "the admission was written again", checks)
            more = {"admissionChecks": pending(checks)} if checks else None
            record.evict = self._cache.holdings.awaited(record.key) or record.evict  # its Workload said so that is gone
            await self._store(record, record.admission, wanted, more)
        return True

    async def _shrink(self, record: WorkloadEntry, shrink: Shrink) -> bool:
        record.shrink_at = None
        smaller = self._cache.holdings.smaller(record, shrink.pod_set, shrink.slots, shrink.count, shrink.asks)
        if await self._store(record, smaller, ()):
            self._cache.hold(record, smaller)
        return True

    async def _store(
        self, record: WorkloadEntry, admission: Admission | None, wanted: tuple[WantedCondition, ...], more: Any = None
    ) -> bool:
        """Write an admission whose capacity is held already, or remove it; True where that is done."""
        reclaimable = reclaimed(record, admission) if admission is not None else None
        namespace = record.owner.namespace
        try:
            return await self._lifecycle.writing(
                record,
                lambda known: self._workloads.admission(
                    namespace, known, admission, wanted, reclaimable=reclaimable, more=more
                ),
            )
        except Overtaken:
            return False  # what somebody else stored is held now
