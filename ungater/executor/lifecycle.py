"""Carrying out what a queued job's life needs: unsuspend, evict, suspend, give back, deactivate, remove.

Each is asked for again at every look until it shows, so all of it may be done twice. Order of an eviction: its
condition is stored, pods go one by one, the job is suspended and gets its template back, the admission is removed. Only
then somebody else gets what it held.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
import structlog

from clock import Clock
from crds.constants import Keys
from engine.reasons import Reason
from engine.reservation_key import HolderKey, ReservationKey, Role, role_of, workload_of
from kube.client import Client
from kube.errors import Forbidden, Invalid
from kube.events import EventRecorder
from kube.objects import Job, Object, Pod, ResourceFlavor, Struct, is_true, key
from kube.parents import JobSet
from kube.patches import PatchType
from kube.resources import JOB_SETS, JOBS, WORKLOADS, Resource
from queueing.cycle.cycle import Waiting
from queueing.queues.entry import AssumedAdmission
from ungater.cache.cache import Cache
from ungater.executor import messages
from ungater.executor.evicted import admitted_for, is_reclaimed, is_victim
from ungater.jobs import pod_template
from ungater.metrics import ControllerMetrics
from ungater.model import actions, conditions
from ungater.model.admission import Admission
from ungater.model.conditions import WantedCondition, is_so, timestamp
from ungater.model.job_view import JOB
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry
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


class ReclaimRules(msgspec.Struct, frozen=True):
    """How nominal quota is taken back: whether against budgets at last, and how long pods have to stop at most."""

    overrides: bool = True
    grace: int = 600  # seconds


class Lifecycle:
    """See the module's rules.

    ``requeue(uid, seconds)`` has a job looked at; ``patience``: seconds that a preemption waits for a budget.
    """

    def __init__(
        self,
        client: Client,
        cache: Cache,
        writer: WorkloadWriter,
        scheduler: Scheduler,
        evictor: Evictor,
        *,
        flavors: Mapping[str, ResourceFlavor],
        keys: Keys,
        requeue: Callable[[str, float], None],
        recorder: EventRecorder,
        metrics: ControllerMetrics,
        patience: float,
        reclaim: ReclaimRules,
        clock: Clock,
    ) -> None:
        self._client = client
        self._cache = cache
        self._writer = writer
        self._admitter = scheduler
        self._evictions = evictor
        self._keys = keys
        self._requeue = requeue
        self._recorder = recorder
        self._metrics = metrics
        self._patience = patience
        self._reclaim = reclaim
        self._flavors = flavors
        self._clock = clock

    async def writing(
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

    # --- the job ---------------------------------------------------------------------------------------------------

    async def start(self, entry: WorkloadEntry) -> bool:
        """Unsuspend the job, with what its admission adds to its pods.

        Where admission checks add what cannot be, it is put back. Where they want other nodes than those of its slots,
        it gets other slots first, or is put back for a while.
        """
        admission, observed, cache = entry.admission, entry.observed, self._cache
        if admission is None or observed is None:
            return False
        updates = pod_template.updates_of(observed, cache.admissions.checks_of(entry))
        try:
            body = pod_template.start(entry.job, admission, self._flavors, self._keys, updates)
        except pod_template.ClashError as clash:
            return await self._turn_down(entry, Reason.CHECK_REJECTED, str(clash))
        if updates and (why := self._check_other_nodes(entry, admission, updates)) is not None:
            return why if isinstance(why, bool) else await self._turn_down(entry, Reason.CHECK_RETRY, why)
        await self._patch(entry, body, "Start")
        # After the patch: one that failed leaves it as never started, so
        # that an edit of the job still ends the admission.
        entry.mark_started()
        return True

    def _check_other_nodes(
        self, entry: WorkloadEntry, admission: Admission, updates: pod_template.Updates
    ) -> str | bool | None:
        """Where checks want other nodes than those of its slots: False, other slots are on their way; or why not."""
        cache, owner = self._cache, entry.job
        more = {
            one.name: (one, pod_template.added(owner, part, self._flavors, self._keys, updates))
            for one in owner.pod_sets
            if (part := admission.pod_set_named(one.name)) is not None and part.count
        }
        if all(fits(cache, entry, name, added.node_selector) for name, (_, added) in more.items()):
            return None
        templates = {name: pod_template.merged(pod_set.template, added) for name, (pod_set, added) in more.items()}
        found = anew(cache, entry, templates)
        if isinstance(found, AssumedAdmission):
            self._admitter.replace(entry, found)
            return False  # it is looked at again when that is stored
        selectors = {f"{key}={value}" for _, one in updates for key, value in (one.node_selector or {}).items()}
        names = ", ".join(dict.fromkeys(check for check, update in updates if update.node_selector))
        wanted = ", ".join(sorted(selectors))
        return messages.no_place_for_checks(names, wanted, found.message)

    async def _turn_down(self, entry: WorkloadEntry, reason: Reason, text: str) -> bool:
        """Put back one that cannot start as its admission checks have it."""
        wanted = (WantedCondition(conditions.EVICTED, True, reason, conditions.shorten(text)),)
        return await self.begin_eviction(entry, actions.Evict(wanted, reason, text))

    async def suspend(self, entry: WorkloadEntry, suspend: actions.Suspend) -> bool:
        """Suspend the job, and say why where nothing else does."""
        # First of all: no pod may be let go while its job is being suspended.
        self._leaving(entry)
        await self._patch(entry, pod_template.stop(entry.job), "Suspend")
        if suspend.why:
            emit(self._recorder, entry, "Warning", Reason.SUSPENDED, "Suspend", message=suspend.why)
        return True

    async def _patch(self, entry: WorkloadEntry, body: pod_template.Body, action: str) -> None:
        """Patch the job. Where the API server refuses that for good, it is told. Raises KubeError."""
        try:
            await self._patched(entry, body)
        except (Invalid, Forbidden) as error:
            text = conditions.shorten(messages.not_changed(action, error))
            emit(self._recorder, entry, "Warning", Reason.WRITE_FAILED, action, message=text)
            raise

    async def _patched(self, entry: WorkloadEntry, body: pod_template.Body) -> None:
        owner = entry.job
        entry.writes.begin_write()
        try:
            resource, type_ = KINDS[owner.kind]
            content_type = PatchType.JSON if isinstance(body, list) else PatchType.MERGE
            made = await self._client.patch(
                resource, owner.name, owner.namespace, body=body, content_type=content_type, type=type_
            )
        finally:
            self._cache.workloads.written(entry, None)
        # The watch may be late: the next look would suspend or start by what was before this patch.
        self._cache.jobs.saw_job(made)

    async def _restore(self, entry: WorkloadEntry) -> None:
        """Give a suspended job the template that it had before it was admitted."""
        owner, observed = entry.job, entry.observed
        if observed is None or not owner.suspended or not owner.queue:
            return
        stored = await self._client.get(WORKLOADS, observed.name, owner.namespace, type=_Stored)
        body = pod_template.restore(owner, stored.spec.pod_sets) if stored.spec.pod_sets else None
        if body is None:
            return
        try:
            await self._patched(entry, body)
        except Invalid:
            if owner.kind != JOB:
                raise
            # The template of a job that was started can be changed after this; from Kubernetes 1.36 on also without,
            # as soon as its controller has seen the suspension.
            status = {"status": {"startTime": None}}
            await self._client.patch(JOBS, owner.name, owner.namespace, body=status, subresource="status")
            await self._patch(entry, body, "Restore")

    # --- an eviction -------------------------------------------------------------------------------------------------

    def _leaving(self, entry: WorkloadEntry) -> None:
        """No more pods go, and it is nobody's victim."""
        entry.close()
        # Others may plan on its room from now on, and none takes it as a further victim.
        self._cache.queues.evict(entry.key)

    async def begin_eviction(self, entry: WorkloadEntry, evict: actions.Evict) -> bool:
        """Begin an eviction."""
        cache, observed = self._cache, entry.observed
        if entry.evict is not None and entry.key not in cache.queues.evicting:
            entry.drop_eviction()  # whoever wanted its room does not any more
            return True
        self._leaving(entry)
        if observed is None or is_so(observed.conditions, evict.wanted):
            return False
        namespace = entry.job.namespace
        # Stored before the first pod goes: a restart amid the eviction goes on with it.
        if not await self.writing(entry, lambda observed: self._writer.conditions(namespace, observed, evict.wanted)):
            return True
        # The condition says it from now on.
        entry.drop_eviction()
        text = conditions.shorten(evict.message)
        self._metrics.evicted.labels(str(evict.reason)).inc()
        emit(self._recorder, entry, "Normal", evict.reason, "Evict", message=text)
        log.info("evicts", workload=entry.key, reason=str(evict.reason), message=evict.message)
        return True

    async def evict_pods(self, entry: WorkloadEntry, evict: actions.EvictPods) -> bool:
        """Evict its pods; where a budget refuses for long, whoever waits for it makes another plan."""
        if is_victim(entry) and not self._cache.reservations.preemptors_of(entry.key) and self._untouched(entry, evict):
            return await self._spare(entry, Reason.QUOTA_RESERVED, "nobody waits for its room any more")
        self._leaving(entry)
        reclaims = is_reclaimed(entry) and self._reclaim.overrides
        blocked = self.evict_each(entry, [(pod, evict.why) for pod in evict.pods], reclaims=reclaims)
        # Room that a budget keeps counts in no plan: whoever is
        # nominated for it would wait, and hold its own meanwhile.
        self._cache.queues.keep(entry.key, kept=blocked is not None and not reclaims)
        if blocked is None or reclaims:
            return False
        preemptors = self._cache.reservations.preemptors_of(entry.key)
        self._given_up(entry.key, preemptors, blocked.message)
        if not preemptors:
            return False
        if self._untouched(entry, evict):
            self._cache.queues.spare_until(entry.key, self._clock.now() + SPARED)
            return await self._spare(entry, Reason.EVICTION_BLOCKED, blocked.message)
        self._leaving(entry)
        return False

    async def evict_some(self, entry: WorkloadEntry, evict: actions.EvictSome) -> bool:
        """Evict pods of slices that are to go, or pods that no queue admitted; a budget that refuses ends the plan."""
        queues = self._cache.queues
        reclaims = self._reclaim.overrides and self._cache.reservations.reclaimed(entry.key)
        blocked = self.evict_each(entry, evict.pods, reclaims=reclaims)
        if blocked is None or reclaims:
            return False
        until = self._clock.now() + SPARED
        # The same instruction serves a gang that loses slices and one that
        # others make room for: whose pods they are tells which.
        theirs = [pod for pod, _ in evict.pods if pod.metadata.uid not in entry.pods]  # that no queue admitted
        if theirs or entry.key in queues.nominated:
            preemptors = [
                name for name in (entry.key, ReservationKey.for_growth(entry.key)) if name in queues.nominated
            ]
            for pod in theirs:
                queues.spare_until(ReservationKey.for_pod(key(pod)), until)
        else:
            preemptors = self._cache.reservations.preemptors_of(entry.key)
            queues.spare_until(entry.key, until)
        self._evictions.cancel_evictions(entry.id)
        self._given_up(entry.key, preemptors, blocked.message)
        return False

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
                self._admitter.drop_nomination(Waiting(base, Reason.EVICTION_BLOCKED, text, grows=grows))

    def _untouched(self, entry: WorkloadEntry, evict: actions.EvictPods) -> bool:
        """Whether all its pods run as before."""
        return len(evict.pods) >= entry.job.count and all(pod.metadata.deletion_timestamp is None for pod in evict.pods)

    async def _spare(self, entry: WorkloadEntry, reason: Reason, why: str) -> bool:
        """It stays after all."""
        text = messages.spared(why)
        types = (conditions.EVICTED, conditions.PREEMPTED)
        wanted = tuple(WantedCondition(type_, False, reason, text) for type_ in types)
        namespace = entry.job.namespace
        if not await self.writing(entry, lambda observed: self._writer.conditions(namespace, observed, wanted)):
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

    async def clear_admission(self, entry: WorkloadEntry, back: actions.ClearAdmission) -> bool:
        """The eviction is over: remove the admission, and only then give away what it held."""
        self._leaving(entry)
        if entry.writes.patches:
            self._requeue(entry.id, SENDING)  # a patch on its way may still use a slot
            return False
        # Before the admission goes: the next one adds its selectors to the template, and must find what the user wrote.
        await self._restore(entry)
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
        written = await self.writing(
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

    async def deactivate(self, entry: WorkloadEntry, why: actions.Deactivate) -> bool:
        """Say why, and set spec.active to false."""
        namespace, message = entry.job.namespace, conditions.shorten(why.message)
        wanted = (WantedCondition(conditions.REQUEUED, False, why.reason, message),)
        # The reason comes first: after spec.active is false nothing asks for it again, not even after a restart.
        if not await self.writing(entry, lambda observed: self._writer.conditions(namespace, observed, wanted)):
            return True
        if not await self.writing(entry, lambda observed: self._writer.deactivate(namespace, observed)):
            return True
        emit(self._recorder, entry, "Warning", why.reason, "Deactivate", message=message)
        return True

    async def remove(self, entry: WorkloadEntry) -> bool:
        """Delete a Workload that finished long ago, or whose pods are all gone."""
        if entry.observed is not None:
            entry.begin_removal()
            await self._writer.remove(entry.job.namespace, entry.observed)
            self._cache.workloads.removed(entry)
            self._requeue(entry.id, 0.0)  # no event tells where it came and went while a watch was broken
        return False
