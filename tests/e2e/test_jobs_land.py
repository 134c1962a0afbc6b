"""The main job, from a person's annotation to running pods: real webhook, real controller, stock kube-scheduler."""

import json

import pytest
import pytest_asyncio
from support.cluster_checker import rank_order, settled, snapshot, violations
from support.house import NAMESPACE, PREFERRED, REQUIRED, House, house, user_job
from support.jobs import BLOCK_LABEL, HOSTNAME_LABEL, KEYS, LEVELS, RACK_LABEL, Watched, until

from kube.errors import ApiError
from kube.resources import JOBS, PODS
from localcluster import Fleet

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.asyncio(loop_scope="module"),
]

FLEET = Fleet(blocks=2, racks=3, hosts=4, gpus=8)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here():
    async with house(FLEET) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def jobs(here):
    yield Watched(here.client, NAMESPACE)
    await here.clear()


async def well(here: House):
    found = await snapshot(here.client, {NAMESPACE})
    assert settled(found) == []
    assert violations(found) == []
    return found


async def test_required_lands_in_one_rack(here, jobs):
    await here.submit("train", 6, REQUIRED, gpus=4)
    pods = await jobs.running("train", 6)
    assert len(await here.racks(pods)) == 1
    assert all(pod["spec"]["nodeSelector"][HOSTNAME_LABEL] == pod["spec"]["nodeName"] for pod in pods)
    await well(here)
    report = await here.explain("train")
    assert (report["state"], report["flavor"], report["level"]) == ("Placed", "tas", RACK_LABEL)
    assert sum(len(domain["pods"]) for domain in report["domains"]) == 6
    table = await here.topogate("explain", "job/train", "-o", "table")
    assert pods[0]["spec"]["nodeName"] in table


async def test_preferred_takes_as_few_racks_as_possible(here, jobs):
    await here.submit("sweep", 10, PREFERRED, gpus=8)
    racks = await here.racks(await jobs.running("sweep", 10))
    assert len(racks) == 3  # of four hosts each
    assert len({block for block, _ in racks}) == 1
    await well(here)


async def test_ranks_sit_in_order(here, jobs):
    await here.submit("ring", 20, {KEYS.required[0]: BLOCK_LABEL}, gpus=4, indexed=True)
    pods = await jobs.running("ring", 20)
    found = await well(here)
    assert rank_order(found, "ring") == []
    by_rank = sorted(
        pods, key=lambda pod: int(pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"])
    )
    hosts = [pod["spec"]["nodeName"] for pod in by_rank]
    assert [hosts[i] for i in range(0, 20, 2)] == [hosts[i] for i in range(1, 20, 2)]  # two a host, neighbours
    order = FLEET.node_names()
    assert [order.index(host) for host in hosts] == sorted(order.index(host) for host in hosts)


async def test_a_wrong_level_is_refused_with_the_right_ones(here):
    with pytest.raises(ApiError) as refused:
        await here.submit("typo", 2, {KEYS.required[0]: "cloud-provider.com/topology-row"})
    assert refused.value.status == 422
    message = str(refused.value)
    assert "cloud-provider.com/topology-row" in message
    assert KEYS.required[0] in message
    assert all(level in message for level in LEVELS)


async def test_without_a_request_nothing_is_touched(here, jobs):
    made = await here.submit("plain", 3)
    assert "schedulingGates" not in made["spec"]["template"]["spec"]
    pods = await jobs.running("plain", 3)
    assert not any(KEYS.domain in key for pod in pods for key in pod["metadata"].get("annotations", {}))
    assert await jobs.workload("plain") is None


async def test_it_waits_says_why_and_starts_by_itself(here, jobs):
    for block in (1, 2):
        for rack in (1, 2, 3):
            await here.client.create(PODS, foreign(f"foreign-{block}-{rack}", f"b{block}-r{rack}-h1"), NAMESPACE)
    await until(lambda: all_run(here.client, "foreign-", 6), "the foreign pods to take their nodes")
    await here.submit("big", 4, REQUIRED, gpus=8)
    waiting = await jobs.condition("big", "QuotaReserved", "False", "DoesNotFit")
    assert "takes 3 and lacks 8 nvidia.com/gpu" in waiting["message"], waiting
    event = await jobs.event("big", "DoesNotFit")
    assert event["type"] == "Warning"
    assert all(pod["spec"]["schedulingGates"] for pod in await jobs.pods("big"))
    report = await here.explain("big")
    assert report["state"] == "Waiting"
    assert [(room["fits"], room["limit"]) for room in report["room"]] == [(3, "nvidia.com/gpu")] * 6
    assert all(room["missing"] == {"nvidia.com/gpu": "8"} for room in report["room"])
    table = await here.topogate("explain", "big")
    assert "Waiting" in table
    assert table.count("nvidia.com/gpu") >= 6
    await here.client.delete(PODS, "foreign-2-2", NAMESPACE)
    pods = await jobs.running("big", 4)
    assert await here.racks(pods) == {("b2", "r2")}
    found = await snapshot(here.client, {NAMESPACE})
    assert violations(found) == []


async def all_run(client, prefix, count):
    found = [pod for pod in await client.list(PODS, NAMESPACE) if pod["metadata"]["name"].startswith(prefix)]
    return sum(pod["status"].get("phase") == "Running" for pod in found) == count


def foreign(name, node):
    """A pod of somebody else that takes all GPUs of a node."""
    spec = user_job(name, 1, gpus=8)["spec"]["template"]["spec"]
    return {"metadata": {"name": name}, "spec": {**spec, "nodeSelector": {HOSTNAME_LABEL: node}}}


async def test_as_a_kubectl_plugin(here, jobs):
    await here.submit("train", 2, REQUIRED)
    await jobs.running("train", 2)
    done = await here.run("topogate", "explain", "train", "-o", "json", program="kubectl")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["job"] == f"{NAMESPACE}/train"
    missing = await here.run("topogate", "explain", "nobody", program="kubectl")
    assert missing.returncode == 1
    assert missing.stderr.startswith("Error: no Job or other owner of pods nobody in namespace default")


async def test_an_outage_of_the_webhook_touches_nothing_else(here, jobs):
    await here.components.kill("webhook")
    try:
        await here.submit("plain", 2)
        await jobs.running("plain", 2)
        with pytest.raises(ApiError) as refused:
            await here.submit("train", 2, REQUIRED)
        assert "job.topogate.dev" in str(refused.value)
        pod = {"metadata": {"name": "train", "annotations": REQUIRED}, "spec": foreign("train", "b1-r1-h1")["spec"]}
        with pytest.raises(ApiError) as refused:
            await here.client.create(PODS, pod, NAMESPACE)
        assert "pod.topogate.dev" in str(refused.value)
    finally:
        await here.components.start("webhook")
    await here.submit("train", 2, REQUIRED)
    await jobs.running("train", 2)
    assert [job["metadata"]["name"] for job in await here.client.list(JOBS, NAMESPACE)] == ["plain", "train"]
