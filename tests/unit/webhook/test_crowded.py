"""A crowd in front of the server: it stays small, and those who ask get their answers."""

import asyncio
import gc
import socket
import ssl
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress

import pytest
from support.webhook_server import HOST, REVIEW, TRUST, raw, request_bytes, serving

from webhook import answers, connection, crowd

MOST = 16
FEW = {"webhook_max_connections": MOST}
REQUEST = request_bytes(REVIEW).replace(b"Connection: close\r\n", b"")
CROWDS = {
    "says nothing": b"",
    "begins a head": REQUEST[:40],
    "begins a head for aiohttp": b"GET /healthz HTTP/1.1\r\nHost",
    "begins a body": REQUEST[:-9],
    "begins a body for aiohttp": b"POST /mutate-pod HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab",
}


@pytest.fixture
def in_a_hurry(monkeypatch):
    """Who is slow is slow soon."""
    monkeypatch.setattr(crowd, "GRACE_SECONDS", 0.05)


def crowd_of(running):
    return running._listeners[0][0].crowd


@asynccontextmanager
async def connected(port, data=b"", *, tls=TRUST):
    reader, writer = await asyncio.open_connection(HOST, port, ssl=tls, server_hostname=HOST if tls else None)
    writer.write(data)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


async def asked(reader, writer):
    """The status of an answer to a review."""
    writer.write(REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
    await reader.readexactly(int(length.split(b":")[1]))
    return head[9:12]


@pytest.mark.parametrize("what", CROWDS)
async def test_a_crowd_is_kept_small_and_those_who_ask_get_in(in_a_hurry, what):
    async with serving(settings=FEW) as running, AsyncExitStack() as stack, asyncio.timeout(60):
        kept = await stack.enter_async_context(connected(running.port))
        assert await asked(*kept) == b"200"
        for number in range(5 * MOST):
            await stack.enter_async_context(connected(running.port, CROWDS[what]))
            assert len(crowd_of(running)) <= MOST
            if number % MOST == 0:
                assert b" 200 " in await raw(running.port, request_bytes(REVIEW))
        assert await asked(*kept) == b"200", "a connection that is in use was not taken"
        assert running.metrics.closed[crowd.Why.SLOW] > 3 * MOST
        assert running.metrics.closed[crowd.Why.BODIES] == 0


async def test_those_with_a_handshake_under_way_count_and_make_room(in_a_hurry):
    async with serving(settings=FEW) as running, AsyncExitStack() as stack, asyncio.timeout(60):
        for _ in range(5 * MOST):
            await stack.enter_async_context(connected(running.port, tls=None))
            assert len(crowd_of(running)) <= MOST
        assert b" 200 " in await raw(running.port, request_bytes(REVIEW))
        assert running._listeners[0][0].making <= MOST


async def test_the_connection_that_was_idle_longest_makes_room():
    async with serving(settings=FEW) as running, AsyncExitStack() as stack, asyncio.timeout(60):

        async def one():
            return await stack.enter_async_context(connected(running.port))

        kept = [await one() for _ in range(1)]
        for _ in range(MOST - 1):
            assert await asked(*kept[-1]) == b"200"
            kept.append(await one())
        assert await asked(*kept[-1]) == b"200"
        assert await asked(*kept[0]) == b"200"
        assert await asked(*await one()) == b"200"
        assert await kept[1][0].read() == b"", "the one after the first, which was used again"
        for each in (kept[0], *kept[2:]):
            assert await asked(*each) == b"200"
        assert running.metrics.closed == {"slow": 0, "idle": 1, "bodies": 0}


async def test_more_at_once_than_there_are_places_are_all_answered():
    async with serving(settings=FEW) as running, asyncio.timeout(60):
        found = await asyncio.gather(*(raw(running.port, request_bytes(REVIEW)) for _ in range(8 * MOST)))
        assert all(b" 200 " in one for one in found)


async def test_a_newcomer_waits_its_turn_in_the_queue_where_nobody_is_idle_or_slow(monkeypatch):
    monkeypatch.setattr(crowd, "GRACE_SECONDS", 3600.0)
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.5)
    async with serving(settings=FEW) as running, AsyncExitStack() as stack, asyncio.timeout(60):
        for _ in range(MOST // 2):
            await stack.enter_async_context(connected(running.port))
        waiting = asyncio.create_task(raw(running.port, request_bytes(REVIEW)))
        assert b" 200 " in await waiting, "it came in once the others had used up their time"
        assert sum(running.metrics.closed.values()) == 0


async def test_large_bodies_have_so_much_room_together():
    largest = 1 << 20
    settings = {"webhook_max_connections": 4 * MOST, "webhook_max_body_bytes": largest}
    async with serving(settings=settings) as running, AsyncExitStack() as stack, asyncio.timeout(60):
        head = request_bytes(b"", head="").replace(b"Content-Length: 0", b"Content-Length: %d" % largest)
        chunked = request_bytes(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        for number in range(2 * MOST):
            start = head if number % 2 else chunked + b"%x\r\n" % largest
            _, writer = await stack.enter_async_context(connected(running.port, start + b" " * (largest - 9000)))
            with suppress(ConnectionError):
                await writer.drain()
            assert crowd_of(running).held <= 8 * largest
            assert b" 200 " in await raw(running.port, request_bytes(REVIEW))
        assert running.metrics.closed[crowd.Why.BODIES] > MOST


async def test_a_client_that_reads_no_answers_is_let_go(monkeypatch):
    monkeypatch.setattr(connection, "MAX_UNSENT", 0)
    monkeypatch.setattr(answers, "ANSWER_SECONDS", 0.2)
    async with serving() as running, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(HOST, running.port, ssl=TRUST, server_hostname=HOST, limit=1)
        reader._transport.pause_reading()
        with suppress(OSError):
            while running._listeners[0][1].connections or not running.metrics.paths["/mutate-pod"].verdicts["patched"]:
                writer.write(REQUEST * (1 if not running.metrics.paths["/mutate-pod"].verdicts["patched"] else 200))
                await asyncio.sleep(0.01)
        writer.transport.abort()
        with suppress(OSError, ssl.SSLError):
            await writer.wait_closed()
        assert not len(crowd_of(running))


@pytest.mark.parametrize("what", CROWDS)
async def test_one_that_had_to_go_is_freed_at_once(in_a_hurry, what):
    """With its buffers for TLS it is large, and what only the garbage collector finds has memory grow until then."""
    gc.collect()
    gc.disable()
    try:
        async with serving(settings=FEW) as running, AsyncExitStack() as stack, asyncio.timeout(60):
            for _ in range(5 * MOST):
                await stack.enter_async_context(connected(running.port, CROWDS[what]))
            await asyncio.sleep(0.05)
            there = [one for one in gc.get_objects() if isinstance(one, connection.ReviewConnection)]
            assert len(there) <= MOST
            del there
    finally:
        gc.enable()


async def test_a_crowd_at_the_port_for_health_does_not_keep_the_kubelet_out(in_a_hurry):
    async with serving() as running, AsyncExitStack() as stack, asyncio.timeout(60):
        for _ in range(100):
            await stack.enter_async_context(connected(running.health_port, b"GET /hea", tls=None))
        probe = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        reader, _ = await stack.enter_async_context(connected(running.health_port, probe, tls=None))
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        assert len(running._listeners[2][0].crowd) <= 32


async def test_with_a_crowd_there_the_end_is_not_held_up(monkeypatch):
    monkeypatch.setattr("webhook.server.LAST_SECONDS", 0.05)
    with ExitStack() as stack:
        async with asyncio.timeout(30), serving(settings=FEW) as running:
            for _ in range(3 * MOST):
                stack.enter_context(socket.create_connection((HOST, running.port)))
            await asyncio.sleep(0.05)
            assert len(crowd_of(running)) <= MOST
        assert not running._listeners[0][0].making
        assert not len(crowd_of(running))
