"""The short way of a review: from the bytes of a connection to the bytes of its answer, with no HTTP library between.

An API server always sends a review alike: one POST with a Content-Length, and the next only after the answer. Parsing
that into request, headers, URL and stream, and running a task for it, costs aiohttp more than the review and its
encryption together (benchmarks/webhook.py has the figures). So a connection is read here as long as all that comes is
of that form, by a strict reading of it; the first bytes that are anything else go to aiohttp, and so does everything on
that connection from then on.

Rules
- The hand-over is at the start of a request that was not answered, and there is no way back: the two never both read.
  aiohttp's way has one answer, which closes the connection: an API server is not on it, and others have it no cheaper.
- A head is taken only if each of its lines is what RFC 9112 allows and none asks for anything (transfer coding,
  connection options, expectations, upgrades).
- Nothing waits here. Where an answer would have to (flavors not listed yet, a client that does not read), aiohttp's
  way is taken.
- On either way the first head has `HEAD_SECONDS` from when the connection was made, later ones from their first byte;
  a body, and the reading of an answer, have their time in `answers`. The connection's place (`crowd`) hears of it all.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from clock import Clock
from webhook import answers
from webhook.crowd import CrowdPlace
from webhook.review import Reply

HEAD_SECONDS = 10.0
# `parse_head` remembers 512 heads: 2 MiB at most, whatever is sent.
MAX_HEAD = 4096
MAX_UNSENT = 64 * 1024

_BEGIN = b"POST /"
_REQUEST_LINE = re.compile(rb"POST (/[!->@-~]*)(?:\?[!-~]*)? HTTP/1\.1\Z")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t -~]*?)[ \t]*\Z")
_LENGTH = re.compile(rb"[0-9]{1,12}\Z")
_SPECIAL = frozenset(
    {b"transfer-encoding", b"connection", b"expect", b"upgrade", b"content-encoding", b"trailer", b"te"}
)

Answerer = Callable[[bytes], Reply | None]  # None: it would have to wait
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@lru_cache(maxsize=512)
def parse_head(head: bytes) -> tuple[str, int] | None:
    """Path and length of the body of a plain POST; None where it is anything else, right or wrong.

    ``head`` is what comes before the empty line. It is remembered: an API server sends the same few ones.
    """
    line, *rest = head.split(b"\r\n")
    start = _REQUEST_LINE.match(line)
    if start is None:
        return None
    headers: dict[bytes, bytes] = {}
    for each in rest:
        header = _HEADER.match(each)
        if header is None:
            return None
        name = header[1].lower()
        # A header that comes twice has two readings, and requests are smuggled between them: aiohttp decides alone.
        if name in headers or name in _SPECIAL:
            return None
        headers[name] = header[2]
    length = headers.get(b"content-length", b"")
    if b"host" not in headers or not _LENGTH.match(length):
        return None
    return start[1].decode("ascii"), int(length)


class ReviewServer(web.Server):
    """An `aiohttp.web.Server` whose connections first try the short way.

    ``routes``: path -> what answers its reviews. ``limit``: bytes of a body, at most. ``closing``: whether connections
    shall be closed after their next answer.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        routes: Mapping[str, Answerer],
        limit: int,
        closing: Callable[[], bool],
        clock: Clock,
        **options: Any,
    ) -> None:
        super().__init__(_marks_head(handler), **options)
        self._options = options
        self.routes = routes
        self.limit = limit
        self.closing = closing
        self.clock = clock

    @property
    def unheard(self) -> int:
        """How many connections are there on which nothing came yet."""
        return sum(isinstance(each, ReviewConnection) and not each.heard for each in self.connections)

    def __call__(self, place: CrowdPlace | None = None) -> RequestHandler:
        """The protocol of a new connection; ``place`` None: there is room for all, so nobody ends it or asks for it."""
        place = place or CrowdPlace(None, self.clock.monotonic(), lambda: None, lambda: False)
        return ReviewConnection(self, place, loop=asyncio.get_running_loop(), **self._options)


def _marks_head(handler: Handler) -> Handler:
    """The handler, which tells its connection that a head is whole."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if isinstance(connection := request.protocol, ReviewConnection):
            connection.begin_message()
        return await handler(request)

    return handle


class ReviewConnection(RequestHandler):
    """One connection, on the short way until something else comes.

    Of aiohttp's inside it knows one thing: where the end of a connection's idle time is kept
    (``_next_keepalive_close_time``). A test watches over that.
    """

    __slots__ = (
        "_clock",
        "_ending",
        "_given",
        "_handed_over",
        "_late",
        "_part",
        "_place",
        "_server",
        "_timers",
        "_wanted",
        "heard",
    )

    def __init__(
        self, server: ReviewServer, place: CrowdPlace, *, loop: asyncio.AbstractEventLoop, **options: Any
    ) -> None:
        super().__init__(server, loop=loop, **options)
        self._server = server
        self._place = place
        self._clock = server.clock
        self._timers = loop
        self._ending = False
        self._part = bytearray()  # of a request whose head is there
        self._wanted: tuple[Answerer, int, int] | None = None  # who answers; where the body begins and ends
        self._late: asyncio.TimerHandle | None = None  # what is waited for is late then
        self._handed_over = False
        self._given = 0  # bytes that were handed over
        self.heard = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Expect a request."""
        super().connection_made(transport)
        if isinstance(transport, asyncio.Transport):
            # Unread answers of a client pile up so far: its next review goes aiohttp's way, which waits.
            transport.set_write_buffer_limits(high=MAX_UNSENT)
            self._place.made(transport.abort)
        self._expect(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        """Answer the review that is now complete, or wait for the rest of it, or hand over."""
        if not self.heard:
            self.heard = True
            self._place.mark_read()
        if self._handed_over:
            self._pass_on(data)
            return
        if self._wanted is None and not self._part:
            wanted = self._read_head(data)
            # The whole review in one piece needs no buffer and no timer, and the crowd hears of the answer alone.
            if wanted is not None and len(data) == wanted[2]:  # as nearly all come
                self._answer(wanted, data)
                return
        # From here on the client keeps us waiting: what it has not sent yet is its own affair.
        self._place.begin_request(self._clock.monotonic())
        self._part += data
        if self._wanted is None:
            started = self._part.startswith(_BEGIN) or _BEGIN.startswith(self._part)
            # What came may be the beginning of a head that is read here.
            if started and len(self._part) < MAX_HEAD and b"\r\n\r\n" not in self._part and not self._ending:
                if self._late is None:
                    self._expect(HEAD_SECONDS)
                return
            self._wanted = self._read_head(self._part)
            if self._wanted is not None:
                self._expect(answers.BODY_SECONDS)
        # More than the body is a second request before the answer to the first. No API server sends that.
        if self._wanted is None or len(self._part) > self._wanted[2]:
            self._hand_over(bytes(self._part))
        elif len(self._part) < self._wanted[2]:
            self._place.begin_body(len(self._part))
        else:
            self._answer(self._wanted, self._part)

    def begin_message(self) -> None:
        """A head is whole on aiohttp's way: what comes now has its time there."""
        self._expect(None)

    def close(self) -> None:
        """Take no more requests: aiohttp calls it when the server shuts down."""
        self._ending = True
        super().close()

    def force_close(self) -> None:
        """Close now."""
        self._ending = True
        super().force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget what was begun, and leave the place to another."""
        self._clear_message()
        super().connection_lost(exc)
        self._place.leave_crowd()

    async def start(self) -> None:
        """Serve what aiohttp reads, until the connection ends.

        Where reading was paused when the client left, asyncio's TLS waits for it to go on before it says goodbye, and
        closing starts nothing more: such a connection never ended. So it goes on, to nobody.
        """
        transport = self.transport
        try:
            await super().start()
        finally:
            self.close()
            if isinstance(transport, asyncio.Transport):
                with suppress(AttributeError):  # it was closed twice: then it is over, and has forgotten its protocol
                    transport.resume_reading()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no HTTP.

        The error's frames hold the connection, and they the error: some 100 KB with its buffers for TLS, until the
        garbage collector comes to them. Where it is the client's, nobody wants to see them.
        """
        if exc is not None and status < 500:
            exc = exc.with_traceback(None)
        return super().handle_error(request, status, exc, message)

    def _read_head(self, data: bytes | bytearray) -> tuple[Answerer, int, int] | None:
        # The search is bounded: a client that never ends its head would have all of it searched with each piece.
        end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
        head = parse_head(bytes(data[:end])) if end >= 0 else None
        if head is None or self._ending:
            return None
        path, length = head
        answerer = self._server.routes.get(path)
        # Not refused here: aiohttp's way answers 404 and 413, and closes.
        if answerer is None or length > self._server.limit:
            return None
        return answerer, end + 4, end + 4 + length

    def _answer(self, wanted: tuple[Answerer, int, int], data: bytes | bytearray) -> None:
        answerer, begin, _ = wanted
        transport = self.transport
        # Asked before the review is answered, for an answer that is handed over is given once more.
        slow_reader = transport is None or transport.get_write_buffer_size() > MAX_UNSENT
        body = data[begin:] if isinstance(data, bytes) else bytes(memoryview(data)[begin:])
        reply = None if slow_reader else answerer(body)
        if reply is None or transport is None:
            self._hand_over(bytes(data))
            return
        # The timer goes with its request: it would close the connection under the next one.
        self._clear_message()
        # Denials are 200 too: whoever gets another status sends what no API server sends.
        close = self._server.closing() or reply.status != 200
        transport.write(answers.message(reply, self._clock.now(), keep_alive=not close))
        # aiohttp closes an idle connection by this time, and sets it after answers of its own alone.
        self._next_keepalive_close_time = self._timers.time() + self.keepalive_timeout
        self._place.answered(self._clock.monotonic(), known=reply.status == 200)
        if close:
            self._close_after_sent()

    def _hand_over(self, data: bytes) -> None:
        self._part.clear()
        self._wanted = None
        self._handed_over = True
        # A timer that runs already goes on: to be handed over is no way to more time.
        if self._late is None:
            self._expect(HEAD_SECONDS)
        self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        self._given += len(data)
        # `answers.read_body` keeps no more than the limit of what comes.
        self._place.begin_body(min(self._given, self._server.limit))
        super().data_received(data)

    def _expect(self, seconds: float | None) -> None:
        """Give up after so long; None: what was expected is there."""
        if self._late is not None:
            self._late.cancel()
        self._late = None if seconds is None else self._timers.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        self._late = None
        if self.transport is not None and self.heard:  # who asked nothing expects no answer
            late = answers.HEAD_LATE if self._wanted is None else answers.BODY_LATE
            self.transport.write(answers.message(late, self._clock.now(), keep_alive=False))
        self._clear_message()
        self._close_after_sent()

    def _close_after_sent(self) -> None:
        """Close once all that was written is sent; aiohttp drops what still comes."""
        self._handed_over = True
        self.force_close()

    def _clear_message(self) -> None:
        self._part.clear()
        self._wanted = None
        if self._late is not None:
            self._late.cancel()
            self._late = None
