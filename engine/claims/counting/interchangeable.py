"""Pods that take any of some devices: it decides how many of them are free, and not which.

Of such pods the search need not be made: each takes so many of a set of devices, as long as there are as many. A set is
of devices that several nodes reach (`engine.claims.hardware.NodeHardware.common`), or has none of these.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from engine.claims.allocate import Prepared
from engine.claims.budget import Budget
from engine.claims.errors import AllocationError, SearchLimitError
from engine.claims.hardware import NodeHardware
from engine.claims.model import EXACT_COUNT, DeviceId
from engine.claims.searching.requests import Ready

MOST_DEEP: Final = 128  # devices, requests and claims of a pod: a search goes deeper than that before it is given up


class DeviceSets(msgspec.Struct, frozen=True):
    """What each pod takes on some hardware: (indexes of devices, how many of them). No device is in two sets."""

    sets: tuple[tuple[frozenset[int], int], ...]

    @classmethod
    def from_prepared(cls, prepared: Prepared, budget: Budget) -> "DeviceSets | None":
        """Of pods that are alike; None where more than numbers decides what they get, or budget is left no more."""
        hardware, found = prepared.hardware, dict[frozenset[int], int]()
        if not one_set_each(prepared, hardware, budget, found) or not disjoint(found):
            return None
        # Beyond, the search itself may be given up, and a count by numbers would promise what no search finds.
        deep = sum(found.values()) + sum(1 + len(requests) for _, requests in prepared.claims)
        if deep > MOST_DEEP or not all(_of_one_sort(hardware, devices) for devices in found):
            return None
        return cls(tuple(found.items()))

    def count(self, busy: frozenset[int], limit: int) -> int:
        """How many pods get their devices while these are taken, ``limit`` at most."""
        return min([len(devices - busy) // each for devices, each in self.sets], default=limit)


def common_of(hardware: NodeHardware, devices: Iterable[int]) -> frozenset[DeviceId]:
    """Those of some devices that several nodes reach."""
    if not hardware.common:
        return frozenset()
    return hardware.common.intersection([hardware.candidates[index].device_id for index in devices])


def _of_one_sort(hardware: NodeHardware, devices: Iterable[int]) -> bool:
    """Whether other nodes reach all of some devices, as an allocation says it, or none."""
    common = common_of(hardware, devices)
    reached = [hardware.candidates[index] for index in devices]
    # An allocation repeats only selectors of one term. A device with more terms is found by the search and then fails
    # the pod.
    return not common or all(one.device_id in common and one.reach.repeatable for one in reached)


def uncounted(prepared: Prepared, budget: Budget) -> frozenset[DeviceId]:
    """The devices that such pods are not counted on, as several nodes reach them.

    None where their number decides: it is bounded for all these nodes together (`engine.devices.common`).
    """
    common = prepared.hardware.common
    # Without sets it is not known which of the common devices the pods get, so none of them is counted on.
    return common if common and DeviceSets.from_prepared(prepared, budget) is None else frozenset()


class Takers(msgspec.Struct):
    """Pods that are alike, one after another. What they are not counted on is looked for once, when it matters."""

    prepared: Prepared
    budget: Budget
    _uncounted: frozenset[DeviceId] | None = None

    def count_on(self, devices: Iterable[DeviceId]) -> bool:
        """Whether one of them that is given these devices counts."""
        if self.prepared.hardware.common.isdisjoint(devices):
            return True
        if self._uncounted is None:
            self._uncounted = uncounted(self.prepared, self.budget)
        return not self._uncounted


def one_set_each(prepared: Prepared, hardware: NodeHardware, budget: Budget, into: dict[frozenset[int], int]) -> bool:
    """Whether each request of a pod takes any of some devices; adds these, and how many of them it takes."""
    if prepared.failed is not None or any(claim.constraints for claim, _ in prepared.claims):
        return False
    for alternatives in (one for _, requests in prepared.claims for one in requests):
        request = alternatives[0]
        # Only a request that simply asks for so many of a class.
        if len(alternatives) > 1 or request.ask.mode != EXACT_COUNT or request.ask.capacity:
            return False
        if request.admin or request.count <= 0:
            return False
        found = _devices_for_request(request, hardware, budget)
        if found is None:
            return False
        into[found] = into.get(found, 0) + request.count
    return True


def disjoint(sets: Iterable[frozenset[int]]) -> bool:
    """Whether no two share a device."""
    seen: set[int] = set()
    for devices in sets:
        if not seen.isdisjoint(devices):
            return False
        seen |= devices
    return True


def _devices_for_request(request: Ready, hardware: NodeHardware, budget: Budget) -> frozenset[int] | None:
    """The devices that a request may be given, whoever uses them; None where more than that decides."""
    features, found = hardware.features, list[int]()
    try:
        for index, one in enumerate(hardware.candidates):
            if not request.matches(index, one, hardware, budget):
                continue
            # Counters and shares decide beside the number: one device taken may cost another.
            if one.device.uses or one.device.shareable or one.slice.skips_node_operations:
                return None
            if features.consumable_capacity and request.consumption_of(index, one, features).amounts is None:
                continue
            # Last, as in the search: an expression that fails on a tainted device ends the pod too.
            if not features.taints or request.tolerates(index, one):
                found.append(index)
    except (AllocationError, SearchLimitError):
        return None
    return frozenset(found)
