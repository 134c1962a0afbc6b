"""Whether the devices that a pod really got keep what was promised: plugins choose by themselves."""

from engine.kubelet.device_manager import wants_links
from engine.kubelet.devices.choose import REQUIRE
from engine.kubelet.devices.links import LinkGraph, bits, largest_clique, mask_of
from engine.kubelet.devices.xpu import IN_ONE_WING, XpuBoard
from engine.kubelet.machine import Machine, NumaPlacement, PodShape


def broken_promises(machine: Machine, shape: PodShape, observed: NumaPlacement) -> tuple[str, ...]:
    """What a person has to know about the devices of one pod, a line a resource; () where all is well or not known."""
    found: list[str] = []
    for resource, rules in zip(machine.layout.resources, machine.layout.links, strict=False):
        ids = machine.device_ids.get(resource, ())
        position = {name: index for index, name in enumerate(ids)}
        names = [name for use in observed.zones for name in use.devices.get(resource, ())]
        # A name that is not in the node's list is left out: the list is of another moment, and no promise is broken by
        # that.
        got = mask_of([position[name] for name in names if name in position])
        count = got.bit_count()
        if isinstance(rules, LinkGraph) and shape.gpu_link == REQUIRE and wants_links(resource):
            if not rules.is_clique(got):
                size, listed = largest_clique(rules, got), ", ".join(ids[device] for device in bits(got))
                found.append(
                    f"{count} of {resource} are not one NVLink clique; the largest among them has {size}: {listed}"
                )
        elif isinstance(rules, XpuBoard):
            # Several containers may well have cards of several wings: each of them has a task of its own. One that is
            # alone with so few cards gets them of one wing.
            asking = [amount for container in shape.containers for name, amount in container.limits if name == resource]
            crossed = sum(1 for wing in rules.wings if wing & got)
            if len(asking) == 1 and count <= IN_ONE_WING and crossed > 1:
                found.append(f"{count} of {resource} span {crossed} NUMA zones")
    return tuple(found)
