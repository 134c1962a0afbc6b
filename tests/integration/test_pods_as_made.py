"""Pods that the API server makes otherwise than their template says, and what flavors add, on a real API server."""

import json
from pathlib import Path

import pytest
from support.jobs import KEYS, Running, Watched, install_crds, nodes_of

from kube.resources import JOBS, resource_of

pytestmark = pytest.mark.cluster

CASES = Path(__file__).parents[1] / "data" / "pods_as_made"


def read(case):
    """The objects of a case, and its Job as the webhook stamps it."""
    *objects, job = json.loads((CASES / f"{case}.json").read_text())["items"]
    template = job["spec"]["template"]
    template["metadata"]["annotations"][KEYS.pod_set] = "main"
    template["spec"]["schedulingGates"] = [{"name": KEYS.gate}]
    job["spec"]["suspend"] = KEYS.queue_name in job["metadata"]["labels"]
    return objects, job


async def test_pods_are_placed_by_what_they_are_made_with_and_get_what_was_counted(client):
    """Kubernetes 1.37: LimitRange and RuntimeClass add to pods; a flavor's toleration goes onto each pod."""
    await install_crds(client)
    cases = {case: read(case) for case in sorted(path.stem for path in CASES.glob("*.json"))}
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
        await watched["limitrange-default"].condition("lr", "QuotaReserved", "False", "ExceedsQuota")
        workload = await watched["limitrange-default"].workload("lr")
        assert "admission" not in workload["status"], "16 CPUs with the default request, and a quota of 8"
    for case, (_, job) in cases.items():
        await client.delete(JOBS, job["metadata"]["name"], watched[case].namespace, propagation="Background")
    for one in reversed(there):
        meta = one["metadata"]
        await client.delete(resource_of(one), meta["name"], meta.get("namespace", ""))
