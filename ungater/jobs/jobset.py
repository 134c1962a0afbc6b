"""JobSets as owners: each replicated job is a pod set, and all of them are one workload.

Rules
- A Job that a JobSet controls is part of it, never a workload of its own, and so are its pods: by their controlling Job
  and that Job's controlling JobSet. The label ``jobset.sigs.k8s.io/replicatedjob-name`` tells their pod set.
- The rank of a pod is its index in its Job after those of the Jobs before it (``job-index``, then
  ``job-completion-index``).
- Annotations may stand on the JobSet, which then holds for each replicated job by itself, on the Job template or on
  the pod template. Where one asks for a topology, the others go anywhere.
- A Job that is not there (yet, or while the JobSet restarts) needs all its slots.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from crds.constants import JOB_INDEX_LABEL, JOB_SET_INDEX, JOB_SET_ROLE, Keys
from crds.names import workload_name
from crds.request import JOB_PATH, ParsedRequest, RequestError, parse_places, wishes_of
from engine.model import Policy
from engine.reasons import Reason
from kube.objects import (
    Job,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodTemplate,
    condition,
    controller_of,
    version_of,
)
from kube.parents import JobSet, ReplicatedJob
from kube.pods.templates import template_of
from ungater.jobs import exclusive_topology
from ungater.jobs.exclusive_topology import Alone
from ungater.jobs.job import (
    MOST_POD_SETS,
    at_most,
    longest,
    progress,
    ranks_in,
    readable,
    suspension,
    too_many,
)
from ungater.model.job_view import JOB_SET, JOB_SET_API, JobView, PodSetView, Ranks
from ungater.model.pod_set_slices import Interval, whole_slices
from ungater.model.pod_slots import is_gated, number, role_given

_OVER = {"Completed": "Complete", "Failed": "Failed"}
_Asked = tuple[ParsedRequest | None, Mapping[str, str]]  # a request, and its wishes


def parent_of(job: ObjectMeta) -> OwnerReference | None:
    """The JobSet that a Job says controls it; None where it names none. Anybody may say so (`made_by`)."""
    found = controller_of(job)
    return found if found is not None and (found.kind, found.api_version) == (JOB_SET, JOB_SET_API) else None


def made_by(jobset: JobSet, job: ObjectMeta) -> bool:
    """Whether a JobSet makes Jobs of this name and these labels.

    Source: ``GenJobName`` and ``labelAndAnnotateObject`` of the JobSet controller.
    """
    if (at := _place(job)) is None or job.namespace != jobset.metadata.namespace:
        return False
    role, index = at
    named = job.name == f"{jobset.metadata.name}-{role}-{index}"
    return named and any(one.name == role for one in jobset.spec.replicated_jobs)


def _place(job: ObjectMeta) -> tuple[str, int] | None:
    """(replicated job, number) of one of its Jobs; None where the labels tell none."""
    labels = job.labels or {}
    role, index = labels.get(JOB_SET_ROLE, ""), number(labels.get(JOB_SET_INDEX))
    return (role, index) if role and index is not None else None


def owner_of_jobset(jobset: JobSet, children: Iterable[Job], keys: Keys, before: JobView | None = None) -> JobView:
    """The neutral view of a JobSet and the Jobs that it made. ``before``: the view of an earlier version."""
    meta, labels = jobset.metadata, jobset.metadata.labels or {}
    templates, wrong = _templates(jobset, before)
    alone = [exclusive_topology.of_replicated(jobset, at, template) for at, template in enumerate(templates)]
    asked, error = _requests(jobset, templates, alone, keys)
    wrong = wrong or error
    pod_sets, ready, there = [], 0, dict[str, dict[int, Job]]()  # the Jobs by replicated job and index
    for job in children:
        # A controller reference proves nothing: anybody may write one with the uid of the JobSet.
        stays = job.metadata.deletion_timestamp is None and made_by(jobset, job.metadata)
        if stays and (place := _place(job.metadata)):
            there.setdefault(place[0], {})[place[1]] = job
    for at, replicated in enumerate(jobset.spec.replicated_jobs):
        pod_set, has = _pod_set(replicated, templates[at], asked[at], there.get(replicated.name, {}))
        pod_set = replace(
            pod_set, added=exclusive_topology.to_jobs(jobset, replicated.name, alone[at], replicated.replicas)
        )
        # Replicas times parallelism: the API bounds each of them, and not their product.
        if (many := too_many(pod_set, f"spec.replicatedJobs[{at}].replicas")) is not None:
            wrong, pod_set = wrong or many, at_most(pod_set)
        pod_sets.append(pod_set)
        ready += has
    most, unreadable = longest(labels, keys)
    wrong = wrong or unreadable
    if (count := len(jobset.spec.replicated_jobs)) > MOST_POD_SETS:
        field = "spec.replicatedJobs"
        text = f"{field}: Too many: {count}: a workload has at most {MOST_POD_SETS} pod sets"
        wrong = wrong or RequestError(Reason.INVALID_REQUEST, field, str(count), text)
    suspended_at, resumed_at = suspension(jobset.status.conditions)
    ends = (condition(jobset.status.conditions, kind) for kind in _OVER)
    over = next((one for one in ends if one is not None and one.status == "True"), None)
    return JobView(
        kind=JOB_SET,
        api_version=JOB_SET_API,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        created=meta.creation_timestamp or "",
        pod_sets=tuple(pod_sets),
        wrong=wrong,
        # One template without the gate is enough to let its pods run anywhere beside the others.
        gated=bool(pod_sets) and all(is_gated(one.template, keys.gate) for one in pod_sets),
        suspended=jobset.spec.suspend,
        over="Deleted" if meta.deletion_timestamp is not None else _OVER[over.type] if over is not None else "",
        queue=labels.get(keys.queue_name, ""),
        priority_class=pod_sets[0].template.spec.priority_class_name if pod_sets else "",
        ready=ready,
        workload=before.workload if before else workload_name(JOB_SET, meta.name, meta.uid),
        workload_class=labels.get(keys.priority_class, ""),
        most_execution=most,
        suspended_at=suspended_at,
        resumed_at=resumed_at,
        outcome=over.message if over is not None else "",
        gated_by=(meta.annotations or {}).get(keys.gated_by, ""),
        version=version_of(meta.resource_version),
        role=partial(role_given, keys=keys, roles=frozenset(one.name for one in pod_sets), labelled=_role),
        # With exclusive topology, the other pods of a Job follow its first one to the domain that it has.
        in_order=jobset.spec.in_order or any(one is not None and not one.labelled for one in alone),
    )


def _role(pod: Pod) -> str:
    return (pod.metadata.labels or {}).get(JOB_SET_ROLE, "")


def _templates(jobset: JobSet, before: JobView | None) -> tuple[list[PodTemplate], RequestError | None]:
    """The pod templates of its replicated jobs, and what is wrong with the first that cannot be read."""
    templates, wrong, pod_sets = [], None, before.pod_sets if before and before.wrong is None else ()
    for at, replicated in enumerate(jobset.spec.replicated_jobs):
        spec = replicated.template.spec
        known = next((one for one in pod_sets if one.name == replicated.name), None)
        # The template that was read before is the same object: what is cached by it stays.
        if known is not None and known.raw == spec.template:
            templates.append(known.template)
            continue
        template, error = readable(template_of(Job(spec=spec)), f"spec.replicatedJobs[{at}].template.spec.template")
        wrong = wrong or error
        templates.append(template)
    return templates, wrong


def _requests(
    jobset: JobSet, templates: Sequence[PodTemplate], alone: Sequence[Alone | None], keys: Keys
) -> tuple[list[_Asked], RequestError | None]:
    """What each replicated job asks for, and what is wrong with the first that cannot be honoured."""
    asked: list[_Asked] = []
    wrong: RequestError | None = None
    own = jobset.metadata.annotations or {}
    for at, template in enumerate(templates):
        path = f"spec.replicatedJobs[{at}].template"
        job = jobset.spec.replicated_jobs[at].template.metadata.annotations or {}
        pod = template.metadata.annotations or {}
        below = (job, f"{path}.metadata.annotations"), (pod, f"{path}.spec.template.metadata.annotations")
        try:
            request = parse_places(((own, JOB_PATH), *below), keys)
            asked.append((request, wishes_of(own, {**job, **pod}, asks=request is not None)))
        except RequestError as error:
            wrong = wrong or error
            # The others are read all the same: their pod sets are shown with what they ask for.
            asked.append((None, {}))
    anywhere = any(request is not None for request, _ in asked)
    queued = keys.queue_name in (jobset.metadata.labels or {})
    for at, replicated in enumerate(jobset.spec.replicated_jobs):
        only, replicas = alone[at], replicated.replicas
        if anywhere or (only is not None and replicas > 1 and queued):
            # In a JobSet that asks for a topology, pods that ask for none go anywhere.
            request, wishes = asked[at]
            request = request or ParsedRequest(Policy.UNCONSTRAINED, None, f"metadata.annotations[{keys.required[0]}]")
            try:
                if only is not None:
                    each = progress(Job(spec=replicated.template.spec))
                    request = exclusive_topology.in_slices(request, only, each, replicas)
                asked[at] = request, wishes
            except RequestError as error:
                wrong = wrong or error
    return asked, wrong


def _pod_set(
    replicated: ReplicatedJob,
    template: PodTemplate,
    own: _Asked,
    there: Mapping[int, Job],
) -> tuple[PodSetView, int]:
    """One replicated job as a pod set, and how many of its pods are ready. ``there``: its Jobs by number.

    Those that are not there are not counted one by one: anybody may ask for two thousand million of them.
    """
    missing = progress(Job(spec=replicated.template.spec))
    # In the order of their index: `done` has to be in the order of ranks.
    jobs = {index: progress(there[index]) for index in sorted(there) if index < replicated.replicas}
    request, wishes = own
    full, size = missing.full * replicated.replicas, missing.ranks
    done: tuple[Interval, ...] = ()
    if size is not None:
        done = tuple([(at * size + low, at * size + high) for at, job in jobs.items() for low, high in job.done])
    others = missing.count * (replicated.replicas - len(jobs))
    count, kept = min(sum(job.count for job in jobs.values()) + others, full), 0
    needed = count
    if request is not None and request.slices and (step := request.slices[0].size) > 1:
        ranks = size * replicated.replicas if size is not None else None
        done, alone = whole_slices(done, step, ranks), done
        kept = min(ranks_in(alone) - ranks_in(done), full)
        # A slice keeps its slots until the last of its ranks is done. Where all run at once, what is left is whole
        # slices already, and the last one with as many as it has; else it is rounded up.
        all_run = ranks is not None and ranks <= full
        count = count + kept if all_run else min(-(-(count + kept) // step) * step, full)
    pod_set = PodSetView(
        replicated.name,
        count,
        full,
        template,
        bytes(replicated.template.spec.template),
        done,
        size * replicated.replicas if size is not None else None,
        request=request,
        wishes=wishes,
        told_by=None if size is None else Ranks(JOB_INDEX_LABEL, 0, JOB_SET_INDEX, replicated.replicas, size),
        idle=count - needed,
    )
    return pod_set, sum(job.ready for job in jobs.values()) + kept
