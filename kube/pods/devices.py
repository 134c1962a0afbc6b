"""ResourceSlices, DeviceTaintRules, ResourceClaims and their templates as the API server sends them.

What they say of devices stays as it is in JSON: `engine.claims.read` reads it, and says what is wrong with one object.
"""

from typing import Any

from engine.devices.holders import NO_POD
from kube.objects import NodeSelector, Object, Struct

Json = dict[str, Any]


class ResourceSlice(Object, frozen=True):
    """Devices of a driver."""

    spec: Json | None = None


class DeviceTaintRule(Object, frozen=True):
    """A taint for some devices."""

    spec: Json | None = None


class ClaimAllocation(Struct, frozen=True):
    """What a claim was given: ``devices`` has the list ``results``; they are reached from ``node_selector``."""

    devices: Json | None = None
    node_selector: NodeSelector | None = None


class ClaimConsumer(Struct, frozen=True):
    """Who may use the devices of a claim; a pod where ``api_group`` is empty and ``resource`` says so."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Struct, frozen=True):
    """Without ``allocation`` it holds nothing."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] | None = None


class ResourceClaim(Object, frozen=True):
    """A claim: what it asks for, and what it holds."""

    spec: Json | None = None
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def results(self) -> object:
        """The devices that it was given, as in JSON; None for none."""
        allocation = self.status.allocation
        return (allocation.devices or {}).get("results") if allocation is not None else None

    @property
    def reserved_for(self) -> frozenset[str]:
        """Whom it is reserved for, else the pod that it is made for: once these are gone it is deallocated."""
        namespace, owners = self.metadata.namespace, self.metadata.owner_references
        if users := self.status.reserved_for:
            pods = ((one.resource == "pods" and not one.api_group, one.name) for one in users)
            return frozenset([f"{namespace}/{name}" if is_pod and name else NO_POD for is_pod, name in pods])
        return frozenset([f"{namespace}/{one.name}" for one in owners if one.kind == "Pod" and one.controller])


class ClaimTemplateSpec(Struct, frozen=True):
    """``spec`` is that of the claims that are made of it."""

    spec: Json | None = None


class ResourceClaimTemplate(Object, frozen=True):
    """What claims are made of, one for each pod that names it."""

    spec: ClaimTemplateSpec = ClaimTemplateSpec()
