"""What the controller writes into the status of queues, on the real API server."""

import asyncio
import time

import pytest
from support.jobs import install_crds, until

from clock import SYSTEM
from engine.cluster.state import ClusterState
from engine.model import Flavor, Node, PodSet, Policy, TopologyRequest
from kube.informer import Informer
from kube.queues import ClusterQueue, Cohort, LocalQueue, cluster_queue, cohort, local_queue
from kube.resources import CLUSTER_QUEUES, COHORTS, LOCAL_QUEUES
from queueing.cycle.cycle import cycle
from queueing.model import Workload
from queueing.queues.queues import Queues
from ungater.status import queues
from ungater.status.queues import QueueStatusLoop, Source, changes

pytestmark = pytest.mark.cluster
API = {"apiVersion": "topogate.dev/v1alpha1"}
GPU = "nvidia.com/gpu"


class Queueing:
    """The queues of one namespace as the controller has them: fed by informers, decided in memory."""

    def __init__(self, client, namespace):
        self.client, self.namespace, self.queues = client, namespace, Queues()
        self.state = ClusterState()
        self.state.set_flavor(Flavor(name="tas", levels=("host",), node_labels={"pool": "a"}))
        for name in ("n1", "n2"):
            labels = {"pool": "a", "host": name}
            self.state.set_node(Node(name=name, labels=labels, allocatable={GPU: 8, "pods": 10}))
        self.queues.set_namespace(namespace, {})
        self.cohorts = Informer(client, COHORTS, Cohort, on_event=self._on_cohort, clock=SYSTEM)
        self.cluster = Informer(client, CLUSTER_QUEUES, ClusterQueue, on_event=self._on_cluster)
        self.local = Informer(client, LOCAL_QUEUES, LocalQueue, on_event=self._on_local)
        stores = (one.store.values for one in (self.cohorts, self.cluster, self.local))
        self.source = Source(self.queues, lambda: self.state.flavors, *stores, set)

    def _on_cohort(self, event):
        if event.new is None:
            self.queues.remove_cohort(event.key)
        else:
            self.queues.set_cohort(cohort(event.new))

    def _on_cluster(self, event):
        if event.new is None:
            self.queues.remove_cluster_queue(event.key)
        else:
            self.queues.set_cluster_queue(cluster_queue(event.new))

    def _on_local(self, event):
        if event.new is not None:
            self.queues.set_local_queue(local_queue(event.new))

    async def make(self, name, gpus, **spec):
        quota = {"name": GPU, "nominalQuota": gpus}
        groups = [{"coveredResources": [GPU], "flavors": [{"name": "tas", "resources": [quota]}]}]
        spec = {"resourceGroups": groups, "namespaceSelector": {}, "cohortName": self.namespace, **spec}
        name = f"{self.namespace}-{name}"
        await self.client.create(
            CLUSTER_QUEUES, {**API, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}
        )
        body = {"metadata": {"name": name}, "spec": {"clusterQueue": name}}
        await self.client.create(LOCAL_QUEUES, {**API, "kind": "LocalQueue", **body}, self.namespace)
        await until(lambda: self._has(name), f"queue {name} to be known")
        return name

    async def make_cohort(self, name, **spec):
        name = f"{self.namespace}-{name}"
        await self.client.create(COHORTS, {**API, "kind": "Cohort", "metadata": {"name": name}, "spec": spec})
        await until(lambda: self._has_cohort(name), f"cohort {name} to be known")
        return name

    async def _has_cohort(self, name):
        return name in self.queues.quotas.cohorts

    async def _has(self, name):
        return name in self.queues.quotas.queues and (self.namespace, name) in self.queues.config.local

    def submit(self, name, queue, gpus):
        topology = TopologyRequest(policy=Policy.UNCONSTRAINED)
        pods = PodSet(name="main", count=1, requests={GPU: gpus}, topology=topology, namespace=self.namespace)
        workload = Workload(key=f"{self.namespace}/{name}", namespace=self.namespace, queue=queue, pod_sets=(pods,))
        self.queues.submit(workload, 0.0)
        cycle(self.state, self.queues, 1.0)

    async def status(self, name):
        return (await self.client.get(CLUSTER_QUEUES, name)).get("status", {})


@pytest.fixture
async def here(client, namespace):
    await install_crds(client)
    made = Queueing(client, namespace)
    tasks = [asyncio.create_task(informer.run()) for informer in (made.cohorts, made.cluster, made.local)]
    for informer in (made.cohorts, made.cluster, made.local):
        await informer.wait_synced()
    yield made
    for task in tasks:
        task.cancel()
    for queue in list(made.cluster.store.values()):
        await client.delete(CLUSTER_QUEUES, queue.metadata.name)
    for one in list(made.cohorts.store.values()):
        await client.delete(COHORTS, one.metadata.name)


def usage(status, field="flavorsUsage"):
    return [(r["total"], r.get("borrowed")) for flavor in status[field] for r in flavor["resources"]]


async def settled(here):
    """Wait until the informers have seen what was written."""

    async def same():
        return not [
            one for one in changes(here.source, time.time()) if one.queue.metadata.name.startswith(here.namespace)
        ]

    await until(same, "the informers to have seen every write")


async def test_statuses_are_written_once_and_again_where_they_change(here, client, namespace):
    name, other = await here.make("a", 4), await here.make("b", 12)
    writer = QueueStatusLoop(client, here.source, lambda: True, SYSTEM)
    await writer.update()
    status = await here.status(name)
    assert (status["pendingWorkloads"], status["admittedWorkloads"]) == (0, 0)
    (active,) = status["conditions"]
    assert (active["type"], active["status"], active["reason"]) == ("Active", "True", "Ready")
    assert usage(status) == [("0", "0")]
    await settled(here)
    before = await client.get(CLUSTER_QUEUES, name)
    await writer.update()
    assert (await client.get(CLUSTER_QUEUES, name))["metadata"]["resourceVersion"] == before["metadata"][
        "resourceVersion"
    ]
    here.submit("w", name, 8)
    here.submit("x", name, 20)
    await QueueStatusLoop(client, here.source, lambda: True, SYSTEM).update()
    status = await here.status(name)
    assert (status["pendingWorkloads"], status["reservingWorkloads"], status["admittedWorkloads"]) == (1, 1, 1)
    assert usage(status) == usage(status, "flavorsReservation") == [("8", "4")]
    assert status["conditions"] == [active]
    local = (await client.get(LOCAL_QUEUES, name, namespace))["status"]
    assert (local["pendingWorkloads"], local["admittedWorkloads"], usage(local)) == (1, 1, [("8", None)])
    assert (await here.status(other))["pendingWorkloads"] == 0


async def test_numbers_wait_a_little_and_conditions_do_not(here, client, monkeypatch):
    name = await here.make("a", 8)
    writer = QueueStatusLoop(client, here.source, lambda: True, SYSTEM)
    await writer.update()
    await settled(here)
    here.submit("w", name, 8)
    await writer.update()
    assert (await here.status(name))["admittedWorkloads"] == 0, "it was written a moment ago"
    await client.patch(CLUSTER_QUEUES, name, body={"spec": {"stopPolicy": "Hold"}})

    async def stopped():
        await writer.update()
        (active,) = (await here.status(name))["conditions"]
        return (active["status"], active["reason"]) == ("False", "QueueStopped")

    await until(stopped, "Active=False, without waiting")
    monkeypatch.setattr(queues, "EVERY", 0.0)
    here.submit("x", name, 8)

    async def counted():
        await writer.update()
        return (await here.status(name))["pendingWorkloads"] == 1

    await until(counted, "the numbers, once their time has come")


async def test_a_queue_that_was_deleted_meanwhile_and_a_server_that_refuses_stop_nothing(
    here, client, as_account, monkeypatch
):
    monkeypatch.setattr(queues, "MOST_OF_A_CORE", 1e9)  # else one look on a loaded machine makes the pause longer
    name = await here.make("a", 8)
    gone = await here.make("gone", 8)
    await client.delete(CLUSTER_QUEUES, gone)
    await QueueStatusLoop(client, here.source, lambda: True, SYSTEM).update()
    assert "conditions" in await here.status(name)
    stranger = await as_account(here.namespace, "default")
    fresh = await here.make("c", 8)
    assert await QueueStatusLoop(stranger, here.source, lambda: True, SYSTEM).update() == queues.AFTER_FAILURE
    assert await here.status(fresh) == {}


async def test_cohorts_add_up_what_is_below_them_and_tell_a_circle_until_it_is_mended(here, client):
    org = await here.make_cohort("org")
    team = await here.make_cohort("team", parentName=org)
    name = await here.make("a", 4, cohortName=team)
    await here.make("b", 4, cohortName=org)
    here.submit("w", name, 8)
    writer = QueueStatusLoop(client, here.source, lambda: True, SYSTEM)
    await writer.update()
    await settled(here)
    for cohort_name, borrowed in ((org, "0"), (team, "4")):
        status = (await client.get(COHORTS, cohort_name))["status"]
        assert (status["pendingWorkloads"], status["reservingWorkloads"], status["admittedWorkloads"]) == (0, 1, 1)
        assert usage(status, "flavorsReservation") == [("8", borrowed)]
        (active,) = status["conditions"]
        assert (active["status"], active["reason"]) == ("True", "Ready")
    before = (await client.get(COHORTS, team))["metadata"]["resourceVersion"]
    await writer.update()
    assert (await client.get(COHORTS, team))["metadata"]["resourceVersion"] == before

    async def told(status, reason):
        await writer.update()
        found = [
            await client.get(COHORTS, org),
            await client.get(COHORTS, team),
            await client.get(CLUSTER_QUEUES, name),
        ]
        actives = [one["status"]["conditions"][0] for one in found]
        return all((one["status"], one["reason"]) == (status, reason) for one in actives)

    await client.patch(COHORTS, org, body={"spec": {"parentName": team}})
    await until(lambda: told("False", "CohortCycle"), "all in the circle to say so")
    await client.patch(COHORTS, org, body={"spec": {"parentName": None}})
    await until(lambda: told("True", "Ready"), "all of them to be active again")


async def test_it_runs(here, client, monkeypatch):
    monkeypatch.setattr(queues, "TICK", 0.01)
    name = await here.make("a", 8)
    task = asyncio.create_task(QueueStatusLoop(client, here.source, lambda: True, SYSTEM).run())

    async def written():
        return "conditions" in await here.status(name)

    await until(written, "the status")
    task.cancel()
