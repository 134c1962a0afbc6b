"""What the claims of one job's pods say, as of one question: what many pods have in common is looked up once.

A question is about pods by the thousand, which may all name one claim, or have one each of the same class.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from crds.constants import Keys
from kube import objects
from kube.pods.volumes import PodClaim, claims_of
from kube.volumes.binding import NotReady, Storage, VolumeReach, reach_of, reach_of_template
from kube.volumes.terms import Terms
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry


class PodReach(msgspec.Struct, frozen=True):
    """Where all claims of a pod let it go, and by which limits they count. ``alone``: keys of those for one pod."""

    nodes: tuple[Terms, ...] = ()
    limits: tuple[tuple[str, str], ...] = ()  # (limit, name of the claim)
    alone: tuple[str, ...] = ()


class ClaimLookUps(msgspec.Struct, frozen=True):
    """What is known of claims, whoever asks.

    ``pods_with``: the pods that name a claim, by its key; ``expected``: claims that are taken for some that are made
    soon; ``note(uid, key)``: a job looks again when the claim, or the class, of this key changes.
    """

    storage: Storage
    pods_with: Callable[[str], Iterable[objects.Pod]]
    keys: Keys
    expected: Mapping[str, objects.ClaimSpec]
    note: Callable[[str, str], None]


class JobClaims:
    """See the module. Of one job, for one question."""

    def __init__(self, known: ClaimLookUps, entry: WorkloadEntry) -> None:
        self._known = known
        self._storage = known.storage
        self._entry = entry
        self._available = known.storage.read_available
        self._said: dict[str, VolumeReach | NotReady] = {}
        self._holders: dict[str, tuple[list[objects.Pod], objects.Pod | None]] = {}

    def of_template(self, one: PodClaim) -> VolumeReach | NotReady:
        """What a claim says that the template of a pod set names, or that is made for each of its pods."""
        entry, storage = self._entry, self._storage
        if one.template is None:
            key = f"{entry.job.namespace}/{one.name}"
            self._known.note(entry.id, key)
            return self._reach(key)
        named = one.template.storage_class_name
        self._known.note(entry.id, storage.default_class if named is None else named)
        # Under "" too: any class may become the default one (`VolumeEvents.on_class`).
        self._known.note(entry.id, "")
        return reach_of_template(storage, one.template, self._available)

    def ready(self, named: Iterable[PodClaim]) -> Iterator[tuple[str, VolumeReach]]:
        """What those of a template say that are ready, by name."""
        return ((one.name, found) for one in named if isinstance(found := self.of_template(one), VolumeReach))

    def own(self, named: Iterable[PodClaim], pod: objects.Pod) -> PodReach:
        """What the claims say that a pod has and its template does not name."""
        known = {one.name for one in named if one.template is None}
        claims = [one for one in claims_of(pod) if one.template is not None or one.name not in known]
        found = ((one.name, self._of_pod(pod, one)) for one in claims)
        return combined((name, reach) for name, reach in found if isinstance(reach, VolumeReach))

    def reach_of_pod(self, pod: objects.Pod) -> PodReach | NotReady:
        """What all claims of a pod say, or the first that is not ready."""
        found: list[tuple[str, VolumeReach]] = []
        for one in claims_of(pod):
            reach = self._of_pod(pod, one)
            if isinstance(reach, NotReady):
                return reach
            if reach.alone and (why := self.in_use(one.name, pod)) is not None:
                return NotReady(why)
            found.append((one.name, reach))
        return combined(found)

    def _of_pod(self, pod: objects.Pod, one: PodClaim) -> VolumeReach | NotReady:
        """What one claim of a pod says."""
        key = f"{pod.metadata.namespace}/{one.name}"
        claim = self._storage.claim(key) if one.template is not None else None
        if one.template is not None and (claim is not None or key not in self._known.expected):
            if claim is None:
                return NotReady(
                    f'waiting for the ephemeral volume controller to make persistentvolumeclaim "{one.name}"'
                )
            controller = objects.controller_of(claim.metadata)
            # As kube-scheduler has it: a claim of that name that somebody else made is not the pod's.
            if controller is None or controller.uid != pod.metadata.uid:
                return NotReady(f'persistentvolumeclaim "{one.name}" was not made for pod {pod.metadata.name}')
        return self._reach(key)

    def _reach(self, key: str) -> VolumeReach | NotReady:
        """What a claim says; who has it looks again when that may change."""
        found = self._said.get(key)
        if found is None:
            found = self._said[key] = self._looked_up(key)
        return found

    def _looked_up(self, key: str) -> VolumeReach | NotReady:
        claim = self._storage.claim(key)
        if claim is None and key in self._known.expected:
            return reach_of_template(self._storage, self._known.expected[key], self._available)
        if claim is not None and not claim.spec.volume_name:
            self._known.note(self._entry.id, claim.storage_class)
        namespace, _, name = key.partition("/")
        return reach_of(self._storage, namespace, name, self._available)

    def in_use(self, name: str, own: objects.Pod | None = None) -> str | None:
        """Who has a claim that one pod alone may have; None where nobody else does.

        ``own``: the pod that asks; None for all pods of the workload.
        """
        if name not in self._holders:
            self._holders[name] = self._held_by(f"{self._entry.job.namespace}/{name}")
        first, other = self._holders[name]
        if own is not None:
            other = next((pod for pod in first if pod.metadata.uid != own.metadata.uid), None)
        if other is None:
            return None
        return f'persistentvolumeclaim "{name}" is ReadWriteOncePod, and pod {other.metadata.name} has it'

    def _held_by(self, key: str) -> tuple[list[objects.Pod], objects.Pod | None]:
        """The first two pods that have a claim, and the first that is not the job's: all that anybody may be told."""
        entry, keys = self._entry, self._known.keys
        first: list[objects.Pod] = []
        for pod in self._known.pods_with(key):
            uid, mark = pod.metadata.uid, (pod.metadata.annotations or {}).get(keys.workload)
            # A pod that was let go has the claim as good as one that is bound: a second one would hang beside it.
            sent = entry.on_its_way(uid) is not None or (mark is not None and not is_gated(pod, keys.gate))
            if finished(pod) or not (pod.spec.node_name or sent):
                continue
            # Two are enough: for any pod that asks, one of them is another.
            if len(first) < 2:
                first.append(pod)
            if uid not in entry.pods:
                return first, pod
        return first, None


def combined(found: Iterable[tuple[str, VolumeReach]]) -> PodReach:
    """What several claims say together."""
    listed = list(found)
    return PodReach(
        nodes=tuple(dict.fromkeys([terms for _, one in listed for terms in one.nodes])),
        limits=tuple([(one.limit, name) for name, one in listed if one.limit]),
        alone=tuple([name for name, one in listed if one.alone]),
    )
