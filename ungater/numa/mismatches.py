"""Where a kubelet did otherwise than was predicted: pods that it refused, and pods that got other zones or devices.

Each is told once a pod (``tell``), but not zones that only went to another pod of the job
(`ungater.numa.placement_exchange`). The state needs no correction of its own: a refused pod has finished and holds
nothing any more, and an observed placement counts before a predicted one. After a refusal the node is left out for pods
of that shape (`ungater.numa.node_backoff`), so that the replacement goes elsewhere or waits.
"""

from collections.abc import Callable, Iterable

from crds.constants import NUMA_PLACEMENT_OBSERVED
from crds.numa_placement import decode, misaligned
from engine.kubelet.admit import ALIGNED
from engine.kubelet.machine import NumaPlacement, PodShape
from kube.objects import Pod
from ungater.model.pod_slots import finished
from ungater.model.workload_entry import PlacementMismatch, WorkloadEntry
from ungater.numa.node_backoff import SHORT, Refusals, listed
from ungater.numa.placement_exchange import promised

# Reasons of the Topology Manager, of full-pcpus-only (kubelet, cm/cpumanager/policy_static.go), and of what any manager
# of the kubelet cannot allocate (cm/admission/errors.go).
REFUSALS = frozenset({ALIGNED, "SMTAlignmentError", "UnexpectedAdmissionError"})


class PlacementMismatches:
    """Notes what goes otherwise, and says which nodes to keep off."""

    def __init__(
        self,
        enqueue: Callable[[str, float], None],
        broken: Callable[[Pod], tuple[str, ...]],
        unreported: Callable[[Pod], tuple[str, ...]],
        tell: Callable[[WorkloadEntry, PlacementMismatch], None],
        clock: Callable[[], float],
        *,
        refused: Callable[[str, str, str], None],
    ) -> None:
        self._tell = tell
        self._refused = refused  # node, workload, reason
        self._broken = broken  # what a pod's own devices do not keep
        self._unreported = unreported  # what a pod asks for and its node tells no zones of
        self._enqueue = enqueue
        self._clock = clock
        self._refusals: Refusals[PodShape] = Refusals()
        self._looked = clock()

    def compare_pod(self, entry: WorkloadEntry, old: Pod | None, new: Pod) -> None:
        """Look at one version of a pod that we let go; ``old``: the version before, None where there was none."""
        uid = new.metadata.uid
        if uid in entry.mismatches or not new.spec.node_name:
            return
        mismatch = None
        if refused_by_kubelet(new):
            # At the change to Failed alone: later events of a failed pod say the same again.
            mismatch = self._refusal(entry, new) if old is None or not finished(old) else None
        # What a pod got is in its annotations; most events of a pod that runs change only its status.
        elif old is None or old.metadata.annotations != new.metadata.annotations:
            mismatch = misalignment(entry, new)
            if mismatch is None and (broken := self._broken(new)):
                # In zones as predicted: its device plugin chose otherwise.
                about = f"pod {new.metadata.name} on {new.spec.node_name}"
                message = f"{about} got devices that were not promised: {'; '.join(broken)}"
                mismatch = PlacementMismatch(new, new.spec.node_name, "", message)
        if mismatch is not None:
            entry.mismatches[uid] = mismatch
            self._tell(entry, mismatch)

    def _refusal(self, entry: WorkloadEntry, pod: Pod) -> PlacementMismatch:
        node, reason, detail = pod.spec.node_name, pod.status.reason, pod.status.message
        seconds = self.leave_out(entry, pod)
        message = f"the kubelet of {node} refused pod {pod.metadata.name}: {reason}"
        message = f"{message} ({detail})" if detail else message
        # Other reasons are not about zones.
        unreported = self._unreported(pod) if reason == ALIGNED else ()
        if unreported:
            unknown = ", ".join(unreported)
            message = f"{message}; the node publishes no NUMA zones of {unknown}, so this could not be predicted"
        return PlacementMismatch(pod, node, reason, message, seconds, unreported)

    def leave_out(self, entry: WorkloadEntry, pod: Pod) -> float:
        """No pod like this one goes to its node for a while; returns the seconds."""
        seconds = self._refusals.record_refusal(
            entry.shape_of(pod), pod.spec.node_name, pod.status.reason, self._clock()
        )
        self._refused(pod.spec.node_name, entry.key, pod.status.reason)
        self._enqueue(entry.id, seconds)
        return seconds

    def shorten_backoff(self, node: str, entries: Iterable[WorkloadEntry]) -> None:
        """Something inside the node changed: it is worth another try a little earlier."""
        if self._refusals and self._refusals.hasten_retry(node):
            for entry in entries:
                if any(mismatch.node == node and mismatch.refused for mismatch in entry.mismatches.values()):
                    self._enqueue(entry.id, SHORT)

    def forget_node(self, node: str) -> None:
        """The node is gone."""
        self._refusals.forget_node(node)

    def nodes_to_avoid(self, shape: PodShape, now: float | None = None) -> frozenset[str]:
        """The nodes that such pods keep off now."""
        if not self._refusals:
            return frozenset()
        found = self._refusals.nodes_to_avoid(shape, self._clock() if now is None else now)
        return frozenset(each.node for each in found)

    def describe_refusals(self, entry: WorkloadEntry) -> str:
        """The same for messages; "" where there is none."""
        if not self._refusals:
            return ""
        now, shapes = self._clock(), dict.fromkeys(pod_set.shape for pod_set in entry.job.pod_sets)
        return ", ".join(filter(None, (listed(self._refusals.nodes_to_avoid(shape, now), now) for shape in shapes)))

    def has_expired(self) -> bool:
        """Whether a node may be tried again since this was asked last."""
        since, self._looked = self._looked, self._clock()
        return bool(self._refusals) and self._refusals.expired_between(since, self._looked)


def refused_by_kubelet(pod: Pod) -> bool:
    """Whether its kubelet did not admit the pod for want of what it aligns or hands out."""
    return pod.status.phase == "Failed" and pod.status.reason in REFUSALS


def misalignment(entry: WorkloadEntry, pod: Pod) -> PlacementMismatch | None:
    """What a pod got otherwise than promised; None where nothing is, or not both are known."""
    text = (pod.metadata.annotations or {}).get(NUMA_PLACEMENT_OBSERVED)
    predicted, observed = promised(entry, pod), decode(text) if text else None
    if predicted is None or observed is None or not misaligned(predicted, observed):
        return None
    message = (
        f"pod {pod.metadata.name} on {pod.spec.node_name} got NUMA zones {_zones_in_words(observed)} instead of the "
        f"predicted {_zones_in_words(predicted)}; from now on what it has counts"
    )
    return PlacementMismatch(pod, pod.spec.node_name, "", message)


def _zones_in_words(placement: NumaPlacement) -> str:
    return ", ".join(str(use.zone) for use in placement.zones)
