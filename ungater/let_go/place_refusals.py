"""Nodes that pods like one keep off: it was let go there, and kube-scheduler did not take it or it never started.

Topogate counts what it knows that a filter looks at. A filter that nobody knows (an extender, a plugin, a quota of
another system) may look at anything of a pod, so what refuses one pod of a pod set is taken to refuse all that have the
same template, in the same namespace: nobody keeps others' pods off a node by pods of his own.
"""

from collections.abc import Callable, Iterable
from typing import Final

from engine.cluster.levels import domain_labels
from engine.model import Node
from kube.objects import Pod
from ungater.model.job_view import PodSetView
from ungater.model.workload_entry import WorkloadEntry
from ungater.numa.node_backoff import SHORT, Refusals, listed

MOST: Final = 2000  # refusals of a namespace that are kept
NOT_STARTED: Final = "its pod did not start"

Place = str | frozenset[tuple[str, str]]  # a node, or the labels of a domain; "" for none


class PlaceRefusals:
    """See the module. ``nodes``: all that there are; ``tell``: of so many pods whose nodes are left out from now on."""

    def __init__(
        self,
        nodes: Callable[[], Iterable[Node]],
        *,
        enqueue: Callable[[str, float], None],
        tell: Callable[[WorkloadEntry, int, str], None],
        clock: Callable[[], float],
    ) -> None:
        self._nodes = nodes
        self._enqueue = enqueue
        self._tell = tell
        self._clock = clock
        self._refusals: dict[str, Refusals[str]] = {}  # by namespace, and by what is alike there
        self._looked = clock()

    def leave_out(self, entry: WorkloadEntry, pods: Iterable[Pod]) -> None:
        """These pods were refused for too long: none like them goes to the same places for a while."""
        now, count, words = self._clock(), 0, ""
        done: dict[tuple[str, str], float] = {}  # by what is alike, and by node: each counts once
        places: dict[tuple[str, Place], float] = {}  # the same for places: one with many pods is looked at once
        for pod in pods:
            owned, place = entry.job.pod_set_of(pod), _meant(entry, pod)
            who, why = _refuser_and_words(entry, pod)
            if owned is None or not place or not why:
                continue
            if (owned.filter_key, place) not in places:
                # A table for each namespace: a tenant with many refused pods pushes out only refusals of its own.
                found, text = self._refusals.setdefault(entry.job.namespace, Refusals(MOST)), f"{who}: {why}"
                nodes = (
                    [place]
                    if isinstance(place, str)
                    else [node.name for node in self._nodes() if place <= node.labels.items()]
                )
                for node in nodes:
                    if (owned.filter_key, node) not in done:
                        done[owned.filter_key, node] = found.record_refusal(owned.filter_key, node, text, now)
                places[owned.filter_key, place] = max([done[owned.filter_key, node] for node in nodes], default=0.0)
            left = places[owned.filter_key, place]
            # A pod that has a node has no such record: it does not start, and is counted elsewhere (`coming_pods`).
            if left and (known := entry.unscheduled.get(pod.metadata.uid)) is not None:
                entry.unscheduled[pod.metadata.uid] = known.counted(now + left)
                count, words = count + 1, words or why
        if count:
            entry.count_refusal(now)
            self._tell(entry, count, words)
            self._enqueue(entry.id, 0.0)

    def shorten_backoff(self, node: str, entries: Iterable[WorkloadEntry]) -> None:
        """Something changed on a node: it is worth another try a little earlier."""
        namespaces = {name for name, found in self._refusals.items() if found.hasten_retry(node)}
        if namespaces:
            for entry in entries:
                if entry.job.namespace in namespaces and _waits_for_place(entry):
                    # No earlier: a node that changed is tried again after this time at best.
                    self._enqueue(entry.id, SHORT)

    def forget_node(self, node: str) -> None:
        """The node is gone."""
        for found in self._refusals.values():
            found.forget_node(node)

    def avoided_nodes(self, entry: WorkloadEntry, owned: PodSetView, now: float | None = None) -> frozenset[str]:
        """The nodes that the pods of a pod set keep off now."""
        found = self._refusals.get(entry.job.namespace)
        if found is None:
            return frozenset()
        return frozenset(
            one.node for one in found.nodes_to_avoid(owned.filter_key, self._clock() if now is None else now)
        )

    def describe_refusals(self, entry: WorkloadEntry) -> str:
        """The same for messages; "" where there is none."""
        found = self._refusals.get(entry.job.namespace)
        if found is None:
            return ""
        now, kinds = self._clock(), dict.fromkeys(pod_set.filter_key for pod_set in entry.job.pod_sets)
        return ", ".join(filter(None, (listed(found.nodes_to_avoid(alike, now), now) for alike in kinds)))

    def requeue_expired(self, entries: Iterable[WorkloadEntry]) -> bool:
        """Whether a node may be tried again since this was asked last: then who waits there asks for it again."""
        since, self._looked = self._looked, self._clock()
        again = {name for name, found in self._refusals.items() if found.expired_between(since, self._looked)}
        # Namespaces come and go; empty tables of theirs would stay.
        self._refusals = {name: found for name, found in self._refusals.items() if found}
        for entry in entries if again else ():
            if entry.job.namespace in again and _waits_for_place(entry):
                self._enqueue(entry.id, 0.0)
        return bool(again)


def _meant(entry: WorkloadEntry, pod: Pod) -> Place:
    """The node of a pod; of one that has none that of its slot, or the labels of a slot that is a wider domain."""
    if pod.spec.node_name:
        return pod.spec.node_name
    slots = entry.slots_of(pod)
    index = slots.of_selector(pod.spec.node_selector) if slots is not None else None
    if slots is None or index is None:
        return ""
    slot = slots.slots[index]
    return slot.node or frozenset(domain_labels(slots.levels, slot.values).items())


def _waits_for_place(entry: WorkloadEntry) -> bool:
    """Whether one waits for a place, or for more or other ones: it asked for them without the nodes left out then."""
    return entry.admission is None or entry.refused is not None


def _refuser_and_words(entry: WorkloadEntry, pod: Pod) -> tuple[str, str]:
    """Who does not take a pod, and what he says of it; "" where he does."""
    refused = entry.unscheduled.get(pod.metadata.uid)
    if refused is not None:
        return "kube-scheduler", refused.words if refused.refused_at is not None else ""
    waits = entry.unstarted.get(pod.metadata.uid)
    return NOT_STARTED, waits.words if waits is not None else ""
