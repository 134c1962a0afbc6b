"""The end of the act inside of machines: one pod that a real kubelet grants and one that it refuses, where one runs."""

import asyncio
from typing import Any

from agent.kubelet import checkpoints
from agent.machine import cpuset
from cli.demo.numa import GPU, KUBELET, MACHINE
from cli.demo.stage import NAMESPACE, Stage, print_paragraph, until
from cli.output import Failure, progress
from kube.resources import NODES, PODS
from localcluster import RealNode
from localcluster.programs.binaries import at_hand
from localcluster.programs.build import KUBELET as PROGRAM
from localcluster.real import service
from localcluster.real.layout import NodeFolder, node_folder

TAINT = {"key": "topogate.dev/demo", "effect": "NoSchedule"}  # the other acts' pods stay away
NODE = RealNode(name="real-1", machine=MACHINE, kubelet=KUBELET, taints=(TAINT,))
GRANTED, REFUSED = ("fits", 2), ("wide", 5)  # a zone has 4 GPUs
Json = dict[str, Any]


async def real(stage: Stage) -> None:
    """The same machine with a real kubelet, beside those that are played."""
    if why := await asyncio.to_thread(_missing):
        print_paragraph(f"The kubelets above are simulated, and no real one is shown: {why}.")
        return
    print_paragraph(f"The kubelets above are simulated. A real one, told of such a machine and set to {KUBELET}:")
    with progress("starting a real kubelet"):
        # The node is tainted and the pods name it, so kube-scheduler and the other acts leave it alone.
        await asyncio.to_thread(stage.cluster.run_kubelets, [NODE])
    for name, gpus in (GRANTED, REFUSED):
        amounts = {"cpu": "16", "memory": "64Gi", GPU: str(gpus)}
        container = {"name": "main", "image": "registry.example/serve:1", "resources": {"limits": amounts}}
        spec = {"nodeName": NODE.name, "terminationGracePeriodSeconds": 0, "containers": [container]}
        await stage.client.create(
            PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, NAMESPACE
        )

    async def judged() -> bool:
        return all(
            [(await _status(stage, name)).get("phase") in {"Running", "Failed"} for name, _ in (GRANTED, REFUSED)]
        )

    await until(judged, "the real kubelet has judged two pods")
    version = (await stage.client.get(NODES, NODE.name))["status"]["nodeInfo"]["kubeletVersion"]
    granted, refused = await _status(stage, GRANTED[0]), await _status(stage, REFUSED[0])
    # The kubelet's reason for a pod whose topology it refuses.
    if (granted["phase"], refused.get("reason")) != ("Running", "TopologyAffinityError"):
        raise Failure(f"the real kubelet did otherwise than it should: {granted}, {refused}")
    held = await asyncio.to_thread(_read_held, node_folder(stage.cluster.directory, NODE.name))
    print_paragraph(f"  kubelet {version}: pod of {GRANTED[1]} GPUs granted: {held}")
    print_paragraph(
        f"  kubelet {version}: pod of {REFUSED[1]} GPUs refused: {refused['reason']}: {refused['message']}", "red"
    )
    for name, _ in (GRANTED, REFUSED):
        await stage.client.delete(PODS, name, NAMESPACE, grace_period=0)
    # The node goes as well: no other act expects it.
    await asyncio.to_thread(stage.cluster.run_kubelets, [])


def _missing() -> str:
    """Why no real kubelet can be had at once; "" where one can."""
    if not at_hand([PROGRAM]):
        return "its program is not there yet; `python -m localcluster --tools` builds it, in a minute or two"
    return service.refusal()


async def _status(stage: Stage, name: str) -> Json:
    status: Json = (await stage.client.get(PODS, name, NAMESPACE))["status"]
    return status


def _read_held(folder: NodeFolder) -> str:
    """What the one pod holds by the kubelet's own files."""
    # Exactly one container holds something: the other pod was refused, and unpacking fails where that is not so.
    (cpus,) = (held for pod in checkpoints.read_cpu(folder.kubelet).entries.values() for held in pod.values())
    (block,) = (
        b for pod in checkpoints.read_memory(folder.kubelet).entries.values() for held in pod.values() for b in held
    )
    devices = [
        device
        for entry in checkpoints.read_devices(folder.kubelet).entries
        for ids in (entry.device_ids or {}).values()
        for device in ids or ()
    ]
    zones = ", ".join(map(str, block.numa_affinity or ()))
    return f"CPUs {cpuset.render(cpus)}, {block.size >> 30} GiB of zone {zones}, GPUs {', '.join(sorted(devices))}"
