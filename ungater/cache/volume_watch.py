"""Claims, volumes, classes and CSINodes that come, change and go: whom that concerns is looked at again."""

from kube.informer import Event
from kube.objects import Pod
from kube.pods.volumes import claims_of
from kube.volumes.binding import host_of, is_available
from kube.volumes.objects import CsiNode, PersistentVolume, PersistentVolumeClaim, StorageClass
from ungater.cache.cache import Cache
from ungater.model.pod_slots import finished


class VolumeWatch:
    """Is told of the changes, after the stores have them."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def on_claim(self, event: Event[PersistentVolumeClaim]) -> None:
        """A claim came, changed or went."""
        if self._cache.live and _said(event.old) != _said(event.new):
            self._look(event.key)

    def on_volume(self, event: Event[PersistentVolume]) -> None:
        """A volume came, changed or went: its claim's pods, and those that may be bound to it, are concerned."""
        if not self._cache.live:
            return
        old, new = event.old, event.new
        claims = {
            f"{one.spec.claim_ref.namespace}/{one.spec.claim_ref.name}"
            for one in (old, new)
            if one is not None and one.spec.claim_ref is not None
        }
        for key in sorted(claims):
            self._look(key)
        for host in sorted({host for one in (old, new) if one is not None and (host := host_of(one))}):
            for node in self._cache.nodes_named(host):
                self._cache.attaches(node)
        for name in sorted(
            {one.spec.storage_class_name for one in (old, new) if one is not None and is_available(one)}
        ):
            self._again(name)

    def on_class(self, event: Event[StorageClass]) -> None:
        """A class came, changed or went; those that name none may have another one now."""
        if self._cache.live:
            self._again(event.key)
            self._again("")

    def on_csi_node(self, event: Event[CsiNode]) -> None:
        """How many volumes a node attaches changed."""
        if self._cache.live:
            self._cache.attaches(event.key)

    def on_pod(self, event: Event[Pod]) -> None:
        """A pod ended or went: who waits for a claim of it alone is looked at."""
        old, new = event.old, event.new
        ended = old is not None and not finished(old) and (new is None or finished(new))
        if old is None or not ended or old.spec.volumes is None or not self._cache.live:
            return
        for claim in claims_of(old):
            self._look(f"{old.metadata.namespace}/{claim.name}", charge=False)

    def _look(self, key: str, *, charge: bool = True) -> None:
        """Look at who names a claim, and charge the pods anew that have it."""
        self._again(key)
        for pod in self._cache.stores.pods_with(key):
            self._cache.look_at_owner(pod, charge=charge)

    def _again(self, key: str) -> None:
        for uid in sorted(self._cache.volumes.concerned(key)):
            self._cache.look_at(uid)


def _said(claim: PersistentVolumeClaim | None) -> object:
    """What is read of a claim."""
    if claim is None:
        return None
    meta = claim.metadata
    return meta.uid, meta.deletion_timestamp, meta.annotations, claim.spec, claim.status.phase
