"""``topogate webhook``, ``ungater`` and ``agent``: settings are checked, then the process goes on as the component.

The libraries of a command line, a settings file and its checks take 20 MiB; what runs for ever does without them.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from cli.options import Config
from cli.output import Context, Failure, Kubeconfig

Host = Annotated[str | None, typer.Option("--host", help="Address to listen on; default all.")]
PlainPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        "--health-port",
        min=0,
        max=65535,
        help="Port for /healthz, /readyz and /metrics, plain; 0: any free one.",
    ),
]


def webhook(
    config: Config = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Port for the API server's reviews; 0: any free one.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=0, max=65535, help="Port for /metrics, over TLS.")
    ] = None,
    health_port: Annotated[
        int | None, typer.Option("--health-port", min=0, max=65535, help="Port for /healthz and /readyz, plain.")
    ] = None,
    host: Host = None,
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
    _become_settled("webhook", config, given, kubeconfig, context, names=names or ())


def ungater(
    config: Config = None,
    leader_election: Annotated[
        bool | None,
        typer.Option(
            "--leader-election/--no-leader-election",
            help="Take a lease before anything is done; without it, run one process only.",
        ),
    ] = None,
    port: PlainPort = None,
    host: Host = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Run the controller.

    It makes a Workload for every job with a topology request, places it, stores the admission, and lets the pods go
    to their slots. Kill it at any moment and start it again: it goes on from what the API server has.
    """
    given = {"leader_election": leader_election, "health_port": port, "bind_address": host}
    _become_settled("ungater", config, given, kubeconfig, context)


def agent(
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
    port: PlainPort = None,
    host: Host = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Run the agent of one node.

    It publishes the machine's hardware and what the kubelet has given to whom, as FlexTopo and NodeResourceTopology,
    and each pod's observed placement. It changes nothing on the machine.
    """
    from agent.settings import AgentSettings
    from crds.settings import SettingsError, from_mapping, load

    given = {
        "agent_node_name": node,
        "agent_sysfs": sysfs,
        "agent_kubelet_directory": kubelet,
        "health_port": port,
        "bind_address": host,
    }
    try:
        settings = load(config)
        if changes := {name: value for name, value in given.items() if value is not None}:
            settings = from_mapping({**settings.model_dump(), **changes}, source="command line")
    except SettingsError as error:
        raise Failure(str(error)) from error
    # Only what the agent reads: on every node, each setting more is parsed and kept.
    told = settings.model_dump(mode="json", include=set(AgentSettings.__struct_fields__))
    become("agent", {"settings": told, "kubeconfig": kubeconfig, "context": context})


def _become_settled(
    component: str,
    config: Path | None,
    given: Mapping[str, Any],
    kubeconfig: str | None,
    context: str | None,
    **more: Any,
) -> NoReturn:
    """Go on with settings that count for a whole installation."""
    from cli.settled import settled  # late, so that --help answers at once

    found = settled(config, given, kubeconfig, context)
    task = {"settings": found.settings.model_dump(mode="json"), "source": found.source, **more}
    become(component, {**task, "kubeconfig": kubeconfig, "context": context})


def program(component: str) -> str:
    """The program of a component's process, told its task as JSON.

    structlog imports rich where it is, to draw tracebacks on terminals: that is 3 MiB, and no component's log shows
    them. None is Python's own way to say that a module is not there.
    """
    start = f"from cli.run.component import main; main({component!r}, sys.argv[1])"
    return f"import sys; sys.modules['rich'] = None; {start}"


def become(component: str, task: Mapping[str, Any]) -> NoReturn:
    """Go on as a component, without what this process has imported by now. Its id and its parent stay."""
    import msgspec

    # Where a module is run out of a folder, the next one is found there too; where not, the folder is none of ours.
    paths = [] if sys.path[0] == os.getcwd() else ["-P"]  # noqa: PTH109 -- as the interpreter spells it
    # Its threads come and go: memory that each of them gets for itself is memory that no other uses.
    environment = {"MALLOC_ARENA_MAX": "1", **os.environ}
    text = msgspec.json.encode(task).decode()
    words = [sys.executable, *paths, "-c", program(component), text]
    os.execve(sys.executable, words, environment)  # noqa: S606 -- no shell
