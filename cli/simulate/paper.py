"""``topogate simulate paper``: the evaluation of the paper on preemption, run again, next to what it published.

docs/preemption.md says what is measured, and what the paper leaves open.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Final

import msgspec
import typer
from rich.progress import Progress

from cli.output import Output, OutputFormat, emit, stderr
from cli.simulate.paper_tables import (
    BLIND,
    PERCENTILES,
    Distribution,
    HitRate,
    LandingAnswer,
    Latency,
    MachineAnswer,
    OptionAnswer,
    Overhead,
    PaperAnswer,
    SnapshotAnswer,
    tables,
)
from cli.timing import Found, measured, undisturbed
from clock import cpu_seconds
from engine.kubelet.machine import TopologyPolicy
from engine.preemption.model import ChoiceRules, NodeRoom, Preemptor, Strategy, TopologyQos, VictimPod
from engine.preemption.roster import Roster
from engine.preemption.search import Candidate, sourced
from simulator import figures, paper
from simulator.paper import FIGURE_CLASSES, PREEMPTORS, RTX_4090, TABLE_3, Filling
from simulator.saturated import MadeRoom, SaturatedCluster
from simulator.servers import Instance, InstanceClass, preemptor_of, room_of

Servers = Mapping[str, Sequence[Instance]]
Chosen = tuple[str, tuple[VictimPod, ...]]  # a node, and who has to go there
EVERY: Final = "all subsets"
LIVE: Final[dict[str, ChoiceRules]] = {EVERY: ChoiceRules(every_subset=True)} | {
    str(strategy): ChoiceRules(strategy) for strategy in Strategy
}  # through the cycle
WHOLE: Final = "{}, whole cycle"  # a method's time with placing, confirming and quota
# Equal victims are told apart by their order alone: a search that depended on it would show in these.
ORDERS: Final = 20  # in which the machines of Figure 3 are shown to the search
LANDINGS: Final = 20  # clusters of each placement for best-effort preemptors
BARS: Final = 5  # times of each workload in Figure 10


class MethodTally(msgspec.Struct):
    """One placement and method."""

    preemptions: int = 0
    hits: int = 0
    victims: int = 0
    highest: Counter[int] = msgspec.field(default_factory=Counter)

    def add(self, made: MadeRoom | None, *, times: int = 1) -> None:
        """What came of one preemption, ``times`` the same; None where none was found."""
        self.preemptions += times
        if made is not None:
            self.hits += times * made.hit
            self.victims += times * len(made.priorities)
            if made.priorities:
                self.highest[max(made.priorities)] += times


class Evaluation(msgspec.Struct):
    """Counts cycle by cycle; ``micros`` by preemptor and method."""

    in_a_row: bool
    cpu: Callable[[], float] = cpu_seconds
    tallies: dict[tuple[str, str], MethodTally] = msgspec.field(default_factory=dict)
    micros: dict[tuple[str, str], list[float]] = msgspec.field(default_factory=dict)

    def cycle(self, filling: Filling, servers: Servers, preemptions: int) -> None:
        """So many instances scale up, B and C in turn, by each method on a cluster of its own."""
        names = [PREEMPTORS[number % len(PREEMPTORS)] for number in range(preemptions)]
        rooms = [room_of(RTX_4090, node, on) for node, on in servers.items()]
        if self.in_a_row:
            tally = self._tally(filling, BLIND)
            cluster = SaturatedCluster(RTX_4090, servers, ChoiceRules())
            for number, name in enumerate(names):
                left, preemptor = cluster.rooms(), paper.guaranteed(TABLE_3[name])
                # Without collecting first: that takes a while, and there are thousands of searches.
                with undisturbed(collect=False):
                    chosen = self._timed(name, BLIND, partial(_by_priority, left, preemptor))
                tally.add(_sent(cluster, f"new-{number}", name, chosen))
        else:
            # Each preemption on the cluster as it is at first: what is chosen is the same each time.
            tally = self._tally(filling, BLIND)
            for name in PREEMPTORS:
                times, preemptor, chosen = names.count(name), paper.guaranteed(TABLE_3[name]), None
                with undisturbed():
                    for _ in range(times):
                        chosen = self._timed(name, BLIND, partial(_by_priority, rooms, preemptor))
                made = _sent(SaturatedCluster(RTX_4090, servers, ChoiceRules()), "new", name, chosen)
                tally.add(made, times=times)
            self._live(self._tally(filling, EVERY), EVERY, servers, names)
        for strategy in Strategy:
            # How long candidates take, on the cluster as it is at first.
            roster, rules = Roster(rooms), ChoiceRules(strategy)
            # Not timed: the controller keeps its roster from cycle to cycle.
            roster.build()
            with undisturbed():
                for name in names:
                    self._timed(
                        name, strategy, partial(_first_candidate, roster, paper.guaranteed(TABLE_3[name]), rules)
                    )
            self._live(self._tally(filling, strategy), strategy, servers, names)

    def _tally(self, filling: Filling, method: str) -> MethodTally:
        return self.tallies.setdefault((filling, method), MethodTally())

    def _live(self, tally: MethodTally, method: str, servers: Servers, names: Sequence[str]) -> None:
        """Through the cycle and kubelets, one after the other, or each on the cluster as it is at first."""
        rules = LIVE[method]
        if self.in_a_row:
            cluster = SaturatedCluster(RTX_4090, servers, rules)
            for number, name in enumerate(names):
                self._preempt(tally, cluster, method, name, f"new-{number}")
        else:
            for name in PREEMPTORS:  # what is chosen is the same each time
                if times := names.count(name):
                    cluster = SaturatedCluster(RTX_4090, servers, rules)
                    self._preempt(tally, cluster, method, name, "new", times=times)

    def _preempt(
        self, tally: MethodTally, cluster: SaturatedCluster, method: str, name: str, key: str, *, times: int = 1
    ) -> None:
        of = TABLE_3[name]
        with undisturbed():
            plan = partial(cluster.plan, key, of, wish=TopologyPolicy.SOCKET)
            decided = self._timed(name, WHOLE.format(method), plan)
        tally.add(None if decided is None else cluster.carry_out(decided), times=times)

    def _timed(self, name: str, method: str, search: Callable[[], Found]) -> Found:
        found, micros = measured(search, self.cpu)
        self.micros.setdefault((name, method), []).append(micros)
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
        return tuple(Latency(name, method, parts[50], parts[90]) for name, method, parts in self._percentiles())

    def figure_11(self) -> tuple[Distribution, ...]:
        """The same, all percentiles."""
        return tuple(
            Distribution(name, method, {f"p{part}": micros for part, micros in parts.items()})
            for name, method, parts in self._percentiles()
        )

    def _percentiles(self) -> Iterator[tuple[str, str, dict[int, float]]]:
        for name in PREEMPTORS:
            for method in (BLIND, *Strategy, *[WHOLE.format(method) for method in LIVE]):
                times = sorted(self.micros.get((name, method), ()))
                if times:
                    # Nearest rank: a time that was measured, not one between two.
                    at = {part: times[min(len(times) * part // 100, len(times) - 1)] for part in PERCENTILES}
                    yield name, method, {part: round(micros, 1) for part, micros in at.items()}


def _by_priority(rooms: Sequence[NodeRoom], preemptor: Preemptor) -> Chosen | None:
    found = paper.priority_only(rooms, preemptor)
    return None if found is None else (found[0].node, found[1])


def _sent(cluster: SaturatedCluster, key: str, name: str, chosen: Chosen | None) -> MadeRoom | None:
    """The victims end, and one more instance goes to their node, whose kubelet says what it gets."""
    if chosen is None:
        return None
    node, victims = chosen
    return cluster.send_instance(key, TABLE_3[name], node, [str(victim.key) for victim in victims])


def figure_3() -> tuple[OptionAnswer, ...]:
    """The twelve options for one more instance of B, and which is chosen, whatever the order of machines and pods."""
    of, rooms = FIGURE_CLASSES["B"], paper.figure_3()
    chosen: dict[tuple[str, ...], dict[str, None]] = {}
    for strategy in Strategy:
        for order in range(ORDERS):
            _, picked, _ = figures.figure_3("B", ChoiceRules(strategy), order)
            chosen.setdefault(picked, {})[strategy] = None
    return tuple(
        OptionAnswer(
            rooms[one.machine].node, one.victims, one.aligned, tuple(chosen.get(tuple(sorted(one.victims)), ()))
        )
        for one in paper.options(rooms, of)
    )


def figure_3_a() -> tuple[MachineAnswer, ...]:
    """Where one more instance of A goes, whatever the order of machines and pods."""
    found = []
    for strategy in Strategy:
        made = [figures.figure_3("A", ChoiceRules(strategy), order) for order in range(ORDERS)]
        for machine in sorted({machine for machine, _, _ in made}):
            hits = [hit for at, _, hit in made if at == machine]
            found.append(MachineAnswer(strategy, machine, len(hits), sum(hits)))
    return tuple(found)


def figure_8(seed: int) -> tuple[SnapshotAnswer, ...]:
    """Who crosses sockets after 41 full servers made room."""
    found = {method: figures.figure_8(rules, seed) for method, rules in ({BLIND: None} | LIVE).items()}
    return tuple(
        SnapshotAnswer(method, one.preempted, one.instances, one.crossing, one.avoidable)
        for method, one in found.items()
    )


def landings(fillings: Sequence[Filling], cycles: int, seed: int) -> tuple[LandingAnswer, ...]:
    """Best-effort preemptors of up to ``LANDINGS`` clusters of each placement: who crosses sockets."""
    found = {
        (filling, method): figures.crossings(rules, filling, min(cycles, LANDINGS), seed)
        for filling in fillings
        for method, rules in ({BLIND: None} | LIVE).items()
    }
    return tuple(
        LandingAnswer(filling, method, one.preempted, one.crossing, one.avoidable)
        for (filling, method), one in found.items()
    )


def figure_10(seed: int) -> tuple[Overhead, ...]:
    """One more of each class, best-effort (8 GPUs are never on one socket): sourcing, and whole cycles."""
    servers = paper.full_servers(Filling.ALIGNED, 0, seed)
    rooms, found = [room_of(RTX_4090, node, on) for node, on in servers.items()], []
    roster = Roster(rooms)
    roster.build()
    for name, of in TABLE_3.items():
        preemptor = preemptor_of(of, TopologyQos.BEST_EFFORT, TopologyPolicy.NONE)
        searches: dict[str, Callable[[], object]] = {
            BLIND: partial(_by_priority, rooms, preemptor),
            **{strategy: partial(_first_candidate, roster, preemptor, ChoiceRules(strategy)) for strategy in Strategy},
        }
        for method, search in searches.items():
            with undisturbed():
                micros = [measured(search)[1] for _ in range(BARS)]
            found.append(_bar(name, method, micros))
        found += [_bar(name, WHOLE.format(method), _cycles(servers, of, rules)) for method, rules in LIVE.items()]
    return tuple(found)


def _bar(name: str, method: str, micros: Sequence[float]) -> Overhead:
    return Overhead(name, method, tuple(round(each, 1) for each in micros))


def _cycles(servers: Servers, of: InstanceClass, rules: ChoiceRules) -> list[float]:
    """How long the controller's cycle takes to decide about one more, each time on the cluster as it is at first."""
    found = []
    for _ in range(BARS):
        cluster = SaturatedCluster(RTX_4090, servers, rules)
        with undisturbed():
            found.append(measured(partial(cluster.plan, "new", of))[1])
    return found


def _first_candidate(roster: Roster, preemptor: Preemptor, rules: ChoiceRules) -> Candidate | None:
    return next(sourced(roster, preemptor, rules), None)


def command(
    cycles: Annotated[int, typer.Option(min=1, max=10_000, help="Clusters of each placement.")] = 100,
    preemptions: Annotated[int, typer.Option(min=1, max=1000, help="Preemptions on each cluster.")] = 50,
    placement: Annotated[
        list[Filling] | None, typer.Option("--placement", help="How servers are filled; may be repeated. Default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same clusters and decisions.")] = 0,
    in_a_row: Annotated[
        bool,
        typer.Option(
            "--in-a-row", help="Each preemption changes the cluster; in the paper each starts from the same cluster."
        ),
    ] = False,
    times: Annotated[
        bool, typer.Option("--times/--no-times", help="Print Table 5, Figures 10 and 11; times differ from run to run.")
    ] = True,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Run the paper's evaluation of preemption: Tables 3 to 5, Figures 3 and 8 to 11, next to what it published.

    100 servers of 8 GPUs, all held; 100 clusters, 50 preemptions on each. Victims by priority alone, as schedulers
    choose them that do not know the inside of servers, beside both strategies of Topogate and a search of every set,
    which go through its admission cycle; simulated kubelets judge all of them.
    """
    fillings = list(dict.fromkeys(placement or list(Filling)))
    evaluation = Evaluation(in_a_row)
    console = stderr()
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("preempting", total=len(fillings) * cycles)
        for filling in fillings:
            for cycle in range(cycles):
                # The cycle's number seeds its cluster, so --cycles 10 has the first ten clusters of --cycles 100.
                evaluation.cycle(filling, paper.full_servers(filling, cycle, seed), preemptions)
                bar.advance(task)
    answer = PaperAnswer(
        figure_3=figure_3(),
        figure_3_a=figure_3_a(),
        table_4=evaluation.table_4(),
        best_effort=landings(fillings, cycles, seed),
        figure_8=figure_8(seed),
        figure_9=tuple(figures.figure_9(ChoiceRules(), seed)),
        table_5=evaluation.table_5() if times else (),
        figure_10=figure_10(seed) if times else (),
        figure_11=evaluation.figure_11() if times else (),
    )
    emit(answer, output, table=tables(answer))
