"""Quota of flavors and resources: what cluster queues and cohorts both say of it."""

from datetime import datetime
from typing import Annotated, Final, Generic, TypeVar

from pydantic import ConfigDict, Field

from crds.kinds.common import (
    SET,
    ApiModel,
    Counts,
    ObjectName,
    Quantity,
    ResourceName,
    Schema,
    by_key,
    cel,
)

# The value is an integer or a text, and CEL makes a quantity of texts only.
_QUANTITY_ORDER = "quantity(string(self.{0})).compareTo(quantity(string(self.{1}))) <= 0"


class QuotaLimits(ApiModel):
    """Quota of one resource in one flavor."""

    name: ResourceName
    """The resource."""
    nominal_quota: Quantity
    """The quantity that the workloads of the queue may use together."""
    borrowing_limit: Quantity | None = None
    """The quantity that may be borrowed from the cohort in addition. If absent, there is no limit."""
    lending_limit: Quantity | None = None
    """The quantity of unused quota that the cohort may borrow. If absent, all of it."""


class QueueQuota(QuotaLimits):
    """Quota of one resource in one flavor."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"!has(self.lendingLimit) || {_QUANTITY_ORDER.format('lendingLimit', 'nominalQuota')}",
                "lendingLimit must not exceed nominalQuota: no more can be lent than there is",
            )
        )
    )


class CohortQuota(QuotaLimits):
    """Quota of one resource in one flavor."""

    # Without the rule of `QueueQuota`: what a cohort lends is its subtree's, which may be more than its own
    # (Kueue 0.19.2, cohort_webhook.go).
    nominal_quota: Quantity
    """The quantity that the cohort adds to what its queues and cohorts have."""
    borrowing_limit: Quantity | None = None
    """The quantity that everything below the cohort together may borrow from its parent. If absent, there is no
    limit."""
    lending_limit: Quantity | None = None
    """The quantity of unused quota of everything below the cohort, and of its own, that its parent may borrow. If
    absent, all of it."""


AnyQuota = TypeVar("AnyQuota", bound=QuotaLimits)


class FlavorQuotas(ApiModel, Generic[AnyQuota]):
    """Quotas of one flavor."""

    name: ObjectName
    """The ResourceFlavor."""
    resources: Annotated[list[AnyQuota], Field(min_length=1, max_length=16, json_schema_extra=by_key("name"))]
    """The quotas: one for each of the coveredResources of the group."""


class ResourceGroup(ApiModel, Generic[AnyQuota]):
    """Resources that are taken together from one flavor."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                (
                    # As many, and each of them covered: both lists have each name once, so they are the same.
                    "self.flavors.all(f, size(f.resources) == size(self.coveredResources)"
                    " && f.resources.all(r, r.name in self.coveredResources))"
                ),
                "every flavor must give a quota for each of coveredResources, and for no other resource",
            )
        )
    )

    covered_resources: Annotated[list[ResourceName], Field(min_length=1, max_length=16, json_schema_extra=SET)]
    """The resources of the group, such as cpu, memory and nvidia.com/gpu."""
    flavors: Annotated[
        list[FlavorQuotas[AnyQuota]], Field(min_length=1, max_length=16, json_schema_extra=by_key("name"))
    ]
    """The flavors. A ClusterQueue tries them in this order."""


# Each entry of each group meets each entry of each group: the bounds of these lists keep the cost of the rule within
# what the API server allows, and larger ones would have it refuse the whole kind.
_ONE_GROUP = "self.all(g, g.{0}.all(x, self.exists_one(h, h.{0}.exists(y, {1}))))"
_GROUP_RULES = cel(
    (_ONE_GROUP.format("flavors", "y.name == x.name"), "a flavor may be part of one resource group only"),
    (_ONE_GROUP.format("coveredResources", "y == x"), "a resource may be part of one resource group only"),
)
GROUPS: Final = Field(max_length=8, json_schema_extra={"x-kubernetes-list-type": "atomic", **_GROUP_RULES})
"""What holds for the list of the resource groups of one object."""


def limits_need(parent: str) -> Schema:
    """Mark of a spec whose limits are refused where this field, its parent in the tree of cohorts, is absent."""
    rule = (
        f"has(self.{parent}) || !has(self.resourceGroups)"
        " || self.resourceGroups.all(g, g.flavors.all(f, f.resources.all(r, !has(r.{0}))))"
    )
    return cel(
        (rule.format("borrowingLimit"), f"borrowingLimit needs a {parent}: there is nobody to borrow from"),
        (rule.format("lendingLimit"), f"lendingLimit needs a {parent}: there is nobody to lend to"),
    )


RunSeconds = Annotated[int, Field(ge=0, le=31_536_000)]
"""How long a workload runs at least: up to a year."""


class MinimumRunTime(ApiModel):
    """How long admitted workloads run before they are evicted to make room for others.

    The time counts from the admission or, if pods take longer to become ready, from when they are, but for twice as
    long at most. What is absent is looked for in the cohort above, and so on, and then in the settings.
    """

    within_cluster_queue_seconds: RunSeconds | None = None
    """The minimum run time before workloads of the same ClusterQueue may have it evicted."""
    reclaim_seconds: RunSeconds | None = None
    """The minimum run time before workloads of other queues may have it evicted. Between two queues, what counts is
    said by the queue or cohort of the victim that is just below the lowest cohort above both, or further up."""
    fair_sharing_seconds: RunSeconds | None = None
    """As reclaimSeconds, for evictions that shares decide on. If absent, reclaimSeconds counts."""


class FairSharingWeight(ApiModel):
    """How much of the shared capacity this queue or cohort should get beside the others."""

    weight: Quantity = "1"
    """The share relative to the other queues and cohorts of the same parent. 0: it only gets what no other wants."""


class AdmissionFairSharingStatus(ApiModel):
    """What was used over time."""

    consumed_resources: Annotated[Counts, Field(max_length=256)]
    """What was used of each resource, over all flavors: by the workloads of a LocalQueue, or by a ClusterQueue or
    Cohort beyond its own quota. What was used one `fairUseHalfLifeSeconds` ago counts half."""
    last_update: datetime
    """The time at which this was so. What was used since then follows from what is held."""


class FairSharingStatus(ApiModel):
    """The share beside others of the same parent."""

    weighted_share: Annotated[int, Field(ge=0)] | None = None
    """The largest share of any resource that is used beyond nominal quota, in thousandths, divided by the weight; if
    fair sharing is enabled."""
    admission_fair_sharing_status: AdmissionFairSharingStatus | None = None
    """Use over time, if the parent has an admissionScope. A controller that starts goes on from it."""
