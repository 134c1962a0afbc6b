"""Writes how queues and cohorts stand into their status: on change only, and each at most every few seconds.

Rules
- The condition ``Active`` is written as soon as it differs; numbers wait until ``EVERY`` is over, and until
  ``BUSY`` is while pods are let go: then they change all the time, and the API server has better to do.
- What was used over time changes all the time. It is written beside other numbers, as those change where use does, and
  else only where what is there is `REFRESH` old and far from what is so.
- What is there already is read from the informers' copies, so a restart writes nothing that is not new.
- A write that fails is made again by a later look: nothing here has to be remembered.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec
import structlog

from clock import Clock
from engine.quantity import format_part
from kube.client import Client
from kube.errors import KubeError, NotFound
from kube.objects import Condition
from kube.queues import ClusterQueue, Cohort, LocalQueue, stored_use
from kube.resources import CLUSTER_QUEUES, COHORTS, LOCAL_QUEUES, Resource
from queueing.queues.queues import Queues
from queueing.status import Standing, body, standings
from ungater.model import conditions
from ungater.model.conditions import WantedCondition

ACTIVE = "Active"
USE_OVER_TIME = "admissionFairSharingStatus"
TICK = 2.0  # seconds between two looks
EVERY = 3.0  # seconds between two writes of one queue's numbers
BUSY = 10.0  # the same while there is something better to do
AFTER_FAILURE = 10.0  # seconds
REFRESH = 300.0  # seconds after which what was used over time is written though no other number changed
FAR = 0.01  # what part of an amount it is that differs by then; less is not worth a write
MOST_OF_A_CORE = 0.005  # spent on looking, where queues are many

log = structlog.get_logger(__name__)
_conditions = tuple[Condition, ...]


class Source(msgspec.Struct, frozen=True):
    """What is looked at: ``queues`` decides; the others are the objects as the API server has them.

    ``flavors``: names of those with a topology. ``unchecked``: keys of workloads that hold quota and wait for a check.
    """

    queues: Queues
    flavors: Callable[[], Collection[str]]
    cohorts: Callable[[], Iterable[Cohort]]
    cluster: Callable[[], Iterable[ClusterQueue]]
    local: Callable[[], Iterable[LocalQueue]]
    unchecked: Callable[[], Collection[str]]


class StatusPatch(msgspec.Struct, frozen=True):
    """One merge patch of a status; ``urgent`` where it changes the condition."""

    resource: Resource
    queue: Cohort | ClusterQueue | LocalQueue
    status: dict[str, Any]
    urgent: bool

    @property
    def id(self) -> str:
        """Tells queues apart, one made again under its old name too."""
        return self.queue.metadata.uid


class QueueStatusLoop(msgspec.Struct):
    """Call `run` as a task of the term of leadership that ``source`` belongs to.

    ``idle``: whether nothing better is to be done.
    """

    client: Client
    source: Source
    idle: Callable[[], bool]
    clock: Clock
    _written: dict[str, float] = msgspec.field(default_factory=dict)  # by uid: when, on the monotonic clock

    async def run(self) -> None:
        """Look and write for ever; ends only by cancellation."""
        while True:
            await asyncio.sleep(await self.update())

    async def update(self) -> float:
        """Write what is due; returns the seconds until the next look."""
        began = self.clock.monotonic()
        wanted = list(changes(self.source, self.clock.now()))
        # The look alone, without the writes: it is the CPU that is bounded.
        took = self.clock.monotonic() - began
        pause = EVERY if self.idle() else BUSY
        self._written = {uid: at for uid, at in self._written.items() if began - at < BUSY}
        errors: list[KubeError] = []
        for one in wanted:
            if not one.urgent and began - self._written.get(one.id, -math.inf) < pause:
                continue
            # Before the call: a write that fails is not tried more often than one that succeeds.
            self._written[one.id] = self.clock.monotonic()
            meta, patch = one.queue.metadata, {"status": one.status}
            try:
                await self.client.patch(
                    one.resource, meta.name, meta.namespace or None, body=patch, subresource="status"
                )
            except NotFound:
                pass  # it was deleted meanwhile
            except KubeError as error:
                errors.append(error)
        if errors:
            log.warning("status of queues not written", queues=len(errors), first=str(errors[0]))
        # Looks take no more than this share of a core, however many queues there are.
        return max(AFTER_FAILURE if errors else TICK, took / MOST_OF_A_CORE)


def changes(source: Source, now: float) -> Iterator[StatusPatch]:
    """The statuses that differ from what is there; ``now`` in seconds since the epoch."""
    source.queues.pass_time(now)
    found = standings(source.queues, source.flavors(), unchecked=source.unchecked())
    for cohort in source.cohorts():
        # One that is not taken in may stand there as well, as a cohort without an object that queues name.
        known = cohort.metadata.name in source.queues.quotas.cohorts
        yield from _change(COHORTS, cohort, found.cohorts[cohort.metadata.name] if known else None, now)
    for queue in source.cluster():
        yield from _change(CLUSTER_QUEUES, queue, found.cluster.get(queue.metadata.name), now)
    for local in source.local():
        yield from _change(LOCAL_QUEUES, local, found.local.get((local.metadata.namespace, local.metadata.name)), now)


def _change(
    resource: Resource, queue: Cohort | ClusterQueue | LocalQueue, standing: Standing | None, now: float
) -> Iterator[StatusPatch]:
    if standing is None:
        return  # not taken in yet
    before = queue.status or {}
    wanted = body(standing)
    share = wanted.pop("fairSharing") or {}
    changed = {name: value for name, value in wanted.items() if before.get(name) != value}
    changed |= _change_of_shares(queue, standing, share, now, beside=bool(changed))
    existing = msgspec.convert(before.get("conditions") or (), _conditions)
    active = WantedCondition(ACTIVE, standing.active, standing.reason, standing.message)
    merged = conditions.merge(existing, (active,), generation=queue.metadata.generation, now=now)
    if merged is not None:
        changed["conditions"] = conditions.plain(merged)
    if changed:
        yield StatusPatch(resource, queue, changed, urgent=merged is not None)


def _change_of_shares(
    queue: Cohort | ClusterQueue | LocalQueue, standing: Standing, share: dict[str, Any], now: float, *, beside: bool
) -> dict[str, Any]:
    """What is to be written of its ``share`` beside others, and of use over time; ``beside``: other numbers are."""
    stored = (queue.status or {}).get("fairSharing")
    if standing.consumed is None and not share:
        return {"fairSharing": None} if stored else {}
    there: dict[str, Any] = stored if isinstance(stored, dict) else {}
    # A merge patch removes what it names as null, and leaves what it does not name.
    names = {*there, *share} - {USE_OVER_TIME}
    found = {name: share.get(name) for name in sorted(names) if there.get(name) != share.get(name)}
    if standing.consumed is not None:
        found |= _change_of_use(queue, standing, standing.consumed, now, beside=beside or bool(found))
    elif USE_OVER_TIME in there:
        found[USE_OVER_TIME] = None
    return {"fairSharing": found} if found else {}


def _change_of_use(
    queue: Cohort | ClusterQueue | LocalQueue,
    standing: Standing,
    consumed: Mapping[str, float],
    now: float,
    *,
    beside: bool,
) -> dict[str, Any]:
    """What it used over time, where that is to be written."""
    stored = stored_use(queue)
    # Beside other numbers also where nothing is consumed yet: what is held counts from this moment after a restart.
    if stored is None:
        if not consumed and not beside:
            return {}
    elif not beside and (now - stored[1] < REFRESH or not _is_far(stored[0], consumed)):
        return {}
    amounts: dict[str, str | None] = dict.fromkeys(stored[0] if stored is not None else ())
    amounts |= {resource: format_part(resource, amount) for resource, amount in consumed.items()}
    at = conditions.exact_timestamp(standing.consumed_at)
    return {USE_OVER_TIME: {"consumedResources": amounts, "lastUpdate": at}}


def _is_far(stored: Mapping[str, float], consumed: Mapping[str, float]) -> bool:
    return any(
        abs(stored.get(resource, 0.0) - consumed.get(resource, 0.0)) > FAR * stored.get(resource, 0.0)
        for resource in {*stored, *consumed}
    )
