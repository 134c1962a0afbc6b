"""Workloads that are nobody's any more, and pods: nothing else would ever remove them, or say what they wait for.

A Workload goes with its owner, by Kubernetes' garbage collector. What stays is that of an owner that was deleted and
left it behind (``kubectl delete --cascade=orphan``), that of a job that is not ours any more, as it asks for nothing or
is another controller's now, that of pods that are another owner's now, where nobody knows whether theirs exists, and
whatever anybody made by hand.
"""

from collections.abc import Callable, Iterable, Mapping

from kube.objects import ObjectMeta, OwnerReference, Pod, controller_of, key
from kube.workloads import WorkloadObject
from ungater.model.job_view import SUSPENDABLE

AFTER = 60.0  # seconds for which it has to be so: watches tell of an owner and its Workload in any order


class StrayPods:
    """Gated pods of owners that are not served: which of them are to be told so.

    A Job's pods go some seconds after the Job (Kubernetes' garbage collector removes them), and watches tell of both in
    any order. So one is told at the second look at the earliest, and one whose Job or JobSet is not there never.
    ``there``: whether the owner, in this namespace, exists.
    """

    def __init__(self, there: Callable[[str, OwnerReference], bool]) -> None:
        self._there = there
        self._before: frozenset[str] = frozenset()  # seen by the last look

    def to_tell(self, pods: Mapping[str, Pod | None]) -> list[Pod]:
        """Those that are to be told now, of all by uid; None of those that were."""
        # All uids of this look are kept, told or not: the second look decides by having seen a pod once.
        before, self._before = self._before, frozenset(pods)
        told: list[Pod] = []
        for uid, pod in pods.items():
            if pod is None or uid not in before:
                continue
            owner = controller_of(pod.metadata)
            # A pod whose Job or JobSet is not there any more goes soon.
            if (
                owner is None
                or (owner.kind, owner.api_version) not in SUSPENDABLE
                or self._there(pod.metadata.namespace, owner)
            ):
                told.append(pod)
        return told


class UnownedWorkloads:
    """Notes since when a Workload is nobody's.

    ``served``: whether a job is known for the Workload of this key. ``there``: whether the owner, in this namespace,
    exists and is of a kind whose jobs are all known. ``bare``: whether a Workload, by its metadata, is one of pods, and
    those that there are would be known.
    """

    def __init__(
        self,
        served: Callable[[str], bool],
        there: Callable[[str, OwnerReference], bool],
        bare: Callable[[ObjectMeta], bool],
    ) -> None:
        self._served = served
        self._there = there
        self._bare = bare
        self._since: dict[str, float] = {}  # by uid

    def to_remove(self, workloads: Iterable[WorkloadObject], now: float) -> list[WorkloadObject]:
        """Those that are to be removed; to be called now and then with all that there are."""
        found: list[WorkloadObject] = []
        for one in workloads:
            meta = one.metadata
            if meta.deletion_timestamp is not None or self._served(key(one)):
                continue
            owner = controller_of(meta)
            # Nothing collects an object without owners.
            loose = not meta.owner_references or self._bare(meta)
            if loose or (owner is not None and self._there(meta.namespace, owner)):
                found.append(one)
        # Only the ones that are nobody's now: one that was somebody's in between begins its time again.
        self._since = {one.metadata.uid: self._since.get(one.metadata.uid, now) for one in found}
        return [one for one in found if now - self._since[one.metadata.uid] >= AFTER]
