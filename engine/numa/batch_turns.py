"""Pod after pod, container after container, on many machines at once: where no formula gives the count.

Each turn places one container on every machine that is still in: in the zone or set of zones that its kubelet picks,
the first in its order of those it prefers. What the container takes there decides what the next one finds. A machine
goes out when it refuses a container. Only for single-numa-node and restricted.
"""

from functools import lru_cache

import numpy as np

from engine.numa.asks import Ask
from engine.numa.batch_masks import Bools, Sets, Space, sets_of
from engine.numa.batch_zones import holds_zone, in_sets, knows_sets
from engine.numa.columns import Scratch, View
from engine.numa.machine import TopologyPolicy
from engine.numa.traits import Traits
from engine.table import Ints

UNKNOWN = -1


class Turns:
    """Machines that take one container after another.

    ``at`` tells which are still in; ``unknown`` which are out because only the exact admission can tell what they do.
    """

    def __init__(self, view: View, space: Space) -> None:
        self.now = Scratch.of(view)
        self.at = np.arange(view.width)
        self.unknown: list[Ints] = []
        self._wide = view.kind.traits.kubelet.policy is TopologyPolicy.RESTRICTED
        self._space = space

    def pod(self, asks: tuple[Ask, ...]) -> Ints:
        """Place one pod on every machine that is still in: the zones it took there, as masks; the others go out."""
        took = np.zeros(len(self.at), np.int64)
        for ask in asks:
            masks = self._pick(ask)
            stay = masks > 0
            if not stay.all():
                self.unknown.append(self.at[masks < 0])
                places = stay.nonzero()[0]
                self.at, self.now = self.at[places], self.now.only(places)
                masks, took = masks[places], took[places]
            self._take(ask, masks)
            took |= masks
        return took

    def _pick(self, ask: Ask) -> Ints:
        """The zones a container gets, as a mask; 0 where it is refused, UNKNOWN where that is not known."""
        holds = holds_zone(self.now, ask, self._space)
        masks: Ints = np.where(holds.any(axis=0), 1 << holds.argmax(axis=0), 0)
        if self._wide and ask.rows:
            none = (masks == 0).nonzero()[0]
            if len(none):
                masks[none] = self._pick_set(self.now.only(none), ask)
        return masks

    def _pick_set(self, view: View, ask: Ask) -> Ints:
        if not knows_sets(view, ask) or not view.kind.traits.splits:
            return np.full(view.width, UNKNOWN)
        found = np.zeros(view.width, np.int64)
        for some, sets, holds in in_sets(view, ask, self._space):
            found[some] = first(sets, holds, view.kind.traits)
        return found

    def _take(self, ask: Ask, masks: Ints) -> None:
        """Take what a container asks for: of several zones, from the first of them as much as they have."""
        several = bool((masks & (masks - 1)).any())
        zone, column = np.bitwise_count(masks & -masks - 1), np.arange(len(masks))
        for row, amount in ask.pairs:
            left = self.now.left[row]
            if not several:
                left[zone, column] -= amount
                continue
            rest = np.full(len(masks), amount)
            for at in range(self.now.zones):
                part = np.minimum(left[at], rest) * (masks >> at & 1)
                left[at] -= part
                rest -= part
        if ask.memory and self.now.grouped:
            for at in range(self.now.zones):
                self.now.shares[at] = np.where(masks >> at & 1, masks, self.now.shares[at])


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
