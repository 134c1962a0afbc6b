"""Options that the commands under ``topogate simulate`` share, and the cluster that they describe."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import typer

from cli.machine_options import check_machine
from cli.option_groups import OptionGroup
from cli.output import Failure
from cli.simulate.trace import GPU, seconds
from engine import quantity
from engine.cluster.levels import path_of
from engine.model import HOSTNAME_LABEL, Amounts
from localcluster.kubelets.specs import EXAMPLE
from localcluster.nodes import BLOCK_LABEL, RACK_LABEL, Fleet
from simulator.generate import MIXES, JobMix, JobSite, generate
from simulator.model import SimulatedCluster, SimulatedJob

UNITS: Final = 8  # parts that a server without GPUs is shared in
SPARE: Final = 8  # one part in so many of a node's CPU and memory is left to what else runs there

Queues = Annotated[
    int, typer.Option(min=1, max=1000, help="Share the cluster among so many queues of one cohort (team-1, ...).")
]


class Generation(OptionGroup, frozen=True):
    """Which jobs are generated."""

    seed: Annotated[int, typer.Option(help="The same seed gives the same jobs and the same results.")] = 1
    span: Annotated[str, typer.Option(metavar="TIME", help="Within which time generated jobs arrive: 12h, 30d.")] = (
        "30d"
    )
    load: Annotated[
        float,
        typer.Option(min=0.01, max=10, help="Work of the generated jobs, in relation to what the cluster can do."),
    ] = 0.85
    mix: Annotated[
        JobMix,
        typer.Option(help="What jobs are generated: docs/simulate.md tells the sizes and durations of each mix."),
    ] = JobMix.TRAINING

    def jobs(self, site: JobSite, count: int, queues: Sequence[str]) -> tuple[SimulatedJob, ...]:
        """So many. Failure where the span is no time."""
        span = time_of("--span", self.span)
        return generate(site, count, self.seed, span=span, load=self.load, queues=queues, mix=MIXES[self.mix])


class Servers(OptionGroup, frozen=True):
    """A cluster that is generated, as the options say it."""

    blocks: Annotated[int, typer.Option(min=1, help="Blocks.")] = 4
    racks: Annotated[int, typer.Option(min=1, help="Racks in each block.")] = 4
    hosts: Annotated[int, typer.Option(min=1, help="Servers in each rack.")] = 8
    gpus: Annotated[int, typer.Option(min=0, help="GPUs (nvidia.com/gpu) of each server.")] = 8
    cpu: Annotated[str, typer.Option(help="CPUs of each server.")] = "96"
    memory: Annotated[str, typer.Option(help="Memory of each server.")] = "768Gi"
    machine: Annotated[
        str,
        typer.Option(
            metavar="MACHINE",
            help=f"Give each server an inside, such as '{EXAMPLE}'; it decides CPUs, memory and GPUs, and its kubelet"
            " refuses pods as a real one would.",
        ),
    ] = ""


class Made(Servers, frozen=True):
    """The same with the settings of its kubelets. Failure where they make no sense."""

    kubelet: Annotated[
        str,
        typer.Option(
            metavar="KUBELET",
            help="How that kubelet is set, such as 'single-numa-node, pod'. Default: restricted, container.",
        ),
    ] = ""

    def fleet(self) -> Fleet:
        """Its nodes."""
        check_machine(self.machine, self.kubelet)
        for option, resource, text in (("--cpu", "cpu", self.cpu), ("--memory", "memory", self.memory)):
            try:
                quantity.parse(resource, text)
            except ValueError as error:
                raise Failure(f"{option}: {error}") from None
        return Fleet(**msgspec.structs.asdict(self))

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
