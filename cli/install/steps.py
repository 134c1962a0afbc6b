"""One object of an installation at a time: as it is, and what happened to it."""

from typing import Any, Literal

import msgspec

from cli.output import Failure
from kube import resources
from kube.client import Client
from kube.connection.answers import decode
from kube.errors import KubeError, NotFound
from kube.resources import Resource, resource_of
from manifests import render

Json = dict[str, Any]
Outcome = Literal["created", "configured", "unchanged", "deleted", "kept"]

KINDS = (
    resources.WORKLOADS,
    resources.LOCAL_QUEUES,
    resources.CLUSTER_QUEUES,
    resources.COHORTS,
    resources.RESOURCE_FLAVORS,
    resources.FLEX_TOPOS,
    resources.WORKLOAD_PRIORITY_CLASSES,
)


class InstallStep(msgspec.Struct, frozen=True):
    """One object and what happened to it."""

    kind: str
    name: str
    namespace: str
    outcome: Outcome
    dry_run: bool = False

    def __str__(self) -> str:
        place = f" in {self.namespace}" if self.namespace else ""
        return f"{self.kind.lower()}/{self.name}{place} {self.outcome}{' (dry run)' * self.dry_run}"


async def read(client: Client, resource: Resource, name: str, namespace: str) -> Json | None:
    """The object; None where there is none."""
    try:
        return await client.get(resource, name, namespace or None)
    except NotFound:
        return None


async def is_served(client: Client, resource: Resource) -> bool:
    """Whether the API server has the kind, in this version."""
    path = f"/apis/{resource.group}/{resource.version}"
    try:
        served = decode(dict, await client.raw("GET", path), path)
    except NotFound:
        return False
    return any(one.get("name") == resource.plural for one in served.get("resources") or ())


async def delete(client: Client, obj: Json, *, dry_run: bool = False) -> InstallStep | None:
    """Delete the object; None where it is gone already."""
    name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
    try:
        await client.delete(resource_of(obj), name, namespace or None, propagation="Background", dry_run=dry_run)
    except NotFound:
        return None
    except KubeError as error:
        raise Failure(f"{obj['kind']} {name}: {error}") from error
    return InstallStep(obj["kind"], name, namespace, "deleted", dry_run)


async def is_ours(client: Client, namespace: str) -> bool | None:
    """Whether the namespace was made by an install, as its label says; None where there is none."""
    found = await read(client, resources.NAMESPACES, namespace, "")
    if found is None:
        return None
    labels = found["metadata"].get("labels", {})
    # The label is in our manifest of the namespace; one that an administrator made before lacks it.
    return all(labels.get(key) == text for key, text in render.PART_OF.items())
