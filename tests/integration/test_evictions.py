"""Evicting the pods of Jobs through the real Eviction API, past budgets that refuse for a while."""

import asyncio
import contextlib

import pytest
from support.jobs import Watched, job, until

from clock import SYSTEM
from kube.events import EventRecorder
from kube.objects import Job, Pod
from kube.resources import JOBS, POD_DISRUPTION_BUDGETS, PODS
from ungater.guard import Guard
from ungater.metrics import ControllerMetrics
from ungater.writers.evictor import Evictor, tracked

pytestmark = pytest.mark.cluster


@pytest.fixture
async def jobs(client, namespace, nodes):
    await nodes(blocks=1, racks=1, hosts=2, prefix=f"{namespace}-", group=namespace)
    return Watched(client, namespace)


@pytest.fixture
async def evictions(client):
    recorder = EventRecorder(client, "topogate-test")
    made = Evictor(
        client,
        concurrency=4,
        requeue=lambda uid, after: asked.append((uid, after)),
        recorder=recorder,
        metrics=ControllerMetrics(),
        guard=Guard(SYSTEM, [].append),
        clock=SYSTEM,
        job=(jobs_known := {}).get,
    )
    made.jobs = jobs_known
    made.asked = asked = []
    made.recorder = recorder
    tasks = [asyncio.create_task(made.run()), asyncio.create_task(recorder.run())]
    yield made
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await recorder.close()


def plain(name, pods, **spec):
    return job(name, pods, gpus=0, request={}, gated=False, spec={"backoffLimit": 1, **spec})


async def wanted(client, namespace, name):
    selector = f"batch.kubernetes.io/job-name={name}"
    return await client.list(PODS, namespace, label_selector=selector, type=Pod)


async def test_evicted_pods_are_no_failures_of_their_job(client, namespace, jobs, evictions):
    await jobs.create(plain("gang", 6))
    before = await jobs.running("gang", 6)
    for pod in await wanted(client, namespace, "gang"):
        assert tracked(pod)
        evictions.request_eviction("gang", pod, "makes room for somebody")
        evictions.request_eviction("gang", pod, "makes room for somebody")  # once is enough
    gone = {pod["metadata"]["uid"] for pod in before}

    async def replaced():
        found = await jobs.pods("gang", phase="Running")
        return len(found) == 6 and not gone & {pod["metadata"]["uid"] for pod in found}

    await until(replaced, "six other pods of the job")
    found = await client.get(JOBS, "gang", namespace)
    assert found["status"].get("failed", 0) == 0  # six deleted pods would have been too many for the backoffLimit of 1
    assert not [c for c in found["status"].get("conditions", []) if c["type"] == "Failed"]
    assert evictions.blocked("gang") is None


async def test_a_pod_that_succeeds_in_the_grace_period_of_its_eviction_is_counted(client, namespace, evictions):
    """With podReplacementPolicy Failed (1.37); it would be run again without the finalizer. The test is its kubelet."""
    made = plain("late", 1, podReplacementPolicy="Failed", backoffLimit=6)
    made["spec"]["template"]["spec"]["nodeName"] = f"{namespace}-nowhere"
    evictions.jobs[f"{namespace}/late"] = await client.create(JOBS, made, namespace, type=Job)

    async def there():
        return await wanted(client, namespace, "late")

    (pod,) = await until(there, "the pod")
    name = pod.metadata.name
    for phase in ("Running", "Succeeded"):
        await client.patch(PODS, name, namespace, body={"status": {"phase": phase}}, subresource="status")
        if phase == "Running":
            evictions.request_eviction("late", pod, "makes room")
            await until(lambda: _ends(client, name, namespace), "the pod to terminate")
    await client.delete(PODS, name, namespace, grace_period=0)

    async def complete():
        status = (await client.get(JOBS, "late", namespace))["status"]
        return status if any(one["type"] == "Complete" for one in status.get("conditions", ())) else None

    status = await until(complete, "the Job to be complete")
    assert (status["succeeded"], status.get("failed", 0)) == (1, 0)


async def _ends(client, name, namespace):
    return (await client.get(PODS, name, namespace))["metadata"].get("deletionTimestamp")


async def test_a_budget_delays_and_says_so(client, namespace, jobs, evictions):
    await jobs.create(plain("web", 2))
    await jobs.running("web", 2)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all-of-them"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"batch.kubernetes.io/job-name": "web"}}},
    }
    await client.create(POD_DISRUPTION_BUDGETS, budget, namespace)

    async def counted():
        found = await client.get(POD_DISRUPTION_BUDGETS, "all-of-them", namespace)
        return found.get("status", {}).get("observedGeneration")

    await until(counted, "the budget to be observed")
    pods = await wanted(client, namespace, "web")
    first = {pod.metadata.uid for pod in pods}
    for pod in pods:
        evictions.request_eviction("web", pod, "makes room")

    async def refused():
        return len(evictions.asked) == 2 and evictions.blocked("web")

    blocked = await until(refused, "both evictions to be refused")
    assert "cannot be evicted now" in blocked.message
    assert "all-of-them" in blocked.message
    assert all(0 < after <= 1 for _, after in evictions.asked)
    now = await wanted(client, namespace, "web")
    assert {pod.metadata.uid for pod in now} == first
    assert all(tracked(pod) for pod in now)  # a pod that stays is counted as before
    for pod in now:
        evictions.request_eviction("web", pod, "makes room")  # not due yet: nothing is sent
    await client.delete(POD_DISRUPTION_BUDGETS, "all-of-them", namespace)

    async def gone():
        left = [pod for pod in await wanted(client, namespace, "web") if pod.metadata.uid in first]
        for pod in left:
            evictions.request_eviction("web", pod, "makes room")
        return not left

    await until(gone, "both pods to be evicted")
    assert evictions.blocked("web") is None or await until(lambda: _settled(evictions), "the last refusal to be over")
    event = await jobs.event(pods[0].metadata.name, "EvictionBlocked")
    assert "all-of-them" in event["note"]


async def _settled(evictions):
    return evictions.blocked("web") is None


async def test_two_budgets_on_one_pod_block_with_the_reason(client, namespace, jobs, evictions):
    await jobs.create(plain("twice", 1))
    await jobs.running("twice", 1)
    for name in ("one", "two"):
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"batch.kubernetes.io/job-name": "twice"}}},
        }
        await client.create(POD_DISRUPTION_BUDGETS, budget, namespace)
    (pod,) = await wanted(client, namespace, "twice")
    evictions.request_eviction("twice", pod, "makes room")

    async def refused():
        return evictions.blocked("twice")

    assert "more than one PodDisruptionBudget" in (await until(refused, "the refusal")).message


async def test_what_is_gone_or_forgotten_is_not_evicted(client, namespace, jobs, evictions):
    await jobs.create(plain("short", 2))
    await jobs.running("short", 2)
    one, two = await wanted(client, namespace, "short")
    evictions.request_eviction("a", one, "makes room")
    evictions.cancel_evictions("a")  # before the worker got to it
    await client.delete(PODS, two.metadata.name, namespace, grace_period=0)
    evictions.request_eviction("b", two, "makes room")
    await asyncio.sleep(1)
    assert evictions.blocked("b") is None
    assert one.metadata.uid in {pod.metadata.uid for pod in await wanted(client, namespace, "short")}
