"""How the controller grows with the cluster: 10,000 to 100,000 nodes with two pods each, without an API server.

Each size has a process of its own, whose controller is the real one on a feed in memory (`benchmarks.harness.feed`):
lists are decoded as they are from an API server, watches tell of changes, Workloads are written. Half of the pods
belong to Jobs of 200 that were placed by another process before, as after a failover; the others are none of ours.
Figures are CPU time of the process without what the feed itself takes; memory is what the process has more than before
its first list.

*leads*: from its start until it leads. *longest step*: the most CPU between two turns of the event loop meanwhile: for
so long no lease can be renewed. *looked at*: until every Job was looked at. *resync*: all nodes, or all pods, are
listed again though nothing changed. *a Job of 16*: it comes, asks for a rack and is admitted.
"""

import argparse
import asyncio
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import msgspec

from benchmarks.harness import report
from benchmarks.harness.feed import Feed
from benchmarks.harness.large_cluster import KEYS, Pods, feed_of, jobs_on, nodes_from, stamped
from benchmarks.ungating import make_job
from cli import logs
from cli.run.component import settle_heap
from clock import SYSTEM
from crds.settings import Settings
from kube.client import Client
from kube.connection.config import Connection
from kube.events import EventRecorder
from localcluster.nodes import RACK_LABEL
from ungater.assembly import assemble
from ungater.controller import Controller
from ungater.informers import Informers
from ungater.metrics import ControllerMetrics
from ungater.scheduling.scheduler import Scheduler

SIZES: Final = (10_000, 50_000, 100_000)
EVENTS: Final = 2_000
SMALL_JOBS: Final = 20
TICK_SECONDS: Final = 0.01
QUIET_CPU: Final = 0.02  # seconds in a fifth of a second: nothing is going on
PATIENCE_SECONDS: Final = 300.0
MB: Final = 1e6
Json = dict[str, Any]
encode, decode = msgspec.json.encode, msgspec.json.decode


class Size(msgspec.Struct, kw_only=True):
    """What one size costs. Times are CPU: seconds, milliseconds (``_ms``) or microseconds (``_us``)."""

    nodes: int
    pods: int
    jobs: int
    leads: float
    loading: float
    longest_step: float
    looked_at: float
    megabytes: float
    peak: float
    at_rest: float  # share of a core
    pod_changes_us: float
    pod_comes_us: float
    node_changes_us: float
    job_ms: float
    cycle_ms: float
    resync_nodes: float
    resync_pods: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every size, print, and write ``benchmarks/results/scale.json``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of nodes (default %(default)s)")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--workloads", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        logs.configure(Settings(log_level="error"))
        workloads = decode(options.workloads.read_bytes()) if options.workloads.exists() else []
        if workloads:
            print(encode(asyncio.run(_one(options.one, workloads))).decode())
        else:
            options.workloads.write_bytes(encode(asyncio.run(_all_placed(options.one))))
        return
    sizes = [_measured(int(size)) for size in options.sizes.split(",")]
    show(sizes)
    report.save("scale", sizes)


def _measured(nodes: int) -> Size:
    """One size, in two processes: the first places the Jobs, the second takes over."""
    with tempfile.TemporaryDirectory(prefix="topogate-scale-") as folder:
        file = Path(folder, "workloads.json")
        command = [sys.executable, "-m", "benchmarks.scale", "--one", str(nodes), "--workloads", str(file)]
        for _ in range(2):
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found = decode(done.stdout.splitlines()[-1], type=Size)
    print(f"{nodes:,} nodes: leads after {found.leads:.1f} s, {found.megabytes:.0f} MB", file=sys.stderr, flush=True)
    return found


# --- one size, in a process of its own -------------------------------------------------------------------------------


async def _all_placed(nodes: int) -> list[Json]:
    """The Workloads of all Jobs."""
    feed = feed_of(nodes, [], None)
    async with Client(Connection("http://feed"), transport=feed) as client:
        await _Run(feed, client).place(jobs_on(nodes))
        return list(feed.written["workloads"].values())


async def _one(nodes: int, workloads: list[Json]) -> Size:
    pods = Pods(nodes, workloads)
    feed = feed_of(nodes, workloads, pods)
    async with Client(Connection("http://feed"), transport=feed) as client:
        return await _Run(feed, client).measure(nodes, pods)


def _stay() -> None:
    """Nothing moves from Kueue here, which alone would have the term end."""


class _Run:
    """One controller on one feed."""

    def __init__(self, feed: Feed, client: Client) -> None:
        self.feed = feed
        recorder = EventRecorder(client, "topogate-ungater")
        metrics = ControllerMetrics()
        parts = assemble(Settings(), client, metrics, recorder, SYSTEM, restart=_stay)
        self.controller = Controller(parts, recorder, metrics, SYSTEM)
        self.loads: list[float] = []
        self.cycles: list[float] = []
        self.longest = 0.0

    @property
    def cpu(self) -> float:
        """Seconds of this process, without the feed's."""
        return time.process_time() - self.feed.spent

    async def place(self, jobs: int) -> None:
        """Have all Jobs placed."""
        running = asyncio.create_task(self.controller.run())
        await self.until(lambda: self._placed() == jobs, "all Jobs to be placed")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def _placed(self) -> int:
        found = self.feed.written["workloads"].values()
        return sum("admission" in each.get("status", {}) for each in found)

    async def measure(self, nodes: int, pods: Pods) -> Size:
        """All figures."""
        settle_heap()
        with (
            patch.object(Informers, "load", _awaited(Informers.load, self.loads)),
            patch.object(Scheduler, "cycle", _timed(Scheduler.cycle, self.cycles)),
        ):
            before, began = _memory("VmRSS"), self.cpu
            ticking = asyncio.create_task(self._tick())
            running = asyncio.create_task(self.controller.run())
            await self.until(lambda: self.controller.ready, "the controller to lead")
            leads = self.cpu - began
            await self.settled()
            looked_at = self.cpu - began
            ticking.cancel()
            longest = self.longest
            gc.collect()
            memory, peak = _memory("VmRSS") - before, _memory("VmHWM")
            at_rest = await self._rest()
            changes = await self._each(lambda: self._pods_change(pods, comes=False)) / EVENTS
            comes = await self._each(lambda: self._pods_change(pods, comes=True)) / EVENTS
            beats = await self._each(self._nodes_change) / EVENTS
            self.cycles.clear()
            job = await self._jobs() / SMALL_JOBS
            resync = [await self._each(lambda plural=plural: self.feed.expire(plural)) for plural in ("nodes", "pods")]
            running.cancel()
            await asyncio.gather(running, ticking, return_exceptions=True)
        return Size(
            nodes=nodes,
            pods=pods.count,
            jobs=len(self.controller.parts.cache.entries),
            leads=leads,
            loading=sum(self.loads),
            longest_step=longest,
            looked_at=looked_at,
            megabytes=memory,
            peak=peak,
            at_rest=at_rest,
            pod_changes_us=1e6 * changes,
            pod_comes_us=1e6 * comes,
            node_changes_us=1e6 * beats,
            job_ms=1e3 * job,
            cycle_ms=1e3 * (report.median(sorted(self.cycles)[-SMALL_JOBS:]) or 0.0),
            resync_nodes=resync[0],
            resync_pods=resync[1],
        )

    async def _tick(self) -> None:
        """The most CPU between two turns of the loop."""
        while True:
            before = self.cpu
            await asyncio.sleep(TICK_SECONDS)
            self.longest = max(self.longest, self.cpu - before)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for it."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not condition():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            sys.exit(f"waited {PATIENCE_SECONDS:.0f} s in vain for {what}; calls: {self.feed.calls}")

    async def settled(self) -> None:
        """Wait until nothing is going on."""
        quiet = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while quiet < 3:
                before = self.cpu
                await asyncio.sleep(0.2)
                quiet = quiet + 1 if self.cpu - before < QUIET_CPU else 0

    async def _rest(self) -> float:
        """CPU seconds a second while nothing happens, over some rounds of what looks by itself."""
        began, cpu = time.monotonic(), self.cpu
        await asyncio.sleep(8.0)
        return (self.cpu - cpu) / (time.monotonic() - began)

    async def _each(self, change: Callable[[], object]) -> float:
        """CPU seconds until what ``change`` does is taken in."""
        before = self.cpu
        change()
        await self.settled()
        return self.cpu - before

    def _pods_change(self, pods: Pods, *, comes: bool) -> None:
        began = time.process_time()
        lines = []
        for number in range(EVENTS):
            at = pods.count + number if comes else pods.count - 1 - number * (pods.count // EVENTS // 2)
            text = pods.pod(at).replace(b'"resourceVersion":"1"', b'"resourceVersion":"2"')
            kind = b"ADDED" if comes else b"MODIFIED"
            lines.append(b'{"type":"%s","object":%s}' % (kind, text.replace(b"10.0.0.1", b"10.0.0.2")))
        self.feed.spent += time.process_time() - began
        self._in_parts("pods", lines)

    def _nodes_change(self) -> None:
        began = time.process_time()
        lines = [
            b'{"type":"MODIFIED","object":%s}' % text.replace(b'"resourceVersion":"1"', b'"resourceVersion":"2"')
            for text in nodes_from(0, EVENTS)
        ]
        self.feed.spent += time.process_time() - began
        self._in_parts("nodes", lines)

    def _in_parts(self, plural: str, lines: Sequence[bytes]) -> None:
        for start in range(0, len(lines), 50):
            self.feed.tell(plural, lines[start : start + 50])

    async def _jobs(self) -> float:
        """CPU seconds for some small Jobs, one after the other."""
        before, placed = self.cpu, self._placed()
        for number in range(SMALL_JOBS):
            self.feed.put("jobs", stamped(make_job(f"small-{number}", 16), {KEYS.required[0]: RACK_LABEL}))
            await self.until(lambda number=number: self._placed() == placed + number + 1, "a small Job to be placed")
        return self.cpu - before


def _timed(call: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    def timed(*arguments: Any, **more: Any) -> Any:
        began = time.process_time()
        try:
            return call(*arguments, **more)
        finally:
            into.append(time.process_time() - began)

    return timed


def _awaited(call: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    async def timed(*arguments: Any) -> None:
        began = time.process_time()
        try:
            await call(*arguments)
        finally:
            into.append(time.process_time() - began)

    return timed


def _memory(name: str) -> float:
    """Megabytes of this process by a row of its status."""
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 / MB for row in rows if row.startswith(f"{name}:"))


def show(sizes: Sequence[Size]) -> None:
    """The tables."""
    report.table(
        "start and memory, by nodes; seconds of CPU",
        [
            "nodes",
            "pods",
            "Jobs",
            "leads",
            "of it load",
            "longest step",
            "looked at",
            "MB more",
            "MB at most",
            "at rest",
        ],
        [
            [
                *(f"{one.nodes:,}", f"{one.pods:,}", one.jobs, one.leads, one.loading, one.longest_step, one.looked_at),
                *(one.megabytes, one.peak, f"{one.at_rest:.1%}"),
            ]
            for one in sizes
        ],
    )
    report.table(
        "afterwards",
        [
            *("nodes", "pod changes, us", "pod comes, us", "node changes, us", "a Job of 16, ms", "its cycle, ms"),
            *("resync nodes, s", "resync pods, s"),
        ],
        [
            [
                *(f"{one.nodes:,}", one.pod_changes_us, one.pod_comes_us, one.node_changes_us, one.job_ms),
                *(one.cycle_ms, one.resync_nodes, one.resync_pods),
            ]
            for one in sizes
        ],
    )


if __name__ == "__main__":
    main()
