"""ClusterQueue: quota of flavors and resources, and who may take it from whom."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from crds.kinds.common import (
    AGE,
    SET,
    ApiModel,
    ApiObject,
    Column,
    Definition,
    LabelSelector,
    ObjectName,
    Priority,
    QueueStatus,
    StopPolicy,
    by_key,
    cel,
    condition_column,
)
from crds.kinds.quotas import GROUPS, FairSharingStatus, FairSharingWeight, QueueQuota, ResourceGroup, limits_need


class FlavorFungibility(ApiModel):
    """Whether to try the next flavor before borrowing or preempting in this one."""

    when_can_borrow: Literal["MayStopSearch", "TryNextFlavor"] = "MayStopSearch"
    """MayStopSearch: borrow in this flavor. TryNextFlavor: try the next flavor first."""
    when_can_preempt: Literal["MayStopSearch", "TryNextFlavor"] = "TryNextFlavor"
    """MayStopSearch: preempt in this flavor. TryNextFlavor: try the next flavor first."""
    preference: Literal["BorrowingOverPreemption", "PreemptionOverBorrowing"] | None = None
    """Which of the flavors that were tried is the best. BorrowingOverPreemption: one in which the workload preempts
    nobody, then the one in which it borrows the least high up. PreemptionOverBorrowing: the other way round. Default:
    BorrowingOverPreemption."""


class BorrowWithinCohort(ApiModel):
    """Preemption in the cohort by a workload that itself borrows."""

    policy: Literal["Never", "LowerPriority"] = "Never"
    """Which workloads of other queues may be preempted."""
    max_priority_threshold: Priority | None = None
    """Only workloads up to this priority are preempted. If absent, there is no limit."""


class Preemption(ApiModel):
    """Whom the queue's workloads may preempt, and how victims are chosen."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                (
                    "self.reclaimWithinCohort != 'Never' || !has(self.borrowWithinCohort)"
                    " || self.borrowWithinCohort.policy == 'Never'"
                ),
                "borrowWithinCohort.policy must be Never if reclaimWithinCohort is Never",
            ),
            (
                "!has(self.alpha) || (has(self.strategy) && self.strategy == 'IncrementalMinimal')",
                "alpha can only be set with strategy IncrementalMinimal",
            ),
        )
    )

    reclaim_within_cohort: Literal["Never", "LowerPriority", "Any"] = "Never"
    """Which borrowing workloads of the cohort may be preempted when this queue takes back its quota."""
    borrow_within_cohort: BorrowWithinCohort | None = None
    """Whether a workload that borrows may preempt others."""
    within_cluster_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"] = "Never"
    """Which workloads of this queue may be preempted."""
    non_preemptible: Literal["Never", "ByClass", "ByWorkload"] = "ByClass"
    """Which workloads are never preempted while they are within nominal quota. Never: none. ByClass: those whose
    priority class says so. ByWorkload: also those that say so themselves."""
    # No default: the API server would write it into every queue, and each of them would override the setting.
    strategy: Literal["LeastPriority", "IncrementalMinimal"] | None = None
    """How victims are chosen. LeastPriority: the least important ones. IncrementalMinimal: the smallest set with the
    best score. If absent, the setting `preemptionStrategy` applies."""
    alpha: Annotated[float, Field(ge=0, le=1)] | None = None
    """The weight of the victims' priority against the freed topology. If absent, the setting `preemptionAlpha`
    applies."""


class AdmissionCheckStrategyRule(ApiModel):
    """One admission check and the flavors it is needed for."""

    name: ObjectName
    """The admission check."""
    on_flavors: Annotated[list[ObjectName], Field(max_length=64, json_schema_extra=SET)] | None = None
    """The flavors that need the check. If absent, all of them."""


class AdmissionChecksStrategy(ApiModel):
    """Checks that must be ready before a workload is admitted."""

    admission_checks: Annotated[
        list[AdmissionCheckStrategyRule], Field(min_length=1, max_length=64, json_schema_extra=by_key("name"))
    ]
    """The checks."""


class AdmissionScope(ApiModel):
    """How the LocalQueues that lead to this queue share it."""

    admission_mode: Literal["UsageBasedAdmissionFairSharing", "NoAdmissionFairSharing"]
    """The order of workloads of different LocalQueues. UsageBasedAdmissionFairSharing: the LocalQueue that used the
    least for its weight comes first, before priority. It needs the setting `fairUseHalfLifeSeconds`.
    NoAdmissionFairSharing: priority comes first, then time, whichever LocalQueue they are in."""


class ClusterQueueSpec(ApiModel):
    """Quota, order and preemption."""

    model_config = ConfigDict(json_schema_extra=limits_need("cohortName"))

    resource_groups: Annotated[list[ResourceGroup[QueueQuota]], GROUPS] | None = None
    """The quotas. Each resource and each flavor is part of one group only."""
    cohort_name: ObjectName | None = None
    """The cohort. The queues of a tree of cohorts lend each other the quota that they do not use. A cohort without an
    object of kind Cohort has no quota and no limits of its own, and no parent."""
    queueing_strategy: Literal["StrictFIFO", "BestEffortFIFO"] = "BestEffortFIFO"
    """Whether a workload that does not fit blocks the workloads behind it. StrictFIFO: yes. BestEffortFIFO: no."""
    namespace_selector: LabelSelector | None = None
    """The namespaces that may use the queue. If absent, none may. If empty, all may."""
    # An empty object as the default: the API server fills in defaults only below what is there.
    flavor_fungibility: FlavorFungibility = Field(default_factory=FlavorFungibility, json_schema_extra={"default": {}})
    """Whether the next flavor is tried before borrowing or preempting in a flavor."""
    preemption: Preemption = Field(default_factory=Preemption, json_schema_extra={"default": {}})
    """Which workloads the workloads of this queue may preempt."""
    admission_checks_strategy: AdmissionChecksStrategy | None = None
    """Checks by other controllers, which must be ready before a workload is admitted."""
    stop_policy: StopPolicy = "None"
    """Whether the queue is stopped. Hold: it admits nothing more, and workloads that are not admitted yet give their
    quota back. HoldAndDrain: admitted workloads are evicted too."""
    fair_sharing: FairSharingWeight | None = None
    """The share of this queue in what is borrowed."""
    admission_scope: AdmissionScope | None = None
    """Whether the LocalQueues that lead to this queue share it by what they used. If absent, they do not."""


class ClusterQueueStatus(QueueStatus):
    """What a cluster queue reports."""

    fair_sharing: FairSharingStatus | None = None
    """The share of the queue beside the others of its cohort, present or over time."""


class ClusterQueue(ApiObject):
    """ClusterQueue gives quota to workloads in order, and defines which workloads may preempt others."""

    definition = Definition(
        plural="clusterqueues",
        singular="clusterqueue",
        short_names=("cq",),
        namespaced=False,
        columns=(
            Column("Cohort", ".spec.cohortName", "string"),
            Column("Strategy", ".spec.queueingStrategy", "string", 1),
            Column("Pending", ".status.pendingWorkloads", "integer"),
            Column("Admitted", ".status.admittedWorkloads", "integer"),
            condition_column("Active", "Active", "status"),
            condition_column("Reason", "Active", "reason"),
            AGE,
            condition_column("Message", "Active", "message", priority=1),
        ),
    )

    spec: ClusterQueueSpec = Field(default_factory=ClusterQueueSpec)
    """The desired state."""
    status: ClusterQueueStatus | None = None
    """The observed state."""
