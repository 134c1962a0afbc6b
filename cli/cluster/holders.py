"""Who holds what on some nodes: workloads by their pods and the slots that are kept for pods, and everybody else."""

from collections.abc import Iterable, Iterator

import msgspec

from engine.cluster.assignment import Assignment
from engine.model import Amounts
from kube import objects
from kube.objects import controller_of
from ungater.cache.cache import Cache
from ungater.model.workload_entry import WorkloadEntry


class ClusterHolder(msgspec.Struct):
    """One workload of ours (``workload``: its key), or a controller whose pods came without us ("").

    ``pods`` that run or start there, ``slots`` kept for pods that do not yet; ``amounts`` of both.
    """

    name: str  # job/train
    kind: str  # Job
    namespace: str
    workload: str
    priority: int
    queue: str = ""
    pods: int = 0
    slots: int = 0
    amounts: Amounts = msgspec.field(default_factory=dict)
    keys: set[str] = msgspec.field(default_factory=set)  # of its pods there

    @property
    def title(self) -> str:
        """What people are told that it is: ``Job team-a/train``."""
        return f"{self.kind} {self.namespace}/{self.name.partition('/')[2]}"

    def add_pod(self, key: str, requests: Amounts) -> None:
        """One of its pods is there."""
        self.pods += 1
        self.keys.add(key)
        self._add_requests(requests, 1)

    def add_slots(self, count: int, requests: Amounts) -> None:
        """So many slots are kept for pods of it."""
        self.slots += count
        self._add_requests(requests, count)

    def _add_requests(self, requests: Amounts, count: int) -> None:
        for resource, amount in requests.items():
            self.amounts[resource] = self.amounts.get(resource, 0) + amount * count


def holders(cache: Cache, nodes: Iterable[str]) -> list[ClusterHolder]:
    """All of them on these nodes, the lowest priority first."""
    found: dict[str, ClusterHolder] = {}
    wanted = frozenset(nodes)
    for name in sorted(wanted):
        for wire in cache.stores.pods_on(name):
            pod = cache.state.pods.get(objects.key(wire))
            if pod is None:
                continue  # it has finished
            # A pod that claims a workload which is gone counts as its controller's.
            entry = cache.entries.of_workload(pod.claim[0]) if pod.claim is not None else None
            if entry is not None:
                holder = found.setdefault(entry.key, of_entry(cache, entry))
            else:
                # Under its controller, or alone.
                owner, meta = controller_of(wire.metadata), wire.metadata
                kind, called = (owner.kind, owner.name) if owner is not None else ("Pod", meta.name)
                title = f"{kind.lower()}/{called}"
                alone = ClusterHolder(title, kind, meta.namespace, "", wire.spec.priority or 0)
                holder = found.setdefault(f"{meta.namespace}/{title}", alone)
            holder.add_pod(pod.key, pod.requests)
    for workload, parts in cache.state.workloads.items():
        entry = cache.entries.of_workload(workload)
        for pod_set, assignment in parts.items():
            for node in nodes_of(assignment):
                # Only slots that no pod has claimed: the pods were counted above.
                left = cache.state.unclaimed_on(workload, pod_set, node) if node in wanted else 0
                if left and entry is not None:
                    holder = found.setdefault(entry.key, of_entry(cache, entry))
                    holder.add_slots(left, assignment.requests)
    return sorted(found.values(), key=lambda one: (one.priority, one.namespace, one.name))


def nodes_of(assignment: Assignment) -> Iterator[str]:
    """The nodes that it has slots on."""
    for piece in assignment.slices:
        for name, _ in piece.nodes:
            yield name


def of_entry(cache: Cache, entry: WorkloadEntry) -> ClusterHolder:
    """A workload of ours, holding nothing yet."""
    owner, queued = entry.job, cache.queues.entries.get(entry.key)
    priority = queued.workload.priority if queued is not None else cache.priorities.priority_of_job(owner)
    return ClusterHolder(
        f"{owner.kind.lower()}/{owner.full_name}", owner.kind, owner.namespace, entry.key, priority, owner.queue
    )
