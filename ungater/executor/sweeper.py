"""What nobody announces, looked at now and then: deadlines, pods and Workloads of nobody, gauges."""

import asyncio
from collections import ChainMap
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import structlog

from clock import Clock
from engine.reasons import Reason
from kube.errors import KubeError
from kube.events import EventRecorder, reference
from kube.objects import OwnerReference, Pod, key
from kube.resources import PODS, Resource
from kube.workloads import WorkloadObject
from queueing.status import standings
from ungater.cache.cache import Cache
from ungater.executor import messages
from ungater.executor.eviction import ReclaimRules
from ungater.executor.lingering import LingeringPods
from ungater.executor.unowned import StrayPods, UnownedWorkloads
from ungater.guard import Guard
from ungater.jobs.leaderworkerset import group_key, has_pods
from ungater.jobs.pod_group import of_pods
from ungater.metrics import ControllerMetrics
from ungater.model.pod_slots import is_gated
from ungater.model.workload_status import observed_of
from ungater.status.queues import MOST_OF_A_CORE
from ungater.workqueue import backoff
from ungater.writers.evictor import Evictor
from ungater.writers.workloads import WorkloadWriter

SWEEP = 2.0  # seconds between two looks
UNOWNED = 20.0  # seconds between looks at Workloads and nominated pods that are nobody's

log = structlog.get_logger()


class SweepRules(NamedTuple):
    """``usage_labels``: of pods, by whose values it is counted what they hold. ``reclaim``: how quota is taken back."""

    usage_labels: Sequence[str]
    reclaim: ReclaimRules


class Watches(Protocol):
    """What is seen of the API server (`ungater.informers`)."""

    def stored_workloads(self) -> Iterable[WorkloadObject]:
        """All that there are."""
        ...

    def stored_pods(self) -> Iterable[Pod]:
        """All that there are."""
        ...

    def is_owner_there(self, namespace: str, owner: OwnerReference) -> bool:
        """Whether the owner that a Workload names is there."""
        ...

    def last_heard_by_kind(self) -> Iterable[tuple[Resource, float]]:
        """When the API server last said anything of each resource."""
        ...


class Sweeper:
    """Looks at all of it in one loop.

    ``spawn``: starts a write; ``saw``: told of a Workload that is gone; ``unnominate``: removes a pod's nomination.
    """

    def __init__(
        self,
        cache: Cache,
        watches: Watches,
        writer: WorkloadWriter,
        evictor: Evictor,
        *,
        requeue: Callable[[str, float], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        saw: Callable[[str], None],
        unnominate: Callable[[Pod], None],
        metrics: ControllerMetrics,
        rules: SweepRules,
        recorder: EventRecorder,
        guard: Guard,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._watches = watches
        self._workloads = writer
        self._requeue = requeue
        self._spawn = spawn
        self._saw = saw
        self._unnominate = unnominate
        self._metrics = metrics
        self._usage_labels = rules.usage_labels
        self._recorder = recorder
        self._guard = guard
        self._clock = clock
        self._unowned = UnownedWorkloads(cache.pod_groups.serves, watches.is_owner_there, cache.pod_groups.without_pods)
        self._strays = StrayPods(watches.is_owner_there)
        self._lingering = LingeringPods(cache, watches.stored_pods, evictor, rules.reclaim, clock)
        self._unowned_at = self._nominated_at = self._queues_at = 0.0
        self._sweeps: dict[str, Callable[[], None]] = {
            "refusals": self._end_refusals,
            "arrivals": self._open_nodes,
            "coming": lambda: cache.coming.have_looked_at(cache.entries.values()),
            "missing": cache.nodes.forget_missing,
            "doubts": cache.doubts.forget_past,
            "unproved": cache.jobs.judge_unproved,
            "unseen": cache.pod_groups.judge_unseen,
            "unstored": cache.workloads.judge_unstored,
            "strays": self._tell_gated_orphans,
            "unowned": self._remove_unowned,
            "nominated": self._remove_nominations,
            "lingering": self._lingering.hurry_pods,
            "evictions": evictor.sweep,
            "metrics": self._tell_metrics,
            "queues": self._tell_queues,
        }

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await asyncio.sleep(SWEEP)
            now = self._clock.monotonic()
            for uid, entry in self._cache.entries.items():
                # No event tells of an answer that was lost: these deadlines are all there is.
                if any(expectation.deadline <= now for expectation in entry.expectations.values()) or any(
                    again <= now for again in entry.deleting.values()
                ):
                    self._requeue(uid, 0.0)
            for name, look in self._sweeps.items():
                # A look that fails is reported, and ends neither the loop nor the other looks.
                with self._guard("sweep", name):
                    look()

    def _tell_metrics(self) -> None:
        self._metrics.set_machines(*self._cache.topologies.count_sources())
        self._metrics.set_unrecorded(self._cache.topologies.unrecorded())
        self._metrics.set_pending(self._cache.pending())
        self._metrics.set_hanging(*self._cache.coming.hanging(self._cache.entries.values()))
        self._metrics.set_left_out(self._cache.node_refusals.avoided_names())
        self._metrics.set_heard(self._watches.last_heard_by_kind())
        self._metrics.set_capacity(self._cache.state, self._clock.monotonic())

    def _tell_queues(self) -> None:
        """A pass over all workloads: more rarely where they are many."""
        cache, now = self._cache, self._clock.monotonic()
        if now < self._queues_at:
            return
        found = standings(cache.queues, cache.flavors, unchecked=cache.unchecked())
        self._metrics.queues.look_at_queues(cache.queues, found, self._usage_labels, self._labels_of, now)
        # The longer a pass takes the rarer it is: it never takes more than this share of a core.
        self._queues_at = now + (self._clock.monotonic() - now) / MOST_OF_A_CORE

    def _labels_of(self, workload: str) -> Mapping[str, str]:
        """The labels of a workload's pods; of two pod sets that differ the first one's count."""
        entry = self._cache.entries.of_workload(workload)
        pod_sets = entry.job.pod_sets if entry is not None else ()
        return ChainMap(*(one.template.metadata.labels or {} for one in pod_sets))

    def _end_refusals(self) -> None:
        cache = self._cache
        again = [
            cache.mismatches.has_expired(),
            cache.refusals.requeue_expired(cache.entries.values()),
            cache.node_refusals.has_expired(),
        ]
        if again[-1]:  # of everybody's pods
            for uid, entry in cache.entries.items():
                if entry.refused is not None:
                    self._requeue(uid, 0.0)
        if any(again):
            cache.queue_inadmissible()

    def _open_nodes(self) -> None:
        if self._cache.in_flight.sweep():
            self._cache.queue_inadmissible()

    def leftover(self, workloads: Iterable[WorkloadObject], pods: Iterable[Pod]) -> list[WorkloadObject]:
        """Workloads whose pods all went while nobody watched: the next pods of their owner start anew."""
        held = {entry.key for entry in self._cache.entries.values()}
        bare = [workload for workload in workloads if key(workload) not in held and of_pods(workload.metadata)]
        # Groups have no entry where their LeaderWorkerSet could not be listed.
        groups = {group_key(pod) for pod in pods} if bare else set()
        found = [workload for workload in bare if not has_pods(workload.metadata, groups)]
        # Pods of the owner wait until its removal is seen: they would find slots that others may have by then.
        for workload in found:
            self._cache.pod_groups.leave_out(key(workload))
        return found

    async def clear(self, workloads: Sequence[WorkloadObject]) -> None:
        """Delete Workloads, however often that fails."""
        failures = 0
        while workloads:
            left: list[WorkloadObject] = []
            for workload in workloads:
                try:
                    await self._workloads.remove(workload.metadata.namespace, observed_of(workload))
                except KubeError as error:
                    left.append(workload)
                    log.warning("a Workload without pods is still there", workload=key(workload), error=str(error))
                else:
                    self._saw(key(workload))
                    if self._cache.stores.workload(key(workload)) is None:
                        self._cache.pod_groups.cleared(key(workload))
            workloads, failures = left, failures + 1
            if workloads:
                await asyncio.sleep(backoff(failures))

    def _remove_unowned(self) -> None:
        now = self._clock.monotonic()
        if now < self._unowned_at:
            return
        self._unowned_at = now + UNOWNED
        for workload in self._unowned.to_remove(self._watches.stored_workloads(), now):
            self._spawn(self._remove(workload))

    def _remove_nominations(self) -> None:
        """Whoever relabels a gated pod takes it from its workload: the room of its slot is not its own any more."""
        now, cache = self._clock.monotonic(), self._cache
        if not cache.rules.nominates or now < self._nominated_at:
            return
        self._nominated_at = now + UNOWNED
        for pod in self._watches.stored_pods():
            nominated = pod.status.nominated_node_name and is_gated(pod, cache.keys.gate)
            # Only gated pods: a nomination of any other pod is kube-scheduler's.
            if nominated and cache.entries.entry_of_pod(pod) is None:
                self._unnominate(pod)

    async def _remove(self, workload: WorkloadObject) -> None:
        try:
            await self._workloads.remove(workload.metadata.namespace, observed_of(workload))
        except KubeError as error:
            log.warning("a Workload that is nobody's is still there", workload=key(workload), error=str(error))
        else:
            log.info("removed a Workload that is nobody's", workload=key(workload))

    def _tell_gated_orphans(self) -> None:
        """Say why gated pods of owners that are not served stay gated."""
        pods = self._cache.gated_orphans.pods
        for pod in self._strays.to_tell(pods):
            pods[pod.metadata.uid] = None
            message = messages.no_owner_that_asks(pod, self._cache.keys.gate)
            self._recorder.event(reference(PODS, pod), "Warning", Reason.UNSUPPORTED_OWNER, "Place", message)
