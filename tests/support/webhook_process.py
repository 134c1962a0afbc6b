"""``topogate webhook`` as a process, and clients that talk to it over TLS."""

import asyncio
import base64
import json
import os
import re
import ssl
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from support.ports import free_port

from kube.errors import NotFound
from kube.resources import RESOURCE_FLAVORS, SECRETS, resource_of
from localcluster.process import usage
from manifests.render import objects

HOST = "127.0.0.1"
WAIT_SECONDS = 60
SECRET = "topogate-webhook-cert"
ESTABLISHED, CLOSE_WAIT = "01", "08"  # in /proc/net/tcp


async def apply_kinds(client):
    """The kinds that the webhook lists before it is ready."""
    for obj in objects():
        if obj["kind"] == "CustomResourceDefinition":
            await client.apply(resource_of(obj), obj, field_manager="test")
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                return await client.list(RESOURCE_FLAVORS)
            except NotFound:
                await asyncio.sleep(0.05)


class Webhook:
    """One running process. ``port`` takes reviews."""

    def __init__(self, process, port, health_port, log):
        self.process, self.port, self.health_port, self._log = process, port, health_port, log

    @property
    def memory(self):
        """Resident bytes."""
        return usage(self.process.pid)[0]

    @property
    def connections(self):
        """How many of its connections with those who send reviews are not closed on its side."""
        rows = [line.split() for line in Path(f"/proc/{self.process.pid}/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(f":{self.port:04X}") and row[3] in {ESTABLISHED, CLOSE_WAIT} for row in rows)

    @property
    def cpu_seconds(self):
        return usage(self.process.pid)[1]

    @property
    def log(self):
        return self._log.read_text(encoding="utf-8")

    async def readiness(self):
        """Status of /readyz; 0 where nobody listens."""
        try:
            reader, writer = await asyncio.open_connection(HOST, self.health_port)
        except ConnectionRefusedError:
            return 0
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return int(answer.split()[1])

    async def until_ready(self):
        async with asyncio.timeout(WAIT_SECONDS):
            while await self.readiness() != 200:
                assert self.process.returncode is None, self.log
                await asyncio.sleep(0.05)


@asynccontextmanager
async def started(cluster, namespace, folder: Path, **changes):
    """The process; killed at the end. ``changes``: settings by their variable's name, without the prefix."""
    port = changes.get("WEBHOOK_PORT") or free_port()
    settings = {
        "NAMESPACE": namespace,
        "BIND_ADDRESS": HOST,
        "WEBHOOK_URL": f"https://{HOST}:{port}",
        "WEBHOOK_PORT": port,
        "METRICS_PORT": 0,
        "HEALTH_PORT": free_port(),
        "WEBHOOK_CONFIGURATION": "none",
        "WEBHOOK_DRAIN_SECONDS": "0.2",
        "LOG_FORMAT": "json",
        **changes,
    }
    environment = {**os.environ, **{f"TOPOGATE_{name}": str(value) for name, value in settings.items()}}
    command = (sys.executable, "-m", "cli.main", "webhook", "--kubeconfig", str(cluster.kubeconfig))
    log = folder / f"webhook-{port}.log"
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=sink)
    try:
        yield Webhook(process, port, settings["HEALTH_PORT"], log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def running(cluster, namespace, folder: Path, **changes):
    """The process, ready."""
    async with started(cluster, namespace, folder, **changes) as webhook:
        await webhook.until_ready()
        yield webhook


async def trust_of(client, namespace):
    """A TLS context that trusts what the Secret says."""
    data = (await client.get(SECRETS, SECRET, namespace))["data"]
    return ssl.create_default_context(cadata=base64.b64decode(data["ca.crt"]).decode())


class Answer:
    """One HTTP answer."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def closes(self):
        return self.headers.get("connection") == "close"

    def review(self):
        """The response in it, which has to be a whole AdmissionReview."""
        review = json.loads(self.body)
        assert set(review) == {"apiVersion", "kind", "response"}
        assert review["apiVersion"] in {"admission.k8s.io/v1", "admission.k8s.io/v1beta1"}
        assert review["kind"] == "AdmissionReview"
        response = review["response"]
        assert isinstance(response["uid"], str)
        assert isinstance(response["allowed"], bool)
        assert all(isinstance(each, str) and len(each) <= 256 for each in response.get("warnings", ()))
        if "patch" in response:
            assert response["patchType"] == "JSONPatch"
            for operation in json.loads(base64.b64decode(response["patch"], validate=True)):
                assert operation["op"] == "add"
                assert operation["path"].startswith("/")
        if not response["allowed"]:
            assert response["status"]["code"] in {403, 422}
            assert response["status"]["message"]
        return response


class Connection:
    """One TLS connection, opened when it is needed."""

    def __init__(self, port, trust):
        self.port, self.trust = port, trust
        self._streams = None

    async def send(self, *pieces):
        if self._streams is None:
            self._streams = await asyncio.open_connection(HOST, self.port, ssl=self.trust, server_hostname=HOST)
        _, writer = self._streams
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(0.002)
            writer.write(piece)
        with suppress(ConnectionError):
            await writer.drain()  # the answer may be there before all of it was sent

    async def receive(self, *, with_body=True):
        """The next answer; None where the connection is closed before one begins."""
        reader, _ = self._streams
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise
                return None
            except (ConnectionError, ssl.SSLError):
                return None
            line, *rest = head.decode("latin-1").split("\r\n")
            match = re.fullmatch(r"HTTP/1\.[01] (\d{3}) [ -~]*", line)
            assert match, f"no status line: {line!r}"
            status = int(match[1])
            headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest if each)}
            if status == 100:
                continue
            body = b""
            if with_body:
                body = await reader.readexactly(int(headers["content-length"]))
            return Answer(status, headers, body)

    async def close(self):
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.transport.abort()
            with suppress(OSError, ssl.SSLError):
                await writer.wait_closed()
