"""Every set of a few candidates, in the order in which plans are compared: for an exact answer where that is cheap."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from engine.preemption.model import ChoiceRules


class ChosenSet(NamedTuple):
    """A set: what is compared of its priorities, what it frees, and its members by position."""

    key: tuple[int, ...]
    freed: int
    members: tuple[int, ...]


def subsets(priorities: Sequence[int], freed: Sequence[int], rules: ChoiceRules) -> Iterator[ChosenSet]:
    """All sets but the empty one, the least first."""
    found: list[ChosenSet] = []
    for size in range(1, len(priorities) + 1):
        for members in combinations(range(len(priorities)), size):
            values = [priorities[at] for at in members]
            total = sum([max(value, 0) for value in values])
            key = (size, total) if rules.by_count else (max(values), total, size)
            found.append(ChosenSet(key, sum([freed[at] for at in members]), members))
    # Sorted as a whole: with priorities first, a set of three may come before one of two.
    yield from sorted(found)
