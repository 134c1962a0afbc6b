"""A process that lists has so many bytes of objects at a time, and one object at least."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from kube import client
from kube.client import Client
from kube.connection.transport import _read
from kube.errors import AnswerTooLarge, Gone
from kube.resources import CONFIG_MAPS


class Server(Client):
    """Answers lists of objects of these sizes; ``gone``: at which of its answers it has forgotten the token."""

    def __init__(self, sizes, gone=()):
        self._objects = [{"metadata": {"name": str(at)}, "data": "x" * size} for at, size in enumerate(sizes)]
        self._gone = gone
        self.asked = []
        self.largest = 0

    async def _send(self, *_args, params, most, **_options):
        first, limit = int(params.get("continue", 0)), params["limit"] or len(self._objects)
        self.asked.append(params["limit"])
        if len(self.asked) in self._gone:
            raise Gone(410, "Expired", "too old")
        left = self._objects[first + limit :]
        token = {"continue": str(first + limit)} if left else {}
        body = msgspec.json.encode({"metadata": token, "items": self._objects[first : first + limit]})
        if most is not None and len(body) > most:
            raise AnswerTooLarge("too large")
        self.largest = max(self.largest, len(body))
        return body

    def names(self):
        async def read():
            return [one["metadata"]["name"] for one in await self.list(CONFIG_MAPS)]

        return asyncio.run(read())


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(client, "PAGE_BYTES", 10_000)


def test_small_objects_come_in_large_pages():
    server = Server([10] * 60)
    assert server.names() == [str(at) for at in range(60)]
    assert server.asked == [500]


@pytest.mark.parametrize("sizes", [[3000] * 40, [50_000] * 3, [*[10] * 500, *[3000] * 20, *[10] * 700]])
def test_pages_of_large_objects_are_asked_for_again_with_fewer_and_none_is_missing(sizes):
    server = Server(sizes)
    assert server.names() == [str(at) for at in range(len(sizes))]
    assert server.largest < max(10_000, max(sizes) + 1000)
    assert len(server.asked) < len(sizes) + 12


def test_a_list_of_large_objects_that_starts_again_is_paged_again():
    """Unpaged it would be all of them at once."""
    server = Server([3000] * 40, gone={6})
    assert server.names() == [str(at) for at in range(40)]
    assert server.largest < 10_000


class Content:
    def __init__(self, parts):
        self._parts = list(parts)

    async def readany(self):
        return self._parts.pop(0) if self._parts else b""


def test_an_answer_is_read_up_to_what_is_taken_and_no_further():
    closed = []
    content = Content([b"x" * 600] * 5)
    url = SimpleNamespace(path="/p")
    answer = SimpleNamespace(content=content, method="GET", url=url, close=lambda: closed.append(True))
    with pytest.raises(AnswerTooLarge):
        asyncio.run(_read(answer, 1000))
    assert closed
    assert len(content._parts) == 3
    answer = SimpleNamespace(content=Content([b"ab", b"c"]))
    assert asyncio.run(_read(answer, 1000)) == b"abc"
