"""Pods that were let go, from the moment that their gate was seen to be gone until they run.

Each costs a look at a dictionary with each of its events: one that is bound and started at once causes no other look at
its workload, and no call.
"""

from collections.abc import Callable, Iterable

from kube.objects import Pod
from ungater.model.pod_slots import finished, is_gated
from ungater.model.unscheduled import SILENCE, Unscheduled
from ungater.model.unstarted import PATIENCE, Unstarted
from ungater.model.workload_entry import WorkloadEntry


class ComingPods:
    """See the module. ``patience``: seconds for which kube-scheduler may refuse a pod; ``started``: of a node, by name.

    ``unstarted``: of a node, a workload, and what its pod waits for there.
    """

    def __init__(
        self,
        gate: str,
        patience: float | None,
        *,
        enqueue: Callable[[str, float], None],
        started: Callable[[str], None],
        unstarted: Callable[[str, str, str], None],
        clock: Callable[[], float],
    ) -> None:
        self._gate = gate
        self._patience = patience
        self._enqueue = enqueue
        self._started = started
        self._unstarted = unstarted
        self._clock = clock

    def record_arrival(self, entry: WorkloadEntry, pod: Pod) -> None:
        """A pod that was let go for a workload is there, or changed."""
        uid, status = pod.metadata.uid, pod.status
        if pod.metadata.deletion_timestamp is not None or finished(pod) or is_gated(pod, self._gate):
            self.forget_coming(entry, uid)
        elif not pod.spec.node_name:
            self._waits_for_scheduler(entry, pod)
        else:
            self._has_node(entry, uid)
            if status.phase != "Pending":
                if entry.unstarted.pop(uid, None) is not None:
                    self._started(pod.spec.node_name)
                return
            known = entry.unstarted.get(uid) or Unstarted(self._clock(), pod.spec.node_name)
            entry.unstarted[uid] = known.see_again(pod)

    def _waits_for_scheduler(self, entry: WorkloadEntry, pod: Pod) -> None:
        uid, now = pod.metadata.uid, self._clock()
        known = entry.unscheduled.get(uid)
        # The nomination at first sight is the one by which room was kept; later ones are kube-scheduler's own.
        first = known or Unscheduled(now, kept=pod.status.nominated_node_name)
        seen = entry.unscheduled[uid] = first.see_again(pod, now)
        # At the first refusal alone: kube-scheduler repeats it, and no event comes when the patience is over.
        if seen.refused_at is not None and self._patience and (known is None or known.refused_at is None):
            self._enqueue(entry.id, self._patience)

    def _has_node(self, entry: WorkloadEntry, uid: str) -> None:
        known = entry.unscheduled.pop(uid, None)
        if known is not None and (known.counted_until or known.ignored):
            self._enqueue(entry.id, 0.0)  # what was said of it is over

    def forget_coming(self, entry: WorkloadEntry, uid: str) -> None:
        """A pod is gone, or comes to its end."""
        self._has_node(entry, uid)
        entry.unstarted.pop(uid, None)

    def count(self, entry: WorkloadEntry, pods: Iterable[Pod], told: str) -> None:
        """These pods do not start: ``told`` is what events say. One that lacks what its node gives counts there."""
        for pod in pods:
            known = entry.unstarted.get(pod.metadata.uid)
            if known is None or known.counted:
                continue
            known = entry.unstarted[pod.metadata.uid] = known.count(told)
            # What a container says, such as an image that cannot be pulled, is no fault of its node.
            if known.lacks and not known.said:
                self._unstarted(known.node, entry.key, known.words)

    def have_looked_at(self, entries: Iterable[WorkloadEntry]) -> None:
        """Have those looked at whose pods no scheduler looks at, or do not start; to be called now and then."""
        latest, silent = self._clock() - PATIENCE, self._clock() - SILENCE
        for entry in entries:
            for uid, waits in entry.unscheduled.items():
                if waits.refused_at is None and not waits.ignored and waits.since <= silent:
                    entry.unscheduled[uid] = waits.ignore()
                    self._enqueue(entry.id, 0.0)
            if any(not one.counted and one.since <= latest and one.words for one in entry.unstarted.values()):
                self._enqueue(entry.id, 0.0)

    def hanging(self, entries: Iterable[WorkloadEntry]) -> tuple[int, int]:
        """How many pods kube-scheduler has refused for too long, and how many do not start for longer than is usual."""
        now, refused, waiting = self._clock(), 0, 0
        for entry in entries:
            for one in entry.unscheduled.values():
                late = self._patience is not None and one.refused_at is not None
                refused += late and now - (one.refused_at or 0.0) >= (self._patience or 0.0)
            waiting += sum(now - one.since >= PATIENCE and bool(one.words) for one in entry.unstarted.values())
        return refused, waiting
