"""``topogate whatif``: a described cluster in, the engine's decision out; no cluster needed.

docs/whatif.md describes both forms.
"""

from typing import Annotated

import msgspec
import typer
from rich.text import Text

from cli.whatif import admit, claims, preempt
from cli.whatif.cases import Case, CaseSlice, decide, decode_case
from cli.whatif.compare import CaseComparison
from cli.whatif.output import CaseFile, Cell, Compare, LinesFormat, LinesOutput, answer_cases
from engine.cluster.levels import domain_in_words
from engine.results import Refusal

HEADINGS = ("Case", "Fits", "Where, or why not")

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Ask the engine about a described cluster or machine, without one.",
)


@app.callback()
def _group() -> None:
    pass


app.command("admit")(admit.command)
app.command("claims")(claims.command)
app.command("preempt")(preempt.command)


class PodSetAnswer(msgspec.Struct, frozen=True):
    """The slices of one of several pod sets."""

    name: str
    slices: tuple[CaseSlice, ...]


class CaseAnswer(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The decision about one case; where it does not fit, ``message`` explains ``reason``."""

    id: str
    fits: bool
    slices: tuple[CaseSlice, ...]
    reason: str
    message: str = ""
    pod_sets: tuple[PodSetAnswer, ...] = ()


def answer(case: Case, nodes_per_opened_domain: int = 0) -> CaseAnswer:
    """The engine's decision about a case."""
    decision = decide(case, nodes_per_opened_domain)
    if isinstance(decision, Refusal):
        return CaseAnswer(id=case.id, fits=False, slices=(), reason=decision.reason, message=decision.message)
    parts = tuple(
        PodSetAnswer(
            name=assignment.pod_set,
            slices=tuple(CaseSlice(values=part.values, count=part.count) for part in assignment.slices),
        )
        for assignment in decision.assignments
    )
    if len(parts) == 1:
        return CaseAnswer(id=case.id, fits=True, slices=parts[0].slices, reason="")
    return CaseAnswer(id=case.id, fits=True, slices=(), reason="", pod_sets=parts)


@app.command()
def place(
    file: CaseFile,
    output: LinesOutput = LinesFormat.JSONL,
    compare: Compare = False,
    nodes_per_opened_domain: Annotated[
        int,
        typer.Option(
            "--nodes-per-opened-domain",
            min=0,
            max=1000,
            help="So many nodes more for a rack less that is opened: the setting of that name. 0: the fewest nodes.",
        ),
    ] = 0,
) -> None:
    """Place the pods of every described case, and say where or why not.

    A case is one line: its id, the levels (widest first), the nodes (name, labels, allocatable, used, taints, ...) and
    the request: mode (required, preferred, unconstrained), level, count, perPod. docs/whatif.md has every field.

    The answers come in the order of the cases, with id, fits, slices (values, count) and reason. A line that is no case
    is answered with id and error, and the exit status is then 1.
    """
    comparison = CaseComparison()

    def answer_case(case: Case) -> CaseAnswer:
        given = answer(case, nodes_per_opened_domain)
        comparison.add(case, given.fits, given.slices)
        return given

    table = comparison.comparison_table if compare else None
    answer_cases(file, decode_case, answer_case, output, HEADINGS, _row, done_word="placed", compared=table)


def _row(given: CaseAnswer) -> tuple[Cell, ...]:
    if given.fits:
        # Pods a domain, one line a pod set.
        parts = given.pod_sets or (PodSetAnswer(name="", slices=given.slices),)
        return (
            given.id,
            Text("yes", "green"),
            "\n".join(
                (f"{part.name}: " if part.name else "")
                + ", ".join(f"{piece.count} in {domain_in_words(piece.values)}" for piece in part.slices)
                for part in parts
            ),
        )
    return given.id, Text("no", "yellow"), f"{given.reason}: {given.message}"
