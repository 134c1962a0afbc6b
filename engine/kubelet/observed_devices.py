"""Whether the devices that a pod really got keep what was promised: plugins choose by themselves."""

from collections.abc import Iterator

from engine.kubelet.device_manager import wants_links
from engine.kubelet.devices.choose import REQUIRE
from engine.kubelet.devices.links import LinkGraph, bits, largest_clique, mask_of
from engine.kubelet.devices.xpu import IN_ONE_WING, XpuBoard
from engine.kubelet.machine import Machine, NumaPlacement, PodShape


def broken_promises(machine: Machine, shape: PodShape, observed: NumaPlacement) -> tuple[str, ...]:
    """What a person has to know about the devices of one pod, a line a resource; () where all is well or not known."""
    return tuple(_broken(machine, shape, observed))


def _broken(machine: Machine, shape: PodShape, observed: NumaPlacement) -> Iterator[str]:
    for resource, rules in zip(machine.layout.resources, machine.layout.links, strict=False):
        ids = machine.device_ids.get(resource, ())
        position = {name: index for index, name in enumerate(ids)}
        # A name that is not in the node's list is left out: the list is of another moment, and no promise is broken by
        # that.
        got = mask_of([position[name] for name in _ids(observed, resource) if name in position])
        if isinstance(rules, LinkGraph) and shape.gpu_link == REQUIRE and wants_links(resource):
            if not rules.is_clique(got):
                size, names = largest_clique(rules, got), ", ".join(ids[device] for device in bits(got))
                count = got.bit_count()
                yield f"{count} of {resource} are not one NVLink clique; the largest among them has {size}: {names}"
        elif isinstance(rules, XpuBoard):
            yield from _across(rules, got, shape, resource)


def _across(rules: XpuBoard, got: int, shape: PodShape, resource: str) -> Iterator[str]:
    """Cards of a pod's only container on them that lie in several wings, though few enough for one."""
    asking = [amount for container in shape.containers for name, amount in container.limits if name == resource]
    # Several containers may well have cards of several wings: each of them has a task of its own.
    crossed = sum(1 for wing in rules.wings if wing & got)
    if len(asking) == 1 and got.bit_count() <= IN_ONE_WING and crossed > 1:
        yield f"{got.bit_count()} of {resource} span {crossed} NUMA zones"


def _ids(placement: NumaPlacement, resource: str) -> Iterator[str]:
    for use in placement.zones:
        yield from use.devices.get(resource, ())
