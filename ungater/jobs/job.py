"""Jobs as owners of pods: what the rest of this package needs to know of a job, whatever its kind.

`JobView` is the neutral view; another kind of owner (JobSet, a pod group) gets a module like this one that makes the
same view. Nothing outside of this module reads a Job.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from crds.constants import JOB_INDEX_LABEL, Keys
from crds.names import workload_name
from crds.request import (
    ParsedRequest,
    RequestError,
    parse_job_request,
    pods_in_all,
    wishes_of,
)
from crds.slices import uneven
from engine.reasons import Reason
from kube.objects import Condition, Job, ObjectMeta, PodTemplate, condition, version_of
from kube.pods.requests import pod_requests
from kube.pods.templates import template_of
from ungater.model.conditions import moment
from ungater.model.job_view import JOB, JOB_API, MAIN, JobView, PodSetView, Ranks
from ungater.model.pod_set_slices import Interval, whole_slices
from ungater.model.pod_slots import is_gated, number

SHOWN = 64  # characters of a value that is refused
MOST_PODS = (1 << 31) - 1  # of a pod set: what the API takes
MOST_POD_SETS = 8  # of a Workload


def owner_of(job: Job, keys: Keys, before: JobView | None = None) -> JobView:
    """The neutral view of a Job. ``before``: the view of an earlier version, so that its template is not read again."""
    raw = bytes(job.spec.template)
    meta = job.metadata
    # Compared by bytes, and read again only where they differ: the status of a Job changes with each of its pods.
    same = before is not None and before.pod_sets[0].raw == raw
    template = before.pod_sets[0].template if before is not None and same else as_kept(template_of(job), meta, keys)
    written, full = (meta.annotations, meta.labels), _full(job)
    # All that the request is read from is in these three: the template, the annotations and the labels.
    first = before.pod_sets[0] if before is not None and same and before.written == written else None
    if before is not None and first is not None and first.full == full:
        asked = _Asked(first.request, first.wishes, first.least, before.most_execution, before.wrong)
    else:
        asked = _read(job, template, keys)
    size = asked.request.slices[0].size if asked.request is not None and asked.request.slices else 1
    done, count, kept, ranks = tuple(_done(job)), _pods_at_once(job), 0, _ranks(job)
    needed = count
    if size > 1:
        done, alone = whole_slices(done, size, ranks), done
        # Slots that are kept of ranks that are done, but their slice is not.
        kept = min(ranks_in(alone) - ranks_in(done), full)
        # In whole slices: one keeps its slots until all of its ranks are done. Where all run at once, what is not done
        # is whole slices, and the last one with as many as it has.
        left = ranks - ranks_in(done) if ranks is not None else count
        count = left if ranks is not None and ranks <= full else min(-(-left // size) * size, full)
    pod_set = PodSetView(
        MAIN,
        count,
        full,
        template,
        raw,
        done,
        ranks,
        request=asked.request,
        wishes=asked.wishes,
        least=asked.least,
        told_by=Ranks(JOB_INDEX_LABEL) if ranks is not None else None,
        idle=max(0, count - needed),
    )
    suspended_at, resumed_at = suspension(job.status.conditions)
    ended = next((found for kind in ("Complete", "Failed") if (found := _true(job, kind)) is not None), None)
    return JobView(
        kind=JOB,
        api_version=JOB_API,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        created=meta.creation_timestamp or "",
        pod_sets=(pod_set,),
        wrong=asked.wrong,
        written=written,
        gated=is_gated(template, keys.gate),
        suspended=job.spec.suspend,
        over="Deleted" if meta.deletion_timestamp is not None else ended.type if ended is not None else "",
        queue=(meta.labels or {}).get(keys.queue_name, ""),
        priority_class=template.spec.priority_class_name,
        # Slots that are kept for done ranks of a slice count as ready:
        # the count that they are compared with has them too.
        ready=(job.status.ready or 0) + kept + _uncounted(job),
        # A name that is known stays: it may be one of an earlier version, or a longer one for two owners of one digest.
        workload=before.workload if before else workload_name(JOB, meta.name, meta.uid),
        workload_class=(meta.labels or {}).get(keys.priority_class, ""),
        most_execution=asked.most_execution,
        suspended_at=suspended_at,
        resumed_at=resumed_at,
        outcome=ended.message if ended is not None else "",
        version=version_of(meta.resource_version),
        scheduling=job.spec.scheduling,
        gated_by=(meta.annotations or {}).get(keys.gated_by, ""),
    )


class _Asked(msgspec.Struct, frozen=True):
    """What annotations and labels of a Job ask for, and what is wrong with them.

    ``least``: how few pods it may be admitted with; 0 where it says nothing, or not less than it asks for.
    """

    request: ParsedRequest | None = None
    wishes: Mapping[str, str] = msgspec.field(default_factory=dict)
    least: int = 0
    most_execution: int | None = None
    wrong: RequestError | None = None


def _read(job: Job, template: PodTemplate, keys: Keys) -> _Asked:
    asked, labels = _Asked(), job.metadata.labels or {}
    own, below = job.metadata.annotations, template.metadata.annotations
    try:
        request = parse_job_request(own, below, keys)
        asked = replace(asked, request=request, wishes=wishes_of(own, below, asks=request is not None))
        text = (own or {}).get(keys.min_parallelism)
        least = positive(text, f"metadata.annotations[{keys.min_parallelism}]") or 0
        asked = replace(asked, least=least if least < _full(job) else 0)
        if request is not None:
            _check_tail(request, _full(job), _ranks(job))
        most = positive(labels.get(keys.max_execution), f"metadata.labels[{keys.max_execution}]")
    except RequestError as error:
        return replace(asked, wrong=error)
    return replace(asked, most_execution=most)


def _check_tail(request: ParsedRequest, full: int, ranks: int | None) -> None:
    """Raises RequestError where the last slice would be a part of one, and of which ranks depends on the moment.

    Of several layers the engine says it.
    """
    if len(request.slices) == 1 and ranks is not None and (why := uneven(request.slices, full, ranks)):
        text = f"spec.parallelism: Invalid value: {full}: {why} ({request.slices_field})"
        raise RequestError(Reason.INVALID_REQUEST, "spec.parallelism", str(full), text)


class Progress(msgspec.Struct, frozen=True):
    """How far a Job is: slots that it needs now and in all, ranks that are done and how many there are, ready pods."""

    count: int
    full: int
    done: tuple[Interval, ...]
    ranks: int | None
    ready: int


def progress(job: Job) -> Progress:
    """How far a Job is that is part of something larger. One that failed as a whole may be made again: it keeps all."""
    full, ranks = _full(job), _ranks(job)
    if _true(job, "Failed") is not None:
        return Progress(full, full, (), ranks, 0)
    return Progress(_pods_at_once(job), full, tuple(_done(job)), ranks, (job.status.ready or 0) + _uncounted(job))


def suspension(conditions: tuple[Condition, ...] | None) -> tuple[float | None, float | None]:
    """(since when it is suspended, since when it was resumed), as its controller has it; one of them is None."""
    found = condition(conditions, "Suspended")
    at = moment(found.last_transition_time) if found is not None else None
    return (at, None) if found is not None and found.status == "True" else (None, at)


def few_kinds(roles: list[str], before: JobView | None) -> tuple[list[str], RequestError | None]:
    """As many pod sets as a Workload has room for, those first that were known, and what is wrong with more.

    Whoever makes pods could name a kind for each of them, and each look goes through the pods of each kind.
    """
    if len(roles) <= MOST_POD_SETS:
        return roles, None
    # A kind that appears late pushes out none that has slots.
    known = {one.name for one in before.pod_sets} if before is not None else set()
    text = f"Too many: {len(roles)} kinds of pods: a workload has at most {MOST_POD_SETS} pod sets"
    kept = sorted(sorted(roles, key=lambda role: role not in known)[:MOST_POD_SETS])
    return kept, RequestError(Reason.INVALID_REQUEST, "metadata.annotations", str(len(roles)), text)


def one_queue(labels: Iterable[Mapping[str, str]], keys: Keys) -> RequestError | None:
    """What is wrong where the pods of one workload, and what they are made from, name several queues."""
    names = sorted({name for each in labels if (name := each.get(keys.queue_name))})
    # Pods without the label contradict nobody.
    if len(names) < 2:
        return None
    field = f"metadata.labels[{keys.queue_name}]"
    text = f"{field}: the pods of one workload name queues {' and '.join(names)}: use one"
    return RequestError(Reason.INVALID_REQUEST, field, names[1], text)


def as_kept(template: PodTemplate, meta: ObjectMeta, keys: Keys) -> PodTemplate:
    """A template of ours of an object that is kept in part is known as such a one: nothing is placed by it."""
    if not meta.cut or not (is_gated(template, keys.gate) or keys.queue_name in (meta.labels or {})):
        return template
    return msgspec.structs.replace(template, metadata=msgspec.structs.replace(template.metadata, cut=True))


def readable(template: PodTemplate, field: str) -> tuple[PodTemplate, RequestError | None]:
    """A template whose amounts can be counted, and what is wrong where they could not: then it has none.

    The API server checks those of its own kinds; those of others are checked as far as their schemas say so.
    """
    try:
        pod_requests(template.spec)
    except ValueError as error:
        wrong = RequestError(Reason.INVALID_REQUEST, field, "", f"{field}: {error}")
    else:
        return template, None
    spec = template.spec
    bare = msgspec.structs.replace(
        spec,
        containers=tuple([msgspec.structs.replace(one, resources=None) for one in spec.containers or ()]),
        # All that amounts are read from: what is refused here must not fail again where they are counted.
        init_containers=None,
        overhead=None,
        resources=None,
    )
    return msgspec.structs.replace(template, spec=bare), wrong


def longest(labels: Mapping[str, str], keys: Keys) -> tuple[int | None, RequestError | None]:
    """How many seconds a workload may run, and what is wrong with what the label says of that."""
    try:
        return positive(labels.get(keys.max_execution), f"metadata.labels[{keys.max_execution}]"), None
    except RequestError as error:
        return None, error


def positive(text: str | None, field: str) -> int | None:
    """A whole number above 0; None where nothing is said. Raises RequestError."""
    if text is None:
        return None
    if pods_in_all(text) is None:
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        message = f'{field}: Invalid value: "{shown}": expected a whole number above 0'
        raise RequestError(Reason.INVALID_REQUEST, field, shown, message)
    return int(text)


def too_many(pod_set: PodSetView, field: str) -> RequestError | None:
    """What is wrong where a pod set has more pods than a Workload can say; ``field`` is what says how many."""
    if pod_set.full <= MOST_PODS:
        return None
    text = f"{field}: Too many: pod set {pod_set.name} has {pod_set.full} pods; a workload has at most {MOST_PODS}"
    return RequestError(Reason.INVALID_REQUEST, field, str(pod_set.full), text)


def at_most(pod_set: PodSetView) -> PodSetView:
    """The pod set with as many pods as a Workload can say."""
    return replace(pod_set, count=min(pod_set.count, MOST_PODS), full=min(pod_set.full, MOST_PODS))


def _uncounted(job: Job) -> int:
    """Pods that succeeded and that the Job does not count as ready any more, nor as succeeded yet."""
    uncounted = job.status.uncounted_terminated_pods
    return len(uncounted.succeeded or ()) if uncounted is not None else 0


def _true(job: Job, kind: str) -> Condition | None:
    found = condition(job.status.conditions, kind)
    return found if found is not None and found.status == "True" else None


def _pods_at_once(job: Job) -> int:
    """How many pods the Job controller keeps at once from here on: its own rule (manageJob), without the suspension."""
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    if job.spec.completions is None:
        # Without completions, the first success means that no pod is added any more (job_controller.go, manageJob).
        return min(parallelism, job.status.active) if job.status.succeeded else parallelism
    # With backoffLimitPerIndex, an index that failed for good gets no further pod.
    failed = sum(high - low + 1 for low, high in _intervals(job.status.failed_indexes or ""))
    return max(0, min(parallelism, job.spec.completions - job.status.succeeded - failed))


def ranks_in(intervals: Iterable[Interval]) -> int:
    """How many ranks there are in closed intervals."""
    return sum(high - low + 1 for low, high in intervals)


def _full(job: Job) -> int:
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    return parallelism if job.spec.completions is None else min(parallelism, job.spec.completions)


def _ranks(job: Job) -> int | None:
    return job.spec.completions if job.spec.completion_mode == "Indexed" else None


def _done(job: Job) -> list[Interval]:
    status = job.status
    return sorted([*_intervals(status.completed_indexes), *_intervals(status.failed_indexes or "")])


def _intervals(text: str) -> Iterator[Interval]:
    """Closed intervals of the Job status form ``1,3-5,7``; what is none of these is passed over."""
    for part in text.split(","):
        low, dash, high = part.partition("-")
        # `number` takes ASCII digits alone: whoever may write a Job's status may write any text here.
        first, last = number(low), number(high if dash else low)
        if first is not None and last is not None:
            yield first, last
