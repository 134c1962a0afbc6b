"""Who is served next of those that wait for a worker: the first of each namespace, in turn.

Whoever makes 4,000 pods at once, and deletes them, has as many looks and writes to be made. Another namespace waits for
one of them, and not for all. Within a namespace the first that came is first.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class InTurn(Generic[T]):
    """See the module; without waiting."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[T]] = {}  # by namespace, in the order of their turns
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, namespace: str, one: T) -> None:
        """One more waits; a namespace of which nobody waited has its turn after all others."""
        self._lines.setdefault(namespace, deque()).append(one)
        self._size += 1

    def popleft(self) -> T:
        """The next one. Raises StopIteration where nobody waits."""
        namespace, line = next(iter(self._lines.items()))
        one = line.popleft()
        self._size -= 1
        del self._lines[namespace]
        if line:
            self._lines[namespace] = line
        return one


class TurnQueue(asyncio.Queue[T]):
    """The same to wait for; ``namespace``: whose one is."""

    def __init__(self, namespace: Callable[[T], str]) -> None:
        self._namespace = namespace
        super().__init__()

    # asyncio.Queue names these three for its subclasses to override.
    def _init(self, _maxsize: int) -> None:
        self._queue: InTurn[T] = InTurn()

    def _put(self, item: T) -> None:
        self._queue.append(self._namespace(item), item)

    def _get(self) -> T:
        return self._queue.popleft()
