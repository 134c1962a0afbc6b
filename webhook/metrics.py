"""The webhook's metrics: plain counters on the hot path, turned into series only when somebody asks.

About 105 series: five paths, five verdicts, twelve buckets.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from webhook.crowd import Why
from webhook.review import VERDICTS

BUCKETS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)  # seconds
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
TOO_LARGE = "too_large"


class PathStats:
    """Counts of one path."""

    __slots__ = ("buckets", "seconds", "verdicts")

    def __init__(self) -> None:
        # All verdicts from the start: a rate misses the first error of a counter that begins to exist with it.
        self.verdicts = dict.fromkeys((*VERDICTS, TOO_LARGE), 0)
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0

    def observe(self, verdict: str, seconds: float) -> None:
        """One request was answered."""
        self.verdicts[verdict] += 1
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds


class WebhookMetrics(Collector):
    """Everything there is to see of one webhook.

    ``expiry``: end of its certificate in Unix seconds, or None. ``connections``: how many there are for reviews.
    ``ready``: whether readyz says so. All are asked by whoever reads the metrics, in a thread.
    """

    def __init__(
        self,
        paths: tuple[str, ...],
        expiry: Callable[[], float | None],
        connections: Callable[[], int],
        ready: Callable[[], bool],
    ) -> None:
        self.paths = {path: PathStats() for path in paths}
        self.closed = dict.fromkeys(map(str, Why), 0)
        self._connections = connections
        self._ready = ready
        self._expiry = expiry
        self._registry = CollectorRegistry()
        self._registry.register(self)
        for process_wide in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            self._registry.register(process_wide)

    def render(self) -> bytes:
        """The text that Prometheus reads. It takes milliseconds: call it in a thread."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All series; called by prometheus-client."""
        requests = CounterMetricFamily(
            "topogate_webhook_requests", "Admission requests answered.", labels=("path", "verdict")
        )
        latency = HistogramMetricFamily(
            "topogate_webhook_review_seconds",
            "Time from the whole request to its answer, without the network, in seconds.",
            labels=("path",),
        )
        bounds = (*map(str, BUCKETS), "+Inf")
        for path, stats in self.paths.items():
            for verdict, count in stats.verdicts.items():
                requests.add_metric((path, verdict), count)
            # What a bucket has is also in all that come after it.
            cumulative = zip(bounds, accumulate(stats.buckets), strict=True)
            latency.add_metric((path,), [(bound, float(total)) for bound, total in cumulative], stats.seconds)
        yield requests
        yield latency
        closed = CounterMetricFamily(
            "topogate_webhook_connections_closed", "Connections closed to make room.", labels=("reason",)
        )
        for why, count in self.closed.items():
            closed.add_metric((why,), count)
        yield closed
        yield GaugeMetricFamily("topogate_webhook_connections", "Connections for reviews.", value=self._connections())
        yield GaugeMetricFamily("topogate_webhook_ready", "Whether readyz says so.", value=int(self._ready()))
        if (expiry := self._expiry()) is not None:
            yield GaugeMetricFamily(
                "topogate_webhook_certificate_expiry_timestamp_seconds", "End of the serving certificate.", value=expiry
            )
