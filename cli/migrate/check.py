"""``--check``: reads a cluster, and says which jobs nobody would queue and which queues differ from Kueue's."""

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

from rich.console import Group
from rich.text import Text

from cli.cluster.installed import in_use
from cli.install.installation import is_called
from cli.install.steps import read
from cli.migrate.convert_settings import leaves_served_out
from cli.migrate.judge_workloads import KEYS
from cli.migrate.leaves import list_leaves
from cli.migrate.migration import migrate_objects
from cli.migrate.nobody import Key, NobodyFinding, ServingView, find_unserved, read_queued
from cli.migrate.rows import Json
from cli.migrate.source_objects import DEPLOYMENT, list_resources, read_cluster, read_configuration
from cli.output import counted, in_one_line, some
from crds.constants import MIGRATED_FROM
from crds.owner_templates import OWNERS
from crds.settings import CONFIG_MAP
from engine.quantity import parse
from kube import queues, resources
from kube.client import Client
from kube.errors import NotFound
from kube.objects import Namespace, Object, PriorityClass
from kube.resources import Resource, resource_of

One = TypeVar("One", bound=Object)
_JOBS: Final = (
    *(resources.JOBS, resources.JOB_SETS, resources.PODS),
    *(Resource(one.group, one.version, one.plural, one.kind) for one in OWNERS),
)


async def check_cluster(client: Client, namespace: str, kueue_namespace: str) -> list[NobodyFinding]:
    """What is wrong with jobs that name a queue, and with queues that came from Kueue. Changes nothing."""
    view = await read_view(client, namespace, kueue_namespace)
    queued = [one async for body in list_queued(client) if (one := read_queued(body)) is not None]
    return [*find_unserved(view, queued), *await find_differing(client, kueue_namespace)]


async def read_view(client: Client, namespace: str, kueue_namespace: str) -> ServingView:
    """What decides who serves a job."""
    domain, beside, left_out = "", False, False
    config = await read(client, resources.CONFIG_MAPS, CONFIG_MAP, namespace)
    if config is not None and await is_called(client):
        settings = in_use(config, namespace).settings
        domain, beside = settings.domain, settings.beside_kueue
    if beside:
        configurations, _ = await read_configuration(client, kueue_namespace)
        left_out = any(leaves_served_out(one.body) for one in configurations)
    deployment = await read(client, resources.DEPLOYMENTS, DEPLOYMENT, kueue_namespace)
    kueues = {one.kind: one for one in await list_resources(client)}
    named: list[list[Key]] = []
    for kind in ("LocalQueue", "WorkloadPriorityClass"):
        found = await client.list(kueues[kind]) if kind in kueues else []
        named.append([(one["metadata"].get("namespace", ""), one["metadata"]["name"]) for one in found])
    ours = await _list_ours(client, resources.WORKLOAD_PRIORITY_CLASSES, PriorityClass)
    clusters = await _list_ours(client, resources.CLUSTER_QUEUES, queues.ClusterQueue)
    locals_ = await _list_ours(client, resources.LOCAL_QUEUES, queues.LocalQueue)
    namespaces = await client.list(resources.NAMESPACES, type=Namespace)
    return ServingView(
        domain=domain,
        cluster_queues={one.metadata.name: one for one in clusters},
        local_queues={(one.metadata.namespace, one.metadata.name): one for one in locals_},
        namespaces={one.metadata.name: dict(one.metadata.labels or {}) for one in namespaces},
        kueue_runs=bool(((deployment or {}).get("status") or {}).get("availableReplicas")),
        kueue_queues=frozenset(named[0]),
        classes=frozenset([*(name for _, name in named[1]), *(one.metadata.name for one in ours)]),
        beside=beside,
        left_out=left_out,
    )


async def _list_ours(client: Client, resource: Resource, type_: type[One]) -> list[One]:
    try:
        return await client.list(resource, type=type_)
    except NotFound:
        return []


async def list_queued(client: Client) -> AsyncIterator[Json]:
    """Jobs, pods and owners with the label of a queue. The report names a pod that one of them made by its owner."""
    listed: set[tuple[str, str]] = set()  # each version of a kind has all of its objects
    for resource in _JOBS:
        if (resource.group, resource.plural) in listed:
            continue
        try:
            bodies = await client.list(resource, label_selector=KEYS.queue_name)
        except NotFound:
            continue
        listed.add((resource.group, resource.plural))
        for body in bodies:
            owners = body["metadata"].get("ownerReferences") or ()
            if not any(owner.get("controller") for owner in owners):
                yield body | {"kind": resource.kind}


async def find_differing(client: Client, kueue_namespace: str) -> list[NobodyFinding]:
    """Objects of ours that came from Kueue, where Kueue's say something else by now."""
    if not await list_resources(client):
        return []
    report = migrate_objects(await read_cluster(client, kueue_namespace))
    # One list a kind: a cluster has thousands of queues.
    ours: dict[tuple[Resource, Key], Json] = {}
    for resource in {resource_of(wanted): None for wanted in report.objects}:
        with suppress(NotFound):
            ours |= {(resource, _key_of(one)): one for one in await client.list(resource)}
    found = []
    for wanted in report.objects:
        meta, stored = wanted["metadata"], ours.get((resource_of(wanted), _key_of(wanted)))
        annotations = ((stored or {}).get("metadata") or {}).get("annotations") or {}
        if stored is not None and MIGRATED_FROM in annotations and (fields := [*differing_fields(wanted, stored)]):
            about = f"{wanted['kind']} {meta.get('namespace', '')}{'/' * ('namespace' in meta)}{meta['name']}"
            message = f"it differs from what Kueue's object says now, in {some([in_one_line(one) for one in fields])}"
            mend = "if Kueue's is right: `topogate migrate kueue --apply --overwrite`"
            found.append(NobodyFinding(about, message, mend))
    return found


def _key_of(body: Json) -> Key:
    return body["metadata"].get("namespace", ""), body["metadata"]["name"]


def differing_fields(wanted: Json, stored: Json) -> Iterator[str]:
    """Fields of ``wanted`` that have another value in ``stored``, or none. More fields there are defaults."""
    kept = {leaf.path: leaf.value for leaf in list_leaves(stored)}
    for leaf in list_leaves(wanted):
        # An empty mapping is filled with defaults.
        is_same = leaf.value in ({}, []) or _is_same(kept.get(leaf.path), leaf.value)
        if leaf.path[0] not in ("apiVersion", "kind", "metadata") and not is_same:
            yield leaf.field


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same, or the same quantity: Kueue's client writes 4000m as 4."""
    try:
        return bool(one == other) or parse("cpu", one) == parse("cpu", other)
    except (ValueError, TypeError):
        return False


def render_findings(found: list[NobodyFinding]) -> Group:
    """Each finding with its remedy below."""
    if not found:
        return Group(Text("Each job that names a queue is queued by Topogate or by Kueue, and by one of them alone."))
    lines: list[Text] = []
    for one in found:
        lines.append(Text.assemble((one.about, "bold"), f": {one.message}"))
        lines.append(Text(f"  -> {one.mend}"))
    return Group(*lines, Text(counted(len(found), "finding")))
