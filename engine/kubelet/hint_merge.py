"""The kubelet's merge of topology hints, in closed form: the result of its product of hint lists, without the product.

A *family* is a set of zone masks, kept as an int: bit m is set where mask m belongs to it (so 256 bits for 8 zones).
Of one hint of each resource the kubelet takes the AND, preferred where all are and none differ. So:

- A preferred result is a mask that every resource lists as preferred (or accepts because it has no preference): the
  narrowest, and among those the closest (an option) and then the lowest number.
- Else the results are the AND-closure of the lists, and the kubelet wants the width of the resource that needs most:
  a mask of that width, else the widest below it, else the narrowest above, with the same tie-break.
- Else nothing fits together: all zones, not preferred.

Tie-breaks go by number, so zones have to be in the order of their kubelet ids.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from engine.kubelet.devices.links import bits
from engine.kubelet.machine import TopologyPolicy

MEETS_KEPT: Final = 1 << 16


class Hints(NamedTuple):
    """One resource's hints: families of preferred and of other masks.

    ``free`` and ``lost``: a hint with no mask is among them, preferred (no preference) or not (nothing is possible).
    """

    preferred: int = 0
    others: int = 0
    free: bool = False
    lost: bool = False


NO_PREFERENCE: Final = Hints(free=True)
IMPOSSIBLE: Final = Hints(lost=True)


class Merged(NamedTuple):
    """The merged hint; ``mask`` None: no affinity (policy none, and all zones under single-numa-node)."""

    mask: int | None
    preferred: bool


class MaskFamilies(NamedTuple):
    """Families of so many zones: ``widths[w]`` is all masks of w zones, ``holding[z]`` all masks with zone z."""

    zones: int
    all: int
    widths: tuple[int, ...]
    holding: tuple[int, ...]

    @property
    def several(self) -> int:
        """All masks of more than one zone."""
        return ((1 << (self.all + 1)) - 1) & ~(self.widths[0] | self.widths[1])


@lru_cache(maxsize=64)
def space_of(zones: int) -> MaskFamilies:
    """The families of ``zones`` zones."""
    widths = [0] * (zones + 1)
    holding = [0] * zones
    # Doubles with each zone: `engine.kubelet.admit.MOST_ZONES` bounds it.
    for mask in range(1 << zones):
        widths[mask.bit_count()] |= 1 << mask
        for zone in bits(mask):
            holding[zone] |= 1 << mask
    return MaskFamilies(zones, (1 << zones) - 1, tuple(widths), tuple(holding))


def width_of(family: int, space: MaskFamilies) -> int:
    """The fewest zones of a mask in the family; 0 where it is empty."""
    return next((width for width in range(1, space.zones + 1) if family & space.widths[width]), 0)


def lowest(family: int, distances: Sequence[Sequence[int]] = ()) -> int:
    """The first of masks of one width: the closest where distances count, then the lowest number."""
    if not distances:
        return (family & -family).bit_length() - 1
    ranked = []
    for mask in bits(family):
        members = tuple(bits(mask))
        ranked.append((sum(distances[one][other] for one in members for other in members), mask))
    return min(ranked)[1]


@lru_cache(maxsize=MEETS_KEPT)
def meet(one: int, other: int, zones: int) -> int:
    """The family of all ANDs of a mask of one family with a mask of the other."""
    # Split by the highest zone: masks without it are the lower half of the family, masks with it are the upper half. An
    # AND has the zone only if both have it.
    if not one or not other:
        return 0
    if not zones:
        return 1
    half = 1 << (zones - 1)
    below = (1 << half) - 1
    out, has = one & below, one >> half
    other_out, other_has = other & below, other >> half
    both = meet(has, other_has, zones - 1) if has and other_has else 0
    lower = meet(out, other_out | other_has, zones - 1) | meet(has, other_out, zones - 1)
    return lower | both << half


def merge(
    hints: Sequence[Hints], space: MaskFamilies, policy: TopologyPolicy, distances: Sequence[Sequence[int]] = ()
) -> Merged:
    """The hint that the kubelet's Topology Manager makes of those of all resources.

    ``distances`` (by zone of the layout) only with prefer-closest-numa-nodes.
    """
    if policy is TopologyPolicy.NONE:
        return Merged(None, preferred=False)
    if policy is TopologyPolicy.SINGLE:
        hints = [Hints(preferred=hint.preferred & space.widths[1], free=hint.free) for hint in hints]
        # single-numa-node ignores prefer-closest-numa-nodes: one zone is as close to itself as any other.
        distances = ()
    mask = agreed(hints, space, distances)
    if mask:
        # The kubelet turns an affinity of all zones into none here, so on machines of one zone managers use their
        # defaults.
        return Merged(None if policy is TopologyPolicy.SINGLE and mask == space.all else mask, preferred=True)
    if policy is TopologyPolicy.SINGLE:
        return Merged(None, preferred=False)
    return Merged(compromise(hints, space, distances), preferred=False)


def agreed(hints: Sequence[Hints], space: MaskFamilies, distances: Sequence[Sequence[int]] = ()) -> int:
    """The preferred mask; 0 where there is none."""
    # Bit 0 is the empty mask. `width_of` starts at one zone, so it never wins.
    common = (1 << (space.all + 1)) - 1
    named = 0
    for hint in hints:
        named |= hint.preferred
        if not hint.free:
            common &= hint.preferred
    # A mask that no resource lists cannot come out of an AND, even if all resources without a preference would accept
    # it.
    listed = common & named
    if all(hint.free for hint in hints):
        listed |= common & 1 << space.all
    width = width_of(listed, space)
    return lowest(listed & space.widths[width], distances) if width else 0


def compromise(hints: Sequence[Hints], space: MaskFamilies, distances: Sequence[Sequence[int]] = ()) -> int:
    """The mask where none is preferred."""
    # Each AND starts from all zones, as topologymanager/policy.go `mergePermutation` starts from the default affinity.
    results, wanted = 1 << space.all, 0
    for hint in hints:
        masks = hint.preferred | hint.others
        wanted = max(wanted, width_of(masks, space))
        results = meet(results, masks | (1 << space.all if hint.free or hint.lost else 0), space.zones)
    # As topologymanager/policy.go `HintMerger.compare` prefers among hints that are not preferred: the wanted width,
    # otherwise the closest below it, otherwise the closest above.
    order = (wanted, *range(wanted - 1, 0, -1), *range(wanted + 1, space.zones + 1))
    for width in order:
        family = results & space.widths[width]
        if width and family:
            return lowest(family, distances)
    return space.all
