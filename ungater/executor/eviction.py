"""Carries out evictions: what somebody wants goes, and gives back what it held.

Each step is asked for again at every look until it shows, so all of it may be done twice. Order of an eviction: its
condition is stored, pods go one by one, the job is suspended and gets its template back, the admission is removed. Only
then somebody else gets what it held.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import structlog

from clock import Clock
from engine.reasons import Reason
from engine.reservation_key import HolderKey, ReservationKey, Role, role_of, workload_of
from kube.events import EventRecorder
from kube.objects import Pod, is_true, key
from queueing.cycle.cycle import Waiting
from ungater.cache.cache import Cache
from ungater.executor import messages
from ungater.executor.evicted import admitted_for, is_reclaimed, is_victim
from ungater.executor.ordered_writes import OrderedWrites
from ungater.executor.start_stop import StartStop
from ungater.metrics import ControllerMetrics
from ungater.model import conditions
from ungater.model.actions import (
    ClearAdmission,
    Deactivate,
    Evict,
    EvictMoved,
    EvictPods,
    EvictSome,
    GiveUpMove,
)
from ungater.model.conditions import WantedCondition, is_so, timestamp
from ungater.model.workload_entry import WorkloadEntry
from ungater.scheduling.scheduler import Scheduler
from ungater.writers.events import emit
from ungater.writers.evictor import Blocked, Evictor
from ungater.writers.workloads import WorkloadWriter

SENDING = 0.05  # seconds until another look while a patch is on its way
SPARED = 300.0  # seconds for which a victim that a budget protects is left alone

log = structlog.get_logger()


class ReclaimRules(msgspec.Struct, frozen=True):
    """How nominal quota is taken back: whether against budgets at last, and how long pods have to stop at most."""

    overrides: bool = True
    grace: int = 600  # seconds


class Eviction:
    """See the module's rules.

    ``requeue(uid, seconds)`` has a job looked at; ``patience``: seconds that a preemption waits for a budget.
    """

    def __init__(
        self,
        cache: Cache,
        writer: WorkloadWriter,
        scheduler: Scheduler,
        evictor: Evictor,
        *,
        writes: OrderedWrites,
        jobs: StartStop,
        requeue: Callable[[str, float], None],
        recorder: EventRecorder,
        metrics: ControllerMetrics,
        patience: float,
        reclaim: ReclaimRules,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._writer = writer
        self._scheduler = scheduler
        self._evictions = evictor
        self._writes = writes
        self._jobs = jobs
        self._requeue = requeue
        self._recorder = recorder
        self._metrics = metrics
        self._patience = patience
        self._reclaim = reclaim
        self._clock = clock
        self._started_at = clock.now()

    async def begin_eviction(self, entry: WorkloadEntry, evict: Evict) -> bool:
        """Begin an eviction."""
        cache, observed = self._cache, entry.observed
        if entry.evict is not None and entry.key not in cache.queues.holders.evicting:
            entry.drop_eviction()  # whoever wanted its room does not any more
            return True
        self._jobs.stop_pods(entry)
        if observed is None or is_so(observed.conditions, evict.wanted):
            return False
        # Stored before the first pod goes: a restart amid the eviction goes on with it.
        if not await self._writes.write_conditions(entry, evict.wanted):
            return True
        # The condition says it from now on.
        entry.drop_eviction()
        text = conditions.shorten(evict.message)
        self._metrics.evicted.labels(str(evict.reason)).inc()
        emit(self._recorder, entry, "Normal", evict.reason, "Evict", message=text)
        log.info("evicts", workload=entry.key, reason=str(evict.reason), message=evict.message)
        return True

    async def evict_pods(self, entry: WorkloadEntry, evict: EvictPods) -> bool:
        """Evict its pods; where a budget refuses for long, whoever waits for it makes another plan."""
        if is_victim(entry) and not self._cache.reservations.preemptors_of(entry.key) and self._untouched(entry, evict):
            return await self._spare(entry, Reason.QUOTA_RESERVED, "nobody waits for its room any more")
        self._jobs.stop_pods(entry)
        reclaims = is_reclaimed(entry) and self._reclaim.overrides
        reclaims = reclaims and not self._cache.reservations.takes_for_cohort(entry.key)
        blocked = self.evict_each(entry, [(pod, evict.why) for pod in evict.pods], reclaims=reclaims)
        preemptors = self._cache.reservations.preemptors_of(entry.key)
        # Room that a budget keeps counts in no plan: whoever is
        # nominated for it would wait, and hold its own meanwhile.
        kept = blocked is not None or (not preemptors and self._was_kept(entry, evict))
        self._cache.queues.holders.set_kept(entry.key, kept=kept and not reclaims)
        if blocked is None or reclaims:
            return False
        self._given_up(entry.key, preemptors, blocked.message)
        if not preemptors:
            return False
        if self._untouched(entry, evict):
            self._cache.queues.spare_until(entry.key, self._clock.now() + SPARED)
            return await self._spare(entry, Reason.EVICTION_BLOCKED, blocked.message)
        self._jobs.stop_pods(entry)
        return False

    def _was_kept(self, entry: WorkloadEntry, evict: EvictPods) -> bool:
        """Whether an earlier controller waited in vain for its pods, and none has been let go since.

        What budgets answered is stored nowhere. Without this, each restart would evict others beside one that stays.
        """
        observed = entry.observed
        since = conditions.true_since(observed.conditions, conditions.EVICTED) if observed is not None else None
        if since is None or since > self._started_at - self._patience:
            return False
        stays = any(pod.metadata.deletion_timestamp is None for pod in evict.pods)
        return stays and not self._evictions.has_granted(entry.id)

    def evict_some(self, entry: WorkloadEntry, evict: EvictSome) -> None:
        """Evict pods of slices that are to go, or pods that no queue admitted; a budget that refuses ends the plan."""
        queues = self._cache.queues
        reclaims = self._reclaim.overrides and self._cache.reservations.reclaimed(entry.key)
        blocked = self.evict_each(entry, evict.pods, reclaims=reclaims)
        if blocked is None or reclaims:
            return
        until = self._clock.now() + SPARED
        # The same action serves a gang that loses slices and one that
        # others make room for: whose pods they are tells which.
        theirs = [pod for pod, _ in evict.pods if pod.metadata.uid not in entry.pods]  # that no queue admitted
        if theirs or entry.key in queues.holders.nominated:
            names = entry.key, ReservationKey.for_growth(entry.key)
            preemptors = [name for name in names if name in queues.holders.nominated]
            for pod in theirs:
                queues.spare_until(ReservationKey.for_pod(key(pod)), until)
        else:
            preemptors = self._cache.reservations.preemptors_of(entry.key)
            queues.spare_until(entry.key, until)
        self._evictions.cancel_evictions(entry.id)
        self._given_up(entry.key, preemptors, blocked.message)

    def evict_moved(self, entry: WorkloadEntry, evict: EvictMoved) -> None:
        """Have pods of one that is moved go; where a budget refuses for long, they stay where they are."""
        # A move is nobody's right: no budget is overridden for it.
        blocked = self.evict_each(entry, evict.pods[:1] if evict.one else evict.pods, reclaims=False)
        if blocked is not None and self._scheduler.moves.put_back(
            entry, [pod for pod, _ in evict.pods], blocked.message, evict.ending
        ):
            self._evictions.cancel_evictions(entry.id)

    def give_up_move(self, entry: WorkloadEntry, late: GiveUpMove) -> None:
        """End a move that takes too long, or look again when it does."""
        if (left := self._scheduler.moves.give_up_move(entry, late.pods, late.why, late.ending)) > 0:
            self._requeue(entry.id, left)

    def evict_each(self, entry: WorkloadEntry, pods: Iterable[tuple[Pod, str]], *, reclaims: bool) -> Blocked | None:
        """Evict pods, each for its reason; what a budget says that refused for longer than is waited for.

        ``reclaims``: nominal quota is taken back, so that after this a budget does not count, and pods cannot take as
        long to stop as they like.
        """
        blocked = self._evictions.blocked(entry.id)
        waited = self._clock.monotonic() - blocked.since if blocked is not None else 0.0
        late = blocked is not None and waited >= self._patience
        # A budget is overridden only after it had its time; the bound on the grace period holds from the first time on.
        overriding, most = reclaims and late, self._reclaim.grace if reclaims else None
        more = ""
        if overriding and blocked is not None:
            more = messages.overridden(blocked.message)
        for pod, why in pods:
            self._evictions.request_eviction(entry.id, pod, f"{why}{more}", overriding=overriding, most_grace=most)
        blocked = self._evictions.blocked(entry.id)
        if blocked is None or late:
            return blocked
        self._requeue(entry.id, self._patience - waited)
        return None

    def _given_up(self, victim: str, preemptors: Iterable[HolderKey], why: str) -> None:
        """A budget refused for too long: who waits for it makes another plan."""
        for name in preemptors:
            base, grows = workload_of(name), role_of(name) is Role.GROWTH
            other = self._cache.entries.of_workload(base)
            if other is not None:
                (self._cache.admissions.end_growth if grows else self._cache.admissions.forget_assumed)(other)
                about = "pods that no queue admitted" if base == victim else self._cache.queues.title_of(victim)
                text = messages.preemption_given_up(about, why)
                self._scheduler.drop_nomination(Waiting(base, Reason.EVICTION_BLOCKED, text, grows=grows))

    def _untouched(self, entry: WorkloadEntry, evict: EvictPods) -> bool:
        """Whether all its pods run as before."""
        return len(evict.pods) >= entry.job.count and all(pod.metadata.deletion_timestamp is None for pod in evict.pods)

    async def _spare(self, entry: WorkloadEntry, reason: Reason, why: str) -> bool:
        """It stays after all."""
        text = messages.spared(why)
        types = (conditions.EVICTED, conditions.PREEMPTED)
        wanted = [WantedCondition(type_, False, reason, text) for type_ in types]
        if not await self._writes.write_conditions(entry, wanted):
            return True
        reservations = self._cache.reservations
        if preemptors := reservations.preemptors_of(entry.key):
            # Planned meanwhile: it goes after all.
            entry.evict_for(reservations.eviction_message(preemptors[0], entry.key))
            return True
        self._evictions.cancel_evictions(entry.id)
        self.keep_slots(entry)
        return True

    def keep_slots(self, entry: WorkloadEntry) -> None:
        """What it was to give back it keeps after all, unless it goes for somebody else, or that is stored already."""
        entry.reopen()
        reservations, observed = self._cache.reservations, entry.observed
        stored = observed is not None and is_true(observed.conditions, conditions.EVICTED)
        if entry.evict is None and not stored and not reservations.preemptors_of(entry.key):
            reservations.stay(entry)

    async def clear_admission(self, entry: WorkloadEntry, back: ClearAdmission) -> bool:
        """The eviction is over: remove the admission, and only then give away what it held."""
        self._jobs.stop_pods(entry)
        if entry.writes.patches:
            self._requeue(entry.id, SENDING)  # a patch on its way may still use a slot
            return False
        # Before the admission goes: the next one adds its selectors to the template, and must find what the user wrote.
        await self._jobs.restore_template(entry)
        now, observed = self._clock.now(), entry.observed
        more: dict[str, Any] = {}
        if back.leave:
            # It does not come back by itself, so no count of earlier returns is kept.
            more["requeueState"] = None
        elif back.until > now:
            more["requeueState"] = {"count": back.requeues, "requeueAt": timestamp(back.until)}
        if observed is not None and observed.most_execution is not None:
            more["accumulatedPastExecutionTimeSeconds"] = observed.executed + admitted_for(observed, now)
        if observed is not None and observed.checks:
            # They were Ready for the admission that ends here, and are asked again for the next one.
            more["admissionChecks"] = None
        namespace = entry.job.namespace
        written = await self._writes.write_in_order(
            entry, lambda observed: self._writer.admission(namespace, observed, None, back.wanted, more=more)
        )
        if not written:
            return True
        self._evictions.cancel_evictions(entry.id)
        if back.leave:
            self._cache.admissions.release_job(entry)
        else:
            self._cache.admissions.release_and_requeue(entry, back.until)
        return True

    async def deactivate_workload(self, entry: WorkloadEntry, why: Deactivate) -> bool:
        """Say why, and set spec.active to false."""
        namespace, message = entry.job.namespace, conditions.shorten(why.message)
        wanted = (WantedCondition(conditions.REQUEUED, False, why.reason, message),)
        # The reason comes first: after spec.active is false nothing asks for it again, not even after a restart.
        if not await self._writes.write_conditions(entry, wanted):
            return True
        if not await self._writes.write_in_order(entry, lambda observed: self._writer.deactivate(namespace, observed)):
            return True
        emit(self._recorder, entry, "Warning", why.reason, "Deactivate", message=message)
        return True

    async def remove_workload(self, entry: WorkloadEntry) -> bool:
        """Delete a Workload that finished long ago, or whose pods are all gone."""
        if entry.observed is not None:
            entry.begin_removal()
            await self._writer.remove(entry.job.namespace, entry.observed)
            self._cache.workloads.removed(entry)
            self._requeue(entry.id, 0.0)  # no event tells where it came and went while a watch was broken
        return False
