"""Makes the parts of a controller and joins them: who asks whom is seen here, and nowhere else.

Each part is whole from its constructor on. Two things come late, once a term runs: who hears of changes
(`Informers.subscribe`) and the tasks that writes run in (`Tasks`).
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from clock import Clock
from kube.client import Client
from kube.events import EventRecorder
from kube.versions import NEWEST, SchedulerRules
from ungater import kinds
from ungater.cache import rules
from ungater.cache.cache import Cache
from ungater.cache.pdb import BudgetWatch
from ungater.cache.served import BesideKueue
from ungater.cycle_requests import CycleRequests
from ungater.executor.eviction import Eviction, ReclaimRules
from ungater.executor.executor import Executor
from ungater.executor.notices import NodeNotices
from ungater.executor.ordered_writes import OrderedWrites
from ungater.executor.start_stop import StartStop
from ungater.executor.sweeper import Sweeper, SweepRules
from ungater.guard import Guard
from ungater.informers import Foreign, Informers
from ungater.jobs.pod_template import Added, to_pods
from ungater.kueue.bridge import AdmissionCheckController
from ungater.kueue.retries import NeverFits, RetryLimits
from ungater.kueue.standings import KueueStandings
from ungater.kueue.started import StartedByKueue
from ungater.look_ups import stores_of
from ungater.metrics import ControllerMetrics
from ungater.model.job_view import namespace_of
from ungater.model.workload_entry import WorkloadEntry
from ungater.numa.node_topologies import TopologyOptions
from ungater.scheduling.scheduler import Scheduler
from ungater.status.flavors import FlavorSource, FlavorStatus
from ungater.status.queues import QueueStatusLoop, Source
from ungater.workqueue import WorkQueue
from ungater.writers.evictor import Evictor
from ungater.writers.pods import PodWriter
from ungater.writers.workloads import WorkloadWriter

if TYPE_CHECKING:
    from crds.settings import Settings

EVICTIONS = 8  # pods at a time
QUIET = 1.0  # seconds without a patch, after which lazy writes are welcome


class Tasks:
    """The tasks that a term starts as it goes; before it runs, and after it, none is started."""

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None

    def start_in(self, group: asyncio.TaskGroup) -> None:
        """Start tasks in this group from here on."""
        self._group = group

    def spawn(self, write: Coroutine[Any, Any, None]) -> None:
        """Run a write beside everything else."""
        if self._group is not None:
            self._group.create_task(write)


class Parts(msgspec.Struct, frozen=True):
    """The parts of one controller."""

    informers: Informers
    cache: Cache
    queue: WorkQueue
    guard: Guard
    cycle_requests: CycleRequests
    tasks: Tasks
    budgets: BudgetWatch
    scheduler: Scheduler
    writer: WorkloadWriter
    pod_writer: PodWriter
    evictor: Evictor
    writes: OrderedWrites
    eviction: Eviction
    executor: Executor
    sweeper: Sweeper
    bridge: AdmissionCheckController
    flavor_status: FlavorStatus
    queue_status: QueueStatusLoop


class _Shared(TypedDict):
    """What several parts take alike."""

    requeue: Callable[[str, float], None]
    metrics: ControllerMetrics
    recorder: EventRecorder
    clock: Clock


def assemble(
    settings: "Settings",
    client: Client,
    metrics: ControllerMetrics,
    recorder: EventRecorder,
    clock: Clock,
    *,
    scheduler: SchedulerRules = NEWEST,
    restart: Callable[[str], None],
) -> Parts:
    """All parts, joined. Nothing runs yet. ``restart``: has the term end, and another begin."""
    queue, guard = WorkQueue(clock, namespace_of), Guard(clock, metrics.failed)
    requests, tasks, standings = CycleRequests(), Tasks(), KueueStandings()
    informers = Informers(client, settings.keys, clock, metrics.signal)
    kueue = StartedByKueue(discovery := informers.discovery, clock, queue.add)
    beside = kueue.beside(restart) if settings.beside_kueue else None
    about = settings, informers, standings, beside, NodeNotices(recorder, metrics, informers.node), clock
    cache = _cache(*about, requeue=queue.add, wake=requests.request_cycle, guard=guard, scheduler=scheduler)
    shared: _Shared = {"requeue": queue.add, "metrics": metrics, "recorder": recorder, "clock": clock}
    writer = WorkloadWriter(client, clock)
    pod_writer = _pod_writer(settings, client, informers, cache, shared)
    evictor = Evictor(client, concurrency=EVICTIONS, guard=guard, job=informers.look_up(kinds.JOBS), **shared)
    cycles = Scheduler(cache, writer, rules.move_rules(settings), spawn=tasks.spawn, **shared)
    writes, jobs, eviction = _evicting(settings, client, cache, informers, writer, cycles, evictor, shared)

    def idle() -> bool:
        """Whether no pod was let go just now, nobody is looked at, and nothing that pods wait for is unanswered."""
        return queue.is_idle and not cycles.stores and pod_writer.quiet(QUIET)

    executor = Executor(
        cache,
        cycles,
        jobs,
        eviction,
        writes,
        pods=pod_writer,
        workloads=writer,
        evictor=evictor,
        recorder=recorder,
        requeue=queue.add,
        idle=idle,
        saw=requests.saw,
        clock=clock,
    )
    flavors = informers.of(kinds.FLAVORS).store
    bridge = AdmissionCheckController(client, cache, standings, _limits(settings), flavors, discovery, clock)
    budgets = BudgetWatch(cache)
    # An event reaches parts that are all there.
    _subscribe(informers, cache, evictor, budgets, bridge, bridge if beside is None else kueue)
    return Parts(
        informers=informers,
        cache=cache,
        queue=queue,
        guard=guard,
        cycle_requests=requests,
        tasks=tasks,
        budgets=budgets,
        scheduler=cycles,
        writer=writer,
        pod_writer=pod_writer,
        evictor=evictor,
        writes=writes,
        eviction=eviction,
        executor=executor,
        sweeper=Sweeper(
            cache,
            informers,
            writer,
            evictor,
            spawn=tasks.spawn,
            saw=requests.saw,
            unnominate=pod_writer.forget_nomination,
            rules=SweepRules(settings.usage_labels, _reclaim_rules(settings)),
            guard=guard,
            **shared,
        ),
        bridge=bridge,
        flavor_status=_flavor_status(client, cache, informers, recorder, clock),
        queue_status=QueueStatusLoop(client, _queues(cache, informers), idle, clock),
    )


def _cache(  # noqa: PLR0917
    settings: "Settings",
    informers: Informers,
    standings: KueueStandings,
    beside: BesideKueue | None,
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
        # Beside Kueue, its quota holds nobody back: its namespaces are not ours.
        view=standings.view_of_job if beside is None else None,
        beside=beside,
        batch_seconds=settings.ungate_batch_seconds,
        options=TopologyOptions.from_settings(settings),
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


def _subscribe(  # noqa: PLR0917
    informers: Informers,
    cache: Cache,
    evictor: Evictor,
    budgets: BudgetWatch,
    bridge: AdmissionCheckController,
    foreign: Foreign,
) -> None:
    informers.subscribe(
        cache,
        # The evictor ends its wait for an eviction before anybody asks for the next one.
        first={kinds.PODS: (evictor.follow_evicted,)},
        # These ask the cache about what changed.
        last={
            kinds.PODS: (budgets.follow_pod,),
            kinds.BUDGETS: (budgets.on_budget,),
            kinds.FLAVORS: (lambda _: bridge.flavors_changed(),),
        },
        foreign=foreign,
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


def _evicting(  # noqa: PLR0917
    settings: "Settings",
    client: Client,
    cache: Cache,
    informers: Informers,
    writer: WorkloadWriter,
    cycles: Scheduler,
    evictor: Evictor,
    shared: _Shared,
) -> tuple[OrderedWrites, StartStop, Eviction]:
    writes, flavors = OrderedWrites(cache, writer), informers.of(kinds.FLAVORS).store
    jobs = StartStop(client, cache, cycles, flavors=flavors, keys=settings.keys, recorder=shared["recorder"])
    eviction = Eviction(
        cache,
        writer,
        cycles,
        evictor,
        writes=writes,
        jobs=jobs,
        patience=settings.eviction_patience_seconds,
        reclaim=_reclaim_rules(settings),
        **shared,
    )
    return writes, jobs, eviction


def _reclaim_rules(settings: "Settings") -> ReclaimRules:
    return ReclaimRules(settings.reclaim_overrides_budgets, int(settings.reclaim_grace_seconds))


def _limits(settings: "Settings") -> RetryLimits:
    """How long somebody waits behind Kueue."""
    return RetryLimits(
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
        lambda: informers.list_objects(kinds.COHORTS),
        informers.of(kinds.CLUSTER_QUEUES).store.values,
        informers.of(kinds.LOCAL_QUEUES).store.values,
        cache.unchecked,
    )
