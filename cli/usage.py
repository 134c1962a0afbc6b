"""``topogate usage``: how many GPU hours queues, users and teams held, as a Prometheus kept it."""

import asyncio
import json
import math
import re
import ssl
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from cli.options import PrometheusLabels, checked_labels, checked_url
from cli.output import Failure, Output, OutputFormat, emit, plain_table
from clock import SYSTEM, Clock
from kube.connection.lean_aiohttp import aiohttp
from web.prometheus_api import PrometheusApi, PrometheusError, TimeSeries

UNITS: Final = {"h": 3600, "d": 86_400, "w": 7 * 86_400}
LONGEST: Final = 10 * 366 * 86_400  # seconds
HOUR: Final = 3600
NONE: Final = "(none)"
NOTHING: Final = (
    "Prometheus has no topogate_local_queue_resource_seconds_total of that time: does it scrape the ungater, and is "
    "--resource right? docs/metrics.md says how to let it in"
)
NO_LABEL: Final = "By user and team: setting usageLabels names labels of pods to count by (docs/metrics.md)."


class HeldHours(msgspec.Struct, frozen=True):
    """Resource hours by the name of who held them."""

    name: str
    resource: str
    hours: float


class Usage(msgspec.Struct, frozen=True):
    """What `topogate usage` says. ``labels``: by label, what each of its values held."""

    since: str
    cluster_queues: tuple[HeldHours, ...]
    local_queues: tuple[HeldHours, ...]
    labels: dict[str, tuple[HeldHours, ...]]


def command(
    prometheus: Annotated[
        str, typer.Option("--prometheus", metavar="URL", help="The Prometheus that has the metrics of Topogate.")
    ],
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="How far back: 12h, 7d, 4w.")] = "7d",
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Only what workloads of this namespace held; default: all.")
    ] = "",
    resource: Annotated[
        str, typer.Option("--resource", help="Of one resource, such as cpu or memory; default: all devices.")
    ] = "",
    prometheus_label: PrometheusLabels = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Say how many GPU hours queues, users and teams held.

    Hours of any resource: cores, bytes or devices that were held, times hours. Asks Prometheus alone.
    """
    url, labels = checked_url(prometheus), checked_labels(prometheus_label or [], prometheus)
    seconds = seconds_of(since)

    async def ask_prometheus() -> Usage:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=ssl.create_default_context())) as session:
            return await usage(PrometheusApi(session, url, labels), since, seconds, namespace, resource, SYSTEM)

    try:
        found = asyncio.run(ask_prometheus())
    except PrometheusError as error:
        raise Failure(str(error)) from error
    emit(found, output, table=render(found))


def seconds_of(text: str) -> int:
    """``7d`` in seconds. Raises Failure."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})([hdw])", text, re.ASCII)
    seconds = int(found[1]) * UNITS[found[2]] if found is not None else 0
    if not 0 < seconds <= LONGEST:
        raise Failure(f"--since {text}: expected a number of hours, days or weeks, at most ten years: 12h, 7d, 4w")
    return seconds


async def usage(api: PrometheusApi, since: str, seconds: int, namespace: str, resource: str, clock: Clock) -> Usage:
    """Ask for it. Raises Failure and PrometheusError."""
    # A device has a slash in its name; without --resource, hours of cores and bytes are left out.
    parts = [f"resource={json.dumps(resource)}" if resource else 'resource=~".+/.+"']
    if namespace:
        parts.append(f"queue_namespace={json.dumps(namespace)}")

    def series(metric: str, *names: str) -> "asyncio.Task[list[TimeSeries]]":
        asked = f"increase({metric}{api.selector(*parts)}[{seconds}s])"
        # Sum after increase: a counter that starts over in a new leader would make a sum of counters fall.
        query = f"sum by ({', '.join((*names, 'resource'))}) ({asked}) / {HOUR}"
        # A range of one point: the client knows range queries alone.
        return group.create_task(api.series(query, now, now, 1))

    now = int(clock.now())
    try:
        async with asyncio.TaskGroup() as group:
            queues = series(
                "topogate_local_queue_resource_seconds_total", "cluster_queue", "queue_namespace", "local_queue"
            )
            values = series("topogate_label_resource_seconds_total", "label", "value")
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    if not queues.result():
        raise Failure(NOTHING)
    of = [(one.metric, hours) for one in queues.result() if (hours := _hours(one)) is not None]
    by_label: dict[str, list[tuple[str, str, float]]] = {}
    for one in values.result():
        if (hours := _hours(one)) is not None:
            told = one.metric.get("value", "") or NONE
            by_label.setdefault(one.metric.get("label", ""), []).append((told, one.metric.get("resource", ""), hours))
    return Usage(
        since,
        _summed((one.get("cluster_queue", "") or NONE, one.get("resource", ""), hours) for one, hours in of),
        _summed(
            (f"{one.get('queue_namespace', '')}/{one.get('local_queue', '') or NONE}", one.get("resource", ""), hours)
            for one, hours in of
        ),
        {label: _summed(rows) for label, rows in sorted(by_label.items())},
    )


def _hours(found: TimeSeries) -> float | None:
    """The value of a series that has one, in what somebody else wrote."""
    try:
        hours = float(found.values[-1][1])
    except (IndexError, ValueError):
        return None
    return hours if math.isfinite(hours) else None


def _summed(rows: Iterable[tuple[str, str, float]]) -> tuple[HeldHours, ...]:
    """Each name once a resource; who held most comes first."""
    sums: dict[tuple[str, str], float] = {}
    for name, resource, hours in rows:
        sums[name, resource] = sums.get((name, resource), 0.0) + hours
    # By resource first: hours of different resources cannot be compared.
    ordered = sorted(sums.items(), key=lambda one: (one[0][1], -one[1], one[0][0]))
    return tuple(HeldHours(name, resource, round(hours, 3)) for (name, resource), hours in ordered if hours > 0)


def render(found: Usage) -> RenderableType:
    """As a person reads it."""
    parts: list[RenderableType] = [Text(f"Held in the last {found.since}, in resource hours", "bold")]
    tables = {"CLUSTER QUEUE": found.cluster_queues, "LOCAL QUEUE": found.local_queues, **found.labels}
    for title, rows in tables.items():
        table = plain_table(f"~{title}", "~RESOURCE", ">HOURS")
        for one in rows:  # texts of a Prometheus: as they are, not as markup
            table.add_row(Text(one.name), Text(one.resource), f"{one.hours:,.1f}")
        parts += [Text(""), table]
    if not found.labels:
        parts.append(Text(f"\n{NO_LABEL}"))
    return Group(*parts)
