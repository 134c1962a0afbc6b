"""The sample that keeps plain pods off nodes that Topogate fills, on a real API server: a tenant tries to get there."""

from pathlib import Path

import pytest
import yaml
from support.accounts import WAIT_SECONDS, allowed_soon, give_role_edit, pod, refused
from support.jobs import GPU, KEYS, Running, Watched, install_crds, job, make_flavor, until

from kube.errors import Forbidden
from kube.patches import PatchType
from kube.resources import DAEMON_SETS, NAMESPACES, NODES, PODS, RESOURCE_FLAVORS, resource_of
from localcluster.nodes import HOSTNAME_LABEL

pytestmark = pytest.mark.cluster

SAMPLE = Path(__file__).parents[2] / "manifests" / "hardening" / "plain-pods.yaml"
TAINT = {"key": "topogate.dev/placed", "effect": "NoSchedule"}
TOLERATION = {"key": TAINT["key"], "operator": "Exists", "effect": "NoSchedule"}
GATE = [{"name": KEYS.gate}]
TOLERATES = (
    TOLERATION,
    {"key": TAINT["key"], "operator": "Exists"},
    {"key": TAINT["key"], "operator": "Equal", "value": ""},
    {"operator": "Exists"},
    {"operator": "Exists", "effect": "NoSchedule"},
)


@pytest.fixture
async def policy(client, namespace):
    """The sample, for this test's namespace alone."""
    objects = list(yaml.safe_load_all(SAMPLE.read_text()))
    selector = objects[0]["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    only = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace, "kube-system"]}
    selector.append(only)
    for obj in objects:
        await client.apply(resource_of(obj), obj, field_manager="test")

    async def held():
        try:
            await client.create(PODS, pod("probe", tolerations=[TOLERATION]), namespace, dry_run=True)
        except Forbidden:
            return True
        return False

    await until(held, "the policy to hold", seconds=WAIT_SECONDS)
    yield
    for obj in reversed(objects):
        await client.delete(resource_of(obj), obj["metadata"]["name"])
    await until(lambda: _not(held), "the policy to be gone", seconds=WAIT_SECONDS)


async def _not(condition):
    return not await condition()


@pytest.fixture
async def user(client, namespace, policy, as_account):
    await give_role_edit(client, namespace)
    made = await as_account(namespace, "user")
    await allowed_soon(lambda: made.create(PODS, pod("first"), namespace, dry_run=True))
    return made


async def test_a_tenants_plain_pod_does_not_get_there(user, client, namespace):
    for toleration in TOLERATES:
        made = pod("p", tolerations=[{"key": "other", "operator": "Exists"}, toleration])
        await refused(user.create(PODS, made, namespace), "spec.tolerations", "topology request")
    await refused(user.create(PODS, pod("p", nodeName="n1"), namespace), "spec.nodeName")
    gated = pod("p", gates=[{"name": "example.com/other"}], tolerations=[TOLERATION])
    await refused(user.create(PODS, gated, namespace), "spec.tolerations")
    forged = pod("p", annotations={KEYS.workload: "job-x"}, tolerations=[TOLERATION])
    await refused(user.create(PODS, forged, namespace), "spec.tolerations")


async def test_nor_by_a_toleration_that_is_added_later(user, client, namespace):
    await user.create(PODS, pod("p"), namespace)
    body = [{"op": "add", "path": "/spec/tolerations/-", "value": TOLERATION}]
    await refused(user.patch(PODS, "p", namespace, body=body, content_type=PatchType.JSON), "spec.tolerations")
    await user.patch(PODS, "p", namespace, body={"metadata": {"labels": {"a": "b"}}})


async def test_nor_by_a_controller_that_makes_it(user, client, namespace, nodes, kubectl):
    await nodes(blocks=1, racks=1, hosts=1, prefix=f"{namespace}-", group=namespace)
    template = {
        "metadata": {"labels": {"app": "d"}},
        "spec": {**pod("x")["spec"], "tolerations": [{"operator": "Exists"}]},
    }
    body = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"app": "d"}}, "template": template}}
    await user.create(DAEMON_SETS, body, namespace)

    async def told():
        return "FailedCreate" in kubectl("events", "-n", namespace, "--for", "daemonset/d")

    await until(told, "the DaemonSet to say that its pods are refused")
    assert await client.list(PODS, namespace) == []


async def test_others_pass(user, client, namespace):
    for passing in (
        pod("plain"),
        pod("tolerant", tolerations=[{"key": "other", "operator": "Exists"}]),
        pod("evicted", tolerations=[{"key": TAINT["key"], "operator": "Exists", "effect": "NoExecute"}]),
        pod("gated", gates=GATE, tolerations=[TOLERATION]),
    ):
        await user.create(PODS, passing, namespace, dry_run=True)
    await client.create(PODS, pod("system", tolerations=[{"operator": "Exists"}]), "kube-system", dry_run=True)
    await client.patch(NAMESPACES, namespace, body={"metadata": {"labels": {"topogate.dev/plain-pods": "allowed"}}})
    exempt = pod("exempt", nodeName="n1", tolerations=[TOLERATION])
    await allowed_soon(lambda: user.create(PODS, exempt, namespace, dry_run=True))


async def test_a_tenant_cannot_exempt_its_namespace(user, namespace):
    body = {"metadata": {"labels": {"topogate.dev/plain-pods": "allowed"}}}
    await refused(user.patch(NAMESPACES, namespace, body=body), "cannot patch")


async def test_jobs_are_placed_on_tainted_nodes_and_plain_pods_stay_off(policy, client, namespace, nodes):
    await install_crds(client)
    names = await nodes(blocks=1, racks=1, hosts=2, prefix=f"{namespace}-", group=namespace)
    for name in names:
        await client.patch(NODES, name, body={"spec": {"taints": [TAINT]}})
    await make_flavor(client, namespace, namespace)
    await client.patch(RESOURCE_FLAVORS, namespace, body={"spec": {"tolerations": [TOLERATION]}})
    resources = {"requests": {GPU: "8"}, "limits": {GPU: "8"}}
    selector = {HOSTNAME_LABEL: names[0]}
    thief = pod("thief", nodeSelector=selector, containers=[{"name": "c", "image": "i", "resources": resources}])
    await client.create(PODS, thief, namespace)
    async with Running(client):
        jobs = Watched(client, namespace)
        await jobs.create(job("train", 2, pod_spec={"tolerations": [TOLERATION]}))
        found = await jobs.running("train", 2)
        assert {one["spec"]["nodeName"] for one in found} == set(names)
    assert "nodeName" not in (await client.get(PODS, "thief", namespace))["spec"]
    await client.delete(RESOURCE_FLAVORS, namespace)
