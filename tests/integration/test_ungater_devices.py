"""Devices on the real control plane: pods that ask for NVLinks, and XPUs, whose plugin reads an annotation."""

import contextlib
import json

import pytest
from support.jobs import GPU, KEYS, RACK_LABEL, Running, Watched, install_crds, job, make_flavor, until
from support.published import flex_body

from crds.constants import GPU_LINK, NUMA_PLACEMENT_OBSERVED, NUMA_PLACEMENT_PREDICTED
from kube.errors import NotFound
from kube.resources import FLEX_TOPOS, JOBS, NODES, PODS, RESOURCE_FLAVORS, WORKLOADS

pytestmark = pytest.mark.cluster

XPU = "kunlunxin.com/xpu"
MATRIX = "gpu-topology.acme.com/nvlink-matrix"
PREFERRED = {KEYS.preferred[0]: RACK_LABEL}
REQUIRE = {GPU_LINK: "require"}


class Devices(Watched):
    """Two nodes with 8 GPUs each, and a controller in this process."""

    def __init__(self, client, namespace, nodes):
        super().__init__(client, namespace)
        self.nodes = nodes
        self.controller = Running(client)

    async def links(self, name, word):
        matrix = [["X" if one == other else word for other in range(8)] for one in range(8)]
        body = {"metadata": {"annotations": {MATRIX: json.dumps(matrix)}}}
        await self.client.patch(NODES, name, body=body)

    async def publish(self, body):
        status = body.pop("status")
        for condition in status["conditions"]:
            condition["lastTransitionTime"] = "2026-11-21T00:00:00Z"
        await self.client.apply(FLEX_TOPOS, body, field_manager="test")
        await self.client.patch(FLEX_TOPOS, body["metadata"]["name"], body={"status": status}, subresource="status")


@pytest.fixture
async def devices(client, namespace, nodes):
    await install_crds(client)
    await nodes(blocks=1, racks=1, hosts=2, prefix=f"{namespace}-", group=namespace, cpu="16")
    names = [f"{namespace}-b1-r1-h{host}" for host in (1, 2)]
    await make_flavor(client, namespace, namespace)
    watched = Devices(client, namespace, names)
    async with watched.controller:
        yield watched
        for each in await client.list(JOBS, namespace):  # one that waits would take the next test's nodes
            await watched.delete(each["metadata"]["name"])

        async def gone():
            return not await client.list(PODS, namespace) and not await client.list(WORKLOADS, namespace)

        await until(gone, "the test's jobs to be gone")
    for name in names:
        with contextlib.suppress(NotFound):
            await client.delete(FLEX_TOPOS, name)
    await client.delete(RESOURCE_FLAVORS, namespace)


def chosen(pod, resource=GPU):
    """The ids of a pod's predicted devices."""
    record = json.loads(pod["metadata"]["annotations"][NUMA_PLACEMENT_PREDICTED])
    return {name for entry in record for name in entry.get("devices", {}).get(resource, ())}


def mesh(name):
    """Two quads of GPUs, each one clique; full kubelet state."""
    body = flex_body(name=name, cores=4, threads=2, gpus=4, policy="best-effort", reserved="")
    body["status"]["memory"] = {"zones": []}
    body["status"]["kubelet"] |= {"memoryManagerPolicy": "None"}
    return body


async def test_pods_that_require_links_go_only_where_gpus_have_them(devices):
    apart, linked = devices.nodes
    await devices.links(apart, "SYS")
    await devices.links(linked, "NV18")
    await devices.controller.knows("Node", 2)
    await devices.create(job("linked", 2, gpus=4, request=PREFERRED, annotations=REQUIRE))
    pods = await devices.running("linked", 2)
    assert {pod["spec"]["nodeName"] for pod in pods} == {linked}
    await devices.create(job("waits", 1, gpus=2, request=PREFERRED, annotations=REQUIRE))
    condition = await devices.condition("waits", "QuotaReserved", "False")
    assert "NVLink clique" in condition["message"], condition
    await devices.create(job("any", 1, gpus=2, request=PREFERRED))
    (pod,) = await devices.running("any", 1)
    assert pod["spec"]["nodeName"] == apart
    await devices.delete("linked")
    (pod,) = await devices.running("waits", 1)
    assert pod["spec"]["nodeName"] == linked


async def test_each_pod_is_told_one_clique_and_what_breaks_it_is_told(devices):
    for name in devices.nodes:
        await devices.publish(mesh(name))
    await devices.controller.knows("FlexTopo", 2)
    await devices.create(job("three", 4, gpus=3, request=PREFERRED, annotations=REQUIRE))
    pods = await devices.running("three", 4)
    quads = [{f"GPU-{gpu}" for gpu in range(4)}, {f"GPU-{gpu}" for gpu in range(4, 8)}]
    assert sorted(len(chosen(pod)) for pod in pods) == [3, 3, 3, 3]
    assert all(any(chosen(pod) <= quad for quad in quads) for pod in pods)
    assert len({(pod["spec"]["nodeName"], min(chosen(pod))) for pod in pods}) == 4
    # One GPU is left in each quad: two of them on a node, but no link between them.
    await devices.create(job("pair", 1, gpus=2, request=PREFERRED, annotations=REQUIRE))
    condition = await devices.condition("pair", "QuotaReserved", "False")
    assert "the largest free one has 1" in condition["message"], condition
    ids = [*sorted(chosen(pods[0]))[:2], *({"GPU-0", "GPU-4"} - chosen(pods[0]))][:3]
    zones = {zone: [name for name in ids if int(name[-1]) // 4 == zone] for zone in (0, 1)}
    observed = [
        {"zone": f"node-{zone}", "amount": {GPU: str(len(found))}, "devices": {GPU: found}}
        for zone, found in zones.items()
    ]
    body = {"metadata": {"annotations": {NUMA_PLACEMENT_OBSERVED: json.dumps(observed)}}}
    await devices.client.patch(PODS, pods[0]["metadata"]["name"], devices.namespace, body=body)
    event = await devices.event(pods[0]["metadata"]["name"], "Misaligned")
    assert pods[0]["metadata"]["name"] in event["note"]


async def test_xpus_are_told_by_index_and_only_as_they_may_be_given(devices):
    home = devices.nodes[0]
    body = flex_body(name=home, cores=4, threads=2, gpus=0, policy="none", reserved="")
    cards = [{"id": f"xpu{card}", "zones": [card // 4]} for card in range(8)]
    body["status"]["devices"] = [{"resource": XPU, "devices": cards}]
    await devices.publish(body)
    amounts = {"capacity": {XPU: "8"}, "allocatable": {XPU: "8"}}
    await devices.client.patch(NODES, home, body={"status": amounts}, subresource="status")
    await devices.controller.knows("FlexTopo", 1)

    async def index(name, count):
        resources = {"requests": {"cpu": "1"}, "limits": {XPU: str(count)}}
        resources["requests"][XPU] = str(count)
        containers = [{"name": "c", "image": "i", "resources": resources}]
        await devices.create(job(name, 1, gpus=0, request=PREFERRED, pod_spec={"containers": containers}))

    told = []
    for name, count in (("one", 1), ("two", 2), ("four", 4)):
        await index(name, count)
        (pod,) = await devices.running(name, 1)
        told.append(pod["metadata"]["annotations"]["BAIDU_COM_DEVICE_IDX"])
    assert told == ["0", "1,2", "4,5,6,7"]
    await index("three", 3)
    condition = await devices.condition("three", "QuotaReserved", "False")
    assert "only 1, 2, 4 or 8 can be given" in condition["message"] or condition["reason"] == "NeverFits", condition
    await index("last", 1)
    (pod,) = await devices.running("last", 1)
    assert pod["metadata"]["annotations"]["BAIDU_COM_DEVICE_IDX"] == "3"
