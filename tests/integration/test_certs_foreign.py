"""cert-manager instead: its kinds, our manifests, and a stand-in for its controller and its ca-injector.

What the stand-in does follows cert-manager's API: a Certificate's Secret of type kubernetes.io/tls has tls.crt, tls.key
and, of a CA issuer, ca.crt, and is annotated with the Certificate's name; a renewed one has a new key unless its
``rotationPolicy`` is Never; the ca-injector copies ca.crt into every webhook of a configuration that is annotated
``cert-manager.io/inject-ca-from``, if the Secret is that Certificate's.
"""

import asyncio
import base64
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from support import fuzz
from support.webhook_process import HOST, Connection, apply_kinds, started

from kube.errors import NotFound
from kube.patches import PatchType
from kube.resources import CUSTOM_RESOURCE_DEFINITIONS, MUTATING_WEBHOOKS, RESOURCE_FLAVORS, SECRETS, Resource

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
CERTIFICATES = Resource("cert-manager.io", "v1", "certificates", "Certificate")
ISSUERS = Resource("cert-manager.io", "v1", "issuers", "Issuer")
NAME = "topogate-foreign-test"
INJECT = "cert-manager.io/inject-ca-from"


def manifests(namespace):
    """The objects of our manifests, in a namespace of the test."""
    text = (ROOT / "manifests/cert-manager/certificate.yaml").read_text(encoding="utf-8")
    return list(yaml.safe_load_all(text.replace("topogate-system", namespace)))


class CertManager:
    """Issues what Certificates ask for, and injects."""

    def __init__(self, client, namespace):
        self._client, self._namespace = client, namespace
        self._keys = {}

    async def issue(self, name, *, lose_key=False):
        """Make or renew the Secret of a Certificate."""
        certificate = await self._client.get(CERTIFICATES, name, self._namespace)
        spec = certificate["spec"]
        assert spec["privateKey"]["algorithm"] == "ECDSA"
        keeps = spec["privateKey"].get("rotationPolicy", "Always") == "Never" and not lose_key
        key = self._keys.get(name) if keeps else None
        key = self._keys[name] = key or ec.generate_private_key(ec.SECP256R1())
        issuer = await self._client.get(ISSUERS, spec["issuerRef"]["name"], self._namespace)
        signer, signer_key = None, key
        if "ca" in issuer["spec"]:
            secret = await self._client.get(SECRETS, issuer["spec"]["ca"]["secretName"], self._namespace)
            signer = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
            signer_key = self._keys["topogate-ca"]
        made = self._signed(spec, key, signer, signer_key)
        data = {
            "tls.crt": made.public_bytes(Encoding.PEM),
            "tls.key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            "ca.crt": (signer or made).public_bytes(Encoding.PEM),
        }
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {
                "name": spec["secretName"],
                "namespace": self._namespace,
                "annotations": {"cert-manager.io/certificate-name": name},
            },
            "data": {part: base64.b64encode(pem).decode() for part, pem in data.items()},
        }
        await self._client.apply(SECRETS, secret, self._namespace, field_manager="cert-manager-certificates-issuing")
        return made

    def _signed(self, spec, key, signer, signer_key):
        now = datetime.now(UTC)
        subject = x509.Name(
            [x509.NameAttribute(x509.NameOID.COMMON_NAME, spec["commonName"])] if "commonName" in spec else []
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(signer.subject if signer else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(seconds=1))
            .not_valid_after(now + timedelta(hours=int(spec["duration"].removesuffix("h"))))
            .add_extension(x509.BasicConstraints(ca=spec.get("isCA", False), path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False)
        )
        if spec.get("isCA"):
            builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        names = [x509.DNSName(name) for name in spec.get("dnsNames", ())]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
        return builder.sign(signer_key, hashes.SHA256())

    async def inject(self):
        """What the ca-injector does at a change."""
        configuration = await self._client.get(MUTATING_WEBHOOKS, NAME)
        namespace, name = configuration["metadata"]["annotations"][INJECT].split("/")
        certificate = await self._client.get(CERTIFICATES, name, namespace)
        secret = await self._client.get(SECRETS, certificate["spec"]["secretName"], namespace)
        assert secret["metadata"]["annotations"]["cert-manager.io/certificate-name"] == name
        hooks = [
            {"name": hook["name"], "clientConfig": {"caBundle": secret["data"]["ca.crt"]}}
            for hook in configuration["webhooks"]
        ]
        await self._client.patch(
            MUTATING_WEBHOOKS,
            NAME,
            body={"webhooks": hooks},
            content_type=PatchType.STRATEGIC,
            field_manager="cert-manager-cainjector",
        )


@pytest.fixture
async def cert_manager(client, namespace):
    """The stand-in, the kinds and our objects; a configuration that applies to nothing."""
    await apply_kinds(client)
    kinds = list(yaml.safe_load_all((ROOT / "tests/data/others/cert-manager.yaml").read_text(encoding="utf-8")))
    for kind in kinds:
        await client.apply(CUSTOM_RESOURCE_DEFINITIONS, kind, field_manager="test")
    async with asyncio.timeout(30):
        for obj in manifests(namespace):
            if obj["metadata"]["name"] == "topogate-webhook":
                obj["spec"]["dnsNames"].append("localhost")  # by which this test reaches it
            while True:
                try:
                    await client.create(ISSUERS if obj["kind"] == "Issuer" else CERTIFICATES, obj, namespace)
                except NotFound:
                    await asyncio.sleep(0.05)
                else:
                    break
    rules = [{"apiGroups": ["none.topogate.dev"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}]
    hooks = [
        {
            "name": f"{name}.topogate.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": rules,
        }
        for name in ("one", "two")
    ]
    made = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    metadata = {"name": NAME, "annotations": {INJECT: f"{namespace}/topogate-webhook"}}
    await client.create(MUTATING_WEBHOOKS, {**made, "metadata": metadata, "webhooks": hooks}, field_manager="test")
    flavor = {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "ResourceFlavor",
        "metadata": {"name": NAME},
        "spec": {"nodeLabels": {"a": "b"}, "topology": {"levels": [fuzz.BLOCK, fuzz.RACK, fuzz.HOST]}},
    }
    await client.create(RESOURCE_FLAVORS, flavor)
    yield CertManager(client, namespace)
    for resource in (MUTATING_WEBHOOKS, RESOURCE_FLAVORS):
        with suppress(NotFound):
            await client.delete(resource, NAME)


async def trusted(client):
    """What an API server trusts now."""
    found = await client.get(MUTATING_WEBHOOKS, NAME)
    bundle = base64.b64decode(found["webhooks"][0]["clientConfig"]["caBundle"])
    context = ssl.create_default_context(cadata=bundle.decode())
    context.check_hostname = False
    return context


async def certificate(webhook, trust):
    """What a new connection gets; raises ssl.SSLError where it is not trusted."""
    _, writer = await asyncio.open_connection(HOST, webhook.port, ssl=trust)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return found


async def until_served(webhook, trust, made):
    async with asyncio.timeout(60):
        while True:
            with suppress(ssl.SSLError):
                if await certificate(webhook, trust) == made.public_bytes(Encoding.DER):
                    return
            await asyncio.sleep(0.02)


async def test_certificates_of_cert_manager_are_followed_and_never_written(
    cluster, client, namespace, cert_manager, tmp_path
):
    settings = {
        "CERTIFICATE_SOURCE": "cert-manager",
        "WEBHOOK_CONFIGURATION": NAME,
        "CERTIFICATE_CHECK_SECONDS": 0.1,
    }

    async def until_logged(text):
        async with asyncio.timeout(60):
            while text not in webhook.log:
                await asyncio.sleep(0.05)

    async with started(cluster, namespace, tmp_path, **settings) as webhook:
        # Neither a Secret nor a caBundle yet, then no caBundle: it says what is missing, and is not ready.
        await until_logged("is there a Certificate with secretName topogate-webhook-cert")
        await cert_manager.issue("topogate-ca")
        await cert_manager.issue("topogate-webhook")
        await until_logged(f"has {INJECT}: {namespace}/topogate-webhook; is the cainjector of cert-manager running?")
        assert await webhook.readiness() == 503
        await cert_manager.inject()
        await webhook.until_ready()

        # A connection that is kept through all that follows.
        kept = Connection(webhook.port, await trusted(client))
        kept.trust.check_hostname = False

        async def call():
            await kept.send(*fuzz.good("/mutate-job").pieces)
            assert (await kept.receive()).review()["patch"]

        await call()
        # A renewed leaf, with a new key.
        made = await cert_manager.issue("topogate-webhook")
        await until_served(webhook, await trusted(client), made)
        await call()

        # A renewed authority keeps its key: whoever of both comes first, each verifies with the other.
        before = await trusted(client)
        await cert_manager.issue("topogate-ca")
        made = await cert_manager.issue("topogate-webhook")
        await until_served(webhook, before, made)
        await cert_manager.inject()
        assert await certificate(webhook, await trusted(client)) == made.public_bytes(Encoding.DER)
        assert await certificate(webhook, before)
        await call()

        # An authority with another key: the old certificate is served until API servers trust the new one.
        await cert_manager.issue("topogate-ca", lose_key=True)
        new = await cert_manager.issue("topogate-webhook")
        await asyncio.sleep(0.5)
        assert await certificate(webhook, await trusted(client)) == made.public_bytes(Encoding.DER)
        await cert_manager.inject()
        now = await trusted(client)
        await until_served(webhook, now, new)
        await call()
        await kept.close()

        # A Secret that cannot be served changes nothing.
        broken = {"data": {"tls.key": base64.b64encode(b"x").decode()}}
        await client.patch(SECRETS, "topogate-webhook-cert", namespace, body=broken, field_manager="test")
        await until_logged("cert-manager has to renew it")
        assert await certificate(webhook, now) == new.public_bytes(Encoding.DER)

    secret = await client.get(SECRETS, "topogate-webhook-cert", namespace)
    configuration = await client.get(MUTATING_WEBHOOKS, NAME)
    writers = {entry["manager"] for obj in (secret, configuration) for entry in obj["metadata"]["managedFields"]}
    assert "topogate" not in writers
    assert set(secret["metadata"]["annotations"]) == {"cert-manager.io/certificate-name"}
