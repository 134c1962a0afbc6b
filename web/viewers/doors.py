"""Who is let in before anything is asked: so many connections, with these names of this server, from its own page.

Rules
- A page of another site cannot ask: the Host that a browser names has to be one of ours (so a name that was bound to
  our address by somebody else opens nothing), and so has the Origin, where there is one.
- Every answer says what a browser may do with it: nothing but this page's own script, style and connections.
- There are so many connections and no more; one that has not sent a request in time is closed.
"""

import asyncio
import ipaddress
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

MOST_CONNECTIONS: Final = 512
FIRST_SECONDS: Final = 10.0
HANDSHAKE_SECONDS: Final = 10.0
BACKLOG: Final = 128
_END: Final = b"\r\n\r\n"  # of a request's head
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def host_of(text: str) -> str:
    """The name or address in a Host header or an origin, without its port; "" where there is none."""
    try:
        return (urlsplit(text if "//" in text else f"//{text}").hostname or "").rstrip(".").lower()
    except ValueError:
        return ""


def door(names: Collection[str]) -> Middleware:
    """A middleware that lets in who asks for one of these names."""
    known = frozenset(name.lower() for name in names)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = refusal(request.headers, known)
        if refused is not None:
            return web.Response(status=refused[0], text=f"{refused[1]}\n", headers=HEADERS)
        try:
            return await handler(request)
        except web.HTTPException as error:
            # aiohttp raises its own 404, 405 and 413; they need the policy as much as our answers.
            error.headers.update(HEADERS)
            raise

    return check


def refusal(headers: Mapping[str, str], known: Collection[str]) -> tuple[int, str] | None:
    """Status and text for a request that is not let in; None for one that is."""
    host, origin = headers.get("Host", ""), headers.get("Origin")
    # DNS rebinding: a page of another site may bind its own name to our address, and the browser then sends its name.
    if host_of(host) not in known:
        return 421, "this server is not known by that name: --allowed-host adds one"
    # The port counts too: another server on the same host is another site.
    if origin is not None and (urlsplit(origin).netloc.lower() != host.lower() or host_of(origin) not in known):
        return 403, "pages of other sites ask nothing here"
    if headers.get("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"} and origin is not None:
        return 403, "pages of other sites ask nothing here"
    return None


def is_local(address: str) -> bool:
    """Whether only this machine reaches that address."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class _Guarded(asyncio.Protocol):
    """A connection that counts, before the protocol that answers it."""

    def __init__(self, inner: asyncio.Protocol, crowd: "Entrance") -> None:
        self._inner = inner
        self._crowd = crowd
        self._timer: asyncio.TimerHandle | None = None
        self._last = b""  # of what came, as far as it may be the beginning of a head's end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Counted and handed on before it is refused, so that `connection_lost` finds both sides as it expects.
        self._crowd.add_connection(self)
        self._inner.connection_made(transport)
        if isinstance(transport, asyncio.Transport):
            if self._crowd.full:
                transport.abort()
            else:
                # A client that opens connections and sends nothing (slowloris) would hold them all.
                self._timer = asyncio.get_running_loop().call_later(FIRST_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.remove_connection(self)
        self._heard()
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._timer is not None:
            # TCP and TLS cut where they like, also within the blank line that ends a head.
            seen = self._last + data
            if _END in seen:
                self._heard()
            self._last = seen[1 - len(_END) :]
        self._inner.data_received(data)

    def _heard(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


class Entrance:
    """Takes connections for an application, ``most`` at a time."""

    def __init__(self, runner: web.AppRunner, most: int = MOST_CONNECTIONS) -> None:
        self._runner = runner
        self._most = most
        self._inside: set[_Guarded] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def full(self) -> bool:
        """Whether there are more than may be."""
        return len(self._inside) > self._most

    def add_connection(self, one: _Guarded) -> None:
        """A connection is made."""
        self._inside.add(one)

    def remove_connection(self, one: _Guarded) -> None:
        """A connection is gone."""
        self._inside.discard(one)

    async def open(self, address: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen. Raises OSError."""
        make = self._runner.server
        if make is None:
            raise RuntimeError("the runner is not set up")
        seconds = HANDSHAKE_SECONDS if tls is not None else None
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Guarded(make(), self), address, port, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=seconds
        )
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Take no more, and end those that there are."""
        if self._server is not None:
            # First no new ones: a connection that is taken during the cleanup would outlive it.
            self._server.close()
        await self._runner.cleanup()
