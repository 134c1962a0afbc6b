"""What the commands under ``topogate whatif`` share: options, cases one by one, lines as they come, and progress."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cli.output import OutputFormat, emit, stderr, stdout
from cli.screen import escape_control
from cli.whatif.cases import CaseError, opened, read_lines
from clock import SYSTEM, Clock

_QUIET_SECONDS = 2.0  # what lasts longer shows its progress
One = TypeVar("One")
Given = TypeVar("Given")
Cell = str | Text


class LinesFormat(StrEnum):
    """What ``-o`` accepts here: the answers are lines, so that they can be read while they come."""

    JSONL = "jsonl"
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


CaseFile = Annotated[
    str, typer.Argument(metavar="FILE", help="Cases, one JSON object a line; may be gzip; - is stdin.")
]
LinesOutput = Annotated[LinesFormat, typer.Option("-o", "--output", help="Output format.")]
Compare = Annotated[
    bool,
    typer.Option(
        "--compare", help="Compare with the answers in the cases: a table on stderr (with -o table: instead)."
    ),
]


class ErrorAnswer(msgspec.Struct, frozen=True):
    """In place of the answer to a line that is no case; ``id`` is null where it could not be read."""

    id: str | None
    error: str


class EqualCounts(msgspec.Struct):
    """How often our answers are those that the cases carry: (equal, compared) for each thing that is compared."""

    rows: dict[str, list[int]] = msgspec.field(default_factory=dict)

    def count_answer(self, what: str, same: bool) -> None:
        """One more was compared."""
        row = self.rows.setdefault(what, [0, 0])
        row[0] += same
        row[1] += 1

    def counts_table(self, *heads: str) -> Table:
        """A row for each thing, with the share in percent where there is a fourth head."""
        table = Table(heads[0])
        for head in heads[1:]:
            table.add_column(head, justify="right")
        for what, (same, every) in self.rows.items():
            table.add_row(what, str(same), str(every), *[f"{100 * same / every:.1f}"][: len(heads) - 3])
        return table


def answer_cases(
    file: str,
    decode: Callable[[bytes], One],
    answer: Callable[[One], Given],
    output: LinesFormat,
    headings: Iterable[str],
    row: Callable[[Given], Sequence[Cell]],
    *,
    done_word: str,
    compared: Callable[[], RenderableType] | None,
) -> None:
    """Answer a file of cases, one a line, in its order; ``compared`` gives the table of a comparison.

    Raises Failure where the file cannot be read, and Exit with status 1 where a line is no case.
    """
    with opened(file) as stream:
        cases = with_progress(read_lines(stream, decode), output, done_word)
        answers = (ErrorAnswer(case.id, str(case)) if isinstance(case, CaseError) else answer(case) for case in cases)
        failed = write(answers, output, headings, row, compared=compared is not None)
    end_answers(failed, output, compared)


def end_answers(failed: int, output: LinesFormat, compared: Callable[[], RenderableType] | None) -> None:
    """Print the table of a comparison, where one is asked for. Raises Exit where there were errors."""
    if compared is not None:
        (stdout() if output is LinesFormat.TABLE else stderr()).print(compared())
    if failed:
        raise typer.Exit(1)


def with_progress(cases: Iterable[One], output: LinesFormat, done_word: str, clock: Clock = SYSTEM) -> Iterator[One]:
    """Say on a terminal how many cases are done once it takes long; lines that are seen to come need none."""
    console = stderr()
    if not console.is_terminal or (output is LinesFormat.JSONL and sys.stdout.isatty()):
        yield from cases
        return
    started = clock.monotonic()
    with console.status("") as status:
        status.stop()
        for done, case in enumerate(cases):
            if clock.monotonic() - started > _QUIET_SECONDS:
                status.update(f"{done} cases {done_word}")
                status.start()
            yield case


def write(
    answers: Iterable[One | ErrorAnswer],
    output: LinesFormat,
    headings: Iterable[str],
    row: Callable[[One], Sequence[Cell]],
    *,
    compared: bool,
) -> int:
    """Write lines as they come, or all answers as one document or table; returns how many were errors.

    Where a comparison takes the place of the table (``compared``), only errors are told.
    """
    if output is LinesFormat.JSONL:
        failed = 0
        for one in answers:
            failed += isinstance(one, ErrorAnswer)
            sys.stdout.write(escape_control(msgspec.json.encode(one).decode()) + "\n")
        return failed
    given = list(answers)
    errors = [one for one in given if isinstance(one, ErrorAnswer)]
    if output is LinesFormat.TABLE and compared:
        for error in errors:
            stderr().print(error.error, style="red")
    else:
        emit(given, OutputFormat(output), table=_table(headings, given, row))
    return len(errors)


def _table(
    headings: Iterable[str], answers: Iterable[One | ErrorAnswer], row: Callable[[One], Sequence[Cell]]
) -> Table:
    """One row an answer; an error stands in place of its row."""
    table = Table(*headings)
    for given in answers:
        if isinstance(given, ErrorAnswer):
            table.add_row(given.id or "?", Text("error", "red"), given.error)
        else:
            table.add_row(*row(given))
    return table
