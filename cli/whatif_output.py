"""What the commands under ``topogate whatif`` share: output formats, lines as they come, and progress."""

import sys
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TypeVar

import msgspec

from cli.output import stderr

_QUIET_SECONDS = 2.0  # what lasts longer shows its progress
One = TypeVar("One")


class Format(StrEnum):
    """What ``-o`` accepts here: the answers are lines, so that they can be read while they come."""

    JSONL = "jsonl"
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class ErrorAnswer(msgspec.Struct, frozen=True):
    """In place of the answer to a line that is no case; ``id`` is null where it could not be read."""

    id: str | None
    error: str


def with_progress(cases: Iterable[One], output: Format, done_word: str) -> Iterator[One]:
    """Say on a terminal how many cases are done once it takes long; lines that are seen to come need none."""
    console = stderr()
    if not console.is_terminal or (output is Format.JSONL and sys.stdout.isatty()):
        yield from cases
        return
    started = time.monotonic()
    with console.status("") as status:
        status.stop()
        for done, case in enumerate(cases):
            if time.monotonic() - started > _QUIET_SECONDS:
                status.update(f"{done} cases {done_word}")
                status.start()
            yield case


def write_lines(answers: Iterable[msgspec.Struct]) -> int:
    """Write each answer as it comes; returns how many were errors."""
    failed = 0
    for given in answers:
        failed += isinstance(given, ErrorAnswer)
        sys.stdout.write(msgspec.json.encode(given).decode() + "\n")
    return failed
