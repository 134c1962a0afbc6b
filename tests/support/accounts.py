"""Policies and roles on the real API server, met by real accounts: a tenant with role edit, and tokens of ours.

They are applied for a domain and under names of their own, so that they do not meet the objects of other tests.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from crds.constants import DEFAULT_DOMAIN, Keys
from crds.settings import Settings
from kube.client import Client
from kube.connection.config import Static
from kube.errors import ApiError, Forbidden, Invalid, NotFound
from kube.patches import PatchType
from kube.resources import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    PODS,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    resource_of,
)
from localcluster import LocalCluster
from manifests import render

DOMAIN, NAMESPACE = "policy.example.com", "policy-test"
KEYS = Keys(DOMAIN)
OPTIONS = render.InstallOptions(domain=DOMAIN, namespace=NAMESPACE, agent=True)
WANTED = frozenset(
    {
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "ClusterRole",
        "ClusterRoleBinding",
        "Secret",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
)
REQUEST = {KEYS.required[0]: "rack"}
GATE = [{"name": KEYS.gate}]
MARKED = {**REQUEST, KEYS.workload: "job-x", KEYS.pod_set: "main"}
CONTAINER = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
WAIT_SECONDS = 90
Json = dict[str, Any]
PROBED = "policy-probe"
PROBE: tuple[Json, ...] = (
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": PROBED},
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
                ]
            },
            "validations": [{"expression": f"object.metadata.name != '{PROBED}'"}],
        },
    },
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": PROBED},
        "spec": {"policyName": PROBED, "validationActions": ["Deny"]},
    },
)
Users = Callable[..., Awaitable[Client]]


def renamed(obj: Json, prefix: str = NAMESPACE) -> Json:
    """The object under a name of the test, beside an installation by another."""
    text = yaml.safe_dump(obj).replace("name: topogate-", f"name: {prefix}-").replace("- topogate-", f"- {prefix}-")
    text = text.replace("policyName: topogate-", f"policyName: {prefix}-")
    return yaml.safe_load(
        text.replace(f"{prefix}:topogate-", f"{prefix}:{prefix}-").replace(
            f"{prefix}-agent:topogate-", f"{prefix}-agent:{prefix}-"
        )
    )


@contextmanager
def in_force(cluster: LocalCluster) -> Iterator[None]:
    """Our accounts, roles and policies are there, and hold, while the block runs: for all tests of a module."""
    asyncio.run(_with_admin(cluster, _begin))
    yield
    asyncio.run(_with_admin(cluster, _end))


async def _with_admin(cluster: LocalCluster, do: Callable[[Client], Awaitable[None]]) -> None:
    async with await Client.connect(str(cluster.kubeconfig)) as admin:
        await do(admin)


def _objects() -> list[Json]:
    return [*(renamed(obj) for obj in render.objects(OPTIONS) if obj["kind"] in WANTED), *PROBE]


async def _begin(client: Client) -> None:
    for name in (NAMESPACE, render.agent_namespace(NAMESPACE)):
        home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await client.apply(resource_of(home), home, field_manager="test")
    for obj in _objects():
        await client.apply(resource_of(obj), obj, field_manager="test")
    async with asyncio.timeout(WAIT_SECONDS):
        while not await _holds(client, "default"):
            await asyncio.sleep(0.05)


async def _end(client: Client) -> None:
    for resource in (VALIDATING_ADMISSION_POLICY_BINDINGS, VALIDATING_ADMISSION_POLICIES):
        for obj in _objects():
            if obj["kind"] == resource.kind:
                await client.delete(resource, obj["metadata"]["name"])
    async with asyncio.timeout(WAIT_SECONDS):
        while await _holds(client, "default"):
            await asyncio.sleep(0.05)


async def accounts(client: Client, namespace: str, as_account) -> Users:
    """Clients of accounts, where the policies are `in_force`.

    They are ``user`` (role edit in the namespace), ``ungater``, ``webhook`` and ``agent``.
    """
    await give_role_edit(client, namespace)

    async def make(name: str, account: str = "user") -> Client:
        if name == "user":
            return await as_account(namespace, account)
        home = render.agent_namespace(NAMESPACE) if name == "agent" else NAMESPACE
        return await as_account(home, f"{NAMESPACE}-{name}")

    return make


async def _holds(client: Client, namespace: str) -> bool:
    """Whether the policy that was made last is in force, and so all others are; after its end: whether any still is."""
    with suppress(Forbidden, Invalid):
        await client.create(CONFIG_MAPS, {"metadata": {"name": PROBED}}, namespace, dry_run=True)
        return False
    return True


async def give_role_edit(client: Client, namespace: str, account: str = "user") -> None:
    """A service account with the stock role edit in its namespace."""
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": account, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    await client.create(SERVICE_ACCOUNTS, body)
    await client.create(ROLE_BINDINGS, binding)


def pod(name: str, *, annotations=None, labels=None, gates=(), owners=(), finalizers=(), **spec) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "annotations": annotations or {},
            "labels": labels or {},
            "ownerReferences": list(owners),
            "finalizers": list(finalizers),
        },
        "spec": {"containers": [CONTAINER], "schedulingGates": list(gates), **spec},
    }


async def refused(call: Awaitable, *parts: str) -> None:
    """The call is forbidden, and what is said has these parts."""
    with pytest.raises(ApiError) as error:
        await call
    assert error.value.status == 403, error.value
    for part in parts:
        assert part in str(error.value), str(error.value)


async def allowed_soon(call):
    """The call, once the API server has seen what allows it."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                return await call()
            except Forbidden:
                await asyncio.sleep(0.05)


async def refused_soon(call):
    """The call is forbidden, once the API server has seen what forbids it."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                await call()
            except Forbidden:
                return
            await asyncio.sleep(0.05)


def metadata(**fields) -> Json:
    """Arguments of a patch of metadata."""
    return {"body": {"metadata": fields}, "content_type": PatchType.MERGE}


def annotate(values: Json) -> Json:
    return metadata(annotations=values)


def label(values: Json) -> Json:
    return metadata(labels=values)


REMOVE_GATE = {
    "body": {"spec": {"schedulingGates": [{"$patch": "delete", "name": KEYS.gate}]}},
    "content_type": PatchType.STRATEGIC,
}


# --- the controller's own account ------------------------------------------------------------------------------------

HOME = "as-ungater"  # beside an installation that a test makes
_made: set[tuple[str, str]] = set()  # what stands beside which namespace HOME already, by its uid


async def as_ungater(client: Client, settings: Settings) -> Client | None:
    """A client with the ungater's rights, under its policies; None where the tests' own has to do.

    That is through a proxy, and for other domains and for leases, which live elsewhere.
    """
    connection = client.connection
    if connection.tls is None or settings.domain != DEFAULT_DOMAIN or settings.leader_election:
        return None
    read = {"device_annotations", "nominate_gated_pods", "beside_kueue"}  # by what is installed
    config = yaml.safe_dump(settings.model_dump(mode="json", by_alias=True, include=read))
    if (await _home(client), config) not in _made:
        _made.add((await _make_ungater(client, config), config))
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.load_verify_locations(cadata=b"".join(connection.tls.get_ca_certs(binary_form=True)))
    token = await client.request_token(f"{HOME}-ungater", HOME, 24 * 3600)
    made = Client(replace(connection, tls=trusted, credentials=Static(f"Bearer {token}")))
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with suppress(Forbidden):  # until the authorizer has seen its role
                await made.list(PODS, "default", limit=1)
                return made
            await asyncio.sleep(0.05)


async def _home(client: Client) -> str:
    """The uid of namespace HOME, "" where there is none: a later cluster may listen where an earlier one did."""
    with suppress(NotFound):
        return str((await client.get(NAMESPACES, HOME))["metadata"]["uid"])
    return ""


async def _make_ungater(client: Client, config: str) -> str:
    """The uid of the namespace that all of it is in."""
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}}
    made = await client.apply(resource_of(home), home, field_manager="test")
    kueue = bool(yaml.safe_load(config).get("besideKueue"))  # with the right to read Kueue's Workloads
    for obj in render.objects(render.InstallOptions(namespace=HOME, config=config, kueue=kueue)):
        if obj["kind"] in WANTED and obj["metadata"]["name"].startswith("topogate-ungater"):
            await client.apply(resource_of(obj), renamed(obj, HOME), field_manager="test")
    return str(made["metadata"]["uid"])


async def token_on(client: Client, namespace: str, account: str, node: str) -> str:
    """A token of a service account that names a node, as one that is mounted into a pod there does."""
    uid = (await client.get(NODES, node))["metadata"]["uid"]
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"boundObjectRef": {"kind": "Node", "apiVersion": "v1", "name": node, "uid": uid}},
    }
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    answer = json.loads(await client.raw("POST", path, body=json.dumps(request).encode()))
    return str(answer["status"]["token"])
