"""What a pod takes of a node, counted as kube-scheduler counts it.

Source: ``k8s.io/component-helpers/resource`` (PodRequests, with the status counted in), and for what the API server
fills in on a pod but not on a template, ``SetDefaults_Pod`` and ``DefaultPodLevelResources`` of Kubernetes 1.37.

- An init container runs before the others: it needs its own request and those of the sidecars (init containers with
  restart policy ``Always``) started before it. The pod needs the largest of these and of all containers and sidecars.
- A request that is missing is the limit, where there is one.
- Requests of the pod as a whole replace the sum for cpu, memory and huge pages; overhead is added at the end.
- While a resize is under way, the larger of what is asked for, given and actuated counts.
"""

from collections.abc import Callable, Iterable

from engine.model import Amounts
from engine.quantity import bounded, parse
from kube.objects import Container, ContainerStatus, PodSpec, PodStatus, Quantities, ResourceRequirements, condition

HUGE_PAGES = "hugepages-"
OVERCOMMITTED = ("cpu", "memory")


def pod_requests(spec: PodSpec, status: PodStatus | None = None) -> Amounts:
    """Effective requests of one pod, amounts that are zero left out; ``pods`` is added by the engine.

    Raises:
        ValueError: a quantity cannot be parsed.
    """
    status = status or PodStatus()
    containers = spec.containers or ()
    if len(containers) == 1 and not (spec.init_containers or spec.resources or status.container_statuses):
        total = _requests(containers[0].resources)
    else:
        total = _aggregate(spec, status)
        if spec.resources is not None:
            total |= _pod_level(spec.resources, _aggregate(spec, PodStatus()), status)
    _add(total, parsed(spec.overhead))
    return {name: bounded(amount) for name, amount in total.items() if amount}


def pod_level(spec: PodSpec) -> tuple[Amounts, Amounts]:
    """Requests and limits of the pod as a whole (spec.resources), filled in as the API server does; {} without any.

    Limits are filled in as Kubernetes 1.37 does (``DefaultPodLevelResources``): where every container has a limit, the
    pod's is their sum, or its request where that is more. Servers before 1.37 leave them out.

    Raises:
        ValueError: a quantity cannot be parsed.
    """
    if spec.resources is None:
        return {}, {}
    empty = PodStatus()
    containers = _aggregate(spec, empty)
    requests = _pod_level(spec.resources, containers, empty)
    limits = parsed(spec.resources.limits)
    if requests:
        requests = {name: containers[name] for name in OVERCOMMITTED if name in containers} | requests
    every = [*(spec.containers or ()), *(spec.init_containers or ())]
    limited = [set(each.resources.limits or ()) if each.resources else set() for each in every]
    summed = _aggregate(spec, empty, _limits)
    for name in set.intersection(*limited) & requests.keys() - limits.keys() if limited else ():
        limits[name] = max(requests[name], summed.get(name, 0))
    return requests, limits


def parsed(quantities: Quantities | None) -> Amounts:
    """Quantities as amounts, each within `engine.quantity.MOST`."""
    return {name: bounded(parse(name, value)) for name, value in quantities.items()} if quantities else {}


def is_sidecar(container: Container) -> bool:
    """Whether an init container keeps running beside the others."""
    return container.restart_policy == "Always"


def _requests(resources: ResourceRequirements | None) -> Amounts:
    if resources is None:
        return {}
    return parsed(resources.limits) | parsed(resources.requests)


def _limits(resources: ResourceRequirements | None) -> Amounts:
    return parsed(resources.limits) if resources else {}


def _aggregate(
    spec: PodSpec, status: PodStatus, of: Callable[[ResourceRequirements | None], Amounts] = _requests
) -> Amounts:
    infeasible = _resize_infeasible(status)
    given = _by_name(status.container_statuses)
    total: Amounts = {}
    for container in spec.containers or ():
        _add(total, _effective(of(container.resources), given.get(container.name), infeasible=infeasible))
    if not spec.init_containers:
        return total
    given = _by_name(status.init_container_statuses)
    sidecars: Amounts = {}
    starting: Amounts = {}
    for container in spec.init_containers:
        if is_sidecar(container):
            requests = _effective(of(container.resources), given.get(container.name), infeasible=infeasible)
            _add(total, requests)
            _add(sidecars, requests)
            _raise(starting, sidecars)
        else:
            requests = of(container.resources)
            _add(requests, sidecars)
            _raise(starting, requests)
    _raise(total, starting)
    return total


def _effective(wanted: Amounts, status: ContainerStatus | None, *, infeasible: bool) -> Amounts:
    if status is None or status.resources is None:
        return wanted
    return _during_resize(wanted, status.resources, status.allocated_resources, infeasible=infeasible)


def _during_resize(
    wanted: Amounts, actuated: ResourceRequirements, allocated: Quantities | None, *, infeasible: bool
) -> Amounts:
    total = {} if infeasible else dict(wanted)
    _raise(total, parsed(actuated.requests))
    _raise(total, parsed(allocated))
    return total


def _pod_level(resources: ResourceRequirements, aggregated: Amounts, status: PodStatus) -> Amounts:
    requests = {name: amount for name, amount in parsed(resources.requests).items() if _of_pods(name)}
    if resources.limits:  # a pod has these filled in by the API server; a template does not
        for name in OVERCOMMITTED:
            if name in aggregated:
                requests.setdefault(name, aggregated[name])
        for name, amount in parsed(resources.limits).items():
            if _of_pods(name):
                requests.setdefault(name, amount)
    if not requests or status.resources is None:
        return requests
    effective = _during_resize(
        requests, status.resources, status.allocated_resources, infeasible=_resize_infeasible(status)
    )
    return {name: effective.get(name, 0) for name in requests}


def _of_pods(resource: str) -> bool:
    return resource in OVERCOMMITTED or resource.startswith(HUGE_PAGES)


def _resize_infeasible(status: PodStatus) -> bool:
    pending = condition(status.conditions, "PodResizePending")
    return pending is not None and pending.reason == "Infeasible"


def _by_name(statuses: Iterable[ContainerStatus] | None) -> dict[str, ContainerStatus]:
    return {status.name: status for status in statuses or ()}


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: Amounts, least: Amounts) -> None:
    for name, amount in least.items():
        if amount > total.get(name, 0):
            total[name] = amount
