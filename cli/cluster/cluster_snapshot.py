"""The controller's own memory of a cluster, made of one reading of it: what it would know after a restart.

Commands that say what the controller would do ask the controller's code, on the same data. Nothing is written.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from cli.cluster import dump as dumps
from cli.cluster import installed
from cli.cluster.dump import Dump
from cli.connected import connected
from cli.output import Failure, progress
from cli.reaching import CONNECTIONS, INSPECT, MayNotLook
from cli.screen import in_one_line
from clock import SYSTEM, Clock
from crds.constants import Keys
from crds.settings import Settings
from kube import objects
from kube.client import Client
from kube.errors import Forbidden, NotFound
from kube.informer import Event, EventKind, Index
from kube.resources import Resource
from kube.versions import newest, scheduler_rules
from ungater import kinds, look_ups
from ungater.cache.cache import Cache
from ungater.cache.rules import device_resources, queue_rules
from ungater.cache.served import BesideKueue
from ungater.guard import Guard
from ungater.kinds import AnyKind, Kind, OptionalKind
from ungater.numa.node_topologies import TopologyOptions
from ungater.numa.notices import Silent

T = TypeVar("T")
One = TypeVar("One", bound=objects.Object)
# A file of tens of thousands of bad objects would fill the terminal otherwise.
MOST_LINES, MOST_LENGTH = 8, 500  # about what was left out: lines, and characters of one
# Commands look at namespaces that are served; what Kueue's jobs in them have is known once it was taken over.
BESIDE: Final = BesideKueue(lambda _: None, lambda: False, lambda _: None)


async def read(client: Client) -> Dump:
    """List all that decides placement. Raises Failure where something may not be listed; KubeError."""
    wanted = [kind for kind in kinds.KINDS if kind is not kinds.BUDGETS]  # budgets decide about evictions alone
    try:
        # All lists at once: one after the other they would lie further apart in time. A failure ends the others.
        async with asyncio.TaskGroup() as group:
            version = group.create_task(client.server_version())
            lists = {kind: group.create_task(listed(client, kind, kind.type)) for kind in wanted}
    except ExceptionGroup as errors:
        # Calls that lack a right often fail together; one message is enough for a person to act on.
        error = errors.exceptions[0]
        if isinstance(error, Forbidden):
            raise MayNotLook(f"{error}. This command reads the whole cluster: {INSPECT}") from error
        raise error from None
    found = {kind: task.result() for kind, task in lists.items()}
    return Dump(
        {kind: each for kind, (_, each) in found.items() if each is not None},
        version=version.result(),
        unread=[kind for kind, (_, each) in found.items() if each is None],
    )


async def listed(client: Client, kind: AnyKind[Any], type_: type[T]) -> tuple[Resource, list[T] | None]:
    """All objects of a kind, with the version that is served.

    None instead where no version is served, or a command goes on without the kind because it may not be listed.
    Raises KubeError.
    """
    labels = kind.label_selector if isinstance(kind, OptionalKind) else ""
    may_be_forbidden = isinstance(kind, OptionalKind) and kind.may_be_forbidden
    for resource in kind.versions:
        try:
            return resource, await client.list(resource, label_selector=labels, type=type_)
        except NotFound:
            continue
        except Forbidden:
            if not may_be_forbidden:
                raise
    return kind.resource, None


def fetch(
    files: Iterable[str] | None, domain: str | None, kubeconfig: str | None, context: str | None
) -> tuple[Dump, Settings, str]:
    """The cluster of these files, or the live one; the settings that hold there, and the namespace one is in.

    Failure where it cannot be read.
    """
    if files:
        return dumps.read(list(files)), Settings(domain=domain) if domain else Settings(), "default"
    with progress("reading the cluster"):
        dump, found, namespace = connected(_live, kubeconfig, context, connections=CONNECTIONS)
    return dump, found.model_copy(update={"domain": domain}) if domain else found, namespace


async def _live(client: Client) -> tuple[Dump, Settings, str]:
    await installed.require(client)
    dump, found = await asyncio.gather(read(client), installed.settings_with_warning(client))
    return dump, found, client.connection.namespace


def came(one: One) -> Event[One]:
    """The news that an object is there now."""
    return Event(EventKind.ADDED, objects.key(one), None, one)


class _LeftOut(Guard):
    """Objects that cannot be read are left out, as the controller does it, and told in a line each."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, lambda _kind: None)
        self.told: list[str] = []

    def failed(self, kind: str, key: str, error: Exception) -> None:
        self.told.append(f"{kind} {key} cannot be read: {error}")


class _Objects:
    """What was read, as the cache asks it; see `ungater.look_ups.ClusterObjects`."""

    def __init__(self, found: Dump, keys: Keys) -> None:
        self._found = found
        self._keys = keys

    def look_up(self, kind: AnyKind[One]) -> Callable[[str], One | None]:
        return self._found.by_key(kind).get

    def list_objects(self, kind: AnyKind[One]) -> list[One]:
        return self._found.of(kind)

    def by_index(self, kind: Kind[One]) -> Callable[[str, str], Iterable[One]]:
        # The informers of the controller keep the same indexes; here they are built from one reading.
        indexes = kind.indexes(self._keys) if kind.indexes is not None else {}
        made = {name: Index(name, values) for name, values in indexes.items()}
        for key, one in self._found.by_key(kind).items():
            for index in made.values():
                index.set(key, one)
        return lambda name, value: made[name].get(value)

    def serves(self, kind: OptionalKind[Any]) -> bool:
        # In files, an owner that says how many pods it makes is known by being there.
        return bool(self._found.of(kind)) if kind in kinds.REPLICATED else kind not in self._found.unread

    def listed(self, kind: OptionalKind[Any]) -> bool:
        # As the controller has it: where a kind is not read, nobody here sees what its objects would say.
        return kind not in self._found.unread

    def workloads_reached(self) -> int:
        # Nothing is written here, so no write is ever awaited by its resourceVersion.
        return 0


def cache_of(found: Dump, settings: Settings, *, whole: bool = False, clock: Clock = SYSTEM) -> Cache:
    """What the controller would know. What cannot be read of it is told on stderr, and left out.

    ``whole``: Failure instead.
    """
    keys, guard = settings.keys, _LeftOut(clock)
    read_objects = _Objects(found, keys)
    # What kube-scheduler does there; of files by the newest kubelet, as none is newer than the API server.
    told = (node.status.node_info for node in found.of(kinds.NODES))
    kubelets = (info.kubelet_version for info in told if info is not None)
    cache = Cache(
        keys,
        look_ups.stores_of(read_objects),
        lambda _uid, _after: None,
        lambda: None,
        notices=Silent(),
        options=TopologyOptions.from_settings(settings),
        queueing=queue_rules(settings),
        beside=BESIDE if settings.beside_kueue else None,
        device_resources=device_resources(settings),
        scheduler=scheduler_rules(found.version or newest(kubelets)),
        guard=guard,
        clock=clock,
    )
    # Before `load`: pods and jobs are judged as they come in, by the classes, revisions and devices known by then.
    for kind in kinds.OPTIONAL:
        for handler in kind.handlers(cache):
            for one in found.of(kind):
                handler(came(one))
    steps = look_ups.load(cache, read_objects)
    deque(steps, maxlen=0)  # all at once: nothing else is to be done meanwhile
    if whole and guard.told:
        raise Failure(guard.told[0])
    for line in guard.told[:MOST_LINES]:
        sys.stderr.write(f"left out: {in_one_line(line, MOST_LENGTH)}\n")
    if len(guard.told) > MOST_LINES:
        sys.stderr.write(f"left out: {len(guard.told) - MOST_LINES} more objects\n")
    return cache
