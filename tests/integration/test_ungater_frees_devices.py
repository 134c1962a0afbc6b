"""Preemption for devices of resource claims, on the real control plane with the stand-in driver of simulated machines.

Two machines of four GPUs each have devices; quota is enough for everybody. What victims had comes free when
kube-controller-manager deallocates their claims, and not before.
"""

import asyncio

import pytest
from support.jobs import KEYS, followed, until
from support.queues import API, Queued, make_priorities

from cli.explain.report import report
from kube.resources import (
    CLAIM_TEMPLATES,
    CLUSTER_QUEUES,
    DEVICE_CLASSES,
    LOCAL_QUEUES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIMS,
)
from localcluster.dra.driver import parse_driver
from localcluster.dra.publish import publish
from localcluster.dra.slices import device_classes

pytestmark = pytest.mark.cluster

MACHINE = "1 socket / 2 NUMA / 8 cores / 4 GPUs / 4 NICs / 64Gi"
MAPPINGS = [{"name": "gpus", "device_class_names": ["gpu.nvidia.com"]}]
ONE = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}
ANYWHERE = {KEYS.unconstrained: "true"}
CONTROLLERS = "kube-controller-manager"


class Devices(Queued):
    """Jobs whose pods have claims of one GPU each, in a queue in which the more important preempt."""

    async def train(self, name, pods, priority="low", **more):
        more = {"gpus": 0, "request": ANYWHERE, "pod_spec": ONE, "priority": priority, **more}
        await self.submit(name, pods, **more)

    async def runs(self, name, pods, priority="low", **more):
        await self.train(name, pods, priority, **more)
        await self.running(name, pods)

    async def has(self, job):
        """(machine, device) of all that the claims of the pods of a job have."""
        claims = await self.client.list(RESOURCE_CLAIMS, self.namespace)
        mine = [one for one in claims if one["metadata"]["ownerReferences"][0]["name"].startswith(f"{job}-")]
        given = (one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ()) for one in mine)
        return {(one["pool"], one["device"]) for results in given for one in results}

    async def victims(self, name):
        nomination = (await self.status(name)).get("nomination", {})
        return [one["name"] for one in nomination.get("victims", ())]

    async def restarted(self):
        await self.controller.crash()
        await self.controller.start()


@pytest.fixture
async def devices(cluster, client, namespace, nodes):
    await make_priorities(client)
    middle = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "mid"}, "value": 500}
    await client.apply(PRIORITY_CLASSES, middle, field_manager="test")
    async with followed(Devices, client, namespace, nodes, device_class_mappings=MAPPINGS) as watched:
        hosts = [f"{namespace}-b1-r1-h{host}" for host in (1, 2)]
        await publish(client, hosts, MACHINE, parse_driver("gpus"))
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        body = {"metadata": {"name": "one"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
        await client.create(CLAIM_TEMPLATES, body, namespace)
        quotas = [{"name": "cpu", "nominalQuota": "1k"}, {"name": "gpus", "nominalQuota": "100"}]
        group = {"coveredResources": ["cpu", "gpus"], "flavors": [{"name": namespace, "resources": quotas}]}
        spec = {"resourceGroups": [group], "preemption": {"withinClusterQueue": "LowerPriority"}}
        spec |= {"namespaceSelector": {}}
        queue = {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": namespace}, "spec": spec}
        await client.create(CLUSTER_QUEUES, queue)
        local = {"metadata": {"name": "team"}, "spec": {"clusterQueue": namespace}}
        await client.create(LOCAL_QUEUES, {"apiVersion": API, "kind": "LocalQueue", **local}, namespace)
        try:
            yield watched
        finally:
            if CONTROLLERS in cluster.dead():
                cluster.start(CONTROLLERS)
        await client.delete(CLUSTER_QUEUES, namespace)
        await publish(client, hosts, MACHINE, None)
        for one in device_classes():
            await client.delete(DEVICE_CLASSES, one["metadata"]["name"])


async def test_the_more_important_gets_the_devices_of_the_less_important(devices):
    """Of two Jobs that have four devices each the less important goes, and comes back when there is room again."""
    await devices.runs("low", 4)
    await devices.runs("mid", 4, "mid")
    had = await devices.has("low")
    await devices.train("high", 4, "high")
    assert len(await devices.running("high", 4)) == 4
    assert await devices.has("high") == had
    told = (await devices.condition("low", "Preempted", "True", "InClusterQueue"))["message"]
    assert "preempted to make room for" in told
    await devices.empty("low")
    assert len(await devices.running("mid", 4)) == 4
    assert "devices of its claims" in await devices.waits("low", "DoesNotFit")
    await devices.finish("high")
    await devices.running("low", 4)


async def test_only_so_many_go_as_are_needed(devices, namespace):
    for number in range(4):
        await devices.runs(f"low-{number}", 2)
    await devices.train("high", 3, "high")
    await devices.running("high", 3)
    left = [name for name in (f"low-{number}" for number in range(4)) if len(await devices.has(name)) == 2]
    assert len(left) == 2
    await devices.runs("last", 1, "high", request={KEYS.required[0]: "kubernetes.io/hostname"})
    left = [name for name in left if len(await devices.has(name)) == 2]
    assert len(left) == 2, "one device was left over"


async def test_nobody_is_let_go_before_the_claims_are_deallocated_and_a_restart_goes_on(
    devices, cluster, client, namespace
):
    await devices.runs("low", 4)
    await devices.runs("mid", 4, "mid")
    cluster.stop(CONTROLLERS)  # nobody deallocates claims
    await devices.train("high", 4, "high")
    await devices.empty("low")
    assert len(await devices.has("low")) == 4
    assert len(await devices.victims("high")) == 1
    shown = await report(client, namespace, "high")
    assert [one.gone for one in shown.queue.victims] == [True]
    told = await devices.waits("high", "ClaimsNotDeallocated")
    assert told.startswith(f"its victims are gone, but ResourceClaims {namespace}/low-")
    assert "and 1 more still have devices that it needs" in told
    await devices.restarted()
    await asyncio.sleep(3)
    status = await devices.status("high")
    assert "admission" not in status
    assert len(status["nomination"]["victims"]) == 1
    cluster.start(CONTROLLERS)
    await devices.running("high", 4)
    assert await devices.has("low") == set()
    assert len(await devices.running("mid", 4)) == 4


async def test_a_restart_while_pods_of_victims_end(devices, client, namespace):
    """A finalizer holds one of them back: the plan is carried on by the next controller."""
    await devices.runs("low", 4)
    await devices.runs("mid", 4, "mid")
    (first, *_) = await devices.pods("low")
    name, held = first["metadata"]["name"], {"metadata": {"finalizers": ["example.com/held"]}}
    await client.patch(PODS, name, namespace, body=held)
    await devices.train("high", 4, "high")
    await devices.waits("high", "Preempting")
    await devices.restarted()
    await client.patch(PODS, name, namespace, body={"metadata": {"finalizers": None}})
    await devices.running("high", 4)
    await devices.empty("low")


async def test_whose_claim_another_pod_has_too_is_not_taken_for_it(devices, client, namespace):
    """The newest would go first, but its device would not come free."""
    await devices.runs("rest", 6, "high")
    await devices.runs("alone", 1)
    await devices.runs("shares", 1)
    (claim,) = [
        one["metadata"]["name"]
        for one in await client.list(RESOURCE_CLAIMS, namespace)
        if one["metadata"]["ownerReferences"][0]["name"].startswith("shares-")
    ]
    spec = {
        "containers": [{"name": "c", "image": "i"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
    }
    await client.create(PODS, {"metadata": {"name": "other"}, "spec": spec}, namespace)

    async def both():
        found = await client.get(RESOURCE_CLAIMS, claim, namespace)
        return len(found["status"]["reservedFor"]) == 2

    await until(both, "the claim to be reserved for both pods")
    await devices.train("high", 1, "high")
    await devices.running("high", 1)
    await devices.empty("alone")
    assert len(await devices.running("shares", 1)) == 1
    await client.delete(PODS, "other", namespace)
