"""``topogate agent``: publish one machine's hardware and allocations until SIGTERM."""

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from cli.output import Context, Failure, Kubeconfig
from crds.settings import Settings, SettingsError, from_mapping, load


def command(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Settings file; default /etc/topogate/config.yaml where it exists."),
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", help="The Kubernetes node; default this machine's host name.")
    ] = None,
    sysfs: Annotated[str | None, typer.Option("--sysfs", help="Where sysfs is mounted; default /sys.")] = None,
    kubelet: Annotated[
        str | None, typer.Option("--kubelet-directory", help="The kubelet's directory; default /var/lib/kubelet.")
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
    """Run the agent of one node.

    It publishes the machine's hardware and what the kubelet has given to whom, as FlexTopo and NodeResourceTopology,
    and each pod's observed placement. It changes nothing on the machine.
    """
    given = {
        "agent_node_name": node,
        "agent_sysfs": sysfs,
        "agent_kubelet_directory": kubelet,
        "health_port": port,
        "bind_address": host,
    }
    try:
        settings = load(config)
        changes = {name: value for name, value in given.items() if value is not None}
        if changes:
            settings = from_mapping({**settings.model_dump(), **changes}, source="command line")
    except SettingsError as error:
        raise Failure(str(error)) from error
    from cli import logs  # late: it configures logging, which other commands leave alone

    logs.configure(settings)
    try:
        asyncio.run(_run(settings, kubeconfig, context))
    except OSError as error:
        hint = "give another port with --health-port"
        raise Failure(f"the agent cannot serve on port {settings.health_port}: {error.strerror}; {hint}") from error


async def _run(settings: Settings, kubeconfig: str | None, context: str | None) -> None:
    # Late, so that --help and a wrong setting answer at once.
    from agent.run import run
    from kube.client import Client
    from kube.errors import ConfigError

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        client = await Client.connect(kubeconfig, context, pool_size=8)
    except ConfigError as error:
        raise Failure(str(error)) from error
    async with client:
        await run(settings, client, stop=stop)
