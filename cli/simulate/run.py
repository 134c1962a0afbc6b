"""``topogate simulate run``: jobs on a cluster in simulated time, one policy beside the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from cli import browser
from cli.option_groups import OptionGroup, with_groups
from cli.output import Failure, Output, OutputFormat, emit, stderr
from cli.simulate import options as given
from cli.simulate import pictures
from cli.simulate.cluster import equipped, generated, recorded, servers
from cli.simulate.job_files import JobFormat, read_job_files
from cli.simulate.jobs import jobs_in
from cli.simulate.known import known
from cli.simulate.options import Generation, Made, Queues, time_of
from cli.simulate.output import table, write_jobs, write_series
from cli.simulate.policies import DEFAULT, EXAMPLE, policies
from cli.web import simulated
from cli.web.simulated import Recording
from clock import SYSTEM, Clock
from crds.constants import DEFAULT_DOMAIN, Keys
from simulator.model import NAMESPACE, SchedulingPolicy, SimulatedCluster, SimulatedJob, SimulatorOptions
from simulator.results import Result
from simulator.run import Simulation
from simulator.summary import summarise

QUIET_SECONDS: Final = 2.0  # what lasts longer shows its progress
COUNT: Final = 2000  # generated jobs
MOST_JOBS: Final = 1_000_000

Recorded = Annotated[
    list[str] | None,
    typer.Option(
        "-f",
        "--cluster",
        metavar="FILE",
        help="A recorded cluster: kubectl get nodes,pods,resourceflavors.topogate.dev,... -o yaml, or snapshot; repeat"
        " for more, - is stdin. Without it a cluster is generated.",
    ),
]
Jobs = Annotated[
    list[str] | None,
    typer.Option(
        "-j",
        "--jobs",
        metavar="FILE|N",
        help="A trace (CSV, or what sacct -P prints) or manifests; repeat for more, - is stdin. A number: so many"
        f" are generated (default {COUNT}).",
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option("-p", "--policy", help=f"What to compare; repeat for more. For example {EXAMPLE}."),
]
Duration = Annotated[str, typer.Option(metavar="TIME", help="How long jobs run whose manifest does not say.")]
Levels = Annotated[
    list[str] | None,
    typer.Option(
        "--level", metavar="KEY", help="Topology level of a recorded cluster without ResourceFlavors, widest first."
    ),
]
Empty = Annotated[bool, typer.Option("--empty", help="Leave out the pods of the recorded cluster.")]
Domain = Annotated[str, typer.Option(help="Domain of the annotations and labels in manifests.")]
Until = Annotated[str, typer.Option(metavar="TIME", help="Stop then; default: when all is done.")]


class World(OptionGroup, frozen=True):
    """What happens beside the queues and the engine."""

    slowdown: Annotated[
        float,
        typer.Option(
            min=1.0,
            max=100.0,
            help="How many times as long a job runs whose pods lie across domains of the level that it wishes.",
        ),
    ] = 1.0
    checkpoint: Annotated[
        str, typer.Option(metavar="TIME", help="How often jobs save their work; 0: an evicted job starts over.")
    ] = "0"
    grace: Annotated[str, typer.Option(metavar="TIME", help="Until the pods of a victim are gone.")] = "30s"
    apart: Annotated[
        str, typer.Option(metavar="TIME", help="Between the ends of a job's pods, one after the other.")
    ] = "0"
    retries: Annotated[
        int, typer.Option(min=0, help="How often pods that a kubelet refused are made again until the job fails.")
    ] = 6
    patience: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="After which those behind a waiting job leave it its room where they fit elsewhere."
        ),
    ] = "5m"
    hold: Annotated[str, typer.Option(metavar="TIME", help="After which they leave it the room in any case.")] = "7d"
    moves_per_hour: Annotated[
        int, typer.Option(min=0, help="How many jobs are moved in an hour, by policies with +moves.")
    ] = 6
    make_room_max_priority: Annotated[
        int | None,
        typer.Option(
            min=-(2**31),
            max=2**31 - 1,
            help="Up to which priority jobs are moved also for one of a lower priority; default: none is.",
        ),
    ] = None

    def simulator_options(self, seed: int) -> SimulatorOptions:
        """The same for the simulator. Failure where something is no time."""
        names = ("checkpoint", "grace", "apart", "patience", "hold")
        times = {name: time_of(f"--{name}", getattr(self, name)) for name in names}
        return SimulatorOptions(**{**msgspec.structs.asdict(self), **times, "seed": seed})


class Results(OptionGroup, frozen=True):
    """What is written of the results."""

    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Write jobs and series as CSV, one file a policy.")
    ] = None
    picture: Annotated[Path | None, typer.Option("--pictures", metavar="FOLDER", help="Draw pictures there.")] = None
    page: Annotated[
        Path | None,
        typer.Option(
            "--web",
            metavar="FILE",
            help="Write a page into one HTML file a policy: who had what at any time (first at --picture-at), and "
            "curves.",
        ),
    ] = None
    show: browser.Open = None
    picture_at: Annotated[
        str, typer.Option(metavar="TIME", help="When to draw who holds which devices; default: half-way.")
    ] = ""
    formats: Annotated[list[pictures.PictureFormat] | None, typer.Option("--picture-format", help="Default: svg.")] = (
        None
    )

    def check(self) -> None:
        """Failure where they could not be written: before anything takes long."""
        if self.picture is not None:
            pictures.check()
        for folder in filter(None, (self.out, self.picture)):
            with _writing(folder):
                pass

    def write(self, results: Sequence[Result], recordings: Sequence[Recording]) -> None:
        """Tables, pictures and a page a policy, where they are wished for; pages are opened where that is."""
        if self.out is not None:
            with _writing(self.out):
                folder = self.out
                for result in results:
                    with (folder / f"jobs-{result.policy.name}.csv").open("w", newline="") as stream:
                        write_jobs(result, stream)
                    with (folder / f"series-{result.policy.name}.csv").open("w", newline="") as stream:
                        write_series(result, stream)
                stderr().print(f"jobs and series are in {folder}", soft_wrap=True)
        if self.picture is not None:
            with _writing(self.picture):
                pictures.draw(self.picture, results, self.formats or ["svg"])
        if self.page is not None:
            for written in simulated.write(self.page, list(zip(results, recordings, strict=True))):
                if browser.wanted(self.show):
                    browser.show(written.resolve().as_uri())


@with_groups
def command(
    *,
    cluster: Recorded = None,
    jobs: Jobs = None,
    generation: Generation,
    policy: Policies = None,
    queues: Queues = 1,
    duration: Duration = "1h",
    level: Levels = None,
    empty: Empty = False,
    domain: Domain = DEFAULT_DOMAIN,
    made: Made,
    until: Until = "",
    world: World,
    output: Output = OutputFormat.TABLE,
    wanted: Results,
) -> None:
    """Simulate jobs on a cluster, and compare policies: utilisation, waiting, how broken up the free part is.

    The engine and the queues are those of the controller; only time is simulated. The same input gives the same result.
    docs/simulate.md has the columns of a trace, what each policy means, and what is assumed.
    """
    chosen = policies(policy or DEFAULT)
    # Before anything is read or simulated: hours of simulation must not end in a folder that cannot be written.
    wanted.check()
    read_from = () if not jobs or (len(jobs) == 1 and jobs[0].isdigit()) else jobs
    options, files = world.simulator_options(generation.seed), read_job_files(read_from)
    # What files say; without any, nothing but what is generated.
    # Only manifests may name devices and volumes, for which the nodes have to be known.
    manifests = [file for file in files if file.format is JobFormat.MANIFESTS]
    found = known(cluster or (), Keys(domain), manifests, servers(made) if manifests and not cluster else ())
    # The cluster: recorded where there are files, else generated.
    if not found.files:
        place = equipped(generated(made, queues), found)
    else:
        if made.machine or queues > 1:
            raise Failure(
                f"{'--machine' if made.machine else '--queues'}: a recorded cluster has its own; leave it out"
            )
        place = recorded(found, level or [], empty=empty)
    if files:
        submitted = jobs_in(files, place, found, duration=time_of("--duration", duration))
    else:
        site = given.site_of(place) if cluster else made.site()
        names = [one.name for one in place.local if one.namespace == NAMESPACE] or given.teams(queues)
        count = int(jobs[0]) if jobs else COUNT
        if not 1 <= count <= MOST_JOBS:
            raise Failure(f"--jobs {count}: expected 1 to {MOST_JOBS}")
        submitted = generation.jobs(site, count, names)
    at = _time_or_none("--picture-at", wanted.picture_at)
    # One a policy: a recording follows one simulation from its first step.
    recordings = [Recording(at, one.name) for one in chosen] if wanted.page is not None else []
    results = list(_simulated(place, submitted, chosen, options, _time_or_none("--until", until), at, recordings))
    emit([summarise(result) for result in results], output, table=table(results))
    wanted.write(results, recordings)


def _time_or_none(option: str, text: str) -> float | None:
    return time_of(option, text) if text else None


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Make a folder that is written to. Failure where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise Failure(f"cannot write to {folder}: {error.strerror}") from error


def _simulated(
    cluster: SimulatedCluster,
    jobs: Sequence[SimulatedJob],
    chosen: Sequence[SchedulingPolicy],
    options: SimulatorOptions,
    until: float | None,
    picture: float | None,
    recordings: Sequence[Recording],
) -> Iterator[Result]:
    """``recordings``: one a policy, or none."""
    # Each policy begins with the same cluster and jobs; nothing of one run is seen by the next.
    for policy, recording in zip_longest(chosen, recordings):
        try:
            simulation = Simulation(cluster, jobs, policy, options)
        except ValueError as error:
            raise Failure(str(error)) from None
        with _bar(policy.name, len(jobs)) as show:

            def watch(
                step: Simulation,
                # Defaults bind this turn's values: the generator goes on while the function is in use.
                show: Callable[[Simulation], object] = show,
                taken: Recording | None = recording,
            ) -> None:
                show(step)
                if taken is not None:
                    taken(step)

            yield simulation.run(until, watch, picture=picture)


@contextmanager
def _bar(name: str, jobs: int, clock: Clock = SYSTEM) -> Iterator[Callable[[Simulation], object]]:
    """A bar on a terminal, once it takes long."""
    console = stderr()
    began = clock.monotonic()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed} of {task.total} jobs ended"),
    )
    # Made but not started: short runs leave no trace on the terminal.
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    task = bar.add_task(f"simulating {name}", total=jobs)
    shown = False

    def show(simulation: Simulation) -> None:
        nonlocal shown
        if console.is_terminal and clock.monotonic() - began > QUIET_SECONDS:
            if not shown:
                bar.start()
                shown = True
            bar.update(task, completed=simulation.done)

    try:
        yield show
    finally:
        if shown:
            bar.stop()
