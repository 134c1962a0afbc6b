"""What a pod takes of a node, counted as kube-scheduler counts it.

Source: ``k8s.io/component-helpers/resource`` (PodRequests, with the status counted in) of Kubernetes 1.36.3 and 1.37.1,
and for what the API server fills in on a pod but not on a template, ``SetDefaults_Pod`` and
``DefaultPodLevelResources`` of Kubernetes 1.37.

- An init container runs before the others: it needs its own request and those of the sidecars (init containers with
  restart policy ``Always``) started before it. The pod needs the largest of these and of all containers and sidecars.
- A request that is missing is the limit, where there is one.
- Requests of the pod as a whole replace the sum for cpu, memory and huge pages; overhead is added at the end.
- While a resize is under way, the larger of what is asked for, given and actuated counts: of each container up to 1.36,
  and of their sums from 1.37 on. So two containers that swap 1 and 3 CPUs count 6 in 1.36 and 4 in 1.37. Where it is
  infeasible, what is asked for does not count.
- From 1.37 on, what the kubelet reports of the pod as a whole is such a sum. Overhead is in it, and is added once more.

What a status says is the word of the kubelet, and whoever has its credentials writes anything there. Room on that node
is counted by it, as kube-scheduler does; quota is charged by what a spec says (`charged_requests`).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import msgspec

from engine.model import Amounts
from engine.quantity import LARGEST, bounded, parse
from kube.objects import (
    Container,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    Quantities,
    ResourceRequirements,
    condition,
)
from kube.versions import NEWEST, SchedulerRules

HUGE_PAGES = "hugepages-"
OVERCOMMITTED = ("cpu", "memory")  # what a pod that runs may be resized in, too
REMEMBERED = 16 * 1024  # bytes of what a pod asks for of which the sum is remembered
_NOTHING = PodStatus()
_RESIZES = frozenset({"PodResizePending", "PodResizeInProgress"})
_Parts = tuple[
    tuple[Container, ...] | None, tuple[Container, ...] | None, ResourceRequirements | None, Quantities | None
]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Parts).decode


def pod_requests(spec: PodSpec, status: PodStatus = _NOTHING, rules: SchedulerRules = NEWEST) -> Amounts:
    """Effective requests of one pod, amounts that are zero left out; ``pods`` is added by the engine.

    Raises:
        ValueError: a quantity cannot be parsed.
    """
    if _reports(status):
        return _requested(spec, status, rules)
    # Bytes are the key of the memo, for structs with maps in them have no hash.
    parts = _encode((spec.containers, spec.init_containers, spec.resources, spec.overhead))
    if len(parts) > REMEMBERED:  # anybody may make many large ones
        return _requested(spec, _NOTHING, rules)
    # A copy: callers take entries out and put others in, and the memo is one for all alike pods.
    return dict(_of_parts(parts))


@lru_cache(maxsize=1024)  # most pods have a twin, and each is asked for several times
def _of_parts(parts: bytes) -> Amounts:
    containers, init_containers, resources, overhead = _decode(parts)
    spec = PodSpec(containers=containers, init_containers=init_containers, resources=resources, overhead=overhead)
    return _requested(spec, _NOTHING, NEWEST)


def _reports(status: PodStatus) -> bool:
    """Whether a kubelet says anything of what a pod was given; without that the rules are the same everywhere."""
    if status.allocated_resources is not None or status.resources is not None:
        return True
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    if statuses and _resize_infeasible(status):
        return True  # what its spec asks for does not count
    return any(one.resources is not None or one.allocated_resources is not None for one in statuses)


def _requested(spec: PodSpec, status: PodStatus, rules: SchedulerRules) -> Amounts:
    total = _counted(spec, status, rules)
    if spec.resources is not None:
        total |= _pod_level(spec.resources, _aggregate(spec, _of_spec), status, rules)
    # Also where the kubelet's sum has it already: in 1.37.1 a pod of 1 CPU with 250m of overhead counts as 1500m.
    _add(total, parsed(spec.overhead))
    return {name: bounded(amount) for name, amount in total.items() if amount}


def charged_requests(pod: Pod, allocatable: Mapping[str, int], rules: SchedulerRules) -> Amounts:
    """What a pod takes of quota: what its spec says, and what its node reports only while the pod is resized.

    Even then a node may say no more than it has (``allocatable``), and only of what can be resized.

    Raises:
        ValueError: a quantity cannot be parsed.
    """
    asked = pod_requests(pod.spec)
    if not is_resized(pod):
        return asked
    counted = pod_requests(pod.spec, pod.status, rules)
    for name in OVERCOMMITTED:
        # Bounded by what the node has: with a kubelet's stolen credentials a queue could be charged any amount.
        spec_says = asked.pop(name, 0)
        if amount := min(counted.get(name, 0), max(spec_says, allocatable.get(name, 0))):
            asked[name] = amount
    return asked


def is_resized(pod: Pod) -> bool:
    """Whether a resize is under way, or was asked for and the kubelet has not seen it yet."""
    status = pod.status
    # A kubelet that does not write the field leaves 0, which says nothing.
    if 0 < status.observed_generation < pod.metadata.generation:
        return True
    return not _RESIZES.isdisjoint([one.type for one in status.conditions or ()])


def pod_level(spec: PodSpec) -> tuple[Amounts, Amounts]:
    """Requests and limits of the pod as a whole (spec.resources), filled in as the API server does; {} without any.

    Limits are filled in as Kubernetes 1.37 does (``DefaultPodLevelResources``): where every container has a limit, the
    pod's is their sum, or its request where that is more. Servers before 1.37 leave them out.

    Raises:
        ValueError: a quantity cannot be parsed.
    """
    if spec.resources is None:
        return {}, {}
    containers = _aggregate(spec, _of_spec)
    requests = _pod_level(spec.resources, containers, _NOTHING, NEWEST)
    limits = parsed(spec.resources.limits)
    if requests:
        requests = {name: containers[name] for name in OVERCOMMITTED if name in containers} | requests
    every = [*(spec.containers or ()), *(spec.init_containers or ())]
    limited = [set(each.resources.limits or ()) if each.resources else set() for each in every]
    summed = _aggregate(spec, lambda each: parsed(each.resources.limits) if each.resources else {})
    for name in set.intersection(*limited) & requests.keys() - limits.keys() if limited else ():
        limits[name] = max(requests[name], summed.get(name, 0))
    return requests, limits


def asked_for(spec: PodSpec, resources: Iterable[str]) -> Amounts:
    """What a pod asks for of these resources, within `LARGEST`, as the API server has a sum that is larger.

    Its containers, or its largest init container, or what it says as a whole; and its overhead.
    """
    found: Amounts = {}
    for name in resources:
        asks = [
            [_requested_amount(one.resources, name) for one in several or ()]
            for several in (spec.containers, spec.init_containers)
        ]
        total = max([sum(asks[0]), *asks[1], _requested_amount(spec.resources, name)])
        found[name] = min(total + parse(name, (spec.overhead or {}).get(name, 0)), LARGEST)
    return found


def _requested_amount(resources: ResourceRequirements | None, resource: str) -> int:
    wanted = resources or ResourceRequirements()
    said = (wanted.requests or {}).get(resource, (wanted.limits or {}).get(resource, 0))
    return parse(resource, said)


def parsed(quantities: Quantities | None) -> Amounts:
    """Quantities as amounts, each within `engine.quantity.MOST`."""
    return {name: bounded(parse(name, value)) for name, value in quantities.items()} if quantities else {}


def is_sidecar(container: Container) -> bool:
    """Whether an init container keeps running beside the others."""
    return container.restart_policy == "Always"


def _aggregate(spec: PodSpec, of: Callable[[Container], Amounts]) -> Amounts:
    """What all containers take together, each of them what ``of`` says."""
    total: Amounts = {}
    for container in spec.containers or ():
        _add(total, of(container))
    sidecars: Amounts = {}
    starting: Amounts = {}
    for container in spec.init_containers or ():
        takes = of(container)
        if is_sidecar(container):
            _add(total, takes)
            _add(sidecars, takes)
            _raise(starting, sidecars)
        else:
            _add(takes, sidecars)
            _raise(starting, takes)
    _raise(total, starting)
    return total


def _of_spec(container: Container) -> Amounts:
    resources = container.resources
    return parsed(resources.limits) | parsed(resources.requests) if resources is not None else {}


def _counted(spec: PodSpec, status: PodStatus, rules: SchedulerRules) -> Amounts:
    """What all containers take together by spec and status."""
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    given = {one.name: one for one in statuses} if rules.reads_status else {}
    infeasible = _resize_infeasible(status)
    if not rules.compares_sums:
        for container in spec.init_containers or ():
            if not is_sidecar(container):
                given.pop(container.name, None)  # up to 1.36 those that end are not resized
        return _aggregate(spec, lambda container: _largest_requests(container, given, infeasible=infeasible))
    sums = [] if infeasible else [_aggregate(spec, _of_spec)]
    whole = status.resources.requests if status.resources is not None else None
    if status.allocated_resources is not None and whole is not None:
        sums += [parsed(status.allocated_resources), parsed(whole)]
    elif given:
        sums.append(_aggregate(spec, lambda container: _allocated(container, given, infeasible=infeasible)))
        sums.append(_aggregate(spec, lambda container: _actuated(container, given, infeasible=infeasible)))
    total: Amounts = {}
    for one in sums:
        _raise(total, one)
    return total


def _largest_requests(container: Container, given: Mapping[str, ContainerStatus], *, infeasible: bool) -> Amounts:
    status = given.get(container.name)
    if status is None or status.resources is None:
        return _of_spec(container)
    total = {} if infeasible else _of_spec(container)
    _raise(total, parsed(status.resources.requests))
    _raise(total, parsed(status.allocated_resources))
    return total


def _allocated(container: Container, given: Mapping[str, ContainerStatus], *, infeasible: bool) -> Amounts:
    status = given.get(container.name)
    if status is not None and status.allocated_resources is not None:
        return parsed(status.allocated_resources)
    return {} if infeasible else _of_spec(container)


def _actuated(container: Container, given: Mapping[str, ContainerStatus], *, infeasible: bool) -> Amounts:
    status = given.get(container.name)
    if status is not None and status.resources is not None and status.resources.requests is not None:
        return parsed(status.resources.requests)
    return _allocated(container, given, infeasible=infeasible)


def _pod_level(
    resources: ResourceRequirements, aggregated: Amounts, status: PodStatus, rules: SchedulerRules
) -> Amounts:
    requests = {name: amount for name, amount in parsed(resources.requests).items() if _of_pods(name)}
    if resources.limits:  # a pod has these filled in by the API server; a template does not
        for name in OVERCOMMITTED:
            if name in aggregated:
                requests.setdefault(name, aggregated[name])
        for name, amount in parsed(resources.limits).items():
            if _of_pods(name):
                requests.setdefault(name, amount)
    if not requests or status.resources is None or not rules.reads_pod_status:
        return requests
    effective = {} if _resize_infeasible(status) else dict(requests)
    _raise(effective, parsed(status.resources.requests))
    _raise(effective, parsed(status.allocated_resources))
    if rules.compares_sums:  # what only the status names counts too
        return {name: amount for name, amount in effective.items() if _of_pods(name)}
    return {name: effective.get(name, 0) for name in requests}


def _of_pods(resource: str) -> bool:
    return resource in OVERCOMMITTED or resource.startswith(HUGE_PAGES)


def _resize_infeasible(status: PodStatus) -> bool:
    pending = condition(status.conditions, "PodResizePending")
    return pending is not None and pending.reason == "Infeasible"


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: Amounts, least: Amounts) -> None:
    for name, amount in least.items():
        if amount > total.get(name, 0):
            total[name] = amount
