"""The pictures of docs/web.md, from a real run: `python -m support.web_pictures docs/images`. Needs Chromium.

A control plane on this machine, Topogate with its webhook and controller, KWOK nodes and machines whose kubelets are
played; teams submit Jobs through queues; `topogate web` shows what came of it.
"""

import asyncio
import sys
from pathlib import Path

from support import chromium
from support.house import house
from support.web_page import serving

from crds.constants import API_VERSION
from kube.resources import CLUSTER_QUEUES, JOBS, LOCAL_QUEUES, NAMESPACES, NODES, PODS, RESOURCE_FLAVORS
from localcluster import Fleet, add_nodes, wait_ready
from localcluster.kubelets.fleet import Publishing

GPU, BLOCK, RACK = "nvidia.com/gpu", "cloud-provider.com/topology-block", "cloud-provider.com/topology-rack"
HOST, DOMAIN = "kubernetes.io/hostname", "kueue.x-k8s.io"
FLEET = Fleet(blocks=3, racks=4, hosts=8)
MACHINES = Fleet(
    blocks=1,
    racks=1,
    hosts=8,
    prefix="numa-",
    group="numa",
    machine="2 sockets / 4 NUMA / 64 cores / 8 GPUs / 4 NICs",
    kubelet="best-effort, pod",
)
# Those in docs/web.md: (view, whether it is dark).
SHOWN = {("map", True), ("queue", False), ("machine", False), ("workload", False), ("waits", True), ("queues", False)}
TEAMS = {"language": 384, "vision": 256, "speech": 128}
JOBS_OF = [
    *(
        ("language", "pretrain-70b", 24, 8, BLOCK),
        ("language", "sft-mix", 8, 8, RACK),
        ("language", "rlhf", 6, 4, RACK),
    ),
    *(
        ("vision", "vit-huge", 16, 8, BLOCK),
        ("vision", "video-diffusion", 10, 8, BLOCK),
        ("vision", "probe", 3, 2, RACK),
    ),
    *(("speech", "asr-large", 8, 8, RACK), ("speech", "tts-multi", 6, 2, RACK), ("language", "distill", 12, 4, BLOCK)),
    *(("vision", "segment", 5, 8, RACK), ("speech", "whisper-eval", 4, 1, RACK), ("language", "ablation", 4, 8, RACK)),
    *(("language", "pretrain-next", 32, 8, BLOCK), ("vision", "vit-next", 8, 8, RACK)),
]


def job(namespace, name, pods, gpus, level, *, queue="default", group="tas"):
    amounts = {GPU: str(gpus), "cpu": str(4 * gpus)}
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {"limits": amounts, "requests": amounts},
    }
    labels = {f"{DOMAIN}/queue-name": queue} if queue else {}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    if group == "numa":
        template["spec"]["nodeSelector"] = {"cloud-provider.com/node-group": "numa"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": {f"{DOMAIN}/require-topology": level},
        },
        "spec": {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": template},
    }


def plain(name, gpus, node):
    amounts = {GPU: str(gpus), "cpu": str(8 * gpus), "memory": f"{48 * gpus}Gi"}
    container = {"name": "main", "image": "registry.example/chat:1", "resources": {"limits": amounts}}
    spec = {"nodeSelector": {HOST: node}, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def made(here):
    client = here.client
    await asyncio.to_thread(here.cluster.play_kubelets, Publishing(delay=(0.05, 0.2)))
    await add_nodes(client, MACHINES)
    await wait_ready(client, MACHINES.node_names())
    spec = {"nodeLabels": {"cloud-provider.com/node-group": "numa"}, "topology": {"levels": [BLOCK, RACK, HOST]}}
    await client.create(
        RESOURCE_FLAVORS,
        {"apiVersion": API_VERSION, "kind": "ResourceFlavor", "metadata": {"name": "numa"}, "spec": spec},
    )
    for team, share in TEAMS.items():
        await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}})
        resources = [{"name": GPU, "nominalQuota": share}, {"name": "cpu", "nominalQuota": share * 8}]
        group = {"coveredResources": [GPU, "cpu"], "flavors": [{"name": "tas", "resources": resources}]}
        queue = {"cohortName": "everybody", "namespaceSelector": {}, "resourceGroups": [group]}
        await client.create(
            CLUSTER_QUEUES,
            {"apiVersion": API_VERSION, "kind": "ClusterQueue", "metadata": {"name": team}, "spec": queue},
        )
        await client.create(
            LOCAL_QUEUES,
            {
                "apiVersion": API_VERSION,
                "kind": "LocalQueue",
                "metadata": {"name": "default"},
                "spec": {"clusterQueue": team},
            },
            team,
        )
    for name in ("b3-r4-h7", "b3-r4-h8"):
        await client.patch(NODES, name, body={"spec": {"unschedulable": True}})
    for team, name, pods, gpus, level in JOBS_OF:
        await client.create(JOBS, job(team, name, pods, gpus, level), team)
        await asyncio.sleep(1)
    for number, gpus in enumerate((3, 3, 2)):  # without Topogate: what is left is one GPU on each socket
        await client.create(PODS, plain(f"chat-{number}", gpus, MACHINES.node_names()[-1]), "speech")
        await asyncio.sleep(3)
    for name, pods, gpus in (("serve-a", 3, 2), ("serve-b", 4, 3), ("tune", 2, 4)):
        await client.create(JOBS, job("speech", name, pods, gpus, RACK, queue="", group="numa"), "speech")
        await asyncio.sleep(2)
    await asyncio.sleep(12)


async def shown(here, folder):
    client = here.client
    machine = MACHINES.node_names()[-1]
    workloads = {}
    from kube.resources import WORKLOADS

    for one in await client.list(WORKLOADS):
        owner = one["metadata"].get("ownerReferences", [{}])[0].get("name", "")
        workloads[owner] = f"{one['metadata']['namespace']}/{one['metadata']['name']}"
    views = {
        "map": "#/map",
        "queue": "#/map?colour=queue",
        "machine": f"#/map?host={machine}",
        "workload": f"#/map?workload={workloads['vit-huge']}",
        "waits": f"#/workloads?workload={workloads['pretrain-next']}",
        "queues": "#/queues",
    }
    async with chromium.tab() as tab, serving("--kubeconfig", str(here.cluster.kubeconfig)) as (_, link):
        await tab.look(1280, 800)
        await tab.open(link)
        await tab.until("performance.getEntriesByName('paint').length > 0")
        for dark in (False, True):
            await tab.look(1280, 800, dark=dark)
            for name, address in views.items():
                await tab.js(f"location.hash = '{address}'")
                await asyncio.sleep(2.5)
                await tab.settled()
                if (name, dark) not in SHOWN:
                    continue
                await tab.picture(Path(folder) / f"web-{name}-{'dark' if dark else 'light'}.png")
        assert tab.errors == [], tab.errors


async def main(folder):
    async with house(FLEET) as here:
        await made(here)
        await shown(here, folder)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
