"""Pods that the API server makes otherwise than their template says, and what flavors add, on a real API server."""

import json
from pathlib import Path

import pytest
from support.jobs import KEYS, Running, Watched, install_crds, nodes_of, until

from kube.resources import JOBS, PODS, resource_of
from localcluster.nodes import HOSTNAME_LABEL

pytestmark = pytest.mark.cluster

DATA = Path(__file__).parents[1] / "data"
FEATURES = DATA / "node-declared-features"
CASES = [[path] for path in sorted((DATA / "pods_as_made").glob("*.json"))]
CASES.append([FEATURES / "objects.json", FEATURES / "job.json"])


def read(files):
    """The objects of a case, and its Job as the webhook stamps it."""
    *objects, job = [one for path in files for one in json.loads(path.read_text())["items"]]
    template = job["spec"]["template"]
    template["metadata"]["annotations"][KEYS.pod_set] = "main"
    template["spec"]["schedulingGates"] = [{"name": KEYS.gate}]
    job["spec"]["suspend"] = KEYS.queue_name in job["metadata"]["labels"]
    return objects, job


async def _said_by_the_scheduler(client, like, node):
    """Why kube-scheduler does not bind such a pod to this node, where nobody but it decides."""
    namespace = like["metadata"]["namespace"]
    spec = {"containers": like["spec"]["containers"], "restartPolicy": "Never", "nodeSelector": {HOSTNAME_LABEL: node}}
    for one in spec["containers"]:
        one.pop("volumeMounts", None)
    await client.create(PODS, {"kind": "Pod", "metadata": {"name": "plain"}, "spec": spec}, namespace)

    async def said():
        pod = await client.get(PODS, "plain", namespace)
        found = [one for one in pod["status"].get("conditions", ()) if one["type"] == "PodScheduled"]
        return found and found[0].get("message")

    message = await until(said, "kube-scheduler to look at a pod")
    await client.delete(PODS, "plain", namespace)
    return message


async def test_pods_are_placed_by_what_they_are_made_with_and_what_they_use_and_get_what_was_counted(client):
    """Kubernetes 1.37: LimitRange and RuntimeClass add to pods; a flavor's toleration goes onto each pod.

    kube-scheduler 1.37.1 binds pods that use a feature to nodes that declare it alone (NodeDeclaredFeatures).
    """
    await install_crds(client)
    cases = {files[0].parent.name if files[1:] else files[0].stem: read(files) for files in CASES}
    there = [one for objects, _ in cases.values() for one in objects]
    for one in there:
        await client.apply(resource_of(one), one, field_manager="test")
    watched = {case: Watched(client, job["metadata"]["namespace"]) for case, (_, job) in cases.items()}
    async with Running(client):
        for case, (_, job) in cases.items():
            await watched[case].create(job)
        sandboxed = await watched["runtimeclass-scheduling"].running("sb", 2)
        assert nodes_of(sandboxed) == ["h-sandbox-b1", "h-sandbox-b2"], "where the RuntimeClass lets its pods run"
        tolerating = await watched["flavor-toleration-without-queue"].running("t", 2)
        assert all(any(one["key"] == "nvidia.com/gpu" for one in pod["spec"]["tolerations"]) for pod in tolerating), (
            "the flavor's, though the Job has no queue"
        )
        assert all(pod["spec"]["nodeSelector"]["pool"] == "h-toleration" for pod in tolerating)
        featured = await watched["node-declared-features"].running("inplace", 4)
        assert set(nodes_of(featured)) == {"h-features-b1", "h-features-b2"}, "rack r2, whose kubelets are of 1.37"
        said = await _said_by_the_scheduler(client, featured[0], "h-features-a1")
        assert "1 node(s) didn't match Pod's required features" in said, "rack r1, whose kubelets are of 1.35"
        await watched["limitrange-default"].condition("lr", "QuotaReserved", "False", "ExceedsQuota")
        workload = await watched["limitrange-default"].workload("lr")
        assert "admission" not in workload["status"], "16 CPUs with the default request, and a quota of 8"
    for case, (_, job) in cases.items():
        await client.delete(JOBS, job["metadata"]["name"], watched[case].namespace, propagation="Background")
    for one in reversed(there):
        meta = one["metadata"]
        await client.delete(resource_of(one), meta["name"], meta.get("namespace", ""))
