"""The heart of the controller: watches feed `Cache`, `decide` says what to do, this carries it out.

- One worker at a time looks at one job; the look is `decide`, a plain function, and what it returns is carried out in
  order. At most one awaited write a look: what was decided before it may be stale then, so the job is looked at again.
- Who needs a place, or more of it, waits in queueing; `ungater.scheduling.scheduler` runs the admission cycle.
- What a queued job's life needs is carried out in `ungater.executor.lifecycle`.
- Only the leader runs one of these. When the lease is lost the task is cancelled, and what is in memory goes with it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any

import structlog

from crds.preemption import victim_rules
from crds.settings import Settings
from engine.reasons import Reason
from kube.client import Client
from kube.errors import BadRequest, Conflict, Forbidden, Invalid, KubeError, NotFound, TooLarge
from kube.events import EventRecorder, reference
from kube.objects import (
    Pod,
    controller_of,
    key,
)
from kube.resources import (
    PODS,
)
from queueing import model
from queueing.cycle.shield import in_words
from queueing.lifecycle import LifeRules
from ungater.cache.cache import Cache
from ungater.cache.pdb import BudgetWatch
from ungater.executor.lifecycle import Lifecycle, Reclaim
from ungater.executor.notices import NodeNotices
from ungater.executor.sweeper import Sweeper
from ungater.guard import Guard
from ungater.informers import Informers
from ungater.jobs.leaderworkerset import group_key, has_pods
from ungater.jobs.pod_group import of_pods
from ungater.kueue.bridge import AdmissionCheckController
from ungater.kueue.retries import Limits, NeverFits
from ungater.kueue.standings import Standings
from ungater.metrics import Metrics
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
    MissingPods,
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
from ungater.model.workload_object import Workload, known_of, unhealthy_nodes
from ungater.numa.node_topologies import Options
from ungater.numa.predictions import Predictions
from ungater.reconcile import granted, missing_pods, reconcile
from ungater.reconcile.resize import SHRINK_AFTER
from ungater.scheduling.replacement import reclaimed
from ungater.scheduling.scheduler import Scheduler, admitted_as, pending
from ungater.status.flavors import FlavorSource, FlavorStatus
from ungater.status.queues import QueueStatus, Source
from ungater.workqueue import WorkQueue, backoff
from ungater.writers.events import emit
from ungater.writers.evictor import Evictor
from ungater.writers.pods import PodWriter, seconds_of
from ungater.writers.workloads import REFUSED, NameTakenError, Overtaken, WorkloadWriter

LASTING = (BadRequest, Forbidden, Invalid, TooLarge, NameTakenError)  # answers that stay the same until somebody acts
WORKERS = 16  # looks at jobs, and creations of Workloads, at a time
EVICTIONS = 8  # pods at a time
FIRST_LOOKS = 30.0  # seconds at most, after a start, until somebody is admitted though others were not looked at yet
PAUSE = 0.05  # seconds between two cycles that only freed capacity asked for
UNOWNED = 20.0  # seconds between looks at Workloads that are nobody's
SWEEP = 2.0  # seconds between looks at what nobody announces: deadlines, strays, gauges
LAZY_TICK = 0.5
LAZY_BATCH = 64
QUIET = 1.0  # seconds without a patch, after which lazy writes are welcome
LAZY_AT_MOST = 30.0  # seconds that a lazy write is put off while others are busy
SYNC_SECONDS = 120.0
LONGEST = 300.0  # seconds until one that led to an error that nobody foresaw is looked at again

LEAVING = (Release, ClearAdmission, Evict, EvictPods, Suspend, Deactivate)

log = structlog.get_logger()


class Controller:
    """One term of leadership."""

    def __init__(self, settings: Settings, client: Client, metrics: Metrics, recorder: EventRecorder) -> None:
        self.client = client
        self.metrics = metrics
        self.recorder = recorder
        self.queue = WorkQueue()
        self.guard = Guard(metrics.failed)
        self.informers = informers = Informers(client, settings.keys, metrics.signal)
        standings = Standings()
        self.memory = Cache(
            settings.keys,
            informers.stores,
            self.queue.add,
            self._signal_cycle,
            notices=NodeNotices(recorder, metrics, informers.nodes.store.get),
            view=standings.view,
            batch_seconds=settings.ungate_batch_seconds,
            options=Options.of(settings),
            queueing=model.Rules(
                patience=settings.queue_patience_seconds,
                fair=settings.fair_sharing,
                victims=victim_rules(settings),
                pods=settings.preempt_plain_pods,
                override=settings.reclaim_overrides_budgets,
            ),
            life=_life_rules(settings),
            missing_pods=MissingPods(
                settings.missing_pods_timeout_seconds, settings.missing_pods_recovery_timeout_seconds
            ),
            require_queue=settings.require_queue,
            guard=self.guard,
        )
        self.writer = WorkloadWriter(client)
        self.sender = PodWriter(
            client,
            settings.keys,
            informers.flavors.store,
            concurrency=settings.ungate_concurrency,
            timeout=settings.expectation_timeout_seconds,
            again=self.queue.add,
            stayed=self.memory.stayed,
            metrics=metrics,
            recorder=recorder,
            guard=self.guard,
        )
        self._signal = asyncio.Event()
        self._lazy: dict[str, float] = {}  # uid -> when its lazy write is due
        self._lazily: set[str] = set()  # uids whose lazy writes are to be made at the next look
        self._group: asyncio.TaskGroup | None = None
        self._unowned = Sweeper(self.memory.serves, informers.there, self.memory.without_pods)
        self._unowned_at = 0.0
        self.evictions = Evictor(
            client,
            concurrency=EVICTIONS,
            again=self.queue.add,
            recorder=recorder,
            metrics=metrics,
            guard=self.guard,
        )
        self._budgets = BudgetWatch(self.memory, settings.keys)
        self.admitter = Scheduler(
            self.memory, self.writer, spawn=self._spawn, again=self.queue.add, metrics=metrics, recorder=recorder
        )
        self.living = living = Lifecycle(
            client,
            self.memory,
            self.writer,
            self.admitter,
            self.evictions,
            flavors=informers.flavors.store,
            keys=settings.keys,
            again=self.queue.add,
            recorder=recorder,
            metrics=metrics,
            patience=settings.eviction_patience_seconds,
            reclaim=Reclaim(settings.reclaim_overrides_budgets, int(settings.reclaim_grace_seconds)),
        )
        self._carry: dict[type, Callable[[WorkloadEntry, Any], Awaitable[bool]]] = {
            Create: self._create,
            UpdateSpec: self._respec,
            Release: self._release,
            RestoreAdmission: self._readmit,
            Shrink: self._shrink,
            WriteConditions: self._write,
            Start: lambda record, _: living.start(record),
            Suspend: lambda record, _: living.suspend(record),
            Evict: living.evict,
            EvictPods: living.evict_pods,
            EvictSome: living.evict_some,
            ClearAdmission: living.give_back,
            Deactivate: living.deactivate,
            Remove: lambda record, _: living.remove(record),
        }
        self._sweeps: dict[str, Callable[[], None]] = {
            "refusals": self._end_refusals,
            "arrivals": self.memory.arrivals.sweep,
            "missing": self.memory.forget_missing,
            "unproved": self.memory.judge_unproved,
            "unseen": self.memory.judge_unseen,
            "strays": self._tell_strays,
            "unowned": self._remove_unowned,
            "metrics": self._tell_metrics,
        }
        self._unseen: set[str] = set()  # uids known at the start, not looked at yet; keys of Workloads to be removed
        self._all_seen = asyncio.Event()
        self._looks = 0  # the id of a look in logs
        self._outcomes = {name: metrics.reconciles.labels(name) for name in ("done", "conflict", "error", "bug")}
        limits = Limits(
            NeverFits(settings.kueue_never_fits),
            settings.kueue_never_fits_seconds,
            settings.kueue_reject_seconds,
            settings.kueue_wait_seconds,
        )
        self.bridge = AdmissionCheckController(client, self.memory, standings, limits)
        informers.subscribe(self.memory, self._budgets, self.bridge)
        self._flavor_status = FlavorStatus(
            client,
            FlavorSource(
                self.memory.state, lambda: self.memory.layout, informers.flavors.store.values, informers.nodes.store.get
            ),
            recorder,
        )
        self._queue_status = QueueStatus(
            client,
            Source(
                self.memory.queues,
                lambda: self.memory.flavors,
                informers.cluster_queues.store.values,
                informers.local_queues.store.values,
                self.memory.unchecked,
            ),
        )
        self.ready = False

    # --- life ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """List, rebuild, then work, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                informers = self.informers
                for task in (*(each.run() for each in informers.every), *(each.run() for each in informers.optional)):
                    group.create_task(task)
                await informers.synced()
                informers.load(self.memory)
                leftover = self._leftover(informers.workloads.store.values(), informers.pods.store.values())
                self._unseen |= {*self.memory.records, *map(key, leftover)}
                self._saw("")
                group.create_task(self._clear(leftover))
                self._signal.set()
                self.ready = True
                self._tell_leading()
                for _ in range(WORKERS):
                    group.create_task(self._work())
                for name, loop in (
                    ("sender", self.sender.run),
                    ("evictions", self.evictions.run),
                    ("cycles", self._cycles),
                    ("lazy", self._lazy_loop),
                    ("sweep", self._sweep_loop),
                    ("kueue", self.bridge.run),
                    ("queues", self._queue_status.run),
                    ("flavors", self._flavor_status.run),
                ):
                    group.create_task(self.guard.forever(name, loop))
        finally:
            self.ready = False
            self.queue.close()

    def _tell_leading(self) -> None:
        nodes, pods = len(self.informers.nodes.store), len(self.informers.pods.store)
        log.info("leading", nodes=nodes, pods=pods, jobs=len(self.memory.records))

    # --- one job -------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            uid = await self.queue.get()
            try:
                await self.reconcile(uid)
            finally:
                self._saw(uid)
                self.queue.done(uid)

    def _saw(self, uid: str) -> None:
        self._unseen.discard(uid)
        if not self._unseen:
            self._all_seen.set()

    async def reconcile(self, uid: str) -> None:
        """Look at one job once. Failures of the API server only delay: the job is looked at again, later each time."""
        record = self.memory.records.get(uid)
        if record is None or record.put_off():
            return
        self._looks += 1
        outcome, context = "done", {"workload": record.key, "reconcile": self._looks}
        try:
            if not self.memory.regroup(record):
                return
            missing_pods.note(record, time.monotonic())
            instructions = reconcile.reconcile(record, self.memory.rules, time.monotonic(), time.time())
            if record.closing and not any(isinstance(one, LEAVING) for one in instructions):
                self.living.keep(record)
            predictions = None
            for instruction in instructions:
                if isinstance(instruction, Ungate):
                    if predictions is None and self.memory.state.machines:
                        predictions = Predictions(self.memory.state, record)
                    self._ungate(record, instruction, predictions)
                elif await self._carry_out(record, instruction):
                    if instruction is not instructions[-1] or not isinstance(instruction, WriteConditions):
                        self.queue.add(uid)
                    break
            record.failures = 0
            self.bridge.looked(record)
        except (Conflict, NotFound) as error:
            outcome = "conflict"  # or deleted; no event tells of one that came and went while a watch was broken
            log.info("workload changed meanwhile", error=str(error), **context)
            await self._refresh(record)
        except KubeError as error:
            outcome = "error"
            self._later(record)
            log.warning("API server refused or did not answer", error=str(error), failures=record.failures, **context)
        except Exception as error:  # noqa: BLE001  (told by the guard)
            outcome = "bug"
            await self._poisoned(record, error)
        self._outcomes[outcome].inc()

    async def _poisoned(self, record: WorkloadEntry, error: Exception) -> None:
        """A look failed otherwise than foreseen: say so, and leave the job alone for a while."""
        self.guard.failed("workload", record.key, error)
        record.failures += 1
        self.queue.add(record.id, backoff(record.failures, longest=LONGEST))
        text, known = in_words(error), record.known
        if text not in record.noted:
            record.noted.add(text)
            emit(self.recorder, record, "Warning", Reason.INTERNAL_ERROR, "Admit", message=text)
        wanted = (WantedCondition(conditions.QUOTA_RESERVED, False, Reason.INTERNAL_ERROR, text),)
        if record.admission is None and known is not None and not conditions.is_so(known.conditions, wanted):
            namespace = record.owner.namespace
            with suppress(KubeError, Overtaken):
                await self.living.writing(record, lambda known: self.writer.conditions(namespace, known, wanted))

    def _later(self, record: WorkloadEntry) -> None:
        record.failures += 1
        self.queue.add(record.id, backoff(record.failures))

    async def _refresh(self, record: WorkloadEntry) -> None:
        record.failures += 1
        try:
            known = await self.writer.read(record.owner.namespace, record.owner.workload)
        except REFUSED:
            self.memory.unknown(record)
        else:
            self.memory.saw_workload(record, known)
        self.queue.add(record.id, backoff(record.failures))

    async def _carry_out(self, record: WorkloadEntry, instruction: Instruction) -> bool:
        """Do it; True where something was awaited, so that the rest may be stale."""
        memory = self.memory
        match instruction:
            case Enqueue(lost, until, asked):
                record.refused = record.refused if asked == record.asked else None  # that was about something else
                record.lost, record.asked = lost, asked
                record.lost_at = (record.lost_at or time.time()) if lost else None
                memory.enter(record, until)
                self._saw(record.id)
                self.admitter.withdraw(record)
            case Dequeue():
                record.lost, record.lost_at, record.asked = {}, None, {}
                memory.leave(record)
                self.admitter.withdraw(record)
            case Free():
                self.evictions.forget(record.id)
                memory.free(record)
            case Shorten(counts):
                record.late = {**record.late, **counts}
            case DoubtNamespace():
                memory.doubts.note(record.owner.namespace)
            case EmitEvent():
                self._tell(record, instruction)
            case Delete(pod, reason, message, at_once):
                self.recorder.event(reference(PODS, pod), "Warning", reason, "Replace", message)
                self.sender.delete(record, pod, at_once=at_once)
            case ShrinkLater():
                record.shrink_at = time.monotonic() + SHRINK_AFTER
                self.queue.add(record.id, SHRINK_AFTER)
            case RequeueAfter(after):
                self.queue.add(record.id, after)
            case _:
                return await self._carry[type(instruction)](record, instruction)
        return False

    def _ungate(self, record: WorkloadEntry, ungate: Ungate, predictions: Predictions | None) -> None:
        slots = record.slots_of(ungate.pod)
        if slots is None:
            self.sender.ungate(record, ungate.pod, Slot((), 1))
            return
        slot, pod = slots.slots[ungate.index], ungate.pod
        if pod.metadata.uid not in record.intents and not self.memory.arrivals.may_go(record, pod, slot.node):
            return
        self.memory.arrivals.sent(record, pod, slot.node)
        placement = predictions.take(pod, slot) if predictions is not None else None
        more = self.memory.inside.annotations(slot.node, placement)
        self.sender.ungate(record, pod, slot, placement, more)

    def _tell(self, record: WorkloadEntry, tell: EmitEvent) -> None:
        if tell.once:
            if tell.once in record.noted:
                return
            record.noted.add(tell.once)
        else:
            record.told = LastEvent(str(tell.reason), tell.message, time.monotonic())
        if tell.pod is None:
            emit(self.recorder, record, tell.type, tell.reason, tell.action, message=tell.message)
            return
        text = conditions.shorten(tell.message)
        self.recorder.event(reference(PODS, tell.pod), tell.type, tell.reason, tell.action, text)

    # --- writes of one job ---------------------------------------------------------------------------------------

    async def _create(self, record: WorkloadEntry, _: Create) -> bool:
        record.busy += 1
        known, owner = None, granted.as_admitted(record)
        try:
            async with record.lock:
                known = await self.writer.create(owner, self.memory.priority(owner))
        except KubeError as error:
            if isinstance(error, LASTING) or "too large" in str(error):
                text = f"its Workload cannot be made: {error}"
                self._tell(record, EmitEvent("Warning", Reason.WRITE_FAILED, "Admit", text, once="unmakeable"))
            raise
        finally:
            self.memory.written(record, known)
        if self.memory.unknown_class(record.owner):
            label, named = self.memory.keys.priority_class, record.owner.workload_class
            text = (
                f"label {label}: {named} is no WorkloadPriorityClass, and not the PriorityClass of the pods: the "
                "priority of the pods counts"
            )
            emit(self.recorder, record, "Warning", Reason.UNKNOWN_PRIORITY_CLASS, "Admit", message=text)
        return True

    async def _respec(self, record: WorkloadEntry, _: UpdateSpec) -> bool:
        owner = record.owner
        if record.admission is not None:
            counts = [pod_set.full for pod_set in owner.pod_sets]
            await self.living.writing(record, lambda known: self.writer.counts(owner.namespace, known, counts))
            return True
        await self.living.writing(record, lambda known: self.writer.spec(owner, known, known.priority))
        return True

    async def _write(self, record: WorkloadEntry, write: WriteConditions) -> bool:
        known = record.known
        if known is None:
            return False
        more = unhealthy_nodes(known, write.lost, time.time()) if write.lost is not None else {}
        if conditions.is_so(known.conditions, write.wanted) and not more:
            self._lazy.pop(record.id, None)
            return False
        if write.delay and record.id not in self._lazily:
            self._lazy.setdefault(record.id, time.monotonic() + write.delay)
            return False
        self._lazily.discard(record.id)
        self._lazy.pop(record.id, None)
        namespace = record.owner.namespace
        await self.living.writing(record, lambda known: self.writer.conditions(namespace, known, write.wanted, more))
        if record.owner.over or (record.owner.queue and not write.delay):
            self.queue.add(record.id)  # the time for which it is kept begins, or its life goes on
        return True

    async def _release(self, record: WorkloadEntry, release: Release) -> bool:
        """Remove the admission, and only then give the capacity away: nobody else may be told of it before."""
        record.closing = True
        if record.sending:
            self.queue.add(record.id, PAUSE)  # a patch on its way may still use a slot
            return False
        if record.known is None or await self._store(record, None, release.wanted):
            self.memory.free(record)
        return True

    async def _readmit(self, record: WorkloadEntry, _: RestoreAdmission) -> bool:
        if record.admission is not None:
            checks = self.memory.checks_of(record) if record.owner.suspended else ()  # who runs has passed them
            wanted = admitted_as(record.known, "the admission was written again", checks)
            more = {"admissionChecks": pending(checks)} if checks else None
            record.evict = self.memory.holdings.awaited(record.key) or record.evict  # its Workload said so that is gone
            await self._store(record, record.admission, wanted, more)
        return True

    async def _shrink(self, record: WorkloadEntry, shrink: Shrink) -> bool:
        record.shrink_at = None
        smaller = self.memory.holdings.smaller(record, shrink.pod_set, shrink.slots, shrink.count, shrink.asks)
        if await self._store(record, smaller, ()):
            self.memory.hold(record, smaller)
        return True

    async def _store(
        self, record: WorkloadEntry, admission: Admission | None, wanted: tuple[WantedCondition, ...], more: Any = None
    ) -> bool:
        """Write an admission whose capacity is held already, or remove it; True where that is done."""
        reclaimable = reclaimed(record, admission) if admission is not None else None
        namespace = record.owner.namespace
        try:
            return await self.living.writing(
                record,
                lambda known: self.writer.admission(
                    namespace, known, admission, wanted, reclaimable=reclaimable, more=more
                ),
            )
        except Overtaken:
            return False  # what somebody else stored is held now

    # --- the admission cycle -------------------------------------------------------------------------------------

    def _signal_cycle(self) -> None:
        self._signal.set()

    def _spawn(self, write: Coroutine[Any, Any, None]) -> None:
        if self._group is not None:
            self._group.create_task(write)

    async def _cycles(self) -> None:
        memory, admitter = self.memory, self.admitter
        with suppress(TimeoutError):  # else the first to be looked at would be admitted before those it waits behind
            async with asyncio.timeout(FIRST_LOOKS):
                await self._all_seen.wait()
        while True:
            due = admitter.next_time
            wait = SWEEP if due is None else min(SWEEP, max(0.0, due - time.time()))
            try:
                async with asyncio.timeout(wait):
                    await self._signal.wait()
            except TimeoutError:
                pass
            self._signal.clear()
            generation = memory.generation
            with self.guard("budget", ""):
                self._budgets.refresh()
            while admitter.cycle():
                await asyncio.sleep(0)
            if memory.generation != generation:
                await asyncio.sleep(PAUSE)

    # --- what nobody announces -----------------------------------------------------------------------------------

    async def _lazy_loop(self) -> None:
        while True:
            await asyncio.sleep(LAZY_TICK)
            now = time.monotonic()
            self._lazily &= self.memory.records.keys()
            quiet = now - self.sender.last_sent > QUIET and len(self.queue) == 0
            due = [uid for uid, at in self._lazy.items() if at <= now and (quiet or now - at > LAZY_AT_MOST)]
            for uid in due[:LAZY_BATCH]:
                del self._lazy[uid]
                self._lazily.add(uid)
                self.queue.add(uid)

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            now = time.monotonic()
            for uid, record in self.memory.records.items():
                if any(intent.deadline <= now for intent in record.intents.values()) or any(
                    again <= now for again in record.deleting.values()
                ):
                    self.queue.add(uid)
            for name, look in self._sweeps.items():
                with self.guard("sweep", name):
                    look()

    def _tell_metrics(self) -> None:
        self.metrics.set_machines(*self.memory.inside.counts())
        self.metrics.set_pending(self.memory.pending())
        self.metrics.set_heard(self.informers.heard())
        self.metrics.set_capacity(self.memory.state)

    def _end_refusals(self) -> None:
        if self.memory.troubles.ended():
            self.memory.stir()

    def _leftover(self, workloads: Iterable[Workload], pods: Iterable[Pod]) -> list[Workload]:
        """Workloads whose pods all went while nobody watched: the next pods of their owner start anew."""
        held = {record.key for record in self.memory.records.values()}
        bare = [workload for workload in workloads if key(workload) not in held and of_pods(workload.metadata)]
        # Groups have no record where their LeaderWorkerSet could not be listed.
        groups = {group_key(pod) for pod in pods} if bare else set()
        found = [workload for workload in bare if not has_pods(workload.metadata, groups)]
        for workload in found:
            self.memory.leave_out(key(workload))
        return found

    async def _clear(self, workloads: Sequence[Workload]) -> None:
        """Delete Workloads, however often that fails."""
        failures = 0
        while workloads:
            left: list[Workload] = []
            for workload in workloads:
                try:
                    await self.writer.remove(workload.metadata.namespace, known_of(workload))
                except KubeError as error:
                    left.append(workload)
                    log.warning("a Workload without pods is still there", workload=key(workload), error=str(error))
                else:
                    self._saw(key(workload))
                    if self.memory.stores.workload(key(workload)) is None:
                        self.memory.cleared(key(workload))
            workloads, failures = left, failures + 1
            if workloads:
                await asyncio.sleep(backoff(failures))

    def _remove_unowned(self) -> None:
        now = time.monotonic()
        if now < self._unowned_at:
            return
        self._unowned_at = now + UNOWNED
        for workload in self._unowned.look(self.informers.workloads.store.values(), now):
            self._spawn(self._remove(workload))

    async def _remove(self, workload: Workload) -> None:
        try:
            await self.writer.remove(workload.metadata.namespace, known_of(workload))
        except KubeError as error:
            log.warning("a Workload that is nobody's is still there", workload=key(workload), error=str(error))
        else:
            log.info("removed a Workload that is nobody's", workload=key(workload))

    def _tell_strays(self) -> None:
        """Say why gated pods of owners that are not served stay gated; not at once, as their job may follow them."""
        for uid, pod in self.memory.stray.items():
            if pod is None or time.time() - seconds_of(pod.metadata.creation_timestamp) < SWEEP:
                continue
            self.memory.stray[uid] = None
            owner = controller_of(pod.metadata)
            what = f"its owner, {owner.kind} {owner.name}," if owner else "what owns it"
            message = (
                f"the pod stays behind the scheduling gate {self.memory.keys.gate}: {what} is no Job that asks for a "
                "topology. Make it again without the topology annotation"
            )
            self.recorder.event(reference(PODS, pod), "Warning", Reason.UNSUPPORTED_OWNER, "Place", message)


def _life_rules(settings: Settings) -> LifeRules:
    return LifeRules(
        ready_timeout=settings.wait_for_pods_ready_timeout_seconds,
        recovery_timeout=settings.wait_for_pods_ready_recovery_timeout_seconds,
        backoff=settings.requeuing_backoff_base_seconds,
        backoff_most=settings.requeuing_backoff_max_seconds,
        backoff_limit=settings.requeuing_backoff_limit_count,
        replacement=settings.replacement_timeout_seconds,
        retention=settings.workload_retention_seconds,
    )
