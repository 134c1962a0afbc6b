"""``topogate ungater``: run the controller until SIGTERM."""

import asyncio
import gc
import signal
from pathlib import Path
from typing import Annotated

import typer

from cli.output import Context, Failure, Kubeconfig
from cli.settled import HELP, settled
from crds.settings import Settings


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
    settings = settled(config, given, kubeconfig, context)
    from cli import logs  # late: it configures logging, which other commands leave alone

    logs.configure(settings)
    try:
        asyncio.run(_run(settings, kubeconfig, context))
    except OSError as error:
        hint = "give another port with --health-port"
        raise Failure(
            f"the controller cannot serve on port {settings.health_port}: {error.strerror}; {hint}"
        ) from error


async def _run(settings: Settings, kubeconfig: str | None, context: str | None) -> None:
    # Late, so that --help and a wrong setting answer at once.
    from kube.client import Client
    from kube.errors import ConfigError
    from ungater.process import run

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        client = await Client.connect(kubeconfig, context)
    except ConfigError as error:
        raise Failure(str(error)) from error
    async with client:
        await run(settings, client, stop=stop, on_port=lambda _port: _settle_heap())


def _settle_heap() -> None:
    """Keep full garbage collections from walking modules and decoders, and from coming often.

    What is cached are structs that the collector does not track; a decoder leaves nothing to collect behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
