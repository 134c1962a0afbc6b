"""``topogate doctor``."""

from collections import Counter
from functools import partial
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from cli.cluster import cluster_snapshot
from cli.cluster.leader import absence
from cli.connected import connected
from cli.doctor import classes, devices, hanging, installation, nodes, queues, unmade, unqueued
from cli.doctor.findings import Finding, Weight, unknown
from cli.doctor.hanging import HangingView
from cli.doctor.nodes import NodesView
from cli.output import Context, Failure, Kubeconfig, Output, OutputFormat, counted, emit, progress
from cli.reaching import CONNECTIONS
from clock import SYSTEM, Clock
from crds.constants import NAMESPACE, Keys
from crds.owner_templates import OWNERS
from engine.reasons import Reason
from kube.client import Client
from kube.errors import Forbidden, NotFound
from kube.resources import EVENTS, Resource
from kube.told_events import ToldEvent
from manifests.render import UNGATER
from ungater import kinds
from ungater.jobs.pod_group import mark_of
from ungater.model.pod_slots import finished
from ungater.numa.sources import SourceRules

STYLES = {Weight.ERROR: "bold red", Weight.WARNING: "yellow", Weight.UNKNOWN: "dim"}


def command(
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of Topogate itself.")] = NAMESPACE,
    output: Output = OutputFormat.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Look for what is wrong with Topogate in this cluster, and name the command that mends it. Changes nothing.

    The exit status is 3 where something does not work, else 0.
    """
    with progress("examining the cluster"):
        work = partial(_examine, namespace=namespace)
        found = connected(work, kubeconfig, context, connections=CONNECTIONS, administrator="topogate doctor")
    # A stable sort: within a weight the order of the checks stays, causes before effects.
    found.sort(key=lambda one: list(Weight).index(one.weight))
    emit({"findings": found}, output, table=render_findings(found))
    if any(one.weight is Weight.ERROR for one in found):
        # After the output. 3 tells a script "something is wrong" from 1, "could not be examined".
        raise typer.Exit(3)


async def _examine(client: Client, namespace: str, clock: Clock = SYSTEM) -> list[Finding]:
    # First, and on its own rights: a broken installation is reported even where the rest may not be read.
    seen = await installation.look_at(client, namespace)
    found = list(installation.judge(seen, clock.utc(), version("topogate")))
    try:
        dump = await cluster_snapshot.read(client)
    except Failure as refused:
        return [*found, unknown("nodes", str(refused), "topogate doctor, as somebody who may list these")]
    cache = cluster_snapshot.cache_of(dump, seen.settings)
    asked = [
        (f"{entry.job.kind} {entry.job.key}", {**(one.template.metadata.annotations or {}), **one.wishes})
        for entry in cache.entries.values()
        # Wishes of finished jobs bind no kubelet.
        if not entry.job.over
        for one in entry.job.pod_sets
    ]
    placed = []
    for pod in dump.of(kinds.PODS):
        if pod.spec.node_name and not finished(pod) and (workload := mark_of(pod, Keys(seen.settings.domain))):
            key = f"{pod.metadata.namespace}/{workload}"
            owned = cache.entries.of_workload(key)
            placed.append((owned.job.title if owned is not None else f"Workload {key}", pod))
    about = NodesView(
        nodes=dump.of(kinds.NODES),
        flavors=dump.of(kinds.FLAVORS),
        topologies=dump.by_key(kinds.NODE_TOPOLOGIES),
        flexes=dump.by_key(kinds.FLEX_TOPOS),
        asked=asked,
        agent=seen.agent,
        install=seen.install_command,
        placed=placed,
        rules=SourceRules(seen.settings.numa_ignored_resources, seen.settings.xpu_resources),
    )
    held = HangingView(tuple(cache.entries.values()), dump.of(kinds.WORKLOADS), await _events(client), clock.now())
    given = devices.given_twice(cache.state)
    account = f"system:serviceaccount:{namespace}:{UNGATER}"
    # Without a leader, missing Workloads follow from that, and only that is reported.
    led = not absence(seen.lease, clock.utc())
    unmade_jobs = unmade.findings(held, seen.settings.keys, account, led=led)
    of_queues = queues.findings(cache.queues, cache.state.flavors, defaults=seen.defaults)
    of_classes = classes.findings(cache.classes.rules)
    owners, unread = await list_owners(client, seen.settings.keys)
    of_owners = [*unqueued.findings(owners, seen.settings.keys), *unread]
    of_jobs = [*hanging.findings(held), *unmade_jobs, *of_owners]
    return [*found, *nodes.findings(about), *of_queues, *of_classes, *given, *of_jobs]


async def list_owners(client: Client, keys: Keys) -> tuple[list[unqueued.Owned], list[Finding]]:
    """The owners of pods that name a queue, of each kind that is served; and the kinds that may not be listed."""
    found: list[unqueued.Owned] = []
    refused: list[Finding] = []
    listed: set[tuple[str, str]] = set()  # each version of a kind has all of its objects
    for kind in OWNERS:
        resource = Resource(kind.group, kind.version, kind.plural, kind.kind)
        if (kind.group, kind.plural) in listed:
            continue
        try:
            found += [(kind, body) for body in await client.list(resource, label_selector=keys.queue_name)]
        except NotFound:
            continue
        except Forbidden as error:
            refused.append(unknown(str(resource), str(error), "topogate doctor, as somebody who may list these"))
        listed.add((kind.group, kind.plural))
    return found, refused


async def _events(client: Client) -> list[ToldEvent]:
    """What nodes and jobs were told; none where these may not be read, as nothing else depends on it."""
    reasons = (hanging.LEFT_OUT, Reason.WRITE_FAILED)
    try:
        told = [await client.list(EVENTS, type=ToldEvent, field_selector=f"reason={reason}") for reason in reasons]
    except Forbidden:
        return []
    return [one for each in told for one in each]


def render_findings(found: list[Finding]) -> Group:
    """Each finding with its remedy below."""
    if not found:
        return Group(
            Text("Nothing is wrong: installation, certificates, rights, flavors, queues, labels and agents are fine.")
        )
    lines: list[Text] = []
    for one in found:
        lines.append(Text.assemble((f"{one.weight}: ", STYLES[one.weight]), f"{one.about}: {one.message}"))
        lines.append(Text(f"  -> {one.mend}"))
    counts = Counter(one.weight for one in found)
    lines.append(Text(", ".join(counted(count, weight) for weight, count in counts.items())))
    return Group(*lines)
