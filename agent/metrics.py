"""Prometheus metrics of the agent. No label names a single object but the kind of it."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class AgentMetrics:
    """All series, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.read = Histogram(
            "topogate_agent_read_seconds", "One look at a source.", ["source"], buckets=_SECONDS, registry=self.registry
        )
        self.writes = Counter(
            "topogate_agent_writes", "Objects written.", ["object", "outcome"], registry=self.registry
        )
        self.exact = Gauge(
            "topogate_agent_state_exact", "1 while the kubelet's state is known exactly.", registry=self.registry
        )
        self.gpus = Gauge("topogate_agent_gpus", "GPUs of this machine.", ["state"], registry=self.registry)
        self.pods = Gauge(
            "topogate_agent_observed_pods", "Pods that hold something for themselves.", registry=self.registry
        )
        self.published = Gauge(
            "topogate_agent_last_publish_timestamp_seconds",
            "When everything that was to be written had been, last.",
            registry=self.registry,
        )
