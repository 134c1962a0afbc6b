"""Pods with volumes on the real control plane: kube-scheduler's own plugins and the volume controllers agree.

2 blocks x 2 racks x 2 hosts of 8 GPUs; nobody attaches or mounts anything here.
"""

from contextlib import suppress

import pytest
from support.jobs import KEYS, RACK_LABEL, Watched, followed, job, nodes_of, racks_of, until

from kube.errors import NotFound
from kube.resources import (
    CSI_NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STATEFUL_SETS,
    STORAGE_CLASSES,
)
from localcluster.nodes import BLOCK_LABEL, HOSTNAME_LABEL

pytestmark = pytest.mark.cluster

DRIVER = "ebs.csi.aws.com"
ANYWHERE = {KEYS.unconstrained: "true"}


class Volumes(Watched):
    """Volumes are named after the namespace, as they are of none."""

    async def volume(self, name, labels=None, *, claim="", storage_class=""):
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": DRIVER, "volumeHandle": f"{self.namespace}-{name}"},
            "storageClassName": storage_class,
            "persistentVolumeReclaimPolicy": "Retain",
        }
        if labels:
            needs = [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": needs}]}}
        if claim:
            spec["claimRef"] = {"namespace": self.namespace, "name": claim}
        meta = {"name": f"{self.namespace}-{name}"}
        body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": spec}
        await self.client.create(PERSISTENT_VOLUMES, body)

    async def claim(self, name, storage_class=""):
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
        body["spec"] = {**spec, "storageClassName": storage_class}
        await self.client.create(PERSISTENT_VOLUME_CLAIMS, body, self.namespace)

    async def bound(self, name, labels=None):
        """A claim that is bound to a volume on nodes with these labels."""
        await self.volume(name, labels, claim=name)
        await self.claim(name)

        async def is_bound():
            found = await self.client.get(PERSISTENT_VOLUME_CLAIMS, name, self.namespace)
            return found["status"].get("phase") == "Bound"

        await until(is_bound, f"claim {name} to be bound")

    async def local_class(self):
        """A class of volumes that are there already, for pods that are given a node first."""
        body = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": self.namespace}}
        body |= {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
        await self.client.create(STORAGE_CLASSES, body)

    async def attaches(self, node, count):
        """How many volumes a node attaches, as its kubelet would say."""
        driver = {"name": DRIVER, "nodeID": node, "topologyKeys": [], "allocatable": {"count": count}}
        body = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node}}
        await self.client.create(CSI_NODES, {**body, "spec": {"drivers": [driver]}})

    async def clear(self):
        """What is of no namespace goes too."""
        for kind in (PERSISTENT_VOLUMES, CSI_NODES):
            for found in await self.client.list(kind):
                if found["metadata"]["name"].startswith(self.namespace):
                    await self.client.delete(kind, found["metadata"]["name"])
        with suppress(NotFound):
            await self.client.delete(STORAGE_CLASSES, self.namespace)


@pytest.fixture
async def volumes(client, namespace, nodes):
    async with followed(Volumes, client, namespace, nodes) as watched:
        yield watched
        await watched.clear()


def having(*names):
    return {"volumes": [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]}


async def test_a_job_with_a_zonal_volume_runs_where_that_is(volumes):
    await volumes.bound("data", {BLOCK_LABEL: "b2", RACK_LABEL: "r2"})
    await volumes.create(job("train", 4, gpus=4, pod_spec=having("data")))
    assert racks_of(await volumes.running("train", 4)) == {("b2", "r2")}


async def test_a_job_waits_for_its_claim_and_says_so(volumes):
    await volumes.create(job("train", 2, pod_spec=having("data")))
    condition = await volumes.condition("train", "QuotaReserved", "False", "VolumeNotReady")
    assert condition["message"] == 'it waits for its volumes: persistentvolumeclaim "data" not found'
    await volumes.event("train", "VolumeNotReady")
    await volumes.claim("data")
    await volumes.volume("data", {BLOCK_LABEL: "b1", RACK_LABEL: "r2"})
    assert racks_of(await volumes.running("train", 2)) == {("b1", "r2")}


async def test_volumes_that_reach_no_node_together_keep_a_job_waiting(volumes):
    await volumes.bound("one", {RACK_LABEL: "r1"})
    await volumes.bound("two", {RACK_LABEL: "r2"})
    await volumes.create(job("train", 1, pod_spec=having("one", "two")))
    condition = await volumes.condition("train", "QuotaReserved", "False", "NeverFits")
    assert "no node is reached by all volumes of the pods" in condition["message"]


async def test_nodes_take_as_many_volumes_as_they_attach(volumes, namespace):
    here = {BLOCK_LABEL: "b1", RACK_LABEL: "r1"}
    hosts = [f"{namespace}-b1-r1-h{number}" for number in (1, 2)]
    for host in hosts:
        await volumes.attaches(host, 1)
    for number in range(3):
        await volumes.bound(f"data-{number}", here)
        await volumes.create(job(f"train-{number}", 1, gpus=1, pod_spec=having(f"data-{number}")))
        if number < 2:
            await volumes.running(f"train-{number}", 1)
    taken = [*await volumes.running("train-0", 1), *await volumes.running("train-1", 1)]
    assert nodes_of(taken) == hosts
    condition = await volumes.condition("train-2", "QuotaReserved", "False", "DoesNotFit")
    assert f"lacks 1 volume of {DRIVER}" in condition["message"]
    await volumes.delete("train-0")
    assert nodes_of(await volumes.running("train-2", 1)) == nodes_of(taken[:1])


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
async def test_each_pod_of_a_stateful_set_comes_back_to_its_local_volume(volumes, client, namespace, policy):
    await volumes.local_class()
    hosts = [f"{namespace}-b1-r1-h1", f"{namespace}-b2-r1-h2", f"{namespace}-b2-r2-h1"]
    for number, host in enumerate(hosts):
        await volumes.volume(f"disk-{number}", {HOSTNAME_LABEL: host}, storage_class=namespace)
    template = job("db", 1, gpus=1, request=ANYWHERE)["spec"]["template"]
    template["metadata"]["labels"] = {"batch.kubernetes.io/job-name": "db"}
    template["spec"] |= {"restartPolicy": "Always", "terminationGracePeriodSeconds": 0}
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    spec = {
        "replicas": 3,
        "serviceName": "db",
        "podManagementPolicy": policy,
        "selector": {"matchLabels": template["metadata"]["labels"]},
        "template": template,
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {**claim, "storageClassName": namespace}}],
    }
    body = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": spec}
    await client.create(STATEFUL_SETS, body, namespace)
    before = {pod["metadata"]["name"]: nodes_of([pod]) for pod in await volumes.running("db", 3)}
    assert sorted(before.values()) == [[host] for host in hosts]
    await client.patch(STATEFUL_SETS, "db", namespace, body={"spec": {"replicas": 0}})

    async def gone():
        return not await client.list(PODS, namespace)

    await until(gone, "no pods")
    await client.patch(STATEFUL_SETS, "db", namespace, body={"spec": {"replicas": 3}})
    after = {pod["metadata"]["name"]: nodes_of([pod]) for pod in await volumes.running("db", 3)}
    assert after == before
