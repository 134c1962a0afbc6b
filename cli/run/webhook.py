"""``topogate webhook``: run the mutating webhook until SIGTERM, then drain."""

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
    found = settled(config, given, kubeconfig, context)
    task = {"settings": found.settings.model_dump(mode="json"), "source": found.source, "names": names or ()}
    become("cli.run.webhook_process", {**task, "kubeconfig": kubeconfig, "context": context})
