"""How many will do, where more of them are never easier."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def most(low: int, high: int, attempt: Callable[[int], T | None]) -> T | None:
    """What ``attempt`` gives for the largest number from ``low`` to ``high`` for which it gives something."""
    best: T | None = None
    while low <= high:
        # The lowest number is asked first: where not even that will do, one attempt says so.
        middle = low if best is None else (low + high + 1) // 2
        found = attempt(middle)
        if found is not None:
            best, low = found, middle + 1
        elif best is None:
            return None
        else:
            high = middle - 1
    return best
