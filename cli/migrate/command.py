"""``topogate migrate``: the subcommand for each queue that can be taken over."""

import sys
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final

import typer
import yaml

from cli.connected import connected
from cli.migrate.apply_objects import AppliedObjects, apply_report
from cli.migrate.check import check_cluster, render_findings
from cli.migrate.migration import migrate_objects
from cli.migrate.moves.backup import read_as_before
from cli.migrate.moves.phase_walk import MoveOptions
from cli.migrate.moves.running import run_way, show_steps
from cli.migrate.rendering import render_report
from cli.migrate.rows import MigrationReport
from cli.migrate.source_objects import NAMESPACE as KUEUE_NAMESPACE
from cli.migrate.source_objects import read_files
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
Finish = Annotated[bool, typer.Option("--finish", help="Delete Kueue, once all of it has moved. Asks first.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="With --finish: do not ask.")]
KeepKueue = Annotated[bool, typer.Option("--keep-kueue", help="With --finish: only say what would be deleted.")]
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
    finish: Finish = False,
    yes: Yes = False,
    keep_kueue: KeepKueue = False,
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
    given = {"--dry-run": dry_run, "--apply": apply, "--check": check, "--move": move, "--back": back}
    way = choose_way({**given, "--finish": finish})
    for option, is_given in (
        ("-f", bool(files)),
        ("QUEUE", bool(queues)),
        ("--shared-nodes", shared_nodes),
        ("--yes", yes),
        ("--keep-kueue", keep_kueue),
        ("--skip-refused", skip_refused),
        ("--overwrite", overwrite),
    ):
        if is_given:
            require_way(way, option)
    cluster = partial(connected, kubeconfig=kubeconfig, context=context, administrator=COMMAND)
    if check:
        with progress("looking at the cluster"):
            found = cluster(partial(check_cluster, namespace=namespace, kueue_namespace=kueue_namespace))
        emit({"findings": found}, output, table=render_findings(found))
        raise typer.Exit(REFUSED if found else 0)
    names = [name.strip() for name in without_checks.split(",") if name.strip()]
    if move or back or finish:
        options = MoveOptions(namespace, kueue_namespace, tuple(names), shared_nodes)
        moving = partial(run_way, way=way, queues=queues or (), options=options, yes=yes, keep=keep_kueue)
        show_steps(lambda tell: cluster(partial(moving, tell=tell)), output)
        return
    if files:
        read = read_files(files)
    else:
        with progress("reading Kueue's objects"):
            read = cluster(partial(read_as_before, kueue_namespace=kueue_namespace, namespace=namespace))
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


def choose_way(given: Mapping[str, bool]) -> str:
    """The one option that says what to do; --dry-run where none does. Raises Failure where several do."""
    chosen = [name for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise Failure(f"{' and '.join(chosen)} exclude each other: choose one of {', '.join(given)}")
    return chosen[0] if chosen else "--dry-run"


def require_way(way: str, option: str) -> None:
    """Raises Failure where an option says more about something else than what is to be done."""
    if way not in (ways := _SAYS_MORE[option]):
        raise Failure(f"{option} goes with {' or '.join(ways)} alone: give that, or leave {option} out")


_SAYS_MORE: Final = {
    "-f": ("--dry-run", "--apply"),
    "QUEUE": ("--move", "--back"),
    "--shared-nodes": ("--move",),
    "--yes": ("--finish",),
    "--keep-kueue": ("--finish",),
    "--skip-refused": ("--apply",),
    "--overwrite": ("--apply",),
}


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
