"""Quota of devices of resource claims, on the real control plane with the stand-in driver of simulated machines.

Eight machines of 4 GPUs each: there are devices enough for everybody, and quota is not.
"""

import asyncio

import pytest
from support.jobs import KEYS, followed, until
from support.queues import API, Queued, make_priorities

from kube.resources import CLAIM_TEMPLATES, CLUSTER_QUEUES, DEVICE_CLASSES, LOCAL_QUEUES, PODS, RESOURCE_CLAIMS
from localcluster.dra.driver import parse_driver
from localcluster.dra.publish import publish
from localcluster.dra.slices import device_classes

pytestmark = pytest.mark.cluster

MACHINE = "1 socket / 2 NUMA / 8 cores / 4 GPUs / 4 NICs / 64Gi"
MAPPINGS = [{"name": "gpus", "device_class_names": ["gpu.nvidia.com", "mig.nvidia.com"]}]
ONE = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}
ANYWHERE = {KEYS.unconstrained: "true"}


class Devices(Queued):
    """Jobs whose pods have claims of one GPU each, in queues with quota of GPUs."""

    async def template(self, name, of, **fields):
        request = {"name": "gpu", "exactly": {"deviceClassName": of, **fields}}
        body = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": [request]}}}}
        await self.client.create(CLAIM_TEMPLATES, body, self.namespace)

    async def queue(self, name, gpus, **spec):
        quotas = [{"name": "cpu", "nominalQuota": "1k"}, {"name": "gpus", "nominalQuota": gpus}]
        group = {"coveredResources": ["cpu", "gpus"], "flavors": [{"name": self.namespace, "resources": quotas}]}
        spec = {"resourceGroups": [group], "namespaceSelector": {}, **spec}
        whole = f"{self.namespace}-{name}"
        body = {"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": whole}, "spec": spec}
        await self.client.create(CLUSTER_QUEUES, body)
        local = {"apiVersion": API, "kind": "LocalQueue", "metadata": {"name": name}, "spec": {"clusterQueue": whole}}
        await self.client.create(LOCAL_QUEUES, local, self.namespace)

    async def train(self, name, pods=2, queue="team", *, pod_spec=ONE, **more):
        await self.submit(name, pods, queue, gpus=0, request=ANYWHERE, pod_spec=pod_spec, **more)

    async def uses(self, gpus, queue="team"):
        """Wait until the queue reports so many, in use and reserved."""

        async def told():
            found = await self.client.get(CLUSTER_QUEUES, f"{self.namespace}-{queue}")
            for kind in ("flavorsUsage", "flavorsReservation"):
                flavors = found.get("status", {}).get(kind) or []
                totals = [one["total"] for each in flavors for one in each["resources"] if one["name"] == "gpus"]
                if totals != [str(gpus)]:
                    return False
            return True

        await until(told, f"queue {queue} to use {gpus} gpus")

    async def allocated(self, job):
        """So many devices the claims of the pods of a job have."""
        claims = await self.client.list(RESOURCE_CLAIMS, self.namespace)
        mine = [one for one in claims if one["metadata"]["ownerReferences"][0]["name"].startswith(f"{job}-")]
        given = (one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ()) for one in mine)
        return sum(map(len, given))


@pytest.fixture
async def devices(client, namespace, nodes):
    async with followed(Devices, client, namespace, nodes, device_class_mappings=MAPPINGS) as watched:
        hosts = [f"{namespace}-b{block}-r{rack}-h{host}" for block in (1, 2) for rack in (1, 2) for host in (1, 2)]
        await publish(client, hosts, MACHINE, parse_driver("gpus"))
        await watched.template("one", "gpu.nvidia.com")
        yield watched
        for queue in await client.list(CLUSTER_QUEUES):
            if queue["metadata"]["name"].startswith(f"{namespace}-"):
                await client.delete(CLUSTER_QUEUES, queue["metadata"]["name"])
        await publish(client, hosts, MACHINE, None)
        for one in device_classes():
            await client.delete(DEVICE_CLASSES, one["metadata"]["name"])


async def test_of_four_devices_of_quota_two_jobs_of_two_run_and_the_third_comes_when_one_ends(
    devices, client, namespace
):
    await devices.queue("team", 4)
    for name in ("a", "b"):
        await devices.train(name)
        await devices.running(name, 2)
        assert await devices.allocated(name) == 2
    await devices.train("c")
    told = await devices.waits("c", "InsufficientQuota")
    assert told.startswith(f"2 gpus of flavor {namespace} wanted, 2 more than is left: cluster queue {namespace}-team")
    (admitted,) = (await devices.status("a"))["admission"]["podSetAssignments"]
    assert (admitted["resourceUsage"]["gpus"], admitted["flavors"]["gpus"]) == ("2", namespace)
    await devices.uses(4)
    await devices.controller.crash()
    await devices.controller.start()
    await devices.train("d", queue="team")
    await devices.waits("d", "InsufficientQuota")
    await devices.uses(4)
    assert not await devices.pods("c")
    await devices.finish("a")
    await devices.running("c", 2)
    await devices.uses(4)


async def test_who_is_more_important_gets_quota_of_devices_from_others(devices, client):
    await make_priorities(client)
    await devices.queue("team", 4, preemption={"withinClusterQueue": "LowerPriority"})
    await devices.train("low", 4, priority="low")
    await devices.running("low", 4)
    await devices.train("high", priority="high")
    await devices.running("high", 2)
    await devices.condition("low", "Evicted", "True", "Preempted")
    await devices.empty("low")
    await devices.uses(2)
    await devices.delete("high")
    await devices.running("low", 4)


async def test_quota_of_devices_is_lent_and_taken_back(devices, namespace):
    cohort = {"cohortName": namespace}
    await devices.queue("a", 2, **cohort)
    await devices.queue("b", 2, preemption={"reclaimWithinCohort": "Any"}, **cohort)
    for name in ("mine", "lent"):
        await devices.train(name, queue="a")
        await devices.running(name, 2)
    await devices.uses(4, "a")
    await devices.train("owner", queue="b")
    await devices.running("owner", 2)
    await devices.empty("lent")
    await devices.uses(2, "a")
    await devices.uses(2, "b")
    assert len(await devices.running("mine", 2)) == 2


async def test_a_template_that_is_made_again_lets_no_pod_take_more_than_was_charged(devices, client, namespace):
    """Neither while the controller knows what was admitted, nor by the charge alone, which is what a restart knows."""
    await devices.queue("team", 3)
    await devices.train("first", 2)
    pods = await devices.running("first", 2)
    await client.delete(CLAIM_TEMPLATES, "one", namespace)
    await devices.template("one", "gpu.nvidia.com", count=2)
    await client.delete(PODS, pods[0]["metadata"]["name"], namespace)
    said = await devices.condition("first", "PodsReady", "False", "ResourceClaimsNotCounted")
    assert "stays gated: it has resource claim" in said["message"]
    await devices.controller.crash()
    await devices.controller.start()
    said = await devices.condition("first", "PodsReady", "False", "AsksForMore")
    assert "asks for gpus 2, and Job" in said["message"]
    await devices.uses(2)
    (gated,) = [pod for pod in await devices.pods("first") if pod["spec"].get("schedulingGates")]
    await client.delete(CLAIM_TEMPLATES, "one", namespace)
    await devices.template("one", "gpu.nvidia.com")
    await devices.controller.crash()
    await devices.controller.start()
    await client.delete(PODS, gated["metadata"]["name"], namespace)
    await devices.running("first", 2)
    await devices.uses(2)


async def test_what_quota_cannot_count_waits_with_its_reason(devices):
    await devices.queue("team", 4)
    await devices.template("every", "gpu.nvidia.com", allocationMode="All")
    await devices.template("nic", "dranet")
    for name, why in (("every", "asks for devices by All"), ("nic", 'DeviceClass "dranet", which no entry of')):
        claims = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}]}
        await devices.train(name, pod_spec=claims)
        assert why in await devices.waits(name, "ResourceClaimsNotCounted")
    await devices.train("fine")
    await devices.running("fine", 2)
    await asyncio.sleep(0.5)
    await devices.uses(2)
