"""Workloads that run and are moved, on the real control plane: spread jobs come together, misaligned pods go elsewhere.

Two racks of two hosts with 8 GPUs each.
"""

import asyncio
import json
from collections import Counter

import pytest
from support.cluster_checker import snapshot, violations
from support.jobs import GPU, KEYS, RACK_LABEL, Running, install_crds, job, make_flavor, nodes_of, racks_of, until
from support.nrt import install_nrt
from support.published import GI, nrt_body, nrt_zone
from support.queues import Queued, make_queue, queued

from cli.explain.report import report
from crds.constants import NUMA_PLACEMENT_OBSERVED, NUMA_PLACEMENT_PREDICTED
from kube.resources import (
    CLUSTER_QUEUES,
    DEPLOYMENTS,
    NODE_RESOURCE_TOPOLOGIES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_FLAVORS,
    STATEFUL_SETS,
)
from ungater.scheduling import moves

pytestmark = pytest.mark.cluster

PREFERRED = {KEYS.preferred[0]: RACK_LABEL}
REQUIRED = {KEYS.required[0]: RACK_LABEL}
MOVES = {"moves_per_hour": 100, "move_rest_seconds": 0.5, "eviction_patience_seconds": 3.0}
SLOW = {"topogate.dev/stop-seconds": "4"}  # pods take so long to end
LONG = {"topogate.dev/stop-seconds": "25"}
ZONE = {"cpu": 48, "memory": 64 * GI, GPU: 4}
HOST = "kubernetes.io/hostname"


class Moved(Queued):
    """Questions about jobs that are moved."""

    def host(self, rack, host):
        return f"{self.namespace}-b1-r{rack}-h{host}"

    async def fill(self, name, rack, host):
        """A job that has a whole host."""
        pod_spec = {"nodeSelector": {HOST: self.host(rack, host)}}
        await self.create(job(name, 1, gpus=8, request=PREFERRED, pod_spec=pod_spec))
        await self.running(name, 1)

    async def spread(self, name="train", pods=4, make=job, **options):
        """A job of four pods that prefers a rack, and has half of each: others have the rest."""
        await self.fill("one", 1, 1)
        await self.fill("two", 2, 1)
        await self.create(make(name, pods, gpus=4, request=PREFERRED, **options))
        found = await self.running(name, pods)
        assert len(racks_of(found)) == 2
        return found

    async def together(self, name="train", pods=4):
        async def there():
            found = await self.pods(name, phase="Running")
            up = [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]
            return up if len(up) == pods and len(racks_of(up)) == 1 else None

        return await until(there, f"job {name} to come together")

    async def stays(self, name, pods, seconds=8.0):
        """Nothing of it is evicted for a while."""
        before = {pod["metadata"]["uid"] for pod in pods}
        await asyncio.sleep(seconds)
        assert {pod["metadata"]["uid"] for pod in await self.pods(name)} == before


@pytest.fixture
async def jobs(client, namespace, nodes):
    await install_crds(client)
    await install_nrt(client)
    await nodes(blocks=1, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    await make_queue(client, namespace, "team", 16, flavors=(namespace,))
    yield Moved(client, namespace)
    assert violations(await snapshot(client, {namespace})) == []
    await client.delete(CLUSTER_QUEUES, f"{namespace}-team")
    await client.delete(RESOURCE_FLAVORS, namespace)


@pytest.mark.parametrize("make", [job, queued])
async def test_a_preferred_job_that_was_spread_comes_together_when_room_appears(jobs, client, make):
    async with Running(client, **MOVES):
        first = await jobs.spread(make=make, indexed=True)
        await jobs.delete("two")
        pods = await jobs.together()
        stayed = {pod["metadata"]["uid"] for pod in first} & {pod["metadata"]["uid"] for pod in pods}
        assert len(stayed) == 2, "those that were there already run on"
        said = await jobs.condition("train", "Moving", "False", "Moved")
        assert "comes together" in said["message"]
        assert "comes together" in (await report(client, jobs.namespace, "train")).moving
        await jobs.event("train", "PullTogether")
        await jobs.condition("train", "PodsReady", "True")
        assert (await jobs.client.list(PODS, jobs.namespace, label_selector="batch.kubernetes.io/job-name=one"))[0][
            "status"
        ]["phase"] == "Running"
        await jobs.stays("train", pods)


async def test_small_jobs_go_elsewhere_for_one_that_waits_long_for_a_rack(jobs, client):
    """Each rack has a job of one host: one of them goes, and the job that needs all of a rack gets that."""
    async with Running(client, **MOVES, queue_patience_seconds=1.0):
        await jobs.create(job("one", 1, gpus=8, request=REQUIRED))
        (first,) = await jobs.running("one", 1)
        rack = int(next(iter(racks_of([first])))[1].rpartition("r")[2])
        for host in (1, 2):
            if jobs.host(rack, host) != first["spec"]["nodeName"]:
                await jobs.fill("other", rack, host)
        await jobs.create(job("two", 1, gpus=8, request=REQUIRED))
        (second,) = await jobs.running("two", 1)
        assert racks_of([second]) != racks_of([first])
        await jobs.delete("other")
        await jobs.submit("gang", 2, gpus=8, request=REQUIRED)
        gang = await jobs.running("gang", 2)
        assert len(racks_of(gang)) == 1
        small = [*await jobs.running("one", 1), *await jobs.running("two", 1)]
        assert len(racks_of(small)) == 1
        uids = {pod["metadata"]["uid"] for pod in small}
        moved = [name for name, pod in (("one", first), ("two", second)) if pod["metadata"]["uid"] not in uids]
        assert len(moved) == 1, "the other one was left alone"
        said = await jobs.condition(moved[0], "Moving", "False", "Moved")
        assert "gang" in said["message"]
        await jobs.event(moved[0], "MakeRoom")


async def test_nothing_is_moved_where_nobody_allows_it(jobs, client):
    async with Running(client, move_rest_seconds=0.5):
        pods = await jobs.spread()
        await jobs.delete("two")
        await jobs.stays("train", pods)


async def test_a_move_goes_on_after_a_restart(jobs, client):
    async with Running(client, **MOVES) as controller:
        await jobs.spread(annotations=SLOW)
        await jobs.delete("two")
        await jobs.condition("train", "Moving", "True", "PullTogether")
        await controller.crash()
        await controller.start()
        await jobs.together()
        await jobs.condition("train", "Moving", "False", "Moved")


async def test_a_move_that_takes_too_long_is_given_up_over_a_restart(jobs, client, monkeypatch):
    monkeypatch.setattr(moves, "GIVEN_UP", 4.0)
    monkeypatch.setattr(moves, "SPARE", 1.0)
    async with Running(client, **MOVES) as controller:
        before = sorted(nodes_of(await jobs.spread(annotations=LONG)))
        await jobs.delete("two")
        await jobs.condition("train", "Moving", "True", "PullTogether")
        await controller.crash()
        await controller.start()
        said = await jobs.condition("train", "Moving", "False", "PodsNotReady")
        assert said["message"].endswith("they take long to stop")
        await jobs.event("train", "PodsNotReady")
        assert sorted(nodes_of(await jobs.pods("train", phase="Running"))) == before
        (part,) = (await jobs.workload("train"))["status"]["admission"]["podSetAssignments"]
        held = {one["nodeLabels"][HOST]: one["count"] for one in part["topologyAssignment"]["slices"]}
        assert held == Counter(before), "those that end yet have their places, and no others"


async def test_a_budget_that_forbids_it_keeps_a_job_where_it_is(jobs, client, namespace):
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"batch.kubernetes.io/job-name": "train"}}},
    }
    async with Running(client, **MOVES):
        pods = await jobs.spread()
        await client.create(POD_DISRUPTION_BUDGETS, budget, namespace)
        await asyncio.sleep(1.0)
        await jobs.delete("two")
        await jobs.stays("train", pods)
        await client.delete(POD_DISRUPTION_BUDGETS, "keep", namespace)
        await jobs.together()


AMOUNTS = {"cpu": "4", GPU: "2"}
CONTAINERS = [{"name": "c", "image": "i", "resources": {"requests": AMOUNTS, "limits": AMOUNTS}}]
WISH = {"topogate.dev/numa-policy": "single-numa-node"}


@pytest.fixture
async def zones(jobs, client):
    """Two zones in each host, whose kubelets may spread pods over both."""
    names = [jobs.host(rack, host) for rack in (1, 2) for host in (1, 2)]
    for name in names:
        body = nrt_body([nrt_zone(0, ZONE), nrt_zone(1, ZONE)], name=name, policy="best-effort")
        await client.apply(NODE_RESOURCE_TOPOLOGIES, body, field_manager="test")
    yield
    for name in names:
        await client.delete(NODE_RESOURCE_TOPOLOGIES, name)


async def spread_inside(client, pod):
    """Its node says that it took half of the pod's GPUs from each zone."""
    (entry,) = json.loads(pod["metadata"]["annotations"][NUMA_PLACEMENT_PREDICTED])
    halves = [{"zone": zone, "amount": {**entry["amount"], GPU: "1"}} for zone in ("node-0", "node-1")]
    body = {"metadata": {"annotations": {NUMA_PLACEMENT_OBSERVED: json.dumps(halves)}}}
    await client.patch(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"], body=body)


@pytest.mark.usefixtures("zones")
async def test_a_misaligned_pod_is_replaced_on_a_node_that_aligns_it(jobs, client):
    async with Running(client, **MOVES):
        request = {KEYS.required[0]: RACK_LABEL}
        await jobs.create(job("pair", 2, request=request, annotations=WISH, pod_spec={"containers": CONTAINERS}))
        pods = await jobs.running("pair", 2)
        assert len(set(nodes_of(pods))) == 1
        astray, other = pods
        await spread_inside(client, astray)
        event = await jobs.event("pair", "Realign")
        assert astray["metadata"]["name"] in event["note"]
        assert "asks for single-numa-node" in event["note"]

        async def replaced():
            found = await jobs.pods("pair", phase="Running")
            names = {pod["metadata"]["name"] for pod in found}
            return found if len(found) == 2 and astray["metadata"]["name"] not in names else None

        now = await until(replaced, "the pod to be replaced")
        assert other["metadata"]["name"] in {pod["metadata"]["name"] for pod in now}, "the other one runs on"
        assert len(set(nodes_of(now))) == 2
        assert racks_of(now) == racks_of(pods), "in the rack that it requires"
        await jobs.condition("pair", "Moving", "False", "Moved")


def service(count, kind="Deployment", request=None, containers=CONTAINERS):
    """As the webhook stamps the pods of a Deployment or StatefulSet ``web`` in the queue."""
    labels = {"app": "web", KEYS.queue_name: "team"}
    annotations = {KEYS.pod_set: "main", **(request or {KEYS.required[0]: RACK_LABEL, **WISH}), **SLOW}
    spec = {"schedulingGates": [{"name": KEYS.gate}], "containers": containers}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "web", "labels": {KEYS.queue_name: "team"}},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec},
            **({"serviceName": "web"} if kind == "StatefulSet" else {}),
        },
    }


async def up(client, namespace, count):
    """The pods of the service, where all of them run; else None."""
    found = await client.list(PODS, namespace, label_selector="app=web")
    running = [pod for pod in found if pod["status"].get("phase") == "Running"]
    return running if len(running) == len(found) == count else None


@pytest.mark.parametrize(("resource", "kind"), [(DEPLOYMENTS, "Deployment"), (STATEFUL_SETS, "StatefulSet")])
async def test_a_service_that_was_spread_comes_together_over_a_restart(jobs, client, namespace, resource, kind):
    amounts = {"cpu": "4", GPU: "4"}
    containers = [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]
    async with Running(client, **MOVES) as controller:
        await jobs.fill("one", 1, 1)
        await jobs.fill("two", 2, 1)
        await client.create(resource, service(4, kind, PREFERRED, containers), namespace)
        first = await until(lambda: up(client, namespace, 4), "all pods to run")
        assert len(racks_of(first)) == 2
        (owner,) = {one["name"] for pod in first for one in pod["metadata"]["ownerReferences"]}
        before = await jobs.workload(owner)
        await jobs.delete("two")
        await jobs.condition(owner, "Moving", "True", "PullTogether")
        await controller.crash()
        await controller.start()

        async def together():
            found = await up(client, namespace, 4) or []
            return found if found and len(racks_of(found)) == 1 else None

        pods = await until(together, "the service to come together")
        stayed = {pod["metadata"]["uid"] for pod in first} & {pod["metadata"]["uid"] for pod in pods}
        assert len(stayed) == 2, "those that were there already run on"
        await jobs.condition(owner, "Moving", "False", "Moved")
        after = await jobs.workload(owner)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["metadata"]["generation"] == before["metadata"]["generation"], "it never wanted a fifth pod"
        assert [part["count"] for part in after["status"]["admission"]["podSetAssignments"]] == [4]


@pytest.mark.usefixtures("zones")
async def test_a_misaligned_pod_of_a_deployment_is_replaced_beside_its_successor_over_a_restart(
    jobs, client, namespace
):
    async def running():
        return await up(client, namespace, 2)

    async with Running(client, **MOVES) as controller:
        await client.create(DEPLOYMENTS, service(2), namespace)
        pods = await until(running, "both pods to run")
        assert len(set(nodes_of(pods))) == 1
        astray, other = pods
        (owner,) = [one["name"] for one in astray["metadata"]["ownerReferences"]]
        before = await jobs.workload(owner)
        await spread_inside(client, astray)
        await jobs.condition(owner, "Moving", "True", "Realign")

        async def beside():
            found = {
                pod["metadata"]["name"]: pod for pod in await client.list(PODS, namespace, label_selector="app=web")
            }
            ends = found.get(astray["metadata"]["name"], {"metadata": {}})["metadata"].get("deletionTimestamp")
            return found if ends and len(found) == 3 else None

        await until(beside, "the pod that ends and its successor to be there")
        await controller.crash()
        await controller.start()

        async def replaced():
            found = await running() or []
            names = {pod["metadata"]["name"] for pod in found}
            return found if found and astray["metadata"]["name"] not in names else None

        now = await until(replaced, "the pod to be replaced")
        assert other["metadata"]["name"] in {pod["metadata"]["name"] for pod in now}, "the other one runs on"
        assert len(set(nodes_of(now))) == 2
        assert racks_of(now) == racks_of(pods), "in the rack that it requires"
        await jobs.condition(owner, "Moving", "False", "Moved")
        after = await jobs.workload(owner)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["metadata"]["generation"] == before["metadata"]["generation"], "it never wanted a third pod"
        assert [part["count"] for part in after["status"]["admission"]["podSetAssignments"]] == [2]
