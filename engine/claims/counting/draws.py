"""What pods may be given of the devices that several nodes reach (`engine.claims.hardware.NodeHardware.common`)."""

from collections.abc import Sequence
from typing import Final

import msgspec

from engine.claims.allocate import Prepared
from engine.claims.budget import Budget
from engine.claims.counting.interchangeable import DeviceSets, common_of
from engine.claims.errors import AllocationError, SearchLimitError
from engine.claims.hardware import NodeHardware
from engine.claims.model import EXACT_COUNT, MOST_DEVICES, Claim, DeviceId

DeviceSet = frozenset[DeviceId]


class Draws(msgspec.Struct, frozen=True):
    """On one node. ``sets``: each pod takes so many of these, any of them.

    ``loose``: what it may be given otherwise, as many as ``most`` of it. ``whole``: it takes devices of ``sets`` alone,
    and none that binds it to its node. ``unknown``: it takes too many steps to know it, so it may be given anything.
    """

    sets: tuple[tuple[DeviceSet, int], ...] = ()
    loose: DeviceSet = frozenset()
    most: int = 0
    whole: bool = False
    unknown: bool = False

    @property
    def parts(self) -> tuple[tuple[DeviceSet, int], ...]:
        """All that it may be given, with how many at most."""
        return ((self.loose, self.most),) if self.loose else self.sets


NOTHING: Final = Draws()


class DrawsByIndex(msgspec.Struct, frozen=True):
    """The same of all nodes whose devices look alike, by the indexes of devices; ``loose``: None for all of them."""

    sets: tuple[tuple[frozenset[int], int], ...] = ()
    loose: frozenset[int] | None = frozenset()
    unknown: bool = False

    @classmethod
    def from_prepared(cls, prepared: Prepared, budget: Budget) -> "DrawsByIndex":
        """What each of such pods may be given, whoever uses it."""
        found = DeviceSets.from_prepared(prepared, budget)
        if found is not None and budget.left >= 0:
            return cls(found.sets)
        hardware = prepared.hardware
        requests = [one for _, claimed in prepared.claims for alternatives in claimed for one in alternatives]
        # Admin access takes no device from anybody.
        wanted = [one for one in requests if not one.admin]
        try:
            fit = [
                index
                for index, one in enumerate(hardware.candidates)
                if any(request.matches(index, one, hardware, budget) for request in wanted)
            ]
        except AllocationError:
            # An expression fails somewhere, so nothing says which devices such pods get on other nodes: any.
            return cls(loose=None)
        except SearchLimitError:
            return UNKNOWN
        return cls(loose=frozenset(fit)) if budget.left >= 0 else UNKNOWN

    def draws_on_node(self, hardware: NodeHardware, most: int) -> Draws:
        """On one node, of pods that take so many devices at most."""
        loose = hardware.common if self.loose is None else common_of(hardware, self.loose)
        if loose:
            return Draws(loose=loose, most=min(most, len(loose)), unknown=self.unknown)
        sets = [(common_of(hardware, devices), each) for devices, each in self.sets]
        reached = [hardware.candidates[index].device for devices, _ in self.sets for index in devices]
        # A pod with any device of the node alone has to stay there, and cannot share its claim across nodes.
        whole = bool(sets) and all(devices for devices, _ in sets) and not any(one.binds_to_node for one in reached)
        return Draws(tuple([one for one in sets if one[0]]), whole=whole)


UNKNOWN: Final = DrawsByIndex(loose=None, unknown=True)


def most_devices(claims: Sequence[Claim]) -> int:
    """How many devices a pod takes, at most."""
    found = 0
    for claim in claims:
        asks = [(one.exactly, *one.alternatives) for one in claim.requests]
        counts = [
            max(ask.count if ask.mode == EXACT_COUNT else MOST_DEVICES for ask in each if ask is not None)
            for each in asks
            if any(each)
        ]
        found += min(sum(counts), MOST_DEVICES)
    return max(found, 1)
