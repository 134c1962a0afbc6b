"""One HTTP call to the API server: deadline, authentication, retries, errors. ``kube.client`` puts types on top.

Rules:

- Every call ends by its deadline, retries included.
- An answer 429 with Retry-After was not acted on: any verb is sent again after that time, a bounded number of times.
- A broken connection or a 5xx leaves open whether the server acted: only what may be done twice is sent again. Where no
  connection could be made, nothing was sent: any verb is tried again.
- A 401 makes the credentials afresh and sends the call again, once.
- Where there is a ``fence``, it is asked right before the first byte is sent, whatever was waited for before.
"""

import asyncio
import random
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote_plus
from weakref import WeakSet

from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from clock import SYSTEM, Clock
from kube.connection.config import Connection
from kube.connection.lean_aiohttp import aiohttp
from kube.errors import (
    AnswerTooLarge,
    ApiError,
    ConnectionFailed,
    Fenced,
    KubeTimeout,
    ServerError,
    TooManyRequests,
    Unauthorized,
    api_error,
)

USER_AGENT = "topogate"
POOL_SIZE = 128
TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS = 10.0
# With these numbers the pauses of one call come to 3.1 s at most, unless the server asks for more.
MAX_RETRIES = 5
FIRST_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 5.0
# Without PATCH: whether a patch may be sent twice depends on its kind (`kube.patches.IDEMPOTENT`).
IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE"})
JSON = "application/json"
CLOSE_SECONDS = 1.0  # for connections that calls left which were cancelled
STREAM_BYTES = 1 << 18  # what a burst of watch events may pile up before reading stops
Params = Mapping[str, str | int | bool | None]
_WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


Fence = Callable[[], bool]
# A context variable and not an argument: aiohttp makes the request objects, and passes nothing of ours on to them.
_fence: ContextVar[Fence | None] = ContextVar("fence", default=None)  # whether calls of this context may be sent now


@contextmanager
def fenced_by(fence: Fence) -> Iterator[None]:
    """Calls inside are sent only while ``fence()`` holds; else they raise Fenced."""
    before = _fence.set(fence)
    try:
        yield
    finally:
        _fence.reset(before)


class _Request(aiohttp.ClientRequest):
    """A request behind the fence. Between asking and the first byte nothing is awaited."""

    async def send(self, conn: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        # Asked here and not at the call: a free connection, TLS and retries may take longer than the lease lasts.
        may_send = _fence.get()
        if may_send is not None and not may_send():
            raise Fenced(f"{self.method} {self.url.path} was not sent: this process does not lead any more")
        return await super().send(conn)


def backoff(attempt: int, *, first: float = FIRST_BACKOFF_SECONDS, most: float = MAX_BACKOFF_SECONDS) -> float:
    """Seconds before retry ``attempt`` (from 0): doubling, with jitter over the upper half."""
    # The exponent is bounded: 2.0 ** 1024 raises OverflowError, and a watch that fails all night gets that far.
    return min(most, first * 2.0 ** min(attempt, 30)) * random.uniform(0.5, 1.0)  # noqa: S311 -- only spreads load


def query(params: Params | None) -> str:
    """The query string with its ``?``; None, empty and False values are left out."""
    pairs = [
        f"{key}={quote_plus('true' if value is True else str(value))}"
        for key, value in (params or {}).items()
        if value is not None and value is not False and value != ""
    ]
    return "?" + "&".join(pairs) if pairs else ""


class Transport:
    """A pool of keep-alive connections to one API server. Make it inside a running event loop; close it."""

    def __init__(
        self,
        connection: Connection,
        *,
        pool_size: int = POOL_SIZE,
        user_agent: str = USER_AGENT,
        clock: Clock = SYSTEM,
    ) -> None:
        self._clock = clock
        self._base = connection.url.rstrip("/")
        self._credentials = connection.credentials
        self._agent = user_agent
        self.date = ""  # the API server's, by its last answer
        self._observers: list[Callable[[str, int], None]] = []
        self._headers: dict[str | None, CIMultiDict[str]] = {}  # by content type
        self._authorization = ""
        # A redirect becomes an error: the token goes to the API server alone, wherever an answer points to.
        self._options: dict[str, Any] = {"allow_redirects": False}
        if connection.proxy:
            self._options["proxy"] = connection.proxy
        if connection.server_name:
            self._options["server_hostname"] = connection.server_name
        # Weak, so that sockets of connections that end by themselves are not kept.
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=connection.tls if connection.tls is not None else True,
                limit=pool_size,
                socket_factory=self._socket,
                keepalive_timeout=30,  # below the API server's own 90 s: we close first, so no call meets a closed one
            ),
            # No total here: `send` bounds all attempts of a call together, and a watch has no end.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            request_class=_Request,
            auto_decompress=False,
            # A compressed list saves little on a cluster's network and costs the API server more.
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    def subscribe(self, observe: Callable[[str, int], None]) -> None:
        """Have ``observe`` be told the method and HTTP status (0: none) of every answer."""
        self._observers.append(observe)

    async def close(self) -> None:
        """Close every connection.

        The pool does not know the connection of a call that was cancelled any more. It closes by itself, a few turns of
        the loop later; one that was about to begin its TLS handshake goes on being made (asyncio in Python 3.11). A
        loop that ends meanwhile would leave them open. Shutting their sockets down ends both.
        """
        # The pool comes first: it closes in good order all that it knows, and leaves only what it does not know.
        await self._session.close()
        for one in self._open():
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while self._open():
                    await asyncio.sleep(0.001)

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        return made

    def _open(self) -> list[socket.socket]:
        return [one for one in self._sockets if one.fileno() >= 0]

    async def send(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109 -- it becomes an error that says what was called
        idempotent: bool | None = None,
        what: Callable[[], str] | None = None,
        most: int | None = None,
        warned: Callable[[str], None] | None = None,
    ) -> bytes:
        """Send a call, return the body of its answer.

        Args:
            method: HTTP method.
            path: absolute path on the API server, percent-encoded.
            params: query parameters.
            body: the encoded object or patch.
            content_type: of the body.
            timeout: seconds for all of it.
            idempotent: whether it may be sent again when it is not known if the server acted; by default by method.
            what: names the object, for errors; by default they show the path.
            most: bytes of the answer that are taken; None: any number.
            warned: called with each warning of an answer, also of one that is an error.

        Raises:
            AnswerTooLarge: it has more.
            ApiError: the server refused.
            ConnectionFailed: no connection, or it broke.
            KubeTimeout: no answer by the deadline.
        """
        again = method in IDEMPOTENT if idempotent is None else idempotent
        url = URL(f"{self._base}{path}{query(params)}", encoded=True)
        deadline = self._clock.monotonic() + timeout
        name = what or (lambda: path)
        try:
            async with asyncio.timeout(timeout):
                return await self._attempts(method, url, body, content_type, again, deadline, name, most, warned)
        except TimeoutError as error:
            self._tell_observers(method, 0)
            raise KubeTimeout(f"{method} {name()}: no answer within {timeout:g} s") from error

    async def _attempts(  # noqa: PLR0917 -- one caller, all of it needed
        self,
        method: str,
        url: URL,
        body: bytes | None,
        content_type: str,
        again: bool,
        deadline: float,
        name: Callable[[], str],
        most: int | None,
        warned: Callable[[str], None] | None,
    ) -> bytes:
        refreshed, attempt = False, 0
        while True:
            failure: ApiError | ConnectionFailed
            try:
                status, headers, answer = await self._once(method, url, body, content_type, most)
            # TimeoutError is an OSError too, but the deadline comes as a cancellation until `send` is left.
            except (aiohttp.ClientError, OSError) as error:
                self._tell_observers(method, 0)
                failure = ConnectionFailed(f"{method} {name()}: {_explain(error)}")
                failure.__cause__ = error
                # Only this error says that there was never a connection. After any other one the server may have acted.
                unsent = isinstance(error, aiohttp.ClientConnectorError)
            else:
                unsent = False
                self._tell_observers(method, status)
                if warned is not None:
                    for warning in warnings_of(headers):
                        warned(warning)
                if status < 300:
                    return answer
                failure = api_error(status, answer, headers, f"{method} {name()}")
            # Once a call: a token that is wrong for good would be refreshed and refused in a loop. It is no retry.
            if isinstance(failure, Unauthorized) and not refreshed:
                refreshed = True
                await self._credentials.refresh()
                continue
            pause = _pause(failure, attempt, again or unsent)
            # A pause beyond the deadline would end as a timeout; the failure itself says more.
            if pause is None or attempt == MAX_RETRIES or self._clock.monotonic() + pause > deadline:
                raise failure
            await asyncio.sleep(pause)
            attempt += 1

    async def _once(
        self, method: str, url: URL, body: bytes | None, content_type: str, most: int | None
    ) -> tuple[int, CIMultiDictProxy[str], bytes]:
        headers = await self._headers_for(content_type if body is not None else None)
        async with self._session.request(method, url, data=body, headers=headers, **self._options) as response:
            self.date = response.headers.get("Date", "")
            return response.status, response.headers, await _read(response, most)

    async def _headers_for(self, content_type: str | None) -> CIMultiDict[str]:
        authorization = self._credentials.current_header()
        if authorization is None:
            await self._credentials.refresh()
            authorization = self._credentials.current_header() or ""
        # All kept headers hold the old token, whatever their content type.
        if authorization != self._authorization:
            self._headers.clear()
            self._authorization = authorization
        if (headers := self._headers.get(content_type)) is None:
            headers = CIMultiDict({"Accept": JSON, "User-Agent": self._agent})
            if authorization:
                headers["Authorization"] = authorization
            if content_type:
                headers["Content-Type"] = content_type
            self._headers[content_type] = headers
        return headers

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Params, inactivity: float, what: str
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Open a GET whose body is read as it comes; each read raises TimeoutError after ``inactivity`` seconds.

        Raises:
            ApiError: the server refused.
            ConnectionFailed: no connection, or it broke (also while reading).
            KubeTimeout: nothing came for ``inactivity`` seconds.
        """
        request = f"GET {what}"
        url = URL(f"{self._base}{path}{query(params)}", encoded=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=inactivity)
        try:
            # A watch has no retries of its own: `kube.watch` opens it again, from where it was.
            headers = await self._headers_for(None)
            async with self._session.get(
                url, headers=headers, timeout=timeout, read_bufsize=STREAM_BYTES, **self._options
            ) as response:
                self._tell_observers("WATCH", response.status)
                if response.status >= 300:
                    failure = api_error(response.status, await response.read(), response.headers, request)
                    if isinstance(failure, Unauthorized):
                        await self._credentials.refresh()  # whoever opened the stream opens it again
                    raise failure
                yield response.content
        except TimeoutError as error:  # aiohttp's timeouts are both this and a ClientError
            raise KubeTimeout(f"{request}: nothing came for {inactivity:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionFailed(f"{request}: {_explain(error)}") from error

    def _tell_observers(self, method: str, status: int) -> None:
        for observe in self._observers:
            observe(method, status)


def _pause(failure: ApiError | ConnectionFailed, attempt: int, again: bool) -> float | None:
    """Seconds to wait before sending the call again, None if it must not be."""
    if isinstance(failure, TooManyRequests):
        # Without Retry-After it is an eviction that a disruption budget forbids: for the caller to decide.
        # With jitter on top, or all clients that the server turns away at once come back at once.
        return None if failure.retry_after is None else failure.retry_after + backoff(0)
    if not again or not isinstance(failure, ServerError | ConnectionFailed):
        return None
    asked = failure.retry_after or 0.0 if isinstance(failure, ServerError) else 0.0
    return max(asked, backoff(attempt))


def warnings_of(headers: CIMultiDictProxy[str]) -> Iterator[str]:
    """The texts of headers like ``299 - "text"``, as the API server writes them (RFC 7234, 5.5)."""
    for value in headers.getall("Warning", ()):
        if found := _WARNING.match(value):
            yield _ESCAPED.sub(r"\1", found[1])


async def _read(response: aiohttp.ClientResponse, most: int | None) -> bytes:
    if most is None:
        return await response.read()
    parts, size = [], 0
    while part := await response.content.readany():
        parts.append(part)
        size += len(part)
        if size > most:
            response.close()  # with its connection: the rest would have to be read else
            raise AnswerTooLarge(f"{response.method} {response.url.path}: an answer of over {most} bytes")
    return b"".join(parts)


def _explain(error: Exception) -> str:
    return str(error) or type(error).__name__
