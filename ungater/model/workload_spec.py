"""The spec of a Workload, as it is made of a job, and whose a Workload is."""

from hashlib import blake2b
from typing import Any, Final

import msgspec

from crds.constants import API_VERSION, COPY_OF, HELD, KUEUE_POD_SET, OWNER
from crds.request import ParsedRequest
from engine.model import Policy
from kube.objects import Object, controller_of
from ungater.model.admission import Admission, write_held
from ungater.model.job_view import JOB, JOB_API, JobView, PodSetView, controlled_by
from ungater.model.workload_entry import ObservedWorkload

# Of the templates of Jobs; the API server writes them when a Job is made (batch/v1 types.go).
_MANAGED_LABELS: Final = frozenset(
    {"controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"}
)


class KueueCopy(msgspec.Struct, frozen=True):
    """What Kueue's Workload says of a job. ``pod_sets``: as it stores them, from before the job was started.

    ``active``: whether it may be admitted.
    """

    pod_sets: tuple[dict[str, Any], ...] = ()
    active: bool = True

    def as_unstarted(self, body: dict[str, Any]) -> dict[str, Any]:
        """A pod set with the template that Kueue keeps of it: the job's has what Kueue added when it started the job.

        Once the job is put back, its template gets what is stored (`ungater.jobs.pod_template.restore`).
        """
        before = next((one for one in self.pod_sets if str(one.get("name", "")).lower() == body["name"].lower()), None)
        template = before.get("template") if before is not None else None
        if before is None or not isinstance(template, dict):
            return body
        now = msgspec.json.decode(body["template"]).get("metadata") or {}
        meta = dict(template.get("metadata") or {})
        # It says that Kueue started the pods: where its user wrote it too, each start would count as one by Kueue.
        meta["labels"] = {key: text for key, text in (meta.get("labels") or {}).items() if key != KUEUE_POD_SET}
        # Kueue leaves these out of its copy (0.19.2, job_controller.go, cleanLabels), and no Job may lose them.
        managed = {key: text for key, text in (now.get("labels") or {}).items() if key in _MANAGED_LABELS}
        if labels := {**meta.pop("labels"), **managed}:
            meta["labels"] = labels
        found = {**body, "template": {**template, **({"metadata": meta} if meta else {})}}
        count = before.get("count")
        # With fewer pods than it asked for, as only those were admitted: the Workload keeps the full count.
        if body.get("minCount") and isinstance(count, int) and count > body["count"]:
            found["count"] = count
        return found


def new_workload(
    owner: JobView, priority: int, held: Admission | None = None, kueue: KueueCopy | None = None
) -> dict[str, Any]:
    """The Workload of a job, to be created. ``held``: the admission of the one before, which somebody deleted.

    A status cannot be created, and is written next. Whoever is restarted in between finds in an annotation what the
    pods that run were given; but for one that is too large for that. ``kueue``: what Kueue says of the job.
    """
    named = {"priorityClassName": owner.workload_class or owner.priority_class or None}
    pod_sets = [_pod_set(pod_set, owner) for pod_set in owner.pod_sets]
    if kueue is not None:
        pod_sets = [kueue.as_unstarted(body) for body in pod_sets]
    spec = {"podSets": pod_sets, **_wishes(owner, priority), **named}
    if kueue is not None and not kueue.active:
        spec["active"] = False
    spec = {name: value for name, value in spec.items() if value is not None}
    annotations = {COPY_OF: fingerprint(owner), OWNER: owner.owner, **write_held(held)}
    metadata = {
        "name": owner.workload,
        "namespace": owner.namespace,
        "annotations": annotations,
        "ownerReferences": _references(owner),
    }
    return {"apiVersion": API_VERSION, "kind": "Workload", "metadata": metadata, "spec": spec}


def _references(owner: JobView) -> list[dict[str, Any]]:
    """Whom the Workload belongs to. Blocking a deletion needs a right on the owner's kind, which we have for Jobs."""
    if owner.members:
        return [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid} for name, uid in owner.members]
    about = {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
    }
    return [{**about, "controller": True, "blockOwnerDeletion": (owner.kind, owner.api_version) == (JOB, JOB_API)}]


def belongs(workload: Object, owner: JobView) -> bool:
    """Whether a Workload is the owner's: by what it says of that, and its controlling owner.

    A group of pods has no controlling owner; one of an earlier version does not say whose it is, but for its name.
    """
    meta, controller = workload.metadata, controller_of(workload.metadata)
    said = (meta.annotations or {}).get(OWNER)
    # Two owners may share the 40 bits in the usual name: the digest of the owner tells them apart.
    if meta.name != owner.workload or said not in {None, owner.owner}:
        return False
    if owner.members:
        return controller is None
    return controller is not None and controlled_by(
        meta.namespace, controller.kind, controller.api_version, controller.uid
    ) == controlled_by(owner.namespace, owner.kind, owner.api_version, owner.uid)


def _wishes(owner: JobView, priority: int) -> dict[str, Any]:
    """What the spec says besides the pod sets and the class, which it keeps; None where it says nothing."""
    return {
        "priority": priority,
        "queueName": owner.queue or None,
        "maximumExecutionTimeSeconds": owner.most_execution,
    }


def _pod_set(pod_set: PodSetView, owner: JobView) -> dict[str, Any]:
    body: dict[str, Any] = {"name": pod_set.name, "count": pod_set.full, "template": msgspec.Raw(pod_set.raw)}
    if pod_set.least:
        body["minCount"] = pod_set.least
    if pod_set.request is not None and owner.wrong is None:
        ranks, told = pod_set.told_by, dict[str, Any]()
        if ranks is not None:
            several = {"subGroupIndexLabel": ranks.job_label, "subGroupCount": ranks.jobs} if ranks.job_label else {}
            told = {"podIndexLabel": ranks.label, **several}
        body["topologyRequest"] = _topology(pod_set.request) | told
    return body


def _topology(request: ParsedRequest) -> dict[str, Any]:
    """The request as its author wrote it, so that it stays the same when flavors name their levels."""
    request = request.as_written
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


def owners_patch(observed: ObservedWorkload, owner: JobView) -> dict[str, Any]:
    """The merge patch that has it go with the last of the pods that there are."""
    metadata = {"annotations": {OWNER: owner.owner}, "ownerReferences": _references(owner)}
    return {"metadata": {"resourceVersion": observed.resource_version, **metadata}}


def spec_patch(observed: ObservedWorkload, owner: JobView, priority: int) -> dict[str, Any]:
    """The merge patch that brings the spec up to date after the job was edited."""
    pod_sets = [_pod_set(pod_set, owner) for pod_set in owner.pod_sets]
    return {
        "metadata": {
            "resourceVersion": observed.resource_version,
            # The spec follows the job while it holds nothing: no restart may take over what an earlier Workload held.
            "annotations": {COPY_OF: fingerprint(owner), OWNER: owner.owner, HELD: None},
        },
        "spec": {"podSets": pod_sets, **_wishes(owner, priority)},
    }


def fingerprint(owner: JobView) -> str:
    """Tells templates and requests of a job from others, so that one edited while nobody watched is seen as such."""
    parts = [
        (one.name, _topology(one.request) if one.request is not None else None, msgspec.Raw(one.raw))
        for one in owner.pod_sets
    ]
    # 64 bits are enough: it is compared with one earlier copy of the same job.
    return blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()
