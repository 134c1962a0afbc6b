"""The short way of a review: from the bytes of a connection to the bytes of its answer, with no HTTP library between.

An API server always sends a review alike: one POST with a Content-Length, and the next only after the answer. Parsing
that into request, headers, URL and stream, and running a task for it, costs aiohttp more than the review and its
encryption together (benchmarks/webhook.py has the figures). So a connection is read here as long as all that comes is
of that form, by a strict reading of it; the first bytes that are anything else go to aiohttp, and so does everything on
that connection from then on.

Rules
- The hand-over is at the start of a request that was not answered, and there is no way back: the two never both read.
- A head is taken only if each of its lines is what RFC 9112 allows and none asks for anything (transfer coding,
  connection options, expectations, upgrades).
- Nothing waits here. Where an answer would have to (flavors not listed yet, a client that does not read), aiohttp's
  way is taken.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from webhook import answers
from webhook.review import Reply

MAX_HEAD = 4096
MAX_UNSENT = 64 * 1024

_REQUEST_LINE = re.compile(rb"POST (/[!->@-~]*)(?:\?[!-~]*)? HTTP/1\.1\Z")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t -~]*?)[ \t]*\Z")
_LENGTH = re.compile(rb"[0-9]{1,12}\Z")
_SPECIAL = frozenset(
    {b"transfer-encoding", b"connection", b"expect", b"upgrade", b"content-encoding", b"trailer", b"te"}
)

Answerer = Callable[[bytes], Reply | None]  # None: it would have to wait


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
        handler: Callable[[web.BaseRequest], Any],
        *,
        routes: Mapping[str, Answerer],
        limit: int,
        closing: Callable[[], bool],
        **options: Any,
    ) -> None:
        super().__init__(handler, **options)
        self._options = options
        self.routes = routes
        self.limit = limit
        self.closing = closing

    @property
    def unheard(self) -> int:
        """How many connections are there on which nothing came yet."""
        return sum(isinstance(each, ReviewConnection) and not each.heard for each in self.connections)

    def __call__(self) -> RequestHandler:
        """The protocol of a new connection."""
        return ReviewConnection(self, loop=asyncio.get_running_loop(), **self._options)


class ReviewConnection(RequestHandler):
    """One connection, on the short way until something else comes.

    Of aiohttp's inside it knows one thing: where the end of a connection's idle time is kept
    (``_next_keepalive_close_time``). A test watches over that.
    """

    __slots__ = ("_buffer", "_clock", "_ending", "_handed_over", "_late", "_server", "_wanted", "heard")

    def __init__(self, server: ReviewServer, *, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        super().__init__(server, loop=loop, **options)
        self._server = server
        self._clock = loop
        self._ending = False
        self._buffer = b""
        self._wanted: tuple[Answerer, int, int] | None = None  # who answers; where the body begins and ends
        self._late: asyncio.TimerHandle | None = None
        self._handed_over = False
        self.heard = False

    def data_received(self, data: bytes) -> None:
        """Answer the review that is now complete, or wait for the rest of it, or hand over."""
        self.heard = True
        if self._handed_over:
            super().data_received(data)
            return
        self._buffer = data if not self._buffer else self._buffer + data
        if self._wanted is None:
            self._wanted = self._read_head()
        if self._wanted is None or len(self._buffer) > self._wanted[2]:
            self._hand_over()
        elif len(self._buffer) == self._wanted[2]:
            self._answer(*self._wanted)
        elif self._late is None:
            self._late = self._clock.call_later(answers.BODY_SECONDS, self._give_up)

    def close(self) -> None:
        """Take no more requests: aiohttp calls it when the server shuts down."""
        self._ending = True
        super().close()

    def force_close(self) -> None:
        """Close now."""
        self._ending = True
        super().force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget what was begun."""
        self._forget()
        super().connection_lost(exc)

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

        The error's frames hold the connection, and they the error: some 300 KB with its buffers for TLS, until the
        garbage collector comes to them. Where it is the client's, nobody wants to see them.
        """
        if exc is not None and status < 500:
            exc = exc.with_traceback(None)
        return super().handle_error(request, status, exc, message)

    def _read_head(self) -> tuple[Answerer, int, int] | None:
        end = self._buffer.find(b"\r\n\r\n", 0, MAX_HEAD)
        head = parse_head(self._buffer[:end]) if end >= 0 else None
        if head is None or self._ending:
            return None
        path, length = head
        answerer = self._server.routes.get(path)
        if answerer is None or length > self._server.limit:
            return None
        return answerer, end + 4, end + 4 + length

    def _answer(self, answerer: Answerer, begin: int, _end: int) -> None:
        transport = self.transport
        slow_reader = transport is None or transport.get_write_buffer_size() > MAX_UNSENT
        reply = None if slow_reader else answerer(self._buffer[begin:])
        if reply is None or transport is None:
            self._hand_over()
            return
        self._forget()
        close = self._server.closing() or reply.status != 200
        transport.write(answers.message(reply, keep_alive=not close))
        self._next_keepalive_close_time = self._clock.time() + self.keepalive_timeout
        if close:
            self._end()

    def _hand_over(self) -> None:
        data = self._buffer
        self._forget()
        self._handed_over = True
        super().data_received(data)

    def _give_up(self) -> None:
        self._late = None
        if self.transport is not None:
            self.transport.write(answers.message(answers.BODY_LATE, keep_alive=False))
        self._forget()
        self._end()

    def _end(self) -> None:
        """Close once all that was written is sent; aiohttp drops what still comes."""
        self._handed_over = True
        self.force_close()

    def _forget(self) -> None:
        self._buffer, self._wanted = b"", None
        if self._late is not None:
            self._late.cancel()
            self._late = None
