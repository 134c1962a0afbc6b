"""Jobs, pods and records for tests of the controller's core: keyword factories with defaults."""

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from crds.constants import JOB_INDEX_LABEL, Keys
from crds.levels import NO_NAMES
from kube.objects import Job, Pod
from kube.pods.requests import pod_requests
from ungater.jobs.job import owner_of
from ungater.model.admission import Admission, PodSetAssignment
from ungater.model.job_view import JobView
from ungater.model.life import LifeRules
from ungater.model.pod_slots import PodSetSlots, Slot
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry
from ungater.model.workload_spec import fingerprint
from ungater.reconcile.context import MissingPods, ReconcileContext

KEYS = Keys()
LEVELS = ("block", "rack", "kubernetes.io/hostname")
_numbers = itertools.count(1)


def make_job(
    name: str = "train",
    *,
    parallelism: int = 4,
    completions: int | None = -1,
    indexed: bool = False,
    request: Mapping[str, str] | None = None,
    gated: bool = True,
    suspend: bool = False,
    labels: Mapping[str, str] | None = None,
    status: Mapping | None = None,
    spec: Mapping | None = None,
    deleted: bool = False,
    uid: str = "",
    managed: str = "",
    pod_labels: Mapping[str, str] | None = None,
) -> Job:
    request = {KEYS.required[0]: "rack"} if request is None else request
    template = {
        "metadata": {"annotations": dict(request), **({"labels": dict(pod_labels)} if pod_labels else {})},
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
            "schedulingGates": [{"name": KEYS.gate}] if gated else [],
            **(spec or {}),
        },
    }
    body = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": uid or f"uid-{name}",
            "labels": dict(labels or {}),
            "creationTimestamp": "2026-11-21T00:00:00Z",
            **({"deletionTimestamp": "2026-11-21T00:01:00Z"} if deleted else {}),
        },
        "spec": {
            "parallelism": parallelism,
            "completionMode": "Indexed" if indexed else "NonIndexed",
            "suspend": suspend,
            "template": template,
            **({"managedBy": managed} if managed else {}),
        },
        "status": dict(status or {}),
    }
    if completions is not None:
        body["spec"]["completions"] = parallelism if completions == -1 else completions
    return _decode(body, Job)


def _decode(body, kind):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def make_owner(*args, **kwargs) -> JobView:
    return owner_of(make_job(*args, **kwargs), KEYS)


def make_pod(
    name: str = "",
    *,
    owner: JobView | None = None,
    rank: int | None = None,
    gated: bool = True,
    at: Sequence[str] | None = None,
    node: str = "",
    phase: str = "Pending",
    terminating: bool = False,
    created: str = "2026-11-21T00:00:01Z",
    marked: bool = True,
    gates: Sequence[str] = (),
    spec: Mapping | None = None,
) -> Pod:
    """A pod of the owner's first template; ``at`` (level values) makes it one that was ungated there."""
    owner = owner or make_owner()
    name = name or f"pod-{next(_numbers)}"
    gated = gated and at is None
    body = {
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "uid": f"uid-{name}",
            "labels": {} if rank is None else {JOB_INDEX_LABEL: str(rank)},
            "annotations": {KEYS.workload: owner.workload} if at is not None and marked else {},
            "creationTimestamp": created,
            "ownerReferences": [
                {
                    "apiVersion": owner.api_version,
                    "kind": owner.kind,
                    "name": owner.name,
                    "uid": owner.uid,
                    "controller": True,
                }
            ],
            **({"deletionTimestamp": "2026-11-21T00:01:00Z"} if terminating else {}),
        },
        "spec": {
            **msgspec.to_builtins(msgspec.structs.replace(owner.pod_sets[0].template.spec, scheduling_gates=None)),
            "schedulingGates": [{"name": gate} for gate in ([KEYS.gate] if gated else []) + list(gates)],
            "nodeSelector": dict(zip(LEVELS, at, strict=True)) if at is not None else {},
            "nodeName": node,
            **(spec or {}),
        },
        "status": {"phase": phase},
    }
    return _decode(body, Pod)


def slot_map(*slots: tuple[str, int]) -> PodSetSlots:
    """Slots from ``("b1/r1/n1", 2)``."""
    return PodSetSlots(
        LEVELS, tuple(Slot(tuple(path.split("/")), count, path.split("/")[-1]) for path, count in slots), "gpu"
    )


def make_admission(slots: PodSetSlots | None, *, queue: str = "", count: int | None = None, flavors=None) -> Admission:
    """What is stored of slots; without slots, in a queue, of quota alone."""
    flavors = flavors or {"cpu": slots.flavor if slots is not None else "plain"}
    total = slots.total if slots is not None else count
    usage = {"cpu": 1000 * total, "pods": total} if queue else {}
    return Admission(queue, (PodSetAssignment("main", total, flavors, usage, slots),))


def make_known(
    owner: JobView,
    *,
    slots: PodSetSlots | None = None,
    admission: Admission | None = None,
    count: int | None = None,
    conditions=(),
    **more,
) -> ObservedWorkload:
    counts = tuple(one.full for one in owner.pod_sets) if count is None else (count,)
    admission = admission or (make_admission(slots) if slots is not None else None)
    more = {
        "copy_of": fingerprint(owner),
        "queue": owner.queue,
        "least": owner.pod_sets[0].least,
        "most_execution": owner.most_execution,
        **more,
    }
    return ObservedWorkload(owner.workload, f"wl-{owner.uid}", "5", 0, counts, tuple(conditions), admission, **more)


def make_record(
    owner: JobView | None = None, *, slots: PodSetSlots | None = None, pods: Sequence[Pod] = (), **fields
) -> WorkloadEntry:
    owner = owner or make_owner()
    admission = fields.pop("admission", None) or (make_admission(slots) if slots is not None else None)
    fields.setdefault("observed", make_known(owner, admission=admission))
    slots_in = {"main": slots} if slots is not None else {}
    return WorkloadEntry(
        owner, admission=admission, slots_in=slots_in, pods={pod.metadata.uid: pod for pod in pods}, **fields
    )


def context(**more) -> ReconcileContext:
    """What holds for all jobs, where nothing is lost, avoided, missing or waited for but what ``more`` says."""
    quiet = {
        "keys": KEYS,
        "flavors": {"gpu": LEVELS},
        "level_names": NO_NAMES,
        "lost": lambda *_: (),
        "dead": lambda _node: False,
        "missing": lambda _node: None,
        "avoided": lambda *_: (),
        "patience": 10.0,
        "life": LifeRules(),
        "missing_pods": MissingPods(),
        "default_class": str,
        "require_queue": False,
        "nominates": False,
        "planned": lambda _entry: {},
        "doubted": lambda _namespace, _now: 0.0,
        "no_queue": lambda _entry: None,
        "find_stop": lambda _entry: None,
        "checks": lambda _entry: (),
        "losing": lambda _entry: None,
        "outsiders": lambda _entry: (),
        "unkept": lambda _entry: {},
        "uncounted": lambda _entry: None,
        "devices": lambda *_: None,
        "charged": lambda _entry, requests, *_: requests,
        "asked_by": lambda pod: pod_requests(pod.spec),
        "unready": lambda _entry: None,
        "in_group": lambda _group: (),
        "grouped": lambda _entry: None,
        "choices": lambda *_: {},
    }
    return ReconcileContext(**{**quiet, **more})
