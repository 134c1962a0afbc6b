"""Ours beside another scheduler's answer: who uses fewer topology domains, and do the verdicts agree.

Answers are compared where both fit: domains used at the requested level, then at each narrower one, then nodes (the
fewest that hold the slices). The other's answer is judged first: one that puts more pods into a domain than its nodes
take one by one is counted apart, because adding up fragments of nodes is no placement.
"""

from collections.abc import Iterable

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from cli.whatif.cases import Case, CaseSlice
from engine.model import PODS

Path = tuple[str, ...]


class AssignmentUse(msgspec.Struct, frozen=True):
    """What an assignment uses: domains, one number a level, and nodes."""

    domains: tuple[int, ...]
    nodes: int


class Outcomes(msgspec.Struct):
    """How often ours was better, equal or worse."""

    better: int = 0
    equal: int = 0
    worse: int = 0

    def add(self, ours: tuple[int, ...], theirs: tuple[int, ...]) -> None:
        """Less is better."""
        if ours == theirs:
            self.equal += 1
        elif ours < theirs:
            self.better += 1
        else:
            self.worse += 1


class CaseComparison(msgspec.Struct):
    """Adds up over the cases; ``comparison_table`` shows it."""

    verdicts_agree: int = 0
    only_ours_fits: int = 0
    only_theirs_fits: int = 0
    theirs_overfull: int = 0
    # 0: the requested level, 1: the next narrower one, ...
    narrower: list[Outcomes] = msgspec.field(default_factory=list)
    nodes: Outcomes = msgspec.field(default_factory=Outcomes)
    overall: Outcomes = msgspec.field(default_factory=Outcomes)
    unconstrained_nodes: Outcomes = msgspec.field(default_factory=Outcomes)

    def add(self, case: Case, fits: bool, slices: Iterable[CaseSlice]) -> None:
        """Count one case; one without another's answer is passed over."""
        if case.peer_fits is None:
            return
        self.verdicts_agree += fits is case.peer_fits
        self.only_ours_fits += fits and not case.peer_fits
        self.only_theirs_fits += case.peer_fits and not fits
        # The other answer has one list of slices: of several pod sets, it is open whose they are.
        if not case.peer_fits or len(case.pod_sets) > 1:
            return
        theirs = measure(case, case.peer_slices)
        if theirs is None:
            self.theirs_overfull += 1
        elif fits and (ours := measure(case, slices)) is not None:
            self._count_case(case, ours, theirs)

    def _count_case(self, case: Case, ours: AssignmentUse, theirs: AssignmentUse) -> None:
        topology = case.pod_sets[0].topology
        if topology.level is None:
            self.unconstrained_nodes.add((ours.nodes,), (theirs.nodes,))
            return
        requested = case.levels.index(topology.level)
        for depth in range(requested, len(case.levels)):
            if len(self.narrower) <= depth - requested:
                self.narrower.append(Outcomes())
            self.narrower[depth - requested].add((ours.domains[depth],), (theirs.domains[depth],))
        self.nodes.add((ours.nodes,), (theirs.nodes,))
        self.overall.add(_rank(ours, requested), _rank(theirs, requested))

    def comparison_table(self) -> RenderableType:
        """Better, equal and worse at each level, under the verdicts; a sentence where there was nothing to compare."""
        if not self.verdicts_agree + self.only_ours_fits + self.only_theirs_fits:
            return "Nothing to compare: no case carries another scheduler's answer (fits, slices)."
        verdicts = f"Verdicts: {self.verdicts_agree} agree, {self.only_ours_fits} fit only here, "
        lines = [verdicts + f"{self.only_theirs_fits} only there"]
        if self.theirs_overfull:
            lines.append(f"Not compared: {self.theirs_overfull} answers there that overfill the nodes")
        table = Table()
        table.add_column("Domains used, required and preferred")
        for heading in ("better", "equal", "worse"):
            table.add_column(heading, justify="right")
        for label, tally in self._rows():
            table.add_row(label, str(tally.better), str(tally.equal), str(tally.worse))
        return Group(*lines, table)

    def _rows(self) -> Iterable[tuple[str, Outcomes]]:
        for below, tally in enumerate(self.narrower):
            yield ("requested level" if below == 0 else f"{below} level{'s' * (below > 1)} narrower"), tally
        yield "nodes", self.nodes
        yield "in this order", self.overall
        yield "unconstrained: nodes", self.unconstrained_nodes


def _rank(use: AssignmentUse, requested: int) -> tuple[int, ...]:
    """What counts, first things first: how many levels wider than asked the pods are spread comes before all."""
    # Preferred falls back level by level, so an answer in one wider domain beats one in two of them.
    widening = next((up for up in range(requested + 1) if use.domains[requested - up] == 1), requested + 1)
    return widening, *use.domains[requested:], use.nodes


def measure(case: Case, slices: Iterable[CaseSlice]) -> AssignmentUse | None:
    """What the slices use; None where one names no domain or holds more pods than its nodes take one by one."""
    # For every domain of the last level, how many pods each of its nodes takes.
    # Each pod takes one of the node's pods as well.
    requests = {**case.pod_sets[0].requests, PODS: 1}
    room: dict[Path, list[int]] = {}
    for node in case.nodes:
        if any(level not in node.labels for level in case.levels):
            continue
        taken = case.used[node.name]
        takes = min(
            (node.allocatable.get(key, 0) - taken.get(key, 0)) // each for key, each in requests.items() if each
        )
        room.setdefault(tuple(node.labels[level] for level in case.levels), []).append(max(takes, 0))
    paths: set[Path] = set()
    nodes = 0
    for part in slices:
        values = part.values
        # All level values; where only the last one is given, it must name one domain.
        if len(values) == len(case.levels):
            path = values if values in room else None
        else:
            named = [path for path in room if path[-1:] == values]
            path = named[0] if len(named) == 1 else None
        if path is None or (used := _fewest_nodes(room[path], part.count)) is None:
            return None
        paths.add(path)
        nodes += used
    return AssignmentUse(tuple(len({path[: depth + 1] for path in paths}) for depth in range(len(case.levels))), nodes)


def _fewest_nodes(room: list[int], count: int) -> int | None:
    """Nodes for ``count`` pods, the roomiest first; None where they do not fit."""
    left = count
    for used, takes in enumerate(sorted(room, reverse=True), start=1):
        left -= takes
        if left <= 0:
            return used
    return None
