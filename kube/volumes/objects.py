"""Wire shapes of claims, volumes, storage classes and what CSI drivers say, with what decides placement and no more.

There may be tens of thousands of claims and volumes: of their metadata only what is read is kept.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from kube.objects import (
    ClaimSpec,
    LabelSelector,
    NodeSelector,
    Object,
    ObjectMeta,
    OwnerReference,
    Quantities,
    StrMap,
    Struct,
)

BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
OLD_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
OLD_DEFAULT_CLASS: Final = "storageclass.beta.kubernetes.io/is-default-class"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
WAIT_FOR_FIRST_CONSUMER: Final = "WaitForFirstConsumer"


def trimmed(
    meta: ObjectMeta,
    annotations: Collection[str] = (),
    labels: StrMap | None = None,
    references: tuple[OwnerReference, ...] = (),
) -> ObjectMeta:
    """Of an object's metadata who it is, and of its annotations these."""
    kept = {key: meta.annotations[key] for key in annotations if key in meta.annotations} if meta.annotations else None
    return ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        labels=labels,
        annotations=kept or None,
        owner_references=references,
        creation_timestamp=meta.creation_timestamp,
        deletion_timestamp=meta.deletion_timestamp,
        cut=meta.cut,
    )


class ClaimStatus(Struct, frozen=True):
    """Status of a claim."""

    phase: str = ""


class PersistentVolumeClaim(Object, frozen=True):
    """A claim of a namespace to a volume."""

    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    def __post_init__(self) -> None:
        controlling = tuple([one for one in self.metadata.owner_references if one.controller])
        msgspec.structs.force_setattr(
            self, "metadata", trimmed(self.metadata, (BIND_COMPLETED, SELECTED_NODE, OLD_CLASS), references=controlling)
        )
        if self.spec.volume_name and self.spec.selector is not None:  # it selects nothing any more
            msgspec.structs.force_setattr(self, "spec", msgspec.structs.replace(self.spec, selector=None))

    @property
    def storage_class(self) -> str:
        """The name of its class; "" where it has none."""
        # The annotation wins over the field, even an empty one, as in Kubernetes' GetPersistentVolumeClaimClass.
        old = (self.metadata.annotations or {}).get(OLD_CLASS)
        return old if old is not None else self.spec.storage_class_name or ""


class ClaimReference(Struct, frozen=True):
    """The claim that a volume is bound to, or kept for."""

    namespace: str = ""
    name: str = ""


class VolumeNodeAffinity(Struct, frozen=True):
    """The nodes that a volume reaches."""

    required: NodeSelector | None = None


class CsiSource(Struct, frozen=True):
    """A volume of a CSI driver."""

    driver: str = ""


class InTreeSource(Struct, frozen=True):
    """A volume of a plugin that Kubernetes had once, and that a CSI driver serves now."""


class PersistentVolumeSpec(Struct, frozen=True):
    """Spec of a volume."""

    capacity: Quantities | None = None
    access_modes: tuple[str, ...] | None = None
    claim_ref: ClaimReference | None = None
    storage_class_name: str = ""
    volume_mode: str = ""
    volume_attributes_class_name: str = ""
    node_affinity: VolumeNodeAffinity | None = None
    csi: CsiSource | None = None
    aws_elastic_block_store: InTreeSource | None = None
    gce_persistent_disk: InTreeSource | None = None
    azure_disk: InTreeSource | None = None
    cinder: InTreeSource | None = None
    vsphere_volume: InTreeSource | None = None


class PersistentVolumeStatus(Struct, frozen=True):
    """Status of a volume."""

    phase: str = ""


class PersistentVolume(Object, frozen=True):
    """A volume; labels may name the zone that it is in, and claims may select volumes by them."""

    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "metadata", trimmed(self.metadata, labels=self.metadata.labels))


class TopologyLabel(Struct, frozen=True):
    """A label that nodes must have, with one of some values."""

    key: str = ""
    values: tuple[str, ...] | None = None


class TopologySelectorTerm(Struct, frozen=True):
    """Labels that nodes must have; all of them."""

    match_label_expressions: tuple[TopologyLabel, ...] | None = None


class StorageClass(Object, frozen=True):
    """A storage class."""

    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: tuple[TopologySelectorTerm, ...] | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "metadata", trimmed(self.metadata, (DEFAULT_CLASS, OLD_DEFAULT_CLASS)))

    @property
    def waits(self) -> bool:
        """Whether its claims are bound once a pod that has one is given a node."""
        return self.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER

    @property
    def default(self) -> bool:
        """Whether claims that name no class get it."""
        said = self.metadata.annotations or {}
        return "true" in {said.get(DEFAULT_CLASS), said.get(OLD_DEFAULT_CLASS)}


class VolumeCount(Struct, frozen=True):
    """How many volumes of a driver a node attaches; None: any number."""

    count: int | None = None


class CsiDriverOnNode(Struct, frozen=True):
    """A CSI driver on a node."""

    name: str = ""
    allocatable: VolumeCount | None = None


class CsiNodeSpec(Struct, frozen=True):
    """The CSI drivers on a node."""

    drivers: tuple[CsiDriverOnNode, ...] | None = None


class CsiNode(Object, frozen=True):
    """What the kubelet says of the CSI drivers on its node, which it is named after."""

    spec: CsiNodeSpec = CsiNodeSpec()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "metadata", trimmed(self.metadata))


class CsiDriverSpec(Struct, frozen=True):
    """Spec of a CSI driver."""

    storage_capacity: bool | None = None


class CsiDriver(Object, frozen=True):
    """A CSI driver, by its name; it may tell where it has storage left."""

    spec: CsiDriverSpec = CsiDriverSpec()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "metadata", trimmed(self.metadata))


class CsiStorageCapacity(Object, frozen=True):
    """What storage a driver has left for a class, on the nodes with some labels; on none without ``node_topology``."""

    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: str | int | float | None = None
    maximum_volume_size: str | int | float | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "metadata", trimmed(self.metadata))
