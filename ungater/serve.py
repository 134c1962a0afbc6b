"""/healthz, /readyz and /metrics over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from ungater.metrics import Metrics


@asynccontextmanager
async def serving(address: str, port: int, metrics: Metrics, ready: Callable[[], bool]) -> AsyncIterator[int]:
    """Serve while the block runs; yields the port in use (``port`` 0: any free one).

    Raises OSError where the port is taken.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n") if ready() else web.Response(status=503, text="not ready\n")

    async def scrape(_: web.Request) -> web.Response:
        # Off the loop: rendering takes longer than an ungating patch.
        body = await asyncio.to_thread(generate_latest, metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", scrape)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
