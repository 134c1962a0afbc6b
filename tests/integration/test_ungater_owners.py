"""Pods that no Job owns, on the real control plane: 2 blocks x 2 racks x 2 hosts of 8 GPUs."""

import asyncio

import pytest
from support.jobs import (
    GPU,
    KEYS,
    RACK_LABEL,
    Watched,
    followed,
    nodes_of,
    racks_of,
    until,
)

from kube.resources import CONFIG_MAPS, DEPLOYMENTS, PODS, STATEFUL_SETS, WORKLOADS

pytestmark = pytest.mark.cluster

REQUEST = {KEYS.required[0]: RACK_LABEL}


class Pods(Watched):
    """Pods are found by their label ``app``."""

    async def pods(self, name, *, phase=""):
        found = await self.client.list(PODS, self.namespace, label_selector=f"app={name}")
        return [pod for pod in found if not phase or pod["status"].get("phase") == phase]

    async def by_name(self, name, count):
        return {pod["metadata"]["name"]: nodes_of([pod]) for pod in await self.running(name, count)}

    async def gone(self):
        async def none():
            return not await self.client.list(WORKLOADS, self.namespace)

        await until(none, "no Workload")


@pytest.fixture
async def pods(client, namespace, nodes):
    async with followed(Pods, client, namespace, nodes) as watched:
        yield watched


def template(name, gpus=4, *, labels=None, annotations=None):
    """As the webhook stamps each pod."""
    resources = {"requests": {GPU: str(gpus), "cpu": "1"}, "limits": {GPU: str(gpus)}}
    return {
        "metadata": {
            "labels": {"app": name, **(labels or {})},
            "annotations": {**REQUEST, KEYS.pod_set: "main", **(annotations or {})},
        },
        "spec": {
            "schedulingGates": [{"name": KEYS.gate}],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i", "resources": resources}],
        },
    }


def replicated(kind, name, count, **spec):
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"app": name}},
            "template": template(name),
            **spec,
        },
    }


def pod(name, app, *, labels=None, annotations=None, gpus=4, owner=None):
    body = template(app, gpus, labels=labels, annotations=annotations)
    body["metadata"] |= {"name": name} | ({"ownerReferences": [owner]} if owner else {})
    return body


async def replaced(pods, name, count, uid):
    async def there():
        found = await pods.running(name, count)
        return found if uid not in {one["metadata"]["uid"] for one in found} else None

    return await until(there, f"the replacement of a pod of {name}")


async def test_a_stateful_set_is_one_workload(pods, client, namespace):
    body = replicated("StatefulSet", "db", 4, serviceName="db", podManagementPolicy="Parallel")
    await client.create(STATEFUL_SETS, body, namespace)
    before = await pods.by_name("db", 4)
    found = await pods.running("db", 4)
    assert len(racks_of(found)) == 1
    assert before["db-0"] == before["db-1"] != before["db-2"] == before["db-3"]  # rank order
    (workload,) = await client.list(WORKLOADS, namespace)
    (reference,) = workload["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["name"], reference["controller"]) == ("StatefulSet", "db", True)
    await pods.condition("db", "Admitted", "True")
    victim = next(one for one in found if one["metadata"]["name"] == "db-1")
    await client.delete(PODS, "db-1", namespace)
    await replaced(pods, "db", 4, victim["metadata"]["uid"])
    assert await pods.by_name("db", 4) == before
    await pods.controller.crash()
    await pods.controller.start()
    await client.delete(PODS, "db-2", namespace)
    await until(lambda: _same(pods, "db", 4, before), "the same places after a restart")
    await client.patch(STATEFUL_SETS, "db", namespace, body={"spec": {"replicas": 2}})
    await pods.running("db", 2)
    await until(lambda: _held(client, namespace, 2), "slots for two")
    await client.delete(STATEFUL_SETS, "db", namespace)
    await pods.gone()


async def _same(pods, name, count, before):
    return await pods.by_name(name, count) == before


async def _held(client, namespace, count):
    (workload,) = await client.list(WORKLOADS, namespace)
    admission = workload["status"].get("admission") or {}
    return [part["count"] for part in admission.get("podSetAssignments", [])] == [count]


async def test_a_deployment_stays_in_its_rack_as_it_grows(pods, client, namespace):
    await client.create(DEPLOYMENTS, replicated("Deployment", "web", 2), namespace)
    rack = racks_of(await pods.running("web", 2))
    await client.patch(DEPLOYMENTS, "web", namespace, body={"spec": {"replicas": 4}})
    assert racks_of(await pods.running("web", 4)) == rack
    await client.patch(DEPLOYMENTS, "web", namespace, body={"spec": {"replicas": 5}})
    (workload,) = await client.list(WORKLOADS, namespace)
    owner = workload["metadata"]["ownerReferences"][0]
    assert owner["kind"] == "ReplicaSet"
    await pods.event(owner["name"], "PartlyPlaced")
    # A rollout gives the new revision a pod at a time: the first one goes where there is room for all.
    change = {"spec": {"replicas": 4, "template": {"metadata": {"labels": {"revision": "2"}}}}}
    await client.patch(DEPLOYMENTS, "web", namespace, body=change)

    async def rolled_out():
        found = await client.list(PODS, namespace)
        new = [pod for pod in found if pod["metadata"]["labels"].get("revision") == "2"]
        return new if len(found) == len(new) == 4 and all(pod["status"]["phase"] == "Running" for pod in new) else None

    assert len(racks_of(await until(rolled_out, "the new revision to run alone"))) == 1


async def test_a_group_of_pods_of_two_shapes_runs_whole(pods, client, namespace):
    """As with Kueue 0.19.2: pod sets of 1 and 2 pods (``shared/cases/migrate/pod-group-two-shapes.yaml``)."""
    group = {"labels": {KEYS.pod_group: "pg"}, "annotations": {KEYS.pod_group_total: "3"}}
    for name, gpus in (("pg-a", 1), ("pg-b1", 4), ("pg-b2", 4)):
        await client.create(PODS, pod(name, "pg", gpus=gpus, **group), namespace)
    found = await pods.running("pg", 3)
    (workload,) = await client.list(WORKLOADS, namespace)
    assert sorted(one["count"] for one in workload["spec"]["podSets"]) == [1, 2]
    names = {one["metadata"]["name"]: one["metadata"]["annotations"][KEYS.pod_set] for one in found}
    assert names["pg-a"] != names["pg-b1"] == names["pg-b2"]
    await client.delete(PODS, "pg-b2", namespace)
    await client.create(PODS, pod("pg-b3", "pg", gpus=4, **group), namespace)
    again = {
        one["metadata"]["name"]: one["metadata"]["annotations"][KEYS.pod_set] for one in await pods.running("pg", 3)
    }
    assert again == {"pg-a": names["pg-a"], "pg-b1": names["pg-b1"], "pg-b3": names["pg-b1"]}


async def test_a_group_of_pods_is_placed_as_one_before_all_are_there(pods, client, namespace):
    annotations = {KEYS.pod_group_total: "4"}
    for rank in (2, 0, 3, 1):
        labels = {KEYS.pod_group: "ring", f"{KEYS.domain}/pod-group-pod-index": str(rank)}
        await client.create(PODS, pod(f"ring-{rank}", "ring", labels=labels, annotations=annotations), namespace)
        await asyncio.sleep(0.6)  # the group is placed before the last one comes
    places = await pods.by_name("ring", 4)
    assert len(racks_of(await pods.running("ring", 4))) == 1
    assert places["ring-0"] == places["ring-1"] != places["ring-2"] == places["ring-3"]
    (workload,) = await client.list(WORKLOADS, namespace)
    assert not any(ref.get("controller") for ref in workload["metadata"]["ownerReferences"])
    assert workload["spec"]["podSets"][0]["count"] == 4
    for name in places:
        await client.delete(PODS, name, namespace)
    await pods.gone()


async def test_bare_pods_are_workloads_of_their_own(pods, client, namespace):
    await client.create(PODS, pod("one", "bare", gpus=8), namespace)
    await client.create(PODS, pod("two", "bare", gpus=8), namespace)
    await pods.running("bare", 2)
    assert len(await client.list(WORKLOADS, namespace)) == 2
    await client.create(PODS, pod("huge", "bare", gpus=9), namespace)
    await pods.condition("huge", "QuotaReserved", "False", "NeverFits")
    for name in ("one", "two", "huge"):
        await client.delete(PODS, name, namespace)
    await pods.gone()


async def test_pods_of_any_controller_are_one_workload(pods, client, namespace):
    owner = await client.create(CONFIG_MAPS, {"metadata": {"name": "mpi"}}, namespace)
    about = {"apiVersion": "v1", "kind": "ConfigMap", "name": "mpi", "uid": owner["metadata"]["uid"]}
    for rank in range(3):
        labels = {"training.kubeflow.org/replica-index": str(rank)}
        body = pod(f"mpi-{rank}", "mpi", labels=labels, owner={**about, "controller": True})
        await client.create(PODS, body, namespace)
    assert len(racks_of(await pods.running("mpi", 3))) == 1
    assert len(await client.list(WORKLOADS, namespace)) == 1


async def test_what_cannot_be_served_says_why(pods, client, namespace):
    labels = {KEYS.pod_group: "odd"}
    await client.create(PODS, pod("odd-0", "odd", labels=labels, gpus=1), namespace)
    await client.create(PODS, pod("odd-1", "odd", labels=labels, gpus=2), namespace)
    assert "make them alike" in (await pods.condition("odd-0", "QuotaReserved", "False", "InvalidRequest"))["message"]
    await client.create(PODS, pod("queued", "queued", labels={KEYS.queue_name: "team"}), namespace)
    await pods.condition("queued", "QuotaReserved", "False")
