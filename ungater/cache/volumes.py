"""What the event of a claim, a volume, a class, or of what CSI drivers say, changes: whom it concerns is looked at."""

from collections.abc import Callable

from kube.informer import Event
from kube.objects import Pod
from kube.pods.volumes import claims_of
from kube.volumes.available import host_of, is_available
from kube.volumes.binding import ALONE, limit_of_volume
from kube.volumes.capacity import limit_of
from kube.volumes.objects import (
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from ungater.cache.charges.pod_charges import Charges
from ungater.cache.claims.pod_volumes import PodVolumes
from ungater.cache.core import Core
from ungater.cache.nodes import NodeEvents
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry


class VolumeEvents:
    """See the module. ``delay``: for how long to wait for more pods of a job before it is looked at."""

    def __init__(
        self,
        core: Core,
        nodes: NodeEvents,
        charges: Charges,
        pod_volumes: PodVolumes,
        delay: Callable[[WorkloadEntry], float],
    ) -> None:
        self._core = core
        self._stores = core.stores
        self._entries = core.entries
        self._enqueue = core.enqueue
        self._nodes = nodes
        self._charges = charges
        self._pod_volumes = pod_volumes
        self._delay = delay

    def on_claim(self, event: Event[PersistentVolumeClaim]) -> None:
        """A claim came, changed or went."""
        old, new = event.old, event.new
        if self._core.live and _relevant_state(old) != _relevant_state(new):
            self._requeue_and_charge(event.key, charge=_limited(old) != _limited(new))

    def on_volume(self, event: Event[PersistentVolume]) -> None:
        """A volume came, changed or went: its claim's pods, and those that may be bound to it, are concerned."""
        if not self._core.live or _read(event.old) == _read(event.new):
            return
        both = [one for one in (event.old, event.new) if one is not None]
        references = [one.spec.claim_ref for one in both if one.spec.claim_ref is not None]
        charge = len({limit_of_volume(one) for one in both}) > 1 or len(both) == 1
        for key in sorted({f"{one.namespace}/{one.name}" for one in references}):
            self._requeue_and_charge(key, charge=charge)
        # A local volume is a disk of one host: how many claims that node can take changes with it.
        for host in sorted({host for one in both if (host := host_of(one))}):
            for node in self._nodes.nodes_of_host(host):
                self._nodes.attaches(node)
        # Any claim of the class that is not bound may get this volume.
        for name in sorted({one.spec.storage_class_name for one in both if is_available(one)}):
            self._requeue_users(name)

    def on_class(self, event: Event[StorageClass]) -> None:
        """A class came, changed or went; those that name none may have another one now."""
        if self._core.live:
            self._requeue_users(event.key)
            # The default class may be another one now.
            self._requeue_users("")

    def on_csi_node(self, event: Event[CsiNode]) -> None:
        """How many volumes a node attaches changed."""
        if self._core.live:
            self._nodes.attaches(event.key)

    def on_csi_driver(self, event: Event[CsiDriver]) -> None:
        """A driver tells where it has storage left from now on, or no more."""
        old, new = event.old, event.new
        if not self._core.live or (old is not None and new is not None and old.spec == new.spec):
            return
        for one in self._stores.storage.classes():
            if one.provisioner == event.key:
                self._requeue_users(one.metadata.name)

    def on_capacity(self, event: Event[CsiStorageCapacity]) -> None:
        """A driver has more or less left; it tells so at each volume that it makes, and who waits is helped by more."""
        old, new = event.old, event.new
        if not self._core.live or new is None:
            return
        same = old is not None and old.node_topology == new.node_topology
        # Less helps nobody, and drivers write these objects with every volume that they make.
        if not same or old is None or limit_of(new) > limit_of(old):
            self._requeue_users(new.storage_class_name)

    def requeue_claimants(self, event: Event[Pod]) -> None:
        """A pod ended or went: who waits for a claim of it alone is looked at."""
        old, new = event.old, event.new
        ended = old is not None and not finished(old) and (new is None or finished(new))
        if old is None or not ended or not self._core.live or is_gated(old, self._core.keys.gate):
            return
        for one in claims_of(old):
            key = f"{old.metadata.namespace}/{one.name}"
            claim = self._stores.storage.claim(key)
            # Only ReadWriteOncePod: any other claim is nobody's to give back.
            if claim is not None and ALONE in (claim.spec.access_modes or ()):
                self._requeue_and_charge(key, charge=False)

    def _requeue_and_charge(self, key: str, *, charge: bool) -> None:
        """Look at who names a claim, and charge the pods anew that have it."""
        self._requeue_users(key)
        for pod in self._stores.pods_with(key):
            if charge and pod.spec.node_name:
                self._charges.charge_pod(pod)
            if (entry := self._entries.entry_of_pod(pod)) is not None:
                self._enqueue(entry.id, self._delay(entry))

    def _requeue_users(self, key: str) -> None:
        for uid in sorted(self._pod_volumes.concerned(key)):
            if uid in self._entries:
                self._enqueue(uid, 0.0)


def _relevant_state(claim: PersistentVolumeClaim | None) -> object:
    """What is read of a claim."""
    if claim is None:
        return None
    meta = claim.metadata
    return meta.uid, meta.deletion_timestamp, meta.annotations, claim.spec, claim.status.phase


def _limited(claim: PersistentVolumeClaim | None) -> object:
    """What is read of a claim to tell what limits its volume."""
    return (claim.spec.volume_name, claim.storage_class) if claim is not None else None


def _read(volume: PersistentVolume | None) -> object:
    """What is read of a volume."""
    if volume is None:
        return None
    return volume.metadata.deletion_timestamp, volume.metadata.labels, volume.spec, volume.status.phase
