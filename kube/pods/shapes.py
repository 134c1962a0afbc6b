"""A pod as its kubelet looks at it when it decides on NUMA zones: `engine.kubelet.machine.PodShape`.

- A request that is missing is the limit, as the API server fills it in on a pod but not on a template.
- Only what a kubelet can take from a zone is kept: cpu, memory, huge pages, and devices (any name with a domain). An
  amount of 0 is kept, because a device limit of 0 still constrains. Overhead belongs to no container and is left out.
- The class is the one in the pod's status where it is there, else computed as Kubernetes 1.37 does (ComputePodQOS).
- What the pod's annotations wish for is the caller's to read (`crds.request.parse_wish`).
"""

from collections.abc import Iterable, Iterator

from engine.kubelet.machine import CPU, HUGEPAGES, MEMORY, Container, ContainerKind, PodShape, Qos, TopologyPolicy
from engine.model import Amounts
from kube import objects
from kube.pods.limits import too_many_parts
from kube.pods.requests import is_sidecar, parsed, pod_level, pod_requests

_CLASSES = {str(found): found for found in Qos}
_COMPUTE = (CPU, MEMORY)


def pod_shape(
    spec: objects.PodSpec,
    *,
    qos_class: str = "",
    wish: TopologyPolicy = TopologyPolicy.NONE,
    wish_resources: tuple[str, ...] = (),
    gpu_link: str = "",
) -> PodShape:
    """The shape of a pod or a template. ``qos_class``: of the pod's status, "" where there is none.

    Of a pod of more containers or resources than are taken into account (`kube.pods.limits`) it is its sum.

    Raises:
        ValueError: a quantity cannot be parsed.
    """
    if too_many_parts(spec):
        # As Burstable: devices are aligned for every class, and a pod that is not read is promised no CPUs of its own.
        whole = Container(kind=ContainerKind.APP, name="", requests=_aligned(pod_requests(spec)), limits=())
        return PodShape(containers=(whole,), qos=Qos.BURSTABLE)
    return PodShape(
        containers=tuple(_containers(spec)),
        qos=_CLASSES.get(qos_class) or _qos(spec),
        pod_level=_pod_level(spec),
        wish=wish,
        wish_resources=wish_resources,
        gpu_link=gpu_link,
    )


def _containers(spec: objects.PodSpec) -> Iterator[Container]:
    for container in spec.init_containers or ():
        yield _container(container, ContainerKind.SIDECAR if is_sidecar(container) else ContainerKind.INIT)
    for container in spec.containers or ():
        yield _container(container, ContainerKind.APP)


def _container(wire: objects.Container, kind: ContainerKind) -> Container:
    resources = wire.resources
    limits = parsed(resources.limits) if resources else {}
    requests = limits | parsed(resources.requests) if resources else {}
    return Container(name=wire.name, kind=kind, requests=_aligned(requests), limits=_aligned(limits))


def _aligned(amounts: Amounts) -> tuple[tuple[str, int], ...]:
    return tuple(
        (name, amounts[name])
        # Sorted, so that equal templates have equal shapes: the engine looks at a node once for each shape.
        for name in sorted(amounts)
        if name in _COMPUTE or name.startswith(HUGEPAGES) or "/" in name
    )


def _qos(spec: objects.PodSpec) -> Qos:
    if _pod_level(spec):
        return _class_of([pod_level(spec)])
    containers = [*(spec.containers or ()), *(spec.init_containers or ())]
    amounts = ((parsed(each.resources.limits), each.resources) if each.resources else ({}, None) for each in containers)
    return _class_of([(limits | parsed(wire.requests) if wire else {}, limits) for limits, wire in amounts])


def _class_of(parts: Iterable[tuple[Amounts, Amounts]]) -> Qos:
    """The class of a pod by (requests, limits) of its containers, or of itself; zero amounts count as absent."""
    requests: Amounts = {}
    limits: Amounts = {}
    guaranteed = True
    for part_requests, part_limits in parts:
        _add(requests, part_requests)
        _add(limits, part_limits)
        guaranteed = guaranteed and all(part_limits.get(name, 0) > 0 for name in _COMPUTE)
    if not requests and not limits:
        return Qos.BEST_EFFORT
    return Qos.GUARANTEED if guaranteed and requests == limits else Qos.BURSTABLE


def _add(total: Amounts, more: Amounts) -> None:
    for name in _COMPUTE:
        if more.get(name, 0) > 0:
            total[name] = total.get(name, 0) + more[name]


def _pod_level(spec: objects.PodSpec) -> bool:
    """Whether resources of the pod as a whole are set."""
    given = spec.resources
    names = {*(given.requests or ()), *(given.limits or ())} if given is not None else set()
    return any(name in _COMPUTE or name.startswith(HUGEPAGES) for name in names)
