"""Wire shapes of Topogate's Workload, as the commands that look at a cluster read it; `crds` has the whole of it."""

import msgspec

from kube.objects import Condition, Object, Quantities, StrMap, Struct, detached


class TopologyRequest(Struct, frozen=True):
    """What a pod set asks for: policy Required, Preferred or Unconstrained, and the level."""

    policy: str = ""
    level: str | None = None
    pod_set_group_name: str | None = None


class WorkloadPodSet(Struct, frozen=True):
    """One pod set of a Workload; the template is kept raw; ``kube.pods.templates`` decodes it."""

    name: str = "main"
    count: int = 0
    min_count: int | None = None
    template: msgspec.Raw = msgspec.Raw(b"{}")
    topology_request: TopologyRequest | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "template", detached(self.template))


class WorkloadSpec(Struct, frozen=True):
    """Workload spec."""

    queue_name: str | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    active: bool = True
    pod_sets: tuple[WorkloadPodSet, ...] = ()


class TopologySlice(Struct, frozen=True):
    """``count`` pods go to the domain named by these labels."""

    node_labels: StrMap = msgspec.field(default_factory=dict)
    count: int = 0


class TopologyGroup(Struct, frozen=True):
    """Domains of the last level under one parent; ``crds.assignment`` explains the form."""

    values: tuple[str, ...] = ()
    prefix: str = ""
    suffix: str = ""
    names: tuple[str, ...] = ()
    counts: tuple[int, ...] | None = None
    count: int | None = None


class TopologyAssignment(Struct, frozen=True):
    """Where the pods of a pod set go, in rank order: as slices, or as groups where there are very many."""

    levels: tuple[str, ...] | None = None
    slices: tuple[TopologySlice, ...] | None = None
    groups: tuple[TopologyGroup, ...] | None = None


class PodSetAssignment(Struct, frozen=True):
    """The admission of one pod set."""

    name: str = "main"
    flavors: StrMap | None = None
    resource_usage: Quantities | None = None
    count: int = 0
    topology_assignment: TopologyAssignment | None = None


class Admission(Struct, frozen=True):
    """What a workload was admitted with, written before any pod goes."""

    cluster_queue: str | None = None
    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class Victim(Struct, frozen=True):
    """Who is to make room."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    priority: int | None = None
    domains: tuple[tuple[str, ...], ...] = ()


class Nomination(Struct, frozen=True):
    """A preemption under way: who makes room, and what the workload gets then."""

    victims: tuple[Victim, ...] = ()
    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class RequeueState(Struct, frozen=True):
    """When an evicted workload comes back."""

    count: int = 0
    requeue_at: str | None = None


class WorkloadStatus(Struct, frozen=True):
    """Workload status."""

    admission: Admission | None = None
    nomination: Nomination | None = None
    requeue_state: RequeueState | None = None
    conditions: tuple[Condition, ...] | None = None


class Workload(Object, frozen=True):
    """A Workload."""

    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()
