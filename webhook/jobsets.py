"""What the webhook decides about a JobSet. Plain functions, like `mutate`, whose rules hold for each replicated job.

Rules
- A request or a wish may stand on the JobSet, on a Job template or on its pod template. Where one replicated job asks
  for a topology, or the JobSet has a queue, the pods of all of them are gated: those that ask for no level go anywhere.
- The Jobs that a JobSet makes are born from what was stamped here; the webhook is not called for them. It is for those
  that only say so, and are not stamped: they are reviewed like any Job.
- A queue stands on the JobSet. On a Job template it would be one of each Job that is made, behind the JobSet's back.
- A suspended JobSet may ask for another level: its pod templates follow. None of their annotations may go by that, as
  the Jobs that were made of them keep it.
- A JobSet that another controller manages (``spec.managedBy``) is left to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from msgspec import structs

from crds.constants import JOB_CONTROLLER, JOB_SET_CONTROLLER, Keys
from crds.levels import with_label_keys
from crds.request import JOB_PATH, WISHES, ParsedRequest, RequestError, canonical, parse_places
from crds.slices import Place, uneven
from engine.model import Policy
from webhook import advice, checks
from webhook.admission_gates import check_changed_gates, check_gates
from webhook.changed_mind import stale_copies, still_asked, without_annotations
from webhook.checks import INVALID, Problem
from webhook.mutate import (
    CREATE,
    UNTOUCHED,
    UPDATE,
    Add,
    Decision,
    MutationRules,
    cannot_change,
    check_offered,
    deny,
    has_gate,
    names_for,
    offered,
    other_manager,
    route_of,
    stamp,
)
from webhook.objects import (
    ReviewedJob,
    ReviewedJobSet,
    ReviewedJobSpec,
    ReviewedPod,
    ReviewedReplicatedJob,
    annotations_of,
    is_suspended,
    labels_of,
)

MOST = 8  # pod sets that a Workload has at most
MOST_PODS = 2**31 - 1
_NO_POD = ReviewedPod()


class _Part(NamedTuple):
    """One replicated job: its place, its pod template, what it asks for, and how many pods it has at once.

    ``ranks``: how many it is to complete, None where it does not say.
    """

    at: int
    name: str
    template: ReviewedPod
    request: ParsedRequest | None
    wishes: Mapping[str, str]
    pods: int
    ranks: int | None

    @property
    def path(self) -> str:
        return f"spec.replicatedJobs[{self.at}].template.spec.template."


def mutate_jobset(
    jobset: ReviewedJobSet,
    rules: MutationRules,
    operation: str = CREATE,
    old: ReviewedJobSet | None = None,
    beyond: Sequence[Problem] = (),
) -> Decision:
    """Decide about a JobSet that is created or updated (``old``: what it was).

    ``beyond``: what else is wrong with it, should it be ours.
    """
    if (manager := _manager(jobset)) is not None:
        return Decision(warnings=advice.trim(iter((advice.on_manager(manager, "JobSet"),))))
    if operation != UPDATE:
        return _decide(jobset, rules, operation, old, beyond)
    late = list(check_changed_gates(jobset.metadata, old.metadata if old is not None else None, rules.keys))
    if late or old is None or not _is_relevant_change(old, jobset, rules.keys):
        return deny(late) if late else UNTOUCHED
    copies, head = _stale_copies(old, jobset, rules.keys), _head(jobset)
    if copies and not (is_suspended(_head(old)) and is_suspended(head)):
        first = next(iter(copies.values()))
        return deny([cannot_change(next(iter(first.values())), "JobSet")])
    bare = _drop_annotations(jobset, copies)
    decision = _decide(bare, rules, operation, old, [*beyond, *_check_kept(bare, copies, rules.keys)])
    if decision.denied:
        return decision
    resets = tuple(
        Add(f"{_pointer(at)}/metadata/annotations", annotations_of(_template(job).metadata))
        for at, job in enumerate(_jobs(bare))
        if at in copies
    )
    left_queue = advice.on_left_queue(_head(old), head, rules.keys, "JobSet")
    told = chain(left_queue, dict.fromkeys(_still_asked(old, jobset, rules.keys)), decision.warnings)
    return decision._replace(patch=(*resets, *decision.patch), warnings=advice.trim(told))


def _decide(
    jobset: ReviewedJobSet, rules: MutationRules, operation: str, old: ReviewedJobSet | None, beyond: Sequence[Problem]
) -> Decision:
    head, keys = _head(jobset), rules.keys
    queue = checks.queue_of(head, keys)
    try:
        parts = [_read_part(jobset, at, one, keys) for at, one in enumerate(_jobs(jobset))]
        for part in parts:
            if part.request is not None:
                check_offered(part.request, rules, head, queue)
    except RequestError as error:
        return deny([Problem(INVALID, str(error))])
    other_queues, asks = list(_queues_below(jobset, queue, keys)), any(part.request is not None for part in parts)
    if not (queue or asks or other_queues):
        return UNTOUCHED
    problems = [*checks.check_queue(head, _head(old) if old is not None else None, keys, "JobSet"), *other_queues]
    problems += [*_check_part_count(parts), *_managers(jobset, old), *beyond]
    problems += check_gates(jobset.metadata, keys) if operation == CREATE else ()
    if rules.require_queue:
        problems += checks.check_has_queue(asks, queue, keys)
    for part in parts:
        problems += checks.check_template(part.template, keys, part.path)
        problems += checks.check_pod_set(part.template, keys, part.path, part.name)
        problems += checks.check_own_wishes(part.wishes, part.template, part.path)
        if part.request is not None and (why := uneven(part.request.slices, part.pods, part.ranks)):
            text = f"spec.replicatedJobs[{part.at}]: Invalid value: {part.pods}: {why} ({part.request.slices_field})"
            problems.append(Problem(INVALID, text))
    return deny(problems) if problems else _admit(head, parts, rules, operation, old)


def _admit(
    head: ReviewedJob, parts: list[_Part], rules: MutationRules, operation: str, old: ReviewedJobSet | None
) -> Decision:
    keys = rules.keys
    no_level = ParsedRequest(Policy.UNCONSTRAINED, None, checks.queue_path(keys))
    patch: tuple[Add, ...] = ()
    for part in parts:
        request = part.request or no_level
        patch += tuple(stamp(part.template, request, keys, _pointer(part.at), part.wishes, part.name))
    if operation == CREATE:
        if checks.queue_of(head, keys) and not is_suspended(head):
            patch = (Add("/spec/suspend", value=True), *patch)
    elif patch and not (old is not None and is_suspended(_head(old)) and is_suspended(head)):
        return Decision(warnings=advice.trim(iter((advice.on_late_request("", "JobSet"),))))
    return Decision(patch, advice.trim(_warnings(head, parts, rules)))


def _stale_copies(old: ReviewedJobSet, new: ReviewedJobSet, keys: Keys) -> dict[int, dict[str, str]]:
    """By replicated job, the copies in its pod template that say what was said above it before."""
    found = {}
    # By position: JobSet refuses replicated jobs that come, go or change their order.
    for at, (was, now) in enumerate(zip(_jobs(old), _jobs(new), strict=False)):
        templates = _template(was), _template(now)
        if copies := stale_copies(_above(old, at, was), _above(new, at, now), templates, keys):
            found[at] = copies
    return found


def _drop_annotations(jobset: ReviewedJobSet, copies: Mapping[int, Mapping[str, str]]) -> ReviewedJobSet:
    if not copies or jobset.spec is None:
        return jobset
    jobs = list(_jobs(jobset))
    for at, stale in copies.items():
        job = jobs[at]
        if job.template is not None and job.template.spec is not None:
            spec = structs.replace(job.template.spec, template=without_annotations(_template(job), stale))
            jobs[at] = structs.replace(job, template=structs.replace(job.template, spec=spec))
    return structs.replace(jobset, spec=structs.replace(jobset.spec, replicated_jobs=jobs))


def _check_kept(bare: ReviewedJobSet, copies: Mapping[int, Mapping[str, str]], keys: Keys) -> Iterator[Problem]:
    """Annotations that would be gone from pod templates, which the JobSet's Jobs keep.

    A suspended JobSet has its Jobs already. When it is resumed, JobSet 0.12.0 unites annotations of the templates with
    those of the Jobs (``resumeJob``): it writes other values, and takes none away.
    """
    for at, stale in copies.items():
        try:
            part = _read_part(bare, at, _jobs(bare)[at], keys)
        except RequestError:
            return  # which is refused for that
        again = {*part.wishes, *([canonical(part.request, keys)[0]] if part.request is not None else [])}
        for key in stale:
            if key not in again:
                yield Problem(
                    INVALID,
                    f"{part.path}metadata.annotations[{key}]: Forbidden: the Jobs of a JobSet keep this annotation: "
                    "delete the JobSet and create it again",
                )


def _still_asked(old: ReviewedJobSet, new: ReviewedJobSet, keys: Keys) -> Iterator[str]:
    """Requests that were taken away, and count on."""
    for at, (was, now) in enumerate(zip(_jobs(old), _jobs(new), strict=False)):
        if left := still_asked(_above(old, at, was), _above(new, at, now), _template(now), keys):
            yield advice.on_taken_away(*left, keys, "JobSet", suspended=False)


def _jobs(jobset: ReviewedJobSet) -> list[ReviewedReplicatedJob]:
    return (jobset.spec.replicated_jobs if jobset.spec is not None else None) or []


def _head(jobset: ReviewedJobSet) -> ReviewedJob:
    """What a JobSet has in common with a Job."""
    return ReviewedJob(jobset.metadata, ReviewedJobSpec(jobset.spec.suspend) if jobset.spec is not None else None)


def _read_part(jobset: ReviewedJobSet, at: int, job: ReviewedReplicatedJob, keys: Keys) -> _Part:
    """Raises RequestError."""
    spec, template = job.template.spec if job.template is not None else None, _template(job)
    above = _above(jobset, at, job)
    pods = annotations_of(template.metadata), f"spec.replicatedJobs[{at}].template.spec.template.metadata.annotations"
    request = parse_places([*above, pods], keys)
    handed = {key: text for annotations, _ in above for key, text in annotations.items()}
    wishes = {key: handed[key] for key in (*WISHES, *keys.grouping) if key in handed}
    count, ranks = 0, None
    if spec is not None:
        at_once = 1 if spec.parallelism is None else spec.parallelism
        replicas = 1 if job.replicas is None else job.replicas
        ranks = None if spec.completions is None else replicas * spec.completions
        # Negative numbers are refused by others; here they must not make up for pods of another part.
        count = max(replicas, 0) * max(at_once if spec.completions is None else min(at_once, spec.completions), 0)
    return _Part(at, job.name, template, request, wishes, count, ranks)


def _above(jobset: ReviewedJobSet, at: int, job: ReviewedReplicatedJob) -> tuple[Place, Place]:
    """What stands above the pod template of a replicated job."""
    below = annotations_of(job.template.metadata if job.template is not None else None)
    return (annotations_of(jobset.metadata), JOB_PATH), (below, f"spec.replicatedJobs[{at}].template.{JOB_PATH}")


def _template(job: ReviewedReplicatedJob) -> ReviewedPod:
    spec = job.template.spec if job.template is not None else None
    return (spec.template if spec is not None else None) or _NO_POD


def _check_part_count(parts: list[_Part]) -> Iterator[Problem]:
    # A Workload cannot say more, and the controller could not make one: better told here than never placed.
    if len(parts) > MOST:
        yield Problem(INVALID, f"spec.replicatedJobs: Too many: {len(parts)}: a workload has at most {MOST} pod sets")
    if (total := sum(part.pods for part in parts)) > MOST_PODS:
        counts = ", ".join(f"{part.name} {part.pods}" for part in parts[:MOST])
        text = f"spec.replicatedJobs: Too many pods: {total} at once ({counts}): a workload has at most {MOST_PODS}"
        yield Problem(INVALID, text)


def _managers(jobset: ReviewedJobSet, old: ReviewedJobSet | None) -> Iterator[Problem]:
    """Who manages a JobSet or the Jobs that it makes cannot change behind our back."""
    if old is not None and (before := _manager(old)) is not None:
        yield Problem(
            INVALID,
            f'spec.managedBy: Forbidden: it was "{before}" and cannot change: delete the JobSet and create it again',
        )
    for at, job in enumerate(_jobs(jobset)):
        spec = job.template.spec if job.template is not None else None
        if (manager := other_manager(ReviewedJob(spec=spec), JOB_CONTROLLER)) is not None:
            text = f'Forbidden: "{manager}": nobody would create pods for it here: set spec.managedBy of the JobSet'
            yield Problem(INVALID, f"spec.replicatedJobs[{at}].template.spec.managedBy: {text}")


def _queues_below(jobset: ReviewedJobSet, queue: str, keys: Keys) -> Iterator[Problem]:
    """Queues on Job templates that are not the JobSet's."""
    for at, job in enumerate(_jobs(jobset)):
        name = labels_of(job.template.metadata if job.template is not None else None).get(keys.queue_name)
        if name is not None and name != queue:
            text = f'Forbidden: "{name}": the queue of a JobSet belongs to the JobSet: set {checks.queue_path(keys)}'
            yield Problem(INVALID, f"spec.replicatedJobs[{at}].template.{checks.queue_path(keys)}: {text}")


def _pointer(at: int) -> str:
    return f"/spec/replicatedJobs/{at}/template/spec/template"


def _warnings(head: ReviewedJob, parts: list[_Part], rules: MutationRules) -> Iterator[str]:
    known = rules.flavors is not None
    yield from advice.on_queue(head, rules.keys, route_of(head, rules), "the JobSet waits, suspended,", known=known)
    yield from advice.on_spelling(annotations_of(head.metadata), rules.keys, JOB_PATH)
    for part in parts:
        if part.request is not None:
            yield from advice.on_level(
                with_label_keys(part.request, names_for(rules, head)),
                offered(rules, head),
                unchecked=rules.flavors is None,
            )
            said = {**annotations_of(part.template.metadata), **part.wishes}
            yield from advice.on_broken_slices(part.request, part.pods, said, f"{part.path}metadata.annotations")
        yield from advice.on_template(part.template, part.path)
        yield from advice.on_spelling(annotations_of(part.template.metadata), rules.keys, f"{part.path}{JOB_PATH}")
        yield from advice.on_gates_below(part.template, rules.keys, part.path, "JobSet")


def _is_relevant_change(old: ReviewedJobSet, new: ReviewedJobSet, keys: Keys) -> bool:
    """Whether an update touches requests, queue, gates or manager. Of a JobSet that goes nothing matters any more."""
    if new.metadata is not None and new.metadata.deletion_timestamp:
        return False
    return _relevant_fields(old, keys) != _relevant_fields(new, keys) or _manager(old) != _manager(new)


def _manager(jobset: ReviewedJobSet) -> str | None:
    return other_manager(jobset, JOB_SET_CONTROLLER)


def _relevant_fields(jobset: ReviewedJobSet, keys: Keys) -> list[object]:
    found: list[object] = [labels_of(jobset.metadata).get(keys.queue_name)]
    places = [jobset.metadata]
    for job in _jobs(jobset):
        template = job.template
        pod = template.spec.template if template is not None and template.spec is not None else None
        found.append(has_gate(pod.spec if pod is not None else None, keys))
        places += [template.metadata if template is not None else None, pod.metadata if pod is not None else None]
    for place in places:
        annotations = annotations_of(place)
        found.append({key: annotations[key] for key in (*keys.requests, *WISHES) if key in annotations})
    return found
