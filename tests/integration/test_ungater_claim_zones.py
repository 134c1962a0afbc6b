"""Pods that wish devices of claims and CPUs from one zone, on the real control plane with the stock kube-scheduler.

Two nodes of two zones with 8 CPUs each, whose kubelets allow one zone a container. The first fit of the one begins with
devices of zone 1, where its kubelet begins with zone 0; on the other both begin with zone 0.
"""

import contextlib
import json

import pytest
from support.jobs import KEYS, Running, Watched, install_crds, job, make_flavor
from support.nrt import install_nrt
from support.published import GI, nrt_body, nrt_zone

from cli.explain.report import report
from crds.constants import NUMA_PLACEMENT_PREDICTED, NUMA_POLICY
from kube.errors import NotFound
from kube.resources import (
    CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    NODE_RESOURCE_TOPOLOGIES,
    RESOURCE_CLAIMS,
    RESOURCE_FLAVORS,
    RESOURCE_SLICES,
)

pytestmark = pytest.mark.cluster

DRIVER = "zoned.example.com"
NUMA_NODE = "resource.kubernetes.io/numaNode"
ANYWHERE = {KEYS.unconstrained: "true"}
SINGLE = {NUMA_POLICY: "single-numa-node"}
ZONES = {"h1": (1, 0), "h2": (0, 1)}  # of devices, in their order


class Zoned(Watched):
    """See the module; the DeviceClass is named after the namespace, as it is of none."""

    def __init__(self, client, namespace):
        super().__init__(client, namespace)
        self.names = {host: f"{namespace}-b1-r1-{host}" for host in ZONES}

    async def equip(self):
        cel = f'device.driver == "{DRIVER}"'
        spec = {"selectors": [{"cel": {"expression": cel}}]}
        await self.client.create(DEVICE_CLASSES, {"metadata": {"name": self.namespace}, "spec": spec})
        request = {"name": "gpu", "exactly": {"deviceClassName": self.namespace}}
        body = {"metadata": {"name": "gpu"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
        await self.client.create(CLAIM_TEMPLATES, body, self.namespace)
        for host, zones in ZONES.items():
            name = self.names[host]
            told = [nrt_zone(zone, {"cpu": 8, "memory": 64 * GI}) for zone in (0, 1)]
            body = nrt_body(told, name=name, policy="single-numa-node")
            await self.client.apply(NODE_RESOURCE_TOPOLOGIES, body, field_manager="test")
            made = [{"name": f"gpu-{at}", "attributes": {NUMA_NODE: {"int": zone}}} for at, zone in enumerate(zones)]
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": made}
            await self.client.create(RESOURCE_SLICES, {"metadata": {"name": f"{name}-gpus"}, "spec": spec})

    async def ask(self, name, pods, wish=None, cpu="8"):
        amounts = {"cpu": cpu, "memory": "1Gi"}
        container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
        container["resources"] = {**container["resources"], "claims": [{"name": "gpu"}]}
        claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
        spec = {"containers": [container], "resourceClaims": claims}
        await self.create(job(name, pods, request=ANYWHERE, annotations=wish or {}, pod_spec=spec))

    async def given(self, pod):
        """The device of a pod's claim."""
        (made,) = pod["status"]["resourceClaimStatuses"]
        claim = await self.client.get(RESOURCE_CLAIMS, made["resourceClaimName"], self.namespace)
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        return result["device"]

    async def clear(self):
        for name in self.names.values():
            for resource, of in ((NODE_RESOURCE_TOPOLOGIES, name), (RESOURCE_SLICES, f"{name}-gpus")):
                with contextlib.suppress(NotFound):
                    await self.client.delete(resource, of)
        await self.client.delete(DEVICE_CLASSES, self.namespace)
        await self.client.delete(RESOURCE_FLAVORS, self.namespace)


@pytest.fixture
async def zoned(client, namespace, nodes):
    await install_crds(client)
    await install_nrt(client)
    await nodes(blocks=1, racks=1, hosts=2, prefix=f"{namespace}-", group=namespace, cpu="16")
    await make_flavor(client, namespace, namespace)
    watched = Zoned(client, namespace)
    await watched.equip()
    async with Running(client) as controller:
        await controller.knows("NodeResourceTopology", 2)
        yield watched
    await watched.clear()


async def test_pods_keep_off_a_node_where_device_and_cpus_would_not_meet(zoned, client, namespace):
    await zoned.ask("wishes", 2, SINGLE)
    pods = await zoned.running("wishes", 2)
    assert {pod["spec"]["nodeName"] for pod in pods} == {zoned.names["h2"]}
    for pod in pods:
        (zone,) = json.loads(pod["metadata"]["annotations"][NUMA_PLACEMENT_PREDICTED])
        device = await zoned.given(pod)
        assert zone["zone"] == f"node-{ZONES['h2'][int(device.removeprefix('gpu-'))]}"
        assert zone["claims"] == [f"{DRIVER}/{zoned.names['h2']}/{device}"]

    await zoned.ask("more", 1, SINGLE)  # the other node has room by amounts and by devices
    told = (await zoned.condition("more", "QuotaReserved", "False", "NumaAlignment"))["message"]
    assert "asks for single-numa-node" in told
    assert "here the devices come from zone 1, and cpu and memory from zone 0" in told
    found = await report(client, namespace, "more")
    assert any("the devices come from zone 1" in room.refusal for room in found.room)

    await zoned.ask("plain", 1)
    (pod,) = await zoned.running("plain", 1)
    assert pod["spec"]["nodeName"] == zoned.names["h1"]
