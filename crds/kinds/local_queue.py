"""LocalQueue: where a namespace's jobs are submitted."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from crds.kinds.common import (
    AGE,
    ApiModel,
    ApiObject,
    Column,
    Counts,
    Definition,
    ObjectName,
    QueueStatus,
    StopPolicy,
    cel,
    condition_column,
)
from crds.kinds.quotas import FairSharingWeight


class LocalQueueSpec(ApiModel):
    """Which cluster queue serves the namespace's jobs."""

    cluster_queue: Annotated[
        ObjectName,
        # The quota that its workloads hold is charged to the queue that it leads to.
        Field(json_schema_extra=cel(("self == oldSelf", "clusterQueue cannot be changed: create another local queue"))),
    ]
    """The ClusterQueue that serves this queue."""
    stop_policy: StopPolicy = "None"
    """Whether the queue is stopped. Hold: it admits nothing more, and workloads that are not admitted yet give their
    quota back. HoldAndDrain: admitted workloads are evicted too."""
    fair_sharing: FairSharingWeight | None = None
    """The share of this queue beside the other local queues of its ClusterQueue, over time. It counts where the
    ClusterQueue has an admissionScope."""


class AdmissionFairSharingStatus(ApiModel):
    """What the queue used over time."""

    consumed_resources: Annotated[Counts, Field(max_length=256)]
    """What its workloads used of each resource, over all flavors. What was used one `fairUseHalfLifeSeconds` ago
    counts half."""
    last_update: datetime
    """The time at which this was so. What was used since then follows from what is held."""


class LocalFairSharingStatus(ApiModel):
    """How much the queue used beside the other local queues of its ClusterQueue."""

    admission_fair_sharing_status: AdmissionFairSharingStatus | None = None
    """Its use over time, if the ClusterQueue has an admissionScope. A controller that starts goes on from it."""


class LocalQueueStatus(QueueStatus):
    """What a local queue reports."""

    fair_sharing: LocalFairSharingStatus | None = None
    """Its use beside that of other local queues."""


class LocalQueue(ApiObject):
    """LocalQueue is the queue of a namespace, to which its jobs are submitted. A ClusterQueue serves it."""

    definition = Definition(
        plural="localqueues",
        singular="localqueue",
        short_names=("lq",),
        namespaced=True,
        columns=(
            Column("ClusterQueue", ".spec.clusterQueue", "string"),
            Column("Pending", ".status.pendingWorkloads", "integer"),
            Column("Admitted", ".status.admittedWorkloads", "integer"),
            condition_column("Active", "Active", "status"),
            condition_column("Reason", "Active", "reason"),
            AGE,
            condition_column("Message", "Active", "message", priority=1),
        ),
    )

    spec: LocalQueueSpec
    """The desired state."""
    status: LocalQueueStatus | None = None
    """The observed state."""
