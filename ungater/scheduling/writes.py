"""Writes of what the cycle decided: one after another for a workload, and none without an end.

Rules
- What is stored was held before. Where storing fails for certain, what was held before that is held again.
- An error that nobody foresaw costs its own workload a pause, and no other one anything.
- Whatever a write fails with, it is under way no more then: else nothing would be decided for the workload again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from clock import Clock
from engine.reservation_key import ReservationKey
from kube.errors import KubeError, NotFound
from queueing.queues.entry import AssumedAdmission
from ungater.cache.cache import Cache
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry
from ungater.workqueue import backoff
from ungater.writers.workloads import Overtaken

MOST = 16  # under way

Spawn = Callable[[Coroutine[Any, Any, None]], object]
Write = Callable[[WorkloadEntry], Awaitable[object]]
log = structlog.get_logger()


class Writes:
    """See the module's rules. ``spawn`` runs a write beside others, ``requeue(id, seconds)`` has a job looked at."""

    def __init__(self, cache: Cache, *, spawn: Spawn, requeue: Callable[[str, float], None], clock: Clock) -> None:
        self._cache = cache
        self._spawn = spawn
        self._requeue = requeue
        self._clock = clock
        self._limit = asyncio.Semaphore(MOST)
        self._begun: set[int] = set()  # entries (by identity) one of whose writes runs here, and has not ended

    @property
    def under_way(self) -> bool:
        """Whether the API server has yet to answer one."""
        return bool(self._begun)

    def run(self, entry: WorkloadEntry, write: Write) -> None:
        """Write for an entry, after the writes that are under way for it."""
        # Before the task runs: no look may decide anything in between.
        entry.writes.begin_write()
        self._spawn(self._write(entry, write))

    async def _write(self, entry: WorkloadEntry, write: Write) -> None:
        failures = entry.failures
        try:
            # The lock first: one that waits for another write of its
            # workload must not take a place that others could use.
            async with entry.writes.lock, self._limit:
                self._begun.add(id(entry))
                try:
                    await write(entry)
                finally:
                    # Whatever it fails with: it is under way no more, or nothing would be decided for the entry again.
                    if id(entry) in self._begun:
                        self.written(entry, None)
        except Exception as error:  # noqa: BLE001  (told by the guard)
            # With this workload alone: all others are served. What is stored is taken over from its events.
            self._cache.guard.failed("workload", entry.key, error)
            delay = backoff(entry.count_failure())
            self._cache.admissions.end_growth(entry)
            self._cache.admissions.forget_assumed(entry, self._clock.now() + delay)
            self._requeue(entry.id, delay)
        # One that failed is looked at after its own delay.
        if entry.failures <= failures:
            self._requeue(entry.id, entry.until_pods_come)

    def written(self, entry: WorkloadEntry, observed: ObservedWorkload | None) -> None:
        """A write ended: with what the API server has now, None where that is not known."""
        self._begun.discard(id(entry))
        self._cache.workloads.written(entry, observed)

    async def store(
        self,
        entry: WorkloadEntry,
        grant: AssumedAdmission,
        write: Callable[[], Awaitable[ObservedWorkload]],
        stored: Callable[[], None],
        *,
        grows: bool = False,
    ) -> bool:
        """Store what is held already and still stands, then ``stored``; else hold what was held before.

        ``grows``: it is held for more pods of one that is admitted.
        """
        observed = None
        try:
            if not self._stands(entry, grant, grows=grows):
                return False  # it was decided anew meanwhile
            self._is_as_decided(entry)
            observed = await write()
        except Overtaken as news:
            self._forget_assumed(entry, grows=grows)
            observed = news.found
        except KubeError as error:
            delay = backoff(entry.count_failure())
            # Else the room that it gives back would have it tried again at once.
            if entry.grant is not None:
                self._cache.reservations.stop_wanting(entry)
            self._forget_assumed(entry, self._clock.now() + delay, grows=grows)
            self._requeue(entry.id, delay)
            log.warning("admission was not stored", workload=entry.key, error=str(error))
            # The next look makes another one. The watch may be late, and the store have the one that is gone.
            if isinstance(error, NotFound):
                self._cache.workloads.found_gone(entry)
        else:
            # What was decided again while it was written is not undone by this answer, which is taken over as news.
            if self._stands(entry, grant, grows=grows):
                stored()
                return True
        finally:
            self.written(entry, observed)
        return False

    def _stands(self, entry: WorkloadEntry, grant: AssumedAdmission, *, grows: bool = False) -> bool:
        queued = self._cache.queues.entries.get(ReservationKey.for_growth(entry.key) if grows else entry.key)
        # The very same object: an equal one may be another decision, with a write of its own.
        return queued is not None and queued.grant is grant and entry.id in self._cache.entries

    def _is_as_decided(self, entry: WorkloadEntry) -> None:
        """Raises KubeError where its Workload was made anew since, for another queue or with another priority."""
        queued, observed = self._cache.queues.entries[entry.key].workload, entry.observed
        if observed is None:
            return
        if entry.admission is None and observed.queue != queued.queue:
            raise KubeError(f"workload {entry.key} names another queue than the one that admits it")
        if entry.job.queue and (priority := observed.effective_priority) != queued.priority:
            raise KubeError(f"workload {entry.key} has priority {priority}, not {queued.priority} any more")

    def _forget_assumed(self, entry: WorkloadEntry, until: float = 0.0, *, grows: bool) -> None:
        if grows:
            self._cache.admissions.end_growth(entry)
        else:
            self._cache.admissions.forget_assumed(entry, until)
