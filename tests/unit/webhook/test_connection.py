"""The short way reads nothing that aiohttp would read otherwise."""

import asyncio
import gc
import inspect
import re
import ssl
from contextlib import suppress

import pytest
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.webhook_server import HOST, REVIEW, TRUST, Unlisted, request_bytes, serving

from webhook import answers, connection, server
from webhook.connection import parse_head

HEAD = b"POST /mutate-pod?timeout=10s HTTP/1.1\r\nHost: a\r\nContent-Length: 12"


def as_aiohttp(head):
    """Method, path and content length as aiohttp reads them; None where it refuses."""
    loop = asyncio.new_event_loop()
    try:
        protocol = BaseProtocol(loop, None)
        parser = HttpRequestParser(protocol, loop, 2**16, max_line_size=8190, max_field_size=8190)
        protocol._parser = parser
        messages, upgraded, _ = parser.feed_data(head + b"\r\n\r\n")
        [(message, _)] = messages
        length = int(message.headers.get("Content-Length", "-1"))
        return message.method, message.path.partition("?")[0], length, message.should_close, message.chunked, upgraded
    except (HttpProcessingError, ValueError):
        return None
    finally:
        loop.close()


def test_what_an_api_server_sends_is_taken():
    head = (
        b"POST /mutate-job?timeout=10s HTTP/1.1\r\nHost: topogate-webhook.topogate-system.svc:443\r\n"
        b"User-Agent: kube-apiserver-admission\r\nContent-Length: 4096\r\nAccept: application/json, */*\r\n"
        b"Content-Type: application/json\r\nAccept-Encoding: gzip"
    )
    assert parse_head(head) == ("/mutate-job", 4096)


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace(b"POST", b"GET"),
        HEAD.replace(b"HTTP/1.1", b"HTTP/1.0"),
        HEAD.replace(b" HTTP", b"  HTTP"),
        HEAD.replace(b"/mutate-pod", b"http://x/mutate-pod"),
        HEAD.replace(b"Content-Length: 12", b"Content-Length: +12"),
        HEAD.replace(b"Content-Length: 12", b"Content-Length: 12, 12"),
        HEAD.replace(b"Content-Length: 12", b"Content-Length : 12"),
        HEAD.replace(b"Content-Length: 12", b"X: 1"),
        HEAD.replace(b"Host: a\r\n", b""),
        HEAD + b"\r\nContent-Length: 12",
        HEAD + b"\r\nTransfer-Encoding: chunked",
        HEAD + b"\r\nConnection: close",
        HEAD + b"\r\nExpect: 100-continue",
        HEAD + b"\r\nUpgrade: h2c",
        HEAD + b"\r\nContent-Encoding: gzip",
        HEAD + b"\r\n folded: x",
        HEAD + b"\r\nX: a\nTransfer-Encoding: chunked",
        HEAD + b"\r\nX: a\rY: b",
        HEAD + b"\r\nX: a\x00b",
        HEAD + b"\r\nX",
        b"\r\n" + HEAD,
        b"",
    ],
)
def test_anything_else_is_not(head):
    assert parse_head(head) is None


HEADERS = b"X: y|Host: b|content-length: 3|Transfer-Encoding: chunked|Connection: close".split(b"|")
OTHERS = b"\r\n|\n|\r| |\t|:|POST |/|?|HTTP/1.1|\x00|\xff|12|-".split(b"|")
pieces = st.sampled_from([*HEADERS, *OTHERS])


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(HEAD)), st.integers(0, 12), pieces), max_size=3))
@example([])
def test_a_head_that_is_taken_means_the_same_to_aiohttp(edits):
    head = HEAD
    for place, cut, piece in edits:
        head = head[:place] + piece + head[place + cut :]
    taken = parse_head(head)
    if taken is not None:
        assert as_aiohttp(head) == ("POST", *taken, False, False, False)


def test_aiohttp_still_keeps_the_end_of_the_idle_time_where_we_put_it():
    """Should this fail after an upgrade of aiohttp, look at RequestHandler._process_keepalive for where it is now."""
    ours = inspect.getsource(connection.ReviewConnection) + inspect.getsource(connection.ReviewServer)
    own = {*connection.ReviewConnection.__slots__, "_options"}
    methods = {name for each in (connection.ReviewConnection, connection.ReviewServer) for name in vars(each)}
    reached_into = set(re.findall(r"self\.(_[a-z]\w*)", ours)) - own - methods
    assert reached_into == {"_next_keepalive_close_time"}
    assert reached_into <= set(web.RequestHandler.__slots__)
    assert "self._next_keepalive_close_time" in inspect.getsource(web.RequestHandler._process_keepalive)


async def connect(running, trust=TRUST):
    return await asyncio.open_connection(HOST, running.port, ssl=trust, server_hostname=HOST)


async def close(writer):
    writer.close()
    with suppress(OSError, ssl.SSLError):
        await writer.wait_closed()


async def read_answer(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1]))
    return head, body


def plain(body=REVIEW, path="/mutate-pod?timeout=10s"):
    return request_bytes(body, path=path).replace(b"Connection: close\r\n", b"")


def taken(running):
    """Whether each connection is still on the short way."""
    return [not each._handed_over for each in running._listeners[0][1].connections]


async def over(running):
    """Wait until the server has no connection any more."""
    async with asyncio.timeout(5):
        while taken(running):
            await asyncio.sleep(0.01)
    assert not running._listeners[0][1].connections


@pytest.mark.parametrize("sent", [b"GARBAGE\r\n\r\n", request_bytes(b"{}"), request_bytes(REVIEW)])
async def test_a_connection_that_was_closed_is_freed_at_once(sent):
    """With its buffers for TLS it is large, and what only the garbage collector finds has memory grow until then."""
    gc.collect()
    gc.disable()
    try:
        async with serving() as running:
            reader, writer = await connect(running)
            writer.write(sent)
            await reader.read()
            await close(writer)
            await over(running)
            assert not [one for one in gc.get_objects() if isinstance(one, connection.ReviewConnection)]
    finally:
        gc.enable()


@pytest.mark.parametrize("size", [7, 4096])
@pytest.mark.parametrize("chunks", [4, 40, 400])
@pytest.mark.parametrize("end", [b"", b"0\r\n\r\n", b"5\r\nabcdeXX64\r\n"])
async def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(monkeypatch, size, chunks, end):
    """Many chunks have aiohttp pause the reading, and then nobody heard that the client had left."""
    monkeypatch.setattr(server, "LINGER_SECONDS", 0.05)
    monkeypatch.setattr(answers, "BODY_SECONDS", 0.2)
    chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
    async with serving() as running:
        _, writer = await connect(running)
        writer.write(b"POST /mutate-pod HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(0.01)  # the head alone is read first
        async with asyncio.timeout(5):
            while not taken(running):
                await asyncio.sleep(0.01)
        writer.write(chunk * chunks + end)
        writer.transport.abort()
        await over(running)


async def test_reviews_take_the_short_way_whole_or_in_pieces():
    async with serving() as running:
        reader, writer = await connect(running)
        for size in (len(plain()), 300, 4096):
            for start in range(0, len(plain()), size):
                writer.write(plain()[start : start + size])
                await writer.drain()
                await asyncio.sleep(0.005)
            head, body = await read_answer(reader)
            assert head.startswith(b"HTTP/1.1 200")
            assert b"JSONPatch" in body
        assert taken(running) == [True]
        await close(writer)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
        (plain(path="/nowhere"), b"404"),
        (plain().replace(b"Content-Length", b"TE: trailers\r\nContent-Length"), b"200"),
        (plain() + plain(), b"200"),
    ],
)
async def test_what_is_handed_over_is_answered_once_and_the_connection_is_closed(sent, status):
    async with serving() as running:
        reader, writer = await connect(running)
        writer.write(sent)
        head, _ = await read_answer(reader)
        assert head[9:12] == status
        assert b"Connection: close" in head
        assert await reader.read() == b""
        await close(writer)
        await over(running)


async def test_a_malformed_review_gets_400_and_its_connection_is_closed():
    async with serving() as running:
        reader, writer = await connect(running)
        writer.write(plain(b"{}"))
        head, body = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 400")
        assert b"Connection: close" in head
        assert b"apiVersion" in body
        assert await reader.read() == b""
        await close(writer)


@pytest.mark.parametrize(
    "begun",
    [
        plain()[:3],  # as a review begins
        plain()[:40],
        b"GET /healthz HTTP/1.1\r\nHost: x",  # as nothing of the short way does
        b"POST /mutate-pod HTTP/1.1\r\nHost: x\r\n" + b"X: %b\r\n" % (b"y" * 50) * 100,  # too long for it
    ],
)
@pytest.mark.parametrize("before", [False, True], ids=["first", "later"])
async def test_a_head_that_stops_gets_408(monkeypatch, begun, before):
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    async with serving() as running:
        reader, writer = await connect(running)
        if before:
            writer.write(plain())
            await read_answer(reader)
        writer.write(begun)
        async with asyncio.timeout(5):
            head, body = await read_answer(reader)
            assert head.startswith(b"HTTP/1.1 408")
            assert b"head" in body
            assert await reader.read() == b""
        await close(writer)
        await over(running)


async def test_a_head_that_trickles_has_no_more_time_for_it(monkeypatch):
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    async with serving() as running, asyncio.timeout(10):
        reader, writer = await connect(running)
        writer.write(plain()[:40])
        answer = asyncio.create_task(reader.read())
        while not answer.done():
            writer.write(b"x")
            await asyncio.sleep(0.05)
        assert answer.result().startswith(b"HTTP/1.1 408")
        await close(writer)


async def test_who_connects_and_says_nothing_is_let_go_without_a_word(monkeypatch):
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.1)
    async with serving() as running:
        reader, writer = await connect(running)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        await close(writer)
        await over(running)


async def test_one_that_was_answered_may_be_silent_for_longer(monkeypatch):
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.1)
    async with serving() as running:
        reader, writer = await connect(running)
        for _ in range(2):
            writer.write(plain())
            await read_answer(reader)
            await asyncio.sleep(0.3)
        assert taken(running) == [True]
        await close(writer)


async def test_a_body_that_stops_gets_408(monkeypatch):
    monkeypatch.setattr(answers, "BODY_SECONDS", 0.05)
    async with serving() as running:
        reader, writer = await connect(running)
        writer.write(plain()[:-5])
        head, _ = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 408")
        assert await reader.read() == b""
        await close(writer)


async def test_a_connection_in_use_outlives_the_idle_time_and_an_idle_one_does_not(monkeypatch):
    monkeypatch.setattr(server, "KEEPALIVE_SECONDS", 0.3)
    async with serving() as running:
        reader, writer = await connect(running)
        for _ in range(10):
            writer.write(plain())
            await read_answer(reader)
            await asyncio.sleep(0.1)
        assert taken(running) == [True]
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        await close(writer)


async def test_a_client_that_does_not_read_is_handed_over_before_its_answers_pile_up(monkeypatch):
    monkeypatch.setattr(connection, "MAX_UNSENT", 0)
    async with serving() as running:
        _, writer = await connect(running)
        async with asyncio.timeout(30):
            while taken(running) != [False]:
                writer.write(plain() if running.metrics.paths["/mutate-pod"].verdicts["patched"] < 3 else plain() * 100)
                await asyncio.sleep(0.001)
        await close(writer)


async def test_while_levels_are_unknown_a_review_waits_with_aiohttp():
    levels = Unlisted()
    async with serving(levels) as running:
        reader, writer = await connect(running)
        writer.write(plain())
        _, body = await read_answer(reader)
        assert b"not checked" in body
        assert levels.waited
        await close(writer)


async def test_a_drain_closes_each_connection_with_its_answer():
    async with serving() as running:
        reader, writer = await connect(running)
        writer.write(plain())
        await read_answer(reader)
        await running.drain(0)
        writer.write(plain())
        head, _ = await read_answer(reader)
        assert b"Connection: close" in head
        assert await reader.read() == b""
        await close(writer)
