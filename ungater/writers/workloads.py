"""Writes of Workloads whose outcome is known when the call returns, whatever the network did to the answer.

A lost answer must not free a reservation that the API server has stored, nor hold one that it refused. So after a
failure that leaves the outcome open the Workload is read back until the API server answers; only then is it decided.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kube.client import Client
from kube.errors import AlreadyExists, BadRequest, Conflict, Forbidden, Invalid, KubeError, NotFound, Unauthorized
from kube.patches import PatchType
from kube.resources import WORKLOADS
from ungater.model import workload_object
from ungater.model.conditions import WantedCondition, merge
from ungater.model.job_view import JobView
from ungater.model.workload_entry import Admission, Nomination, ObservedWorkload
from ungater.model.workload_object import Workload, known_of
from ungater.workqueue import backoff

REFUSED = (
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    Invalid,
)  # the write did not happen, and would not if repeated
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

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(self, owner: JobView, priority: int, held: Admission | None = None) -> ObservedWorkload:
        """Make the Workload of a job; one that is there already is taken over if the job owns it.

        ``held``: what it holds already, by a Workload that was deleted.

        Raises:
            KubeError: it could not be made, or an object of that name belongs to somebody else.
        """
        body = workload_object.new_workload(owner, priority, held)
        try:
            return known_of(await self._client.create(WORKLOADS, body, owner.namespace, type=Workload))
        except AlreadyExists:
            found = await self._client.get(WORKLOADS, owner.workload, owner.namespace, type=Workload)
            if not workload_object.belongs(found, owner):
                raise NameTakenError(f"workload {found.metadata.name} is there, and belongs to another owner") from None
            return known_of(found)

    async def spec(self, owner: JobView, known: ObservedWorkload, priority: int) -> ObservedWorkload:
        """Bring the spec up to date. Raises KubeError; Conflict where somebody wrote meanwhile."""
        body = workload_object.spec_patch(known, owner, priority)
        return known_of(await self._client.patch(WORKLOADS, known.name, owner.namespace, body=body, type=Workload))

    async def counts(self, namespace: str, known: ObservedWorkload, counts: Sequence[int]) -> ObservedWorkload:
        """Bring the spec's counts up to date. Raises KubeError; Conflict where somebody wrote meanwhile."""
        body = workload_object.counts_patch(known, counts)
        try:
            patched = await self._client.patch(
                WORKLOADS, known.name, namespace, body=body, content_type=PatchType.JSON, type=Workload
            )
        except Invalid as error:
            raise Conflict(409, "Conflict", str(error)) from error  # the test of the version did not hold
        return known_of(patched)

    async def deactivate(self, namespace: str, known: ObservedWorkload) -> ObservedWorkload:
        """Set spec.active to false. Raises KubeError; Conflict where somebody wrote meanwhile."""
        body = workload_object.active_patch(known, active=False)
        return known_of(await self._client.patch(WORKLOADS, known.name, namespace, body=body, type=Workload))

    async def remove(self, namespace: str, known: ObservedWorkload) -> None:
        """Delete the Workload; nothing where it is gone. Raises KubeError."""
        with suppress(NotFound):
            await self._client.delete(WORKLOADS, known.name, namespace, uid=known.uid)

    async def conditions(
        self,
        namespace: str,
        known: ObservedWorkload,
        wanted: Sequence[WantedCondition],
        more: Mapping[str, Any] | None = None,
    ) -> ObservedWorkload:
        """Write conditions where they differ, and ``more`` fields of the status.

        Raises KubeError; Conflict where somebody wrote meanwhile.
        """
        merged = merge(known.conditions, wanted, generation=known.generation, now=time.time())
        if merged is None and not more:
            return known
        body = workload_object.conditions_patch(known, merged or known.conditions, more)
        return await self._status(namespace, known, body)

    async def admission(
        self,
        namespace: str,
        known: ObservedWorkload,
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

        def body(known: ObservedWorkload) -> dict[str, Any]:
            merged = merge(known.conditions, wanted, generation=known.generation, now=time.time()) or known.conditions
            return workload_object.status_patch(known, merged, admission=admission, reclaimable=reclaimable, more=more)

        return await self._settled(namespace, known, body, lambda found: _alike(found, admission))

    async def nomination(
        self, namespace: str, known: ObservedWorkload, nomination: Nomination, wanted: Sequence[WantedCondition]
    ) -> ObservedWorkload:
        """Store the plan of a preemption. Returns and raises as `admission` does."""
        now = time.time()

        def body(known: ObservedWorkload) -> dict[str, Any]:
            merged = merge(known.conditions, wanted, generation=known.generation, now=now) or known.conditions
            return workload_object.nomination_patch(known, merged, nomination, now)

        def there(found: ObservedWorkload) -> bool:
            return found.nomination is not None and found.nomination.victims == nomination.victims

        return await self._settled(namespace, known, body, there)

    async def _settled(
        self,
        namespace: str,
        known: ObservedWorkload,
        body: Callable[[ObservedWorkload], dict[str, Any]],
        there: Callable[[ObservedWorkload], bool],
    ) -> ObservedWorkload:
        first, failures = known, 0
        while True:
            try:
                return await self._status(namespace, known, body(known))
            except REFUSED:
                raise
            except KubeError:
                failures += 1
                await asyncio.sleep(backoff(failures, longest=LONGEST_PAUSE))
            known = await self.read(namespace, known.name)
            if known.uid != first.uid:
                raise Overtaken(known)
            if there(known):
                return known
            if not _alike(known, first.admission):
                raise Overtaken(known)

    async def read(self, namespace: str, name: str) -> ObservedWorkload:
        """The Workload as the API server has it; asks until there is an answer. Raises one of ``REFUSED``."""
        failures = 0
        while True:
            try:
                return known_of(await self._client.get(WORKLOADS, name, namespace, type=Workload))
            except REFUSED:
                raise
            except KubeError:
                failures += 1
                await asyncio.sleep(backoff(failures, longest=LONGEST_PAUSE))

    async def _status(self, namespace: str, known: ObservedWorkload, body: dict[str, Any]) -> ObservedWorkload:
        patched = await self._client.patch(
            WORKLOADS, known.name, namespace, body=body, subresource="status", type=Workload
        )
        return known_of(patched)


def _alike(known: ObservedWorkload, admission: Admission | None) -> bool:
    return known.admission is None if admission is None else admission.same(known.admission)
