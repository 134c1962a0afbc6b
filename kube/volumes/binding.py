"""What a claim says of the nodes that its pods may go to, as kube-scheduler reads it. Plain functions over look-ups.

Source: the plugins VolumeBinding, VolumeZone and NodeVolumeLimits of Kubernetes 1.36, and ``FindMatchingVolume``.

- A bound claim: the nodes that the node affinity of its volume lets in, and those in the zones and regions of the
  volume's labels (several in one label are divided by ``__``); nodes without any such label are in all of them.
- An unbound claim whose class waits for a pod: the nodes of the available volumes that match it, and where the class
  has a provisioner those of its ``allowedTopologies``, or all; of these the ones where its driver has storage left, if
  it tells that (`kube.volumes.capacity`). Where a volume is kept for it, the nodes of that one alone. Once
  kube-scheduler chose a node for it, that one.
- Any other unbound claim, and one that is not there, lost or on its way out: none. No pod with it can be scheduled.
- What is attached counts for the CSI driver of the volume, or of the class as long as there is none. Volumes of the
  plugins that Kubernetes had once count for the driver that serves them now.
- Of a class without a provisioner, each unbound claim takes one of the available volumes of its node, where those are
  of one node each. Whether each is large enough is not counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from engine.model import HOSTNAME_LABEL, LabelRequirement, NodeTerm, local_volumes_of, volumes_of
from kube import objects
from kube.objects import ClaimSpec
from kube.volumes.available import Available, TooManyWishes, terms_of, too_selective
from kube.volumes.objects import (
    BIND_COMPLETED,
    NO_PROVISIONER,
    SELECTED_NODE,
    CsiDriver,
    CsiNode,
    CsiStorageCapacity,
    InTreeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from kube.volumes.terms import MOST_REQUIREMENTS, Terms, size_of

MOST_LENGTH: Final = 256  # of the name of a driver
ALONE: Final = "ReadWriteOncePod"
_ZONE, _REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
_PLACES: Final = {  # label of a volume -> that of nodes, where they lack the same one
    "failure-domain.beta.kubernetes.io/zone": _ZONE,
    "failure-domain.beta.kubernetes.io/region": _REGION,
    _ZONE: _ZONE,
    _REGION: _REGION,
}
_MIGRATED: Final = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
}


class Storage(msgspec.Struct, frozen=True):
    """Look-ups in what there is.

    ``claim`` by ``namespace/name``; ``available``: by class, volumes that a claim may be bound to; ``local``: by host
    name, those of one host alone that any claim may be bound to (`host_of`); ``csi_node`` by the name of its node.
    ``capacities``: what drivers have left for a class; None where that may not be read.
    """

    claim: Callable[[str], PersistentVolumeClaim | None]
    volume: Callable[[str], PersistentVolume | None]
    storage_class: Callable[[str], StorageClass | None]
    classes: Callable[[], Iterable[StorageClass]]
    available: Callable[[str], Iterable[PersistentVolume]]
    local: Callable[[str], Iterable[PersistentVolume]]
    csi_node: Callable[[str], CsiNode | None]
    csi_driver: Callable[[str], CsiDriver | None]
    capacities: Callable[[str], Iterable[CsiStorageCapacity] | None]

    def capacities_left(self, of: StorageClass) -> Iterable[CsiStorageCapacity] | None:
        """What the driver of a class has left for it; None where it does not tell."""
        driver = self.csi_driver(of.provisioner)
        return self.capacities(of.metadata.name) if driver is not None and driver.spec.storage_capacity else None

    @property
    def read_available(self) -> Available:
        """The volumes that there are, for one question."""
        return Available(self.available, self.capacities_left)

    @property
    def default_class(self) -> str:
        """The class of claims that name none: the newest of those that are default; of several, the first by name."""
        defaults = sorted((one for one in self.classes() if one.default), key=lambda one: one.metadata.name)
        # The times are RFC 3339 text in UTC, and such texts sort as the times do. `max` takes the first of equals.
        newest = max(defaults, key=lambda one: one.metadata.creation_timestamp or "", default=None)
        return newest.metadata.name if newest is not None else ""


class VolumeReach(msgspec.Struct, frozen=True):
    """Where a claim lets pods go: for each entry of ``nodes``, where one of its terms holds.

    ``limit``: what limits such volumes on a node (`engine.model.volumes_of`), "" where nothing does. ``alone``: one pod
    at a time may have it.
    """

    nodes: tuple[Terms, ...] = ()
    limit: str = ""
    alone: bool = False


class NotReady(msgspec.Struct, frozen=True):
    """No pod with the claim can be scheduled as things are, and why."""

    message: str


def reach_of(storage: Storage, namespace: str, name: str, available: Available | None = None) -> VolumeReach | NotReady:
    """What the claim of this name says; ``available`` is one for all claims that a question is about."""
    key = f"{namespace}/{name}"
    claim = storage.claim(key)
    if claim is None:
        return NotReady(f'persistentvolumeclaim "{name}" not found')
    if claim.metadata.deletion_timestamp is not None:
        return NotReady(f'persistentvolumeclaim "{name}" is being deleted')
    alone, bound_to = ALONE in (claim.spec.access_modes or ()), claim.spec.volume_name
    if not bound_to:
        selected = (claim.metadata.annotations or {}).get(SELECTED_NODE, "")
        available = available or storage.read_available
        wish = claim.spec if not claim.metadata.cut else None
        return _unbound(storage, available, wish, claim.storage_class, key, selected=selected, alone=alone)
    volume = storage.volume(bound_to)
    if volume is None or claim.status.phase == "Lost":
        return NotReady(f'persistentvolumeclaim "{name}" is bound to non-existent persistentvolume "{bound_to}"')
    # Anybody may write spec.volumeName; only the annotation says that volume and claim agreed.
    if BIND_COMPLETED not in (claim.metadata.annotations or {}):
        return NotReady(f'persistentvolumeclaim "{name}" is not bound yet to persistentvolume "{bound_to}"')
    return _reach_of_volume(volume, alone=alone)


def reach_of_template(storage: Storage, spec: ClaimSpec, available: Available | None = None) -> VolumeReach | NotReady:
    """What claims will say that are made of this, once pods are there that need them.

    Where their class does not wait for the pod nobody knows yet: what they are bound to tells when they are there.
    """
    name = spec.storage_class_name if spec.storage_class_name is not None else storage.default_class
    found = storage.storage_class(name) if name else None
    if name and found is None:
        return NotReady(f'storageclass "{name}" not found')
    if found is None or not found.waits:
        return VolumeReach(limit=_limit_of_class(found) if found is not None else "")
    return _unbound(storage, available or storage.read_available, spec, name, "")


def limit_of(storage: Storage, namespace: str, name: str) -> str:
    """What limits the volume of a claim on a node, whatever state it is in; "" where nothing does."""
    claim = storage.claim(f"{namespace}/{name}")
    if claim is None:
        return ""
    if claim.spec.volume_name:
        volume = storage.volume(claim.spec.volume_name)
        return limit_of_volume(volume) if volume is not None else ""
    found = storage.storage_class(claim.storage_class)
    return _limit_of_class(found) if found is not None else ""


def limit_of_volume(volume: PersistentVolume) -> str:
    """What limits a volume on a node; "" where nothing does."""
    spec = volume.spec
    if spec.csi is not None:
        return _limit(spec.csi.driver)
    # No driver, but the plugin that once attached it.
    old: Iterable[tuple[str, InTreeSource | None]] = (
        ("kubernetes.io/aws-ebs", spec.aws_elastic_block_store),
        ("kubernetes.io/gce-pd", spec.gce_persistent_disk),
        ("kubernetes.io/azure-disk", spec.azure_disk),
        ("kubernetes.io/cinder", spec.cinder),
        ("kubernetes.io/vsphere-volume", spec.vsphere_volume),
    )
    return _limit(next((plugin for plugin, source in old if source is not None), ""))


def attachable(storage: Storage, node: objects.Node) -> dict[str, int]:
    """How many volumes a node attaches, or has for claims of a class, by limit. A driver may say no number."""
    found, host = storage.csi_node(node.metadata.name), (node.metadata.labels or {}).get(HOSTNAME_LABEL, "")
    drivers = found.spec.drivers or () if found is not None else ()
    said = ((_limit(one.name), one.allocatable.count) for one in drivers[:MOST_REQUIREMENTS] if one.allocatable)
    limits = {limit: max(0, count) for limit, count in said if limit and count is not None}
    local = Counter(one.spec.storage_class_name for one in storage.local(host)) if host else Counter[str]()
    return limits | {local_volumes_of(name): count for name, count in local.items() if name}


def _reach_of_volume(volume: PersistentVolume, *, alone: bool) -> VolumeReach | NotReady:
    name = volume.metadata.name
    terms = terms_of(volume)
    if terms is not None and size_of(terms) > MOST_REQUIREMENTS:
        return NotReady(f'persistentvolume "{name}" has more node affinity than Topogate takes into account')
    nodes = (() if terms is None else (terms,)) + tuple(_terms_of_labels(volume.metadata.labels or {}))
    return VolumeReach(nodes, limit_of_volume(volume), alone=alone)


def _unbound(
    storage: Storage,
    available: Available,
    spec: ClaimSpec | None,
    class_name: str,
    key: str,
    *,
    selected: str = "",
    alone: bool = False,
) -> VolumeReach | NotReady:
    """``spec``: None where only a part of it is kept (`kube.kept`)."""
    name = key.partition("/")[2]
    claim = f'persistentvolumeclaim "{name}"' if name else "the claim of an ephemeral volume"
    found = storage.storage_class(class_name) if class_name else None
    if found is None or not found.waits:
        why = "has no storage class"
        if class_name:
            why = f'has storageclass "{class_name}", which ' + ("is not there" if found is None else "binds at once")
        return NotReady(f"{claim} is not bound, and {why}: no pod with it is scheduled before it is bound")
    limit = _limit_of_class(found)
    # kube-scheduler chose and the driver is at work: any other node would wait for a volume that is made elsewhere.
    if selected:
        only = LabelRequirement(key="metadata.name", operator="In", values=(selected,))
        return VolumeReach(((NodeTerm(fields=(only,)),),), limit, alone)
    if spec is None or too_selective(spec):
        return NotReady(f"{claim} is not bound, and it selects volumes by more than Topogate takes into account")
    try:
        terms = available.terms_of_claim(found, spec, key)
    except TooManyWishes:
        return NotReady(f"{claim} is not bound, and its job's claims select volumes in too many different ways")
    if terms == ():
        text = f'no available persistentvolume of storageclass "{class_name}" matches it'
        if storage.capacities_left(found) is not None:
            text = f"{text}, and driver {found.provisioner} has no storage left for it on any node (CSIStorageCapacity)"
        return NotReady(f"{claim} is not bound, and {text}")
    # The terms are ORed: cutting them loses nodes that would do, and never lets one in that would not.
    return VolumeReach(() if terms is None else (terms[:MOST_REQUIREMENTS],), limit, alone)


def _terms_of_labels(labels: objects.StrMap) -> Iterator[Terms]:
    """What the labels of a volume say of where it is."""
    nowhere = NodeTerm(labels=tuple([LabelRequirement(key=key, operator="DoesNotExist") for key in _PLACES]))
    for key, other in _PLACES.items():
        values = tuple(sorted({part.strip() for part in labels[key].split("__")})) if key in labels else ()
        if not values or "" in values:
            continue  # kube-scheduler ignores a label that it cannot read
        here = NodeTerm(labels=(LabelRequirement(key=key, operator="In", values=values),))
        terms = [here, nowhere]
        if other != key:
            lacks = LabelRequirement(key=key, operator="DoesNotExist")
            terms.insert(1, NodeTerm(labels=(lacks, LabelRequirement(key=other, operator="In", values=values))))
        yield tuple(terms)


def _limit(driver: str) -> str:
    """What limits the volumes of a driver, or of the driver that serves a plugin now."""
    driver = _MIGRATED.get(driver, driver)
    legal = driver and len(driver) <= MOST_LENGTH and not {"/", " "}.intersection(driver)
    return volumes_of(driver) if legal else ""


def _limit_of_class(found: StorageClass) -> str:
    """What limits the volumes of claims of a class that are not bound yet."""
    static = found.provisioner == NO_PROVISIONER and found.waits
    return local_volumes_of(found.metadata.name) if static else _limit(found.provisioner)
