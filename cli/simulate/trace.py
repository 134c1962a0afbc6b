"""Traces of jobs as CSV: one job a line, read strictly and written so that they read back the same.

docs/simulate.md has the columns. Whatever is wrong is told with file, line and column, and what was expected there.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, TextIO

import msgspec

from cli.output import Failure
from crds.levels import NO_NAMES, LevelNames
from engine import quantity
from engine.model import PODS, Amounts, PodSet, Policy, TopologyRequest
from simulator.model import NAMESPACE, QUEUE, SimulatedJob, guaranteed

GPU: Final = "nvidia.com/gpu"
# Up to here a float holds every whole number, as CSV and JSON readers have them.
MOST: Final = 1 << 53
COLUMNS: Final = ("name", "arrival", "duration", "pods", "requests", "priority", "topology", "namespace", "queue")
NEEDED: Final = ("arrival", "duration", "pods")
RESOURCES: Final = {"gpu": GPU, "gpus": GPU, "cpus": "cpu"}  # columns that mean a resource of another name
POLICIES: Final = {str(policy).lower(): policy for policy in Policy}
EXAMPLE: Final = "required=rack, preferred=block or unconstrained"
_UNITS: Final = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_SPAN: Final = re.compile(r"(?:\d+(?:\.\d+)?[wdhms])+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([wdhms])")


def is_trace(header: str) -> bool:
    """Whether a file that begins with this line is a trace: it may lack a column, which is an error later."""
    names = {cell.strip().strip('"').lower() for cell in header.split(",")}
    return len(names.intersection(NEEDED)) > 1


def seconds(text: str) -> float:
    """Seconds from ``90``, ``1h30m`` or ``2d``.

    Raises:
        ValueError: it is no time span.
    """
    text = text.strip()
    if _SPAN.fullmatch(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    try:
        found = float(text)
    except ValueError:
        raise ValueError(f"{text!r}: expected seconds, or a time such as 90s, 1h30m, 2d") from None
    # This also refuses nan and inf, which `float` takes.
    if not 0 <= found < MOST:
        raise ValueError(f"{text!r}: expected a time of 0 or more")
    return found


def level_named(text: str, levels: Sequence[str]) -> str:
    """The level that a trace means: its label key, or the end of it where that is clear (``rack``).

    Raises:
        ValueError: none or several are meant.
    """
    found = [level for level in levels if level == text or re.split(r"[/\-]", level)[-1] == text]
    # An exact key wins over the ends of others.
    if text in found or len(found) == 1:
        return text if text in found else found[0]
    listed = ", ".join(levels) or "none, no flavor has a topology"
    raise ValueError(f"{text!r} means {'several' if found else 'none'} of the levels: {listed}")


class _Reader(msgspec.Struct):
    file: str
    levels: Sequence[str]
    names: LevelNames = NO_NAMES
    at: dict[str, int] = msgspec.field(default_factory=dict)  # column by meaning
    resources: dict[str, int] = msgspec.field(default_factory=dict)  # column by resource
    line: int = 1

    def go_to(self, line: int) -> None:
        """What is read now ends in this line."""
        self.line = line

    def fail(self, column: str, message: str) -> Failure:
        """What is wrong in one cell."""
        place = f", column {column!r}" if column else ""
        return Failure(f"{self.file}: line {self.line}{place}: {message}")

    def head(self, header: Sequence[str]) -> list[str]:
        """Note which column is what; returns those that mean nothing here."""
        unknown: list[str] = []
        for index, name in enumerate(cell.strip() for cell in header):
            known = name.lower()
            resource = RESOURCES.get(known, name)
            if known in COLUMNS:
                place, key = self.at, known
            elif "/" in resource or resource in {"cpu", "memory", "ephemeral-storage"}:
                place, key = self.resources, resource
            else:
                unknown.append(name)
                continue
            if key in place:
                raise self.fail(name, "this column is there twice")
            place[key] = index
        lacking = [name for name in NEEDED if name not in self.at]
        if lacking:
            raise self.fail(
                "", f"the header lacks {', '.join(lacking)}; expected names of columns: {', '.join(COLUMNS)}"
            )
        if "requests" not in self.at and not self.resources:
            raise self.fail(
                "", f"the header names no resource: expected a column requests, or one such as cpu or {GPU}"
            )
        return unknown

    def cell(self, row: Sequence[str], column: str) -> str:
        """The text of a cell; "" where the column is not there."""
        index = self.at.get(column)
        return row[index].strip() if index is not None and index < len(row) else ""

    def read_whole_number(
        self, row: Sequence[str], column: str, *, least: int | None, default: int | None = None
    ) -> int:
        """A whole number."""
        text = self.cell(row, column)
        if not text and default is not None:
            return default
        try:
            found = int(text)
        except ValueError:
            found = None
        if found is None or (least is not None and found < least) or abs(found) > MOST:
            expected = "a whole number" + (f" of at least {least}" if least is not None else "")
            raise self.fail(column, f"{text!r}: expected {expected}")
        return found

    def time(self, row: Sequence[str], column: str) -> float:
        """Seconds."""
        try:
            return seconds(self.cell(row, column))
        except ValueError as error:
            raise self.fail(column, str(error)) from None

    def arrival(self, row: Sequence[str]) -> tuple[float, bool]:
        """Seconds, and whether they are those of a calendar."""
        text = self.cell(row, "arrival")
        if "-" in text and text[:1].isdigit():
            try:
                found = datetime.fromisoformat(text)
            except ValueError:
                raise self.fail("arrival", f"{text!r}: expected a date and time such as 2026-03-01T08:00:00Z") from None
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp(), True
        return self.time(row, "arrival"), False

    def requests(self, row: Sequence[str]) -> Amounts:
        """What one pod takes."""
        found: Amounts = {}
        for part in filter(None, (part.strip() for part in self.cell(row, "requests").split(";"))):
            name, equals, value = (each.strip() for each in part.partition("="))
            if not (name and equals and value):
                raise self.fail("requests", f"{part!r}: expected resource=quantity, as in cpu=8;memory=64Gi;{GPU}=8")
            self._put_amount(found, "requests", RESOURCES.get(name, name), value)
        for resource, index in self.resources.items():
            text = row[index].strip() if index < len(row) else ""
            if text:
                self._put_amount(found, resource, resource, text)
        if not any(found.values()):
            raise self.fail("requests" if "requests" in self.at else "", "the job asks for nothing: give it a request")
        return found

    def _put_amount(self, found: Amounts, column: str, resource: str, text: str) -> None:
        if resource in found:
            raise self.fail(column, f"{resource} is given twice")
        if resource == PODS:
            raise self.fail(column, f"leave {PODS} out, every pod takes one")
        try:
            amount = quantity.parse(resource, text)
        except ValueError as error:
            raise self.fail(column, str(error)) from None
        if not 0 <= amount <= MOST:
            raise self.fail(column, f"{resource}={text}: expected 0 to {MOST}")
        found[resource] = amount

    def topology(self, row: Sequence[str]) -> TopologyRequest:
        """What the job wishes; nothing means unconstrained."""
        text = self.cell(row, "topology")
        name, _, level = (each.strip() for each in re.sub(r"[: ]+", "=", text, count=1).partition("="))
        policy = POLICIES.get(name.lower() or "unconstrained")
        if policy is None or (policy is Policy.UNCONSTRAINED) == bool(level):
            raise self.fail("topology", f"{text!r}: expected {EXAMPLE}")
        if policy is Policy.UNCONSTRAINED:
            return TopologyRequest(policy=policy)
        if level == "auto" and policy is Policy.PREFERRED and self.levels:
            return TopologyRequest(policy=policy, level=self.levels[-1])
        try:
            return TopologyRequest(policy=policy, level=level_named(self.names.level(level), self.levels))
        except ValueError as error:
            raise self.fail("topology", str(error)) from None


def read(
    stream: Iterable[str], file: str, levels: Sequence[str], names: LevelNames = NO_NAMES
) -> tuple[tuple[SimulatedJob, ...], list[str]]:
    """(the jobs by arrival, columns that mean nothing here); the first arrives at 0 where arrivals are dates.

    ``levels``: those of the cluster's flavors, widest first; ``names``: what they call them.

    Raises:
        Failure: a line is no job; its message names file, line and column.
    """
    reader = _Reader(file, levels, names)
    # Strict: an unclosed quote would swallow the rest of the file as one cell.
    rows = csv.reader(stream, strict=True)
    try:
        header = next(rows, None)
        if header is None:
            raise Failure(f"{file}: line 1: expected a header with {', '.join(NEEDED)}, but the file is empty")
        unknown = reader.head(header)
        jobs = list(_jobs(reader, rows, len(header)))
    except csv.Error as error:
        raise Failure(f"{file}: line {rows.line_num}: {error}") from None
    if not jobs:
        raise Failure(f"{file}: there is no job in it, only a header")
    return tuple(sorted(jobs, key=lambda job: (job.arrival, job.row))), unknown


def _jobs(reader: _Reader, rows: "Iterator[list[str]]", width: int) -> Iterator[SimulatedJob]:
    made: list[SimulatedJob] = []
    names: dict[str, int] = {}
    dated: bool | None = None
    for row in rows:
        # By the reader's count: a quoted cell may span lines.
        reader.go_to(rows.line_num)  # type: ignore[attr-defined]
        if not any(cell.strip() for cell in row):
            continue
        if len(row) > width:
            raise reader.fail("", f"{len(row)} cells, but the header has {width}")
        arrival, is_date = reader.arrival(row)
        if dated is not None and dated is not is_date:
            raise reader.fail("arrival", "dates and seconds are mixed: expected one of them in all lines")
        dated = is_date
        duration = reader.time(row, "duration")
        if duration <= 0:
            raise reader.fail("duration", "expected more than 0")
        requests = reader.requests(row)
        namespace = reader.cell(row, "namespace") or NAMESPACE
        pod_set = PodSet(
            name="main",
            count=reader.read_whole_number(row, "pods", least=1),
            requests=requests,
            topology=reader.topology(row),
            namespace=namespace,
            shape=guaranteed(requests),
        )
        job = SimulatedJob(
            name=reader.cell(row, "name") or f"job-{len(made) + 1}",
            arrival=arrival,
            duration=duration,
            pod_sets=(pod_set,),
            priority=reader.read_whole_number(row, "priority", least=None, default=0),
            namespace=namespace,
            queue=reader.cell(row, "queue") or QUEUE,
        )
        if job.key in names:
            raise reader.fail("name", f"{job.key} is there already, in line {names[job.key]}")
        names[job.key] = reader.line
        made.append(job)
    # Seconds are kept as they are: a trace may begin with an idle hour on purpose.
    start = min((job.arrival for job in made), default=0.0) if dated else 0.0
    for at, job in enumerate(made):
        yield msgspec.structs.replace(job, arrival=job.arrival - start, row=at)


def write(jobs: Iterable[SimulatedJob], stream: TextIO) -> None:
    """Jobs of one pod set each as a trace."""
    lines = csv.writer(stream, lineterminator="\n")
    lines.writerow(COLUMNS)
    for job in jobs:
        (pods,) = job.pod_sets
        lines.writerow(
            (
                job.name,
                _format_number(job.arrival),
                _format_number(job.duration),
                pods.count,
                ";".join(
                    f"{resource}={quantity.format_quantity(resource, amount)}"
                    for resource, amount in pods.requests.items()
                ),
                job.priority,
                str(pods.topology.policy).lower() + (f"={pods.topology.level}" if pods.topology.level else ""),
                job.namespace,
                job.queue,
            )
        )


def _format_number(value: float) -> str:
    return f"{value:.10g}" if value != int(value) else str(int(value))
