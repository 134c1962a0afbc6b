"""What ``topogate simulate paper`` answers, and how it is shown next to what the paper published."""

from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from simulator import paper
from simulator.paper import PREEMPTORS, TABLE_3

BLIND: Final = "priority only"
PERCENTILES: Final = (10, 25, 50, 75, 90, 99)


class OptionAnswer(msgspec.Struct, frozen=True):
    """One of the twelve options of Figure 3; ``chosen`` by which strategies."""

    machine: str
    victims: tuple[str, ...]
    aligned: bool
    chosen: tuple[str, ...]


class HitRate(msgspec.Struct, frozen=True):
    """One row of Table 4."""

    placement: str
    method: str
    preemptions: int
    hits: int
    victims: float  # on average
    highest: dict[str, int]  # how often which highest priority of a victim


class LandingAnswer(msgspec.Struct, frozen=True):
    """Best-effort preemptors of one placement and method: how many cross sockets, and need not have."""

    placement: str
    method: str
    preemptions: int
    crossing: int
    avoidable: int


class MachineAnswer(msgspec.Struct, frozen=True):
    """Figure 3, one more instance of A: in how many orders of machines it took which, and how often it was aligned."""

    method: str
    machine: str
    orders: int
    aligned: int


class SnapshotAnswer(msgspec.Struct, frozen=True):
    """Figure 8: the servers after one way of making room."""

    method: str
    preempted: int
    instances: int
    crossing: int
    avoidable: int


class Latency(msgspec.Struct, frozen=True):
    """One row of Table 5, in CPU microseconds."""

    preemptor: str
    method: str
    p50: float
    p90: float


class Overhead(msgspec.Struct, frozen=True):
    """One bar of Figure 10: five times, in CPU microseconds."""

    preemptor: str
    method: str
    micros: tuple[float, ...]


class Distribution(msgspec.Struct, frozen=True):
    """One line of Figure 11: by percentile, CPU microseconds."""

    preemptor: str
    method: str
    percentiles: dict[str, float]


class PaperAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of it. ``figure_9``: how many instances of each class run, at first and after each preemption."""

    figure_3: tuple[OptionAnswer, ...]
    figure_3_a: tuple[MachineAnswer, ...]
    table_4: tuple[HitRate, ...]
    best_effort: tuple[LandingAnswer, ...]
    figure_8: tuple[SnapshotAnswer, ...]
    figure_9: tuple[dict[str, int], ...]
    table_5: tuple[Latency, ...] = ()
    figure_10: tuple[Overhead, ...] = ()
    figure_11: tuple[Distribution, ...] = ()


def tables(answer: PaperAnswer) -> Group:
    """All of it, as tables."""
    parts = [_table_3(), _figure(answer.figure_3), _machines(answer.figure_3_a), _hits(answer.table_4)]
    parts += [_landings(answer.best_effort), _snapshots(answer.figure_8), _counts(answer.figure_9)]
    if answer.table_5:
        parts += [_latencies(answer.table_5), _overheads(answer.figure_10), _distributions(answer.figure_11)]
    return Group(*parts)


def _new(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 2 else "right")
    return table


def _table_3() -> Table:
    table = _new(
        "Table 3: what fills 100 servers of 8 GPUs", "Workload", "May be preempted", "Priority", "GPUs", "Instances"
    )
    for name, of in TABLE_3.items():
        table.add_row(name, "yes" if of.preemptible else "no", str(of.priority), str(of.gpus), str(of.count))
    return table


def _figure(options: Sequence[OptionAnswer]) -> Table:
    table = _new(
        "Figure 3: the ways to make room for one more instance of B", "Machine", "Victims", "One socket", "Chosen by"
    )
    for one in options:
        told = Text("yes", "green") if one.aligned else Text("no", "red")
        table.add_row(one.machine, ", ".join(one.victims), told, ", ".join(one.chosen))
    missed = [one for one in options if not one.aligned]
    wrong = sum(bool(one.chosen) for one in missed)
    table.caption = f"{len(options)} options, {len(missed)} miss; chosen of those that miss: {wrong}"
    return table


def _hits(rates: Sequence[HitRate]) -> Table:
    table = _new(
        "Table 4: how often the room is on one socket", "Placement", "Method", "Preemptions", "Hits", "Rate", "Victims"
    )
    published = {BLIND: paper.PUBLISHED_HITS["priority only"], "FlexTopo": paper.PUBLISHED_HITS["topology-aware"]}
    for method, hits in published.items():
        table.add_row("published", method, "5000", str(hits), f"{hits / 50:.1f} %", "")
    for one in rates:
        rate = f"{100 * one.hits / max(one.preemptions, 1):.1f} %"
        table.add_row(one.placement, one.method, str(one.preemptions), str(one.hits), rate, f"{one.victims:.2f}")
    return table


def _landings(found: Sequence[LandingAnswer]) -> Table:
    title = "Best-effort preemptors: how many run across sockets"
    headings = ("Placement", "Method", "Preemptions", "Across sockets", "That could be avoided")
    table = _new(title, *headings)
    for one in found:
        table.add_row(one.placement, one.method, str(one.preemptions), str(one.crossing), str(one.avoidable))
    return table


def _latencies(found: Sequence[Latency]) -> Table:
    table = _new(
        "Table 5: sourcing candidates over all nodes, and whole cycles, microseconds",
        "Preemptor",
        "Method",
        "P50",
        "P90",
    )
    gpus = {name: f"{name}, {TABLE_3[name].gpus} GPUs" for name in PREEMPTORS}
    for (name, method), (p50, p90) in paper.PUBLISHED_MICROS.items():
        table.add_row(gpus[name], f"published: {method}", f"{p50:,.0f}", f"{p90:,.0f}")
    for one in found:
        table.add_row(gpus[one.preemptor], one.method, f"{one.p50:,.0f}", f"{one.p90:,.0f}")
    return table


def _machines(found: Sequence[MachineAnswer]) -> Table:
    table = _new("Figure 3: one more instance of A", "Method", "Machine", "Orders of machines", "One socket")
    for one in found:
        table.add_row(one.method, one.machine, str(one.orders), str(one.aligned))
    return table


def _snapshots(found: Sequence[SnapshotAnswer]) -> Table:
    title = "Figure 8: 41 full servers after best-effort instances made room one by one"
    table = _new(title, "Method", "Preempted", "Of several GPUs", "Across sockets", "That could be avoided")
    for one in found:
        table.add_row(one.method, str(one.preempted), str(one.instances), str(one.crossing), str(one.avoidable))
    return table


def _counts(found: Sequence[dict[str, int]]) -> Table:
    table = _new("Figure 9: instances while 10 of B and then 20 of C come", "After preemptions", *TABLE_3)
    # Every fifth, and always the last, which a step of five may miss.
    for number in (*range(0, len(found) - 1, 5), len(found) - 1):
        table.add_row(str(number), *[str(found[number][name]) for name in TABLE_3])
    return table


def _overheads(found: Sequence[Overhead]) -> Table:
    title = "Figure 10: sourcing candidates, and whole cycles, five times for each workload, microseconds"
    table = _new(title, "Preemptor", "Method", "1", "2", "3", "4", "5")
    for one in found:
        table.add_row(one.preemptor, one.method, *[f"{micros:,.0f}" for micros in one.micros])
    return table


def _distributions(found: Sequence[Distribution]) -> Table:
    title = "Figure 11: how the times of sourcing, and of whole cycles, are distributed, microseconds"
    table = _new(title, "Preemptor", "Method", *[f"P{part}" for part in PERCENTILES])
    for one in found:
        table.add_row(one.preemptor, one.method, *[f"{micros:,.0f}" for micros in one.percentiles.values()])
    return table
