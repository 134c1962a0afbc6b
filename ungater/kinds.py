"""The kinds of objects that the controller watches, one row each.

A row says what an object is read as, in which versions, what it is found by, what the cache does about a change, and
what happens where a cluster does not serve the kind. Informers (`ungater.informers`), commands that read a cluster or a
file (`cli.cluster`), ``topogate snapshot`` and the page take it from here. The rights to read a kind are in
``manifests/``; `tests/unit/ungater/test_watched_kinds.py` compares them with the rows.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from crds.constants import Keys
from kube import objects, resources
from kube.budgets import PodDisruptionBudget
from kube.informer import Event
from kube.objects import Object
from kube.parents import ControllerRevision, JobSet, LeaderWorkerSet
from kube.pods.device_claims import DeviceClass
from kube.pods.devices import DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from kube.pods.volumes import claims_of
from kube.queues import ClusterQueue, Cohort, LocalQueue
from kube.replicas import REPLICATED as REPLICATED_RESOURCES
from kube.replicas import SERVICES, Counted, read_as
from kube.resources import Resource
from kube.topologies import FlexTopo, NodeResourceTopology
from kube.volumes.available import host_of, is_available
from kube.volumes.objects import (
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from kube.workloads import WorkloadObject
from ungater.jobs.leaderworkerset import NAME as LEADER_SET_NAME
from ungater.jobs.pod_group import owner_key
from ungater.model import kueue_objects

if TYPE_CHECKING:
    from ungater.cache.cache import Cache

T = TypeVar("T", bound=Object)
Handler = Callable[[Event[T]], None]
Indexes = Mapping[str, Callable[[T], Iterable[str]]]


class Kind(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """A kind that every cluster with Topogate serves. Two rows are equal where they are the same.

    ``type``: what an object is read as. ``word``: what messages about one object call it. ``handlers``: what the cache
    does about a change, in this order. ``indexes``: the values that objects are found by, by the name of the index.
    """

    resource: Resource
    type: type[T]
    word: str
    handlers: Callable[["Cache"], tuple[Handler[T], ...]]
    indexes: Callable[[Keys], Indexes[T]] | None = None

    @property
    def versions(self) -> tuple[Resource, ...]:
        """The versions that are read, the best first."""
        return (self.resource,)


class OptionalKind(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """A kind that a cluster may serve or not; see `Kind`.

    ``older``: versions for servers that lack ``resource``. ``waits``: nothing is placed before it is listed, as long as
    that may take. ``asks``: the controller goes on without it where it may not list the kind; ``may_be_forbidden``: so
    does a command. ``label_selector``: only objects with these labels are read.
    """

    resource: Resource
    type: type[T]
    word: str
    handlers: Callable[["Cache"], tuple[Handler[T], ...]]
    older: tuple[Resource, ...] = ()
    waits: bool = False
    asks: bool = False
    may_be_forbidden: bool = False
    label_selector: str = ""

    @property
    def versions(self) -> tuple[Resource, ...]:
        """The versions that are read, the best first."""
        return (self.resource, *self.older)


AnyKind = Kind[T] | OptionalKind[T]


NODES: Final = Kind(resources.NODES, objects.Node, "node", lambda cache: (cache.nodes.on_node,))
NAMESPACES: Final = Kind(
    resources.NAMESPACES, objects.Namespace, "namespace", lambda cache: (cache.config.on_namespace,)
)
PRIORITY_CLASSES: Final = Kind(
    resources.PRIORITY_CLASSES, objects.PriorityClass, "class", lambda cache: (cache.classes.on_class,)
)
RUNTIME_CLASSES: Final = Kind(
    resources.RUNTIME_CLASSES,
    objects.RuntimeClass,
    "runtime class",
    lambda cache: (cache.pod_defaults.on_runtime_class,),
)
LIMIT_RANGES: Final = Kind(
    resources.LIMIT_RANGES,
    objects.LimitRange,
    "limit range",
    lambda cache: (cache.pod_defaults.on_limit_range,),
    lambda _: {"namespace": lambda one: (one.metadata.namespace,)},
)
FLAVORS: Final = Kind(
    resources.RESOURCE_FLAVORS,
    objects.ResourceFlavor,
    "flavor",
    lambda cache: (cache.config.on_flavor,),
)
CLUSTER_QUEUES: Final = Kind(
    resources.CLUSTER_QUEUES, ClusterQueue, "cluster queue", lambda cache: (cache.config.on_cluster_queue,)
)
LOCAL_QUEUES: Final = Kind(
    resources.LOCAL_QUEUES, LocalQueue, "local queue", lambda cache: (cache.config.on_local_queue,)
)
STORAGE_CLASSES: Final = Kind(
    resources.STORAGE_CLASSES, StorageClass, "storage class", lambda cache: (cache.volumes.on_class,)
)
CSI_NODES: Final = Kind(resources.CSI_NODES, CsiNode, "csi node", lambda cache: (cache.volumes.on_csi_node,))
VOLUMES: Final = Kind(
    resources.PERSISTENT_VOLUMES,
    PersistentVolume,
    "volume",
    lambda cache: (cache.volumes.on_volume,),
    lambda _: {
        "available": lambda one: (one.spec.storage_class_name,) if is_available(one) else (),
        "host": lambda one: (host,) if (host := host_of(one)) else (),
    },
)
VOLUME_CLAIMS: Final = Kind(
    resources.PERSISTENT_VOLUME_CLAIMS, PersistentVolumeClaim, "claim", lambda cache: (cache.volumes.on_claim,)
)
JOBS: Final = Kind(resources.JOBS, objects.Job, "job", lambda cache: (cache.jobs.on_job,))
WORKLOADS: Final = Kind(resources.WORKLOADS, WorkloadObject, "workload", lambda cache: (cache.workloads.on_workload,))
PODS: Final = Kind(
    resources.PODS,
    objects.Pod,
    "pod",
    lambda cache: (cache.pods.handle_pod, cache.volumes.requeue_claimants),
    lambda keys: {
        "owner": lambda pod: (owner_key(pod, keys),),
        "node": lambda pod: (pod.spec.node_name,) if pod.spec.node_name else (),
        "claim": lambda pod: [f"{pod.metadata.namespace}/{claim.name}" for claim in claims_of(pod)],
        "group": lambda pod: (f"{pod.metadata.namespace}/{pod.spec.pod_group}",) if pod.spec.pod_group else (),
    },
)

# Where an older installation does not serve them, or may not read them, all cohorts are flat. Nothing is placed before
# they are listed: by half a tree, queues would borrow what is not theirs.
COHORTS: Final = OptionalKind(
    resources.COHORTS,
    Cohort,
    "cohort",
    lambda cache: (cache.config.on_cohort,),
    asks=True,
    waits=True,
    may_be_forbidden=True,
)
# What nodes may publish of their inside.
FLEX_TOPOS: Final = OptionalKind(resources.FLEX_TOPOS, FlexTopo, "topology", lambda cache: (cache.nodes.on_flex,))
NODE_TOPOLOGIES: Final = OptionalKind(
    resources.NODE_RESOURCE_TOPOLOGIES, NodeResourceTopology, "topology", lambda cache: (cache.nodes.on_topology,)
)
BUDGETS: Final = OptionalKind(resources.POD_DISRUPTION_BUDGETS, PodDisruptionBudget, "budget", lambda _: ())
# A Workload takes its priority over once, when it is created: none is before the classes are listed. Optional, as our
# own come with a CRD that an older installation lacks.
WORKLOAD_CLASSES: Final = OptionalKind(
    resources.WORKLOAD_PRIORITY_CLASSES,
    objects.PriorityClass,
    "class",
    lambda cache: (cache.classes.on_workload_class,),
    waits=True,
    asks=True,
)
KUEUE_CLASSES: Final = OptionalKind(
    kueue_objects.PRIORITY_CLASSES[0],
    objects.PriorityClass,
    "class",
    lambda cache: (cache.classes.on_kueue_class,),
    older=kueue_objects.PRIORITY_CLASSES[1:],
    waits=True,
    asks=True,
    may_be_forbidden=True,
)
# Without these owners, the controller would give to others what their workloads hold: it waits for them.
JOB_SETS: Final = OptionalKind(resources.JOB_SETS, JobSet, "jobset", lambda cache: (cache.jobs.on_jobset,), waits=True)
LEADER_SETS: Final = OptionalKind(
    resources.LEADER_WORKER_SETS,
    LeaderWorkerSet,
    "leaders",
    lambda cache: (cache.pod_groups.on_leaders,),
    waits=True,
)
# By the label: revisions of all StatefulSets and DaemonSets of the cluster would come too.
REVISIONS: Final = OptionalKind(
    resources.CONTROLLER_REVISIONS,
    ControllerRevision,
    "revision",
    lambda cache: (cache.pod_groups.on_revision,),
    label_selector=LEADER_SET_NAME,
)
# Where these are not read, a driver is taken to have storage everywhere.
CSI_DRIVERS: Final = OptionalKind(
    resources.CSI_DRIVERS,
    CsiDriver,
    "csi driver",
    lambda cache: (cache.volumes.on_csi_driver,),
    asks=True,
    waits=True,
)
CAPACITIES: Final = OptionalKind(
    resources.CSI_STORAGE_CAPACITIES,
    CsiStorageCapacity,
    "storage capacity",
    lambda cache: (cache.volumes.on_capacity,),
    asks=True,
    waits=True,
)
# No device is promised before all of DEVICES are listed. Servers before 1.34 have no class that stands for an extended
# resource, and none of these versions.
DEVICE_CLASSES: Final = OptionalKind(
    resources.DEVICE_CLASSES,
    DeviceClass,
    "device class",
    lambda cache: (cache.devices.on_class,),
    asks=True,
    waits=True,
)
TAINT_RULES: Final = OptionalKind(
    resources.DEVICE_TAINT_RULES,
    DeviceTaintRule,
    "taint rule",
    lambda cache: (cache.devices.on_rule,),
    asks=True,
    waits=True,
)
RESOURCE_SLICES: Final = OptionalKind(
    resources.RESOURCE_SLICES,
    ResourceSlice,
    "resource slice",
    lambda cache: (cache.devices.on_slice,),
    asks=True,
    waits=True,
)
CLAIM_TEMPLATES: Final = OptionalKind(
    resources.CLAIM_TEMPLATES,
    ResourceClaimTemplate,
    "claim template",
    lambda cache: (cache.devices.on_template,),
    asks=True,
    waits=True,
)
RESOURCE_CLAIMS: Final = OptionalKind(
    resources.RESOURCE_CLAIMS,
    ResourceClaim,
    "resource claim",
    lambda cache: (cache.devices.on_claim,),
    asks=True,
    waits=True,
)
# What a group says is required of pods that name it: no such pod is placed before the groups are listed.
POD_GROUPS: Final = OptionalKind(
    resources.POD_GROUPS,
    objects.PodGroup,
    "pod group",
    lambda cache: (cache.pod_groups.on_native,),
    older=(resources.POD_GROUPS_ALPHA,),
    asks=True,
    waits=True,
    may_be_forbidden=True,
)


def _replicated(newest: Resource, older: tuple[Resource, ...]) -> OptionalKind[Counted]:
    return OptionalKind(
        newest,
        read_as(newest),
        newest.kind,
        lambda cache: (partial(cache.pod_groups.on_replicated, newest),),
        older=older,
        asks=True,
        waits=True,
    )


REPLICATED: Final = tuple(_replicated(newest, older) for newest, older in REPLICATED_RESOURCES)
"""Owners that say how many pods they make of each kind."""

DEVICES: Final[tuple[OptionalKind[Any], ...]] = (
    DEVICE_CLASSES,
    TAINT_RULES,
    RESOURCE_SLICES,
    CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
)
"""All that says which devices there are, and who holds them."""

SERVED: Final[tuple[Kind[Any], ...]] = (
    *(NODES, FLAVORS, PRIORITY_CLASSES, JOBS, PODS, WORKLOADS, NAMESPACES, CLUSTER_QUEUES, LOCAL_QUEUES),
    *(LIMIT_RANGES, RUNTIME_CLASSES, VOLUME_CLAIMS, VOLUMES, STORAGE_CLASSES, CSI_NODES),
)
OPTIONAL: Final[tuple[OptionalKind[Any], ...]] = (
    *(
        COHORTS,
        NODE_TOPOLOGIES,
        FLEX_TOPOS,
        WORKLOAD_CLASSES,
        KUEUE_CLASSES,
        BUDGETS,
        JOB_SETS,
        LEADER_SETS,
        REVISIONS,
        CSI_DRIVERS,
        CAPACITIES,
    ),
    *DEVICES,
    POD_GROUPS,
    *REPLICATED,
)
KINDS: Final[tuple[AnyKind[Any], ...]] = (*SERVED, *OPTIONAL)
WITHOUT_TEMPLATE: Final = frozenset(kind for kind in REPLICATED if kind.resource in SERVICES)
"""Owners whose template is in no snapshot: their pods say the same."""
