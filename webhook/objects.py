"""The fields of Jobs and Pods that the webhook looks at, and no other: a review of 4 kB decodes in microseconds.

Anything may be absent or null. A wrong type is an error of the object, found while it is decoded.
"""

import msgspec


class _Struct(msgspec.Struct, gc=False, rename="camel"):
    pass


class OwnerReference(_Struct):
    """Who an object belongs to."""

    api_version: str = ""
    kind: str = ""
    controller: bool | None = None


class Metadata(_Struct):
    """Metadata of a Job, a Pod or a pod template."""

    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    namespace: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[OwnerReference] | None = None


class Gate(_Struct):
    """One scheduling gate."""

    name: str = ""


class PodSpec(_Struct):
    """Where a pod is to go, and what holds it."""

    node_name: str | None = None
    scheduler_name: str | None = None
    scheduling_gates: list[Gate] | None = None


class Pod(_Struct):
    """A Pod, or a pod template."""

    metadata: Metadata | None = None
    spec: PodSpec | None = None


class TopologyKey(_Struct):
    """The node label of which all pods of a Job are to have one value."""

    key: str = ""


class SchedulingConstraints(_Struct):
    """Where the pods of a Job go."""

    topology: list[TopologyKey] | None = None


class Scheduling(_Struct):
    """What the PodGroup is to say that is made for a Job."""

    scheduling_constraints: SchedulingConstraints | None = None

    @property
    def level(self) -> str:
        """The level that it requires; "" for none."""
        constraints = self.scheduling_constraints
        found = (constraints.topology or []) if constraints is not None else []
        return found[0].key if found else ""


class JobSpec(_Struct):
    """A Job's spec."""

    suspend: bool | None = None
    parallelism: int | None = None
    completions: int | None = None
    template: Pod | None = None
    managed_by: str | None = None
    scheduling: Scheduling | None = None


class Job(_Struct):
    """A Job."""

    metadata: Metadata | None = None
    spec: JobSpec | None = None


class JobTemplate(_Struct):
    """What each Job of a replicated job is made from."""

    metadata: Metadata | None = None
    spec: JobSpec | None = None


class ReplicatedJob(_Struct):
    """Jobs alike."""

    name: str = ""
    replicas: int | None = None
    template: JobTemplate | None = None


class JobSetSpec(_Struct):
    """A JobSet's spec."""

    suspend: bool | None = None
    managed_by: str | None = None
    replicated_jobs: list[ReplicatedJob] | None = None


class JobSet(_Struct):
    """A JobSet."""

    metadata: Metadata | None = None
    spec: JobSetSpec | None = None


def annotations_of(metadata: Metadata | None) -> dict[str, str]:
    """The annotations; empty where there are none."""
    return (metadata.annotations if metadata is not None else None) or {}


def labels_of(metadata: Metadata | None) -> dict[str, str]:
    """The labels; empty where there are none."""
    return (metadata.labels if metadata is not None else None) or {}


def controller_of(metadata: Metadata | None) -> OwnerReference | None:
    """The controlling owner, if there is one."""
    owners = metadata.owner_references if metadata is not None else None
    return next((owner for owner in owners if owner.controller), None) if owners else None


def is_of_a_job(metadata: Metadata | None) -> bool:
    """Whether a Job controls it: one of Kubernetes' own, not something of the same name."""
    owner = controller_of(metadata)
    return owner is not None and (owner.api_version, owner.kind) == ("batch/v1", "Job")


def is_suspended(job: Job | None) -> bool:
    """Whether the Job makes no pods."""
    return job is not None and job.spec is not None and job.spec.suspend is True
