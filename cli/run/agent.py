"""``topogate agent``: publish one machine's hardware and allocations until SIGTERM."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer

from agent.settings import AgentSettings
from cli.output import Context, Failure, Kubeconfig
from crds.settings import SettingsError, from_mapping, load

# The program of the agent's own process. structlog imports rich where it is, to draw tracebacks on terminals: that is
# 3 MiB, and no node's log shows them. None is Python's own way to say that a module is not there.
PROGRAM = "import sys; sys.modules['rich'] = None; from cli.run.agent_process import main; main(sys.argv[1])"


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
    told = settings.model_dump(mode="json", include=set(AgentSettings.__struct_fields__))
    _become({"settings": told, "kubeconfig": kubeconfig, "context": context})


def _become(task: dict[str, object]) -> NoReturn:
    """Go on as the agent's own process (`cli.run.agent_process`), without what this one has imported by now: 20 MiB."""
    # Where a module is run out of a folder, the next one is found there too; where not, the folder is none of ours.
    paths = [] if sys.path[0] == os.getcwd() else ["-P"]  # noqa: PTH109 -- as the interpreter spells it
    # Its threads come and go: memory that each of them gets for itself is memory that no other uses.
    environment = {"MALLOC_ARENA_MAX": "1", **os.environ}
    text = msgspec.json.encode(task).decode()
    os.execve(sys.executable, [sys.executable, *paths, "-c", PROGRAM, text], environment)  # noqa: S606 -- no shell
