"""The objects of an earlier version, made again as they were stored (tests/data/upgrade-0.1.0)."""

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml
from support.jobs import until

from kube.client import Client
from kube.resources import JOBS, NAMESPACES, PODS, Resource, resource_of

DATA = Path(__file__).parents[1] / "data" / "upgrade-0.1.0"
NAMESPACE = "team"
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
Json = dict[str, Any]


def documents(name: str) -> list[Json]:
    return [obj for obj in yaml.load_all((DATA / name).read_text(), yaml.CSafeLoader) if obj]


def stored(kind: str) -> list[Json]:
    return [obj for obj in documents("objects.yaml") if obj["kind"] == kind]


class Earlier:
    """Makes them again on a cluster; ``renamed``: uids and names of Workloads as they were -> as they are here."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.renamed: dict[str, str] = {}

    async def make(self) -> None:
        """Kinds, objects, and last what else was installed: its policies would keep tests from removing gates."""
        installed = documents("install.yaml")
        kinds = [obj for obj in installed if obj["kind"] in {"Namespace", "CustomResourceDefinition"}]
        await self._apply(kinds)
        await until(self._served, "the kinds of 0.1.0 to be served")
        await self._client.create(
            NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        )
        for kind in ("PriorityClass", "ResourceFlavor", "ClusterQueue", "LocalQueue"):
            for obj in stored(kind):
                await self._stored(obj)
        for job in stored("Job"):
            await self._job(job)
        await self._replica_set()
        for workload in stored("Workload"):
            await self._stored(self._here(workload))
        await self._apply([obj for obj in installed if obj not in kinds])

    async def _apply(self, objects: list[Json]) -> None:
        for obj in objects:
            await self._client.apply(resource_of(obj), obj, field_manager="topogate-install")

    async def _served(self) -> bool:
        found = [await self._client.raw("GET", "/apis/topogate.dev/v1alpha1")]
        names = {each["name"] for answer in found for each in json.loads(answer)["resources"]}
        return {"workloads/status", "clusterqueues/status", "localqueues/status", "resourceflavors"} <= names

    async def _stored(self, obj: Json) -> None:
        made = await self._client.create(resource_of(obj), _without_uid(obj))
        if status := obj.get("status"):
            address = (resource_of(obj), made["metadata"]["name"], made["metadata"].get("namespace"))
            await self._client.patch(*address, body={"status": status}, subresource="status")

    async def _job(self, job: Json) -> None:
        """Its pods are the Job controller's; they get their places as the ungater of 0.1.0 gave them."""
        body = _without_uid(job)
        for part in ("selector", "manualSelector"):
            body["spec"].pop(part, None)
        body["spec"]["template"]["metadata"].pop("labels")
        made = await self._client.create(JOBS, body)
        self._met(job, made)
        pods = [
            pod for pod in stored("Pod") if pod["metadata"]["ownerReferences"][0]["name"] == job["metadata"]["name"]
        ]

        async def there() -> list[Json]:
            selector = f"job-name={job['metadata']['name']}"
            found = await self._client.list(PODS, NAMESPACE, label_selector=selector)
            return found if len(found) == len(pods) else []

        for pod, found in zip(pods, sorted(await until(there, "pods") if pods else [], key=_index), strict=True):
            change = {"metadata": {"annotations": self._here(pod)["metadata"]["annotations"]}}
            if "schedulingGates" not in pod["spec"]:
                change["spec"] = {
                    "schedulingGates": None,
                    **{part: pod["spec"][part] for part in ("nodeSelector", "affinity")},
                }
            await self._client.patch(PODS, found["metadata"]["name"], NAMESPACE, body=change)

    async def _replica_set(self) -> None:
        """Its pod is made first, and adopted: a new one would have no place."""
        (owner,) = stored("ReplicaSet")
        (pod,) = [
            pod for pod in stored("Pod") if pod["metadata"]["ownerReferences"][0]["name"] == owner["metadata"]["name"]
        ]
        body = _without_uid(pod)
        del body["metadata"]["ownerReferences"], body["spec"]["nodeName"], body["metadata"]["annotations"]
        await self._client.create(PODS, body)
        self._met(owner, await self._client.create(REPLICA_SETS, _without_uid(owner)))
        annotations = {"metadata": {"annotations": self._here(pod)["metadata"]["annotations"]}}
        await self._client.patch(PODS, pod["metadata"]["name"], NAMESPACE, body=annotations)

    def _met(self, before: Json, now: Json) -> None:
        old, new = before["metadata"]["uid"], now["metadata"]["uid"]
        head = f"{now['kind'].lower()}-{now['metadata']['name']}-"
        self.renamed |= {old: new, head + _digest(old): head + _digest(new)}

    def _here(self, obj: Json) -> Json:
        text = json.dumps(obj)
        for before, now in self.renamed.items():
            text = text.replace(before, now)
        found: Json = json.loads(text)
        return found


def _digest(uid: str) -> str:
    return hashlib.sha256(uid.encode()).hexdigest()[:10]


def _index(pod: Json) -> tuple[str, str]:
    return pod["metadata"]["annotations"].get("batch.kubernetes.io/job-completion-index", ""), pod["metadata"]["name"]


def _without_uid(obj: Json) -> Json:
    body: Json = json.loads(json.dumps(obj))
    body["metadata"].pop("uid", None)
    body.pop("status", None)
    return body
