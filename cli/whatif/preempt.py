"""``topogate whatif preempt``: whom to evict on a described cluster so that one more pod gets a node.

docs/preemption.md describes the form, the rules and both strategies.
"""

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Annotated, Final

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from cli.output import Failure
from cli.timing import measured, undisturbed
from cli.whatif.cases import opened
from cli.whatif.output import (
    Cell,
    EqualCounts,
    ErrorAnswer,
    LinesFormat,
    LinesOutput,
    end_answers,
    with_progress,
    write,
)
from cli.whatif.preempt_cases import CaseCluster, CaseRequest, ClusterError, FactsForm, clusters, read_file
from engine.kubelet.devices.links import bits
from engine.kubelet.rebuild import asked as admission_of
from engine.preemption.model import Choice, ChoiceRules, Landing, Scoring, Strategy, TopologyQos
from engine.preemption.roster import Roster
from engine.preemption.search import cost_of, find, freed_by, landing_of, sourced, state_without
from simulator.saturated import SaturatedCluster, node_of, victims_of
from simulator.servers import GPU, one_socket, shape_of

HEADINGS = ("Cluster", "Preemptor", "Node", "Victims", "Highest", "Sum", "GPUs it gets", "One socket")

SEARCHES: Final = 9  # that are timed for one answer


class PreemptAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision. ``node`` is null where no permitted victims make room; ``max_priority`` where nobody has to go.

    ``gpus``: those that the preemptor will get. ``hit``: the room is on one socket. ``micros``: CPU time of sourcing
    and choosing over all nodes, the median of nine searches.
    """

    variant: str
    cycle: int
    preemptor: str
    node: int | None
    victims: tuple[str, ...]
    gpus: tuple[int, ...]
    max_priority: int | None
    priority_sum: int
    count: int
    hit: bool
    micros: float
    message: str = ""


class BestAnswers(EqualCounts, kw_only=True):
    """What is known of the best answers (``facts``) beside ours."""

    strategy: Strategy
    micros: dict[str, list[float]] = msgspec.field(default_factory=dict)

    def add(self, facts: FactsForm | None, given: PreemptAnswer) -> None:
        """Count one decision."""
        self.micros.setdefault(given.preemptor, []).append(given.micros)
        if facts is None:
            return
        if self.strategy is Strategy.LEAST_PRIORITY:
            best = given.max_priority, given.priority_sum, given.count
            self.count_answer("equal to the best (highest priority, sum, number)", best == facts.best_lex_max_sum_count)
            self.count_answer("on one of the best nodes", given.node in facts.nodes_at_best_lex)
        else:
            self.count_answer("as few victims as any set in the cluster", given.count == facts.cluster_min_victims)
        self.count_answer("room on one socket", given.hit)

    def answers_table(self) -> Table:
        """What agrees, and how long it took."""
        table = self.counts_table(str(self.strategy), "yes", "of")
        if not self.rows:
            table.add_row("nothing to compare: no cluster carries facts", "", "")
        for name, found in self.micros.items():
            table.add_row(f"preemptor {name}: median CPU microseconds", f"{sorted(found)[len(found) // 2]:.0f}", "")
        return table


def command(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Servers, classes and clusters as JSON; may be gzip; - is stdin.")
    ],
    strategy: Annotated[
        Strategy, typer.Option("--strategy", help="What is least: priority, or the number of victims as in the paper.")
    ] = Strategy.LEAST_PRIORITY,
    alpha: Annotated[
        float, typer.Option("--alpha", min=0.0, max=1.0, help="Of IncrementalMinimal: priority against topology.")
    ] = Scoring().alpha,
    output: LinesOutput = LinesFormat.JSONL,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Compare with the facts in the file: a table on stderr (with -o table: instead)."
        ),
    ] = False,
) -> None:
    """Choose the victims that make room for one more pod, on every described cluster and for every preemptor.

    The answers come in the order of the file, one a cluster and preemptor: node, victims, gpus (those that the
    preemptor will get), max_priority, priority_sum, count, hit (the room is on one socket) and micros. A cluster that
    contradicts itself is answered with id and error, and the exit status is then 1.
    """
    try:
        rules = ChoiceRules(strategy, Scoring(alpha=alpha))
    except ValueError as error:
        raise Failure(str(error)) from error
    agreement = BestAnswers(strategy=strategy)
    with opened(file) as stream:
        form = read_file(stream)
    given = _answers(with_progress(clusters(form), output, "searched"), rules, agreement)
    failed = write(given, output, HEADINGS, _row, compared=compare)
    end_answers(failed, output, agreement.answers_table if compare else None)


def _answers(
    found: Iterable[CaseCluster | ClusterError], rules: ChoiceRules, agreement: BestAnswers
) -> Iterator[PreemptAnswer | ErrorAnswer]:
    for cluster in found:
        if isinstance(cluster, ClusterError):
            yield ErrorAnswer(id=cluster.id, error=str(cluster))
            continue
        roster = Roster(cluster.rooms)
        roster.build()
        live = SaturatedCluster(cluster.server, cluster.instances, rules)
        for asked in cluster.asked:
            given = answer(cluster, roster, live, asked, rules)
            agreement.add(asked.facts, given)
            yield given


def answer(
    cluster: CaseCluster, roster: Roster, live: SaturatedCluster, asked: CaseRequest, rules: ChoiceRules
) -> PreemptAnswer:
    """The decision about one preemptor; ``live`` is the same cluster, full of workloads, and stays as it is."""
    # CPU time of one search: the median of a few, because a first one pays for cold caches.
    with undisturbed(collect=False):
        micros = median(
            measured(lambda: next(sourced(roster, asked.preemptor, rules), None))[1] for _ in range(SEARCHES)
        )
    if asked.preemptor.qos is TopologyQos.BLIND:
        choice = find(roster, asked.preemptor, rules)  # the controller has no such preemptors
    else:
        decided = live.plan(None, asked.of, wish=asked.wish)
        if decided is None:
            choice = None
        else:
            live.withdraw(decided)
            room, names = roster.rooms[node_of(decided)], set(victims_of(decided))
            picked = tuple([at for at, victim in enumerate(room.victims) if victim.key in names])
            assert room.layout is not None  # noqa: S101  (servers' insides are known)
            given = admission_of(room.layout, state_without(room, picked), shape_of(asked.of, asked.wish))
            victims, landing = tuple([room.victims[at] for at in picked]), landing_of(room.layout, given.zones)
            cost = cost_of(victims)
            score = rules.scoring.score(cost.total, landing)
            choice = Choice(room.node, victims, cost, landing, freed_by(victims), score, given.devices, given.zones)
    if choice is None:
        text = "no permitted set of victims makes room on any node"
        return PreemptAnswer(
            cluster.variant, cluster.cycle, asked.name, None, (), (), None, 0, 0, hit=False, micros=micros, message=text
        )
    return PreemptAnswer(
        variant=cluster.variant,
        cycle=cluster.cycle,
        preemptor=asked.name,
        node=int(choice.node),
        victims=tuple(sorted(str(victim.key) for victim in choice.victims)),
        gpus=tuple(gpu for resource, mask in choice.devices if resource == GPU for gpu in bits(mask)),
        max_priority=max((victim.priority for victim in choice.victims), default=None),
        priority_sum=sum(victim.priority for victim in choice.victims),
        count=len(choice.victims),
        hit=one_socket(cluster.server, roster.rooms[choice.node], asked.of, choice.victims)
        and choice.landing <= Landing.SOCKET,
        micros=micros,
    )


def _row(one: PreemptAnswer) -> tuple[Cell, ...]:
    return (
        f"{one.variant}/{one.cycle}",
        one.preemptor,
        Text("none", "yellow") if one.node is None else str(one.node),
        ", ".join(one.victims),
        "" if one.max_priority is None else str(one.max_priority),
        str(one.priority_sum),
        ", ".join(map(str, one.gpus)),
        Text("yes", "green") if one.hit else Text("no", "yellow"),
    )
