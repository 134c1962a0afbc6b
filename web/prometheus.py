"""How a cluster was over the last day, as a Prometheus has it: our own metrics (docs/metrics.md), asked for by its API.

Rules
- The queries are fixed. Only the resource and the labels of an installation are put in, quoted.
- An answer or a failure serves everybody for `KEPT_SECONDS`; each query has its deadline, and an answer its most bytes.
- What comes back is somebody else's: numbers are read as numbers, and of anything else nothing but an error's text.
- A hole in the series is None, where a curve has a hole too.
"""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import msgspec
import structlog

from clock import Clock

STEP: Final = 300  # seconds between two samples
SPAN: Final = 86_400
SECONDS: Final = 10.0  # for a query
KEPT_SECONDS: Final = 30.0
MOST_BYTES: Final = 4 << 20
MOST_LEVELS: Final = 16
LONGEST: Final = 300  # characters of an error
OK: Final = 200

log = structlog.get_logger()
Column = list[float | None]


class PrometheusError(Exception):
    """There are no curves, and why, for a person."""


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str = ""
    result: list[_Series] = []


class _Answer(msgspec.Struct, frozen=True):
    status: str
    data: _Data = _Data()
    error: str = ""


class Prometheus:
    """See the module. ``url``: of its API, without ``/api/v1``; ``labels``: that tell this cluster's series apart."""

    def __init__(self, session: aiohttp.ClientSession, url: str, labels: Mapping[str, str], clock: Clock) -> None:
        self._session = session
        self._url = url.rstrip("/") + "/api/v1/query_range"
        self._labels = dict(labels)
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
        end = int(self._clock.now()) // STEP * STEP
        start = end - SPAN
        queries = self._queries(resource)
        try:
            async with asyncio.TaskGroup() as group:
                asked = {name: group.create_task(self._query(one, start, end)) for name, one in queries.items()}
        except ExceptionGroup as errors:
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
            "waiting": [
                0.0 if one is None and have is not None else one for one, have in zip(waiting, amount, strict=True)
            ],
            "evictions": [one and round(one) for one in evictions],
            "levels": known[:MOST_LEVELS],
            "largest": [_column([by_level[one]], start) for one in known[:MOST_LEVELS]],
        }

    def _queries(self, resource: str) -> dict[str, str]:
        own = "".join(f",{name}={json.dumps(value)}" for name, value in sorted(self._labels.items()))
        of = f"resource={json.dumps(resource)}{own}"
        every = own.removeprefix(",")
        return {
            "amount": f"sum(max by (flavor) (topogate_flavor_allocatable{{{of}}}))",
            "free": f"sum(max by (flavor) (topogate_flavor_free{{{of}}}))",
            "largest": f"max by (level) (topogate_largest_free_domain{{{of}}})",
            "waiting": f"sum(topogate_pending_workloads{{{every}}})",
            "evictions": f"sum(increase(topogate_evicted_workloads_total{{{every}}}[{STEP}s]))",
        }

    async def _query(self, query: str, start: int, end: int) -> list[_Series]:
        asked = {"query": query, "start": str(start), "end": str(end), "step": str(STEP), "timeout": f"{SECONDS:.0f}s"}
        try:
            async with (
                asyncio.timeout(SECONDS),
                self._session.get(self._url, params=asked, allow_redirects=False) as answer,
            ):
                body = await answer.content.read(MOST_BYTES + 1)
                while not answer.content.at_eof() and len(body) <= MOST_BYTES:
                    body += await answer.content.read(MOST_BYTES + 1 - len(body))
        except TimeoutError as error:
            raise PrometheusError(f"Prometheus gives no answer within {SECONDS:.0f} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise PrometheusError(f"Prometheus cannot be reached: {_short(str(error))}") from error
        if len(body) > MOST_BYTES:
            raise PrometheusError("the answer of Prometheus is too long")
        return _series(answer.status, body)


def _series(status: int, body: bytes) -> list[_Series]:
    try:
        found = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PrometheusError(f"what answers (HTTP {status}) does not speak the API of Prometheus") from error
    if found.status != "success" or status != OK:
        raise PrometheusError(f"Prometheus answers {status}: {_short(found.error) or 'it does not say why'}")
    if found.data.result_type != "matrix":
        raise PrometheusError("Prometheus answers another question than was asked")
    return found.data.result


def _column(found: Sequence[_Series], start: int) -> Column:
    """A value for each step of the day, by the first of the series: there is one at most."""
    column: Column = [None] * (SPAN // STEP + 1)
    for at, text in found[0].values if found else ():
        place = (at - start) / STEP
        try:
            value = float(text)
        except ValueError:
            continue
        if math.isfinite(place) and 0 <= round(place) < len(column) and math.isfinite(value):
            column[round(place)] = value
    return column


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
