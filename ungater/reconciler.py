"""One look at one job: what is to be done for it is decided by a plain function, and carried out here.

- `ungater.reconcile.reconcile` decides; what it returns is carried out in order by `ungater.executor.executor`.
- At most one awaited write a look: what was decided before it may be stale then, so the job is looked at again.
- An error delays the next look at this job, and no other's.
"""

from contextlib import suppress

import structlog

from clock import Clock
from engine.reasons import Reason
from kube.errors import Conflict, KubeError, NotFound
from kube.events import EventRecorder
from queueing.cycle.shield import in_words
from ungater.assembly import Parts
from ungater.metrics import ControllerMetrics
from ungater.model import conditions
from ungater.model.actions import (
    ClearAdmission,
    Deactivate,
    Evict,
    EvictPods,
    Release,
    Start,
    Suspend,
    WriteConditions,
)
from ungater.model.conditions import WantedCondition
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile import reconcile
from ungater.workqueue import backoff
from ungater.writers.events import emit
from ungater.writers.workloads import REFUSED, Overtaken

LONGEST = 300.0  # seconds until one that led to an error that nobody foresaw is looked at again
LEAVING = (Release, ClearAdmission, Evict, EvictPods, Suspend, Deactivate)

log = structlog.get_logger()


class Reconciler:
    """Looks at jobs, one look at a time for each."""

    def __init__(self, parts: Parts, recorder: EventRecorder, metrics: ControllerMetrics, clock: Clock) -> None:
        self._cache, self._queue, self._guard = parts.cache, parts.queue, parts.guard
        self._executor, self._eviction, self._writes = parts.executor, parts.eviction, parts.writes
        self._writer = parts.writer
        self._bridge = parts.bridge
        self._recorder = recorder
        self._clock = clock
        self._looks = 0  # the id of a look in logs
        self._outcomes = {name: metrics.reconciles.labels(name) for name in ("done", "conflict", "error", "bug")}

    async def reconcile(self, uid: str) -> None:
        """Look at one job once. Failures of the API server only delay: the job is looked at again, later each time."""
        entry = self._cache.entries.get(uid)
        if entry is None or entry.writes.must_wait():
            return
        self._looks += 1
        outcome, context = "done", {"workload": entry.key, "reconcile": self._looks}
        try:
            if not self._cache.pod_groups.regroup(entry):
                return
            now = self._clock.monotonic()
            self._cache.count_pods(entry, now)
            actions = reconcile.reconcile(entry, self._cache.rules, now, self._clock.now())
            # It was on its way out, and is not any more: its pods may go again.
            if entry.closing and not any(isinstance(one, LEAVING) for one in actions):
                self._eviction.keep_slots(entry)
            last = await self._executor.carry_out(entry, actions)
            # Conditions at the end leave nothing to be decided; after any other write the rest may be stale.
            if last is not None and not (last is actions[-1] and isinstance(last, WriteConditions)):
                self._queue.add(uid, entry.until_pods_come if isinstance(last, Start) else 0.0)
            entry.succeed()
            self._bridge.looked(entry)
        except (Conflict, NotFound, Overtaken) as error:
            outcome = "conflict"  # or deleted; no event tells of one that came and went while a watch was broken
            log.info("workload changed meanwhile", error=str(error), **context)
            await self._refresh(entry)
        except KubeError as error:
            outcome = "error"
            self._later(entry)
            log.warning("API server refused or did not answer", error=str(error), failures=entry.failures, **context)
        except Exception as error:  # noqa: BLE001  (told by the guard)
            outcome = "bug"
            await self._poisoned(entry, error)
        self._outcomes[outcome].inc()

    async def _poisoned(self, entry: WorkloadEntry, error: Exception) -> None:
        """A look failed otherwise than foreseen: say so, and leave the job alone for a while."""
        self._guard.failed("workload", entry.key, error)
        self._queue.add(entry.id, backoff(entry.count_failure(), longest=LONGEST))
        text, observed = in_words(error), entry.observed
        if text not in entry.noted:
            entry.noted.add(text)
            emit(self._recorder, entry, "Warning", Reason.INTERNAL_ERROR, "Admit", message=text)
        wanted = (WantedCondition(conditions.QUOTA_RESERVED, False, Reason.INTERNAL_ERROR, text),)
        if entry.admission is None and observed is not None and not conditions.is_so(observed.conditions, wanted):
            with suppress(KubeError, Overtaken):
                await self._writes.write_conditions(entry, wanted)

    def _later(self, entry: WorkloadEntry) -> None:
        self._queue.add(entry.id, backoff(entry.count_failure()))

    async def _refresh(self, entry: WorkloadEntry) -> None:
        self._later(entry)
        try:
            observed = await self._writer.find(entry.job)
        except NotFound:
            observed = None
        # An answer that says nothing of the Workload, such as 401 or 403: what is known of it stays.
        except REFUSED as error:
            log.warning("workload cannot be read", workload=entry.key, error=str(error))
            return
        if observed is None:
            self._cache.workloads.found_gone(entry)
        else:
            self._cache.workloads.saw_workload(entry, observed)
