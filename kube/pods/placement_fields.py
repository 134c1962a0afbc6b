"""What of a pod decides where it may run, so that two pods, or a pod and its template, can be compared.

What the API server adds to every pod does not count as a difference (Kubernetes 1.37): requests that are missing are
the limits (``SetDefaults_Pod``), tolerations of nodes that are not ready or not reachable
(``DefaultTolerationSeconds``), the scheduler's name, the class of pods that name none (``Priority``), host ports of
pods in the network of their node, and what ``matchLabelKeys`` stands for, which is merged into the selectors of
(anti-)affinity and spread. Volumes of service accounts have no claim, and are not read at all.
"""

from typing import Any

from msgspec.structs import replace

from engine.model import Amounts
from kube.objects import (
    Affinity,
    Container,
    LabelSelector,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    Toleration,
)
from kube.pods.limits import too_many_parts
from kube.pods.requests import parsed, pod_level

SCHEDULER = "default-scheduler"
_UNREADY = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})

Fields = tuple[Any, ...]
TOO_LARGE = "too large"


def placement_fields(spec: PodSpec, default_class: str = "") -> Fields:
    """What decides the place of a pod: equal for pods of which each could have what the other was given.

    ``default_class``: the PriorityClass of pods that name none. All that have too much of anything to be placed are
    alike: to read it all takes long.

    Raises:
        ValueError: a quantity cannot be parsed.
    """
    if too_many_parts(spec):
        return (TOO_LARGE,)
    affinity = spec.affinity or Affinity()
    required = affinity.node_affinity and affinity.node_affinity.required_during_scheduling_ignored_during_execution
    return (
        spec.scheduler_name or SCHEDULER,
        spec.priority_class_name or default_class,
        spec.node_selector or {},
        required.node_selector_terms if required else None,
        # In any order: whatever adds tolerations to pods puts them at the end, and a template has its own.
        frozenset(kept_tolerations(spec)),
        [_container(one) for one in spec.containers or ()],
        [(one.restart_policy, *_container(one)) for one in spec.init_containers or ()],
        pod_level(spec),
        parsed(spec.overhead),
        [(one.name, one.resource_claim_name, one.resource_claim_template_name) for one in spec.resource_claims or ()],
        gang_fields(spec),
    )


def gang_fields(spec: PodSpec) -> Fields:
    """What of it no look at single nodes can tell: who else runs where, and volumes.

    Not the PodGroup, which the Job controller writes into pods and not into their template.
    """
    affinity = spec.affinity or Affinity()
    return (
        _pod_terms(affinity.pod_affinity),
        _pod_terms(affinity.pod_anti_affinity),
        [
            replace(one, label_selector=_drop_keys(one.label_selector, one.match_label_keys or ()))
            for one in spec.topology_spread_constraints or ()
            if one.when_unsatisfiable == "DoNotSchedule"
        ],
        _host_ports(spec),
        spec.volumes or (),
    )


def kept_tolerations(spec: PodSpec) -> tuple[Toleration, ...]:
    """The tolerations of a pod without those that every pod has."""
    return tuple([one for one in spec.tolerations or () if not (one.key in _UNREADY and one.effect == "NoExecute")])


def _container(one: Container) -> tuple[str, Amounts, Amounts, Any]:
    resources = one.resources
    if resources is None:
        return one.name, {}, {}, ()
    limits = parsed(resources.limits)
    return one.name, limits | parsed(resources.requests), limits, resources.claims or ()


def _pod_terms(wire: PodAffinity | None) -> list[PodAffinityTerm]:
    found = wire.required_during_scheduling_ignored_during_execution if wire is not None else None
    return [
        replace(
            term,
            label_selector=_drop_keys(
                term.label_selector, (*(term.match_label_keys or ()), *(term.mismatch_label_keys or ()))
            ),
        )
        for term in found or ()
    ]


def _drop_keys(selector: LabelSelector | None, keys: tuple[str, ...]) -> LabelSelector | None:
    """A selector without what is said of these keys by expressions of one value, as the API server adds them."""
    if selector is None or not keys:
        return selector
    kept = [
        one
        for one in selector.match_expressions or ()
        # Expressions of one value alone: a user's own with the same key and several values is a difference.
        if not (one.key in keys and one.operator in {"In", "NotIn"} and len(one.values or ()) == 1)
    ]
    return replace(selector, match_expressions=tuple(kept) or None)


def _host_ports(spec: PodSpec) -> list[tuple[str, int, str]]:
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    ports = [port for one in containers for port in one.ports or ()]
    named = [
        (port.protocol, port.host_port or (port.container_port if spec.host_network else 0), port.host_ip)
        for port in ports
    ]
    return sorted(one for one in named if one[1])
