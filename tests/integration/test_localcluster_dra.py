"""Devices of simulated machines in ResourceSlices: the stock scheduler allocates them, and the engine alike."""

import asyncio

import pytest
import pytest_asyncio
from support.jobs import GPU, until

from engine.claims.allocate import prepare
from engine.claims.budget import Budget
from engine.claims.cel.selectors import Selectors
from engine.claims.counting.count import ClaimCounter, count
from engine.claims.counting.looks import NodeDevices
from engine.claims.features import DEFAULT
from engine.claims.hardware import NodeHardware
from engine.claims.in_use import InUse
from engine.claims.pools import Inventory
from engine.claims.read.claims import read_claim, read_class, read_node, read_uses
from engine.claims.read.slices import read_slice
from engine.claims.searching.requests import RequestContext
from kube.client import Client
from kube.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_SLICES, Resource
from localcluster import Fleet, LocalCluster, add_nodes, wait_ready
from localcluster.kubelets.fleet import Publishing

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

MACHINE = "1 socket / 2 NUMA / 8 cores / 4 GPUs / 4 NICs / 64Gi"
NAMESPACE = "default"
CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")


def request(name, device_class, *selectors, **fields):
    cel = [{"cel": {"expression": text}} for text in selectors]
    return {"name": name, "exactly": {"deviceClassName": device_class, "selectors": cel, **fields}}


BESIDE = {
    "devices": {
        "requests": [request("gpu", "gpu.nvidia.com"), request("nic", "dranet")],
        "constraints": [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}],
    }
}
SLICE = "device.attributes['gpu.nvidia.com'].profile == '3g.40gb'"
HALF = {"devices": {"requests": [request("mig", "mig.nvidia.com", SLICE)]}}
SHARE = {
    "devices": {
        "requests": [
            request("gpu", "gpu.nvidia.com", capacity={"requests": {"memory": "40Gi"}}),
            request("nic", "dranet", capacity={"requests": {"dra.net/bandwidth": "100G"}}),
        ],
        "constraints": [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}],
    }
}
IN_ONE_ZONE = {
    "devices": {
        "requests": [request("gpus", "gpu.nvidia.com", count=2)],
        "constraints": [{"matchAttribute": "resource.kubernetes.io/numaNode"}],
    }
}
TOLERANT = {
    "devices": {
        "requests": [
            request("gpu", "gpu.nvidia.com", tolerations=[{"key": "gpu.nvidia.com/unhealthy", "operator": "Exists"}])
        ]
    }
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client():
    with LocalCluster() as cluster:
        async with await Client.connect(str(cluster.kubeconfig)) as connected:
            await asyncio.to_thread(cluster.play_kubelets, Publishing(nrt=False, flex_topo=False))
            yield connected


async def machines(client, prefix, dra, *, hosts=1, machine=MACHINE):
    """Nodes of their own for one test."""
    fleet = Fleet(blocks=1, racks=1, hosts=hosts, prefix=prefix, machine=machine, dra=dra)
    await add_nodes(client, fleet)
    await wait_ready(client, fleet.node_names())
    return fleet.node_names()


async def start(client, name, spec, node, **pod):
    """A pod for one machine, with a claim from a template of its own."""
    template = {"apiVersion": TEMPLATES.api_version, "kind": TEMPLATES.kind, "metadata": {"name": name}}
    await client.create(TEMPLATES, {**template, "spec": {"spec": spec}}, NAMESPACE)
    claims = {"resourceClaims": [{"name": "devices", "resourceClaimTemplateName": name}]}
    await run(client, name, node, {"claims": [{"name": "devices"}]}, **claims, **pod)


async def run(client, name, node, resources, **pod):
    """A pod that the scheduler is to bring to one machine."""
    container = {"name": "main", "image": "i", "resources": resources}
    selector = {"kubernetes.io/hostname": node}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "nodeSelector": selector, "containers": [container], **pod},
    }
    await client.create(PODS, body, NAMESPACE)


async def runs(client, name):
    async def is_running():
        return (await client.get(PODS, name, NAMESPACE))["status"].get("phase") == "Running"

    await until(is_running, f"pod {name} to run")


async def is_refused(client, name):
    """The scheduler has looked at the pod, and found no place."""

    async def refused():
        status = (await client.get(PODS, name, NAMESPACE))["status"]
        assert status["phase"] == "Pending"
        return any(one.get("reason") == "Unschedulable" for one in status.get("conditions", ()))

    await until(refused, f"pod {name} to be refused")


async def given(client, name):
    """(request, device) of the pod's claim, as the scheduler allocated it."""
    claims = await client.list(CLAIMS, NAMESPACE)
    (claim,) = [one for one in claims if one["metadata"]["ownerReferences"][0]["name"] == name]
    return [(one["request"], one["device"]) for one in claim["status"]["allocation"]["devices"]["results"]]


async def known(client, node):
    """What the engine needs: the node's devices, and the classes."""
    slices = map(read_slice, await client.list(RESOURCE_SLICES))
    labels = (await client.get(NODES, node))["metadata"]["labels"]
    hardware = NodeHardware.for_node(Inventory.from_slices(slices), read_node(node, labels), DEFAULT)
    classes = {one.name: one for one in map(read_class, await client.list(DEVICE_CLASSES))}
    return hardware, classes


async def foretold(client, node, spec):
    """The engine's count for an empty machine, and the devices of each pod."""
    hardware, classes = await known(client, node)
    claims = [read_claim({"metadata": {"name": "claim"}, "spec": spec})]
    selectors, budget = Selectors(), Budget()
    counter = ClaimCounter(claims=claims, classes=classes, selectors=selectors, limit=64)
    (counted,) = counter.count_by_node([NodeDevices(hardware, InUse())]).tolist()
    found = count(prepare(hardware, claims, RequestContext(classes, selectors, budget)), InUse(), 64, budget)
    devices = [[(one.request, one.device[2]) for claim in pod.claims for one in claim] for pod in found.pods]
    assert counted == len(devices)
    return devices


@pytest.mark.parametrize(
    ("prefix", "dra", "spec", "fitting"),
    [
        ("whole-", "gpus", BESIDE, 4),
        ("zone-", "gpus", IN_ONE_ZONE, 2),
        ("tainted-", "gpus, tainted", BESIDE, 3),
        ("tolerant-", "gpus, tainted", TOLERANT, 4),
        ("part-", "partitions", HALF, 4),
        ("share-", "shared", SHARE, 4),
    ],
)
async def test_pods_get_the_devices_that_the_engine_foretells(client, prefix, dra, spec, fitting):
    small = MACHINE if dra.startswith("gpus") else "8 cores / 2 GPUs / 2 NICs / 64Gi"
    (node,) = await machines(client, prefix, dra, machine=small)
    expected = await foretold(client, node, spec)
    assert len(expected) == fitting
    for number, devices in enumerate(expected):
        name = f"{prefix}{number}"
        await start(client, name, spec, node)
        await runs(client, name)
        assert await given(client, name) == devices
    await start(client, f"{prefix}more", spec, node)
    await is_refused(client, f"{prefix}more")
    hardware, classes = await known(client, node)
    allocated = [
        result
        for claim in await client.list(CLAIMS, NAMESPACE)
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    ]
    claims = [read_claim({"metadata": {"name": "claim"}, "spec": spec})]
    counter = ClaimCounter(claims=claims, classes=classes, selectors=Selectors(), limit=64)
    in_use = InUse.from_uses(read_uses(allocated, "allocated"))
    assert counter.count_by_node([NodeDevices(hardware, in_use)]).tolist() == [0]
    await client.delete(PODS, f"{prefix}0", NAMESPACE)
    await runs(client, f"{prefix}more")
    assert await given(client, f"{prefix}more") == expected[0]


async def test_extended_resources_are_served_by_claims(client):
    (node,) = await machines(client, "extended-", "gpus")
    for number in range(2):
        await run(client, f"extended-{number}", node, {"limits": {GPU: "2", "cpu": "1", "memory": "1Gi"}})
        await runs(client, f"extended-{number}")
    await run(client, "extended-more", node, {"limits": {GPU: "1", "cpu": "1", "memory": "1Gi"}})
    await is_refused(client, "extended-more")
    pods = [await client.get(PODS, f"extended-{number}", NAMESPACE) for number in range(2)]
    assert all(pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"] for pod in pods)


async def test_slices_follow_the_machine_and_go_with_the_node(client):
    async def slices():
        found = [one for one in await client.list(RESOURCE_SLICES) if one["spec"].get("nodeName") == node]
        return {one["metadata"]["name"]: one["spec"]["pool"]["generation"] for one in found}

    many = "1 socket / 2 NUMA / 8 cores / 5 GPUs / 2 NICs / 64Gi"
    (node,) = await machines(client, "late-", "partitions", machine=many)
    gpu = f"{node}-gpu.nvidia.com-00"
    nic = f"{node}-dra.net-000"
    first = {f"{gpu}0": 1, f"{gpu}1": 1, f"{gpu}2": 1, nic: 1}
    assert await slices() == first
    for again in ("partitions", "partitions, tainted", "partitions, tainted"):
        await machines(client, "late-", again, machine=many)
        assert await slices() == {**first, **dict.fromkeys((f"{gpu}{i}" for i in range(3)), 1 + ("tainted" in again))}
    await machines(client, "late-", "gpus", machine=many)
    assert await slices() == {f"{gpu}0": 3, nic: 1}
    await machines(client, "late-", "", machine=many)
    assert await slices() == {}
    assert (await client.get(NODES, node))["status"]["capacity"][GPU] == "5"
    for _ in range(2):
        await machines(client, "late-", "shared", machine=many)
        assert await slices() == {f"{gpu}0": 1, nic: 1}
    await client.delete(NODES, node)

    async def gone():
        return not await slices()

    await until(gone, "the slices to go with their node")
