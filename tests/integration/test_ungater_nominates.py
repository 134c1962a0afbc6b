"""Room that kube-scheduler keeps for pods behind the gate (`nominateGatedPods`), on the real control plane.

Fact of Kubernetes 1.36 and 1.37: `status.nominatedNodeName` on a gated pod keeps its room from pods of no higher
priority; those that wait are looked at again as soon as it is removed.
"""

import pytest
from support.jobs import GPU, KEYS, Running, Watched, install_crds, make_flavor, until
from support.queues import make_queue

from kube.resources import CLUSTER_QUEUES, PODS, PRIORITY_CLASSES, RESOURCE_FLAVORS, WORKLOADS

pytestmark = pytest.mark.cluster

CHECK = {"admissionChecks": [{"name": "budget"}]}


class Mixed(Watched):
    """A pod group with a queue whose check is pending, beside plain pods, on one node of 8 GPUs."""

    node: str

    async def plain(self, name, gpus=4, *, important=""):
        spec = {"nodeSelector": {"kubernetes.io/hostname": self.node}, "containers": [container(gpus)]}
        spec |= {"priorityClassName": important} if important else {}
        body = {"metadata": {"name": name}, "spec": spec}
        await self.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **body}, self.namespace)

    async def gang(self, name, gpus=6, *, queue="team"):
        """A pod as the webhook stamps it."""
        request = {KEYS.required[0]: "kubernetes.io/hostname", KEYS.pod_group_total: "1"}
        labels = {KEYS.queue_name: queue, KEYS.pod_group: name}
        spec = {"schedulingGates": [{"name": KEYS.gate}], "containers": [container(gpus)]}
        body = {"metadata": {"name": name, "annotations": request, "labels": labels}, "spec": spec}
        await self.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **body}, self.namespace)

    async def pod(self, name):
        return await self.client.get(PODS, name, self.namespace)

    async def delete_pod(self, name):
        await self.client.delete(PODS, name, self.namespace, grace_period=0)

    async def nominated(self, name, node):
        async def is_so():
            return (await self.pod(name))["status"].get("nominatedNodeName", "") == node

        await until(is_so, f"pod {name} to be nominated to {node!r}")

    async def refused(self, name):
        async def is_so():
            told = (await self.pod(name))["status"].get("conditions", [])
            return any((one["type"], one.get("reason")) == ("PodScheduled", "Unschedulable") for one in told)

        await until(is_so, f"kube-scheduler to find no room for pod {name}")

    async def bound(self, name):
        async def is_so():
            found = await self.pod(name)
            return found if found["spec"].get("nodeName") else None

        return await until(is_so, f"pod {name} to be bound")

    async def answer(self, name):
        workload = await self.workload(name)
        (check,) = workload["status"]["admissionChecks"]
        body = {"status": {"admissionChecks": [{**check, "state": "Ready", "message": "paid"}]}}
        await self.client.patch(
            WORKLOADS, workload["metadata"]["name"], self.namespace, body=body, subresource="status"
        )


def container(gpus):
    return {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}, "limits": {GPU: str(gpus)}}}


@pytest.fixture
async def mixed(client, namespace, nodes):
    await install_crds(client)
    (node,) = await nodes(blocks=1, racks=1, hosts=1, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    await make_queue(client, namespace, "team", 8, flavors=(namespace,), admissionChecksStrategy=CHECK)
    await make_queue(client, namespace, "open", 8, flavors=(namespace,))
    important = {"metadata": {"name": f"{namespace}-important"}, "value": 1000}
    await client.create(PRIORITY_CLASSES, important)
    async with Running(client, nominate_gated_pods=True) as controller:
        found = Mixed(client, namespace)
        found.node, found.controller = node, controller
        yield found
    await client.delete(PRIORITY_CLASSES, f"{namespace}-important")
    for queue in ("team", "open"):
        await client.delete(CLUSTER_QUEUES, f"{namespace}-{queue}")
    await client.delete(RESOURCE_FLAVORS, namespace)


async def test_room_is_kept_for_a_pod_behind_the_gate_from_pods_of_no_higher_priority(mixed, namespace):
    await mixed.gang("first")
    await mixed.nominated("first", mixed.node)
    await mixed.plain("same")
    await mixed.refused("same")
    await mixed.gang("beside", 2, queue="open")
    await mixed.bound("beside")  # what Topogate places there has room of its own
    await mixed.plain("important", 6, important=f"{namespace}-important")
    await mixed.bound("important")  # pods of a higher priority pass
    await mixed.delete_pod("important")
    # The controller starts anew, and what was written stands: nothing is written again.
    await mixed.controller.crash()
    await mixed.controller.start()
    await mixed.answer("first")
    await mixed.bound("first")
    await mixed.nominated("first", "")  # by the API server, from 1.35 on
    assert await mixed.controller.metric('topogate_pod_nominations_total{outcome="kept"}') in {None, 0.0}
    assert not (await mixed.pod("same"))["spec"].get("nodeName")
    # Room that is not held any more is free at once.
    await mixed.delete_pod("first")
    await mixed.bound("same")
    await mixed.delete_pod("same")
    await mixed.gang("second")
    await mixed.nominated("second", mixed.node)
    await mixed.plain("waits")
    await mixed.refused("waits")
    workload = await mixed.workload("second")
    body = {"spec": {"active": False}}
    await mixed.client.patch(WORKLOADS, workload["metadata"]["name"], namespace, body=body)
    await mixed.bound("waits")
    await mixed.nominated("second", "")
    # Whoever takes a gated pod from its workload takes no room with it.
    await mixed.delete_pod("waits")
    await mixed.client.patch(WORKLOADS, workload["metadata"]["name"], namespace, body={"spec": {"active": True}})
    await mixed.nominated("second", mixed.node)
    owners = {"metadata": {"labels": {KEYS.pod_group: None, KEYS.queue_name: None}}}
    owner = {"apiVersion": "example.com/v1", "kind": "Nothing", "name": "x", "uid": "1", "controller": True}
    owners["metadata"]["ownerReferences"] = [owner]
    await mixed.client.patch(PODS, "second", namespace, body=owners)
    await mixed.nominated("second", "")
