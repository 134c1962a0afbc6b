"""Resumes and suspends the job of a workload, with what its admission adds to its pods.

A job is patched at every look until it shows, so each patch may be sent twice.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from crds.constants import Keys
from engine.reasons import Reason
from kube.client import Client
from kube.errors import Forbidden, Invalid, NotFound
from kube.events import EventRecorder
from kube.objects import Job, Object, ResourceFlavor, Struct
from kube.parents import JobSet
from kube.patches import PatchType
from kube.resources import JOB_SETS, JOBS, WORKLOADS, Resource
from queueing.queues.entry import AssumedAdmission
from ungater.cache.cache import Cache
from ungater.executor import messages
from ungater.jobs import pod_template
from ungater.model import conditions, kueue_objects
from ungater.model.actions import Suspend
from ungater.model.admission import Admission
from ungater.model.job_view import JOB
from ungater.model.workload_entry import WorkloadEntry
from ungater.model.workload_spec import KueueCopy
from ungater.scheduling.replacement import anew, fits
from ungater.scheduling.scheduler import Scheduler
from ungater.writers.events import emit

KINDS: Mapping[str, tuple[Resource, type[Job | JobSet]]] = {"Job": (JOBS, Job), "JobSet": (JOB_SETS, JobSet)}


class SlotsFit(msgspec.Struct, frozen=True):
    """The slots of a job are such as its admission checks have it: it is started there."""


class Moving(msgspec.Struct, frozen=True):
    """It is not started now, and is looked at again when other slots are stored."""


class NoPlace(msgspec.Struct, frozen=True):
    """It cannot start as its admission checks have it, and is put back."""

    reason: Reason
    message: str


StartOutcome = SlotsFit | Moving | NoPlace


class _Templates(Struct, frozen=True):
    pod_sets: tuple[dict[str, Any], ...] = ()


class _Stored(Object, frozen=True):
    """A Workload with its templates."""

    spec: _Templates = _Templates()


class StartStop:
    """See the module."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        scheduler: Scheduler,
        *,
        flavors: Mapping[str, ResourceFlavor],
        keys: Keys,
        recorder: EventRecorder,
    ) -> None:
        self._client = client
        self._cache = cache
        self._scheduler = scheduler
        self._flavors = flavors
        self._keys = keys
        self._recorder = recorder

    async def start_job(self, entry: WorkloadEntry) -> StartOutcome:
        """Unsuspend the job, with what its admission adds to its pods."""
        admission, observed, cache = entry.admission, entry.observed, self._cache
        if admission is None or observed is None:
            return Moving()
        updates = pod_template.updates_of(observed, cache.admissions.checks_of(entry))
        try:
            kueue = cache.adopted.name_in_kueue(entry) if cache.adopted is not None else ""
            body = pod_template.start(entry.job, admission, self._flavors, self._keys, updates, kueue=kueue)
        except pod_template.ClashError as clash:
            return NoPlace(Reason.CHECK_REJECTED, str(clash))
        outcome = self._fit_nodes(entry, admission, updates) if updates else SlotsFit()
        if not isinstance(outcome, SlotsFit):
            return outcome
        await self._patch(entry, body, "Start")
        # After the patch: one that failed leaves it as never started, so
        # that an edit of the job still ends the admission.
        entry.mark_started()
        return outcome

    def _fit_nodes(self, entry: WorkloadEntry, admission: Admission, updates: pod_template.Updates) -> StartOutcome:
        """Whether its slots are on such nodes as its admission checks want; else other slots are looked for."""
        cache, owner = self._cache, entry.job
        more = {
            one.name: (one, pod_template.added(owner, part, self._flavors, self._keys, updates))
            for one in owner.pod_sets
            if (part := admission.pod_set_named(one.name)) is not None and part.count
        }
        if all(fits(cache, entry, name, added.node_selector) for name, (_, added) in more.items()):
            return SlotsFit()
        templates = {name: pod_template.merged(pod_set.template, added) for name, (pod_set, added) in more.items()}
        found = anew(cache, entry, templates)
        if isinstance(found, AssumedAdmission):
            self._scheduler.replace(entry, found)
            return Moving()
        selectors = {f"{key}={value}" for _, one in updates for key, value in (one.node_selector or {}).items()}
        names = ", ".join(dict.fromkeys(check for check, update in updates if update.node_selector))
        wanted = ", ".join(sorted(selectors))
        return NoPlace(Reason.CHECK_RETRY, messages.no_place_for_checks(names, wanted, found.message))

    async def copy_of_kueue(self, entry: WorkloadEntry) -> KueueCopy | None:
        """What Kueue's Workload says of a job that is Kueue's, or was; None where there is none. Raises KubeError."""
        if (adopted := self._cache.adopted) is None:
            return None
        if (taken := adopted.started_by_kueue(entry)) is None:
            return KueueCopy(active=False) if adopted.is_on_hold(entry) else None
        for version in kueue_objects.WORKLOADS:
            try:
                # Whole templates are read once for each of these jobs: informers keep less of them.
                stored = await self._client.get(version, taken.workload, entry.job.namespace, type=_Stored)
            except NotFound:
                continue
            return KueueCopy(stored.spec.pod_sets)
        return None

    async def suspend_job(self, entry: WorkloadEntry, suspend: Suspend) -> None:
        """Suspend the job, and say why where nothing else does."""
        # First of all: no pod may be let go while its job is being suspended.
        self.stop_pods(entry)
        await self._patch(entry, pod_template.stop(entry.job), "Suspend")
        if suspend.why:
            emit(self._recorder, entry, "Warning", Reason.SUSPENDED, "Suspend", message=suspend.why)

    def stop_pods(self, entry: WorkloadEntry) -> None:
        """No more pods go, and it is nobody's victim."""
        entry.close()
        # Others may plan on its room from now on, and none takes it as a further victim.
        self._cache.queues.holders.mark_leaving(entry.key)

    async def restore_template(self, entry: WorkloadEntry) -> None:
        """Give a suspended job the template that it had before it was admitted."""
        owner, observed = entry.job, entry.observed
        if observed is None or not owner.suspended or not owner.queue:
            return
        stored = await self._client.get(WORKLOADS, observed.name, owner.namespace, type=_Stored)
        body = pod_template.restore(owner, stored.spec.pod_sets) if stored.spec.pod_sets else None
        if body is None:
            return
        try:
            await self._patch_once(entry, body)
        except Invalid:
            if owner.kind != JOB:
                raise
            # The template of a job that was started can be changed after this; from Kubernetes 1.36 on also without,
            # as soon as its controller has seen the suspension.
            status = {"status": {"startTime": None}}
            await self._client.patch(JOBS, owner.name, owner.namespace, body=status, subresource="status")
            await self._patch(entry, body, "Restore")

    async def _patch(self, entry: WorkloadEntry, body: pod_template.Body, action: str) -> None:
        """Patch the job. Where the API server refuses that for good, it is told. Raises KubeError."""
        try:
            await self._patch_once(entry, body)
        except (Invalid, Forbidden) as error:
            text = conditions.shorten(messages.not_changed(action, error))
            emit(self._recorder, entry, "Warning", Reason.WRITE_FAILED, action, message=text)
            raise

    async def _patch_once(self, entry: WorkloadEntry, body: pod_template.Body) -> None:
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
