"""Two replicas under steady load, as API servers make it, while leaf, CA and leaf again are rotated: no call fails.

TOPOGATE_ROTATION_SECONDS=60 is the full length. Clients verify by the caBundle of the webhook configuration, some of
them by what it was a moment ago; half of the calls come over a connection of their own.
"""

import asyncio
import base64
import collections
import itertools
import os
import ssl
import statistics
import time
from contextlib import suppress

import pytest
from support import fuzz
from support.webhook_process import HOST, SECRET, Connection, apply_kinds, running

from certs import store
from certs.store import ROTATE
from kube.errors import NotFound
from kube.resources import MUTATING_WEBHOOKS, RESOURCE_FLAVORS, SECRETS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SECONDS = float(os.environ.get("TOPOGATE_ROTATION_SECONDS", "10"))
RATE = 300
IN_FLIGHT = 60  # calls at once, where a machine is slow: of more strangers than it keeps the webhook turns some away
NAME = "topogate-rotation-test"
SETTLE_SECONDS = SECONDS / 10
LATE_SECONDS = SETTLE_SECONDS / 2  # how long after a change of the caBundle some clients still use the old one
CALL_SECONDS = 10.0  # as an API server is told to wait
IDLE_SECONDS = 90.0  # so long an API server keeps a connection that it does not use


class Clients:
    """What API servers know: the caBundle, now and a moment ago."""

    def __init__(self, client):
        self._client = client
        self._contexts = {}
        self._history = []

    async def follow(self):
        """Look for a new caBundle all the time."""
        while True:
            await self.look()
            await asyncio.sleep(0.05)

    async def look(self):
        found = await self._client.get(MUTATING_WEBHOOKS, NAME)
        text = found["webhooks"][0]["clientConfig"].get("caBundle", "")
        if text and (not self._history or self._history[-1][1] != text):
            self._contexts[text] = ssl.create_default_context(cadata=base64.b64decode(text).decode())
            self._history.append((time.monotonic(), text))

    def trust(self, *, late):
        """The TLS context of a client."""
        before = time.monotonic() - (LATE_SECONDS if late else 0.0)
        known = [text for since, text in self._history if since <= before]
        return self._contexts[known[-1] if known else self._history[0][1]]

    @property
    def bundles(self):
        return len(self._history)


@pytest.fixture
async def configuration(client):
    """A webhook configuration that applies to nothing, and a flavor."""
    await apply_kinds(client)
    rules = [{"apiGroups": ["none.topogate.dev"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}]
    hook = {
        "name": "rotation.topogate.dev",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": rules,
    }
    flavor = {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "ResourceFlavor",
        "metadata": {"name": NAME},
        "spec": {"nodeLabels": {"a": "b"}, "topology": {"levels": [fuzz.BLOCK, fuzz.RACK, fuzz.HOST]}},
    }
    made = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    await client.create(MUTATING_WEBHOOKS, {**made, "metadata": {"name": NAME}, "webhooks": [hook]})
    await client.create(RESOURCE_FLAVORS, flavor)
    yield
    for resource in (MUTATING_WEBHOOKS, RESOURCE_FLAVORS):
        with suppress(NotFound):
            await client.delete(resource, NAME)


async def load(replicas, clients, seconds):
    """Seconds of each call, made at a steady rate, whether answers are slow or not. Raises what any of them raises."""
    room = asyncio.Semaphore(IN_FLIGHT)
    kept = {replica.port: collections.deque() for replica in replicas}
    taken, paths = [], sorted(fuzz.GOOD)

    async def call(number):
        replica, path = replicas[number % 2], paths[number // 2 % len(paths)]
        fresh = number // 4 % 2 == 0
        idle = kept[replica.port]
        start = time.monotonic()
        while idle and idle[0][0] < start - IDLE_SECONDS:
            await idle.popleft()[1].close()
        if idle and not fresh:
            connection = idle.pop()[1]
        else:
            connection = Connection(replica.port, clients.trust(late=number % 3 == 0))
        async with asyncio.timeout(CALL_SECONDS):
            await connection.send(*fuzz.good(path).pieces)
            answer = await connection.receive()
        taken.append(time.monotonic() - start)
        assert answer is not None, "closed without an answer"
        assert answer.review()["patch"]
        if fresh:
            await connection.close()
        else:
            idle.append((time.monotonic(), connection))

    begin = time.monotonic()
    try:
        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                due = begin + number / RATE
                if due > begin + seconds:
                    break
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await room.acquire()
                group.create_task(call(number)).add_done_callback(lambda _: room.release())
    finally:
        for _, connection in itertools.chain(*kept.values()):
            await connection.close()
    return taken


async def served(replica):
    """The certificate that a new connection gets, as DER."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(HOST, replica.port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return found


async def test_no_call_fails_while_leaf_and_ca_are_rotated(cluster, client, namespace, configuration, tmp_path):
    settings = {
        "WEBHOOK_CONFIGURATION": NAME,
        "CERTIFICATE_CHECK_SECONDS": SECONDS / 60,
        "CERTIFICATE_SETTLE_SECONDS": SETTLE_SECONDS,
    }
    clients = Clients(client)
    seen = []

    async def rotate():
        """Leaf, CA, leaf; each time until both replicas serve the new one, and no old CA is left."""
        for what in ("leaf", "ca", "leaf"):
            before = {await served(replica) for replica in replicas}
            await client.patch(SECRETS, SECRET, namespace, body={"metadata": {"annotations": {ROTATE: what}}})
            while {await served(replica) for replica in replicas} & before:
                await asyncio.sleep(0.05)
            while len((await store.read(client, namespace, SECRET)).bundle.authorities) > 1:
                await asyncio.sleep(0.05)
            seen.append((what, time.monotonic() - start))
            await asyncio.sleep(SECONDS / 20)

    async with (
        running(cluster, namespace, tmp_path, **settings) as one,
        running(cluster, namespace, tmp_path, **settings) as two,
    ):
        replicas = (one, two)
        await clients.look()
        first = await store.read(client, namespace, SECRET)
        start = time.monotonic()
        following = asyncio.create_task(clients.follow())
        rotating = asyncio.create_task(rotate())
        taken = await load(replicas, clients, SECONDS)
        while not rotating.done():  # a slow machine: go on until all three were rotated
            taken += await load(replicas, clients, 1.0)
        await rotating
        following.cancel()
        last = await store.read(client, namespace, SECRET)
        assert {await served(replica) for replica in replicas} == {
            ssl.PEM_cert_to_DER_cert(last.bundle.cert_pem.decode())
        }
        for replica in replicas:
            assert '"exception"' not in replica.log
    quantiles = statistics.quantiles(taken, n=100)
    print(
        f"{len(taken)} calls in {time.monotonic() - start:.0f} s, none failed; rotated "
        f"{', '.join(f'{what} at {at:.1f} s' for what, at in seen)}; {clients.bundles} caBundles; "
        f"p50 {quantiles[49] * 1e3:.2f} ms, p99 {quantiles[98] * 1e3:.2f} ms with connections made"
    )
    assert [what for what, _ in seen] == ["leaf", "ca", "leaf"]
    assert clients.bundles == 3  # the old CA, both, the new one
    assert last.bundle.authorities != first.bundle.authorities
    assert len(last.replicas) == 2
    assert len(taken) >= RATE * SECONDS
