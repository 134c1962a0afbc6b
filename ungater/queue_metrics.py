"""What each queue has, holds and waited for, and how long what is held was held, as Prometheus metrics.

Rules
- Looked at every few seconds, in one pass over all workloads. So what is held is counted (`resource seconds`) by what
  is held at each look, for the time since the look before; nothing is counted while nobody leads.
- Held is what was admitted, until its pods are gone: not what a preemptor is promised while its victims still hold it.
- Local queues and values of labels are names that tenants make. Of each namespace at most ``MOST`` names of a kind have
  series of their own, the rest share ``OTHER``; what held nothing for ``IDLE_SECONDS`` makes room, and has none.
- No label is called ``namespace``: Prometheus gives that to the pod that it reads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily

from engine.reservation_key import Role, role_of
from queueing.model import FlavorResource, Quantities
from queueing.queues.entry import AssumedAdmission, Phase
from queueing.queues.queues import Queues
from queueing.status import INFINITE_SHARE, Standings
from ungater.cohort_metrics import CohortMetrics
from ungater.metric_table import MetricTable, unit

MOST: Final = 200
OTHER: Final = "other"
IDLE_SECONDS: Final = 86_400.0
_WAITS: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 259_200.0, 604_800.0)
_CLUSTER: Final = ("cluster_queue", "flavor", "resource")
_LOCAL: Final = ("cluster_queue", "queue_namespace", "local_queue")
_VALUE: Final = ("label", "value", "cluster_queue", "queue_namespace")

Labels = Callable[[str], Mapping[str, str]]
_Numbers = dict[tuple[str, ...], float]


class _Names:
    """Which names of a namespace have series of their own."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], dict[str, float]] = {}  # by (kind, namespace): names, and when last used

    def name_or_other(self, kind: str, namespace: str, name: str, now: float) -> str:
        """The name itself, or OTHER."""
        known = self._known.setdefault((kind, namespace), {})
        # A tenant who makes many LocalQueues, or values of a label, takes series from its own namespace alone.
        if name not in known and len(known) >= MOST:
            return OTHER
        known[name] = now
        return name

    def drop_unused(self, before: float) -> None:
        """Names that were not used since."""
        kept = {key: {name: at for name, at in names.items() if at >= before} for key, names in self._known.items()}
        self._known = {key: names for key, names in kept.items() if names}


class _Seconds(msgspec.Struct):
    """Counters by label values; those that did not grow for long are dropped."""

    table: MetricTable
    sums: _Numbers = msgspec.field(default_factory=dict)
    grew: _Numbers = msgspec.field(default_factory=dict)

    def add(self, key: tuple[str, ...], amount: float, now: float) -> None:
        """So much more; 0: there is somebody who may hold something."""
        self.sums[key] = self.sums.get(key, 0.0) + amount
        self.grew[key] = now

    def show_grown(self, before: float) -> None:
        """Drop what did not grow since, and show the rest."""
        for key in [key for key, at in self.grew.items() if at < before]:
            del self.sums[key], self.grew[key]
        self.table.replace(dict(self.sums))  # a copy: another thread reads it


class QueueMetrics:
    """See the module. ``wait`` is told of each admission of a ClusterQueue."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def table(name: str, text: str, *names: str) -> MetricTable:
            return MetricTable(f"topogate_{name}", text, names, registry)

        def seconds(name: str, text: str, *names: str) -> _Seconds:
            return _Seconds(MetricTable(f"topogate_{name}", text, names, registry, CounterMetricFamily))

        self.wait = Histogram(
            "topogate_cluster_queue_wait_seconds",
            "From when a workload began to wait in a ClusterQueue until its admission was stored.",
            ["cluster_queue"],
            buckets=_WAITS,
            registry=registry,
        )
        self._nominal = table("cluster_queue_nominal_quota", "The nominal quota of a ClusterQueue.", *_CLUSTER)
        self._limit = table(
            "cluster_queue_borrowing_limit", "How much it may borrow, where that has a limit.", *_CLUSTER
        )
        self._used = table("cluster_queue_used", "How much of its quota is reserved.", *_CLUSTER)
        self._borrowed = table("cluster_queue_borrowed", "What of that is beyond its nominal quota.", *_CLUSTER)
        self._share = table(
            "cluster_queue_weighted_share",
            "Its weighted share in thousandths, with fair sharing in a cohort; +Inf: it has weight 0 and borrows.",
            "cluster_queue",
        )
        self._workloads = table(
            "cluster_queue_workloads", "Workloads of a ClusterQueue: pending or admitted.", "cluster_queue", "state"
        )
        self._local_used = table(
            "local_queue_used", "What workloads of a LocalQueue reserve.", *_LOCAL, "flavor", "resource"
        )
        self._local_workloads = table(
            "local_queue_workloads", "Workloads of a LocalQueue: pending or admitted.", *_LOCAL, "state"
        )
        self._local_use = table(
            "local_queue_fair_use",
            "The score of a LocalQueue that shares its ClusterQueue over time: the least is next; +Inf: weight 0.",
            *_LOCAL,
        )
        self._held = seconds(
            "local_queue_resource_seconds",
            "Amounts held by workloads of a LocalQueue, times the seconds for which they were held.",
            *_LOCAL,
            "flavor",
            "resource",
        )
        self._held_by_value = seconds(
            "label_resource_seconds",
            "The same by the value of a label that setting usageLabels names.",
            *_VALUE,
            "flavor",
            "resource",
        )
        self._cohorts = CohortMetrics(registry)
        self._names = _Names()
        self._waited: set[str] = set()  # ClusterQueues that have a histogram
        self._at: float | None = None  # when it was looked last, on the monotonic clock

    def admitted(self, queues: Queues, key: str, grant: AssumedAdmission, now: float) -> None:
        """An admission was stored. ``now``: on the clock of the queues."""
        entry, name = queues.entries.get(key), _name(queues, grant.queue)
        if entry is not None and name:
            self.wait.labels(name).observe(max(0.0, now - entry.since))
            self._waited.add(name)

    def look_at_queues(self, queues: Queues, found: Standings, labels: Sequence[str], of: Labels, now: float) -> None:
        """Replace the gauges, and count what is held. ``of``: a workload's labels by its key; ``now``: monotonic."""
        # Nothing for the first look of a term: nobody knows for how long it was held before.
        passed, self._at = 0.0 if self._at is None else now - self._at, now
        self._tell_cluster_queues(queues, found)
        self._cohorts.tell_cohorts(queues, found)
        self._tell_local_queues(queues, found, now)
        self._count_entries(queues, labels, of, passed, now)
        self._names.drop_unused(now - IDLE_SECONDS)
        # A histogram has a dozen series a queue, which would stay for as long as the process runs.
        for gone in self._waited - queues.quotas.queues.keys():
            self.wait.remove(gone)
            self._waited.discard(gone)

    def _tell_cluster_queues(self, queues: Queues, found: Standings) -> None:
        nominal, limits, used, borrowed, share, workloads = (_Numbers() for _ in range(6))
        for name, standing in found.cluster.items():
            queue = queues.quotas.queues[name]
            if queue.unlimited:
                continue
            for key, amount in (standing.nominal or {}).items():
                nominal[name, *key] = unit(key[1], amount)
            for group in queue.groups:
                for flavor in group.flavors:
                    for resource, quota in flavor.resources.items():
                        if quota.borrowing is not None and queue.cohort:
                            limits[name, flavor.flavor, resource] = unit(resource, quota.borrowing)
            for key, amount in standing.reserved.items():
                used[name, *key] = unit(key[1], amount)
                borrowed[name, *key] = unit(key[1], standing.borrowed(standing.reserved, key) or 0)
            if standing.share is not None:
                share[(name,)] = inf if standing.share == INFINITE_SHARE else standing.share
            workloads[name, "pending"], workloads[name, "admitted"] = standing.pending, standing.admitted
        tables = (self._nominal, self._limit, self._used, self._borrowed, self._share, self._workloads)
        for table, rows in zip(tables, (nominal, limits, used, borrowed, share, workloads), strict=True):
            table.replace(rows)

    def _tell_local_queues(self, queues: Queues, found: Standings, now: float) -> None:
        used, workloads, over_time = _Numbers(), _Numbers(), _Numbers()
        for (namespace, local), standing in found.local.items():
            ahead = queues.config.local[namespace, local].cluster_queue
            if not local or ahead not in queues.quotas.queues:
                continue  # of those without a queue; or it leads nowhere, and anybody may write any name there
            queue = ahead, namespace, self._names.name_or_other("", namespace, local, now)
            for key, amount in standing.reserved.items():
                _add(used, (*queue, *key), unit(key[1], amount))
                self._held.add((*queue, *key), 0.0, now)  # there from the start, so that no increase is missed
            _add(workloads, (*queue, "pending"), standing.pending)
            _add(workloads, (*queue, "admitted"), standing.admitted)
            if standing.consumed is not None:
                # Of those that share a series the one that is next: scores of several are no score together.
                over_time[queue] = min(standing.score, over_time.get(queue, inf))
        self._local_used.replace(used)
        self._local_workloads.replace(workloads)
        self._local_use.replace(over_time)

    def _count_entries(self, queues: Queues, labels: Sequence[str], of: Labels, passed: float, now: float) -> None:
        for key, entry in queues.entries.items():
            # Growth is promised beside the admission: it counts once it is part of that.
            if entry.grant is None or entry.phase is not Phase.ADMITTED or role_of(key) is Role.GROWTH:
                continue
            name, namespace, local = _name(queues, entry.grant.queue), entry.workload.namespace, entry.workload.queue
            amounts = [(one, passed * unit(one[1], amount)) for one, amount in _amounts_of_grant(queues, entry.grant)]
            queue = name, namespace, self._names.name_or_other("", namespace, local, now) if local else ""
            for one, amount in amounts:
                self._held.add((*queue, *one), amount, now)
            values = of(entry.workload.base) if labels else {}
            for label in dict.fromkeys(labels):  # one that is named twice counts once
                told = values.get(label, "")
                value = self._names.name_or_other(label, namespace, told, now) if told else ""
                for one, amount in amounts:
                    self._held_by_value.add((label, value, name, namespace, *one), amount, now)
        for unit_key, held in queues.quotas.held.items():
            if role_of(unit_key) is Role.ORPHAN:
                for one, amount in held.amounts.items():
                    self._held.add((held.queue, "", "", *one), passed * unit(one[1], amount), now)
        self._held.show_grown(now - IDLE_SECONDS)
        self._held_by_value.show_grown(now - IDLE_SECONDS)

    def end_leading(self) -> None:
        """This process does not lead any more: gauges go, and what others count is not counted here."""
        self._at = None
        self._cohorts.drop_series()
        for table in (self._nominal, self._limit, self._used, self._borrowed, self._share, self._workloads):
            table.replace({})
        self._local_used.replace({})
        self._local_workloads.replace({})
        self._local_use.replace({})


def _name(queues: Queues, name: str) -> str:
    """What a ClusterQueue is called; "": that of the workloads without a queue."""
    found = queues.quotas.queues.get(name)
    return "" if found is not None and found.unlimited else name


def _amounts_of_grant(queues: Queues, grant: AssumedAdmission) -> Iterator[tuple[FlavorResource, int]]:
    """What a grant holds: its quota, or without a queue what its pods ask for."""
    if _name(queues, grant.queue):
        yield from grant.amounts.items()
        return
    sums: Quantities = {}
    for part in grant.assignments:
        for resource, amount in grant.asks.get(part.pod_set, part.requests).items():
            key = part.flavor, resource
            sums[key] = sums.get(key, 0) + amount * grant.counts.get(part.pod_set, 0)
    yield from sums.items()


def _add(rows: _Numbers, key: tuple[str, ...], amount: float) -> None:
    rows[key] = rows.get(key, 0.0) + amount
