"""``topogate webhook``: run the mutating webhook until SIGTERM, then drain."""

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
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Port for the API server's reviews; 0: any free one.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=0, max=65535, help="Port for /metrics, over TLS.")
    ] = None,
    health_port: Annotated[
        int | None, typer.Option("--health-port", min=0, max=65535, help="Port for /healthz and /readyz, plain.")
    ] = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on; default all.")] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--out-of-cluster",
            metavar="NAME",
            help="DNS name or IP address by which the API server reaches a webhook outside of the cluster; it goes "
            "into the certificate beside the Service's names. May be repeated.",
        ),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Run the mutating webhook.

    It stamps topology requests of Jobs and Pods into gate and annotations, makes and renews its own certificate, and
    keeps the caBundle of its configuration. SIGTERM drains it: what is in flight is answered.
    """
    given = {"webhook_port": port, "metrics_port": metrics_port, "health_port": health_port, "bind_address": host}
    settings = settled(config, given, kubeconfig, context)
    from cli import logs  # late: it configures logging, which other commands leave alone

    logs.configure(settings)
    try:
        asyncio.run(_run(settings, tuple(names or ()), kubeconfig, context))
    except OSError as error:
        raise Failure(f"the webhook cannot serve: {error}") from error


async def _run(settings: Settings, names: tuple[str, ...], kubeconfig: str | None, context: str | None) -> None:
    # Late, so that --help and a wrong setting answer at once.
    from kube.client import Client
    from kube.errors import ConfigError
    from webhook.server import serve

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        client = await Client.connect(kubeconfig, context)
    except ConfigError as error:
        raise Failure(str(error)) from error
    async with client:
        await serve(settings, client, hosts=names, stop=stop, on_bound=lambda _server: _settle_heap())


def _settle_heap() -> None:
    """Modules and decoders stay for good: keep full garbage collections from walking them."""
    gc.collect()
    gc.freeze()
