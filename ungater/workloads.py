"""Workloads on the wire: what the controller reads of one, and the bodies it writes.

Every write is one merge patch of the status with the resourceVersion it was decided on, so that a second writer meets a
conflict instead of overwriting.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from crds import assignment as stored
from crds.constants import API_VERSION
from crds.request import ParsedRequest, RequestError
from engine.model import Policy
from kube.objects import Condition, Object, Struct
from ungater.conditions import plain
from ungater.jobs import MAIN, OwnedPodSet, Owner
from ungater.record import Known
from ungater.slots import Slot, SlotMap


class PodSetCount(Struct, frozen=True):
    """A pod set of the spec, as far as it is read back."""

    name: str = MAIN
    count: int = 0


class Spec(Struct, frozen=True):
    """Workload spec without the templates: those are the job's."""

    pod_sets: tuple[PodSetCount, ...] = ()


class PodSetAssignment(Struct, frozen=True):
    """What was decided for one pod set; ``topology_assignment`` in either stored form."""

    name: str = MAIN
    flavors: dict[str, str] | None = None
    topology_assignment: dict[str, Any] | None = None


class Admission(Struct, frozen=True):
    """The write-ahead record."""

    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class Status(Struct, frozen=True):
    """Workload status."""

    admission: Admission | None = None
    conditions: tuple[Condition, ...] | None = None


class Workload(Object, frozen=True):
    """A Workload as the controller reads it."""

    spec: Spec = Spec()
    status: Status = Status()


def known_of(workload: Workload) -> Known:
    """What is remembered of a Workload. An admission that cannot be read counts as none: it is decided again."""
    meta = workload.metadata
    return Known(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        generation=meta.generation,
        count=workload.spec.pod_sets[0].count if workload.spec.pod_sets else 0,
        conditions=workload.status.conditions or (),
        slots=_slots_of(workload.status.admission),
    )


def _slots_of(admission: Admission | None) -> SlotMap | None:
    entries = admission.pod_set_assignments if admission else ()
    entry = next((entry for entry in entries if entry.name == MAIN), None)
    if entry is None or entry.topology_assignment is None:
        return None
    try:
        levels, domains = stored.decode(entry.topology_assignment)
    except (KeyError, TypeError, ValueError):
        return None
    flavor = next(iter((entry.flavors or {}).values()), "")
    return SlotMap(levels, tuple(Slot(values, count) for values, count in domains), flavor)


def new_workload(owner: Owner, priority: int, domain_queue: str = "") -> dict[str, Any]:
    """The Workload of a job, to be created."""
    spec: dict[str, Any] = {"podSets": [_pod_set(pod_set, owner.request) for pod_set in owner.pod_sets]}
    spec["priority"] = priority
    if owner.priority_class:
        spec["priorityClassName"] = owner.priority_class
    if domain_queue:
        spec["queueName"] = domain_queue
    reference = {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {"name": owner.workload, "namespace": owner.namespace, "ownerReferences": [reference]}
    return {"apiVersion": API_VERSION, "kind": "Workload", "metadata": metadata, "spec": spec}


def _pod_set(pod_set: OwnedPodSet, request: ParsedRequest | RequestError | None) -> dict[str, Any]:
    body: dict[str, Any] = {"name": pod_set.name, "count": pod_set.full, "template": msgspec.Raw(pod_set.raw)}
    if isinstance(request, ParsedRequest):
        body["topologyRequest"] = _topology(request)
    return body


def _topology(request: ParsedRequest) -> dict[str, Any]:
    body: dict[str, Any] = {"policy": str(request.policy)}
    if request.policy is not Policy.UNCONSTRAINED:
        body["level"] = request.level
    if request.group:
        body["podSetGroupName"] = request.group
    match request.slices:
        case ():
            pass
        case (only,):
            body |= {"podSetSliceRequiredTopology": only.level, "podSetSliceSize": only.size}
        case layers:
            body["podSetSliceRequiredTopologyConstraints"] = [{"topology": a.level, "size": a.size} for a in layers]
    return body


def spec_patch(known: Known, owner: Owner) -> dict[str, Any]:
    """The merge patch that brings counts and templates of the spec up to date after the job was edited."""
    pod_sets = [_pod_set(pod_set, owner.request) for pod_set in owner.pod_sets]
    return {"metadata": {"resourceVersion": known.resource_version}, "spec": {"podSets": pod_sets}}


def status_patch(
    known: Known,
    conditions: Sequence[Condition],
    *,
    slots: SlotMap | None,
    requests: Mapping[str, int] | None = None,
    reclaimable: int = 0,
) -> dict[str, Any]:
    """The merge patch of the status: conditions, admission (None removes it) and reclaimable pods."""
    status: dict[str, Any] = {"conditions": plain(conditions), "admission": None, "reclaimablePods": None}
    if slots is not None:
        status["admission"] = {"podSetAssignments": [_assignment(slots, requests or {})]}
        if reclaimable:
            status["reclaimablePods"] = [{"name": MAIN, "count": reclaimable}]
    return {"metadata": {"resourceVersion": known.resource_version}, "status": status}


def conditions_patch(known: Known, conditions: Sequence[Condition]) -> dict[str, Any]:
    """The merge patch of the conditions alone."""
    return {"metadata": {"resourceVersion": known.resource_version}, "status": {"conditions": plain(conditions)}}


def _assignment(slots: SlotMap, requests: Mapping[str, int]) -> dict[str, Any]:
    domains = [(slot.values, slot.count) for slot in slots.slots]
    flavors = dict.fromkeys(sorted(requests) or ["pods"], slots.flavor)
    return {
        "name": MAIN,
        "flavors": flavors,
        "count": slots.total,
        "topologyAssignment": stored.encode(slots.levels, domains),
    }
