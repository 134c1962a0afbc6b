"""Writes of a Workload that an action asks for: one after another, and none that was decided on an older state."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ungater.cache.cache import Cache
from ungater.model.conditions import WantedCondition
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry
from ungater.writers.workloads import Overtaken, WorkloadWriter


class OrderedWrites:
    """See the module."""

    def __init__(self, cache: Cache, writer: WorkloadWriter) -> None:
        self._cache = cache
        self._writer = writer

    async def write_in_order(
        self, entry: WorkloadEntry, write: Callable[[ObservedWorkload], Awaitable[ObservedWorkload]]
    ) -> bool:
        """One write of a Workload, after those under way.

        False where nothing was written: there is none, or it changed meanwhile, and so may what is to be done.
        """
        seen, observed = entry.observed, None
        # Before the lock: from here on nothing is decided about it until the answer is taken over.
        entry.writes.begin_write()
        try:
            async with entry.writes.lock:
                # What came while this waited for the lock may change the
                # decision; the end of this write has it looked at again.
                if seen is None or entry.observed is not seen:
                    return False
                observed = await write(seen)
        except Overtaken as news:
            observed = news.found
            raise
        finally:
            self._cache.workloads.written(entry, observed)
        return True

    async def write_conditions(
        self, entry: WorkloadEntry, wanted: Sequence[WantedCondition], more: Mapping[str, Any] | None = None
    ) -> bool:
        """The same for conditions. ``more``: what else is written into the status."""
        namespace = entry.job.namespace
        return await self.write_in_order(
            entry, lambda observed: self._writer.conditions(namespace, observed, tuple(wanted), more or {})
        )
