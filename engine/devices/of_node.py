"""What is known of the devices of one node, and how many pods that is."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.claims.asks import DeviceAsk
from engine.claims.counting.looks import NodeDevices

# Small enough that sums over all nodes stay within 64 bits.
UNLIMITED: Final = (1 << 31) - 1  # pods that ask a node for no devices


class BothStates(msgspec.Struct, eq=False):
    """One node: its devices and what claims hold of them (``now``), and the same if they held nothing."""

    now: NodeDevices
    bare: NodeDevices


def pod_count(ask: DeviceAsk, fit: int | None) -> int | None:
    """How many pods that is for whose claims fit so many times; None where that is not known."""
    # The pods share one claim: once its devices fit, one pod more takes nothing.
    return UNLIMITED if ask.shared and fit else fit


def bar_nodes(counts: Ints, places: Sequence[int]) -> Ints:
    """Counts by place, of which some nodes take nobody; where nothing is asked of their devices they do."""
    if not places:
        return counts
    # The counts belong to whoever keeps them (`NodeCounts.values`).
    found = counts.copy()
    found[places] = np.where(counts[places] < UNLIMITED, 0, UNLIMITED)
    return found
