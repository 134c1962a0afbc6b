"""The simulated kubelets beside a local cluster, as a process of their own, and what they need from the API server."""

from pathlib import Path
from typing import Any

import msgspec

from localcluster.api import Endpoint
from localcluster.kubelets.fleet import Publishing
from localcluster.options import KUBELETS
from localcluster.process import PACKAGES, ControlPlaneProcess, module_command

READY_FILE = "kubelets.ready"
OPTIONS_FILE = "kubelets.json"
_GROUP = "topology.node.k8s.io"


def component(directory: Path, kubeconfig: Path, options: Publishing, env: dict[str, str]) -> ControlPlaneProcess:
    """The process; ``directory`` is the cluster's."""
    ready = directory / READY_FILE
    # Before the process starts: whoever waits for the file must not find that of the process before.
    ready.unlink(missing_ok=True)
    return ControlPlaneProcess(
        KUBELETS,
        module_command("localcluster.kubelets", str(kubeconfig), str(ready), msgspec.json.encode(options).decode()),
        directory=directory,
        log=directory / "logs" / f"{KUBELETS}.log",
        env={**env, "PYTHONPATH": str(PACKAGES)},
    )


def is_ready(directory: Path) -> bool:
    """Whether the process has taken over every machine that was there when it started."""
    return (directory / READY_FILE).exists()


def remember(directory: Path, options: Publishing) -> None:
    """Have whoever owns the cluster start the kubelets, now and whenever it starts the cluster again."""
    (directory / OPTIONS_FILE).write_bytes(msgspec.json.encode(options))


def wanted(directory: Path) -> Publishing | None:
    """What ``remember`` was told; None where nobody asked for kubelets."""
    try:
        return msgspec.json.decode((directory / OPTIONS_FILE).read_bytes(), type=Publishing)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def install(api: Endpoint) -> None:
    """The kind NodeResourceTopology, where no exporter has brought it yet."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/noderesourcetopologies.{_GROUP}"
    # A definition that an exporter brought may be newer than this one, and stays.
    if not api.is_ok(path):
        api.apply(path, node_resource_topology_crd())


def node_resource_topology_crd() -> dict[str, Any]:
    """The definition of topology.node.k8s.io/v1alpha2 NodeResourceTopology: cluster-scoped, no spec, no status."""
    text = {"type": "string"}
    quantity = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}

    def items(required: list[str], **properties: Any) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "object", "required": required, "properties": properties}}

    attributes = items(["name", "value"], name=text, value=text)
    costs = items(["name", "value"], name=text, value={"type": "integer", "format": "int64"})
    resources = items(
        ["name", "capacity", "allocatable", "available"],
        name=text,
        capacity=quantity,
        allocatable=quantity,
        available=quantity,
    )
    zones = items(
        ["name", "type"], name=text, type=text, parent=text, costs=costs, attributes=attributes, resources=resources
    )
    schema = {
        "type": "object",
        "required": ["zones"],
        "properties": {
            "apiVersion": text,
            "kind": text,
            "metadata": {"type": "object"},
            "topologyPolicies": {"type": "array", "items": text},
            "attributes": attributes,
            "zones": zones,
        },
    }
    names = {
        "kind": "NodeResourceTopology",
        "listKind": "NodeResourceTopologyList",
        "plural": "noderesourcetopologies",
        "singular": "noderesourcetopology",
        "shortNames": ["node-res-topo"],
    }
    # A group under k8s.io needs this mark; the definition itself is published by its SIG, not by Kubernetes.
    approval = {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"}
    version = {"name": "v1alpha2", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"noderesourcetopologies.{_GROUP}", "annotations": approval},
        "spec": {"group": _GROUP, "scope": "Cluster", "names": names, "versions": [version]},
    }
