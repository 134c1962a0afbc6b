"""A watch breaks in the middle of what came together: nothing of it is lost, and nothing is listed for it."""

import asyncio
import json
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest

from kube import watch
from kube.connection.answers import Page
from kube.errors import BadAnswer, Gone, ServerError, Unauthorized
from kube.objects import Object
from kube.resources import CONFIG_MAPS
from kube.watch import Changed, Feed, Listed


def line(kind, name, version):
    obj = {"metadata": {"namespace": "a", "name": name, "resourceVersion": str(version)}}
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def error(code):
    return json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": code}}).encode() + b"\n"


class Server:
    """Answers lists with nothing at version 1, and each watch with what is next of ``watches``: chunks, or an error."""

    def __init__(self, *watches):
        self.transport = self
        self._watches = list(watches)
        self.lists = 0
        self.asked = []  # the version from which each watch began

    async def pages(self, *_args, **_options):
        self.lists += 1
        yield msgspec.json.decode(b'{"metadata":{"resourceVersion":"1"},"items":[]}', type=Page), True

    @asynccontextmanager
    async def stream(self, _path, *, params, **_options):
        self.asked.append(params["resourceVersion"])
        answer = self._watches.pop(0)
        if isinstance(answer, Exception):
            raise answer
        chunks = [*answer, b""]

        async def readany():
            return chunks.pop(0)

        yield SimpleNamespace(readany=readany)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(watch, "backoff", lambda *_args, **_options: 0.0)


async def parts_of(server, number):
    """The first parts of what a feed of this server yields."""
    found = []
    async with aclosing(Feed(server, CONFIG_MAPS, Object).for_ever()) as parts:
        async for part in parts:
            found.append(part)
            if len(found) == number:
                break
    return found


def changes_of(parts):
    return [(name, new is None) for part in parts if isinstance(part, Changed) for name, new, _ in part.changes]


@pytest.mark.parametrize(
    ("breaks", "raised"),
    [(error(500), ServerError), (b"<html>who am I</html>\n", BadAnswer), (error(410), Gone)],
    ids=["500", "garbage", "410"],
)
async def test_changes_that_came_before_what_breaks_the_watch_are_handed_on(breaks, raised):
    server = Server([line("MODIFIED", "m", 10) + line("DELETED", "d", 11) + breaks + line("MODIFIED", "late", 12)])
    feed = Feed(server, CONFIG_MAPS, Object)
    async with aclosing(feed.watch_once()) as batches:
        found = [await anext(batches)]
        with pytest.raises(raised):
            await anext(batches)
    assert changes_of(found) == [("a/m", False), ("a/d", True)]
    assert feed.reached == 11


async def test_the_next_watch_begins_behind_the_changes_that_were_handed_on():
    server = Server(
        [line("MODIFIED", "m", 10) + error(500)],
        [line("DELETED", "m", 11)],
    )
    assert changes_of(await asyncio.wait_for(parts_of(server, 3), 5)) == [("a/m", False), ("a/m", True)]
    assert (server.lists, server.asked) == (1, ["1", "10"])


async def test_a_watch_that_is_answered_401_goes_on_from_its_place_and_nothing_is_listed_again():
    server = Server([line("ADDED", "m", 10)], Unauthorized(401), [line("DELETED", "m", 11)])
    parts = await asyncio.wait_for(parts_of(server, 3), 5)
    assert [type(part) for part in parts] == [Listed, Changed, Changed]
    assert (server.lists, server.asked) == (1, ["1", "10", "10"])
