"""What Kueue has in hand in the namespaces of a step: it has to end before they are handed over. Pure.

A look of Kueue's at a job that is under way when its namespace is labelled may still write. So nothing may be left to
be written: no workload between its reservation and its start, none that is being evicted, no pod behind a gate.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from cli.migrate.rows import Json
from crds.constants import DEFAULT_DOMAIN, KUEUE_POD_SET, Keys
from kube.objects import Pod, controller_of, is_true
from kube.workloads import WorkloadObject
from ungater.model import kueue_objects
from ungater.model.kueue_objects import KueueWorkload
from ungater.model.pod_slots import finished

ADMISSION_GATE: Final = f"{DEFAULT_DOMAIN}/admission"  # 0.19.2, pkg/controller/jobs/pod/constants
OUR_GATE: Final = Keys().gate
OUR_MARK: Final = Keys().workload
WOKEN: Final = "topogate.dev/woken"  # on a job for a moment, by which Kueue looks at it
MULTI: Final = f"{DEFAULT_DOMAIN}/multikueue"
ADOPTED_KINDS: Final = ("Job", "JobSet")  # which can be suspended: others are known by their pods
Jobs = Mapping[str, Json]  # by uid


def is_admitted(workload: KueueWorkload) -> bool:
    """Whether a job runs by it."""
    said, status = workload.status.conditions, workload.status
    ends = is_true(said, kueue_objects.EVICTED) or is_true(said, kueue_objects.FINISHED)
    return status.admission is not None and is_true(said, kueue_objects.ADMITTED) and not ends


def job_of(workload: KueueWorkload, jobs: Jobs) -> Json | None:
    """The Job or JobSet of a workload; None for other owners, and where it is gone."""
    owner = controller_of(workload.metadata)
    return jobs.get(owner.uid) if owner is not None else None


def is_suspended(job: Json) -> bool:
    """Whether a Job or JobSet is suspended."""
    return (job.get("spec") or {}).get("suspend") is True


def is_woken(job: Json) -> bool:
    """Whether a job has the annotation of that moment still, since a run ended there."""
    return WOKEN in (job["metadata"].get("annotations") or {})


def templates_of(job: Json) -> Iterator[Json]:
    """The pod templates of a Job or JobSet."""
    spec = job.get("spec") or {}
    if "template" in spec:
        yield spec["template"]
    for one in spec.get("replicatedJobs") or ():
        yield ((one.get("template") or {}).get("spec") or {}).get("template") or {}


def title_of(body: Json) -> str:
    """``Job team/train``."""
    meta = body["metadata"]
    return f"{body['kind']} {meta['namespace']}/{meta['name']}"


def find_unquiet(workloads: Iterable[KueueWorkload], jobs: Jobs, pods: Iterable[Pod]) -> Iterator[str]:
    """What is still under way, each in a sentence."""
    for one in workloads:
        yield from _unquiet_workload(one, job_of(one, jobs))
    for pod in pods:
        labels, meta = pod.metadata.labels or {}, pod.metadata
        if KUEUE_POD_SET not in labels or finished(pod) or meta.deletion_timestamp is not None:
            continue
        if not pod.spec.node_name:
            yield f"pod {meta.namespace}/{meta.name} is not on a node yet"


def _unquiet_workload(one: KueueWorkload, job: Json | None) -> Iterator[str]:
    said, title = one.status.conditions, f"Workload {one.metadata.namespace}/{one.metadata.name}"
    if is_true(said, kueue_objects.FINISHED):
        return
    if is_true(said, kueue_objects.EVICTED) and one.status.admission is not None:
        yield f"{title} is being evicted, and its pods have not all ended"
    elif is_true(said, kueue_objects.QUOTA_RESERVED) and not is_true(said, kueue_objects.ADMITTED):
        yield f"{title} has its quota reserved, and is not admitted yet"
    if job is None or not is_admitted(one):
        return
    if is_suspended(job):
        yield f"{title_of(job)} is admitted, and not started yet"
    elif any(KUEUE_POD_SET not in ((each.get("metadata") or {}).get("labels") or {}) for each in templates_of(job)):
        # It would be taken for one that was resumed by hand.
        yield (
            f"{title_of(job)} has no label {KUEUE_POD_SET} in its pod templates, so Kueue 0.13 or newer has not "
            "started it, and it would be suspended here: wait until it has ended"
        )


def find_obstacles(jobs: Jobs, pods: Iterable[Pod]) -> Iterator[str]:
    """What cannot be handed over at all, each in a sentence."""
    for job in jobs.values():
        if (job.get("spec") or {}).get("managedBy") == MULTI:
            yield f"{title_of(job)} runs in another cluster ({MULTI}): wait until it has ended, or delete it"
    for pod in pods:
        if finished(pod) or pod.metadata.deletion_timestamp is not None:
            continue
        if any(gate.name == ADMISSION_GATE for gate in pod.spec.scheduling_gates or ()):
            yield (
                f"pod {pod.metadata.namespace}/{pod.metadata.name} waits behind Kueue's gate {ADMISSION_GATE}, and "
                "gates of a pod cannot be exchanged: wait until it runs, or delete it, and create it after the move"
            )


def running_jobs(workloads: Iterable[KueueWorkload], jobs: Jobs) -> dict[str, str]:
    """Title by uid of the Jobs and JobSets that run by Kueue's admission, and have not ended."""
    found = {}
    for one in workloads:
        job = job_of(one, jobs) if is_admitted(one) else None
        if job is not None and not is_suspended(job) and not has_ended(job):
            found[job["metadata"]["uid"]] = title_of(job)
    return found


def find_unquiet_here(ours: Iterable[WorkloadObject], jobs: Jobs, pods: Iterable[Pod]) -> Iterator[str]:
    """What Topogate has in hand in the namespaces of a step: it has to end before they are handed back."""
    for one in ours:
        said, title = one.status.conditions, f"Workload {one.metadata.namespace}/{one.metadata.name}"
        owner = controller_of(one.metadata)
        job = jobs.get(owner.uid) if owner is not None else None
        if one.status.admission is None or is_true(said, kueue_objects.FINISHED):
            continue
        if is_true(said, kueue_objects.EVICTED):
            yield f"{title} is being evicted, and its pods have not all ended"
        elif not is_true(said, kueue_objects.ADMITTED):
            yield f"{title} has its quota reserved, and is not admitted yet"
        elif job is not None and is_suspended(job) and not has_ended(job):
            yield f"{title_of(job)} is admitted, and not started yet"
    for pod in pods:
        if finished(pod) or pod.metadata.deletion_timestamp is not None:
            continue
        meta = pod.metadata
        if any(gate.name == OUR_GATE for gate in pod.spec.scheduling_gates or ()):
            # Of a job that runs, Kueue would let it go later; of others nobody would.
            yield (
                f"pod {meta.namespace}/{meta.name} waits behind the gate {OUR_GATE}: wait until it runs, or delete it, "
                "and create it after the move"
            )
        elif KUEUE_POD_SET in (meta.labels or {}) and not pod.spec.node_name:
            # Kueue fails a pod without a node whose Workload has no places yet (0.19.2, tas/node_controller.go).
            yield f"pod {meta.namespace}/{meta.name} is not on a node yet"


def has_ended(job: Json) -> bool:
    """Whether a Job or JobSet is over."""
    conditions: Any = (job.get("status") or {}).get("conditions") or ()
    ended = ("Complete", "Failed", "Completed")
    return any(one.get("type") in ended and one.get("status") == "True" for one in conditions)
