"""/healthz, /readyz and /metrics over HTTP.

- Health is plain, on ``healthPort``, for the kubelet's probes: it says nothing but that.
- Metrics are there too, for whoever reaches the port. With ``metricsAuthentication: kubernetes`` they are on
  ``metricsPort`` instead, over TLS, for who may read them: a token does not travel in the clear.
- The certificate signs itself, is made at each start, and its key is in memory alone.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from ssl import SSLContext
from typing import NamedTuple, Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from clock import Clock
from kube.client import Client
from serving.access import Access, by_api_server

LIFE = timedelta(days=3650)  # no process lives so long
Handler = Callable[[web.Request], Awaitable[web.Response]]


class ServingSettings(Protocol):
    """What `crds.settings` says of serving."""

    @property
    def bind_address(self) -> str:
        """Where to listen."""

    @property
    def health_port(self) -> int:
        """Of health."""

    @property
    def metrics_port(self) -> int:
        """Of metrics, where they are authenticated."""

    @property
    def metrics_authentication(self) -> str:
        """Who may read metrics: ``none`` asks nobody, ``kubernetes`` the API server."""


class Ports(NamedTuple):
    """The ports in use; ``metrics`` is that of health where metrics are served there."""

    health: int
    metrics: int


@asynccontextmanager
async def serving(
    settings: ServingSettings,
    client: Client,
    registry: CollectorRegistry,
    *,
    ready: Callable[[], bool],
    alive: Callable[[], bool],
    clock: Clock,
) -> AsyncIterator[Ports]:
    """Serve while the block runs; a port that the settings have as 0 is any free one.

    ``client`` asks who may read metrics. Raises OSError where a port is taken.
    """

    async def healthz(_: web.Request) -> web.Response:
        return _answer(alive(), "stuck")

    async def readyz(_: web.Request) -> web.Response:
        return _answer(ready(), "not ready")

    async def metrics(_: web.Request) -> web.Response:
        # Off the loop: rendering takes longer than an ungating patch.
        body = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def guarded_metrics(request: web.Request) -> web.Response:
        verdict = await access.check(request.headers.get("Authorization"))
        if verdict.status == 200:
            return await metrics(request)
        headers = {"WWW-Authenticate": "Bearer"} if verdict.status == 401 else {}
        return web.Response(status=verdict.status, text=f"{verdict.text}\n", headers=headers)

    health: dict[str, Handler] = {"/healthz": healthz, "/readyz": readyz}
    address = settings.bind_address
    if settings.metrics_authentication == "none":
        async with _listening(address, settings.health_port, {**health, "/metrics": metrics}) as port:
            yield Ports(port, port)
        return
    # Monotonic, because verdicts age: a jump of the wall clock would end or prolong them.
    access = Access(by_api_server(client), clock.monotonic)
    guarded: dict[str, Handler] = {"/metrics": guarded_metrics}
    async with (
        _listening(address, settings.health_port, health) as port,
        _listening(address, settings.metrics_port, guarded, tls=own_tls(clock.utc())) as secure,
    ):
        yield Ports(port, secure)


@asynccontextmanager
async def _listening(
    address: str, port: int, routes: dict[str, Handler], *, tls: SSLContext | None = None
) -> AsyncIterator[int]:
    app = web.Application()
    app.add_routes([web.get(path, handler) for path, handler in routes.items()])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, port, ssl_context=tls)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def own_tls(now: datetime) -> SSLContext:
    """A certificate of its own, for whoever checks no names."""
    from certs.authority import Lifetimes, create  # late: they bring a library that others can do without
    from certs.tls import ServerTls

    tls = ServerTls()
    made = create(["localhost", socket.gethostname().lower()], now, Lifetimes(LIFE, LIFE))
    tls.load(made.cert_pem, made.key_pem)
    return tls.context


def _answer(holds: bool, otherwise: str) -> web.Response:
    return web.Response(text="ok\n") if holds else web.Response(status=503, text=f"{otherwise}\n")
