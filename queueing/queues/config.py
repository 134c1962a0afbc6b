"""What is configured: ClusterQueues (the quotas have them), LocalQueues, namespaces, and flavors without a topology.

Rules
- A workload waits in the ClusterQueue of its LocalQueue; in none where either of them is missing or stopped, or where
  the ClusterQueue does not serve its namespace.
- Where its LocalQueue or the ClusterQueue whose quota it holds is stopped, one that is not admitted yet gives back what
  it holds, and one that is admitted gets nothing more; it has to go where one of the two is drained. As in Kueue 0.19.2
  (pkg/controller/core/workload_controller.go, ``reconcileOnLocalQueueActiveState``).
"""

from collections.abc import Iterator

import msgspec

from engine.reasons import Reason
from engine.results import Refusal
from queueing.model import LocalQueue, PlainFlavor, Stop, Workload, serves
from queueing.queues.quota import Quotas


class QueueConfig(msgspec.Struct):
    """See the module's rules. ``local``: LocalQueues by namespace and name; ``namespaces``: labels by name."""

    quotas: Quotas
    local: dict[tuple[str, str], LocalQueue] = msgspec.field(default_factory=dict)
    namespaces: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    plain: dict[str, PlainFlavor] = msgspec.field(default_factory=dict)

    def cluster_queue(self, workload: Workload) -> str:
        """The name of the ClusterQueue of a workload; "" where its LocalQueue is missing."""
        local = self.local.get((workload.namespace, workload.queue))
        return local.cluster_queue if local is not None else ""

    def flavors(self, namespace: str, queue: str) -> tuple[str, ...] | None:
        """The flavors that a LocalQueue gives; None where it leads to no ClusterQueue, or to one without quota."""
        local = self.local.get((namespace, queue))
        found = self.quotas.queues.get(local.cluster_queue) if local is not None else None
        # A queue without quota takes any flavor, so it narrows nothing.
        if found is None or found.unlimited:
            return None
        return tuple([quota.flavor for group in found.groups for quota in group.flavors])

    def missing_objects(self, namespace: str, queue: str) -> str | None:
        """What is not there of a LocalQueue and the ClusterQueue behind it; None where both are."""
        local = self.local.get((namespace, queue))
        if local is None:
            return f"there is no LocalQueue {queue} in namespace {namespace}"
        if local.cluster_queue not in self.quotas.queues:
            return f"LocalQueue {queue}: there is no ClusterQueue {local.cluster_queue}"
        return None

    def refuse_workload(self, workload: Workload) -> tuple[Refusal | None, str]:
        """(why a workload can wait in no ClusterQueue, None where it can; the ClusterQueue, as far as it is named)."""
        name, local = self.cluster_queue(workload), self.local.get((workload.namespace, workload.queue))
        queue = self.quotas.queues.get(name)
        if local is None or queue is None:
            return Refusal(Reason.NO_QUEUE, self.missing_objects(workload.namespace, workload.queue) or ""), name
        if (stopped := self.find_stop(workload, name)) is not None:
            return Refusal(Reason.QUEUE_STOPPED, stopped), name
        if not serves(queue, self.namespaces.get(workload.namespace, {})):
            text = f"the namespaceSelector of ClusterQueue {name} does not select namespace {workload.namespace}"
            return Refusal(Reason.NAMESPACE_NOT_SELECTED, text), name
        return None, name

    def find_stop(self, workload: Workload, cluster_queue: str) -> str | None:
        """Which of the two is stopped, a LocalQueue or the ClusterQueue whose quota is held; None where neither is."""
        for title, stop in self._stops(workload, cluster_queue):
            if stop is not Stop.NONE:
                return f"{title} is stopped (stopPolicy {stop})"
        return None

    def find_drain(self, workload: Workload, cluster_queue: str) -> str | None:
        """Why a workload that holds quota of a ClusterQueue has to go; None where it has not."""
        for title, stop in self._stops(workload, cluster_queue):
            if stop is Stop.DRAIN:
                return f"{title} is drained (stopPolicy {stop})"
        return None

    def _stops(self, workload: Workload, cluster_queue: str) -> Iterator[tuple[str, Stop]]:
        """What a LocalQueue and a ClusterQueue say, as far as they are there."""
        if (local := self.local.get((workload.namespace, workload.queue))) is not None:
            yield f"LocalQueue {workload.queue}", local.stop
        if (found := self.quotas.queues.get(cluster_queue)) is not None:
            yield f"ClusterQueue {cluster_queue}", found.stop
