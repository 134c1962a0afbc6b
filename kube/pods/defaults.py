"""What the API server adds to a pod that is not in the template that the pod is made from.

Source: ``SetDefaults_Pod`` and the admission plugins LimitRanger and RuntimeClass of Kubernetes 1.37, in the order in
which they run.

- A container that says no limit of a resource gets the ``default`` of the LimitRanges of its namespace, and one that
  says no request gets the ``defaultRequest``. A request that is missing is the container's own limit before that.
- A pod that names a RuntimeClass gets its overhead, and its node selector and tolerations beside the pod's own.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from kube.objects import (
    Container,
    LimitRange,
    PodSpec,
    Quantities,
    ResourceRequirements,
    RuntimeClass,
)

CONTAINER = "Container"


def with_defaults(spec: PodSpec, ranges: Iterable[LimitRange], runtime: RuntimeClass | None) -> PodSpec:
    """The spec of a pod as the API server makes it of this one. ``runtime``: the class that it names.

    Where several LimitRanges speak of one resource, Kubernetes takes any of them; here the first counts.
    """
    limits: Quantities = {}
    requests: Quantities = {}
    for item in (item for one in ranges for item in one.spec.limits or () if item.type == CONTAINER):
        _add(limits, item.default)
        _add(requests, item.default_request)
    if limits or requests:
        spec = replace(
            spec,
            containers=_filled(spec.containers, limits, requests),
            init_containers=_filled(spec.init_containers, limits, requests),
        )
    return spec if runtime is None else _of_class(spec, runtime)


def _add(known: Quantities, more: Quantities | None) -> None:
    """A LimitRange may have many items of many resources: what is known is not copied for each."""
    for resource, amount in (more or {}).items():
        known.setdefault(resource, amount)


def _filled(
    containers: tuple[Container, ...] | None, limits: Quantities, requests: Quantities
) -> tuple[Container, ...] | None:
    return containers and tuple([_container(one, limits, requests) for one in containers])


def _container(container: Container, limits: Quantities, requests: Quantities) -> Container:
    own = container.resources or ResourceRequirements()
    filled = replace(
        own,
        limits={**limits, **(own.limits or {})} or None,
        # The later one wins: SetDefaults_Pod runs before LimitRanger, so a container's own limit beats the default.
        requests={**requests, **(own.limits or {}), **(own.requests or {})} or None,
    )
    return replace(container, resources=filled)


def _of_class(spec: PodSpec, runtime: RuntimeClass) -> PodSpec:
    """A pod that contradicts its class is refused by the API server, so there is none to be placed."""
    fixed = runtime.overhead.pod_fixed if runtime.overhead is not None else None
    scheduling = runtime.scheduling
    selector, tolerations = (scheduling.node_selector, scheduling.tolerations) if scheduling else (None, None)
    own = spec.tolerations or ()
    return replace(
        spec,
        overhead=fixed or spec.overhead,
        node_selector={**(selector or {}), **(spec.node_selector or {})} or None,
        tolerations=(*own, *(one for one in tolerations or () if one not in own)) or None,
    )
