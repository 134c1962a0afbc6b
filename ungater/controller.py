"""The heart of the controller: watches feed `Cache`, `reconcile` says what to do, this carries it out.

- One worker at a time looks at one job; the look is `reconcile`, a plain function, and what it returns is carried out
  in order. At most one awaited write a look: what was decided before it may be stale then, so the job is looked at
  again.
- Who needs a place, or more of it, waits in queueing; `ungater.scheduling.scheduler` runs the admission cycle.
- What a queued job's life needs is carried out in `ungater.executor.lifecycle`.
- Only the leader runs one of these. When the lease is lost the task is cancelled, and what is in memory goes with it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypedDict

import structlog

from clock import Clock
from crds.constants import Keys
from engine.reasons import Reason
from kube.client import Client
from kube.errors import Conflict, KubeError, NotFound
from kube.events import EventRecorder
from kube.objects import ResourceFlavor, key
from kube.versions import NEWEST, SchedulerRules
from queueing.cycle.shield import in_words
from ungater import kinds
from ungater.cache import rules
from ungater.cache.cache import Cache
from ungater.cache.pdb import BudgetWatch
from ungater.executor.executor import Executor
from ungater.executor.lifecycle import Lifecycle, Reclaim
from ungater.executor.notices import NodeNotices
from ungater.executor.sweeper import SWEEP, Sweeper
from ungater.guard import Guard
from ungater.informers import Informers
from ungater.jobs.pod_template import Added, to_pods
from ungater.kueue.bridge import AdmissionCheckController
from ungater.kueue.retries import Limits, NeverFits
from ungater.kueue.standings import Standings
from ungater.look_ups import stores_of
from ungater.metrics import Metrics
from ungater.model import conditions
from ungater.model.actions import (
    ClearAdmission,
    Deactivate,
    Evict,
    EvictPods,
    Release,
    Start,
    Suspend,
    Ungate,
    WriteConditions,
)
from ungater.model.conditions import WantedCondition
from ungater.model.job_view import namespace_of
from ungater.model.workload_entry import WorkloadEntry
from ungater.numa.node_topologies import Options
from ungater.numa.predictions import Predictions
from ungater.reconcile import reconcile
from ungater.scheduling.scheduler import Scheduler
from ungater.status.flavors import FlavorSource, FlavorStatus
from ungater.status.queues import QueueStatus, Source
from ungater.workqueue import WorkQueue, backoff
from ungater.writers.events import emit
from ungater.writers.evictor import Evictor
from ungater.writers.pods import PodWriter
from ungater.writers.workloads import REFUSED, Overtaken, WorkloadWriter

if TYPE_CHECKING:
    from crds.settings import Settings

WORKERS = 16  # looks at jobs, and creations of Workloads, at a time
EVICTIONS = 8  # pods at a time
FIRST_LOOKS = 30.0  # seconds at most, after a start, until somebody is admitted though others were not looked at yet
PAUSE = 0.05  # seconds between two cycles that only freed capacity asked for
QUIET = 1.0  # seconds without a patch, after which lazy writes are welcome
LONGEST = 300.0  # seconds until one that led to an error that nobody foresaw is looked at again

LEAVING = (Release, ClearAdmission, Evict, EvictPods, Suspend, Deactivate)

log = structlog.get_logger()


class _Shared(TypedDict):
    """What several parts take alike."""

    requeue: Callable[[str, float], None]
    metrics: Metrics
    recorder: EventRecorder
    clock: Clock


class _OfLife(TypedDict):
    """What a workload's life goes by."""

    flavors: Mapping[str, ResourceFlavor]
    keys: Keys
    patience: float
    reclaim: Reclaim


class Controller:
    """One term of leadership."""

    def __init__(
        self,
        settings: "Settings",
        client: Client,
        metrics: Metrics,
        recorder: EventRecorder,
        clock: Clock,
        *,
        scheduler: SchedulerRules = NEWEST,
    ) -> None:
        self._clock, self.client, self.metrics, self.recorder = clock, client, metrics, recorder
        self.queue = WorkQueue(clock, namespace_of)
        self.guard = Guard(clock, metrics.failed)
        self.informers = informers = Informers(client, settings.keys, clock, metrics.signal)
        standings = Standings()
        notices = NodeNotices(recorder, metrics, informers.node)
        requeue = self.queue.add
        self.cache = _cache(
            settings,
            informers,
            standings,
            notices,
            clock,
            requeue=requeue,
            wake=self.request_cycle,
            guard=self.guard,
            scheduler=scheduler,
        )
        self.writer = WorkloadWriter(client, clock)
        shared: _Shared = {"requeue": requeue, "metrics": metrics, "recorder": recorder, "clock": clock}
        self.pod_writer = _pod_writer(settings, client, informers, self.cache, shared)
        self._signal = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self.evictor = Evictor(
            client, concurrency=EVICTIONS, guard=self.guard, job=informers.look_up(kinds.JOBS), **shared
        )
        self._budgets = BudgetWatch(self.cache)
        self.scheduler = Scheduler(self.cache, self.writer, rules.move_rules(settings), spawn=self._spawn, **shared)
        self.lifecycle = Lifecycle(
            client, self.cache, self.writer, self.scheduler, self.evictor, **_of_life(settings, informers), **shared
        )
        self.executor = Executor(
            self.cache,
            self.scheduler,
            self.lifecycle,
            pods=self.pod_writer,
            workloads=self.writer,
            evictor=self.evictor,
            recorder=recorder,
            requeue=self.queue.add,
            idle=self._idle,
            saw=self._saw,
            clock=clock,
        )
        self.sweeper = Sweeper(
            self.cache,
            informers,
            self.writer,
            self.evictor,
            requeue=self.queue.add,
            spawn=self._spawn,
            saw=self._saw,
            unnominate=self.pod_writer.forget_nomination,
            metrics=metrics,
            usage_labels=settings.usage_labels,
            recorder=recorder,
            guard=self.guard,
            clock=clock,
        )
        self._unseen: set[str] = set()  # uids known at the start, not looked at yet; keys of Workloads to be removed
        self._all_seen = asyncio.Event()
        self._looks = 0  # the id of a look in logs
        self._outcomes = {name: metrics.reconciles.labels(name) for name in ("done", "conflict", "error", "bug")}
        flavors, asked = informers.of(kinds.FLAVORS).store, informers.discovery
        self.bridge = AdmissionCheckController(client, self.cache, standings, _limits(settings), flavors, asked, clock)
        _subscribe(informers, self.cache, self.evictor, self._budgets, self.bridge)
        self._flavor_status = _flavor_status(client, self.cache, informers, recorder, clock)
        self._queue_status = QueueStatus(client, _queues(self.cache, informers), self._idle, clock)
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
                await informers.load(self.cache)
                leftover = self.sweeper.leftover(informers.stored_workloads(), informers.stored_pods())
                # Nobody is admitted before all of these were looked at: some may come before others in their queues.
                self._unseen |= {*self.cache.entries, *map(key, leftover)}
                # Sets the event where there is nothing to wait for.
                self._saw("")
                group.create_task(self.sweeper.clear(leftover))
                self._signal.set()
                self.ready = True
                self._tell_leading()
                for _ in range(WORKERS):
                    group.create_task(self._work())
                for name, loop in (
                    ("sender", self.pod_writer.run),
                    ("evictions", self.evictor.run),
                    ("cycles", self._cycles),
                    ("lazy", self.executor.deferred.run),
                    ("sweep", self.sweeper.run),
                    ("kueue", self.bridge.run),
                    ("queues", self._queue_status.run),
                    ("flavors", self._flavor_status.run),
                ):
                    group.create_task(self.guard.forever(name, loop))
        finally:
            self.ready = False
            # Timers reach an hour ahead, and would keep this term's objects until then.
            self.queue.close()

    def _tell_leading(self) -> None:
        nodes, pods = len(self.informers.objects(kinds.NODES)), len(self.informers.objects(kinds.PODS))
        log.info("leading", nodes=nodes, pods=pods, jobs=len(self.cache.entries))

    # --- one job -------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            uid = await self.queue.get()
            try:
                with self.guard("workload", uid):
                    await self.reconcile(uid)
            finally:
                # Also after an error: one job that fails must not hold up the first cycle for all.
                self._saw(uid)
                self.queue.done(uid)

    def _idle(self) -> bool:
        """Whether no pod was let go just now, nobody is looked at, and nothing that pods wait for is unanswered."""
        return self.queue.idle and not self.scheduler.stores and self.pod_writer.quiet(QUIET)

    def _saw(self, uid: str) -> None:
        self._unseen.discard(uid)
        if not self._unseen:
            self._all_seen.set()

    async def reconcile(self, uid: str) -> None:
        """Look at one job once. Failures of the API server only delay: the job is looked at again, later each time."""
        entry = self.cache.entries.get(uid)
        if entry is None or entry.writes.put_off():
            return
        self._looks += 1
        outcome, context = "done", {"workload": entry.key, "reconcile": self._looks}
        try:
            if not self.cache.pod_groups.regroup(entry):
                return
            now = self._clock.monotonic()
            self.cache.count_pods(entry, now)
            instructions = reconcile.reconcile(entry, self.cache.rules, now, self._clock.now())
            # It was on its way out, and is not any more: its pods may go again.
            if entry.closing and not any(isinstance(one, LEAVING) for one in instructions):
                self.lifecycle.keep(entry)
            predictions = None
            for instruction in instructions:
                if isinstance(instruction, Ungate):
                    # Made with the first pod that goes: most looks let none go.
                    if predictions is None and self.cache.state.machines:
                        predictions = Predictions(self.cache.state, entry)
                    self.executor.ungate(entry, instruction, predictions)
                elif await self.executor.carry_out(entry, instruction):
                    # Conditions at the end leave nothing to be decided; after any other write the rest may be stale.
                    if instruction is not instructions[-1] or not isinstance(instruction, WriteConditions):
                        self.queue.add(uid, entry.until_pods_come if isinstance(instruction, Start) else 0.0)
                    break
            entry.succeed()
            self.bridge.looked(entry)
        except (Conflict, NotFound, Overtaken) as error:
            outcome = "conflict"  # or deleted; no event tells of one that came and went while a watch was broken
            log.info("workload changed meanwhile", error=str(error), **context)
            await self._refresh(entry)
        except KubeError as error:
            outcome = "error"
            self._later(entry)
            log.warning("API server refused or did not answer", error=str(error), failures=entry.failures, **context)
        except Exception as error:  # noqa: BLE001  (told by the guard)
            outcome = "bug"
            await self._poisoned(entry, error)
        self._outcomes[outcome].inc()

    async def _poisoned(self, entry: WorkloadEntry, error: Exception) -> None:
        """A look failed otherwise than foreseen: say so, and leave the job alone for a while."""
        self.guard.failed("workload", entry.key, error)
        self.queue.add(entry.id, backoff(entry.count_failure(), longest=LONGEST))
        text, observed = in_words(error), entry.observed
        if text not in entry.noted:
            entry.noted.add(text)
            emit(self.recorder, entry, "Warning", Reason.INTERNAL_ERROR, "Admit", message=text)
        wanted = (WantedCondition(conditions.QUOTA_RESERVED, False, Reason.INTERNAL_ERROR, text),)
        if entry.admission is None and observed is not None and not conditions.is_so(observed.conditions, wanted):
            namespace = entry.job.namespace
            with suppress(KubeError, Overtaken):
                await self.lifecycle.writing(
                    entry, lambda observed: self.writer.conditions(namespace, observed, wanted)
                )

    def _later(self, entry: WorkloadEntry) -> None:
        self.queue.add(entry.id, backoff(entry.count_failure()))

    async def _refresh(self, entry: WorkloadEntry) -> None:
        self._later(entry)
        try:
            observed = await self.writer.find(entry.job)
        except NotFound:
            observed = None
        # An answer that says nothing of the Workload, such as 401 or 403: what is known of it stays.
        except REFUSED as error:
            log.warning("workload cannot be read", workload=entry.key, error=str(error))
            return
        if observed is None:
            self.cache.workloads.found_gone(entry)
        else:
            self.cache.workloads.saw_workload(entry, observed)

    # --- the admission cycle -------------------------------------------------------------------------------------

    def request_cycle(self) -> None:
        """Have a cycle be run soon."""
        self._signal.set()

    def _spawn(self, write: Coroutine[Any, Any, None]) -> None:
        if self._group is not None:
            self._group.create_task(write)

    async def _cycles(self) -> None:
        cache, scheduler = self.cache, self.scheduler
        with suppress(TimeoutError):  # else the first to be looked at would be admitted before those it waits behind
            async with asyncio.timeout(FIRST_LOOKS):
                await self._all_seen.wait()
        while True:
            due = scheduler.next_time
            wait = SWEEP if due is None else min(SWEEP, max(0.0, due - self._clock.now()))
            try:
                async with asyncio.timeout(wait):
                    await self._signal.wait()
            except TimeoutError:
                pass
            # Cleared before the cycle: whatever comes while it runs asks for another one.
            self._signal.clear()
            generation = cache.generation
            with self.guard("budget", ""):
                self._budgets.refresh()
            while scheduler.cycle():
                # Between two steps watches are read and the lease is renewed.
                await asyncio.sleep(0)
            if cache.generation != generation:
                await asyncio.sleep(PAUSE)


def _cache(
    settings: "Settings",
    informers: Informers,
    standings: Standings,
    notices: NodeNotices,
    clock: Clock,
    *,
    requeue: Callable[[str, float], None],
    wake: Callable[[], None],
    guard: Guard,
    scheduler: SchedulerRules,
) -> Cache:
    return Cache(
        settings.keys,
        stores_of(informers),
        requeue,
        wake,
        notices=notices,
        view=standings.view,
        batch_seconds=settings.ungate_batch_seconds,
        options=Options.of(settings),
        queueing=rules.queue_rules(settings),
        life=rules.life_rules(settings),
        missing_pods=rules.missing_pods(settings),
        patience=rules.patience(settings),
        require_queue=settings.require_queue,
        nominates=settings.nominate_gated_pods,
        device_resources=rules.device_resources(settings),
        scheduler=scheduler,
        guard=guard,
        clock=clock,
    )


def _subscribe(
    informers: Informers, cache: Cache, evictor: Evictor, budgets: BudgetWatch, bridge: AdmissionCheckController
) -> None:
    informers.subscribe(
        cache,
        # The evictor ends its wait for an eviction before anybody asks for the next one.
        first={kinds.PODS: (evictor.on_pod,)},
        # These ask the cache about what changed.
        last={
            kinds.PODS: (budgets.on_pod,),
            kinds.BUDGETS: (budgets.on_budget,),
            kinds.FLAVORS: (lambda _: bridge.flavors_changed(),),
        },
        foreign=bridge,
    )


def _pod_writer(settings: "Settings", client: Client, informers: Informers, cache: Cache, shared: _Shared) -> PodWriter:
    def added(entry: WorkloadEntry, pod_set: str) -> Added:
        checks = cache.admissions.checks_of(entry)
        return to_pods(entry, pod_set, informers.of(kinds.FLAVORS).store, settings.keys, checks)

    return PodWriter(
        client,
        settings.keys,
        added,
        concurrency=settings.ungate_concurrency,
        timeout=settings.expectation_timeout_seconds,
        stayed=cache.left_pods.stayed,
        guard=cache.guard,
        **shared,
    )


def _of_life(settings: "Settings", informers: Informers) -> _OfLife:
    return {
        "flavors": informers.of(kinds.FLAVORS).store,
        "keys": settings.keys,
        "patience": settings.eviction_patience_seconds,
        "reclaim": Reclaim(settings.reclaim_overrides_budgets, int(settings.reclaim_grace_seconds)),
    }


def _limits(settings: "Settings") -> Limits:
    """How long somebody waits behind Kueue."""
    return Limits(
        NeverFits(settings.kueue_never_fits),
        settings.kueue_never_fits_seconds,
        settings.kueue_reject_seconds,
        settings.kueue_wait_seconds,
    )


def _flavor_status(
    client: Client, cache: Cache, informers: Informers, recorder: EventRecorder, clock: Clock
) -> FlavorStatus:
    source = FlavorSource(cache.state, lambda: cache.layout, informers.of(kinds.FLAVORS).store.values, informers.node)
    return FlavorStatus(client, source, recorder, clock)


def _queues(cache: Cache, informers: Informers) -> Source:
    return Source(
        cache.queues,
        lambda: cache.flavors,
        informers.of(kinds.CLUSTER_QUEUES).store.values,
        informers.of(kinds.LOCAL_QUEUES).store.values,
        cache.unchecked,
    )
