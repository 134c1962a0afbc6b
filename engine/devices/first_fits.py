"""Which devices kube-scheduler's first fit gives to pods that come one after another, and of which NUMA zones they are.

The scheduler knows nothing of zones, and a kubelet takes no hints from devices of claims: each goes its own way. So
where a pod wishes both from one zone (``topogate.dev/numa-policy``), the one can only be foreseen beside the other:

- Devices are those of the search itself (`engine.claims.allocate`), pod by pod.
- Pods that wait for devices on a node may come in any order. Of pods that are alike it makes no difference who is
  first; others would be given devices that were foreseen for these. So pods with such a wish share a node with no
  others that wait for devices there, until these have theirs.
- Devices that a claim has already which pods name are those of each of them. A claim without devices that one pod
  names is like one of a template; for whose pods one that several share is given is not foreseen.
- A device whose driver tells no zone, or two, stands for none; one of which it tells the PCIe root alone is of the
  zone that the node knows of that.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from engine.claims.allocate import allocate, prepare
from engine.claims.asks import DeviceAsk
from engine.claims.counting.looks import NodeDevices
from engine.claims.model import Claim, DeviceId
from engine.claims.read.asks import classes_of
from engine.claims.results import Allocation
from engine.claims.searching.requests import RequestContext
from engine.devices.kinds import LOOK_STEPS
from engine.kubelet.hints import fewest
from engine.kubelet.machine import DeviceZones, PodShape
from engine.kubelet.numa_policy import CLASS_RESOURCE, LENIENT

Zones = tuple[int, ...]  # of a device, by the kernel's numbers; () where none is known

COMMON: Final = "the next devices could also go to pods on other nodes"
OUT_OF_TURN: Final = (
    "other pods wait for devices there: until they have them, the NUMA zones of the devices of one more pod cannot be "
    "predicted"
)


class NodeAsk(msgspec.Struct, frozen=True):
    """What one kind of pods asks of a node's devices. ``search_class``: equal where the search goes alike, zones aside.

    ``known``: what requests refer to, with so many steps for one search. ``held``: devices that each of the pods has
    already, by claims that it names. ``roots``: the zones of the node's PCIe roots.
    """

    search_class: Hashable
    claims: Sequence[Claim]
    devices: NodeDevices
    known: Callable[[int], RequestContext]
    held: tuple[DeviceId, ...] = ()
    roots: Mapping[str, int] = msgspec.field(default_factory=dict)

    @property
    def own(self) -> Hashable:
        """What of it is this node's alone: devices that pods have already go by their names."""
        return (self.devices.hardware.node.name, self.held) if self.held else ()

    @property
    def zones(self) -> tuple[Zones, ...]:
        """The zones of all its devices, in their order."""
        return tuple([one.device.numa_zones(self.roots) for one in self.devices.hardware.candidates])


class FirstFit(NamedTuple):
    """What one pod is given: its devices, with their zones; and what becomes of these where they count for its wish.

    ``unknown``: why there are none, or of which zones they are is not known. ``none``: there are none as things stand.
    """

    zones: DeviceZones = DeviceZones(())
    unknown: str = ""
    none: bool = False


class FirstFits:
    """What pods of one kind are given on a node, one after another; searched as far as somebody asks.

    ``wished``: the resources of the wish (`PodShape.wish_resources`). What the search may cost is limited, as in
    `engine.devices.kinds`.
    """

    def __init__(self, here: NodeAsk, wished: Sequence[str]) -> None:
        self._wished = wished
        known = here.known(LOOK_STEPS)
        self._budget = known.budget
        self._prepared = prepare(here.devices.hardware, here.claims, known)
        self._in_use = here.devices.in_use
        self._claims = here.claims
        self._held = here.held
        self._zones = {
            one.device_id: zones for one, zones in zip(here.devices.hardware.candidates, here.zones, strict=True)
        }
        self._found: list[FirstFit] = []

    def fit_after(self, at: int) -> FirstFit:
        """What the pod after so many others is given. After one of whom that is not known, it is of nobody."""
        while len(self._found) <= at and not (self._found and self._found[-1].unknown):
            self._found.append(self._next())
        return self._found[min(at, len(self._found) - 1)]

    def _next(self) -> FirstFit:
        hardware = self._prepared.hardware
        # The device may be on another node by the time the pod runs, or this node does not publish it any more.
        lost = [one for one in self._held if one not in self._zones or one in hardware.common]
        if lost:
            return FirstFit(
                unknown=f"device {'/'.join(lost[0])} of a claim that the pods name is not on this node alone"
            )
        if not self._claims:
            return _zoned(self._held, self._zones)
        found = allocate(self._prepared, self._in_use, self._budget)
        if not found.allocated:
            return FirstFit(unknown=found.message, none=True)
        # Before the devices count as in use: pods on other nodes may take them first, and everything after is a guess.
        if not hardware.common.isdisjoint(found.allocated_devices()):
            return FirstFit(unknown=COMMON)
        # The next pod finds these taken. Held devices are not added, for its own claims hold them anyway.
        self._in_use = self._in_use.with_uses(found.uses(), shares=hardware.features.consumable_capacity)
        return _zoned([*wished_devices(self._claims, found, self._wished), *self._held], self._zones)


def wished_devices(claims: Sequence[Claim], found: Allocation, wished: Sequence[str]) -> list[DeviceId]:
    """Those that count for a wish: all, or those of the DeviceClasses that it names; not what is only looked at."""
    devices = []
    for claim, given in zip(claims, found.claims, strict=True):
        classes: dict[str, str] = {}
        for request in claim.requests:
            if request.exactly is not None:
                classes[request.name] = request.exactly.class_name
            classes |= {f"{request.name}/{one.name}": one.class_name for one in request.alternatives}
        devices += [
            one.device
            for one in given
            if not one.admin and (not wished or f"{CLASS_RESOURCE}{classes.get(one.request)}" in wished)
        ]
    return devices


def _zoned(devices: Sequence[DeviceId], known: Mapping[DeviceId, Zones]) -> FirstFit:
    zones: set[int] = set()
    for one in devices:
        if not (told := known[one]):
            return FirstFit(
                unknown=f"device {'/'.join(one)} would be used, and its driver publishes no NUMA zone for it"
            )
        zones.update(told)
    needed = 1
    # By driver: GPUs and NICs need zones each for themselves, and the wish takes the larger number.
    for driver, count in Counter(driver for driver, _, _ in devices).items():
        held = Counter(told[0] for (of, _, _), told in known.items() if of == driver and told)
        needed = max(needed, fewest(tuple(held.values()), count, len(held)))
    return FirstFit(DeviceZones(tuple(sorted(zones)), needed))


@lru_cache(maxsize=1 << 12)
def aligned(ask: DeviceAsk, shape: PodShape | None) -> DeviceAsk:
    """The same of pods of a shape; ``aligned`` where their devices have to be in the zones of the rest."""
    text = ""
    if shape is not None and shape.wish not in LENIENT and _names(shape, ask):
        text = sha256(msgspec.json.encode(shape)).hexdigest()[:32]  # anybody may make large shapes
    return ask if ask.aligned == text else msgspec.structs.replace(ask, aligned=text)


def _names(shape: PodShape, ask: DeviceAsk) -> bool:
    """Whether a wish is about any of the devices."""
    named = {f"{CLASS_RESOURCE}{one}" for one in classes_of(ask)}
    if ask.claims and names_classes(shape):
        return True
    return not shape.wish_resources or not named.isdisjoint(shape.wish_resources)


def names_classes(shape: PodShape) -> bool:
    """Whether a wish names classes of devices: of those that a claim has already the class is not known."""
    return any(one.startswith(CLASS_RESOURCE) for one in shape.wish_resources)


def out_of_turn(ask: DeviceAsk, waiting: Iterable[DeviceAsk]) -> bool:
    """Whether others wait for devices of a node beside whom nobody can tell which devices one or the other gets."""
    return any((one.aligned or ask.aligned) and (one.aligned, one.key) != (ask.aligned, ask.key) for one in waiting)
