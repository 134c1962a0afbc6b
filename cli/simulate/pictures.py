"""Pictures of simulations. matplotlib draws them; it is an extra, because nothing else needs it."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cli.output import Failure, stderr
from simulator.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DAY: Final = 86_400.0
SERVERS: Final = 40  # in the picture of devices
MOMENTS: Final = 480  # columns of the picture by server
COLOURS: Final = ("#1b6ca8", "#d1603d", "#5a9367", "#8e6c8a", "#b8952f", "#555555")


class PictureFormat(StrEnum):
    """What ``--picture-format`` accepts."""

    SVG = "svg"
    PNG = "png"


def check() -> None:
    """Failure where there is no matplotlib, before anything takes long."""
    try:
        import matplotlib as mpl  # an extra
    except ModuleNotFoundError:
        raise Failure(
            "--pictures needs matplotlib, which is not installed: pip install 'topogate[pictures]', or leave it out"
        ) from None
    # The default backend may open a window, or fail where there is no display.
    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "topogate"  # the same input draws the same bytes
    mpl.rcParams["font.size"] = 8


def draw(folder: Path, results: Sequence[Result], formats: Sequence[str]) -> None:
    """All pictures: allocation by server, one a policy; what compares them, in one."""
    from matplotlib.figure import Figure  # an extra

    drawn: list[tuple[str, Figure]] = []
    for result in results:
        figure = Figure(figsize=(7, 4), layout="constrained")
        _servers(figure, result)
        drawn.append((f"servers-{result.policy.name}", figure))
        if result.instances:
            figure = Figure(figsize=(7, 2.6), layout="constrained")
            _draw_devices(figure, result)
            drawn.append((f"devices-{result.policy.name}", figure))
    figure = Figure(figsize=(7, 2 + 1.5 * (2 + len(results[0].levels))), layout="constrained")
    _compared(figure, results)
    drawn.append(("compared", figure))
    for name, each in drawn:
        for form in formats:
            # An SVG has the time of drawing in it otherwise, and differs at each run.
            metadata = {"Date": None} if form == PictureFormat.SVG else {}
            each.savefig(folder / f"{name}.{form}", dpi=130, metadata=metadata)
    stderr().print(f"{len(drawn) * len(formats)} pictures are in {folder}", soft_wrap=True)


def _servers(figure: "Figure", result: Result) -> None:
    """How much of the resource is taken on each server over time, one row a server."""
    times = np.array(result.series.times)
    end = max(result.window, 1.0)
    moments = np.linspace(0.0, end, MOMENTS, endpoint=False)
    # A row holds until the next one, so each moment shows the last row at or before it.
    rows = np.searchsorted(times, moments, side="right") - 1
    used = np.stack(result.series.used)
    grid = np.where((rows >= 0)[:, None], used[np.maximum(rows, 0)], used[0] * 0).T
    axes = figure.subplots()
    image = axes.imshow(
        grid,
        aspect="auto",
        interpolation="nearest",
        cmap="viridis",
        vmin=0,
        vmax=max(int(result.capacity.max(initial=1)), 1),
        extent=(0.0, end / DAY, len(result.servers), 0.0),
        rasterized=True,
    )
    axes.set(title=f"{result.resource} in use by server: {result.policy.name}", xlabel="days", ylabel="server")
    figure.colorbar(image, ax=axes, label="in use")


def _draw_devices(figure: "Figure", result: Result) -> None:
    """Which devices each pod holds at one time, linked; those that cross sockets without need are red and dotted."""
    axes = figure.subplots()
    most = int(result.capacity.max(initial=1))
    shown = [one for one in result.instances if one.server < SERVERS]
    crossing = sum(one.crosses for one in shown)
    for number, one in enumerate(shown):
        colour = "#c1121f" if one.crosses else COLOURS[number % len(COLOURS)]
        style = ":" if one.crosses else "-"
        axes.plot([one.server] * len(one.devices), one.devices, style, color=colour, marker="o", markersize=3)
    servers = min(SERVERS, len(result.servers))
    when = f"{result.resource} held at day {result.pictured / DAY:.1f}"
    axes.set(
        title=f"{when}: {result.policy.name}, {crossing} across sockets",
        xlabel=f"server (the first {servers})",
        ylabel="device",
        xlim=(-0.5, servers - 0.5),
        ylim=(-0.5, most - 0.5),
    )


def _compared(figure: "Figure", results: Sequence[Result]) -> None:
    """Utilisation, who waits, waiting times, and stranded capacity by level, over one another."""
    levels = results[0].levels
    axes = figure.subplots(3 + len(levels), 1)
    for at, result in enumerate(results):
        how: dict[str, Any] = {
            "label": result.policy.name,
            "color": COLOURS[at % len(COLOURS)],
            "linewidth": 0.8,
            "drawstyle": "steps-post",
        }
        series = result.series
        days = np.array(series.times) / DAY
        capacity = max(int(result.capacity.sum()), 1)
        axes[0].plot(days, [100 * float(row.sum()) / capacity for row in series.used], **how)
        axes[1].plot(days, series.waiting, **how)
        found = np.sort([one.wait / 3600 for one in result.outcomes if one.wait is not None])
        share = 100 * np.arange(1, len(found) + 1) / max(len(found), 1)
        # A logarithmic axis has no place for jobs that did not wait.
        axes[2].plot(np.maximum(found, 0.01), share, **how)
        for number, _ in enumerate(levels):
            axes[3 + number].plot(days, [100 * row[number].stranded for row in series.levels], **how)
    end = max(result.window for result in results) / DAY
    _label(axes[0], f"{results[0].resource} used, %", end)
    _label(axes[1], "jobs that wait", end)
    axes[2].set(xscale="log", xlabel="hours of waiting (0.01: none)", ylabel="jobs, %")
    axes[2].grid(alpha=0.3)
    for number, level in enumerate(levels):
        _label(axes[3 + number], f"free, in no whole\n{level.rpartition('/')[2]}, %", end)
    axes[-1].set(xlabel="days")
    axes[0].legend(loc="lower right", ncols=len(results), fontsize=7)


def _label(axes: "Axes", text: str, end: float) -> None:
    axes.set(ylabel=text, xlim=(0.0, max(end, 1e-6)))
    axes.grid(alpha=0.3)
