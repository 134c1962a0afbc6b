"""``topogate explain JOB``: where a job's pods went, or why it waits and how close each domain comes."""

from functools import partial
from typing import Annotated

import typer

from cli.cluster.owner_names import WHOM, one_owner
from cli.cluster.room_report import CLOSEST
from cli.connected import connected
from cli.explain.rendering import render_all
from cli.explain.report import Report, reports
from cli.options import InstalledDomain
from cli.output import Context, Kubeconfig, Output, OutputFormat, emit
from cli.reaching import CONNECTIONS, MayNotLook
from cli.stored import render_jobs, stored_jobs
from kube.client import Client


def command(
    owner: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB",
            help=WHOM,
        ),
    ],
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Namespace of the owner.")] = None,
    domain: InstalledDomain = None,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Show every domain, not the {CLOSEST} that come closest.")
    ] = False,
    output: Output = OutputFormat.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Say where a job's pods went, or why it waits; of an owner with several workloads, of each of them.

    For a waiting job: its place in the queue and the quota that is lacking, how many of its pods each domain of the
    requested level could take now, what limits it there, and what is short. Reads the cluster; changes nothing. If you
    may not look at the whole cluster, it says what is stored in your namespace.
    """

    async def read_reports(client: Client) -> tuple[Report, ...]:
        return await reports(client, namespace or client.connection.namespace, job, domain=domain)

    job = one_owner(owner)

    try:
        # Rights decide what is shown: the whole cluster first, else what is stored in one's own namespace.
        found = connected(read_reports, kubeconfig, context, connections=CONNECTIONS)
    except MayNotLook:
        work = partial(stored_jobs, namespace=namespace, name=job)
        stored = connected(work, kubeconfig, context, connections=CONNECTIONS)
        emit(stored[0] if len(stored) == 1 else {"items": stored}, output, table=render_jobs(stored))
        return
    emit(
        found[0] if len(found) == 1 else {"items": found}, output, table=render_all(found, 0 if everything else CLOSEST)
    )
