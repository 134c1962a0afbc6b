"""A queued Deployment that an autoscaler makes larger, on the real control plane: it pushes batch jobs out.

Two hosts of 2 zones x (8 CPUs, 4 GPUs) whose kubelets allow one zone a pod; the queue has exactly their GPUs.
"""

import contextlib
import json

import pytest
from support.cluster_checker import snapshot, violations
from support.jobs import GPU, KEYS, RACK_LABEL, Running, install_crds, make_flavor, until
from support.nrt import install_nrt
from support.published import GI, nrt_body, nrt_zone
from support.queues import Queued, make_priorities, make_queue

from crds.constants import NUMA_PLACEMENT_PREDICTED
from kube.errors import NotFound
from kube.resources import (
    CLUSTER_QUEUES,
    DEPLOYMENTS,
    NODE_RESOURCE_TOPOLOGIES,
    PODS,
    RESOURCE_FLAVORS,
    STATEFUL_SETS,
    WORKLOADS,
)

pytestmark = pytest.mark.cluster

ZONE = {"cpu": 8, "memory": 64 * GI, GPU: 4}
SLOW = {"topogate.dev/stop-seconds": "4"}  # pods of the batch job take so long to end


def asks(cpu, gpus):
    amounts = {"cpu": str(cpu), GPU: str(gpus)}
    return [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]


def service(count):
    """As the webhook stamps the Deployment's pods: 4 CPUs and 2 GPUs each, priority high."""
    request = {KEYS.required[0]: RACK_LABEL, KEYS.pod_set: "main"}
    labels = {"app": "web", KEYS.queue_name: "team"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": {KEYS.queue_name: "team"}},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": labels, "annotations": request},
                "spec": {
                    "schedulingGates": [{"name": KEYS.gate}],
                    "priorityClassName": "high",
                    "terminationGracePeriodSeconds": 0,
                    "containers": asks(4, 2),
                },
            },
        },
    }


class Growing(Queued):
    """Questions about the Deployment ``web`` and the batch jobs beside it."""

    async def web(self, count):
        async def there():
            found = await self.client.list(PODS, self.namespace, label_selector="app=web")
            up = [pod for pod in found if pod["status"].get("phase") == "Running"]
            return up if len(up) == len(found) == count else None

        return await until(there, f"{count} pods of web to run")

    async def scale(self, count):
        """As a HorizontalPodAutoscaler does it."""
        body = {"spec": {"replicas": count}}
        await self.client.patch(DEPLOYMENTS, "web", self.namespace, body=body, subresource="scale")

    async def service(self):
        """The Workload of web."""
        found = await self.client.list(WORKLOADS, self.namespace)
        return next(one for one in found if one["metadata"]["name"].startswith("replicaset-web"))

    async def nominated(self):
        async def there():
            return (await self.service())["status"].get("nomination")

        return await until(there, "the nomination of web to be stored")


@pytest.fixture
async def jobs(client, namespace, nodes):
    await install_crds(client)
    await install_nrt(client)
    await nodes(blocks=1, racks=1, hosts=2, prefix=f"{namespace}-", group=namespace, cpu="16")
    names = [f"{namespace}-b1-r1-h{host}" for host in (1, 2)]
    for name in names:
        body = nrt_body([nrt_zone(0, ZONE), nrt_zone(1, ZONE)], name=name, policy="single-numa-node")
        await client.apply(NODE_RESOURCE_TOPOLOGIES, body, field_manager="test")
    await make_flavor(client, namespace, namespace)
    await make_priorities(client)
    within = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    await make_queue(client, namespace, "team", 16, flavors=(namespace,), **within)
    yield Growing(client, namespace)
    assert violations(await snapshot(client, {namespace})) == []
    await client.delete(CLUSTER_QUEUES, f"{namespace}-team")
    for name in names:
        with contextlib.suppress(NotFound):
            await client.delete(NODE_RESOURCE_TOPOLOGIES, name)
    await client.delete(RESOURCE_FLAVORS, namespace)


async def batch(jobs, **options):
    """Two pods of low priority that take a zone each."""
    await jobs.submit("batch", 2, priority="low", pod_spec={"containers": asks(4, 4)}, **options)
    return await jobs.running("batch", 2)


async def test_a_deployment_that_is_scaled_from_2_to_6_pushes_a_batch_job_out_which_comes_back(jobs, client, namespace):
    async with Running(client):
        await client.create(DEPLOYMENTS, service(2), namespace)
        first = {pod["metadata"]["uid"] for pod in await jobs.web(2)}
        await batch(jobs)
        await jobs.scale(6)
        pods = await jobs.web(6)
        assert first <= {pod["metadata"]["uid"] for pod in pods}, "those that ran run on"
        placed = [json.loads(pod["metadata"]["annotations"][NUMA_PLACEMENT_PREDICTED]) for pod in pods]
        assert all(len(one) == 1 for one in placed), f"each in one socket: {placed}"
        await jobs.empty("batch")
        await jobs.condition("batch", "Preempted", "True")
        told = (await jobs.service())["status"]
        assert "nomination" not in told
        assert [part["count"] for part in told["admission"]["podSetAssignments"]] == [6]
        assert next(c for c in told["conditions"] if c["type"] == "QuotaReserved")["status"] == "True"
        assert "growth" not in (await jobs.event("batch", "Preempted"))["note"]
        await jobs.scale(2)
        await jobs.web(2)
        await jobs.running("batch", 2)


async def test_an_elastic_job_that_is_made_larger_pushes_a_batch_job_out(jobs, client, namespace):
    more = {"priority": "high", "indexed": True, "pod_spec": {"containers": asks(4, 2)}}
    async with Running(client):
        await jobs.submit("web", 2, **more)
        first = {pod["metadata"]["uid"] for pod in await jobs.running("web", 2)}
        await batch(jobs)
        await jobs.edit("web", parallelism=6, completions=6)
        assert first <= {pod["metadata"]["uid"] for pod in await jobs.running("web", 6)}, "those that ran run on"
        await jobs.empty("batch")
        await jobs.condition("batch", "Preempted", "True")


async def test_a_stateful_set_that_is_made_larger_pushes_a_batch_job_out_once_it_comes_to_the_pod_that_lacks_room(
    jobs, client, namespace
):
    body = service(2)
    body["kind"], body["spec"]["serviceName"] = "StatefulSet", "web"
    async with Running(client):
        await client.create(STATEFUL_SETS, body, namespace)
        first = {pod["metadata"]["uid"] for pod in await jobs.web(2)}
        await batch(jobs)
        await client.patch(STATEFUL_SETS, "web", namespace, body={"spec": {"replicas": 4}})
        await jobs.web(4)
        await jobs.running("batch", 2)
        await client.patch(STATEFUL_SETS, "web", namespace, body={"spec": {"replicas": 6}})
        assert first <= {pod["metadata"]["uid"] for pod in await jobs.web(6)}, "those that ran run on"
        await jobs.empty("batch")
        await jobs.condition("batch", "Preempted", "True")


async def test_growth_that_waits_for_its_victims_goes_on_after_a_restart(jobs, client, namespace):
    async with Running(client) as controller:
        await client.create(DEPLOYMENTS, service(2), namespace)
        await jobs.web(2)
        await batch(jobs, annotations=SLOW)
        await jobs.scale(6)
        plan = await jobs.nominated()
        assert [victim["kind"] for victim in plan["victims"]] == ["Workload"]
        assert [part["count"] for part in plan["podSetAssignments"]] == [4]
        await controller.crash()
        await jobs.submit("late", 1, priority="low", pod_spec={"containers": asks(4, 4)})
        await controller.start()
        await jobs.web(6)
        assert "nomination" not in (await jobs.service())["status"]
        await jobs.empty("batch")


async def test_who_is_scaled_back_before_its_victims_went_lets_them_stay(jobs, client, namespace):
    async with Running(client):
        await client.create(DEPLOYMENTS, service(2), namespace)
        await jobs.web(2)
        await batch(jobs, annotations=SLOW)
        await jobs.scale(6)
        await jobs.nominated()
        await jobs.scale(2)

        async def withdrawn():
            return "nomination" not in (await jobs.service())["status"]

        await until(withdrawn, "the nomination to be withdrawn")
        await jobs.running("batch", 2)
        await jobs.web(2)


async def test_where_nobody_can_be_pushed_out_as_many_pods_go_as_fit_and_the_others_later(jobs, client, namespace):
    async with Running(client):
        await client.create(DEPLOYMENTS, service(2), namespace)
        await jobs.web(2)
        await jobs.submit("equal", 1, priority="high", pod_spec={"containers": asks(4, 4)})
        await jobs.running("equal", 1)
        await jobs.scale(9)

        async def run(count):
            found = await client.list(PODS, namespace, label_selector="app=web")
            up = [pod for pod in found if pod["status"].get("phase") == "Running"]
            gated = [pod for pod in found if pod["spec"].get("schedulingGates")]
            return len(found) == 9 and len(up) == count and len(gated) == 9 - count

        async def grants(count):
            parts = (await jobs.service())["status"]["admission"]["podSetAssignments"]
            return [part["count"] for part in parts] == [count]

        await until(lambda: run(6), "6 pods of web to run, as many as fit beside the other job")
        await until(lambda: grants(6), "6 pods of web to be stored")
        await jobs.delete("equal")
        await until(lambda: run(8), "8 pods of web to run")
        await jobs.scale(7)
        await jobs.web(7)
