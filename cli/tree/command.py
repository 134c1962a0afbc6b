"""``topogate tree``: the topology domains of a cluster, what they have, and what is free in them."""

from enum import StrEnum
from typing import Annotated

import typer

from cli.cluster import cluster_snapshot
from cli.options import ClusterFiles, InstalledDomain
from cli.output import Context, Kubeconfig, OutputFormat, emit, stdout
from cli.tree.rendering import render
from cli.tree.report import TreeWish, report


class TreeFormat(StrEnum):
    """What ``-o`` accepts here."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def command(
    under: Annotated[
        str, typer.Argument(metavar="[DOMAIN]", help="Only this domain and what is in it, e.g. block-1/rack-2.")
    ] = "",
    flavor: Annotated[str, typer.Option(help="Only this ResourceFlavor.")] = "",
    level: Annotated[
        str, typer.Option(help="The narrowest level to show, by its key or the end of it, e.g. rack or hostname.")
    ] = "",
    resource: Annotated[
        list[str] | None,
        typer.Option(help="Only this resource, by its name or the end of it, e.g. gpu; repeat for more."),
    ] = None,
    workloads: Annotated[bool, typer.Option("--workloads", help="Say who holds something in each domain.")] = False,
    output: Annotated[
        TreeFormat, typer.Option("-o", "--output", help="Output format; wide: every node, every number.")
    ] = TreeFormat.TABLE,
    files: ClusterFiles = None,
    domain: InstalledDomain = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Show the topology: every domain with its nodes, and how much of what they have is used and free.

    What pods that do not run yet were promised counts as used. Large clusters are folded to the widest levels: --level
    or a DOMAIN shows more. Reads the cluster or a snapshot; changes nothing.
    """
    dump, settings, _ = cluster_snapshot.fetch(files, domain, kubeconfig, context)
    wish = TreeWish(
        flavor,
        level,
        tuple(filter(None, under.split("/"))),
        tuple(resource or ()),
        workloads,
        # Programs get every domain; only a terminal has too few lines.
        folded=output is TreeFormat.TABLE,
    )
    found = report(cluster_snapshot.cache_of(dump, settings), wish)
    if output in {TreeFormat.TABLE, TreeFormat.WIDE}:
        stdout().print(render(found, wide=output is TreeFormat.WIDE))
    else:
        emit(found, OutputFormat(output))
