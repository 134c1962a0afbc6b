"""Writes of Workloads whose outcome is known when the call returns, whatever the network did to the answer.

A lost answer must not free a reservation that the API server has stored, nor hold one that it refused. So after a
failure that leaves the outcome open the Workload is read back until the API server answers; only then is it decided.
"""

import asyncio
import time
from collections.abc import Sequence

from kube.client import Client
from kube.errors import AlreadyExists, BadRequest, Forbidden, Invalid, KubeError, NotFound, Unauthorized
from kube.resources import WORKLOADS
from ungater import workloads
from ungater.conditions import Wanted, merge
from ungater.jobs import Owner
from ungater.record import Known
from ungater.slots import SlotMap
from ungater.workloads import Workload, known_of
from ungater.workqueue import backoff

REFUSED = (
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    Invalid,
)  # the write did not happen, and would not if repeated
LONGEST_PAUSE = 5.0


class Overtaken(Exception):  # noqa: N818 - it is news, not an error
    """Somebody else wrote the Workload meanwhile; ``found`` is what the API server has."""

    def __init__(self, found: Known) -> None:
        super().__init__(f"workload {found.name} was changed by another writer")
        self.found = found


class Writer:
    """Creates and updates Workloads."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(self, owner: Owner, priority: int) -> Known:
        """Make the Workload of a job; one that is there already is taken over if the job owns it.

        Raises:
            KubeError: it could not be made, or an object of that name belongs to somebody else.
        """
        body = workloads.new_workload(owner, priority)
        try:
            return known_of(await self._client.create(WORKLOADS, body, owner.namespace, type=Workload))
        except AlreadyExists:
            found = await self._client.get(WORKLOADS, owner.workload, owner.namespace, type=Workload)
            if not any(ref.controller and ref.uid == owner.uid for ref in found.metadata.owner_references):
                raise KubeError(f"workload {found.metadata.name} is there and belongs to another owner") from None
            return known_of(found)

    async def spec(self, owner: Owner, known: Known) -> Known:
        """Bring the spec up to date. Raises KubeError; Conflict where somebody wrote meanwhile."""
        body = workloads.spec_patch(known, owner)
        return known_of(await self._client.patch(WORKLOADS, known.name, owner.namespace, body=body, type=Workload))

    async def conditions(self, namespace: str, known: Known, wanted: Sequence[Wanted]) -> Known:
        """Write conditions where they differ. Raises KubeError; Conflict where somebody wrote meanwhile."""
        merged = merge(known.conditions, wanted, generation=known.generation, now=time.time())
        if merged is None:
            return known
        return await self._status(namespace, known, workloads.conditions_patch(known, merged))

    async def admission(
        self,
        namespace: str,
        known: Known,
        slots: SlotMap | None,
        wanted: Sequence[Wanted],
        *,
        requests: dict[str, int] | None = None,
        reclaimable: int = 0,
    ) -> Known:
        """Store an admission, or remove it (``slots`` None), together with conditions.

        Returns only when it is known to be stored. Waits out an API server that does not answer.

        Raises:
            Overtaken: another admission is stored.
            KubeError: one of ``REFUSED``: nothing was stored.
        """
        first, failures = known, 0
        while True:
            merged = merge(known.conditions, wanted, generation=known.generation, now=time.time()) or known.conditions
            body = workloads.status_patch(known, merged, slots=slots, requests=requests, reclaimable=reclaimable)
            try:
                return await self._status(namespace, known, body)
            except REFUSED:
                raise
            except KubeError:
                failures += 1
                await asyncio.sleep(backoff(failures, longest=LONGEST_PAUSE))
            known = await self.read(namespace, known.name)
            if known.uid != first.uid:
                raise Overtaken(known)
            if _alike(known.slots, slots):
                return known
            if not _alike(known.slots, first.slots):
                raise Overtaken(known)

    async def read(self, namespace: str, name: str) -> Known:
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

    async def _status(self, namespace: str, known: Known, body: dict[str, object]) -> Known:
        patched = await self._client.patch(
            WORKLOADS, known.name, namespace, body=body, subresource="status", type=Workload
        )
        return known_of(patched)


def _alike(left: SlotMap | None, right: SlotMap | None) -> bool:
    return right is None if left is None else left.same(right)
