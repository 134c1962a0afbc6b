"""From ``topogate install`` to ``uninstall``: what ran keeps running, what waited runs, and nothing is left."""

import asyncio
import json

import pytest
from support.house import NAMESPACE, REQUIRED, House, house
from support.jobs import KEYS, Watched, until

from crds.constants import GROUP
from kube.client import Client
from kube.resources import NAMESPACES, PODS
from localcluster import Fleet

pytestmark = pytest.mark.cluster


async def test_uninstall_leaves_nothing():
    async with house(Fleet(blocks=1, racks=2, hosts=2, gpus=8)) as here:
        jobs = Watched(here.client, NAMESPACE)
        await here.submit("runs", 2, REQUIRED, gpus=8)
        pods = await jobs.running("runs", 2)
        await here.submit("waits", 3, REQUIRED, gpus=8)
        await jobs.condition("waits", "QuotaReserved", "False")
        await uninstall(here)
        await until(lambda: no_namespace(here.client), "our namespace to be gone")
        assert await leftovers(here.client) == []
        assert {pod["metadata"]["uid"] for pod in await jobs.pods("runs", phase="Running")} == {
            pod["metadata"]["uid"] for pod in pods
        }
        assert not any(pod["spec"].get("schedulingGates") for pod in await here.client.list(PODS, NAMESPACE))
        await jobs.running("waits", 2)  # anywhere: two hosts are free
        await here.submit("later", 1, REQUIRED, gpus=0)
        await jobs.running("later", 1)  # its annotation means nothing any more


async def uninstall(here: House):
    printed = await here.topogate("uninstall", "--delete-crds", "--ungate", "--yes", "-o", "json")
    report = json.loads(printed)
    assert len(report["ungated"]) == 3
    assert report["left"]["gating_jobs"] == [f"{NAMESPACE}/runs", f"{NAMESPACE}/waits"]


async def no_namespace(client: Client):
    return "topogate-system" not in [found["metadata"]["name"] for found in await client.list(NAMESPACES)]


async def leftovers(client: Client):
    """Every object of the cluster, of whatever kind, that is of Topogate by its name, label or namespace."""
    paths = [path async for path in listable(client)]
    answers = await asyncio.gather(*(client.raw("GET", path) for path in paths))
    return [
        f"{path} {item['metadata']['name']}"
        for path, answer in zip(paths, answers, strict=True)
        for item in json.loads(answer)["items"]
        if not path.endswith("/events") and is_ours(item["metadata"])
    ]


async def listable(client: Client):
    """The collection paths of everything that the API server can list."""
    groups = json.loads(await client.raw("GET", "/apis"))["groups"]
    assert GROUP not in [group["name"] for group in groups]
    for root in ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]:
        for resource in json.loads(await client.raw("GET", root))["resources"]:
            if "list" in resource["verbs"]:
                yield f"{root}/{resource['name']}"


def is_ours(metadata):
    labels = metadata.get("labels") or {}
    if metadata["name"].startswith("topogate-local:"):  # the local cluster's own
        return False
    return (
        metadata["name"].startswith("topogate")
        or GROUP in metadata["name"]
        or metadata.get("namespace") == "topogate-system"
        or labels.get("app.kubernetes.io/part-of") == "topogate"
        or any(key.startswith((GROUP, KEYS.domain)) for key in labels)
    )
