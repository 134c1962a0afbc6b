"""How simulations are written: a table to compare, and CSV of jobs and of series."""

import csv
from collections.abc import Iterator, Sequence
from typing import TextIO

from msgspec import UNSET
from rich.table import Table

from simulator.results import Result
from simulator.summary import Summary, summarise

HOUR = 3600.0
DAY = 24 * HOUR


def table(results: Sequence[Result]) -> Table:
    """One column a policy, one row a figure."""
    summaries = [summarise(result) for result in results]
    made = Table("", *(summary.policy for summary in summaries), box=None)
    for column in made.columns[1:]:
        column.justify = "right"
    reasons = sorted({reason for summary in summaries for reason in summary.stuck})
    for figures in zip(*(_figures(summary, reasons) for summary in summaries), strict=True):
        # A row that is empty for every policy tells nothing.
        if any(text for _, text in figures):
            made.add_row(figures[0][0], *(text for _, text in figures))
    return made


def _figures(summary: Summary, reasons: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and text of every figure; "" where there is nothing to say."""
    yield "jobs", str(summary.jobs)
    yield "  finished", str(summary.finished)
    yield "  not finished", _some(summary.unfinished)
    for reason in reasons:
        yield f"    waiting: {reason or 'for its turn'}", _some(summary.stuck.get(reason, 0))
    yield "  failed: kubelets refused their pods", _some(summary.refused)
    yield f"{summary.resource} used", _share(summary.utilisation, summary)
    yield "  by work that counted", _share(summary.useful, summary)
    yield "  measured over the first", _hours(summary.window) if summary.window else "-"
    yield "until the last one ended", f"{summary.makespan / DAY:.1f} d"
    yield "wait, mean", _hours(summary.wait.mean)
    yield "  median", _hours(summary.wait.median)
    yield "  p90", _hours(summary.wait.p90)
    yield "  p99", _hours(summary.wait.p99)
    for name, waits in (("one server", summary.small), ("2 to 15", summary.medium), ("16 and more", summary.large)):
        yield f"  mean, jobs of {name}", _hours(waits.mean) if waits.jobs else "-"
    yield "jobs that wait, on average", f"{summary.waiting:.1f}"
    share = f" ({summary.aligned / summary.wishing:.0%})" if summary.wishing else ""
    yield "in one domain of the level they wish", f"{summary.aligned} of {summary.wishing}{share}"
    yield "evictions", str(summary.evictions)
    yield "moves", "" if summary.moves is UNSET else str(summary.moves)
    yield f"  work undone, {summary.resource} hours", _some(round(summary.lost))
    yield "pods refused by kubelets", str(summary.refusals)
    yield "pods across sockets without need", str(summary.crossing)
    yield "  though another node would have spared them", str(summary.avoidable)
    yield "    all of these nodes closed for one that waits longer than --hold", _some(summary.kept)
    yield "pods across NUMA zones without need", str(summary.split)
    for number, level in enumerate(summary.levels, 1):
        short = level.level.rpartition("/")[2]
        yield f"free, but in no whole {short}", _share(level.stranded, summary)
        yield f"  whole ones ({short}), on average", f"{level.whole:.1f}"
        if number < len(summary.levels):
            yield f"  most that is free in one {short}, on average", f"{level.largest:.0f}"


def _some(count: int) -> str:
    return str(count) if count else ""


def _share(part: float, summary: Summary) -> str:
    """An average over time; nothing is known of it where no time was measured."""
    return f"{part:.1%}" if summary.window else "-"


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR:.2f} h"


def write_jobs(result: Result, stream: TextIO) -> None:
    """One row a job, in the order in which they were given; times in seconds."""
    domains = [f"domains:{level}" for level in result.levels]
    names = (
        *("name", "arrival", "duration", "pods", "amount", "priority", "queue", "topology", "end", "started"),
        *("finished", "wait", "starts", "evictions", "lost", "refusals", "crossing", "avoidable", "kept", "aligned"),
        *(("moves",) if result.policy.moving else ()),
    )
    lines = csv.writer(stream, lineterminator="\n")
    lines.writerow((*names, *domains, "reason"))
    for one in result.outcomes:
        # None becomes an empty cell: 0 is a time like any other.
        cells = ["" if (value := getattr(one, name)) is None else value for name in names]
        spread = [one.domains.get(level, "") for level in result.levels]
        lines.writerow((*map(_cell, cells), *spread, one.reason))


def write_series(result: Result, stream: TextIO) -> None:
    """One row a moment at which anything changed; it holds until the next."""
    series = result.series
    lines = csv.writer(stream, lineterminator="\n")
    per_level = [f"{what}:{level}" for level in result.levels for what in ("stranded", "whole", "largest")]
    lines.writerow(("time", "used", "running", "waiting", "wanted", *per_level))
    rows = zip(series.times, series.used, series.running, series.waiting, series.wanted, series.levels, strict=True)
    for time, used, running, waiting, wanted, levels in rows:
        found = [cell for one in levels for cell in (f"{one.stranded:.4f}", one.whole, one.largest)]
        lines.writerow((_cell(time), int(used.sum()), running, waiting, wanted, *found))


def _cell(value: object) -> object:
    # Ten digits keep milliseconds over months, and leave out the noise of sums.
    return f"{value:.10g}" if isinstance(value, float) else value
