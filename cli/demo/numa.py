"""The act inside of machines: the same Job without Topogate and with it, on machines whose kubelets refuse."""

import asyncio
import json
from typing import Any

import msgspec
from rich.table import Table

from cli.demo.stage import LEVEL, NAMESPACE, Stage, act, make_flavor, make_job, print_paragraph, syntax, until
from cli.output import Failure, progress, stdout
from crds.constants import NUMA_PLACEMENT_OBSERVED, Keys
from kube.resources import JOBS, PODS, RESOURCE_FLAVORS
from localcluster.kubelets.fleet import Publishing
from localcluster.nodes import GROUP_LABEL, HOSTNAME_LABEL, Fleet, add_nodes, wait_ready

MACHINE = "2 NUMA / 128 cores / 8 GPUs"
KUBELET = "single-numa-node, pod"
GROUP = "machines"
FLEET = Fleet(blocks=1, racks=1, hosts=3, prefix="gpu-", group=GROUP, machine=MACHINE, kubelet=KUBELET)
GPU = "nvidia.com/gpu"
PODS_OF_PAIR = 4
# A range: agents of a real cluster do not publish at the same moment either.
FEW = 0.05, 0.2  # seconds until placements are published
Json = dict[str, Any]


class PodRow(msgspec.Struct, frozen=True):
    """What became of one pod."""

    name: str
    node: str
    phase: str
    what: str
    refused: bool = False


async def numa(stage: Stage) -> None:
    """Two of three machines have 2 GPUs left, but in different zones: no pod of 2 GPUs gets in there."""
    act(
        "6. inside the machine: pods that the kubelet will not refuse",
        f"Three machines of {MACHINE}, kubelet policy {KUBELET}.\n"
        "Two of them run a pod of 3 GPUs in each zone: 2 GPUs are left on each, one a zone. kube-scheduler counts 2\n"
        "and sends a pod of 2 GPUs there; the kubelet refuses it, because it will not take them from two zones.",
    )
    with progress("making three machines and playing their kubelets"):
        await asyncio.to_thread(stage.cluster.play_kubelets, Publishing(delay=FEW))
        await add_nodes(stage.client, FLEET)
        await wait_ready(stage.client, FLEET.node_names())
        await stage.client.create(RESOURCE_FLAVORS, make_flavor(GROUP, GROUP))
        for node in FLEET.node_names()[:2]:
            for number in (1, 2):
                amounts = {"cpu": "8", "memory": "32Gi", GPU: "3"}
                container = {"name": "main", "image": "registry.example/serve:1", "resources": {"limits": amounts}}
                await stage.client.create(
                    PODS,
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "metadata": {"name": f"serve-{node[-2:]}-{number}", "labels": {"app": "serve"}},
                        "spec": {"nodeSelector": {HOSTNAME_LABEL: node}, "containers": [container]},
                    },
                    NAMESPACE,
                )
        await until(lambda: _reported(stage, "app=serve", 4), "the pods on the machines run")
    print_paragraph("$ kubectl create -f pair.yaml      # 4 pods of 2 GPUs, without a topology request", "bold")
    # Run the Job until the kubelets have judged every pod once, and remove it.
    before = await _run_pair(stage, {}, "the kubelets have judged the pods of Job pair")
    # The second Job has the same name and needs the room, so the pods have to be gone first.
    await stage.client.delete(JOBS, "pair", NAMESPACE, propagation="Background")

    async def gone() -> bool:
        return not await _list_pods(stage)

    await until(gone, "the pods of Job pair are gone")
    print_paragraph("$ kubectl create -f pair.yaml      # the same, with", "bold")
    request = (Keys().required[0], LEVEL)
    syntax(f"annotations:\n  {request[0]}: {request[1]}")
    stage.jobs.append("pair")
    after = await _run_pair(stage, dict([request]), "the pods of Job pair run")
    table = Table("", "POD", "MACHINE", "", "WHERE INSIDE", box=None)
    for title, rows in (("without Topogate", before), ("with Topogate", after)):
        for position, row in enumerate(rows):
            style = "red" if row.refused else ""
            table.add_row(title if not position else "", row.name, row.node, row.phase, row.what, style=style)
        table.add_row()
    stdout().print(table)
    refused = sum(row.refused for row in before)
    # The demo proves its claim each time, and fails rather than show a wrong table.
    if any(row.refused for row in after):
        raise Failure("a kubelet refused a pod that Topogate had placed")
    print_paragraph(
        f"Without Topogate the kubelets refused {refused} pods (the Job goes on making new ones); with it none.",
        "green",
    )


async def _run_pair(stage: Stage, annotations: dict[str, str], what: str) -> list[PodRow]:
    """Create the Job, and wait until all its pods are judged."""
    # Refused pods count as failures: the default of 6 could end the Job before all four are judged.
    job = make_job("pair", PODS_OF_PAIR, 2, ("", ""), backoffLimit=100)
    job["metadata"]["annotations"] = annotations
    spec = job["spec"]["template"]["spec"]
    spec["nodeSelector"] = {GROUP_LABEL: GROUP}
    amounts = {"cpu": "16", "memory": "64Gi", GPU: "2"}
    # Guaranteed with whole CPUs, which is what the CPU Manager pins.
    spec["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    await stage.client.create(JOBS, job, NAMESPACE)

    async def judged() -> bool:
        pods = await _list_pods(stage)
        return len(pods) >= PODS_OF_PAIR and all(map(_is_judged, pods))

    await until(judged, what)
    return [_row(pod) for pod in await _list_pods(stage)]


def _is_judged(pod: Json) -> bool:
    """Refused, or running in a place that is known."""
    return pod["status"]["phase"] == "Failed" or NUMA_PLACEMENT_OBSERVED in pod["metadata"].get("annotations", {})


async def _list_pods(stage: Stage) -> list[Json]:
    return await stage.client.list(PODS, NAMESPACE, label_selector="job-name=pair")


async def _reported(stage: Stage, selector: str, count: int) -> bool:
    """Whether that many pods run and their placements are known."""
    pods = await stage.client.list(PODS, NAMESPACE, label_selector=selector)
    return sum(NUMA_PLACEMENT_OBSERVED in pod["metadata"].get("annotations", {}) for pod in pods) >= count


def _row(pod: Json) -> PodRow:
    status = pod["status"]
    name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
    if status["phase"] == "Failed":
        return PodRow(name, node, "refused", status.get("reason", ""), refused=True)
    record = pod["metadata"].get("annotations", {}).get(NUMA_PLACEMENT_OBSERVED)
    # ``zone 0: GPUs 0, 1``, by the GPUs' numbers on the machine.
    parts = []
    for use in json.loads(record) if record else ():
        gpus = ", ".join(device.rpartition("-")[2] for device in use.get("devices", {}).get(GPU, ()))
        parts.append(f"{use['zone'].replace('node-', 'zone ')}: {use['amount']['cpu']} CPUs, GPUs {gpus}")
    return PodRow(name, node, status["phase"], "; ".join(parts))
