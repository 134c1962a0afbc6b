"""Workloads on the wire: what the controller reads of one, and the bodies it writes.

Every write is one patch with the resourceVersion it was decided on, so that a second writer meets a conflict instead of
overwriting: a merge patch of the status or the spec, or a JSON patch of the spec's counts that tests the version.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from crds.constants import COPY_OF, MOVE_TO
from kube.objects import Condition
from kube.workloads import RequeueState, WorkloadObject
from ungater.model.admission import (
    Admission,
    Nomination,
    read_admission,
    read_held,
    read_nomination,
    write_admission,
    write_nomination,
)
from ungater.model.conditions import moment, plain, timestamp
from ungater.model.life import Check, CheckVerdict
from ungater.model.workload_entry import ObservedWorkload

BOOST = "/priority-boost"  # the end of that annotation's key, whatever the domain (`crds.constants.Keys`)
MOST_UNHEALTHY = 1000  # as many as the API takes


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
        admission=read_admission(status.admission),
        # Once the status says anything, it alone counts: the annotation is older than that.
        held=None if status.conditions else read_held(meta.annotations or {}),
        nomination=read_nomination(status.nomination),
        active=spec.active,
        queue=spec.queue_name,
        priority=spec.priority,
        # All of that name: which domain counts is a setting, and nobody knows it here.
        boosts={key: text for key, text in (meta.annotations or {}).items() if key.endswith(BOOST)},
        boost=workload.boost,
        boost_since=moment(status.priority_boost.since) if status.priority_boost is not None else None,
        least=next((pod_set.min_count for pod_set in spec.pod_sets if pod_set.min_count), 0),
        most_execution=spec.maximum_execution_time_seconds,
        executed=status.accumulated_past_execution_time_seconds,
        requeues=requeue.count,
        requeue_at=moment(requeue.requeue_at),
        unhealthy={node.name: node.since for node in status.unhealthy_nodes or ()},
        checks=tuple(
            Check(name=check.name, state=CheckVerdict(check.state), message=check.message)
            for check in status.admission_checks or ()
        ),
        updates={
            check.name: check.pod_set_updates
            for check in status.admission_checks or ()
            # A check that is not ready may still change what it adds.
            if check.pod_set_updates and check.state == CheckVerdict.READY
        },
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
        status["admission"] = write_admission(admission)
        if reclaimable:
            status["reclaimablePods"] = [{"name": name, "count": count} for name, count in reclaimable.items()]
    return {"metadata": {"resourceVersion": observed.resource_version}, "status": status}


def nomination_patch(
    observed: ObservedWorkload, conditions: Sequence[Condition], nomination: Nomination, now: float
) -> dict[str, Any]:
    """The merge patch that stores the plan of a preemption before its first eviction."""
    status = {"conditions": plain(conditions), "nomination": write_nomination(nomination, now)}
    return {"metadata": {"resourceVersion": observed.resource_version}, "status": status}


def conditions_patch(
    observed: ObservedWorkload, conditions: Sequence[Condition], more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The merge patch of the conditions, and of ``more`` fields of the status."""
    status = {"conditions": plain(conditions), **(more or {})}
    return {"metadata": {"resourceVersion": observed.resource_version}, "status": status}


def counted_boost(value: int, now: float) -> dict[str, Any]:
    """What is to be written of a boost that counts from now on. ``now``: seconds since the epoch."""
    return {"priorityBoost": {"value": value, "since": timestamp(now)}}


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
