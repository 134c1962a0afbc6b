"""Pods that ask for devices of resource claims, or of DeviceClasses, on the real control plane.

2 blocks x 2 racks x 2 hosts of 8 GPUs. What is placed by amounts alone would hang for ever.
"""

import asyncio
import random
from collections import Counter
from contextlib import suppress

import aiohttp
import pytest
from support.claim_jobs import MACHINE, equip, mixed, stamped
from support.jobs import GPU, KEYS, Watched, followed, job, nodes_of, until

from cli.explain.report import report
from kube.errors import NotFound
from kube.resources import (
    CLAIM_TEMPLATES,
    CLUSTER_QUEUES,
    DEVICE_CLASSES,
    JOBS,
    LOCAL_QUEUES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STATEFUL_SETS,
)
from localcluster.dra.publish import publish
from localcluster.dra.slices import device_classes

pytestmark = pytest.mark.cluster

API = {"apiVersion": "topogate.dev/v1alpha1"}
CLAIMS = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}
OF_TEMPLATE = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}
DRIVER = "gpu.example.com"
NOT_COUNTED = "ResourceClaimsNotCounted"
WHY = 'ResourceClaim "shared" does not exist'
ANYWHERE = {KEYS.unconstrained: "true"}


class Devices(Watched):
    """DeviceClasses, and the resources that they stand for, are named after the namespace, as they are of none."""

    def __init__(self, client, namespace):
        super().__init__(client, namespace)
        self.equipped = []

    @property
    def resource(self):
        return f"{self.namespace}.example.com/gpu"

    async def device_class(self, resource=None):
        spec = {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]}
        spec |= {"extendedResourceName": resource} if resource else {}
        await self.client.create(DEVICE_CLASSES, {"metadata": {"name": self.namespace}, "spec": spec})

    async def template(self):
        request = {"name": "one", "exactly": {"deviceClassName": self.namespace}}
        body = {"metadata": {"name": "one-gpu"}, "spec": {"spec": {"devices": {"requests": [request]}}}}
        await self.client.create(CLAIM_TEMPLATES, body, self.namespace)

    async def claim(self, name):
        """One device, for whoever names the claim."""
        request = {"name": "one", "exactly": {"deviceClassName": self.namespace}}
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        await self.client.create(RESOURCE_CLAIMS, body, self.namespace)

    async def equip(self, host, count):
        """A driver publishes so many devices of a node."""
        pool = {"name": host, "generation": 1, "resourceSliceCount": 1}
        made = [{"name": f"gpu-{number}"} for number in range(count)]
        spec = {"driver": DRIVER, "nodeName": host, "pool": pool, "devices": made}
        await self.client.create(RESOURCE_SLICES, {"metadata": {"name": f"{host}-gpus"}, "spec": spec})
        self.equipped.append(f"{host}-gpus")

    async def reached(self, name, hosts, count):
        """A driver publishes so many devices that all of some nodes reach."""
        need = {"key": "kubernetes.io/hostname", "operator": "In", "values": hosts}
        pool = {"name": f"{self.namespace}-{name}", "generation": 1, "resourceSliceCount": 1}
        made = [{"name": f"gpu-{number}"} for number in range(count)]
        selector = {"nodeSelectorTerms": [{"matchExpressions": [need]}]}
        spec = {"driver": DRIVER, "nodeSelector": selector, "pool": pool, "devices": made}
        await self.client.create(RESOURCE_SLICES, {"metadata": {"name": pool["name"]}, "spec": spec})
        self.equipped.append(pool["name"])

    async def without(self, name):
        """Whether no pod of a Job is left."""
        pods = await self.client.list(PODS, self.namespace)
        return all(one["metadata"]["labels"]["batch.kubernetes.io/job-name"] != name for one in pods)

    async def asking(self, resource, count=2, name="train"):
        """A Job of so many pods with two of an extended resource each."""
        body = job(name, count)
        (container,) = body["spec"]["template"]["spec"]["containers"]
        container["resources"] = {"limits": {resource: "2", "cpu": "1"}}
        await self.create(body)

    async def publishes(self, node, resource, amount):
        """A device plugin of a node tells how many it has."""
        body = {"status": {"allocatable": {resource: amount}, "capacity": {resource: amount}}}
        await self.client.patch(NODES, node, body=body, subresource="status")

    async def waits(self, name="train", reason=NOT_COUNTED):
        return (await self.condition(name, "QuotaReserved", "False", reason))["message"]

    async def all_gated(self):
        pods = await self.client.list(PODS, self.namespace)
        return pods and all(pod["spec"].get("schedulingGates") for pod in pods)

    async def nobody_hangs(self):
        """Whether each pod that is not gated is on a node; some are, and nothing has changed for two seconds."""

        async def look():
            pods = await self.client.list(PODS, self.namespace)
            return {
                pod["metadata"]["name"]: pod["spec"].get("nodeName", "")
                for pod in pods
                if not pod["spec"].get("schedulingGates") and not pod["metadata"].get("deletionTimestamp")
            }

        before = await look()
        await asyncio.sleep(2)
        return before and all(before.values()) and await look() == before

    async def clear(self):
        with suppress(NotFound):
            await self.client.delete(DEVICE_CLASSES, self.namespace)
        while self.equipped:
            await self.client.delete(RESOURCE_SLICES, self.equipped.pop())


@pytest.fixture
async def devices(client, namespace, nodes):
    async with followed(Devices, client, namespace, nodes) as watched:
        yield watched
        await watched.clear()


async def test_a_job_whose_pods_have_claims_waits_and_everybody_is_told(devices, client, namespace):
    await devices.create(job("train", 8, gpus=0, pod_spec=CLAIMS))
    told = f'the pods of pod set main have resource claim "gpu" (ResourceClaim "shared"): {WHY}'
    assert await devices.waits() == told
    assert (await devices.event("train", NOT_COUNTED))["note"] == told
    found = await report(client, namespace, "train")
    assert (found.state, found.reason, found.message) == ("Waiting", NOT_COUNTED, told)
    await devices.create(job("other", 2, gpus=8))
    await devices.running("other", 2)
    assert await devices.all_gated() is False
    assert all(pod["spec"].get("schedulingGates") for pod in await devices.pods("train"))

    async def counted():
        async with aiohttp.ClientSession() as session:
            text = await (await session.get(f"http://127.0.0.1:{devices.controller.port}/metrics")).text()
        return f'topogate_pending_workloads{{reason="{NOT_COUNTED}"}} 1.0' in text

    await until(counted, "the metric to count it by its reason")


async def test_in_a_queue_it_stays_suspended_and_holds_no_quota(devices, client, namespace):
    quotas = [{"name": "cpu", "nominalQuota": 8}]
    group = {"coveredResources": ["cpu"], "flavors": [{"name": namespace, "resources": quotas}]}
    spec = {"resourceGroups": [group], "namespaceSelector": {}}
    await client.create(CLUSTER_QUEUES, {**API, "kind": "ClusterQueue", "metadata": {"name": namespace}, "spec": spec})
    local = {"metadata": {"name": "team"}, "spec": {"clusterQueue": namespace}}
    await client.create(LOCAL_QUEUES, {**API, "kind": "LocalQueue", **local}, namespace)
    queue = {KEYS.queue_name: "team"}
    for name, claims in (("train", CLAIMS), ("other", {})):
        await devices.create(job(name, 8, gpus=0, labels=queue, spec={"suspend": True}, pod_spec=claims))
    await devices.waits()
    await devices.running("other", 8)
    assert (await client.get(JOBS, "train", namespace))["spec"]["suspend"]
    await client.delete(CLUSTER_QUEUES, namespace)


async def test_pods_of_a_stateful_set_and_bare_pods_wait_too(devices, client, namespace):
    template = job("db", 1, gpus=0, request=ANYWHERE, pod_spec=CLAIMS)["spec"]["template"]
    template["metadata"]["labels"] = {"app": "db"}
    template["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": template}
    await client.create(STATEFUL_SETS, {"metadata": {"name": "db"}, "spec": spec}, namespace)
    bare = {"metadata": {"name": "bare", "annotations": ANYWHERE}, "spec": template["spec"]}
    await client.create(PODS, bare, namespace)
    for name in ("db", "bare"):
        assert (await devices.waits(name)).startswith("the pods of pod set main have resource claim")
    assert await devices.all_gated()


async def test_pods_that_come_with_claims_to_a_workload_that_runs_stay_gated(devices, client, namespace):
    """A rolling update of a StatefulSet: the pod that it replaces runs on until then."""
    template = job("db", 1, gpus=0, request=ANYWHERE)["spec"]["template"]
    template["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "db"}
    template["spec"] |= {"restartPolicy": "Always", "terminationGracePeriodSeconds": 0}
    selector = {"matchLabels": template["metadata"]["labels"]}
    spec = {"replicas": 2, "serviceName": "db", "selector": selector, "template": template}
    await client.create(STATEFUL_SETS, {"metadata": {"name": "db"}, "spec": spec}, namespace)
    await devices.running("db", 2)
    await client.patch(STATEFUL_SETS, "db", namespace, body={"spec": {"template": {"spec": CLAIMS}}})
    found = await devices.condition("db", "PodsReady", "False", NOT_COUNTED)
    assert found["message"].startswith('pod db-1 stays gated: it has resource claim "gpu" (ResourceClaim "shared")')
    await devices.running("db", 1)


async def test_pods_share_a_claim_that_has_devices_and_one_may_have_it_first(devices, client, namespace):
    """A Job of one pod is given the claim, and one of three comes to it."""
    host = f"{namespace}-b2-r2-h1"
    await devices.device_class()
    await devices.create(job("first", 1, gpus=0, pod_spec=CLAIMS))
    assert (await devices.waits("first")).endswith(WHY)
    await devices.equip(host, 2)
    await devices.claim("shared")
    assert nodes_of(await devices.running("first", 1)) == [host]
    await devices.create(job("train", 3, gpus=0, pod_spec=CLAIMS))
    assert nodes_of(await devices.running("train", 3)) == [host] * 3
    await devices.controller.crash()
    await devices.controller.start()
    await devices.create(job("next", 1, gpus=0, pod_spec=CLAIMS))
    assert nodes_of(await devices.running("next", 1)) == [host]
    (claim,) = await client.list(RESOURCE_CLAIMS, namespace)
    assert len(claim["status"]["reservedFor"]) == 5


async def test_pods_that_share_a_claim_without_devices_all_run_on_its_node(devices, client, namespace):
    """Of two racks of two nodes one node has two devices: one pod is given one for all, and another Job the other."""
    host = f"{namespace}-b1-r2-h2"
    await devices.device_class()
    await devices.template()
    await devices.claim("shared")
    await devices.equip(host, 2)
    await devices.create(job("train", 4, gpus=0, pod_spec=CLAIMS))
    assert nodes_of(await devices.running("train", 4)) == [host] * 4
    await devices.create(job("other", 1, gpus=0, pod_spec=OF_TEMPLATE))
    assert nodes_of(await devices.running("other", 1)) == [host]
    await devices.create(job("next", 1, gpus=0, pod_spec=OF_TEMPLATE))
    await devices.waits("next", "DoesNotFit")
    claims = await client.list(RESOURCE_CLAIMS, namespace)
    users = [len(one["status"].get("reservedFor", ())) for one in claims if one["metadata"]["name"] == "shared"]
    assert users == [4]


async def test_pods_that_share_a_claim_run_on_all_nodes_that_reach_its_devices(devices, client, namespace):
    """Each pod takes the most of a node, so four pods need both nodes of the rack; one device is given to all."""
    hosts = [f"{namespace}-b1-r2-h1", f"{namespace}-b1-r2-h2"]
    await devices.device_class()
    await devices.template()
    await devices.claim("shared")
    await devices.reached("fabric", hosts, 2)
    await devices.create(job("train", 4, gpus=4, pod_spec=CLAIMS))
    assert Counter(nodes_of(await devices.running("train", 4))) == dict.fromkeys(hosts, 2)
    (claim,) = await client.list(RESOURCE_CLAIMS, namespace)
    assert len(claim["status"]["allocation"]["devices"]["results"]) == 1
    await devices.create(job("other", 1, gpus=0, pod_spec=OF_TEMPLATE))
    assert nodes_of(await devices.running("other", 1))[0] in hosts
    await devices.create(job("next", 1, gpus=0, pod_spec=OF_TEMPLATE))
    await devices.waits("next", "DoesNotFit")


async def test_no_more_pods_run_on_the_nodes_of_a_rack_than_it_has_devices(devices, client, namespace):
    """Four Jobs come at once for three devices that two nodes reach, two pods each: one runs, then the next."""
    hosts = [f"{namespace}-b2-r1-h1", f"{namespace}-b2-r1-h2"]
    await devices.device_class()
    await devices.template()
    await devices.reached("fabric", hosts, 3)
    names = [f"train-{number}" for number in range(4)]
    for name in names:
        await devices.create(job(name, 2, gpus=3, pod_spec=OF_TEMPLATE))
    for _ in names:
        await until(devices.nobody_hangs, "all pods that were let go")
        pods = [one for one in await client.list(PODS, namespace) if not one["spec"].get("schedulingGates")]
        (runs,) = {one["metadata"]["labels"]["batch.kubernetes.io/job-name"] for one in pods}
        assert len(pods) == 2
        assert {one["spec"]["nodeName"] for one in pods} <= set(hosts)
        await devices.delete(runs)
        await until(lambda gone=runs: devices.without(gone), f"the end of {runs}")


async def test_of_two_workloads_that_name_a_claim_one_goes_first(devices, namespace):
    """Without that each would go to another node, and one of them hang there."""
    hosts = [f"{namespace}-b1-r1-h1", f"{namespace}-b2-r1-h1"]
    await devices.device_class()
    await devices.claim("shared")
    for name in ("one", "two"):
        await devices.create(job(name, 1, gpus=0, pod_spec=CLAIMS))
    for host in hosts:
        await devices.equip(host, 1)
    ran = [nodes_of(await devices.running(name, 1)) for name in ("one", "two")]
    assert ran[0] == ran[1]


async def test_pods_with_claims_of_a_template_run_where_their_devices_are(devices, client, namespace):
    """Eight pods with one device each, two nodes of four in a cluster of eight nodes: no pod is sent anywhere else."""
    await devices.device_class()
    await devices.template()
    hosts = [f"{namespace}-b2-r1-h1", f"{namespace}-b2-r1-h2"]
    for host in hosts:
        await devices.equip(host, 4)
    await devices.create(job("train", 8, gpus=0, pod_spec=OF_TEMPLATE))
    assert Counter(nodes_of(await devices.running("train", 8))) == dict.fromkeys(hosts, 4)
    claims = await client.list(RESOURCE_CLAIMS, namespace)
    given = [one for claim in claims for one in claim["status"]["allocation"]["devices"]["results"]]
    assert len({(one["pool"], one["device"]) for one in given}) == 8
    await devices.create(job("next", 2, gpus=0, pod_spec=OF_TEMPLATE))
    await devices.waits("next", "DoesNotFit")
    await devices.delete("train")
    await devices.running("next", 2)


async def test_of_a_machine_of_four_devices_eight_pods_take_two(devices, client, namespace):
    """One node of four devices cannot take the Job, so it waits, and says for what; then a second one comes."""
    await devices.device_class()
    await devices.template()
    hosts = [f"{namespace}-b1-r2-h1", f"{namespace}-b1-r2-h2"]
    await devices.equip(hosts[0], 4)
    await devices.create(job("train", 8, gpus=0, pod_spec=OF_TEMPLATE))
    told = await devices.waits(reason="NeverFits")
    assert "takes 4: devices of claims are short" in told
    rooms = [room.devices for room in (await report(client, namespace, "train")).room]
    assert f'{hosts[0]}: claim "gpu", request "one" (1 of DeviceClass "{namespace}"): 4 fit' in rooms
    await devices.controller.crash()
    await devices.controller.start()
    await devices.equip(hosts[1], 4)
    assert Counter(nodes_of(await devices.running("train", 8))) == dict.fromkeys(hosts, 4)


async def test_mixed_jobs_never_hang_though_the_controller_dies(devices, client, namespace):
    """Whole GPUs, MIG devices of the same GPUs, shares, alternatives, pairs in a NUMA zone, GPUs with their NICs.

    They come and go. Some ask for MIG devices as an extended resource, and the pods of some share one claim.
    """
    dice = random.Random(18)
    hosts = [f"{namespace}-b{block}-r{rack}-h{host}" for block in (1, 2) for rack in (1, 2) for host in (1, 2)]
    await equip(client, hosts, namespace)
    there: list[str] = []
    for number, plan in enumerate(mixed(48, [ANYWHERE], seed=18, seconds=(3600, 3600), without=[GPU])):
        if plan.shared is not None:
            await client.create(RESOURCE_CLAIMS, {"metadata": {"name": plan.claim}, "spec": plan.shared}, namespace)
        await devices.create(stamped(plan.body(topology=True)))
        there.append(plan.name)
        if len(there) > 12:
            await devices.delete(there.pop(dice.randrange(len(there))))
        if number % 9 == 8:
            await devices.controller.crash()
            await devices.controller.start()
    await until(devices.nobody_hangs, "all pods that were let go to run", seconds=60)
    for name in there[:6]:
        await devices.delete(name)
    await until(devices.nobody_hangs, "all pods that were let go to run", seconds=60)
    assert sum(1 for pod in await client.list(PODS, namespace) if pod["status"].get("phase") == "Running") > 8
    await publish(client, hosts, MACHINE, None)
    for one in device_classes():
        await client.delete(DEVICE_CLASSES, one["metadata"]["name"])


async def test_an_extended_resource_of_a_class_goes_where_devices_are(devices, client, namespace):
    resource, host = devices.resource, f"{namespace}-b2-r1-h2"
    await devices.asking(resource)
    assert resource in await devices.waits(reason="NeverFits")
    await devices.device_class(resource)
    await devices.equip(host, 4)
    assert nodes_of(await devices.running("train", 2)) == [host, host]
    pods = await devices.pods("train")
    made = {pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"] for pod in pods}
    assert made == {claim["metadata"]["name"] for claim in await client.list(RESOURCE_CLAIMS, namespace)}
    await devices.asking(resource, 1, "next")
    await devices.waits("next", "DoesNotFit")
    rooms = [room.devices for room in (await report(client, namespace, "next")).room]
    request = f'{host}: claim "<extended-resources>", request "container-0-request-1" (2 of DeviceClass "{namespace}")'
    assert any(room.startswith(f"{request}: 4 fit, 4 held by {namespace}/train-") for room in rooms)
    await devices.controller.crash()
    await devices.controller.start()
    await devices.delete("train")
    await devices.running("next", 1)


async def test_a_device_plugin_serves_its_node_beside_devices_of_others(devices, client, namespace):
    """Of one rack one node has two devices, and the other a plugin with two: each takes one pod of two."""
    resource, hosts = devices.resource, [f"{namespace}-b1-r2-h1", f"{namespace}-b1-r2-h2"]
    await devices.device_class(resource)
    await devices.equip(hosts[0], 2)
    await devices.equip(hosts[1], 2)
    await devices.publishes(hosts[1], resource, "2")
    await devices.asking(resource)
    assert sorted(nodes_of(await devices.running("train", 2))) == hosts
    (claim,) = await client.list(RESOURCE_CLAIMS, namespace)
    assert [one["pool"] for one in claim["status"]["allocation"]["devices"]["results"]] == [hosts[0], hosts[0]]
    await devices.asking(resource, 1, "next")
    await devices.waits("next", "DoesNotFit")


async def test_a_class_that_is_deleted_stands_for_nothing_until_it_is_made_again(devices, namespace):
    await devices.device_class(devices.resource)
    await devices.asking(devices.resource)
    assert "has the devices of a pod's claims" in await devices.waits(reason="NeverFits")
    await devices.clear()
    host = f"{namespace}-b1-r1-h1"
    await devices.equip(host, 4)
    await devices.create(job("other", 1))
    await devices.running("other", 1)
    await devices.waits(reason="NeverFits")
    await devices.device_class(devices.resource)
    assert nodes_of(await devices.running("train", 2)) == [host, host]


async def test_each_class_has_a_resource_of_its_own_name(devices, namespace):
    host = f"{namespace}-b1-r1-h1"
    await devices.device_class()
    await devices.equip(host, 4)
    await devices.asking(f"deviceclass.resource.kubernetes.io/{namespace}")
    assert nodes_of(await devices.running("train", 2)) == [host, host]
    await devices.delete("train")


async def test_a_restart_says_the_same_and_places_nothing(devices):
    await devices.create(job("train", 2, gpus=0, pod_spec=CLAIMS))
    told = await devices.waits()
    await devices.controller.crash()
    await devices.controller.start()
    await devices.create(job("other", 1))
    await devices.running("other", 1)
    assert await devices.waits() == told
    assert all(pod["spec"].get("schedulingGates") for pod in await devices.pods("train"))


async def test_what_nodes_publish_is_placed_though_a_class_stands_for_it(devices):
    await devices.device_class(GPU)
    await devices.create(job("train", 2, gpus=8))
    await devices.running("train", 2)
