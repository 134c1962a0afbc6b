"""Pod after pod, container after container, on many machines at once: where no formula gives the count.

Each turn places one container on every machine that is still in: in the zone or set of zones that its kubelet picks,
the first in its order of those it prefers. What the container takes there decides what the next one finds. A machine
goes out when it refuses a container. Only for single-numa-node and restricted.

Which zone of a set gives how much depends on cores and devices. Often that does not matter: restricted takes the fewest
zones that could hold a container at all, so each of them has to give something of everything; where the set has no more
of one thing than is asked for, none of its zones takes part in a second such pod.
"""

from functools import lru_cache
from typing import Final

import numpy as np

from engine.arrays import Ints
from engine.kubelet.machine import TopologyPolicy
from engine.numa.batch.masks import Bools, Sets, Workspace, sets_of
from engine.numa.batch.zones import holds_zone, in_sets, knows_sets
from engine.numa.columns import Scratch, View
from engine.numa.layout_class import Traits
from engine.numa.zone_requests import ZoneRequest

UNKNOWN: Final = -1


class SequentialTurns:
    """Machines that take one pod after another, all of one shape.

    ``at`` tells which are still in; ``unknown`` which are out because only the exact admission can tell what they do.
    """

    def __init__(self, view: View, asks: tuple[ZoneRequest, ...], space: Workspace) -> None:
        self.now = Scratch.copy_view(view, sharing=view.kind.traits.exact or len(asks) > 1)
        self.at = np.arange(view.width)
        self.unknown: list[Ints] = []
        self._asks = asks
        self._wide = view.kind.traits.kubelet.policy is TopologyPolicy.RESTRICTED
        self._space = space

    def pod(self) -> Ints:
        """Place one pod on every machine that is still in: the zones it took there, as masks; the others go out."""
        took = np.zeros(len(self.at), np.int64)
        if not self.now.kind.traits.exact:
            self.now.shares[:] = 0  # which zones share memory is known within a pod only
        for ask in self._asks:
            masks = self._pick(ask)
            self.unknown.append(self.at[masks == UNKNOWN])
            stay = (masks > 0).nonzero()[0]
            if len(stay) < len(masks):
                masks, took = masks[stay], took[stay]
                self._keep_machines(stay)
            if ask.rows:
                took |= masks
                self._take_zones(ask, masks)
        return took

    def _keep_machines(self, places: Ints) -> None:
        """The machines at these places stay in."""
        self.at, self.now = self.at[places], self.now.select_columns(places)

    def _pick(self, ask: ZoneRequest) -> Ints:
        """The zones a container gets, as a mask; 0 where it is refused, UNKNOWN where that is not known."""
        holds = holds_zone(self.now, ask, self._space)
        masks: Ints = np.where(holds.any(axis=0), 1 << holds.argmax(axis=0), 0)
        masks[self.now.lost] = UNKNOWN
        if self._wide and ask.rows:
            none = (masks == 0).nonzero()[0]
            if len(none):
                masks[none] = self._pick_set(self.now.select_columns(none), ask)
        return masks

    def _pick_set(self, view: View, ask: ZoneRequest) -> Ints:
        if not knows_sets(view, ask):
            return np.full(view.width, UNKNOWN)
        found = np.zeros(view.width, np.int64)
        for some, sets, holds in in_sets(view, ask, self._space):
            found[some] = first(sets, holds, view.kind.traits)
        return found

    def _take_zones(self, ask: ZoneRequest, masks: Ints) -> None:
        now = self.now
        wide = masks & (masks - 1) != 0
        if wide.any():
            self._take_sets(ask, wide.nonzero()[0], masks[wide])
        column = (~wide).nonzero()[0]
        # The ones below the lowest bit of a mask are as many as the number of its zone.
        zone = np.bitwise_count((masks & -masks) - 1)[column]
        for row, amount in ask.pairs:
            now.left[row, zone, column] -= amount
        if ask.memory and now.grouped:
            for at in range(now.zones):
                np.copyto(now.shares[at], masks, where=masks >> at & 1 != 0)

    def _take_sets(self, ask: ZoneRequest, column: Ints, masks: Ints) -> None:
        """A container that takes several zones each: where it is not clear what is left there, the machine is lost."""
        traits = self.now.kind.traits
        if not traits.exact:
            # Where only amounts are known, zones are taken to give what they have one after another.
            for row, amount in ask.pairs:
                rest = np.full(len(column), amount)
                for zone in range(self.now.zones):
                    have = self.now.left[row, zone, column]
                    part = np.where(masks >> zone & 1, np.minimum(have, rest), 0)
                    self.now.left[row, zone, column] = have - part
                    rest -= part
            return
        inside = (masks >> np.arange(self.now.zones)[:, None] & 1).astype(np.bool_)
        left = {row: self.now.left[row][:, column] for row, _ in ask.pairs}
        last = np.zeros(len(column), np.bool_)
        drained = np.zeros(len(column), np.bool_)
        for row, amount in ask.pairs:
            last |= left[row].sum(axis=0) < 2 * amount
            drained |= (left[row] * inside).sum(axis=0) == amount
        # Both arguments are about a second pod that asks for the same; the next container may ask for less.
        if len(self._asks) > 1:
            last[:] = drained[:] = False
        # All is taken off where nothing more fits: what is left of a zone exactly does not matter then.
        gone = inside & drained | last
        for row, have in left.items():
            have[gone] = 0
            self.now.left[row][:, column] = have
        self.now.lost[column[~(last | drained)]] = True


def first(sets: Sets, holds: Bools, traits: Traits) -> Ints:
    """Of the sets that hold a pod, the one that the kubelet takes, as a mask; 0 where none does."""
    order = _order(sets.width, traits)
    ranked = holds[order]
    found: Ints = np.where(ranked.any(axis=0), sets.masks[order][ranked.argmax(axis=0)], 0)
    return found


@lru_cache(maxsize=256)
def _order(width: int, traits: Traits) -> Ints:
    """Rows of `sets_of` as the kubelet prefers those sets: the closer ones first if it cares, then by number."""
    sets = sets_of(traits.zones, width)
    near = np.zeros(len(sets.masks), np.int64)
    if traits.distances:
        distances = np.array(traits.distances)
        near = np.einsum("sa,ab,sb->s", sets.members, distances, sets.members)
    return np.lexsort((sets.masks, near))
