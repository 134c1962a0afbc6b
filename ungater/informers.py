"""Every watch of the controller: one informer for each row of `ungater.kinds`, and who hears of changes.

The informers are made first, and so are the look-ups in what they saw (`ungater.look_ups`); whoever hears of changes is
made with those look-ups, and the one step that comes late names them (`Informers.subscribe`).
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar, overload

from clock import Clock
from crds.constants import Keys
from kube.client import Client
from kube.informer import Event, Informer
from kube.kept import KeptParts
from kube.objects import Node, Object, OwnerReference, Pod
from kube.resources import Resource
from kube.watch import Observe
from kube.workloads import WorkloadObject
from ungater import kinds, look_ups
from ungater.cache.cache import Cache
from ungater.guard import Guard
from ungater.jobs.leaderworkerset import LABELS as LEADER_SET_LABELS
from ungater.kinds import AnyKind, Handler, Kind, OptionalKind
from ungater.model.job_view import JOB, JOB_API, JOB_SET, JOB_SET_API
from ungater.optional import FIRST_SECONDS, Discovery, OptionalInformer

SYNC_SECONDS: Final = 120.0
T = TypeVar("T", bound=Object)
Handlers = Mapping[AnyKind[Any], tuple[Handler[Any], ...]]


class Foreign(Protocol):
    """Informers of somebody else's kinds, which run beside ours: those of the bridge to Kueue."""

    def informers(self) -> tuple[OptionalInformer[Any], ...]:
        """The informers that are to run."""
        ...


class Informers:
    """One informer for each kind."""

    def __init__(self, client: Client, keys: Keys, clock: Clock, observe: Observe | None = None) -> None:
        read = keys.read | LEADER_SET_LABELS
        self.discovery = Discovery(client, clock)

        def served(kind: Kind[Any]) -> Informer[Any]:
            # No tenant writes Workloads, and their status is read whole; of all else only what is read is kept.
            kept: KeptParts[Any] | None = KeptParts(kind.resource.kind, read) if kind is not kinds.WORKLOADS else None
            indexes = kind.indexes(keys) if kind.indexes is not None else {}
            return Informer(client, kind.resource, kind.type, indexers=indexes, observe=observe, clock=clock, kept=kept)

        def optional(kind: OptionalKind[Any]) -> OptionalInformer[Any]:
            return OptionalInformer(
                self.discovery,
                kind.resource,
                kind.type,
                older=kind.older,
                label_selector=kind.label_selector,
                first_seconds=SYNC_SECONDS if kind.waits else FIRST_SECONDS,
                asks=kind.asks,
                observe=observe,
                clock=clock,
                read=read,
            )

        self._served = {kind: served(kind) for kind in kinds.SERVED}
        self._optional = {kind: optional(kind) for kind in kinds.OPTIONAL}
        self._foreign: tuple[OptionalInformer[Any], ...] = ()

    @overload
    def of(self, kind: Kind[T]) -> Informer[T]: ...
    @overload
    def of(self, kind: OptionalKind[T]) -> OptionalInformer[T]: ...
    def of(self, kind: AnyKind[T]) -> Informer[T] | OptionalInformer[T]:
        """The informer of a kind."""
        return self._served[kind] if isinstance(kind, Kind) else self._optional[kind]

    @property
    def every(self) -> tuple[Informer[Any], ...]:
        """Those of kinds that every cluster with Topogate serves."""
        return tuple(self._served.values())

    @property
    def optional(self) -> tuple[OptionalInformer[Any], ...]:
        """Those of kinds that a cluster may serve or not."""
        return (*self._optional.values(), *self._foreign)

    # --- `ungater.look_ups.ClusterObjects` --------------------------------------------------------------------------

    def look_up(self, kind: AnyKind[T]) -> Callable[[str], T | None]:
        """A function from the key of an object to the object."""
        informer = self.of(kind)
        # The store of an optional informer is another one from each time on that the kind is served again.
        return informer.store.get if isinstance(informer, Informer) else informer.get

    def list_objects(self, kind: AnyKind[T]) -> Collection[T]:
        """All objects of a kind that were seen."""
        return self.of(kind).store.values()

    def by_index(self, kind: Kind[T]) -> Callable[[str, str], Iterable[T]]:
        """A function from the name of an index and a value to the objects that have the value."""
        return self.of(kind).by_index

    def serves(self, kind: OptionalKind[Any]) -> bool:
        """Whether the cluster serves the kind, and it may be read."""
        return self.of(kind).resource is not None

    def listed(self, kind: OptionalKind[Any]) -> bool:
        """Whether the first list of the kind is in the store."""
        return self.of(kind).is_listed

    def workloads_reached(self) -> int:
        """The resource version up to which the API server told of Workloads."""
        return self.of(kinds.WORKLOADS).reached

    # --- what happens to them ---------------------------------------------------------------------------------------

    def node(self, name: str) -> Node | None:
        """A node by its name."""
        return self.of(kinds.NODES).store.get(name)

    def subscribe(self, cache: Cache, first: Handlers, last: Handlers, foreign: Foreign) -> None:
        """Have the cache hear of every change. An error is that of the object that changed, and no other's.

        ``first`` and ``last``: who else hears of changes of a kind, before the cache and after it.
        """
        for kind in kinds.KINDS:
            handlers = (*first.get(kind, ()), *kind.handlers(cache), *last.get(kind, ()))
            self.of(kind).subscribe(_guarded(cache.guard, kind.word, handlers))
        self._foreign = foreign.informers()

    async def synced(self) -> None:
        """Wait until all is listed. Raises KubeTimeout where a kind is not that every cluster serves."""
        for informer in self.every:
            await informer.wait_synced(SYNC_SECONDS)
        # Side by side: each may take its whole time where its kind does not answer.
        await asyncio.gather(*(informer.first() for informer in self.optional))

    async def load(self, cache: Cache) -> None:
        """Have the cache take in all that was listed, a slice a turn of the loop: the lease is to be renewed meanwhile.

        No informer takes anything in before the cache is whole; what came meanwhile is told of afterwards.
        """
        paused: tuple[Informer[Any] | OptionalInformer[Any], ...] = (*self.every, *self.optional)
        for informer in paused:
            informer.pause()
        try:
            # With 100,000 nodes and 200,000 pods all of it in one step took 14 s, and the lease is given up after 10 s.
            for _ in look_ups.load(cache, self):
                await asyncio.sleep(0)
        finally:
            for informer in paused:
                informer.go_on()

    def last_heard_by_kind(self) -> Iterator[tuple[Resource, float]]:
        """When the API server last said anything of each resource."""
        yield from ((informer.resource, informer.last_heard) for informer in self.every)
        for each in self.optional:
            yield from each.last_heard_by_kind

    def stored_workloads(self) -> Iterable[WorkloadObject]:
        """All Workloads that there are."""
        return self.of(kinds.WORKLOADS).store.values()

    def stored_pods(self) -> Iterable[Pod]:
        """All pods that there are."""
        return self.of(kinds.PODS).store.values()

    def is_owner_there(self, namespace: str, owner: OwnerReference) -> bool:
        """Whether the Job or JobSet that a Workload names is there."""
        kind, key = (owner.kind, owner.api_version), f"{namespace}/{owner.name}"
        job: Object | None = None
        if kind == (JOB, JOB_API):
            job = self.of(kinds.JOBS).store.get(key)
        elif kind == (JOB_SET, JOB_SET_API):
            job = self.of(kinds.JOB_SETS).get(key)
        # By uid: one that was made again under the name is another owner.
        return job is not None and job.metadata.uid == owner.uid


def _guarded(guard: Guard, word: str, handlers: tuple[Handler[Any], ...]) -> Handler[Any]:
    def handle(event: Event[Any]) -> None:
        for handler in handlers:
            try:  # as the guard's context does, which costs more than most handlers
                handler(event)
            except Exception as error:  # noqa: BLE001 -- the guard says it
                guard.failed(word, event.key, error)

    return handle
