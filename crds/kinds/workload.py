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

MAX_POD_SETS = 8


class WorkloadSpec(ApiModel):
    """What is to be admitted."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("!has(self.priorityClassName) || has(self.priority)", "priority is required with priorityClassName"),
            (
                "self.podSets.filter(p, has(p.minCount)).size() <= 1",
                "only one pod set may have a minCount",
            ),
        )
    )

    pod_sets: Annotated[list[PodSet], Field(min_length=1, max_length=MAX_POD_SETS, json_schema_extra=by_key("name"))]
    """All of them are placed, or none."""
    queue_name: ObjectName | None = None
    """The LocalQueue; absent: placed at once, with no quota."""
    priority: Priority | None = None
    """Higher goes first."""
    priority_class_name: ObjectName | None = None
    """The PriorityClass that the priority came from."""
    active: bool = True
    """Whether it may be admitted; setting it to false evicts what runs."""
    maximum_execution_time_seconds: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = None
    """How long it may be admitted before it is made inactive."""


class TopologyAssignmentSlice(ApiModel):
    """How many pods go to one domain."""

    node_labels: Annotated[
        dict[str, LabelValue], Field(min_length=1, max_length=MAX_LEVELS, json_schema_extra=ATOMIC_MAP)
    ]
    """The domain: a value for each level."""
    count: Annotated[int, Field(ge=1, le=1_000_000)]
    """Pods."""


class TopologyAssignmentGroup(ApiModel):
    """Domains of the last level under one parent, in tree order."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("has(self.counts) != has(self.count)", "exactly one of counts and count is needed"),
            ("!has(self.counts) || size(self.counts) == size(self.names)", "counts needs one number for each of names"),
        )
    )

    values: Annotated[list[LabelValue], Field(max_length=MAX_LEVELS - 1, json_schema_extra=ATOMIC)]
    """The parent: values of all levels but the last."""
    prefix: Annotated[str, Field(max_length=63)] | None = None
    """What all names begin with."""
    suffix: Annotated[str, Field(max_length=63)] | None = None
    """What all names end with."""
    names: Annotated[
        list[Annotated[str, Field(max_length=63)]], Field(min_length=1, max_length=100_000, json_schema_extra=ATOMIC)
    ]
    """Values of the last level, without prefix and suffix."""
    counts: (
        Annotated[
            list[Annotated[int, Field(ge=1, le=1_000_000)]],
            Field(min_length=1, max_length=100_000, json_schema_extra=ATOMIC),
        ]
        | None
    ) = None
    """Pods in each."""
    count: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Pods in each, where all have the same number."""


class TopologyAssignment(ApiModel):
    """How many pods of a pod set go to which domain, in rank order."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("has(self.slices) != has(self.groups)", "exactly one of slices and groups is needed"),
            (
                (
                    "!has(self.groups) || (has(self.levels)"
                    " && self.groups.all(g, size(g.values) == size(self.levels) - 1))"
                ),
                "groups needs levels, and values of all levels but the last in each group",
            ),
        )
    )

    levels: Annotated[list[LabelKey], Field(min_length=1, max_length=MAX_LEVELS, json_schema_extra=ATOMIC)] | None = (
        None
    )
    """The levels from the widest to the narrowest."""
    slices: Annotated[list[TopologyAssignmentSlice], Field(max_length=100_000, json_schema_extra=ATOMIC)] | None = None
    """One entry a domain."""
    groups: Annotated[list[TopologyAssignmentGroup], Field(max_length=20_000, json_schema_extra=ATOMIC)] | None = None
    """One entry a parent domain: in a tenth of the room, for thousands of domains."""


class PodSetAssignment(ApiModel):
    """What was decided for one pod set."""

    name: PodSetName
    """The pod set."""
    flavors: Annotated[dict[str, ObjectName], Field(max_length=64)] | None = None
    """The flavor of each resource."""
    resource_usage: Annotated[Counts, Field(max_length=64)] | None = None
    """What the pod set takes in all, as it was admitted."""
    count: Count | None = None
    """Pods that were admitted."""
    topology_assignment: TopologyAssignment | None = None
    """Where they go."""


PodSetAssignments = Annotated[list[PodSetAssignment], Field(max_length=MAX_POD_SETS, json_schema_extra=by_key("name"))]


class Admission(ApiModel):
    """The decision: what was reserved, and where."""

    cluster_queue: ObjectName | None = None
    """The queue whose quota is used; absent without a queue."""
    place: Annotated[str, Field(max_length=4096)] | None = None
    """Where the pods go, for people: the domains of podSetAssignments in a few words."""
    pod_set_assignments: PodSetAssignments
    """One entry for each pod set."""


class Victim(ApiModel):
    """A workload or pod that is to make room."""

    kind: Literal["Workload", "Pod"]
    """What it is."""
    namespace: LabelName
    """Its namespace."""
    name: ObjectName
    """Its name."""
    uid: Uid
    """Its uid: one made again under its name is left alone."""
    priority: Priority | None = None
    """Its priority when it was chosen."""
    domains: (
        Annotated[
            list[Annotated[list[LabelValue], Field(min_length=1, max_length=MAX_LEVELS, json_schema_extra=ATOMIC)]],
            Field(min_length=1, max_length=256, json_schema_extra=ATOMIC),
        ]
        | None
    ) = None
    """The domains, by values of their levels, in which it loses its slices; absent: it goes whole."""


class Nomination(ApiModel):
    """A preemption that is under way: the plan is stored before the first eviction."""

    time: datetime
    """When it was planned."""
    cluster_queue: ObjectName | None = None
    """The queue whose quota it gets."""
    strategy: Literal["LeastPriority", "IncrementalMinimal"]
    """How the victims were chosen."""
    victims: Annotated[list[Victim], Field(min_length=1, max_length=1000, json_schema_extra=ATOMIC)]
    """Who makes room."""
    pod_set_assignments: PodSetAssignments
    """Where this workload goes once they are gone; reserved until then."""


class RequeueState(ApiModel):
    """When an evicted workload comes back into the queue."""

    count: Count | None = None
    """How often it was put back."""
    requeue_at: datetime | None = None
    """Not before this time."""


class ReclaimablePods(ApiModel):
    """Pods of a pod set that need no room any more."""

    name: PodSetName
    """The pod set."""
    count: Count
    """Pods."""


class PodSetUpdate(ApiModel):
    """What an admission check adds to the pods of one pod set."""

    name: PodSetName
    """The pod set."""
    labels: Annotated[dict[str, LabelValue], Field(max_length=64)] | None = None
    """Labels to add."""
    annotations: Annotated[dict[str, str], Field(max_length=64)] | None = None
    """Annotations to add."""
    node_selector: Annotated[dict[str, LabelValue], Field(max_length=64)] | None = None
    """Node selector to add."""
    tolerations: Annotated[list[Toleration], Field(max_length=8, json_schema_extra=ATOMIC)] | None = None
    """Tolerations to add."""


class AdmissionCheckState(ApiModel):
    """What one admission check says."""

    name: ObjectName
    """The check."""
    state: Literal["Pending", "Ready", "Retry", "Rejected"]
    """Its answer."""
    last_transition_time: datetime
    """When state changed last."""
    message: Message
    """Why, for a person."""
    pod_set_updates: (
        Annotated[list[PodSetUpdate], Field(max_length=MAX_POD_SETS, json_schema_extra=by_key("name"))] | None
    ) = None
    """What it adds to the pods."""


class UnhealthyNode(ApiModel):
    """A node that was lost with pods of this workload on it."""

    name: ObjectName
    """The node."""
    since: datetime | None = None
    """When it was first seen unhealthy."""


class WorkloadStatus(ApiModel):
    """What was decided and what happened."""

    conditions: Conditions | None = None
    """QuotaReserved, Admitted, PodsReady, Evicted, Preempted, Moving and Finished."""
    admission: Admission | None = None
    """The decision; absent while the workload waits."""
    nomination: Nomination | None = None
    """A preemption under way for it; beside an admission, for more of its pods."""
    requeue_state: RequeueState | None = None
    """When an evicted workload is tried again."""
    reclaimable_pods: (
        Annotated[list[ReclaimablePods], Field(max_length=MAX_POD_SETS, json_schema_extra=by_key("name"))] | None
    ) = None
    """Pods that finished and need no room any more."""
    admission_checks: (
        Annotated[list[AdmissionCheckState], Field(max_length=64, json_schema_extra=by_key("name"))] | None
    ) = None
    """What the queue's admission checks say."""
    unhealthy_nodes: Annotated[list[UnhealthyNode], Field(max_length=1000, json_schema_extra=by_key("name"))] | None = (
        None
    )
    """Lost nodes whose pods are being placed anew."""
    accumulated_past_execution_time_seconds: Count | None = None
    """Time it was admitted before its last eviction."""


_ADMITTED = "has(self.status) && has(self.status.admission)"
_WAS_ADMITTED = "has(oldSelf.status) && has(oldSelf.status.admission)"


class Workload(ApiObject):
    """Workload is what Topogate makes of a job: all its pod sets are placed, or none is."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                (
                    f"!({_ADMITTED}) || (size(self.status.admission.podSetAssignments) == size(self.spec.podSets)"
                    " && self.spec.podSets.all(p, self.status.admission.podSetAssignments.exists(a, a.name == p.name)))"
                ),
                "status.admission.podSetAssignments needs one entry for each of spec.podSets",
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
    """The wish."""
    status: WorkloadStatus | None = None
    """What is."""
