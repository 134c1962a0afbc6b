"""``topogate queues``: who waits where, in which place, for what; and how much of each quota is used."""

from functools import partial
from typing import Annotated

import typer

from cli.cluster import installed, live_queues
from cli.connected import connected
from cli.output import Context, Kubeconfig, Output, OutputFormat, emit
from cli.queues.rendering import render
from cli.queues.report import QueuesReport, report
from cli.reaching import CONNECTIONS, MayNotLook
from cli.stored import render_queues, stored_queues
from kube.client import Client
from ungater.cache.rules import queue_rules


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="[QUEUE]", help="A LocalQueue of the namespace, or a ClusterQueue.")
    ] = None,
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Whose queues and workloads.")] = None,
    every: Annotated[bool, typer.Option("-A", "--all-namespaces", help="All queues and workloads.")] = False,
    output: Output = OutputFormat.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Say who waits in the queues, in which place and for what, and how much of each quota is used.

    Without a name: the cluster queues that serve the namespace, and its workloads in them; positions count everybody.
    Reads the cluster; changes nothing. If you may not look at the whole cluster, it says what is stored in your
    namespace.
    """

    async def read_report(client: Client) -> QueuesReport:
        rules = queue_rules(await installed.settings_with_warning(client))
        reading = await live_queues.read(client, rules)
        return report(reading, None if every else namespace or client.connection.namespace, name)

    try:
        result = connected(read_report, kubeconfig, context, connections=CONNECTIONS)
    except MayNotLook:
        # A tenant's own namespace is no answer to a question about the cluster or a named queue.
        if every or name:
            raise
        stored = connected(partial(stored_queues, namespace=namespace), kubeconfig, context, connections=CONNECTIONS)
        emit(stored, output, table=render_queues(stored))
        return
    emit(result, output, table=render(result))
