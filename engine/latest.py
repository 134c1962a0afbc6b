"""What was asked for latest, kept as far as there is room."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

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
        # Out and in again: the order of the dictionary is that of the latest questions.
        found = self.pop(key, None)
        if found is None:
            found = make()
            # After ``make``, which may raise: nothing is thrown out for a value that is not there.
            while self and self._weight(key) > self._most:
                del self[next(iter(self))]
        self[key] = found
        return found

    def _weight(self, more: K) -> int:
        """Of all, and of one more."""
        return len(self) + 1 if self._weigh is None else sum(map(self._weigh, (*self, more)))


class LatestOfEach(Generic[K, V]):
    """As `Latest`, where several own what is kept: with no room for another, the first goes of who has most.

    So nobody throws out all that others have. "" owns what nobody does yet.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[K, V] = {}
        self._owners: dict[K, str] = {}

    def get_or_make(self, key: K, make: Callable[[], V], owner: str = "") -> V:
        """What is kept of a key, or else made now. Raises what ``make`` raises."""
        # Both out and in again, so that both dictionaries keep the same order.
        found, owned = self._kept.pop(key, None), self._owners.pop(key, "")
        if found is None:
            found = make()
            # The owner with the most entries pays, also if it is not the one that asks: a tenant with many keys only
            # pushes out its own.
            while len(self._kept) >= self._most:
                counts = Counter(self._owners.values())
                most = max(counts.values())
                self.discard(next(one for one, who in self._owners.items() if counts[who] == most))
        # The first to ask stays the owner: otherwise a tenant could hand its entries to others by asking for theirs.
        self._kept[key], self._owners[key] = found, owned or owner
        return found

    def get(self, key: K) -> V | None:
        """What is kept of a key."""
        return self._kept.get(key)

    def owner(self, key: K) -> str:
        """Whose it is."""
        return self._owners.get(key, "")

    def values(self) -> list[V]:
        """All that is kept."""
        return list(self._kept.values())

    def discard(self, key: K) -> None:
        """Keep it no longer."""
        self._kept.pop(key, None)
        self._owners.pop(key, None)

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()
        self._owners.clear()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def __iter__(self) -> Iterator[K]:
        """Their keys; what was asked for latest is last."""
        # A copy, for callers discard entries while they walk.
        return iter(tuple(self._kept))
