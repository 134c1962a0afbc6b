"""Simulated machines on a real control plane: who admits, who refuses, and what survives a restart."""

import asyncio
import json

import pytest
import pytest_asyncio
from support.jobs import GPU, install_crds, settled, until

from crds.constants import NUMA_PLACEMENT_OBSERVED
from kube.client import Client
from kube.errors import NotFound
from kube.resources import EVENTS, FLEX_TOPOS, NODE_RESOURCE_TOPOLOGIES, NODES, PODS
from localcluster import KUBELETS, KWOK, Fleet, LocalCluster, add_nodes, wait_ready
from localcluster.kubelets.fleet import KUBELET, STATE, Publishing

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.asyncio(loop_scope="module"),
]

FLEET = Fleet(
    blocks=1, racks=1, hosts=1, machine="1 socket / 2 NUMA / 8 cores / 4 GPUs / 64Gi", kubelet="single-numa-node, pod"
)
NODE = FLEET.node_names()[0]
PLAIN = Fleet(blocks=1, racks=1, hosts=1, prefix="plain-", gpus=4)
NAMESPACE = "default"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here():
    with LocalCluster() as cluster:
        async with await Client.connect(str(cluster.kubeconfig)) as client:
            await install_crds(client)
            for fleet in (FLEET, PLAIN):
                await add_nodes(client, fleet)
            await wait_ready(client, [*FLEET.node_names(), *PLAIN.node_names()])
            await asyncio.to_thread(cluster.play_kubelets, Publishing(delay=(0.0, 0.2)))
            yield cluster, client


@pytest_asyncio.fixture(loop_scope="module")
async def client(here):
    yield here[1]
    await here[1].raw("DELETE", PODS.path(NAMESPACE), params={"gracePeriodSeconds": "0"})
    await until(lambda: _none(here[1]), "the pods to be gone")
    await until(lambda: _free(here[1], 4), "the machine to be free again")


async def _none(client):
    return not await client.list(PODS, NAMESPACE)


async def _free(client, gpus):
    return await available(client, GPU) == gpus


async def published(client, resource, name=NODE):
    """The machine's object; {} where nothing is published yet."""
    try:
        return await client.get(resource, name)
    except NotFound:
        return {}


async def available(client, resource):
    """What the machine's NodeResourceTopology says is left."""
    zones = (await published(client, NODE_RESOURCE_TOPOLOGIES)).get("zones", ())
    return sum(int(r["available"]) for zone in zones for r in zone["resources"] if r["name"] == resource)


async def run(client, name, *, gpus=1, cpu="2", node=NODE, wait=True, **more):
    amounts = {**({"cpu": cpu, "memory": "1Gi"} if cpu else {}), GPU: str(gpus)}
    container = {"name": "main", "image": "i", "resources": {"limits": amounts}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": more.pop("annotations", {})},
        "spec": {"nodeName": node, "restartPolicy": "Never", "containers": [container], **more},
    }
    await client.create(PODS, body, NAMESPACE)
    return await settled(client, NAMESPACE, name) if wait else body


async def observed(client, name):
    """The placement that was reported of a pod: zone -> amounts."""
    found = {}

    async def told():
        annotations = (await client.get(PODS, name, NAMESPACE))["metadata"]["annotations"]
        found.update({use["zone"]: use for use in json.loads(annotations.get(NUMA_PLACEMENT_OBSERVED, "[]"))})
        return bool(found)

    await until(told, f"the placement of pod {name} to be reported")
    return found


async def test_an_admitted_pod_runs_and_is_reported(client):
    pod = await run(client, "one", gpus=2)
    status = pod["status"]
    assert status["phase"] == "Running"
    assert all(c["status"] == "True" for c in status["conditions"])
    assert status["containerStatuses"][0]["ready"] is True
    zones = await observed(client, "one")
    assert [*zones] == ["node-0"]
    assert zones["node-0"]["amount"] == {"cpu": "2", "memory": str(1 << 30), GPU: "2"}
    assert len(zones["node-0"]["devices"][GPU]) == 2
    await until(lambda: _free(client, 2), "the devices to be gone from the NodeResourceTopology")
    await until(lambda: _held_by(client, "one"), "FlexTopo to name the holder")


async def _held_by(client, name):
    status = (await published(client, FLEX_TOPOS)).get("status", {})
    devices = [device for state in status.get("devices", ()) for device in state["devices"]]
    return [device["usedBy"]["pod"] for device in devices if "usedBy" in device] == [name, name]


async def test_a_refused_pod_fails_as_the_kubelet_fails_it(client):
    pod = await run(client, "wide", gpus=3)
    assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "TopologyAffinityError")
    assert pod["status"]["message"] == "Pod was rejected: Resources cannot be allocated with Topology locality"
    assert "conditions" not in pod["status"], "not even PodScheduled, as with kubelet 1.37.1"

    async def told():
        events = await client.list(EVENTS, NAMESPACE)
        return any(e["reason"] == "TopologyAffinityError" and e["regarding"]["name"] == "wide" for e in events)

    await until(told, "an event")
    assert (await run(client, "narrow", gpus=2))["status"]["phase"] == "Running"  # nothing stayed with the refused one


async def test_what_ends_makes_room_for_what_comes_next(client):
    assert (await run(client, "first", gpus=2, annotations={"topogate.dev/run-seconds": "0"}))["status"]["phase"]
    await settled(client, NAMESPACE, "first", ("Succeeded",))
    assert (await run(client, "second", gpus=2))["status"]["phase"] == "Running"
    assert (await run(client, "third", gpus=2))["status"]["phase"] == "Running"
    assert (await run(client, "fourth", gpus=2))["status"]["reason"] == "TopologyAffinityError"
    await client.delete(PODS, "second", NAMESPACE, grace_period=0)
    assert (await run(client, "fifth", gpus=2))["status"]["phase"] == "Running"


async def test_pods_elsewhere_are_none_of_its_business(client):
    pod = await run(client, "elsewhere", gpus=3, node=PLAIN.node_names()[0])
    assert pod["status"]["phase"] == "Running"
    assert STATE not in pod["metadata"].get("annotations", {})


async def test_a_killed_process_takes_over_what_runs(here, client):
    cluster, _ = here
    for name in ("left", "right"):
        assert (await run(client, name, gpus=1))["status"]["phase"] == "Running"
    before = {name: (await observed(client, name)) for name in ("left", "right")}
    await asyncio.to_thread(cluster.kill, KUBELETS)
    await asyncio.to_thread(cluster.restart, KWOK)
    await run(client, "late", gpus=2, wait=False)
    await client.delete(PODS, "right", NAMESPACE, grace_period=0)
    await asyncio.sleep(1.0)  # nobody but its kubelet may start it
    assert (await client.get(PODS, "late", NAMESPACE))["status"]["phase"] == "Pending"
    await asyncio.to_thread(cluster.start, KUBELETS)
    assert (await settled(client, NAMESPACE, "late"))["status"]["phase"] == "Running"
    assert await observed(client, "left") == before["left"]
    devices = {
        device
        for name in ("left", "late")
        for use in (await observed(client, name)).values()
        for device in use["devices"][GPU]
    }
    assert len(devices) == 3  # none twice
    await until(lambda: _free(client, 1), "the NodeResourceTopology to be right")


async def test_a_machine_may_come_later_and_change_its_kubelet(client):
    fleet = Fleet(
        blocks=1,
        racks=1,
        hosts=1,
        prefix="late-",
        machine="2 NUMA / 8 cores / 4 GPUs / 64Gi",
        kubelet="no-static-memory",
    )
    name = fleet.node_names()[0]
    await add_nodes(client, fleet)
    await wait_ready(client, [name])
    assert (await run(client, "wide", gpus=3, cpu="10", node=name))["status"]["phase"] == "Running"  # restricted
    await client.patch(NODES, name, body={"metadata": {"annotations": {KUBELET: "single-numa-node"}}})

    async def changed():
        attributes = (await published(client, NODE_RESOURCE_TOPOLOGIES, name)).get("attributes", ())
        return any(attribute["value"] == "single-numa-node" for attribute in attributes)

    await until(changed, "the new policy")
    pod = await run(client, "second", gpus=1, cpu="", node=name)
    assert pod["status"]["phase"] == "Running"
    taken = [
        d for each in ("wide", "second") for use in (await observed(client, each)).values() for d in use["devices"][GPU]
    ]
    assert len(taken) == len(set(taken)) == 4
