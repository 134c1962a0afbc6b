"""What the webhook decides about a JobSet. Plain functions, like `mutate`, whose rules hold for each replicated job.

Rules
- A request or a wish may stand on the JobSet, on a Job template or on its pod template. Where one replicated job asks
  for a topology, or the JobSet has a queue, the pods of all of them are gated: those that ask for no level go anywhere.
- The Jobs that a JobSet makes are born from what was stamped here; the webhook is not called for them. It is for those
  that only say so, and are not stamped: they are reviewed like any Job.
- A queue stands on the JobSet. On a Job template it would be one of each Job that is made, behind the JobSet's back.
- A JobSet that another controller manages (``spec.managedBy``) is left to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from crds.constants import JOB_CONTROLLER, JOB_SET_CONTROLLER, Keys
from crds.levels import named
from crds.request import JOB_PATH, WISHES, ParsedRequest, RequestError, parse_places
from crds.slices import uneven
from engine.model import Policy
from webhook import advice, checks
from webhook.checks import INVALID, Problem
from webhook.mutate import (
    CREATE,
    UNTOUCHED,
    UPDATE,
    Add,
    Decision,
    Rules,
    check_offered,
    deny,
    has_gate,
    names_for,
    offered,
    other_manager,
    route_of,
    stamp,
)
from webhook.objects import Job, JobSet, JobSpec, Pod, ReplicatedJob, annotations_of, is_suspended, labels_of

MOST = 8  # pod sets that a Workload has at most
MOST_PODS = 2**31 - 1
_NO_POD = Pod()


class _Part(NamedTuple):
    """One replicated job: its place, its pod template, what it asks for, and how many pods it has at once."""

    at: int
    name: str
    template: Pod
    request: ParsedRequest | None
    wishes: Mapping[str, str]
    pods: int

    @property
    def path(self) -> str:
        return f"spec.replicatedJobs[{self.at}].template.spec.template."


def mutate_jobset(
    jobset: JobSet, rules: Rules, operation: str = CREATE, old: JobSet | None = None, beyond: Sequence[Problem] = ()
) -> Decision:
    """Decide about a JobSet that is created or updated (``old``: what it was).

    ``beyond``: what else is wrong with it, should it be ours.
    """
    if (manager := _manager(jobset)) is not None:
        return Decision(warnings=advice.trim(iter((advice.on_manager(manager, "JobSet"),))))
    if operation == UPDATE and (old is None or not _changed(old, jobset, rules.keys)):
        return UNTOUCHED
    head, keys = _head(jobset), rules.keys
    queue = checks.queue_of(head, keys)
    try:
        parts = [_part(jobset, at, one, keys) for at, one in enumerate(_jobs(jobset))]
        for part in parts:
            if part.request is not None:
                check_offered(part.request, rules, head, queue)
    except RequestError as error:
        return deny([Problem(INVALID, str(error))])
    other_queues, asks = list(_queues_below(jobset, queue, keys)), any(part.request is not None for part in parts)
    if not (queue or asks or other_queues):
        return UNTOUCHED
    problems = [*checks.check_queue(head, _head(old) if old is not None else None, keys), *other_queues]
    problems += [*_count(parts), *_managers(jobset, old), *beyond]
    if rules.require_queue:
        problems += checks.check_has_queue(asks, queue, keys)
    for part in parts:
        problems += _problems(part, keys)
    return deny(problems) if problems else _admit(head, parts, rules, operation, old)


def _admit(head: Job, parts: list[_Part], rules: Rules, operation: str, old: JobSet | None) -> Decision:
    patch = tuple(chain.from_iterable(_stamp(part, rules.keys) for part in parts))
    if operation == CREATE:
        patch = (*_suspend(head, checks.queue_of(head, rules.keys)), *patch)
    elif patch and not (old is not None and is_suspended(_head(old)) and is_suspended(head)):
        late = "the topology request has no effect: the pod templates of a running JobSet cannot change; make it anew"
        return Decision(warnings=advice.trim(iter((late,))))
    return Decision(patch, advice.trim(_warnings(head, parts, rules)))


def _jobs(jobset: JobSet) -> list[ReplicatedJob]:
    return (jobset.spec.replicated_jobs if jobset.spec is not None else None) or []


def _head(jobset: JobSet) -> Job:
    """What a JobSet has in common with a Job."""
    return Job(jobset.metadata, JobSpec(jobset.spec.suspend) if jobset.spec is not None else None)


def _part(jobset: JobSet, at: int, job: ReplicatedJob, keys: Keys) -> _Part:
    """Raises RequestError."""
    spec = job.template.spec if job.template is not None else None
    template = (spec.template if spec is not None else None) or _NO_POD
    path = f"spec.replicatedJobs[{at}].template"
    own = annotations_of(jobset.metadata)
    below = annotations_of(job.template.metadata if job.template is not None else None)
    pods = annotations_of(template.metadata)
    request = parse_places(
        [
            (own, JOB_PATH),
            (below, f"{path}.metadata.annotations"),
            (pods, f"{path}.spec.template.metadata.annotations"),
        ],
        keys,
    )
    handed = {**own, **below}
    wishes = {key: handed[key] for key in (*WISHES, *keys.grouping) if key in handed}
    return _Part(at, job.name, template, request, wishes, _pods(job, spec))


def _pods(job: ReplicatedJob, spec: JobSpec | None) -> int:
    if spec is None:
        return 0
    at_once = 1 if spec.parallelism is None else spec.parallelism
    replicas = 1 if job.replicas is None else job.replicas
    return max(replicas, 0) * max(at_once if spec.completions is None else min(at_once, spec.completions), 0)


def _problems(part: _Part, keys: Keys) -> Iterator[Problem]:
    yield from checks.check_template(part.template, keys, part.path)
    yield from checks.check_pod_set(part.template, keys, part.path, part.name)
    yield from checks.check_own_wishes(part.wishes, part.template, part.path)
    if part.request is not None and (why := uneven(part.request.slices, part.pods)):
        text = f"spec.replicatedJobs[{part.at}]: Invalid value: {part.pods}: {why} ({part.request.slices_field})"
        yield Problem(INVALID, text)


def _count(parts: list[_Part]) -> Iterator[Problem]:
    if len(parts) > MOST:
        yield Problem(INVALID, f"spec.replicatedJobs: Too many: {len(parts)}: a workload has at most {MOST} pod sets")
    if (total := sum(part.pods for part in parts)) > MOST_PODS:
        counts = ", ".join(f"{part.name} {part.pods}" for part in parts[:MOST])
        text = f"spec.replicatedJobs: Too many pods: {total} at once ({counts}): a workload has at most {MOST_PODS}"
        yield Problem(INVALID, text)


def _managers(jobset: JobSet, old: JobSet | None) -> Iterator[Problem]:
    """Who manages a JobSet or the Jobs that it makes cannot change behind our back."""
    if old is not None and (before := _manager(old)) is not None:
        yield Problem(INVALID, f'spec.managedBy: Forbidden: it was "{before}", and cannot change: make the JobSet anew')
    for at, job in enumerate(_jobs(jobset)):
        spec = job.template.spec if job.template is not None else None
        if (manager := other_manager(Job(spec=spec), JOB_CONTROLLER)) is not None:
            text = (
                f'Forbidden: "{manager}": nobody would make pods for it here; spec.managedBy of the JobSet is the place'
            )
            yield Problem(INVALID, f"spec.replicatedJobs[{at}].template.spec.managedBy: {text}")


def _queues_below(jobset: JobSet, queue: str, keys: Keys) -> Iterator[Problem]:
    """Queues on Job templates that are not the JobSet's."""
    for at, job in enumerate(_jobs(jobset)):
        name = labels_of(job.template.metadata if job.template is not None else None).get(keys.queue_name)
        if name is not None and name != queue:
            text = f'Forbidden: "{name}": the queue of a JobSet stands on the JobSet: set {checks.queue_path(keys)}'
            yield Problem(INVALID, f"spec.replicatedJobs[{at}].template.{checks.queue_path(keys)}: {text}")


def _stamp(part: _Part, keys: Keys) -> Iterator[Add]:
    request = part.request or ParsedRequest(Policy.UNCONSTRAINED, None, checks.queue_path(keys))
    at = f"/spec/replicatedJobs/{part.at}/template/spec/template"
    return stamp(part.template, request, keys, at, part.wishes, part.name)


def _suspend(head: Job, queue: str) -> Iterator[Add]:
    if queue and not is_suspended(head):
        yield Add("/spec/suspend", value=True)


def _warnings(head: Job, parts: list[_Part], rules: Rules) -> Iterator[str]:
    yield from advice.on_queue(head, rules.keys, route_of(head, rules), known=rules.flavors is not None)
    for part in parts:
        if part.request is not None:
            yield from advice.on_level(
                named(part.request, names_for(rules, head)), offered(rules, head), unchecked=rules.flavors is None
            )
        yield from advice.on_template(part.template, part.path)


def _changed(old: JobSet, new: JobSet, keys: Keys) -> bool:
    """Whether an update touches requests, queue, gates or manager. Of a JobSet that goes nothing matters any more."""
    if new.metadata is not None and new.metadata.deletion_timestamp:
        return False
    return _asked(old, keys) != _asked(new, keys) or _manager(old) != _manager(new)


def _manager(jobset: JobSet) -> str | None:
    return other_manager(jobset, JOB_SET_CONTROLLER)


def _asked(jobset: JobSet, keys: Keys) -> list[object]:
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
