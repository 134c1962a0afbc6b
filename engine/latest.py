"""What was asked for latest, kept as far as there is room."""

from collections.abc import Callable, Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Latest(dict[K, V]):
    """By key, what was asked for latest is last; the first goes where there is no room for another.

    ``most``: what all may weigh together, where ``weigh`` gives the weight of a key; without it each weighs 1. One that
    weighs more than that is kept alone.
    """

    def __init__(self, most: int, weigh: Callable[[K], int] | None = None) -> None:
        super().__init__()
        self._most = most
        self._weigh = weigh

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """What is kept of a key, or else made now. Raises what ``make`` raises."""
        found = self.pop(key, None)
        if found is None:
            found = make()
            while self and self._weight(key) > self._most:
                del self[next(iter(self))]
        self[key] = found
        return found

    def _weight(self, more: K) -> int:
        """Of all, and of one more."""
        return len(self) + 1 if self._weigh is None else sum(map(self._weigh, (*self, more)))
