"""What comes free of devices that pods ask for by claims, when candidates go: sums of amounts know nothing of that.

Claims of pods are given back once nobody has them any more, and slots that no pod fills yet give up the devices that
are kept for them. Pods that no queue admitted give back no devices here: whoever made them makes them anew, without a
gate, and kube-scheduler evicts nobody for devices, so they would take what was freed again and again.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.claims.asks import DeviceAsk
from engine.cluster.state import ClusterState
from engine.placement.upper_bounds import UpperBounds
from engine.reservation_key import HolderKey, Role, role_of, whole_of
from queueing.preemption.simulate import SimulatedRemoval
from queueing.queues.usage import FlavorRows, Mask


class DeviceHolder(NamedTuple):
    """A unit by its number, with the pods whose claims have devices, and by node how many slots keep some.

    ``devices``: how many it gives back by itself.
    """

    number: int
    level: int
    pods: frozenset[str]
    slots: tuple[tuple[str, DeviceAsk, int], ...]
    devices: int


class DeviceRelief(msgspec.Struct, frozen=True):
    """For one pod set on one flavor; ``holders``: the candidates that have devices, or slots that keep some."""

    state: ClusterState
    outlook: UpperBounds
    ask: DeviceAsk
    holders: tuple[DeviceHolder, ...]
    _counts: dict[int, Ints] = msgspec.field(default_factory=dict)  # while all are as they were when it was asked

    @classmethod
    def from_removal(
        cls, taking: SimulatedRemoval, outlook: UpperBounds, usage: FlavorRows, eligible: Mask, levels: Ints
    ) -> "DeviceRelief | None":
        """None where no device comes free by anybody's going, or none is asked for. ``levels``: of all owners."""
        ask = outlook.pod_set.devices
        if ask is None:
            return None
        found = [
            DeviceHolder(
                number, int(levels[number]), pods, slots, taking.count_devices(unit, taking.pods_of_unit(unit))
            )
            for number in eligible.nonzero()[0].tolist()
            if role_of(unit := usage.keys[number]) is not Role.POD
            for pods, slots in (_devices_of_unit(taking, unit),)
            if pods or slots
        ]
        return cls(taking.state, outlook, ask, tuple(found)) if found else None

    def count_relieved(self, most: int) -> Ints:
        """``(leaves,) int64``: pods for which there would be devices, were all gone up to a level."""
        found = self._counts.get(most)
        if found is None:
            gone = [one for one in self.holders if one.level <= most]
            slots: dict[str, dict[DeviceAsk, int]] = {}
            for node, ask, units in (each for one in gone for each in one.slots):
                here = slots.setdefault(node, {})
                here[ask] = here.get(ask, 0) + units
            pods = frozenset().union(*(one.pods for one in gone))
            # Asked for all at once: a claim that several share comes free only with the last of them.
            counts = self.state.cluster.devices.relieved(self.ask, pods, slots)
            found = self._counts[most] = counts[self.outlook.tree.span]
        return found

    def sizes(self, size: int) -> Ints:
        """By number of the unit, of which there are so many: the devices that it gives back."""
        found = np.zeros(size, np.int64)
        for one in self.holders:
            found[one.number] = one.devices
        return found


def _devices_of_unit(
    taking: SimulatedRemoval, unit: HolderKey
) -> tuple[frozenset[str], tuple[tuple[str, DeviceAsk, int], ...]]:
    pods, known = taking.pods_of_unit(unit), taking.state.cluster.devices.holders.reserved_pods
    waiting = [(pod.node, pod.devices, 1) for pod in pods if pod.devices is not None]
    return frozenset([pod.key for pod in pods if pod.key in known]), (*waiting, *_slots(taking, unit))


def _slots(taking: SimulatedRemoval, unit: HolderKey) -> Iterator[tuple[str, DeviceAsk, int]]:
    """(node, what is kept there, for how many slots of a unit that no pod fills)."""
    nodes = taking.nodes_of_unit(unit)
    for slots in taking.state.ledger.held.get(whole_of(unit), {}).values():
        ask = slots.assignment.devices
        for node, units in slots.promised.items():
            if ask is not None and (nodes is None or node in nodes):
                yield node, ask, units
