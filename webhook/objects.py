"""The fields of Jobs and Pods that the webhook looks at, and no other: a review of 4 kB decodes in microseconds.

Anything may be absent or null. A wrong type is an error of the object, found while it is decoded.
"""

import msgspec


class _Struct(msgspec.Struct, gc=False, rename="camel"):
    pass


class ReviewedOwner(_Struct):
    """Who an object belongs to."""

    api_version: str = ""
    kind: str = ""
    controller: bool | None = None


class ReviewedMetadata(_Struct):
    """Metadata of a Job, a Pod or a pod template."""

    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    namespace: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[ReviewedOwner] | None = None


class Gate(_Struct):
    """One scheduling gate."""

    name: str = ""


class ReviewedPodSpec(_Struct):
    """Where a pod is to go, and what holds it."""

    node_name: str | None = None
    scheduler_name: str | None = None
    scheduling_gates: list[Gate] | None = None


class ReviewedPod(_Struct):
    """A Pod, or a pod template."""

    metadata: ReviewedMetadata | None = None
    spec: ReviewedPodSpec | None = None


class ReviewedTopologyKey(_Struct):
    """The node label of which all pods of a Job are to have one value."""

    key: str = ""


class SchedulingConstraints(_Struct):
    """Where the pods of a Job go."""

    topology: list[ReviewedTopologyKey] | None = None


class Scheduling(_Struct):
    """What the PodGroup is to say that is made for a Job."""

    scheduling_constraints: SchedulingConstraints | None = None

    @property
    def level(self) -> str:
        """The level that it requires; "" for none."""
        constraints = self.scheduling_constraints
        found = (constraints.topology or []) if constraints is not None else []
        return found[0].key if found else ""


class ReviewedJobSpec(_Struct):
    """A Job's spec."""

    suspend: bool | None = None
    parallelism: int | None = None
    completions: int | None = None
    template: ReviewedPod | None = None
    managed_by: str | None = None
    scheduling: Scheduling | None = None


class ReviewedJob(_Struct):
    """A Job."""

    metadata: ReviewedMetadata | None = None
    spec: ReviewedJobSpec | None = None


class ReviewedJobTemplate(_Struct):
    """What each Job of a replicated job is made from."""

    metadata: ReviewedMetadata | None = None
    spec: ReviewedJobSpec | None = None


class ReviewedReplicatedJob(_Struct):
    """Jobs alike."""

    name: str = ""
    replicas: int | None = None
    template: ReviewedJobTemplate | None = None


class ReviewedJobSetSpec(_Struct):
    """A JobSet's spec."""

    suspend: bool | None = None
    managed_by: str | None = None
    replicated_jobs: list[ReviewedReplicatedJob] | None = None


class ReviewedJobSet(_Struct):
    """A JobSet."""

    metadata: ReviewedMetadata | None = None
    spec: ReviewedJobSetSpec | None = None


def annotations_of(metadata: ReviewedMetadata | None) -> dict[str, str]:
    """The annotations; empty where there are none."""
    return (metadata.annotations if metadata is not None else None) or {}


def labels_of(metadata: ReviewedMetadata | None) -> dict[str, str]:
    """The labels; empty where there are none."""
    return (metadata.labels if metadata is not None else None) or {}


def controller_of(metadata: ReviewedMetadata | None) -> ReviewedOwner | None:
    """The controlling owner, if there is one."""
    owners = metadata.owner_references if metadata is not None else None
    return next((owner for owner in owners if owner.controller), None) if owners else None


def is_of_a_job(metadata: ReviewedMetadata | None) -> bool:
    """Whether a Job controls it: one of Kubernetes' own, not something of the same name."""
    owner = controller_of(metadata)
    return owner is not None and (owner.api_version, owner.kind) == ("batch/v1", "Job")


def is_suspended(job: ReviewedJob | None) -> bool:
    """Whether the Job makes no pods."""
    return job is not None and job.spec is not None and job.spec.suspend is True
