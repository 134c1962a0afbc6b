"""Cohort: a node in the tree of those that lend each other quota, with quota, limits and a weight of its own."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from crds.kinds.common import (
    AGE,
    ApiModel,
    ApiObject,
    Column,
    Definition,
    ObjectName,
    QueueNumbers,
    cel,
    condition_column,
)
from crds.kinds.quotas import (
    GROUPS,
    CohortQuota,
    FairSharingStatus,
    FairSharingWeight,
    MinimumRunTime,
    ResourceGroup,
    limits_need,
)


class CohortAdmissionScope(ApiModel):
    """How the queues and cohorts directly below this cohort share it."""

    admission_mode: Literal["UsageBasedAdmissionFairSharing", "NoAdmissionFairSharing"]
    """The order of the queues and cohorts that borrow. UsageBasedAdmissionFairSharing: the one that used the least over
    time beyond its own quota, for its weight, comes first, before priority. It needs the setting
    `fairUseHalfLifeSeconds`. NoAdmissionFairSharing: the present shares decide with fair sharing, and otherwise
    priority, then time."""


class CohortSpec(ApiModel):
    """Place in the tree, quota and weight."""

    model_config = ConfigDict(json_schema_extra=limits_need("parentName"))

    parent_name: ObjectName | None = None
    """The cohort above this one. A parent that does not exist counts as a cohort without quota and limits. If absent,
    this cohort is the root of a tree."""
    resource_groups: Annotated[list[ResourceGroup[CohortQuota]], GROUPS] | None = None
    """The cohort's own quotas, which all queues below it may use in addition to what they have, and the limits of
    everything below it together. Each resource and each flavor is part of one group only."""
    fair_sharing: FairSharingWeight | None = None
    """The share of this cohort in what its parent lends."""
    minimum_run_time: MinimumRunTime | None = None
    """How long workloads of the queues below run at least, where no queue or cohort below says it."""
    admission_scope: CohortAdmissionScope | None = None
    """Whether the queues and cohorts directly below this cohort share it by what they used. If absent, they do not."""


class CohortStatus(QueueNumbers):
    """What a cohort reports of everything below it."""

    fair_sharing: FairSharingStatus | None = None
    """The share of the cohort beside the others of its parent, present or over time."""


class Cohort(ApiObject):
    """Cohort joins cluster queues and other cohorts in a tree, which lend each other quota that they do not use."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.spec) || !has(self.spec.parentName) || self.spec.parentName != self.metadata.name",
                "a cohort cannot be its own parent",
            ),
        )
    )
    definition = Definition(
        plural="cohorts",
        singular="cohort",
        short_names=("co",),
        namespaced=False,
        columns=(
            Column("Parent", ".spec.parentName", "string"),
            Column("Weight", ".spec.fairSharing.weight", "string", 1),
            Column("Pending", ".status.pendingWorkloads", "integer"),
            Column("Admitted", ".status.admittedWorkloads", "integer"),
            condition_column("Active", "Active", "status"),
            condition_column("Reason", "Active", "reason"),
            AGE,
            condition_column("Message", "Active", "message", priority=1),
        ),
    )

    spec: CohortSpec = Field(default_factory=CohortSpec)
    """The desired state."""
    status: CohortStatus | None = None
    """The observed state."""
