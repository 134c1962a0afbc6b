"""CustomResourceDefinitions of the shape of Kueue's, for any of its versions."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from support.jobs import until

from kube.client import Client
from kube.errors import KubeError, NotFound
from kube.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource
from localcluster import LocalCluster
from ungater.model.kueue_objects import GROUP

KINDS = Path(__file__).parents[1] / "data" / "kueue" / "kinds.yaml"
BOTH = ("v1beta2", "v1beta1")
Json = dict[str, Any]


def definitions(versions: tuple[str, ...] = BOTH) -> list[Json]:
    """The CRDs, each served in these versions; the first is stored."""
    return [_definition(kind, versions) for kind in yaml.safe_load(KINDS.read_text())]


def bare_workloads(version: str) -> Json:
    """The CRD of Kueue's Workloads without a schema: what tells that Kueue is there."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"workloads.{GROUP}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/kueue"},
        },
        "spec": {
            "group": GROUP,
            "names": {"kind": "Workload", "plural": "workloads"},
            "scope": "Namespaced",
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        },
    }


def _definition(kind: Json, versions: tuple[str, ...]) -> Json:
    plural, name = kind["plural"], kind["kind"]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/kueue/pull/1"},
        },
        "spec": {
            "group": GROUP,
            "scope": kind["scope"],
            "names": {"kind": name, "plural": plural, "singular": name.lower(), "listKind": f"{name}List"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == versions[0],
                    "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": _of(kind["schema"], version)}},
                }
                for version in versions
            ],
        },
    }


def _of(schema: Any, version: str) -> Any:
    """The schema without the fields that only another version has."""
    if isinstance(schema, list):
        return [_of(each, version) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _of(value, version)
        for key, value in schema.items()
        if key != "only" and not (isinstance(value, dict) and value.get("only", version) != version)
    }


def resource(kind: str, version: str) -> Resource:
    """One of the kinds in this version."""
    (found,) = (each for each in yaml.safe_load(KINDS.read_text()) if each["kind"] == kind)
    return Resource(GROUP, version, found["plural"], kind, namespaced=found["scope"] == "Namespaced")


async def install(client: Client, versions: tuple[str, ...] = BOTH) -> None:
    """Have the API server serve Kueue's kinds in these versions."""
    for body in definitions(versions):
        await client.apply(CUSTOM_RESOURCE_DEFINITIONS, body, field_manager="test")
    for body in definitions(versions):
        kind = body["spec"]["names"]["kind"]

        async def served(kind: str = kind) -> bool:
            try:
                await client.list(resource(kind, versions[0]))
            except KubeError:  # not yet, or its storage is being made
                return False
            return True

        await until(served, f"{kind} to be served")


async def uninstall(client: Client) -> None:
    """Have it serve them no longer."""
    for body in definitions():
        try:
            await client.delete(CUSTOM_RESOURCE_DEFINITIONS, body["metadata"]["name"])
        except NotFound:
            continue

    async def gone() -> bool:
        names = [found["metadata"]["name"] for found in await client.list(CUSTOM_RESOURCE_DEFINITIONS)]
        return not any(name.endswith(GROUP) for name in names)

    await until(gone, "Kueue's kinds to be gone")


@contextmanager
def installed(cluster: LocalCluster) -> Iterator[None]:
    """The cluster has these kinds while the block runs."""

    async def do(what: Callable[[Client], Awaitable[object]]) -> None:
        async with await Client.connect(str(cluster.kubeconfig)) as client:
            await what(client)

    asyncio.run(do(install))
    yield
    asyncio.run(do(uninstall))
