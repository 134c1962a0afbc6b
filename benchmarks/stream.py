"""A mixed stream of Jobs on simulated machines: how many pods the kubelets refuse, with Topogate and without.

Half of the machines have 8 NUMA zones, half 2; some kubelets are restricted, some single-numa-node. The same Jobs come
in the same order at the same pace: pods of 0, 1, 2, 4 and 8 GPUs, Guaranteed, Burstable and BestEffort, some with init
containers. They run for a while and go, so that what is free is in pieces. Plain ones carry no topology request, and
nothing of Topogate is installed.

A refused pod has failed before its first instruction: the Job controller makes another one, which counts again where it
is refused again.
"""

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import report
from benchmarks.harness.goals import GOALS
from benchmarks.harness.plane import Plane, plane
from crds.constants import Keys
from kube.client import Client
from kube.errors import NotFound
from kube.informer import Event, EventKind, Informer
from kube.objects import Object
from kube.patches import encode
from kube.resources import FLEX_TOPOS, JOBS, NODE_RESOURCE_TOPOLOGIES, PODS, Resource
from localcluster.kubelets.fleet import Publishing
from localcluster.nodes import RACK_LABEL, Fleet, add_nodes, wait_ready

VARIANTS = ("plain", "topogate")
MACHINES = ("2 sockets / 8 NUMA / 64 cores / 8 GPUs", "2 NUMA / 128 cores / 8 GPUs")
KUBELETS = ("restricted, pod", "single-numa-node, container", "restricted, container", "single-numa-node, pod")
HOSTS = 5  # machines a rack
GPU = "nvidia.com/gpu"
BACKOFF = 20
PUBLISHED_SECONDS = 60.0
NAMESPACE = "default"
Json = dict[str, Any]


class PodKind(msgspec.Struct, frozen=True):
    """One kind of pod and how often it comes. ``cpu`` and ``memory`` "" with no GPU limit alone: BestEffort."""

    name: str
    weight: int
    gpus: int = 0
    cpu: str = ""
    memory: str = ""
    guaranteed: bool = False
    init_cpu: str = ""


# What a person asks for without thinking of zones: some of it fits one kind of machine only.
KINDS = (
    PodKind("gpu1", 28, gpus=1, cpu="8", memory="32Gi", guaranteed=True),
    PodKind("gpu1-burst", 10, gpus=1, cpu="4", memory="16Gi"),
    PodKind("gpu1-init", 6, gpus=1, cpu="6", memory="32Gi", guaranteed=True, init_cpu="6"),
    PodKind("gpu1-best", 4, gpus=1),
    PodKind("gpu2", 14, gpus=2, cpu="16", memory="64Gi", guaranteed=True),
    PodKind("gpu2-burst", 8, gpus=2, cpu="8", memory="32Gi"),
    PodKind("gpu4", 6, gpus=4, cpu="32", memory="128Gi", guaranteed=True),
    PodKind("gpu4-burst", 4, gpus=4, cpu="16", memory="64Gi"),
    PodKind("gpu8-burst", 2, gpus=8, cpu="32", memory="128Gi"),
    PodKind("cpu4", 8, cpu="4", memory="8Gi", guaranteed=True),
    PodKind("cpu12", 6, cpu="12", memory="16Gi", guaranteed=True),
    PodKind("cpu-half", 4, cpu="1500m", memory="4Gi", guaranteed=True),
)


class JobPlan(msgspec.Struct, frozen=True):
    """One Job of the stream: when it comes (seconds), what its pods are, how long they run, and what it asks for."""

    name: str
    at: float
    kind: PodKind
    pods: int
    seconds: int
    required: bool


class Run(msgspec.Struct, kw_only=True):
    """One variant. ``refused``: pods by the kubelet's reason; ``jobs``: by how they ended."""

    variant: str
    machines: int
    pods: int  # of all Jobs, each counted once
    seconds: float
    started: int  # pods that ran
    refused: dict[str, int]
    refused_kinds: dict[str, int]
    jobs: dict[str, int]
    unfinished: list[str]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both, print, and write ``benchmarks/results/stream.json``."""
    options = _parser().parse_args(arguments)
    runs = [asyncio.run(_one(variant, options)) for variant in options.variants.split(",")]
    show(runs)
    report.save("stream", runs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks stream", description=__doc__)
    parser.add_argument("--machines", type=int, default=200, help="in whole tens (default %(default)s)")
    parser.add_argument("--pods", type=int, default=2000, help="in all Jobs together (default %(default)s)")
    parser.add_argument("--rate", type=float, default=20.0, help="pods that come a second (default %(default)s)")
    parser.add_argument("--run-seconds", type=int, default=30, help="a pod runs half to one and a half of it")
    parser.add_argument("--patience", type=float, default=240.0, help="seconds after the last Job has come")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-flex-topo", action="store_true", help="the machines publish NodeResourceTopology alone")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="default %(default)s")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the components' logs here")
    return parser


def fleets(machines: int) -> list[Fleet]:
    """Half of each machine, of each half the kubelets of one policy; ``machines`` is rounded up to whole racks."""
    racks = -(-machines // (HOSTS * len(KUBELETS)))
    return [
        Fleet(blocks=1, racks=racks, hosts=HOSTS, machine=MACHINES[i // 2], kubelet=kubelet, prefix=f"m{i + 1}-")
        for i, kubelet in enumerate(KUBELETS)
    ]


def stream(*, pods: int, rate: float, run_seconds: int, seed: int) -> list[JobPlan]:
    """The Jobs, in order of their coming; equal arguments give equal streams."""
    dice = random.Random(seed)
    plans: list[JobPlan] = []
    count = 0
    while count < pods:
        kind = dice.choices(KINDS, weights=[kind.weight for kind in KINDS])[0]
        size = min(pods - count, 1 if kind.gpus >= 4 else dice.choice((1, 1, 2, 3, 4)))
        seconds = round(run_seconds * dice.uniform(0.5, 1.5))
        required = size > 1 and dice.random() < 0.5
        plans.append(JobPlan(f"{kind.name}-{len(plans)}", count / rate, kind, size, seconds, required))
        count += size
    return plans


def job(plan: JobPlan, *, topology: bool) -> Json:
    """The Job as a person writes it; ``topology``: with its request."""
    keys, kind = Keys(), plan.kind
    request = {keys.required[0]: RACK_LABEL} if plan.required else {keys.unconstrained: "true"}
    amounts = {name: value for name, value in (("cpu", kind.cpu), ("memory", kind.memory)) if value}
    gpus = {GPU: str(kind.gpus)} if kind.gpus else {}
    resources = {"requests": amounts, "limits": {**(amounts if kind.guaranteed else {}), **gpus}}
    spec: Json = {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "registry.example/train:1", "resources": resources}],
    }
    if kind.init_cpu:
        first = {"cpu": kind.init_cpu, "memory": "4Gi"}
        spec["initContainers"] = [
            {"name": "fetch", "image": "registry.example/fetch:1", "resources": {"requests": first, "limits": first}}
        ]
    template = {"metadata": {"annotations": {"topogate.dev/run-seconds": str(plan.seconds)}}, "spec": spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": plan.name, "annotations": request if topology else {}},
        "spec": {"parallelism": plan.pods, "completions": plan.pods, "backoffLimit": BACKOFF, "template": template},
    }


class _PodSeen(Object, frozen=True):
    """A pod's end."""

    status: Json = msgspec.field(default_factory=dict)


class _JobSeen(Object, frozen=True):
    """A Job's end."""

    status: Json = msgspec.field(default_factory=dict)


class Watch:
    """What becomes of the stream: refusals by reason and kind of pod, pods that ran, Jobs by their end."""

    def __init__(self, client: Client) -> None:
        self.refused: dict[str, tuple[str, str]] = {}  # uid -> reason, kind of pod
        self.ran: set[str] = set()
        self.ended: dict[str, str] = {}  # Job -> Complete or Failed
        self.changed = asyncio.Event()
        self._pods = Informer(client, PODS, _PodSeen, namespace=NAMESPACE, on_event=self._on_pod)
        self._jobs = Informer(client, JOBS, _JobSeen, namespace=NAMESPACE, on_event=self._on_job)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.run())
            group.create_task(self._jobs.run())

    async def synced(self) -> None:
        """Wait until both are listed."""
        await self._pods.wait_synced()
        await self._jobs.wait_synced()

    async def wait_all(self, jobs: int, patience: float) -> bool:
        """Wait until that many Jobs have ended; whether they did in time."""
        try:
            async with asyncio.timeout(patience):
                while len(self.ended) < jobs:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            return False
        return True

    def _on_pod(self, event: Event[_PodSeen]) -> None:
        pod = event.new
        if pod is None:
            return
        status, uid = pod.status, pod.metadata.uid
        if status.get("phase") == "Failed" and status.get("reason"):
            kind = (pod.metadata.labels or {}).get("batch.kubernetes.io/job-name", "").rpartition("-")[0]
            self.refused.setdefault(uid, (status["reason"], kind))
        elif status.get("phase") in {"Running", "Succeeded"}:
            self.ran.add(uid)

    def _on_job(self, event: Event[_JobSeen]) -> None:
        if event.new is None or event.kind is EventKind.DELETED:
            return
        for condition in event.new.status.get("conditions", ()):
            if condition["type"] in {"Complete", "Failed"} and condition["status"] == "True":
                self.ended[event.key] = condition["type"]
                self.changed.set()


async def add_machines(made: Plane, all_fleets: Sequence[Fleet], publishing: Publishing) -> None:
    """Add the machines to a control plane, play their kubelets, and wait until all that is published is there."""
    await asyncio.to_thread(made.cluster.play_kubelets, publishing)
    for fleet in all_fleets:
        await add_nodes(made.client, fleet)
    names = [name for fleet in all_fleets for name in fleet.node_names()]
    await wait_ready(made.client, names, timeout=120)
    kinds = [NODE_RESOURCE_TOPOLOGIES] * publishing.nrt + [FLEX_TOPOS] * publishing.flex_topo
    async with asyncio.timeout(PUBLISHED_SECONDS):
        for kind in kinds:
            while await _published(made.client, kind) < len(names):
                await asyncio.sleep(0.5)


async def _published(client: Client, kind: Resource) -> int:
    """How many machines have an object of the kind, with all that belongs in it."""
    try:
        return sum("zones" in found or "status" in found for found in await client.list(kind))
    except NotFound:  # the kind is not served yet
        return 0


async def _one(variant: str, options: argparse.Namespace) -> Run:
    plans = stream(pods=options.pods, rate=options.rate, run_seconds=options.run_seconds, seed=options.seed)
    found = fleets(options.machines)
    topogate = variant == "topogate"
    publishing = Publishing(nrt=topogate, flex_topo=topogate and not options.no_flex_topo, observed=topogate)

    async def before(made: Plane) -> None:
        await add_machines(made, found, publishing)

    async with plane(found[0], topogate=topogate, before=before) as made:
        run = await play(made.client, plans, variant, sum(map(len, found)), options.patience)
        refused = _listed(run.refused) or "none"
        print(f"{variant}: {run.started} pods ran, refused: {refused}, {run.seconds:.0f} s", flush=True)
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            for log in (made.cluster.directory / "logs").glob("*.log"):
                (options.logs / f"{variant}-{log.name}").write_bytes(log.read_bytes())
            pods = await made.client.list(PODS, NAMESPACE)
            (options.logs / f"{variant}-pods.json").write_text(json.dumps(pods))
    return run


async def play(client: Client, plans: Sequence[JobPlan], variant: str, count: int, patience: float) -> Run:
    """Create the Jobs at their times, wait for their ends, and count."""
    watch = Watch(client)
    watching = asyncio.create_task(watch.run())
    try:
        await watch.synced()
        began = time.monotonic()
        await _create(client, plans, topology=variant == "topogate")
        await watch.wait_all(len(plans), patience)
        seconds = time.monotonic() - began
    finally:
        watching.cancel()
    return Run(
        variant=variant,
        machines=count,
        pods=sum(plan.pods for plan in plans),
        seconds=seconds,
        started=len(watch.ran),
        refused=dict(Counter(reason for reason, _ in watch.refused.values())),
        refused_kinds=dict(Counter(kind for _, kind in watch.refused.values()).most_common()),
        jobs=dict(Counter(watch.ended.values())),
        unfinished=[plan.name for plan in plans if f"{NAMESPACE}/{plan.name}" not in watch.ended],
    )


async def _create(client: Client, plans: Sequence[JobPlan], *, topology: bool) -> None:
    began = time.monotonic()
    for plan in plans:
        await asyncio.sleep(max(0.0, began + plan.at - time.monotonic()))
        await client.transport.send("POST", JOBS.path(NAMESPACE), body=encode(job(plan, topology=topology)))


def show(runs: Sequence[Run]) -> None:
    """The table, and the kinds of pods that were refused."""
    reasons = sorted({reason for run in runs for reason in run.refused} | {"TopologyAffinityError"})
    report.table(
        f"{runs[0].pods} pods on {runs[0].machines} machines",
        ["", "pods that ran", *reasons, "Jobs complete", "Jobs failed", "not ended", "s"],
        [
            [
                run.variant,
                run.started,
                *(run.refused.get(reason, 0) for reason in reasons),
                run.jobs.get("Complete", 0),
                run.jobs.get("Failed", 0),
                len(run.unfinished),
                run.seconds,
            ]
            for run in runs
        ],
    )
    for run in runs:
        if run.variant == "topogate":
            GOALS.at_most("TopologyAffinityError with Topogate", run.refused.get("TopologyAffinityError", 0), 0, "pods")
        if run.refused_kinds:
            print(f"{run.variant}: refused by kind of pod: {_listed(run.refused_kinds)}")


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
