"""The report for a person: what is as it was in one line an object, and the rest field by field."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from cli.migrate.rows import MigrationReport, Outcome, Row
from cli.output import counted, plain_table

_STYLES: dict[Outcome, str] = {"taken": "green", "changed": "yellow", "refused": "bold red", "left": "dim"}
_ORDER: tuple[Outcome, ...] = ("taken", "changed", "refused", "left")


def render_report(report: MigrationReport) -> RenderableType:
    """Objects with what was changed and refused, then what to do instead, then counts, then the settings."""
    table = plain_table("", "OBJECT", "~WHAT BECOMES OF IT")
    for row in shown_rows(report.rows):
        title = f"  {row.field}" if row.field else row.title
        table.add_row(Text(row.outcome, style=_STYLES[row.outcome]), Text(title), say_row(row))
    lines: list[RenderableType] = [table, Text("")]
    lines.append(Text(count_objects(report)))
    if report.settings:
        lines.append(Text("settings for ConfigMap topogate-config:"))
        lines.extend(Text(f"  {name}: {value}") for name, value in report.settings.items())
    return Group(*lines)


def say_row(row: Row) -> Text:
    """What became of it, and in a second line what to do instead."""
    plain = "as it is" if row.outcome == "taken" else "see below" if not row.field else row.ours
    ours = f"{row.ours}: " if row.field and row.why and row.ours else ""
    text = Text(f"{ours}{row.why or plain}")
    if row.outcome == "refused" and not row.field and ":" in row.where:
        text.append(f" ({row.where})", style="dim")
    if row.instead:
        text.append(f"\n-> {row.instead}", style="bold")
    return text


def shown_rows(rows: list[Row]) -> Iterator[Row]:
    """Each object, and its fields that were changed or refused, or have a remark; none that says it again."""
    whole: Row | None = None
    said: set[tuple[str, str]] = set()
    for row in rows:
        if not row.field:
            whole, said = row, {(row.why, row.instead)}
            yield row
        elif row.outcome in {"changed", "refused"} or (row.outcome == "taken" and row.why):
            # An object that is refused for one field says so itself.
            repeated = whole is not None and whole.outcome == "refused" and whole.why.endswith(row.why)
            if not repeated and (row.why, row.instead) not in said:
                said.add((row.why, row.instead))
                yield row


def count_objects(report: MigrationReport) -> str:
    """``71 objects: 40 taken, 20 changed, 9 refused, 2 left; 12 fields refused in the others``."""
    objects = Counter(row.outcome for row in report.rows if not row.field)
    text = f"{counted(objects.total(), 'object')}: " + ", ".join(f"{objects[one]} {one}" for one in _ORDER)
    refused = {(row.title, row.where) for row in report.rows if not row.field and row.outcome == "refused"}
    fields = [row for row in report.rows if row.field and row.outcome == "refused"]
    others = sum((row.title, row.where) not in refused for row in fields)
    return f"{text}; {counted(others, 'field')} refused in the others" if others else text
