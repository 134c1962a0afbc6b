"""``topogate simulate paper``: the evaluation of the paper on preemption, run again, next to what it published.

docs/preemption.md says what is measured, and what the paper leaves open.
"""

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeVar

import msgspec
import typer
from rich.console import Group
from rich.progress import Progress
from rich.table import Table

from cli.output import Output, OutputFormat, emit, stderr
from clock import cpu_seconds
from engine.preemption.model import Choice, NodeRoom, Preemptor, Rules, Strategy, Victim
from engine.preemption.roster import Roster
from engine.preemption.search import find, sourced
from simulator import paper
from simulator.paper import FIGURE_CLASSES, PREEMPTORS, RTX_4090, TABLE_3, Filling
from simulator.servers import one_socket, taken_in

Found = TypeVar("Found")
BLIND: Final = "priority only"
METHODS: Final = (BLIND, *Strategy)
ORDERS: Final = 20  # in which the machines of Figure 3 are shown to the search


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


class Latency(msgspec.Struct, frozen=True):
    """One row of Table 5, in CPU microseconds."""

    preemptor: str
    method: str
    p50: float
    p90: float


class PaperAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of it."""

    figure_3: tuple[OptionAnswer, ...]
    table_4: tuple[HitRate, ...]
    table_5: tuple[Latency, ...] = ()


@dataclass
class MethodTally:
    """One placement and method."""

    preemptions: int = 0
    hits: int = 0
    victims: int = 0
    highest: Counter[int] = field(default_factory=Counter)

    def add(self, victims: Sequence[Victim], hit: bool) -> None:
        """One preemption."""
        self.preemptions += 1
        self.hits += hit
        self.victims += len(victims)
        if victims:
            self.highest[max(victim.priority for victim in victims)] += 1


@dataclass
class Evaluation:
    """Counts cycle by cycle; ``micros`` by preemptor and method."""

    in_a_row: bool
    cpu: Callable[[], float] = cpu_seconds
    tallies: dict[tuple[str, str], MethodTally] = field(default_factory=dict)
    micros: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    _choices: dict[str, Choice | None] = field(default_factory=dict)

    def cycle(self, filling: Filling, rooms: list[NodeRoom], preemptions: int) -> None:
        """So many instances scale up, B and C in turn, by each method on a cluster of its own."""
        for method in METHODS:
            tally = self.tallies.setdefault((filling, method), MethodTally())
            roster = Roster(rooms)
            roster.build()
            self._choices.clear()
            gc.collect()
            gc.disable()  # what is left of building is not part of a decision
            for number in range(preemptions):
                self._preempt(roster, method, PREEMPTORS[number % len(PREEMPTORS)], tally, f"new-{number}")
            gc.enable()

    def _preempt(self, roster: Roster, method: str, name: str, tally: MethodTally, key: str) -> None:
        of = TABLE_3[name]
        preemptor = paper.guaranteed(of)
        if method == BLIND:
            rooms = list(roster.rooms.values())
            found = self._timed(name, method, lambda: paper.priority_only(rooms, preemptor))
            if found is not None:
                hit = one_socket(RTX_4090, found[0], of, found[1])
                tally.add(found[1], hit)
                if self.in_a_row:
                    self._take(roster, found[0], found[1], preemptor, key)
            else:
                tally.add((), hit=False)
            return
        rules = Rules(Strategy(method))
        self._timed(name, method, lambda: next(sourced(roster, preemptor, rules), None))
        if self.in_a_row or name not in self._choices:  # the cluster stays as it was: so does what is chosen
            self._choices[name] = find(roster, preemptor, rules)
        choice = self._choices[name]
        if choice is None:
            tally.add((), hit=False)
            return
        room = roster.rooms[choice.node]
        tally.add(choice.victims, one_socket(RTX_4090, room, of, choice.victims))
        if self.in_a_row:
            self._take(roster, room, choice.victims, preemptor, key)

    @staticmethod
    def _take(roster: Roster, room: NodeRoom, victims: Sequence[Victim], preemptor: Preemptor, key: str) -> None:
        stays = not next(of for of in TABLE_3.values() if of.priority == preemptor.above).preemptible
        roster.set(taken_in(room, victims, preemptor, key, stays=stays))

    def _timed(self, name: str, method: str, search: Callable[[], Found]) -> Found:
        began = self.cpu()
        found = search()
        self.micros.setdefault((name, method), []).append((self.cpu() - began) * 1e6)
        return found

    def table_4(self) -> tuple[HitRate, ...]:
        """Hits by placement and method."""
        return tuple(
            HitRate(
                placement,
                method,
                tally.preemptions,
                tally.hits,
                round(tally.victims / max(tally.preemptions, 1), 2),
                {str(priority): count for priority, count in sorted(tally.highest.items())},
            )
            for (placement, method), tally in self.tallies.items()
        )

    def table_5(self) -> tuple[Latency, ...]:
        """Times by preemptor and method."""
        found = []
        for name in PREEMPTORS:
            for method in METHODS:
                times = sorted(self.micros.get((name, method), ()))
                if times:
                    p50, p90 = (times[min(len(times) * part // 100, len(times) - 1)] for part in (50, 90))
                    found.append(Latency(name, method, round(p50, 1), round(p90, 1)))
        return tuple(found)


def figure_3() -> tuple[OptionAnswer, ...]:
    """The twelve options for one more instance of B, and which is chosen, whatever the order of machines and pods."""
    of, rooms = FIGURE_CLASSES["B"], paper.figure_3()
    chosen: dict[tuple[str, ...], dict[str, None]] = {}
    for strategy in Strategy:
        for order in range(ORDERS):
            shown = paper.renamed(rooms, order)
            choice = find(Roster(shown), paper.guaranteed(of), Rules(strategy))
            if choice is not None:
                picked = tuple(sorted(victim.key for victim in choice.victims))
                chosen.setdefault(picked, {})[strategy] = None
    return tuple(
        OptionAnswer(
            rooms[one.machine].node, one.victims, one.aligned, tuple(chosen.get(tuple(sorted(one.victims)), ()))
        )
        for one in paper.options(rooms, of)
    )


def command(
    cycles: Annotated[int, typer.Option(min=1, max=10_000, help="Clusters of each placement.")] = 100,
    preemptions: Annotated[int, typer.Option(min=1, max=1000, help="Preemptions on each cluster.")] = 50,
    placement: Annotated[
        list[Filling] | None, typer.Option("--placement", help="How servers are filled; may be repeated. Default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same clusters and decisions.")] = 0,
    in_a_row: Annotated[
        bool, typer.Option("--in-a-row", help="Each preemption changes the cluster; in the paper each starts anew.")
    ] = False,
    times: Annotated[
        bool, typer.Option("--times/--no-times", help="Print Table 5; times differ from run to run.")
    ] = True,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Run the paper's evaluation of preemption: Tables 3 to 5 and Figure 3, next to what it published.

    100 servers of 8 GPUs, all held; 100 clusters, 50 preemptions on each. Victims by priority alone, as schedulers
    choose them that do not know the inside of servers, beside both strategies of Topogate.
    """
    fillings = list(dict.fromkeys(placement or list(Filling)))
    evaluation = Evaluation(in_a_row)
    console = stderr()
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("preempting", total=len(fillings) * cycles)
        for filling in fillings:
            for cycle in range(cycles):
                evaluation.cycle(filling, paper.full_cluster(filling, cycle, seed), preemptions)
                bar.advance(task)
    answer = PaperAnswer(figure_3(), evaluation.table_4(), evaluation.table_5() if times else ())
    emit(answer, output, table=_tables(answer))


def _tables(answer: PaperAnswer) -> Group:
    parts = [_table_3(), _figure(answer.figure_3), _hits(answer.table_4)]
    return Group(*parts, _latencies(answer.table_5)) if answer.table_5 else Group(*parts)


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
        told = "[green]yes" if one.aligned else "[red]no"
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


def _latencies(found: Sequence[Latency]) -> Table:
    table = _new("Table 5: sourcing candidates over all nodes, microseconds", "Preemptor", "Method", "P50", "P90")
    gpus = {name: f"{name}, {TABLE_3[name].gpus} GPUs" for name in PREEMPTORS}
    for (name, method), (p50, p90) in paper.PUBLISHED_MICROS.items():
        table.add_row(gpus[name], f"published: {method}", f"{p50:,.0f}", f"{p90:,.0f}")
    for one in found:
        table.add_row(gpus[one.preemptor], one.method, f"{one.p50:,.0f}", f"{one.p90:,.0f}")
    return table
