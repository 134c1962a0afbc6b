"""What is refused: rules on one object each, as problems with a field path, the bad value and what is allowed."""

from collections.abc import Iterator
from dataclasses import dataclass

from crds import constants
from crds.constants import Keys
from crds.request import JOB_PATH, WISHES, bad_wishes, contradicting_wishes
from webhook.objects import Job, Pod, annotations_of

INVALID, FORBIDDEN = 422, 403

_WRITTEN = (constants.NUMA_PLACEMENT_PREDICTED, constants.NUMA_PLACEMENT_OBSERVED)
OWN_REQUESTS = WISHES
OWN = (*OWN_REQUESTS, *_WRITTEN)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an object is refused: HTTP-like code (422 or 403) and a text a person can act on."""

    code: int
    message: str


def check_template(template: Pod, keys: Keys, path: str) -> Iterator[Problem]:
    """All that is wrong with a pod (template) that carries a request.

    ``path`` is its place in the object: ``""``, or ``spec.template.``. `crds.request` judges the topology request.
    """
    if template.spec is None:
        yield Problem(INVALID, f"{path}spec: Required value: a pod needs a spec")
        return
    if template.spec.node_name:
        yield Problem(
            FORBIDDEN,
            f'{path}spec.nodeName: Forbidden: "{template.spec.node_name}": it goes past the scheduler, and so past '
            "the topology request; remove the nodeName or the request",
        )
    annotations = annotations_of(template.metadata)
    at = f"{path}metadata.annotations"
    for key in (keys.workload, *_WRITTEN):
        if key in annotations:
            yield Problem(FORBIDDEN, f"{at}[{key}]: Forbidden: written by Topogate alone; remove it")
    yield from (Problem(INVALID, bad.message) for bad in bad_wishes(annotations, at))


def check_pod_set(template: Pod, keys: Keys, path: str, allowed: str) -> Iterator[Problem]:
    """A job's only pod set has a fixed name: a pod that names another would wait for ever."""
    name = annotations_of(template.metadata).get(keys.pod_set, allowed)
    if name != allowed:
        at = f"{path}metadata.annotations[{keys.pod_set}]"
        yield Problem(INVALID, f'{at}: Unsupported value: "{name}": supported values: "{allowed}"')


def check_wishes(job: Job, template: Pod) -> Iterator[Problem]:
    """What is wrong with the wishes on a Job itself: they go into its template, and may not contradict that."""
    own, below = annotations_of(job.metadata), annotations_of(template.metadata)
    for bad in (*bad_wishes(own, JOB_PATH), *contradicting_wishes(own, below)):
        yield Problem(INVALID, bad.message)
