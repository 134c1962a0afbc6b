"""Carries out what was decided about one workload: each action of `ungater.model.actions` has its case here.

An action that awaits the API server, or has the job viewed in another way, is the last one of its look: what was
decided beside it may be stale then.
"""

from collections.abc import Callable, Sequence
from typing import Any, assert_never

from clock import Clock
from engine.reasons import Reason
from engine.reservation_key import workload_of
from kube.errors import BadRequest, Forbidden, Invalid, KubeError, TooLarge
from kube.events import EventRecorder, reference
from kube.resources import PODS
from ungater.cache.cache import Cache
from ungater.executor import messages
from ungater.executor.deferred import DeferredWrites
from ungater.executor.eviction import Eviction
from ungater.executor.ordered_writes import OrderedWrites
from ungater.executor.start_stop import NoPlace, SlotsFit, StartStop
from ungater.model import conditions
from ungater.model.actions import (
    Action,
    AwaitedAction,
    ClearAdmission,
    CountBoost,
    Create,
    Deactivate,
    Delete,
    Dequeue,
    Differ,
    DoubtNamespace,
    EmitEvent,
    Enqueue,
    Evict,
    EvictMoved,
    EvictPods,
    EvictSome,
    FreeCapacity,
    GiveUpMove,
    HoldUp,
    ImmediateAction,
    LeaveOut,
    LoseTurns,
    MarkPods,
    NominateNode,
    NotStarted,
    Release,
    Remove,
    RequeueAfter,
    RestoreAdmission,
    Shorten,
    Shrink,
    ShrinkLater,
    Start,
    Suspend,
    TakePods,
    Ungate,
    UpdateOwners,
    UpdateSpec,
    WriteConditions,
)
from ungater.model.admission import Admission
from ungater.model.conditions import WantedCondition
from ungater.model.pod_slots import Slot
from ungater.model.workload_entry import LastEvent, WorkloadEntry
from ungater.model.workload_status import counted_boost, unhealthy_nodes
from ungater.numa.predictions import Predictions
from ungater.reconcile import granted, moves, nominated_nodes
from ungater.reconcile.resize import SHRINK_AFTER
from ungater.scheduling.admission_conditions import admitted_as, admitted_still, adopted_as, pending
from ungater.scheduling.replacement import message_of, reclaimed
from ungater.scheduling.scheduler import Scheduler
from ungater.writers.events import emit
from ungater.writers.evictor import Evictor
from ungater.writers.pods import PodWriter
from ungater.writers.workloads import NameTakenError, Overtaken, WorkloadWriter

LASTING = (BadRequest, Forbidden, Invalid, TooLarge, NameTakenError)  # answers that stay the same until somebody acts
PAUSE = 0.05  # seconds until a release is tried again that waits for a patch under way
UNSTORED = 60.0  # seconds until a boost is written again that the API server did not store


class Executor:
    """``saw``: told of a job that waits in a queue now; ``idle``: whether nothing better is to be done."""

    def __init__(
        self,
        cache: Cache,
        scheduler: Scheduler,
        jobs: StartStop,
        eviction: Eviction,
        writes: OrderedWrites,
        *,
        pods: PodWriter,
        workloads: WorkloadWriter,
        evictor: Evictor,
        recorder: EventRecorder,
        requeue: Callable[[str, float], None],
        idle: Callable[[], bool],
        saw: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._jobs = jobs
        self._eviction = eviction
        self._writes = writes
        self._pods = pods
        self._workloads = workloads
        self._evictor = evictor
        self._recorder = recorder
        self._requeue = requeue
        self._saw = saw
        self._clock = clock
        self.deferred = DeferredWrites(idle, lambda job: requeue(job, 0.0), cache.entries.keys, clock)

    async def carry_out(self, entry: WorkloadEntry, actions: Sequence[Action]) -> Action | None:
        """Do these in their order, until after one of them the rest may be stale; returns that one."""
        predictions = None
        for action in actions:
            if isinstance(action, Ungate):
                # Made with the first pod that goes: most looks let none go.
                if predictions is None and self._cache.state.machines:
                    predictions = Predictions(self._cache.state, entry)
                self.ungate(entry, action, predictions)
            elif isinstance(action, ImmediateAction):
                self._do_at_once(entry, action)
            elif await self._do_and_wait(entry, action):
                return action
        return None

    def _do_at_once(self, entry: WorkloadEntry, action: ImmediateAction) -> None:  # noqa: C901, PLR0912
        cache = self._cache
        match action:
            case Enqueue(lost, until, asked, urgent):
                entry.want(lost, asked, self._clock.now(), urgent=urgent)
                cache.admissions.enqueue_entry(entry, until)
                self._saw(entry.id)
                self._scheduler.withdraw(entry)
            case Dequeue():
                entry.want_nothing()
                cache.admissions.dequeue_entry(entry)
                self._scheduler.withdraw(entry)
            case FreeCapacity():
                self._evictor.cancel_evictions(entry.id)
                cache.admissions.release_job(entry)
            case Shorten(counts):
                entry.shorten(counts)
            case Differ(uids, again):
                entry.see_differing(uids, self._clock.monotonic(), again=again)
            case DoubtNamespace():
                cache.doubts.record_doubt(entry.job.namespace)
            case EmitEvent():
                self._emit_event(entry, action)
            case Delete(pod, reason, message, at_once):
                self._recorder.event(reference(PODS, pod), "Warning", reason, "Replace", message)
                self._pods.delete(entry, pod, at_once=at_once)
            case MarkPods(pods):
                for pod in pods:
                    self._pods.mark(entry, pod)
            case NominateNode(pod, node):
                self._pods.nominate(entry, pod, node)
            case LoseTurns(uids):
                cache.in_flight.lose_turns(entry, uids)
            case LeaveOut(pods):
                cache.refusals.leave_out(entry, pods)
            case HoldUp(since, ending):
                entry.hold_up(since, ending=ending, now=self._clock.now())
            case EvictSome():
                self._eviction.evict_some(entry, action)
            case EvictMoved():
                self._eviction.evict_moved(entry, action)
            case GiveUpMove():
                self._eviction.give_up_move(entry, action)
            case ShrinkLater():
                entry.shrink(self._clock.monotonic() + SHRINK_AFTER)
                self._requeue(entry.id, SHRINK_AFTER)
            case RequeueAfter(after):
                self._requeue(entry.id, after)
            case _:
                assert_never(action)

    async def _do_and_wait(self, entry: WorkloadEntry, action: AwaitedAction) -> bool:  # noqa: C901, PLR0911, PLR0912
        """True where what was decided beside it may be stale then."""
        match action:
            case WriteConditions():
                return await self._write(entry, action)
            case CountBoost(value):
                written = await self._writes.write_conditions(entry, (), counted_boost(value, self._clock.now()))
                # A CRD of an older release drops the field: written at each look, it would be written without end.
                if entry.observed is not None and entry.observed.boost != value:
                    self._requeue(entry.id, UNSTORED)
                    return False
                return written
            case Create():
                return await self._create(entry)
            case UpdateSpec():
                owner = entry.job
                # Templates stay as they were admitted while something is held: only the counts follow the job.
                if entry.admission is not None:
                    counts = [pod_set.full for pod_set in owner.pod_sets]
                    await self._writes.write_in_order(
                        entry, lambda one: self._workloads.write_counts(owner.namespace, one, counts)
                    )
                else:
                    await self._writes.write_in_order(entry, lambda one: self._workloads.spec(owner, one, one.priority))
                return True
            case UpdateOwners():
                owner = entry.job
                return await self._writes.write_in_order(entry, lambda one: self._workloads.owners(owner, one))
            case TakePods(specs, undecided):
                entry.take_pods(specs, undecided=undecided)
                # Nothing is awaited, but the view is another one now: what was decided beside this is stale.
                self._cache.views.review(entry.id)
                return True
            case Start():
                outcome = await self._jobs.start_job(entry)
                if isinstance(outcome, NoPlace):
                    evict = Evict(outcome.reason, outcome.message)
                    return await self._eviction.begin_eviction(entry, evict)
                return isinstance(outcome, SlotsFit)
            case Suspend():
                await self._jobs.suspend_job(entry, action)
                return True
            case Evict():
                return await self._eviction.begin_eviction(entry, action)
            case EvictPods():
                return await self._eviction.evict_pods(entry, action)
            case ClearAdmission():
                return await self._eviction.clear_admission(entry, action)
            case Deactivate():
                return await self._eviction.deactivate_workload(entry, action)
            case Remove():
                return await self._eviction.remove_workload(entry)
            case Release():
                return await self._release(entry, action)
            case RestoreAdmission():
                return await self._restore_admission(entry)
            case Shrink():
                return await self._shrink(entry, action)
            case NotStarted(pods):
                # What their events say is asked for once, of the first of them.
                self._cache.coming.count(entry, pods, await self._pods.last_warning(pods[0]))
                self._requeue(entry.id, 0.0)
                return True
            case _:
                assert_never(action)

    def ungate(self, entry: WorkloadEntry, ungate: Ungate, predictions: Predictions | None) -> None:
        """Let a pod go to its slot, with what is predicted for it there."""
        slots = entry.slots_of(ungate.pod)
        if slots is None:
            self._pods.ungate(entry, ungate.pod, Slot((), 1))
            return
        slot, pod = slots.slots[ungate.index], ungate.pod
        # A patch that is sent again needs no turn: its pod had one, and may be on its way.
        in_flight, uid = self._cache.in_flight, pod.metadata.uid
        if uid not in entry.expectations and (held := in_flight.judge_pod(entry, pod, slot.node)) is not None:
            in_flight.hold_pod(entry, uid, held)
            # A pod waits for its turn at its node: others may take its room there meanwhile.
            now, keys = self._clock.monotonic(), self._cache.keys
            for one in nominated_nodes.in_slot(entry, pod, ungate.index, keys) if self._cache.rules.nominates else ():
                due, again = nominated_nodes.due_now(entry, one.pod, one.node, now)
                for nomination in due:
                    self._pods.nominate(entry, nomination.pod, nomination.node)
                for after in again:
                    self._requeue(entry.id, after)
            return
        # Asked before the pod counts as sent: nothing is foreseen for a node that a pod is on its way to.
        claimed = in_flight.foreseen(entry, pod, slot.node)
        in_flight.record_sent(entry, pod, slot.node)
        placement = predictions.prediction_for(pod, slot) if predictions is not None else None
        more = self._cache.topologies.annotations(slot.node, placement, claimed)
        self._pods.ungate(entry, pod, slot, placement, more)

    def _emit_event(self, entry: WorkloadEntry, tell: EmitEvent) -> None:
        if tell.once:
            if tell.once in entry.noted:
                return
            entry.noted.add(tell.once)
        else:
            entry.note_event(LastEvent(str(tell.reason), tell.message, self._clock.monotonic()))
        if tell.pod is None:
            emit(self._recorder, entry, tell.type, tell.reason, tell.action, message=tell.message)
            return
        text = conditions.shorten(tell.message)
        self._recorder.event(reference(PODS, tell.pod), tell.type, tell.reason, tell.action, text)

    async def _create(self, entry: WorkloadEntry) -> bool:
        # `gone` is read before the call: the watch may tell of another deletion while it is under way.
        observed, owner, gone = None, granted.as_admitted(entry), entry.gone
        # Read before the write begins, as this may fail: then nothing is made.
        kueue = await self._jobs.copy_of_kueue(entry)
        entry.writes.begin_write()
        try:
            async with entry.writes.lock:
                priority = self._cache.priorities.priority_of_job(owner)
                named = self._cache.classes.rules.with_class(owner)
                observed = await self._workloads.create(named, priority, entry.admission, kueue)
            # The API server still has the object that counted as gone: somebody gave it to another owner, and back.
            if observed.uid == gone:
                self._cache.workloads.came_back(entry, gone)
        except KubeError as error:
            if isinstance(error, NameTakenError):
                if self._cache.views.rename(entry):
                    raise  # it is made under the other name soon
                entry.writes.note_deleted(self._clock.monotonic())  # as good as: somebody gave it to another owner
            # etcd's own limit comes as a 500 (`etcdserver: request is too large`), which is none of these classes.
            if isinstance(error, LASTING) or "too large" in str(error):
                text = messages.not_created(error)
                self._emit_event(entry, EmitEvent("Warning", Reason.WRITE_FAILED, "Admit", text, once="unmakeable"))
            raise
        finally:
            self._cache.workloads.written(entry, observed)
        if self._cache.priorities.unknown_class(entry.job):
            text = messages.unknown_class(self._cache.keys, entry.job.workload_class)
            emit(self._recorder, entry, "Warning", Reason.UNKNOWN_PRIORITY_CLASS, "Admit", message=text)
        return True

    async def _write(self, entry: WorkloadEntry, write: WriteConditions) -> bool:
        observed = entry.observed
        if observed is None:
            return False
        # None leaves the list in the status as it is; an empty tuple ends it.
        more = unhealthy_nodes(observed, write.lost, self._clock.now()) if write.lost is not None else {}
        if conditions.is_so(observed.conditions, write.wanted, generation=observed.generation) and not more:
            self.deferred.needless(entry.id)
            return False
        if self.deferred.defer_write(entry.id, write.delay):
            return False
        self.deferred.done(entry.id)
        await self._writes.write_conditions(entry, write.wanted, more)
        if entry.job.over or (entry.job.queue and not write.delay):
            self._requeue(entry.id, 0.0)  # the time for which it is kept begins, or its life goes on
        return True

    async def _release(self, entry: WorkloadEntry, release: Release) -> bool:
        """Remove the admission, and only then give the capacity away: nobody else may be told of it before."""
        # Closed before patches are looked for: none begins between that look and the write.
        entry.close()
        if entry.writes.patches:
            self._requeue(entry.id, PAUSE)  # a patch on its way may still use a slot
            return False
        if entry.observed is None or await self._store(entry, None, release.wanted):
            self._cache.admissions.release_job(entry)
        return True

    async def _restore_admission(self, entry: WorkloadEntry) -> bool:
        if entry.admission is not None:
            checks = self._cache.admissions.checks_of(entry) if entry.job.suspended else ()  # who runs has passed them
            # Pods may have been on their way to new places when the
            # Workload was deleted: budgets go on to hold for them.
            again = moves.moving_conditions(entry, self._cache.keys.workload)
            wanted = (*admitted_as(entry.observed, "the admission was written again", checks), *again)
            more: dict[str, Any] = {"admissionChecks": pending(checks, self._clock.now())} if checks else {}
            if (taken := entry.taken) is not None:
                wanted = (*adopted_as(entry.observed), *again)
                # The time that it may run goes on from its first admission, by whomever.
                more["accumulatedPastExecutionTimeSeconds"] = taken.seconds_run(self._clock.now())
            evict = self._cache.reservations.awaited(entry.key)
            preemptors = self._cache.reservations.preemptors_of(entry.key) if evict is not None else ()
            preempting = [self._cache.entries.of_workload(workload_of(name)) for name in preemptors]
            # Only where a plan is stored that needs its room: one that is not tells its victims once it is.
            if evict is not None and any(
                one is not None and one.observed is not None and one.observed.nomination is not None
                for one in preempting
            ):
                entry.evict_for(evict)  # its Workload said so that is gone
            await self._store(entry, entry.admission, wanted, more or None)
        return True

    async def _shrink(self, entry: WorkloadEntry, shrink: Shrink) -> bool:
        entry.shrink(None)
        if (held := entry.admission) is None:
            raise AssertionError(f"{entry.key}: holds nothing")
        smaller = held.shrink_pod_set(shrink.pod_set, shrink.slots, shrink.count, shrink.asks)
        text = message_of(self._cache, entry, smaller, "")
        # Stored first: a restart in between would else read the larger admission, with slots that others have by then.
        if await self._store(entry, smaller, admitted_still(entry.observed, text)):
            self._cache.admissions.hold_admission(entry, smaller)
        return True

    async def _store(
        self, entry: WorkloadEntry, admission: Admission | None, wanted: tuple[WantedCondition, ...], more: Any = None
    ) -> bool:
        """Write an admission whose capacity is held already, or remove it; True where that is done."""
        reclaimable = reclaimed(entry, admission) if admission is not None else None
        namespace = entry.job.namespace
        try:
            return await self._writes.write_in_order(
                entry,
                lambda observed: self._workloads.admission(
                    namespace, observed, admission, wanted, reclaimable=reclaimable, more=more
                ),
            )
        except Overtaken:
            return False  # what somebody else stored is held now
