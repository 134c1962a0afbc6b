"""Prometheus metrics of the controller. Few series: no label ever names a single object."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_FAST = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)


class Metrics:
    """All series, in a registry of their own so that tests may make as many as they like."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.ungate = Histogram(
            "topogate_ungate_seconds",
            "From the creation of a pod (whole seconds) until its gate was removed.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.placement = Histogram(
            "topogate_placement_seconds",
            "One admission cycle that admitted somebody (placed), or none of those it looked at (refused).",
            ["answer"],
            buckets=_FAST,
            registry=self.registry,
        )
        self.admission = Histogram(
            "topogate_admission_seconds",
            "From the creation of a job (whole seconds) until its admission was stored.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.admitted = Counter("topogate_admitted_workloads", "Admissions that were stored.", registry=self.registry)
        self.patches = Counter(
            "topogate_ungate_patches", "Patches that remove a gate.", ["outcome"], registry=self.registry
        )
        self.evictions = Counter(
            "topogate_evictions", "Pods asked of the Eviction API.", ["outcome"], registry=self.registry
        )
        self.reconciles = Counter(
            "topogate_reconciles", "Times a job was looked at.", ["outcome"], registry=self.registry
        )
        self.pending = Gauge(
            "topogate_pending_workloads", "Workloads without a place.", ["reason"], registry=self.registry
        )
        self.refusals = Counter(
            "topogate_kubelet_refusals",
            "Pods that were sent to a node and refused there.",
            ["reason"],
            registry=self.registry,
        )
        self.misaligned = Counter(
            "topogate_misaligned_pods", "Pods that got other NUMA zones than were predicted.", registry=self.registry
        )
        self.machines = Gauge(
            "topogate_machines",
            "Nodes whose inside is known, by what publishes it.",
            ["source"],
            registry=self.registry,
        )
        self.machine_troubles = Gauge(
            "topogate_machine_troubles",
            "Nodes that publish what cannot be used (problem), or sources that differ (disagreement).",
            ["kind"],
            registry=self.registry,
        )
        self.leader = Gauge("topogate_leader", "1 while this process leads.", registry=self.registry)

    def set_machines(self, sources: Mapping[str, int], troubles: Mapping[str, int]) -> None:
        """Replace the number of nodes by source and by kind of trouble."""
        for gauge, counts in ((self.machines, sources), (self.machine_troubles, troubles)):
            gauge.clear()
            for label, count in counts.items():
                gauge.labels(label).set(count)

    def set_pending(self, reasons: Mapping[str, int]) -> None:
        """Replace the number of pending workloads of every reason."""
        self.pending.clear()
        for reason, count in reasons.items():
            self.pending.labels(reason).set(count)
