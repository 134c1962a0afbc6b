"""Events (events.k8s.io/v1) about objects: aggregated, rate limited, never in the way of who reports them.

Rules:

- ``event()`` never blocks, waits or raises. What does not fit the bounded queue is dropped and counted.
- Namespaces (of the objects that events are about) take turns, and the one that has most of what is bounded loses some
  first: whoever has thousands of events made keeps nobody else's from being written or counted.
- Events with the same regarding, related, type, reason and action are one series: the first is created, repetitions
  only count, and the count is written at most once each ``SERIES_SECONDS``. After ``WINDOW_SECONDS`` without one the
  next occurrence is a new event.
- The note of an event cannot be changed once it is written (the API server forbids it), so an occurrence whose note
  differs starts a new event of its series. An object gets ``BURST`` new events, then one each ``REFILL_SECONDS``; while
  it has none left, the occurrences with a new note only count.
"""

import asyncio
import contextlib
import os
import secrets
import socket
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog

from clock import SYSTEM, Clock
from clock.token_bucket import TokenBucket
from clock.turns import InTurn, SharedTable, TurnQueue
from kube.client import Client
from kube.connection.transport import backoff
from kube.errors import (
    AlreadyExists,
    ConnectionFailed,
    KubeError,
    KubeTimeout,
    NotFound,
    ServerError,
    TooManyRequests,
)
from kube.objects import Object, Struct
from kube.resources import EVENTS, Resource
from kube.told_events import REPORTERS

log = structlog.get_logger()

# Six minutes, as client-go's recorder of events.k8s.io ends a series.
WINDOW_SECONDS = 360.0
SERIES_SECONDS = 10.0
# An object's first 25 events, as client-go has it, which gives one back each five minutes (tools/record).
BURST = 25
REFILL_SECONDS = 60.0
QUEUE = 4096
SERIES = 8192
FLUSH_SECONDS = 5.0
NOTE_BYTES = 1024
WRITERS = 4
ATTEMPTS = 5


class ObjectReference(Struct, frozen=True):
    """A reference to an object, as events carry it."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


SeriesKey = tuple[ObjectReference, ObjectReference | None, str, str, str]


def reference(resource: Resource, obj: Object) -> ObjectReference:
    """A reference to ``obj`` for an event."""
    metadata = obj.metadata
    return ObjectReference(
        api_version=resource.api_version,
        kind=resource.kind,
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
    )


def micro_time(seconds: float) -> str:
    """A MicroTime in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class _Series(msgspec.Struct, eq=False):
    """One event and its repetitions; ``seen_at`` is of the monotonic clock, the times are MicroTime."""

    key: SeriesKey
    note: str
    name: str
    event_time: str
    last_time: str
    seen_at: float
    count: int = 1
    created: bool = False

    def repeat(self, moment: str, now: float) -> None:
        """It happened once more."""
        self.count += 1
        self.last_time, self.seen_at = moment, now

    def mark_created(self) -> None:
        """The API server has it."""
        self.created = True


class EventRecorder:
    """Writes events in the background: give ``run()`` to a task group.

    Args:
        client: calls the API server.
        component: the reporting controller, e.g. ``topogate-ungater`` (written as ``topogate.dev/topogate-ungater``).
        instance: by default host name and process id.
    """

    def __init__(
        self,
        client: Client,
        component: str,
        *,
        instance: str = "",
        clock: Clock = SYSTEM,
    ) -> None:
        self.dropped = 0
        self._client = client
        self._controller = f"{REPORTERS}{component}"
        # The API server refuses an event whose reportingInstance has more than 128 characters.
        self._instance = (instance or f"{component}-{socket.gethostname()}-{os.getpid()}")[:128]
        self._clock = clock
        self._series: SharedTable[SeriesKey, _Series] = SharedTable(SERIES, lambda key: key[0].namespace)
        self._buckets: SharedTable[ObjectReference, TokenBucket] = SharedTable(SERIES, lambda about: about.namespace)
        self._queue: TurnQueue[_Series] = TurnQueue(lambda series: series.key[0].namespace, QUEUE)
        self._counting: dict[_Series, None] = {}  # those with repetitions that are not written yet

    def event(
        self,
        regarding: ObjectReference,
        type: str,  # noqa: A002 -- the API's word
        reason: str,
        action: str,
        message: str,
        *,
        related: ObjectReference | None = None,
    ) -> None:
        """Note an event (``Normal`` or ``Warning``); never blocks, waits or raises."""
        try:
            self._record_event((regarding, related, type, reason, action), _shorten(message))
        except Exception:
            log.exception("event lost", reason=reason, regarding=regarding.name)

    async def run(self) -> None:
        """Write what is noted, for ever; what is left on cancellation is written within a few seconds."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(WRITERS):
                    group.create_task(self._write_new())
                group.create_task(self._write_counts())
        finally:
            # Shielded: a second cancellation would lose the events of the last moments.
            await asyncio.shield(self.close())

    async def close(self) -> None:
        """Write what is left, for at most a few seconds; ``run`` does that itself once it has begun."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                # New events come first: a count can be added only to an event that the API server has.
                while not self._queue.empty():
                    await self._create(self._queue.get_nowait())
                for series in [series for series in self._counting if series.created]:
                    await self._write_count(series)
        except TimeoutError:
            log.warning("events not written at the end", events=self._queue.qsize() + len(self._counting))

    def _record_event(self, key: SeriesKey, note: str) -> None:
        now, moment = self._clock.monotonic(), micro_time(self._clock.now())
        series = self._series.get(key)
        if series is not None and now - series.seen_at > WINDOW_SECONDS:
            series = None
        if series is not None and (note == series.note or not self._may_create(key[0], now)):
            series.repeat(moment, now)
            self._keep_series(series)
            self._counting[series] = None
        elif series is not None or self._may_create(key[0], now):
            # No other event has this name, and it says what the event is about. Names end at 253 characters, and the
            # object's own may have all of them. No part of a name ends in a dot or a dash.
            name = f"{key[0].name[:220].rstrip('.-')}.{secrets.token_hex(8)}"
            self._begin(_Series(key, note, name, moment, moment, now))
        else:
            self.dropped += 1

    def _begin(self, series: _Series) -> None:
        if (gone := self._queue.make_room(series.key[0].namespace)) is not None:
            self.dropped += 1
            # Its series goes with it: repetitions of an event that nobody writes would be counted for nothing.
            self._drop_series(gone)
        try:
            self._queue.put_nowait(series)
        except asyncio.QueueFull:
            self.dropped += 1
            return
        self._keep_series(series)

    def _keep_series(self, series: _Series) -> None:
        # The series that made room can be found by no event any more, so nothing is to be counted for it either.
        if (gone := self._series.use(series.key, series)) is not None:
            self._counting.pop(gone, None)

    def _may_create(self, regarding: ObjectReference, now: float) -> bool:
        bucket = self._buckets.get(regarding)
        if bucket is None:
            bucket = TokenBucket(BURST, 1 / REFILL_SECONDS, now)
        self._buckets.use(regarding, bucket)
        return bucket.take_token(now)

    async def _write_new(self) -> None:
        while True:
            series = await self._queue.get()
            try:
                await self._create(series)
            except asyncio.CancelledError:
                with contextlib.suppress(asyncio.QueueFull):
                    self._queue.put_nowait(series)  # its name is known: should it be there already, that is fine
                raise

    async def _write_counts(self) -> None:
        while True:
            await asyncio.sleep(SERIES_SECONDS)
            turns: InTurn[_Series] = InTurn()
            for series in self._counting:
                if series.created:
                    turns.append(series.key[0].namespace, series)
            while turns:
                await self._write_count(turns.popleft())

    async def _create(self, series: _Series) -> None:
        for attempt in range(ATTEMPTS):
            try:
                # Before the body is made: it has all repetitions up to now, and those that come meanwhile count later.
                self._counting.pop(series, None)
                await self._client.create(EVENTS, self._body(series), type=Object)
            # The name has a random part: an earlier attempt arrived, and its answer did not.
            except AlreadyExists:
                pass
            except (ConnectionFailed, KubeTimeout, ServerError, TooManyRequests) as error:
                if attempt == ATTEMPTS - 1:
                    self._drop_event(series, error)
                    return
                await asyncio.sleep(backoff(attempt, first=1.0))
                continue
            except KubeError as error:
                self._drop_event(series, error)
                return
            series.mark_created()
            return

    async def _write_count(self, series: _Series) -> None:
        if series not in self._counting:
            return  # it was forgotten meanwhile
        # Before the write: a repetition that comes while it is under way is written in the next round.
        del self._counting[series]
        body = {"series": {"count": series.count, "lastObservedTime": series.last_time}}
        try:
            await self._client.patch(EVENTS, series.name, self._namespace(series), body=body)
        except NotFound:  # it is older than the API server keeps events: the next occurrence is a new one
            self._drop_series(series)
        except KubeError as error:
            self._drop_event(series, error)

    def _drop_event(self, series: _Series, error: KubeError) -> None:
        self.dropped += 1
        self._drop_series(series)
        log.warning("event not written", reason=series.key[3], regarding=series.key[0].name, error=str(error))

    def _drop_series(self, series: _Series) -> None:
        self._counting.pop(series, None)
        # Only its own entry: while a write was under way the next series may have begun under the same key.
        if self._series.get(series.key) is series:
            self._series.pop(series.key)

    def _namespace(self, series: _Series) -> str:
        return series.key[0].namespace or "default"  # the API takes no other for cluster-scoped objects

    def _body(self, series: _Series) -> dict[str, Any]:
        regarding, related, type_, reason, action = series.key
        body: dict[str, Any] = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": series.name, "namespace": self._namespace(series)},
            "eventTime": series.event_time,
            "type": type_,
            "reason": reason,
            "action": action,
            "note": series.note,
            "regarding": regarding,
            "reportingController": self._controller,
            "reportingInstance": self._instance,
        }
        if related is not None:
            body["related"] = related
        if series.count > 1:
            body["series"] = {"count": series.count, "lastObservedTime": series.last_time}
        return body


def _shorten(note: str) -> str:
    """At most 1 kB, which is what the API takes."""
    encoded = note.encode()
    if len(encoded) <= NOTE_BYTES:
        return note
    return encoded[: NOTE_BYTES - 3].decode(errors="ignore") + "..."
