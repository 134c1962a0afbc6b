"""From the start of the controller's process until it leads with everything known, and its memory and the webhook's.

The cluster has nodes, Jobs that Topogate placed, each with all its pods bound to their slots, and as many pods again
that are none of ours. Nothing else runs meanwhile: the other components are stopped once the objects are there. The
lease is deleted before each start, as its wait is no work.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import report
from benchmarks.harness.goals import GOALS
from benchmarks.harness.plane import Plane, plane
from benchmarks.harness.profiled import from_the_start
from benchmarks.ungating import make_job
from crds.constants import NAMESPACE, Keys
from crds.settings import Settings
from kube.client import Client
from kube.errors import Forbidden, NotFound
from kube.objects import Job, key
from kube.resources import JOBS, LEASES, PODS, VALIDATING_ADMISSION_POLICY_BINDINGS, WORKLOADS
from kube.workloads import WorkloadObject
from localcluster import CONTROLLER_MANAGER, KWOK, SCHEDULER
from localcluster.nodes import Fleet, add_nodes, wait_ready
from ungater.model.workload_status import observed_of

GOAL_SECONDS = 15.0
GOAL_MB = 250.0  # webhook and ungater together, with as many nodes and pods as is the default
USUAL_NODES, USUAL_PODS = 5_000, 20_000
MB = 1e6
JOB_PODS = 200
CONCURRENCY = 32
PATIENCE_SECONDS = 900.0
KEYS = Keys()
Json = dict[str, Any]


class Start(msgspec.Struct, kw_only=True):
    """One start: seconds until it leads, and of them of CPU; resident megabytes then, at most, and the webhook's."""

    nodes: int
    pods: int
    seconds: float
    cpu: float
    megabytes: float
    peak: float
    webhook: float

    @property
    def both(self) -> float:
        """Megabytes of both processes at most."""
        return self.peak + self.webhook


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write ``benchmarks/results/startup.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks startup", description=__doc__)
    parser.add_argument("--nodes", type=int, default=USUAL_NODES, help="in whole hundreds (default %(default)s)")
    parser.add_argument("--pods", type=int, default=USUAL_PODS, help=f"in whole {2 * JOB_PODS} (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="starts (default %(default)s)")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="run the controller under cProfile")
    options = parser.parse_args(arguments)
    starts = asyncio.run(_measure(options))
    show(starts)
    if (options.nodes, options.pods) == (USUAL_NODES, USUAL_PODS):
        GOALS.at_most("seconds until it leads", report.median(one.seconds for one in starts), GOAL_SECONDS, "s")
        GOALS.at_most("memory of webhook and ungater", report.median(one.both for one in starts), GOAL_MB, "MB")
    report.save("startup", starts)


async def _measure(options: argparse.Namespace) -> list[Start]:
    python = from_the_start(options.profile)
    fleet = Fleet(blocks=1, racks=1, hosts=1, gpus=8, prefix="first-")
    async with plane(fleet, topogate=True, python=python) as made:
        await _fill(made, options)
        starts = []
        for _ in range(options.rounds):
            starts.append(await _start(made, options))
            print(f"{starts[-1].seconds:.1f} s, {starts[-1].peak:.0f} MB", file=sys.stderr, flush=True)
        return starts


async def _fill(made: Plane, options: argparse.Namespace) -> None:
    """Nodes, then Jobs that are placed, then all pods."""
    fleet = Fleet(blocks=5, racks=20, hosts=options.nodes // 100, gpus=8)
    await add_nodes(made.client, fleet)
    await wait_ready(made.client, fleet.node_names(), timeout=PATIENCE_SECONDS)
    for name in (SCHEDULER, CONTROLLER_MANAGER, KWOK):
        await asyncio.to_thread(made.cluster.stop, name)
    names = [f"job-{number}" for number in range(options.pods // 2 // JOB_PODS)]
    await _together(made.client.create(JOBS, make_job(name, JOB_PODS)) for name in names)
    print(f"{len(fleet)} nodes, {len(names)} Jobs", file=sys.stderr, flush=True)
    await _until(lambda: _placed(made.client, len(names)), f"{len(names)} Jobs to be placed")
    assert made.components is not None  # noqa: S101 - the plane was made with Topogate
    await made.components.kill("ungater")
    slots = {key(found): found for found in await made.client.list(WORKLOADS, "default", type=WorkloadObject)}
    jobs = {job.metadata.uid: job for job in await made.client.list(JOBS, "default", type=Job)}
    ours = [pod for found in slots.values() for pod in _pods_of(found, jobs)]
    hosts = list(fleet.node_names())
    others = [_pod(f"other-{number}", hosts[number % len(hosts)]) for number in range(options.pods - len(ours))]
    # Users may not say which slot a pod has; the API server takes a moment to forget that.
    await made.client.delete(VALIDATING_ADMISSION_POLICY_BINDINGS, "topogate-pods")
    await _until(lambda: _is_allowed(made.client, ours[0]), "leave to make pods in slots")
    await _together(made.client.create(PODS, pod) for pod in (*ours[1:], *others))
    print(f"{len(ours)} pods in slots, {len(others)} others", file=sys.stderr, flush=True)


async def _is_allowed(client: Client, pod: Json) -> bool:
    try:
        await client.create(PODS, pod)
    except Forbidden:
        return False
    return True


def _pods_of(workload: WorkloadObject, jobs: dict[str, Job]) -> Iterator[Json]:
    """All pods of a Job, as they are once they were ungated and bound."""
    (owner,) = workload.metadata.owner_references or ()
    slots = observed_of(workload).slots
    assert slots is not None  # noqa: S101 - it was placed
    for number, values in enumerate(slot.values for slot in slots.slots for _ in range(slot.count)):
        pod = _pod(f"{owner.name}-{number}", values[-1], gpus=1)
        pod["metadata"] |= {
            "annotations": {KEYS.workload: workload.metadata.name},
            "labels": {"batch.kubernetes.io/job-name": owner.name},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": owner.name,
                    "uid": jobs[owner.uid].metadata.uid,
                    "controller": True,
                }
            ],
        }
        pod["spec"]["nodeSelector"] = dict(zip(slots.levels, values, strict=True))
        yield pod


def _pod(name: str, node: str, *, gpus: int = 0) -> Json:
    resources: Json = {"requests": {"cpu": "100m", "memory": "1Gi"}}
    if gpus:
        resources["limits"] = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "registry.example/train:1", "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"nodeName": node, "containers": [container]},
    }


async def _placed(client: Client, count: int) -> bool:
    found = await client.list(WORKLOADS, "default", type=WorkloadObject)
    return sum(observed_of(each).slots is not None for each in found) == count


async def _start(made: Plane, options: argparse.Namespace) -> Start:
    """Start the controller, wait until its log says that it leads, and kill it."""
    components = made.components
    assert components is not None  # noqa: S101 - the plane was made with Topogate
    settings = Settings()
    with suppress(NotFound):
        await made.client.delete(LEASES, settings.lease_name, NAMESPACE)
    before = components.log("ungater").stat().st_size
    began = time.perf_counter()
    components.spawn("ungater")
    found: Json = {}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not found:
            await asyncio.sleep(0.05)
            found = await asyncio.to_thread(_leading, components.log("ungater"), before)
    seconds, cpu = time.perf_counter() - began, components.cpu_seconds("ungater")
    if (found["pods"], found["jobs"]) != (options.pods, options.pods // 2 // JOB_PODS):
        sys.exit(f"it leads with other objects than there are: {found}")
    memory = made.usage()
    await components.kill("ungater")
    return Start(
        nodes=found["nodes"],
        pods=found["pods"],
        seconds=seconds,
        cpu=cpu,
        megabytes=memory.memory["ungater"] / MB,
        peak=memory.peak["ungater"] / MB,
        webhook=memory.peak["webhook"] / MB,
    )


def _leading(log: Path, since: int) -> Json:
    with log.open("rb") as file:
        file.seek(since)
        lines = [json.loads(line) for line in file.read().splitlines() if line.startswith(b"{") and line.endswith(b"}")]
    return next((line for line in lines if line.get("event") == "leading" and "pods" in line), {})


async def _together(calls: Iterable[Awaitable[object]]) -> None:
    waiting = iter(calls)

    async def work() -> None:
        for call in waiting:
            await call

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work())


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await condition():
                await asyncio.sleep(1.0)
    except TimeoutError:
        sys.exit(f"waited {PATIENCE_SECONDS:.0f} s in vain for {what}")


def show(starts: Sequence[Start]) -> None:
    """The table."""
    report.table(
        f"start with {starts[0].nodes:,} nodes and {starts[0].pods:,} pods",
        ["round", "s until it leads", "s of CPU", "MB then", "MB at most", "and the webhook"],
        [
            [str(number), one.seconds, one.cpu, one.megabytes, one.peak, one.webhook]
            for number, one in enumerate(starts, start=1)
        ],
    )
