"""What there is of Kueue and of Topogate, as far as a move asks for it."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from cli.cluster.dump import FoundObject
from cli.migrate.convert_flavors import FLAVOR
from cli.migrate.convert_queues import CLUSTER_QUEUE, COHORT
from cli.migrate.moves import quiet
from cli.migrate.moves.backup import Backups, as_before, read_backups, spec_before
from cli.migrate.moves.steps import LinkedQueue, QueueLinks, read_amount
from cli.migrate.rows import Json
from cli.migrate.source_objects import KueueObjectsRead, list_resources, read_cluster
from cli.output import Failure
from crds.constants import SERVED
from kube.client import Client
from kube.errors import Forbidden, NotFound
from kube.objects import Namespace, Pod, controller_of
from kube.resources import CLUSTER_QUEUES, JOB_SETS, JOBS, NAMESPACES, PODS, WORKLOADS, Resource
from kube.workloads import WorkloadObject
from ungater.model.kueue_objects import KueueWorkload

VERSION = "v1beta2"
LOCAL_QUEUE = "LocalQueue"
FEW = 10  # namespaces, which are read one by one
LARGE_PART = 4  # as much of the cluster's namespaces, at least, is read with all the others: a quarter
T = TypeVar("T")


class MoveSight(msgspec.Struct, frozen=True):
    """One look at the cluster.

    ``kinds``: Kueue's, as they are served; ``read``: its objects, queues that moved as they were before; ``live``: its
    ClusterQueues as they are; ``labels``: of namespaces; ``ours``: our ClusterQueues.
    """

    kinds: Mapping[str, Resource]
    read: KueueObjectsRead
    live: Mapping[str, Json]
    view: QueueLinks
    backups: Backups
    labels: Mapping[str, dict[str, str]]
    ours: Mapping[str, Json]

    def unserved_of(self, namespaces: Collection[str]) -> list[str]:
        """Those of some namespaces that are not labelled; one that is gone is nobody's."""
        return [name for name in namespaces if name in self.labels and self.labels[name].get(SERVED) != "true"]

    def uid_of(self, queue: str) -> str:
        """Of a ClusterQueue of Kueue."""
        return str(self.live[queue]["metadata"]["uid"])

    def spans_cluster(self, namespaces: Collection[str]) -> bool:
        """Whether these namespaces are better read with one list of the cluster than with one list of each."""
        # Of a small part of a large cluster, one list each brings less, however many they are.
        return len(namespaces) > FEW and len(namespaces) * LARGE_PART >= len(self.labels)


class JobsSeen(msgspec.Struct, frozen=True):
    """What runs and waits in some namespaces: Kueue's Workloads, Jobs and JobSets by uid, and pods."""

    workloads: list[KueueWorkload]
    jobs: dict[str, Json]
    pods: list[Pod]


async def look_around(client: Client, kueue_namespace: str, namespace: str) -> MoveSight:
    """Read all that a move decides by. Raises Failure where Kueue's kinds are not there, or too old."""
    kinds = {one.kind: one for one in await list_resources(client)}
    read = await read_cluster(client, kueue_namespace)
    queue = kinds.get(CLUSTER_QUEUE)
    if queue is None or queue.version != VERSION:
        raise Failure(
            f"Kueue serves no ClusterQueues of {VERSION} here: update it to 0.15 or newer first, whose selector of "
            "namespaces counts for jobs with a queue too"
        )
    # Before they moved, queues had their cohorts and limits: what is made of them here is made of that.
    backups = await read_backups(client, namespace)
    live = {one.name: one.body for one in read.found if one.kind == CLUSTER_QUEUE}
    before = {
        name: spec_before(body, known)
        for name, body in live.items()
        if (known := backups.of_queue(name, str(body["metadata"]["uid"]))) is not None
    }
    found = [as_before(one, backups) for one in read.found]
    view = make_view(found, before)
    namespaces = await client.list(NAMESPACES, type=Namespace)
    labels = {one.metadata.name: dict(one.metadata.labels or {}) for one in namespaces}
    ours = {one["metadata"]["name"]: one for one in await list_or_none(client, CLUSTER_QUEUES)}
    return MoveSight(kinds, replace(read, found=found), live, view, backups, labels, ours)


def make_view(found: list[FoundObject], before: Mapping[str, Json]) -> QueueLinks:
    """What decides about steps, from Kueue's objects and the specs of queues that moved."""
    of_kind: defaultdict[str, list[FoundObject]] = defaultdict(list)
    for one in found:
        of_kind[one.kind].append(one)
    specs = {one.name: one.body.get("spec") or {} for one in of_kind[CLUSTER_QUEUE]}
    links = [
        LinkedQueue(one.body["metadata"]["namespace"], one.name, str(spec_of(one).get("clusterQueue")))
        for one in of_kind[LOCAL_QUEUE]
    ]
    return QueueLinks(
        specs=specs,
        local_queues=sorted(links),
        parents={one.name: str(spec_of(one).get("parentName") or "") for one in of_kind[COHORT]},
        topologies=frozenset(one.name for one in of_kind[FLAVOR] if spec_of(one).get("topologyName")),
        moved=frozenset(before),
    )


def spec_of(one: FoundObject) -> Json:
    """Its spec, empty where it has none."""
    return one.body.get("spec") or {}


async def list_or_none(client: Client, resource: Resource, namespace: str | None = None) -> list[Json]:
    """All objects of a kind; none where it is not served."""
    try:
        return await client.list(resource, namespace)
    except NotFound:
        return []


async def look_at_jobs(client: Client, sight: MoveSight, namespaces: Collection[str]) -> JobsSeen:
    """What runs and waits in these namespaces."""
    seen = JobsSeen([], {}, [])
    # While Kueue's kinds are deleted, that of its Workloads may be gone already.
    if not namespaces:
        return seen
    # Workloads before jobs: one that is admitted meanwhile has a job that is not started, and counts as under way.
    seen.workloads.extend(await list_in(client, sight, sight.kinds["Workload"], namespaces, KueueWorkload))
    for resource in (JOBS, JOB_SETS):
        for body in await list_in(client, sight, resource, namespaces, dict[str, Any]):
            seen.jobs[body["metadata"]["uid"]] = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
    seen.pods.extend(await list_in(client, sight, PODS, namespaces, Pod))
    return seen


async def list_in(
    client: Client, sight: MoveSight, resource: Resource, namespaces: Collection[str], kind: type[T]
) -> list[T]:
    """All objects of a kind in these namespaces, as ``kind``; none where the kind is not served."""
    try:
        if sight.spans_cluster(namespaces):
            # Where only the namespaces may be read, they are read one by one.
            with suppress(Forbidden):
                every, wanted = await client.list(resource, type=kind), frozenset(namespaces)
                return [one for one in every if _namespace_of(one) in wanted]
        return [one for name in namespaces for one in await client.list(resource, name, type=kind)]
    except NotFound:
        return []


def _namespace_of(one: Any) -> str:
    meta = one["metadata"] if isinstance(one, dict) else one.metadata
    return str(meta["namespace"] if isinstance(meta, dict) else meta.namespace)


async def look_at_ours(client: Client, sight: MoveSight, namespaces: Collection[str]) -> dict[str, WorkloadObject]:
    """Our Workloads in these namespaces by the uid of what they are of; pod groups, which have no owner, by name."""
    found: dict[str, WorkloadObject] = {}
    for one in await list_in(client, sight, WORKLOADS, namespaces, WorkloadObject):
        owner = controller_of(one.metadata)
        found[owner.uid if owner is not None else f"{one.metadata.namespace}/{one.metadata.name}"] = one
    return found


def used_amounts(workloads: list[KueueWorkload]) -> dict[str, dict[tuple[str, str], int]]:
    """What workloads that run have by Kueue's admission: by queue, flavor and resource."""
    used: defaultdict[str, defaultdict[tuple[str, str], int]] = defaultdict(lambda: defaultdict(int))
    for one in workloads:
        if (given := one.status.admission) is None or not quiet.is_admitted(one):
            continue
        for part in given.pod_set_assignments:
            for resource, flavor in (part.flavors or {}).items():
                amount = read_amount(resource, (part.resource_usage or {}).get(resource))
                used[given.cluster_queue][flavor, resource] += amount
    return {queue: dict(amounts) for queue, amounts in used.items()}
