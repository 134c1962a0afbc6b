"""Leader election by a Lease (coordination.k8s.io/v1).

Rules:

- Time is the monotonic clock's: whether the holder is alive is judged by how long *we* have seen its record unchanged,
  never by the timestamps in it. Those are for people (UTC).
- A leader counts its lease from the moment it *sent* the renewal that succeeded, and stops leading after two thirds of
  ``lease_seconds`` without another. A challenger waits the whole of it from the moment it *saw* the renewal. So one has
  stopped before another begins, as long as their clocks run at about the same speed.
- What the record says is somebody's word: a holder that is silent is waited for `BELIEVED` times our own lease at most,
  whatever duration it names, and the count of transitions stays within what the API server takes.
- Every call has a deadline, so an API server that hangs costs the lease but never keeps it.
- Writes carry the resourceVersion: of two challengers one gets a Conflict.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from clock import SYSTEM, Clock
from kube.client import Client
from kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from kube.objects import Object, Struct
from kube.resources import LEASES

log = structlog.get_logger()

RENEW_DEADLINE = 2 / 3
RELEASE_SECONDS = 2.0
BELIEVED = 10  # replicas of an upgrade may have another setting, and none has one so far off
_MOST_TRANSITIONS = (1 << 31) - 1


class LeaseSpec(Struct, frozen=True):
    """Lease spec; times are MicroTime text in UTC."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Object, frozen=True):
    """A lease."""

    spec: LeaseSpec = LeaseSpec()


class LeaderElector:
    """Holds a lease while it runs something, and stops that when the lease is lost.

    Args:
        client: calls the API server.
        namespace: of the Lease.
        name: of the Lease.
        identity: of this process; no two contenders have the same one.
        lease_seconds: how long others wait for a leader that is silent. Whole seconds reach the API.
        renew_seconds: between two renewals by the leader.
        retry_seconds: between two attempts, jittered.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        *,
        lease_seconds: float = 15.0,
        renew_seconds: float = 3.0,
        retry_seconds: float = 2.0,
        clock: Clock = SYSTEM,
    ) -> None:
        if not 0 < renew_seconds < lease_seconds * RENEW_DEADLINE or lease_seconds < 1:
            raise ValueError(
                f"lease {name}: renew_seconds {renew_seconds:g} must be below two thirds of lease_seconds "
                f"{lease_seconds:g}, which must be at least 1"
            )
        self.identity = identity
        self.holder = ""
        self._client = client
        self._namespace = namespace
        self._name = name
        self._lease_seconds = lease_seconds
        self._renew_seconds = renew_seconds
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._lead_until = float("-inf")
        self._observed: tuple[str, str] = ("", "")
        self._observed_at = float("-inf")
        self._lease: Lease | None = None

    @property
    def is_leader(self) -> bool:
        """Whether the lease is ours right now, by our own monotonic clock."""
        return self._clock.monotonic() < self._lead_until

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Contend for the lease; run ``lead`` while it is held, cancel it when lost, contend again.

        Returns when ``lead`` returns, and raises what it raises. The lease is released then, and on cancellation.
        """
        try:
            while True:
                # A later answer is of no use: the lease counts from when the call was sent, and would be over.
                while not await self._try(self._lease_seconds * RENEW_DEADLINE):
                    await asyncio.sleep(self._retry_seconds * random.uniform(0.8, 1.2))  # noqa: S311 -- only spreads load
                log.info("leading", lease=self._name, identity=self.identity)
                if await self._lead(lead):
                    return
                log.warning("lease lost", lease=self._name, identity=self.identity, holder=self.holder)
        finally:
            # Shielded: a second cancellation would leave the lease to run out, and nobody leads meanwhile.
            await asyncio.shield(self._release())

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Lead until it is done (True) or the lease is lost (False)."""
        leading = asyncio.ensure_future(lead())
        keeping = asyncio.ensure_future(self._keep_lease())
        try:
            await asyncio.wait({leading, keeping}, return_when=asyncio.FIRST_COMPLETED)
            # The work is looked at first: where both ended in one turn of the loop, the caller hears of its end.
            if leading.done():
                leading.result()
                return True
            keeping.result()
        finally:
            await _stop(keeping)
            await _stop(leading)
        return False

    async def _keep_lease(self) -> None:
        """Renew until that has failed for too long."""
        while True:
            await self._sleep_until(self._clock.monotonic() + self._renew_seconds)
            # No attempt outlives the lease: an API server that hangs must not keep the work running past its end.
            while not await self._try(max(0.0, min(self._renew_seconds, self._lead_until - self._clock.monotonic()))):
                if not self.is_leader:
                    return
                await self._sleep_until(self._clock.monotonic() + min(self._retry_seconds, self._renew_seconds) / 4)

    async def _sleep_until(self, moment: float) -> None:
        # Never past the end of the lease: whoever leads must notice the end when it comes.
        await asyncio.sleep(max(0.0, min(moment, self._lead_until) - self._clock.monotonic()))

    async def _try(self, seconds: float) -> bool:
        """Take or renew the lease, within ``seconds``; whether it is ours afterwards. Raises nothing."""
        try:
            async with asyncio.timeout(seconds):
                return await self._take_lease()
        except (Conflict, NotFound):
            self._lease = None  # somebody else wrote: read before the next attempt
        except (TimeoutError, KubeError) as error:
            # Whether the write arrived is not known: read before the next attempt.
            self._lease = None
            log.warning("lease not renewed", lease=self._name, error=str(error) or f"no answer within {seconds:.1f} s")
        return False

    async def _take_lease(self) -> bool:
        # The last answer serves as long as nobody else writes, so that a renewal is one call.
        lease = self._lease
        if lease is None:
            with contextlib.suppress(NotFound):
                lease = await self._client.get(LEASES, self._name, self._namespace, type=Lease)
        if lease is None:
            sent = self._clock.monotonic()
            try:
                body = self._body(None)
                self._hold_lease(await self._client.create(LEASES, body, self._namespace, type=Lease), sent)
            except AlreadyExists:
                return False
            return True
        self._observe(lease)
        # Somebody else wrote it while our clock still said that we lead: the fence closes before anything is sent.
        if self.holder != self.identity:
            self._lead_until = float("-inf")
            silent = min(lease.spec.lease_duration_seconds or 0, BELIEVED * self._lease_seconds)
            if self.holder and self._clock.monotonic() < self._observed_at + silent:
                return False
        sent = self._clock.monotonic()
        self._hold_lease(await self._client.replace(LEASES, self._body(lease), self._namespace, type=Lease), sent)
        return True

    def _observe(self, lease: Lease) -> None:
        self.holder = lease.spec.holder_identity or ""
        # By the version, which each renewal changes, and not by the times: those are of the holder's clock.
        record = (self.holder, lease.metadata.resource_version)
        if record != self._observed:
            self._observed, self._observed_at = record, self._clock.monotonic()

    def _hold_lease(self, lease: Lease, sent: float) -> None:
        self._lease = lease
        self._observe(lease)
        self._lead_until = sent + self._lease_seconds * RENEW_DEADLINE

    def _body(self, lease: Lease | None, *, release: bool = False) -> dict[str, Any]:
        now = self._clock.utc().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = lease is not None and lease.spec.holder_identity == self.identity
        transitions = (lease.spec.lease_transitions or 0) if lease is not None else 0
        spec = {
            "holderIdentity": "" if release else self.identity,
            # Rounded up, as the API takes whole seconds: others may wait too long and never too short. It refuses 0.
            "leaseDurationSeconds": 1 if release else int(-(-self._lease_seconds // 1)),
            "acquireTime": lease.spec.acquire_time if lease and ours else now,
            "renewTime": now,
            "leaseTransitions": min(transitions + (lease is not None and not ours), _MOST_TRANSITIONS),
        }
        metadata = {"name": self._name, "namespace": self._namespace}
        if lease is not None:
            metadata["resourceVersion"] = lease.metadata.resource_version
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}

    async def _release(self) -> None:
        """Let others in at once; where that fails they wait for the lease to run out."""
        lease, held = self._lease, self.is_leader
        # Before the write that lets others in: from here on the fence stops whatever this process still has in hand.
        self._lead_until = float("-inf")
        self._lease = None
        if lease is None or not held:
            return
        with contextlib.suppress(KubeError):
            await self._client.replace(
                LEASES, self._body(lease, release=True), self._namespace, type=Lease, timeout=RELEASE_SECONDS
            )


async def _stop(task: "asyncio.Future[None]") -> None:
    """Cancel a task and wait until it has ended; its own errors were raised already or no longer matter."""
    if task.done():
        return
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("error while stopping", error=repr(error))
