"""Queues on the real control plane: makers, and what tests ask of jobs in them."""

from typing import Any

from support.jobs import GPU, KEYS, Watched, job, until

from kube.client import Client
from kube.resources import CLUSTER_QUEUES, JOBS, LOCAL_QUEUES, PRIORITY_CLASSES, WORKLOADS

Json = dict[str, Any]
API = "topogate.dev/v1alpha1"


async def make_priorities(client: Client) -> None:
    """The PriorityClasses ``low`` and ``high``."""
    for name, value in (("low", 10), ("high", 1000)):
        body = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        await client.apply(PRIORITY_CLASSES, body, field_manager="test")


async def make_queue(
    client: Client,
    namespace: str,
    name: str,
    nominal: int,
    *,
    flavors: tuple[str, ...],
    local: str = "",
    resources: tuple[str, ...] = (GPU, "cpu"),
    borrowing: int | None = None,
    selector: Json | None = None,
    **spec: Any,
) -> None:
    """A ClusterQueue ``<namespace>-<name>`` with ``nominal`` GPUs of each flavor, and a LocalQueue of its name."""
    limit = {} if borrowing is None else {"borrowingLimit": str(borrowing)}
    quotas = {GPU: {"nominalQuota": str(nominal), **limit}, "cpu": {"nominalQuota": "1k"}}
    group = {
        "coveredResources": list(resources),
        "flavors": [
            {"name": flavor, "resources": [{"name": resource, **quotas[resource]} for resource in resources]}
            for flavor in flavors
        ],
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}} if selector is None else selector
    body = {
        "apiVersion": API,
        "kind": "ClusterQueue",
        "metadata": {"name": f"{namespace}-{name}"},
        "spec": {"resourceGroups": [group], "namespaceSelector": selector, **spec},
    }
    await client.create(CLUSTER_QUEUES, body)
    local_body = {
        "apiVersion": API,
        "kind": "LocalQueue",
        "metadata": {"name": local or name},
        "spec": {"clusterQueue": f"{namespace}-{name}"},
    }
    await client.create(LOCAL_QUEUES, local_body, namespace)


def queued(name: str, pods: int = 1, queue: str = "team", *, priority: str = "", **options: Any) -> Json:
    """A Job in a queue, born suspended as the webhook has it."""
    spec = {"suspend": True, **options.pop("spec", {})}
    labels = {KEYS.queue_name: queue, **options.pop("labels", {})}
    pod_spec = {**({"priorityClassName": priority} if priority else {}), **options.pop("pod_spec", {})}
    return job(name, pods, spec=spec, labels=labels, pod_spec=pod_spec, **options)


class Queued(Watched):
    """Questions about queued jobs."""

    async def submit(self, name: str, pods: int = 1, queue: str = "team", **options: Any) -> Json:
        return await self.create(queued(name, pods, queue, **options))

    async def job(self, name: str) -> Json:
        return await self.client.get(JOBS, name, self.namespace)

    async def edit_queue(self, name: str, **spec: Any) -> None:
        await self.client.patch(CLUSTER_QUEUES, f"{self.namespace}-{name}", body={"spec": spec})

    async def edit_workload(self, name: str, **spec: Any) -> None:
        found = await self.workload(name)
        await self.client.patch(WORKLOADS, found["metadata"]["name"], self.namespace, body={"spec": spec})

    async def status(self, name: str) -> Json:
        return (await self.workload(name) or {}).get("status", {})

    async def waits(self, name: str, reason: str) -> str:
        """Wait until the job waits with this reason; the message."""
        return (await self.condition(name, "QuotaReserved", "False", reason))["message"]

    async def empty(self, name: str) -> None:
        """Wait until the job is suspended and has no pods, and its Workload no admission."""

        async def nothing() -> bool:
            found = await self.job(name)
            held = "admission" in await self.status(name)
            return found["spec"]["suspend"] and not held and not await self.pods(name)

        await until(nothing, f"job {name} to be suspended without pods")

    async def finish(self, name: str) -> None:
        """Have all its pods succeed."""
        for pod in await self.pods(name, phase="Running"):
            await self.annotate(pod, **{"run-seconds": "0"})
        await self.condition(name, "Finished", "True")
