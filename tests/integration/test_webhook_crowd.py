"""Crowds in front of ``topogate webhook``, over TLS: its memory and connections stay few, and reviews are answered.

TOPOGATE_CROWD=1500 is the full number of each crowd.
"""

import asyncio
import os
import resource
import socket
from contextlib import ExitStack, contextmanager, suppress

import pytest
from support import fuzz
from support.webhook_process import HOST, Connection, apply_kinds, running, trust_of

from kube.resources import RESOURCE_FLAVORS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CROWD = int(os.environ.get("TOPOGATE_CROWD", "500"))
MOST = 256  # the default of webhookMaxConnections
LIMIT_BYTES = 512 << 20  # of the webhook's container
MORE_BYTES = 100 << 20  # for a crowd: each connection has some 300 KB
BODIES_BYTES = 200 << 20  # for large bodies: 64 MiB of them, and what they leave behind
PATIENCE_SECONDS = 10  # of an API server
AT_ONCE = 16
LARGE = 7_000_000

HEAD = b"POST /mutate-pod HTTP/1.1\r\nHost: x\r\n"
CROWDS = {
    "idle": b"",
    "heads": HEAD + b"X: y",
    "heads on aiohttp's way": b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: y",
    "slow bodies": HEAD + b"Content-Length: 4000000\r\n\r\n" + b" " * 20_000,
}
LARGE_BODIES = {
    "large bodies": HEAD + b"Content-Length: 8000000\r\n\r\n" + b" " * LARGE,
    "large bodies on aiohttp's way": HEAD + b"Transfer-Encoding: chunked\r\n\r\n7fffff\r\n" + b" " * LARGE,
}


@contextmanager
def many_files():
    """So many connections are more than some shells allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * CROWD + 1000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def crowd(stack, webhook, trust, count, data):
    """So many connections that send this and then nothing; the most memory and connections seen meanwhile."""
    todo, memory, connections = iter(range(count)), 0, 0

    def one():
        # Blocking sockets: asyncio's take 300 KB each on this side too.
        plain = stack.enter_context(socket.create_connection((HOST, webhook.port), timeout=60))
        with suppress(OSError):  # it had to make room already
            stack.enter_context(trust.wrap_socket(plain, server_hostname=HOST)).sendall(data)

    async def some():
        nonlocal memory, connections
        for _ in todo:
            await asyncio.to_thread(one)
            memory, connections = max(memory, webhook.memory), max(connections, webhook.connections)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(some())
    return memory, connections


async def review(connection):
    async with asyncio.timeout(PATIENCE_SECONDS):
        await connection.send(*fuzz.good("/mutate-pod").pieces)
        answer = await connection.receive()
    assert answer is not None, "closed without an answer"
    assert answer.review()["allowed"]


@pytest.fixture
async def flavor(client):
    await apply_kinds(client)
    body = {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "ResourceFlavor",
        "metadata": {"name": "crowd"},
        "spec": {"nodeLabels": {"a": "b"}, "topology": {"levels": [fuzz.BLOCK, fuzz.RACK, fuzz.HOST]}},
    }
    await client.create(RESOURCE_FLAVORS, body)
    yield
    await client.delete(RESOURCE_FLAVORS, "crowd")


@pytest.mark.usefixtures("flavor")
@pytest.mark.parametrize("what", [*CROWDS, *LARGE_BODIES])
async def test_a_crowd_takes_little_memory_and_keeps_nobody_out(cluster, client, namespace, tmp_path, what):
    data, large = (CROWDS | LARGE_BODIES)[what], what in LARGE_BODIES
    async with running(cluster, namespace, tmp_path) as webhook:
        trust = await trust_of(client, namespace)
        kept = Connection(webhook.port, trust)
        await review(kept)
        before = webhook.memory
        with many_files(), ExitStack() as stack:
            memory, connections = await crowd(stack, webhook, trust, CROWD // (8 if large else 1), data)
            for _ in range(3):
                fresh = Connection(webhook.port, trust)
                await review(fresh)
                await fresh.close()
            await review(kept)  # it is the one from before the crowd: `Connection` opens no other by itself
            memory = max(memory, webhook.memory)
        print(f"{what}: {before / 2**20:.0f} MiB before, {memory / 2**20:.0f} at most, {connections} connections")
        assert connections <= MOST
        assert memory - before < (BODIES_BYTES if large else MORE_BYTES)
        assert memory < LIMIT_BYTES
        async with asyncio.timeout(60):
            while webhook.connections > 1:  # those who never ask have their time, and no more
                await asyncio.sleep(0.1)
        await review(kept)
        await kept.close()
        assert '"level": "error"' not in webhook.log
        assert "exception" not in webhook.log
