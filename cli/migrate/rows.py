"""What a migration has to say: one row for each object of Kueue, and one for each of its fields."""

from typing import Any, Literal, NamedTuple

import msgspec

Json = dict[str, Any]
Outcome = Literal["taken", "changed", "refused", "left"]


class FieldVerdict(NamedTuple):
    """What becomes of one field.

    ``grave``: without the field more would run, or elsewhere, so its whole object is refused. ``ours``: where it is
    found afterwards, "" where it keeps its place. A refusal says why, and what to do instead.
    """

    outcome: Outcome
    why: str = ""
    instead: str = ""
    ours: str = ""
    grave: bool = False


TAKEN = FieldVerdict("taken")


def refused(why: str, instead: str, *, grave: bool = False) -> FieldVerdict:
    """The field has no counterpart."""
    return FieldVerdict("refused", why, instead, grave=grave)


def changed(why: str, ours: str = "") -> FieldVerdict:
    """The field says the same in another way."""
    return FieldVerdict("changed", why, ours=ours)


def left(why: str) -> FieldVerdict:
    """The field says nothing about queues, quota or places."""
    return FieldVerdict("left", why)


class Row(msgspec.Struct, frozen=True):
    """One line of the report. ``field``: "" for the object itself; ``where``: file and line, or the cluster."""

    kind: str
    name: str
    namespace: str
    field: str
    outcome: Outcome
    ours: str = ""
    why: str = ""
    instead: str = ""
    where: str = ""

    @property
    def title(self) -> str:
        """``LocalQueue team/a``."""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}".rstrip()


class MigrationReport(msgspec.Struct, frozen=True):
    """Objects of ours in the order in which they are applied, settings to be merged, and a row for all that was read.

    ``of_workloads``: how many of the rows, at the end, are about jobs and pods, which are not converted.
    """

    objects: list[Json]
    settings: Json
    rows: list[Row]
    of_workloads: int = 0

    def list_refused(self) -> list[Row]:
        """The objects of Kueue that are refused as a whole."""
        queues = self.rows[: len(self.rows) - self.of_workloads]
        return [row for row in queues if row.outcome == "refused" and not row.field]

    def has_refusals(self) -> bool:
        """Whether anything is refused: an object, a field, or a key on a job."""
        return any(row.outcome == "refused" for row in self.rows)
