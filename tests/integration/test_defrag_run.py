"""`topogate defrag --run` on the real control plane: a plan is carried out by the controller, within its limits."""

import asyncio
import json
import signal
import sys

import pytest
from support.cluster_checker import snapshot, violations
from support.jobs import Running, Watched, install_crds, job, make_flavor, nodes_of, racks_of, until

from crds.constants import MOVE_TO
from kube.resources import JOBS, POD_DISRUPTION_BUDGETS, RESOURCE_FLAVORS, WORKLOADS

pytestmark = pytest.mark.cluster

ALLOWED = {"moves_per_hour": 100, "eviction_patience_seconds": 3.0}
PATIENCE = 120.0


class Scattered(Watched):
    """Two racks of two hosts; a job on one host of each, so that one move makes a rack whole."""

    async def scatter(self):
        for name in ("first", "stays", "moves"):  # one host each: the first two fill a rack
            await self.create(job(name, 1))
            await self.running(name, 1)
        await self.delete("first")

        async def gone():
            return not await self.pods("first")

        await until(gone, "the first job to be gone")
        both = await self.both()
        assert len(racks_of(both)) == 2
        # The Job controller counts ready pods up to a second later than they are, and without that no plan moves a job.
        await until(self.counted, "the Jobs' status to say that their pods are ready")
        return both

    async def both(self):
        return [pod for name in ("stays", "moves") for pod in await self.running(name, 1)]

    async def counted(self):
        found = [await self.client.get(JOBS, name, self.namespace) for name in ("stays", "moves")]
        return all(one["status"].get("ready") == 1 for one in found)

    async def requests(self):
        found = await self.client.list(WORKLOADS, self.namespace)
        return [one for one in found if MOVE_TO in one["metadata"].get("annotations", {})]


@pytest.fixture
async def jobs(client, namespace, nodes):
    await install_crds(client)
    await nodes(blocks=1, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    yield Scattered(client, namespace)
    assert violations(await snapshot(client, {namespace})) == []
    await client.delete(RESOURCE_FLAVORS, namespace)


@pytest.fixture
def defrag(cluster, namespace):
    async def begin(*more):
        arguments = ("defrag", "--run", "--flavor", namespace, "-o", "json", "--kubeconfig", cluster.kubeconfig, *more)
        pipe = asyncio.subprocess.PIPE
        # As in a terminal: what a shell starts in the background has SIGINT ignored, and all that it starts in turn.
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli.main", *map(str, arguments)), stdout=pipe, stderr=pipe, preexec_fn=_listens
        )

    return begin


def _listens():
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def ended(process):
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    return process.returncode, out.decode(), err.decode()


async def test_the_plan_is_carried_out_and_a_rack_is_whole(jobs, client, defrag):
    async with Running(client, **ALLOWED):
        before = await jobs.scatter()
        status, out, err = await ended(await defrag())
        assert status == 0, err
        plan = json.loads(out)
        ((move,),) = [step["moves"] for step in plan["steps"]]
        assert f"step 1: {move['job']} moved" in err
        after = await jobs.both()
        assert len(racks_of(after)) == 1
        assert sorted(nodes_of(after)) != sorted(nodes_of(before))
        moved = move["job"].partition("/")[2]
        (pod,) = await jobs.running(moved, 1)
        assert {pod["spec"]["nodeName"]: 1} == move["after"]
        said = await jobs.condition(moved, "Moving", "False", "Moved")
        assert "an administrator has it moved" in said["message"]
        await jobs.event(moved, "Defrag")
        assert await jobs.requests() == []
        status, out, _ = await ended(await defrag())
        assert (status, json.loads(out)["steps"]) == (0, []), "nothing is left to do"


async def test_the_limit_of_the_controller_holds(jobs, client, defrag):
    async with Running(client):
        before = await jobs.scatter()
        status, _, err = await ended(await defrag())
        assert status == 1
        assert "no more than 0 moves an hour (movesPerHour)" in err
        assert "nothing after it is begun" in err
        assert {pod["metadata"]["uid"] for pod in await jobs.both()} == {pod["metadata"]["uid"] for pod in before}
        assert await jobs.requests() == []


async def test_a_budget_that_came_after_the_plan_holds(jobs, client, namespace, defrag):
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep"},
        "spec": {"maxUnavailable": 0, "selector": {}},
    }
    async with Running(client, **ALLOWED) as controller:
        before = await jobs.scatter()
        await controller.crash()  # it answers once the budget is there
        process = await defrag()
        await until(jobs.requests, "the request to be written")
        await client.create(POD_DISRUPTION_BUDGETS, budget, namespace)
        await controller.start()
        status, _, err = await ended(process)
        assert status == 1
        assert "PodDisruptionBudget" in err
        assert {pod["metadata"]["uid"] for pod in await jobs.both()} == {pod["metadata"]["uid"] for pod in before}
        await client.delete(POD_DISRUPTION_BUDGETS, "keep", namespace)


async def test_ctrl_c_leaves_no_request_behind(jobs, client, defrag):
    async with Running(client, **ALLOWED) as controller:
        before = await jobs.scatter()
        await controller.crash()
        process = await defrag()
        await until(jobs.requests, "the request to be written")
        process.send_signal(signal.SIGINT)
        status, _, err = await ended(process)
        assert status == 1
        assert "nothing more is begun" in err
        assert await jobs.requests() == []
        await controller.start()
        await asyncio.sleep(8.0)
        assert {pod["metadata"]["uid"] for pod in await jobs.both()} == {pod["metadata"]["uid"] for pod in before}


async def test_a_request_that_nobody_removed_counts_no_more_after_its_time(jobs, client, namespace):
    async with Running(client, **ALLOWED):
        before = await jobs.scatter()
        workload = await jobs.workload("moves")
        free = {f"{namespace}-b1-r{rack}-h{host}" for rack in (1, 2) for host in (1, 2)} - set(nodes_of(before))
        asked = {"id": "old", "until": "2020-01-01T00:00:00Z", "nodes": {"main": sorted(free)}}
        for text in (json.dumps(asked), "{", json.dumps({**asked, "until": "2999-01-01T00:00:00Z", "nodes": {}})):
            body = {"metadata": {"annotations": {MOVE_TO: text}}}
            await client.patch(WORKLOADS, workload["metadata"]["name"], namespace, body=body)
            await asyncio.sleep(6.0)
        assert {pod["metadata"]["uid"] for pod in await jobs.both()} == {pod["metadata"]["uid"] for pod in before}
