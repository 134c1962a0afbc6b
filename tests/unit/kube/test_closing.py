"""A closed client leaves no connection open, whatever its calls were doing: a loop that ends would warn of it."""

import asyncio
import contextlib
import gc
import sys
import threading

import pytest
from aiohttp import web
from support.webhook_server import BUNDLE, HOST, TRUST

from certs.tls import ServerTls
from kube.client import Client
from kube.connection.config import Connection

CALLS = 6
TURNS = 16  # of the loop: all have their connections by then


async def _serve(told):
    async def answer(_):
        await asyncio.sleep(0.005)
        return web.json_response({})

    app, tls = web.Application(), ServerTls()
    app.router.add_get("/", answer)
    tls.load(BUNDLE.cert_pem, BUNDLE.key_pem)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0, ssl_context=tls.context).start()
    done = asyncio.Event()
    told(f"https://{HOST}:{runner.addresses[0][1]}", asyncio.get_running_loop(), done)
    await done.wait()
    await asyncio.sleep(0.5)  # its own ends of connections that were not made yet close once it hears of that
    await runner.cleanup()


@pytest.fixture
def url():
    """Of a server over TLS that has a loop of its own."""
    found, ready = [], threading.Event()

    def told(*what):
        found.extend(what)
        ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(_serve(told)))
    thread.start()
    assert ready.wait(20)
    url, loop, done = found
    yield url
    loop.call_soon_threadsafe(done.set)
    thread.join(20)


async def _cancelled_after(turns, url):
    """Calls at once, all of which are cancelled after so many turns of the loop, as in a group of which one fails."""
    async with Client(Connection(url, tls=TRUST)) as client:
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for _ in range(CALLS):
                    group.create_task(client.raw("GET", "/"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                raise ValueError


def test_calls_that_are_cancelled_at_any_moment_leave_no_connection_open(url, monkeypatch):
    left = []
    monkeypatch.setattr(sys, "unraisablehook", lambda one: left.append(str(one.exc_value)))
    for turns in range(TURNS):
        asyncio.run(_cancelled_after(turns, url))
        gc.collect()
    assert left == []
