"""LeaderWorkerSets, and queues of pods that no Job owns, on the real control plane: 4 racks of 2 hosts of 8 GPUs."""

import contextlib
import copy

import pytest
from support import jobsets
from support.jobs import (
    BLOCK_LABEL,
    GPU,
    KEYS,
    RACK_LABEL,
    Watched,
    followed,
    racks_of,
    until,
)

from cli.explain.report import report
from kube.errors import AlreadyExists, NotFound
from kube.resources import (
    CLUSTER_QUEUES,
    CONTROLLER_REVISIONS,
    LEADER_WORKER_SETS,
    LOCAL_QUEUES,
    PODS,
    STATEFUL_SETS,
    WORKLOADS,
)

pytestmark = pytest.mark.cluster

API = {"apiVersion": "topogate.dev/v1alpha1"}
CRD = jobsets.CRD.with_name("leaderworkerset-crd.yaml")
LWS = "leaderworkerset.sigs.k8s.io"
REVISION = f"{LWS}/template-revision-hash"
RACK = {KEYS.required[0]: RACK_LABEL}


class Pods(Watched):
    """Pods are found by their label ``app``, Workloads by the pods' annotation."""

    async def pods(self, name, *, phase=""):
        found = await self.client.list(PODS, self.namespace, label_selector=f"app={name}")
        return [pod for pod in found if not phase or pod["status"].get("phase") == phase]

    async def queue(self, gpus=16, **spec):
        quotas = [{"name": GPU, "nominalQuota": gpus}, {"name": "cpu", "nominalQuota": 100}]
        group = {"coveredResources": [GPU, "cpu"], "flavors": [{"name": self.namespace, "resources": quotas}]}
        body = {"resourceGroups": [group], "namespaceSelector": {}, **spec}
        about = {"metadata": {"name": self.namespace}}
        await self.client.create(CLUSTER_QUEUES, {**API, "kind": "ClusterQueue", **about, "spec": body})
        local = {"metadata": {"name": "team"}, "spec": {"clusterQueue": self.namespace}}
        await self.client.create(LOCAL_QUEUES, {**API, "kind": "LocalQueue", **local}, self.namespace)

    async def stop(self, policy):
        await self.client.patch(CLUSTER_QUEUES, self.namespace, body={"spec": {"stopPolicy": policy}})


@pytest.fixture
async def pods(client, namespace, nodes):
    await jobsets.install(client, CRD)
    async with followed(Pods, client, namespace, nodes) as watched:
        yield watched


def template(name, gpus=4, *, labels=None, annotations=None):
    """As the webhook stamps each pod."""
    resources = {"requests": {GPU: str(gpus), "cpu": "1"}, "limits": {GPU: str(gpus)}}
    return {
        "metadata": {"labels": {"app": name, **(labels or {})}, "annotations": {**RACK, **(annotations or {})}},
        "spec": {
            "schedulingGates": [{"name": KEYS.gate}],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i", "resources": resources}],
        },
    }


async def keep(client, namespace, whole, name):
    """What the controller of LeaderWorkerSets keeps of what one is."""
    meta, shape = whole["metadata"], whole["spec"]["leaderWorkerTemplate"]
    owner = {"apiVersion": LEADER_WORKER_SETS.api_version, "kind": "LeaderWorkerSet", "controller": True}
    body = {
        "metadata": {
            "name": f"{meta['name']}-{name}-1",
            "labels": {f"{LWS}/name": meta["name"], REVISION: name},
            "ownerReferences": [{**owner, "name": meta["name"], "uid": meta["uid"]}],
        },
        "data": {"spec": {"leaderWorkerTemplate": {**shape, "$patch": "replace"}}},
        "revision": 1,
    }
    await client.create(CONTROLLER_REVISIONS, body, namespace)


async def make_group(client, namespace, whole, index, *, workers=True, revision=""):
    """What the controller of LeaderWorkerSets makes of one group: a StatefulSet of one leader, one of its workers."""
    name, shape = whole["metadata"]["name"], whole["spec"]["leaderWorkerTemplate"]
    parts = [(f"{name}-of-{index}", 0, 1, shape["leaderTemplate"])]
    parts += [(f"{name}-{index}", 1, shape["size"] - 1, shape["workerTemplate"])] if workers else []
    for part, first, count, made in parts:
        template = copy.deepcopy(made)
        template["metadata"]["labels"] |= {"set": part, f"{LWS}/name": name, f"{LWS}/group-index": str(index)}
        template["metadata"]["labels"] |= {} if first else {f"{LWS}/worker-index": "0"}
        template["metadata"]["labels"] |= {REVISION: revision} if revision else {}
        spec = {
            "replicas": count,
            "serviceName": part,
            "podManagementPolicy": "Parallel",
            "ordinals": {"start": first},
            "selector": {"matchLabels": {"set": part}},
            "template": template,
        }
        with contextlib.suppress(AlreadyExists):
            await client.create(STATEFUL_SETS, {"metadata": {"name": part}, "spec": spec}, namespace)
    for number in range(1, shape["size"]) if workers else ():
        pod = f"{name}-{index}-{number}"
        labels = {"metadata": {"labels": {f"{LWS}/worker-index": str(number)}}}
        await until(lambda pod=pod, labels=labels: _labelled(client, namespace, pod, labels), pod)


async def _labelled(client, namespace, pod, labels):
    """As the webhook of LeaderWorkerSets does on each pod."""
    with contextlib.suppress(NotFound):
        await client.patch(PODS, pod, namespace, body=labels)
        return True
    return False


async def test_each_group_of_a_leader_worker_set_is_a_workload(pods, client, namespace):
    together = {KEYS.group: "group"}
    shape = {
        "size": 3,
        "leaderTemplate": template("lws", annotations=together),
        "workerTemplate": template("lws", annotations=together),
    }
    body = {"metadata": {"name": "lws"}, "spec": {"replicas": 2, "leaderWorkerTemplate": shape}}
    about = {"apiVersion": LEADER_WORKER_SETS.api_version, "kind": "LeaderWorkerSet"}
    whole = await client.create(LEADER_WORKER_SETS, {**about, **body}, namespace)
    await make_group(client, namespace, whole, 0)
    await make_group(client, namespace, whole, 1, workers=False)  # its workers come when the leader runs
    found = await pods.running("lws", 4)
    workloads = await client.list(WORKLOADS, namespace)
    assert len(workloads) == 2
    for workload in workloads:
        assert [(one["name"], one["count"]) for one in workload["spec"]["podSets"]] == [("leader", 1), ("workers", 2)]
        (reference,) = workload["metadata"]["ownerReferences"]
        assert (reference["kind"], reference["uid"]) == ("LeaderWorkerSet", whole["metadata"]["uid"])
        parts = workload["status"]["admission"]["podSetAssignments"]
        assert [part["count"] for part in parts] == [1, 2], "room is kept for workers that are to come"
    groups = [[pod for pod in found if pod["metadata"]["labels"][f"{LWS}/group-index"] == str(n)] for n in (0, 1)]
    assert [len(racks_of(group)) for group in groups] == [1, 1]
    await pods.controller.crash()
    await pods.controller.start()
    await client.delete(PODS, "lws-of-1-0", namespace)
    await make_group(client, namespace, whole, 1)
    found = await pods.running("lws", 6)
    group = [pod for pod in found if pod["metadata"]["labels"][f"{LWS}/group-index"] == "1"]
    assert len(racks_of(group)) == 1
    await client.delete(LEADER_WORKER_SETS, "lws", namespace)


async def test_a_rolling_update_to_larger_workers_goes_on_in_another_rack(pods, client, namespace):
    """A rack has 16 GPUs. Where the group is, half of them are taken meanwhile, and it comes to need 12."""
    about = {"apiVersion": LEADER_WORKER_SETS.api_version, "kind": "LeaderWorkerSet"}
    shape = {"size": 3, "leaderTemplate": template("big", 4), "workerTemplate": template("big", 2)}
    for one in ("leaderTemplate", "workerTemplate"):
        shape[one]["metadata"]["annotations"][KEYS.group] = "group"
    body = {"metadata": {"name": "big"}, "spec": {"replicas": 1, "leaderWorkerTemplate": shape}}
    whole = await client.create(LEADER_WORKER_SETS, {**about, **body}, namespace)
    await keep(client, namespace, whole, "a")
    await make_group(client, namespace, whole, 0, revision="a")
    ((block, rack),) = racks_of(await pods.running("big", 3))
    taken = template("other", 8)
    taken["metadata"] |= {"name": "other", "labels": {"app": "other"}}
    taken["spec"] |= {"nodeSelector": {BLOCK_LABEL: block, RACK_LABEL: rack}}
    await client.create(PODS, taken, namespace)
    await pods.running("other", 1)

    larger = template("big", 4)
    larger["metadata"]["annotations"][KEYS.group] = "group"
    patch = {"spec": {"leaderWorkerTemplate": {"workerTemplate": larger}}}
    await client.patch(LEADER_WORKER_SETS, "big", namespace, body=patch)
    whole = await client.get(LEADER_WORKER_SETS, "big", namespace)
    await keep(client, namespace, whole, "b")
    for part in ("big-0", "big-of-0"):
        await client.delete(STATEFUL_SETS, part, namespace)

    async def none():
        return not await pods.pods("big")

    await until(none, "the old pods to be gone")
    await make_group(client, namespace, whole, 0, revision="b")
    after = await pods.running("big", 3)
    ((*other,),) = racks_of(after)
    assert other != [block, rack], "there is no room for all of it there"
    await client.delete(LEADER_WORKER_SETS, "big", namespace)


async def test_a_group_of_pods_waits_in_a_queue(pods, client, namespace):
    await pods.queue(stopPolicy="Hold")
    labels = {KEYS.pod_group: "ring", KEYS.queue_name: "team"}
    for rank in range(4):
        body = template("ring", labels=labels, annotations={KEYS.pod_group_total: "4"})
        body["metadata"]["name"] = f"ring-{rank}"
        await client.create(PODS, body, namespace)
    await pods.condition("ring-0", "QuotaReserved", "False")
    await pods.stop("None")
    assert len(racks_of(await pods.running("ring", 4))) == 1
    (workload,) = await client.list(WORKLOADS, namespace)
    assert workload["spec"]["queueName"] == "team"
    assert workload["status"]["admission"]["clusterQueue"] == namespace
    await client.delete(CLUSTER_QUEUES, namespace)


async def test_a_stateful_set_in_a_queue_is_evicted_and_comes_back(pods, client, namespace):
    await pods.queue()
    spec = {
        "replicas": 3,
        "serviceName": "db",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "db"}},
        "template": template("db", labels={KEYS.queue_name: "team"}),
    }
    body = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": spec}
    await client.create(STATEFUL_SETS, body, namespace)
    before = {pod["metadata"]["uid"] for pod in await pods.running("db", 3)}
    await pods.stop("HoldAndDrain")

    async def born_gated():
        found = await pods.pods("db")
        new = [pod for pod in found if pod["metadata"]["uid"] not in before]
        return len(found) == len(new) == 3 and all(pod["spec"].get("schedulingGates") for pod in new)

    await until(born_gated, "other pods, behind the gate")
    await pods.condition("db", "Admitted", "False")
    told = await report(client, namespace, "sts/db")
    assert (told.kind, told.state, told.queue.local_queue) == ("StatefulSet", "Waiting", "team")
    await pods.stop("None")
    await pods.running("db", 3)
    await client.patch(STATEFUL_SETS, "db", namespace, body={"spec": {"replicas": 5}})
    await until(lambda: gated(pods), "the fifth, for which there is no quota")
    await client.delete(STATEFUL_SETS, "db", namespace)
    await client.delete(CLUSTER_QUEUES, namespace)


async def gated(pods):
    found = await pods.pods("db")
    held = [pod for pod in found if pod["spec"].get("schedulingGates")]
    return len(found) == 5 and len(held) >= 1
