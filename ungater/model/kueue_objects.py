"""Kueue's kinds as far as they are read (kueue.x-k8s.io, v1beta2 and v1beta1 alike), and the bodies that are written.

Facts of the API that the rest of this package relies on
- Kueue makes ``status.admissionChecks`` with one entry a check of the ClusterQueue, in state Pending, and resets all of
  them to Pending when it evicts. A check's controller sets state, message and ``podSetUpdates`` by server-side apply
  under its own field manager; an apply that leaves out an entry gives up its ownership of it.
- Quota is reserved where condition QuotaReserved is True and ``status.admission`` is there. While a workload is being
  evicted both stay until its pods are gone; condition Evicted is True from the first moment on, and False again from
  the next reservation on.
- When all checks are Ready, Kueue sets Admitted and resumes the job. What the flavors' node labels and tolerations and
  all ``podSetUpdates`` add to the pod template may not contradict what is there, or each other.
- Retry evicts, and what becomes of the quota is a story of its own (`retries`). Rejected sets ``spec.active`` to false
  and evicts; up to 0.19.2 no later ``spec.active: true`` brings such a workload back, only a new Workload does.
"""

from typing import Any

from kube.objects import Condition, Object, ObjectMeta, SchedulingGate, StrMap, Struct, Toleration
from kube.resources import Resource
from kube.workloads import PodSetUpdate

GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")  # the first one that is served is used
TOPOLOGY_VERSIONS = ("v1beta2", "v1beta1", "v1alpha1")
CONTROLLER = "topogate.dev/topology"  # spec.controllerName of our checks, and the field manager of our writes

PENDING, READY, RETRY, REJECTED = "Pending", "Ready", "Retry", "Rejected"
ACTIVE = "Active"
QUOTA_RESERVED, ADMITTED, EVICTED, FINISHED = "QuotaReserved", "Admitted", "Evicted", "Finished"
REQUEUED = "Requeued"
BY_CHECK = "AdmissionCheck"  # reason of Evicted where a check said Retry
MAX_MESSAGE = 32_768


def versions_of(plural: str, kind: str, *, namespaced: bool = False) -> tuple[Resource, ...]:
    """One of Kueue's kinds in the versions that can be read, the best first."""
    versions = TOPOLOGY_VERSIONS if kind == "Topology" else VERSIONS
    return tuple(Resource(GROUP, version, plural, kind, namespaced=namespaced) for version in versions)


PRIORITY_CLASSES = versions_of("workloadpriorityclasses", "WorkloadPriorityClass")
CHECKS = versions_of("admissionchecks", "AdmissionCheck")
WORKLOADS = versions_of("workloads", "Workload", namespaced=True)
FLAVORS = versions_of("resourceflavors", "ResourceFlavor")
TOPOLOGIES = versions_of("topologies", "Topology")


class CheckSpec(Struct, frozen=True):
    """Who answers the check, and with which parameters."""

    controller_name: str = ""
    parameters: dict[str, Any] | None = None


class CheckStatus(Struct, frozen=True):
    """Status of an AdmissionCheck."""

    conditions: tuple[Condition, ...] | None = None


class AdmissionCheck(Object, frozen=True):
    """A kind of check, as ClusterQueues name it."""

    spec: CheckSpec = CheckSpec()
    status: CheckStatus = CheckStatus()


class FlavorSpec(Struct, frozen=True):
    """What a flavor says of its nodes, and adds to pods that use its quota."""

    node_labels: StrMap | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topology_name: str | None = None


class ResourceFlavor(Object, frozen=True):
    """Kueue's ResourceFlavor."""

    spec: FlavorSpec = FlavorSpec()


class Level(Struct, frozen=True):
    """A level of a Topology."""

    node_label: str = ""


class TopologySpec(Struct, frozen=True):
    """The levels, widest first."""

    levels: tuple[Level, ...] = ()


class Topology(Object, frozen=True):
    """Kueue's Topology: nodes belong to it that carry the labels of all its levels."""

    spec: TopologySpec = TopologySpec()


class TemplateSpec(Struct, frozen=True):
    """Of a pod template only what tells whether Topogate holds its pods back."""

    scheduling_gates: tuple[SchedulingGate, ...] | None = None


class Template(Struct, frozen=True):
    """A pod template; the Job has the whole of it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: TemplateSpec = TemplateSpec()


class PodSet(Struct, frozen=True):
    """A pod set of a Workload."""

    name: str = "main"
    count: int = 1
    template: Template = Template()


class WorkloadSpec(Struct, frozen=True):
    """Spec of a Workload."""

    active: bool = True
    priority: int | None = None
    queue_name: str = ""
    pod_sets: tuple[PodSet, ...] = ()


class KueuePodSetAssignment(Struct, frozen=True):
    """What Kueue assigned to a pod set, and what all its pods take; ``count`` None is the count of its spec."""

    name: str = "main"
    flavors: StrMap | None = None
    count: int | None = None
    resource_usage: dict[str, Any] | None = None  # a schema takes numbers too
    topology_assignment: dict[str, Any] | None = None


class KueueAdmission(Struct, frozen=True):
    """The reservation of quota."""

    cluster_queue: str = ""
    pod_set_assignments: tuple[KueuePodSetAssignment, ...] = ()


class KueueCheckState(Struct, frozen=True):
    """One check of one Workload. ``requeue_after_seconds`` and ``retry_count``: newer Kueues alone."""

    name: str = ""
    state: str = PENDING
    last_transition_time: str | None = None
    message: str = ""
    pod_set_updates: tuple[PodSetUpdate, ...] | None = None
    requeue_after_seconds: int | None = None
    retry_count: int | None = None


class KueueRequeueState(Struct, frozen=True):
    """How often it came back, and when it may."""

    count: int | None = None
    requeue_at: str | None = None


class WorkloadStatus(Struct, frozen=True):
    """Status of a Workload."""

    admission: KueueAdmission | None = None
    conditions: tuple[Condition, ...] | None = None
    admission_checks: tuple[KueueCheckState, ...] | None = None
    requeue_state: KueueRequeueState | None = None
    accumulated_past_execution_time_seconds: int | None = None


class KueueWorkload(Object, frozen=True):
    """Kueue's Workload."""

    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


class TakenOver(Struct, frozen=True):
    """A job that Kueue started and that is held here. ``workload``: the name of Kueue's Workload.

    ``admitted_at``: since when Kueue had it admitted, in seconds since the epoch; None where that is not said.
    ``executed``: seconds that it had run before.
    """

    workload: str
    executed: int = 0
    admitted_at: float | None = None

    def seconds_run(self, now: float) -> int:
        """For how many seconds it was admitted by Kueue. ``now``: seconds since the epoch."""
        return self.executed + (max(0, int(now - self.admitted_at)) if self.admitted_at is not None else 0)
