"""Decisions by what they depend on: the pods of one template get one decision, made once.

A review is reduced to the few fields that `mutate` reads (annotations under our two domains, gates, counts, ...). They
are the key under which its decision is kept, and they are also all that `mutate` is then shown: so a decision that is
found cannot differ from one that is made. A change of the flavors starts with nothing.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from crds.constants import GROUP, Keys
from crds.owner_templates import Json
from webhook.checks import Problem
from webhook.handed_down import decide_owner
from webhook.jobsets import mutate_jobset
from webhook.mutate import CREATE, Decision, MutationRules, mutate_job, mutate_pod
from webhook.objects import (
    Gate,
    ReviewedJob,
    ReviewedJobSet,
    ReviewedJobSpec,
    ReviewedMetadata,
    ReviewedOwner,
    ReviewedPod,
    ReviewedPodSpec,
    controller_of,
    is_of_a_job,
    labels_of,
)

# With `MAX_CHARACTERS` this is 2 MB of keys: whoever sends reviews may make every one of them differ.
MAX_ENTRIES = 1024
MAX_CHARACTERS = 2048  # of a key as it is printed, so that all entries together stay small

_OTHER = ("other.invalid/annotation", "")  # stands for all that are not ours: whether there are any shapes the patch

AnnotationsKey = tuple[tuple[str, str], ...] | None  # None: no metadata
SpecKey = tuple[str | None, str | None, tuple[str, ...] | None] | None  # node name, scheduler name, gates
PodKey = tuple[AnnotationsKey, SpecKey, str | None, bool]  # whose it is (see `_owner_key`); whether it is of a group
QueueKey = tuple[str | None, str] | None  # namespace and queue; None: no queue
Counts = tuple[bool | None, int | None, int | None, str | None, PodKey | None]  # with the manager before the template
JobKey = tuple[AnnotationsKey, QueueKey, Counts | None]

T = TypeVar("T")


class DecisionMemo(Generic[T]):
    """Decisions under one set of rules. ``finish`` makes of a decision what shall be kept (its bytes on the wire)."""

    def __init__(self, rules: MutationRules, finish: Callable[[Decision], T]) -> None:
        self.rules = rules
        self._finish = finish
        self._prefixes = (f"{rules.keys.domain}/", f"{GROUP}/")
        self._kept: dict[PodKey | JobKey, T] = {}

    def decide_pod(
        self, pod: ReviewedPod, operation: str = CREATE, old: ReviewedPod | None = None, beyond: Sequence[Problem] = ()
    ) -> T:
        """What `mutate.mutate_pod` decides."""
        queued = self.rules.keys.queue_name in labels_of(pod.metadata)  # its name may be wrong in many ways
        # A decision that is kept depends on its key alone, which has no queue, old object or limits of large ones.
        if operation != CREATE or queued or beyond:
            return self._finish(mutate_pod(pod, self.rules, operation, old, beyond))
        key = self._pod_key(pod)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._keep_decision(key, self._finish(mutate_pod(_pod(key, self.rules.keys.pod_group), self.rules)))
        return kept

    def on_job(
        self, job: ReviewedJob, operation: str = CREATE, old: ReviewedJob | None = None, beyond: Sequence[Problem] = ()
    ) -> T:
        """What `mutate.mutate_job` decides."""
        grouped = job.spec is not None and job.spec.scheduling is not None  # few say anything of their PodGroup
        if operation != CREATE or beyond or grouped:
            return self._finish(mutate_job(job, self.rules, operation, old, beyond))
        key = self._job_key(job)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._keep_decision(key, self._finish(mutate_job(_job(key, self.rules.keys), self.rules)))
        return kept

    def on_jobset(
        self,
        jobset: ReviewedJobSet,
        operation: str = CREATE,
        old: ReviewedJobSet | None = None,
        beyond: Sequence[Problem] = (),
    ) -> T:
        """What `jobsets.mutate_jobset` decides. Few are made, and hardly two alike: nothing is kept."""
        return self._finish(mutate_jobset(jobset, self.rules, operation, old, beyond))

    def on_owner(
        self, owner: Json, operation: str = CREATE, old: Json | None = None, beyond: Sequence[Problem] = ()
    ) -> T:
        """What `handed_down.decide_owner` decides. Few are made, and hardly two alike: nothing is kept."""
        return self._finish(decide_owner(owner, self.rules, operation, old, beyond))

    def _keep_decision(self, key: PodKey | JobKey, made: T) -> T:
        if len(self._kept) >= MAX_ENTRIES:
            # All at once: that is rare, and costs less than to keep an order on each look-up.
            self._kept.clear()
        if len(repr(key)) <= MAX_CHARACTERS:  # a walk over the key takes ten times as long
            self._kept[key] = made
        return made

    def _pod_key(self, pod: ReviewedPod) -> PodKey:
        metadata = pod.metadata
        labels = metadata.labels if metadata is not None else None
        grouped = bool(labels and labels.get(self.rules.keys.pod_group))
        return self._annotations_key(metadata), _spec_key(pod.spec), _owner_key(metadata), grouped

    def _job_key(self, job: ReviewedJob) -> JobKey:
        metadata, spec = job.metadata, job.spec
        labels = metadata.labels if metadata is not None else None
        name = labels.get(self.rules.keys.queue_name) if labels else None
        queue = (metadata.namespace, name) if metadata is not None and name else None
        counts = None
        if spec is not None:
            template = None if spec.template is None else self._pod_key(spec.template)
            counts = (spec.suspend, spec.parallelism, spec.completions, spec.managed_by, template)
        return self._annotations_key(metadata), queue, counts

    def _annotations_key(self, metadata: ReviewedMetadata | None) -> AnnotationsKey:
        if metadata is None:
            return None
        annotations = metadata.annotations
        if not annotations:
            return ()
        prefixes = self._prefixes
        ours = [item for item in annotations.items() if item[0].startswith(prefixes)]
        if len(ours) < len(annotations):
            # Any annotation at all decides whether the patch makes the map or adds to it.
            ours.append(_OTHER)
        return tuple(ours)


def _spec_key(spec: ReviewedPodSpec | None) -> SpecKey:
    if spec is None:
        return None
    gates = spec.scheduling_gates
    return spec.node_name, spec.scheduler_name, None if gates is None else tuple([gate.name for gate in gates])


def _owner_key(metadata: ReviewedMetadata | None) -> str | None:
    """What matters of a pod's controller: None where it has none, "Job", or "" for any other."""
    if metadata is None or not metadata.owner_references or controller_of(metadata) is None:
        return None
    return "Job" if is_of_a_job(metadata) else ""


def _pod(key: PodKey, group_label: str) -> ReviewedPod:
    """The object that a key stands for."""
    annotations, spec, owner, grouped = key
    metadata = None
    if annotations is not None:
        labels = {group_label: "group"} if grouped else None
        owners = None if owner is None else [ReviewedOwner("batch/v1" if owner else "", owner, controller=True)]
        metadata = ReviewedMetadata(dict(annotations), labels, owner_references=owners)
    if spec is None:
        return ReviewedPod(metadata)
    node, scheduler, gates = spec
    return ReviewedPod(
        metadata, ReviewedPodSpec(node, scheduler, None if gates is None else [Gate(name) for name in gates])
    )


def _job(key: JobKey, keys: Keys) -> ReviewedJob:
    annotations, queue, counts = key
    metadata = None
    if annotations is not None:
        namespace, name = queue or (None, None)
        labels = {keys.queue_name: name} if name is not None else None
        metadata = ReviewedMetadata(dict(annotations), labels, namespace)
    if counts is None:
        return ReviewedJob(metadata)
    suspend, parallelism, completions, manager, template = counts
    pod = None if template is None else _pod(template, keys.pod_group)
    return ReviewedJob(metadata, ReviewedJobSpec(suspend, parallelism, completions, pod, manager))
