"""What nodes publish of their inside, as Python data: NodeResourceTopology and FlexTopo objects, whole or bent."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kube.objects import Node, NodeInfo, NodeStatus, ObjectMeta
from kube.topologies import FlexTopo, NodeResourceTopology

GPU = "nvidia.com/gpu"
GI = 1 << 30
Json = dict[str, Any]


def node(
    name: str = "n1", *, version: str = "v1.36.3", annotations: Mapping[str, str] | None = None, **allocatable
) -> Node:
    meta = ObjectMeta(name=name, annotations=dict(annotations or {}))
    return Node(metadata=meta, status=NodeStatus(allocatable=allocatable, node_info=NodeInfo(kubelet_version=version)))


def nrt_zone(zone: int, amounts: Mapping[str, Any], costs: Mapping[int, int] | None = None, **other) -> Json:
    """A zone; an amount is one number for all three, or (capacity, allocatable, available)."""
    resources = []
    for name, amount in amounts.items():
        three = amount if isinstance(amount, tuple) else (amount, amount, amount)
        resources.append(
            {"name": name, **dict(zip(("capacity", "allocatable", "available"), map(str, three), strict=True))}
        )
    body = {"name": f"node-{zone}", "type": "Node", "resources": resources}
    if costs:
        body["costs"] = [{"name": f"node-{other}", "value": cost} for other, cost in costs.items()]
    return body | other


def nrt_body(
    zones: Sequence[Json],
    *,
    name: str = "n1",
    policy: str = "restricted",
    scope: str = "container",
    policies: Sequence[str] = (),
    attributes: Mapping[str, str] | None = None,
) -> Json:
    named = {"topologyManagerPolicy": policy, "topologyManagerScope": scope} if policy else {}
    body: Json = {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name},
        "zones": list(zones),
        "attributes": [{"name": key, "value": value} for key, value in {**named, **(attributes or {})}.items()],
    }
    return body | ({"topologyPolicies": list(policies)} if policies else {})


def nrt(*arguments, **options) -> NodeResourceTopology:
    return msgspec.json.decode(json.dumps(nrt_body(*arguments, **options)), type=NodeResourceTopology)


def flex_body(
    *,
    name: str = "n1",
    zones: Sequence[int] = (0, 1),
    cores: int = 4,
    threads: int = 2,
    memory: int = 64 * GI,
    gpus: int = 2,
    policy: str = "restricted",
    scope: str = "container",
    reserved: str = "0",
) -> Json:
    """A machine of equal zones: CPUs of zone i run from i * cores * threads, siblings side by side, ``gpus`` a zone."""
    here = cores * threads
    nodes: list[Json] = []
    edges: list[Json] = []
    for at, zone in enumerate(zones):
        first = at * here
        cpus = f"{first}-{first + here - 1}"
        nodes.append({"id": f"numa-{zone}", "type": "NUMANode", "attributes": {"cpus": cpus, "socket": str(at // 2)}})
        nodes.append({"id": f"group-{first}", "type": "CPUCoreGroup", "attributes": {"cpus": cpus}})
        edges.append({"source": f"group-{first}", "target": f"numa-{zone}", "type": "localized"})
        for core in range(cores):
            low = first + core * threads
            own = ",".join(str(low + thread) for thread in range(threads))
            nodes.append({"id": f"core-{low}", "type": "CPUCore", "attributes": {"cpus": own, "l3": str(at)}})
            edges.append({"source": f"group-{first}", "target": f"core-{low}", "type": "contain"})
        for other in zones:
            distance = {"distance": "10" if other == zone else "20"}
            if other != zone:
                edge = {"source": f"numa-{zone}", "target": f"numa-{other}", "type": "distance"}
                edges.append(edge | {"attributes": distance})
        for number in range(at * gpus, (at + 1) * gpus):
            own = {"uuid": f"GPU-{number}", "index": str(number)}
            nodes.append({"id": f"gpu-GPU-{number}", "type": "GPU", "attributes": own})
    for one in range(gpus * len(zones)):
        for other in range(one + 1, gpus * len(zones)):
            kind = "NV12" if one // max(gpus, 1) == other // max(gpus, 1) else "SYS"
            edges.append(
                {"source": f"gpu-GPU-{one}", "target": f"gpu-GPU-{other}", "type": "link", "attributes": {"kind": kind}}
            )
    amount = {"type": "memory", "total": memory, "allocatable": memory - GI, "free": memory - GI}
    status = {
        "conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": ""}],
        "kubelet": {
            "version": "v1.36.3",
            "topologyManagerPolicy": policy,
            "topologyManagerScope": scope,
            "cpuManagerPolicy": "static",
            "memoryManagerPolicy": "Static",
            "threadsPerCore": threads,
            "onlineCpus": f"0-{here * len(zones) - 1}",
            "reservedCpus": reserved,
        },
        "cpus": {"defaultSet": f"0-{here * len(zones) - 1}", "assignments": []},
        "memory": {"zones": [{"zone": zone, "cells": [zone], "amounts": [dict(amount)]} for zone in zones]},
        "devices": [
            {
                "resource": GPU,
                "devices": [
                    {"id": f"GPU-{number}", "zones": [zone]}
                    for at, zone in enumerate(zones)
                    for number in range(at * gpus, (at + 1) * gpus)
                ],
            }
        ],
    }
    return {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "FlexTopo",
        "metadata": {"name": name},
        "spec": {"nodes": nodes, "edges": edges},
        "status": status,
    }


def flex(body: Json | None = None, **options) -> FlexTopo:
    return msgspec.json.decode(json.dumps(body or flex_body(**options)), type=FlexTopo)
