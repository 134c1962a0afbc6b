"""Events about a workload: on the job, where its owner looks. What lasts, its Workload says by conditions.

One a happening, however many pods the job has. A group of pods has no object of its own, and the first of its pods may
go before the others: so it is told on its Workload too. Events about one pod are on the pod.
"""

from crds.constants import API_VERSION
from engine.reasons import Reason
from kube.events import EventRecorder, ObjectReference
from ungater.model import conditions
from ungater.model.pod_slots import finished
from ungater.model.workload_entry import WorkloadEntry

FINE = "Normal"


def emit(
    recorder: EventRecorder, entry: WorkloadEntry, type_: str, reason: Reason, action: str, *, message: str
) -> None:
    """Say what happened to a workload."""
    text = conditions.shorten(message)
    recorder.event(job_reference(entry), type_, reason, action, text)
    if entry.job.members and entry.observed is not None and entry.observed.uid:
        recorder.event(workload_reference(entry), type_, reason, action, text)


def job_reference(entry: WorkloadEntry) -> ObjectReference:
    """The job, as an event names it; of a group the first pod that is there."""
    owner = entry.job
    if owner.members:
        there = sorted((pod.metadata.name, pod.metadata.uid) for pod in entry.pods.values() if not finished(pod))
        name, uid = next(iter(there), owner.members[0])
        return ObjectReference(api_version="v1", kind="Pod", namespace=owner.namespace, name=name, uid=uid)
    return ObjectReference(
        api_version=owner.api_version,
        kind=owner.kind,
        namespace=owner.namespace,
        name=owner.name,
        uid=owner.uid,
    )


def workload_reference(entry: WorkloadEntry) -> ObjectReference:
    """Its Workload; there has to be one."""
    owner, uid = entry.job, entry.observed.uid if entry.observed is not None else ""
    return ObjectReference(
        api_version=API_VERSION, kind="Workload", namespace=owner.namespace, name=owner.workload, uid=uid
    )
