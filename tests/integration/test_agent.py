"""The agent on a real API server, under its own service account: it writes what is so, and only when it changes."""

import contextlib
import os
import subprocess
import sys
import threading

import pytest
from support.accounts import token_on
from support.agents import ACCOUNT, DGX_GPUS, GPU, NAMESPACE, agent_on, dgx, install_agent_rights, pod_on, stamp
from support.jobs import until
from support.kubelet import GIB
from support.nvml import recorded

from agent import copies, cycle
from crds.constants import NUMA_PLACEMENT_OBSERVED, NUMA_PLACEMENT_PREDICTED
from crds.numa_placement import decode
from kube.errors import Forbidden, NotFound
from kube.patches import PatchType
from kube.resources import EVENTS, FLEX_TOPOS, NODE_RESOURCE_TOPOLOGIES, PODS
from localcluster.programs.build import KUBERNETES_VERSION

pytestmark = pytest.mark.cluster

UUIDS = list(DGX_GPUS)


@pytest.fixture
async def account(client, as_account):
    """A client with the rights of the agent."""
    await install_agent_rights(client)
    return await as_account(NAMESPACE, ACCOUNT)


@pytest.fixture
async def node(client, nodes, request):
    (name,) = await nodes(blocks=1, racks=1, hosts=1, prefix=f"agent{abs(hash(request.node.name)) % 10_000}-")
    yield name
    for kind in (FLEX_TOPOS, NODE_RESOURCE_TOPOLOGIES):
        try:
            await client.delete(kind, name)
        except NotFound:
            continue


@pytest.fixture
async def bound(client, account, node, make_client, cluster):
    """A client with the agent's rights whose token names the node, as a token that is mounted into its pod does."""
    token = await token_on(client, NAMESPACE, ACCOUNT, node)
    return await make_client(cluster.token_kubeconfig(token, "bound"))


async def flex_topo(client, node, holds=lambda found: True):
    """Wait for a FlexTopo of which that holds."""

    async def there():
        try:
            found = await client.get(FLEX_TOPOS, node)
        except NotFound:
            return None
        return found if "status" in found and holds(found) else None

    return await until(there, f"the FlexTopo of {node}")


async def observed(client, namespace, name):
    async def there():
        pod = await client.get(PODS, name, namespace)
        return pod["metadata"].get("annotations", {}).get(NUMA_PLACEMENT_OBSERVED)

    return decode(await until(there, f"the observed placement of {name}"))


def ready(found):
    (condition,) = found["status"]["conditions"]
    return condition["status"], condition["reason"]


@contextlib.contextmanager
def copied(source, target):
    """The files of a kubelet, kept as copies beside the agent, as the DaemonSet does it."""
    target.mkdir()
    command = [sys.executable, "-I", "-m", "agent.copies", str(source), str(target)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


async def test_an_agent_that_sees_copies_of_the_kubelets_files_knows_the_state_exactly(
    client, account, node, namespace, tmp_path
):
    kubelet = dgx(tmp_path / "kubelet")
    pod = await pod_on(client, node, namespace, "train")
    sees = {
        "agent_kubelet_directory": str(tmp_path / "copies"),
        "agent_pod_resources_socket": str(kubelet.socket),
    }
    with copied(kubelet.folder, tmp_path / "copies") as copier:
        async with agent_on(node, account, tmp_path, kubelet=kubelet, **sees) as running:
            await flex_topo(client, node, lambda found: ready(found) == ("True", "Ready"))
            kubelet.hold(pod["metadata"]["uid"], namespace=namespace, pod="train", cpus="48-51,176-179")
            await observed(client, namespace, "train")
            await flex_topo(client, node, lambda found: found["status"]["cpus"].get("assignments"))
            copier.terminate()
            copier.wait()
            os.utime(tmp_path / "copies" / copies.ALIVE, (1, 1))
            found = await flex_topo(client, node, lambda found: ready(found)[0] == "False")
            (condition,) = found["status"]["conditions"]
            assert "kubelet-files does not run" in condition["message"]
            assert found["status"]["cpus"]["assignments"]
            await running.turned(1)


async def test_it_publishes_all_it_knows_and_then_only_what_changes(client, account, node, namespace, tmp_path):
    kubelet = dgx(tmp_path / "kubelet")
    pod = await pod_on(client, node, namespace, "train")
    kubelet.hold(
        pod["metadata"]["uid"],
        namespace=namespace,
        pod="train",
        cpus="48-51,176-179",
        memory=(("memory", (3,), 16 * GIB),),
        devices={GPU: UUIDS[:2]},
    )
    async with agent_on(node, account, tmp_path, kubelet=kubelet) as running:
        found = await flex_topo(client, node, lambda found: ready(found) == ("True", "Ready"))
        kinds = [component["type"] for component in found["spec"]["nodes"]]
        assert {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)} == {
            "Socket": 2,
            "NUMANode": 8,
            "CPUCoreGroup": 16,
            "CPUCore": 128,
            "GPU": 8,
            "NIC": 8,
        }
        links = [edge for edge in found["spec"]["edges"] if edge["type"] == "link"]
        assert {link["attributes"]["kind"] for link in links} == {"NV12"}
        status = found["status"]
        assert status["kubelet"]["version"] == f"v{KUBERNETES_VERSION}-kwok"
        assert status["kubelet"]["reservedCpus"] == "0,128"
        assert status["cpus"]["defaultSet"] == "0-47,52-175,180-255"
        (assignment,) = status["cpus"]["assignments"]
        assert (assignment["pod"], assignment["cpus"]) == ("train", "48-51,176-179")
        used = {component["id"]: component["status"] for component in status["components"]}
        assert used[f"gpu-{UUIDS[0]}"] == used["group-48"] == used["core-48"] == "allocated"
        assert used["core-0"] == "reserved"
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("Node", node)

        placement = await observed(client, namespace, "train")
        (use,) = placement.zones
        assert use.zone == 3
        assert use.amounts == {"cpu": 8000, "memory": 16 * GIB, GPU: 2}
        assert use.devices == {GPU: tuple(UUIDS[:2])}

        topology = await client.get(NODE_RESOURCE_TOPOLOGIES, node)
        assert topology["topologyPolicies"] == ["RestrictedPodLevel"]
        zone = topology["zones"][3]
        amounts = {r["name"]: (r["capacity"], r["allocatable"], r["available"]) for r in zone["resources"]}
        assert amounts["cpu"] == ("32", "32", "24")
        assert amounts[GPU] == ("2", "2", "0")

        # Pods come and go, and the kubelet is looked at again and again: nothing that is so already is written.
        await running.turned(2)
        versions = await objects(client, node, namespace)
        await client.patch(PODS, "train", namespace, body={"metadata": {"annotations": {"a": stamp()}}})
        await running.turned(4)
        assert (await objects(client, node, namespace))[:2] == versions[:2]

        kubelet.hold("another", namespace=namespace, pod="soon", cpus="1-2")
        found = await flex_topo(client, node, lambda found: len(found["status"]["cpus"]["assignments"]) == 2)
        assert found["metadata"]["generation"] == 1  # the hardware is as it was
        kubelet.drop("another")
        await flex_topo(client, node, lambda found: len(found["status"]["cpus"]["assignments"]) == 1)


async def objects(client, node, namespace):
    return [
        (await client.get(*address))["metadata"]["resourceVersion"]
        for address in ((FLEX_TOPOS, node), (NODE_RESOURCE_TOPOLOGIES, node), (PODS, "train", namespace))
    ]


async def test_a_restarted_agent_writes_nothing(client, account, node, namespace, tmp_path):
    kubelet = dgx(tmp_path / "kubelet")
    pod = await pod_on(client, node, namespace, "train")
    kubelet.hold(pod["metadata"]["uid"], namespace=namespace, pod="train", cpus="4-7")
    async with agent_on(node, account, tmp_path, kubelet=kubelet):
        await flex_topo(client, node, lambda found: ready(found)[0] == "True")
        await observed(client, namespace, "train")
        await until(lambda: client.get(NODE_RESOURCE_TOPOLOGIES, node), "the topology")
    before = await objects(client, node, namespace)
    async with agent_on(node, account, tmp_path, kubelet=kubelet) as running:
        await running.turned(3)
        assert [running.written(kind) for kind in ("flextopo", "noderesourcetopology", "pod")] == [0, 0, 0]
    assert await objects(client, node, namespace) == before


async def test_another_exporters_topology_is_left_alone(client, account, node, tmp_path):
    body = {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node},
        "topologyPolicies": ["None"],
        "zones": [{"name": "node-0", "type": "Node"}],
    }
    made = await client.create(NODE_RESOURCE_TOPOLOGIES, body, field_manager="nfd-master")
    async with agent_on(node, account, tmp_path, agent_publish_topology="auto") as running:
        await flex_topo(client, node)
        await running.turned(2)
        found = await client.get(NODE_RESOURCE_TOPOLOGIES, node)
        assert found["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        # Somebody who comes later has it too.
        await client.delete(NODE_RESOURCE_TOPOLOGIES, node)
    async with agent_on(node, account, tmp_path, kubelet=running.kubelet) as running:
        await until(lambda: _topology(client, node), "our own topology")
        theirs = {"zones": [{"name": "node-0", "type": "Node"}]}
        await client.patch(NODE_RESOURCE_TOPOLOGIES, node, body=theirs, field_manager="nfd-master")
        running.kubelet.hold("x", namespace="d", pod="p", cpus="9")
        await flex_topo(client, node, lambda found: found["status"]["cpus"].get("assignments"))
        await running.turned(2)
        assert (await client.get(NODE_RESOURCE_TOPOLOGIES, node))["zones"] == theirs["zones"]


@pytest.mark.parametrize("mode", ["always", "never"])
async def test_an_administrator_may_decide_who_writes_the_topology(client, account, node, tmp_path, mode):
    zones = {"always": 8, "never": 1}[mode]
    body = {"metadata": {"name": node}, "zones": [{"name": "node-0", "type": "Node"}]}
    kind = NODE_RESOURCE_TOPOLOGIES
    body |= {"apiVersion": kind.api_version, "kind": kind.kind}
    await client.create(kind, body, field_manager="nfd-master")
    async with agent_on(node, account, tmp_path, agent_publish_topology=mode) as running:
        await flex_topo(client, node)
        await running.turned(2)
        assert len((await client.get(kind, node))["zones"]) == zones
        # Another one writes at the same moment: the agent meets the conflict, and reads again.
        await client.patch(kind, node, body={"metadata": {"labels": {"a": stamp()}}}, field_manager="nfd-master")
        running.kubelet.hold("x", namespace="d", pod="p", cpus="9")
        await flex_topo(client, node, lambda found: found["status"]["cpus"].get("assignments"))
        await running.turned(2)
        found = await client.get(kind, node)
        assert len(found["zones"]) == zones
        if mode == "always":
            assert {r["name"]: r["available"] for r in found["zones"][0]["resources"]}["cpu"] == "29"


async def _topology(client, node):
    try:
        return await client.get(NODE_RESOURCE_TOPOLOGIES, node)
    except NotFound:
        return None


async def test_without_the_kubelets_files_it_says_so_and_goes_on(client, account, node, namespace, tmp_path):
    kubelet = dgx(tmp_path / "kubelet")
    for name in ("cpu_manager_state", "memory_manager_state", "device-plugins/kubelet_internal_checkpoint"):
        (kubelet.folder / name).unlink()
    kubelet.write = lambda: None
    pod = await pod_on(client, node, namespace, "train")
    kubelet.hold(pod["metadata"]["uid"], namespace=namespace, pod="train", cpus="16-19", devices={GPU: UUIDS[2:3]})
    async with agent_on(node, account, tmp_path, kubelet=kubelet) as running:
        found = await flex_topo(client, node)
        assert ready(found) == ("False", "StateIncomplete")
        assert "cpu_manager_state" in found["status"]["conditions"][0]["message"]
        placement = await observed(client, namespace, "train")
        assert [(use.zone, use.amounts) for use in placement.zones] == [(1, {"cpu": 4000, GPU: 1})]
        # It restarts, and for a while lists no pods: those that live have what they had.
        before = (await client.get(FLEX_TOPOS, node))["status"]
        kubelet.starting = True
        await running.turned(3)
        assert (await client.get(FLEX_TOPOS, node))["status"] == before
        assert before["cpus"]["defaultSet"] == "0-15,20-255"
        await client.delete(PODS, "train", namespace, grace_period=0)
        await flex_topo(client, node, lambda found: not found["status"]["cpus"].get("assignments"))


async def test_a_kubelet_that_is_away_keeps_what_was_known(client, account, node, namespace, tmp_path):
    kubelet = dgx(tmp_path / "kubelet")
    kubelet.hold("u", namespace=namespace, pod="p", cpus="8-9")
    with kubelet.serving():
        async with agent_on(node, account, tmp_path, kubelet=kubelet, serve=False):
            whole = await flex_topo(client, node, lambda found: ready(found)[0] == "True")
    for name in ("cpu_manager_state", "config.yaml"):
        (kubelet.folder / name).unlink()
    async with agent_on(node, account, tmp_path, kubelet=kubelet, serve=False):
        found = await flex_topo(client, node, lambda found: ready(found)[0] == "False")
        assert "no such socket" in found["status"]["conditions"][0]["message"]
        assert {**found["status"], "conditions": 0} == {**whole["status"], "conditions": 0}


async def test_a_lost_gpu_is_unhealthy_and_told(client, account, node, tmp_path):
    kubelet = dgx(tmp_path / "kubelet")
    async with agent_on(node, account, tmp_path, kubelet=kubelet, agent_hardware_seconds=0.3) as running:
        await flex_topo(client, node, lambda found: ready(found)[0] == "True")
        running.nvml.calls["nvmlDeviceGetHandleByIndex(2)"] = {"error": 15}
        kubelet.sick.add(UUIDS[2])
        kubelet.write()
        found = await flex_topo(client, node, lambda found: used(found).get(f"gpu-{UUIDS[2]}") == "unhealthy")
        (resource,) = found["status"]["devices"]
        assert [device["id"] for device in resource["devices"] if not device["healthy"]] == [UUIDS[2]]
        assert resource["devices"][2]["zones"] == [1]  # still where it was
        assert len(resource["devices"]) == 8
        event = await until(lambda: _event(client, node), "an event about the GPU")
        assert event["reason"] == "GpuFaulty"
        assert UUIDS[2] in event["note"]


async def test_a_driver_that_hangs_delays_nothing(client, account, node, tmp_path, monkeypatch):
    monkeypatch.setattr(cycle, "HARDWARE_TIMEOUT_SECONDS", 0.2)
    hanging, done = recorded("dgx-a100"), threading.Event()
    hanging.nvmlInit = lambda: done.wait(60)
    async with agent_on(node, account, tmp_path, nvml=hanging, agent_hardware_seconds=0.2) as running:
        found = await flex_topo(client, node, lambda found: ready(found)[0] == "True")
        assert not [edge for edge in found["spec"]["edges"] if "nvlinks" in edge.get("attributes", {})]
        running.kubelet.hold("x", namespace="d", pod="p", cpus="9")
        await flex_topo(client, node, lambda found: found["status"]["cpus"].get("assignments"))
        done.set()
        await flex_topo(
            client,
            node,
            lambda found: [edge for edge in found["spec"]["edges"] if "nvlinks" in edge.get("attributes", {})],
        )


def used(found):
    return {component["id"]: component["status"] for component in found["status"].get("components", [])}


async def _event(client, node):
    found = await client.list(EVENTS, "default")
    ours = (event for event in found if (event.get("reportingController") or "").startswith("topogate.dev"))
    return next((event for event in ours if event["regarding"]["name"] == node), None)


async def test_it_may_write_about_its_own_node_alone(client, account, node, namespace, bound):
    """The policy beside RBAC: with a token that names its node, and with one that names none."""
    here, elsewhere = await pod_on(client, node, namespace, "here"), await pod_on(client, "else", namespace, "else")
    written = {"metadata": {"annotations": {NUMA_PLACEMENT_OBSERVED: "[]"}}}

    async def may(who, pod, body):
        try:
            kind = PatchType.STRATEGIC
            await who.patch(PODS, pod["metadata"]["name"], namespace, body=body, content_type=kind, dry_run=True)
        except Forbidden:
            return False
        return True

    async def enforced():
        return not await may(account, here, {"metadata": {"labels": {"a": "b"}}})

    await until(enforced, "the policy to be enforced")
    assert await may(bound, here, written)
    assert not await may(bound, elsewhere, written)
    assert await may(account, elsewhere, written)  # an API server that is too old to name the node
    for body in (
        {"metadata": {"annotations": {NUMA_PLACEMENT_PREDICTED: "[]"}}},
        {"metadata": {"finalizers": ["a.b/c"]}},
        {"spec": {"activeDeadlineSeconds": 1}},
        {"spec": {"containers": [{"name": "main", "image": "evil"}]}},
    ):
        assert not await may(bound, here, body), body
    for kind, name, allowed in ((FLEX_TOPOS, node, True), (FLEX_TOPOS, "other", False)):
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": {}}
        try:
            await bound.create(kind, body, dry_run=True)
        except Forbidden:
            assert not allowed
        else:
            assert allowed
