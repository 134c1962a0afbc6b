"""From the objects of a cluster to the cache: the look-ups that it asks, and all that it takes in at a start.

The objects come from informers, or from one reading of a cluster or a file; both are asked alike (`ClusterObjects`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from kube.objects import Object
from kube.volumes.binding import Storage
from kube.volumes.objects import CsiStorageCapacity
from ungater import kinds
from ungater.cache.cache import Cache
from ungater.cache.stores import Stores
from ungater.kinds import AnyKind, Kind, OptionalKind
from ungater.numa.node_topologies import Sources

T = TypeVar("T", bound=Object)


class ClusterObjects(Protocol):
    """All objects of a cluster, by kind."""

    def look_up(self, kind: AnyKind[T]) -> Callable[[str], T | None]:
        """A function from the key of an object (``namespace/name``, or ``name``) to the object."""
        ...

    def list_objects(self, kind: AnyKind[T]) -> Collection[T]:
        """All objects of a kind that there are now."""
        ...

    def by_index(self, kind: Kind[T]) -> Callable[[str, str], Iterable[T]]:
        """A function from the name of an index and a value to the objects that have the value, ordered by key."""
        ...

    def serves(self, kind: OptionalKind[Any]) -> bool:
        """Whether the cluster serves the kind, and it may be read."""
        ...

    def listed(self, kind: OptionalKind[Any]) -> bool:
        """Whether all objects of the kind were read."""
        ...

    def workloads_reached(self) -> int:
        """The resource version up to which it is known which Workloads there are."""
        ...


def stores_of(found: ClusterObjects) -> Stores:
    """The look-ups of a cache."""
    pods, limit_ranges = found.by_index(kinds.PODS), found.by_index(kinds.LIMIT_RANGES)
    counted = {(kind.resource.kind, kind.resource.group): kind for kind in kinds.REPLICATED}

    def reads(kind: str, group: str) -> bool:
        return (row := counted.get((kind, group))) is not None and found.serves(row)

    return Stores(
        pods_of=lambda uid: pods("owner", uid),
        pods_on=lambda name: pods("node", name),
        pods_with=lambda key: pods("claim", key),
        pods_in_group=lambda key: pods("group", key),
        workload=found.look_up(kinds.WORKLOADS),
        workloads_reached=found.workloads_reached,
        jobset=found.look_up(kinds.JOB_SETS),
        leader_set=found.look_up(kinds.LEADER_SETS),
        cluster_queue=found.look_up(kinds.CLUSTER_QUEUES),
        nodes=Sources(
            found.look_up(kinds.NODES), found.look_up(kinds.NODE_TOPOLOGIES), found.look_up(kinds.FLEX_TOPOS)
        ),
        reads=reads,
        storage=_storage_of(found),
        native_group=found.look_up(kinds.POD_GROUPS),
        # Served, and not only listed: a pod that names a group waits from the first moment on that there may be some.
        reads_groups=lambda: found.serves(kinds.POD_GROUPS),
        limit_ranges=lambda namespace: limit_ranges("namespace", namespace),
        runtime_class=found.look_up(kinds.RUNTIME_CLASSES),
        reads_devices=lambda: all(found.listed(kind) for kind in kinds.DEVICES),
    )


def _storage_of(found: ClusterObjects) -> Storage:
    volumes = found.by_index(kinds.VOLUMES)

    def capacities(name: str) -> list[CsiStorageCapacity] | None:
        # None, and not an empty list, which would say that no driver has storage left.
        if not found.listed(kinds.CAPACITIES):
            return None
        return [one for one in found.list_objects(kinds.CAPACITIES) if one.storage_class_name == name]

    return Storage(
        claim=found.look_up(kinds.VOLUME_CLAIMS),
        volume=found.look_up(kinds.VOLUMES),
        storage_class=found.look_up(kinds.STORAGE_CLASSES),
        classes=lambda: found.list_objects(kinds.STORAGE_CLASSES),
        available=lambda name: volumes("available", name),
        local=lambda host: volumes("host", host),
        csi_node=found.look_up(kinds.CSI_NODES),
        csi_driver=found.look_up(kinds.CSI_DRIVERS),
        capacities=capacities,
    )


def load(cache: Cache, found: ClusterObjects) -> Iterator[None]:
    """Have a cache take in all that there is, a slice with each step; see `Cache.load`."""
    return cache.load(
        tuple(found.list_objects(kinds.NODES)),
        tuple(found.list_objects(kinds.FLAVORS)),
        tuple(found.list_objects(kinds.PRIORITY_CLASSES)),
        tuple(found.list_objects(kinds.JOBS)),
        tuple(found.list_objects(kinds.PODS)),
        jobsets=tuple(found.list_objects(kinds.JOB_SETS)),
        namespaces=tuple(found.list_objects(kinds.NAMESPACES)),
        cohorts=tuple(found.list_objects(kinds.COHORTS)),
        cluster_queues=tuple(found.list_objects(kinds.CLUSTER_QUEUES)),
        local_queues=tuple(found.list_objects(kinds.LOCAL_QUEUES)),
    )
