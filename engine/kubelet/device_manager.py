"""What an admission asks when it hands out devices: which ones, or why none.

The kubelet has said from which zones; here the pod's own rules come on top of it. ``require`` and the rules of XPUs
refuse, everything else only orders. Where only amounts are known, ``require`` is granted where it holds whichever
devices the plugin takes, or where it is known which ones are free and the best of those do: the node says so and no
fewer are free than it says, or all are.
"""

from functools import lru_cache

import msgspec

from engine.kubelet.devices.choose import REQUIRE, DeviceChoice, choose
from engine.kubelet.devices.links import LinkGraph, bits, largest_clique, mask_of
from engine.kubelet.devices.xpu import IN_ONE_WING, SIZES, XpuBoard, allowed, best_split, choose_cards, fill
from engine.kubelet.machine import ContainerKind, PodShape

GPU_LINK = "GpuLink"
XPU_ALLOCATION = "XpuAllocation"

Rules = LinkGraph | XpuBoard | None


class DeviceRefusal(msgspec.Struct, frozen=True, gc=False):
    """Why no devices are given: a reason of the closed set, and a message a person can act on."""

    reason: str
    message: str


def is_gpu(resource: str) -> bool:
    """Whether a resource is whole GPUs, by its name: ``nvidia.com/gpu``, ``amd.com/gpu``."""
    return _short_name(resource) == "gpu"


def wants_links(resource: str) -> bool:
    """Whether ``gpu-link`` is about this resource: GPUs and slices of them (``mig-3g.40gb``, ``gpu.shared``)."""
    return _short_name(resource).startswith(("gpu", "mig-"))


def must_link(shape: PodShape) -> tuple[str, ...]:
    """The resources of which a pod gets several and whose units have to be linked."""
    if shape.gpu_link != REQUIRE:
        return ()
    together: dict[str, int] = {}
    alone: dict[str, int] = {}
    for container in shape.containers:
        for name, amount in container.limits:
            if container.kind is ContainerKind.INIT:
                alone[name] = max(alone.get(name, 0), amount)
            else:
                together[name] = together.get(name, 0) + amount
    # Init containers run alone, so the largest of them counts; sidecars and apps hold theirs together.
    names = sorted(together.keys() | alone.keys())
    return tuple(name for name in names if wants_links(name) and max(together.get(name, 0), alone.get(name, 0)) > 1)


def unknown(resource: str) -> DeviceRefusal:
    """Nothing says how devices are linked that have to be."""
    return DeviceRefusal(GPU_LINK, f"needs NVLinks between its {resource}, and none are known on this node")


@lru_cache(maxsize=1 << 12)
def never_given(shape: PodShape, xpus: tuple[str, ...]) -> DeviceRefusal | None:
    """Why no node gives a container the cards of ``xpus`` (resources) that it asks for, whatever is known of nodes."""
    for container in shape.containers:
        for name, amount in container.limits:
            if name in xpus and amount and not allowed(amount):
                return _no_cards(name, (), amount)
    return None


def _short_name(resource: str) -> str:
    return resource.rpartition("/")[2].lower()


def pick(resource: str, rules: Rules, wanted: DeviceChoice) -> int | DeviceRefusal | None:
    """The devices of a container, as a mask; None where nothing is known of them, so that any will do."""
    if not wanted.count:
        return 0
    if isinstance(rules, XpuBoard):
        # Before the wish for links: cards of XPUs have no NVLinks, and their rule holds whatever the annotation says.
        found = choose_cards(rules, wanted.free, wanted.count, wanted.within, wanted.must)
        return found.cards if found else _no_cards(resource, rules.free_by_wing(_usable_devices(wanted)), wanted.count)
    whole = wanted.count + wanted.held.bit_count() + wanted.later
    required = wanted.mode == REQUIRE and whole > 1 and wants_links(resource)
    if rules is None:
        return unknown(resource) if required else None
    # One device, or a resource that is no GPU, has nothing to link. It is chosen as without the annotation.
    if wanted.mode == REQUIRE and not required:
        wanted = msgspec.structs.replace(wanted, mode="")
    chosen = choose(rules, wanted)
    if chosen is not None:
        return chosen
    usable = (_usable_devices(wanted) & ~wanted.held) | (wanted.free if wanted.later else 0)
    largest = largest_clique(rules, usable | wanted.held)
    return DeviceRefusal(
        GPU_LINK, f"needs {whole} of {resource} in one NVLink clique, and the largest free one has {largest}"
    )


def pick_zones(
    resource: str,
    rules: Rules,
    count: int,
    *,
    free: tuple[int, ...],
    zones: int,
    mode: str,
    whole: int,
    declared: int | None = None,
) -> tuple[int, ...] | DeviceRefusal | None:
    """How many devices a container takes from each zone, where only amounts are known; None: any will do.

    ``free``: what each zone has; ``zones``: the mask of those that the kubelet allows; ``whole``: how many devices of
    this resource all containers of the pod have together; ``declared``: the mask of those that the node says are free.
    """
    if not count:
        return None
    # Zones that the kubelet's mask leaves out count for filling the machine, and give nothing to this task.
    if isinstance(rules, XpuBoard):
        within = tuple(most if zones >> zone & 1 else 0 for zone, most in enumerate(free))
        split = best_split(free, count, within)
        return split or _no_cards(resource, within, count)
    if mode != REQUIRE or whole < 2 or not wants_links(resource):
        return None
    if rules is None:
        return unknown(resource)
    left, inside = sum(most for zone, most in enumerate(free) if zones >> zone & 1), rules.all
    # The devices of these zones; all where it is not known which zone has which.
    if rules.zones:
        inside = mask_of([device for device in bits(inside) if rules.zones[device] & zones or not rules.zones[device]])
    known = inside if declared is None else inside & declared
    # If all devices of the zones are linked to each other, every choice of the plugin is a clique.
    if rules.is_clique(inside) or _surely(rules, count, whole, left, known):
        return None
    needs, largest = f"needs {whole} of {resource} in one NVLink clique", largest_clique(rules, known)
    why = f", and the largest one that the node reports as free has {largest}"
    if declared is None or largest >= whole:
        why = ", and it is not known which ones are free: this node has no agent"
    return DeviceRefusal(GPU_LINK, needs + why)


def _surely(graph: LinkGraph, count: int, whole: int, free: int, known: int) -> bool:
    """Whether what a container gets is one clique, of the devices that are ``known`` to be free.

    ``free``: how many are free; where it is fewer, some were taken since, and it is not known which. Where it is more,
    what another container of the pod gets may be none of the known ones.
    """
    # The node's list is older than what is free: it cannot name enough devices for the pod.
    if known.bit_count() < whole:
        return False
    if graph.is_clique(known) and (count == whole or free <= known.bit_count()):
        return True
    if free < known.bit_count() or count < whole:
        return False
    return choose(graph, DeviceChoice(count=count, free=known, mode=REQUIRE)) is not None


def _usable_devices(wanted: DeviceChoice) -> int:
    return (wanted.free if wanted.within is None else wanted.within) | wanted.must


def _no_cards(resource: str, free: tuple[int, ...], count: int) -> DeviceRefusal:
    if not allowed(count):
        sizes = ", ".join(map(str, SIZES[:-1]))
        return DeviceRefusal(
            XPU_ALLOCATION, f"asks for {count} of {resource}, but only {sizes} or {SIZES[-1]} can be given"
        )
    where = " in one NUMA zone" if count <= IN_ONE_WING else ""
    tasks = ", ".join(map(str, fill(free)))
    left = f"the free ones only allow tasks of {tasks}" if tasks else "none are free"
    return DeviceRefusal(XPU_ALLOCATION, f"needs {count} of {resource}{where}, but {left}")
