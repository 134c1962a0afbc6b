"""What administrators and broken machines do to nodes, and what follows from it for the pods of a job."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from support.cluster_checker import snapshot, violations
from support.jobs import GPU, Running, Watched, install_crds, make_flavor, until

from kube.client import Client
from kube.errors import TooManyRequests
from kube.resources import NODES, PODS, RESOURCE_FLAVORS
from localcluster.nodes import NOT_READY

Json = dict[str, Any]
# Pods that are evicted a second after their node became NotReady, and not after five minutes.
HASTY = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    for key in ("not-ready", "unreachable")
]
HANG = {"topogate.dev/stop-seconds": "1000"}  # what a pod does that nobody ends, as its node is lost
LATER = "example.com/later"  # a second scheduling gate: its pods are let go, and are on no node yet


class Changed(Watched):
    """A namespace whose nodes change under its jobs."""

    def __init__(self, client: Client, namespace: str) -> None:
        super().__init__(client, namespace)
        self.closed: list[str] = []

    async def taint(self, node: str, effect: str = "NoSchedule") -> None:
        await self._node(node, {"spec": {"taints": [{"key": "example.com/repair", "effect": effect}]}})

    async def cordon(self, node: str) -> None:
        await self._node(node, {"spec": {"unschedulable": True}})

    async def fail(self, node: str) -> None:
        """Have a node become NotReady."""
        await self._node(node, {"metadata": {"annotations": {NOT_READY: "true"}}})

    async def label(self, node: str, **labels: str | None) -> None:
        await self._node(node, {"metadata": {"labels": labels}})

    async def open(self, node: str) -> None:
        """Undo what `taint`, `cordon` and `fail` did."""
        await self._node(
            node,
            {"metadata": {"annotations": {NOT_READY: None}}, "spec": {"unschedulable": None, "taints": None}},
        )

    async def _node(self, node: str, body: Json) -> None:
        await self.client.patch(NODES, node, body=body)

    async def uncount(self, pod: Json) -> None:
        """Have its Job not take the end of a pod for a failure, after which it would make no other one for 10 s."""
        body = {"metadata": {"finalizers": None}}
        await self.client.patch(PODS, pod["metadata"]["name"], self.namespace, body=body)

    async def end(self, pod: Json, *, now: bool = False) -> None:
        """Delete a pod, which its Job does not count as failed.

        ``now``: without waiting for its kubelet, as the collection of orphaned pods does.
        """
        await self.uncount(pod)
        params = {"gracePeriodSeconds": "0"} if now else {}
        await self.client.raw("DELETE", f"{PODS.path(self.namespace)}/{pod['metadata']['name']}", params=params)

    async def shrink(self, node: str) -> None:
        """Have a node lose a device."""
        less = {"status": {name: {GPU: "7"} for name in ("capacity", "allocatable")}}
        await self.client.patch(NODES, node, body=less, subresource="status")

    async def evict(self, pod: Json) -> None:
        """Evict a pod as ``kubectl drain`` does: again and again while a budget refuses."""
        await self.uncount(pod)

        async def done() -> bool:
            try:
                await self.client.evict(pod["metadata"]["name"], self.namespace)
            except TooManyRequests:
                return False
            return True

        await until(done, f"the eviction of {pod['metadata']['name']}")

    async def sent(self, name: str, count: int, *, but: list[Json]) -> list[Json]:
        """Wait until so many pods other than these are let go and not being deleted; they may be on no node."""

        async def there() -> list[Json] | None:
            fresh = [
                pod
                for pod in await self.pods(name)
                if pod["metadata"]["uid"] not in uids(but)
                and pod["spec"].get("nodeSelector")
                and not pod["metadata"].get("deletionTimestamp")
            ]
            return sorted(fresh, key=lambda pod: pod["metadata"]["name"]) if len(fresh) == count else None

        return await until(there, f"{count} other pods of {name}")

    async def let_go(self, name: str, count: int) -> None:
        """Wait until so many pods are kept by the gate `LATER` alone, and remove that."""

        async def there() -> list[Json] | None:
            found = [
                pod
                for pod in await self.pods(name)
                if [gate["name"] for gate in pod["spec"].get("schedulingGates", [])] == [LATER]
                and not pod["metadata"].get("deletionTimestamp")
            ]
            return found if len(found) == count else None

        for pod in await until(there, f"{count} pods of {name} to be let go"):
            body = {"spec": {"schedulingGates": None}}
            await self.client.patch(PODS, pod["metadata"]["name"], self.namespace, body=body)

    async def moved(self, name: str, count: int, *, off: set[str], stay: list[Json]) -> list[Json]:
        """Wait until ``count`` pods run on none of the nodes ``off``; those that are to ``stay`` were not touched."""

        async def there() -> list[Json] | None:
            found = [p for p in await self.pods(name, phase="Running") if not p["metadata"].get("deletionTimestamp")]
            away = all(pod["spec"]["nodeName"] not in off for pod in found)
            return found if away and len(found) == count else None

        found = await until(there, f"{count} pods of {name} off {sorted(off)}")
        uids = {pod["metadata"]["uid"] for pod in found}
        for pod in stay:
            assert pod["metadata"]["uid"] in uids, f"{pod['metadata']['name']} was to stay"
        return found


async def assignment(jobs: Watched, name: str) -> Json:
    """The topology assignment that the job's Workload stores."""
    return (await jobs.workload(name))["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"]


def uids(pods: list[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def node_of(pod: Json) -> str:
    return pod["spec"]["nodeName"]


@asynccontextmanager
async def running(client: Client, namespace: str, **settings: Any) -> AsyncIterator[Changed]:
    """A controller and a flavor over the nodes of the namespace's group; the independent checker has the last word."""
    await install_crds(client)
    await make_flavor(client, namespace, namespace)
    changed = Changed(client, namespace)
    async with Running(client, **settings):
        yield changed
        assert violations(await snapshot(client, {namespace})) == []
    await client.delete(RESOURCE_FLAVORS, namespace)
