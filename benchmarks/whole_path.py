"""From the creation of Jobs until every pod runs: Topogate beside plain kube-scheduler, on a control plane each.

The same Jobs are created by the same client with the same concurrency; plain ones carry no topology request, and
nothing of Topogate is installed. With the variants ``queue`` (one) and ``queues`` (several) they go through queues
besides, so they are born suspended and wait for quota; with ``kueue`` through one of a real Kueue, with its topologies,
and nothing of Topogate. All Jobs are Indexed, as users send them. Variants alternate, each run has a control plane of
its own. Pods are counted by one watch that gets a single event a pod, so that the
measuring costs next to nothing.
"""

import argparse
import asyncio
import os
import signal
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import kueue, report
from benchmarks.harness.goals import GOALS
from benchmarks.harness.plane import TOPOGATE, Plane, plane
from crds.constants import API_VERSION, Keys
from kube.client import Client
from kube.informer import Event, EventKind, Informer
from kube.objects import Object
from kube.patches import encode
from kube.resources import CLUSTER_QUEUES, JOBS, LOCAL_QUEUES, NODES, PODS
from localcluster.nodes import BLOCK_LABEL, RACK_LABEL, Fleet

HOSTS = 16  # nodes a rack
RACKS = 20  # racks a block
CREATORS = 16  # Jobs created at a time
PATIENCE_SECONDS = 300.0
VARIANTS = ("plain", "topogate")  # and "queue", "queues", "kueue"
OWN = (*TOPOGATE, kueue.NAME)  # processes beside the control plane's; Kueue is alone where it is
MB = 1e6
Body = dict[str, Any]
GOAL_CALLS = 0.4  # of the controller's a pod, beyond the patches that let pods go
GOAL_KUEUE = 1.5  # times its rate, through one queue
GOAL_MEMORY = 180.0  # MB at most of webhook and ungater together, on as many nodes as is the default
USUAL_NODES = 640


class Targets(msgspec.Struct, frozen=True):
    """What is to be reached: share of plain's rate; CPU milliseconds a pod of webhook and ungater, and of all."""

    rate: float
    own: float
    everything: float


MANY, QUEUED, ONE_LARGE = Targets(0.8, 2.0, 22.0), Targets(0.85, 2.5, 25.0), Targets(0.9, 1.0, 22.0)


class Shape(msgspec.Struct, frozen=True):
    """Equal Jobs of equal pods of one GPU each."""

    jobs: int
    pods: int  # in each Job
    policy: str  # required, preferred

    def __str__(self) -> str:
        return f"{self.jobs} x {self.pods} {self.policy}"

    @property
    def total(self) -> int:
        """Pods in all."""
        return self.jobs * self.pods


class Run(msgspec.Struct, kw_only=True):
    """One measurement. Times are seconds since the first Job was sent; CPU is in seconds, memory in bytes."""

    shape: str
    variant: str
    jobs: int
    pods: int
    seconds: float  # until the last pod runs
    created: float  # until the last Job is created
    first: float  # until the first pod runs
    half: float  # until half of the pods run
    cpu: dict[str, float]
    memory: dict[str, int]
    peak: dict[str, int]
    calls: float | None  # of the controller's, a pod, beyond the patches that let pods go
    jobs_in_one_rack: int
    racks: int  # with pods, over all Jobs
    requests: dict[str, int]

    @property
    def rate(self) -> float:
        """Jobs a second."""
        return self.jobs / self.seconds

    def cpu_ms(self, *names: str) -> float:
        """CPU milliseconds a pod of some processes together."""
        return 1000 * sum(self.cpu.get(name, 0.0) for name in names) / self.pods

    @property
    def targets(self) -> Targets:
        """Its goals."""
        if self.jobs == 1:
            return ONE_LARGE
        return MANY if self.variant == "topogate" else QUEUED


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write ``benchmarks/results/whole-path.json``."""
    show(parser("whole-path").parse_args(arguments), "whole-path")


def show(options: argparse.Namespace, name: str) -> None:
    """Measure, print, and save under this name."""
    runs = asyncio.run(_all(options))
    for shape in dict.fromkeys(run.shape for run in runs):
        _print([run for run in runs if run.shape == shape], options.nodes)
    report.save(name, runs)


def parser(name: str) -> argparse.ArgumentParser:
    """The options of this benchmark and of those that differ in their defaults alone."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=__doc__)
    parser.add_argument("--jobs", type=int, default=400, help="Jobs in the run of many (default %(default)s)")
    parser.add_argument("--pods", type=int, default=5, help="pods in each of them (default %(default)s)")
    parser.add_argument("--large", type=int, default=2000, help="pods of the one large Job; 0: leave it out")
    parser.add_argument(
        "--nodes", type=int, default=USUAL_NODES, help="nodes, in whole racks of 16 (default %(default)s)"
    )
    parser.add_argument("--repeat", type=int, default=5, help="runs of each variant (default %(default)s)")
    parser.add_argument(
        "--variants", default=",".join(VARIANTS), help="of plain, topogate, queue, queues, kueue; default %(default)s"
    )
    parser.add_argument("--queues", type=int, default=10, help="queues of variant queues (default %(default)s)")
    parser.add_argument("--requests", action="store_true", help="count API calls by user, by the audit log")
    parser.add_argument("--profile", type=Path, metavar="DIR", help="run webhook and ungater under cProfile")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the components' logs here")
    return parser


async def _all(options: argparse.Namespace) -> list[Run]:
    shapes = [Shape(options.jobs, options.pods, "required")] if options.jobs else []
    shapes += [Shape(1, options.large, "preferred")] if options.large else []
    variants: list[str] = options.variants.split(",")
    runs = []
    for number in range(options.repeat):
        for shape in shapes:
            for variant in variants if number % 2 == 0 else reversed(variants):
                run = await _one(shape, variant, options)
                runs.append(run)
                print(
                    f"{run.shape}, {run.variant}: {run.seconds:.2f} s, {run.rate:.1f} Jobs/s,"
                    f" {run.cpu_ms(*OWN):.2f} ms CPU a pod of its own",
                    flush=True,
                )
    return runs


async def _one(shape: Shape, variant: str, options: argparse.Namespace) -> Run:
    python = _profiled(options.profile, shape) if options.profile else None
    fleet, queues = fleet_of(options.nodes), {"queue": 1, "queues": options.queues}.get(variant, 0)

    async def before(made: Plane) -> None:
        await _make_queues(made.client, queues, len(fleet))

    real = await asyncio.to_thread(kueue.Kueue.find, print) if variant == kueue.NAME else None
    ours = real is None and variant != "plain"
    async with plane(fleet, topogate=ours, beside=real, audit=options.requests, python=python, before=before) as made:
        if python is not None and made.components is not None:
            for name in TOPOGATE:
                os.kill(made.components.pid(name), signal.SIGUSR1)  # the start is over: profile from here
        run = await measure(made, shape, variant, queues)
        if options.logs:
            made.keep_logs(options.logs, f"{shape.jobs}x{shape.pods}")
        return run


def fleet_of(nodes: int) -> Fleet:
    """Blocks of 20 racks of 16 nodes of 8 GPUs, 96 CPUs, 768 GiB, 110 pods; ``nodes`` is rounded up to whole racks."""
    racks = -(-nodes // HOSTS)
    if racks <= RACKS:
        return Fleet(blocks=1, racks=racks, hosts=HOSTS)
    return Fleet(blocks=-(-racks // RACKS), racks=RACKS, hosts=HOSTS)


def _profiled(folder: Path, shape: Shape) -> dict[str, list[str]]:
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder.absolute() / f"{name}-{shape.jobs}x{shape.pods}.prof" for name in TOPOGATE}
    return {name: ["-m", "benchmarks.harness.profiled", str(file)] for name, file in files.items()}


async def _make_queues(client: Client, queues: int, nodes: int) -> None:
    """Cluster queues of one cohort that own equal parts of the nodes, each with a local queue."""
    for number in range(queues):
        group = kueue.quota(nodes, queues)
        spec = {"cohortName": "bench", "namespaceSelector": {}, "resourceGroups": [group]}
        name = {"metadata": {"name": f"queue-{number}"}, "apiVersion": API_VERSION}
        await client.create(CLUSTER_QUEUES, {**name, "kind": "ClusterQueue", "spec": spec})
        spec = {"clusterQueue": f"queue-{number}"}
        await client.create(LOCAL_QUEUES, {**name, "kind": "LocalQueue", "spec": spec}, "default")


async def measure(made: Plane, shape: Shape, variant: str, queues: int = 0) -> Run:
    """Create the Jobs of ``shape`` and wait until all their pods run. TimeoutError after ``PATIENCE_SECONDS``."""
    bodies = list(_bodies(shape, variant, queues))
    made.requests()  # what was called before is not ours
    running = _Running(made.client, shape.total)
    watching = asyncio.create_task(running.informer.run())
    try:
        await running.informer.wait_synced()
        called = await _calls(made)
        before, began = made.usage(), time.monotonic()
        await _create(made.client, bodies)
        created = time.monotonic()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running.all.wait()
    finally:
        watching.cancel()
    after, times = made.usage(), running.times
    calls = await _calls(made)
    requests = made.requests()
    placed = await _racks(made.client)
    return Run(
        shape=str(shape),
        variant=variant,
        jobs=shape.jobs,
        pods=shape.total,
        seconds=times[-1] - began,
        created=created - began,
        first=times[0] - began,
        half=times[len(times) // 2] - began,
        cpu=after.since(before),
        memory=after.memory,
        peak=after.peak,
        calls=None if called is None or calls is None else (calls - called) / shape.total,
        jobs_in_one_rack=sum(len(racks) == 1 for racks in placed.values()),
        racks=len(set().union(*placed.values())),
        requests=dict(requests.most_common()),
    )


def _bodies(shape: Shape, variant: str, queues: int) -> Iterator[bytes]:
    keys, required = Keys(), shape.policy == "required"
    topology = {(keys.required if required else keys.preferred)[0]: RACK_LABEL} if variant != "plain" else {}
    for number in range(shape.jobs):
        labels = {keys.queue_name: f"queue-{number % queues}"} if queues else {}
        job = _job(f"bench-{number}", shape.pods, topology, labels)
        yield encode(kueue.asked(job, RACK_LABEL, required=required) if variant == kueue.NAME else job)


def _job(name: str, pods: int, annotations: dict[str, str], labels: dict[str, str]) -> Body:
    resources = {"requests": {"cpu": "8", "memory": "64Gi"}, "limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "registry.example/train:1", "resources": resources}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "parallelism": pods,
            "completions": pods,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


async def _calls(made: Plane) -> float | None:
    """Calls of the controller so far, without the patches that let a pod go, as its own metrics have it."""
    if made.components is None:
        return None
    with await asyncio.to_thread(urllib.request.urlopen, f"{made.components.address('ungater')}/metrics") as answer:
        lines = [line.rpartition(" ") for line in answer.read().decode().splitlines()]
    calls = sum(float(count) for name, _, count in lines if name.startswith("topogate_api_requests_total{"))
    patches = 'topogate_ungate_patches_total{outcome="ungated"}'
    return calls - sum(float(count) for name, _, count in lines if name == patches)


async def _create(client: Client, bodies: Sequence[bytes]) -> None:
    path, queue = JOBS.path("default"), iter(bodies)

    async def work() -> None:
        for body in queue:  # all workers share the one iterator
            await client.transport.send("POST", path, body=body)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(CREATORS, len(bodies))):
            group.create_task(work())


class _Running:
    """When each pod was first seen to run. By the field selector there is one event a pod, cheap for the API server."""

    def __init__(self, client: Client, pods: int) -> None:
        self.times: list[float] = []
        self.all = asyncio.Event()
        self.informer = Informer(
            client, PODS, Object, namespace="default", field_selector="status.phase=Running", on_event=self._count
        )
        self._pods = pods

    def _count(self, event: Event[Object]) -> None:
        if event.kind is EventKind.ADDED:
            self.times.append(time.monotonic())
            if len(self.times) == self._pods:
                self.all.set()


async def _racks(client: Client) -> dict[str, set[tuple[str, str]]]:
    """The racks on which each Job's pods are."""
    nodes = {node["metadata"]["name"]: node["metadata"]["labels"] for node in await client.list(NODES)}
    placed: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for pod in await client.list(PODS, "default"):
        labels = nodes[pod["spec"]["nodeName"]]
        placed[pod["metadata"]["ownerReferences"][0]["name"]].add((labels[BLOCK_LABEL], labels[RACK_LABEL]))
    return dict(placed)


def _print(runs: Sequence[Run], nodes: int) -> None:
    by_variant = {variant: [run for run in runs if run.variant == variant] for variant in (run.variant for run in runs)}
    base = report.median(run.seconds for run in by_variant.get("plain", ()))
    report.table(
        f"{runs[0].shape}: {runs[0].pods} pods, medians of {len(next(iter(by_variant.values())))}",
        ["", "s", "of plain's rate", "Jobs/s", "created s", "first s", "half s", "one rack", "racks"],
        [_times(variant, found, base) for variant, found in by_variant.items()],
    )
    processes = Counter(name for run in runs for name in run.cpu)
    report.table(
        "CPU milliseconds a pod",
        ["", *processes, "its own", "all", "calls a pod", "MB at most"],
        [_costs(variant, found, list(processes)) for variant, found in by_variant.items()],
        note="its own and MB: of webhook and ungater, or of Kueue; calls but the patches that let pods go",
    )
    for variant, found in by_variant.items():
        if variant not in {"plain", kueue.NAME}:
            _state(f"{runs[0].shape}, {variant}", found, base, nodes)
        last = found[-1]
        if last.requests:
            rows = [
                (call, count, count / last.pods) for call, count in last.requests.items() if count >= last.jobs / 10
            ]
            report.table(f"API calls, {variant}", ["user, verb, resource", "calls", "a pod"], rows)
    if "queue" in by_variant and kueue.NAME in by_variant:
        times = report.ratio(_seconds(by_variant[kueue.NAME]), _seconds(by_variant["queue"]))
        GOALS.at_least(f"{runs[0].shape}, queue: times Kueue's rate", times, GOAL_KUEUE, "")


def _state(what: str, runs: Sequence[Run], base: float | None, nodes: int) -> None:
    """The goals of one variant."""
    targets = runs[0].targets
    GOALS.at_least(f"{what}: share of plain's rate", report.ratio(base, _seconds(runs)), targets.rate, "")
    GOALS.at_most(f"{what}: calls a pod beyond the patch", _calls_a_pod(runs), GOAL_CALLS, "")
    GOALS.at_most(f"{what}: own CPU a pod", report.median(run.cpu_ms(*OWN) for run in runs), targets.own, "ms")
    everything = report.median(run.cpu_ms(*run.cpu) for run in runs)
    GOALS.at_most(f"{what}: CPU of all processes a pod", everything, targets.everything, "ms")
    if nodes == USUAL_NODES:
        GOALS.at_most(f"{what}: memory of webhook and ungater", _megabytes(runs), GOAL_MEMORY, "MB")


def _seconds(runs: Sequence[Run]) -> float | None:
    return report.median(run.seconds for run in runs)


def _calls_a_pod(runs: Sequence[Run]) -> float | None:
    return report.median(run.calls for run in runs if run.calls is not None)


def _megabytes(runs: Sequence[Run]) -> float | None:
    """The most that webhook and ungater had resident, together, or Kueue."""
    return report.median(sum(run.peak.get(name, 0) for name in OWN) / MB for run in runs)


def _times(variant: str, runs: Sequence[Run], base: float | None) -> list[object]:
    middle = {name: report.median(getattr(run, name) for run in runs) for name in ("created", "first", "half")}
    share = report.ratio(base, _seconds(runs))
    one_rack = f"{min(run.jobs_in_one_rack for run in runs)} of {runs[0].jobs}"
    rate = report.median(run.rate for run in runs)
    return [variant, _seconds(runs), share, rate, *middle.values(), one_rack, max(run.racks for run in runs)]


def _costs(variant: str, runs: Sequence[Run], processes: Sequence[str]) -> list[object]:
    def middle(*names: str) -> float | None:
        return report.median(run.cpu_ms(*names) for run in runs if any(name in run.cpu for name in names))

    each = (middle(name) for name in processes)
    return [variant, *each, middle(*OWN), middle(*processes), _calls_a_pod(runs), _megabytes(runs) or None]
