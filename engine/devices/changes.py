"""Which nodes changed since somebody looked."""

from typing import Final

# A reader that comes less often than once in so many changes counts all nodes, which then costs about as much.
_KEPT: Final = 4096


class ChangeLog:
    """Names of nodes in the order in which they changed; a place in it is a number that only grows."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._start = 0

    @property
    def end(self) -> int:
        """The place after the last change."""
        return self._start + len(self._names)

    def add(self, name: str) -> None:
        """A node changed."""
        # All at once: a reader that is behind gets None from `changed_since`, and never a part of the changes.
        if len(self._names) >= _KEPT:
            self._start += len(self._names)
            self._names = []
        self._names.append(name)

    def changed_since(self, place: int) -> set[str] | None:
        """The nodes that changed from a place on; None where that is not known any more: all may have."""
        return set(self._names[place - self._start :]) if place >= self._start else None
