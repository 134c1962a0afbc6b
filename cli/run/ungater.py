"""``topogate ungater``: run the controller until SIGTERM."""

from pathlib import Path
from typing import Annotated

import typer

from cli.output import Context, Kubeconfig
from cli.run.becoming import become
from cli.settled import HELP, settled


def command(
    config: Annotated[
        Path | None,
        typer.Option("--config", help=HELP),
    ] = None,
    leader_election: Annotated[
        bool | None,
        typer.Option(
            "--leader-election/--no-leader-election",
            help="Take a lease before anything is done; without it, run one process only.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            "--health-port",
            min=0,
            max=65535,
            help="Port for /healthz, /readyz and /metrics, plain; 0: any free one.",
        ),
    ] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on; default all.")] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Run the controller.

    It makes a Workload for every job with a topology request, places it, stores the admission, and lets the pods go
    to their slots. Kill it at any moment and start it again: it goes on from what the API server has.
    """
    given = {"leader_election": leader_election, "health_port": port, "bind_address": host}
    found = settled(config, given, kubeconfig, context)
    task = {"settings": found.settings.model_dump(mode="json"), "source": found.source}
    become("cli.run.ungater_process", {**task, "kubeconfig": kubeconfig, "context": context})
