"""What the webhook decides about a JobSet. Plain functions, like `mutate`, whose rules hold for each replicated job.

Rules
- A request or a wish may stand on the JobSet, on a Job template or on its pod template. Where one replicated job asks
  for a topology, or the JobSet has a queue, the pods of all of them are gated: those that ask for no level go anywhere.
- The Jobs that a JobSet makes are born from what was stamped here; the webhook is not called for them.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from crds.constants import Keys
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
    offered,
    route_of,
    stamp,
)
from webhook.objects import Job, JobSet, JobSpec, Pod, ReplicatedJob, annotations_of, is_suspended, labels_of

MOST = 8  # pod sets that a Workload has at most
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


def mutate_jobset(jobset: JobSet, rules: Rules, operation: str = CREATE, old: JobSet | None = None) -> Decision:
    """Decide about a JobSet that is created or updated (``old``: what it was)."""
    if operation == UPDATE and (old is None or not _changed(old, jobset, rules.keys)):
        return UNTOUCHED
    head, before, keys = _head(jobset), _head(old) if old is not None else None, rules.keys
    queue = checks.queue_of(head, keys)
    try:
        parts = [_part(jobset, at, one, keys) for at, one in enumerate(_jobs(jobset))]
        if not queue and all(part.request is None for part in parts):
            return UNTOUCHED
        for part in parts:
            if part.request is not None:
                check_offered(part.request, rules, head, queue)
    except RequestError as error:
        return deny([Problem(INVALID, str(error))])
    problems = [*checks.check_queue(head, before, keys), *_count(parts)]
    for part in parts:
        problems += _problems(part, keys)
    if problems:
        return deny(problems)
    patch = tuple(chain.from_iterable(_stamp(part, keys) for part in parts))
    if operation == CREATE:
        patch = (*_suspend(head, queue), *patch)
    elif patch and not (is_suspended(before) and is_suspended(head)):
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
    return (1 if job.replicas is None else job.replicas) * min(at_once, spec.completions or at_once)


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
            yield from advice.on_level(part.request, offered(rules, head), unchecked=rules.flavors is None)
        yield from advice.on_template(part.template, part.path)


def _changed(old: JobSet, new: JobSet, keys: Keys) -> bool:
    """Whether an update touches requests or queue. Of a JobSet that is being deleted nothing matters any more."""
    if new.metadata is not None and new.metadata.deletion_timestamp:
        return False
    return _asked(old, keys) != _asked(new, keys)


def _asked(jobset: JobSet, keys: Keys) -> list[object]:
    found: list[object] = [labels_of(jobset.metadata).get(keys.queue_name)]
    places = [jobset.metadata]
    for job in _jobs(jobset):
        template = job.template
        pod = template.spec.template if template is not None and template.spec is not None else None
        places += [template.metadata if template is not None else None, pod.metadata if pod is not None else None]
    for place in places:
        annotations = annotations_of(place)
        found.append({key: annotations[key] for key in (*keys.requests, *WISHES) if key in annotations})
    return found
