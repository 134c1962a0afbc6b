"""``topogate local``: a real control plane on this machine, to play with."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cli import real_nodes
from cli.machine_options import check_machine
from cli.output import Failure, Output, OutputFormat, emit, messages, progress, stderr
from clock import SYSTEM
from localcluster import supervisor
from localcluster.dra.driver import CHANNELS, FORMS, TAINTED, check_driver
from localcluster.errors import AlreadyUp, LocalClusterError
from localcluster.kubelets import service
from localcluster.kubelets.fleet import Publishing
from localcluster.kubelets.specs import EXAMPLE, describe, parse_kubelet, parse_machine
from localcluster.nodes import Fleet, add_nodes, wait_ready
from localcluster.options import Options

START_SECONDS = 120.0
READY_SECONDS = 120.0
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

app = typer.Typer(
    name="local",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run a real Kubernetes control plane on this machine: no containers, nodes simulated by KWOK.",
)

Name = Annotated[str, typer.Option("--name", help="Which local cluster; several can run side by side.")]
Machine = Annotated[
    str,
    typer.Option(
        metavar="MACHINE",
        help=f"Give each node an inside, such as '{EXAMPLE}'; it decides CPUs, memory and GPUs. A simulated kubelet"
        " admits, pins or refuses its pods.",
    ),
]
Kubelet = Annotated[
    str,
    typer.Option(
        metavar="KUBELET",
        help="How that kubelet is set: policy, scope and options, such as 'single-numa-node, pod'. Default:"
        " restricted, container.",
    ),
]
Dra = Annotated[
    str,
    typer.Option(
        metavar="DEVICES",
        help=f"Publish the machines' GPUs and NICs in ResourceSlices, for claims: {', '.join(FORMS)}; '{TAINTED}' with"
        f" it taints the last GPU of each, '{CHANNELS}' adds a channel for ComputeDomains.",
    ),
]

RealKubelets = Annotated[
    int | None,
    typer.Option(
        "--real-kubelets",
        min=0,
        metavar="N",
        help="Run real kubelets instead, on the first N of these nodes, each a --machine; 0 removes them.",
    ),
]


@app.command()
def up(
    name: Name = "default",
    foreground: Annotated[
        bool,
        typer.Option("--foreground", help="Stay here and stop the cluster on Ctrl-C, instead of in the background."),
    ] = False,
    fairness: Annotated[
        bool, typer.Option("--priority-and-fairness", help="Let the API server limit busy clients (HTTP 429).")
    ] = False,
    gates: Annotated[
        list[str] | None, typer.Option("--feature-gate", metavar="NAME=true|false", help="Kubernetes feature gate.")
    ] = None,
) -> None:
    """Start a control plane; the first time its programs are downloaded, or built (minutes).

    Programs are taken from $KUBEBUILDER_ASSETS or PATH where their version is right, else from their official releases
    into the cache, else built with Go. $TOPOGATE_BINARIES decides by hand: build, download, or a folder.
    A cluster that was stopped with `down --keep` goes on with its data.
    """
    folder = _folder(name)
    options = Options(priority_and_fairness=fairness, feature_gates=dict(map(_gate, gates or ())))
    if supervisor.running(folder):
        _print_line(f"cluster {name} is up already")
        _say_how_to_use(name)
        return
    if foreground:
        _foreground(name, folder, options)
        return
    began = SYSTEM.monotonic()
    with messages() as tell, _failures():
        supervisor.start(folder, options, progress=tell, timeout=START_SECONDS)
    _print_line(f"cluster {name} is up after {SYSTEM.monotonic() - began:.1f} s")
    _say_how_to_use(name)


@app.command()
def down(
    name: Name = "default",
    keep: Annotated[bool, typer.Option("--keep", help="Keep its data for the next `up`.")] = False,
) -> None:
    """Stop the control plane and remove everything it left behind."""
    folder = _folder(name)
    known = folder.exists()
    with progress(f"stopping cluster {name}") if supervisor.running(folder) else nullcontext():
        ran = supervisor.stop(folder, keep=keep)
    if ran:
        _print_line(f"cluster {name} is down; its data is kept in {folder}" if keep else f"cluster {name} is gone")
    elif known and not keep:
        _print_line(f"cluster {name} was not up; what it had left in {folder} is removed")
    else:
        _print_line(f"cluster {name} is not up")


@app.command()
def status(name: Name = "default", output: Output = OutputFormat.TABLE) -> None:
    """Show the components, whether they are ready and what they use.

    Where no cluster `default` is up, and one other is, as one that `topogate demo --keep` left, that is shown.
    """
    others = supervisor.names()
    if name == "default" and name not in others and len(others) == 1:
        name = others[0]
        _print_line(f"cluster {name}:")
    with _failures():
        components = supervisor.statuses(_running(name))
    table = Table("COMPONENT", "STATE", "PID", "PORT", "MEMORY", "CPU", box=None)
    for c in components:
        memory, cpu = f"{c.memory / 2**20:.0f} MiB", f"{c.cpu_seconds:.1f} s"
        table.add_row(c.name, c.state, str(c.pid or "-"), str(c.port or "-"), memory, cpu)
    table.caption, table.caption_justify = f"logs: {Path(components[0].log).parent}", "left"
    emit({"name": name, "components": components}, output, table=table)


@app.command()
def kubeconfig(
    name: Name = "default",
    raw: Annotated[bool, typer.Option("--raw", help="Print the kubeconfig itself instead of its path.")] = False,
) -> None:
    """Print the path of the administrator's kubeconfig: export KUBECONFIG=$(topogate local kubeconfig)."""
    path = supervisor.layout(_running(name)).kubeconfig("admin")
    sys.stdout.write(path.read_text() if raw else f"{path}\n")


@app.command()
def nodes(
    name: Name = "default",
    blocks: Annotated[int, typer.Option(min=1, help="Number of blocks.")] = 4,
    racks: Annotated[int, typer.Option(min=1, help="Racks in each block.")] = 4,
    hosts: Annotated[int, typer.Option(min=1, help="Nodes in each rack.")] = 8,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs (nvidia.com/gpu) of each node.")] = 8,
    cpu: Annotated[str, typer.Option(help="CPUs of each node.")] = "96",
    memory: Annotated[str, typer.Option(help="Memory of each node.")] = "768Gi",
    pods: Annotated[int, typer.Option(min=1, help="Pods that each node takes.")] = 110,
    labels: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="One more label; repeat for more.")
    ] = None,
    taints: Annotated[
        list[str] | None, typer.Option("--taint", metavar="KEY[=VALUE]:EFFECT", help="A taint; repeat for more.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="What names begin with, to tell several fleets apart.")] = "",
    machine: Machine = "",
    kubelet: Kubelet = "",
    dra: Dra = "",
    real: RealKubelets = None,
) -> None:
    """Make simulated nodes in blocks and racks: b1-r1-h1, b1-r1-h2, ...

    Nodes that are there already are brought in line. All carry the labels cloud-provider.com/topology-block and -rack,
    kubernetes.io/hostname and cloud-provider.com/node-group=tas. Pods on them run for ever, or as annotated: see
    docs/localcluster.md.
    """
    if real and not machine:
        raise Failure("--real-kubelets: say what machines they are on; give --machine too")
    if dra and real is not None:
        raise Failure("--dra: only simulated machines publish devices; leave it out beside --real-kubelets")
    check_machine(machine, kubelet)
    if dra and not machine:
        raise Failure(f"--dra {dra!r}: only simulated machines have devices to publish; give --machine too")
    try:
        if dra:
            check_driver(dra, machine)
    except ValueError as error:
        raise Failure(f"--dra: {error}") from None
    folder = _running(name)
    fleet = Fleet(
        blocks=blocks,
        racks=racks,
        hosts=hosts,
        gpus=gpus,
        cpu=cpu,
        memory=memory,
        pods=pods,
        prefix=prefix or (real_nodes.PREFIX if real is not None else ""),
        labels=dict(_pair(label, "--label") for label in labels or ()),
        taints=[_taint(taint) for taint in taints or ()],
        machine=machine,
        kubelet=kubelet,
        dra=dra,
    )
    if real is not None:
        _real_kubelets(folder, fleet, real)
    else:
        if fleet.machine:
            # Before the nodes exist: the simulated kubelets have to be there when their first pods come.
            service.remember(folder, service.wanted(folder) or Publishing())
        config = supervisor.layout(folder).kubeconfig("admin")
        began = SYSTEM.monotonic()
        created = asyncio.run(_make_nodes(config, fleet))
        seconds = SYSTEM.monotonic() - began
        _print_line(f"{len(fleet)} nodes are ready, {created} of them new, after {seconds:.1f} s")
        if fleet.machine:
            _print_line(f"each is a machine of {describe(parse_machine(fleet.machine), parse_kubelet(fleet.kubelet))}")
        if fleet.dra:
            _print_line("their devices are in ResourceSlices; kubectl get resourceslices,deviceclasses shows them")


def _real_kubelets(folder: Path, fleet: Fleet, count: int) -> None:
    began = SYSTEM.monotonic()
    nodes = real_nodes.members(fleet, count)
    with messages() as tell, _failures():
        real_nodes.run(folder, fleet.prefix, nodes, say=tell, clock=SYSTEM)
    if not nodes:
        _print_line(f"no real kubelets run whose names begin with {fleet.prefix}")
        return
    what = "a node with a real kubelet is" if count == 1 else f"{count} nodes with real kubelets are"
    _print_line(f"{what} ready after {SYSTEM.monotonic() - began:.1f} s: {nodes[0].name}{' ...' if count > 1 else ''}")
    _print_line(f"each is a machine of {describe(parse_machine(fleet.machine), parse_kubelet(fleet.kubelet))}")


async def _make_nodes(config: Path, fleet: Fleet) -> int:
    from kube.client import Client  # the other commands start faster without it
    from kube.errors import KubeError

    try:
        async with await Client.connect(str(config)) as client:
            with _bar("creating nodes") as advance:
                created = await add_nodes(client, fleet, progress=advance)
            await wait_ready(client, fleet.node_names(), timeout=READY_SECONDS)
            return created
    except* (KubeError, TimeoutError) as errors:
        # `except*` gives a group even for a single error, and groups may be nested.
        raise Failure(str(_first_error(errors))) from None


def _first_error(error: BaseException) -> BaseException:
    return _first_error(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _foreground(name: str, folder: Path, options: Options) -> None:
    def ready(_: Any) -> None:
        _print_line(f"cluster {name} is up; Ctrl-C stops it and keeps its data")
        _say_how_to_use(name)

    with _failures():
        supervisor.run(folder, options, progress=_print_line, ready=ready)


def _say_how_to_use(name: str) -> None:
    option = "" if name == "default" else f" --name {name}"
    _print_line(f"  export KUBECONFIG=$(topogate local kubeconfig{option})")
    _print_line(f"  topogate local nodes{option} --blocks 4 --racks 4 --hosts 8 --gpus 8")


def _print_line(message: str) -> None:
    """One line for a person; longer than the terminal where a path in it is."""
    stderr().print(message, soft_wrap=True)


def _folder(name: str) -> Path:
    try:
        return supervisor.directory(name)
    except ValueError as error:
        raise Failure(str(error)) from None


def _running(name: str) -> Path:
    """The folder of a cluster that is up."""
    folder = _folder(name)
    state = supervisor.running(folder)
    option = "" if name == "default" else f" --name {name}"
    if state is None:
        others = [f"--name {other}" for other in supervisor.names()]
        up = f"; there is {', '.join(others)}" if others else ""
        raise Failure(f"cluster {name} is not up; start it with: topogate local up{option}{up}")
    # A cluster that just starts has a folder and no kubeconfig that works yet.
    if state.phase != "Ready":
        raise Failure(f"cluster {name} is not ready yet ({state.message}); try again in a moment")
    return folder


def _pair(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise Failure(f"{option} {text!r}: expected KEY=VALUE")
    return key, value


def _gate(text: str) -> tuple[str, bool]:
    key, value = _pair(text, "--feature-gate")
    if value.lower() not in {"true", "false"}:
        raise Failure(f"--feature-gate {text!r}: expected NAME=true or NAME=false")
    return key, value.lower() == "true"


def _taint(text: str) -> dict[str, str]:
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    if not key or effect not in EFFECTS:
        raise Failure(f"--taint {text!r}: expected KEY[=VALUE]:EFFECT with EFFECT one of {', '.join(EFFECTS)}")
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


@contextmanager
def _failures() -> Iterator[None]:
    """Turn this package's errors into what the command line prints."""
    try:
        yield
    except AlreadyUp as error:
        raise Failure(f"{error}; topogate local status shows it, topogate local down stops it") from None
    except LocalClusterError as error:
        raise Failure(str(error)) from None


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal, nothing elsewhere."""
    console = stderr()
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
