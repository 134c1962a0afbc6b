"""``topogate migrate``: the subcommand for each queue that can be taken over."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import typer
import yaml

from cli.connected import connected
from cli.migrate.apply_objects import AppliedObjects, apply_report
from cli.migrate.check import check_cluster, render_findings
from cli.migrate.migration import migrate_objects
from cli.migrate.moves.handover import Handover, MoveOptions, Tell
from cli.migrate.moves.take_back import TakeBack
from cli.migrate.rendering import render_report
from cli.migrate.rows import MigrationReport
from cli.migrate.source_objects import NAMESPACE as KUEUE_NAMESPACE
from cli.migrate.source_objects import read_cluster, read_files
from cli.output import Context, Failure, Kubeconfig, Output, OutputFormat, emit, progress, stderr, stdout, write_yaml
from crds.constants import NAMESPACE
from kube.client import Client

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Take over queues from Kueue.",
)
REFUSED = 3  # as of doctor: 1 says that it could not be done
COMMAND = "topogate migrate kueue"

Files = Annotated[
    list[str] | None,
    typer.Option("-f", "--filename", help="File or folder with objects of Kueue, - for stdin; default the cluster."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be made, and what becomes of each object (the default).")
]
Apply = Annotated[bool, typer.Option("--apply", help="Create the objects and merge the settings.")]
Check = Annotated[
    bool, typer.Option("--check", help="Look in the cluster for jobs that nobody would queue. Changes nothing.")
]
SkipRefused = Annotated[bool, typer.Option("--skip-refused", help="With --apply: apply the others.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="With --apply: replace objects and settings that differ already.")
]
WithoutChecks = Annotated[
    str, typer.Option("--without-checks", metavar="NAME,...", help="AdmissionChecks that are left out of their queues.")
]
Queues = Annotated[
    list[str] | None,
    typer.Argument(metavar="[QUEUE]...", help="With --move or --back: ClusterQueues of Kueue; default all."),
]
Move = Annotated[bool, typer.Option("--move", help="Move queues with their namespaces to Topogate; what runs goes on.")]
Back = Annotated[bool, typer.Option("--back", help="Hand queues that moved back to Kueue; what runs goes on.")]
SharedNodes = Annotated[
    bool, typer.Option("--shared-nodes", help="With --move: also where a topology is shared with queues that stay.")
]
OfKueue = Annotated[str, typer.Option("--kueue-namespace", help="Namespace of Kueue itself.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of Topogate itself.")]


@app.callback()
def _group() -> None:
    """Keep `kueue` a subcommand: Typer makes a group of one command that command."""


@app.command("kueue")
def migrate_kueue(
    queues: Queues = None,
    files: Files = None,
    dry_run: DryRun = False,
    apply: Apply = False,
    check: Check = False,
    move: Move = False,
    back: Back = False,
    shared_nodes: SharedNodes = False,
    skip_refused: SkipRefused = False,
    overwrite: Overwrite = False,
    without_checks: WithoutChecks = "",
    kueue_namespace: OfKueue = KUEUE_NAMESPACE,
    namespace: Namespace = NAMESPACE,
    output: Output = OutputFormat.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Convert Kueue's queues, flavors and settings to Topogate's, and say what becomes of each field.

    With -o yaml, stdout has our objects alone, for `kubectl apply -f -`, and the report goes to stderr. The exit status
    is 3 if something is refused or --check finds something, else 0.
    """
    if dry_run + apply + check + move + back > 1:
        raise Failure("--dry-run, --apply, --check, --move and --back exclude each other: choose one")
    if files and (check or move or back):
        raise Failure("--check, --move and --back look at the jobs of a cluster: leave -f out")
    if queues and not (move or back):
        raise Failure("QUEUE says what to move: give --move or --back too")
    if shared_nodes and not move:
        raise Failure("--shared-nodes says how to move: give --move too")
    if (skip_refused or overwrite) and not apply:
        raise Failure("--skip-refused and --overwrite say how to apply: give --apply too")
    cluster = partial(connected, kubeconfig=kubeconfig, context=context, administrator=COMMAND)
    if check:
        with progress("looking at the cluster"):
            found = cluster(partial(check_cluster, namespace=namespace, kueue_namespace=kueue_namespace))
        emit({"findings": found}, output, table=render_findings(found))
        raise typer.Exit(REFUSED if found else 0)
    names = [name.strip() for name in without_checks.split(",") if name.strip()]
    if move or back:
        options = MoveOptions(namespace, kueue_namespace, tuple(names), shared_nodes)
        moving = partial(_move if move else _take_back, queues=queues or (), options=options)
        show_steps(lambda tell: cluster(partial(moving, tell=tell)), output)
        return
    if files:
        read = read_files(files)
    else:
        with progress("reading Kueue's objects"):
            read = cluster(partial(read_cluster, namespace=kueue_namespace))
    report = migrate_objects(read, names)
    if apply:
        work = partial(_apply, report=report, namespace=namespace, skip_refused=skip_refused, overwrite=overwrite)
        applied = cluster(work)
        emit({"steps": applied.steps, "rows": report.rows}, output, table=applied.render_steps())
    else:
        print_report(report, output)
    # After the output, as doctor does.
    if report.has_refusals():
        raise typer.Exit(REFUSED)


async def _apply(
    client: Client, *, report: MigrationReport, namespace: str, skip_refused: bool, overwrite: bool
) -> AppliedObjects:
    return await apply_report(client, report, namespace, skip_refused=skip_refused, overwrite=overwrite)


async def _move(client: Client, *, queues: Sequence[str], options: MoveOptions, tell: Tell) -> None:
    await Handover(client, options, tell).move_queues(queues)


async def _take_back(client: Client, *, queues: Sequence[str], options: MoveOptions, tell: Tell) -> None:
    await TakeBack(client, options, tell).take_back(queues)


def show_steps(work: Callable[[Tell], None], output: OutputFormat) -> None:
    """Print what is done as it is done; as JSON or YAML all of it at the end."""
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if output is OutputFormat.TABLE:
            # A move takes minutes: each line is there when its step is.
            stdout().print(text, soft_wrap=True, markup=False, highlight=False)

    work(tell)
    if output is not OutputFormat.TABLE:
        emit({"steps": told}, output)


def print_report(report: MigrationReport, output: OutputFormat) -> None:
    """The report on stdout; as YAML the objects alone, with the settings as comments."""
    if output is OutputFormat.JSON:
        emit({"objects": report.objects, "settings": report.settings, "rows": report.rows}, output)
        return
    if output is OutputFormat.TABLE:
        stdout().print(render_report(report))
        return
    write_yaml(report.objects, sys.stdout)
    if report.settings:
        text = yaml.safe_dump(report.settings, sort_keys=False)
        comment = "".join(f"#   {line}\n" for line in text.splitlines())
        # Not an object: applied as one, it would take the place of all settings that are there.
        sys.stdout.write(f"# Settings, for key config.yaml of ConfigMap topogate-config:\n{comment}")
    stderr().print(render_report(report))
