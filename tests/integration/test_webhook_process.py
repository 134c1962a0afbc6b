"""``topogate webhook`` as a process."""

import signal
import socket

import pytest
from support.webhook_process import HOST, SECRET, apply_kinds, running, started

from certs import store
from kube.resources import SECRETS

pytestmark = pytest.mark.cluster


async def test_it_gets_ready_makes_its_certificate_and_drains_on_sigterm(cluster, client, namespace, tmp_path):
    await apply_kinds(client)
    async with running(cluster, namespace, tmp_path) as webhook:
        secret = await client.get(SECRETS, SECRET, namespace)
        assert set(secret["data"]) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
        assert len(store.parsed(secret).replicas) == 1
        webhook.process.send_signal(signal.SIGTERM)
        await webhook.process.wait()
    assert webhook.process.returncode == 0
    assert '"event":"draining"' in webhook.log
    assert "Traceback" not in webhook.log
    assert "PRIVATE" not in webhook.log
    # It has said that it serves nothing any more.
    assert not (await store.read(client, namespace, SECRET)).replicas


async def test_a_taken_port_is_told_in_one_line(cluster, namespace, tmp_path):
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        async with started(cluster, namespace, tmp_path, WEBHOOK_PORT=taken.getsockname()[1]) as webhook:
            await webhook.process.wait()
    assert webhook.process.returncode == 1
    assert "the webhook cannot serve" in webhook.log
    assert "Traceback" not in webhook.log
