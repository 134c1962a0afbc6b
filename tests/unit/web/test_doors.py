"""Who is let in at all: names of this server, pages of its own, and so many connections."""

import asyncio

import pytest
from aiohttp import web

from web.viewers import doors
from web.viewers.doors import LOCAL, Entrance, host_of, is_local, refusal

KNOWN = frozenset({*LOCAL, "gpus.example.com"})


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1:8090", None, 0),
        ("localhost:8090", "http://localhost:8090", 0),
        ("[::1]:8090", None, 0),
        ("gpus.example.com", "https://gpus.example.com", 0),
        ("GPUS.example.com", None, 0),
        ("evil.example", None, 421),
        ("127.0.0.1.evil.example", None, 421),
        ("localhost.evil.example:8090", None, 421),
        ("", None, 421),
        ("[", None, 421),
        ("user@127.0.0.1", None, 0),  # the name is ours, whoever asks
        ("127.0.0.1@evil.example", None, 421),
        ("127.0.0.1:8090", "http://evil.example", 403),
        ("127.0.0.1:8090", "null", 403),
        ("127.0.0.1:8090", "http://127.0.0.1:9999", 403),
        ("127.0.0.1:8090", "http://localhost:8090", 403),
    ],
)
def test_a_request_is_for_this_server_and_from_its_own_page(host, origin, status):
    headers = {"Host": host} | ({"Origin": origin} if origin is not None else {})
    found = refusal(headers, KNOWN)
    assert (found[0] if found else 0) == status


def test_names_are_taken_out_of_headers():
    assert [host_of(text) for text in ("a:1", "A.", "http://b:2", "[::1]:3", "http://[")] == ["a", "a", "b", "::1", ""]


@pytest.mark.parametrize(
    ("address", "local"), [("127.0.0.1", 1), ("::1", 1), ("localhost", 1), ("0.0.0.0", 0), ("x", 0)]
)
def test_who_reaches_an_address(address, local):
    assert is_local(address) is bool(local)


REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("cut", [*range(-5, 0), 1])
async def test_a_connection_whose_request_came_stays_wherever_the_request_was_cut(monkeypatch, cut):
    monkeypatch.setattr(doors, "FIRST_SECONDS", 0.2)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    entrance = Entrance(runner)
    await entrance.open("127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", entrance.port)
        for piece in (REQUEST[:cut], REQUEST[cut:]):
            writer.write(piece)
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        writer.write(REQUEST)
        async with asyncio.timeout(5):
            for _ in range(2):
                assert (await reader.readuntil(b"404: Not Found")).startswith(b"HTTP/1.1 404")
        unheard, silent = await asyncio.open_connection("127.0.0.1", entrance.port)
        silent.write(REQUEST[:-1])
        async with asyncio.timeout(5):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await unheard.readexactly(1)
        for one in (writer, silent):
            one.close()
    finally:
        await entrance.close()


async def test_connections_beyond_the_most_are_closed_and_make_room_when_they_go():
    runner = web.AppRunner(web.Application())
    await runner.setup()
    entrance = Entrance(runner, most=2)
    await entrance.open("127.0.0.1", 0)
    try:
        inside = [await asyncio.open_connection("127.0.0.1", entrance.port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", entrance.port)
        async with asyncio.timeout(5):
            with_reset = await asyncio.gather(reader.read(), return_exceptions=True)
        assert with_reset[0] == b"" or isinstance(with_reset[0], ConnectionError)
        writer.close()
        inside[0][1].close()
        await asyncio.sleep(0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", entrance.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(b"HTTP/1.1 404")
        for _, one in (inside[1], (reader, writer)):
            one.close()
    finally:
        await entrance.close()
