"""The network between the controller and the simulated server, as `kube.connection.transport` has it below itself.

The real client, with its deadlines and retries, and the real informers run on this; it takes the place of the HTTP
session alone. A call takes a while to arrive, and what arrived takes effect even if nobody waits for its answer any
more. It may fail before it takes effect or after, be refused by a conflict that was none, or be answered late or never.
A watch hands out its part of the history in order, in pieces and with a delay of its own; it breaks, ends, stalls, and
is told 410 where its place was forgotten.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self
from unittest.mock import patch

import aiohttp
from multidict import CIMultiDict
from support.history.server import Refused, Server, encode, kind_at

from clock import Clock
from kube.client import Client
from kube.connection.config import Connection

ARRIVES = 1.0  # seconds at most until a call that was sent takes effect, whether or not its sender still lives
BOOKMARK = 60.0


@dataclass
class Faults:
    """How bad the network is: shares of calls, and seconds."""

    before: float = 0.0  # fails without an effect
    after: float = 0.0  # takes effect, and the answer is lost
    conflict: float = 0.0  # 409 though nothing conflicts
    late: float = 0.0  # is answered late, perhaps after the deadline
    crash: float = 0.0  # the controller dies while this write is on its way
    cut: float = 0.0  # of what a watch hands out: the connection breaks, ends, or is told 410
    stall: float = 0.0  # of the same: nothing comes for a long time
    delay: float = 0.01  # most that a call or an event takes in most cases
    slow: float = 0.0  # share of events that take up to 5 seconds


class Wire:
    """What one term of the controller talks through; ``dead`` once it died: nothing that it sends arrives."""

    def __init__(self, server: Server, rng: random.Random, faults: Faults, note: Callable[..., None]) -> None:
        self.server = server
        self.rng = rng
        self.faults = faults
        self.note = note
        self.dead = False
        self.crash: Callable[[], None] = lambda: None
        self.calls = 0
        self.streams: set[Stream] = set()

    def client(self, clock: Clock) -> Client:
        """A client that speaks over this wire, by this clock."""
        with (
            patch.object(aiohttp, "ClientSession", lambda **_: self),
            patch.object(aiohttp, "TCPConnector", lambda **_: None),
        ):
            return Client(Connection("http://server"), clock=clock)

    # --- as an HTTP session ------------------------------------------------------------------------------------------

    def request(self, method: str, url: Any, *, data: bytes | None, headers: Any, **_: Any) -> "Answer":
        return Answer(self, method, url, data, headers.get("Content-Type", ""))

    def get(self, url: Any, **_: Any) -> "Stream":
        return Stream(self, url)

    async def close(self) -> None:
        pass

    # --- one call ---------------------------------------------------------------------------------

    async def exchange(  # noqa: PLR0911
        self, method: str, path: str, body: bytes | None, content_type: str
    ) -> tuple[int, bytes]:
        if self.dead:
            return 403, b"{}"
        self.calls += 1
        rng, faults, loop = self.rng, self.faults, asyncio.get_running_loop()
        write = method != "GET" and "/events" not in path
        dice = rng.random()
        if dice < faults.before:
            await asyncio.sleep(rng.random() * faults.delay)
            self._note(write, "fails", method, path)
            return self._fail(rng)
        if write and (dice := rng.random()) < faults.crash:
            if dice < faults.crash / 2:
                self.note("crash", "before", method, path)
                self.crash()
                return await _never()
            self._effect(loop.create_future(), method, path, body, content_type)
            self.note("crash", "after", method, path)
            self.crash()
            return await _never()
        if write and method == "PATCH" and rng.random() < faults.conflict:
            self._note(write, "conflict", method, path)
            return 409, encode({"kind": "Status", "code": 409, "reason": "Conflict", "message": "try again"})
        answer: asyncio.Future[tuple[int, bytes]] = loop.create_future()
        wait = rng.random() * (ARRIVES if rng.random() < faults.slow else faults.delay)
        lands = rng.random() < 0.5  # also where nobody waits for it any more
        sent = loop.call_later(wait, self._effect, answer, method, path, body, content_type)
        try:
            status, text = await answer
        except asyncio.CancelledError:
            if not lands:
                sent.cancel()
            raise
        if rng.random() < faults.late:
            self._note(write, "answers late", method, path)
            await asyncio.sleep(rng.random() * 45)
        elif write:
            await asyncio.sleep(rng.random() * faults.delay)
        if rng.random() < faults.after and status < 400:
            self._note(write, "answer lost", method, path)
            return self._fail(rng)
        return status, text

    def _note(self, write: bool, *what: str) -> None:
        if write:
            self.note(*what)

    def _effect(
        self,
        answer: "asyncio.Future[tuple[int, bytes]]",
        method: str,
        path: str,
        body: bytes | None,
        content_type: str,
    ) -> None:
        try:
            result = 200, self.server.call(method, path, body, content_type)
        except Refused as refused:
            if method != "GET":
                self.note("refused", method, path, str(refused))
            result = refused.code, refused.body
        if not answer.done():
            answer.set_result(result)

    @staticmethod
    def _fail(rng: random.Random) -> tuple[int, bytes]:
        dice = rng.random()
        if dice < 0.5:
            raise aiohttp.ServerDisconnectedError
        return rng.choice((500, 503, 504)), b"{}"


async def _never() -> Any:
    return await asyncio.get_running_loop().create_future()


class Answer:
    """One call, as aiohttp's context manager."""

    def __init__(self, wire: Wire, method: str, url: Any, data: bytes | None, content_type: str) -> None:
        self._wire, self._method, self._url, self._data, self._type = wire, method, url, data, content_type
        self.headers: CIMultiDict[str] = CIMultiDict()

    async def __aenter__(self) -> Self:
        url = self._url
        self.status, self._body = await self._wire.exchange(self._method, url.path, self._data, self._type)
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def read(self) -> bytes:
        return self._body

    @property
    def content(self) -> Self:
        return self

    async def readany(self) -> bytes:
        body, self._body = self._body, b""
        return body


class Stream:
    """One watch, as aiohttp's context manager and as the reader of its content."""

    def __init__(self, wire: Wire, url: Any) -> None:
        self._wire = wire
        self._plural = kind_at(url.path)
        self._version = int(url.query["resourceVersion"])
        self._ends = asyncio.get_running_loop().time() + float(url.query["timeoutSeconds"])
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.status = 200
        self._at = 0
        self._news = asyncio.Event()

    @property
    def content(self) -> "Stream":
        return self

    async def __aenter__(self) -> Self:
        wire = self._wire
        await asyncio.sleep(wire.rng.random() * wire.faults.delay)
        if wire.dead:
            return await _never()
        if wire.rng.random() < wire.faults.cut:
            raise aiohttp.ServerDisconnectedError
        if self._version < wire.server.forgotten[self._plural]:
            self.status = 410
        history = wire.server.history[self._plural]
        self._at = next((i for i, (version, _, _) in enumerate(history) if version > self._version), len(history))
        wire.streams.add(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._wire.streams.discard(self)

    async def read(self) -> bytes:
        return encode({"kind": "Status", "code": 410, "reason": "Expired"})

    def wake(self, plural: str) -> None:
        if plural == self._plural:
            self._news.set()

    async def readany(self) -> bytes:  # noqa: PLR0911
        """What comes next: a few events, a bookmark, or the end."""
        wire, loop = self._wire, asyncio.get_running_loop()
        rng, faults, history = wire.rng, wire.faults, wire.server.history[self._plural]
        while self._at >= len(history):
            self._news.clear()
            left = self._ends - loop.time()
            if left <= 0:
                return b""
            try:
                async with asyncio.timeout(min(left, BOOKMARK)):
                    await self._news.wait()
            except TimeoutError:
                if wire.dead:
                    return await _never()
                if self._at >= len(history):
                    meta = {"resourceVersion": str(max(self._version, wire.server.version))}
                    return encode({"type": "BOOKMARK", "object": {"metadata": meta}}) + b"\n"
        dice = rng.random()
        await asyncio.sleep(rng.random() * (5.0 if dice < faults.slow else faults.delay))
        if wire.dead:
            return await _never()
        if rng.random() < faults.stall:
            wire.note("stall", self._plural)
            await self._stalled(rng.random() * 120)
        dice = rng.random()
        if dice < faults.cut:
            wire.note("cut", self._plural)
            if dice < faults.cut / 3:
                raise aiohttp.ClientPayloadError
            if dice < faults.cut / 2:
                return b""
            if dice < faults.cut * 2 / 3:
                raise TimeoutError
            wire.server.forget_history()
            return encode({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}) + b"\n"
        until = rng.randint(self._at + 1, len(history))
        data = b"".join(line for _, _, line in history[self._at : until])
        self._at, self._version = until, history[until - 1][0]
        return data

    async def _stalled(self, seconds: float) -> None:
        """Nothing comes; a client that heard nothing for 90 seconds gives up."""
        loop = asyncio.get_running_loop()
        until, patience = loop.time() + seconds, loop.time() + 90
        while loop.time() < until and self._wire.faults.stall:
            if loop.time() >= patience:
                raise TimeoutError
            await asyncio.sleep(1)
