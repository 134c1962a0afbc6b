"""How many pods a node takes whose devices of claims are to come from the NUMA zones of their CPUs and memory.

kube-scheduler gives devices away by its first fit, a kubelet zones by its hints, and neither asks the other. So both
are foreseen, pod by pod in one order (`engine.devices.first_fits`, `engine.kubelet.admit`), and a node takes pods up to
the first whose devices and zones do not meet as its wish has it (`engine.kubelet.numa_policy`). None fits where that
cannot be foreseen: a node that tells nothing of its zones, devices without one, a claim without devices that several
pods name, CPUs that the kubelet does not pin. Where a node's device plugins give what is asked for, its kubelet alone
decides.
"""

from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from engine.arrays import Ints
from engine.claims.asks import OWN, DeviceAsk
from engine.devices.first_fits import FirstFits, NodeAsk, names_classes
from engine.devices.ledger import DeviceLedger
from engine.kubelet.admit import empty
from engine.kubelet.arrival_orders import Free
from engine.kubelet.machine import DeviceZones, Layout, Machine, PodShape, State
from engine.kubelet.numa_policy import NUMA_POLICY, refused_unseen
from engine.kubelet.rebuild import asked
from engine.numa.zone_ledger import NumaLedger

KEPT: Final = 1 << 14
SHARED_CLAIMS: Final = (
    "several pods name a claim that has no devices yet, so the NUMA zones of its devices cannot be predicted"
)
LOST: Final = "a claim that the pods name has lost its devices"
CLASSES: Final = "it names DeviceClasses, and the class of devices that a claim already has is not known"


class ZoneForecast(msgspec.Struct, frozen=True):
    """A pod that is to go to a node now. ``refused``: why its devices and zones do not meet as things stand.

    ``sure``: they do whatever order it and those on their way come in. ``none``: no devices are left, for the moment.
    """

    refused: str = ""
    sure: bool = True
    none: bool = False


class _Walk(NamedTuple):
    """So many pods were looked at, and so many fit; ``end``: why the next does not, "" where none was looked at."""

    looked: int
    fit: int
    end: str


class ClaimZones:
    """See the module. ``name`` gives the node at a place of the table."""

    def __init__(self, devices: DeviceLedger, numa: NumaLedger, name: Callable[[int], str]) -> None:
        self._devices = devices
        self._numa = numa
        self._name = name
        self._fits: dict[Hashable, FirstFits] = {}
        self._walks: dict[Hashable, _Walk] = {}

    def cut(self, ask: DeviceAsk, shape: PodShape, places: Ints, found: Ints, *, emptied: bool = False) -> None:
        """Cut what fits the nodes at these places of the table otherwise, in place.

        ``emptied``: as if nothing ran and no claim held a device.
        """
        for at in np.flatnonzero(found > 0).tolist():
            walk = self._walk(self._name(int(places[at])), ask, shape, int(found[at]), emptied=emptied)
            found[at] = min(int(found[at]), walk.fit)

    def explain_zones(self, name: str, ask: DeviceAsk, shape: PodShape, most: int) -> str:
        """Why a node takes no more pods than it does; "" where that is for no such reason."""
        end = self._walk(name, ask, shape, most, emptied=False).end
        return f"{name}: {end}" if end else ""

    def forecast(
        self, name: str, ask: DeviceAsk, shape: PodShape, free: Free | None, coming: tuple[int, int]
    ) -> ZoneForecast:
        """Of a pod that may be let go to a node now.

        ``free``: what is free there, without slots and without pods on their way; None: nobody knows. ``coming``: how
        many pods are on their way there, all alike; how many of them have no devices yet.
        """
        here, machine = self._ask_on_machine(name, ask)
        if barred := self._barred(ask, here, shape):
            return ZoneForecast(barred, sure=False)
        if here is None:
            return ZoneForecast()
        if machine is None or free is None:
            return ZoneForecast(_unseen(shape), sure=False)
        fits, layout = self._first_fits(here, shape), machine.layout
        alone = _walked(fits, layout, free.least, shape, 0, 1)
        if alone.end:
            return ZoneForecast(alone.end, sure=False, none=fits.fit_after(0).none)
        pods, without = coming
        first = fits.fit_after(0)
        # Pods on their way without devices may be served before this
        # one, so each of the first fits has to lie in the same zones.
        same = not any(
            fits.fit_after(at).unknown or fits.fit_after(at).zones != first.zones for at in range(1, without + 1)
        )
        return ZoneForecast(sure=same and _all_alike(layout, free, _with_claimed_zones(shape, first.zones), pods + 1))

    def devices_by_zone(self, name: str, ask: DeviceAsk) -> dict[int, tuple[str, ...]]:
        """By zone, the devices (``driver/pool/device``) that the scheduler gives to the next pod on a node."""
        (here, _), given = self._ask_on_machine(name, ask), self._devices.first_fit(name, ask)
        if here is None or given is None:
            return {}
        there = {one.device_id: zones for one, zones in zip(here.devices.hardware.candidates, here.zones, strict=True)}
        found: dict[int, list[str]] = {}
        for one in (*here.held, *(use.device for use in given if not use.admin)):
            # A device near several zones is named once, under the first of them.
            for zone in there.get(one, ())[:1]:
                found.setdefault(zone, []).append("/".join(one))
        return {zone: tuple(names) for zone, names in sorted(found.items())}

    # -- inside -----------------------------------------------------------------------------------------------

    def _walk(self, name: str, ask: DeviceAsk, shape: PodShape, most: int, *, emptied: bool) -> _Walk:
        here, machine = self._ask_on_machine(name, ask, emptied=emptied)
        if barred := self._barred(ask, here, shape):
            return _Walk(1, 0, barred)
        if here is None:
            return _Walk(most, most, "")
        if machine is None:
            return _Walk(1, 0, _unseen(shape))
        # Pods that wait for devices come first, so a new pod gets the first fits after theirs.
        layout, before = machine.layout, 0 if emptied else sum(self._devices.waiting.waiting_on_node(name).values())
        left = empty(layout) if emptied else self._numa.state(name)
        if left is None:
            return _Walk(1, 0, _unseen(shape))
        key = here.search_class, here.own, here.zones, shape, layout, left, before
        known = self._walks.get(key)
        # A walk that ended answers for any number of pods; one that did not answers for as many as it looked at.
        if known is None or (known.looked < most and not known.end):
            if len(self._walks) >= KEPT:
                self._walks.clear()
            known = self._walks[key] = _walked(self._first_fits(here, shape), layout, left, shape, before, most)
        return known

    def _ask_on_machine(
        self, name: str, ask: DeviceAsk, *, emptied: bool = False
    ) -> tuple[NodeAsk | None, Machine | None]:
        """What is asked of a node's devices, with the zones of its PCIe roots; its machine, where that is known."""
        here, machine = self._devices.ask_of_node(name, ask, emptied=emptied), self._numa.machines.get(name)
        if here is not None and machine is not None and machine.pcie_roots:
            here = replace(here, roots=machine.pcie_roots)
        return here, machine

    def _barred(self, ask: DeviceAsk, here: NodeAsk | None, shape: PodShape) -> str:
        """Why the devices of claims that pods name are not foreseen; "" where they are."""
        counted, holders = {what for _, what in ask.named}, self._devices.holders
        if any(one not in holders and f"{OWN}{one.partition('/')[2]}" not in counted for one in ask.claims):
            return f"{NUMA_POLICY}: {LOST}"
        if here is not None and here.held and names_classes(shape):
            return f"{NUMA_POLICY}: {CLASSES}"
        return f"{NUMA_POLICY}: {SHARED_CLAIMS}" if ask.shared and here is not None and here.claims else ""

    def _first_fits(self, here: NodeAsk, shape: PodShape) -> FirstFits:
        key = here.search_class, here.own, here.zones, shape.wish_resources
        found = self._fits.get(key)
        if found is None:
            if len(self._fits) >= KEPT:
                self._fits.clear()
            found = self._fits[key] = FirstFits(here, shape.wish_resources)
        return found


def _walked(fits: FirstFits, layout: Layout, state: State, shape: PodShape, before: int, most: int) -> _Walk:  # noqa: PLR0917
    """One pod after another, behind those who wait; ``state`` has what these take already."""
    for fit in range(most):
        first = fits.fit_after(before + fit)
        if first.unknown:
            return _Walk(fit, fit, first.unknown)
        admission = asked(layout, state, _with_claimed_zones(shape, first.zones))
        if not admission.admitted:
            told = admission.reason
            return _Walk(fit, fit, f"{told}: {admission.message}" if admission.message else told)
        state = admission.after
    return _Walk(most, most, "")


def _all_alike(layout: Layout, free: Free, shape: PodShape, count: int) -> bool:
    """Whether so many pods are given the same zones, be anything free meanwhile that may be."""
    zones: set[int] = set()
    # Least and most free are the two ends: a pod that ends meanwhile leaves something between them.
    for start in dict.fromkeys(free):
        state = start
        for _ in range(count):
            admission = asked(layout, state, shape)
            if not admission.admitted:
                return False
            zones.add(admission.zones)
            state = admission.after
    return len(zones) == 1


def _with_claimed_zones(shape: PodShape, zones: DeviceZones) -> PodShape:
    return msgspec.structs.replace(shape, claimed=zones)


def _unseen(shape: PodShape) -> str:
    refused = refused_unseen(_with_claimed_zones(shape, DeviceZones(())))
    return f"{refused.reason}: {refused.message}" if refused is not None else ""
