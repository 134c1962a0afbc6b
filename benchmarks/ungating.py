"""Pods ungated a second, beside a bare PATCH loop against the same API server, alternated in one run.

Each round has a fresh Job of gated pods that are all there before anything is timed. One variant starts the controller
as a process and takes the rate between two readings of its own count of patches; the other is a process with one
aiohttp session, as many requests in flight, and the very same bodies ready in memory: it lists, watches and decides
nothing. kube-scheduler is stopped, so that what happens to ungated pods disturbs neither.
"""

import argparse
import asyncio
import json
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from benchmarks.harness import report
from benchmarks.harness.goals import GOALS
from benchmarks.harness.plane import Plane, plane
from benchmarks.harness.profiled import from_the_start
from cli.run.components import Components
from crds.constants import Keys
from crds.names import workload_name
from kube.client import Client
from kube.connection import config
from kube.objects import Pod, controller_of
from kube.resources import JOBS, PODS
from localcluster import SCHEDULER
from localcluster.nodes import BLOCK_LABEL, HOSTNAME_LABEL, RACK_LABEL, Fleet
from ungater.model.pod_slots import Slot, is_gated
from ungater.model.ungate_patch import UngatePatches

GOAL = 0.9
LARGE, LARGE_GOAL = 10_000, 0.95  # pods of one Job, of which what a start costs is a smaller part
PATIENCE_SECONDS = 900.0
POLL = 0.25
LEVELS = (BLOCK_LABEL, RACK_LABEL, HOSTNAME_LABEL)
KEYS = Keys()


class Round(msgspec.Struct, kw_only=True):
    """One measurement: patches a second, and CPU milliseconds a pod of the process that sent them."""

    variant: str
    pods: int
    rate: float
    cpu_ms: float
    api_cpu_ms: float


def main(arguments: Sequence[str] | None = None, name: str = "ungating") -> None:
    """Measure, print, and write ``benchmarks/results/NAME.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ungating", description=__doc__)
    parser.add_argument("--pods", type=int, default=2000, help="pods a round (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each variant (default %(default)s)")
    parser.add_argument("--concurrency", type=int, default=32, help="patches in flight (default %(default)s)")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="run the controller under cProfile")
    parser.add_argument("--bare", nargs=2, metavar=("PLAN", "KUBECONFIG"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.bare:
        plan = json.loads(Path(options.bare[0]).read_text())
        asyncio.run(_bare_loop(plan, options.bare[1], options.concurrency))
        return
    rounds = asyncio.run(_measure(options))
    _print(rounds)
    report.save(name, rounds)


async def _measure(options: argparse.Namespace) -> list[Round]:
    python = from_the_start(options.profile)
    rounds = []
    async with plane(_fleet(options), topogate=True, python=python) as made:
        await asyncio.to_thread(made.cluster.stop, SCHEDULER)
        for number in range(2 * options.rounds):
            # a b b a ...: neither variant always meets the warmer, or the fuller, server
            first, second = (_ungater, _bare) if number // 2 % 2 == 0 else (_bare, _ungater)
            variant = first if number % 2 == 0 else second
            if number:
                await _remove(made, f"round-{number - 1}")
            rounds.append(await _round(made, f"round-{number}", variant, options))
            print(f"{rounds[-1].variant}: {rounds[-1].rate:,.0f} patches a second", file=sys.stderr, flush=True)
    return rounds


def _fleet(options: argparse.Namespace) -> Fleet:
    """Just enough nodes of 8 GPUs, in 16 racks."""
    return Fleet(blocks=2, racks=8, hosts=-(-options.pods // 128), gpus=8)


Variant = Callable[[Plane, str, argparse.Namespace], Awaitable[tuple[str, float, float]]]


async def _round(made: Plane, job: str, variant: Variant, options: argparse.Namespace) -> Round:
    components = _components(made)
    await components.kill("ungater")
    await made.client.create(JOBS, make_job(job, options.pods))
    await _until(lambda: _all_there(made.client, job, options.pods), f"{options.pods} pods")
    if free := [pod for pod in await _pods(made.client, job) if not is_gated(pod, KEYS.gate)]:
        sys.exit(
            f"{len(free)} pods of {job} are not gated, {free[0].metadata.name} the first: is the webhook on its way?"
        )
    await _quiet(made)
    before = _api_cpu(made)
    name, rate, cpu = await variant(made, job, options)
    api = _api_cpu(made) - before
    if name == "bare":
        components.spawn("ungater")  # so that `kill` of the next round finds it
        await components.wait_ready("ungater")
    return Round(
        variant=name,
        pods=options.pods,
        rate=rate,
        cpu_ms=1000 * cpu / options.pods,
        api_cpu_ms=1000 * api / options.pods,
    )


async def _remove(made: Plane, job: str) -> None:
    """What one round has made, before the next one."""
    await made.client.delete(JOBS, job, "default", propagation="Background")
    await _until(lambda: _all_gone(made.client, job), "the pods to go")


async def _ungater(made: Plane, job: str, options: argparse.Namespace) -> tuple[str, float, float]:
    """The rate between the first and the last reading that show some patches but not all of them.

    Readings are few: each has the controller render its metrics.
    """
    components = _components(made)
    components.spawn("ungater")
    url = f"{components.address('ungater')}/metrics"
    async with aiohttp.ClientSession() as session, asyncio.timeout(PATIENCE_SECONDS):
        first = await _count(session, url)
        while not first[1]:
            await asyncio.sleep(POLL)
            first = await _count(session, url)
        last = reading = first
        while reading[1] < options.pods:
            last = reading
            await asyncio.sleep(POLL)
            reading = await _count(session, url)
    await _quiet(made)
    if left := [pod for pod in await _pods(made.client, job) if is_gated(pod, KEYS.gate)]:
        sys.exit(f"{len(left)} pods of {job} are still gated, though as many patches succeeded as there are pods")
    return "ungater", (last[1] - first[1]) / (last[0] - first[0]), components.cpu_seconds("ungater")


async def _count(session: aiohttp.ClientSession, url: str) -> tuple[float, float]:
    """When, and how many pods were ungated by then."""
    try:
        async with session.get(url) as answer:
            text = await answer.text()
    except aiohttp.ClientError:
        return 0.0, 0.0
    lines = [line for line in text.splitlines() if line.startswith('topogate_ungate_patches_total{outcome="ungated"}')]
    return time.monotonic(), float(lines[0].split()[1]) if lines else 0.0


async def _bare(made: Plane, job: str, options: argparse.Namespace) -> tuple[str, float, float]:
    pods = sorted(await _pods(made.client, job), key=lambda pod: pod.metadata.name)
    owner = controller_of(pods[0].metadata)
    assert owner is not None  # noqa: S101 - a Job's pods have one
    patches = UngatePatches(KEYS, workload_name("Job", job, owner.uid), "main", LEVELS)
    slots = [Slot((*name.split("-")[:2], name), 8, name) for name in _fleet(options).node_names()]
    plan = [
        {
            "path": PODS.path(pod.metadata.namespace, pod.metadata.name),
            "body": patches.body(pod, slots[index // 8]).decode(),
        }
        for index, pod in enumerate(pods)
    ]
    kubeconfig = made.cluster.directory / "topogate-ungater.kubeconfig"
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(plan, file)
        file.flush()
        command = [sys.executable, "-m", "benchmarks.ungating", "--bare", file.name, str(kubeconfig)]
        command += ["--concurrency", str(options.concurrency)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    return "bare", answer["rate"], answer["cpu"]


async def _bare_loop(plan: list[dict[str, str]], kubeconfig: str, concurrency: int) -> None:
    """The bare loop, in its own process; prints its rate and its CPU seconds."""
    import yaml

    connection = await config.load(kubeconfig)
    calls = [(connection.url.rstrip("/") + call["path"], call["body"].encode()) for call in plan]
    user = yaml.safe_load(await asyncio.to_thread(Path(kubeconfig).read_text))["users"][0]["user"]
    headers = {"Content-Type": "application/merge-patch+json", "Authorization": f"Bearer {user['token']}"}
    tls: Any = connection.tls if isinstance(connection.tls, ssl.SSLContext) else True
    waiting = iter(calls)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls, limit=concurrency), headers=headers
    ) as session:

        async def worker() -> None:
            for url, body in waiting:
                async with session.patch(url, data=body) as answer:
                    await answer.read()
                    answer.raise_for_status()

        began, cpu = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())
        seconds = time.perf_counter() - began
    print(json.dumps({"rate": len(calls) / seconds, "cpu": time.process_time() - cpu}))


def _components(made: Plane) -> Components:
    assert made.components is not None  # noqa: S101 - the plane was made with Topogate
    return made.components


def _api_cpu(made: Plane) -> float:
    from localcluster.process import usage

    return sum(usage(pid)[1] for name, pid in made.cluster.pids.items() if name in {"kube-apiserver", "etcd"})


async def _quiet(made: Plane) -> None:
    """As `Plane.quiet`, which cannot read a component that is not running."""
    before = _api_cpu(made)
    for _ in range(20):
        await asyncio.sleep(1.0)
        if (now := _api_cpu(made)) - before < 0.15:
            return
        before = now


async def _pods(client: Client, job: str) -> list[Pod]:
    return await client.list(PODS, "default", label_selector=_of_job(job), type=Pod)


def _of_job(job: str) -> str:
    return f"batch.kubernetes.io/job-name={job}"


async def _all_there(client: Client, job: str, count: int) -> bool:
    # not the pods: reading thousands again and again is work for the server that is to create them
    status = (await client.get(JOBS, job, "default")).get("status", {})
    return int(status.get("active", 0)) >= count


async def _all_gone(client: Client, job: str) -> bool:
    page, _ = await anext(client.pages(PODS, "default", label_selector=_of_job(job), limit=1))
    return not page.items


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await condition():
                await asyncio.sleep(1.0)
    except TimeoutError:
        sys.exit(f"waited {PATIENCE_SECONDS:.0f} s in vain for {what}")


def make_job(name: str, pods: int) -> dict[str, Any]:
    """A Job of one-GPU pods that prefer one rack."""
    container = {"name": "main", "image": "registry.example/train:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "annotations": {KEYS.preferred[0]: RACK_LABEL}},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def _print(rounds: list[Round]) -> None:
    names = ("bare", "ungater")
    of = {name: [found for found in rounds if found.variant == name] for name in names}
    middle = {name: report.median(found.rate for found in of[name]) for name in names}
    rows = [
        [
            name,
            middle[name],
            ", ".join(f"{found.rate:,.0f}" for found in of[name]),
            report.ratio(middle[name], middle["bare"]),
            report.median(found.cpu_ms for found in of[name]),
            report.median(found.api_cpu_ms for found in of[name]),
        ]
        for name in names
    ]
    goal = LARGE_GOAL if rounds[0].pods >= LARGE else GOAL
    columns = ["variant", "patches/s (median)", "all rounds", "share of bare", "CPU ms/pod", "API server + etcd ms/pod"]
    report.table(
        f"ungating {rounds[0].pods} pods",
        columns,
        rows,
        note="The controller's CPU has its start, its lists and the watch of every pod in it",
    )
    share = report.ratio(middle["ungater"], middle["bare"])
    GOALS.at_least(f"{rounds[0].pods:,} pods: share of the bare loop's rate", share, goal, "")


if __name__ == "__main__":
    main()
