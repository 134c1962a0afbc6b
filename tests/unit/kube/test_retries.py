"""A call that is sent again and again ends with what the API server said last."""

import contextlib

import pytest
from aiohttp import web

from kube.client import Client
from kube.connection import transport
from kube.connection.config import Connection
from kube.connection.transport import MAX_RETRIES
from kube.errors import ServerError, Unauthorized
from kube.resources import NODES


@contextlib.asynccontextmanager
async def answering(*statuses):
    """A client of a server that answers each call with the next of these, and then for ever with the last."""
    left, asked = list(statuses), []

    async def answer(_):
        asked.append(left.pop(0) if len(left) > 1 else left[0])
        return web.json_response({"metadata": {"name": "n"}}, status=asked[-1])

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Client(Connection(f"http://127.0.0.1:{runner.addresses[0][1]}")) as client:
            yield client, asked
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(transport, "backoff", lambda *_args, **_options: 0.0)


async def test_a_401_after_the_last_retry_is_answered_with_new_credentials():
    async with answering(*[503] * MAX_RETRIES, 401, 200) as (client, asked):
        assert (await client.get(NODES, "n"))["metadata"]["name"] == "n"
    assert asked == [*[503] * MAX_RETRIES, 401, 200]


@pytest.mark.parametrize(("last", "error"), [(401, Unauthorized), (503, ServerError)])
async def test_what_is_refused_after_the_last_retry_and_new_credentials_is_the_answer(last, error):
    async with answering(*[503] * MAX_RETRIES, 401, last) as (client, asked):
        with pytest.raises(error):
            await client.get(NODES, "n")
    assert len(asked) == MAX_RETRIES + 2


async def test_a_call_is_sent_again_so_many_times_and_no_more():
    async with answering(503) as (client, asked):
        with pytest.raises(ServerError):
            await client.get(NODES, "n")
    assert len(asked) == MAX_RETRIES + 1
