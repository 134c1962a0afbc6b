"""Certificates in a real Secret, caBundle in a real configuration: replicas, repair, rotation."""

import asyncio
import base64
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from certs.authority import Lifetimes
from certs.manager import CertificateManager, CertificatesMissingError, Options, ensure, publish_ca
from kube.errors import NotFound
from kube.patches import PatchType
from kube.resources import MUTATING_WEBHOOKS, SECRETS

pytestmark = pytest.mark.cluster

NAME = "topogate-certs-test"
LIVES = Lifetimes(ca=timedelta(days=3650), leaf=timedelta(days=3650), renew_before=timedelta(days=1))


def options_in(namespace, **changes):
    values = {"hosts": ("127.0.0.1",), "mutating": (NAME,), "validating": (NAME,), "lifetimes": LIVES, **changes}
    return Options(namespace=namespace, secret="certs", check_seconds=0.02, settle_seconds=60.0, **values)


@pytest.fixture
async def configuration(client):
    """A configuration of two webhooks that nothing ever calls."""
    hooks = [
        {
            "name": f"{name}.topogate.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [
                {
                    "apiGroups": ["none.topogate.dev"],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["x"],
                }
            ],
        }
        for name in ("one", "two")
    ]
    obj = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": hooks,
    }
    await client.create(MUTATING_WEBHOOKS, obj)
    yield obj
    with suppress(NotFound):
        await client.delete(MUTATING_WEBHOOKS, NAME)


async def bundles(client):
    found = await client.get(MUTATING_WEBHOOKS, NAME)
    return [base64.b64decode(hook["clientConfig"].get("caBundle") or "") for hook in found["webhooks"]]


def empty_secret():
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "certs"}, "type": "Opaque"}


@pytest.mark.parametrize("place", ["absent", "empty"])
async def test_replicas_that_start_at_once_end_with_one_ca(client, namespace, place):
    if place == "empty":
        await client.create(SECRETS, empty_secret(), namespace)
    options = options_in(namespace)
    found = await asyncio.gather(*(ensure(client, options) for _ in range(5)))
    assert len({bundle.ca_pem for bundle in found}) == 1
    assert len({bundle.cert_pem for bundle in found}) == 1
    assert await ensure(client, options) == found[0]


async def test_replicas_with_other_names_end_with_a_certificate_for_all(client, namespace):
    options = [options_in(namespace, hosts=(f"10.0.0.{n}",)) for n in range(3)]
    await asyncio.gather(*(ensure(client, option) for option in options))
    final = await asyncio.gather(*(ensure(client, option) for option in options))
    assert len({bundle.cert_pem for bundle in final}) == 1
    assert final[0].hosts == {"10.0.0.0", "10.0.0.1", "10.0.0.2"}


async def test_the_ca_is_published_once_and_repaired_when_it_is_lost(client, namespace, configuration):
    served = []
    manager = CertificateManager(client, options_in(namespace), served.append)
    await manager.refresh()
    assert manager.published
    assert await bundles(client) == [manager.bundle.ca_pem] * 2
    version = (await client.get(MUTATING_WEBHOOKS, NAME))["metadata"]["resourceVersion"]
    await manager.refresh()
    assert (await client.get(MUTATING_WEBHOOKS, NAME))["metadata"]["resourceVersion"] == version
    assert len(served) == 1

    body = {"webhooks": [{"name": "two.topogate.dev", "clientConfig": {"caBundle": None}}]}
    await client.patch(MUTATING_WEBHOOKS, NAME, body=body, content_type=PatchType.STRATEGIC)
    assert (await bundles(client))[1] == b""
    await manager.refresh()
    assert await bundles(client) == [manager.bundle.ca_pem] * 2


async def test_a_configuration_that_is_not_there_is_passed_over(client, namespace):
    bundle = await ensure(client, options_in(namespace))
    assert await publish_ca(client, bundle.ca_pem, options_in(namespace)) == 0


async def test_a_deleted_secret_comes_back_as_it_was(client, namespace, configuration):
    manager = CertificateManager(client, options_in(namespace), lambda _: None)
    await manager.refresh()
    before = manager.bundle
    await client.delete(SECRETS, "certs", namespace)
    await manager.refresh()
    assert manager.bundle == before
    assert await ensure(client, options_in(namespace)) == before


async def test_a_ca_is_rotated_without_a_gap(client, namespace, configuration):
    """Two replicas; whatever one serves, the API server was told of its CA before."""
    clock = {"now": datetime.now(UTC) - timedelta(days=2500), "mono": 0.0}
    trusted_when_served = []

    def make(name):
        def on_change(bundle):
            signed = [ca for ca in bundle.authorities if ca.subject == bundle.leaf.issuer]
            trusted_when_served.append((name, len(bundle.authorities), bool(signed)))

        return CertificateManager(
            client,
            options_in(namespace),
            on_change,
            clock=lambda: clock["now"],
            monotonic=lambda: clock["mono"],
        )

    replicas = [make("a"), make("b")]
    for replica in replicas:
        await replica.refresh()
    old = replicas[0].bundle
    clock["now"] = datetime.now(UTC)  # past two thirds of the CA's life

    for replica in replicas:
        await replica.refresh()
    assert [replica.bundle.cert_pem for replica in replicas] == [old.cert_pem] * 2
    both = replicas[0].bundle.ca_pem
    assert both.endswith(old.ca_pem)
    assert both != old.ca_pem
    assert await bundles(client) == [both] * 2

    clock["mono"] = 59.0
    await replicas[0].refresh()
    assert replicas[0].bundle.cert_pem == old.cert_pem
    clock["mono"] = 61.0
    for replica in (*replicas, *replicas):
        await replica.refresh()
    assert len({replica.bundle.cert_pem for replica in replicas}) == 1
    assert replicas[0].bundle.cert_pem != old.cert_pem
    assert await bundles(client) == [both] * 2
    assert trusted_when_served == [("a", 1, True), ("b", 1, True), ("a", 2, True), ("b", 2, True)]


async def test_cert_managers_secret_is_served_and_never_written(client, namespace, configuration):
    ours = await ensure(client, options_in(namespace))
    foreign = options_in(namespace, sign=False)
    await client.delete(SECRETS, "certs", namespace)
    with pytest.raises(CertificatesMissingError, match=r"certs: expected tls\.crt"):
        await ensure(client, foreign)
    data = {"tls.crt": ours.cert_pem, "tls.key": ours.key_pem, "ca.crt": ours.ca_pem}
    secret = {**empty_secret(), "data": {name: base64.b64encode(part).decode() for name, part in data.items()}}
    made = await client.create(SECRETS, secret, namespace)
    manager = CertificateManager(client, foreign, lambda _: None)
    await manager.refresh()
    assert manager.bundle.cert_pem == ours.cert_pem
    assert await bundles(client) == [b"", b""]
    after = await client.get(SECRETS, "certs", namespace)
    assert after["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_garbage_in_the_secret_is_replaced_and_errors_do_not_end_the_rounds(client, namespace, configuration):
    garbage = {
        **empty_secret(),
        "data": {name: base64.b64encode(b"x").decode() for name in ("tls.crt", "tls.key", "ca.key")},
    }
    await client.create(SECRETS, garbage, namespace)
    calls = []

    def on_change(bundle):
        calls.append(bundle)
        if len(calls) == 1:
            raise RuntimeError("not this time")

    manager = CertificateManager(client, options_in(namespace), on_change)
    running = asyncio.create_task(manager.run())
    try:
        async with asyncio.timeout(30):
            while not manager.bundle:
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
    assert len(calls) == 2
    assert await bundles(client) == [manager.bundle.ca_pem] * 2
