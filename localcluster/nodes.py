"""Nodes in blocks and racks that KWOK plays the kubelet for."""

import asyncio
import ipaddress
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kube.client import Client
from kube.errors import AlreadyExists
from kube.patches import PatchType
from kube.resources import NODES
from localcluster.dra.domains import CLIQUE_LABEL, clique
from localcluster.dra.driver import Driver, check_driver
from localcluster.dra.publish import publish
from localcluster.kubelets.specs import KUBELET, MACHINE, build, parse_kubelet, parse_machine, without_devices
from localcluster.kubelets.specs import capacity as specs_capacity
from localcluster.programs.build import KUBERNETES_VERSION, KWOK_VERSION

BLOCK_LABEL = "cloud-provider.com/topology-block"
RACK_LABEL = "cloud-provider.com/topology-rack"
HOSTNAME_LABEL = "kubernetes.io/hostname"
GROUP_LABEL = "cloud-provider.com/node-group"
FAKE = {"kwok.x-k8s.io/node": "fake"}
NOT_READY = "topogate.dev/not-ready"  # annotation "true": KWOK reports the node as not ready (stages.yaml)
CONCURRENCY = 32
WAITERS = 4
POLL_SECONDS = 0.1
# The beta labels are there because the node lifecycle controller would add them one by one.
_PLATFORM = {
    f"{prefix}kubernetes.io/{key}": value
    for prefix in ("", "beta.")
    for key, value in (("arch", "amd64"), ("os", "linux"))
}
_ADDRESSES = int(ipaddress.IPv4Address("10.0.0.0"))
# By this range the stage `pod-ready` knows the pods of machines, which wait for their simulated kubelet (stages.yaml).
_MACHINE_ADDRESSES = int(ipaddress.IPv4Address("100.64.0.0"))

Taint = Mapping[str, str]
Progress = Callable[[int, int], None]  # nodes done, nodes in all


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """``blocks * racks * hosts`` equal nodes: names such as ``b1-r2-h3``, counted from 1, as their labels are.

    Labels: the block (``b1``), the rack (``r2``: the same name in every block, as racks are named in the field, or
    ``b1-r2`` with ``unique_racks``), the host name, the node group. Quantities are texts as Kubernetes reads them;
    ``gpus`` 0 leaves the resource out. ``labels`` None as a value removes one of the default labels.

    ``machine`` (``2 sockets / 8 NUMA / 64 cores / 8 GPUs``, `localcluster.kubelets.specs`) gives each node an inside,
    for which ``LocalCluster.play_kubelets`` plays a kubelet with the settings ``kubelet``; it decides CPU, memory and
    devices then. With ``dra`` (`localcluster.dra.driver`) its GPUs and NICs are published in ResourceSlices, and the
    node offers none itself. ValueError where any of them is not understood.
    """

    blocks: int = 4
    racks: int = 4
    hosts: int = 8
    gpus: int = 8
    cpu: str = "96"
    memory: str = "768Gi"
    pods: int = 110
    prefix: str = ""
    group: str = "tas"
    unique_racks: bool = False
    labels: Mapping[str, str | None] = field(default_factory=dict)
    taints: Sequence[Taint] = ()
    resources: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""
    kubelet: str = ""
    dra: str = ""

    def __len__(self) -> int:
        return self.blocks * self.racks * self.hosts

    def objects(self) -> Iterator[dict[str, Any]]:
        """The Node objects, complete with a status that makes them schedulable as soon as they are seen."""
        for block in range(1, self.blocks + 1):
            for rack in range(1, self.racks + 1):
                for host in range(1, self.hosts + 1):
                    yield self._node(f"b{block}", f"r{rack}", f"h{host}")

    def node_names(self) -> list[str]:
        """The names of all nodes, in tree order."""
        return [node["metadata"]["name"] for node in self.objects()]

    def _node(self, block: str, rack: str, host: str) -> dict[str, Any]:
        name = f"{self.prefix}{block}-{rack}-{host}"
        labels = {
            BLOCK_LABEL: block,
            RACK_LABEL: f"{block}-{rack}" if self.unique_racks else rack,
            HOSTNAME_LABEL: name,
            GROUP_LABEL: self.group,
            **_PLATFORM,
            **self.labels,
        }
        if self.driver is not None and self.driver.channels:
            # Before the others, so that a label of the fleet's own overrides it.
            labels = {CLIQUE_LABEL: clique(block, rack), **labels}
        kept = {key: value for key, value in labels.items() if value is not None}
        if self.machine:
            return self._machine(name, kept)
        gpus = {"nvidia.com/gpu": str(self.gpus)} if self.gpus else {}
        amounts = {"cpu": self.cpu, "memory": self.memory, "pods": str(self.pods), **gpus, **self.resources}
        return make_node(name, labels=kept, resources=amounts, taints=self.taints)

    def _machine(self, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
        # For its error, before the first node is made.
        parse_kubelet(self.kubelet)
        machine = without_devices(self.machine) if self.driver else self.machine
        capacity, allocatable = specs_capacity(build(parse_machine(machine), name))
        more = {"pods": str(self.pods), **self.resources}
        node = make_node(name, labels=labels, resources={**capacity, **more}, taints=self.taints)
        node["metadata"]["annotations"] |= {MACHINE: machine, **({KUBELET: self.kubelet} if self.kubelet else {})}
        node["status"]["allocatable"] = {**allocatable, **more}
        node["status"]["addresses"][0]["address"] = _address(name, _MACHINE_ADDRESSES)
        node["status"]["nodeInfo"]["kubeletVersion"] = parse_kubelet(self.kubelet).version
        return node

    @property
    def driver(self) -> Driver | None:
        """How the devices are published in ResourceSlices; None: they are not. ValueError as above."""
        return check_driver(self.dra, self.machine) if self.dra else None


def make_node(
    name: str, *, labels: Mapping[str, str], resources: Mapping[str, str], taints: Sequence[Taint] = ()
) -> dict[str, Any]:
    """One Node object for KWOK, born ready; ``resources`` is both capacity and allocatable."""
    unknown = ("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "kubeProxyVersion")
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(labels), "annotations": dict(FAKE)},
        "spec": {"taints": [dict(taint) for taint in taints]} if taints else {},
        "status": {
            "capacity": dict(resources),
            "allocatable": dict(resources),
            "conditions": [ready],
            "addresses": [
                {"type": "InternalIP", "address": _address(name)},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": {
                **dict.fromkeys(unknown, ""),
                "architecture": "amd64",
                "operatingSystem": "linux",
                "kubeletVersion": f"v{KUBERNETES_VERSION}-kwok",
                "containerRuntimeVersion": f"kwok://{KWOK_VERSION}",
            },
        },
    }


def _address(name: str, start: int = _ADDRESSES) -> str:
    """An address in the 2^22 from ``start`` that follows from the name; the pods' are elsewhere."""
    return str(ipaddress.IPv4Address(start + zlib.crc32(name.encode()) % (1 << 22)))


async def add_nodes(client: Client, fleet: Fleet, *, progress: Progress | None = None) -> int:
    """Create the nodes of ``fleet``, or bring those that are there to its labels, taints, resources and ResourceSlices.

    Returns how many were new. Does not wait until they are ready: see ``wait_ready``. Raises kube.errors.KubeError.
    """
    queue, driver = fleet.objects(), fleet.driver
    done = created = 0

    async def work() -> None:
        nonlocal done, created
        for node in queue:  # all workers share the one iterator
            try:
                await client.create(NODES, node)
                created += 1
            except AlreadyExists:
                # What is ours is set, and the rest is left.
                await _update(client, node)
            done += 1
            if progress is not None:
                progress(done, len(fleet))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(CONCURRENCY, len(fleet))):
            group.create_task(work())
    if driver is not None or created < len(fleet):  # a new node has no slices that could be left over
        await publish(client, fleet.node_names(), fleet.machine, driver)
    return created


async def _update(client: Client, node: dict[str, Any]) -> None:
    name, status = node["metadata"]["name"], node["status"]
    current = await client.get(NODES, name)
    # Those that the control plane keeps itself (not ready, unschedulable). A merge patch
    # replaces the list: without them a node that is not ready would get pods.
    foreign = [one for one in current["spec"].get("taints", ()) if one["key"].startswith("node.kubernetes.io/")]
    spec = {"taints": [*foreign, *node["spec"].get("taints", ())]}
    metadata = {"labels": node["metadata"]["labels"], "annotations": node["metadata"]["annotations"]}
    if _differs(current, {"metadata": metadata}) or current["spec"].get("taints", []) != spec["taints"]:
        await client.patch(NODES, name, body={"metadata": metadata, "spec": spec}, content_type=PatchType.MERGE)
    resources = {"capacity": status["capacity"], "allocatable": status["allocatable"]}
    # The status is a request of its own, which most nodes do not need.
    if any(current["status"].get(key) != value for key, value in resources.items()):
        # The patch leaves exactly the new amounts: a name that is no longer there is set to null.
        amounts = {key: {**dict.fromkeys(current["status"].get(key, {})), **new} for key, new in resources.items()}
        body = {"status": amounts}
        await client.patch(NODES, name, body=body, content_type=PatchType.MERGE, subresource="status")


def _differs(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return any(
        _differs(current.get(key, {}), value) if isinstance(value, Mapping) else current.get(key) != value
        for key, value in wanted.items()
    )


async def wait_ready(client: Client, names: Sequence[str], *, timeout: float = 60.0) -> None:  # noqa: ASYNC109
    """Wait until all nodes are ready and without the taints that keep new nodes empty.

    Asks for one node at a time: lists of all of them would keep the API server from getting them ready. Raises
    TimeoutError, which names one that is not.
    """
    waiting = iter(names)
    last = ""

    async def work() -> None:
        nonlocal last
        for name in waiting:
            last = name
            while not is_ready(await client.get(NODES, name)):
                await asyncio.sleep(POLL_SECONDS)

    try:
        async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
            for _ in range(WAITERS):
                group.create_task(work())
    except TimeoutError:
        raise TimeoutError(f"not all nodes are ready after {timeout:g} s, {last} for one") from None


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether a pod without tolerations can be scheduled to the node as far as its health is concerned."""
    conditions = node.get("status", {}).get("conditions", ())
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and not any(t["key"] == "node.kubernetes.io/not-ready" for t in node["spec"].get("taints", ()))
