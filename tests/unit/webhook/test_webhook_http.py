"""The server itself, over real TLS connections on the loopback interface."""

import asyncio
import errno
import json
import re
import socket
import ssl
import warnings
from contextlib import suppress
from datetime import UTC, datetime

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reviews import REQUIRE, answer_of, make_job, make_review
from support.webhook_server import BUNDLE, HOST, REVIEW, TRUST, Unlisted, client_of, raw, request_bytes, serving

from certs.authority import Lifetimes, create
from certs.tls import ServerTls
from clock import SYSTEM
from crds.settings import Settings
from serving.access import ALLOWED, NOT_KNOWN, Access, Verdict
from webhook import answers, listener, server
from webhook.levels import FixedLevels
from webhook.review import Reply
from webhook.server import WebhookServer


async def test_a_review_is_answered_as_json():
    async with (
        serving() as running,
        client_of(running) as session,
        session.post("/mutate-pod?timeout=10s", data=REVIEW) as response,
    ):
        assert response.status == 200
        assert response.content_type == "application/json"
        assert "Date" in response.headers
        body = await response.read()
    assert answer_of(Reply(200, body, ""))["patchType"] == "JSONPatch"


async def test_one_connection_serves_many():
    async with serving() as running, client_of(running) as session:
        for _ in range(20):
            async with session.post("/mutate-pod", data=REVIEW) as response:
                assert response.status == 200
                assert "Connection" not in response.headers
                await response.read()
        assert len(running._listeners[0][1].connections) == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 404),
        ("POST", "/mutate-jobs", 404),
        ("POST", "/mutate-job/", 404),
        ("GET", "/mutate-job", 405),
        ("PUT", "/mutate-pod", 405),
        ("POST", "/healthz", 405),
        ("GET", "/metrics", 404),
        ("GET", "/healthz", 200),
        ("HEAD", "/healthz", 200),
        ("GET", "/readyz", 200),
    ],
)
async def test_paths_and_methods(method, path, status):
    async with serving() as running, client_of(running) as session, session.request(method, path) as response:
        assert response.status == status
        assert bool(await response.read()) == (method != "HEAD")


async def test_malformed_reviews_get_400_with_the_reason():
    async with (
        serving() as running,
        client_of(running) as session,
        session.post("/mutate-job", data=b"{}") as response,
    ):
        assert response.status == 400
        assert "apiVersion" in await response.text()


async def test_a_body_over_the_limit_gets_413_whether_it_says_so_or_not():
    async def in_chunks():
        for _ in range(20):
            yield b" " * 10_000

    async with serving() as running, client_of(running) as session:
        for data in (b" " * 200_000, in_chunks()):
            async with session.post("/mutate-pod", data=data) as response:
                assert response.status == 413
                assert "100000 bytes" in await response.text()
        async with session.post("/mutate-pod", data=REVIEW + b" " * (100_000 - len(REVIEW))) as response:
            assert response.status == 200


async def test_a_body_in_pieces_and_in_chunks_arrives_whole():
    async def in_chunks():
        for start in range(0, len(REVIEW), 50):
            yield REVIEW[start : start + 50]
            await asyncio.sleep(0)

    async with (
        serving() as running,
        client_of(running) as session,
        session.post("/mutate-pod", data=in_chunks()) as response,
    ):
        assert response.status == 200


async def test_a_body_that_does_not_come_gets_408(monkeypatch):
    monkeypatch.setattr(answers, "BODY_SECONDS", 0.05)
    monkeypatch.setattr(server, "LINGER_SECONDS", 0.05)
    async with serving() as running:
        head = request_bytes(b"", head="").replace(b"Content-Length: 0", b"Content-Length: 10")
        assert (await raw(running.port, head + b"{")).startswith(b"HTTP/1.1 408")


async def test_a_compressed_body_is_not_unpacked():
    async with serving() as running, client_of(running) as session:
        headers = {"Content-Encoding": "gzip"}
        async with session.post("/mutate-pod", data=b"\x1f\x8b\x08garbage", headers=headers) as response:
            assert response.status == 400


async def test_bytes_that_are_no_http_get_400_and_change_nothing(capsys):
    async with serving() as running:
        for garbage in (b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"POST /mutate-pod HTTP/1.1\r\nBad\r\n\r\n"):
            assert b" 400 Bad Request" in await raw(running.port, garbage)
        assert b" 200 " in await raw(running.port, request_bytes(REVIEW))
    assert "Traceback" not in capsys.readouterr().out


async def test_a_client_that_speaks_no_tls_is_dropped():
    async with serving() as running:
        with suppress(ConnectionError):  # or just an empty answer: it depends on who closes first
            assert not await raw(running.port, b"GET /healthz HTTP/1.1\r\n\r\n", tls=None)
        assert b" 200 " in await raw(running.port, request_bytes(REVIEW))


async def test_old_tls_is_refused():
    old = ssl.create_default_context(cadata=BUNDLE.ca_pem.decode())
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    async with serving() as running:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await raw(running.port, request_bytes(REVIEW), tls=old)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_stop_the_server_or_yield_a_5xx(data):
    async def attempt():
        async with serving() as running:
            for body in (data, request_bytes(data)):
                assert not re.match(rb"HTTP/1.. 5", await raw(running.health_port, body, tls=None))
            assert b" 200 " in await raw(running.port, request_bytes(REVIEW))

    asyncio.run(attempt())


async def test_readyz_names_what_is_missing():
    has = {"certificate": False}
    conditions = {"no certificate": lambda: has["certificate"]}
    async with serving(conditions=conditions) as running, client_of(running) as session:
        async with session.get("/readyz") as response:
            assert response.status == 503
            assert "no certificate" in await response.text()
        async with session.get("/healthz") as response:
            assert response.status == 200
        has["certificate"] = True
        async with session.get("/readyz") as response:
            assert response.status == 200


async def test_health_is_served_plain_for_the_kubelet():
    async with serving() as running, aiohttp.ClientSession() as session:
        async with session.get(f"http://{HOST}:{running.health_port}/readyz") as response:
            assert response.status == 200
        async with session.post(f"http://{HOST}:{running.health_port}/mutate-pod", data=REVIEW) as response:
            assert response.status == 404


async def test_metrics_are_for_those_who_may_read_them_where_that_is_asked():
    async def review(token):
        return {"good": ALLOWED, "poor": Verdict(403, "it may not")}.get(token, NOT_KNOWN)

    async with serving(access=Access(review, SYSTEM.monotonic)) as running, client_of(running) as session:
        url = f"https://{HOST}:{running.metrics_port}"
        for token, status in (("", 401), ("poor", 403), ("made-up", 401), ("good", 200)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with session.get(f"{url}/metrics", headers=headers) as response:
                assert response.status == status
                said = await response.text()
        assert "topogate_webhook_requests_total" in said
        async with session.get(f"{url}/healthz") as response:
            assert response.status == 200


async def test_metrics_count_by_path_and_verdict():
    async with serving(expiry=BUNDLE.not_after.timestamp) as running, client_of(running) as session:
        denied = json.dumps(make_review(make_job({REQUIRE: "cloud.example/row"}))).encode()
        for path, body in (("/mutate-pod", REVIEW), ("/mutate-pod", b"{}"), ("/mutate-job", denied)):
            async with session.post(path, data=body) as response:
                await response.read()
        async with session.get(f"https://{HOST}:{running.metrics_port}/metrics") as response:
            assert response.status == 200
            text = await response.text()
    assert 'topogate_webhook_requests_total{path="/mutate-pod",verdict="patched"} 1.0' in text
    assert 'topogate_webhook_requests_total{path="/mutate-pod",verdict="malformed"} 1.0' in text
    assert 'topogate_webhook_requests_total{path="/mutate-job",verdict="denied"} 1.0' in text
    assert 'topogate_webhook_review_seconds_count{path="/mutate-pod"} 2.0' in text
    expiry = re.search(r"^topogate_webhook_certificate_expiry_timestamp_seconds (.*)$", text, re.MULTILINE)
    assert float(expiry[1]) == BUNDLE.not_after.timestamp()
    assert len([line for line in text.splitlines() if line.startswith("topogate_")]) < 110


async def test_before_the_flavors_are_known_a_review_waits_and_is_then_warned(monkeypatch):
    levels = Unlisted()
    async with (
        serving(levels) as running,
        client_of(running) as session,
        session.post("/mutate-pod", data=REVIEW) as response,
    ):
        answer = answer_of(Reply(200, await response.read(), ""))
    assert levels.waited == [server.LEVELS_WAIT_SECONDS]
    assert answer["allowed"] is True
    assert "not checked" in answer["warnings"][0]


async def test_a_new_certificate_is_served_to_new_connections_only():
    other = create([HOST], datetime.now(UTC), Lifetimes())
    async with serving() as running:
        reader, writer = await asyncio.open_connection(HOST, running.port, ssl=TRUST, server_hostname=HOST)
        running._tls.load(other.cert_pem, other.key_pem)
        writer.write(request_bytes(REVIEW))
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()
        with pytest.raises(ssl.SSLCertVerificationError):
            await raw(running.port, request_bytes(REVIEW))
        trust = ssl.create_default_context(cadata=other.ca_pem.decode())
        assert b" 200 " in await raw(running.port, request_bytes(REVIEW), tls=trust)


async def test_certificates_change_under_load_and_no_request_fails():
    both = create([HOST], datetime.now(UTC), Lifetimes())
    trust = ssl.create_default_context(cadata=(BUNDLE.ca_pem + both.ca_pem).decode())
    done = 0

    async def load(running):
        nonlocal done
        while done < 400:
            assert b" 200 " in await raw(running.port, request_bytes(REVIEW), tls=trust)
            done += 1

    async with serving() as running, asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(load(running))
        for turn in range(40):
            bundle = (both, BUNDLE)[turn % 2]
            running._tls.load(bundle.cert_pem, bundle.key_pem)
            await asyncio.sleep(0.005)
    assert done >= 400


async def test_a_drain_loses_no_request():
    """Clients keep their connections, and make new ones where they are told to, until nobody listens any more."""
    answered = closed = 0

    async def client(running):
        nonlocal answered, closed
        while True:
            try:
                reader, writer = await asyncio.open_connection(HOST, running.port, ssl=TRUST, server_hostname=HOST)
            except (ConnectionRefusedError, ConnectionResetError):
                return  # nobody listens; reset where that began just then, and nothing was sent yet
            keep = True
            while keep:
                writer.write(request_bytes(REVIEW).replace(b"Connection: close\r\n", b""))
                head = await reader.readuntil(b"\r\n\r\n")  # IncompleteReadError where the answer never came
                assert head.startswith(b"HTTP/1.1 200")
                length = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
                await reader.readexactly(int(length.split(b":")[1]))
                answered += 1
                keep = b"Connection: close" not in head
            closed += 1
            writer.close()
            with suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    async with asyncio.TaskGroup() as group, serving() as running:
        for _ in range(6):
            group.create_task(client(running))
        while answered < 50:
            await asyncio.sleep(0.01)
        draining = asyncio.create_task(running.drain(0.3))
        await asyncio.sleep(0)
        async with client_of(running) as session, session.get("/readyz") as response:
            assert response.status == 503
            assert "draining" in await response.text()
        await draining
    assert closed > 6


@pytest.mark.parametrize("turns", range(6))
async def test_those_who_connect_in_the_moment_of_the_end_are_answered(turns):
    """In the kernel's queue, accepted, or with a handshake under way: each of them holds its connection for made."""
    async with serving() as running:
        asked = asyncio.create_task(ask(socket.create_connection((HOST, running.port))))
        for _ in range(turns):
            await asyncio.sleep(0)
    async with asyncio.timeout(10):
        head = await asked
    assert head.startswith(b"HTTP/1.1 200")
    assert b"Connection: close" in head


async def ask(connected):
    connected.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connected, ssl=TRUST, server_hostname=HOST)
    writer.write(request_bytes(REVIEW).replace(b"Connection: close\r\n", b""))
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    with suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
    return head


async def test_those_who_connect_and_ask_nothing_do_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(server, "LAST_SECONDS", 0.05)
    async with serving() as running:
        with socket.create_connection((HOST, running.port)) as silent:
            await running._close()
            assert silent.recv(1) == b""


async def test_out_of_descriptors_it_goes_on_once_there_are_some(monkeypatch):
    monkeypatch.setattr(listener, "RETRY_SECONDS", 0.01)
    errors = [OSError(errno.EMFILE, "Too many open files")] * 3

    class Lacking:
        def __init__(self, bound):
            self.bound = bound

        def accept(self):
            if errors:
                raise errors.pop()
            return self.bound.accept()

        def __getattr__(self, name):
            return getattr(self.bound, name)

    async with serving() as running:
        taking = running._listeners[0][0]
        taking._socket = Lacking(taking._socket)
        async with asyncio.timeout(10):
            assert b" 200 " in await raw(running.port, request_bytes(REVIEW))
    assert not errors


async def test_a_taken_port_is_an_error_and_leaves_nothing_open():
    async with serving() as running:
        settings_ = Settings(bind_address=HOST, webhook_port=0, metrics_port=0, health_port=running.health_port)
        with pytest.raises(OSError, match="Address already in use"):
            async with WebhookServer(settings_, FixedLevels({}), ServerTls(), expiry=lambda: None, clock=SYSTEM):
                pytest.fail("it bound a port that was taken")
