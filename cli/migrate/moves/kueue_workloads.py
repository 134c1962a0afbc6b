"""What Kueue needs to let a job run on that was started here: its Workload, admitted as the job runs. Pure.

Facts of Kueue 0.19.2 that this relies on
- A job that runs is left alone where a Workload of it is admitted and equivalent: same pod sets, counts and containers
  (``EquivalentToWorkload``). One that has none is suspended, so that its pods end (``ensureOneWorkload``).
- The admission of a Workload cannot change, except for its topology assignments (``validateAdmissionUpdate``):
  another admission needs another Workload. Usage is a multiple of the count (``validateAdmission``).
- Without the condition PodsReady, one that was admitted long ago would be evicted at once where Kueue waits for pods.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from cli.migrate.moves.quiet import templates_of
from cli.migrate.rows import Json
from crds import assignment as our_form
from crds.constants import DEFAULT_DOMAIN, HOSTNAME_LABEL, JOB_INDEX_LABEL, JOB_SET_INDEX, KUEUE_WORKLOAD, Keys
from crds.kueue import assignment as kueue_form
from crds.kueue.names import kueue_workload_name
from engine.quantity import format_quantity, parse
from kube.objects import is_true
from ungater.model import kueue_objects
from ungater.model.kueue_objects import GROUP, KueueWorkload

IN_USE: Final = f"{GROUP}/resource-in-use"
_KEYS: Final = Keys()
_UID: Final = f"{GROUP}/job-uid"
_REQUESTS: Final = {
    "required": f"{DEFAULT_DOMAIN}/podset-required-topology",
    "preferred": f"{DEFAULT_DOMAIN}/podset-preferred-topology",
}
_TAKEN_BACK: Final = "Topogate had admitted it, and it was taken back"
_STARTED: Final = ("QuotaReserved", "Admitted", "PodsReady")
Domains = tuple[tuple[str, ...], list[our_form.Domain]]


def counts_of(job: Json) -> list[int]:
    """How many pods each pod set of a Job or JobSet has at once, as Kueue counts them."""
    spec = job.get("spec") or {}
    if "template" in spec:
        return [_at_once(spec)]
    return [
        int(one.get("replicas", 1)) * _at_once((one.get("template") or {}).get("spec") or {})
        for one in spec.get("replicatedJobs") or ()
    ]


def _at_once(spec: Json) -> int:
    # As Kueue's ``podsCount`` (0.19.2, pkg/controller/jobs/job): by another count it would suspend the job.
    wide = int(spec.get("parallelism", 1))
    return min(wide, int(spec.get("completions") or wide))


def make_workload(ours: Json, job: Json, *, placed: bool = True) -> Json:
    """Kueue's Workload of a job, to be created. ``ours``: our Workload, with the templates of before the start.

    ``placed``: its queue has a flavor with a topology in Kueue, which admits none that asks for places elsewhere.
    """
    meta, spec = job["metadata"], ours["spec"]
    said = next(templates_of(job), {}).get("metadata") or {}
    # Kueue's ungater looks pods up by the name in their template.
    name = (said.get("annotations") or {}).get(KUEUE_WORKLOAD)
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    made: Json = {
        "queueName": (meta.get("labels") or {}).get(_KEYS.queue_name, ""),
        "podSets": [*_pod_sets(spec["podSets"], job, placed=placed)],
        "active": True,
        "priority": spec.get("priority", 0),
    }
    if given := spec.get("priorityClassName"):
        # Both kinds of classes have names of their own: the label of the job tells which one it is.
        of_kueue = given == (meta.get("labels") or {}).get(_KEYS.priority_class)
        group, kind = (GROUP, "WorkloadPriorityClass") if of_kueue else ("scheduling.k8s.io", "PriorityClass")
        made["priorityClassRef"] = {"group": group, "kind": kind, "name": given}
    if (most := spec.get("maximumExecutionTimeSeconds")) is not None:
        made["maximumExecutionTimeSeconds"] = most
    return {
        "apiVersion": f"{GROUP}/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": name or kueue_workload_name(job["kind"], job["apiVersion"], meta["name"], meta["uid"]),
            "namespace": meta["namespace"],
            "labels": {_UID: meta["uid"]},
            "finalizers": [IN_USE],
            "ownerReferences": [owner],
        },
        "spec": made,
    }


def _pod_sets(kept: list[Json], job: Json, *, placed: bool) -> Iterator[Json]:
    for pod_set, count, index in zip(kept, counts_of(job), _indexes(job), strict=True):
        template = strip_template(pod_set["template"], placed=placed)
        made = {"name": pod_set["name"].lower(), "count": count, "template": template}
        if least := pod_set.get("minCount"):
            made |= {"count": pod_set["count"], "minCount": least}
        yield made | {
            "topologyRequest": {**_request_of((template.get("metadata") or {}).get("annotations") or {}), **index}
        }


def _indexes(job: Json) -> list[Json]:
    """By which labels Kueue ranks the pods of each pod set."""
    if "template" in (job.get("spec") or {}):
        return [{"podIndexLabel": JOB_INDEX_LABEL}]
    groups = {"podIndexLabel": JOB_INDEX_LABEL, "subGroupIndexLabel": JOB_SET_INDEX}
    every = job["spec"].get("replicatedJobs") or ()
    return [{**groups, "subGroupCount": int(one.get("replicas", 1))} for one in every]


def _request_of(annotations: Mapping[str, str]) -> Json:
    """What a template asks for of places, in Kueue's words: without it, a later turn would place it elsewhere."""
    found: Json = {}
    for field, key in _REQUESTS.items():
        if key in annotations and not found:
            found[field] = annotations[key]
    # Kueue takes the first of the three that is there (0.19.2, tas.go, podSetTopologyRequestBuilder).
    if not found and annotations.get(_KEYS.unconstrained) in {"true", "false"}:
        found["unconstrained"] = annotations[_KEYS.unconstrained] == "true"
    level, size = annotations.get(_KEYS.slice_level), annotations.get(_KEYS.slice_size, "")
    if level and size.isdecimal():
        found |= {"podSetSliceRequiredTopology": level, "podSetSliceSize": int(size)}
    group = annotations.get(f"{DEFAULT_DOMAIN}/podset-group-name")
    return found | ({"podSetGroupName": group} if group and found.keys() & {"required", "preferred"} else {})


def strip_template(template: Json, *, placed: bool = True) -> Json:
    """A template without what Topogate's webhook stamped on it: nobody takes that gate away in Kueue."""
    meta, spec = dict(template.get("metadata") or {}), dict(template.get("spec") or {})
    ours = {_KEYS.pod_set, _KEYS.workload}
    if gates := spec.get("schedulingGates"):
        # Where the gate is, the webhook was, which has each ask for any place at least.
        ours |= set() if placed or not any(map(is_our_gate, gates)) else {_KEYS.unconstrained}
        spec["schedulingGates"] = [one for one in gates if not is_our_gate(one)]
        if not spec["schedulingGates"]:
            del spec["schedulingGates"]
    if annotations := meta.get("annotations"):
        meta["annotations"] = {key: value for key, value in annotations.items() if key not in ours}
    return {**template, "metadata": meta, "spec": spec}


def is_our_gate(gate: Json) -> bool:
    """Whether a scheduling gate is Topogate's."""
    return gate.get("name") == _KEYS.gate


def make_status(ours: Json, job: Json, checks: Iterable[str] = ()) -> Json:
    """The status of Kueue's Workload: admitted as the job runs here, since then; ``checks``: those of its queue.

    With a check that is not there, Kueue would take the admission back. A job that runs has passed them.
    """
    status = ours["status"]
    given = status["admission"]
    since = {one["type"]: one["lastTransitionTime"] for one in status["conditions"]}
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": "Started" if kind == "PodsReady" else kind,
            "message": _TAKEN_BACK,
            "lastTransitionTime": since.get(kind, since["Admitted"]),
        }
        for kind in _STARTED
    ]
    parts = [_part(one, count) for one, count in zip(given["podSetAssignments"], counts_of(job), strict=True)]
    made: Json = {
        "conditions": conditions,
        "admission": {"clusterQueue": given["clusterQueue"], "podSetAssignments": parts},
    }
    if states := [
        {"name": name, "state": "Ready", "message": _TAKEN_BACK, "lastTransitionTime": since["Admitted"]}
        for name in checks
    ]:
        made["admissionChecks"] = states
    executed = status.get("accumulatedPastExecutionTimeSeconds")
    return made | ({"accumulatedPastExecutionTimeSeconds": executed} if executed else {})


def _part(ours: Json, count: int) -> Json:
    """One pod set: all its pods count, also pods that have no slot here for now."""
    flavors, had = ours.get("flavors") or {}, max(1, ours.get("count", 0))
    usage = {}
    for name, value in (ours.get("resourceUsage") or {}).items():
        # Rounded up for each pod: less than it takes would let others have it.
        if name in flavors:
            usage[name] = format_quantity(name, -(-parse(name, value) // had) * count)
    made = {"name": ours["name"].lower(), "count": count, "flavors": flavors, "resourceUsage": usage}
    if stored := ours.get("topologyAssignment"):
        levels, domains = kueue_domains(stored)
        made["topologyAssignment"] = kueue_form.encode(levels, domains)
    return made


def kueue_domains(stored: Json) -> Domains:
    """The domains of an assignment of ours as Kueue stores them: by the host name alone, where it is the last level."""
    levels, domains = our_form.decode(stored)
    if levels[-1] != HOSTNAME_LABEL:
        return levels, domains
    return (HOSTNAME_LABEL,), [((values[-1],), count) for values, count in domains]


def says_the_same(kueue: KueueWorkload, wanted: Json) -> bool:
    """Whether Kueue's Workload is admitted as ``wanted`` (`make_status`) says, wherever its pods are."""
    given, also = kueue.status.admission, wanted["admission"]
    if given is None or given.cluster_queue != also["clusterQueue"]:
        return False
    ours = {one["name"]: (one["count"], dict(one["flavors"])) for one in also["podSetAssignments"]}
    theirs = {one.name.lower(): (one.count, dict(one.flavors or {})) for one in given.pod_set_assignments}
    return ours == theirs


def places_of(status: Json | None) -> list[Any]:
    """The places of each pod set in a status of Kueue's, in a form that can be compared."""
    found = []
    for one in ((status or {}).get("admission") or {}).get("podSetAssignments") or ():
        stored = one.get("topologyAssignment")
        levels, domains = kueue_form.decode(stored) if stored else ((), [])
        found.append((one["name"], tuple(levels), sorted(domains)))
    return found


def holds_quota(kueue: KueueWorkload) -> bool:
    """Whether a Workload of Kueue has quota reserved, by which Kueue would start its job."""
    return kueue.status.admission is not None or is_true(kueue.status.conditions, kueue_objects.QUOTA_RESERVED)
