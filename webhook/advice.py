"""Warnings: what is allowed, but is perhaps not what was meant. kubectl shows each as a line of its own."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache

from crds.constants import EVICT_BY, GROUP, HOSTNAME_LABEL, NUMA_POLICY, NUMA_RESOURCES, SLICE, TOPOLOGY_QOS, Keys
from crds.request import JOB_PATH, TEMPLATE_PATH, ParsedRequest, group_named, level_in
from engine.model import Policy
from webhook.checks import OWN, OWN_REQUESTS, QueueRoute, queue_of, queue_path
from webhook.objects import ReviewedJob, ReviewedPod, annotations_of, controller_of, labels_of

# The API server ignores what goes beyond 4,096 characters from all webhooks: this leaves half of it to others.
MAX_WARNINGS = 8
MAX_LENGTH = 256  # the API server cuts longer ones
DEFAULT_SCHEDULER = "default-scheduler"
_MAX_KEY = 128
_READY_SETTING = "the setting waitForPodsReadyTimeoutSeconds counts for all workloads"

# What Kueue reads under its domain beside the requests we know, or will, and what counts here instead.
_ELSEWHERE: Mapping[str, str] = {
    "pod-index-offset": "",
    # From 0.20 on (PR 14820, gate TASTopologySpreading, alpha).
    "podset-topology-spreading": ": topologySpreadConstraints of the pods are honoured",
    # Per workload (KEP 4803): in no release up to 0.19.2, whose setting is for all workloads as ours is.
    "wait-for-pods-ready": f": {_READY_SETTING}",
    "pods-ready-timeout": f": {_READY_SETTING}",
}


def trim(warnings: Iterator[str]) -> tuple[str, ...]:
    """The first few, each short enough to arrive whole."""
    found = []
    for warning in warnings:
        found.append(warning if len(warning) <= MAX_LENGTH else f"{warning[: MAX_LENGTH - 3]}...")
        if len(found) == MAX_WARNINGS:
            break
    return tuple(found)


def on_queue(
    job: ReviewedJob | ReviewedPod, keys: Keys, route: QueueRoute | None, waits: str, *, known: bool
) -> Iterator[str]:
    """Warnings about the queue: it may be made or opened later, so nothing is refused. ``known``: they were listed.

    ``waits``: who waits how, as "the Job waits, suspended".
    """
    queue, path = queue_of(job, keys), queue_path(keys)
    if not queue or not known:
        return
    if route is None:
        namespace = job.metadata.namespace if job.metadata is not None else None
        where = f"namespace {namespace}" if namespace else "its namespace"
        yield f'{path}: "{queue}": {where} has no such LocalQueue: {waits} until it has'
    elif route.trouble:
        yield f'{path}: "{queue}": {route.trouble}: {waits} until that changes'


def on_other_label(path: str, found: str, now: str, kind: str) -> str:
    """A template names something else than its owner, which counts."""
    return f'{path}: "{found}" is replaced by "{now}", which the {kind} has'


def on_no_template(path: str, kind: str) -> str:
    """What an owner says, which has nothing that pods are made of."""
    return f"{path} has no effect: this {kind} has no pod template"


def on_no_request(path: str, keys: Keys) -> str:
    """What an owner says of pods that are not ours."""
    return (
        f"{path} has no effect on pods without a queue or a topology request: add the label {keys.queue_name}, or an "
        f'annotation such as {keys.unconstrained}: "true"'
    )


def on_gone_copy(path: str, kind: str) -> str:
    """What an owner says no more goes from its templates too."""
    return f"{path} was removed, and its copies in the {kind} with it: set it on the pod template to keep it there"


def on_changed_template(kind: str, *, rolls: bool) -> str:
    """An update of an owner changes what its pods are made of."""
    if rolls:
        return f"the template of the {kind} changes with its labels and annotations: pods that run are replaced"
    return (
        f"the template of the {kind} changes with its labels and annotations: pods that run keep what they have; to "
        f"change them, delete the {kind} and create it again"
    )


def on_unqueued_kind(kind: str, keys: Keys) -> str:
    """A queue on an owner whose controller resumes what a queue would have wait."""
    return (
        f"{queue_path(keys)} has no effect on a {kind}: its controller resumes what a queue suspends, so its pods run "
        "outside of any queue: use a JobSet, or another kind, to queue them"
    )


def on_suspended(path: str, kind: str) -> str:
    """An owner that was written for a queue that resumes it."""
    return (
        f"{path}: a {kind} in a queue is not suspended here, and nobody resumes it: its pods wait behind the gate "
        "instead: remove this field"
    )


# How long AppWrapper 1.2.2 waits for pods to be there, and to be ready, before it starts everything again.
_GRACE = "workload.codeflare.dev.appwrapper/"
_GRACES = (f"{_GRACE}admissionGracePeriodDuration", f"{_GRACE}warmupGracePeriodDuration")


def on_impatience(kind: str, owner: ReviewedPod, keys: Keys) -> Iterator[str]:
    """A queue may take longer than the owner's controller waits."""
    if kind == "AppWrapper" and queue_of(owner, keys):
        for key in _GRACES:
            if key not in annotations_of(owner.metadata):
                yield (
                    f"{JOB_PATH}[{key}]: an AppWrapper starts again what is not ready within minutes: set it to how "
                    "long its pods may wait in the queue (24h at most)"
                )


def on_left_queue(old: ReviewedJob, job: ReviewedJob, keys: Keys, kind: str) -> Iterator[str]:
    """It leaves its queue while it waits: nobody resumes what the queue had suspended."""
    if (queue := queue_of(old, keys)) and not queue_of(job, keys):
        yield (
            f'{queue_path(keys)}: "{queue}" was removed: the {kind} stays suspended, and no queue resumes it: set '
            "spec.suspend to false to have it placed without a queue"
        )


def on_manager(manager: str, kind: str) -> str:
    """It is another controller's."""
    return f'spec.managedBy: "{manager}": the {kind} is that controller\'s: Topogate neither queues nor places it'


def on_lone_total(pod: ReviewedPod, keys: Keys) -> Iterator[str]:
    """How many pods there will be, said by one that belongs to nothing."""
    if keys.pod_group_total not in annotations_of(pod.metadata) or controller_of(pod.metadata) is not None:
        return
    if not group_named(labels_of(pod.metadata), annotations_of(pod.metadata), keys):
        yield (
            f"metadata.annotations[{keys.pod_group_total}] has no effect: a pod without a controller and without "
            f"{keys.pod_group} (label or annotation) is a workload by itself"
        )


def on_lone_wishes(job: ReviewedJob, keys: Keys) -> Iterator[str]:
    """Wishes of a Job that asks for no level: nothing reads them, as its pods are not gated."""
    template = job.spec.template if job.spec is not None else None
    places = ((job.metadata, JOB_PATH), (template.metadata if template is not None else None, TEMPLATE_PATH))
    for metadata, at in places:
        for key in OWN_REQUESTS:
            if key in annotations_of(metadata):
                yield (
                    f"{at}[{key}] has no effect without a topology request: add one, such as "
                    f'{keys.unconstrained}: "true" (anywhere it fits)'
                )


def on_wishes(template: ReviewedPod, job: ReviewedJob | None = None) -> Iterator[str]:
    """Wishes that lack what they go with."""
    places = [annotations_of(template.metadata), annotations_of(job.metadata if job is not None else None)]
    given = {key for place in places for key in place}
    if NUMA_RESOURCES in given and not {NUMA_POLICY, TOPOLOGY_QOS} & given:
        yield f"{NUMA_RESOURCES} has no effect without {NUMA_POLICY}"


def on_taken_away(key: str, value: str, keys: Keys, kind: str, *, suspended: bool) -> str:
    """A request that its author took away stays in the pod template, and counts."""
    remedy = f"delete the {kind} and create it again"
    if suspended:
        remedy = f'set {JOB_PATH}[{keys.unconstrained}] to "true" to have its pods placed anywhere'
    return f'{JOB_PATH}[{key}]: "{value}" still counts, as the pod template of the {kind} has it: {remedy}'


def on_gates_below(template: ReviewedPod, keys: Keys, path: str, kind: str) -> Iterator[str]:
    """Those that are to hold back a Job or JobSet, named where nobody looks for them."""
    if keys.gated_by in annotations_of(template.metadata):
        yield (
            f"{path}metadata.annotations[{keys.gated_by}] has no effect: it is read from the {kind} itself ({JOB_PATH})"
        )


def on_gates_of_owner(keys: Keys, kind: str) -> str:
    """Those that are to hold back an owner whose pods are held back each by itself."""
    return (
        f"{JOB_PATH}[{keys.gated_by}] has no effect on a {kind}: set it on what its pods are made of; each name is "
        "then removed from the pods"
    )


def on_late_request(field: str, kind: str) -> str:
    """A request that comes when pods may be there already."""
    at = field or "the topology request"
    return (
        f"{at} has no effect: the pod template of a {kind} that is not suspended cannot change: delete the {kind} and "
        "create it again"
    )


def on_counts(job: ReviewedJob, request: ParsedRequest) -> Iterator[str]:
    """Warnings about the numbers of a Job's pods and pod sets."""
    if job.spec is None:
        return
    if request.group:
        yield f'podset-group-name: "{request.group}" has no effect: a Job has one pod set'
    parallelism, completions = job.spec.parallelism, job.spec.completions
    at_once = 1 if parallelism is None else parallelism
    if completions is not None and completions < at_once:
        yield (
            f"spec.completions: {completions} is less than parallelism {at_once}: {completions} pods run at once, and "
            "room is taken for so many"
        )
        at_once = completions
    said = {**annotations_of(job.spec.template.metadata if job.spec.template else None), **annotations_of(job.metadata)}
    yield from on_broken_slices(request, at_once, said, JOB_PATH)
    if request.policy is Policy.REQUIRED and request.level == HOSTNAME_LABEL and at_once > 1:
        yield f"{request.field}: all {at_once} pods must fit on a single node, as the level is {HOSTNAME_LABEL}"


def on_broken_slices(request: ParsedRequest, count: int, wishes: Mapping[str, str], at: str) -> Iterator[str]:
    """A workload that may lose its slices one by one, and has one that is not whole; ``count``: its pods."""
    if wishes.get(EVICT_BY) == SLICE and request.slices and count % request.slices[0].size:
        yield (
            f'{at}[{EVICT_BY}]: "{SLICE}" has no effect: {count} pods do not divide into slices of '
            f"{request.slices[0].size}, so they are evicted together"
        )


def on_level(request: ParsedRequest, flavors: Mapping[str, Sequence[str]], *, unchecked: bool) -> Iterator[str]:
    """Warnings about the level: not checked, or known to some flavors only. ``flavors``: those that may be given."""
    if unchecked:
        yield f"{request.field}: the level was not checked, as the ResourceFlavors could not be read yet"
        return
    if request.level is None or request.auto:
        return
    having = [name for name in sorted(flavors) if level_in(request, flavors[name]) is not None]
    if len(having) < len(flavors):
        yield (
            f'{request.field}: "{request.as_written.level}" is a level of ResourceFlavor {", ".join(having)} only, of '
            f"{len(flavors)} with a topology: the pods can go nowhere else"
        )


def on_template(template: ReviewedPod, path: str) -> Iterator[str]:
    """Warnings about a pod (template)."""
    name = template.spec.scheduler_name if template.spec is not None else None
    if name and name != DEFAULT_SCHEDULER:
        yield (
            f'{path}spec.schedulerName: "{name}": Topogate chooses the nodes; it was made for {DEFAULT_SCHEDULER}, and '
            "another scheduler must honour node selectors and scheduling gates"
        )


def on_spelling(annotations: Mapping[str, str], keys: Keys, at: str) -> Iterator[str]:
    """Annotations under our two domains that nobody reads: misspelt, or Kueue's and without effect here."""
    ours = (*keys.requests, keys.workload, keys.pod_set, keys.pod_group)
    for key in annotations:
        prefix, slash, name = key.partition("/")
        # Long keys are passed over: comparing is quadratic in their length, and anybody writes annotations.
        if not slash or prefix not in {keys.domain, GROUP} or key in ours or key in OWN or len(key) > _MAX_KEY:
            continue
        # Under our own domain it is nobody's but ours: there a key like these is a slip.
        if name in _ELSEWHERE and prefix == keys.domain:
            yield f"{at}[{key}] is not supported and has no effect{_ELSEWHERE[name]}"
            continue
        if meant := _closest(key, OWN_REQUESTS if prefix == GROUP != keys.domain else (*keys.requests, *OWN_REQUESTS)):
            yield f"{at}[{key}] is unknown and has no effect: did you mean {meant}?"


@lru_cache(maxsize=256)  # comparing takes a hundred times as long as the rest of a review
def _closest(key: str, known: tuple[str, ...]) -> str | None:
    return next(iter(get_close_matches(key, known, n=1, cutoff=0.8)), None)
