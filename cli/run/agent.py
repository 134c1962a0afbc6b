"""``topogate agent``: publish one machine's hardware and allocations until SIGTERM."""

from pathlib import Path
from typing import Annotated

import typer

from agent.settings import AgentSettings
from cli.output import Context, Failure, Kubeconfig
from cli.run.becoming import become
from crds.settings import SettingsError, from_mapping, load


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
    # Only what the agent reads: on every node, each setting more is parsed and kept.
    told = settings.model_dump(mode="json", include=set(AgentSettings.__struct_fields__))
    become("cli.run.agent_process", {"settings": told, "kubeconfig": kubeconfig, "context": context})
