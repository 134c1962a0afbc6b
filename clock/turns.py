"""What waits for its turn: namespaces have turns, and of each of them the first is served.

A namespace that makes and deletes 4,000 pods at once causes as many looks, writes and events: another namespace waits
for one of them, and not for all. Where the number is bounded, the namespace that has most of it loses some first.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


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
        # Taken out and put in again below: a dictionary keeps its order, so the namespace goes behind all others.
        del self._lines[namespace]
        if line:
            self._lines[namespace] = line
        return one

    def pop_for(self, namespace: str) -> T | None:
        """The last one of the namespace that has most, in whose place one of this namespace may wait.

        None where no other has two more than this one.
        """
        longest = max(self._lines, key=lambda name: len(self._lines[name]), default="")
        # A difference of one is let be, or two namespaces would push each other out for ever.
        if len(self._lines.get(longest, ())) <= len(self._lines.get(namespace, ())) + 1:
            return None
        self._size -= 1
        return self._lines[longest].pop()


class TurnQueue(asyncio.Queue[T]):
    """The same to wait for; ``namespace``: whose one is; ``most``: so many wait at most, 0: any number."""

    def __init__(self, namespace: Callable[[T], str], most: int = 0) -> None:
        self._namespace = namespace
        super().__init__(most)

    def make_room(self, namespace: str) -> T | None:
        """What no longer waits so that one of this namespace may, where the queue is full; None: nothing has to go."""
        return self._queue.pop_for(namespace) if self.full() else None

    # asyncio.Queue names these three for its subclasses to override.
    def _init(self, _maxsize: int) -> None:
        self._queue: InTurn[T] = InTurn()

    def _put(self, item: T) -> None:
        self._queue.append(self._namespace(item), item)

    def _get(self) -> T:
        return self._queue.popleft()


class SharedTable(Generic[Key, Value]):
    """A table of ``most`` rows; beyond that the namespace that has most loses the row that it used longest ago.

    ``namespace``: whose a key is.
    """

    def __init__(self, most: int, namespace: Callable[[Key], str]) -> None:
        self._most = most
        self._namespace = namespace
        self._rows: dict[str, OrderedDict[Key, Value]] = {}  # by namespace; the one used last is the last
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def get(self, key: Key) -> Value | None:
        """The row of this key."""
        rows = self._rows.get(self._namespace(key))
        return rows.get(key) if rows is not None else None

    def use(self, key: Key, value: Value) -> Value | None:
        """Have this row; it is the one used last. Returns the one that had to go for it."""
        rows = self._rows.setdefault(self._namespace(key), OrderedDict())
        self._size += key not in rows
        rows[key] = value
        rows.move_to_end(key)
        if self._size <= self._most:
            return None
        # The new row counts already, so a namespace that fills the table loses a row of its own.
        rows = max(self._rows.values(), key=len)
        oldest, _ = next(iter(rows.items()))
        return self.pop(oldest)

    def pop(self, key: Key) -> Value | None:
        """Have no row of this key; returns the one that there was."""
        namespace = self._namespace(key)
        rows = self._rows.get(namespace)
        if rows is None or key not in rows:
            return None
        value = rows.pop(key)
        self._size -= 1
        if not rows:
            del self._rows[namespace]
        return value
