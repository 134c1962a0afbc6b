"""What the commands under ``topogate whatif`` share: output formats, lines as they come, and progress."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TypeVar

import msgspec
from rich.table import Table
from rich.text import Text

from cli.output import OutputFormat, emit, stderr
from clock import SYSTEM, Clock

_QUIET_SECONDS = 2.0  # what lasts longer shows its progress
One = TypeVar("One")
Cell = str | Text


class LinesFormat(StrEnum):
    """What ``-o`` accepts here: the answers are lines, so that they can be read while they come."""

    JSONL = "jsonl"
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class ErrorAnswer(msgspec.Struct, frozen=True):
    """In place of the answer to a line that is no case; ``id`` is null where it could not be read."""

    id: str | None
    error: str


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
        return _lines(answers)
    given = list(answers)
    errors = [one for one in given if isinstance(one, ErrorAnswer)]
    if output is LinesFormat.TABLE and compared:
        for error in errors:
            stderr().print(error.error, style="red")
    else:
        emit(given, OutputFormat(output), table=_table(headings, given, row))
    return len(errors)


def _lines(answers: Iterable[object]) -> int:
    failed = 0
    for given in answers:
        failed += isinstance(given, ErrorAnswer)
        sys.stdout.write(msgspec.json.encode(given).decode() + "\n")
    return failed


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
