"""Topology hints: for each resource, which sets of zones could hold what is asked, and how few zones it takes.

The width comes from what is installed (of memory, from what is allocatable), feasibility from what is free: a mask that
holds the amount is a hint, and it is preferred where it has as many zones as the width. Families are as in
`engine.kubelet.hint_merge`.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from engine.kubelet.devices.links import bits
from engine.kubelet.hint_merge import Hints, MaskFamilies, space_of

KEPT: Final = 1 << 15
DEVICES_WHERE_THEY_ARE: Final = (1, 36)  # since then, masks for devices are made of zones that hold some only


@lru_cache(maxsize=KEPT)
def holding(amounts: tuple[int, ...], need: int) -> int:
    """The family of masks whose zones have ``need`` together; amounts below zero count as nothing."""
    totals = [0]
    for amount in amounts:
        have = max(amount, 0)
        totals += [total + have for total in totals]
    # Building the int from a string of bits is linear in the masks; setting bit after bit copies the whole int each
    # time.
    return int("".join(["1" if total >= need else "0" for total in reversed(totals)]), 2) & ~1


@lru_cache(maxsize=KEPT)
def fewest(amounts: tuple[int, ...], need: int, most: int) -> int:
    """The fewest zones that have ``need`` together; ``most`` where that many have not."""
    total = 0
    for width, amount in enumerate(sorted(amounts, reverse=True), start=1):
        total += max(amount, 0)
        if total >= need:
            return min(width, most)
    return most


@lru_cache(maxsize=1 << 12)
def masks_inside(zones: int, space: MaskFamilies) -> int:
    """The family of masks without a zone outside ``zones``."""
    found = (1 << (space.all + 1)) - 2
    for zone in bits(space.all & ~zones):
        found &= ~space.holding[zone]
    return found


def covering(zones: int, space: MaskFamilies) -> int:
    """The family of masks with all of ``zones``."""
    found = (1 << (space.all + 1)) - 2
    for zone in bits(zones):
        found &= space.holding[zone]
    return found


def ranked(family: int, width: int, space: MaskFamilies, also: int = 0) -> Hints:
    """The family as hints: preferred are masks of the width, and those of ``also``."""
    # As topologymanager/policy.go `filterProvidersHints`: an empty list of hints becomes one without a mask, not
    # preferred.
    if not family:
        return Hints(lost=True)
    preferred = family & (space.widths[width] | also)
    return Hints(preferred, family & ~preferred)


def of_sums(
    free: tuple[int, ...],
    installed: tuple[int, ...],
    need: int,
    among: int,
    *,
    must: int = 0,
    also: int = 0,
    narrow: bool = False,
) -> Hints:
    """Hints of what adds up by zone: ``need`` out of masks of the zones ``among`` that have all zones of ``must``.

    ``also``: a family of masks that are preferred whatever their width. ``narrow``: single zones are all that is asked
    for, and only where one zone suffices on an empty machine; much faster.
    """
    space = space_of(len(free))
    if narrow:
        # With a width above one zone the single zones are hints and never preferred, so an empty answer is right.
        return single_zones(free, need, among, must) if max(installed) >= need else Hints()
    family = holding(free, need)
    if among != space.all:
        family &= masks_inside(among, space)
    if must:
        family &= covering(must, space)
    return ranked(family, fewest(installed, need, among.bit_count()), space, also)


def single_zones(free: Sequence[int], need: int, among: int, must: int = 0) -> Hints:
    """Single zones of ``among`` that have ``need``, as preferred hints; ``must`` as in `of_sums`."""
    found = 0
    for zone, have in enumerate(free):
        if have >= need and among >> zone & 1 and not must & ~(1 << zone):
            found |= 1 << (1 << zone)
    return Hints(preferred=found)


def of_sets(free: Sequence[int], installed: Sequence[int], need: int, among: int, fits: Callable[[int], int]) -> Hints:
    """Hints where a unit may belong to several zones: ``free[z]`` and ``installed[z]`` are masks of the units there.

    ``fits(mask)``: how many units a mask has whatever is free, or -1 where the mask is out of the question.
    """
    space = space_of(len(free))
    family, width = 0, among.bit_count()
    for mask in bits(masks_inside(among, space)):
        have = total = 0
        for zone in bits(mask):
            have |= free[zone]
            total |= installed[zone]
        # The width is about the empty machine: masks count for it before anything asks whether they fit now.
        if total.bit_count() >= need:
            width = min(width, mask.bit_count())
        held = fits(mask)
        if held >= 0 and held + have.bit_count() >= need:
            family |= 1 << mask
    return ranked(family, width, space)


@lru_cache(maxsize=256)
def within_sockets(sockets: tuple[int, ...], count: int) -> int:
    """The family of masks whose zones lie on ``count`` sockets; ``sockets`` by zone, -1 where a zone has no CPUs."""
    found = 0
    for mask in range(1, 1 << len(sockets)):
        if len({sockets[zone] for zone in bits(mask)} - {-1}) == count:
            found |= 1 << mask
    return found


def permutations(hints: Sequence[Hints]) -> int:
    """How many combinations of hints the kubelet goes through to merge them."""
    found = 1
    for hint in hints:
        found *= max((hint.preferred | hint.others).bit_count() + hint.free + hint.lost, 1)
    return found
