"""What is left inside one machine, from its report and from what is known to be on it. Plain functions.

Amounts are added and subtracted as they are and cut at zero only when they are read, so that what is taken and given
back leaves no trace, in whatever order. Full state is rebuilt step by step instead, because which CPUs a pod gets
depends on those before it: the steps are in one order, whatever order the events came in.
"""

from collections.abc import Iterable
from functools import lru_cache
from operator import gt
from typing import NamedTuple

from engine.kubelet.admit import admit, placement_of
from engine.kubelet.charge import charge
from engine.kubelet.machine import (
    CPU,
    MEMORY,
    Declared,
    Layout,
    Machine,
    NumaPlacement,
    PodShape,
    Qos,
    State,
    TopologyPolicy,
)
from engine.kubelet.resource_requests import is_device

ADMISSIONS_KEPT = 1 << 13  # a few kilobytes each
asked = lru_cache(maxsize=ADMISSIONS_KEPT)(admit)


def granted(machine: Machine, state: State, shape: PodShape) -> tuple[NumaPlacement, State] | None:
    """(what a pod gets in this state of a machine, what is left then); None where it is not admitted."""
    admission = asked(machine.layout, state, shape)
    if not admission.admitted:
        return None
    # Names differ from machine to machine, and layouts do not: only placements without names are worth a cache.
    if machine.device_ids:
        return placement_of(machine, admission), admission.after
    return _without_names(machine.layout, state, shape), admission.after


@lru_cache(maxsize=ADMISSIONS_KEPT)
def _without_names(layout: Layout, state: State, shape: PodShape) -> NumaPlacement:
    return placement_of(layout, asked(layout, state, shape))


class Taker(NamedTuple):
    """A pod or a slot inside a machine: what its kubelet looks at, and what it holds, each where known."""

    shape: PodShape | None
    placement: NumaPlacement | None


@lru_cache(maxsize=1 << 12)
def inner(shape: PodShape | None) -> PodShape | None:
    """The shape, or None where such a pod takes nothing inside a node and no kubelet can refuse it for what it holds.

    That is so for pods that are not Guaranteed, limit no devices, and have no wish of their own.
    """
    if shape is None or shape.qos is Qos.GUARANTEED or shape.wish is not TopologyPolicy.NONE or shape.gpu_link:
        return shape
    return shape if any(map(is_device, _named_by(shape))) else None


def alignable(shape: PodShape, *, cores: bool) -> tuple[str, ...]:
    """The resources that a kubelet may align for such a pod, by name: devices; and, with ``cores``, CPU and memory."""
    wide = cores and shape.qos is Qos.GUARANTEED
    return tuple(sorted(name for name in _named_by(shape) if (name in {CPU, MEMORY} and wide) or is_device(name)))


def _named_by(shape: PodShape) -> set[str]:
    return {resource for container in shape.containers for resource, amount in (*container.limits, *container.requests)}


def same_amounts(one: NumaPlacement | None, other: NumaPlacement | None) -> bool:
    """Whether two placements take the same amounts of the same zones; which devices does not matter."""
    if one is None or other is None:
        return one is other
    return _outline(one) == _outline(other)


def _devices_of_placement(placement: NumaPlacement) -> dict[str, set[str]]:
    """The devices that a placement names, by resource."""
    found: dict[str, set[str]] = {}
    for use in placement.zones:
        for resource, names in use.devices.items():
            found.setdefault(resource, set()).update(names)
    return found


def _outline(placement: NumaPlacement) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for use in placement.zones:
        amounts = found.setdefault(use.zone, {})
        for resource, amount in use.amounts.items():
            if amount:
                amounts[resource] = amounts.get(resource, 0) + amount
    return {zone: amounts for zone, amounts in found.items() if amounts}


def places_of(layout: Layout) -> tuple[dict[int, int], dict[str, int]]:
    """(zone by kubelet id, row by resource)."""
    zones = {zone.id: at for at, zone in enumerate(layout.zones)}
    return zones, {resource: at for at, resource in enumerate(layout.resources)}


def fits_zones(layout: Layout, placement: NumaPlacement) -> bool:
    """Whether every zone that a placement names is one of the machine's: an unknown one voids the whole record."""
    zones = {zone.id for zone in layout.zones}
    return all(use.zone in zones for use in placement.zones)


class Amounts:
    """What is left of a machine by amounts alone: ``left[z][r]``, below zero where more is held than there is.

    ``declared_free``: as in `State`.
    """

    __slots__ = ("_declared", "_layout", "_resources", "_stale", "_state", "_zones", "left", "rows")

    def __init__(self, layout: Layout, free: Iterable[Iterable[int]], declared_free: Declared = ()) -> None:
        self._layout = layout
        self._declared = declared_free
        self._zones, self._resources = places_of(layout)
        self.left = [list(row) for row in free]
        self.rows: list[tuple[int, ...]] = [()] * len(self.left)  # the same as a state has it
        self._stale = set(range(len(self.left)))
        self._state: State | None = None

    def apply_placement(self, placement: NumaPlacement, sign: int) -> None:
        """Take (``sign`` 1) or give back (-1) what a placement holds; a void record holds nothing."""
        zones, resources = self._zones, self._resources
        if any(use.zone not in zones for use in placement.zones):
            return
        self._state = None
        for use in placement.zones:
            zone = zones[use.zone]
            row, reported = self.left[zone], self._layout.allocatable[zone]
            self._stale.add(zone)
            for resource, amount in use.amounts.items():
                at = resources.get(resource)
                if at is not None and reported[at] >= 0:
                    row[at] -= sign * amount

    def state(self) -> State:
        """The same as a state: nothing below zero, nothing above what is allocatable."""
        if self._state is None:
            for zone in self._stale:
                row, most = self.left[zone], self._layout.allocatable[zone]
                # The usual case, without a call for each amount: this runs for each changed zone of each node in a
                # cycle.
                plain = min(row, default=0) >= 0 and not any(map(gt, row, most))
                # -1 stays: the zone does not report the resource.
                self.rows[zone] = tuple(
                    row if plain else [min(max(left, 0), limit) for left, limit in zip(row, most, strict=True)]
                )
            self._stale.clear()
            self._state = State(free=tuple(self.rows), declared_free=self._declared)
        return self._state


def stepwise(machine: Machine, state: State, gone: Iterable[NumaPlacement], takers: Iterable[Taker]) -> State:
    """Full state, with what is gone given back and then each taker admitted as its kubelet would.

    Where the kubelet would do otherwise than the placement says, the placement counts. A taker that the kubelet would
    not admit and that has no placement takes nothing.
    """
    # All before the first taker: a pod that comes may need just what another one has given back.
    layout = machine.layout
    for held in gone:
        state = charge(layout, state, held, -1, machine.device_ids)
    for taker in takers:
        placement = taker.placement
        if placement is not None and not fits_zones(layout, placement):
            placement = None
        if taker.shape is not None:
            # The kubelet is asked even if the placement is known: its admission tells the CPUs and devices, which a
            # record by amounts does not.
            found = granted(machine, state, taker.shape)
            if found is not None and (placement is None or agree(placement, found[0])):
                state = found[1]
                continue
        if placement is not None:
            state = charge(layout, state, placement, 1, machine.device_ids)
    return state


def agree(placement: NumaPlacement, admitted: NumaPlacement) -> bool:
    """Whether what was admitted is what a placement says, down to the devices that it names."""
    named, devices = _devices_of_placement(placement), _devices_of_placement(admitted)
    return same_amounts(placement, admitted) and all(
        devices.get(resource) == names for resource, names in named.items()
    )
