"""What a pod asks of each resource manager of a kubelet: container by container, and as a whole (pod scope).

- CPUs: whole numbers of Guaranteed pods under the static CPU manager. Memory and huge pages: Guaranteed pods under the
  Static memory manager. Neither where the pod sets spec.resources. Devices: limits of any pod; 0 counts as asking.
- The whole pod asks for its peak: init containers run one at a time, each with the sidecars before it.
- What no zone reports, and what the layout ignores, is asked of nobody.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from engine.kubelet.machine import CPU, HUGEPAGES, MEMORY, Container, ContainerKind, Kubelet, PodShape, Qos

ASKS_KEPT: Final = 1 << 13
NAMES_KEPT: Final = 1 << 10
AMOUNTS: Final = frozenset({CPU, "ephemeral-storage", "pods"})  # beside memory: what has no units that are devices
Pairs = tuple[tuple[int, int], ...]  # (row of the resource, amount), by row


class ResourceRequest(NamedTuple):
    """What one container, or the whole pod, asks for; ``cpus`` in whole CPUs, 0 where none are pinned."""

    cpus: int = 0
    memory: Pairs = ()
    devices: Pairs = ()


class Asks(NamedTuple):
    """A pod's asks: of each container in the order of admission, with its kind and name, and of the whole."""

    containers: tuple[tuple[ContainerKind, str, ResourceRequest], ...]
    whole: ResourceRequest


def is_memory(resource: str) -> bool:
    """Whether the memory manager has it."""
    return resource == MEMORY or resource.startswith(HUGEPAGES)


@lru_cache(maxsize=NAMES_KEPT)
def is_device(resource: str) -> bool:
    """Whether units of a resource are devices of some kind."""
    return resource not in AMOUNTS and not is_memory(resource)


@lru_cache(maxsize=ASKS_KEPT)
def asks_of(resources: tuple[str, ...], ignored: tuple[str, ...], kubelet: Kubelet, pod: PodShape) -> Asks:
    """The asks of a pod on layouts with these resources and settings."""
    rows = {resource: row for row, resource in enumerate(resources) if resource not in ignored}
    # As kubelet 1.36.3: with spec.resources the CPU and memory managers give no hints and allocate nothing, because
    # PodLevelResourceManagers is off by default. Devices still align.
    pinned = pod.qos is Qos.GUARANTEED and not pod.pod_level
    containers = tuple([(each.kind, each.name, _request_of(rows, kubelet, each, pinned)) for each in pod.containers])
    cpus = _peak((kind, ask.cpus) for kind, _, ask in containers)
    # As memorymanager/policy_static.go `getPodRequestedResources`: types that only init containers ask for are missing
    # from the pod's sum. Sidecars count as init containers there.
    of_apps = {row for kind, _, ask in containers if kind is ContainerKind.APP for row, _ in ask.memory}
    memory = tuple([pair for pair in _peaks((kind, ask.memory) for kind, _, ask in containers) if pair[0] in of_apps])
    return Asks(containers, ResourceRequest(cpus, memory, _peaks((kind, ask.devices) for kind, _, ask in containers)))


def _request_of(rows: dict[str, int], kubelet: Kubelet, container: Container, pinned: bool) -> ResourceRequest:
    cpus, memory = 0, []
    for resource, amount in container.requests if pinned else ():
        # A container with a fraction runs on the shared CPUs and pins none, also in a Guaranteed pod.
        if resource == CPU and kubelet.static_cpu and resource in rows and not amount % 1000:
            cpus = amount // 1000
        elif is_memory(resource) and kubelet.static_memory and resource in rows and amount > 0:
            memory.append((rows[resource], amount))
    devices = [
        (rows[resource], amount)
        # Limits, not requests, and 0 as well: a device limit of 0 has hints in the kubelet and can force a pod onto
        # zones that have devices.
        for resource, amount in container.limits
        if resource in rows and resource != CPU and not is_memory(resource)
    ]
    return ResourceRequest(cpus, tuple(sorted(memory)), tuple(sorted(devices)))


def _peaks(asked: Iterable[tuple[ContainerKind, Pairs]]) -> Pairs:
    """The peak of each row that anybody asks for."""
    kinds = [(kind, dict(pairs)) for kind, pairs in asked]
    rows = sorted({row for _, amounts in kinds for row in amounts})
    return tuple([(row, _peak((kind, amounts.get(row, 0)) for kind, amounts in kinds)) for row in rows])


def _peak(asked: Iterable[tuple[ContainerKind, int]]) -> int:
    running = peak = 0
    for kind, amount in asked:
        if kind is ContainerKind.INIT:
            # Sidecars that start before an init container run beside it; later ones do not, so the order of the spec
            # matters.
            peak = max(peak, running + amount)
        else:
            running += amount
    return max(peak, running)
