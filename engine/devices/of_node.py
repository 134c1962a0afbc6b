"""What is known of the devices of one node, and of pods that ask nodes for different claims."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from engine.arrays import Ints
from engine.claims.asks import DeviceAsk
from engine.claims.count import NodeDevices
from engine.devices.kinds import NodeCounts

UNLIMITED: Final = (1 << 31) - 1  # pods that ask a node for no devices


@dataclass(eq=False, slots=True)
class BothStates:
    """One node: its devices and what claims hold of them (``now``), and the same if they held nothing."""

    now: NodeDevices
    bare: NodeDevices


@dataclass(eq=False, slots=True)
class Varying:
    """Pods that ask nodes for different claims: how many fit each, now and if nothing was held.

    ``keys``: of what is asked (`DeviceAsk.key`).
    """

    now: NodeCounts = field(default_factory=NodeCounts)
    bare: NodeCounts = field(default_factory=NodeCounts)
    keys: set[str] = field(default_factory=set)


def pod_count(ask: DeviceAsk, fit: int) -> int:
    """How many pods that is for whose claims fit so many times."""
    return UNLIMITED if ask.shared and fit > 0 else fit


def barred(counts: Ints, places: Sequence[int]) -> Ints:
    """Counts by place, of which some nodes take nobody; where nothing is asked of their devices they do."""
    if not places:
        return counts
    found = counts.copy()
    found[places] = np.where(counts[places] < UNLIMITED, 0, UNLIMITED)
    return found
