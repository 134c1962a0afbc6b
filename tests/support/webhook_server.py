"""A webhook server on the loopback interface, with TLS but without a cluster."""

import asyncio
import json
import ssl
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import aiohttp
from support.reviews import FLAVORS, RACK, REQUIRE, make_pod, make_review

from certs.authority import Lifetimes, create
from certs.tls import ServerTls
from clock import SYSTEM
from crds.settings import Settings
from webhook.levels import FixedLevels
from webhook.server import WebhookServer

HOST = "127.0.0.1"
BUNDLE = create([HOST], datetime.now(UTC), Lifetimes())
TRUST = ssl.create_default_context(cadata=BUNDLE.ca_pem.decode())
REVIEW = json.dumps(make_review(make_pod({REQUIRE: RACK}))).encode()


@asynccontextmanager
async def serving(levels=None, settings=None, **arguments):
    """``settings``: those that differ from the defaults."""
    free = {"bind_address": HOST, "webhook_port": 0, "metrics_port": 0, "health_port": 0}
    settings_ = Settings(**free, **{"webhook_max_body_bytes": 100_000, **(settings or {})})
    tls = ServerTls()
    tls.load(BUNDLE.cert_pem, BUNDLE.key_pem)
    arguments = {"clock": SYSTEM, "expiry": lambda: None, **arguments}
    async with WebhookServer(settings_, levels or FixedLevels(FLAVORS), tls, **arguments) as running:
        yield running


@asynccontextmanager
async def client_of(running):
    connector = aiohttp.TCPConnector(ssl=TRUST)
    async with aiohttp.ClientSession(f"https://{HOST}:{running.port}", connector=connector) as session:
        yield session


async def raw(port, data, *, tls=TRUST):
    """What the server sends to these bytes before it closes, with the client's side closed after them (plain only)."""
    reader, writer = await asyncio.open_connection(HOST, port, ssl=tls, server_hostname=HOST if tls else None)
    try:
        writer.write(data)
        await writer.drain()
        if tls is None:
            writer.write_eof()
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()
        with suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


def request_bytes(body, *, path="/mutate-pod?timeout=10s", head=""):
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n{head}"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


class Unlisted:
    """Levels that are not known yet."""

    def __init__(self):
        self.waited = []

    def current_offer(self):
        return FLAVORS if self.waited and self.waited[-1] is None else None

    async def wait_for_levels(self, seconds):
        self.waited.append(seconds)
