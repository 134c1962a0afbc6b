"""Kunlunxin XPU: which cards a task gets, so that as few tasks as possible still fill the machine.

Rules: a container gets 1, 2, 4 or 8 cards; up to 4 never span NUMA zones (a machine's wings). MTF, Minimized Tasks to
Fill, is the least number of tasks of these sizes that take all free cards. The best choice raises it least, then
crosses fewest wings, then has the lowest cards. A node scores 1000 for each task that the choice saves against one
more: delta MTF -1 gives 2000, 0 1000, 1 0, 2 -1000.

A set of cards is a mask: bit i is card i.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from engine.kubelet.devices.links import bits, mask_of

RESOURCE: Final = "kunlunxin.com/xpu"
SIZES: Final = (1, 2, 4, 8)
IN_ONE_WING: Final = 4  # tasks of up to so many cards never span wings
WING: Final = 4  # cards of a wing where the NUMA zones are not known


class XpuBoard(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """The wings of one machine's cards, as masks; () where the cards are not known one by one."""

    wings: tuple[int, ...] = ()

    def free_by_wing(self, cards: int) -> tuple[int, ...]:
        """How many of the given cards each wing has."""
        return tuple((wing & cards).bit_count() for wing in self.wings)


class CardChoice(msgspec.Struct, frozen=True, gc=False):
    """The cards, and how many tasks more it takes to fill what they leave."""

    cards: int
    delta: int

    @property
    def score(self) -> int:
        """What the choice is worth to its node; more is better."""
        return score(self.delta)


def board(zones: Sequence[int]) -> XpuBoard:
    """The wings of cards with these zone masks; where no zones are known, every four cards are one."""
    if not any(zones):
        zones = [1 << card // WING for card in range(len(zones))]
    wings: dict[int, int] = {}
    for card, zone in enumerate(zones):
        wings[zone] = wings.get(zone, 0) | 1 << card
    return XpuBoard(tuple(sorted(wings.values(), key=lambda wing: wing & -wing)))


def allowed(count: int) -> bool:
    """Whether a task may have so many cards."""
    return count in SIZES


def score(delta: int) -> int:
    """What a node is worth when the choice on it changes its MTF by ``delta``."""
    return 1000 * (1 - delta)


@lru_cache(maxsize=4096)
def mtf(free: tuple[int, ...]) -> int:
    """The fewest tasks that take all free cards; ``free`` is how many each wing has."""
    # Tasks of up to four cards first. Their sizes are powers of two, so the rest of a wing takes one for each bit.
    best = sum(cards // IN_ONE_WING + (cards % IN_ONE_WING).bit_count() for cards in free)
    # A task of 8 may cross wings; smaller ones stay inside, so they are counted wing by wing.
    for left in _wings_after_take(free, max(SIZES)):
        best = min(best, 1 + mtf(left))
    return best


def _wings_after_take(free: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
    """What may be left in each wing when one task takes ``count`` cards from any of them; emptiest first wing first."""
    if not free:
        if not count:
            yield ()
        return
    first, rest = free[0], free[1:]
    # From as many as the first wing gives down to the fewest with which the others can give the rest: no dead ends.
    for taken in range(min(first, count), max(0, count - sum(rest)) - 1, -1):
        for left in _wings_after_take(rest, count - taken):
            yield (first - taken, *left)


def splits(free: tuple[int, ...], count: int) -> Iterator[tuple[int, ...]]:
    """How many cards a task of ``count`` may take from each wing, by the rules alone."""
    if not allowed(count):
        return
    for left in _wings_after_take(free, count):
        taken = tuple(before - after for before, after in zip(free, left, strict=True))
        # Tasks of up to four cards are tried in one wing only, also where two wings together would have enough.
        if count > IN_ONE_WING or sum(map(bool, taken)) == 1:
            yield taken


def best_split(free: tuple[int, ...], count: int, within: tuple[int, ...] | None = None) -> tuple[int, ...] | None:
    """The best number of cards from each wing, where only numbers are known; ``within`` bounds them. None: refused."""
    found = [
        taken
        for taken in splits(free, count)
        if within is None or all(cards <= most for cards, most in zip(taken, within, strict=True))
    ]
    return min(found, key=lambda taken: (delta_mtf(free, taken), _crossed(taken)), default=None)


def delta_mtf(free: tuple[int, ...], taken: tuple[int, ...]) -> int:
    """How many tasks more it takes to fill the machine once ``taken`` is gone."""
    return mtf(tuple(before - gone for before, gone in zip(free, taken, strict=True))) - mtf(free)


def _crossed(taken: tuple[int, ...]) -> int:
    return sum(map(bool, taken)) - 1


@lru_cache(maxsize=4096)
def choose_cards(cards: XpuBoard, free: int, count: int, within: int | None = None, must: int = 0) -> CardChoice | None:
    """The best cards for a task; None where the rules or the free cards allow none.

    ``within``: the cards that may be chosen (None: the free ones); ``must``: cards that the task has to take, counted
    in ``count``, such as those of its init container.
    """
    usable = (free if within is None else within) | must
    # Cards that the pod's init container holds count as free before the choice, so that the change in tasks is that of
    # the whole set.
    counted = cards.free_by_wing(free | usable)
    limits, least = cards.free_by_wing(usable), cards.free_by_wing(must)
    best: tuple[tuple[int, int, tuple[int, ...]], int] | None = None
    for taken in splits(limits, count):
        if any(number < needed for number, needed in zip(taken, least, strict=True)):
            continue
        chosen = must
        for wing, number in zip(cards.wings, taken, strict=True):
            lowest = zip(bits(wing & usable & ~must), range(number - (wing & must).bit_count()), strict=False)
            chosen |= mask_of([card for card, _ in lowest])
        # The lowest cards come last, so that equal machines choose equally and predictions can be compared.
        rank = (delta_mtf(counted, taken), _crossed(taken), tuple(bits(chosen)))
        if best is None or rank < best[0]:
            best = rank, chosen
    return None if best is None else CardChoice(best[1], best[0][0])


def fill(free: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of the fewest tasks that take all free cards, largest first: what the machine is still good for."""
    sizes: list[int] = []
    while any(free):
        rest, size = min(
            (
                (tuple(b - t for b, t in zip(free, taken, strict=True)), size)
                for size in SIZES
                for taken in splits(free, size)
            ),
            key=lambda step: (mtf(step[0]), -step[1]),
        )
        free = rest
        sizes.append(size)
    return tuple(sorted(sizes, reverse=True))
