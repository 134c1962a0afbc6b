"""A queue of keys for an asyncio shell: each key once, never two workers at one key, later where asked.

Namespaces have turns (`clock.turns`): of each of them the first that waits for a worker is served.
"""

import asyncio
import random
from collections.abc import Callable

from clock import Clock
from clock.turns import TurnQueue

FIRST_DELAY = 0.1  # seconds
SHORTEST_DELAY = 0.001  # seconds: after less the clock may show no difference, and who waits for it asks again for ever
LONGEST_DELAY = 30.0
LATEST = 3600.0  # seconds: who asks for a look in a year may be gone long before, and would be kept till then


class WorkQueue:
    """Keys to work on. A key that is added while a worker has it comes again when that worker is done.

    ``namespace``: whose a key is.
    """

    def __init__(self, clock: Clock, namespace: Callable[[str], str]) -> None:
        self._clock = clock
        self._ready: TurnQueue[str] = TurnQueue(namespace)
        self._waiting: set[str] = set()  # in _ready
        self._working: set[str] = set()
        self._requeued: dict[str, float] = {}  # added while being worked on: the smallest delay asked for
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._due: dict[str, float] = {}  # of the timers, monotonic

    def __len__(self) -> int:
        return self._ready.qsize()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is ready and nobody works."""
        return self._ready.empty() and not self._working

    def add(self, key: str, after: float = 0.0) -> None:
        """Have ``key`` worked on after that many seconds, or an hour; the earliest of several wishes holds."""
        # Not into the queue: a second worker would look at the same key.
        if key in self._working:
            self._requeued[key] = min(after, self._requeued.get(key, after))
        elif key in self._waiting:
            return
        elif after > 0:
            # A look that is asked for beyond an hour comes early, finds nothing to do, and asks again.
            loop, after = asyncio.get_running_loop(), min(max(after, SHORTEST_DELAY), LATEST)
            timer, due = self._timers.get(key), self._clock.monotonic() + after
            if timer is not None:
                # The earlier wish holds: the look that it leads to asks for the later one again.
                if self._due[key] <= due:
                    return
                timer.cancel()
            self._due[key] = due
            self._timers[key] = loop.call_later(after, self._fire, key)
        else:
            self._cancel(key)
            self._waiting.add(key)
            self._ready.put_nowait(key)

    async def get(self) -> str:
        """The next key; ``done`` must follow. Waits until there is one."""
        key = await self._ready.get()  # one worker wakes for a key, and not all of them
        self._waiting.discard(key)
        self._working.add(key)
        return key

    def done(self, key: str) -> None:
        """The worker is through with ``key``."""
        self._working.discard(key)
        # After the key is free: added while it counts as worked on, it would be put off for ever.
        if (after := self._requeued.pop(key, None)) is not None:
            self.add(key, after)

    def close(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._due.clear()

    def _fire(self, key: str) -> None:
        self._timers.pop(key, None)
        self._due.pop(key, None)
        self.add(key)

    def _cancel(self, key: str) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            del self._due[key]
            timer.cancel()


def backoff(failures: int, *, first: float = FIRST_DELAY, longest: float = LONGEST_DELAY) -> float:
    """Seconds to wait after so many failures in a row: doubled each time, with up to half of it taken off at random."""
    delay: float = min(longest, first * 2.0 ** min(failures - 1, 16))
    return delay * (1 - random.random() / 2)  # noqa: S311 - jitter, no secret
