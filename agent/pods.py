"""The node's pods: who a uid is, and who is gone.

A pod that is gone holds nothing, whatever the kubelet's files still say: the kubelet drops it before it admits the next
one. But a uid that nobody knows may be of a pod that was just bound, or that the watch will show in a moment, so it is
believed for a while. One that was refused after its first container got something, and was deleted at once, is in no
list, but the watch told of it.
"""

from collections.abc import Callable, Collection, Iterable

from agent.kubelet.held import KubeletPod
from crds.constants import NUMA_PLACEMENT_OBSERVED
from kube.objects import Object, Struct

GRACE_SECONDS = 30.0
FINISHED = frozenset({"Succeeded", "Failed"})
MIRROR = "kubernetes.io/config.mirror"
STATIC_UID = "kubernetes.io/config.hash"
READ = (MIRROR, STATIC_UID, NUMA_PLACEMENT_OBSERVED)  # annotations, here and where placements are written
MOST_KEPT = 10_000  # parts of the pods of one namespace beyond those that are free (`kube.kept`): some 1 MB


class PodPhase(Struct, frozen=True):
    """A pod's phase."""

    phase: str = ""


class NodePod(Object, frozen=True):
    """A pod, as far as the agent reads it."""

    status: PodPhase = PodPhase()


def pod(wire: NodePod) -> KubeletPod:
    """The pod; a static pod by the uid that the kubelet has, which its mirror names."""
    metadata = wire.metadata
    annotations = metadata.annotations or {}
    uid = annotations.get(STATIC_UID, metadata.uid) if MIRROR in annotations else metadata.uid
    return KubeletPod(uid, metadata.namespace, metadata.name, wire.status.phase in FINISHED)


class UidRoster:
    """Remembers which uids were seen when, and since when unknown ones are there. ``clock`` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, float] = {}
        self._unknown: dict[str, float] = {}

    def record_uid(self, uid: str) -> None:
        """A pod of this uid came, changed or went."""
        self._seen[uid] = self._clock()

    def gone_holders(self, held: Iterable[str], pods: Collection[KubeletPod], *, complete: bool) -> frozenset[str]:
        """Which of the holders (uids) are gone; ``complete``: whether ``pods`` are all of the node."""
        now, held = self._clock(), set(held)
        known = {pod.uid: pod for pod in pods}
        self._seen.update(dict.fromkeys(known, now))
        # What the kubelet's files are about to tell of a pod that went may be read a moment later.
        self._seen = {uid: at for uid, at in self._seen.items() if uid in held or now - at < GRACE_SECONDS}
        # Before the first list nobody is unknown, for nobody is known.
        unknown = {uid for uid in held - known.keys() if uid not in self._seen and complete}
        self._unknown = {uid: self._unknown.get(uid, now) for uid in unknown}
        finished = {uid for uid in held & known.keys() if known[uid].finished}
        vanished = {uid for uid in held - known.keys() if uid in self._seen} if complete else set()
        expired = {uid for uid, since in self._unknown.items() if now - since >= GRACE_SECONDS}
        return frozenset(finished | vanished | expired)
