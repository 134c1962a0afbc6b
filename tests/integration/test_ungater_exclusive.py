"""Exclusive placement on the real control plane: pods as the webhooks of others write them, 4 racks of 2 hosts."""

import contextlib
import hashlib

import pytest
from support import jobsets
from support.jobs import GPU, KEYS, RACK_LABEL, Running, Watched, install_crds, make_flavor, racks_of, until

from cli.explain.report import reports
from kube.errors import AlreadyExists
from kube.resources import JOB_SETS, LEADER_WORKER_SETS, PODS, RESOURCE_FLAVORS, STATEFUL_SETS, WORKLOADS

pytestmark = pytest.mark.cluster

LWS = "leaderworkerset.sigs.k8s.io"
ANYWHERE = {KEYS.unconstrained: "true"}


class Pods(Watched):
    """Pods are found by their label ``app``, or by their JobSet."""

    selector = "app={}"

    async def pods(self, name, *, phase=""):
        found = await self.client.list(PODS, self.namespace, label_selector=self.selector.format(name))
        return [pod for pod in found if not phase or pod["status"].get("phase") == phase]


@pytest.fixture
async def pods(client, namespace, nodes):
    await install_crds(client)
    await jobsets.install(client)
    await jobsets.install(client, jobsets.CRD.with_name("leaderworkerset-crd.yaml"))
    await nodes(blocks=2, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace, unique_racks=True)
    await make_flavor(client, namespace, namespace)
    async with Running(client):
        yield Pods(client, namespace)
    await client.delete(RESOURCE_FLAVORS, namespace)


async def test_each_job_of_two_exclusive_jobsets_runs_in_a_rack_alone_and_a_third_waits(pods, client, namespace):
    pods.selector = f"{jobsets.PREFIX}/jobset-name={{}}"
    alone = {**ANYWHERE, jobsets.EXCLUSIVE: RACK_LABEL}
    async with jobsets.JobSets(client, namespace):
        for name in ("one", "two"):
            await client.create(JOB_SETS, jobsets.jobset(name, {"w": (2, 1)}, annotations=alone), namespace)
        found = [pod for name in ("one", "two") for pod in await pods.running(name, 2)]
        assert len(racks_of(found)) == 4
        await client.create(JOB_SETS, jobsets.jobset("three", {"w": (2, 1)}, annotations=alone), namespace)
        told = await pods.condition("three", "QuotaReserved", "False")
        assert "alone in one" in told["message"]
        await client.delete(JOB_SETS, "one", namespace, propagation="Background")
        await pods.running("three", 2)


def alone(name, index, level):
    """The label of a group, and what the webhook writes into its leader."""
    key, label = hashlib.sha1(f"{name}-{index}".encode()).hexdigest(), f"{LWS}/group-key"
    own = [{"key": label, "operator": "In", "values": [key]}]
    others = [{"key": label, "operator": "Exists"}, {"key": label, "operator": "NotIn", "values": [key]}]
    terms = (
        {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchExpressions": needs}, "topologyKey": level}
            ]
        }
        for needs in (own, others)
    )
    return {label: key}, dict(zip(("podAffinity", "podAntiAffinity"), terms, strict=True))


async def make_part(client, namespace, whole, index, labels, *, first=0, **spec):
    """The StatefulSet of a leader (``first`` is 0), or of its workers."""
    name, size = whole["metadata"]["name"], whole["spec"]["leaderWorkerTemplate"]["size"]
    part = f"{name}-{index}" if first else f"{name}-of-{index}"
    template = whole["spec"]["leaderWorkerTemplate"]["workerTemplate" if first else "leaderTemplate"]
    labels = {**labels, "set": part, "app": name, f"{LWS}/name": name, f"{LWS}/group-index": str(index)}
    labels |= {} if first else {f"{LWS}/worker-index": "0"}
    body = {
        "replicas": size - 1 if first else 1,
        "serviceName": part,
        "podManagementPolicy": "Parallel",
        "ordinals": {"start": first},
        "selector": {"matchLabels": {"set": part}},
        "template": {"metadata": {**template["metadata"], "labels": labels}, "spec": {**template["spec"], **spec}},
    }
    with contextlib.suppress(AlreadyExists):
        await client.create(STATEFUL_SETS, {"metadata": {"name": part}, "spec": body}, namespace)
    for number in range(1, size) if first else ():
        await until(lambda number=number: there(client, namespace, f"{name}-{index}-{number}"), f"worker {number}")
        mark = {"metadata": {"labels": {f"{LWS}/worker-index": str(number)}}}
        await client.patch(PODS, f"{name}-{index}-{number}", namespace, body=mark)


async def there(client, namespace, name):
    return name in {pod["metadata"]["name"] for pod in await client.list(PODS, namespace)}


async def test_each_exclusive_group_runs_in_a_rack_alone_though_workers_come_after_their_leader(
    pods, client, namespace
):
    resources = {"requests": {GPU: "1", "cpu": "1"}, "limits": {GPU: "1"}}
    template = {
        "metadata": {"annotations": ANYWHERE},
        "spec": {
            "schedulingGates": [{"name": KEYS.gate}],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i", "resources": resources}],
        },
    }
    shape = {"size": 3, "leaderTemplate": template, "workerTemplate": template}
    about = {"apiVersion": LEADER_WORKER_SETS.api_version, "kind": "LeaderWorkerSet"}
    meta = {"name": "lws", "annotations": {f"{LWS}/exclusive-topology": RACK_LABEL}}
    body = {**about, "metadata": meta, "spec": {"replicas": 4, "leaderWorkerTemplate": shape}}
    whole = await client.create(LEADER_WORKER_SETS, body, namespace)
    for index in range(4):
        labels, affinity = alone("lws", index, RACK_LABEL)
        await make_part(client, namespace, whole, index, labels, affinity=affinity)
    leaders = await pods.running("lws", 4)
    assert len(racks_of(leaders)) == 4
    for leader in leaders:
        index = int(leader["metadata"]["labels"][f"{LWS}/group-index"])
        follow = {RACK_LABEL: leader["spec"]["nodeSelector"][RACK_LABEL]}
        await make_part(client, namespace, whole, index, alone("lws", index, "")[0], first=1, nodeSelector=follow)
    found = await pods.running("lws", 12)
    groups = [[pod for pod in found if pod["metadata"]["labels"][f"{LWS}/group-index"] == str(n)] for n in range(4)]
    assert [len(racks_of(group)) for group in groups] == [1, 1, 1, 1]
    assert len(await client.list(WORKLOADS, namespace)) == 4
    told = await reports(client, namespace, "lws/lws")
    assert [(one.kind, one.job, one.state) for one in told] == [
        ("LeaderWorkerSet", f"{namespace}/lws-{n}", "Placed") for n in range(4)
    ]
    assert [(one.name, one.count, one.per_pod[GPU]) for one in told[0].pod_sets] == [
        ("leader", 1, "1"),
        ("workers", 2, "1"),
    ]
    assert [one.job for one in await reports(client, namespace, "lws/lws-2")] == [f"{namespace}/lws-2"]
    await client.delete(LEADER_WORKER_SETS, "lws", namespace)
