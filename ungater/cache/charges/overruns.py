"""What pods of an admitted workload take of queues beyond what it was admitted with.

Rules
- A workload's admission pays for its pods (`orphans`). Those of an earlier admission of it may still
  end, for as long as their grace period is, and may be more than it has now, or larger, or run by another queue: its
  template was made smaller, or its label changed, while it waited. Pods may be resized where they run. Nothing runs
  that no quota paid for: what all its pods that run take is compared with what it holds, and the rest is charged
  beside it.
- Sums are kept only for workloads whose pods may take more (`may_exceed`); all others pay for each pod by themselves,
  and together.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from kube.objects import Pod
from queueing.queues.held import Held
from queueing.queues.queues import Queues
from ungater.model.admission import PodSetAssignment
from ungater.model.workload_entry import WorkloadEntry


class _Taken:
    """What the pods of one workload take, by pod and by queue."""

    def __init__(self) -> None:
        self._by_pod: dict[str, Held] = {}
        self.by_queue: dict[str, Counter[tuple[str, str]]] = {}

    def put(self, uid: str, takes: Held | None) -> None:
        """A pod takes this now, and nothing else."""
        if (before := self._by_pod.pop(uid, None)) is not None:
            self.by_queue.setdefault(before.queue, Counter()).subtract(before.amounts)  # nobody keeps one of zeros
        if takes is not None:
            self._by_pod[uid] = takes
            self.by_queue.setdefault(takes.queue, Counter()).update(takes.amounts)

    def __bool__(self) -> bool:
        return bool(self._by_pod)


class Overruns:
    """See the module."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._taken: dict[str, _Taken] = {}  # by the key of a workload whose pods may take more
        self._of: dict[str, str] = {}  # by pod uid: in whose sum it is

    def follows(self, entry: WorkloadEntry) -> bool:
        """Whether a sum is kept for a workload."""
        return entry.key in self._taken

    def begin_sum(self, entry: WorkloadEntry, pods: Iterable[tuple[str, Held | None]]) -> bool:
        """Keep a sum of what these pods take, by uid; True where quota is free again."""
        self._taken[entry.key] = _Taken()
        freed = False
        for uid, takes in pods:
            freed |= self._put_pod(entry.key, uid, takes)
        return freed

    def record_taken(self, entry: WorkloadEntry, uid: str, takes: Held | None) -> bool:
        """A pod of a workload with a sum takes this, or (None) nothing; True where quota is free again."""
        freed = self._put_pod(entry.key, uid, takes)
        return self._charge_sum(entry.key) or freed

    def move_pod(self, entry: WorkloadEntry, uid: str) -> bool:
        """A pod is this workload's now, and no more in the sum of another; True where quota is free again."""
        return self._of.get(uid, entry.key) != entry.key and self.forget_pod(uid)

    def forget_pod(self, uid: str) -> bool:
        """A pod is gone, or no workload answers for it; True where quota is free again."""
        if (key := self._of.get(uid)) is None:
            return False
        self._put_pod(key, uid, None)
        return self._charge_sum(key)

    def _charge_sum(self, key: str) -> bool:
        """Charge what a workload's pods take by now; no sum is kept of those that take nothing."""
        if self._taken[key]:
            return self._charge(key)
        freed = False
        for queue in self._taken.pop(key).by_queue:
            freed |= self._queues.charge_pod(key, None, queue)
        return freed

    def _put_pod(self, key: str, uid: str, takes: Held | None) -> bool:
        # In one sum at a time: it would stay in the other one for ever.
        freed = self._of.get(uid, key) != key and self.forget_pod(uid)
        self._taken[key].put(uid, takes)
        if takes is None:
            self._of.pop(uid, None)
        else:
            self._of[uid] = key
        return freed

    def _charge(self, key: str) -> bool:
        own = self._queues.quotas.held.get(key)
        freed = False
        by_queue = self._taken[key].by_queue
        # A copy: queues of which nothing is taken any more are dropped on the way.
        for queue, amounts in tuple(by_queue.items()):
            holds: Mapping[tuple[str, str], int] = own.amounts if own is not None and own.queue == queue else {}
            more = {name: amount - holds.get(name, 0) for name, amount in amounts.items()}
            # Only what is beyond is charged: within its admission the workload's own charge pays.
            more = {name: amount for name, amount in more.items() if amount > 0}
            freed |= self._queues.charge_pod(key, Held(queue, more) if more else None, queue)
            if not any(amounts.values()):
                del by_queue[queue]
        return freed


def may_exceed(entry: WorkloadEntry, pod: Pod, part: PodSetAssignment | None, takes: Held) -> bool:
    """Whether a pod of an admitted workload, or all of its pods, may take more than it was admitted with."""
    admission = entry.admission
    if (
        admission is None
        or pod.metadata.deletion_timestamp is not None
        or takes.queue != admission.queue
        or len(entry.pods) + len(entry.left) > admission.count
        or part is None
        or (asks := part.asks) is None
    ):
        return True
    return any(
        amount and (part.flavors.get(resource) != flavor or amount > asks.get(resource, 0))
        for (flavor, resource), amount in takes.amounts.items()
    )
