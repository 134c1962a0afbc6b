"""Watches come without compression: nobody asks for any. And aiohttp as it is locked would read what 1.37 sends."""

import asyncio
import gzip
import json

import aiohttp
import pytest
from aiohttp import web

from kube.client import Client
from kube.connection.config import Connection
from kube.informer import Informer
from kube.objects import Node
from kube.resources import NODES


def change(number):
    node = {"metadata": {"name": f"n{number}", "resourceVersion": str(number)}}
    return json.dumps({"type": "ADDED", "object": node}).encode() + b"\n"


class Server:
    """Sends watches as kube-apiserver 1.37.1: to who accepts gzip, each flush as a gzip member of its own."""

    def __init__(self):
        self.asked = []

    async def answer(self, request):
        packs = "gzip" in request.headers.get("Accept-Encoding", "")
        self.asked.append(packs)
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        response = web.StreamResponse(headers={"Content-Encoding": "gzip"} if packs else {})
        await response.prepare(request)
        for number in (2, 3, 4):
            line = change(number)
            await response.write(gzip.compress(line) if packs else line)
        await response.write_eof()
        return response


@pytest.fixture
async def server():
    made = Server()
    app = web.Application()
    app.router.add_get("/{path:.*}", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def test_no_list_and_no_watch_asks_for_compression(server):
    async with Client(Connection(server.url)) as client:
        informer = Informer(client, NODES, Node)
        watching = asyncio.create_task(informer.run())
        async with asyncio.timeout(20):
            while len(informer.store) < 3:
                await asyncio.sleep(0.01)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert len(server.asked) >= 2
    assert not any(server.asked)


async def test_aiohttp_as_locked_reads_every_member_of_a_gzip_watch(server):
    """3.12.15 read the first and dropped the rest without a word."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{server.url}/api/v1/nodes", params={"watch": "true"}) as response,
    ):
        assert (await response.read()).splitlines() == [change(number).strip() for number in (2, 3, 4)]
    assert server.asked == [True]
