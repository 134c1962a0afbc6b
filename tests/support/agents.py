"""An agent on a machine of tests/data against a real API server, under its own service account."""

import asyncio
import contextlib
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.jobs import install_crds, until
from support.kubelet import Kubelet
from support.nvml import Recording, recorded
from support.tree import machine

from agent.cycle import NodeAgent
from agent.metrics import AgentMetrics
from clock import SYSTEM
from crds.settings import Settings
from kube.client import Client
from kube.events import EventRecorder
from kube.resources import CUSTOM_RESOURCE_DEFINITIONS, PODS, resource_of
from manifests import render

NAMESPACE = render.agent_namespace(render.NAMESPACE)
ACCOUNT = render.AGENT
GPU = "nvidia.com/gpu"
NRT_CRD = Path(__file__).parents[1] / "data" / "nrt-crd.yaml"
DGX_ZONES = dict.fromkeys(range(8), 263_921_340 * 1024)
DGX_GPUS = {f"GPU-80gb{i}000-0000-4000-8000-00000000000{i}": (zone,) for i, zone in enumerate([3, 3, 1, 1, 7, 7, 5, 5])}
FAST = {"agent_watch_seconds": 0.05, "agent_write_seconds": 0.1, "agent_poll_seconds": 0.5}
Json = dict[str, Any]


def dgx(folder: Path) -> Kubelet:
    """The kubelet of the machine ``epyc-dgx``."""
    return Kubelet(folder, "0-255", DGX_ZONES, reserved="0,128", devices={GPU: DGX_GPUS})


async def install_agent_rights(client: Client, *, topologies: bool = True) -> None:
    """The agent's objects but the DaemonSet, as ``topogate install --agent`` makes them; and the kinds it writes.

    ``topologies``: with NodeResourceTopology, which Topogate does not bring.
    """
    await install_crds(client)
    others = {(obj["kind"], obj["metadata"]["name"]) for obj in render.objects()}
    for obj in render.objects(render.InstallOptions(agent=True)):
        if (obj["kind"], obj["metadata"]["name"]) not in others and obj["kind"] != "DaemonSet":
            await client.apply(resource_of(obj), obj, field_manager="test")
    if not topologies:
        return
    body = yaml.safe_load(NRT_CRD.read_text())
    await client.apply(CUSTOM_RESOURCE_DEFINITIONS, body, field_manager="test")
    path = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"

    async def served() -> bool:
        with contextlib.suppress(Exception):
            await client.raw("GET", path)
            return True
        return False

    await until(served, "NodeResourceTopology to be served")


@dataclass
class Running:
    """An agent and the machine it is on. ``client`` is its own."""

    agent: NodeAgent
    kubelet: Kubelet
    nvml: Recording
    metrics: AgentMetrics
    client: Client

    async def turned(self, times: int = 2) -> None:
        """Wait until it looked and wrote again so many times, from a look that begins after this call."""
        for _ in range(times):
            before = self.metrics.published._value.get()
            await until(
                lambda before=before: _async(self.metrics.published._value.get() > before),
                "the agent to look again",
            )

    def written(self, kind: str) -> float:
        return self.metrics.writes.labels(kind, "written")._value.get()


async def _async(value: Any) -> Any:
    return value


@asynccontextmanager
async def agent_on(
    node: str,
    client: Client,
    folder: Path,
    *,
    name: str = "epyc-dgx",
    nvml: Recording | None = None,
    kubelet: Kubelet | None = None,
    serve: bool = True,
    **settings: Any,
):
    """Run an agent on the named machine with the fake kubelet, while the block runs."""
    async with AsyncExitStack() as stack:
        root = folder / "sys"
        if not root.exists():
            await asyncio.to_thread(machine, name, root)
        found = kubelet or dgx(folder / "kubelet")
        if serve:
            stack.enter_context(found.serving())
        values = {
            "agent_sysfs": str(root),
            "agent_proc": str(root / "proc"),
            "agent_kubelet_directory": str(found.folder),
            **FAST,
            **settings,
        }
        metrics, replay = AgentMetrics(), nvml or recorded("dgx-a100")
        recorder = EventRecorder(client, "topogate-agent")
        agent = NodeAgent(
            Settings(**values), client, node, nvml=replay, metrics=metrics, recorder=recorder, clock=SYSTEM
        )
        tasks = [asyncio.create_task(agent.run()), asyncio.create_task(recorder.run())]
        try:
            yield Running(agent, found, replay, metrics, client)
            assert not tasks[0].done(), tasks[0]
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task


async def pod_on(client: Client, node: str, namespace: str, name: str, **metadata: Any) -> Json:
    """A running pod on the node."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i"}], "restartPolicy": "Never"},
    }
    return await client.create(PODS, body, namespace)


def stamp() -> str:
    return str(time.monotonic_ns())
