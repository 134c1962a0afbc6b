"""Pods that take long to stop, and hold quota that they borrowed and that its owner takes back.

Rules
- Nobody makes a victim of a workload that is on its way out, nor of a pod that outlives its workload, and whoever
  waits for their quota waits until they are gone. Their author chose how long they have to stop: years, perhaps.
- So they get as long from now on as a victim of its owner has at most (`ReclaimRules`). Where nobody waits for the
  quota, or has it to borrow, they stop as they were told to.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from clock import Clock
from engine.reservation_key import HolderKey, ReservationKey
from kube.objects import Pod, key
from queueing.preemption.recalled import recalled_quota
from ungater.cache.cache import Cache
from ungater.executor import messages
from ungater.executor.eviction import ReclaimRules
from ungater.model.conditions import moment
from ungater.model.pod_slots import finished
from ungater.writers.evictor import SPARE, Evictor

EVERY: Final = 20.0  # seconds between two looks


class LingeringPods:
    """See the module. ``pods``: all that there are."""

    def __init__(
        self, cache: Cache, pods: Callable[[], Iterable[Pod]], evictor: Evictor, reclaim: ReclaimRules, clock: Clock
    ) -> None:
        self._cache = cache
        self._pods = pods
        self._evictor = evictor
        self._reclaim = reclaim
        self._clock = clock
        self._next = 0.0

    def hurry_pods(self) -> None:
        """Have those stop in time; nothing where the last look was a moment ago."""
        now = self._clock.monotonic()
        if not self._reclaim.overrides or now < self._next:
            return
        self._next = now + EVERY
        if not (lingering := list(self._lingering())):
            return
        cache, quotas = self._cache, self._cache.queues.quotas
        is_recalled = recalled_quota(cache.state, cache.queues)
        # By unit: a workload has one answer for all of its pods.
        answers: dict[HolderKey, bool] = {}
        for pod, unit, workload, priority in lingering:
            if unit not in answers:
                held = quotas.held.get(unit)
                answers[unit] = held is not None and is_recalled(held, priority)
            if answers[unit]:
                why = messages.quota_taken_back(self._reclaim.grace)
                self._evictor.request_eviction(workload, pod, why, most_grace=self._reclaim.grace)

    def _lingering(self) -> Iterator[tuple[Pod, HolderKey, str, int]]:
        """Pods that stop too slowly, with what holds their quota, whose eviction it is, and with which priority."""
        cache, latest = self._cache, self._clock.now() + self._reclaim.grace + SPARE
        for pod in self._pods():
            if pod.metadata.deletion_timestamp is None or finished(pod):
                continue
            if (moment(pod.metadata.deletion_timestamp) or 0.0) <= latest:
                continue
            # A pod that is charged by itself first: its name may be that of a pod of an entry that came since.
            entry, orphan = cache.entries.entry_of_pod(pod), ReservationKey.for_orphan(key(pod))
            if orphan in cache.queues.quotas.held:
                yield pod, orphan, pod.metadata.uid, pod.spec.priority or 0
            elif entry is not None and entry.key in cache.queues.holders.evicting:
                yield pod, entry.key, entry.id, cache.queues.entries[entry.key].workload.priority
