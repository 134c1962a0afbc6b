"""What is logged of connections: little, and nothing of what a client can make much of."""

import asyncio

from aiohttp.http_exceptions import BadHttpMessage
from structlog.testing import capture_logs
from support.webhook_server import HOST, REVIEW, TRUST, raw, request_bytes, serving

from clock import SYSTEM
from webhook import answers
from webhook.answers import ProtocolLog


def test_nonsense_is_a_line_a_second_that_says_how_much_there_was():
    now = {"time": 10.0}
    with capture_logs() as lines:
        log = ProtocolLog(lambda: now["time"])
        for _ in range(50):
            log.error("Error handling request from %s", "a", exc_info=BadHttpMessage("bad" * 1000))
        now["time"] += answers.LOG_SECONDS
        log.error("Error handling request from %s", "b", exc_info=BadHttpMessage("bad"))
    assert [(line["what"][-1], line["more_before"]) for line in lines] == [("a", 0), ("b", 49)]
    assert len(lines[0]["error"]) == answers.LOG_CHARACTERS
    assert "exc_info" not in lines[0]


def test_our_own_errors_are_all_there_and_clients_that_leave_are_not():
    with capture_logs() as lines:
        log = ProtocolLog(SYSTEM.monotonic)
        for error in (RuntimeError("ours"), ConnectionResetError("theirs"), RuntimeError("ours")):
            log.error("failed", exc_info=error)
    assert [str(line["exc_info"]) for line in lines] == ["ours", "ours"]


async def test_a_client_that_leaves_in_the_middle_is_no_error():
    with capture_logs() as lines:
        async with serving() as running:
            head = b"POST /mutate-pod HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"
            _, writer = await asyncio.open_connection(HOST, running.port, ssl=TRUST, server_hostname=HOST)
            writer.write(head)
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.transport.abort()
            answer = await raw(running.port, request_bytes(REVIEW))
            assert answer.startswith(b"HTTP/1.1 200")
    assert not [line for line in lines if line["log_level"] != "info"]
