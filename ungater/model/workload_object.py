"""Workloads on the wire: what the controller reads of one, and the bodies it writes.

Every write is one patch with the resourceVersion it was decided on, so that a second writer meets a conflict instead of
overwriting: a merge patch of the status or the spec, or a JSON patch of the spec's counts that tests the version.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from crds import assignment as stored
from crds.constants import COPY_OF, HELD, MOVE_TO
from engine.preemption.model import Strategy
from engine.quantity import format_quantity, parse
from engine.reservation_key import HolderKey, ReservationKey, Role, role_of, workload_of
from kube.objects import Condition, Object, Struct
from queueing import lifecycle
from ungater.model.admission import Admission, Nomination, PodSetAssignment
from ungater.model.conditions import moment, plain, timestamp
from ungater.model.job_view import MAIN
from ungater.model.kueue_objects import PodSetUpdate
from ungater.model.pod_slots import PodSetSlots, Slot
from ungater.model.workload_entry import ObservedWorkload

MOST_ANNOTATION = 200_000  # bytes, of the 256 KiB of all annotations of an object
MOST_UNHEALTHY = 1000  # as many as the API takes


class PodSetCount(Struct, frozen=True):
    """A pod set of the spec, as far as it is read back."""

    name: str = MAIN
    count: int = 0
    min_count: int = 0


class Spec(Struct, frozen=True):
    """Workload spec without the templates: those are the job's."""

    pod_sets: tuple[PodSetCount, ...] = ()
    queue_name: str = ""
    priority: int = 0
    active: bool = True
    maximum_execution_time_seconds: int | None = None


class StoredPodSetAssignment(Struct, frozen=True):
    """What was decided for one pod set; ``topology_assignment`` in either stored form."""

    name: str = MAIN
    flavors: dict[str, str] | None = None
    resource_usage: dict[str, str | int] | None = None
    count: int = 0
    topology_assignment: dict[str, Any] | None = None


class StoredAdmission(Struct, frozen=True):
    """What a workload was admitted with, written before any pod goes."""

    cluster_queue: str = ""
    pod_set_assignments: tuple[StoredPodSetAssignment, ...] = ()


class StoredVictim(Struct, frozen=True):
    """A workload or pod that is to make room."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    priority: int = 0
    domains: tuple[tuple[str, ...], ...] = ()

    @property
    def key(self) -> HolderKey:
        """As queueing names it."""
        name = f"{self.namespace}/{self.name}"
        return ReservationKey.for_pod(name) if self.kind == "Pod" else name


class StoredNomination(Struct, frozen=True):
    """The preemption that is planned for a workload, written before any victim is evicted."""

    cluster_queue: str = ""
    strategy: str = Strategy.LEAST_PRIORITY
    victims: tuple[StoredVictim, ...] = ()
    pod_set_assignments: tuple[StoredPodSetAssignment, ...] = ()


class RequeueState(Struct, frozen=True):
    """When an evicted workload comes back."""

    count: int = 0
    requeue_at: str | None = None


class CheckState(Struct, frozen=True):
    """What an admission check says."""

    name: str = ""
    state: str = ""
    message: str = ""
    pod_set_updates: tuple[PodSetUpdate, ...] | None = None


class UnhealthyNode(Struct, frozen=True):
    """A lost node whose pods have no other place yet."""

    name: str = ""
    since: str | None = None


class ObservedStatus(Struct, frozen=True):
    """Workload status."""

    admission: StoredAdmission | None = None
    nomination: StoredNomination | None = None
    conditions: tuple[Condition, ...] | None = None
    requeue_state: RequeueState | None = None
    admission_checks: tuple[CheckState, ...] | None = None
    unhealthy_nodes: tuple[UnhealthyNode, ...] | None = None
    accumulated_past_execution_time_seconds: int = 0


class WorkloadObject(Object, frozen=True):
    """A Workload as the controller reads it."""

    spec: Spec = Spec()
    status: ObservedStatus = ObservedStatus()


def observed_of(workload: WorkloadObject) -> ObservedWorkload:
    """What is remembered of a Workload. An admission that cannot be read counts as none: it is decided again."""
    meta, spec, status = workload.metadata, workload.spec, workload.status
    requeue = status.requeue_state or RequeueState()
    return ObservedWorkload(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        generation=meta.generation,
        owners=frozenset([owner.uid for owner in meta.owner_references]),
        created=moment(meta.creation_timestamp) or 0.0,
        copy_of=(meta.annotations or {}).get(COPY_OF, ""),
        move_to=(meta.annotations or {}).get(MOVE_TO, ""),
        counts=tuple([pod_set.count for pod_set in spec.pod_sets]),
        conditions=status.conditions or (),
        admission=_admission_of(status.admission),
        # Once the status says anything, it alone counts: the annotation is older than that.
        held=None if status.conditions else _held_of(meta.annotations or {}),
        nomination=_nomination_of(status.nomination) if status.nomination is not None else None,
        active=spec.active,
        queue=spec.queue_name,
        priority=spec.priority,
        least=next((pod_set.min_count for pod_set in spec.pod_sets if pod_set.min_count), 0),
        most_execution=spec.maximum_execution_time_seconds,
        executed=status.accumulated_past_execution_time_seconds,
        requeues=requeue.count,
        requeue_at=moment(requeue.requeue_at),
        unhealthy={node.name: node.since for node in status.unhealthy_nodes or ()},
        checks=tuple(
            lifecycle.Check(name=check.name, state=lifecycle.CheckVerdict(check.state), message=check.message)
            for check in status.admission_checks or ()
        ),
        updates={
            check.name: check.pod_set_updates
            for check in status.admission_checks or ()
            # A check that is not ready may still change what it adds.
            if check.pod_set_updates and check.state == lifecycle.CheckVerdict.READY
        },
    )


def _admission_of(stored_: StoredAdmission | StoredNomination | None) -> Admission | None:
    if stored_ is None or not stored_.pod_set_assignments:
        return None
    try:
        parts = tuple(_part_of(entry) for entry in stored_.pod_set_assignments)
    except (KeyError, TypeError, ValueError):
        return None
    if not stored_.cluster_queue and any(part.slots is None and part.count for part in parts):
        return None  # without a queue it is slots or nothing
    return Admission(stored_.cluster_queue, parts)


def _held_of(annotations: Mapping[str, str]) -> Admission | None:
    try:
        return _admission_of(msgspec.json.decode(annotations.get(HELD, "null"), type=StoredAdmission | None))
    # Text in an annotation may be nested so deeply that the decoder gives up with RecursionError.
    except (msgspec.DecodeError, RecursionError):
        return None


def _part_of(entry: StoredPodSetAssignment) -> PodSetAssignment:
    flavors = entry.flavors or {}
    usage = {name: parse(name, value) for name, value in (entry.resource_usage or {}).items()}
    if entry.topology_assignment is None:
        return PodSetAssignment(entry.name, entry.count, flavors, usage)
    levels, domains = stored.decode(entry.topology_assignment)
    slots = PodSetSlots(
        levels, tuple(Slot(values, count) for values, count in domains), next(iter(flavors.values()), "")
    )
    # The slots decide how many pods go, whatever number is stored beside them.
    return PodSetAssignment(entry.name, slots.total, flavors, usage, slots)


def _nomination_of(stored_: StoredNomination) -> Nomination | None:
    admission = _admission_of(stored_)
    # Nobody is evicted for a plan that cannot be read: another one is made.
    if admission is None:
        return None
    victims = {victim.key: victim for victim in stored_.victims}
    return Nomination(
        admission,
        {key: victim.uid for key, victim in victims.items()},
        {key: victim.priority for key, victim in victims.items()},
        {key: victim.domains for key, victim in victims.items() if victim.domains},
        stored_.strategy,
    )


def counts_patch(observed: ObservedWorkload, counts: Sequence[int]) -> list[dict[str, Any]]:
    """The JSON patch that brings the counts up to date, by pod set; templates stay as the job had them at first."""
    # A merge patch would replace the list of pod sets whole, templates included; the test stands in for its version.
    version = {"op": "test", "path": "/metadata/resourceVersion", "value": observed.resource_version}
    paths = (f"/spec/podSets/{number}/count" for number in range(len(counts)))
    return [version, *({"op": "replace", "path": path, "value": n} for path, n in zip(paths, counts, strict=True))]


def active_patch(observed: ObservedWorkload, *, active: bool) -> dict[str, Any]:
    """The merge patch that makes it active, or not."""
    return {"metadata": {"resourceVersion": observed.resource_version}, "spec": {"active": active}}


def status_patch(
    observed: ObservedWorkload,
    conditions: Sequence[Condition],
    *,
    admission: Admission | None,
    reclaimable: Mapping[str, int] | None = None,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The merge patch of the status: conditions, admission (None removes it), reclaimable pods, and ``more`` fields.

    A nomination ends with it, and so does the search for places of lost nodes.
    """
    status: dict[str, Any] = {
        "conditions": plain(conditions),
        # In a merge patch null removes a field: what is not set again below ends with this write.
        "admission": None,
        "nomination": None,
        "reclaimablePods": None,
        **({"unhealthyNodes": None} if observed.unhealthy else {}),
        **(more or {}),
    }
    if admission is not None:
        status["admission"] = stored_admission(admission)
        if reclaimable:
            status["reclaimablePods"] = [{"name": name, "count": count} for name, count in reclaimable.items()]
    return {"metadata": {"resourceVersion": observed.resource_version}, "status": status}


def nomination_patch(
    observed: ObservedWorkload, conditions: Sequence[Condition], nomination: Nomination, now: float
) -> dict[str, Any]:
    """The merge patch that stores the plan of a preemption before its first eviction."""
    victims = [_victim(nomination, key, uid) for key, uid in nomination.victims.items()]
    body = {
        **_queue(nomination.admission),
        "time": timestamp(now),
        "strategy": nomination.strategy,
        "victims": victims,
        "podSetAssignments": [_assignment(part) for part in nomination.admission.parts],
    }
    status = {"conditions": plain(conditions), "nomination": body}
    return {"metadata": {"resourceVersion": observed.resource_version}, "status": status}


def _victim(nomination: Nomination, key: HolderKey, uid: str) -> dict[str, Any]:
    namespace, _, name = workload_of(key).partition("/")
    about = {
        "kind": "Pod" if role_of(key) is Role.POD else "Workload",
        "namespace": namespace,
        "name": name,
        "uid": uid,
    }
    domains = nomination.domains.get(key)
    told = {"domains": [list(domain) for domain in domains]} if domains else {}
    return {**about, "priority": nomination.priorities.get(key, 0), **told}


def conditions_patch(
    observed: ObservedWorkload, conditions: Sequence[Condition], more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The merge patch of the conditions, and of ``more`` fields of the status."""
    status = {"conditions": plain(conditions), **(more or {})}
    return {"metadata": {"resourceVersion": observed.resource_version}, "status": status}


def unhealthy_nodes(observed: ObservedWorkload, names: Collection[str], now: float) -> dict[str, Any]:
    """What is to be written of the lost nodes whose pods have no other place; empty where that is there already.

    ``now``: seconds since the epoch.
    """
    names = sorted(names)[:MOST_UNHEALTHY]
    if names == sorted(observed.unhealthy):
        return {}
    # A node that is listed keeps its moment, so that the time for a replacement goes on over a restart.
    found = [{"name": name, "since": observed.unhealthy.get(name) or timestamp(now)} for name in names]
    return {"unhealthyNodes": found or None}


def _queue(admission: Admission) -> dict[str, Any]:
    return {"clusterQueue": admission.queue} if admission.queue else {}


def stored_admission(admission: Admission) -> dict[str, Any]:
    """An admission as ``status.admission`` has it."""
    place = {"place": admission.place} if admission.place else {}
    return _queue(admission) | place | {"podSetAssignments": [_assignment(part) for part in admission.parts]}


def _assignment(part: PodSetAssignment) -> dict[str, Any]:
    usage = {name: format_quantity(name, amount) for name, amount in sorted(part.usage.items())}
    body: dict[str, Any] = {"name": part.name, "flavors": dict(part.flavors), "count": part.count}
    if usage:
        body["resourceUsage"] = usage
    if part.slots is not None:
        domains = [(slot.values, slot.count) for slot in part.slots.slots]
        body["topologyAssignment"] = stored.encode(part.slots.levels, domains)
    return body
