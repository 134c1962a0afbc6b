"""Devices of claims in a siege: what the tenant does with claims, and what is seen of devices.

The eight machines have four GPUs of a driver each (`localcluster.dra`). The tenant's queue has quota of eight of them,
the honest one's of all 32. What the siege looks at counts amounts, so devices are looked at here.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from support.claim_jobs import MACHINE
from support.jobs import until
from support.queues import API, queued
from support.siege import ANYWHERE

from kube.errors import NotFound
from kube.resources import (
    CLAIM_TEMPLATES,
    CLUSTER_QUEUES,
    DEVICE_CLASSES,
    JOBS,
    LOCAL_QUEUES,
    PODS,
    RESOURCE_CLAIMS,
)
from localcluster.dra.driver import parse_driver
from localcluster.dra.publish import publish
from localcluster.dra.slices import device_classes

GPU_CLASS = "gpu.nvidia.com"
SETTINGS = {"device_class_mappings": [{"name": "gpus", "device_class_names": [GPU_CLASS]}]}
QUOTA, DEVICES = 8, 32
NOT_COUNTED = "ResourceClaimsNotCounted"


def exactly(name="gpu", **fields):
    return {"name": name, "exactly": {"deviceClassName": GPU_CLASS, **fields}}


def asks(*requests, **more):
    return {"devices": {"requests": list(requests) or [exactly()], **more}}


def where(expression):
    return asks(exactly(selectors=[{"cel": {"expression": expression}}]))


def of_template(name):
    return {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}]}


def of_claim(name):
    return {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}


class Claims:
    """What the tenant does with claims, and what is seen of devices."""

    def __init__(self, siege):
        self.siege = siege
        self.tenant, self.admin = siege.tenant, siege.admin
        self.namespace = siege.namespace

    async def template(self, name, spec, *, by=None, namespace=""):
        body = {"metadata": {"name": name}, "spec": {"spec": spec}}
        return await (by or self.tenant).create(CLAIM_TEMPLATES, body, namespace or self.namespace)

    async def claim(self, name, spec, **meta):
        body = {"metadata": {"name": name, **meta}, "spec": spec}
        return await self.tenant.create(RESOURCE_CLAIMS, body, self.namespace)

    async def queued(self, name, pods=1, pod_spec=None, queue="devices", **more):
        """A Job of the tenant's in its queue."""
        body = queued(name, pods, queue, gpus=0, request=ANYWHERE, pod_spec=pod_spec or of_template("one"), **more)
        return await self.tenant.create(JOBS, body, self.namespace)

    async def plain(self, name, pods=1, pod_spec=None, **more):
        """A Job of the tenant's without a queue."""
        asked = pod_spec or of_template("one")
        body = queued(name, pods, gpus=0, request=ANYWHERE, pod_spec=asked, spec={"suspend": False}, **more)
        body["metadata"]["labels"] = {}
        return await self.tenant.create(JOBS, body, self.namespace)

    async def pods(self, job):
        found = await self.admin.list(PODS, self.namespace)
        return [pod for pod in found if pod["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name") == job]

    async def given(self):
        """Devices that claims of the tenant have."""
        claims = await self.admin.list(RESOURCE_CLAIMS, self.namespace)
        results = (one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ()) for one in claims)
        return sum(map(len, results))

    async def charged(self):
        """Devices that the tenant's queue says are used."""
        queue = await self.admin.get(CLUSTER_QUEUES, f"{self.namespace}-devices")
        flavors = queue.get("status", {}).get("flavorsUsage") or []
        return sum(int(one["total"]) for flavor in flavors for one in flavor["resources"] if one["name"] == "gpus")

    async def paid(self, devices=None):
        """What claims have is what the queue is charged for, at last, and for a second."""

        async def same():
            first = await self.given(), await self.charged()
            await asyncio.sleep(0.3)
            return first[0] == first[1] and devices in {None, first[0]} and first[0] == await self.given()

        await until(same, f"{'what is had' if devices is None else devices} and charged to be the same")
        assert await self.given() <= QUOTA

    async def others_run(self, pods=2, **pod_spec):
        """While the attack stands: an honest job in a queue gets devices."""
        await self._honest("probe", pods, **pod_spec)

    async def nothing_is_held(self):
        """After all of them: an honest job gets all devices that there are."""
        await self._honest("every", DEVICES)

    async def _honest(self, name, pods, **pod_spec):
        theirs, spec = self.siege.theirs, {**of_template("one"), **pod_spec}
        await theirs.submit(name, pods, "devices", gpus=0, request=ANYWHERE, pod_spec=spec)
        await theirs.running(name, pods)
        await theirs.delete(name)

        async def gone():
            claims = await self.admin.list(RESOURCE_CLAIMS, theirs.namespace)
            return not claims and not await theirs.pods(name)

        await until(gone, f"pods and claims of {name} to go")

    async def clean(self, *kept):
        """Delete all that the tenant has, but the templates ``one`` and those of these names."""
        await self.siege.clean()
        for resource in (CLAIM_TEMPLATES, RESOURCE_CLAIMS):
            for obj in await self.admin.list(resource, self.namespace):
                if obj["metadata"]["name"] not in {"one", *kept}:
                    with suppress(NotFound):
                        await self.admin.delete(resource, obj["metadata"]["name"], self.namespace)

        async def gone():
            return not await self.admin.list(RESOURCE_CLAIMS, self.namespace)

        await until(gone, "the claims of the tenant to go")


async def make_queue(admin, namespace, flavor, devices):
    quotas = [{"name": "cpu", "nominalQuota": "1k"}, {"name": "gpus", "nominalQuota": devices}]
    group = {"coveredResources": ["cpu", "gpus"], "flavors": [{"name": flavor, "resources": quotas}]}
    body = {"metadata": {"name": f"{namespace}-devices"}, "spec": {"resourceGroups": [group], "namespaceSelector": {}}}
    await admin.create(CLUSTER_QUEUES, {"apiVersion": API, "kind": "ClusterQueue", **body})
    body = {"metadata": {"name": "devices"}, "spec": {"clusterQueue": f"{namespace}-devices"}}
    await admin.create(LOCAL_QUEUES, {"apiVersion": API, "kind": "LocalQueue", **body}, namespace)


def hosts_of(siege):
    """The names of the machines."""
    return [f"{siege.name}-b{block}-r{rack}-h{host}" for block in (1, 2) for rack in (1, 2) for host in (1, 2)]


@asynccontextmanager
async def equipped_siege(siege) -> AsyncIterator[Claims]:
    """Devices, classes, quota of them, and a template of one device for either; in the end nothing may be held."""
    admin, made, hosts = siege.admin, Claims(siege), hosts_of(siege)
    await publish(admin, hosts, MACHINE, parse_driver("gpus"))
    for namespace, devices in ((siege.namespace, QUOTA), (siege.theirs.namespace, DEVICES)):
        await make_queue(admin, namespace, siege.name, devices)
        await made.template("one", asks(), by=admin, namespace=namespace)
    yield made
    await made.nothing_is_held()
    for namespace in (siege.namespace, siege.theirs.namespace):
        await admin.delete(CLUSTER_QUEUES, f"{namespace}-devices")
    await publish(admin, hosts, MACHINE, None)
    for one in device_classes():
        await admin.delete(DEVICE_CLASSES, one["metadata"]["name"])
