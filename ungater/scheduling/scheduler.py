"""The admission cycle, and the writes that follow from it.

`queueing.cycle.cycle` decides, and holds what it decided. Here that is stored: an admission before any pod goes, the
plan of a preemption before its first eviction. Where storing fails for certain, what was held before is held again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from engine.reasons import Reason
from engine.results import Refusal
from kube.errors import KubeError, NotFound
from kube.events import EventRecorder
from kube.objects import condition
from queueing import lifecycle
from queueing.cycle.cycle import Admitted, Decisions, Drained, Preempting, Waiting, cycle
from queueing.cycle.shield import Failed, in_words
from queueing.queues.entry import HOLDING, AssumedAdmission, Phase
from ungater.cache.cache import Cache
from ungater.metrics import Metrics
from ungater.model import conditions
from ungater.model.conditions import WantedCondition
from ungater.model.workload_entry import Admission, Nomination, ObservedWorkload, Refused, WorkloadEntry
from ungater.scheduling.replacement import COUNTED, elsewhere, reclaimed, refused_text, told
from ungater.workqueue import backoff
from ungater.writers.events import FINE, emit
from ungater.writers.pods import seconds_of
from ungater.writers.workloads import Overtaken, WorkloadWriter

WRITES = 16  # admissions under way
HEADS = 64  # looks at workloads before others get a turn
DETAILS = 10.0  # seconds between two explanations of one refusal

Spawn = Callable[[Coroutine[Any, Any, None]], object]
log = structlog.get_logger()


class Scheduler:
    """Runs cycles on ``memory``; ``spawn`` runs a write beside them, ``again(uid, seconds)`` has a job looked at."""

    def __init__(
        self,
        memory: Cache,
        writer: WorkloadWriter,
        *,
        spawn: Spawn,
        again: Callable[[str, float], None],
        metrics: Metrics,
        recorder: EventRecorder,
    ) -> None:
        self._memory = memory
        self._writer = writer
        self._spawn = spawn
        self._again = again
        self._metrics = metrics
        self._recorder = recorder
        self._writes = asyncio.Semaphore(WRITES)
        self.next_time: float | None = None  # when time alone helps somebody, in seconds since the epoch

    def cycle(self) -> bool:
        """One cycle. Returns whether there is more to look at now."""
        memory, started = self._memory, time.perf_counter()
        memory.look_at_changed_nodes()
        # 1. Who holds slots that are lost gets others, before anybody takes the room.
        self._move()
        # 2. The cycle itself: growth, turns, preemption. All of it is held when it returns.
        made = cycle(memory.state, memory.queues, time.time(), HEADS)
        if made.admitted or made.waiting or made.preempting:
            answer = "placed" if made.admitted else "refused"
            self._metrics.placement.labels(answer).observe(time.perf_counter() - started)
        # 3. Store what was decided, and say what was refused.
        self._carry_out(made)
        self.next_time = made.next_time
        return made.more

    def _carry_out(self, made: Decisions) -> None:
        for failed in made.failed:
            self._fail(failed)
        for gone in made.given_up:
            self.give_up(gone)
        for admitted in made.admitted:
            self._memory.queues.stores(admitted.key)
            self._with(admitted.key, partial(self._store, admitted))
        for resized in made.resized:
            self._with(resized.key, partial(self._change, resized.grant, Reason.RESIZED))
        for plan in made.preempting:
            self._with(plan.key, partial(self._preempt, plan))
        for evict in made.evict:
            self._drain(evict)
        for waiting in made.waiting:
            with self._memory.guard("workload", waiting.key):
                self._wait(waiting)
        for key in self._memory.queues.growing:
            entry, record = self._memory.queues.entries[key], self._memory.record_of(key)
            if entry.refusal is not None and record is not None:
                with self._memory.guard("workload", key):
                    self._refuse(record, entry.refusal)

    def _fail(self, failed: Failed) -> None:
        """One led to an error that nobody foresaw. It is put off; it and an administrator hear why."""
        self._memory.guard.failed("workload", failed.key, failed.error)
        record = self._memory.record_of(failed.key)
        if record is None:
            return
        record.refused, record.refused_at = Refused(Reason.INTERNAL_ERROR, in_words(failed.error)), time.monotonic()
        self._again(record.id, 0.0)

    def _with(self, key: str, write: Callable[[WorkloadEntry], Awaitable[None]]) -> None:
        """Write for a record, after the writes that are under way for it."""
        record = self._memory.record_of(key)
        if record is None:
            self._memory.queues.forget(self._memory.state, key)
            self._memory.queues.stored(key)
            return
        record.busy += 1
        self._spawn(self._write(record, write))

    async def _write(self, record: WorkloadEntry, write: Callable[[WorkloadEntry], Awaitable[None]]) -> None:
        failures = record.failures
        try:
            async with record.lock, self._writes:
                await write(record)
        except Exception as error:  # noqa: BLE001  (told by the guard)
            # With this workload alone: all others are served. What is stored is taken over from its events.
            self._memory.guard.failed("workload", record.key, error)
            record.failures += 1
            delay = backoff(record.failures)
            self._memory.undo(record, time.time() + delay)
            self._again(record.id, delay)
        if record.failures <= failures:
            self._again(record.id, 0.0)

    # --- admissions ------------------------------------------------------------------------------------------------

    async def _store(self, admitted: Admitted, record: WorkloadEntry) -> None:
        known = record.known
        admission = self._admission(record, admitted.grant)
        text = self._text(record, admission, admitted.message)
        wanted = (*admitted_as(known, text, checks := self._checks(record, admission)), *_not_ready(record))
        more = {"admissionChecks": pending(checks)} if checks else None
        try:
            done = await self._settle(record, admitted.grant, admission, wanted, more)
        finally:
            self._memory.stored(record)
        if done:
            self._was_admitted(record, Reason.ADMITTED, "Admit", text)
            self._metrics.admitted.inc()
            self._metrics.admission.observe(max(0.0, time.time() - seconds_of(record.owner.created)))

    async def _change(self, grant: AssumedAdmission, reason: Reason, record: WorkloadEntry) -> None:
        """Store that one who is admitted has other slots, or more of them. An eviction that began meanwhile goes on."""
        admission = self._admission(record, grant)
        text = self._text(record, admission, "")
        if await self._settle(record, grant, admission, admitted_as(None, text, ()), None):
            self._was_admitted(record, reason, "Replace" if reason is Reason.REPLACED else "Resize", text)

    def _admission(self, record: WorkloadEntry, grant: AssumedAdmission) -> Admission:
        return self._memory.holdings.admission_of(record, grant)

    def _checks(self, record: WorkloadEntry, admission: Admission) -> tuple[str, ...]:
        return self._memory.checks_for(admission) if record.owner.queue else ()

    def _text(self, record: WorkloadEntry, admission: Admission, message: str) -> str:
        return told(self._memory, record, admission, message)

    async def _settle(
        self,
        record: WorkloadEntry,
        grant: AssumedAdmission,
        admission: Admission,
        wanted: tuple[WantedCondition, ...],
        more: Any,
    ) -> bool:
        """Store an admission that is held already; else hold what was held before. True where it is stored."""

        def write() -> Awaitable[ObservedWorkload]:
            reclaimable = None if record.admission is None else reclaimed(record, admission)
            return self._writer.admission(
                record.owner.namespace, _there(record), admission, wanted, reclaimable=reclaimable, more=more
            )

        def stored() -> None:
            self._memory.admit(record, admission, grant)
            record.failures = 0

        return await self._storing(record, grant, write, stored)

    async def _storing(
        self,
        record: WorkloadEntry,
        grant: AssumedAdmission,
        write: Callable[[], Awaitable[ObservedWorkload]],
        stored: Callable[[], None],
    ) -> bool:
        """Store what is held already and still stands, then ``stored``; else hold what was held before."""
        memory, known = self._memory, None
        try:
            if not self._stands(record, grant):
                return False  # it was decided anew meanwhile
            known = await write()
        except Overtaken as news:
            memory.undo(record)
            known = news.found
        except KubeError as error:
            self._failed(record, error)
        else:
            if self._stands(record, grant):
                stored()
                return True
        finally:
            memory.written(record, known)
        return False

    def _stands(self, record: WorkloadEntry, grant: AssumedAdmission) -> bool:
        entry = self._memory.queues.entries.get(record.key)
        return entry is not None and entry.grant is grant and record.id in self._memory.records

    def _failed(self, record: WorkloadEntry, error: KubeError) -> None:
        record.failures += 1
        delay = backoff(record.failures)
        if record.grant is not None:
            self._memory.holdings.rest(record)  # else the room that it gives back would have it tried again at once
        self._memory.undo(record, time.time() + delay)
        self._again(record.id, delay)
        log.warning("admission was not stored", workload=record.key, error=str(error))
        if isinstance(error, NotFound):
            record.known = None

    def _was_admitted(self, record: WorkloadEntry, reason: Reason, action: str, text: str) -> None:
        emit(self._recorder, record, FINE, reason, action, message=text)
        log.info("admitted", workload=record.key, message=text)

    # --- preemption ------------------------------------------------------------------------------------------------

    async def _preempt(self, plan: Preempting, record: WorkloadEntry) -> None:
        """Store the plan, and only then have its victims evicted."""
        victims = {victim.key: victim.uid for victim in plan.victims}
        priorities = {victim.key: victim.priority for victim in plan.victims}
        domains = {victim.key: victim.domains for victim in plan.victims if victim.domains}
        strategy = self._memory.queues.rules.victims.strategy
        nomination = Nomination(self._admission(record, plan.grant), victims, priorities, domains, strategy)
        wanted = (WantedCondition(conditions.QUOTA_RESERVED, False, Reason.PREEMPTING, plan.message),)
        await self._storing(
            record,
            plan.grant,
            lambda: self._writer.nomination(record.owner.namespace, _there(record), nomination, wanted),
            lambda: self._evict(record, plan),
        )

    def _evict(self, record: WorkloadEntry, plan: Preempting) -> None:
        record.refused = Refused(Reason.PREEMPTING, plan.message)
        emit(self._recorder, record, FINE, Reason.PREEMPTING, "Preempt", message=plan.message)
        log.info("preempts", workload=record.key, message=plan.message)
        for victim in plan.victims:
            other = self._memory.record_of(victim.key)
            if other is None:
                continue
            if not victim.domains:
                other.evict = lifecycle.preempted(victim.reason, plan.told(victim))
            elif (losing := self._memory.holdings.losing(victim.key)) is not None:
                text = conditions.shorten(losing.message)
                emit(self._recorder, other, FINE, Reason.PREEMPTED, "Evict", message=text)
                log.info("loses slices", workload=victim.key, message=text)
            self._again(other.id, 0.0)

    def _drain(self, evict: Drained) -> None:
        record, entry = self._memory.record_of(evict.key), self._memory.queues.entries[evict.key]
        if record is None:
            return
        if entry.phase is Phase.NOMINATED:
            self._memory.undo(record)
            self.give_up(Waiting(evict.key, evict.reason, evict.message))
            return
        record.evict = lifecycle.Evict(reason=evict.reason, message=evict.message)
        self._again(record.id, 0.0)

    def give_up(self, gone: Waiting) -> None:
        """Remove a nomination that came to nothing."""
        record = self._memory.record_of(gone.key)
        if record is not None:
            record.refused = Refused(gone.reason, gone.message)
        self._with(gone.key, partial(self._give_up, gone))

    def withdraw(self, record: WorkloadEntry) -> None:
        """Remove a stored plan that is none any more, or a restart would carry it out."""
        entry = self._memory.queues.entries.get(record.key)
        planned = entry is not None and entry.phase in HOLDING
        if record.known is not None and record.known.nomination is not None and not planned:
            record.busy += 1
            self._spawn(self._write(record, partial(self._remove, ())))

    async def _give_up(self, gone: Waiting, record: WorkloadEntry) -> None:
        await self._remove((WantedCondition(conditions.QUOTA_RESERVED, False, gone.reason, gone.message),), record)

    async def _remove(self, wanted: tuple[WantedCondition, ...], record: WorkloadEntry) -> None:
        known: ObservedWorkload | None = None
        try:
            if record.known is not None:
                more = {"nomination": None}
                known = await self._writer.conditions(record.owner.namespace, record.known, wanted, more)
        except KubeError as error:
            record.failures += 1
            self._again(record.id, backoff(record.failures))
            log.warning("a nomination was not removed", workload=record.key, error=str(error))
        finally:
            self._memory.written(record, known)

    # --- refusals and lost slots -------------------------------------------------------------------------------------

    def _wait(self, waiting: Waiting) -> None:
        record, entry = self._memory.record_of(waiting.key), self._memory.queues.entries.get(waiting.key)
        if record is not None:
            flavor = entry.refusal.flavor if entry is not None and entry.refusal is not None else ""
            self._refuse(record, Refusal(waiting.reason, waiting.message, flavor=flavor))

    def _refuse(self, record: WorkloadEntry, refusal: Refusal) -> None:
        now, before = time.monotonic(), record.refused
        soon = before is not None and before.reason == refusal.reason and now - record.refused_at < DETAILS
        if soon and refusal.reason in COUNTED:
            return  # its text takes long to make
        record.refused_at = now
        record.refused = Refused(refusal.reason, refused_text(self._memory, record, refusal))
        if record.refused != before:
            log.info("waits", workload=record.key, reason=str(refusal.reason), message=record.refused.message)
            self._again(record.id, 0.0)

    def _move(self) -> None:
        """Other slots for lost ones, where something was freed since they were refused."""
        memory = self._memory
        for key, seen in tuple(memory.holdings.moving.items()):
            record = memory.record_of(key)
            if record is None or not record.slots_in or not record.lost:
                memory.holdings.moving.pop(key, None)
                continue
            now = memory.queues.freed_so_far(key)
            if now == seen or record.busy or record.sending or key in memory.queues.evicting:
                continue  # the end of the write has it looked at again; a pod that is let go now goes to a slot of now
            memory.holdings.moving[key] = now
            with memory.guard("workload", key):
                self._move_one(record)

    def _move_one(self, record: WorkloadEntry) -> None:
        found = elsewhere(self._memory, record)
        if isinstance(found, Refusal):
            self._refuse(record, found)
        else:
            self.replace(record, found)

    def replace(self, record: WorkloadEntry, grant: AssumedAdmission) -> None:
        """Hold other slots from now on, and store them."""
        self._memory.holdings.replace(record, grant)
        self._with(record.key, partial(self._store_other, grant))

    async def _store_other(self, grant: AssumedAdmission, record: WorkloadEntry) -> None:
        try:
            await self._change(grant, Reason.REPLACED, record)
        finally:
            self._memory.replaced(record)


def admitted_as(known: ObservedWorkload | None, message: str, checks: tuple[str, ...]) -> tuple[WantedCondition, ...]:
    """What is said of one that holds quota and slots, once its ``checks`` are ready; none: at once."""
    wanted = [WantedCondition(conditions.QUOTA_RESERVED, True, Reason.QUOTA_RESERVED, message)]
    if checks:
        text = f"waits for admission check {', '.join(checks)}"
        wanted.append(WantedCondition(conditions.ADMITTED, False, Reason.PENDING, text))
    else:
        wanted.append(WantedCondition(conditions.ADMITTED, True, Reason.ADMITTED, message))
    for found in known.conditions if known is not None else ():
        if found.type in {conditions.EVICTED, conditions.PREEMPTED} and found.status == "True":
            text = f"it was admitted again; before: {found.message}"
            wanted.append(WantedCondition(found.type, False, Reason.QUOTA_RESERVED, text))
        elif found.type == conditions.REQUEUED and found.status == "False":
            wanted.append(
                WantedCondition(found.type, True, Reason.REQUEUED, f"it was admitted again; before: {found.message}")
            )
    return tuple(wanted)


def _not_ready(record: WorkloadEntry) -> tuple[WantedCondition, ...]:
    """That its pods are not ready yet: if that becomes true again later, when it did says that they were once."""
    known = record.known
    found = condition(known.conditions, conditions.PODS_READY) if known is not None else None
    if not record.owner.queue or (found is not None and found.status == "False"):
        return ()
    text = "its pods were not all ready since it was admitted"
    return (WantedCondition(conditions.PODS_READY, False, Reason.WAIT_FOR_START, text),)


def _there(record: WorkloadEntry) -> ObservedWorkload:
    """Raises KubeError where the Workload is gone; another one is made, and then it is looked at again."""
    if record.known is None:
        raise KubeError(f"workload {record.key} is gone")
    return record.known


def pending(checks: tuple[str, ...]) -> list[dict[str, str]]:
    """``status.admissionChecks`` of one whose checks nobody has answered yet."""
    now = conditions.timestamp(time.time())
    return [{"name": name, "state": "Pending", "lastTransitionTime": now, "message": ""} for name in checks]
