"""Watching a resource that a cluster may or may not serve: looked for again and again, never waited for without end.

NodeResourceTopology is there only where somebody installed its CRD, and that may happen, or be undone, at any time.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

import msgspec
import structlog

from clock import Clock
from kube.client import Client
from kube.errors import Forbidden, KubeError, KubeTimeout, NotFound
from kube.informer import Event, EventKind, Informer, under_way
from kube.kept import KeptParts
from kube.objects import Object
from kube.resources import Resource
from kube.watch import Observe
from ungater.workqueue import backoff

LOOK_SECONDS = 30.0
FIRST_SECONDS = 10.0
ASK_SECONDS = 5.0  # until one call is given up: all who start wait for it

T = TypeVar("T", bound=Object)
log = structlog.get_logger()


class _Named(msgspec.Struct, frozen=True):
    name: str = ""


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_Named, ...] = ()


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    group_version: str = ""


class _Group(msgspec.Struct, frozen=True):
    versions: tuple[_Version, ...] = ()


class _Groups(msgspec.Struct, frozen=True):
    groups: tuple[_Group, ...] = ()


_GROUPS = "/apis"
_groups = msgspec.json.Decoder(_Groups).decode
_resources = msgspec.json.Decoder(_Resources).decode


class _Answer(NamedTuple):
    """What one call said, and when; an error where it said nothing."""

    at: float
    names: frozenset[str] | KubeError | msgspec.MsgspecError


class Discovery:
    """What the API server serves: asked once for all who ask at about the same time.

    Of groups and versions there is one list, and only of those that are in it more is asked. While an API server
    starts, that list lacks what it serves: who is to know ``surely`` that something is not there asks the group itself.
    """

    def __init__(self, client: Client, clock: Clock) -> None:
        self.client = client
        self._clock = clock
        self._answers: dict[str, _Answer] = {}  # by path
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def serves(self, resource: Resource, age: float, *, surely: bool) -> bool:
        """Whether this resource is served, by an answer that is ``age`` seconds old at most.

        Raises:
            KubeError: the API server did not say.
            msgspec.MsgspecError: it said something else.
        """
        if not surely and resource.group and resource.api_version not in await self._names(_GROUPS, age):
            return False
        return resource.plural in await self._names(resource.root, age)

    async def _names(self, path: str, age: float) -> frozenset[str]:
        """The names in an answer. Who waits while another asks takes what that one gets, an error too."""
        # Before the wait for the lock: an answer that came meanwhile is new enough.
        asked = self._clock.monotonic()
        async with self._locks[path]:
            answer = self._answers.get(path)
            known = answer is not None and not isinstance(answer.names, Exception) and asked - answer.at <= age
            if answer is None or not (known or answer.at >= asked):
                answer = self._answers[path] = await self._read(path)
        if isinstance(answer.names, Exception):
            raise answer.names
        return answer.names

    async def _read(self, path: str) -> _Answer:
        names: frozenset[str] | KubeError | msgspec.MsgspecError
        try:
            body = await self.client.raw("GET", path, timeout=ASK_SECONDS)
            if path == _GROUPS:
                names = frozenset([one.group_version for group in _groups(body).groups for one in group.versions])
            else:
                names = frozenset([one.name for one in _resources(body).resources])
        # A group that nobody has installed has no path: that is an answer.
        except NotFound:
            names = frozenset()
        except (KubeError, msgspec.MsgspecError) as error:
            names = error
        return _Answer(self._clock.monotonic(), names)


class OptionalInformer(Generic[T]):
    """An informer that runs for as long as its resource is served; when it no longer is, all objects are gone.

    ``older``: other versions of the resource, for servers that do not have it; the first one that is served is watched.
    ``asks``: look first whether it may be listed, and go on without it where that is forbidden. ``label_selector``:
    only objects with these labels. ``first_seconds``: how long `first` waits for the first list. ``read``: as of
    `kube.kept.KeptParts`; None: all of each object is kept, as no tenant writes them.
    """

    def __init__(
        self,
        discovery: Discovery,
        resource: Resource,
        type: type[T],  # noqa: A002 -- reads as in the client
        *,
        clock: Clock,
        on_event: Callable[[Event[T]], None] | None = None,
        older: Sequence[Resource] = (),
        label_selector: str = "",
        look_seconds: float = LOOK_SECONDS,
        first_seconds: float = FIRST_SECONDS,
        asks: bool = False,
        observe: Observe | None = None,
        read: Collection[str] | None = None,
    ) -> None:
        self._discovery = discovery
        self._read = read
        self._client = discovery.client
        self._clock = clock
        self._versions = (resource, *older)
        self.resource: Resource | None = None  # what is watched, while it is served
        self._type = type
        self._on_event = on_event
        self._observe = observe
        self._labels = label_selector
        self._asks = asks
        self._forbidden = False
        self._look_seconds = look_seconds
        self._first_seconds = first_seconds
        self._informer: Informer[T] | None = None
        self._task: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()
        self._going = under_way()

    def subscribe(self, on_event: Callable[[Event[T]], None]) -> None:
        """Have this told of every change, instead of what the constructor was given; before `run`."""
        self._on_event = on_event

    def pause(self) -> None:
        """Take nothing in until `go_on`, also not that it is served, or no longer: the store stays as it is."""
        self._going.clear()

    def go_on(self) -> None:
        """Take in what came meanwhile, and what comes."""
        self._going.set()

    @property
    def store(self) -> Mapping[str, T]:
        """The objects by key; none while the resource is not served."""
        return self._informer.store if self._informer is not None else {}

    @property
    def is_listed(self) -> bool:
        """Whether it is served, and all objects of the first list are in the store."""
        return self._informer is not None and self._informer.has_synced

    @property
    def is_known(self) -> bool:
        """Whether it is known which objects there are: all of them, or none as the resource is not served."""
        return self._looked.is_set() and (self._informer is None or self._informer.has_synced)

    @property
    def last_heard_by_kind(self) -> tuple[tuple[Resource, float], ...]:
        """What is watched, and when something was last heard of it; () while it is not served."""
        if self.resource is None or self._informer is None:
            return ()
        return ((self.resource, self._informer.last_heard),)

    def get(self, key: str) -> T | None:
        """One object."""
        return self.store.get(key)

    async def first(self) -> bool:
        """Wait until the first list is in the store, or it is known that there is none; False where it takes longer."""
        try:
            async with asyncio.timeout(self._first_seconds):
                await self._looked.wait()
                if self._informer is not None:
                    await self._informer.wait_synced(self._first_seconds)
        except (TimeoutError, KubeTimeout) as error:
            log.warning("not listed yet; going on without it", resource=str(self._versions[0]), error=str(error))
            return False
        return True

    async def run(self) -> None:
        """Look, list and watch, for ever; ends by cancellation only."""
        failures = 0
        try:
            while True:
                pause = self._look_seconds - self._clock.monotonic() % self._look_seconds  # all at the same time
                try:
                    there = await self._served()
                except (KubeError, msgspec.MsgspecError) as error:
                    failures += 1
                    pause = backoff(failures, longest=self._look_seconds)
                    log.warning("the API server does not say what it serves", error=str(error))
                else:
                    failures = 0
                    await self._going.wait()
                    await self._turn(there)
                    # After `_turn`: `first` goes on with the informer, which has to be there.
                    self._looked.set()
                await asyncio.sleep(pause)
        finally:
            await self._stop()

    async def _served(self) -> Resource | None:
        """What is to be watched: what is, as long as it is served, else the first version that is.

        What a start goes on without, and what is gone, has its slots given to others: that is asked surely.
        """
        versions = self._versions if self.resource is None else (self.resource, *self._versions)
        for version in versions:
            # The list of groups is not enough here: while an API server starts, it lacks groups that are served.
            surely = version == self.resource or not self._looked.is_set()
            # All informers look at the same moment: an answer of the last sixth of a pause is of this round.
            if await self._discovery.serves(version, self._look_seconds / 6, surely=surely):
                return version if await self._allowed(version) else None
        return None

    async def _allowed(self, version: Resource) -> bool:
        # Asked once, before it is watched: a right that is lost later shows in the watch.
        if not self._asks or self.resource is not None:
            return True
        try:
            # The smallest list: rights on it are those on the whole.
            await self._client.raw("GET", version.path(), params={"limit": "1"})
        except Forbidden as error:
            if not self._forbidden:
                log.warning("it may not be read; going on without it", resource=str(version), error=str(error))
            self._forbidden = True
            return False
        self._forbidden = False
        return True

    async def _turn(self, there: Resource | None) -> None:
        if self._informer is not None and there != self.resource:
            log.info("no longer served", resource=str(self.resource))
            # Stopped before anybody is reported: handlers look into the store, which has to be empty by then.
            gone = dict(self._informer.store)
            await self._stop()
            for key, last in gone.items():
                if self._on_event is not None:
                    self._on_event(Event(EventKind.DELETED, key, last, None))
        if there is not None and self._informer is None:
            log.info("watching", resource=str(there), version=there.version)
            self.resource = there
            self._informer = Informer(
                self._client,
                there,
                self._type,
                label_selector=self._labels,
                on_event=self._on_event,
                observe=self._observe,
                going=self._going,
                clock=self._clock,
                kept=KeptParts(there.kind, self._read) if self._read is not None else None,
            )
            self._task = asyncio.create_task(self._informer.run())

    async def _stop(self) -> None:
        # Cleared before the wait: nobody may read a store that is no longer kept up to date.
        task, self._task, self._informer, self.resource = self._task, None, None, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
