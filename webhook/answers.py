"""HTTP on a lean path: aiohttp's parser and connections, bodies read without a copy, answers written in one piece.

An `aiohttp.web.Response` costs more than the review that it carries (headers as a multidict, cookies, a chunked
writer), and so does a router. What is measured of it is in benchmarks/webhook.py.
"""

import asyncio
import math
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from clock import Clock
from webhook.review import TEXT_TYPE, Reply

log = structlog.get_logger(__name__)

BODY_SECONDS = 10.0  # a client that sends more slowly is a broken one
ANSWER_SECONDS = 10.0  # and so is one that reads more slowly
LOG_SECONDS = 1.0
LOG_CHARACTERS = 300


class BodyTooLargeError(Exception):
    """The body is larger than the limit; the rest of it was not read."""


class BodyBrokenError(Exception):
    """The body did not arrive whole."""


class Answer(web.StreamResponse):
    """A whole answer. It has none of what its base offers: no headers to set, no streaming."""

    def __init__(self, reply: Reply, clock: Clock, *, keep_alive: bool) -> None:
        self._reply = reply  # the base's own state is never made: see the module's docstring
        self._clock = clock
        self._keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write it, and wait only where the client does not read."""
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        keep_alive, with_body = bool(self._keep_alive), request.method != "HEAD"
        transport.write(message(self._reply, self._clock.now(), keep_alive=keep_alive, with_body=with_body))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await request.writer.drain()
        except TimeoutError:
            transport.abort()
            raise ConnectionResetError("the client does not read its answer") from None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""


def message(reply: Reply, now: float, *, keep_alive: bool, with_body: bool = True) -> bytes:
    """The whole HTTP message of an answer. ``now``: seconds since the epoch."""
    status, body, _, content_type = reply
    head = _head(status, content_type, keep_alive, int(now))
    return b"%b%d\r\n\r\n%b" % (head, len(body), body if with_body else b"")


def text(status: int, line: str) -> Reply:
    """A plain text answer; its verdict is not counted."""
    return Reply(status, f"{line}\n".encode(), "", TEXT_TYPE)


HEAD_LATE = text(408, "the head did not arrive in time")
BODY_LATE = text(408, "the body did not arrive in time")


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """The whole body.

    Raises BodyTooLargeError (over ``limit`` bytes), BodyBrokenError, TimeoutError.
    """
    content = request.content
    length = request.content_length
    # Before a byte is read: a client that announces too large a body need not send it.
    if length is not None and length > limit:
        raise BodyTooLargeError
    try:
        # Nearly always: a body that came with its head is whole before the handler runs.
        if content.is_eof():
            body = content.read_nowait()
        else:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_on(request, limit)
    # The stream keeps its error, and the error's frames the body, until the garbage collector comes.
    except ConnectionError as error:
        raise ConnectionResetError(str(error.with_traceback(None))) from None
    except (web.RequestPayloadError, HttpProcessingError, ValueError) as error:
        raise BodyBrokenError(str(error.with_traceback(None))) from None
    # In chunks there is no length to go by, and the bytes alone tell.
    if len(body) > limit:
        raise BodyTooLargeError
    return body


async def _read_on(request: web.BaseRequest, limit: int) -> bytes:
    body = bytearray()
    while part := await request.content.readany():
        body += part
        if len(body) > limit:
            raise BodyTooLargeError
    return bytes(body)


@lru_cache(maxsize=64)
def _head(status: int, content_type: bytes, keep_alive: bool, second: int) -> bytes:
    """Everything before the length; ``second`` is the time, so the date is made once a second."""
    return (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        f"Date: {formatdate(second, usegmt=True)}\r\n"
        f"{'' if keep_alive else 'Connection: close' + chr(13) + chr(10)}"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
        f"Content-Type: {content_type.decode()}\r\nContent-Length: "
    ).encode()


class ProtocolLog:
    """What aiohttp logs of a connection.

    A client that speaks no HTTP is a line, not a stack trace, and at most one a second: it shall not fill the log too.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = -math.inf
        self._passed_over = 0

    def debug(self, message: str, *args: Any, **_kwargs: Any) -> None:
        """Nothing: aiohttp calls it for every client that goes away."""

    def exception(self, message: str, *args: Any, exc_info: Any = None, **_kwargs: Any) -> None:
        """One line; with the trace where the error is not the client's."""
        what = message % args if args else message
        # API servers cancel calls whose own client went away.
        if isinstance(exc_info, ConnectionError):
            return  # it left before its answer
        if not isinstance(exc_info, HttpProcessingError):
            log.warning("connection failed", what=what, exc_info=exc_info)
        elif self._clock() < self._next:
            self._passed_over += 1
        else:
            self._next = self._clock() + LOG_SECONDS
            error = f"{exc_info.code} {exc_info.message}"[:LOG_CHARACTERS]
            log.warning("a client speaks no HTTP", what=what, error=error, more_before=self._passed_over)
            self._passed_over = 0

    warning = error = exception
