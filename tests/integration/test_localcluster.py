"""Jobs on the session's control plane: KWOK plays the kubelet, everything that decides is real."""

import asyncio

import pytest

from kube.errors import Forbidden, Gone
from kube.resources import CONFIG_MAPS, JOBS, LEASES, NODES, PODS, SERVICE_ACCOUNTS
from localcluster.nodes import NOT_READY
from localcluster.programs.build import KUBERNETES_VERSION

pytestmark = pytest.mark.cluster
DEADLINE_SECONDS = 120


def make_job(name: str = "job", *, pods: int = 2, annotations: dict | None = None, **spec) -> dict:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    template = {
        "metadata": {"annotations": annotations or {}},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }
    body = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": template, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": body}


async def poll(read, condition):
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition(value := await read()):
            await asyncio.sleep(0.05)
    return value


def phases(pods: list[dict]) -> list[str]:
    return sorted(pod["status"]["phase"] for pod in pods)


async def test_job_runs_and_succeeds_when_annotated(client, namespace, nodes):
    names = await nodes(blocks=1, racks=1, hosts=2, prefix="run-")
    await client.create(JOBS, make_job(annotations={"topogate.dev/run-seconds": "1"}), namespace)
    done = await poll(lambda: client.get(JOBS, "job", namespace), lambda job: "completionTime" in job.get("status", {}))
    assert done["status"]["succeeded"] == 2
    pods = await client.list(PODS, namespace)
    assert phases(pods) == ["Succeeded", "Succeeded"]
    assert {pod["spec"]["nodeName"] for pod in pods} <= set(names)


async def test_job_without_annotation_runs_on_and_its_pods_look_like_a_kubelets(client, namespace, nodes):
    await nodes(blocks=1, racks=1, hosts=1, prefix="on-")
    await client.create(JOBS, make_job(), namespace)
    pods = await poll(lambda: client.list(PODS, namespace), lambda pods: phases(pods) == ["Running", "Running"])
    for pod in pods:
        status = pod["status"]
        assert {c["type"] for c in status["conditions"] if c["status"] == "True"} >= {
            "Ready",
            "ContainersReady",
            "PodScheduled",
        }
        assert status["podIP"].startswith("10.")
        assert status["containerStatuses"][0]["ready"]
    assert len({pod["status"]["podIP"] for pod in pods}) == 2
    job = await poll(lambda: client.get(JOBS, "job", namespace), lambda job: job["status"].get("ready") == 2)
    assert "succeeded" not in job["status"]


async def test_running_pod_can_be_failed(client, namespace, nodes):
    await nodes(blocks=1, racks=1, hosts=1, prefix="fail-")
    await client.create(JOBS, make_job(pods=1, backoffLimit=0), namespace)
    (pod,) = await poll(lambda: client.list(PODS, namespace), lambda pods: phases(pods) == ["Running"])
    body = {"metadata": {"annotations": {"topogate.dev/fail-after-seconds": "0", "topogate.dev/exit-code": "42"}}}
    await client.patch(PODS, pod["metadata"]["name"], namespace, body=body)
    (failed,) = await poll(lambda: client.list(PODS, namespace), lambda pods: phases(pods) == ["Failed"])
    assert failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 42
    await poll(lambda: client.get(JOBS, "job", namespace), lambda job: job["status"].get("failed") == 1)


async def test_deleted_pod_with_a_finalizer_has_failed_and_waits_for_it(client, namespace, nodes):
    await nodes(blocks=1, racks=1, hosts=1, prefix="stop-")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "held", "finalizers": ["test.topogate.dev/hold"]},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }
    await client.create(PODS, pod, namespace)
    await poll(lambda: client.get(PODS, "held", namespace), lambda pod: pod["status"]["phase"] == "Running")
    await client.delete(PODS, "held", namespace)
    stopped = await poll(lambda: client.get(PODS, "held", namespace), lambda pod: pod["status"]["phase"] == "Failed")
    assert stopped["metadata"]["finalizers"] == ["test.topogate.dev/hold"]
    await client.patch(PODS, "held", namespace, body={"metadata": {"finalizers": None}})
    await poll(lambda: client.list(PODS, namespace), lambda pods: pods == [])


async def test_pod_without_a_node_is_left_alone(client, namespace, nodes):
    await nodes(blocks=1, racks=1, hosts=1, prefix="gate-")
    spec = {"schedulingGates": [{"name": "test.topogate.dev/wait"}], "containers": [{"name": "main", "image": "none"}]}
    gated = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gated"}, "spec": spec}
    await client.create(PODS, gated, namespace)
    free = {**gated, "metadata": {"name": "free"}, "spec": {"containers": spec["containers"]}}
    await client.create(PODS, free, namespace)
    await poll(lambda: client.get(PODS, "free", namespace), lambda pod: pod["status"]["phase"] == "Running")
    pod = await client.get(PODS, "gated", namespace)
    assert pod["status"]["phase"] == "Pending"
    assert "nodeName" not in pod["spec"]


async def test_annotated_node_gets_not_ready_and_the_control_plane_taints_it(client, nodes):
    (name,) = await nodes(blocks=1, racks=1, hosts=1, prefix="lost-")

    def taints(node: dict) -> set[str]:
        return {taint["key"] for taint in node["spec"].get("taints", ())}

    # KWOK overlooks what changes while it takes a new node over: it does so once it holds the node's lease.
    await poll(
        lambda: client.list(LEASES, "kube-node-lease"), lambda held: name in {x["metadata"]["name"] for x in held}
    )
    await asyncio.sleep(0.5)  # until its own watch has told it so
    await client.patch(NODES, name, body={"metadata": {"annotations": {NOT_READY: "true"}}})
    await poll(lambda: client.get(NODES, name), lambda node: "node.kubernetes.io/not-ready" in taints(node))
    await client.patch(NODES, name, body={"metadata": {"annotations": {NOT_READY: None}}})
    await poll(lambda: client.get(NODES, name), lambda node: not taints(node))


async def test_nodes_are_idempotent_and_brought_in_line(client, nodes):
    first = await nodes(blocks=1, racks=1, hosts=1, prefix="same-", gpus=8)
    before = await client.get(NODES, first[0])
    assert await nodes(blocks=1, racks=1, hosts=1, prefix="same-", gpus=8) == first
    same = await client.get(NODES, first[0])
    assert same["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    await nodes(blocks=1, racks=1, hosts=1, prefix="same-", gpus=0, labels={"tier": "a"})
    changed = await client.get(NODES, first[0])
    assert "nvidia.com/gpu" not in changed["status"]["allocatable"]
    assert changed["metadata"]["labels"]["tier"] == "a"


async def test_service_account_without_rights_is_refused(client, namespace, as_account):
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody"}}
    await client.create(SERVICE_ACCOUNTS, account, namespace)
    nobody = await as_account(namespace, "nobody")
    with pytest.raises(Forbidden, match=f"system:serviceaccount:{namespace}:nobody"):
        await nobody.list(PODS, namespace)


async def test_pod_of_an_unknown_service_account_is_refused(client, namespace):
    spec = {"serviceAccountName": "missing", "containers": [{"name": "main", "image": "none"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    with pytest.raises(Forbidden, match=r'serviceaccount "missing" not found'):
        await client.create(PODS, pod, namespace)


async def test_compaction_ends_old_resource_versions(cluster, client, namespace):
    made = await client.create(
        CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}, namespace
    )
    old = made["metadata"]["resourceVersion"]
    path, params = CONFIG_MAPS.path(namespace), {"resourceVersion": old, "resourceVersionMatch": "Exact"}
    await client.patch(CONFIG_MAPS, "a", namespace, body={"data": {"key": "value"}})
    assert b'"a"' in await client.raw("GET", path, params=params)
    assert cluster.compact_etcd() > int(old)
    with pytest.raises(Gone):
        await client.raw("GET", path, params=params)


async def test_kubectl_of_the_right_version(kubectl):
    assert f'"gitVersion": "v{KUBERNETES_VERSION}"' in kubectl("version", "-o", "json")


async def test_unknown_component_is_named(cluster):
    with pytest.raises(ValueError, match="no component 'kubelet'; there are etcd, kube-apiserver"):
        cluster.kill("kubelet")
    assert cluster.is_ready()
