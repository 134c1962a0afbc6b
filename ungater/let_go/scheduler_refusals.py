"""Pods that kube-scheduler does not take to the node of their slot, and which nodes others like them keep off for it.

Topogate counts what it knows a filter looks at. A filter that nobody knows (an extender, a plugin, a quota of another
system) may look at anything of a pod, so what refuses one pod of a pod set is taken to refuse all that have the same
template, in the same namespace: nobody keeps others' pods off a node by pods of his own.

Each pod is known from the moment that its gate was seen to be gone until it has a node, by one look at a dictionary: a
pod that is bound at once costs nothing more.
"""

from collections.abc import Callable, Iterable
from typing import Final

from engine.model import Node
from kube.objects import Pod
from ungater.model.job_view import PodSetView
from ungater.model.pod_slots import PodSetSlots, finished, is_gated
from ungater.model.unscheduled import Unscheduled
from ungater.model.workload_entry import WorkloadEntry
from ungater.numa.node_backoff import LONG, Refusals, listed

MOST: Final = 2000  # refusals of a namespace that are kept


class SchedulerRefusals:
    """See the module. ``nodes``: all that there are; ``tell``: of so many pods whose nodes are left out from now on."""

    def __init__(
        self,
        gate: str,
        patience: float | None,
        nodes: Callable[[], Iterable[Node]],
        *,
        enqueue: Callable[[str, float], None],
        tell: Callable[[WorkloadEntry, int, str], None],
        clock: Callable[[], float],
    ) -> None:
        self._gate = gate
        self._patience = patience
        self._nodes = nodes
        self._enqueue = enqueue
        self._tell = tell
        self._clock = clock
        self._refusals: dict[str, Refusals[str]] = {}  # by namespace, and by what is alike there
        self._looked = clock()

    def saw(self, entry: WorkloadEntry, pod: Pod) -> None:
        """A pod that was let go for a workload is there, or changed."""
        uid = pod.metadata.uid
        known = entry.unscheduled.get(uid)
        coming = not pod.spec.node_name and pod.metadata.deletion_timestamp is None and not finished(pod)
        if not coming or is_gated(pod, self._gate):
            if known is not None:
                self.gone(entry, uid)
            return
        now = self._clock()
        seen = (known or Unscheduled(now)).seen(pod, now)
        entry.unscheduled[uid] = seen
        if seen.refused_at is not None and self._patience and (known is None or known.refused_at is None):
            self._enqueue(entry.id, self._patience)

    def gone(self, entry: WorkloadEntry, uid: str) -> None:
        """A pod has a node, or is gone."""
        known = entry.unscheduled.pop(uid, None)
        if known is not None and known.counted_until:
            self._enqueue(entry.id, 0.0)  # what was said of it is over

    def leave_out(self, entry: WorkloadEntry, pods: Iterable[Pod]) -> None:
        """kube-scheduler refused these pods for too long: none like them goes to the same places for a while."""
        now, count, words = self._clock(), 0, ""
        seconds: dict[str, dict[str, float]] = {}  # by what is alike, and by node: each counts once
        for pod in pods:
            known, owned, slots = (
                entry.unscheduled.get(pod.metadata.uid),
                entry.job.pod_set_of(pod),
                entry.slots_of(pod),
            )
            index = slots.of_selector(pod.spec.node_selector) if slots is not None else None
            if known is None or owned is None or slots is None or index is None:
                continue
            found = self._refusals.setdefault(entry.job.namespace, Refusals(MOST))
            done = seconds.setdefault(owned.alike, {})
            nodes = self._of_slot(slots, index)
            for node in nodes:
                if node not in done:
                    done[node] = found.note(owned.alike, node, f"kube-scheduler: {known.words}", now)
            left = max((done[node] for node in nodes), default=LONG)
            entry.unscheduled[pod.metadata.uid] = known.counted(now + left)
            count, words = count + 1, words or known.words
        if count:
            entry.count_refusal(now)
            self._tell(entry, count, words)
            self._enqueue(entry.id, 0.0)

    def _of_slot(self, slots: PodSetSlots, index: int) -> list[str]:
        """The nodes of a slot: its own, or all of its domain where it is none."""
        slot = slots.slots[index]
        if slot.node:
            return [slot.node]
        wanted = dict(zip(slots.levels, slot.values, strict=True)).items()
        return [node.name for node in self._nodes() if wanted <= node.labels.items()]

    def changed(self, node: str, entries: Iterable[WorkloadEntry]) -> None:
        """Something changed on a node: it is worth another try a little earlier."""
        namespaces = {name for name, found in self._refusals.items() if found.changed(node)}
        if namespaces:
            for entry in entries:
                if entry.job.namespace in namespaces and entry.refusals and entry.admission is None:
                    self._enqueue(entry.id, 1.0)

    def forget(self, node: str) -> None:
        """The node is gone."""
        for found in self._refusals.values():
            found.forget(node)

    def avoided(self, entry: WorkloadEntry, owned: PodSetView, now: float | None = None) -> frozenset[str]:
        """The nodes that the pods of a pod set keep off now."""
        found = self._refusals.get(entry.job.namespace)
        if found is None:
            return frozenset()
        return frozenset(one.node for one in found.avoided(owned.alike, self._clock() if now is None else now))

    def listed(self, entry: WorkloadEntry) -> str:
        """The same for messages; "" where there is none."""
        found = self._refusals.get(entry.job.namespace)
        if found is None:
            return ""
        now, kinds = self._clock(), dict.fromkeys(pod_set.alike for pod_set in entry.job.pod_sets)
        return ", ".join(filter(None, (listed(found.avoided(alike, now), now) for alike in kinds)))

    def ended(self, entries: Iterable[WorkloadEntry]) -> bool:
        """Whether a node may be tried again since this was asked last: then who waits there asks for it again."""
        since, self._looked = self._looked, self._clock()
        again = {name for name, found in self._refusals.items() if found.ended(since, self._looked)}
        self._refusals = {name: found for name, found in self._refusals.items() if found}
        for entry in entries if again else ():
            if entry.job.namespace in again and entry.admission is None:
                self._enqueue(entry.id, 0.0)
        return bool(again)

    def hanging(self, entries: Iterable[WorkloadEntry]) -> int:
        """How many pods that were let go kube-scheduler has refused for longer than it is waited for."""
        if self._patience is None:
            return 0
        latest = self._clock() - self._patience
        return sum(
            one.refused_at is not None and one.refused_at <= latest
            for entry in entries
            for one in entry.unscheduled.values()
        )
