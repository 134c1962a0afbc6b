"""Kubelets that would compare hints for minutes before they admit a pod: such pods are not sent there.

Under best-effort and restricted a kubelet goes through every combination of one hint a resource. On 8 zones that is 255
to the power of the resources: with three it takes seconds, with four ten minutes, for every single pod, and the whole
node waits. How many there are depends on the layout and the pod alone, not on what is free.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np

from engine.arrays import Ints
from engine.kubelet.admit import hangs
from engine.kubelet.machine import Layout, PodShape, TopologyPolicy

A_SECOND: Final = 6_000_000  # combinations
# Kubelet 1.36.3 with 8 zones: two resources take 8 ms, three 2.6 s (measured), four some ten minutes (extrapolated). A
# minute lets three pass and stops four.
PATIENCE: Final = 60 * A_SECOND
SHAPES_KEPT: Final = 256
_COMPARES: Final = (TopologyPolicy.BEST_EFFORT, TopologyPolicy.RESTRICTED)


def can_stall(layout: Layout) -> bool:
    """Whether there are pods that this layout's kubelet takes too long for."""
    resources = len(layout.resources) - len(layout.ignored)
    # An upper bound by the layout alone, so that ordinary machines never reach the computation for each pod.
    return layout.kubelet.policy in _COMPARES and _at_most(layout, resources) > PATIENCE


def _at_most(layout: Layout, resources: int) -> int:
    return int(((1 << len(layout.zones)) - 1) ** resources)


@lru_cache(maxsize=1 << 12)
def stalls(layout: Layout, shape: PodShape) -> int:
    """How many combinations its kubelet would compare for a pod, where that takes too long; else 0."""
    if layout.kubelet.policy not in _COMPARES:
        return 0
    named = {resource for one in shape.containers for resource, _ in (*one.requests, *one.limits)}
    if _at_most(layout, len(named & set(layout.resources))) <= PATIENCE:
        return 0
    # The bound above counts resources by name. Most of them have fewer hints, so the product itself decides.
    found = hangs(layout, shape)
    return found if found > PATIENCE else 0


class Stalling:
    """The machines that take too long for some pods, and their places in the table, which ``index`` tells."""

    def __init__(self, index: Callable[[str], int | None]) -> None:
        self._index = index
        self._layouts: dict[str, Layout] = {}
        self._kept: dict[PodShape, Ints] = {}

    def set(self, name: str, layout: Layout | None) -> None:
        """A machine came, changed or went."""
        before = self._layouts.pop(name, None)
        if layout is not None and can_stall(layout):
            self._layouts[name] = layout
        # By identity: an equal layout in a new object clears the cache once too often, which is harmless.
        if before is not self._layouts.get(name):
            self._kept.clear()

    def clear_places(self) -> None:
        """Nodes have other places now."""
        self._kept.clear()

    def counts_without_stalls(self, shape: PodShape, counts: Ints) -> Ints:
        """The same counts, with none where the kubelet would take too long."""
        if not self._layouts:
            return counts
        where = self._kept.get(shape)
        if where is None:
            # All at once: shapes come from pod templates, and a tenant may write as many as it likes.
            if len(self._kept) >= SHAPES_KEPT:
                self._kept.clear()
            found = [(self._index(name), layout) for name, layout in self._layouts.items()]
            stalling = [index for index, layout in found if index is not None and stalls(layout, shape)]
            where = self._kept[shape] = np.array(stalling, np.int64)
        if not len(where):
            return counts
        cut = counts.copy()
        cut[where[where < len(cut)]] = 0
        return cut
