"""The admission cycle, and the writes that follow from it.

`queueing.cycle.cycle` decides, and holds what it decided. Here that is stored: an admission before any pod goes, the
plan of a preemption before its first eviction. Where storing fails for certain, what was held before is held again.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any

import structlog

from clock import Clock
from engine.reasons import Reason, Short
from engine.reservation_key import ReservationKey
from engine.results import Refusal
from kube.errors import KubeError
from kube.events import EventRecorder
from queueing.cycle.cycle import DETAILS, Admitted, Decisions, Drained, Preempting, Waiting, cycle
from queueing.cycle.shield import Failed, in_words
from queueing.moves import NO_MOVES, MoveRules
from queueing.queues.entry import HOLDING, AssumedAdmission
from queueing.queues.rotation import Rotation, of_namespace
from ungater.cache.cache import Cache
from ungater.metrics import ControllerMetrics
from ungater.model import conditions
from ungater.model.actions import Evict
from ungater.model.admission import Admission, Nomination
from ungater.model.conditions import WantedCondition
from ungater.model.workload_entry import ObservedWorkload, Refused, WorkloadEntry
from ungater.scheduling.admission_conditions import admitted_as, is_news, not_ready, pending
from ungater.scheduling.moves import NO_NEWS, Moves, News
from ungater.scheduling.replacement import message_of, reclaimed, refused_text, replace_lost_slots
from ungater.scheduling.stale_reasons import StaleReasons
from ungater.scheduling.writes import Spawn, Writes
from ungater.workqueue import backoff
from ungater.writers.events import FINE, emit
from ungater.writers.pods import age
from ungater.writers.workloads import WorkloadWriter, stored_of

# A cycle is one step of the event loop: watches, writes and the lease wait until it has looked at so many.
HEADS = 64  # looks at workloads before others get a turn
NO_NOMINATION = {"nomination": None}
RELABELLED = "; they stay there, and replacements are placed by the new labels (`topogate doctor` says what to do)"

log = structlog.get_logger()


class Scheduler:
    """Runs cycles on the cache; ``spawn`` runs a write beside them, ``requeue(uid, seconds)`` has a job looked at."""

    def __init__(
        self,
        cache: Cache,
        writer: WorkloadWriter,
        moves: MoveRules = NO_MOVES,
        *,
        spawn: Spawn,
        requeue: Callable[[str, float], None],
        metrics: ControllerMetrics,
        recorder: EventRecorder,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._writer = writer
        self._requeue = requeue
        self._metrics = metrics
        self._recorder = recorder
        self._clock = clock
        self._writes = Writes(cache, spawn=spawn, requeue=requeue, clock=clock)
        self.moves = Moves(
            cache, moves, self.replace, self.store_conditions, metrics=metrics, recorder=recorder, clock=clock
        )
        self._stale = StaleReasons(cache.queues)
        self._movers: Rotation[str] = Rotation()  # who may get other slots for lost ones, and was not looked at yet
        self.next_time: float | None = None  # when time alone helps somebody, in seconds since the epoch

    @property
    def stores(self) -> bool:
        """Whether something that was decided is being stored."""
        return self._writes.under_way

    def cycle(self) -> bool:
        """One cycle. Returns whether there is more to look at now."""
        cache, started = self._cache, self._clock.monotonic()
        self._tell_again()
        # First of all: what is lost and what is free is decided by the newest state of the nodes.
        cache.nodes.look_at_changed()
        for entry, text in cache.nodes.relabelled():
            emit(self._recorder, entry, "Warning", Reason.LABELS_CHANGED, "Read", message=text + RELABELLED)
        # 1. Who holds slots that are lost gets others, before anybody takes the room: as many as there are looks.
        self._move()
        # 2. The cycle itself: growth, turns, preemption. All of it is held when it returns.
        made = cycle(cache.state, cache.queues, self._clock.now(), HEADS)
        if made.admitted or made.waiting or made.preempting:
            answer = "placed" if made.admitted else "refused"
            self._metrics.placement.labels(answer).observe(self._clock.monotonic() - started)
        # 3. Store what was decided, and say what was refused.
        self._carry_out(made)
        # 4. Nobody is to be looked at now: who runs may be moved.
        more = made.more or bool(self._movers)
        if not more:
            self.moves.start_moves()
        times = (made.next_time, self._stale.next_report_time())
        self.next_time = min((at for at in times if at is not None), default=None)
        return more

    def _tell_again(self) -> None:
        """Who waits for something else by now hears it, though nothing helped it."""
        now = self._clock.now()
        self._stale.have_looked_again(now)
        for key, refusal in self._stale.to_explain(now):
            entry = self._cache.entries.of_workload(key)
            if entry is not None and entry.refused is not None and entry.refused.reason == refusal.reason:
                with self._cache.guard("workload", key):
                    self._refuse(entry, refusal)

    def _carry_out(self, made: Decisions) -> None:
        queues = self._cache.queues
        for failed in made.failed:
            self._fail(failed)
        for key, at in made.untold.items():
            self._stale.look_again(key, at)
        for key in (*(one.key for one in made.admitted), *(one.key for one in made.waiting)):
            self._stale.line_changed(key, self._clock.now())
        for gone in made.given_up:
            self.drop_nomination(gone)
        for admitted in made.admitted:
            queues.stores(admitted.key)
            self._write_in_turn(admitted.key, partial(self._store, admitted))
        for resized in made.resized:
            self._write_in_turn(resized.key, partial(self._change, resized.grant, Reason.RESIZED))
        for plan in made.preempting:
            self._write_in_turn(plan.key, partial(self._preempt, plan))
        for evict in made.evict:
            self._drain(evict)
        for waiting in made.waiting:
            with self._cache.guard("workload", waiting.key):
                entry, queued = self._cache.entries.of_workload(waiting.key), queues.entries.get(waiting.key)
                if entry is not None:
                    flavor = queued.refusal.flavor if queued is not None and queued.refusal is not None else ""
                    self._refuse(entry, Refusal(waiting.reason, waiting.message, flavor=flavor))
        self._refuse_growth(made.refused_growth)

    def _fail(self, failed: Failed) -> None:
        """One led to an error that nobody foresaw. It is put off; it and an administrator hear why."""
        self._cache.guard.failed("workload", failed.key, failed.error)
        entry = self._cache.entries.of_workload(failed.key)
        if entry is None:
            return
        entry.set_refusal(Refused(Reason.INTERNAL_ERROR, in_words(failed.error)), self._clock.monotonic())
        self._requeue(entry.id, 0.0)

    def _write_in_turn(self, key: str, write: Callable[[WorkloadEntry], Awaitable[object]]) -> None:
        """Write for an entry, after the writes that are under way for it."""
        entry = self._cache.entries.of_workload(key)
        if entry is None:
            # The job went while the cycle decided: no write follows that would give back what was held for it.
            self._cache.queues.remove_workload(self._cache.state, key)
            self._cache.queues.stored(key)
            return
        self._writes.run(entry, write)

    # --- admissions ------------------------------------------------------------------------------------------------

    async def _store(self, admitted: Admitted, entry: WorkloadEntry) -> None:
        observed = entry.observed
        admission = self._admission(entry, admitted.grant)
        news = is_news(entry)  # before its conditions say that it is admitted
        text = message_of(self._cache, entry, admission, admitted.message)
        checks = self._cache.admissions.checks_for(admission) if entry.job.queue else ()
        wanted = (*admitted_as(observed, text, checks), *not_ready(entry))
        more = {"admissionChecks": pending(checks, self._clock.now())} if checks else None
        try:
            done = await self._store_admission(entry, admitted.grant, admission, wanted, more)
        finally:
            self._cache.admissions.stored(entry)
        if done:
            self._was_admitted(entry, Reason.ADMITTED, "Admit", text, event=news)
            self._metrics.admitted.inc()
            self._metrics.admission.observe(age(entry.job.created, self._clock.now()))
            self._metrics.queues.admitted(self._cache.queues, admitted.key, admitted.grant, self._clock.now())

    async def _change(
        self, grant: AssumedAdmission, reason: Reason, entry: WorkloadEntry, more: tuple[WantedCondition, ...] = ()
    ) -> bool:
        """Store that one who is admitted has other slots, or more of them. An eviction that began meanwhile goes on."""
        admission = self._admission(entry, grant)
        text = message_of(self._cache, entry, admission, "")
        if done := await self._store_admission(entry, grant, admission, (*admitted_as(None, text, ()), *more), None):
            self._was_admitted(entry, reason, "Replace" if reason is Reason.REPLACED else "Resize", text)
        return done

    def _admission(self, entry: WorkloadEntry, grant: AssumedAdmission) -> Admission:
        return self._cache.reservations.admission_of(entry, grant)

    async def _store_admission(
        self,
        entry: WorkloadEntry,
        grant: AssumedAdmission,
        admission: Admission,
        wanted: tuple[WantedCondition, ...],
        more: Any,
    ) -> bool:
        """Store an admission that is held already; else hold what was held before. True where it is stored."""

        def write() -> Awaitable[ObservedWorkload]:
            reclaimable = None if entry.admission is None else reclaimed(entry, admission)
            return self._writer.admission(
                entry.job.namespace, stored_of(entry), admission, wanted, reclaimable=reclaimable, more=more
            )

        def stored() -> None:
            self._cache.admissions.store_admission(entry, admission, grant)
            entry.succeed()

        return await self._writes.store(entry, grant, write, stored)

    def _was_admitted(
        self, entry: WorkloadEntry, reason: Reason, action: str, text: str, *, event: bool = True
    ) -> None:
        if event:
            emit(self._recorder, entry, FINE, reason, action, message=text)
        log.info("admitted", workload=entry.key, message=text)

    # --- preemption ------------------------------------------------------------------------------------------------

    async def _preempt(self, plan: Preempting, entry: WorkloadEntry) -> None:
        """Store the plan, and only then have its victims evicted."""
        victims = {victim.key: victim.uid for victim in plan.victims}
        priorities = {victim.key: victim.priority for victim in plan.victims}
        domains = {victim.key: victim.domains for victim in plan.victims if victim.domains}
        strategy = self._cache.queues.victim_rules(plan.grant.queue).strategy
        nomination = Nomination(self._admission(entry, plan.grant), victims, priorities, domains, strategy)
        waits = WantedCondition(conditions.QUOTA_RESERVED, False, Reason.PREEMPTING, plan.message)
        wanted = () if plan.grows else (waits,)  # who grows is admitted, and keeps what it has
        await self._writes.store(
            entry,
            plan.grant,
            lambda: self._writer.nomination(entry.job.namespace, stored_of(entry), nomination, wanted),
            lambda: self._evict(entry, plan),
            grows=plan.grows,
        )

    def _evict(self, entry: WorkloadEntry, plan: Preempting) -> None:
        entry.set_refusal(Refused(Reason.PREEMPTING, plan.message))
        emit(self._recorder, entry, FINE, Reason.PREEMPTING, "Preempt", message=plan.message)
        log.info("preempts", workload=entry.key, message=plan.message)
        for victim in plan.victims:
            other = self._cache.entries.of_workload(victim.key)
            if other is None:
                continue
            if not victim.domains:
                other.evict_for(Evict(Reason.PREEMPTED, plan.message_to(victim), victim.reason))
            elif (losing := self._cache.reservations.losing(victim.key)) is not None:
                text = conditions.shorten(losing.message)
                emit(self._recorder, other, FINE, Reason.PREEMPTED, "Evict", message=text)
                log.info("loses slices", workload=victim.key, message=text)
            # Its own look carries the eviction out, and stores it: nothing is written for a victim here.
            self._requeue(other.id, 0.0)

    def _drain(self, evict: Drained) -> None:
        entry = self._cache.entries.of_workload(evict.key)
        if entry is not None:
            entry.evict_for(Evict(evict.reason, evict.message))
            self._requeue(entry.id, 0.0)

    def drop_nomination(self, gone: Waiting) -> None:
        """Remove a nomination that came to nothing."""
        entry = self._cache.entries.of_workload(gone.key)
        self._cache.admissions.stand_down(gone.victims)
        if entry is not None:
            entry.set_refusal(Refused(gone.reason, gone.message))
        self._write_in_turn(gone.key, partial(self._give_up, gone))

    def withdraw(self, entry: WorkloadEntry) -> None:
        """Remove a stored plan that is none any more, or a restart would carry it out."""
        queues = self._cache.queues
        queued = queues.entries.get(entry.key)
        planned = queued is not None and queued.phase in HOLDING
        if entry.admission is not None:
            # A write for it says the same.
            planned = ReservationKey.for_growth(entry.key) in queues.entries or entry.writes.busy
        if entry.observed is not None and entry.observed.nomination is not None and not planned:
            self._writes.run(entry, partial(self._write_conditions, (), NO_NOMINATION))

    async def _give_up(self, gone: Waiting, entry: WorkloadEntry) -> None:
        waits = WantedCondition(conditions.QUOTA_RESERVED, False, gone.reason, gone.message)
        await self._write_conditions(() if gone.grows else (waits,), NO_NOMINATION, entry)

    def store_conditions(self, entry: WorkloadEntry, wanted: tuple[WantedCondition, ...]) -> None:
        """Store conditions of a workload."""
        self._write_in_turn(entry.key, partial(self._write_conditions, wanted, {}))

    async def _write_conditions(
        self, wanted: tuple[WantedCondition, ...], more: Mapping[str, None], entry: WorkloadEntry
    ) -> None:
        observed: ObservedWorkload | None = None
        try:
            if entry.observed is not None:
                observed = await self._writer.conditions(entry.job.namespace, entry.observed, wanted, more)
        except KubeError as error:
            self._requeue(entry.id, backoff(entry.count_failure()))
            log.warning("conditions were not stored", workload=entry.key, error=str(error))
        finally:
            self._writes.written(entry, observed)

    # --- refusals and lost slots -------------------------------------------------------------------------------------

    def _refuse_growth(self, looked_at: Collection[str]) -> None:
        """Say why those get no more pods who were looked at, or have not heard it; all may be thousands of texts."""
        for key in self._cache.queues.growing:
            queued, entry = self._cache.queues.entries[key], self._cache.entries.of_workload(key)
            if queued.refusal is None or entry is None:
                continue
            if key in looked_at or entry.refused is None:
                with self._cache.guard("workload", key):
                    self._refuse(entry, queued.refusal)

    def _refuse(self, entry: WorkloadEntry, refusal: Refusal) -> None:
        now, before = self._clock.monotonic(), entry.refused
        soon = before is not None and before.reason == refusal.reason and now - entry.refused_at < DETAILS
        if soon and refusal.reason.traits.short is Short.ROOM:  # its text takes long to make
            left = max(entry.refused_at + DETAILS - now, 0.001)  # the two clocks round differently
            self._stale.explain_again(entry.key, refusal, self._clock.now() + left)
            return
        refused = Refused(refusal.reason, refused_text(self._cache, entry, refusal))
        entry.set_refusal(refused, now)
        if refused != before:
            log.info("waits", workload=entry.key, reason=str(refusal.reason), message=refused.message)
            self._requeue(entry.id, 0.0)

    def _move(self) -> None:
        """Other slots for lost ones, where something was freed since they were refused; namespaces have turns."""
        cache, moving = self._cache, self._cache.reservations.moving
        self._movers.set_members(
            [key for key, seen in tuple(moving.items()) if self._may_move(key, seen)], of_namespace
        )
        for key in self._movers.take_members(HEADS):
            # Before the look: what is freed from here on has it looked at again.
            moving[key] = cache.queues.freed_so_far(key)
            with cache.guard("workload", key):
                self._move_one(key)

    def _may_move(self, key: str, seen: tuple[int, ...]) -> bool:
        entry, queues = self._cache.entries.of_workload(key), self._cache.queues
        if entry is None or not entry.slots_in or not entry.lost:
            self._cache.reservations.moving.pop(key, None)
            return False
        if entry.writes.busy or entry.writes.patches or key in queues.holders.evicting:
            return False  # the end of the write has it looked at again; a pod that is let go now goes to a slot of now
        return queues.freed_so_far(key) != seen

    def _move_one(self, key: str) -> None:
        entry = self._cache.entries.of_workload(key)
        found = None if entry is None else replace_lost_slots(self._cache, entry)
        if entry is None or found is None:
            return
        if isinstance(found, Refusal):
            self._refuse(entry, found)
        else:
            self.replace(entry, found)

    def replace(self, entry: WorkloadEntry, grant: AssumedAdmission, news: News = NO_NEWS) -> None:
        """Hold other slots from now on, and store them."""
        # Held at once: the rest of this cycle must not give the same room to others.
        self._cache.reservations.replace(entry, grant)
        self._write_in_turn(entry.key, partial(self._store_other, grant, news))

    async def _store_other(self, grant: AssumedAdmission, news: News, entry: WorkloadEntry) -> None:
        try:
            if await self._change(grant, Reason.REPLACED, entry, news.conditions) and news.stored is not None:
                news.stored()
        finally:
            self._cache.admissions.replaced(entry)
