"""Health and metrics of a component, with tokens of a real API server."""

import ssl

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter
from support.accounts import allowed_soon

from clock import SYSTEM
from crds.settings import Settings
from kube.errors import Forbidden
from kube.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, SERVICE_ACCOUNTS
from manifests import render
from serving.server import serving

pytestmark = pytest.mark.cluster

RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
def registry():
    made = CollectorRegistry()
    Counter("topogate_seen", "Seen.", registry=made).inc()
    return made


@pytest.fixture
async def component(client, namespace, as_account):
    """A client with the rights of a component that authenticates, and no other."""
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "component"}}, namespace)
    await bind(client, namespace, "component", "topogate-metrics-authentication")
    return await as_account(namespace, "component")


async def bind(client, namespace, account, role):
    """Give an account one of our roles, under a name of this test."""
    options = render.InstallOptions(metrics_authentication=True)
    (found,) = [
        obj for obj in render.objects(options) if (obj["kind"], obj["metadata"]["name"]) == ("ClusterRole", role)
    ]
    name = f"{namespace}-{account}"
    await client.create(CLUSTER_ROLES, {**found, "metadata": {"name": name}})
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    body = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    await client.create(CLUSTER_ROLE_BINDINGS, body)


def settings(**more):
    return Settings(bind_address="127.0.0.1", health_port=0, metrics_port=0, **more)


async def ask(url, *, token="", trust=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=trust or False) as answer:
        return answer.status, await answer.text(), answer.headers


async def test_without_authentication_all_is_on_one_port(client, registry):
    async with serving(settings(), client, registry, ready=lambda: True, alive=lambda: False, clock=SYSTEM) as ports:
        assert ports.health == ports.metrics
        base = f"http://127.0.0.1:{ports.health}"
        assert (await ask(f"{base}/readyz"))[:2] == (200, "ok\n")
        assert (await ask(f"{base}/healthz"))[:2] == (503, "stuck\n")
        status, text, _ = await ask(f"{base}/metrics")
        assert status == 200
        assert "topogate_seen_total 1.0" in text


async def test_with_authentication_metrics_are_over_tls_for_who_may_read_them(client, component, namespace, registry):
    for account in ("prometheus", "tenant"):
        await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": account}}, namespace)
    await bind(client, namespace, "prometheus", "topogate-metrics-reader")
    tokens = {account: await client.request_token(account, namespace) for account in ("prometheus", "tenant")}
    tokens["for-another"] = await client.request_token("prometheus", namespace, audiences=("https://example.com",))
    given = settings(metrics_authentication="kubernetes")
    async with serving(given, component, registry, ready=lambda: False, alive=lambda: True, clock=SYSTEM) as ports:
        plain, secure = f"http://127.0.0.1:{ports.health}", f"https://127.0.0.1:{ports.metrics}"

        async def scraped(token):
            status, text, _ = await ask(f"{secure}/metrics", token=token)
            if status in {403, 503}:  # until the authorizer has seen both bindings
                raise Forbidden(403, "Forbidden", text)
            return status, text

        status, text = await allowed_soon(lambda: scraped(tokens["prometheus"]))
        assert status == 200
        assert "topogate_seen_total 1.0" in text
        status, text, _ = await ask(f"{secure}/metrics", token=tokens["tenant"])
        assert status == 403
        assert f"system:serviceaccount:{namespace}:tenant may not get" in text
        assert "ClusterRole topogate-metrics-reader" in text
        for token in ("", "made-up", tokens["for-another"]):
            status, text, headers = await ask(f"{secure}/metrics", token=token)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
        assert (await ask(f"{plain}/healthz"))[:2] == (200, "ok\n")
        assert (await ask(f"{plain}/readyz"))[:2] == (503, "not ready\n")
        assert (await ask(f"{plain}/metrics", token=tokens["prometheus"]))[0] == 404
        with pytest.raises(aiohttp.ClientError):  # a token does not travel in the clear
            await ask(f"http://127.0.0.1:{ports.metrics}/metrics", token=tokens["prometheus"])
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        assert (await ask(f"{secure}/metrics", token=tokens["prometheus"], trust=old))[0] == 200
