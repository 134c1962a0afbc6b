"""What is refused: rules on one object each, as problems with a field path, the bad value and what is allowed."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from crds import constants
from crds.constants import Keys
from webhook.objects import Pod, annotations_of

INVALID, FORBIDDEN = 422, 403

_CHOICES: Mapping[str, tuple[str, ...]] = {
    constants.NUMA_POLICY: ("single-numa-node", "restricted", "best-effort", "socket", "none"),
    constants.GPU_LINK: ("require", "prefer"),
    constants.TOPOLOGY_QOS: ("guaranteed", "best-effort"),
}
_WRITTEN = (constants.NUMA_PLACEMENT_PREDICTED, constants.NUMA_PLACEMENT_OBSERVED)
OWN_REQUESTS = (*_CHOICES, constants.NUMA_RESOURCES)
OWN = (*OWN_REQUESTS, *_WRITTEN)
# As resource names in pods: cpu, memory, hugepages-2Mi, nvidia.com/gpu.
_RESOURCE = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")


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
    yield from _own(annotations, at)


def check_pod_set(template: Pod, keys: Keys, path: str, allowed: str) -> Iterator[Problem]:
    """A job's only pod set has a fixed name: a pod that names another would wait for ever."""
    name = annotations_of(template.metadata).get(keys.pod_set, allowed)
    if name != allowed:
        at = f"{path}metadata.annotations[{keys.pod_set}]"
        yield Problem(INVALID, f'{at}: Unsupported value: "{name}": supported values: "{allowed}"')


def _own(annotations: Mapping[str, str], at: str) -> Iterator[Problem]:
    for key, allowed in _CHOICES.items():
        value = annotations.get(key)
        if value is not None and value not in allowed:
            listed = ", ".join(f'"{choice}"' for choice in allowed)
            yield Problem(INVALID, f'{at}[{key}]: Unsupported value: "{value}": supported values: {listed}')
    resources = annotations.get(constants.NUMA_RESOURCES)
    if resources is not None and not all(_RESOURCE.match(name) for name in resources.split(",")):
        yield Problem(
            INVALID,
            f'{at}[{constants.NUMA_RESOURCES}]: Invalid value: "{resources}": expected resource names separated by '
            'commas, as "nvidia.com/gpu,cpu"',
        )
