"""Kinds of others that own Jobs or pods, as far as they are read: JobSet and LeaderWorkerSet, and its revisions.

They are served only where somebody installed them. Facts of their APIs: jobset.x-k8s.io/v1alpha2 and
leaderworkerset.x-k8s.io/v1. What was in a LeaderWorkerSet before it was edited is kept by its controller in
ControllerRevisions of apps/v1, whose data may be anything.
"""

from typing import Any

import msgspec

from kube.objects import Condition, JobSpec, Object, ObjectMeta, PodTemplate, Struct

_decode_template = msgspec.json.Decoder(PodTemplate).decode


def _check(template: msgspec.Raw) -> None:
    """Raises msgspec.ValidationError where it is no pod template, which an API server without their schema takes.

    No pods are made of such an object, so it is passed over like any that cannot be read.
    """
    _decode_template(template)


class JobTemplate(Struct, frozen=True):
    """What each job of a replicated job is made from."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()

    def __post_init__(self) -> None:
        _check(self.spec.template)


class ReplicatedJob(Struct, frozen=True):
    """Jobs alike."""

    name: str = ""
    replicas: int = 1
    template: JobTemplate = JobTemplate()
    depends_on: tuple[Any, ...] | None = None


class StartupPolicy(Struct, frozen=True):
    """JobSet startup policy."""

    startup_policy_order: str = ""


class JobSetSpec(Struct, frozen=True):
    """JobSet spec."""

    suspend: bool = False
    managed_by: str = ""
    replicated_jobs: tuple[ReplicatedJob, ...] = ()
    startup_policy: StartupPolicy | None = None

    @property
    def in_order(self) -> bool:
        """Whether some Jobs are made only once those of others are ready or done."""
        policy = self.startup_policy
        return (policy is not None and policy.startup_policy_order == "InOrder") or any(
            one.depends_on for one in self.replicated_jobs
        )


class JobSetStatus(Struct, frozen=True):
    """JobSet status; conditions Completed, Failed and Suspended are read."""

    conditions: tuple[Condition, ...] | None = None


class JobSet(Object, frozen=True):
    """A JobSet."""

    spec: JobSetSpec = JobSetSpec()
    status: JobSetStatus = JobSetStatus()


class SubGroupPolicy(Struct, frozen=True):
    """Parts of a group, each of so many pods."""

    sub_group_size: int = 0


class LeaderWorkerTemplate(Struct, frozen=True):
    """The pods of a group: a leader and ``size`` - 1 workers. A leader without a template of its own is as they are."""

    size: int = 1
    worker_template: msgspec.Raw = msgspec.Raw(b"{}")
    leader_template: msgspec.Raw = msgspec.Raw(b"")
    sub_group_policy: SubGroupPolicy | None = None

    def __post_init__(self) -> None:
        # A Raw is a view into the whole answer: keep these bytes, let the rest go.
        msgspec.structs.force_setattr(self, "worker_template", self.worker_template.copy())
        msgspec.structs.force_setattr(self, "leader_template", self.leader_template.copy())
        _check(self.worker_template)
        if self.has_leader:
            _check(self.leader_template)

    @property
    def has_leader(self) -> bool:
        """Whether the leader has a template of its own."""
        # A client may send null, and a Raw keeps it as it came.
        return bytes(self.leader_template) not in {b"", b"null"}


class LeaderWorkerSetSpec(Struct, frozen=True):
    """LeaderWorkerSet spec."""

    replicas: int = 1
    leader_worker_template: LeaderWorkerTemplate = LeaderWorkerTemplate()
    startup_policy: str = ""  # LeaderReady: workers are made once their leader is ready


class LeaderWorkerSet(Object, frozen=True):
    """A LeaderWorkerSet."""

    spec: LeaderWorkerSetSpec = LeaderWorkerSetSpec()


class ControllerRevision(Object, frozen=True):
    """A ControllerRevision; what is in it is read where it is asked for."""

    data: msgspec.Raw = msgspec.Raw(b"{}")

    def __post_init__(self) -> None:
        # As above: keep these bytes alone.
        msgspec.structs.force_setattr(self, "data", self.data.copy())


class _RevisedSpec(Struct, frozen=True):
    leader_worker_template: LeaderWorkerTemplate | None = None


class _Revised(Struct, frozen=True):
    spec: _RevisedSpec = _RevisedSpec()


_decode_revised = msgspec.json.Decoder(_Revised).decode


def revised(revision: ControllerRevision) -> LeaderWorkerTemplate | None:
    """What a revision keeps of a LeaderWorkerSet; None where it cannot be read."""
    try:
        return _decode_revised(revision.data).spec.leader_worker_template
    # Users of the namespace may write these: deep nesting must not look like an error of ours and ring an alert.
    except (msgspec.MsgspecError, RecursionError):
        return None
