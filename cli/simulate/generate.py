"""``topogate simulate generate``: jobs for a cluster as a trace."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from cli.option_groups import with_groups
from cli.output import Failure, stderr
from cli.simulate.options import Generation, Made, Queues, Servers, teams
from cli.simulate.trace import write


@with_groups
def command(
    *,
    count: Annotated[int, typer.Option("--jobs", min=1, max=1_000_000, help="How many jobs to generate.")] = 2000,
    generation: Generation,
    queues: Queues = 1,
    servers: Servers,
    out: Annotated[str, typer.Option("-o", "--out", metavar="FILE", help="Where to; - is stdout.")] = "-",
) -> None:
    """Write the jobs of a month or so as a trace (CSV), to look at, change, and simulate.

    Sizes, durations, arrivals, priorities and wishes follow what clusters for machine learning see: docs/simulate.md.
    Describe the cluster that they are for, because their durations are scaled to the load that they make there.
    """
    found = generation.jobs(Made(**msgspec.structs.asdict(servers)).site(), count, teams(queues))
    if out == "-":
        write(found, sys.stdout)
        return
    try:
        with Path(out).open("w", newline="") as stream:
            write(found, stream)
    except OSError as error:
        raise Failure(f"cannot write {out}: {error.strerror}") from error
    stderr().print(f"{len(found)} jobs in {out}", highlight=False)
