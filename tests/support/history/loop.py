"""An event loop whose time is virtual and whose order of steps comes from a seed.

Whatever is ready may run next: the loop picks by its ``choose``, so tasks that a network wakes interleave in every way.
Nothing waits really; where nothing is ready, time jumps to the next timer.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop
from unittest.mock import patch

from clock import Clock

EPOCH = 1_795_219_200.0  # 2026-11-21T00:00:00Z


class Loop(asyncio.BaseEventLoop):
    """See the module's rules. ``limit``: steps, after which it is taken for granted that something loops for ever.

    ``clock``: its time, for the code under test.
    """

    def __init__(self, choose: random.Random | None, limit: int = 10**9) -> None:
        super().__init__()
        self._ready = []  # the base class appends to it and clears it
        self.now = 0.0
        self.clock = Clock(now=lambda: EPOCH + self.now, monotonic=self.time)
        self.steps = 0
        self.limit = limit
        self.choose = choose  # None: first come, first served

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        ready, timers = self._ready, self._scheduled
        while timers and timers[0]._cancelled:
            heappop(timers)._scheduled = False
        if not ready:
            if not timers:
                raise RuntimeError("nothing is ready and no timer runs: all wait for ever")
            self.now = max(self.now, timers[0].when())
        while timers and timers[0].when() <= self.now:
            timer = heappop(timers)
            timer._scheduled = False
            if not timer._cancelled:
                ready.append(timer)
        if not ready:
            return
        handle = ready.pop(self.choose.randrange(len(ready)) if self.choose is not None and len(ready) > 1 else 0)
        self.steps += 1
        if self.steps > self.limit:
            self.limit += 10_000  # room to clean up
            raise RuntimeError(f"over {self.steps} steps: something loops without end")
        if not handle._cancelled:
            self.step(handle)

    def step(self, handle: asyncio.Handle) -> None:
        """Do one thing that is ready; whatever else is waits for its end."""
        handle._run()


class _InOrder(dict):
    """A set of tasks that remembers in which order they came."""

    def add(self, task):
        self[task] = None

    def discard(self, task):
        self.pop(task, None)


@contextmanager
def groups_in_order() -> Iterator[None]:
    """Task groups inside cancel their tasks in the order in which these were made.

    asyncio keeps them in a plain set (Python 3.11), whose order comes from where the tasks lie in memory.
    """
    make = asyncio.TaskGroup.__init__

    def made_in_order(self):
        make(self)
        self._tasks = _InOrder()

    with patch.object(asyncio.TaskGroup, "__init__", made_in_order):
        yield
