"""Jobs as owners of pods: what the rest of this package needs to know of a job, whatever its kind.

`Owner` is the neutral view; another kind of owner (JobSet, a pod group) gets a module like this one that makes the same
view. Nothing outside of this module reads a Job.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import msgspec

from crds.constants import JOB_INDEX_LABEL, Keys
from crds.names import workload_name
from crds.request import (
    WISHES,
    NumaWish,
    ParsedRequest,
    RequestError,
    parse_job_request,
    parse_job_wish,
    parse_wish,
    pods_in_all,
)
from engine.kubelet.machine import PodShape
from engine.reasons import Reason
from kube.exclusive import Additions
from kube.limits import over_limits
from kube.objects import (
    Condition,
    Container,
    Job,
    Object,
    OwnerReference,
    Pod,
    PodSpec,
    PodTemplate,
    ResourceRequirements,
    condition,
    template_of,
    version_of,
)
from kube.shapes import pod_shape
from ungater.conditions import moment
from ungater.slices import Interval, whole
from ungater.slots import is_gated, number, rank_of

MAIN = "main"
SHOWN = 64  # characters of a value that is refused
REMEMBERED = 16 * 1024  # bytes of the containers of which the shape is remembered
MOST_PODS = (1 << 31) - 1  # of a pod set: what the API takes
JOB, JOB_API = "Job", "batch/v1"
JOB_SET, JOB_SET_API = "JobSet", "jobset.x-k8s.io/v1alpha2"
SUSPENDABLE = frozenset({(JOB, JOB_API), (JOB_SET, JOB_SET_API)})
_Parts = tuple[tuple[Container, ...] | None, tuple[Container, ...] | None, ResourceRequirements | None]
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(_Parts).decode


@dataclass(frozen=True)
class Ranks:
    """How pods tell their rank: the number in ``label``, counted from ``first``.

    Where the pod set is several jobs alike, ``job_label`` tells which of ``jobs``, each with ``size`` ranks.
    """

    label: str
    first: int = 0
    job_label: str = ""
    jobs: int = 0
    size: int = 0

    def of(self, pod: Pod) -> int | None:
        """The rank of a pod; None where it does not tell one."""
        labels = pod.metadata.labels or {}
        rank = number(labels.get(self.label))
        if rank is None or rank < self.first:
            return None
        if not self.job_label:
            return rank - self.first
        job = number(labels.get(self.job_label))
        return None if job is None or rank >= self.size else job * self.size + rank


@dataclass(frozen=True)
class OwnedPodSet:
    """One pod set of an owner: how many slots it needs now, and the template as sent (``raw``) and as read."""

    name: str
    count: int
    full: int  # slots it needs when none of its pods has finished
    template: PodTemplate
    raw: bytes
    done: tuple[Interval, ...] = ()  # ranks that finished for good, as closed intervals in order
    ranks: int | None = None  # ranks run from 0 to this, None where pods have no rank
    least: int = 0  # how few pods are still of use; 0: all or nothing
    request: ParsedRequest | None = None
    wishes: Mapping[str, str] = field(default_factory=dict)  # numa-policy and its like, as annotations
    told_by: Ranks | None = None  # where ranks are told; None: by whichever label is known (`RANK_LABELS`)
    idle: int = 0  # of ``count``: slots that no pod needs any more, of slices that others of their pods are still in
    added: Additions = field(default_factory=Additions)  # what others add to its pods that is not in the template
    shared: str = ""  # of what level all pods of the workload share one domain, whatever was asked for

    @cached_property
    def shape(self) -> PodShape:
        """What kubelets look at in its pods."""
        return shape_of(self.template.spec, {**(self.template.metadata.annotations or {}), **self.wishes})

    @cached_property
    def excess(self) -> RequestError | None:
        """Which limit its template does not keep (`kube.limits`): it would cost all others more than its share."""
        found = next(over_limits(self.template, f"podSets[{self.name}].template."), None)
        if found is None:
            return None
        return RequestError(Reason.TOO_LARGE, found.field, str(found.found), found.message)

    def rank(self, pod: Pod) -> int | None:
        """The rank of one of its pods; None where it has none."""
        return rank_of(pod) if self.told_by is None else self.told_by.of(pod)

    def position(self, rank: int) -> int | None:
        """Place of a rank among those that are still to finish; None where it is done or out of range."""
        if self.ranks is not None and rank >= self.ranks:
            return None
        index = bisect_right(self.done, (rank, rank))
        if any(low <= rank <= high for low, high in self.done[max(0, index - 1) : index + 1]):
            return None
        return rank - sum(high - low + 1 for low, high in self.done[:index])


def is_job(controller: OwnerReference | None) -> bool:
    """Whether this is a Job: one of another API group that is called so is any controller."""
    return controller is not None and (controller.kind, controller.api_version) == (JOB, JOB_API)


def id_of(owner: Object) -> str:
    """The id of a Job or JobSet."""
    return identity(owner.metadata.namespace, owner.metadata.uid)


def _main(_: Pod) -> str:
    return MAIN


def identity(namespace: str, uid: str) -> str:
    """The id of an object that owns pods: who refers to it from another namespace means another one."""
    return f"{namespace}/{uid}"


@dataclass(frozen=True)
class Owner:
    """A job of any kind that asks for a topology, as one moment saw it."""

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str
    created: str
    pod_sets: tuple[OwnedPodSet, ...]
    wrong: RequestError | None  # what of its request cannot be honoured
    gated: bool  # the pod template carries our gate
    suspended: bool = False
    over: str = ""  # why it needs no slots any more: Complete, Failed or Deleted
    queue: str = ""
    priority_class: str = ""
    ready: int = 0
    workload: str = field(default="")
    workload_class: str = ""  # the WorkloadPriorityClass
    most_execution: int | None = None  # seconds
    suspended_at: float | None = (
        None  # since when its controller knows that it is suspended, in seconds since the epoch
    )
    resumed_at: float | None = None  # since when its controller knows that it was resumed
    outcome: str = ""  # what the job's own condition says of its end
    version: int = 0  # its resourceVersion
    priority: int | None = None  # where another than us keeps its queue
    waits_for: str = ""  # why that other one has it suspended
    open_ended: bool = False  # nobody tells how many pods it will have
    members: tuple[tuple[str, str], ...] = ()  # of a group of pods: names and uids of those that own its Workload
    role: Callable[[Pod], str] = _main  # the name of a pod's pod set, where there are several
    known_as: str = ""  # its id, where that is not its namespace and uid alone
    part: str = ""  # what tells several workloads of one object apart: the kind of pods, or the group's index
    in_order: bool = False  # some of its pods are made only once others are ready or done
    foretold: bool = False  # its templates tell what pods will ask for that are to come after those that wait
    kinds: bool = False  # its pods tell of which kind they are: one of a kind that has no pod set belongs to none

    @cached_property
    def id(self) -> str:
        """What the controller knows it by: a uid alone tells nothing, as anybody may write one into a reference."""
        return self.known_as or identity(self.namespace, self.uid)

    @property
    def suspendable(self) -> bool:
        """Whether it is suspended while it waits; else its pods are there, behind the gate."""
        return (self.kind, self.api_version) in SUSPENDABLE

    @property
    def request(self) -> ParsedRequest | RequestError | None:
        """What it asks for: the request of its first pod set that has one, or what is wrong with it."""
        if self.wrong is not None:
            return self.wrong
        excess = next((one.excess for one in self.pod_sets if one.excess is not None), None)
        return excess or next((one.request for one in self.pod_sets if one.request is not None), None)

    @property
    def count(self) -> int:
        """How many slots it needs now, in all."""
        return sum([one.count for one in self.pod_sets])

    @property
    def full(self) -> int:
        """How many it needs when none of its pods has finished."""
        return sum([one.full for one in self.pod_sets])

    @property
    def alike(self) -> bool:
        """Whether all its pods are of one pod set, whatever they tell."""
        return len(self.pod_sets) == 1 and not self.kinds

    def pod_set_of(self, pod: Pod) -> OwnedPodSet | None:
        """The pod set of one of its pods; None where it belongs to none of them."""
        if self.alike:
            return self.pod_sets[0]
        name = self.role(pod)
        return next((one for one in self.pod_sets if one.name == name), None)

    @property
    def key(self) -> str:
        """``namespace/name`` of the owner."""
        return f"{self.namespace}/{self.name}"

    @property
    def workload_key(self) -> str:
        """``namespace/name`` of its Workload, which is the engine's name for the reservation."""
        return f"{self.namespace}/{self.workload}"


def shape_of(spec: PodSpec, annotations: Mapping[str, str], *, qos_class: str = "") -> PodShape:
    """The shape of a pod with the wishes in its annotations; one that cannot be read counts as none here."""
    wishes = tuple([(key, annotations[key]) for key in WISHES if key in annotations])
    parts = _encode((spec.init_containers, spec.containers, spec.resources))
    known = _shape if len(parts) <= REMEMBERED else _shape.__wrapped__  # anybody may make many large ones
    return known(parts, wishes, qos_class)


@lru_cache(maxsize=4096)  # most pods have a twin
def _shape(pod: bytes, wishes: tuple[tuple[str, str], ...], qos_class: str) -> PodShape:
    init_containers, containers, resources = _decode(pod)
    try:
        wish = parse_wish(dict(wishes))
    except RequestError:
        wish = NumaWish()
    return pod_shape(
        PodSpec(init_containers=init_containers, containers=containers, resources=resources),
        qos_class=qos_class,
        wish=wish.policy,
        wish_resources=wish.resources,
        gpu_link=wish.gpu_link,
    )


def owner_of(job: Job, keys: Keys, before: Owner | None = None) -> Owner:
    """The neutral view of a Job. ``before``: the view of an earlier version, so that its template is not read again."""
    raw = bytes(job.spec.template)
    template = before.pod_sets[0].template if before and before.pod_sets[0].raw == raw else template_of(job)
    meta = job.metadata
    wrong: RequestError | None = None
    request: ParsedRequest | None = None
    wishes: Mapping[str, str] = {}
    least, most = 0, None
    try:
        request, wishes = _request(job, template, keys)
        least = _least(job, keys)
        most = positive((meta.labels or {}).get(keys.max_execution), f"metadata.labels[{keys.max_execution}]")
    except RequestError as error:
        wrong = error
    size = request.slices[0].size if request is not None and request.slices else 1
    done, count = tuple(_done(job)), _count(job)
    kept = 0  # slots of ranks that are done, but their slice is not
    if size > 1:
        done, alone = whole(done, size), done
        kept = min(ranks_in(alone) - ranks_in(done), _full(job))
        count = min(_whole_count(job, done, size), _full(job))
    ranks = _ranks(job)
    told_by = Ranks(JOB_INDEX_LABEL) if ranks is not None else None
    pod_set = OwnedPodSet(
        MAIN,
        count,
        _full(job),
        template,
        raw,
        done,
        ranks,
        least,
        request=request,
        wishes=wishes,
        told_by=told_by,
        idle=max(0, count - _count(job)),
    )
    suspended_at, resumed_at = suspension(job.status.conditions)
    return Owner(
        kind=JOB,
        api_version=JOB_API,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        created=meta.creation_timestamp or "",
        pod_sets=(pod_set,),
        wrong=wrong,
        gated=is_gated(template, keys.gate),
        suspended=job.spec.suspend,
        over=_over(job),
        queue=(meta.labels or {}).get(keys.queue_name, ""),
        priority_class=template.spec.priority_class_name,
        ready=(job.status.ready or 0) + kept + _uncounted(job),
        workload=before.workload if before else workload_name(JOB, meta.name, meta.uid),
        workload_class=(meta.labels or {}).get(keys.priority_class, ""),
        most_execution=most,
        suspended_at=suspended_at,
        resumed_at=resumed_at,
        outcome=_outcome(job),
        version=version_of(meta.resource_version),
    )


@dataclass(frozen=True)
class Progress:
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
    return Progress(_count(job), full, tuple(_done(job)), ranks, (job.status.ready or 0) + _uncounted(job))


def suspension(conditions: tuple[Condition, ...] | None) -> tuple[float | None, float | None]:
    """(since when it is suspended, since when it was resumed), as its controller has it; one of them is None."""
    found = condition(conditions, "Suspended")
    at = moment(found.last_transition_time) if found is not None else None
    return (at, None) if found is not None and found.status == "True" else (None, at)


def _least(job: Job, keys: Keys) -> int:
    """How few pods the job may be admitted with; 0 where it says nothing, or not less than it asks for."""
    text = (job.metadata.annotations or {}).get(keys.min_parallelism)
    least = positive(text, f"metadata.annotations[{keys.min_parallelism}]") or 0
    return least if least < _full(job) else 0


def positive(text: str | None, field: str) -> int | None:
    """A whole number above 0; None where nothing is said. Raises RequestError."""
    if text is None:
        return None
    if pods_in_all(text) is None:
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        message = f'{field}: Invalid value: "{shown}": expected a whole number above 0'
        raise RequestError(Reason.INVALID_REQUEST, field, shown, message)
    return int(text)


def too_many(pod_set: OwnedPodSet, field: str) -> RequestError | None:
    """What is wrong where a pod set has more pods than a Workload can say; ``field`` is what says how many."""
    if pod_set.full <= MOST_PODS:
        return None
    text = f"{field}: Too many: pod set {pod_set.name} has {pod_set.full} pods; a workload has at most {MOST_PODS}"
    return RequestError(Reason.INVALID_REQUEST, field, str(pod_set.full), text)


def at_most(pod_set: OwnedPodSet) -> OwnedPodSet:
    """The pod set with as many pods as a Workload can say."""
    return replace(pod_set, count=min(pod_set.count, MOST_PODS), full=min(pod_set.full, MOST_PODS))


def _uncounted(job: Job) -> int:
    """Pods that succeeded and that the Job does not count as ready any more, nor as succeeded yet."""
    uncounted = job.status.uncounted_terminated_pods
    return len(uncounted.succeeded or ()) if uncounted is not None else 0


def _outcome(job: Job) -> str:
    over = next((found for kind in ("Complete", "Failed") if (found := _true(job, kind)) is not None), None)
    return over.message if over is not None else ""


def _true(job: Job, kind: str) -> Condition | None:
    found = condition(job.status.conditions, kind)
    return found if found is not None and found.status == "True" else None


def _request(job: Job, template: PodTemplate, keys: Keys) -> tuple[ParsedRequest | None, Mapping[str, str]]:
    """What the job asks for, and the wishes that go with it. Raises RequestError."""
    own, below = job.metadata.annotations, template.metadata.annotations
    request = parse_job_request(own, below, keys)
    return request, parse_job_wish(own, below) if request is not None else {}


def _over(job: Job) -> str:
    if job.metadata.deletion_timestamp is not None:
        return "Deleted"
    return next((kind for kind in ("Complete", "Failed") if _true(job, kind) is not None), "")


def _count(job: Job) -> int:
    """How many pods the Job controller keeps at once from here on: its own rule (manageJob), without the suspension."""
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    if job.spec.completions is None:
        return min(parallelism, job.status.active) if job.status.succeeded else parallelism
    failed = sum(high - low + 1 for low, high in _intervals(job.status.failed_indexes or ""))
    return max(0, min(parallelism, job.spec.completions - job.status.succeeded - failed))


def _whole_count(job: Job, done: Iterable[Interval], size: int) -> int:
    """The same in whole slices of ``size``: one keeps its slots until all of its ranks are done."""
    if job.spec.completion_mode == "Indexed" and job.spec.completions is not None:
        return -(-(job.spec.completions - ranks_in(done)) // size) * size
    return -(-_count(job) // size) * size


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
    """Closed intervals of the Job status form ``1,3-5,7``."""
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        yield int(low), int(high or low)
