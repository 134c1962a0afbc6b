"""Carrying out what a queued job's life needs: unsuspend, evict, suspend, give back, deactivate, remove.

Each is asked for again at every look until it shows, so all of it may be done twice. Order of an eviction: its
condition is stored, pods go one by one, the job is suspended and gets its template back, the admission is removed. Only
then somebody else gets what it held.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from crds.constants import Keys
from engine.reasons import Reason
from kube.client import Client
from kube.errors import Forbidden, Invalid
from kube.events import EventRecorder
from kube.objects import Job, Object, Pod, ResourceFlavor, Struct, condition, is_true, key
from kube.parents import JobSet
from kube.patches import PatchType
from kube.resources import JOB_SETS, JOBS, WORKLOADS, Resource
from queueing.cycle.cycle import Waiting
from queueing.queues.entry import AssumedAdmission
from queueing.queues.eviction_units import pod_unit
from ungater.cache.cache import Cache
from ungater.jobs import pod_template
from ungater.metrics import Metrics
from ungater.model import actions, conditions
from ungater.model.conditions import WantedCondition, is_so, timestamp
from ungater.model.job_view import JOB
from ungater.model.workload_entry import Admission, ObservedWorkload, WorkloadEntry
from ungater.scheduling.replacement import anew, fits
from ungater.scheduling.scheduler import Scheduler
from ungater.writers.events import emit
from ungater.writers.evictor import Blocked, Evictor
from ungater.writers.workloads import Overtaken, WorkloadWriter

KINDS: Mapping[str, tuple[Resource, type[Job | JobSet]]] = {"Job": (JOBS, Job), "JobSet": (JOB_SETS, JobSet)}
SENDING = 0.05  # seconds until another look while a patch is on its way
SPARED = 300.0  # seconds for which a victim that a budget protects is left alone

log = structlog.get_logger()


class _Templates(Struct, frozen=True):
    pod_sets: tuple[dict[str, Any], ...] = ()


class _Stored(Object, frozen=True):
    """A Workload with its templates."""

    spec: _Templates = _Templates()


@dataclass(frozen=True)
class Reclaim:
    """How nominal quota is taken back: whether against budgets at last, and how long pods have to stop at most."""

    overrides: bool = True
    grace: int = 600  # seconds


class Lifecycle:
    """See the module's rules.

    ``again(uid, seconds)`` has a job looked at; ``patience``: seconds that a preemption waits for a budget.
    """

    def __init__(
        self,
        client: Client,
        memory: Cache,
        writer: WorkloadWriter,
        admitter: Scheduler,
        evictions: Evictor,
        *,
        flavors: Mapping[str, ResourceFlavor],
        keys: Keys,
        again: Callable[[str, float], None],
        recorder: EventRecorder,
        metrics: Metrics,
        patience: float,
        reclaim: Reclaim,
    ) -> None:
        self._client = client
        self._memory = memory
        self._writer = writer
        self._admitter = admitter
        self._evictions = evictions
        self._keys = keys
        self._again = again
        self._recorder = recorder
        self._metrics = metrics
        self._patience = patience
        self._reclaim = reclaim
        self._flavors = flavors

    async def writing(
        self, record: WorkloadEntry, write: Callable[[ObservedWorkload], Awaitable[ObservedWorkload]]
    ) -> bool:
        """One write of a Workload, after those under way.

        False where nothing was written: there is none, or it changed meanwhile, and so may what is to be done.
        """
        seen, known = record.known, None
        record.busy += 1
        try:
            async with record.lock:
                if seen is None or record.known is not seen:
                    return False
                known = await write(seen)
        except Overtaken as news:
            known = news.found
            raise
        finally:
            self._memory.written(record, known)
        return True

    # --- the job ---------------------------------------------------------------------------------------------------

    async def start(self, record: WorkloadEntry) -> bool:
        """Unsuspend the job, with what its admission adds to its pods.

        Where admission checks add what cannot be, it is put back. Where they want other nodes than those of its slots,
        it gets other slots first, or is put back for a while.
        """
        admission, known, memory = record.admission, record.known, self._memory
        if admission is None or known is None:
            return False
        updates = pod_template.updates_of(known, memory.checks_of(record))
        try:
            body = pod_template.start(record.owner, admission, self._flavors, self._keys, updates)
        except pod_template.ClashError as clash:
            return await self._turn_down(record, Reason.CHECK_REJECTED, str(clash))
        if updates and (why := self._elsewhere(record, admission, updates)) is not None:
            return why if isinstance(why, bool) else await self._turn_down(record, Reason.CHECK_RETRY, why)
        await self._patch(record, body, "Start")
        record.started = True
        return True

    def _elsewhere(
        self, record: WorkloadEntry, admission: Admission, updates: pod_template.Updates
    ) -> str | bool | None:
        """Where checks want other nodes than those of its slots: False, other slots are on their way; or why not."""
        memory, owner = self._memory, record.owner
        more = {
            one.name: (one, pod_template.added(owner, part, self._flavors, self._keys, updates))
            for one in owner.pod_sets
            if (part := admission.part(one.name)) is not None and part.count
        }
        if all(fits(memory, record, name, added.node_selector) for name, (_, added) in more.items()):
            return None
        templates = {name: pod_template.merged(pod_set.template, added) for name, (pod_set, added) in more.items()}
        found = anew(memory, record, templates)
        if isinstance(found, AssumedAdmission):
            self._admitter.replace(record, found)
            return False  # it is looked at again when that is stored
        selectors = {f"{key}={value}" for _, added in more.values() for key, value in added.node_selector.items()}
        names = ", ".join(dict.fromkeys(check for check, update in updates if update.node_selector))
        wanted = ", ".join(sorted(selectors))
        return f"admission check {names} wants nodes with {wanted}, where it has no place: {found.message}"

    async def _turn_down(self, record: WorkloadEntry, reason: Reason, text: str) -> bool:
        """Put back one that cannot start as its admission checks have it."""
        wanted = (WantedCondition(conditions.EVICTED, True, reason, conditions.shorten(text)),)
        return await self.evict(record, actions.Evict(wanted, reason, text))

    async def suspend(self, record: WorkloadEntry) -> bool:
        """Suspend the job."""
        self._leaving(record)
        await self._patch(record, pod_template.stop(record.owner), "Suspend")
        return True

    async def _patch(self, record: WorkloadEntry, body: pod_template.Body, action: str) -> None:
        """Patch the job. Where the API server refuses that for good, it is told. Raises KubeError."""
        try:
            await self._patched(record, body)
        except (Invalid, Forbidden) as error:
            text = conditions.shorten(f"the job could not be changed ({action.lower()}): {error}")
            emit(self._recorder, record, "Warning", Reason.WRITE_FAILED, action, message=text)
            raise

    async def _patched(self, record: WorkloadEntry, body: pod_template.Body) -> None:
        owner = record.owner
        record.busy += 1
        try:
            resource, type_ = KINDS[owner.kind]
            content_type = PatchType.JSON if isinstance(body, list) else PatchType.MERGE
            made = await self._client.patch(
                resource, owner.name, owner.namespace, body=body, content_type=content_type, type=type_
            )
        finally:
            self._memory.written(record, None)
        self._memory.saw_job(made)

    async def _restore(self, record: WorkloadEntry) -> None:
        """Give a suspended job the template that it had before it was admitted."""
        owner, known = record.owner, record.known
        if known is None or not owner.suspended or not owner.queue:
            return
        stored = await self._client.get(WORKLOADS, known.name, owner.namespace, type=_Stored)
        body = pod_template.restore(owner, stored.spec.pod_sets) if stored.spec.pod_sets else None
        if body is None:
            return
        try:
            await self._patched(record, body)
        except Invalid:
            if owner.kind != JOB:
                raise
            # The template of a job that was started can be changed after this; from Kubernetes 1.36 on also without,
            # as soon as its controller has seen the suspension.
            status = {"status": {"startTime": None}}
            await self._client.patch(JOBS, owner.name, owner.namespace, body=status, subresource="status")
            await self._patch(record, body, "Restore")

    # --- an eviction -------------------------------------------------------------------------------------------------

    def _leaving(self, record: WorkloadEntry) -> None:
        """No more pods go, and it is nobody's victim."""
        record.closing = True
        self._memory.queues.evict(record.key)

    async def evict(self, record: WorkloadEntry, evict: actions.Evict) -> bool:
        """Begin an eviction."""
        memory, known = self._memory, record.known
        if record.evict is not None and record.key not in memory.queues.evicting:
            record.evict = None  # whoever wanted its room does not any more
            return True
        self._leaving(record)
        if known is None or is_so(known.conditions, evict.wanted):
            return False
        namespace = record.owner.namespace
        if not await self.writing(record, lambda known: self._writer.conditions(namespace, known, evict.wanted)):
            return True
        record.evict = None
        text = conditions.shorten(evict.message)
        self._metrics.evicted.labels(str(evict.reason)).inc()
        emit(self._recorder, record, "Normal", evict.reason, "Evict", message=text)
        log.info("evicts", workload=record.key, reason=str(evict.reason), message=evict.message)
        return True

    async def evict_pods(self, record: WorkloadEntry, evict: actions.EvictPods) -> bool:
        """Evict its pods; where a budget refuses for long, whoever waits for it makes another plan."""
        if (
            _is_victim(record)
            and not self._memory.holdings.preemptors_of(record.key)
            and self._untouched(record, evict)
        ):
            return await self._spare(record, Reason.QUOTA_RESERVED, "nobody waits for its room any more")
        self._leaving(record)
        reclaims = _is_reclaimed(record) and self._reclaim.overrides
        blocked = self._evict_each(record, [(pod, evict.why) for pod in evict.pods], reclaims=reclaims)
        if blocked is None or reclaims:
            return False
        preemptors = self._memory.holdings.preemptors_of(record.key)
        self._given_up(record.key, preemptors, blocked.message)
        if not preemptors:
            return False
        if self._untouched(record, evict):
            self._memory.queues.spare(record.key, time.time() + SPARED)
            return await self._spare(record, Reason.EVICTION_BLOCKED, blocked.message)
        self._leaving(record)
        return False

    async def evict_some(self, record: WorkloadEntry, evict: actions.EvictSome) -> bool:
        """Evict pods of slices that are to go, or pods that no queue admitted; a budget that refuses ends the plan."""
        queues = self._memory.queues
        reclaims = self._reclaim.overrides and self._memory.holdings.reclaimed(record.key)
        blocked = self._evict_each(record, evict.pods, reclaims=reclaims)
        if blocked is None or reclaims:
            return False
        until = time.time() + SPARED
        if record.key in queues.nominated:
            preemptors = [record.key]
            for pod, _ in evict.pods:
                queues.spare(pod_unit(key(pod)), until)
        else:
            preemptors = self._memory.holdings.preemptors_of(record.key)
            queues.spare(record.key, until)
        self._evictions.forget(record.id)
        self._given_up(record.key, preemptors, blocked.message)
        return False

    def _evict_each(self, record: WorkloadEntry, pods: Iterable[tuple[Pod, str]], *, reclaims: bool) -> Blocked | None:
        """Evict pods, each for its reason; what a budget says that refused for longer than is waited for.

        ``reclaims``: nominal quota is taken back, so that after this a budget does not count, and pods cannot take as
        long to stop as they like.
        """
        blocked = self._evictions.blocked(record.id)
        waited = time.monotonic() - blocked.since if blocked is not None else 0.0
        late = blocked is not None and waited >= self._patience
        overriding, most = reclaims and late, self._reclaim.grace if reclaims else None
        more = ""
        if overriding and blocked is not None:
            more = f"; {blocked.message}: that does not count for what was borrowed (reclaimOverridesBudgets)"
        for pod, why in pods:
            self._evictions.evict(record.id, pod, f"{why}{more}", overriding=overriding, most_grace=most)
        blocked = self._evictions.blocked(record.id)
        if blocked is None or late:
            return blocked
        self._again(record.id, self._patience - waited)
        return None

    def _given_up(self, victim: str, preemptors: Iterable[str], why: str) -> None:
        """A budget refused for too long: who waits for it makes another plan."""
        for name in preemptors:
            other = self._memory.record_of(name)
            if other is not None:
                self._memory.undo(other)
                about = "pods that no queue admitted" if name == victim else victim
                text = f"the preemption of {about} came to nothing, and another is looked for: {why}"
                self._admitter.give_up(Waiting(name, Reason.EVICTION_BLOCKED, text))

    def _untouched(self, record: WorkloadEntry, evict: actions.EvictPods) -> bool:
        """Whether all its pods run as before."""
        return len(evict.pods) >= record.owner.count and all(
            pod.metadata.deletion_timestamp is None for pod in evict.pods
        )

    async def _spare(self, record: WorkloadEntry, reason: Reason, why: str) -> bool:
        """It stays after all."""
        text = f"it was to be evicted, and stays: {why}"
        types = (conditions.EVICTED, conditions.PREEMPTED)
        wanted = tuple(WantedCondition(type_, False, reason, text) for type_ in types)
        namespace = record.owner.namespace
        if not await self.writing(record, lambda known: self._writer.conditions(namespace, known, wanted)):
            return True
        holdings = self._memory.holdings
        if preemptors := holdings.preemptors_of(record.key):
            record.evict = holdings.told(preemptors[0], record.key)  # planned while that was written: it goes after all
            return True
        self._evictions.forget(record.id)
        self.keep(record)
        return True

    def keep(self, record: WorkloadEntry) -> None:
        """What it was to give back it keeps after all, unless it goes for somebody else, or that is stored already."""
        record.closing = False
        holdings, known = self._memory.holdings, record.known
        stored = known is not None and is_true(known.conditions, conditions.EVICTED)
        if record.evict is None and not stored and not holdings.preemptors_of(record.key):
            holdings.stay(record)

    async def give_back(self, record: WorkloadEntry, back: actions.ClearAdmission) -> bool:
        """The eviction is over: remove the admission, and only then give away what it held."""
        self._leaving(record)
        if record.sending:
            self._again(record.id, SENDING)  # a patch on its way may still use a slot
            return False
        await self._restore(record)
        now, known = time.time(), record.known
        more: dict[str, Any] = {}
        if back.leave:
            more["requeueState"] = None
        elif back.until > now:
            more["requeueState"] = {"count": back.requeues, "requeueAt": timestamp(back.until)}
        if known is not None and known.most_execution is not None:
            more["accumulatedPastExecutionTimeSeconds"] = known.executed + _admitted_for(known, now)
        if known is not None and known.checks:
            more["admissionChecks"] = None
        namespace = record.owner.namespace
        written = await self.writing(
            record, lambda known: self._writer.admission(namespace, known, None, back.wanted, more=more)
        )
        if not written:
            return True
        self._evictions.forget(record.id)
        if back.leave:
            self._memory.free(record)
        else:
            self._memory.back(record, back.until)
        return True

    async def deactivate(self, record: WorkloadEntry, why: actions.Deactivate) -> bool:
        """Say why, and set spec.active to false."""
        namespace, message = record.owner.namespace, conditions.shorten(why.message)
        wanted = (WantedCondition(conditions.REQUEUED, False, why.reason, message),)
        if not await self.writing(record, lambda known: self._writer.conditions(namespace, known, wanted)):
            return True
        if not await self.writing(record, lambda known: self._writer.deactivate(namespace, known)):
            return True
        emit(self._recorder, record, "Warning", why.reason, "Deactivate", message=message)
        return True

    async def remove(self, record: WorkloadEntry) -> bool:
        """Delete a Workload that finished long ago, or whose pods are all gone."""
        if record.known is not None:
            record.removing = True
            await self._writer.remove(record.owner.namespace, record.known)
            self._memory.removed(record)
            self._again(record.id, 0.0)  # no event tells where it came and went while a watch was broken
        return False


def _is_victim(record: WorkloadEntry) -> bool:
    """Whether it is on its way out for somebody else."""
    found = condition(record.known.conditions, conditions.EVICTED) if record.known is not None else None
    return found is not None and found.reason == str(Reason.PREEMPTED)


def _is_reclaimed(record: WorkloadEntry) -> bool:
    """Whether it is on its way out because another queue takes back its nominal quota."""
    found = condition(record.known.conditions, conditions.PREEMPTED) if record.known is not None else None
    return _is_victim(record) and found is not None and found.reason == str(Reason.RECLAIMED)


def _admitted_for(known: ObservedWorkload, now: float) -> int:
    since = conditions.since(known.conditions, conditions.ADMITTED)
    return max(0, int(now - since)) if since is not None else 0
