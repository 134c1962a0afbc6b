"""The servers that the benchmark of the webhook compares, each in a process of its own."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from tempfile import NamedTemporaryFile

import msgspec
from aiohttp import web

from certs.authority import Lifetimes, create
from certs.tls import ServerTls
from clock import SYSTEM
from crds.constants import HOSTNAME_LABEL
from crds.settings import Settings
from webhook.answers import Answer, read_body
from webhook.connection import ReviewServer
from webhook.levels import FixedLevels
from webhook.objects import ReviewedPod
from webhook.review import PATCHED, Reply, Review
from webhook.server import POD_PATH, WebhookServer

HOST = "127.0.0.1"
LEVELS = {"tas": ("cloud.example/block", "cloud.example/rack", HOSTNAME_LABEL)}


@contextmanager
def running(kinds: Sequence[str]) -> Iterator[dict[str, tuple[int, int]]]:
    """Port and process id of a server of each kind."""
    bundle = create([HOST], datetime.now(UTC), Lifetimes())
    started: list[subprocess.Popen[str]] = []
    with NamedTemporaryFile(suffix=".pem") as pem:
        pem.write(bundle.key_pem + bundle.cert_pem)
        pem.flush()
        try:
            for kind in kinds:
                command = [sys.executable, "-m", "benchmarks.webhook", "--serve", kind, "--pem", pem.name]
                started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True))
            yield {kind: (_port(process), process.pid) for kind, process in zip(kinds, started, strict=True)}
        finally:
            for process in started:
                process.kill()
                process.communicate()


def _port(process: subprocess.Popen[str]) -> int:
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line.startswith("port "):
        raise RuntimeError(f"the server did not start: {line!r}")
    return int(line.split()[1])


async def serve(kind: str, pem: str) -> None:
    """Serve until standard input ends, which it does when the benchmark is gone."""
    with open(pem, "rb") as file:  # noqa: ASYNC230, PTH123 - once, before anything is served
        both = file.read()
    tls = ServerTls()
    tls.load(both, b"")
    await SERVERS[kind](tls)


def _announce(port: int) -> None:
    print(f"port {port}", flush=True)


async def _parent_gone() -> None:
    await asyncio.to_thread(sys.stdin.read)


async def _topogate(tls: ServerTls) -> None:
    import structlog

    structlog.configure(
        processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.ReturnLoggerFactory()
    )
    settings = Settings(bind_address=HOST, webhook_port=0, metrics_port=0, health_port=0)
    async with WebhookServer(settings, FixedLevels(LEVELS), tls, expiry=lambda: None, clock=SYSTEM) as server:
        _announce(server.port)
        await _parent_gone()


async def _listen(factory: Callable[[], asyncio.BaseProtocol], tls: ServerTls) -> None:
    listener = await asyncio.get_running_loop().create_server(factory, HOST, 0, ssl=tls.context)
    _announce(listener.sockets[0].getsockname()[1])
    await _parent_gone()
    listener.close()


class _Answered(msgspec.Struct, rename="camel"):
    uid: str
    allowed: bool
    patch_type: str
    patch: bytes


class _Answer(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    response: _Answered


_PATCH = b'[{"op":"add","path":"/spec/schedulingGates","value":[{"name":"kueue.x-k8s.io/topology"}]}]'
_decode = msgspec.json.Decoder(Review[ReviewedPod]).decode
_encode = msgspec.json.Encoder().encode


def _fixed_answer(body: bytes) -> bytes:
    review = _decode(body)
    answered = _Answered(review.request.uid, allowed=True, patch_type="JSONPatch", patch=_PATCH)
    return _encode(_Answer(review.api_version, review.kind, answered))


async def _parse_and_answer(tls: ServerTls) -> None:
    async def never(_: web.BaseRequest) -> web.StreamResponse:
        raise RuntimeError("the short way was not taken")

    def answer(body: bytes) -> Reply:
        return Reply(200, _fixed_answer(body), PATCHED)

    routes = {POD_PATH: answer}
    server = ReviewServer(never, routes=routes, limit=1 << 20, closing=lambda: False, clock=SYSTEM, access_log=None)
    await _listen(server, tls)


async def _aiohttp_server(tls: ServerTls) -> None:
    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await read_body(request, 1 << 20)
        return Answer(Reply(200, _fixed_answer(body), PATCHED), SYSTEM, keep_alive=True)

    await _listen(web.Server(handle, access_log=None), tls)


async def _aiohttp_app(tls: ServerTls) -> None:
    async def handle(request: web.Request) -> web.Response:
        review = await request.json()
        response = {
            "uid": review["request"]["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": _PATCH.decode(),
        }
        return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})

    app = web.Application()
    app.router.add_post(POD_PATH, handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    if runner.server is None:
        raise RuntimeError("aiohttp made no server")
    await _listen(runner.server, tls)


class _Bare(asyncio.Protocol):
    """HTTP as far as this benchmark's client speaks it."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found or self._transport is None:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(body) < length:
            return
        self._buffer = body[length:]
        answer = _fixed_answer(body[:length])
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer)
        self._transport.write(head + answer)


async def _bare_asyncio(tls: ServerTls) -> None:
    await _listen(_Bare, tls)


SERVERS: dict[str, Callable[[ServerTls], Awaitable[None]]] = {
    "webhook": _topogate,
    "parse-and-answer": _parse_and_answer,
    "bare-asyncio": _bare_asyncio,
    "aiohttp-server": _aiohttp_server,
    "aiohttp-app": _aiohttp_app,
}
