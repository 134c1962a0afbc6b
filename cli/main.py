"""The ``topogate`` command, also installed as ``kubectl-topogate``.

Each subcommand lives in a module of its own that is imported only when it is called: importing all of them would cost
the webhook's and the agent's start what only an administrator's command needs.
"""

import gc
import importlib
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from cli.output import Failure, stderr

if TYPE_CHECKING:
    from typer._click import HelpFormatter

    Command = TyperCommand | TyperGroup

HELP = {"help_option_names": ["-h", "--help"]}
# name -> (module, attribute, one line of help, panel)
COMMANDS: dict[str, tuple[str, str, str, str]] = {
    "install": ("cli.install.command", "install", "Install Topogate into the current context.", "Administrators"),
    "uninstall": ("cli.install.command", "uninstall", "Remove Topogate from the current context.", "Administrators"),
    "doctor": ("cli.doctor.command", "command", "Find problems, and print the fix for each.", "Administrators"),
    "explain": ("cli.explain.command", "command", "Say where a job's pods went, or why it waits.", "Everyone"),
    "queues": ("cli.queues.command", "command", "Say who waits in the queues, and how much quota is used.", "Everyone"),
    "hold": ("cli.hold", "hold_jobs", "Hold jobs: they wait until they are released.", "Everyone"),
    "release": ("cli.hold", "release_jobs", "Release jobs that are on hold.", "Everyone"),
    "requeue": ("cli.hold", "requeue_jobs", "Put jobs that run back into their queue.", "Everyone"),
    "usage": ("cli.usage", "command", "Say how many GPU hours queues, users and teams held.", "Everyone"),
    "tree": ("cli.tree.command", "command", "Show the topology, and what is free in each domain.", "Everyone"),
    "place": ("cli.place", "command", "Say where the pods of a manifest would go, or why not.", "Everyone"),
    "whatif": ("cli.whatif.command", "app", "Ask the engine about a described cluster, without one.", "Everyone"),
    "simulate": (
        "cli.simulate.command",
        "app",
        "Run jobs on a cluster in simulated time, and compare policies.",
        "Everyone",
    ),
    "web": ("cli.web.command", "command", "Show the cluster as a page in the browser.", "Everyone"),
    "defrag": ("cli.defrag.command", "command", "Free the most whole domains by moving workloads.", "Administrators"),
    "migrate": ("cli.migrate.command", "app", "Take over queues from Kueue.", "Administrators"),
    "snapshot": ("cli.snapshot", "command", "Write what decides placement into one file.", "Everyone"),
    "demo": ("cli.demo.command", "command", "Show the main job on a local control plane.", "Everyone"),
    "local": ("cli.local", "app", "Run a real control plane on this machine.", "Everyone"),
    "webhook": ("cli.run.commands", "webhook", "Run the mutating webhook.", "Components"),
    "ungater": ("cli.run.commands", "ungater", "Run the controller.", "Components"),
    "agent": ("cli.run.commands", "agent", "Run the agent of a node.", "Components"),
    "version": ("cli.version", "command", "Print the versions of this command and of the server.", "Everyone"),
}


class LazyGroup(TyperGroup):
    """A command group that knows its subcommands by name and imports one only when it runs."""

    _resolving = False

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        """Find the command that runs; whoever else asks for commands only wants to list them."""
        self._resolving = True
        try:
            return super().resolve_command(ctx, args)
        finally:
            self._resolving = False

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # noqa: ARG002
        """Names in the order of ``COMMANDS``."""
        return list(COMMANDS)

    def format_commands(self, ctx: typer.Context, formatter: "HelpFormatter") -> None:  # type: ignore[override]  # noqa: ARG002
        """A section for those whom the commands are for."""
        for section in dict.fromkeys(panel for *_, panel in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl([(name, line) for name, (_, _, line, panel) in COMMANDS.items() if panel == section])

    def get_command(self, ctx: typer.Context, cmd_name: str) -> "Command | None":  # type: ignore[override]  # noqa: ARG002
        """Import and build one subcommand; for the group's own help only a stand-in with its help line."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, attribute, help_line, _ = entry
        if not self._resolving:
            return TyperCommand(cmd_name, help=help_line)
        target = getattr(importlib.import_module(module), attribute)
        if isinstance(target, typer.Typer):
            return cast("Command", typer.main.get_command(target))
        single = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=HELP)
        single.command(cmd_name)(target)
        return cast("Command", typer.main.get_command(single))


app = typer.Typer(
    cls=LazyGroup,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # its tables leave a third of 80 columns to the words
    context_settings=HELP,
    help="Topology-aware placement on Kubernetes: the pods of a job close together, with the stock kube-scheduler.",
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # needed here alone

        print(f"topogate {version('topogate')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print this command's version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point of the console scripts: errors a person can act on become one line and exit status 1."""
    gc.set_threshold(200_000, 20, 100)  # imports leave no garbage: looking for it took a tenth of a command's CPU
    name = "kubectl topogate" if os.path.basename(sys.argv[0]).startswith("kubectl-") else "topogate"  # noqa: PTH119
    try:
        app(prog_name=name)
    except Failure as failure:
        stderr().print("Error:", style="bold red", end=" ")
        stderr().print(str(failure), soft_wrap=True)
        sys.exit(1)
    finally:
        gc.freeze()  # else Python looks for garbage in all of it as it ends: a fifth of a command's CPU


if __name__ == "__main__":
    main()
