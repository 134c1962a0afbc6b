"""Kueue's objects watched, and our checks answered, by what `decide` and `answers` make of what was seen.

Rules
- `KueueStandings.view_of_job` is how everything else looks at a job; the cache asks it for every version of one, and
  again when it is told by ``review``.
- An answer names the version of the Workload that it was decided on: where Kueue took the quota back meanwhile, the API
  server refuses it, and the news that come then decide again.
- What follows a Retry (`retries.next_step`) waits for nothing of ours: Kueue requeues a moment after it evicted.
- Everything can be rebuilt from the API server; nothing here is the truth.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from clock import Clock
from kube import objects as core
from kube.client import Client
from kube.errors import Conflict, KubeError, NotFound
from kube.informer import Event
from kube.objects import controller_of, version_of
from ungater.cache.cache import Cache
from ungater.executor.start_stop import KINDS
from ungater.kueue import answers, decide, retries
from ungater.kueue.answers import Side
from ungater.kueue.decide import KueueObjects, KueueStanding
from ungater.kueue.retries import HOPELESS, RetryAnswer, RetryLimits
from ungater.kueue.standings import KueueStandings, strayed
from ungater.model import conditions, kueue_objects
from ungater.model.job_view import namespace_of
from ungater.model.kueue_objects import CONTROLLER, PENDING, RETRY, KueueCheckState
from ungater.model.workload_entry import WorkloadEntry
from ungater.optional import Discovery, OptionalInformer
from ungater.reconcile import reconcile as jobs
from ungater.workqueue import WorkQueue, backoff

WORKERS = 8
LOOK_SECONDS = 30.0  # between two looks whether Kueue is there
FIRST_SECONDS = 30.0  # a start without Kueue's Workloads gives back the places of jobs that Kueue has not started yet
WANTED_SECONDS = 2.0  # for which it is known whose quota is waited for
_CHECK = "check "  # before a check's name in the queue: no namespace has a blank
_NO_DELAY = "v1beta1"  # where there is no newer version of the API, it has no requeueAfterSeconds

log = structlog.get_logger()


class AdmissionCheckController:
    """Between Kueue and the cache. Runs nothing where Kueue is not there. ``ours``: our flavors, by name."""

    def __init__(  # noqa: PLR0917  (what it stands between, and the clock)
        self,
        client: Client,
        cache: Cache,
        standings: KueueStandings,
        limits: RetryLimits,
        ours: Mapping[str, core.ResourceFlavor],
        discovery: Discovery,
        clock: Clock,
    ) -> None:
        self._ours = ours
        self._client, self._discovery = client, discovery
        self._clock = clock
        self._cache = cache
        self._limits = limits
        self._hopeless: dict[str, float] = {}  # by key of a Workload: since when (epoch seconds) it can never be placed
        self._told: dict[str, RetryAnswer] = {}  # by key of a Workload: with its last Retry, until that is done with
        # With the time when it was looked at.
        self._waited_for: tuple[float, retries.ContestedQueues] = (0.0, retries.ContestedQueues())
        self._queue = WorkQueue(clock, namespace_of)
        self._standings = standings
        self._written: dict[str, tuple[float, int]] = {}  # by key of a Workload: when, and the version that came of it
        self._failures: dict[str, int] = {}
        self.checks: OptionalInformer[kueue_objects.AdmissionCheck] = self._informer(
            kueue_objects.CHECKS, kueue_objects.AdmissionCheck, self._on_check
        )
        self.workloads: OptionalInformer[kueue_objects.KueueWorkload] = self._informer(
            kueue_objects.WORKLOADS, kueue_objects.KueueWorkload, self._on_workload
        )
        self.flavors: OptionalInformer[kueue_objects.ResourceFlavor] = self._informer(
            kueue_objects.FLAVORS, kueue_objects.ResourceFlavor, self._on_flavor
        )
        self.topologies: OptionalInformer[kueue_objects.Topology] = self._informer(
            kueue_objects.TOPOLOGIES, kueue_objects.Topology, self._on_flavor
        )

    def _informer(self, versions: Any, type_: Any, on_event: Any) -> OptionalInformer[Any]:
        newest, *older = versions
        return OptionalInformer(
            self._discovery,
            newest,
            type_,
            clock=self._clock,
            on_event=on_event,
            older=older,
            look_seconds=LOOK_SECONDS,
            first_seconds=FIRST_SECONDS,
        )

    def informers(self) -> tuple[OptionalInformer[Any], ...]:
        """What is to be run; Workloads last, since what follows from them needs the others."""
        return self.checks, self.flavors, self.topologies, self.workloads

    async def run(self) -> None:
        """Answer, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(WORKERS):
                    group.create_task(self._work())
        finally:
            self._queue.close()

    # --- what the rest of the controller asks and tells --------------------------------------------------------------

    def looked(self, entry: WorkloadEntry) -> None:
        """A job was looked at: its check may have another answer now."""
        if entry.id in self._standings.of_job:
            self._cache.views.review(entry.id)
        for key in self._standings.workloads.get(entry.id, ()):
            self._queue.add(key)

    def flavors_changed(self) -> None:
        """Our own flavors came, changed or went: checks may be active now, or no longer."""
        for name in self.checks.store:
            self._queue.add(_CHECK + name)

    # --- events ------------------------------------------------------------------------------------------------------

    def _on_check(self, event: Event[kueue_objects.AdmissionCheck]) -> None:
        self._queue.add(_CHECK + event.key)
        if not (event.old is not None and event.new is not None and decide.ours(event.old) == decide.ours(event.new)):
            self._stand_anew()

    def _on_flavor(self, _: Event[Any]) -> None:
        self._stand_anew()

    def _on_workload(self, event: Event[kueue_objects.KueueWorkload]) -> None:
        owners: dict[str, None] = {}
        for workload in filter(None, (event.old, event.new)):
            owners[owner := decide.owner_id(workload)] = None
            keys = self._standings.workloads.setdefault(owner, set())
            keys.discard(event.key)
            if workload is event.new:
                keys.add(event.key)
        if event.new is None:
            # Another Workload may come under the key, and nothing of this one holds for it.
            for remembered in (self._written, self._failures, self._hopeless, self._told):
                remembered.pop(event.key, None)
        for uid in owners:
            if not self._standings.workloads[uid]:
                del self._standings.workloads[uid]
            self._stand(uid)
        self._queue.add(event.key)

    def _stand_anew(self) -> None:
        """Something that all depend on changed; it does so rarely."""
        for uid in tuple(self._standings.workloads):
            self._stand(uid)
        for key in self.workloads.store:
            self._queue.add(key)

    def _stand(self, uid: str) -> None:
        if not uid:
            return
        workloads = [
            found for key in self._standings.workloads.get(uid, ()) if (found := self.workloads.get(key)) is not None
        ]
        # Popped first: a job in which our check has no part any more has no standing.
        before, now = self._standings.of_job.pop(uid, None), decide.standing(workloads, self._known_objects())
        if now is not None:
            self._standings.of_job[uid] = now
        entry = self._cache.entries.get(uid)
        if entry is not None and now is not None and now != before and now.restriction is not None:
            # What was said of an earlier reservation is no answer to this one.
            self._cache.admissions.renew_message(entry)
        self._cache.views.review(uid)

    def _known_objects(self) -> KueueObjects:
        ours = {name for name, check in self.checks.store.items() if decide.ours(check)}
        return KueueObjects(ours, self.flavors.store, self.topologies.store)

    # --- answers -----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                await self._try(key, self._activate(key) if key.startswith(_CHECK) else self._answer(key))
            finally:
                self._queue.done(key)

    async def _try(self, key: str, attempt: Awaitable[None]) -> None:
        try:
            await attempt
        except Exception as error:
            # Tried again also after a conflict: an event that would have it answered need not come.
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            self._queue.add(key, backoff(failures))
            if isinstance(error, Conflict | NotFound):
                return  # it changed meanwhile, and news come; or the kind is so new that its status is not served yet
            if isinstance(error, KubeError):
                log.warning("the answer to Kueue was not written", of=key, error=str(error), failures=failures)
            else:
                log.exception("answering Kueue failed", of=key)
        else:
            self._failures.pop(key, None)

    async def _activate(self, key: str) -> None:
        name = key.removeprefix(_CHECK)
        check, resource = self.checks.get(name), self.checks.resource
        if check is None or resource is None or not decide.ours(check):
            return
        wanted = decide.activity(check, self._cache.keys.domain, self._cache.flavors)
        # Our condition alone: what is applied is ours, and other conditions have other managers.
        generation, own = check.metadata.generation, core.condition(check.status.conditions, kueue_objects.ACTIVE)
        before = (own,) if own is not None else ()
        merged = conditions.merge(before, (wanted,), generation=generation, now=self._clock.now())
        if merged is None:
            return
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "uid": check.metadata.uid},
            "status": {"conditions": conditions.plain(merged)},
        }
        await self._client.apply(resource, body, subresource="status", field_manager=CONTROLLER)
        log.info("admission check", check=name, active=wanted.status, reason=str(wanted.reason))

    async def _answer(self, key: str) -> None:
        workload, resource = self.workloads.get(key), self.workloads.resource
        if workload is None or resource is None:
            return
        at, version = self._written.get(key, (None, 0))
        if _version(workload) < version:
            return  # older than what came of our last answer: the watch will bring that, and it decides
        checks = decide.checks_of(workload, self._known_objects())
        if not checks:
            return
        now = self._clock.monotonic()
        wanted = self._wanted_checks(key, workload, checks)
        if wanted is None:
            return  # the job is looked at when that is done, and this with it
        since = None if at is None else now - at
        due = [
            when
            for old, new in zip(checks, wanted, strict=True)
            if (when := answers.seconds_until_due(old, new, since)) is not None
        ]
        if not due:
            return
        if min(due) > 0:
            self._queue.add(key, min(due))
            return
        body = answers.body(resource.api_version, workload, wanted, self._clock.now(), delays=not self._old_api)
        found = await self._client.apply(
            resource, body, subresource="status", field_manager=CONTROLLER, type=kueue_objects.KueueWorkload
        )
        self._written[key] = (now, _version(found))
        said = wanted[0]
        # What was said with a Retry is kept until Kueue has noted for how long, or there is a place.
        if said.state == RETRY and said.requeue_after_seconds is None:
            self._told[key] = retries.remembered(workload, said, self._told.get(key))
        elif said.state not in {RETRY, checks[0].state}:
            self._told.pop(key, None)
        log.info("answered Kueue", workload=key, state=said.state, message=said.message)

    def _wanted_checks(
        self, key: str, workload: kueue_objects.KueueWorkload, checks: Sequence[KueueCheckState]
    ) -> list[KueueCheckState] | None:
        """The checks as they should be; None while what they follow from is being written."""
        if not self._old_api:
            # Steps after a Retry first: they wait for nothing of ours, and Kueue requeues a moment after it evicted.
            now, told = self._clock.now(), self._told.get(key, RetryAnswer())
            steps = [retries.next_step(workload, check, told, now) for check in checks]
            if any(steps):
                return [step or check for step, check in zip(steps, checks, strict=True)]
        side = self._side(workload)
        if side is None:
            return None
        times = retries.times_of(workload, checks)
        unplaced = self._unplaced(key, workload, side, times)
        wanted = [answers.answer(workload, check, side, unplaced) or check for check in checks]
        if self._old_api:
            delay = retries.backoff(times, hopeless=side.reason in HOPELESS)
            wanted = [
                msgspec.structs.replace(check, requeue_after_seconds=delay) if check.state == RETRY else check
                for check in wanted
            ]
        return wanted

    def _unplaced(self, key: str, workload: kueue_objects.KueueWorkload, side: Side, times: int) -> str:
        """What is said of one that has no place."""
        now = self._clock.now()
        if side.reason in HOPELESS:
            self._hopeless.setdefault(key, now)
        # Without a reason nothing is known yet: the time since when it is hopeless goes on.
        elif side.placed or side.reason is not None:
            self._hopeless.pop(key, None)
        if side.placed or not side.asks or not decide.waits(workload):
            return PENDING
        if (told := self._told.get(key)) is not None and told.at_once(side):
            return RETRY
        since = self._hopeless.get(key) if side.reason in HOPELESS else None

        def others() -> bool:
            # Looking at all Workloads takes time, so whose quota is waited for is known for a moment.
            at, queues = self._waited_for
            if abs(now - at) >= WANTED_SECONDS:
                queues = retries.wanted(self.workloads.store.values(), now)
                self._waited_for = now, queues
            return queues.is_contested(workload)

        found = retries.verdict(workload, side, self._limits, since=since, times=times, others=others, now=now)
        if found.requeue_after is not None:
            self._queue.add(key, found.requeue_after)
        return found.state

    @property
    def _old_api(self) -> bool:
        resource = self.workloads.resource
        return resource is not None and resource.version == _NO_DELAY

    def _side(self, workload: kueue_objects.KueueWorkload) -> Side | None:
        """What there is of us for this Workload; None while that is being written."""
        owner = controller_of(workload.metadata)
        entry = self._cache.entries.get(decide.owner_id(workload))
        if not answers.has_request(workload, self._cache.keys) and (entry is None or entry.job.request is None):
            return Side(asks=False)
        if entry is not None:
            # An answer given now might be false once that write is through.
            return None if entry.writes.busy or entry.closing else self._side_of(entry, core.key(workload))
        if owner is not None and owner.kind in KINDS:
            return Side(asks=True)  # not seen yet
        reason, message = answers.unserved(workload)
        return Side(asks=True, reason=reason, message=message)

    def _side_of(self, entry: WorkloadEntry, workload: str) -> Side:
        stands, rules = self._standings.of_job.get(entry.id), self._cache.rules
        if stands is None or stands.workload != workload or stands.restriction is None:
            return Side(asks=True, reason=stands.never, message=stands.missing) if stands else Side(asks=True)
        if (placed := self._placed_side(entry, stands)) is not None:
            return placed
        if not jobs.held_back(entry, rules.keys):
            told = jobs.not_ours(entry, rules.keys)
            return Side(asks=True, reason=told.reason, message=told.message)
        if (why := jobs.why_not_placed(entry, rules)) is not None:
            return Side(asks=True, reason=why[0], message=why[1])
        if entry.refused is not None:
            return Side(asks=True, reason=entry.refused.reason, message=entry.refused.message)
        return Side(asks=True)

    def _placed_side(self, entry: WorkloadEntry, stands: KueueStanding) -> Side | None:
        """Our side where every pod has a slot, and the API server has them too; None where not."""
        slots, observed = entry.slots, entry.observed
        if slots is None or observed is None or observed.slots is None or entry.job.suspended:
            return None
        # Ready only of what is stored, and held alike: after a restart the same place must be found.
        whole = slots.total >= entry.job.count and observed.slots.same_slots(slots)
        if not whole or strayed(entry, stands, self._cache.state.nodes):
            return None
        said = core.condition(observed.conditions, conditions.ADMITTED)
        flavor = self._ours.get(slots.flavor)
        return Side(
            asks=True,
            placed=True,
            where=said.message if said is not None else f"{slots.total} pods are placed",
            selector=dict(flavor.spec.node_labels or {}) if flavor is not None else {},
            tolerations=flavor.spec.tolerations or () if flavor is not None else (),
        )


def _version(workload: kueue_objects.KueueWorkload) -> int:
    return version_of(workload.metadata.resource_version)
