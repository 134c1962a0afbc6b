"""Every watch of the controller: what is watched, the look-ups in what was seen, and who is told of changes.

The informers are made first, and the look-ups with them (`Informers.stores`); what is told of changes is made with
those, and is told by the one step that comes late (`Informers.subscribe`).
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Protocol

from clock import Clock
from crds.constants import Keys
from kube.budgets import PodDisruptionBudget
from kube.client import Client
from kube.informer import Event, Informer
from kube.kept import KeptParts
from kube.objects import (
    Job,
    LimitRange,
    Namespace,
    Node,
    OwnerReference,
    Pod,
    PodGroup,
    PriorityClass,
    ResourceFlavor,
    RuntimeClass,
)
from kube.parents import ControllerRevision, JobSet, LeaderWorkerSet
from kube.pods.device_claims import DeviceClass
from kube.pods.devices import DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from kube.pods.volumes import claims_of
from kube.queues import ClusterQueue, LocalQueue
from kube.replicas import REPLICATED, Counted, read_as
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
    POD_DISRUPTION_BUDGETS,
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
from kube.watch import Observe
from ungater.cache.cache import Cache
from ungater.cache.pdb import BudgetWatch
from ungater.cache.stores import Stores
from ungater.jobs.leaderworkerset import LABELS as LEADER_SET_LABELS
from ungater.jobs.leaderworkerset import NAME as LEADER_SET_NAME
from ungater.jobs.pod_group import owner_key
from ungater.model.job_view import JOB, JOB_API, JOB_SET, JOB_SET_API
from ungater.model.kueue_objects import PRIORITY_CLASSES as WORKLOAD_CLASSES
from ungater.model.workload_object import Workload
from ungater.numa.node_topologies import Sources
from ungater.optional import Discovery, OptionalInformer
from ungater.writers.evictor import Evictor

SYNC_SECONDS: Final = 120.0


class Kueue(Protocol):
    """What is beside us where Kueue is: it has informers of its own, and is told of our flavors."""

    def informers(self) -> tuple[OptionalInformer[Any], ...]:
        """What is to be run for it."""
        ...

    def flavors_changed(self) -> None:
        """Our flavors came, changed or went."""


class Informers:
    """One informer for each kind. Those of ``optional`` are of kinds that a cluster may not serve."""

    def __init__(self, client: Client, keys: Keys, clock: Clock, observe: Observe | None = None) -> None:
        read = keys.read | LEADER_SET_LABELS

        def watch(resource: Resource, kind: Any, **options: Any) -> Any:
            kept: KeptParts[Any] | None = (
                None if resource is WORKLOADS else KeptParts(resource.kind, read)
            )  # ours: whole
            return Informer(client, resource, kind, observe=observe, clock=clock, kept=kept, **options)

        def optional(resource: Resource, kind: Any, **options: Any) -> Any:
            return OptionalInformer(self.discovery, resource, kind, observe=observe, clock=clock, read=read, **options)

        self.discovery = Discovery(client, clock)
        self.nodes: Informer[Node] = watch(NODES, Node)
        self.flavors: Informer[ResourceFlavor] = watch(RESOURCE_FLAVORS, ResourceFlavor)
        self.classes: Informer[PriorityClass] = watch(PRIORITY_CLASSES, PriorityClass)
        self.jobs: Informer[Job] = watch(JOBS, Job)
        indexers = {"owner": lambda pod: (owner_key(pod, keys),), "node": _node_name, "claim": _claims, "group": _group}
        self.pods: Informer[Pod] = watch(PODS, Pod, indexers=indexers)
        self.workloads: Informer[Workload] = watch(WORKLOADS, Workload)
        self.namespaces: Informer[Namespace] = watch(NAMESPACES, Namespace)
        self.limit_ranges: Informer[LimitRange] = watch(LIMIT_RANGES, LimitRange, indexers={"namespace": _namespace})
        self.runtime_classes: Informer[RuntimeClass] = watch(RUNTIME_CLASSES, RuntimeClass)
        self.claims: Informer[PersistentVolumeClaim] = watch(PERSISTENT_VOLUME_CLAIMS, PersistentVolumeClaim)
        self.volumes: Informer[PersistentVolume] = watch(
            PERSISTENT_VOLUMES, PersistentVolume, indexers={"available": _available, "host": _host}
        )
        self.storage_classes: Informer[StorageClass] = watch(STORAGE_CLASSES, StorageClass)
        self.csi_nodes: Informer[CsiNode] = watch(CSI_NODES, CsiNode)
        self.cluster_queues: Informer[ClusterQueue] = watch(CLUSTER_QUEUES, ClusterQueue)
        self.local_queues: Informer[LocalQueue] = watch(LOCAL_QUEUES, LocalQueue)

        # What nodes may publish of their inside, and owners of other people's kinds.
        self.topologies: OptionalInformer[NodeResourceTopology] = optional(
            NODE_RESOURCE_TOPOLOGIES, NodeResourceTopology
        )
        self.flexes: OptionalInformer[FlexTopo] = optional(FLEX_TOPOS, FlexTopo)
        newest, *older = WORKLOAD_CLASSES
        self.workload_classes: OptionalInformer[PriorityClass] = optional(newest, PriorityClass, older=older)
        self.budgets: OptionalInformer[PodDisruptionBudget] = optional(POD_DISRUPTION_BUDGETS, PodDisruptionBudget)
        # Servers before 1.34 have no class that stands for an extended resource, and none of this version.
        first = {"asks": True, "first_seconds": SYNC_SECONDS}
        self.device_classes: OptionalInformer[DeviceClass] = optional(DEVICE_CLASSES, DeviceClass, **first)
        # Where these are not read, a driver is taken to have storage everywhere.
        self.csi_drivers: OptionalInformer[CsiDriver] = optional(CSI_DRIVERS, CsiDriver, **first)
        self.capacities: OptionalInformer[CsiStorageCapacity] = optional(
            CSI_STORAGE_CAPACITIES, CsiStorageCapacity, **first
        )
        # No device is promised before all of these are listed.
        self.taint_rules: OptionalInformer[DeviceTaintRule] = optional(DEVICE_TAINT_RULES, DeviceTaintRule, **first)
        self.resource_slices: OptionalInformer[ResourceSlice] = optional(RESOURCE_SLICES, ResourceSlice, **first)
        self.claim_templates: OptionalInformer[ResourceClaimTemplate] = optional(
            CLAIM_TEMPLATES, ResourceClaimTemplate, **first
        )
        self.resource_claims: OptionalInformer[ResourceClaim] = optional(RESOURCE_CLAIMS, ResourceClaim, **first)
        # Without these owners, what their workloads hold would be given to others: they are waited for like all else.
        self.jobsets: OptionalInformer[JobSet] = optional(JOB_SETS, JobSet, first_seconds=SYNC_SECONDS)
        self.leader_sets: OptionalInformer[LeaderWorkerSet] = optional(
            LEADER_WORKER_SETS, LeaderWorkerSet, first_seconds=SYNC_SECONDS
        )
        # By the label: revisions of all StatefulSets and DaemonSets of the cluster would come too.
        self.revisions: OptionalInformer[ControllerRevision] = optional(
            CONTROLLER_REVISIONS, ControllerRevision, label_selector=LEADER_SET_NAME
        )
        # What they say is required of pods that name them: none of these is placed before they are listed.
        self.native_groups: OptionalInformer[PodGroup] = optional(
            POD_GROUPS, PodGroup, older=(POD_GROUPS_ALPHA,), asks=True, first_seconds=SYNC_SECONDS
        )
        self.replicated: tuple[tuple[Resource, OptionalInformer[Counted]], ...] = tuple(
            (newest, optional(newest, read_as(newest), older=older, first_seconds=SYNC_SECONDS, asks=True))
            for newest, older in REPLICATED
        )
        self._foreign: tuple[OptionalInformer[Any], ...] = ()

    @property
    def every(self) -> tuple[Informer[Any], ...]:
        """Those of kinds that every cluster with Topogate serves."""
        return (
            *(self.nodes, self.flavors, self.classes, self.jobs, self.pods, self.workloads, self.namespaces),
            *(self.cluster_queues, self.local_queues, self.limit_ranges, self.runtime_classes),
            *(self.claims, self.volumes, self.storage_classes, self.csi_nodes),
        )

    @property
    def optional(self) -> tuple[OptionalInformer[Any], ...]:
        """Those of kinds that a cluster may serve or not, in the order in which they are first listed."""
        return (
            *(self.topologies, self.flexes, self.workload_classes, self.budgets, self.jobsets, self.leader_sets),
            self.revisions,
            *(self.csi_drivers, self.capacities),
            *self._devices,
            self.native_groups,
            *(one for _, one in self.replicated),
            *self._foreign,
        )

    @property
    def _devices(self) -> tuple[OptionalInformer[Any], ...]:
        """All that tells which devices there are, and who holds them."""
        return (
            *(self.device_classes, self.taint_rules, self.resource_slices),
            *(self.claim_templates, self.resource_claims),
        )

    @property
    def reads_devices(self) -> bool:
        """Whether all of that is listed."""
        return all(one.listed for one in self._devices)

    @property
    def stores(self) -> Stores:
        """Look-ups in what was seen."""
        kinds = {(newest.kind, newest.group): one for newest, one in self.replicated}
        return Stores(
            pods_of=lambda uid: self.pods.by_index("owner", uid),
            pods_on=lambda name: self.pods.by_index("node", name),
            workload=self.workloads.store.get,
            jobset=self.jobsets.get,
            leader_set=self.leader_sets.get,
            cluster_queue=self.cluster_queues.store.get,
            nodes=Sources(self.nodes.store.get, self.topologies.get, self.flexes.get),
            reads=lambda kind, group: (one := kinds.get((kind, group))) is not None and one.resource is not None,
            pods_with=lambda key: self.pods.by_index("claim", key),
            storage=Storage(
                claim=self.claims.store.get,
                volume=self.volumes.store.get,
                storage_class=self.storage_classes.store.get,
                classes=self.storage_classes.store.values,
                available=lambda name: self.volumes.by_index("available", name),
                local=lambda host: self.volumes.by_index("host", host),
                csi_node=self.csi_nodes.store.get,
                csi_driver=self.csi_drivers.get,
                capacities=self._capacities,
            ),
            pods_in_group=lambda key: self.pods.by_index("group", key),
            native_group=self.native_groups.get,
            limit_ranges=lambda name: self.limit_ranges.by_index("namespace", name),
            runtime_class=self.runtime_classes.store.get,
            reads_groups=lambda: self.native_groups.resource is not None,
            reads_devices=lambda: self.reads_devices,
            workloads_reached=lambda: self.workloads.reached,
        )

    def _capacities(self, name: str) -> list[CsiStorageCapacity] | None:
        """What drivers have left for a class; None where that is not read."""
        # None, and not an empty list, which would say that no driver has storage left.
        if not self.capacities.listed:
            return None
        return [one for one in self.capacities.store.values() if one.storage_class_name == name]

    def node(self, name: str) -> Node | None:
        """A node by its name."""
        return self.nodes.store.get(name)

    def subscribe(self, cache: Cache, budgets: BudgetWatch, kueue: Kueue, evictor: Evictor) -> None:
        """Have these be told of every change. An error is that of the object that changed, and no other's."""

        def guarded(kind: str, *handlers: Callable[[Event[Any]], None]) -> Callable[[Event[Any]], None]:
            def handle(event: Event[Any]) -> None:
                for handler in handlers:
                    try:  # as a guard does, which costs more than most of them
                        handler(event)
                    except Exception as error:  # noqa: BLE001  (told by the guard)
                        cache.guard.failed(kind, event.key, error)

            return handle

        self.nodes.subscribe(guarded("node", cache.nodes.on_node))
        self.flavors.subscribe(guarded("flavor", cache.config.on_flavor, lambda _: kueue.flavors_changed()))
        self.classes.subscribe(guarded("class", cache.classes.on_class))
        self.jobs.subscribe(guarded("job", cache.jobs.on_job))
        self.pods.subscribe(guarded("pod", evictor.on_pod, cache.pods.on_pod, budgets.on_pod, cache.volumes.on_pod))
        self.workloads.subscribe(guarded("workload", cache.workloads.on_workload))
        self.namespaces.subscribe(guarded("namespace", cache.config.on_namespace))
        self.cluster_queues.subscribe(guarded("cluster queue", cache.config.on_cluster_queue))
        self.local_queues.subscribe(guarded("local queue", cache.config.on_local_queue))
        self.limit_ranges.subscribe(guarded("limit range", cache.pod_defaults.on_limit_range))
        self.runtime_classes.subscribe(guarded("runtime class", cache.pod_defaults.on_runtime_class))
        self.claims.subscribe(guarded("claim", cache.volumes.on_claim))
        self.volumes.subscribe(guarded("volume", cache.volumes.on_volume))
        self.storage_classes.subscribe(guarded("storage class", cache.volumes.on_class))
        self.csi_nodes.subscribe(guarded("csi node", cache.volumes.on_csi_node))
        self.csi_drivers.subscribe(guarded("csi driver", cache.volumes.on_csi_driver))
        self.capacities.subscribe(guarded("storage capacity", cache.volumes.on_capacity))
        self.topologies.subscribe(guarded("topology", cache.nodes.on_topology))
        self.flexes.subscribe(guarded("topology", cache.nodes.on_flex))
        self.workload_classes.subscribe(guarded("class", cache.classes.on_workload_class))
        self.device_classes.subscribe(guarded("device class", cache.devices.on_class))
        self.resource_slices.subscribe(guarded("resource slice", cache.devices.on_slice))
        self.taint_rules.subscribe(guarded("taint rule", cache.devices.on_rule))
        self.claim_templates.subscribe(guarded("claim template", cache.devices.on_template))
        self.resource_claims.subscribe(guarded("resource claim", cache.devices.on_claim))
        self.budgets.subscribe(guarded("budget", budgets.on_budget))
        self.jobsets.subscribe(guarded("jobset", cache.jobs.on_jobset))
        self.leader_sets.subscribe(guarded("leaders", cache.pod_groups.on_leaders))
        self.revisions.subscribe(guarded("revision", cache.pod_groups.on_revision))
        self.native_groups.subscribe(guarded("pod group", cache.pod_groups.on_native))
        for newest, one in self.replicated:
            one.subscribe(guarded(newest.kind, partial(cache.pod_groups.on_replicated, newest)))
        self._foreign = kueue.informers()

    async def synced(self) -> None:
        """Wait until all is listed. Raises KubeTimeout where a kind is not that every cluster serves."""
        for informer in self.every:
            await informer.wait_synced(SYNC_SECONDS)
        # Side by side: each may take its whole time where its kind does not answer.
        await asyncio.gather(*(informer.first() for informer in self.optional))

    async def load(self, cache: Cache) -> None:
        """Have the cache take in all that was listed, a slice a turn of the loop: the lease is to be renewed meanwhile.

        No informer takes anything in before the cache is whole; what came meanwhile is told of afterwards.
        """
        paused: tuple[Informer[Any] | OptionalInformer[Any], ...] = (*self.every, *self.optional)
        for informer in paused:
            informer.pause()
        try:
            # With 100,000 nodes and 200,000 pods all of it in one step took 14 s, and the lease is given up after 10 s.
            for _ in self._slices(cache):
                await asyncio.sleep(0)
        finally:
            for informer in paused:
                informer.go_on()

    def _slices(self, cache: Cache) -> Iterator[None]:
        return cache.load(
            tuple(self.nodes.store.values()),
            tuple(self.flavors.store.values()),
            tuple(self.classes.store.values()),
            tuple(self.jobs.store.values()),
            tuple(self.pods.store.values()),
            jobsets=self.jobsets.store.values(),
            namespaces=tuple(self.namespaces.store.values()),
            cluster_queues=tuple(self.cluster_queues.store.values()),
            local_queues=tuple(self.local_queues.store.values()),
        )

    def heard(self) -> Iterator[tuple[Resource, float]]:
        """When the API server last said anything of each resource."""
        yield from ((informer.resource, informer.heard) for informer in self.every)
        for each in self.optional:
            yield from each.heard

    def stored_workloads(self) -> Iterable[Workload]:
        """All Workloads that there are."""
        return self.workloads.store.values()

    def stored_pods(self) -> Iterable[Pod]:
        """All pods that there are."""
        return self.pods.store.values()

    def there(self, namespace: str, owner: OwnerReference) -> bool:
        """Whether the Job or JobSet that a Workload names is there."""
        kind, key = (owner.kind, owner.api_version), f"{namespace}/{owner.name}"
        job: Job | JobSet | None = None
        if kind == (JOB, JOB_API):
            job = self.jobs.store.get(key)
        elif kind == (JOB_SET, JOB_SET_API):
            job = self.jobsets.get(key)
        # By uid: one that was made again under the name is another owner.
        return job is not None and job.metadata.uid == owner.uid


def _namespace(one: LimitRange) -> tuple[str, ...]:
    return (one.metadata.namespace,)


def _claims(pod: Pod) -> list[str]:
    return [f"{pod.metadata.namespace}/{claim.name}" for claim in claims_of(pod)]


def _group(pod: Pod) -> tuple[str, ...]:
    return (f"{pod.metadata.namespace}/{pod.spec.pod_group}",) if pod.spec.pod_group else ()


def _available(volume: PersistentVolume) -> tuple[str, ...]:
    return (volume.spec.storage_class_name,) if is_available(volume) else ()


def _host(volume: PersistentVolume) -> tuple[str, ...]:
    return (host,) if (host := host_of(volume)) else ()


def _node_name(pod: Pod) -> tuple[str, ...]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()
