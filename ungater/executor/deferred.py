"""Writes that can wait until there is nothing better to do, such as who of a workload's pods are ready."""

import asyncio
from collections.abc import Callable, Collection

from clock import Clock
from clock.turns import InTurn
from ungater.model.job_view import namespace_of

TICK = 0.5  # seconds
BATCH = 64  # at a tick
AT_MOST = 30.0  # seconds that a write is put off while others are busy


class DeferredWrites:
    """By id of the job.

    ``idle``: whether nothing better is to be done; ``requeue``: have a job be looked at; ``known``: ids of all jobs.
    """

    def __init__(
        self,
        idle: Callable[[], bool],
        requeue: Callable[[str], None],
        known: Callable[[], Collection[str]],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._idle = idle
        self._requeue = requeue
        self._known = known
        self._due: dict[str, float] = {}  # by id: when it is due
        self._now: set[str] = set()  # ids whose writes are to be made at the next look

    def defer_write(self, job: str, delay: float) -> bool:
        """Whether a write waits: ``delay`` seconds at least, and from then on until there is nothing better to do."""
        if not delay or job in self._now:
            return False
        # The first wish counts: a state that keeps changing would else put the write off without end.
        self._due.setdefault(job, self._clock.monotonic() + delay)
        return True

    def done(self, job: str) -> None:
        """It was written, or there is nothing to write any more."""
        self._now.discard(job)
        self._due.pop(job, None)

    def needless(self, job: str) -> None:
        """There is nothing to write any more."""
        self._due.pop(job, None)

    async def run(self) -> None:
        """Have those be looked at that are due, for ever."""
        while True:
            await asyncio.sleep(TICK)
            now = self._clock.monotonic()
            self._now &= set(self._known())
            idle = self._idle()
            due: InTurn[str] = InTurn()
            for job, at in self._due.items():
                # A busy controller delays such a write, and does not starve it.
                if at <= now and (idle or now - at > AT_MOST):
                    due.append(namespace_of(job), job)
            for job in [due.popleft() for _ in range(min(BATCH, len(due)))]:
                del self._due[job]
                self._now.add(job)
                # `_now` lets the write pass `defer_write` at that look: it is decided again by what is true then.
                self._requeue(job)
