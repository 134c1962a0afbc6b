"""``topogate simulate generate``: jobs for a cluster as a trace."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.output import Failure, stderr
from cli.simulate import options as given
from cli.simulate.trace import write
from simulator.generate import MIXES, JobMix, generate


def command(
    count: given.Count = 2000,
    seed: given.Seed = 1,
    span: given.Span = "30d",
    load: given.Load = 0.85,
    mix: given.Mix = JobMix.TRAINING,
    queues: given.Queues = 1,
    blocks: given.Blocks = 4,
    racks: given.Racks = 4,
    hosts: given.Hosts = 8,
    gpus: given.Gpus = 8,
    cpu: given.Cpu = "96",
    memory: given.Memory = "768Gi",
    machine: given.Machine = "",
    out: Annotated[str, typer.Option("-o", "--out", metavar="FILE", help="Where to; - is stdout.")] = "-",
) -> None:
    """Write the jobs of a month or so as a trace (CSV), to look at, change, and simulate.

    Sizes, durations, arrivals, priorities and wishes follow what clusters for machine learning see: docs/simulate.md.
    Describe the cluster that they are for, because their durations are scaled to the load that they make there.
    """
    made = given.Made(blocks, racks, hosts, gpus, cpu, memory, machine, "")
    found = generate(
        made.site(),
        count,
        seed,
        span=given.time_of("--span", span),
        load=load,
        queues=given.teams(queues),
        mix=MIXES[mix],
    )
    if out == "-":
        write(found, sys.stdout)
        return
    try:
        with Path(out).open("w", newline="") as stream:
            write(found, stream)
    except OSError as error:
        raise Failure(f"cannot write {out}: {error.strerror}") from error
    stderr().print(f"{len(found)} jobs in {out}", highlight=False)
