"""Prometheus metrics of the controller. Few series: no label ever names a single object of a user's.

What is counted over all that there is (`MetricTable`) is replaced as a whole, so that no scrape sees half of it, and is
empty while this process does not lead. docs/metrics.md lists them all; a test compares.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Final

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
)

from engine.cluster.capacity import GANGS, WHOLE, Capacity, measured
from engine.cluster.state import ClusterState
from engine.quantity import CPU
from kube.resources import Resource
from kube.watch import Signal
from ungater.metric_table import MetricTable, Rows, unit
from ungater.queue_metrics import QueueMetrics

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)
UNLABELED_SECONDS: Final = 30.0
_TOLD: Final = frozenset({Signal.LISTED, Signal.FAILED, Signal.EXPIRED, Signal.UNDECODABLE, Signal.HANDLER_ERROR})


class ControllerMetrics:
    """All series, in a registry of their own so that tests may make as many as they like."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        for process_wide in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            registry.register(process_wide)
        self._workloads(registry)
        self._cluster(registry)
        self._api(registry)
        self.queues = QueueMetrics(registry)
        self.leader = Gauge("topogate_leader", "1 while this process leads.", registry=registry)
        self.settings_refused = Gauge(
            "topogate_settings_refused",
            "1 while the settings in ConfigMap topogate-config are wrong, and the last good ones count.",
            registry=registry,
        )
        self._seen = -1, -1  # version of the state, and of its table, that capacity was read from
        self._outside: dict[str, tuple[float, int]] = {}  # by flavor: when counted, how many

    def _workloads(self, registry: CollectorRegistry) -> None:
        self.ungate = Histogram(
            "topogate_ungate_seconds",
            "From the creation of a pod (whole seconds) until its gate was removed.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.placement = Histogram(
            "topogate_placement_seconds",
            "One admission cycle that admitted somebody (placed), or none of those it looked at (refused).",
            ["answer"],
            buckets=_FAST,
            registry=registry,
        )
        self.admission = Histogram(
            "topogate_admission_seconds",
            "From the creation of a job (whole seconds) until its admission was stored.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.admitted = Counter("topogate_admitted_workloads", "Admissions that were stored.", registry=registry)
        self.evicted = Counter(
            "topogate_evicted_workloads", "Workloads whose eviction began, by reason.", ["reason"], registry=registry
        )
        self.moves = Counter(
            "topogate_moves",
            "Moves of workloads that run: begun, blocked by a PodDisruptionBudget, or late (given up).",
            ["reason", "outcome"],
            registry=registry,
        )
        self.patches = Counter("topogate_ungate_patches", "Patches that remove a gate.", ["outcome"], registry=registry)
        self.adopted_pods = Counter("topogate_adopted_pods", "Pods of Kueue's that were taken over.", registry=registry)
        self.nominations = Counter(
            "topogate_pod_nominations",
            "Writes of status.nominatedNodeName of gated pods, where nominateGatedPods is set.",
            ["outcome"],
            registry=registry,
        )
        self.evictor = Counter("topogate_evictions", "Pods asked of the Eviction API.", ["outcome"], registry=registry)
        self.reconciles = Counter("topogate_reconciles", "Times a job was looked at.", ["outcome"], registry=registry)
        self.refusals = Counter(
            "topogate_kubelet_refusals",
            "Pods that were sent to a node and refused there.",
            ["reason"],
            registry=registry,
        )
        self.unscheduled = Counter(
            "topogate_scheduler_refusals",
            "Pods that were let go to a slot and that kube-scheduler refused there for longer than it is waited for.",
            registry=registry,
        )
        self._hanging = MetricTable(
            "topogate_hanging_pods",
            "Pods that were let go, and that kube-scheduler refuses (unscheduled) or that do not start (unstarted).",
            ("state",),
            registry,
        )
        self._left_out = MetricTable(
            "topogate_node_left_out",
            "1 for each node on which pods of several workloads did not run, while no pod goes there.",
            ("node",),
            registry,
        )
        self.unforeseen = Counter(
            "topogate_unforeseen_refusals",
            "Pods that were refused for zones of resources of which their node tells no zones.",
            registry=registry,
        )
        self.misaligned = Counter(
            "topogate_misaligned_pods", "Pods that got other NUMA zones than were predicted.", registry=registry
        )
        self.poisoned = Counter(
            "topogate_poisoned_objects",
            "Errors that an object led to and nobody had foreseen; it is left alone, and all others go on.",
            ["kind"],
            registry=registry,
        )
        self._pending = MetricTable(
            "topogate_pending_workloads", "Workloads without a place, by why they wait.", ("reason",), registry
        )

    def _cluster(self, registry: CollectorRegistry) -> None:
        self._machines = MetricTable(
            "topogate_machines", "Nodes whose inside is known, by what publishes it.", ("source",), registry
        )
        self._troubles = MetricTable(
            "topogate_machine_troubles",
            "Nodes that publish what cannot be used (problem), or sources that differ (disagreement).",
            ("kind",),
            registry,
        )
        self._unrecorded = MetricTable(
            "topogate_unrecorded_pods",
            "Pods that hold something in the zones of a node, and no record says in which, by what publishes the node.",
            ("source",),
            registry,
        )
        self._nodes = MetricTable(
            "topogate_flavor_nodes",
            "Nodes of a flavor: ready, not_ready, cordoned, or unlabeled (selected, but without a level's label).",
            ("flavor", "state"),
            registry,
        )
        self._allocatable = MetricTable(
            "topogate_flavor_allocatable",
            "What a flavor's nodes have for pods: cpu in cores, memory in bytes, devices by number.",
            ("flavor", "resource"),
            registry,
        )
        self._free = MetricTable(
            "topogate_flavor_free",
            "What of that is free on nodes that are ready and schedulable; what is promised is not free.",
            ("flavor", "resource"),
            registry,
        )
        self._largest = MetricTable(
            "topogate_largest_free_domain",
            "What is free in the domain of a level that has most of it, in the same units.",
            ("flavor", "level", "resource"),
            registry,
        )
        self._gangs = MetricTable(
            "topogate_startable_gangs",
            "Gangs of so many devices that would start now, each in one domain of a level, by free devices alone.",
            ("flavor", "level", "resource", "devices"),
            registry,
        )
        self._domains = MetricTable("topogate_domains", "Domains of a level.", ("flavor", "level"), registry)
        self._whole = MetricTable(
            "topogate_free_domains",
            "Domains of a level in which all devices (cpu, where there are none) are free and no node is out.",
            ("flavor", "level"),
            registry,
        )

    def _api(self, registry: CollectorRegistry) -> None:
        self._heard = MetricTable(
            "topogate_informer_last_heard_timestamp_seconds",
            "When the API server last said anything of a resource, be it a bookmark that says that nothing changed.",
            ("resource",),
            registry,
        )
        self._informers = Counter(
            "topogate_informer_signals",
            "Lists of a resource, and what went wrong with watching it.",
            ["resource", "signal"],
            registry=registry,
        )
        self._handling = Histogram(
            "topogate_informer_handling_seconds",
            "From receiving changes until all of them were taken in.",
            buckets=_FAST,
            registry=registry,
        )
        self._requests = Counter(
            "topogate_api_requests",
            "Answers of the API server by HTTP status (none: there was none); what is sent again counts again.",
            ["method", "code"],
            registry=registry,
        )

    # --- told while it happens -----------------------------------------------------------------------------------

    def failed(self, kind: str) -> None:
        """An object of this kind led to an error that nobody had foreseen."""
        self.poisoned.labels(kind).inc()

    def signal(self, resource: Resource, signal: Signal, value: float) -> None:
        """What an informer tells (`kube.watch.Observe`)."""
        if signal is Signal.HANDLED:
            self._handling.observe(value)
        elif signal in _TOLD:
            self._informers.labels(resource.plural, signal.value).inc()

    def answered(self, method: str, code: int) -> None:
        """What the API server answered; 0: nothing."""
        self._requests.labels(method, str(code) if code else "none").inc()

    # --- looked at every few seconds -----------------------------------------------------------------------------

    def set_hanging(self, unscheduled: int, unstarted: int) -> None:
        """How many pods that were let go do not run, for longer than is usual."""
        self._hanging.replace(_by_one({"unscheduled": unscheduled, "unstarted": unstarted}))

    def set_left_out(self, nodes: Iterable[str]) -> None:
        """The nodes that no pod goes to for a while."""
        self._left_out.replace(_by_one(dict.fromkeys(nodes, 1)))

    def set_machines(self, sources: Mapping[str, int], mismatches: Mapping[str, int]) -> None:
        """Replace the number of nodes by source and by kind of trouble."""
        self._machines.replace(_by_one(sources))
        self._troubles.replace(_by_one(mismatches))

    def set_unrecorded(self, sources: Mapping[str, int]) -> None:
        """Replace the number of pods without a record by source of their nodes."""
        self._unrecorded.replace(_by_one(sources))

    def set_pending(self, reasons: Mapping[str, int]) -> None:
        """Replace the number of pending workloads of every reason."""
        self._pending.replace(_by_one(reasons))

    def set_heard(self, heard: Iterable[tuple[Resource, float]]) -> None:
        """Replace when something was last heard of each resource, in seconds since the epoch."""
        self._heard.replace({(resource.plural,): at for resource, at in heard if at})

    def set_capacity(self, state: ClusterState, now: float) -> None:
        """Replace what is free; nothing is done where nothing changed since. ``now``: monotonic."""
        seen = state.version, state.cluster.table.log_end
        if seen == self._seen:
            return
        self._seen = seen
        nodes, have, free, largest, domains, whole, gangs = (dict[tuple[str, ...], float]() for _ in range(7))
        resources = measured(state)
        for name, flavor in sorted(state.flavors.items()):
            tree = state.tree(name)
            if tree is None:
                continue
            capacity = Capacity(state, tree)
            out, off = int(capacity.not_ready(WHOLE)[0]), int(capacity.cordoned(WHOLE)[0])
            nodes[name, "ready"] = tree.size - out - off
            nodes[name, "not_ready"], nodes[name, "cordoned"] = out, off
            at, outside = self._outside.get(name, (-math.inf, 0))
            # Nodes that a flavor selects without a place in its tree: a look at every node, so not each time.
            if now - at > UNLABELED_SECONDS:
                outside = sum(1 for _ in state.cluster.outside(flavor))
                self._outside[name] = now, outside
            nodes[name, "unlabeled"] = outside
            for resource in resources:
                have[name, resource] = unit(resource, int(capacity.allocatable(resource, WHOLE)[0]))
                free[name, resource] = unit(resource, int(capacity.free_amounts(resource, WHOLE)[0]))
            for rank, level in enumerate(flavor.levels):
                domains[name, level] = 0 if tree.lost(level) else tree.count_domains(rank)
                whole[name, level] = capacity.count_whole_domains(resources[0] if resources else CPU, rank)
                for resource in resources:
                    largest[name, level, resource] = unit(
                        resource, int(capacity.free_amounts(resource, rank).max(initial=0))
                    )
                # Of the most common device, which has a slash in its name: gangs of cores or bytes tell nothing.
                for resource, size in product(resources[:1] if resources and "/" in resources[0] else (), GANGS):
                    gangs[name, level, resource, str(size)] = int(capacity.gangs(resource, size, rank).sum())
        # Flavors that are gone would stay here.
        self._outside = {name: found for name, found in self._outside.items() if name in state.flavors}
        tables = (self._nodes, self._allocatable, self._free, self._largest, self._domains, self._whole, self._gangs)
        for table, rows in zip(tables, (nodes, have, free, largest, domains, whole, gangs), strict=True):
            table.replace(rows)

    def end_leading(self) -> None:
        """This process does not lead any more: what it knows grows old."""
        self._seen = -1, -1
        for table in (self._pending, self._machines, self._troubles, self._nodes, self._allocatable, self._free):
            table.replace({})
        for table in (self._largest, self._domains, self._whole, self._gangs, self._heard, self._unrecorded):
            table.replace({})
        self._hanging.replace({})
        self._left_out.replace({})
        self.queues.end_leading()


def _by_one(counts: Mapping[str, int]) -> Rows:
    return {(label,): count for label, count in counts.items()}
