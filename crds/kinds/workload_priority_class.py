"""WorkloadPriorityClass: a priority in the queues, which jobs name by a label."""

from typing import Annotated

from pydantic import Field

from crds.kinds.common import AGE, ApiObject, Column, Definition, Priority


class WorkloadPriorityClass(ApiObject):
    """WorkloadPriorityClass is a priority in the queues. A job names it by a label; its pods keep theirs.

    Jobs with a queue that name none are of the class `default`, if there is one. A Workload takes the value over when
    it is created. A later change counts for Workloads that are created later.
    """

    definition = Definition(
        plural="workloadpriorityclasses",
        singular="workloadpriorityclass",
        short_names=("wpc",),
        namespaced=False,
        columns=(
            Column("Value", ".value", "integer"),
            AGE,
            Column("Description", ".description", "string", priority=1),
        ),
        status=False,
    )

    value: Priority
    """The priority. Workloads with a higher priority come first."""
    purpose: Annotated[Annotated[str, Field(max_length=2048)] | None, Field(alias="description")] = None
    """What the class is for, in words for people."""
