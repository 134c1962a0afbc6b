"""Options that the commands under ``topogate simulate`` share, and the cluster that they describe."""

from collections import Counter
from typing import Annotated, Final

import msgspec
import typer

from cli.output import Failure
from cli.simulate.trace import GPU, seconds
from engine import quantity
from engine.cluster.levels import path_of
from engine.model import HOSTNAME_LABEL, Amounts
from localcluster.kubelets.specs import EXAMPLE, parse_kubelet, parse_machine
from localcluster.nodes import BLOCK_LABEL, RACK_LABEL, Fleet
from simulator.generate import JobMix, JobSite
from simulator.model import SimulatedCluster

UNITS: Final = 8  # parts that a server without GPUs is shared in
SPARE: Final = 8  # one part in so many of a node's CPU and memory is left to what else runs there
MADE: Final = "A generated cluster"

Blocks = Annotated[int, typer.Option(min=1, help="Blocks.", rich_help_panel=MADE)]
Racks = Annotated[int, typer.Option(min=1, help="Racks in each block.", rich_help_panel=MADE)]
Hosts = Annotated[int, typer.Option(min=1, help="Servers in each rack.", rich_help_panel=MADE)]
Gpus = Annotated[int, typer.Option(min=0, help="GPUs (nvidia.com/gpu) of each server.", rich_help_panel=MADE)]
Cpu = Annotated[str, typer.Option(help="CPUs of each server.", rich_help_panel=MADE)]
Memory = Annotated[str, typer.Option(help="Memory of each server.", rich_help_panel=MADE)]
Machine = Annotated[
    str,
    typer.Option(
        metavar="MACHINE",
        help=f"Give each server an inside, such as '{EXAMPLE}'; it decides CPUs, memory and GPUs, and its kubelet"
        " refuses pods as a real one would.",
        rich_help_panel=MADE,
    ),
]
Kubelet = Annotated[
    str,
    typer.Option(
        metavar="KUBELET",
        help="How that kubelet is set, such as 'single-numa-node, pod'. Default: restricted, container.",
        rich_help_panel=MADE,
    ),
]
Count = Annotated[int, typer.Option("--jobs", min=1, max=1_000_000, help="How many jobs to generate.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same jobs and the same results.")]
Span = Annotated[str, typer.Option(metavar="TIME", help="Within which time generated jobs arrive: 12h, 30d.")]
Load = Annotated[
    float, typer.Option(min=0.01, max=10, help="Work of the generated jobs, in relation to what the cluster can do.")
]
Mix = Annotated[
    JobMix, typer.Option(help="What jobs are generated: docs/simulate.md tells the sizes and durations of each mix.")
]
Queues = Annotated[
    int, typer.Option(min=1, max=1000, help="Share the cluster among so many queues of one cohort (team-1, ...).")
]


class Made(msgspec.Struct, frozen=True):
    """A generated cluster, as the options say it. Failure where they make no sense."""

    blocks: int
    racks: int
    hosts: int
    gpus: int
    cpu: str
    memory: str
    machine: str
    kubelet: str

    def fleet(self) -> Fleet:
        """Its nodes."""
        if self.kubelet and not self.machine:
            raise Failure(f"--kubelet {self.kubelet!r}: only machines have a kubelet; give --machine too")
        for option, parse, text in (
            ("--machine", parse_machine, self.machine),
            ("--kubelet", parse_kubelet, self.kubelet),
        ):
            try:
                if text:
                    parse(text)
            except ValueError as error:
                raise Failure(f"{option}: {error}") from None
        for option, resource, text in (("--cpu", "cpu", self.cpu), ("--memory", "memory", self.memory)):
            try:
                quantity.parse(resource, text)
            except ValueError as error:
                raise Failure(f"{option}: {error}") from None
        return Fleet(
            blocks=self.blocks,
            racks=self.racks,
            hosts=self.hosts,
            gpus=self.gpus,
            cpu=self.cpu,
            memory=self.memory,
            machine=self.machine,
            kubelet=self.kubelet,
        )

    def site(self) -> JobSite:
        """What jobs are generated for: a unit is a GPU with its part of CPUs and memory, some of which is spared."""
        fleet = self.fleet()
        status = {k: quantity.parse(k, v) for k, v in next(fleet.objects())["status"]["allocatable"].items()}
        levels = ((RACK_LABEL, self.hosts), (BLOCK_LABEL, self.racks * self.hosts))
        units = status.get(GPU, 0) or UNITS
        return JobSite(unit=_unit(status, units), units=units, levels=levels, nodes=len(fleet))


def site_of(cluster: SimulatedCluster) -> JobSite:
    """What jobs are generated for on a recorded cluster: its most frequent kind of node, its levels below the widest.

    Raises:
        Failure: no node has what jobs need.
    """
    kinds = Counter(tuple(sorted(node.allocatable.items())) for node in cluster.nodes)
    # Nodes with GPUs first, however many others there are: jobs are generated for them. Then the most frequent.
    most = max(kinds.items(), key=lambda item: (dict(item[0]).get(GPU, 0) > 0, item[1], item[0]))[0]
    have = dict(most)
    units = have.get(GPU, 0) or UNITS
    nodes = [node for node in cluster.nodes if node.allocatable.get(GPU, 0) or not have.get(GPU, 0)]
    # The flavor with most of these nodes tells the sizes of domains.
    flavor = max(cluster.flavors, key=lambda one: sum(path_of(one, node) is not None for node in nodes))
    paths = [path for node in nodes if (path := path_of(flavor, node)) is not None]
    levels = []
    for rank, level in reversed(list(enumerate(flavor.levels))):
        size = round(len(paths) / max(len({path[: rank + 1] for path in paths}), 1))
        if level != HOSTNAME_LABEL and size > 1:
            levels.append((level, size))
    return JobSite(unit=_unit(have, units), units=units, levels=tuple(levels), nodes=len(nodes))


def _unit(allocatable: Amounts, parts: int) -> Amounts:
    # Jobs that ask for all of a node's CPU would never fit beside a DaemonSet.
    spared = {name: allocatable.get(name, 0) * (SPARE - 1) // SPARE for name in ("cpu", "memory")}
    # Whole CPUs and GiB: pods with whole CPUs are the ones that a kubelet pins.
    cpu, memory = spared["cpu"] // parts // 1000 * 1000, (spared["memory"] // parts >> 30) << 30
    if not cpu or not memory:
        raise Failure(f"a server is too small to be shared by {parts} jobs: expected at least {parts} CPUs and GiB")
    return {"cpu": cpu, "memory": memory} | ({GPU: 1} if allocatable.get(GPU) else {})


def time_of(option: str, text: str) -> float:
    """Seconds of an option; Failure where it is no time."""
    try:
        return seconds(text)
    except ValueError as error:
        raise Failure(f"{option}: {error}") from None


def teams(count: int) -> list[str]:
    """The names of the queues that share a cluster."""
    return [f"team-{number}" for number in range(1, count + 1)] if count > 1 else []
