"""How much one pod template may ask for, so that none costs the controller more than others. Plain functions.

What counts
- *Containers*: with init containers.
- *Resources*: the different names in requests and limits of all containers and of the pod, and in its overhead.
- *Requirements*: whatever a node or another pod is compared with, all together. Each entry of the node selector is one;
  so is each term of the required node affinity, with one more for each expression and field in it; each term of the
  required pod affinity and anti-affinity, and each spread constraint that must hold, with one more for each label,
  expression and key in their selectors; each toleration; each host port. What is only preferred is not read here, and
  does not count.
- *Claims*: the volumes that have one, or have one made for them; and the resource claims, as many again.
- *Values*: those of one expression, and the namespaces of one pod (anti-)affinity term.
"""

from collections.abc import Iterable, Iterator
from math import inf
from typing import Final, NamedTuple

from kube.objects import (
    Affinity,
    Container,
    LabelSelector,
    Pod,
    PodAffinity,
    PodSpec,
    PodTemplate,
    Requirement,
)

MOST_CONTAINERS: Final = 128
MOST_RESOURCES: Final = 64
MOST_REQUIREMENTS: Final = 256
MOST_VALUES: Final = 1024
MOST_CLAIMS: Final = 128

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

Place = tuple[str | int, ...]  # fields and indexes below the pod's spec
Counted = tuple[Place, int]  # one requirement, and how many values it has


class TooMany(NamedTuple):
    """A limit that a template does not keep: where, how many of what there are, and how many there may be."""

    field: str
    found: int
    most: int
    what: str

    @property
    def message(self) -> str:
        """For people."""
        return f"{self.field}: Too many: {self.found} {self.what}: at most {self.most} can be taken into account"


def over_limits(template: PodTemplate | Pod, path: str = "") -> Iterator[TooMany]:
    """The limits that a pod (template) does not keep; nothing where it keeps all.

    ``path`` is its place in the object: ``""``, or ``spec.template.``.
    """
    spec, at = template.spec, f"{path}spec"
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    if len(containers) > MOST_CONTAINERS:
        yield TooMany(f"{at}.containers", len(containers), MOST_CONTAINERS, "containers and init containers")
    names = _resources(spec, containers)
    if len(names) > MOST_RESOURCES:
        what = "different resource names in requests, limits and overhead"
        yield TooMany(f"{at}.containers", len(names), MOST_RESOURCES, what)
    found = 0
    for place, values in _requirements(spec, containers):
        found += 1
        if values > MOST_VALUES:
            inside = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
            yield TooMany(at + inside, values, MOST_VALUES, "values of one requirement")
    if found > MOST_REQUIREMENTS:
        what = "requirements (node selector, tolerations, required affinity and spread, host ports)"
        yield TooMany(at, found, MOST_REQUIREMENTS, what)
    if len(spec.volumes or ()) > MOST_CLAIMS:
        yield TooMany(f"{at}.volumes", len(spec.volumes or ()), MOST_CLAIMS, "volumes with a claim")
    if len(spec.resource_claims or ()) > MOST_CLAIMS:
        yield TooMany(f"{at}.resourceClaims", len(spec.resource_claims or ()), MOST_CLAIMS, "resource claims")


def too_many_parts(spec: PodSpec) -> bool:
    """Whether a pod has more containers or different resources than are taken into account."""
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    if len(containers) > MOST_CONTAINERS:
        return True
    # The sum is never below the number of different names, so nearly every pod ends here without a set.
    several = sum(len(one.requests or ()) + len(one.limits or ()) for each in containers if (one := each.resources))
    return several > MOST_RESOURCES and len(_resources(spec, containers, MOST_RESOURCES)) > MOST_RESOURCES


def _resources(spec: PodSpec, containers: Iterable[Container], enough: float = inf) -> set[str]:
    """The names of the resources that a pod asks for; once there are more than ``enough``, no more are read."""
    names = set(spec.overhead or ())
    for each in (spec.resources, *(container.resources for container in containers)):
        # To read all names of a pod of 90 containers with 1,000 resources each takes 0.8 s, at each look.
        if len(names) > enough:
            break
        if each is not None:
            names.update(each.requests or (), each.limits or ())
    return names


def _requirements(spec: PodSpec, containers: Iterable[Container]) -> Iterator[Counted]:
    for key in spec.node_selector or ():
        yield ("nodeSelector", key), 1
    for at, _ in enumerate(spec.tolerations or ()):
        yield ("tolerations", at), 1
    yield from _of_affinity(spec.affinity or Affinity())
    for at, spread in enumerate(spec.topology_spread_constraints or ()):
        if spread.when_unsatisfiable == "DoNotSchedule":
            place: Place = ("topologySpreadConstraints", at)
            yield place, 0
            yield from _selector((*place, "labelSelector"), spread.label_selector)
            yield from _keys((*place, "matchLabelKeys"), spread.match_label_keys)
    for container in containers:
        for port in container.ports or ():
            if port.host_port or spec.host_network:
                yield ("containers", container.name, "ports"), 1


def _of_affinity(affinity: Affinity) -> Iterator[Counted]:
    nodes = affinity.node_affinity
    required = nodes.required_during_scheduling_ignored_during_execution if nodes is not None else None
    for at, term in enumerate((required.node_selector_terms if required is not None else None) or ()):
        place: Place = ("affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms", at)
        yield place, 0
        yield from _expressions((*place, "matchExpressions"), term.match_expressions)
        yield from _expressions((*place, "matchFields"), term.match_fields)
    yield from _of_pods(("affinity", "podAffinity", _REQUIRED), affinity.pod_affinity)
    yield from _of_pods(("affinity", "podAntiAffinity", _REQUIRED), affinity.pod_anti_affinity)


def _of_pods(terms: Place, affinity: PodAffinity | None) -> Iterator[Counted]:
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    for at, term in enumerate(required or ()):
        place = (*terms, at)
        yield (*place, "namespaces"), len(term.namespaces or ())
        yield from _selector((*place, "labelSelector"), term.label_selector)
        yield from _selector((*place, "namespaceSelector"), term.namespace_selector)
        yield from _keys((*place, "matchLabelKeys"), term.match_label_keys)
        yield from _keys((*place, "mismatchLabelKeys"), term.mismatch_label_keys)


def _selector(place: Place, selector: LabelSelector | None) -> Iterator[Counted]:
    if selector is not None:
        yield from _keys((*place, "matchLabels"), selector.match_labels)
        yield from _expressions((*place, "matchExpressions"), selector.match_expressions)


def _expressions(place: Place, expressions: Iterable[Requirement] | None) -> Iterator[Counted]:
    for at, expression in enumerate(expressions or ()):
        yield (*place, at, "values"), len(expression.values or ())


def _keys(place: Place, keys: Iterable[str] | None) -> Iterator[Counted]:
    for _ in keys or ():
        yield place, 1
