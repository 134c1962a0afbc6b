"""Who pays for a pod that runs: its workload, the one that it left, or it by itself (`orphans`)."""

from collections.abc import Sequence

import msgspec

from engine.cluster.levels import domain_labels
from kube import objects
from ungater.cache.charges.orphans import Orphans, answers_for
from ungater.cache.claims.device_quota import DeviceQuota
from ungater.cache.core import Core
from ungater.model.pod_slots import Expectation, PodSetSlots, is_gated
from ungater.model.workload_entry import WorkloadEntry


class LeftPods:
    """Pods that left their workload and keep their places in it (`WorkloadEntry.left`), until they end."""

    def __init__(self, core: Core, quota: DeviceQuota) -> None:
        self._keys = core.keys
        self._entries = core.entries
        self._enqueue = core.enqueue
        self._signal = core.signal
        self._orphans = Orphans(core.queues, core.keys, core.dead, quota.quota_of_pod)
        self._places: dict[str, WorkloadEntry] = {}  # by pod uid: in whose `WorkloadEntry.left` it is

    def pay(self, pod: objects.Pod, entry: WorkloadEntry | None) -> None:
        """Charge a pod by itself where it runs and no workload answers for it, and no more where one does."""
        mark = self._orphans.let_go_for(pod)
        # Its owner by now is not the workload that let it go: that one pays, or the pod itself.
        if entry is not None and mark not in {None, entry.job.workload}:
            entry = None
        if entry is None:
            entry = self._left_by(pod, mark)
        elif not is_gated(pod, self._keys.gate):
            self.forget_pod(pod)
        if self._orphans.judge(pod, entry):
            self._signal()

    def stayed(self, pod: objects.Pod, workload: str) -> None:
        """The patch of a pod came to nothing after it left this workload, or what was held for that was given back."""
        if self._orphans.unseen_for(pod) == workload:
            self.forget_pod(pod)
        if self._orphans.stayed(pod, workload):
            self._signal()

    def remember(self, entry: WorkloadEntry) -> None:
        """A workload is about to give back what it holds."""
        self._orphans.remember(entry)

    def unseen(self, pod: objects.Pod) -> bool:
        """Whether a pod may run though it is seen behind its gate."""
        return self._orphans.unseen_for(pod) is not None

    def remove_pod_of_owner(self, pod: objects.Pod, *, charged: bool) -> None:
        """A pod is gone, or leaves its owner; ``charged``: it may run, and is charged by itself on."""
        if not charged and self._orphans.remove_orphan(pod):
            self._signal()
        self.forget_pod(pod)

    def _left_by(self, pod: objects.Pod, mark: str | None) -> WorkloadEntry | None:
        """The workload that a pod was let go for and is not part of any more, where it still has its place there."""
        if self.unseen(pod):
            return self._places.get(pod.metadata.uid)
        entry = self._entries.of_workload(f"{pod.metadata.namespace}/{mark}") if mark else None
        uid = pod.metadata.uid
        if self._places.get(uid) is not entry:
            self.forget_pod(pod)  # whatever it says by now that it was let go for
        if entry is None or uid in entry.pods or not self._orphans.may_run(pod) or not answers_for(entry):
            self.forget_pod(pod)
            return None
        pod_set = (pod.metadata.annotations or {}).get(self._keys.pod_set, "")
        if uid not in entry.left:
            # All slots have pods: one more in its place would be a pod that nobody paid for.
            if not entry.has_place(pod_set, self._keys.gate):
                return None
            self._enqueue(entry.id, 0.0)
        entry.left[uid] = pod_set, pod
        self._places[uid] = entry
        return entry

    def forget_pod(self, pod: objects.Pod) -> None:
        """A pod ended, or has no place in the workload that it left: others of that may go."""
        if (entry := self._places.pop(pod.metadata.uid, None)) is not None:
            del entry.left[pod.metadata.uid]
            self._enqueue(entry.id, 0.0)

    def judge(self, entry: WorkloadEntry) -> None:
        """What is held for a job changed: those that left it have their places in it, or are charged by themselves."""
        # Judged all at once: while they are looked at, no place counts as taken by one that is judged later.
        left = dict(entry.left)
        entry.left.clear()
        for uid, (pod_set, pod) in left.items():
            if answers_for(entry) and self.unseen(pod):
                entry.left[uid] = pod_set, pod
            else:
                del self._places[uid]
        for uid, (_, pod) in left.items():
            if uid not in entry.left:
                self.pay(pod, None)

    def keep_place(self, entry: WorkloadEntry, old: objects.Pod, new: objects.Pod, sent: Expectation) -> None:
        """A pod left its workload while its patch is under way, by which it may run: it keeps its place there.

        Not where it may run by an earlier one's already: that is charged.
        """
        uid, workload = old.metadata.uid, entry.job.workload
        if self._orphans.unseen_for(new) not in {None, workload}:
            return
        self._orphans.add_sent_pod(new, workload)
        entry.left[uid] = entry.pod_set_of(old), _heading(new, entry.slots_of(old), sent.values)
        self._places[uid] = entry


def _heading(pod: objects.Pod, slots: PodSetSlots | None, values: Sequence[str]) -> objects.Pod:
    """A pod as it will be once it is sent to a slot with these values."""
    if slots is None:
        return pod
    selector = {**(pod.spec.node_selector or {}), **domain_labels(slots.levels, values)}
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_selector=selector))
