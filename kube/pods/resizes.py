"""What a kubelet has given a pod, where that is not what its spec asks for: a resize in place is under way.

A resize ends in the pod's status alone (``containerStatuses[].resources`` and ``allocatedResources``, and the condition
``PodResizePending``): its spec was changed when the resize was asked for, and nothing else changes when it is done.
"""

from collections.abc import Iterable, Iterator

from kube.objects import Container, ContainerStatus, Pod, Quantities, condition
from kube.pods.requests import is_resized

_Given = tuple[str, Quantities | None, Quantities | None]


def given_otherwise(pod: Pod) -> tuple[object, ...]:
    """What is to be compared of two versions of a pod with one spec: equal where they take the same of their node.

    Nothing of what says the same as the spec, as a kubelet reports of every pod once it runs.
    """
    spec, status = pod.spec, pod.status
    pending = condition(status.conditions, "PodResizePending")
    found: list[object] = [pending.reason] if pending is not None else []
    found += [True] if is_resized(pod) else []  # quota counts what the status says only then
    if (spec.overhead or spec.resources) and status.resources is not None:
        found += [status.resources, status.allocated_resources]
    found += _otherwise(spec.containers, status.container_statuses)
    found += _otherwise(spec.init_containers, status.init_container_statuses)
    return tuple(found)


def _otherwise(containers: Iterable[Container] | None, statuses: Iterable[ContainerStatus] | None) -> Iterator[_Given]:
    asked = {one.name: one.resources.requests if one.resources else None for one in containers or ()}
    for one in statuses or ():
        given = one.resources.requests if one.resources is not None else None
        wanted = asked.get(one.name)
        if one.resources is not None and (given, one.allocated_resources or wanted) != (wanted, wanted):
            yield one.name, given, one.allocated_resources
