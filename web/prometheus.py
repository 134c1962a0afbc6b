"""How a cluster was over the last day, as a Prometheus has it: our own metrics (docs/metrics.md), asked for by its API.

Rules
- The queries are fixed. Only the resource and the labels of an installation are put in, quoted.
- An answer or a failure serves everybody for `KEPT_SECONDS`.
- A hole in the series is None, where a curve has a hole too.
"""

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any, Final

import structlog

from clock import Clock
from web.prometheus_api import PrometheusApi, PrometheusError, TimeSeries

STEP: Final = 300  # seconds between two samples
SPAN: Final = 86_400
KEPT_SECONDS: Final = 30.0
MOST_LEVELS: Final = 16

log = structlog.get_logger()
Column = list[float | None]


class Prometheus:
    """See the module."""

    def __init__(self, api: PrometheusApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._kept: tuple[float, dict[str, Any] | PrometheusError] | None = None
        self._asking: asyncio.Task[None] | None = None

    async def columns(self, resource: str, levels: Sequence[str]) -> dict[str, Any]:
        """Column by column, as curves are drawn. ``levels``: in the order of the tree. Raises PrometheusError."""
        if self._kept is None or self._clock.monotonic() - self._kept[0] >= KEPT_SECONDS:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask_prometheus(resource, levels))
            await asyncio.shield(self._asking)
        found = self._kept[1] if self._kept is not None else PrometheusError("nothing was asked")
        if isinstance(found, PrometheusError):
            # A new one: the kept one would grow a traceback with each viewer.
            raise PrometheusError(str(found))
        return found

    async def _ask_prometheus(self, resource: str, levels: Sequence[str]) -> None:
        found: dict[str, Any] | PrometheusError
        try:
            found = await self._columns(resource, levels)
        except PrometheusError as error:
            log.warning("no history from Prometheus", error=str(error))
            found = error
        self._kept = self._clock.monotonic(), found

    async def _columns(self, resource: str, levels: Sequence[str]) -> dict[str, Any]:
        # On whole steps: the same samples come again for five minutes, and curves do not shift at each look.
        end = int(self._clock.now()) // STEP * STEP
        start = end - SPAN
        of_resource, every = self._api.selector(f"resource={json.dumps(resource)}"), self._api.selector()
        queries = {
            # Two replicas may have series of a flavor while the lead changes hands: `max` counts it once, `sum` adds
            # flavors.
            "amount": f"sum(max by (flavor) (topogate_flavor_allocatable{of_resource}))",
            "free": f"sum(max by (flavor) (topogate_flavor_free{of_resource}))",
            "largest": f"max by (level) (topogate_largest_free_domain{of_resource})",
            "waiting": f"sum(topogate_pending_workloads{every})",
            "evictions": f"sum(increase(topogate_evicted_workloads_total{every}[{STEP}s]))",
        }
        try:
            async with asyncio.TaskGroup() as group:
                asked = {
                    name: group.create_task(self._api.series(one, start, end, STEP)) for name, one in queries.items()
                }
        except ExceptionGroup as errors:
            # One reason is enough for a person, and the group would end up as a 500.
            raise errors.exceptions[0] from None
        of = {name: task.result() for name, task in asked.items()}
        amount, free, waiting, evictions = (
            _column(of[name], start) for name in ("amount", "free", "waiting", "evictions")
        )
        if not any(one is not None for one in amount):
            raise PrometheusError("Prometheus has none of the ungater's metrics of capacity for this cluster")
        by_level = {one.metric.get("level", ""): one for one in of["largest"]}
        known = [one for one in levels if one in by_level]
        known += sorted(one for one in by_level if one not in known)
        return {
            "source": "prometheus",
            "step": STEP,
            "at": [start + rank * STEP for rank in range(SPAN // STEP + 1)],
            "amount": amount,
            "used": [None if a is None or f is None else max(0.0, a - f) for a, f in zip(amount, free, strict=True)],
            "free": free,
            # A gauge that nobody has set yet is no hole where the ungater itself was there.
            "waiting": [
                0.0 if one is None and have is not None else one for one, have in zip(waiting, amount, strict=True)
            ],
            "evictions": [one and round(one) for one in evictions],
            "levels": known[:MOST_LEVELS],
            "largest": [_column([by_level[one]], start) for one in known[:MOST_LEVELS]],
        }


def _column(found: Sequence[TimeSeries], start: int) -> Column:
    """A value for each step of the day, by the first of the series: there is one at most."""
    column: Column = [None] * (SPAN // STEP + 1)
    for at, text in found[0].values if found else ():
        place = (at - start) / STEP
        try:
            value = float(text)
        except ValueError:
            continue
        # A time that is no number would raise in `round`.
        if math.isfinite(place) and 0 <= round(place) < len(column) and math.isfinite(value):
            column[round(place)] = value
    return column
