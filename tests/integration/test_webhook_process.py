"""``topogate webhook`` as a process."""

import asyncio
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager

import pytest
from support.ports import free_port

from kube.errors import NotFound
from kube.resources import RESOURCE_FLAVORS, SECRETS, resource_of
from manifests.render import objects

pytestmark = pytest.mark.cluster

WAIT_SECONDS = 60


@pytest.fixture
async def flavors(client):
    """The kind that the webhook lists before it is ready."""
    for obj in objects():
        if obj["kind"] == "CustomResourceDefinition":
            await client.apply(resource_of(obj), obj, field_manager="test")
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                return await client.list(RESOURCE_FLAVORS)
            except NotFound:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running(cluster, namespace, **changes):
    ports = {"WEBHOOK_PORT": 0, "METRICS_PORT": 0, "HEALTH_PORT": free_port(), **changes}
    environment = {
        **os.environ,
        "TOPOGATE_NAMESPACE": namespace,
        "TOPOGATE_BIND_ADDRESS": "127.0.0.1",
        "TOPOGATE_WEBHOOK_CONFIGURATION": "none",
        "TOPOGATE_WEBHOOK_DRAIN_SECONDS": "0.2",
        "TOPOGATE_LOG_FORMAT": "json",
        **{f"TOPOGATE_{name}": str(port) for name, port in ports.items()},
    }
    command = (sys.executable, "-m", "cli.main", "webhook", "--kubeconfig", str(cluster.kubeconfig))
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    try:
        yield process, ports["HEALTH_PORT"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def readiness(port):
    """Status of /readyz; 0 where nobody listens."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return 0
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1])


async def test_it_gets_ready_makes_its_certificate_and_drains_on_sigterm(cluster, client, namespace, flavors):
    async with running(cluster, namespace) as (process, port):
        async with asyncio.timeout(WAIT_SECONDS):
            while await readiness(port) != 200:
                await asyncio.sleep(0.05)
        secret = await client.get(SECRETS, "topogate-webhook-cert", namespace)
        assert set(secret["data"]) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
        process.send_signal(signal.SIGTERM)
        _, logged = await process.communicate()
    assert process.returncode == 0
    assert b'"event":"draining"' in logged.replace(b'": "', b'":"')
    assert b"Traceback" not in logged
    assert b"PRIVATE" not in logged


async def test_a_taken_port_is_told_in_one_line(cluster, namespace):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with running(cluster, namespace, WEBHOOK_PORT=taken.getsockname()[1]) as (process, _):
            _, logged = await process.communicate()
    assert process.returncode == 1
    assert b"the webhook cannot serve" in logged
    assert b"Traceback" not in logged
