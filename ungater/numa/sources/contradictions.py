"""Zones that cannot be those of their node: whoever published them counted wrong, so amounts of the node decide. Pure.

Rules
- A zone has something, or costs: one without any capacity and without costs, while others have costs, is a name without
  a machine behind it. Node Feature Discovery 0.19 names zones by their place and looks amounts up by number, so that
  NUMA nodes 0 and 2 become ``node-0`` and an empty ``node-1``. (A zone of memory alone, or without CPUs, has costs.)
- The CPUs of the zones add up to what the node has allocatable; a quarter or 2 CPUs more or less are rounding and
  reservations. Other amounts do not count: exporters count hugepages as memory or not, and a device that is near to
  two zones is in both.
"""

from collections.abc import Iterator
from typing import Final

from engine.kubelet.machine import CPU, Layout
from engine.model import Amounts
from engine.quantity import format_quantity

PART: Final = 4
SLACK: Final = 2_000  # milli-CPU
THEN: Final = "the zones are not believed, and the amounts of the node decide"


def contradictions(layout: Layout, allocatable: Amounts) -> Iterator[str]:
    """Why these zones are not those of a node with so much allocatable; nothing where they may be."""
    if any(zone.distances for zone in layout.zones):
        for zone, row in zip(layout.zones, layout.capacity, strict=True):
            if not zone.distances and not any(amount > 0 for amount in row):
                yield f"zone node-{zone.id} has no capacity and no costs: {THEN}"
    have = allocatable.get(CPU, 0)
    total = sum(max(0, row[layout.resources.index(CPU)]) for row in layout.allocatable if CPU in layout.resources)
    if have and total and abs(total - have) > max(max(have, total) // PART, SLACK):  # no CPUs: it divides none of them
        told, expected = format_quantity(CPU, total), format_quantity(CPU, have)
        yield f"the zones have {told} cpu allocatable in all, and the node has {expected}: {THEN}"
