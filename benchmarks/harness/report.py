"""How every benchmark reports: a table on the terminal, and all figures as JSON in ``benchmarks/results/``."""

import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.harness.goals import GOALS

RESULTS = Path(__file__).parent.parent / "results"


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, note: str = "", text: int = 1
) -> None:
    """Print one table; the first ``text`` columns are text, the others are figures. ``note`` goes below it."""
    shown = Table(title=title, title_justify="left", caption=note or None, caption_justify="left", box=None)
    for index, column in enumerate(columns):
        shown.add_column(column, justify="left" if index < text else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*(cell(value) for value in row))
    console = Console(highlight=False)
    console.width = max(console.width, 160)
    console.print()
    console.print(shown)


def cell(value: object) -> str:
    """A figure with three significant digits; None as a dash."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def save(name: str, data: Any) -> Path:
    """Write ``data`` (anything msgspec encodes), goals and circumstances to ``benchmarks/results/NAME.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    goals = [{**msgspec.to_builtins(goal), "met": goal.met} for goal in GOALS.keep(name)]
    body = msgspec.json.encode({"circumstances": circumstances(), "results": data, "goals": goals})
    path.write_bytes(msgspec.json.format(body, indent=2) + b"\n")
    Console(highlight=False).print(f"[dim]all figures: benchmarks/results/{path.name}[/dim]")
    return path


def goals() -> None:
    """Print every goal of this run with its figure: met or missed."""
    rows = list(GOALS.rows())
    if not rows:
        return
    columns = ["benchmark", "what", "figure", "goal", ""]
    table("Goals", columns, rows, note=GOALS.verdict(), text=2)


def circumstances() -> dict[str, Any]:
    """What a reader has to know about the machine: its figures are worth nothing without."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def median(values: Iterable[float]) -> float | None:
    """The median; None of nothing."""
    known = list(values)
    return statistics.median(known) if known else None


def ratio(value: float | None, base: float | None) -> float | None:
    """``value / base``; None where either is missing."""
    return None if value is None or not base else value / base


def _commit() -> str:
    """The commit measured, with a plus where the tree differs from it; empty outside of a checkout."""
    folder = Path(__file__).parent.parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
