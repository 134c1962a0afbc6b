"""Writes of Workloads whose outcome is known when the call returns, whatever the network did to the answer.

A lost answer must not free a reservation that the API server has stored, nor hold one that it refused. So after a
failure that leaves the outcome open the Workload is read back until the API server answers; only then is it decided.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from clock import Clock
from kube.client import Client
from kube.errors import AlreadyExists, BadRequest, Conflict, Forbidden, Invalid, KubeError, NotFound, Unauthorized
from kube.patches import PatchType
from kube.resources import WORKLOADS
from kube.workloads import WorkloadObject
from ungater.model import workload_spec, workload_status
from ungater.model.admission import Admission, Nomination
from ungater.model.conditions import WantedCondition, merge
from ungater.model.job_view import JobView
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry
from ungater.model.workload_status import observed_of
from ungater.workqueue import backoff

# The write did not happen, and would not if repeated.
REFUSED = (BadRequest, Unauthorized, Forbidden, NotFound, Invalid)
LONGEST_PAUSE = 5.0


class NameTakenError(KubeError):
    """An object of the Workload's name belongs to somebody else."""


class Overtaken(Exception):  # noqa: N818 - it is news, not an error
    """Somebody else wrote the Workload meanwhile; ``found`` is what the API server has."""

    def __init__(self, found: ObservedWorkload) -> None:
        super().__init__(f"workload {found.name} was changed by another writer")
        self.found = found


class WorkloadWriter:
    """Creates and updates Workloads."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    async def create(
        self,
        owner: JobView,
        priority: int,
        held: Admission | None = None,
        kueue: workload_spec.KueueCopy | None = None,
    ) -> ObservedWorkload:
        """Make the Workload of a job; one that is there already is taken over if the job owns it.

        ``held``: what it holds already, by a Workload that was deleted. ``kueue``: what Kueue's Workload says.

        Raises:
            KubeError: it could not be made, or an object of that name belongs to somebody else.
        """
        body = workload_spec.new_workload(owner, priority, held, kueue)
        try:
            return observed_of(await self._client.create(WORKLOADS, body, owner.namespace, type=WorkloadObject))
        except AlreadyExists:
            # Made by a call whose answer was lost, by whoever led before, or by somebody else who took the name.
            found = await self._client.get(WORKLOADS, owner.workload, owner.namespace, type=WorkloadObject)
            if not workload_spec.belongs(found, owner):
                raise NameTakenError(f"workload {found.metadata.name} is there, and belongs to another owner") from None
            if found.metadata.deletion_timestamp is not None:
                name = found.metadata.name
                raise KubeError(f"workload {name} is being deleted; another is made once it is gone") from None
            return observed_of(found)

    async def spec(self, owner: JobView, observed: ObservedWorkload, priority: int) -> ObservedWorkload:
        """Bring the spec up to date. Raises KubeError; Conflict where somebody wrote meanwhile."""
        body = workload_spec.spec_patch(observed, owner, priority)
        return observed_of(
            await self._client.patch(WORKLOADS, observed.name, owner.namespace, body=body, type=WorkloadObject)
        )

    async def owners(self, owner: JobView, observed: ObservedWorkload) -> ObservedWorkload:
        """Bring its owners up to date. Raises KubeError; Conflict where somebody wrote meanwhile."""
        body = workload_spec.owners_patch(observed, owner)
        return observed_of(
            await self._client.patch(WORKLOADS, observed.name, owner.namespace, body=body, type=WorkloadObject)
        )

    async def write_counts(self, namespace: str, observed: ObservedWorkload, counts: Sequence[int]) -> ObservedWorkload:
        """Bring the spec's counts up to date. Raises KubeError; Conflict where somebody wrote meanwhile."""
        body = workload_status.counts_patch(observed, counts)
        try:
            patched = await self._client.patch(
                WORKLOADS, observed.name, namespace, body=body, content_type=PatchType.JSON, type=WorkloadObject
            )
        except Invalid as error:
            raise Conflict(409, "Conflict", str(error)) from error  # the test of the version did not hold
        return observed_of(patched)

    async def deactivate(self, namespace: str, observed: ObservedWorkload) -> ObservedWorkload:
        """Set spec.active to false. Raises KubeError; Conflict where somebody wrote meanwhile."""
        body = workload_status.active_patch(observed, active=False)
        return observed_of(
            await self._client.patch(WORKLOADS, observed.name, namespace, body=body, type=WorkloadObject)
        )

    async def remove(self, namespace: str, observed: ObservedWorkload) -> None:
        """Delete the Workload; nothing where it is gone. Raises KubeError."""
        with suppress(NotFound):
            await self._client.delete(WORKLOADS, observed.name, namespace, uid=observed.uid)

    async def conditions(
        self,
        namespace: str,
        observed: ObservedWorkload,
        wanted: Sequence[WantedCondition],
        more: Mapping[str, Any] | None = None,
    ) -> ObservedWorkload:
        """Write conditions where they differ, and ``more`` fields of the status.

        Raises KubeError; Conflict where somebody wrote meanwhile.
        """
        merged = merge(observed.conditions, wanted, generation=observed.generation, now=self._clock.now())
        if merged is None and not more:
            return observed
        body = workload_status.conditions_patch(observed, merged or observed.conditions, more)
        return await self._status(namespace, observed, body)

    async def admission(
        self,
        namespace: str,
        observed: ObservedWorkload,
        admission: Admission | None,
        wanted: Sequence[WantedCondition],
        *,
        reclaimable: Mapping[str, int] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> ObservedWorkload:
        """Store an admission, or remove it (None), together with conditions; a nomination ends with it.

        Returns only when it is known to be stored. Waits out an API server that does not answer.

        Raises:
            Overtaken: another admission is stored.
            KubeError: one of ``REFUSED``: nothing was stored.
        """

        def body(observed: ObservedWorkload) -> dict[str, Any]:
            merged = (
                merge(observed.conditions, wanted, generation=observed.generation, now=self._clock.now())
                or observed.conditions
            )
            return workload_status.status_patch(
                observed, merged, admission=admission, reclaimable=reclaimable, more=more
            )

        return await self._settled(namespace, observed, body, lambda found: _alike(found, admission))

    async def nomination(
        self, namespace: str, observed: ObservedWorkload, nomination: Nomination, wanted: Sequence[WantedCondition]
    ) -> ObservedWorkload:
        """Store the plan of a preemption. Returns and raises as `admission` does."""
        now = self._clock.now()

        def body(observed: ObservedWorkload) -> dict[str, Any]:
            merged = merge(observed.conditions, wanted, generation=observed.generation, now=now) or observed.conditions
            return workload_status.nomination_patch(observed, merged, nomination, now)

        def there(found: ObservedWorkload) -> bool:
            return found.nomination is not None and found.nomination.victims == nomination.victims

        return await self._settled(namespace, observed, body, there)

    async def _settled(
        self,
        namespace: str,
        observed: ObservedWorkload,
        body: Callable[[ObservedWorkload], dict[str, Any]],
        there: Callable[[ObservedWorkload], bool],
    ) -> ObservedWorkload:
        first, failures = observed, 0
        while True:
            try:
                return await self._status(namespace, observed, body(observed))
            except REFUSED:
                raise
            except KubeError:
                # A conflict too: whether the other write matters shows in what is read back.
                failures += 1
                await asyncio.sleep(backoff(failures, longest=LONGEST_PAUSE))
            observed = await self.read(namespace, observed.name)
            # Another Workload under the name: nothing of this decision is about it.
            if observed.uid != first.uid:
                raise Overtaken(observed)
            # The write had arrived, and its answer was lost.
            if there(observed):
                return observed
            # Neither what was to be stored nor what was there before: somebody else decided.
            if not _alike(observed, first.admission):
                raise Overtaken(observed)

    async def find(self, owner: JobView) -> ObservedWorkload | None:
        """The Workload of a job as the API server has it; None where its name is another's. Raises as `read`."""
        found = await self._get(owner.namespace, owner.workload)
        return observed_of(found) if workload_spec.belongs(found, owner) else None

    async def read(self, namespace: str, name: str) -> ObservedWorkload:
        """The Workload as the API server has it; asks until there is an answer. Raises one of ``REFUSED``."""
        return observed_of(await self._get(namespace, name))

    async def _get(self, namespace: str, name: str) -> WorkloadObject:
        failures = 0
        while True:
            try:
                return await self._client.get(WORKLOADS, name, namespace, type=WorkloadObject)
            except REFUSED:
                raise
            except KubeError:
                failures += 1
                await asyncio.sleep(backoff(failures, longest=LONGEST_PAUSE))

    async def _status(self, namespace: str, observed: ObservedWorkload, body: dict[str, Any]) -> ObservedWorkload:
        patched = await self._client.patch(
            WORKLOADS, observed.name, namespace, body=body, subresource="status", type=WorkloadObject
        )
        return observed_of(patched)


def _alike(observed: ObservedWorkload, admission: Admission | None) -> bool:
    return observed.admission is None if admission is None else admission.same_grant(observed.admission)


def stored_of(entry: WorkloadEntry) -> ObservedWorkload:
    """Raises KubeError where the Workload is gone; another one is made, and then it is looked at again."""
    if entry.observed is None:
        raise KubeError(f"workload {entry.key} is gone")
    return entry.observed
