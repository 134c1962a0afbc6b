"""Wire shapes of Topogate's Workload; `crds.kinds.workload` says what each field means.

`WorkloadObject` is without the templates of its pods, which are the bulk of it and are the job's: the controller keeps
one a job. It has them only where nobody else may: admitted pods of several kinds, of which one may have no pod.
`WholeWorkload` is the same with all that its pod sets ask for.
"""

from typing import Any, Final

import msgspec

from kube.objects import Condition, Object, StrMap, Struct, Toleration, controller_of, detached

TELL_TEMPLATES: Final = frozenset({"Job", "JobSet", "LeaderWorkerSet"})  # others are known by their pods
NO_TEMPLATE: Final = msgspec.Raw(b"")
LONGEST_TEMPLATE: Final = 16 * 1024  # bytes that are kept of a pod set: anybody may write such a Workload


class TopologyRequest(Struct, frozen=True):
    """What a pod set asks for: policy Required, Preferred or Unconstrained, and the level."""

    policy: str = ""
    level: str | None = None
    pod_set_group_name: str | None = None


class PodSetCount(Struct, frozen=True):
    """A pod set of the spec. ``template``: as `WorkloadPodSet` has it, or empty (`WorkloadObject`)."""

    name: str = "main"
    count: int = 0
    min_count: int = 0
    template: msgspec.Raw = NO_TEMPLATE

    def settle_template(self, *, keeps: bool) -> None:
        """Keep the bytes of the template, which were a view into an answer until now; or none of them."""
        short = keeps and memoryview(self.template).nbytes <= LONGEST_TEMPLATE
        msgspec.structs.force_setattr(self, "template", detached(self.template) if short else NO_TEMPLATE)


class WorkloadPodSet(PodSetCount, frozen=True):
    """One pod set of a Workload; the template is kept raw; ``kube.pods.templates`` decodes it."""

    template: msgspec.Raw = msgspec.Raw(b"{}")
    topology_request: TopologyRequest | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "template", detached(self.template))


class ObservedSpec(Struct, frozen=True):
    """Workload spec."""

    pod_sets: tuple[PodSetCount, ...] = ()
    queue_name: str = ""
    priority: int = 0
    active: bool = True
    maximum_execution_time_seconds: int | None = None


class WholeSpec(ObservedSpec, frozen=True):
    """Workload spec with what its pod sets ask for."""

    pod_sets: tuple[WorkloadPodSet, ...] = ()


class StoredPodSetAssignment(Struct, frozen=True):
    """What was decided for one pod set; ``topology_assignment`` in either stored form (`crds.assignment`)."""

    name: str = "main"
    flavors: StrMap | None = None
    resource_usage: dict[str, str | int] | None = None
    count: int = 0
    topology_assignment: dict[str, Any] | None = None


class StoredAdmission(Struct, frozen=True):
    """What a workload was admitted with, written before any pod goes; `ungater.model.admission` reads and writes it."""

    cluster_queue: str = ""
    pod_set_assignments: tuple[StoredPodSetAssignment, ...] = ()


class StoredVictim(Struct, frozen=True):
    """A workload or pod that is to make room."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    priority: int | None = None
    domains: tuple[tuple[str, ...], ...] = ()


class StoredNomination(Struct, frozen=True):
    """The preemption that is planned for a workload, written before any victim is evicted."""

    cluster_queue: str = ""
    strategy: str = ""
    victims: tuple[StoredVictim, ...] = ()
    pod_set_assignments: tuple[StoredPodSetAssignment, ...] = ()


class RequeueState(Struct, frozen=True):
    """When an evicted workload comes back."""

    count: int = 0
    requeue_at: str | None = None


class StoredBoost(Struct, frozen=True):
    """What is added to a workload's priority, and since when."""

    value: int = 0
    since: str | None = None


def boosted(priority: int, boost: int) -> int:
    """A priority with a boost. 32 bits, as all priorities of Kubernetes: what is beyond them could not be stored."""
    return min(max(priority + boost, -(1 << 31)), (1 << 31) - 1)


class PodSetUpdate(Struct, frozen=True):
    """What a check adds to the pods of a pod set; Kueue's Workload has the same."""

    name: str = ""
    labels: StrMap | None = None
    annotations: StrMap | None = None
    node_selector: StrMap | None = None
    tolerations: tuple[Toleration, ...] | None = None


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
    priority_boost: StoredBoost | None = None
    admission_checks: tuple[CheckState, ...] | None = None
    unhealthy_nodes: tuple[UnhealthyNode, ...] | None = None
    accumulated_past_execution_time_seconds: int = 0


class WorkloadObject(Object, frozen=True):
    """A Workload as the controller keeps it."""

    spec: ObservedSpec = ObservedSpec()
    status: ObservedStatus = ObservedStatus()

    def __post_init__(self) -> None:
        keeps = len(self.spec.pod_sets) > 1 and self.status.admission is not None
        owner = controller_of(self.metadata) if keeps else None
        keeps = keeps and (owner is None or owner.kind not in TELL_TEMPLATES)
        for one in self.spec.pod_sets:
            one.settle_template(keeps=keeps)

    @property
    def boost(self) -> int:
        """What is added to its priority."""
        return self.status.priority_boost.value if self.status.priority_boost is not None else 0

    @property
    def effective_priority(self) -> int:
        """The priority that counts in its queue, boost included."""
        return boosted(self.spec.priority, self.boost)


class WholeWorkload(WorkloadObject, frozen=True):
    """A Workload with the templates of its pods, as the commands that look at a cluster read it."""

    spec: WholeSpec = WholeSpec()

    def __post_init__(self) -> None:
        """All templates stay."""
