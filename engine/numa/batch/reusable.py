"""Turns of pods with init containers, whose units are lent to the containers after them.

What an init container got stays with the pod, and later containers take from it first; while anything of a resource is
lent, whoever asks for that resource has to be where it is (memory excepted). Between pods nothing is lent.
"""

import numpy as np

from engine.arrays import Ints
from engine.kubelet.resource_requests import is_memory
from engine.numa.batch.masks import Workspace
from engine.numa.batch.sequential import UNKNOWN, SequentialTurns
from engine.numa.batch.zones import barred_zones, widths_of
from engine.numa.columns import View
from engine.numa.count_plans import CountPlan
from engine.numa.zone_requests import ZoneRequest


class LendingTurns(SequentialTurns):
    """``lent[r, z, machine]``: what is lent by the init containers of the pod that is being placed."""

    def __init__(self, view: View, asks: tuple[ZoneRequest, ...], space: Workspace) -> None:
        super().__init__(view, asks, space)
        self.lent = np.zeros_like(self.now.left)
        resources = view.kind.traits.resources
        self._memory = {row for row, resource in enumerate(resources) if is_memory(resource)}

    def pod(self) -> Ints:
        """As for any pod, starting with nothing lent."""
        self.lent[:] = 0
        return super().pod()

    def _keep_machines(self, places: Ints) -> None:
        super()._keep_machines(places)
        self.lent = self.lent[:, :, places]

    def _pick(self, ask: ZoneRequest) -> Ints:
        holds = np.ones(self.lent.shape[1:], np.bool_)
        for row, amount in ask.pairs:
            lent = self.lent[row]
            holds &= self.now.left[row] + lent >= amount
            if row not in self._memory:
                # As the kubelet's CPU and device managers (1.36.3): every later hint has to contain
                # the zones of what is still lent. The memory manager reuses, and constrains nothing.
                holds &= (lent > 0) | ~(lent > 0).any(axis=0)
        for zones in barred_zones(self.now, ask):
            holds[zones] = False
        masks: Ints = np.where(holds.any(axis=0), 1 << holds.argmax(axis=0), 0)
        if self._wide and ask.rows and not ask.narrow:
            none = masks == 0
            masks[none & ((widths_of(self.now, ask) > 1) | (ask.memory > 1))] = UNKNOWN
        return masks

    def _take_zones(self, ask: ZoneRequest, masks: Ints) -> None:
        zone, column = np.bitwise_count(masks - 1), np.arange(len(masks))
        for row, amount in ask.pairs:
            lent = self.lent[row, zone, column]
            from_lent = np.minimum(lent, amount)
            # An init container lends all that it got, what it took of earlier loans included.
            self.lent[row, zone, column] = lent - from_lent + (amount if ask.lends else 0)
            self.now.left[row, zone, column] -= amount - from_lent
        if ask.memory and self.now.grouped:
            self.now.shares[zone, column] = masks


def turns_of(view: View, plan: CountPlan, space: Workspace) -> SequentialTurns:
    """Turns for pods of a plan."""
    return (LendingTurns if plan.lent else SequentialTurns)(view, plan.asks, space)
