"""The webhook in front of a real API server, under its own service account, called as the manifests say."""

import asyncio
import base64
import ssl
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
import yaml
from msgspec.structs import replace
from support.ports import free_port
from support.reviews import BLOCK, HOST, POD_SET, PREFER, QUEUE, RACK, make_job

from certs.authority import Bundle
from certs.options import CertificateOptions as CertOptions
from crds.settings import Settings
from kube.client import Client
from kube.connection.config import Connection, Static
from kube.errors import ApiError, NotFound, ServerError
from kube.patches import PatchType
from kube.resources import (
    CLUSTER_QUEUES,
    JOBS,
    LOCAL_QUEUES,
    MUTATING_WEBHOOKS,
    RESOURCE_FLAVORS,
    SECRETS,
    resource_of,
)
from manifests.render import InstallOptions, objects
from webhook.server import serve

WAIT_SECONDS = 90
SYSTEM = "topogate-system"
SECRET = "topogate-webhook-cert"
_KINDS = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role")
INSTALLED = {*_KINDS, "RoleBinding", "Secret", "MutatingWebhookConfiguration"}


def flavor(name, *levels):
    return {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "ResourceFlavor",
        "metadata": {"name": name},
        "spec": {"nodeLabels": {"pool": name}, "topology": {"levels": list(levels)}},
    }


async def until(condition, what):
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while not await condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"waited {WAIT_SECONDS} s in vain for {what}")


async def delete(client, *address):
    with suppress(NotFound):
        await client.delete(*address)


class Webhook:
    """One installation, and the server that belongs to it."""

    def __init__(self, cluster, client, port):
        self.cluster = cluster
        self.client = client
        self.port = port
        self._stop = self._task = None

    async def start(self, **changes):
        """``changes``: settings that are not the default."""
        bound = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        settings = Settings(
            bind_address="127.0.0.1",
            webhook_port=self.port,
            metrics_port=0,
            health_port=0,
            webhook_url=f"https://127.0.0.1:{self.port}",
            webhook_drain_seconds=0.01,
            **changes,
        )

        async def run():
            token = await self.client.request_token("topogate-webhook", SYSTEM, 3600)
            trust = ssl.create_default_context(cadata=self.cluster.ca_pem.decode())
            connection = Connection(self.cluster.api_url, trust, Static(f"Bearer {token}"))
            async with Client(connection) as own:
                options = replace(CertOptions.from_settings(settings), check_seconds=0.1, settle_seconds=2.0)
                await serve(settings, own, stop=self._stop, on_bound=bound.set_result, options=options)

        self._task = asyncio.create_task(run())
        await asyncio.wait({bound, self._task}, return_when=asyncio.FIRST_COMPLETED)
        self.server = bound.result()

        async def ready():
            return not self.server.missing_parts()

        await until(ready, "the webhook to be ready")

    async def stop(self):
        self._stop.set()
        await self._task

    def calls(self, path):
        """How often the API server has asked."""
        return sum(self.server.metrics.paths[path].verdicts.values())

    async def stored(self):
        """The certificates in the Secret."""
        data = (await self.client.get(SECRETS, SECRET, SYSTEM))["data"]
        return Bundle(*(base64.b64decode(data[name]) for name in ("ca.crt", "tls.crt", "tls.key", "ca.key")))

    async def store(self, bundle):
        """Put certificates into the Secret, as if an earlier webhook had made them."""
        parts = {
            "ca.crt": bundle.ca_pem,
            "tls.crt": bundle.cert_pem,
            "tls.key": bundle.key_pem,
            "ca.key": bundle.ca_key_pem,
        }
        data = {name: base64.b64encode(part).decode() for name, part in parts.items()}
        await self.client.patch(SECRETS, SECRET, SYSTEM, body={"data": data}, content_type=PatchType.MERGE)

    async def until_called(self, namespace):
        """API servers learn of a new configuration, and of a new caBundle, from a watch."""

        async def stamped():
            try:
                job = await self.client.create(
                    JOBS, make_job({PREFER: "auto"}, labels={QUEUE: "any"}), namespace, dry_run=True
                )
            except ServerError:
                return False
            return POD_SET in job["spec"]["template"]["metadata"].get("annotations", {})

        await until(stamped, "the API server to call the webhook")


@asynccontextmanager
async def installed(client, url):
    made = [obj for obj in objects(InstallOptions(webhook_url=url)) if obj["kind"] in INSTALLED]
    for obj in made:
        await client.apply(resource_of(obj), obj, obj["metadata"].get("namespace"), field_manager="test")
    await until(lambda: _served(client), "the API server to serve ResourceFlavors")
    try:
        yield
    finally:
        await delete(client, MUTATING_WEBHOOKS, "topogate-webhook")
        await delete(client, SECRETS, SECRET, SYSTEM)


async def _served(client):
    with suppress(NotFound):
        await client.list(RESOURCE_FLAVORS)
        return True
    return False


@asynccontextmanager
async def serving(cluster, client, namespace, **changes):
    """A webhook that is called, and a flavor of block, rack and host. ``changes``: settings other than the defaults."""
    port = free_port()
    running = Webhook(cluster, client, port)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(installed(client, f"https://127.0.0.1:{port}"))
        await client.create(RESOURCE_FLAVORS, flavor("tas", BLOCK, RACK, HOST))
        stack.push_async_callback(delete, client, RESOURCE_FLAVORS, "tas")
        await running.start(**changes)
        stack.push_async_callback(running.stop)
        await running.until_called(namespace)
        yield running


async def refused(call):
    with pytest.raises(ApiError) as caught:
        await call
    return caught.value


@asynccontextmanager
async def queued(client, namespace):
    """LocalQueue team-a of the test's namespace, before ClusterQueue gpu of flavor tas."""
    quota = {"name": "cpu", "nominalQuota": 8}
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "tas", "resources": [quota]}]}]
    body = {"metadata": {"name": "gpu"}, "spec": {"resourceGroups": groups, "namespaceSelector": {}}}
    version = {"apiVersion": "topogate.dev/v1alpha1"}
    await client.create(CLUSTER_QUEUES, {**version, "kind": "ClusterQueue", **body})
    body = {"metadata": {"name": "team-a"}, "spec": {"clusterQueue": "gpu"}}
    await client.create(LOCAL_QUEUES, {**version, "kind": "LocalQueue", **body}, namespace)
    yield "team-a"
    await delete(client, LOCAL_QUEUES, "team-a", namespace)
    await delete(client, CLUSTER_QUEUES, "gpu")


async def kubectl(cluster, *arguments, obj):
    """Exit status and standard error of a kubectl that is given an object."""
    process = await asyncio.create_subprocess_exec(
        cluster.kubectl,
        "--kubeconfig",
        cluster.kubeconfig,
        *arguments,
        "-f",
        "-",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, stderr = await process.communicate(yaml.safe_dump(obj).encode())
    return process.returncode, stderr.decode()
