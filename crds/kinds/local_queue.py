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
        Field(json_schema_extra=cel(("self == oldSelf", "clusterQueue cannot be changed: make another local queue"))),
    ]
    """The ClusterQueue."""
    stop_policy: StopPolicy = "None"
    """Hold: admit nothing more; HoldAndDrain: also evict what is admitted."""


class LocalQueue(ApiObject):
    """LocalQueue takes a namespace's jobs and hands them to a cluster queue."""

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
    """The wish."""
    status: QueueStatus | None = None
    """What is."""
