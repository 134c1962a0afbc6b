"""An MPIJob on the real control plane, with a stand-in for its operator: 4 racks of 2 hosts of 8 GPUs."""

import copy

import pytest
from support import jobsets
from support.jobs import GPU, KEYS, RACK_LABEL, Watched, followed, racks_of, until

from kube.replicas import MPI_JOBS
from kube.resources import JOBS, PODS, WORKLOADS

pytestmark = pytest.mark.cluster

CRD = jobsets.CRD.with_name("mpijob-crd.yaml")
LABEL = "training.kubeflow.org"


class Pods(Watched):
    """Pods are found by the name of their MPIJob."""

    async def pods(self, name, *, phase=""):
        found = await self.client.list(PODS, self.namespace, label_selector=f"{LABEL}/job-name={name}")
        return [pod for pod in found if not phase or pod["status"].get("phase") == phase]


@pytest.fixture
async def pods(client, namespace, nodes):
    await jobsets.install(client, CRD)
    async with followed(Pods, client, namespace, nodes) as watched:
        yield watched


def template(gpus):
    """Workers and launcher in the same rack; as the webhook stamps it."""
    resources = {"requests": {GPU: str(gpus), "cpu": "1"}, "limits": {GPU: str(gpus)}}
    return {
        "metadata": {"annotations": {KEYS.required[0]: RACK_LABEL, KEYS.group: "all"}},
        "spec": {
            "schedulingGates": [{"name": KEYS.gate}],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "i", "resources": resources}],
        },
    }


def labelled(made, role, **more):
    found = copy.deepcopy(made)
    found["metadata"]["labels"] = {f"{LABEL}/job-name": "pi", f"{LABEL}/job-role": role, **more}
    return found


async def test_the_launcher_finds_its_slot_beside_workers_that_were_there_before_it(pods, client, namespace):
    """The rack has room for no more than this job, and another one is waiting for it."""
    specs = {
        "Launcher": {"replicas": 1, "template": template(4)},
        "Worker": {"replicas": 3, "template": template(4)},
    }
    spec = {"launcherCreationPolicy": "WaitForWorkersReady", "mpiReplicaSpecs": specs}
    about = {"apiVersion": MPI_JOBS.api_version, "kind": "MPIJob"}
    whole = await client.create(MPI_JOBS, {**about, "metadata": {"name": "pi"}, "spec": spec}, namespace)
    owner = {**about, "name": "pi", "uid": whole["metadata"]["uid"], "controller": True}

    async def worker(number):
        body = labelled(specs["Worker"]["template"], "worker", **{f"{LABEL}/replica-index": str(number)})
        body["metadata"] |= {"name": f"pi-worker-{number}", "ownerReferences": [owner]}
        await client.create(PODS, body, namespace)

    await worker(0)
    await worker(1)

    async def told():
        found = await client.list(WORKLOADS, namespace)
        said = [one["message"] for each in found for one in each.get("status", {}).get("conditions") or ()]
        return said and "2 of 3 pods are there" in said[0]

    await until(told, "what it waits for")
    assert not await pods.pods("pi", phase="Running")
    await worker(2)
    await pods.running("pi", 3)
    await pods.controller.crash()
    await pods.controller.start()
    launcher = labelled(specs["Launcher"]["template"], "launcher")
    body = {"metadata": {"name": "pi-launcher", "ownerReferences": [owner]}, "spec": {"template": launcher}}
    await client.create(JOBS, body, namespace)
    assert len(racks_of(await pods.running("pi", 4))) == 1
    (workload,) = await client.list(WORKLOADS, namespace)
    assert [(one["name"], one["count"]) for one in workload["spec"]["podSets"]] == [("launcher", 1), ("worker", 3)]
    (reference,) = workload["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["uid"]) == ("MPIJob", whole["metadata"]["uid"])
    await client.delete(MPI_JOBS, "pi", namespace)
