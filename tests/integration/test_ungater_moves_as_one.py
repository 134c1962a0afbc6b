"""A group of a LeaderWorkerSet that was spread is moved as a whole, on the real control plane.

Three racks of two hosts with 8 GPUs each. The group prefers a rack, and got half of two: others have the rest.
"""

import pytest
from support import jobsets
from support.jobs import KEYS, RACK_LABEL, Running, Watched, install_crds, job, make_flavor, racks_of, until
from test_ungater_leaders import CRD, make_group, template

from kube.resources import LEADER_WORKER_SETS, PODS, RESOURCE_FLAVORS

pytestmark = pytest.mark.cluster

MOVES = {"moves_per_hour": 100, "move_rest_seconds": 0.5, "eviction_patience_seconds": 3.0}
HOST = "kubernetes.io/hostname"


def part(gpus):
    """The template of the leader or of the workers, which share the rack that they prefer."""
    found = template("group", gpus)
    found["metadata"]["annotations"] = {KEYS.preferred[0]: RACK_LABEL, KEYS.group: "all"}
    return found


@pytest.fixture
async def jobs(client, namespace, nodes):
    await install_crds(client)
    await jobsets.install(client, CRD)
    await nodes(blocks=1, racks=3, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    yield Watched(client, namespace)
    await client.delete(RESOURCE_FLAVORS, namespace)


async def test_a_group_of_a_leader_worker_set_that_was_spread_comes_together_as_a_whole(jobs, client, namespace):
    async def up():
        found = await client.list(PODS, namespace, label_selector="app=group")
        running = [pod for pod in found if pod["status"].get("phase") == "Running"]
        return running if len(running) == len(found) == 3 else None

    async with Running(client, **MOVES) as controller:
        others = [f"b1-r{rack}-h{host}" for rack, host in ((1, 1), (2, 1), (3, 1), (3, 2))]
        for host in others:
            spec = {"nodeSelector": {HOST: f"{namespace}-{host}"}}
            await jobs.create(job(host, 1, gpus=8, request={KEYS.preferred[0]: RACK_LABEL}, pod_spec=spec))
            await jobs.running(host, 1)
        shape = {"size": 3, "leaderTemplate": part(4), "workerTemplate": part(4)}
        about = {"apiVersion": LEADER_WORKER_SETS.api_version, "kind": "LeaderWorkerSet"}
        body = {"metadata": {"name": "group"}, "spec": {"replicas": 1, "leaderWorkerTemplate": shape}}
        whole = await client.create(LEADER_WORKER_SETS, {**about, **body}, namespace)
        await make_group(client, namespace, whole, 0)
        before = await until(up, "the group to run")
        assert len(racks_of(before)) == 2
        held = await jobs.workload("group")
        for host in others[2:]:
            await jobs.delete(host)
        await jobs.condition("group", "Moving", "True", "PullTogether")
        await controller.crash()
        await controller.start()

        async def together():
            found = await up() or []
            return found if found and len(racks_of(found)) == 1 else None

        after = await until(together, "the group to come together")
        assert not {pod["metadata"]["uid"] for pod in before} & {pod["metadata"]["uid"] for pod in after}
        await jobs.condition("group", "Moving", "False", "Moved")
        assert (await jobs.workload("group"))["metadata"]["uid"] == held["metadata"]["uid"], "its places were kept"
    await client.delete(LEADER_WORKER_SETS, "group", namespace)
