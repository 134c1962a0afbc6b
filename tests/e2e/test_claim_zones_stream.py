"""Jobs that wish devices of claims and CPUs from one zone come and go on simulated machines with real allocations.

The stock kube-scheduler gives the devices, simulated kubelets the CPUs, and neither knows of the other: without
Topogate's order a fair part of the pods has its GPU in one zone and its CPUs in another.
"""

import asyncio
import random

import pytest
from support.house import NAMESPACE, house
from support.jobs import KEYS

from crds.constants import NUMA_PLACEMENT_OBSERVED, NUMA_POLICY
from crds.numa_placement import decode
from kube.informer import Informer
from kube.objects import Pod, condition
from kube.pods.devices import ResourceClaim
from kube.resources import CLAIM_TEMPLATES, FLEX_TOPOS, JOBS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, WORKLOADS
from localcluster import Fleet, add_nodes, wait_ready
from localcluster.kubelets.fleet import Publishing
from ungater.model.conditions import moment
from ungater.numa.in_flight import PATIENCE

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

MACHINE = "2 NUMA / 16 cores / 4 GPUs / 64Gi"
FLEETS = [
    Fleet(blocks=1, racks=1, hosts=2, prefix=f"m{at}-", machine=MACHINE, kubelet=kubelet, dra="gpus")
    for at, kubelet in enumerate(("single-numa-node, container", "best-effort, pod"))
]
JOBS_MADE = 24
LEASE = {"TOPOGATE_LEASE_SECONDS": "15", "TOPOGATE_LEASE_RENEW_SECONDS": "3", "TOPOGATE_LEASE_RETRY_SECONDS": "1"}
NUMA_NODE = "resource.kubernetes.io/numaNode"
WISHES = {KEYS.unconstrained: "true", NUMA_POLICY: "single-numa-node"}


class Watch:
    """By pod: the zones of its devices, those of its CPUs, and the seconds for which it was gated."""

    def __init__(self):
        self.devices = {}
        self.cpus = {}
        self.gated = {}

    def on_claim(self, event):
        claim = event.new
        if claim is not None and claim.results:
            (owner,) = claim.metadata.owner_references
            self.devices[owner.name] = {(one["pool"], one["device"]) for one in claim.results}

    def on_pod(self, event):
        pod = event.new
        text = (pod.metadata.annotations or {}).get(NUMA_PLACEMENT_OBSERVED) if pod is not None else None
        scheduled = condition(pod.status.conditions, "PodScheduled") if pod is not None else None
        if scheduled is not None and scheduled.status == "True":
            came, went = pod.metadata.creation_timestamp, scheduled.last_transition_time
            self.gated[pod.metadata.name] = moment(went) - moment(came)
        if text:
            self.cpus[pod.metadata.name] = {use.zone for use in decode(text).zones if use.amounts.get("cpu")}


def body(name, pods, cpu, gpus, seconds):
    amounts = {"cpu": str(cpu), "memory": "1Gi"}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
    container["resources"] = {**container["resources"], "claims": [{"name": "gpu"}]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": f"gpu-{gpus}"}]
    template = {"metadata": {"annotations": {"topogate.dev/run-seconds": str(seconds)}}, "spec": spec}
    meta = {"name": name, "annotations": WISHES}
    return {"metadata": meta, "spec": {"parallelism": pods, "completions": pods, "template": template}}


async def zones_of_devices(client):
    slices = await client.list(RESOURCE_SLICES)
    return {
        (one["spec"]["pool"]["name"], device["name"]): device["attributes"][NUMA_NODE]["int"]
        for one in slices
        for device in one["spec"]["devices"]
    }


async def test_no_pod_has_its_devices_in_one_zone_and_its_cpus_in_another():
    dice, watch = random.Random(7), Watch()
    async with house(FLEETS[0], env=LEASE) as here:
        client = here.client
        await asyncio.to_thread(here.cluster.play_kubelets, Publishing(delay=(0.05, 0.5)))
        await add_nodes(client, FLEETS[1])
        await wait_ready(client, [name for fleet in FLEETS for name in fleet.node_names()])
        for count in (1, 2):
            request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": count}}
            spec = {"spec": {"devices": {"requests": [request]}}}
            await client.create(CLAIM_TEMPLATES, {"metadata": {"name": f"gpu-{count}"}, "spec": spec}, NAMESPACE)
        async with asyncio.timeout(60):
            while sum("status" in found for found in await client.list(FLEX_TOPOS)) < sum(map(len, FLEETS)):
                await asyncio.sleep(0.2)
        informers = [
            Informer(client, RESOURCE_CLAIMS, ResourceClaim, namespace=NAMESPACE, on_event=watch.on_claim),
            Informer(client, PODS, Pod, namespace=NAMESPACE, on_event=watch.on_pod),
        ]
        tasks = [asyncio.create_task(one.run()) for one in informers]
        for number in range(JOBS_MADE):
            pods, cpu, gpus = dice.choice((1, 1, 2, 3)), dice.choice((2, 4, 6, 12)), dice.choice((1, 1, 2))
            await client.create(JOBS, body(f"job-{number}", pods, cpu, gpus, dice.randint(3, 9)), NAMESPACE)
            await asyncio.sleep(0.4)
        async with asyncio.timeout(400):
            while len(done := await _complete(client)) < JOBS_MADE - len(await _never(client)):
                await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        told = await zones_of_devices(client)
        both = watch.devices.keys() & watch.cpus.keys()
        found = {pod: ({told[one] for one in watch.devices[pod]}, watch.cpus[pod]) for pod in both}
        apart = {pod: (*zones, watch.gated[pod]) for pod, zones in found.items() if zones[0] != zones[1]}
        longest = max(watch.gated.values())
        print(f"{len(done)} Jobs complete; {len(found)} pods seen, {len(apart)} apart: {apart}; gated {longest:.0f} s")
        assert len(found) >= JOBS_MADE // 2
        # One that has waited so long for others goes, as things stand (`ungater.numa.in_flight`).
        assert {pod: told for pod, told in apart.items() if told[-1] < PATIENCE} == {}


async def _complete(client):
    jobs = await client.list(JOBS, NAMESPACE)
    return [
        job["metadata"]["name"]
        for job in jobs
        if any(one["type"] == "Complete" and one["status"] == "True" for one in job["status"].get("conditions", ()))
    ]


async def _never(client):
    """Jobs that no empty cluster would take."""
    return [
        one["metadata"]["name"]
        for one in await client.list(WORKLOADS, NAMESPACE)
        if any(found.get("reason") == "NeverFits" for found in one.get("status", {}).get("conditions", ()))
    ]
