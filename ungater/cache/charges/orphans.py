"""Pods that run on though no workload answers for them any more: they take of their queue's quota until they are gone.

Rules
- A pod that was let go is paid for by its workload's admission, as long as the workload holds one and the pod is its.
  So is one that left it, as a ReplicaSet lets go a pod that does not match any more: it keeps its place there, which no
  other pod gets, until it ends (`WorkloadEntry.left`). Else a set could be made to run its pods over and over.
- Where that ends before the pod does, the pod is charged by itself: its owner was deleted and it takes long to stop, it
  was orphaned, it was relabelled. What it takes then it was admitted with, so no limit is asked.
- By which quota it runs is written on it (`crds.admitted_quota`), so that a restart knows it too. A pod without that
  annotation, which only pods of a queue without slots are, is known by what its workload held when it gave that back.
- What the pods of a workload take beyond what it holds is charged beside it (`ungater.cache.charges.overruns`).
- A pod whose patch was sent and whose workload then gave back what it held may run, though it is seen behind its gate
  for as long as the informer is late: it is charged until it is seen, or its patch is known to have failed. Where such
  a pod left its workload instead, it keeps its place there for as long. Another workload that has it meanwhile, as a
  LeaderWorkerSet was made anew under its name, does not pay for it: what that one holds is for pods of its own.
- A pod that terminates on a node that is gone or not ready is not waited for: nobody there ends it.
"""

from collections.abc import Callable, Iterator

from crds.admitted_quota import AdmittedQuota, decode
from crds.constants import ADMITTED_QUOTA, Keys
from engine.model import Amounts
from kube.objects import Pod, key
from queueing.model import Quantities, usage
from queueing.queues.held import Held
from queueing.queues.queues import Queues
from ungater.cache.charges.overruns import Overruns, may_exceed
from ungater.jobs.pod_group import mark_of
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry


class Orphans:
    """See the module. ``dead``: whether nobody on a node of this name ends pods; ``takes``: of quota, a pod."""

    def __init__(
        self, queues: Queues, keys: Keys, dead: Callable[[str], bool], takes: Callable[[Pod], Amounts]
    ) -> None:
        self._queues = queues
        self._keys = keys
        self._gate = keys.gate
        self._dead = dead
        self._takes = takes
        self._remembered: dict[str, AdmittedQuota] = {}  # by uid of a pod that does not say by which quota it runs
        self._overruns = Overruns(queues)
        self._unseen: dict[str, str] = {}  # by uid of a pod seen behind its gate: for which workload it was let go

    def remember(self, entry: WorkloadEntry) -> None:
        """A workload is about to give back what it holds: by which quota its pods run is known from it now."""
        admission = entry.admission
        if admission is None or not admission.queue:
            return
        for name, pod in self._paid_by(entry):
            uid, part = pod.metadata.uid, admission.pod_set_named(name)
            # The patch may have arrived though the watch does not say so: until it does, the pod may run.
            if is_gated(pod, self._gate) and entry.on_its_way(uid) is not None:
                self._unseen[uid] = entry.job.workload
            if part is not None and part.flavors and self.may_run(pod) and _annotated_quota(pod) is None:
                self._remembered[uid] = AdmittedQuota(admission.queue, dict(part.flavors))

    def judge(self, pod: Pod, entry: WorkloadEntry | None) -> bool:
        """Charge a pod that runs and that ``entry``, whose it is, does not answer for.

        True where quota is free again that it took.
        """
        uid = pod.metadata.uid
        # Seen without its gate: from here on the pod itself says by what it runs.
        if not is_gated(pod, self._gate):
            self._unseen.pop(uid, None)
        if not self.may_run(pod):
            return self.remove_orphan(pod)
        # The annotation first: it is part of the patch that let the pod go, and survives a restart.
        quota = _annotated_quota(pod) or self._remembered.get(uid)
        if entry is not None and answers_for(entry):
            freed = self._queues.charge_pod(key(pod), None) | self._overruns.move_pod(entry, uid)
            return self._charge_beside(pod, entry) or freed
        # Out of the workload's sum before it is charged by itself: it must not be paid for twice.
        freed = self._overruns.forget_pod(uid)
        return (
            self._queues.charge_pod(key(pod), self._quota_of_orphan(pod, quota) if quota is not None else None) or freed
        )

    def _charge_beside(self, pod: Pod, entry: WorkloadEntry) -> bool:
        """Charge what the pods of a workload that answers for them take beyond it; True where quota is free again."""
        takes = self._takes_of(entry, pod)
        if not self._overruns.follows(entry):
            name = entry.left[pod.metadata.uid][0] if pod.metadata.uid in entry.left else entry.pod_set_of(pod)
            part = entry.admission.pod_set_named(name) if entry.admission is not None else None
            if takes is None or not may_exceed(entry, pod, part, takes):
                return False
            paid = (each for _, each in self._paid_by(entry))
            freed = self._overruns.begin_sum(entry, ((each.metadata.uid, self._takes_of(entry, each)) for each in paid))
            return self._overruns.record_taken(entry, pod.metadata.uid, takes) or freed
        return self._overruns.record_taken(entry, pod.metadata.uid, takes)

    def _paid_by(self, entry: WorkloadEntry) -> Iterator[tuple[str, Pod]]:
        """The pods that a workload pays for, by pod set: not those of its owner that were let go for another one."""
        for pod in entry.pods.values():
            if self.let_go_for(pod) in {None, entry.job.workload}:
                yield entry.pod_set_of(pod), pod
        # The ones that left and keep their places are paid for like the workload's own.
        yield from entry.left.values()

    def _takes_of(self, entry: WorkloadEntry, pod: Pod) -> Held | None:
        """What a pod of an admitted workload takes of a queue; None where it does not run."""
        # Nobody let it go here, and no node has it: whoever writes owner references could charge a queue that others
        # share for pods that fit nowhere. Its workload pays for those that it should have.
        if not self.may_run(pod) or not (pod.spec.node_name or self.let_go_for(pod) or _annotated_quota(pod)):
            return None
        quota, admission = _annotated_quota(pod) or self._remembered.get(pod.metadata.uid), entry.admission
        if quota is None and admission is not None:
            part = admission.pod_set_named(entry.pod_set_of(pod))
            quota = AdmittedQuota(admission.queue, dict(part.flavors)) if part is not None else None
        return self._quota_of_orphan(pod, quota) if quota is not None else None

    def _quota_of_orphan(self, pod: Pod, quota: AdmittedQuota) -> Held:
        takes = usage(self._takes(pod), 1)
        amounts: Quantities = {(flavor, resource): takes.get(resource, 0) for resource, flavor in quota.flavors.items()}
        return Held(quota.cluster_queue, amounts)

    def add_sent_pod(self, pod: Pod, workload: str) -> None:
        """A pod whose patch is under way left its workload: it may run."""
        self._unseen[pod.metadata.uid] = workload

    def unseen_for(self, pod: Pod) -> str | None:
        """The workload by which a pod may run though it is seen behind its gate; None where it may not."""
        return self._unseen.get(pod.metadata.uid) if is_gated(pod, self._gate) else None

    def let_go_for(self, pod: Pod) -> str | None:
        """The workload that a pod was let go for, seen or not; None where it was not."""
        return self.unseen_for(pod) or mark_of(pod, self._keys)

    def remove_orphan(self, pod: Pod) -> bool:
        """A pod is gone, or has ended; True where quota is free again that it took."""
        self._remembered.pop(pod.metadata.uid, None)
        self._unseen.pop(pod.metadata.uid, None)
        freed = self._overruns.forget_pod(pod.metadata.uid)
        return self._queues.charge_pod(key(pod), None) or freed

    def stayed(self, pod: Pod, workload: str) -> bool:
        """A workload's patch of a pod came to nothing, so it is behind its gate; True where quota is free again.

        Not where it may run by another one's patch.
        """
        return self.unseen_for(pod) == workload and self.remove_orphan(pod)

    def may_run(self, pod: Pod) -> bool:
        """Whether it takes, or may take, room on a node."""
        if finished(pod) or (is_gated(pod, self._gate) and self.unseen_for(pod) is None):
            return False
        node, leaving = pod.spec.node_name, pod.metadata.deletion_timestamp is not None
        return not (leaving and (not node or self._dead(node)))


def answers_for(entry: WorkloadEntry) -> bool:
    """Whether a workload pays for its pods."""
    return entry.admission is not None and bool(entry.admission.queue)


def _annotated_quota(pod: Pod) -> AdmittedQuota | None:
    return decode((pod.metadata.annotations or {}).get(ADMITTED_QUOTA))
