"""Look-ups in what is there: what informers keep, or what was read from files. Nobody writes through them."""

from collections.abc import Callable, Iterable

import msgspec

from kube.objects import LimitRange, Pod, PodGroup, RuntimeClass
from kube.parents import JobSet, LeaderWorkerSet
from kube.queues import ClusterQueue
from kube.volumes.binding import Storage
from kube.workloads import WorkloadObject
from ungater.numa.node_topologies import Sources


class Stores(msgspec.Struct, frozen=True):
    """Functions from a key to what is there under it.

    ``pods_of``: by the id of who owns them (`ungater.jobs.pod_group.owner_key`); ``pods_on``: by the name of their
    node. ``workload``, ``jobset`` and ``leader_set``: by ``namespace/name``; ``cluster_queue``: by name. ``nodes``: a
    node's objects by its name. ``reads``: whether owners of a kind and API group are read, that tell how many pods they
    make of each kind. ``pods_with``: by the key of a claim that they have; ``storage``: claims, volumes, classes.
    ``workloads_reached``: the resource version up to which it is known which Workloads there are.
    ``native_group``: by ``namespace/name``, and ``pods_in_group``: those that name it; ``reads_groups``: whether there
    are any, and they are read.
    ``limit_ranges``: those of a namespace, by name; ``runtime_class``: by name.
    ``reads_devices``: whether all is read that says which devices there are, and who holds them.
    """

    pods_of: Callable[[str], Iterable[Pod]]
    pods_on: Callable[[str], Iterable[Pod]]
    workload: Callable[[str], WorkloadObject | None]
    jobset: Callable[[str], JobSet | None]
    leader_set: Callable[[str], LeaderWorkerSet | None]
    cluster_queue: Callable[[str], ClusterQueue | None]
    nodes: Sources
    reads: Callable[[str, str], bool]
    pods_with: Callable[[str], Iterable[Pod]]
    storage: Storage
    pods_in_group: Callable[[str], Iterable[Pod]]
    native_group: Callable[[str], PodGroup | None]
    reads_groups: Callable[[], bool]
    limit_ranges: Callable[[str], Iterable[LimitRange]]
    runtime_class: Callable[[str], RuntimeClass | None]
    reads_devices: Callable[[], bool]
    workloads_reached: Callable[[], int]
