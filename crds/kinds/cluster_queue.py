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
    Quantity,
    QueueStatus,
    ResourceName,
    StopPolicy,
    by_key,
    cel,
    condition_column,
)

_QUANTITY_ORDER = "quantity(string(self.{0})).compareTo(quantity(string(self.{1}))) <= 0"


class ResourceQuota(ApiModel):
    """Quota of one resource in one flavor."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"!has(self.lendingLimit) || {_QUANTITY_ORDER.format('lendingLimit', 'nominalQuota')}",
                "lendingLimit must not exceed nominalQuota: no more can be lent than there is",
            )
        )
    )

    name: ResourceName
    """The resource."""
    nominal_quota: Quantity
    """What the queue's workloads may use together."""
    borrowing_limit: Quantity | None = None
    """How much more may be borrowed from the cohort; absent: no limit."""
    lending_limit: Quantity | None = None
    """How much of the unused quota the cohort may borrow; absent: all of it."""


class FlavorQuotas(ApiModel):
    """Quotas of one flavor."""

    name: ObjectName
    """The ResourceFlavor."""
    resources: Annotated[list[ResourceQuota], Field(min_length=1, max_length=16, json_schema_extra=by_key("name"))]
    """One quota for each of the group's coveredResources."""


class ResourceGroup(ApiModel):
    """Resources that are taken together from one flavor."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                (
                    "self.flavors.all(f, size(f.resources) == size(self.coveredResources)"
                    " && f.resources.all(r, r.name in self.coveredResources))"
                ),
                "every flavor must give a quota for each of coveredResources, and for no other resource",
            )
        )
    )

    covered_resources: Annotated[list[ResourceName], Field(min_length=1, max_length=16, json_schema_extra=SET)]
    """The resources of the group, such as cpu, memory and nvidia.com/gpu."""
    flavors: Annotated[list[FlavorQuotas], Field(min_length=1, max_length=16, json_schema_extra=by_key("name"))]
    """The flavors, in the order in which they are tried."""


class FlavorFungibility(ApiModel):
    """Whether to try the next flavor before borrowing or preempting in this one."""

    when_can_borrow: Literal["MayStopSearch", "TryNextFlavor"] = "MayStopSearch"
    """MayStopSearch: borrow in this flavor; TryNextFlavor: see the next one first."""
    when_can_preempt: Literal["MayStopSearch", "TryNextFlavor"] = "TryNextFlavor"
    """MayStopSearch: preempt in this flavor; TryNextFlavor: see the next one first."""


class BorrowWithinCohort(ApiModel):
    """Preemption in the cohort by a workload that itself borrows."""

    policy: Literal["Never", "LowerPriority"] = "Never"
    """Whose workloads may be preempted."""
    max_priority_threshold: Priority | None = None
    """Only workloads up to this priority are preempted; absent: all."""


class Preemption(ApiModel):
    """Whom the queue's workloads may preempt, and how victims are chosen."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                (
                    "self.reclaimWithinCohort != 'Never' || !has(self.borrowWithinCohort)"
                    " || self.borrowWithinCohort.policy == 'Never'"
                ),
                "borrowWithinCohort.policy must be Never where reclaimWithinCohort is Never",
            ),
            (
                "!has(self.alpha) || (has(self.strategy) && self.strategy == 'IncrementalMinimal')",
                "alpha weighs the score of strategy IncrementalMinimal only",
            ),
        )
    )

    reclaim_within_cohort: Literal["Never", "LowerPriority", "Any"] = "Never"
    """Which workloads of the cohort that borrow may be preempted to get our quota back."""
    borrow_within_cohort: BorrowWithinCohort | None = None
    """Whether a workload that borrows may preempt."""
    within_cluster_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"] = "Never"
    """Which workloads of this queue may be preempted."""
    non_preemptible: Literal["Never", "ByClass", "ByWorkload"] = "ByClass"
    """Whose workloads are nobody's victims within nominal quota: none; those whose priority class says so; also those
    that say so themselves."""
    strategy: Literal["LeastPriority", "IncrementalMinimal"] | None = None
    """Victims: the least important ones, or the smallest set with the best score; absent: as
    `preemptionStrategy` of the settings."""
    alpha: Annotated[float, Field(ge=0, le=1)] | None = None
    """Weight of the victims' priority against the freed topology; absent: as `preemptionAlpha` of the settings."""


class AdmissionCheckStrategyRule(ApiModel):
    """One admission check and the flavors it is needed for."""

    name: ObjectName
    """The admission check."""
    on_flavors: Annotated[list[ObjectName], Field(max_length=64, json_schema_extra=SET)] | None = None
    """The flavors that need it; absent: all."""


class AdmissionChecksStrategy(ApiModel):
    """Checks that must be ready before a workload is admitted."""

    admission_checks: Annotated[
        list[AdmissionCheckStrategyRule], Field(min_length=1, max_length=64, json_schema_extra=by_key("name"))
    ]
    """The checks."""


_ONE_GROUP = "self.all(g, g.{0}.all(x, self.exists_one(h, h.{0}.exists(y, {1}))))"
_GROUP_RULES = cel(
    (_ONE_GROUP.format("flavors", "y.name == x.name"), "a flavor may be part of one resource group only"),
    (_ONE_GROUP.format("coveredResources", "y == x"), "a resource may be part of one resource group only"),
)
_LIMIT_RULE = (
    "has(self.cohortName) || !has(self.resourceGroups)"
    " || self.resourceGroups.all(g, g.flavors.all(f, f.resources.all(r, !has(r.{0}))))"
)


class FairSharing(ApiModel):
    """How much of the shared capacity this queue should get beside the others."""

    weight: Quantity = "1"
    """Share beside the other queues; 0: only what nobody else wants."""


class FairSharingStatus(ApiModel):
    """The queue's present share."""

    weighted_share: Annotated[int, Field(ge=0)]
    """Largest share of a resource used beyond nominal quota, in thousandths, by weight."""


class ClusterQueueSpec(ApiModel):
    """Quota, order and preemption."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (_LIMIT_RULE.format("borrowingLimit"), "borrowingLimit needs a cohortName: there is nobody to borrow from"),
            (_LIMIT_RULE.format("lendingLimit"), "lendingLimit needs a cohortName: there is nobody to lend to"),
        )
    )

    resource_groups: (
        Annotated[
            list[ResourceGroup],
            Field(max_length=8, json_schema_extra={"x-kubernetes-list-type": "atomic", **_GROUP_RULES}),
        ]
        | None
    ) = None
    """Quotas; each resource and each flavor is part of one group."""
    cohort_name: ObjectName | None = None
    """Queues of one cohort lend each other what they do not use."""
    queueing_strategy: Literal["StrictFIFO", "BestEffortFIFO"] = "BestEffortFIFO"
    """Whether one that does not fit holds up those behind it."""
    namespace_selector: LabelSelector | None = None
    """Namespaces that may use the queue; absent: none, empty: all."""
    flavor_fungibility: FlavorFungibility = Field(default_factory=FlavorFungibility, json_schema_extra={"default": {}})
    """Whether the next flavor comes before borrowing or preempting."""
    preemption: Preemption = Field(default_factory=Preemption, json_schema_extra={"default": {}})
    """Whom the queue's workloads may preempt."""
    admission_checks_strategy: AdmissionChecksStrategy | None = None
    """Checks by others before admission."""
    stop_policy: StopPolicy = "None"
    """Hold: admit nothing more; HoldAndDrain: also evict what is admitted."""
    fair_sharing: FairSharing | None = None
    """The queue's share of what is borrowed."""


class ClusterQueueStatus(QueueStatus):
    """What a cluster queue reports."""

    fair_sharing: FairSharingStatus | None = None
    """The present share, where fair sharing is on."""


class ClusterQueue(ApiObject):
    """ClusterQueue gives quota to workloads, in order, and says who may preempt whom."""

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
    """The wish."""
    status: ClusterQueueStatus | None = None
    """What is."""
