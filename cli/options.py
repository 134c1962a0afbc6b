"""Options that several commands have. Nothing is imported here but what declares them: --help is to answer at once."""

import re
from pathlib import Path
from typing import Annotated

import typer

from cli.output import Failure

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Settings file; default /etc/topogate/config.yaml; where there is none, the ConfigMap topogate-config "
        "counts.",
    ),
]
ClusterFiles = Annotated[
    list[str] | None,
    typer.Option(
        "-f",
        "--cluster",
        metavar="FILE",
        help="A snapshot (topogate snapshot, kubectl get -o yaml) instead of the live cluster; repeat for more.",
    ),
]
InstalledDomain = Annotated[
    str | None, typer.Option("--domain", help="Domain of the annotations; default what was installed.")
]
PrometheusLabels = Annotated[
    list[str] | None,
    typer.Option(
        "--prometheus-label",
        metavar="NAME=VALUE",
        help="A label that only the series of this cluster have there; repeat for more.",
    ),
]


def checked_url(url: str) -> str:
    """The URL of a Prometheus, or "". Raises Failure."""
    if url and not re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", url):
        raise Failure(f"--prometheus {url}: expected http://HOST:PORT, or https, and its path where it has one")
    return url


def checked_labels(given: list[str], url: str) -> dict[str, str]:
    """The labels of the series of a cluster. Raises Failure."""
    if given and not url:
        raise Failure("--prometheus-label says more about --prometheus: give that too")
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise Failure(f"--prometheus-label {one}: expected NAME=VALUE, such as cluster=east")
        found[name] = value
    return found
