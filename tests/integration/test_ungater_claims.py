"""Pods that ask for devices of resource claims, or of DeviceClasses, on the real control plane.

2 blocks x 2 racks x 2 hosts of 8 GPUs. No driver is there: what is placed by amounts alone would hang for ever.
"""

from contextlib import suppress

import aiohttp
import pytest
from support.jobs import GPU, KEYS, Watched, followed, job, nodes_of, until

from cli.explain.report import report
from kube.errors import NotFound
from kube.resources import CLUSTER_QUEUES, DEVICE_CLASSES, JOBS, LOCAL_QUEUES, NODES, PODS, STATEFUL_SETS, Resource

pytestmark = pytest.mark.cluster

API = {"apiVersion": "topogate.dev/v1alpha1"}
TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")
CLAIMS = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}
NOT_COUNTED = "ResourceClaimsNotCounted"
WHY = "devices of such are not counted yet, and pods would be sent to nodes on which none may be left"
ANYWHERE = {KEYS.unconstrained: "true"}


class Devices(Watched):
    """DeviceClasses, and the resources that they stand for, are named after the namespace, as they are of none."""

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
        await self.client.create(TEMPLATES, body, self.namespace)

    async def asking(self, resource, count=2):
        """A Job of so many pods with two of an extended resource each."""
        body = job("train", count)
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

    async def clear(self):
        with suppress(NotFound):
            await self.client.delete(DEVICE_CLASSES, self.namespace)


@pytest.fixture
async def devices(client, namespace, nodes):
    async with followed(Devices, client, namespace, nodes) as watched:
        yield watched
        await watched.clear()


@pytest.fixture
async def with_template(devices):
    await devices.device_class()
    await devices.template()
    return devices


async def test_a_job_whose_pods_have_claims_waits_and_everybody_is_told(with_template, client, namespace):
    devices = with_template
    await devices.create(job("train", 8, gpus=0, pod_spec=CLAIMS))
    told = f'the pods of pod set main have resource claim "gpu" (of template "one-gpu"): {WHY}'
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


async def test_in_a_queue_it_stays_suspended_and_holds_no_quota(with_template, client, namespace):
    quotas = [{"name": "cpu", "nominalQuota": 8}]
    group = {"coveredResources": ["cpu"], "flavors": [{"name": namespace, "resources": quotas}]}
    spec = {"resourceGroups": [group], "namespaceSelector": {}}
    await client.create(CLUSTER_QUEUES, {**API, "kind": "ClusterQueue", "metadata": {"name": namespace}, "spec": spec})
    local = {"metadata": {"name": "team"}, "spec": {"clusterQueue": namespace}}
    await client.create(LOCAL_QUEUES, {**API, "kind": "LocalQueue", **local}, namespace)
    queue = {KEYS.queue_name: "team"}
    for name, claims in (("train", CLAIMS), ("other", {})):
        await with_template.create(job(name, 8, gpus=0, labels=queue, spec={"suspend": True}, pod_spec=claims))
    await with_template.waits()
    await with_template.running("other", 8)
    assert (await client.get(JOBS, "train", namespace))["spec"]["suspend"]
    await client.delete(CLUSTER_QUEUES, namespace)


async def test_pods_of_a_stateful_set_and_bare_pods_wait_too(with_template, client, namespace):
    template = job("db", 1, gpus=0, request=ANYWHERE, pod_spec=CLAIMS)["spec"]["template"]
    template["metadata"]["labels"] = {"app": "db"}
    template["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": template}
    await client.create(STATEFUL_SETS, {"metadata": {"name": "db"}, "spec": spec}, namespace)
    bare = {"metadata": {"name": "bare", "annotations": ANYWHERE}, "spec": template["spec"]}
    await client.create(PODS, bare, namespace)
    for name in ("db", "bare"):
        assert (await with_template.waits(name)).startswith("the pods of pod set main have resource claim")
    assert await with_template.all_gated()


async def test_pods_that_come_with_claims_to_a_workload_that_runs_stay_gated(with_template, client, namespace):
    """A rolling update of a StatefulSet: the pod that it replaces runs on until then."""
    template = job("db", 1, gpus=0, request=ANYWHERE)["spec"]["template"]
    template["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "db"}
    template["spec"] |= {"restartPolicy": "Always", "terminationGracePeriodSeconds": 0}
    selector = {"matchLabels": template["metadata"]["labels"]}
    spec = {"replicas": 2, "serviceName": "db", "selector": selector, "template": template}
    await client.create(STATEFUL_SETS, {"metadata": {"name": "db"}, "spec": spec}, namespace)
    await with_template.running("db", 2)
    await client.patch(STATEFUL_SETS, "db", namespace, body={"spec": {"template": {"spec": CLAIMS}}})
    found = await with_template.condition("db", "PodsReady", "False", NOT_COUNTED)
    assert found["message"].startswith('pod db-1 stays gated: it has resource claim "gpu" (of template "one-gpu")')
    await with_template.running("db", 1)


async def test_what_a_class_stands_for_waits_until_a_node_publishes_it(devices, namespace):
    resource = devices.resource
    await devices.asking(resource)
    assert resource in await devices.waits(reason="NeverFits")
    await devices.device_class(resource)
    assert await devices.waits() == (
        f'the pods of pod set main ask for {resource}, which no node publishes and DeviceClass "{namespace}" stands for'
        f": {WHY}"
    )
    host = f"{namespace}-b2-r1-h2"
    await devices.publishes(host, resource, "4")
    assert nodes_of(await devices.running("train", 2)) == [host, host]


async def test_a_class_that_is_deleted_stands_for_nothing(devices, namespace):
    await devices.device_class(devices.resource)
    await devices.asking(devices.resource)
    await devices.waits()
    await devices.clear()
    await devices.waits(reason="NeverFits")


async def test_each_class_has_a_resource_of_its_own_name(devices, namespace):
    await devices.device_class()
    await devices.asking(f"deviceclass.resource.kubernetes.io/{namespace}")
    assert f'DeviceClass "{namespace}" stands for' in await devices.waits()
    await devices.delete("train")


async def test_a_restart_says_the_same_and_places_nothing(with_template):
    await with_template.create(job("train", 2, gpus=0, pod_spec=CLAIMS))
    told = await with_template.waits()
    await with_template.controller.crash()
    await with_template.controller.start()
    await with_template.create(job("other", 1))
    await with_template.running("other", 1)
    assert await with_template.waits() == told
    assert all(pod["spec"].get("schedulingGates") for pod in await with_template.pods("train"))


async def test_what_nodes_publish_is_placed_though_a_class_stands_for_it(devices):
    await devices.device_class(GPU)
    await devices.create(job("train", 2, gpus=8))
    await devices.running("train", 2)
