"""A proxy in front of the real API server that breaks things on purpose, and an informer that watches through it.

The proxy speaks plain HTTP to the client and the cluster's TLS to the API server. Each connection carries one call.
"""

import asyncio
import contextlib
import itertools
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from kube.client import Client
from kube.connection import config
from kube.informer import Event, EventKind, Informer
from kube.objects import Object
from kube.resources import CONFIG_MAPS
from kube.watch import Signal

WAIT_SECONDS = 90


@dataclass
class Canned:
    """An answer given instead of the API server's, to calls whose method and path match."""

    answer: bytes
    match: Callable[[str, str], bool]
    times: int


@dataclass
class FaultProxy:
    upstream: str
    tls: ssl.SSLContext | None
    url: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)  # (method, path and query)
    before: Callable[[str, str], None] | None = None  # runs before a call is passed on
    _canned: deque[Canned] = field(default_factory=deque)
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task] = field(default_factory=set)
    _watches: set[asyncio.StreamWriter] = field(default_factory=set)
    _cut: bool = False

    @asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator["FaultProxy"]:
        self._flowing.set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await server.wait_closed()
            await asyncio.sleep(0.01)  # lets the transports that were told to close do so

    def freeze(self) -> None:
        """Let nothing through any more, in either direction, and keep every connection open."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def answer(self, status: int, *, body: bytes = b"{}", header: str = "", times: int = 1, match=None) -> Canned:
        """Answer so many calls like this; what is returned has how often it still will."""
        head = f"HTTP/1.1 {status} Fault\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{header}\r\n"
        canned = Canned(head.encode() + body, match or is_watch, times)
        self._canned.append(canned)
        return canned

    def refuse_evictions(self, pod: str) -> Canned:
        """Answer evictions of pods whose name starts so like a budget that has just been used up."""
        cause = {"reason": "DisruptionBudget", "message": "The disruption budget keep needs 1 healthy pods and has 1"}
        status = {
            "kind": "Status",
            "status": "Failure",
            "reason": "TooManyRequests",
            "code": 429,
            "message": "Cannot evict pod as it would violate the pod's disruption budget.",
            "details": {"causes": [cause]},
        }
        part = f"/pods/{pod}"
        return self.answer(
            429,
            body=json.dumps(status).encode(),
            header="Content-Type: application/json\r\n",
            times=1 << 30,
            match=lambda method, path: method == "POST" and "/eviction" in path and part in path,
        )

    def cut_next_line(self) -> None:
        """Close each watch in the middle of the next data it gets."""
        self._cut = True

    async def inject(self, line: bytes) -> None:
        """Send a line of our own on every open watch, as soon as there is one."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not self._watches:
                await asyncio.sleep(0.01)
        for writer in self._watches:
            writer.write(b"%x\r\n%b\r\n" % (len(line), line))

    def watches_called(self) -> list[str]:
        return [path for method, path in self.calls if is_watch(method, path)]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(lambda done: (self._tasks.discard(done), writer.close()))  # even one that never began

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._call(reader, writer)
        finally:
            self._watches.discard(writer)

    async def _call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        method, path, _ = lines[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.calls.append((method, path))
        await self._flowing.wait()
        if self.before is not None:
            self.before(method, path)
        if (canned := self._canned_for(method, path)) is not None:
            writer.write(canned)
            await writer.drain()
            return
        await self._pass_on(
            head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + body, writer, is_watch(method, path)
        )

    def _canned_for(self, method: str, path: str) -> bytes | None:
        for canned in self._canned:
            if canned.times and canned.match(method, path):
                canned.times -= 1
                return canned.answer
        return None

    async def _pass_on(self, request: bytes, writer: asyncio.StreamWriter, watch: bool) -> None:
        address = urlsplit(self.upstream)
        up_reader, up_writer = await asyncio.open_connection(address.hostname, address.port, ssl=self.tls)
        try:
            up_writer.write(request)
            head_seen = False
            while data := await up_reader.read(65536):
                await self._flowing.wait()
                if watch and self._cut and head_seen:
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    return
                head_seen = True
                writer.write(data)
                await writer.drain()
                if watch:
                    self._watches.add(writer)
        finally:
            up_writer.close()
            with contextlib.suppress(OSError):
                await up_writer.wait_closed()


def is_watch(method: str, path: str) -> bool:
    return method == "GET" and "watch=true" in path


def is_list(method: str, path: str) -> bool:
    return method == "GET" and "watch=true" not in path


@asynccontextmanager
async def proxied(kubeconfig) -> AsyncIterator[FaultProxy]:
    connection = await config.load(str(kubeconfig))
    async with FaultProxy(connection.url, connection.tls).serve() as proxy:
        yield proxy


@dataclass
class Watching:
    """An informer over ConfigMaps through the proxy, and a client that goes straight to the API server."""

    proxy: FaultProxy
    direct: Client
    namespace: str
    informer: Informer | None = None
    events: list[Event] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)
    _names: itertools.count = field(default_factory=itertools.count)

    async def create(self, name: str) -> None:
        await self.direct.create(CONFIG_MAPS, {"metadata": {"name": name}}, self.namespace)

    async def change(self, name: str) -> None:
        value = str(next(self._names))
        await self.direct.patch(CONFIG_MAPS, name, self.namespace, body={"data": {"x": value}})

    async def delete(self, name: str) -> None:
        await self.direct.delete(CONFIG_MAPS, name, self.namespace)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                await asyncio.sleep(0.01)

    async def until_has(self, *names: str) -> None:
        await self.until(lambda: all(f"{self.namespace}/{name}" in self.informer.store for name in names))

    async def converge(self) -> None:
        """Wait until the store is what the API server has; the events must have told exactly that story."""
        async with asyncio.timeout(WAIT_SECONDS):
            while (wanted := await self._actual()) != self._cached():
                await asyncio.sleep(0.05)
        assert replay(self.events) == wanted

    async def _actual(self) -> dict[str, str]:
        items = await self.direct.list(CONFIG_MAPS, self.namespace, type=Object)
        return {f"{self.namespace}/{item.metadata.name}": item.metadata.resource_version for item in items}

    def _cached(self) -> dict[str, str]:
        return {key: item.metadata.resource_version for key, item in self.informer.store.items()}


def replay(events: list[Event]) -> dict[str, str]:
    """The keys and versions that the events lead to; none may contradict those before it."""
    state: dict[str, str] = {}
    for event in events:
        known = state.get(event.key)
        assert (known is None) == (event.kind is EventKind.ADDED), event
        assert event.old is None or event.kind is EventKind.DELETED or event.old.metadata.resource_version == known
        if event.new is None:
            del state[event.key]
        else:
            assert event.new.metadata.resource_version != known, event
            state[event.key] = event.new.metadata.resource_version
    return state


@asynccontextmanager
async def watching(kubeconfig, direct: Client, namespace: str, **options) -> AsyncIterator[Watching]:
    """A synced informer behind a proxy; ``options`` are the Feed's, e.g. ``inactivity=1``."""
    async with proxied(kubeconfig) as proxy, Client(config.Connection(proxy.url)) as client:
        watching = Watching(proxy, direct, namespace)
        watching.informer = Informer(
            client,
            CONFIG_MAPS,
            options.pop("type", Object),
            namespace=namespace,
            on_event=watching.events.append,
            observe=lambda _resource, signal, _value: watching.signals.append(signal),
            **options,
        )
        task = asyncio.create_task(watching.informer.run())
        try:
            await watching.informer.wait_synced(WAIT_SECONDS)
            yield watching
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def through(proxy: FaultProxy, cluster) -> Client:
    """A client that calls through the proxy, with the administrator's credentials."""
    real = await config.load(str(cluster.kubeconfig))
    return Client(config.Connection(url=proxy.url, tls=None, credentials=real.credentials))
