"""Watching a collection, as a stack of small generators: one HTTP watch; list and then watch until 410; for ever.

Rules:

- What is yielded, applied in order, leads to the server's state: a list replaces everything, changes follow it without
  a gap. A watch that breaks goes on from the last resourceVersion seen (bookmarks move it on where nothing changes);
  where the server has forgotten that one (410, by HTTP or as an ERROR event), everything is listed again.
- Nothing the server or the network does ends ``for_ever``; every wait has an end. Watches are asked for 5 to 10
  minutes, jittered, so that many do not all come back at once.
- One object that cannot be decoded is logged, counted and passed over. A line that is no watch event breaks the watch.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec
import structlog

from clock import SYSTEM, Clock
from kube.client import PAGE, Client
from kube.connection.answers import Page
from kube.connection.lean_aiohttp import aiohttp
from kube.connection.nesting import deep
from kube.connection.transport import backoff
from kube.errors import (
    ApiError,
    BadAnswer,
    ConnectionFailed,
    Gone,
    KubeError,
    KubeTimeout,
    ServerError,
    Status,
    TooManyRequests,
    Unauthorized,
    from_status,
)
from kube.kept import KeptParts
from kube.objects import Object, key, version_of
from kube.resources import Resource

T = TypeVar("T", bound=Object)
P = TypeVar("P")
log = structlog.get_logger()

WATCH_SECONDS = (300, 600)
INACTIVITY_SECONDS = 90.0  # the API server sends a bookmark each minute
# For one page, with its retries. A list of 200,000 pods has 400 pages and takes as long as it takes.
LIST_SECONDS = 60.0
MAX_LINE = 32 * 1024 * 1024  # etcd takes objects of 1.5 MB
FIRST_BACKOFF_SECONDS = 0.2
MAX_BACKOFF_SECONDS = 30.0
SHORT_WATCH_SECONDS = 1.0
UNREADABLE = (msgspec.DecodeError, RecursionError)  # it does not fit its type, or is nested too deeply


class Signal(StrEnum):
    """What an observer is told, each with a number."""

    LISTED = "listed"  # seconds that a complete list took
    WATCHED = "watched"  # a watch was opened; seconds the one before had lasted
    FAILED = "failed"  # a list or watch failed; seconds until the next attempt
    EXPIRED = "expired"  # 410: everything is listed again; 1
    UNDECODABLE = "undecodable"  # an object was passed over; 1
    HANDLED = "handled"  # seconds from receiving changes until all were handled
    HANDLER_ERROR = "handler_error"  # a handler raised; 1


Observe = Callable[[Resource, Signal, float], None]


class WatchEvent(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One line of a watch."""

    type: str
    object: T


class ErrorEvent(msgspec.Struct, frozen=True, gc=False):
    """A line whose type is ERROR: its object is a Status."""

    object: Status


class Listed(msgspec.Struct, Generic[T], frozen=True):
    """A page of a list. ``first``: forget earlier pages. ``last``: what was in none of the pages is gone."""

    objects: dict[str, T | None]  # by key; None: it is there but cannot be decoded
    first: bool
    last: bool


class Changed(msgspec.Struct, Generic[T], frozen=True):
    """Changes in order: (key, object) or, for a deletion, (key, None, last state or None)."""

    changes: list[tuple[str, T | None, T | None]]
    received: float  # monotonic


def _decode_partial(data: bytes | msgspec.Raw, type: type[P]) -> P:  # noqa: A002 -- as in the client
    try:
        return deep(msgspec.json.Decoder(type).decode, data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadAnswer(f"neither an object nor a watch event: {error}: {bytes(data)[:100]!r}") from error


async def lines(stream: aiohttp.StreamReader) -> AsyncGenerator[list[bytes], None]:
    """The whole lines of a stream, as many at a time as came together; a cut last line is dropped.

    Raises:
        BadAnswer: a line is longer than any object.
    """
    parts: list[bytes] = []
    size = 0
    while chunk := await stream.readany():
        head, newline, rest = chunk.rpartition(b"\n")
        if newline:
            # Joined only once a line is whole: a buffer that grows copies a large object at each chunk.
            parts.append(head)
            yield b"".join(parts).split(b"\n")
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if size > MAX_LINE:
            raise BadAnswer(f"a line of over {MAX_LINE} bytes")


class Feed(Generic[T]):
    """Where an informer's data comes from: ``for_ever`` yields pages of lists and changes."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        type: type[T],  # noqa: A002 -- reads as in the client
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        observe: Observe | None = None,
        inactivity: float = INACTIVITY_SECONDS,
        watch_seconds: tuple[int, int] = WATCH_SECONDS,
        page: int = PAGE,
        clock: Clock = SYSTEM,
        kept: KeptParts[T] | None = None,
    ) -> None:
        self.last_error: KubeError | None = None
        self.heard = 0.0  # when the server last said anything, in seconds since the epoch; 0: never yet
        self._opened_at = 0.0  # when the server last let a watch begin, on the monotonic clock
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        self._observe = observe
        self._inactivity = inactivity
        self._watch_seconds = watch_seconds
        self._page = page
        self._kept = kept
        self._decode = msgspec.json.Decoder(type).decode
        self._decode_event = msgspec.json.Decoder(WatchEvent[type]).decode  # type: ignore[valid-type]
        self._version = ""
        self.clock = clock
        self._watched_at = clock.monotonic()

    async def for_ever(self) -> AsyncGenerator[Listed[T] | Changed[T], None]:
        """List and watch again and again; whatever fails is tried again after a jittered pause. Never ends."""
        failures = 0
        while True:
            began = self.clock.monotonic()
            try:
                async with aclosing(self.list_then_watch()) as parts:
                    async for part in parts:
                        yield part
            except KubeError as error:
                # Only a 410 is counted as expired; what else ends up here (403, a failed list) is listed again as well.
                if isinstance(error, Gone):
                    self.tell_observer(Signal.EXPIRED, 1)
                # Failures in a row: an attempt that lasted is the first of a new row.
                lasted = self.clock.monotonic() - began
                failures = 0 if lasted > MAX_BACKOFF_SECONDS else failures + 1
                await self._rest(error, failures)

    async def list_then_watch(self) -> AsyncGenerator[Listed[T] | Changed[T], None]:
        """A whole list, then changes until the server no longer knows where we are.

        Raises:
            Gone: the resourceVersion is too old.
            KubeError: listing failed, or the server refuses the watch.
        """
        async with aclosing(self._list()) as pages:
            async for page in pages:
                yield page
        failures = 0
        while True:
            opened = self.clock.monotonic()
            try:
                async with aclosing(self.watch_once()) as batches:
                    async for batch in batches:
                        # A change came, so the server is well: the next break waits for the shortest pause again.
                        failures = 0
                        yield batch
            # These break the watch and not its place in history. After all others everything is listed again.
            # A 401 is among them: the transport reads the credentials again, and a list would need them as well.
            except (ConnectionFailed, KubeTimeout, BadAnswer, TooManyRequests, ServerError, Unauthorized) as error:
                if isinstance(error, KubeTimeout) and self._opened_at > opened:
                    log.info("watch was silent", resource=str(self._resource), seconds=self._inactivity)
                    failures = 0  # nothing changes, or the connection is dead: then opening the next one tells
                    continue
                await self._rest(error, failures)
                failures += 1
            else:
                # A server that closes at once is not asked in a loop.
                if self.clock.monotonic() - opened < SHORT_WATCH_SECONDS:
                    await asyncio.sleep(backoff(failures, first=FIRST_BACKOFF_SECONDS, most=MAX_BACKOFF_SECONDS))
                    failures += 1

    async def watch_once(self) -> AsyncGenerator[Changed[T], None]:
        """One HTTP watch from the last resourceVersion, until the server ends it.

        Raises:
            ApiError: the server refused it, or sent an ERROR event.
            KubeTimeout: nothing came, not even a bookmark, for the inactivity time.
            ConnectionFailed: the connection broke.
            BadAnswer: a line is not a watch event.
        """
        params: dict[str, str | int] = {
            **self._selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            # Without it the server would send everything that there is once more, as ADDED.
            "resourceVersion": self._version,
            "timeoutSeconds": random.randint(*self._watch_seconds),  # noqa: S311 -- only spreads load
        }
        path = self._resource.path(self._namespace)
        now, self._watched_at = self.clock.monotonic(), self._watched_at
        self.tell_observer(Signal.WATCHED, now - self._watched_at)
        self._watched_at = now
        what = f"watch {self._resource.describe(self._namespace)}"
        transport = self._client.transport
        async with (
            transport.stream(path, params=params, inactivity=self._inactivity, what=what) as stream,
            aclosing(lines(stream)) as batches,
        ):
            # Set once the watch has begun: a timeout after this is silence, one before it is a server that hangs.
            self.heard, self._opened_at = self.clock.now(), self.clock.monotonic()
            async for batch in batches:
                # Taken before anything is decoded, so that the signal HANDLED measures decoding and handlers together.
                received = self.clock.monotonic()
                self.heard = self.clock.now()
                self.last_error = None
                changes: list[tuple[str, T | None, T | None]] = []
                broken: KubeError | None = None
                try:
                    self._read(batch, changes)
                except KubeError as error:
                    broken = error
                # Also where a line after them breaks the watch: the next one begins behind them.
                if changes:
                    yield Changed(changes, received)
                if broken is not None:
                    raise broken

    def forget_object(self, name: str) -> None:
        """An object is gone, by its key."""
        if self._kept is not None:
            self._kept.forget_object(name)

    def tell_observer(self, signal: Signal, value: float) -> None:
        """Tell the observer; one that raises is logged."""
        if self._observe is None:
            return
        try:
            self._observe(self._resource, signal, value)
        except Exception:
            log.exception("observer failed", resource=str(self._resource), signal=signal.value)

    @property
    def reached(self) -> int:
        """The resource version up to which it has read what happened; 0 before the first list.

        The last part may be on its way still: an informer that is paused has not stored it yet.
        """
        return version_of(self._version)

    async def _list(self) -> AsyncGenerator[Listed[T], None]:
        started = self.clock.monotonic()
        pages = self._client.pages(
            self._resource,
            self._namespace,
            label_selector=self._selectors["labelSelector"],
            field_selector=self._selectors["fieldSelector"],
            limit=self._page,
            timeout=LIST_SECONDS,
        )
        async for page, first in pages:
            last = not page.metadata.continue_
            # Only with the last page: whoever asks `reached` takes what is older and not in the store for gone.
            if last:
                self._version = page.metadata.resource_version
                self.heard = self.clock.now()
                self.last_error = None
                self.tell_observer(Signal.LISTED, self.clock.monotonic() - started)
            yield Listed(self._objects(page), first, last)

    def _objects(self, page: Page) -> dict[str, T | None]:
        objects: dict[str, T | None] = {}
        for raw in page.items or ():
            try:
                obj = self._decode(raw)
            except UNREADABLE as error:
                # Its key stays in the list: an informer takes what no page names for deleted.
                objects[self._pass_over(_decode_partial(raw, Object), error)] = None
            else:
                objects[key(obj)] = self._kept.as_kept(obj, bytes(raw)) if self._kept is not None else obj
        return objects

    def _read(self, batch: list[bytes], changes: list[tuple[str, T | None, T | None]]) -> None:
        """Add the changes of these lines to ``changes``.

        Raises:
            ApiError: a line is an ERROR event. The changes before it are added.
            BadAnswer: a line is not a watch event. The changes before it are added.
        """
        for line in batch:
            try:
                event: WatchEvent[T] = self._decode_event(line)
            except UNREADABLE as error:
                self._undecodable(line, error, changes)
                continue
            kind, obj = event.type, event.object
            # One case: whether an object is new is reported by the informer's store, which has the lists too.
            if kind == "MODIFIED" or kind == "ADDED":  # noqa: PLR1714 -- hot, and faster than a container
                if self._kept is not None:
                    obj = self._kept.as_kept(obj, line)
                changes.append((key(obj), obj, None))
            elif kind == "DELETED":
                changes.append((name := key(obj), None, obj))
                self.forget_object(name)
            elif kind == "ERROR":
                raise self._error(line)
            # Also for a BOOKMARK, which carries nothing else: it keeps a quiet collection from falling out of history.
            self._version = obj.metadata.resource_version or self._version

    def _undecodable(self, line: bytes, error: Exception, changes: list[tuple[str, T | None, T | None]]) -> None:
        """Pass over an object that does not fit its type; that it was deleted is known all the same."""
        if not line:
            return
        # Metadata alone: it names the object and moves the watch on. What fails here too is no event at all.
        event = _decode_partial(line, WatchEvent[Object])
        if event.type == "ERROR":
            raise self._error(line)
        self._version = event.object.metadata.resource_version or self._version
        name = self._pass_over(event.object, error)
        if event.type == "DELETED":
            changes.append((name, None, None))
            self.forget_object(name)

    def _pass_over(self, obj: Object, error: Exception) -> str:
        name = key(obj)
        log.error("object passed over: it cannot be decoded", resource=str(self._resource), key=name, error=str(error))
        self.tell_observer(Signal.UNDECODABLE, 1)
        return name

    def _error(self, line: bytes) -> ApiError:
        try:
            status = msgspec.json.decode(line, type=ErrorEvent).object
        except msgspec.DecodeError:
            # Never a 410: an error that nobody can read costs a new watch, and not a list of everything.
            status = Status(code=500, message=line[:300].decode(errors="replace"))
        return from_status(status, request=f"GET watch {self._resource}")

    async def _rest(self, error: KubeError, failures: int) -> None:
        """Pause before the next attempt: what the server asked for, at least a jittered, growing time."""
        self.last_error = error
        asked = error.retry_after if isinstance(error, ApiError) else None
        pause = max(asked or 0.0, backoff(failures, first=FIRST_BACKOFF_SECONDS, most=MAX_BACKOFF_SECONDS))
        log.warning("watch interrupted", resource=str(self._resource), error=str(error), retry_seconds=round(pause, 2))
        self.tell_observer(Signal.FAILED, pause)
        await asyncio.sleep(pause)
