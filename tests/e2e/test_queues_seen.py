"""Queues as their users see them: real webhook, real controller, and what the commands and statuses say."""

import json

import pytest
import pytest_asyncio
from support.house import NAMESPACE, REQUIRED, house, user_job
from support.jobs import GPU, HOSTNAME_LABEL, KEYS, Watched, until

from kube.patches import PatchType
from kube.resources import CLUSTER_QUEUES, JOBS, LOCAL_QUEUES, RESOURCE_FLAVORS
from localcluster import Fleet
from localcluster.nodes import GROUP_LABEL

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.asyncio(loop_scope="module"),
]

API = {"apiVersion": "topogate.dev/v1alpha1"}
FLEET = Fleet(blocks=1, racks=2, hosts=2, gpus=8)  # 32 GPUs


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here():
    async with house(FLEET) as made:
        flavor = {"nodeLabels": {GROUP_LABEL: "tas"}}
        await made.client.create(
            RESOURCE_FLAVORS, {**API, "kind": "ResourceFlavor", "metadata": {"name": "plain"}, "spec": flavor}
        )
        for name, flavor, gpus in (("team-a", "tas", 16), ("team-b", "tas", 16), ("loose", "plain", 8)):
            quotas = [{"name": GPU, "nominalQuota": gpus}, {"name": "cpu", "nominalQuota": 100}]
            group = {"coveredResources": [GPU, "cpu"], "flavors": [{"name": flavor, "resources": quotas}]}
            spec = {"resourceGroups": [group], "namespaceSelector": {}}
            if name != "loose":
                spec |= {"cohortName": "research", "preemption": {"reclaimWithinCohort": "Any"}}
            await made.client.create(
                CLUSTER_QUEUES, {**API, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}
            )
            body = {"metadata": {"name": name}, "spec": {"clusterQueue": name}}
            await made.client.create(LOCAL_QUEUES, {**API, "kind": "LocalQueue", **body}, NAMESPACE)
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def jobs(here):
    yield Watched(here.client, NAMESPACE)
    await here.clear()


async def submit(here, name, queue, pods, request=None, *, gpus=8):
    body = user_job(name, pods, request, gpus=gpus)
    body["metadata"]["labels"] = {KEYS.queue_name: queue}
    return await here.client.create(JOBS, body, NAMESPACE)


async def queues(here, *arguments):
    return json.loads(await here.topogate("queues", *arguments, "-o", "json"))


async def status(here, name):
    return (await here.client.get(CLUSTER_QUEUES, name)).get("status", {})


async def waits(here, name, reason):
    """The explanation of a job, once it waits for this reason."""

    async def told():
        found = await here.explain(name)
        return (found["state"], found["reason"]) == ("Waiting", reason)

    await until(told, f"Job {name} to wait with reason {reason}")
    return await here.explain(name)


async def test_a_queued_job_runs_where_its_request_says_and_its_quota_is_seen(here, jobs):
    await submit(here, "train", "team-a", 2, REQUIRED)
    pods = await jobs.running("train", 2)
    assert len(await here.racks(pods)) == 1
    found = await here.explain("train")
    assert found["state"] == "Placed"
    assert found["queue"]["holds"][f"tas/{GPU}"] == "16"
    (view,) = (await queues(here, "team-a"))["queues"]
    (gpu,) = [use for use in view["quotas"] if use["resource"] == GPU]
    assert (gpu["used"], gpu["nominal"], gpu["borrowed"], gpu["free"]) == ("16", "16", "0", "16")

    async def counted():
        found = await status(here, "team-a")
        (usage,) = found["flavorsUsage"]
        return found["admittedWorkloads"] == 1 and {"name": GPU, "total": "16", "borrowed": "0"} in usage["resources"]

    await until(counted, "the status of the queue to count the job")


async def test_a_queued_job_without_a_request_is_placed_too(here, jobs):
    await submit(here, "loose", "team-a", 3, gpus=4)
    pods = await jobs.running("loose", 3)
    assert all(pod["spec"]["nodeSelector"][HOSTNAME_LABEL] == pod["spec"]["nodeName"] for pod in pods)
    assert (await here.explain("loose"))["queue"]["holds"][f"tas/{GPU}"] == "12"


async def test_quota_alone_where_the_flavor_has_no_topology(here, jobs):
    await submit(here, "free", "loose", 1)
    (pod,) = await jobs.running("free", 1)
    assert pod["spec"]["nodeSelector"] == {GROUP_LABEL: "tas"}
    await submit(here, "more", "loose", 1)
    found = await waits(here, "more", "InsufficientQuota")
    assert found["queue"]["position"] == 1
    await here.client.delete(JOBS, "free", NAMESPACE, propagation="Background")
    await jobs.running("more", 1)


async def test_one_with_quota_alone_is_gated_again_when_it_is_put_back(here, jobs):
    async def gates():
        job = await here.client.get(JOBS, "free", NAMESPACE)
        template = job["spec"]["template"]
        gated = bool(template["spec"].get("schedulingGates"))
        assert gated == (KEYS.unconstrained in template["metadata"]["annotations"])
        return job["spec"]["suspend"], gated

    def stop(policy):
        body = {"spec": {"stopPolicy": policy}}
        return here.client.patch(CLUSTER_QUEUES, "loose", body=body, content_type=PatchType.MERGE)

    await submit(here, "free", "loose", 1)
    await jobs.running("free", 1)
    assert await gates() == (False, False)
    await stop("HoldAndDrain")

    async def put_back():
        return await gates() == (True, True)

    try:
        await until(put_back, "the job to be suspended, and gated again")
    finally:
        await stop("None")
    await jobs.running("free", 1)


async def test_who_waits_sees_its_place_and_what_is_lacking(here, jobs):
    for name in ("a1", "a2"):
        await submit(here, name, "team-a", 2)
        await jobs.running(name, 2)
    await submit(here, "a3", "team-a", 2)
    await submit(here, "a4", "team-a", 1)
    found = await waits(here, "a3", "InsufficientQuota")
    queue = found["queue"]
    assert (queue["cluster_queue"], queue["cohort"], queue["position"], queue["waiting"]) == (
        "team-a",
        "research",
        1,
        2,
    )
    (option,) = queue["options"]
    (gpu,) = [line for line in option["quotas"] if line["resource"] == GPU]
    assert (gpu["wanted"], gpu["free"], gpu["lacking"], gpu["used"], gpu["nominal"]) == ("16", "0", "16", "32", "16")
    await waits(here, "a4", "InsufficientQuota")
    table = await here.topogate("queues")
    lines = [line.split() for line in table.splitlines()]
    assert [line[:3] for line in lines if line[1:2] in (["default/a3"], ["default/a4"])] == [
        ["1", "default/a3", "team-a"],
        ["2", "default/a4", "team-a"],
    ]
    words = " ".join(table.split())
    assert "team-a 32 16 16" in words, "used, nominal, borrowed"
    assert "team-b 0 16 0" in words
    assert f"tas {GPU} 16 0 16 32 16" in " ".join((await here.topogate("explain", "a3")).split())


async def test_reclaim_is_seen_by_both_sides(here, jobs):
    for name in ("a1", "a2"):
        await submit(here, name, "team-a", 2)
        await jobs.running(name, 2)
    await submit(here, "mine", "team-b", 2, REQUIRED)
    pods = await jobs.running("mine", 2)
    assert len(await here.racks(pods)) == 1

    async def back():
        found = [await here.explain(name) for name in ("a1", "a2")]
        return sorted(one["state"] for one in found) == ["Placed", "Waiting"]

    await until(back, "one of the borrowers to wait again")
    found = [await here.explain(name) for name in ("a1", "a2")]
    (victim,) = [one for one in found if one["state"] == "Waiting"]
    assert any("Preempted" in line for line in victim["queue"]["history"])
    assert victim["queue"]["position"] == 1


async def test_a_queue_on_hold_says_so_everywhere(here, jobs):
    def stop(policy):
        body = {"spec": {"stopPolicy": policy}}
        return here.client.patch(CLUSTER_QUEUES, "team-a", body=body, content_type=PatchType.MERGE)

    await stop("Hold")
    try:
        await submit(here, "held", "team-a", 1)
        found = await waits(here, "held", "QueueStopped")
        assert "stopPolicy Hold" in found["message"]

        async def told():
            (active,) = (await status(here, "team-a"))["conditions"]
            return (active["status"], active["reason"]) == ("False", "QueueStopped")

        await until(told, "the queue not to be active")
        (view,) = (await queues(here, "team-a"))["queues"]
        assert not view["active"]
        assert [one["position"] for one in view["waiting"]] == [None]
    finally:
        await stop("None")
    await jobs.running("held", 1)


async def test_a_job_that_finishes_gives_its_quota_back(here, jobs):
    await submit(here, "short", "team-a", 2)
    await jobs.running("short", 2)
    await here.client.delete(JOBS, "short", NAMESPACE, propagation="Background")

    async def free():
        found = await status(here, "team-a")
        return (found["admittedWorkloads"], found["reservingWorkloads"], found["pendingWorkloads"]) == (0, 0, 0)

    await until(free, "the status of the queue to count nothing")
