"""What is refused: rules on one object each, as problems with a field path, the bad value and what is allowed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from crds import constants
from crds.constants import Keys
from crds.names import is_object_name
from crds.request import (
    JOB_PATH,
    WISHES,
    ParsedRequest,
    bad_wishes,
    contradicting_wishes,
    is_group_name,
    pods_in_all,
)
from crds.slices import uneven
from webhook.objects import ReviewedJob, ReviewedPod, annotations_of, is_suspended, labels_of

INVALID, FORBIDDEN = 422, 403

_WRITTEN = (constants.NUMA_PLACEMENT_PREDICTED, constants.NUMA_PLACEMENT_OBSERVED)
OWN_REQUESTS = WISHES
OWN = (*OWN_REQUESTS, *_WRITTEN)
_GROUP_NAME = "expected the name of a group: lower case letters, digits, - and ., 253 characters at most"
MOST_SHOWN = 253  # characters of a name that is refused
_QUEUE_NAME = "expected the name of a LocalQueue: lower case letters, digits, - and ."


class QueueRoute(NamedTuple):
    """Where a local queue leads. ``trouble``: why nothing is admitted there now, "" where something is."""

    cluster_queue: str
    flavors: tuple[str, ...] | None  # None: there is no such cluster queue
    trouble: str = ""


Flavors = Mapping[str, Sequence[str]]  # flavor name -> its levels, widest first; those without a topology are absent
Routes = Mapping[tuple[str, str], QueueRoute]  # (namespace, name of the local queue)


class Problem(msgspec.Struct, frozen=True):
    """Why an object is refused: HTTP-like code (422 or 403) and a text a person can act on."""

    code: int
    message: str


def check_template(template: ReviewedPod, keys: Keys, path: str) -> Iterator[Problem]:
    """All that is wrong with a pod (template) that carries a request.

    ``path`` is its place in the object: ``""``, or ``spec.template.``. `crds.request` judges the topology request.
    """
    if template.spec is None:
        yield Problem(INVALID, f"{path}spec: Required value: a pod needs a spec")
        return
    if template.spec.node_name:
        yield Problem(
            FORBIDDEN,
            f'{path}spec.nodeName: Forbidden: "{template.spec.node_name}": it bypasses the scheduler, and so the '
            "topology request: remove one of the two",
        )
    annotations = annotations_of(template.metadata)
    at = f"{path}metadata.annotations"
    # A pod that names its workload itself would claim a slot of it.
    for key in (keys.workload, *_WRITTEN):
        if key in annotations:
            yield Problem(FORBIDDEN, f"{at}[{key}]: Forbidden: written by Topogate alone; remove it")
    yield from (Problem(INVALID, bad.message) for bad in bad_wishes(annotations, at))


def check_pod_set(template: ReviewedPod, keys: Keys, path: str, allowed: str) -> Iterator[Problem]:
    """A job's only pod set has a fixed name: a pod that names another would wait for ever."""
    name = annotations_of(template.metadata).get(keys.pod_set, allowed)
    if name != allowed:
        at = f"{path}metadata.annotations[{keys.pod_set}]"
        yield Problem(INVALID, f'{at}: Unsupported value: "{name}": supported values: "{allowed}"')


def check_group(pod: ReviewedPod, keys: Keys) -> Iterator[Problem]:
    """What is wrong with a pod that no Job owns: in its queue, its group, or its number of pods."""
    queue = labels_of(pod.metadata).get(keys.queue_name)
    if queue is not None:
        yield from check_queue_name(queue, keys)
    group = annotations_of(pod.metadata).get(keys.pod_group)
    if group and not is_group_name(group):
        at, shown = f"{JOB_PATH}[{keys.pod_group}]", group[:MOST_SHOWN]
        yield Problem(INVALID, f'{at}: Invalid value: "{shown}": {_GROUP_NAME}')
    total = annotations_of(pod.metadata).get(keys.pod_group_total)
    if total is not None and pods_in_all(total) is None:
        at = f"metadata.annotations[{keys.pod_group_total}]"
        yield Problem(INVALID, f'{at}: Invalid value: "{total}": expected a whole number above 0')


def check_has_queue(asks: bool, queue: str | None, keys: Keys) -> Iterator[Problem]:
    """Where administrators have made queues compulsory, who asks for a topology names one."""
    if asks and not queue:
        yield Problem(
            FORBIDDEN,
            f"{queue_path(keys)}: Required value: this cluster places nothing without a queue (setting requireQueue): "
            "add this label with the name of a LocalQueue of your namespace (kubectl get localqueues)",
        )


def check_wishes(job: ReviewedJob, template: ReviewedPod) -> Iterator[Problem]:
    """What is wrong with the wishes on a Job itself: they go into its template, and may not contradict that."""
    own, below = annotations_of(job.metadata), annotations_of(template.metadata)
    for bad in (*bad_wishes(own, JOB_PATH), *contradicting_wishes(own, below)):
        yield Problem(INVALID, bad.message)


def check_own_wishes(wishes: Mapping[str, str], template: ReviewedPod, path: str) -> Iterator[Problem]:
    """What is wrong with wishes that stand above a pod template: they go into it, and may not contradict it."""
    below = annotations_of(template.metadata)
    for bad in (*bad_wishes(wishes, JOB_PATH), *contradicting_wishes(wishes, below)):
        yield Problem(INVALID, f"{path}{bad.message}")


def check_slices(job: ReviewedJob, request: ParsedRequest) -> Iterator[Problem]:
    """The size of the slices divides the number of pods that run at once, where it has to."""
    if job.spec is None:
        return
    parallelism, completions = job.spec.parallelism, job.spec.completions
    at_once = 1 if parallelism is None else parallelism
    name = "parallelism" if completions is None or at_once <= completions else "completions"
    # A Job never runs more pods at once than it is to complete.
    count = at_once if completions is None else min(at_once, completions)
    if why := uneven(request.slices, count, completions):
        text = f"spec.{name}: Invalid value: {count}: {why} ({request.slices_field})"
        yield Problem(INVALID, text)


def queue_of(job: ReviewedJob | ReviewedPod | None, keys: Keys) -> str:
    """The local queue of a Job or pod; "" where it has none."""
    return labels_of(job.metadata).get(keys.queue_name, "") if job is not None else ""


def queue_path(keys: Keys) -> str:
    """The place of the queue in a Job."""
    return f"metadata.labels[{keys.queue_name}]"


def check_queue_name(queue: str, keys: Keys) -> Iterator[Problem]:
    """A queue's name is one that an object can have."""
    if not is_object_name(queue):
        yield Problem(INVALID, f'{queue_path(keys)}: Invalid value: "{queue[:MOST_SHOWN]}": {_QUEUE_NAME}')


def check_queue(job: ReviewedJob, old: ReviewedJob | None, keys: Keys, kind: str = "Job") -> Iterator[Problem]:
    """A queue's name is one that an object can have. ``old``: what an update found; ``kind``: of both.

    It changes only between two states of suspension: the pod template, which then gets the gate, cannot change else.
    """
    queue, path = queue_of(job, keys), queue_path(keys)
    if queue:
        yield from check_queue_name(queue, keys)
    if old is not None and queue != queue_of(old, keys) and not (is_suspended(old) and is_suspended(job)):
        yield Problem(
            INVALID,
            f'{path}: Invalid value: "{queue}": a {kind} that is not suspended keeps its queue '
            f'("{queue_of(old, keys)}"): first set spec.suspend to true, and then change the queue',
        )
