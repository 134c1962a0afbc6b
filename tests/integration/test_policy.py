"""The ValidatingAdmissionPolicy on the real API server, met by real accounts: a user with role edit, and ours.

The policy is applied for a domain of its own, so that it does not meet the pods of other tests.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from crds import constants
from crds.constants import Keys
from kube.client import Client
from kube.errors import ApiError, Forbidden, NotFound
from kube.patches import PatchType
from kube.resources import (
    JOBS,
    PODS,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    resource_of,
)
from manifests import render

pytestmark = pytest.mark.cluster

DOMAIN, NAMESPACE = "policy.example.com", "policy-test"
K = Keys(DOMAIN)
OPTIONS = render.Options(domain=DOMAIN, namespace=NAMESPACE)
WANTED = {
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
REQUEST = {K.required[0]: "rack"}
GATE = [{"name": K.gate}]


def renamed(obj: render.Json) -> render.Json:
    """The object under a name of this test, beside an installation by another."""
    text = (
        yaml.safe_dump(obj)
        .replace("name: topogate-", "name: policy-test-")
        .replace("policyName: topogate-", "policyName: policy-test-")
    )
    return yaml.safe_load(text.replace("policy-test:topogate-", "policy-test:policy-test-"))


@pytest.fixture
async def users(client, cluster, make_client, namespace, tmp_path) -> Callable[[str], Awaitable[Client]]:
    """Clients of accounts: ``user`` (role edit in the namespace), ``ungater``, ``webhook``."""
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await client.apply(resource_of(home), home, field_manager="test")
    objects = [renamed(obj) for obj in render.objects(OPTIONS) if obj["kind"] in WANTED]
    for obj in objects:
        await client.apply(resource_of(obj), obj, field_manager="test")
    await give_role_edit(client, namespace)
    await until_policy_holds(client, namespace)

    async def make(name: str) -> Client:
        account, home = ("user", namespace) if name == "user" else (f"policy-test-{name}", NAMESPACE)
        return await make_client(kubeconfig(cluster, tmp_path / name, await client.request_token(account, home)))

    yield make
    await client.delete(VALIDATING_ADMISSION_POLICY_BINDINGS, "policy-test-pods")
    await client.delete(VALIDATING_ADMISSION_POLICIES, "policy-test-pods")


async def give_role_edit(client: Client, namespace: str) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "user", "namespace": namespace}}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "user", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": "user", "namespace": namespace}],
    }
    await client.create(SERVICE_ACCOUNTS, account)
    await client.create(ROLE_BINDINGS, binding)


def kubeconfig(cluster, file: Path, token: str) -> Path:
    file.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "c",
                        "cluster": {
                            "server": cluster.api_url,
                            "certificate-authority-data": base64.b64encode(cluster.ca_pem).decode(),
                        },
                    }
                ],
                "users": [{"name": "u", "user": {"token": token}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return file


async def until_policy_holds(client: Client, namespace: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await client.create(PODS, pod("probe", annotations=REQUEST), namespace, dry_run=True)
            except Forbidden:
                return
            await asyncio.sleep(0.05)


def pod(name: str, *, annotations=None, gates=(), **spec) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"containers": [{"name": "c", "image": "i"}], "schedulingGates": list(gates), **spec},
    }


async def refused(call: Awaitable, *parts: str) -> None:
    with pytest.raises(ApiError) as error:
        await call
    assert error.value.status == 403
    for part in parts:
        assert part in str(error.value)


def annotate(values: dict) -> dict:
    return {"body": {"metadata": {"annotations": values}}, "content_type": PatchType.MERGE}


REMOVE_GATE = {
    "body": {"spec": {"schedulingGates": [{"$patch": "delete", "name": K.gate}]}},
    "content_type": PatchType.STRATEGIC,
}


async def test_policy_is_well_typed(users, client):
    """The controller manager checks every expression against the types of pods; a mistake would show as a warning."""
    async with asyncio.timeout(30):
        while True:
            policy = await client.get(VALIDATING_ADMISSION_POLICIES, "policy-test-pods")
            status = policy.get("status", {})
            if status.get("observedGeneration") == policy["metadata"]["generation"]:
                break
            await asyncio.sleep(0.05)
    assert status.get("typeChecking", {}).get("expressionWarnings", []) == []


async def test_a_pod_with_a_request_and_no_gate_is_refused(users, namespace):
    user = await users("user")
    for key in K.requests:
        value = "true" if key == K.unconstrained else "rack"
        await refused(user.create(PODS, pod("p", annotations={key: value}), namespace), key, K.gate, "webhook")
    bound = pod("p", annotations=REQUEST, nodeName="n1")
    await refused(user.create(PODS, bound, namespace), "spec.nodeName")


async def test_pods_of_others_and_gated_pods_pass(users, namespace):
    user = await users("user")
    for passing in (
        pod("plain"),
        pod("annotated", annotations={"a": "b"}),
        pod("other-gate", gates=[{"name": "example.com/wait"}]),
        pod("gated", annotations={**REQUEST, K.pod_set: "main"}, gates=GATE),
        pod("not-asked", annotations={K.unconstrained: "false"}),
    ):
        await user.create(PODS, passing, namespace, dry_run=True)


async def test_a_mirror_pod_passes_only_from_a_node(users, client, namespace, kubectl):
    mirror = pod("static", annotations={**REQUEST, "kubernetes.io/config.mirror": "hash"}, nodeName="n1")
    await refused(client.create(PODS, mirror, namespace), K.gate)
    node = ("--as", "system:node:n1", "--as-group", "system:nodes", "--as-group", "system:masters")
    made = kubectl("create", "-n", namespace, "--dry-run=server", "-f", "-", *node, stdin=yaml.safe_dump(mirror))
    assert "static created" in made


async def test_only_the_ungater_removes_the_gate(users, client, namespace):
    gated = pod("p", annotations=REQUEST, gates=[*GATE, {"name": "example.com/wait"}])
    await client.create(PODS, gated, namespace)
    user, ungater, webhook = await users("user"), await users("ungater"), await users("webhook")
    for other in (user, client):
        await refused(other.patch(PODS, "p", namespace, **REMOVE_GATE), K.gate, "Workload", "alone")
    await refused(webhook.patch(PODS, "p", namespace, **REMOVE_GATE))
    other_gate = {"spec": {"schedulingGates": [{"$patch": "delete", "name": "example.com/wait"}]}}
    await user.patch(PODS, "p", namespace, body=other_gate, content_type=PatchType.STRATEGIC)
    await ungater.patch(PODS, "p", namespace, **REMOVE_GATE)
    assert "schedulingGates" not in (await client.get(PODS, "p", namespace))["spec"]


async def test_only_the_ungater_writes_the_annotations(users, client, namespace):
    user, ungater = await users("user"), await users("ungater")
    forged = {
        K.workload: "job-other",
        constants.NUMA_PLACEMENT_PREDICTED: "[]",
        constants.NUMA_PLACEMENT_OBSERVED: "[]",
    }
    for key, value in forged.items():
        made = pod("p", annotations={**REQUEST, key: value}, gates=GATE)
        await refused(user.create(PODS, made, namespace), key, "Topogate alone", "remove it")
    await user.create(PODS, pod("p", annotations={**REQUEST, K.pod_set: "main"}, gates=GATE), namespace)
    for key in (*forged, K.pod_set):
        await refused(user.patch(PODS, "p", namespace, **annotate({key: "forged"})), key, "leave it as it is")
    await refused(user.patch(PODS, "p", namespace, **annotate({K.pod_set: None})), K.pod_set)
    await user.patch(PODS, "p", namespace, **annotate({"mine": "yes"}))
    await ungater.patch(
        PODS, "p", namespace, **annotate({K.workload: "job-p", constants.NUMA_PLACEMENT_PREDICTED: "[]"})
    )
    for value in ("job-other", None):
        await refused(client.patch(PODS, "p", namespace, **annotate({K.workload: value})), K.workload)


async def test_a_plain_pod_cannot_claim_a_workload_later(users, client, namespace):
    user = await users("user")
    await user.create(PODS, pod("plain"), namespace)
    await refused(user.patch(PODS, "plain", namespace, **annotate({K.workload: "job-other"})), K.workload)


async def test_gated_pods_can_be_deleted_by_their_user(users, namespace):
    user = await users("user")
    await user.create(PODS, pod("p", annotations=REQUEST, gates=GATE), namespace)
    await user.delete(PODS, "p", namespace)
    with pytest.raises(NotFound):
        await user.get(PODS, "p", namespace)


async def test_a_job_whose_pods_are_refused_says_why(users, client, namespace, kubectl):
    """Without the webhook nothing runs in a wrong place; the Job's own events tell."""
    template = {"metadata": {"annotations": REQUEST}, "spec": {"restartPolicy": "Never", **pod("x")["spec"]}}
    del template["spec"]["schedulingGates"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}}
    await client.create(JOBS, job, namespace)
    async with asyncio.timeout(30):
        while K.gate not in (events := kubectl("events", "-n", namespace, "--for", "job/j")):
            await asyncio.sleep(0.1)
    assert "FailedCreate" in events
    await client.delete(JOBS, "j", namespace, propagation="Background")


async def test_the_agent_alone_writes_what_it_observed(users, client, namespace, kubectl):
    account = f"system:serviceaccount:{render.agent_namespace(NAMESPACE)}:{render.AGENT}"
    kubectl("create", "rolebinding", "agent", "--clusterrole=edit", f"--user={account}", "-n", namespace)
    pod = {"metadata": {"name": "placed"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **pod}, namespace)
    user = await users("user")

    async def annotate(key: str) -> str:
        """What the agent's account is told."""
        line = ("annotate", "pod", "placed", f"{key}=[]", "--overwrite", "-n", namespace, "--as", account)
        try:
            return await asyncio.to_thread(kubectl, *line)
        except AssertionError as refused:
            return str(refused)

    async with asyncio.timeout(30):  # until the authorizer has seen the binding
        while "annotated" not in (said := await annotate(constants.NUMA_PLACEMENT_OBSERVED)):
            assert "written by Topogate alone" not in said
            await asyncio.sleep(0.1)
    assert "written by Topogate alone" in await annotate(constants.NUMA_PLACEMENT_PREDICTED)
    body = {"metadata": {"annotations": {constants.NUMA_PLACEMENT_OBSERVED: "[1]"}}}
    with pytest.raises(Forbidden, match="written by Topogate alone"):
        await user.patch(PODS, "placed", namespace, body=body)
