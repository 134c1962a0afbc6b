"""Queued jobs on the real control plane, the controller in this process: 2 blocks x 2 racks x 2 hosts of 8 GPUs."""

import pytest
from support.cluster_checker import snapshot, violations
from support.jobs import GPU, Running, install_crds, make_flavor, racks_of
from support.queues import Queued, make_queue

from kube.resources import CLUSTER_QUEUES, PRIORITY_CLASSES, RESOURCE_FLAVORS

pytestmark = pytest.mark.cluster


@pytest.fixture
async def jobs(client, namespace, nodes):
    """A flavor and the two priorities; every test ends with the independent checker."""
    await install_crds(client)
    await nodes(blocks=2, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    for name, value in (("low", 10), ("high", 1000)):
        body = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        await client.apply(PRIORITY_CLASSES, body, field_manager="test")
    yield Queued(client, namespace)
    for queue in await client.list(CLUSTER_QUEUES):
        if queue["metadata"]["name"].startswith(f"{namespace}-"):
            await client.delete(CLUSTER_QUEUES, queue["metadata"]["name"])
    await client.delete(RESOURCE_FLAVORS, namespace)


@pytest.fixture
async def running(client, jobs, namespace):
    """A running controller."""
    async with Running(client):
        yield jobs
        assert violations(await snapshot(client, {namespace})) == []


async def test_quota_and_topology_are_one_decision_and_the_job_is_unsuspended_into_its_slots(
    running, client, namespace
):
    await make_queue(client, namespace, "team", 16, flavors=(namespace,))
    await running.submit("first", 2)
    assert len(racks_of(await running.running("first", 2))) == 1
    assert not (await running.job("first"))["spec"]["suspend"]
    admission = (await running.status("first"))["admission"]
    assert admission["clusterQueue"] == f"{namespace}-team"
    (part,) = admission["podSetAssignments"]
    assert part["flavors"] == {GPU: namespace, "cpu": namespace}
    assert part["resourceUsage"] == {GPU: "16", "cpu": "2", "pods": "2"}
    assert (part["name"], part["count"]) == ("main", 2)
    assert part["topologyAssignment"]["slices"]
    admitted = await running.condition("first", "Admitted", "True", "Admitted")
    assert f"cluster queue {namespace}-team in flavor {namespace}" in admitted["message"]
    assert "2 pods in b1/r1" in admitted["message"]
    workload = await running.workload("first")
    assert workload["spec"]["queueName"] == "team"
    await running.submit("second", 1)
    message = await running.waits("second", "InsufficientQuota")
    assert "8 nvidia.com/gpu" in message
    assert (await running.job("second"))["spec"]["suspend"]
    assert await running.pods("second") == []
    await running.finish("first")
    await running.running("second", 1)
