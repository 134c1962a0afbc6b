"""An informer: a local copy of a collection, kept up to date by list and watch, with indexes and change events.

Rules:

- The store is changed before its handler runs; handlers run synchronously, one after another, in the server's order.
- A handler that raises is logged and counted, and changes nothing else.
- A paused one reads nothing on: its store stays as it is, and what comes meanwhile is told of afterwards, in order.
- Every change yields exactly one event, whatever way it was learnt: what a relist shows as different is MODIFIED, what
  it no longer shows is DELETED, and an object that was deleted and made again (another uid) is DELETED, then ADDED.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from kube.client import Client
from kube.errors import KubeTimeout
from kube.objects import Object
from kube.resources import Resource
from kube.watch import Changed, Feed, Listed, Observe, Signal

T = TypeVar("T", bound=Object)
log = structlog.get_logger()


class EventKind(StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Event(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """A change of one object. ADDED: old is None. DELETED: new is None and old is the last state known."""

    kind: EventKind
    key: str
    old: T | None
    new: T | None


class Index(Generic[T]):
    """Objects by a value computed from them; one object may have several values, or none."""

    def __init__(self, name: str, values: Callable[[T], Iterable[str]]) -> None:
        self._name = name
        self._values = values
        self._of: dict[str, tuple[str, ...]] = {}
        self._by: dict[str, dict[str, T]] = {}

    def get(self, value: str) -> list[T]:
        """The objects with this value, ordered by key."""
        found = self._by.get(value)
        return [found[key] for key in sorted(found)] if found else []

    def set(self, key: str, obj: T) -> None:
        """Take in an object, or its next state."""
        values: tuple[str, ...] = ()
        try:
            values = tuple(self._values(obj))
        except Exception:
            log.exception("indexer failed: the object is in no place of it", index=self._name, key=key)
        # Where the values stay, the new object overwrites the old one in its places below.
        if values != self._of.get(key, ()):
            self.remove(key)
        if values:
            self._of[key] = values
        for value in values:
            self._by.setdefault(value, {})[key] = obj

    def remove(self, key: str) -> None:
        """Forget an object."""
        for value in self._of.pop(key, ()):
            found = self._by[value]
            found.pop(key, None)
            if not found:
                del self._by[value]


def under_way() -> asyncio.Event:
    """What informers go by that are not paused."""
    going = asyncio.Event()
    going.set()
    return going


class Informer(Generic[T]):
    """The objects of one resource, and what happens to them.

    Args:
        client: calls the API server.
        resource: what to list and watch.
        type: the struct that its objects are decoded into.
        namespace: None for all.
        label_selector: only objects with these labels.
        field_selector: only objects with these fields, e.g. ``spec.nodeName!=``.
        indexers: by name, functions from an object to the values under which ``by_index`` finds it.
        on_event: called for each change, synchronously and in order; it must not block.
        observe: told of lists, watches, failures and lag (``kube.watch.Signal``), for metrics.
        going: nothing is taken in while this is not set; by default one of its own, which `pause` clears.
        options: of ``kube.watch.Feed``: ``inactivity`` and ``watch_seconds``, ``page``, ``clock``, ``kept``.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        type: type[T],  # noqa: A002 -- reads as in the client
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        indexers: Mapping[str, Callable[[T], Iterable[str]]] | None = None,
        on_event: Callable[[Event[T]], None] | None = None,
        observe: Observe | None = None,
        going: asyncio.Event | None = None,
        **options: Any,
    ) -> None:
        self.resource = resource
        self._going = going or under_way()
        self._on_event = on_event
        self._feed: Feed[T] = Feed(
            client,
            resource,
            type,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            observe=observe,
            **options,
        )
        self._store: dict[str, T] = {}
        self._listed: set[str] = set()
        self._indexes = {name: Index(name, values) for name, values in (indexers or {}).items()}
        self._synced = asyncio.Event()

    @property
    def store(self) -> Mapping[str, T]:
        """The objects by key: ``namespace/name``, or ``name`` where cluster-scoped."""
        return self._store

    def subscribe(self, on_event: Callable[[Event[T]], None]) -> None:
        """Have this told of every change, instead of what the constructor was given; before `run`."""
        self._on_event = on_event

    def pause(self) -> None:
        """Take nothing in until `go_on`: the store stays as it is."""
        self._going.clear()

    def go_on(self) -> None:
        """Take in what came meanwhile, and what comes."""
        self._going.set()

    @property
    def has_synced(self) -> bool:
        """Whether the first list is in the store."""
        return self._synced.is_set()

    @property
    def last_heard(self) -> float:
        """When the API server last said anything of it, in seconds since the epoch; 0 where it never did."""
        return self._feed.heard

    @property
    def reached(self) -> int:
        """The resource version up to which the API server told of changes; 0 before the first list.

        While it is paused its store may lack the last of them.
        """
        return self._feed.reached

    def by_index(self, name: str, value: str) -> list[T]:
        """The objects for which the indexer ``name`` yields ``value``, ordered by key."""
        return self._indexes[name].get(value)

    async def run(self) -> None:
        """List and watch, for ever; ends by cancellation only."""
        async with aclosing(self._feed.for_ever()) as parts:
            async for part in parts:
                # While this waits nobody reads the stream: its buffer fills, and TCP holds the API server back.
                await self._going.wait()
                if isinstance(part, Listed):
                    self._take_list(part)
                else:
                    self._take_changes(part)

    async def wait_synced(self, timeout: float = 60.0) -> None:  # noqa: ASYNC109 -- it becomes an error that says more
        """Wait until the first list is in the store.

        Raises:
            KubeTimeout: it is not after ``timeout`` seconds; the message has the last error met.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._synced.wait()
        except TimeoutError:
            why = self._feed.last_error or "no answer yet; is run() running?"
            raise KubeTimeout(f"{self.resource}: not listed within {timeout:g} s: {why}") from None

    def _take_list(self, page: Listed[T]) -> None:
        # This may come in the middle: a list whose continue token expired starts again, and its earlier pages are void.
        if page.first:
            self._listed.clear()
        self._listed.update(page.objects)
        for key, obj in page.objects.items():
            if obj is not None:
                self._set(key, obj)
        if page.last:
            # Only now is it known what is gone.
            for key in [key for key in self._store if key not in self._listed]:
                self._remove(key, None)
                self._feed.forget_object(key)
            self._listed.clear()
            # After the store is whole: whoever waits for this decides by it at once.
            self._synced.set()

    def _take_changes(self, batch: Changed[T]) -> None:
        for key, new, last in batch.changes:
            if new is not None:
                self._set(key, new)
            else:
                self._remove(key, last)
        self._feed.tell_observer(Signal.HANDLED, self._feed.clock.monotonic() - batch.received)

    def _set(self, key: str, new: T) -> None:
        old = self._store.get(key)
        if old is not None:
            # An object may be deleted and made again under its name between two lists, or while a watch is broken.
            if old.metadata.uid != new.metadata.uid:
                self._remove(key, None)
                old = None
            # A list after a 410 mostly shows what is known already: handlers hear of none of that.
            elif old.metadata.resource_version == new.metadata.resource_version:
                return
        self._store[key] = new
        for index in self._indexes.values():
            index.set(key, new)
        self._emit(EventKind.ADDED if old is None else EventKind.MODIFIED, key, old, new)

    def _remove(self, key: str, last: T | None) -> None:
        old = self._store.pop(key, None)
        if old is None:
            return
        for index in self._indexes.values():
            index.remove(key)
        # The last state of the watch is newer than ours: it has what changed in the moment of the deletion.
        self._emit(EventKind.DELETED, key, old if last is None else last, None)

    def _emit(self, kind: EventKind, key: str, old: T | None, new: T | None) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(Event(kind, key, old, new))
        except Exception:
            log.exception("event handler failed", resource=str(self.resource), key=key, kind=kind.value)
            self._feed.tell_observer(Signal.HANDLER_ERROR, 1)
