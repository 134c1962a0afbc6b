"""``topogate web``: the page, for a person at his own machine or for everybody as a component of a cluster."""

import asyncio
import os
import secrets
import signal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import Config, PrometheusLabels, checked_labels, checked_url
from cli.output import Context, Failure, Kubeconfig, stderr, stdout

if TYPE_CHECKING:
    from cli.web.running import Wish

PORT = 8090
KEY_VARIABLE = "TOPOGATE_WEB_KEY"
SHORTEST_KEY = 16


class Authentication(StrEnum):
    """Who is let in."""

    KEY = "key"
    KUBERNETES = "kubernetes"


Files = Annotated[
    list[str] | None,
    typer.Option(
        "-f",
        "--snapshot",
        metavar="FILE",
        help="A snapshot (topogate snapshot, kubectl get -o yaml) instead of the live cluster; repeat for more.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Write the page with all that it shows into one HTML file, which opens without a server.",
    ),
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port of the page; 0: any free one.")]
Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
Names = Annotated[
    list[str] | None,
    typer.Option("--allowed-host", metavar="NAME", help="A name that browsers know the page by; repeat for more."),
]
Mode = Annotated[
    Authentication,
    typer.Option(
        help="key: whoever has the link that is printed sees what you may see; kubernetes: everybody logs in with a "
        "token of his own, and sees what that may."
    ),
]
Certificate = Annotated[
    Path | None, typer.Option("--tls-certificate", metavar="FILE", help="Serve over TLS: the certificate, PEM.")
]
Key = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key, PEM.")]
PrometheusUrl = Annotated[
    str,
    typer.Option(
        "--prometheus",
        metavar="URL",
        help="Take History from a Prometheus that has the metrics of Topogate, and not from what the page saw itself.",
    ),
]
ClusterName = Annotated[
    str,
    typer.Option("--cluster-name", metavar="NAME", help="What the page calls the cluster; default: your context."),
]
HealthPort = Annotated[
    int | None, typer.Option("--health-port", min=0, max=65535, help="Also serve /healthz and /readyz here, plain.")
]


def command(
    config: Config = None,
    snapshot: Files = None,
    out: Out = None,
    port: Port = PORT,
    host: Host = "127.0.0.1",
    allowed: Names = None,
    authentication: Mode = Authentication.KEY,
    certificate: Certificate = None,
    key: Key = None,
    health_port: HealthPort = None,
    prometheus: PrometheusUrl = "",
    prometheus_label: PrometheusLabels = None,
    cluster_name: ClusterName = "",
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show a cluster as a page: what is where, who waits and why, and what if. Changes nothing.

    Beside your kubeconfig it listens on this machine alone, and prints a link that opens it. It takes ClusterRole
    topogate-inspect.
    """
    from web.viewers.doors import is_local  # late, so that --help answers at once

    if (certificate is None) != (key is None):
        raise Failure("--tls-certificate and --tls-key go together")
    # One key opens all that this account may read. Over a network, a link that is passed on would open it to anybody.
    if authentication is Authentication.KEY and not is_local(host):
        raise Failure(
            f"--host {host}: others reach it, so let each log in by a token of his own: --authentication kubernetes"
        )
    if snapshot and authentication is Authentication.KUBERNETES:
        raise Failure("--snapshot is for one person: there is nobody who could say what others may see of a file")
    if prometheus and (snapshot or out):
        raise Failure("--prometheus is of a cluster that is watched: it goes with neither --snapshot nor --out")
    from cli.web.running import Wish

    wish = Wish(
        host=host,
        port=port,
        names=tuple(allowed or ()),
        # From the environment alone: arguments are seen by all users of the machine.
        key=_key(os.environ.get(KEY_VARIABLE, "")) if authentication is Authentication.KEY else "",
        certificate=(certificate, key) if certificate is not None and key is not None else None,
        health_port=health_port,
        out=out,
        prometheus=checked_url(prometheus),
        labels=checked_labels(prometheus_label or [], prometheus),
        cluster=cluster_name,
    )
    _show(snapshot, wish, config, kubeconfig, context)


def _key(given: str) -> str:
    """The key that opens the page: a new one, or the given one, with which a link goes on after a restart. Failure."""
    if given and (len(given) < SHORTEST_KEY or not given.isascii() or not given.isprintable() or " " in given):
        raise Failure(f"{KEY_VARIABLE}: expected at least {SHORTEST_KEY} ASCII characters without blanks")
    return given or secrets.token_urlsafe(24)


def _show(
    snapshot: list[str] | None, wish: "Wish", config: Path | None, kubeconfig: str | None, context: str | None
) -> None:
    """Serve the page, or write it, of files or of the live cluster."""
    from cli import logs  # late: it configures logging, which other commands leave alone
    from cli.reaching import failure
    from cli.settled import settled
    from cli.web import running
    from crds.settings import Settings
    from kube.errors import KubeError

    settings = Settings() if snapshot else settled(config, {}, kubeconfig, context, patient=False).settings
    files = running.of_files(snapshot, settings) if snapshot else None
    if wish.out is not None:
        found = files or running.taken_now(kubeconfig, context, settings)
        name = wish.cluster or ("" if files else running.name_of(kubeconfig, context))
        running.write(wish.out, found, settings, cluster=name)
        stderr().print(f"open {wish.out} in a browser", soft_wrap=True)
        return
    if files is not None:
        serving = running.serve_files(files, settings, wish, _stop_event, _print_address)
    else:
        # Beside a person, only what is wrong.
        logs.configure(settings if not wish.key else settings.model_copy(update={"log_level": "warning"}))
        serving = running.serve_cluster(settings, wish, kubeconfig, context, _stop_event, _print_address)
    try:
        asyncio.run(serving)
    except KubeError as error:  # before the other: a KubeTimeout is an OSError too, and says nothing of our port
        raise failure(error, kubeconfig, context) from error
    except OSError as error:
        raise Failure(f"port {wish.port} of {wish.host} cannot be served: {error.strerror or error}") from error


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _print_address(url: str) -> None:
    stdout().print(f"The page is at\n\n  {url}\n\nuntil Ctrl-C.", soft_wrap=True)
