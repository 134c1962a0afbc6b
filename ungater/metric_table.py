"""Series that are all replaced at once, and the units of resources in them."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.quantity import CPU

_MILLI: Final = 1000  # milli-CPU in one

Rows = Mapping[tuple[str, ...], float]
_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


class MetricTable(Collector):
    """A gauge (or a counter, by its ``family``) whose series are all replaced at once."""

    def __init__(
        self,
        name: str,
        text: str,
        names: tuple[str, ...],
        registry: CollectorRegistry,
        family: _Family = GaugeMetricFamily,
    ) -> None:
        self.names = names
        self._name = name
        self._text = text
        self._family = family
        self._rows: Rows = {}
        registry.register(self)

    def replace(self, rows: Rows) -> None:
        """The values by label values, in the order of ``names``."""
        # One assignment: a scrape in another thread sees the old rows or the new ones, never a mixture.
        self._rows = rows

    def describe(self) -> Iterator[Metric]:
        """The name alone: nothing is computed for it."""
        yield self._family(self._name, self._text, labels=self.names)

    def collect(self) -> Iterator[Metric]:
        """All series; called by prometheus-client, in another thread."""
        family = self._family(self._name, self._text, labels=self.names)
        for labels, value in self._rows.items():
            family.add_metric(labels, value)
        yield family


def unit(resource: str, amount: int) -> float:
    """Cores, bytes, pieces."""
    return amount / _MILLI if resource == CPU else amount
