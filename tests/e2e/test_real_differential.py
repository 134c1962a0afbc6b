"""Random pods on real kubelets of every policy: they do what the engine predicted and the simulated kubelet did.

Made only when asked for: ``TOPOGATE_REAL_DIFFERENTIAL=2000`` is the number of pods, ``TOPOGATE_REAL_SEED=2`` another
draw of them.

Pods are bound to their nodes, so that the kubelet decides. Before each of them the engine predicts from the FlexTopo
that an agent published of the node, by the code of the controller; the simulated kubelet of the same machine admits
it too. Afterwards the kubelet's files and the pod's status are the truth: verdict, reason, message, CPUs, memory,
zones.

What the kubelet leaves to chance, and is not compared:
- which devices of a zone it takes, and out of how many zones that it may take from, where the plugin has no preference:
  under ``none``, and where several zones are merged that have more devices than are asked for beside those that init
  containers leave;
- in container scope, what the later containers of such a pod find;
- when it takes back what a container of another pod left: where that comes between question and answer, what is free
  afterwards.
"""

import asyncio
import itertools
import os
import random
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from support.agents import install_agent_rights
from support.differential import Twin, fits, is_published, published, random_pod, read
from support.jobs import until
from support.real import agent_beside

from engine.quantity import parse
from kube.client import Client
from kube.errors import Forbidden
from kube.informer import Informer
from kube.patches import PatchType
from kube.resources import FLEX_TOPOS, NODES, PODS
from localcluster import LocalCluster, Options, RealNode
from localcluster.kubelets.fleet import PodView
from localcluster.real import service
from localcluster.real.layout import node_folder

PODS_IN_ALL = int(os.environ.get("TOPOGATE_REAL_DIFFERENTIAL", "0"))
SEED = os.environ.get("TOPOGATE_REAL_SEED", "1")
NAMESPACE = "default"
FINAL = ("Succeeded", "Failed")
MOST_RUNNING = 12
RESIZED = 0.2  # of Guaranteed pods; without cgroups a kubelet dies of other resizes

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not PODS_IN_ALL, reason="TOPOGATE_REAL_DIFFERENTIAL is not set"),
]

# With more zones and resources a kubelet that aligns goes through more sets of zones than it can.
FOUR = "2 sockets / 4 NUMA / 32 cores / 8 GPUs / 256Gi"
ODD = "1 socket / 3 NUMA / 24 cores / 6 GPUs / 3 NICs / 1 thread / 192Gi"
TWO = "2 sockets / 2 NUMA / 24 cores / 4 GPUs / 2 NICs / 160Gi"
KUBELETS = [
    (FOUR, "single-numa-node, pod, full-pcpus-only, strict-cpu-reservation"),
    (TWO, "single-numa-node, container, distribute-cpus-across-cores"),
    (FOUR, "restricted, container, distribute-cpus-across-numa"),
    (FOUR, "restricted, pod, align-by-socket, prefer-closest-numa-nodes"),
    (ODD, "best-effort, container, prefer-closest-numa-nodes, strict-cpu-reservation"),
    (TWO, "best-effort, pod, full-pcpus-only, distribute-cpus-across-numa"),
    (ODD, "none, prefer-align-cpus-by-uncorecache, strict-cpu-reservation"),
    (TWO, "restricted, container, full-pcpus-only, align-by-socket, prefer-align-cpus-by-uncorecache"),
]


class Player:
    """One node: pods come to it, one after the other, and go."""

    def __init__(self, client, folder, node, pods, flex_topos):
        self.client, self.folder, self.name = client, folder, node.name
        self.pods, self.flex_topos = pods, flex_topos
        self.twin, self.dice = Twin.of(node), random.Random(f"{SEED} {node.name}")
        self.taken, self.living, self.verdicts, self.judged = {}, {}, Counter(), 0

    async def run(self, count):
        node = await self.client.get(NODES, self.name)
        allocatable = {name: parse(name, amount) for name, amount in node["status"]["allocatable"].items()}
        devices = [name for name in allocatable if "/" in name]
        try:
            numbers = itertools.count()
            while self.judged < count:
                body = random_pod(self.dice, f"{self.name}-{next(numbers)}", self.name, devices)
                await self.next(body, allocatable)
        except AssertionError as error:  # a kubelet or agent that does nothing more; the others go on
            log = self.folder.root.parents[1] / "logs" / f"kubelet-{self.name}.log"
            end = (await asyncio.to_thread(log.read_text))[-3000:]
            self.twin.differences.append(f"{self.name}: {error}\n{end}")

    async def next(self, body, allocatable):
        """One more pod, after others have gone where it has no room."""
        while (wanted := fits(body["spec"], self.sums(), allocatable)) is None or len(self.living) > MOST_RUNNING:
            if not self.living:
                return  # not even alone
            await self.remove(self.dice.choice(sorted(self.living)))
        await self.one(body, wanted)

    def sums(self):
        total = Counter()
        for name in self.living:
            total.update(self.taken[name])
        return total

    def looked_at(self):
        """The pods that are there, as the API server has them; those that ended hold nothing any more."""
        found = {name: self.pods.store[f"{NAMESPACE}/{name}"] for name in self.living}
        for name, pod in found.items():
            if pod.status.get("phase") in FINAL:
                self.twin.ended(self.living.pop(name))
        return self.living.values()

    async def quiet(self):
        """Until the agent has published what the files say; returns that."""
        told = {}

        async def said():
            alive, found = set(self.looked_at()), self.flex_topos.store.get(self.name)
            if found is None:
                return None
            told.update(files=read(self.folder).without(alive.__contains__), published=published(plain(found)))
            return plain(found) if is_published(plain(found), read(self.folder), alive.__contains__) else None

        try:
            return await until(said, f"the state of {self.name} to be published")
        except AssertionError as error:
            raise AssertionError(f"{error}: {told}") from None

    async def one(self, body, wanted):
        name = body["metadata"]["name"]
        asked = self.twin.ask(await self.quiet(), body)
        made = await self.client.create(PODS, body, NAMESPACE)
        self.twin.play(asked, made)
        pod = await self.shown(name, lambda pod: "startTime" in pod.status)
        refused = pod.status.get("phase") == "Failed"
        whole = {"metadata": made["metadata"], "spec": made["spec"], "status": pod.status}
        self.judged += 1
        self.twin.judge(asked, whole, read(self.folder))
        self.verdicts[pod.status.get("reason", "Failed") if refused else "admitted"] += 1
        if refused:
            await self.client.delete(PODS, name, NAMESPACE, grace_period=0)
            return
        self.living[name], self.taken[name] = made["metadata"]["uid"], wanted
        await self.shown(name, lambda pod: pod.status.get("phase") in {"Running", *FINAL})
        self.twin.started(whole)
        if whole["metadata"].get("annotations"):  # it ends by itself: not just when the next one comes
            await self.shown(name, lambda pod: pod.status.get("phase") in FINAL)
            return
        if made["status"]["qosClass"] == "Guaranteed" and self.dice.random() < RESIZED:
            await self.resize(name, made)

    async def resize(self, name, made):
        """One CPU more in place. The static policy takes that of no Guaranteed pod: nothing may change."""
        containers = [
            {
                "name": each["name"],
                "resources": {
                    kind: {"cpu": f"{parse('cpu', amounts['cpu']) + 1000}m"}
                    for kind, amounts in each["resources"].items()
                },
            }
            for each in made["spec"]["containers"]
        ]
        patch = {"spec": {"containers": containers}}
        try:
            await self.client.patch(
                PODS, name, NAMESPACE, body=patch, subresource="resize", content_type=PatchType.STRATEGIC
            )
        except Forbidden:  # more than the node has: the API server says so, and the kubelet hears nothing of it
            self.verdicts["resize Forbidden"] += 1
            return

        def pending(pod):
            told = [each["reason"] for each in pod.status.get("conditions", ()) if each["type"] == "PodResizePending"]
            return told or (["over"] if pod.status.get("phase") in FINAL else [])

        self.verdicts[f"resize {pending(await self.shown(name, pending))[0]}"] += 1

    async def remove(self, name):
        await self.client.delete(PODS, name, NAMESPACE)

        async def gone():
            return f"{NAMESPACE}/{name}" not in self.pods.store

        await until(gone, f"{name} to be gone")
        self.twin.ended(self.living.pop(name))

    async def shown(self, name, holds):
        key = f"{NAMESPACE}/{name}"

        async def said():
            pod = self.pods.store.get(key)
            return pod if pod is not None and holds(pod) else None

        return await until(said, f"{name} to be looked at")


def plain(view):
    return {"metadata": {"name": view.metadata.name}, "spec": view.spec, "status": view.status}


async def test_real_kubelets_do_what_was_predicted():
    if why := service.refusal():
        pytest.skip(f"no kubelet runs here: {why}")
    nodes = [
        RealNode(name=f"real-{at}", machine=machine, kubelet=kubelet) for at, (machine, kubelet) in enumerate(KUBELETS)
    ]
    with LocalCluster(options=Options()) as cluster:
        async with await Client.connect(str(cluster.kubeconfig)) as client, AsyncExitStack() as stack:
            await install_agent_rights(client)
            await asyncio.to_thread(cluster.run_kubelets, nodes)
            for node in nodes:
                beside = agent_beside(
                    cluster.directory, client, node.name, agent_poll_seconds=5.0, agent_watch_seconds=0.1
                )
                await stack.enter_async_context(beside)
            pods, flex_topos = Informer(client, PODS, PodView), Informer(client, FLEX_TOPOS, PodView)
            watching = [asyncio.create_task(each.run()) for each in (pods, flex_topos)]
            folder = cluster.directory
            players = [Player(client, node_folder(folder, node.name), node, pods, flex_topos) for node in nodes]
            try:
                async with asyncio.TaskGroup() as group:
                    for player in players:
                        group.create_task(player.run(PODS_IN_ALL // len(players)))
            finally:
                for task in watching:
                    task.cancel()
    verdicts = sum((player.verdicts for player in players), Counter())
    chance = sum(player.twin.left_to_chance for player in players)
    freed = sum(player.twin.freed_meanwhile for player in players)
    differences = [each for player in players for each in player.twin.differences]
    judged = sum(player.judged for player in players)
    told = f"{chance} left to chance; {freed} while others' was freed; {len(differences)} differ"
    print(f"{judged} pods: {dict(verdicts)}; {told}")
    assert not differences, "\n".join([f"{len(differences)} differ", *differences[:20]])
    assert verdicts["admitted"] > PODS_IN_ALL / 4
    assert verdicts["TopologyAffinityError"]
