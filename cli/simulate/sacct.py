"""Jobs that Slurm has run, as ``sacct -P`` prints them: one job a line, cells between ``|``, recognised by the header.

docs/simulate.md has the columns. Times, job numbers, states and TRES are those of Slurm 22.05 to 24.11, sacct(1).
Whatever is wrong is told with file, line and column, and what was expected there; what is left out is counted.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from cli.output import Failure
from cli.simulate.trace import GPU, MOST
from engine.model import HOSTNAME_LABEL, Amounts, PodSet, Policy, TopologyRequest
from simulator.model import NAMESPACE, QUEUE, SimulatedJob, guaranteed

COMMAND: Final = (
    "SLURM_TIME_FORMAT=%FT%T%z sacct -P -X -D -a -S 2026-03-01 -E 2026-04-01"
    " -o JobID,Account,Submit,Eligible,ElapsedRaw,State,ReqTRES,AllocTRES"
)
NEEDED: Final = (("JobID",), ("AllocTRES",), ("Submit", "Eligible"), ("ElapsedRaw", "Elapsed"))
STILL: Final = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "RESIZING"})  # not at its end when sacct looked
COUNTED: Final = frozenset({"cpu", "mem", "node", "gres/gpu"})
UNTOLD: Final = frozenset({"billing", "energy"})  # weights and measurements: nobody misses them in a simulation
NEVER: Final = frozenset({"", "Unknown", "None"})
_NUMBER: Final = re.compile(r"(?P<id>\d{1,18})(?:_\d{1,18}|_\[.*|(?P<component>\+\d{1,9}))?(?P<step>\..+)?")
_ELAPSED: Final = re.compile(r"(?:(?:(\d{1,9})-)?(\d{1,9}):)?(\d{1,9}):(\d{1,9})(?:\.\d+)?")
_MEMORY: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([KMGTP]?)")
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_COUNT: Final = re.compile(r"\d{1,15}")
_SECONDS: Final = re.compile(r"\d{1,15}")


def is_sacct(line: str) -> bool:
    """Whether a file that begins with this line has what ``sacct -P`` prints."""
    return "|" in line and "jobid" in line.lower().strip().split("|")


def is_unparsable(line: str) -> bool:
    """Whether a file that begins with this line has what sacct prints to people: columns of blanks."""
    return "jobid" in line.lower().split()


class Trace(msgspec.Struct, frozen=True):
    """The jobs by arrival, from 0 on, and what a person should know of them, a sentence each."""

    jobs: tuple[SimulatedJob, ...]
    notes: list[str]


class _Run(msgspec.Struct):
    """A job, or one component of a heterogeneous job, that had nodes."""

    line: int
    name: str
    component: bool
    arrival: float
    zoned: bool
    duration: float
    account: str
    tres: Amounts
    state: str


class _Reader(msgspec.Struct):
    file: str
    line: int = 1
    at: dict[str, int] = msgspec.field(default_factory=dict)  # column by its name in small letters
    names: list[str] = msgspec.field(default_factory=list)  # as they stand in the file
    ended: bool = False  # lines end with a | after the last cell, as sacct -p prints them
    steps: int = 0
    repeated: int = 0
    unstarted: Counter[str] = msgspec.field(default_factory=Counter)
    untold: set[str] = msgspec.field(default_factory=set)  # TRES that are passed over

    def fail(self, column: str, message: str) -> Failure:
        """What is wrong in one cell."""
        place = f", column {column!r}" if column else ""
        return Failure(f"{self.file}: line {self.line}{place}: {message}")

    def head(self, header: str) -> None:
        """Note which column is what."""
        if not is_sacct(header):
            raise self.fail("", f"expected cells between |, as sacct -P prints them: {COMMAND}")
        # sacct -p ends each line with a |, -P does not; a last empty cell looks the same.
        self.ended = header.rstrip().endswith("|")
        for index, name in enumerate(self.cells(header)):
            self.names.append(name)
            if name.lower() in self.at:
                raise self.fail(name, "this column is there twice")
            self.at[name.lower()] = index
        lacking = [" or ".join(names) for names in NEEDED if not any(name.lower() in self.at for name in names)]
        if lacking:
            raise self.fail("", f"the header lacks {', '.join(lacking)}; expected what this prints: {COMMAND}")

    def cells(self, line: str) -> list[str]:
        """The cells of a line."""
        line = line.rstrip()
        return [cell.strip() for cell in (line.removesuffix("|") if self.ended else line).split("|")]

    def cell(self, row: Sequence[str], column: str) -> str:
        """The text of a cell; "" where the column is not there."""
        index = self.at.get(column.lower())
        return row[index] if index is not None else ""

    def rows(self, lines: Iterable[tuple[int, str]], header: str) -> Iterator[list[str]]:
        """The cells of every line but empty ones; headers between them are those of files put together."""
        for number, line in lines:
            self.line = number
            if not line.strip() or line.strip() == header.strip():
                continue
            row = self.cells(line)
            if len(row) != len(self.names):
                raise self.fail(
                    "",
                    f"{len(row)} cells, but the header has {len(self.names)}; leave out columns of free text such as"
                    " JobName, Comment or SubmitLine, which may hold a | or a line break",
                )
            yield row

    def read_runs(self, lines: Iterable[tuple[int, str]], header: str) -> Iterable[_Run]:
        """Every time that a job had nodes. A job that was queued again has a line, and a time of submission, for each.

        The same line twice is that of a job in two files that were put together; the later one knows more.
        """
        found: dict[tuple[str, str], _Run] = {}
        for row in self.rows(lines, header):
            number = self.cell(row, "JobID")
            parts = _NUMBER.fullmatch(number)
            if parts is None:
                raise self.fail("JobID", f"{number!r}: expected the number of a job, such as 4711, 4711_3 or 4711+0")
            # Steps lie within their job's allocation: they would count twice.
            if parts["step"] is not None:
                self.steps += 1
                continue
            state = self.cell(row, "State").partition(" ")[0].rstrip("+")  # CANCELLED by 1000
            if not self.cell(row, "AllocTRES"):  # the state is no guide: cancelled jobs may have run
                self.unstarted[state] += 1
                continue
            arrival, zoned = self.arrival(row)
            run = _Run(
                line=self.line,
                name=number,
                component=parts["component"] is not None,
                arrival=arrival,
                zoned=zoned,
                duration=self.elapsed(row),
                account=self.cell(row, "Account"),
                tres=self.tres(row),
                state=state,
            )
            # Slurm keeps the number of a job that is queued again, and gives it a new time of submission.
            key = number, self.cell(row, "Submit") or self.cell(row, "Eligible")
            self.repeated += key in found
            # The later line wins: in two months' files put together, the second has the end of the job.
            found[key] = run
        return found.values()

    def arrival(self, row: Sequence[str]) -> tuple[float, bool]:
        """When it could first have started, in seconds of a calendar, and whether a zone is told.

        That is when dependencies, ``--begin`` and the throttle of its array let it go.
        """
        column = next((name for name in ("Eligible", "Submit") if self.cell(row, name) not in NEVER), None)
        if column is None:
            column = "Submit" if "submit" in self.at else "Eligible"
        text = self.cell(row, column)
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            expected = "expected a date and time such as 2026-03-01T08:00:00 or, with SLURM_TIME_FORMAT=%FT%T%z,"
            raise self.fail(column, f"{text!r}: {expected} 2026-03-01T08:00:00+0100") from None
        zoned = found.tzinfo is not None
        return (found if zoned else found.replace(tzinfo=UTC)).timestamp(), zoned

    def elapsed(self, row: Sequence[str]) -> float:
        """For how many seconds it had its nodes: whole ones, so that 0 is less than one."""
        if "elapsedraw" in self.at:
            text = self.cell(row, "ElapsedRaw")
            if not _SECONDS.fullmatch(text):
                raise self.fail("ElapsedRaw", f"{text!r}: expected seconds, such as 93784")
            # A job of no length would end in the moment it starts, and hold nothing.
            return max(float(text), 1.0)
        text = self.cell(row, "Elapsed")
        parts = _ELAPSED.fullmatch(text)
        if parts is None:
            raise self.fail("Elapsed", f"{text!r}: expected [days-]hours:minutes:seconds, such as 1-02:03:04")
        days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
        return max(float(((days * 24 + hours) * 60 + minutes) * 60 + seconds), 1.0)

    def tres(self, row: Sequence[str]) -> Amounts:
        """What it had on all its nodes together, and ``node``.

        A GPU stands there without its type, with it, or with both, as AccountingStorageTRES says. Memory is there where
        nobody asked for any: ReqTRES tells.
        """
        found: Amounts = {}
        typed = 0
        for name, text in self._read_pairs("AllocTRES", self.cell(row, "AllocTRES")):
            if name.startswith("gres/gpu:"):
                # By type and in total, as a site may account for both: the total wins below.
                typed += self._read_count("AllocTRES", name, text)
            elif name == "mem":
                parts = _MEMORY.fullmatch(text)
                amount = round(float(parts[1]) * _UNITS[parts[2]]) if parts is not None else -1
                if not 0 <= amount <= MOST:
                    raise self.fail("AllocTRES", f"mem={text}: expected an amount of memory, such as mem=62.50G")
                found["mem"] = amount
            elif name in COUNTED:
                found[name] = self._read_count("AllocTRES", name, text)
            elif name not in UNTOLD:
                self.untold.add(name)
        # After all parts: their order is the site's.
        found.setdefault("gres/gpu", typed)
        if "reqtres" in self.at and "mem" not in dict(self._read_pairs("ReqTRES", self.cell(row, "ReqTRES"))):
            # Slurm's default may be all of a node's memory; simulated as a request it would fill the node.
            found.pop("mem", None)
        if not found.get("node"):
            raise self.fail("AllocTRES", "it has no nodes: expected TRES such as cpu=64,gres/gpu=8,node=2")
        if not found.get("cpu") and not found["gres/gpu"]:
            raise self.fail("AllocTRES", "it has neither CPUs nor GPUs: expected TRES such as cpu=64,node=2")
        return found

    def _read_pairs(self, column: str, text: str) -> Iterator[tuple[str, str]]:
        for part in filter(None, text.split(",")):
            name, equals, value = part.partition("=")
            if not (name and equals):
                raise self.fail(column, f"{part!r}: expected TRES such as cpu=64,gres/gpu=8,mem=500G,node=2")
            yield name, value

    def _read_count(self, column: str, name: str, text: str) -> int:
        if not _COUNT.fullmatch(text):
            raise self.fail(column, f"{name}={text}: expected a whole number, as in cpu=64,gres/gpu=8,node=2")
        return int(text)

    def check_zones(self, runs: Sequence[_Run]) -> None:
        """Times with a zone and without one cannot be compared. Failure where both are there."""
        odd = next((run for run in runs if run.zoned is not runs[0].zoned), None)
        if odd is not None:
            self.line = odd.line
            raise self.fail("", "times with a zone and without one are mixed: expected one of them in all lines")

    def notes(self, runs: Sequence[_Run], jobs: int) -> Iterator[str]:
        """What a person should know of what was read."""
        yield f"{jobs} jobs; {self.left_out()}"
        still = sum(run.state in STILL for run in runs)
        if still:
            yield f"{still} still ran when sacct looked: each is simulated for as long as it had run"
        if self.untold:
            yield f"TRES that are not simulated: {', '.join(sorted(self.untold))}"
        if not all(run.zoned for run in runs):
            yield (
                "times have no zone, so an hour is lost or gained where the clocks change;"
                " SLURM_TIME_FORMAT=%FT%T%z makes sacct print it"
            )

    def left_out(self) -> str:
        """How many lines are no job, and why."""
        states = ", ".join(f"{count} {state or 'of unknown state'}" for state, count in sorted(self.unstarted.items()))
        counts = (
            (self.unstarted.total(), f"never started ({states})"),
            (self.steps, "steps"),
            (self.repeated, "in the file before"),
        )
        told = ", ".join(f"{count} {what}" for count, what in counts if count)
        return f"lines left out: {told or 'none'}"


def read(text: str, file: str, levels: Sequence[str]) -> Trace:
    """The jobs that ran. ``levels``: those of the cluster's flavors, widest first.

    A job of several nodes prefers the level above the nodes, as Slurm's topology plugins do for every job.

    Raises:
        Failure: a line is no job; its message names file, line and column.
    """
    lines = text.split("\n")  # not by what else ends a line for Python: names may hold it
    reader = _Reader(file)
    reader.head(lines[0])
    runs = list(reader.read_runs(enumerate(lines[1:], 2), lines[0]))
    if not runs:
        raise Failure(f"{file}: no job in it ever ran; {reader.left_out()}")
    reader.check_zones(runs)
    above = next((level for level in reversed(levels) if level != HOSTNAME_LABEL), "")
    # The runs that are one job: the components of a heterogeneous one start together. By the name of the job.
    seen: Counter[str] = Counter()
    groups: dict[str, list[_Run]] = {}
    for run in runs:
        seen[run.name] += 1
        # By how often the component came, so that runs of all components are matched one to one.
        again = f"-run-{seen[run.name]}" if seen[run.name] > 1 else ""
        name = run.name.partition("+")[0] if run.component else run.name
        groups.setdefault(f"{name}{again}", []).append(run)
    jobs = [_job(name, parts, above) for name, parts in groups.items()]
    first = min(job.arrival for job in jobs)
    placed = [msgspec.structs.replace(job, arrival=job.arrival - first, row=row) for row, job in enumerate(jobs)]
    placed.sort(key=lambda job: (job.arrival, job.row))
    return Trace(tuple(placed), list(reader.notes(runs, len(jobs))))


def _job(name: str, parts: Sequence[_Run], above: str) -> SimulatedJob:
    """A job of its components; it lasts as long as the longest."""
    single = len(parts) == 1
    pod_sets = [
        pods
        for number, part in enumerate(parts)
        for pods in _pod_sets("main" if single else f"component-{number}", part.tres, above)
    ]
    return SimulatedJob(
        name=name,
        arrival=min(part.arrival for part in parts),
        duration=max(part.duration for part in parts),
        pod_sets=tuple(pod_sets),
        namespace=NAMESPACE,
        queue=parts[0].account or QUEUE,
    )


def _pod_sets(name: str, tres: Amounts, above: str) -> Iterator[PodSet]:
    """A pod a node. Slurm does not tell how GPUs are shared between nodes: as evenly as they can be."""
    nodes = tres["node"]
    most, over = divmod(tres["gres/gpu"], nodes)
    topology = TopologyRequest(policy=Policy.UNCONSTRAINED)
    if nodes > 1 and above:
        topology = TopologyRequest(policy=Policy.PREFERRED, level=above)
    common = {"cpu": tres.get("cpu", 0) * 1000 // nodes, "memory": tres.get("mem", 0) // nodes}
    # Two pod sets where the GPUs do not divide evenly; pods of one set are alike.
    sizes = [(over, most + 1, name), (nodes - over, most, f"{name}-rest" if over else name)]
    for count, gpus, called in sizes:
        if not count:
            continue
        requests = {resource: amount for resource, amount in {**common, GPU: gpus}.items() if amount}
        yield PodSet(
            name=called,
            count=count,
            requests=requests,
            topology=topology,
            namespace=NAMESPACE,
            group=name if over else "",
            shape=guaranteed(requests),
        )
