"""Whether a JobSet or LeaderWorkerSet has its Jobs, groups or subgroups each in a domain of its own, and what follows.

Their annotations tell; what that adds to pods is `kube.pods.exclusive`. One of several Jobs or subgroups in a pod set
is a slice that is alone in its domain. What cannot be said so is refused: it waits, with the reason.
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from crds.request import ParsedRequest, RequestError
from engine.model import SliceLayer
from engine.reasons import Reason
from kube.objects import PodTemplate
from kube.parents import JobSet, LeaderWorkerSet, LeaderWorkerTemplate
from kube.pods import exclusive
from kube.pods.exclusive import Additions
from ungater.jobs.job import SHOWN, Progress

JOB_SET = "alpha.jobset.sigs.k8s.io/exclusive-topology"
BY_NODE_LABEL = "alpha.jobset.sigs.k8s.io/node-selector"
GROUPS = "leaderworkerset.sigs.k8s.io/exclusive-topology"
SUBGROUPS = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"
LONGEST = 317  # characters of a label key: 253 of a prefix, and 63


NO_LABEL = "no node can have such a label"


class Alone(msgspec.Struct, frozen=True):
    """Each Job of a replicated job has a domain of ``level`` alone; ``labelled``: by labels of nodes that users set."""

    level: str
    field: str
    labelled: bool

    @property
    def known_level(self) -> str:
        """The level; "" where no label can be called so."""
        return self.level if len(self.level) <= LONGEST else ""

    def request_error(self, why: str) -> RequestError:
        """Why it cannot be placed."""
        shown = self.level if len(self.level) <= SHOWN else f"{self.level[:SHOWN]}..."
        text = f'{self.field}: Unsupported value: "{shown}": {why}'
        return RequestError(Reason.UNSUPPORTED_CONSTRAINT, self.field, shown, text)


def of_replicated(jobset: JobSet, at: int, template: PodTemplate) -> Alone | None:
    """What holds for a replicated job: its own annotations before those of the JobSet and of its pods."""
    above = "metadata.annotations"
    places = (
        (jobset.metadata.annotations, above),
        (jobset.spec.replicated_jobs[at].template.metadata.annotations, f"spec.replicatedJobs[{at}].template.{above}"),
        (template.metadata.annotations, f"spec.replicatedJobs[{at}].template.spec.template.{above}"),
    )
    whole, job, pod = ((annotations or {}, path) for annotations, path in places)
    asking = [(found[JOB_SET], path) for found, path in (job, whole, pod) if JOB_SET in found]
    if not asking:
        return None
    by_job = any(JOB_SET in found for found, _ in (whole, job))
    labelled = BY_NODE_LABEL in job[0] or (JOB_SET in whole[0] and BY_NODE_LABEL in whole[0])
    if (labelled and not by_job) or (BY_NODE_LABEL in pod[0] and not labelled):
        return None  # neither the controller nor the webhook does anything then
    return Alone(asking[0][0], f"{asking[0][1]}[{JOB_SET}]", labelled)


def in_slices(request: ParsedRequest, alone: Alone, job: Progress, jobs: int) -> ParsedRequest:
    """The request of a replicated job of several Jobs, each a slice that is alone. Raises RequestError."""
    if not alone.known_level:
        raise alone.request_error(NO_LABEL)
    # JobSet knows the first pod of a Job by its completion index alone.
    if job.ranks is None:
        raise alone.request_error("without completionMode Indexed, JobSet's webhook refuses all of its pods")
    if jobs < 2:
        return request
    if alone.labelled:
        raise alone.request_error(
            f"with {BY_NODE_LABEL}, only a replicated job with 1 replica can be placed, not {jobs}"
        )
    if job.ranks != job.full:
        text = f"with parallelism {job.full} and completions {job.ranks}"
        raise alone.request_error(f"{text}, it is not known which pods of {jobs} Jobs run at once: make the two equal")
    layer = SliceLayer(level=alone.level, size=job.ranks, alone=True)
    slices = sorted((*request.slices, layer), key=lambda one: (-one.size, not one.alone))
    return replace(request, slices=tuple(slices), slices_field=request.slices_field or alone.field)


def to_jobs(jobset: JobSet, role: str, alone: Alone | None, jobs: int) -> Additions:
    """What is added to the pods of a replicated job."""
    namespace, name = jobset.metadata.namespace, jobset.metadata.name
    if alone is not None and alone.labelled:
        return exclusive.of_labelled(namespace, name, role)
    return exclusive.of_jobs(namespace, name, role, level=alone.known_level if alone else "", several=jobs > 1)


class Groups(msgspec.Struct, frozen=True):
    """What holds for the groups of a LeaderWorkerSet; "" where nothing does. ``subgroups``: how many are in a group."""

    level: str
    sub_level: str
    subgroups: int
    wrong: RequestError | None = None

    @property
    def shared(self) -> str:
        """The level of which all pods of a group are in one domain; "" where they need not be."""
        return self.level or (self.sub_level if self.subgroups == 1 else "")


def of_groups(
    whole: LeaderWorkerSet, shape: LeaderWorkerTemplate, leader: Mapping[str, str], worker: Mapping[str, str]
) -> Groups:
    """What holds for groups of this shape. ``leader``, ``worker``: their templates' annotations, if it has none."""
    above = whole.metadata.annotations or {}
    size = max(shape.sub_group_policy.sub_group_size, 0) if shape.sub_group_policy is not None else 0
    level, sub_level = above.get(GROUPS) or leader.get(GROUPS, ""), above.get(SUBGROUPS) or worker.get(SUBGROUPS, "")
    each = Alone(level, _field(GROUPS), labelled=False), Alone(sub_level, _field(SUBGROUPS), labelled=False)
    wrong = next((one.request_error(NO_LABEL) for one in each if one.level and not one.known_level), None)
    if wrong is not None or not size:
        return Groups(each[0].known_level, "", 0, wrong)
    found = -(-shape.size // size)
    if sub_level and found > 1 and (shape.has_leader or shape.size % size):
        text = "pods beside a leader with a template of its own" if shape.has_leader else f"{shape.size} pods"
        wrong = each[1].request_error(
            f"subgroups of {size} of {text} are not placed: only groups whose pods are alike and divide evenly are"
        )
    return Groups(level, sub_level, found, wrong)


def _field(annotation: str) -> str:
    return f"metadata.annotations[{annotation}]"


def in_subgroups(request: ParsedRequest, groups: Groups, size: int) -> ParsedRequest:
    """The request of the pods of a group, each subgroup of them a slice that is alone."""
    if groups.wrong is not None or not groups.sub_level or groups.subgroups < 2:
        return request
    layer = SliceLayer(level=groups.sub_level, size=size // groups.subgroups, alone=True)
    slices = sorted((*request.slices, layer), key=lambda one: (-one.size, not one.alone))
    return replace(request, slices=tuple(slices), slices_field=request.slices_field or _field(SUBGROUPS))


def to_group(namespace: str, key: str, groups: Groups) -> Additions:
    """What is added to the pods of a group. ``key``: the value of its label."""
    sub_level = "" if groups.wrong is not None else groups.sub_level
    return exclusive.of_group(namespace, key, level=groups.level, sub_level=sub_level, subgroups=groups.subgroups)
