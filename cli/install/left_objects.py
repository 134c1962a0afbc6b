"""What an uninstall leaves behind that nothing of Topogate looks after any more, and what a person does about it."""

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from cli.output import counted
from crds.constants import JOB_CONTROLLER, JOB_SET_CONTROLLER, SERVED, Keys
from kube import resources
from kube.client import Client
from kube.errors import NotFound
from kube.objects import Condition, ObjectMeta, controller_of, is_true
from kube.resources import JOB_SETS, JOBS

MOST_LISTED = 20


class _Gate(msgspec.Struct, frozen=True):
    name: str = ""


class _Named(msgspec.Struct, frozen=True):
    metadata: ObjectMeta


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    scheduling_gates: list[_Gate] | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: _PodSpec


class _Template(msgspec.Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _JobSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Of a Job, which has ``template``, or of a JobSet, which has ``replicated_jobs``."""

    template: _Template = _Template()
    replicated_jobs: "tuple[_ReplicatedJob, ...] | None" = None
    suspend: bool | None = None
    managed_by: str | None = None

    @property
    def pod_specs(self) -> list[_PodSpec]:
        """What its pods are made of, for each replicated job of a JobSet."""
        return [self.template.spec, *(one.template.spec.template.spec for one in self.replicated_jobs or ())]


class _JobTemplate(msgspec.Struct, frozen=True):
    spec: _JobSpec = _JobSpec()


class _ReplicatedJob(msgspec.Struct, frozen=True):
    template: _JobTemplate = _JobTemplate()


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...] | None = None


class _Job(msgspec.Struct, frozen=True):
    """A Job or a JobSet."""

    metadata: ObjectMeta
    spec: _JobSpec
    status: _Status = _Status()


class Suspended(msgspec.Struct, frozen=True):
    """A Job or JobSet that waits suspended in a queue; ``gated``: its pods would be created with the gate."""

    kind: str
    namespace: str
    name: str
    gated: bool

    def resume(self, gate: str) -> str:
        """The command that has it run without Topogate."""
        spec: dict[str, object] = {"suspend": False}
        form = "--type merge "
        if self.kind == JOBS.kind and self.gated:
            # The template of a suspended Job may lose a gate. That of a JobSet may too, but JobSet 0.12.0 appends the
            # gates to those of the Jobs that it has made already, so these keep them.
            spec["template"] = {"spec": {"schedulingGates": [{"$patch": "delete", "name": gate}]}}
            form = ""
        patch = shlex.quote(json.dumps({"spec": spec}, separators=(",", ":")))
        return f"kubectl -n {self.namespace} patch {self.kind.lower()} {self.name} {form}-p {patch}"


class Left(msgspec.Struct, frozen=True):
    """What an uninstall leaves behind that a person must know of: names as namespace/name."""

    gate: str
    gated_pods: list[str] = []
    gating_jobs: list[str] = []
    gating_jobsets: list[str] = []
    suspended: list[Suspended] = []


async def left_behind(client: Client, domain: str, *, beside: bool = False) -> Left:
    """Pods that wait behind our gate, jobs that create more of them, and jobs that wait suspended in a queue.

    ``beside``: elsewhere than in served namespaces, gate and queue are Kueue's.
    """
    keys = Keys(domain)
    # A gated pod has no node: the API server sorts out all that run.
    pods = await client.list(resources.PODS, field_selector="spec.nodeName=", type=_Pod)
    jobs = await client.list(JOBS, type=_Job)
    jobsets: list[_Job] = []
    with suppress(NotFound):
        jobsets = await client.list(JOB_SETS, type=_Job)
    if beside:
        served = await client.list(resources.NAMESPACES, label_selector=f"{SERVED}=true", type=_Named)
        names = {one.metadata.name for one in served}
        pods = [pod for pod in pods if pod.metadata.namespace in names]
        jobs, jobsets = ([one for one in found if one.metadata.namespace in names] for found in (jobs, jobsets))
    by_kind: dict[str, list[_Job]] = {
        # Jobs of a JobSet are reported as that: its controller would set back what is patched on them.
        JOBS.kind: [job for job in jobs if _is_unfinished(job) and not _is_of_a_jobset(job)],
        JOB_SETS.kind: [jobset for jobset in jobsets if _is_unfinished(jobset)],
    }
    gating = {
        kind: sorted(_full_name(one.metadata) for one in found if _is_gated(one, keys) and not _is_queued(one, keys))
        for kind, found in by_kind.items()
    }
    return Left(
        gate=keys.gate,
        gated_pods=sorted(_full_name(pod.metadata) for pod in pods if _has_gate(pod.spec, keys.gate)),
        gating_jobs=gating[JOBS.kind],
        gating_jobsets=gating[JOB_SETS.kind],
        suspended=[
            Suspended(kind, one.metadata.namespace, one.metadata.name, _is_gated(one, keys))
            for kind, found in by_kind.items()
            for one in sorted(found, key=lambda one: _full_name(one.metadata))
            if _is_queued(one, keys)
        ],
    )


def lines(left: Left, *, ungated: bool, before: bool = False) -> Iterator[str]:
    """What a person must know and do about what is left, or (``before``) about what will be."""
    if left.gated_pods and ungated and before:
        yield f"{counted(len(left.gated_pods), 'pod')} behind the gate will run anywhere."
    elif left.gated_pods and not ungated:
        pods, removes = counted(len(left.gated_pods), "pod"), "would remove" if before else "removes"
        yield f"{pods} behind the gate, which nothing {removes} any more, so without --ungate they wait for ever:"
        yield from _list_names(left.gated_pods)
        yield "`topogate uninstall --ungate` lets them run anywhere; or delete their jobs."
    if left.suspended:
        jobs, resumes = counted(len(left.suspended), "job"), "would resume" if before else "resumes"
        when = "After the uninstall, resume" if before else "Resume"
        yield f"{jobs} in a queue, suspended, which nothing {resumes} any more. {when} each, to run anywhere, with:"
        yield from _list_names([one.resume(left.gate) for one in left.suspended])
        if any(one.kind == JOB_SETS.kind and one.gated for one in left.suspended):
            yield "A JobSet then creates its pods with the gate: `topogate uninstall --ungate` lets them run."
    for names, kind in ((left.gating_jobs, "Job"), (left.gating_jobsets, "JobSet")):
        if names:
            when = "after the uninstall" if before else "from now on"
            jobs = counted(len(names), f"unfinished {kind}")
            yield f"{jobs} whose pods, if created {when}, would wait for ever at the gate:"
            yield from _list_names(names)
            yield (
                f"Pods that run already go on. Create each {kind} again without a topology request, or let such pods "
                "run with `topogate uninstall --ungate`."
            )


def _list_names(names: Sequence[str]) -> Iterator[str]:
    yield from (f"  {name}" for name in names[:MOST_LISTED])
    if len(names) > MOST_LISTED:
        yield f"  ... and {len(names) - MOST_LISTED} more"


def _is_unfinished(job: _Job) -> bool:
    return not any(is_true(job.status.conditions, type_) for type_ in ("Complete", "Completed", "Failed"))


def _is_of_a_jobset(job: _Job) -> bool:
    owner = controller_of(job.metadata)
    return owner is not None and owner.kind == JOB_SETS.kind


def _is_gated(job: _Job, keys: Keys) -> bool:
    return any(_has_gate(spec, keys.gate) for spec in job.spec.pod_specs)


def _is_queued(job: _Job, keys: Keys) -> bool:
    """Whether a queue holds it: Topogate suspended it when it was created, or when it was evicted."""
    ours = job.spec.managed_by in {None, JOB_CONTROLLER, JOB_SET_CONTROLLER}
    # Where another controller manages the job (spec.managedBy), the suspension is that controller's.
    return ours and job.spec.suspend is True and keys.queue_name in (job.metadata.labels or {})


def _has_gate(spec: _PodSpec, gate: str) -> bool:
    return any(entry.name == gate for entry in spec.scheduling_gates or ())


def _full_name(meta: ObjectMeta) -> str:
    return f"{meta.namespace}/{meta.name}"
