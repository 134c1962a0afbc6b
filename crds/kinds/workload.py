"""Workload: the unit of admission, and the record of what was decided for it.

``status.admission`` is a write-ahead log: what stands there was reserved before it was written, and is what the
pods get. An assignment is stored in one of two forms, `slices` for a person to read and `groups` for very large ones;
`crds.assignment` converts.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from crds.constants import MAX_LEVELS
from crds.kinds.common import (
    AGE,
    ATOMIC,
    ATOMIC_MAP,
    ApiModel,
    ApiObject,
    Column,
    Conditions,
    Count,
    Counts,
    Definition,
    LabelKey,
    LabelName,
    LabelValue,
    Message,
    ObjectName,
    PodSetName,
    Priority,
    Toleration,
    Uid,
    by_key,
    cel,
    condition_column,
)
from crds.kinds.pod_sets import PodSet

# As many as Kueue's Workload has.
MAX_POD_SETS = 8


class WorkloadSpec(ApiModel):
    """What is to be admitted."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("!has(self.priorityClassName) || has(self.priority)", "priority is required with priorityClassName"),
            (
                # As Kueue has it: of two, which one shrinks first would be open.
                "self.podSets.filter(p, has(p.minCount)).size() <= 1",
                "only one pod set can have a minCount",
            ),
        )
    )

    pod_sets: Annotated[list[PodSet], Field(min_length=1, max_length=MAX_POD_SETS, json_schema_extra=by_key("name"))]
    """The pod sets. All of them are placed, or none."""
    queue_name: ObjectName | None = None
    """The LocalQueue. If absent, the workload is placed at once, without quota."""
    priority: Priority | None = None
    """The priority. Workloads with a higher priority come first."""
    priority_class_name: ObjectName | None = None
    """The WorkloadPriorityClass or PriorityClass that defined the priority."""
    active: bool = True
    """Whether the workload may be admitted. Setting it to false evicts a running workload."""
    maximum_execution_time_seconds: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = None
    """How long the workload may be admitted before it is deactivated."""


class TopologyAssignmentSlice(ApiModel):
    """How many pods go to one domain."""

    node_labels: Annotated[
        dict[str, LabelValue], Field(min_length=1, max_length=MAX_LEVELS, json_schema_extra=ATOMIC_MAP)
    ]
    """The domain, as a label value for each level."""
    count: Annotated[int, Field(ge=1, le=1_000_000)]
    """The number of pods in the domain."""


class TopologyAssignmentGroup(ApiModel):
    """Domains of the last level under one parent, in tree order."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("has(self.counts) != has(self.count)", "exactly one of counts and count must be set"),
            (
                "!has(self.counts) || size(self.counts) == size(self.names)",
                "counts must have one number for each of names",
            ),
        )
    )

    values: Annotated[list[LabelValue], Field(max_length=MAX_LEVELS - 1, json_schema_extra=ATOMIC)]
    """The parent domain, as the label values of all levels except the last."""
    prefix: Annotated[str, Field(max_length=63)] | None = None
    """A prefix that all names share."""
    suffix: Annotated[str, Field(max_length=63)] | None = None
    """A suffix that all names share."""
    names: Annotated[
        list[Annotated[str, Field(max_length=63)]], Field(min_length=1, max_length=100_000, json_schema_extra=ATOMIC)
    ]
    """The label values of the last level, without prefix and suffix."""
    counts: (
        Annotated[
            list[Annotated[int, Field(ge=1, le=1_000_000)]],
            Field(min_length=1, max_length=100_000, json_schema_extra=ATOMIC),
        ]
        | None
    ) = None
    """The number of pods in each domain."""
    count: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """The number of pods in each domain, if it is the same in all of them."""


class TopologyAssignment(ApiModel):
    """How many pods of a pod set go to which domain, in rank order."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("has(self.slices) != has(self.groups)", "exactly one of slices and groups must be set"),
            (
                (
                    "!has(self.groups) || (has(self.levels)"
                    " && self.groups.all(g, size(g.values) == size(self.levels) - 1))"
                ),
                "groups needs levels, and each group needs values of all levels except the last",
            ),
        )
    )

    levels: Annotated[list[LabelKey], Field(min_length=1, max_length=MAX_LEVELS, json_schema_extra=ATOMIC)] | None = (
        None
    )
    """The levels, from the widest to the narrowest."""
    slices: Annotated[list[TopologyAssignmentSlice], Field(max_length=100_000, json_schema_extra=ATOMIC)] | None = None
    """The domains, one entry each."""
    groups: Annotated[list[TopologyAssignmentGroup], Field(max_length=20_000, json_schema_extra=ATOMIC)] | None = None
    """The domains by parent domain, one entry for each parent. For thousands of domains, this takes a tenth of the
    space."""


class PodSetAssignment(ApiModel):
    """What was decided for one pod set."""

    name: PodSetName
    """The pod set."""
    flavors: Annotated[dict[str, ObjectName], Field(max_length=64)] | None = None
    """The flavor of each resource."""
    resource_usage: Annotated[Counts, Field(max_length=64)] | None = None
    """The total usage of the pod set, as it was admitted."""
    count: Count | None = None
    """The number of pods that were admitted."""
    topology_assignment: TopologyAssignment | None = None
    """The domains to which the pods go."""


PodSetAssignments = Annotated[list[PodSetAssignment], Field(max_length=MAX_POD_SETS, json_schema_extra=by_key("name"))]


class Admission(ApiModel):
    """The decision: what was reserved, and where."""

    cluster_queue: ObjectName | None = None
    """The ClusterQueue whose quota is used. Absent if the workload has no queue."""
    # Stored, for a column of kubectl get prints one value of a path and cannot put several together.
    place: Annotated[str, Field(max_length=4096)] | None = None
    """A short summary of the domains in podSetAssignments, for people."""
    pod_set_assignments: PodSetAssignments
    """One entry for each pod set."""


class Victim(ApiModel):
    """A workload or pod that is to make room."""

    kind: Literal["Workload", "Pod"]
    """The kind of the victim."""
    namespace: LabelName
    """The namespace of the victim."""
    name: ObjectName
    """The name of the victim."""
    uid: Uid
    """The UID of the victim. Another object that is created with the same name is not affected."""
    priority: Priority | None = None
    """The priority of the victim when it was chosen."""
    domains: (
        Annotated[
            list[Annotated[list[LabelValue], Field(min_length=1, max_length=MAX_LEVELS, json_schema_extra=ATOMIC)]],
            Field(min_length=1, max_length=256, json_schema_extra=ATOMIC),
        ]
        | None
    ) = None
    """The domains in which the victim loses its slices, each as label values of its levels. If absent, all of the
    victim is evicted."""


class Nomination(ApiModel):
    """A preemption that is under way: the plan is stored before the first eviction."""

    time: datetime
    """When the preemption was planned."""
    cluster_queue: ObjectName | None = None
    """The ClusterQueue whose quota the workload gets."""
    strategy: Literal["LeastPriority", "IncrementalMinimal"]
    """How the victims were chosen."""
    victims: Annotated[list[Victim], Field(min_length=1, max_length=1000, json_schema_extra=ATOMIC)]
    """The workloads and pods that make room."""
    pod_set_assignments: PodSetAssignments
    """Where this workload goes when the victims are gone. The room is reserved until then."""


class RequeueState(ApiModel):
    """When an evicted workload comes back into the queue."""

    count: Count | None = None
    """How often the workload was put back."""
    requeue_at: datetime | None = None
    """The workload is not tried again before this time."""


class CountedBoost(ApiModel):
    """What is added to the priority of a workload."""

    value: Priority
    """The number that is added to spec.priority. The sum is at least -2147483648 and at most 2147483647."""
    since: datetime
    """When this value began to count. Another value counts once priorityBoostRestSeconds have passed."""


class ReclaimablePods(ApiModel):
    """Pods of a pod set that need no room any more."""

    name: PodSetName
    """The pod set."""
    count: Count
    """The number of pods."""


class PodSetUpdate(ApiModel):
    """What an admission check adds to the pods of one pod set."""

    name: PodSetName
    """The pod set."""
    labels: Annotated[dict[str, LabelValue], Field(max_length=64)] | None = None
    """Labels to add to the pods."""
    annotations: Annotated[dict[str, str], Field(max_length=64)] | None = None
    """Annotations to add to the pods."""
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=64)] | None = None
    """Node selector to add to the pods."""
    tolerations: Annotated[list[Toleration], Field(max_length=8, json_schema_extra=ATOMIC)] | None = None
    """Tolerations to add to the pods."""


class AdmissionCheckState(ApiModel):
    """What one admission check says."""

    name: ObjectName
    """The check."""
    state: Literal["Pending", "Ready", "Retry", "Rejected"]
    """The state of the check."""
    last_transition_time: datetime
    """When the state last changed."""
    message: Message
    """The reason for the state, for people."""
    pod_set_updates: (
        Annotated[list[PodSetUpdate], Field(max_length=MAX_POD_SETS, json_schema_extra=by_key("name"))] | None
    ) = None
    """What the check adds to the pods."""


class UnhealthyNode(ApiModel):
    """A node that was lost with pods of this workload on it."""

    name: ObjectName
    """The node."""
    since: datetime | None = None
    """When the node was first seen unhealthy."""


class WorkloadStatus(ApiModel):
    """What was decided and what happened."""

    conditions: Conditions | None = None
    """The conditions: QuotaReserved, Admitted, PodsReady, Evicted, Preempted, Moving and Finished."""
    admission: Admission | None = None
    """The decision to admit the workload. Absent while the workload waits."""
    nomination: Nomination | None = None
    """A preemption in progress for this workload. If the workload is admitted, it is for more of its pods."""
    requeue_state: RequeueState | None = None
    """When the workload is tried again after an eviction."""
    priority_boost: CountedBoost | None = None
    """The boost that counts, as the annotation `priority-boost` asked for it."""
    reclaimable_pods: (
        Annotated[list[ReclaimablePods], Field(max_length=MAX_POD_SETS, json_schema_extra=by_key("name"))] | None
    ) = None
    """Pods that have finished and no longer need room."""
    admission_checks: (
        Annotated[list[AdmissionCheckState], Field(max_length=64, json_schema_extra=by_key("name"))] | None
    ) = None
    """The states of the admission checks of the queue."""
    unhealthy_nodes: Annotated[list[UnhealthyNode], Field(max_length=1000, json_schema_extra=by_key("name"))] | None = (
        None
    )
    """Lost nodes whose pods are being placed elsewhere."""
    accumulated_past_execution_time_seconds: Count | None = None
    """How long the workload was admitted in all before its last eviction."""


_ADMITTED = "has(self.status) && has(self.status.admission)"
# By the state before: while an admission is stored, its assignments refer to these fields.
_WAS_ADMITTED = "has(oldSelf.status) && has(oldSelf.status.admission)"


class Workload(ApiObject):
    """Workload represents a job in Topogate. All of its pod sets are placed, or none."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                (
                    f"!({_ADMITTED}) || (size(self.status.admission.podSetAssignments) == size(self.spec.podSets)"
                    " && self.spec.podSets.all(p, self.status.admission.podSetAssignments.exists(a, a.name == p.name)))"
                ),
                "status.admission.podSetAssignments must have one entry for each of spec.podSets",
            ),
            (
                (
                    f"!({_WAS_ADMITTED}) || (size(self.spec.podSets) == size(oldSelf.spec.podSets)"
                    " && self.spec.podSets.all(p, oldSelf.spec.podSets.exists(q, q.name == p.name"
                    " && has(q.topologyRequest) == has(p.topologyRequest)"
                    " && (!has(p.topologyRequest) || q.topologyRequest == p.topologyRequest))))"
                ),
                "names and topologyRequest of spec.podSets cannot be changed while the workload is admitted",
            ),
            (
                (
                    f"!({_WAS_ADMITTED}) || (has(self.spec.queueName) == has(oldSelf.spec.queueName)"
                    " && (!has(self.spec.queueName) || self.spec.queueName == oldSelf.spec.queueName))"
                ),
                "spec.queueName cannot be changed while the workload is admitted",
            ),
        )
    )

    definition = Definition(
        plural="workloads",
        singular="workload",
        short_names=("wl",),
        namespaced=True,
        columns=(
            Column("Kind", ".metadata.ownerReferences[0].kind"),
            Column("Owner", ".metadata.ownerReferences[0].name"),
            Column("Queue", ".spec.queueName", "string"),
            Column("Reserved in", ".status.admission.clusterQueue", "string"),
            condition_column("Admitted", "Admitted", "status"),
            Column("Place", ".status.admission.place"),
            condition_column("Reason", "QuotaReserved", "reason"),
            condition_column("Ready", "PodsReady", "status"),
            condition_column("Finished", "Finished", "status"),
            AGE,
            Column("Priority", ".spec.priority", "integer", 1),
            condition_column("Message", "QuotaReserved", "message", priority=1),
        ),
    )

    spec: WorkloadSpec
    """The desired state."""
    status: WorkloadStatus | None = None
    """The observed state."""
