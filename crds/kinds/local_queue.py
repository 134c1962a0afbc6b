"""LocalQueue: where a namespace's jobs are submitted."""

from typing import Annotated

from pydantic import Field

from crds.kinds.common import (
    AGE,
    ApiModel,
    ApiObject,
    Column,
    Definition,
    ObjectName,
    QueueStatus,
    StopPolicy,
    cel,
    condition_column,
)


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
    status: QueueStatus | None = None
    """The observed state."""
