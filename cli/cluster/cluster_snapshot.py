"""The controller's own memory of a cluster, made of one reading of it: what it would know after a restart.

Commands that say what the controller would do ask the controller's code, on the same data. Nothing is written.
"""

import asyncio
import sys
from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar

from cli.cluster import dump as dumps
from cli.cluster import installed
from cli.cluster.dump import Dump
from cli.output import Failure, progress
from cli.reaching import CONNECTIONS, INSPECT, MayNotLook, failure
from clock import SYSTEM, Clock
from crds.constants import Keys
from crds.settings import Settings
from kube import objects
from kube.client import Client
from kube.errors import Forbidden, KubeError, NotFound
from kube.informer import Event, EventKind
from kube.parents import ControllerRevision, JobSet, LeaderWorkerSet
from kube.pods.device_claims import DeviceClass
from kube.pods.devices import DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from kube.pods.volumes import claims_of
from kube.queues import ClusterQueue, LocalQueue
from kube.replicas import REPLICATED, read_as
from kube.resources import (
    CLAIM_TEMPLATES,
    CLUSTER_QUEUES,
    CONTROLLER_REVISIONS,
    CSI_DRIVERS,
    CSI_NODES,
    CSI_STORAGE_CAPACITIES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    FLEX_TOPOS,
    JOB_SETS,
    JOBS,
    LEADER_WORKER_SETS,
    LIMIT_RANGES,
    LOCAL_QUEUES,
    NAMESPACES,
    NODE_RESOURCE_TOPOLOGIES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_GROUPS,
    POD_GROUPS_ALPHA,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_FLAVORS,
    RESOURCE_SLICES,
    RUNTIME_CLASSES,
    STORAGE_CLASSES,
    WORKLOADS,
    Resource,
)
from kube.topologies import FlexTopo, NodeResourceTopology
from kube.versions import SchedulerRules, newest, scheduler_rules
from kube.volumes.available import host_of, is_available
from kube.volumes.binding import Storage
from kube.volumes.objects import (
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from ungater.cache.cache import Cache
from ungater.cache.rules import device_resources, queue_rules
from ungater.cache.stores import Stores
from ungater.guard import Guard
from ungater.jobs.leaderworkerset import NAME as LEADER_SET_NAME
from ungater.jobs.pod_group import owner_key
from ungater.model.kueue_objects import PRIORITY_CLASSES as PRIORITY_CLASSES_OF_KUEUE
from ungater.model.workload_object import Workload
from ungater.numa.node_topologies import Options, Sources
from ungater.numa.notices import Silent

T = TypeVar("T")
One = TypeVar("One", bound=objects.Object)
# A file of tens of thousands of bad objects would fill the terminal otherwise.
MOST_LINES = 8  # about what was left out


async def read(client: Client) -> Dump:
    """List all that decides placement. Raises Failure where something may not be listed; KubeError."""
    try:
        # All lists at once: one after the other they would lie further apart in time. A failure ends the others.
        async with asyncio.TaskGroup() as group:
            version = group.create_task(client.server_version())
            nodes = group.create_task(client.list(NODES, type=objects.Node))
            pods = group.create_task(client.list(PODS, type=objects.Pod))
            jobs = group.create_task(client.list(JOBS, type=objects.Job))
            namespaces = group.create_task(client.list(NAMESPACES, type=objects.Namespace))
            classes = group.create_task(client.list(PRIORITY_CLASSES, type=objects.PriorityClass))
            limit_ranges = group.create_task(client.list(LIMIT_RANGES, type=objects.LimitRange))
            runtime_classes = group.create_task(client.list(RUNTIME_CLASSES, type=objects.RuntimeClass))
            of_workloads = group.create_task(workload_classes(client, objects.PriorityClass))
            flavors = group.create_task(_served(client, objects.ResourceFlavor, RESOURCE_FLAVORS))
            queues = group.create_task(_served(client, ClusterQueue, CLUSTER_QUEUES))
            local = group.create_task(_served(client, LocalQueue, LOCAL_QUEUES))
            workloads = group.create_task(_served(client, Workload, WORKLOADS))
            topologies = group.create_task(_served(client, NodeResourceTopology, NODE_RESOURCE_TOPOLOGIES))
            job_sets = group.create_task(_served(client, JobSet, JOB_SETS))
            leaders = group.create_task(_served(client, LeaderWorkerSet, LEADER_WORKER_SETS))
            revised = group.create_task(revisions(client, ControllerRevision))
            replicated = [group.create_task(listed(client, read_as(one), one, *older)) for one, older in REPLICATED]
            flexes = group.create_task(_served(client, FlexTopo, FLEX_TOPOS))
            claims = group.create_task(client.list(PERSISTENT_VOLUME_CLAIMS, type=PersistentVolumeClaim))
            volumes = group.create_task(client.list(PERSISTENT_VOLUMES, type=PersistentVolume))
            storage_classes = group.create_task(client.list(STORAGE_CLASSES, type=StorageClass))
            csi_nodes = group.create_task(client.list(CSI_NODES, type=CsiNode))
            csi_drivers = group.create_task(client.list(CSI_DRIVERS, type=CsiDriver))
            capacities = group.create_task(client.list(CSI_STORAGE_CAPACITIES, type=CsiStorageCapacity))
            devices = group.create_task(_devices(client))
            native = group.create_task(_groups(client))
    except ExceptionGroup as errors:
        # Calls that lack a right often fail together; one message is enough for a person to act on.
        error = errors.exceptions[0]
        if isinstance(error, Forbidden):
            raise MayNotLook(f"{error}. This command reads the whole cluster: {INSPECT}") from error
        raise error from None
    return Dump(
        version=version.result(),
        flavors=flavors.result(),
        jobs=jobs.result(),
        job_sets=job_sets.result(),
        leaders=leaders.result(),
        revisions=revised.result()[1],
        replicated=[(kind, one) for task in replicated for kind, found in [task.result()] for one in found],
        nodes=nodes.result(),
        pods=pods.result(),
        workloads=workloads.result(),
        topologies={one.metadata.name: one for one in topologies.result()},
        flexes={one.metadata.name: one for one in flexes.result()},
        cluster_queues=queues.result(),
        local_queues=local.result(),
        namespaces=namespaces.result(),
        priority_classes=classes.result(),
        limit_ranges=limit_ranges.result(),
        runtime_classes=runtime_classes.result(),
        workload_classes=of_workloads.result()[1],
        claims=claims.result(),
        volumes=volumes.result(),
        storage_classes=storage_classes.result(),
        csi_nodes=csi_nodes.result(),
        csi_drivers=csi_drivers.result(),
        capacities=capacities.result(),
        native_groups=native.result() or [],
        reads_groups=native.result() is not None,
        **devices.result(),
    )


async def _served(client: Client, kind: type[T], resource: Resource) -> list[T]:
    return (await listed(client, kind, resource))[1]


async def _devices(client: Client) -> dict[str, Any]:
    """Fields of a `Dump`: all that tells which devices there are, and who holds them."""
    # Where no API server serves rules, devices may carry taints that nobody here sees: `reads_devices` says so.
    rules = await _if_served(client, DeviceTaintRule, DEVICE_TAINT_RULES)
    return {
        "device_classes": await _served(client, DeviceClass, DEVICE_CLASSES),
        "taint_rules": rules or [],
        "reads_devices": rules is not None,
        "resource_slices": await _served(client, ResourceSlice, RESOURCE_SLICES),
        "claim_templates": await _served(client, ResourceClaimTemplate, CLAIM_TEMPLATES),
        "resource_claims": await _served(client, ResourceClaim, RESOURCE_CLAIMS),
    }


async def _if_served(client: Client, kind: type[T], resource: Resource) -> list[T] | None:
    with suppress(NotFound):
        return list(await client.list(resource, type=kind))
    return None


async def _groups(client: Client) -> list[objects.PodGroup] | None:
    """None where there are none, or they may not be read: the controller goes on without them too."""
    for resource in (POD_GROUPS, POD_GROUPS_ALPHA):
        with suppress(NotFound, Forbidden):
            return list(await client.list(resource, type=objects.PodGroup))
    return None


async def listed(client: Client, kind: type[T], *versions: Resource) -> tuple[Resource, list[T]]:
    """All objects of the first of these versions that is served, with that version; none where none is."""
    for resource in versions:
        with suppress(NotFound):
            return resource, await client.list(resource, type=kind)
    return versions[0], []


async def revisions(client: Client, kind: type[T]) -> tuple[Resource, list[T]]:
    """What groups of LeaderWorkerSets were made from."""
    return CONTROLLER_REVISIONS, await client.list(CONTROLLER_REVISIONS, label_selector=LEADER_SET_NAME, type=kind)


async def workload_classes(client: Client, kind: type[T]) -> tuple[Resource, list[T]]:
    """Kueue's priority classes; none where it has none, or one may not list them: they come with the role of Kueue."""
    with suppress(Forbidden):
        return await listed(client, kind, *PRIORITY_CLASSES_OF_KUEUE)
    return PRIORITY_CLASSES_OF_KUEUE[0], []


def fetch(
    files: Iterable[str] | None, domain: str | None, kubeconfig: str | None, context: str | None
) -> tuple[Dump, Settings, str]:
    """The cluster of these files, or the live one; the settings that hold there, and the namespace one is in.

    Failure where it cannot be read.
    """
    if files:
        return dumps.read(list(files)), Settings(domain=domain) if domain else Settings(), "default"
    try:
        with progress("reading the cluster"):
            dump, found, namespace = asyncio.run(_live(kubeconfig, context))
    except KubeError as error:
        raise failure(error, kubeconfig, context) from error
    return dump, found.model_copy(update={"domain": domain}) if domain else found, namespace


async def _live(kubeconfig: str | None, context: str | None) -> tuple[Dump, Settings, str]:
    async with await Client.connect(kubeconfig, context, pool_size=CONNECTIONS) as client:
        await installed.require(client)
        dump, found = await asyncio.gather(read(client), installed.settings_with_warning(client))
        return dump, found, client.connection.namespace


def came(one: One) -> Event[One]:
    """The news that an object is there now."""
    return Event(EventKind.ADDED, objects.key(one), None, one)


class _LeftOut(Guard):
    """Objects that cannot be read are left out, as the controller does it, and told in a line each."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, lambda _kind: None)
        self.told: list[str] = []

    def failed(self, kind: str, key: str, error: Exception) -> None:
        self.told.append(f"{kind} {key} cannot be read: {error}")


def stores_of(found: Dump, keys: Keys) -> Stores:
    """Look-ups in what was read."""
    by_owner: dict[str, list[objects.Pod]] = defaultdict(list)
    by_node: dict[str, list[objects.Pod]] = defaultdict(list)
    by_claim: dict[str, list[objects.Pod]] = defaultdict(list)
    by_group: dict[str, list[objects.Pod]] = defaultdict(list)
    for pod in found.pods:
        by_owner[owner_key(pod, keys)].append(pod)
        by_node[pod.spec.node_name].append(pod)
        # The informers of the controller keep the same indexes; here they are built from one reading.
        if pod.spec.pod_group:
            by_group[f"{pod.metadata.namespace}/{pod.spec.pod_group}"].append(pod)
        for claim in claims_of(pod):
            by_claim[f"{pod.metadata.namespace}/{claim.name}"].append(pod)
    ranges: dict[str, list[objects.LimitRange]] = defaultdict(list)
    for one in sorted(found.limit_ranges, key=objects.key):
        ranges[one.metadata.namespace].append(one)
    kinds = {(kind.kind, kind.group) for kind, _ in found.replicated}
    nodes = {node.metadata.name: node for node in found.nodes}
    return Stores(
        pods_of=lambda uid: by_owner.get(uid, ()),
        pods_on=lambda name: by_node.get(name, ()),
        workload={objects.key(one): one for one in found.workloads}.get,
        jobset={objects.key(one): one for one in found.job_sets}.get,
        leader_set={objects.key(one): one for one in found.leaders}.get,
        cluster_queue={one.metadata.name: one for one in found.cluster_queues}.get,
        nodes=Sources(nodes.get, found.topologies.get, found.flexes.get),
        # A kind counts as served here once there is an object of it.
        reads=lambda kind, group: (kind, group) in kinds,
        pods_with=lambda key: by_claim.get(key, ()),
        storage=storage_of(found),
        pods_in_group=lambda key: by_group.get(key, ()),
        native_group={objects.key(one): one for one in found.native_groups}.get,
        reads_groups=lambda: found.reads_groups,
        limit_ranges=lambda name: ranges.get(name, ()),
        runtime_class={one.metadata.name: one for one in found.runtime_classes}.get,
        reads_devices=lambda: found.reads_devices,
        # Nothing is written here, so no write is ever awaited by its resourceVersion.
        workloads_reached=lambda: 0,
    )


def storage_of(found: Dump) -> Storage:
    """Look-ups in the claims, volumes and classes of what was read."""
    classes = {one.metadata.name: one for one in found.storage_classes}
    available: dict[str, list[PersistentVolume]] = defaultdict(list)
    local: dict[str, list[PersistentVolume]] = defaultdict(list)
    for volume in filter(is_available, found.volumes):
        available[volume.spec.storage_class_name].append(volume)
        local[host_of(volume)].append(volume)
    return Storage(
        claim={objects.key(one): one for one in found.claims}.get,
        volume={one.metadata.name: one for one in found.volumes}.get,
        storage_class=classes.get,
        classes=classes.values,
        available=lambda name: available.get(name, ()),
        local=lambda host: local.get(host, ()),
        csi_node={one.metadata.name: one for one in found.csi_nodes}.get,
        csi_driver={one.metadata.name: one for one in found.csi_drivers}.get,
        capacities=lambda name: [one for one in found.capacities if one.storage_class_name == name],
    )


def _scheduler(found: Dump) -> SchedulerRules:
    """What kube-scheduler does there; of files by the newest kubelet, as none is newer than the API server."""
    kubelets = (node.status.node_info.kubelet_version for node in found.nodes if node.status.node_info is not None)
    return scheduler_rules(found.version or newest(kubelets))


def cache_of(found: Dump, settings: Settings, *, whole: bool = False, clock: Clock = SYSTEM) -> Cache:
    """What the controller would know. What cannot be read of it is told on stderr, and left out.

    ``whole``: Failure instead.
    """
    keys, guard = settings.keys, _LeftOut(clock)
    cache = Cache(
        keys,
        stores_of(found, keys),
        lambda _uid, _after: None,
        lambda: None,
        notices=Silent(),
        options=Options.of(settings),
        queueing=queue_rules(settings),
        device_resources=device_resources(settings),
        scheduler=_scheduler(found),
        guard=guard,
        clock=clock,
    )
    # Before `load`: pods and jobs are judged as they come in, by the classes, revisions and devices known by then.
    for revision in found.revisions:
        cache.pod_groups.on_revision(came(revision))
    for resource, owner in found.replicated:
        cache.pod_groups.on_replicated(resource, came(owner))
    for one in found.workload_classes:
        cache.classes.on_workload_class(came(one))
    for device_class in found.device_classes:
        cache.devices.on_class(came(device_class))
    for rule in found.taint_rules:
        cache.devices.on_rule(came(rule))
    for resource_slice in found.resource_slices:
        cache.devices.on_slice(came(resource_slice))
    for template in found.claim_templates:
        cache.devices.on_template(came(template))
    for claim in found.resource_claims:
        cache.devices.on_claim(came(claim))
    steps = cache.load(
        found.nodes,
        found.flavors,
        found.priority_classes,
        found.jobs,
        found.pods,
        jobsets=found.job_sets,
        namespaces=found.namespaces,
        cluster_queues=found.cluster_queues,
        local_queues=found.local_queues,
    )
    deque(steps, maxlen=0)  # all at once: nothing else is to be done meanwhile
    if whole and guard.told:
        raise Failure(guard.told[0])
    for line in guard.told[:MOST_LINES]:
        sys.stderr.write(f"left out: {line}\n")
    if len(guard.told) > MOST_LINES:
        sys.stderr.write(f"left out: {len(guard.told) - MOST_LINES} more objects\n")
    return cache
