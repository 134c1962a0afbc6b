"""A moment of a simulation, and how it went, as a page in one file."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from cli.output import Failure, stderr
from clock import SYSTEM, Clock
from engine.model import Pod
from simulator.results import Result
from simulator.run import Simulation
from simulator.tally import measured
from simulator.tracks import Track
from web import export
from web.board import Board
from web.facts import BoundPod, Holder, Host, HostState, amount_of
from web.hub import Hub

MOST_ROWS: Final = 2000  # of the curves
JOB: Final = "Job"


class Moment:
    """The board of a simulation at a time, taken while it runs: call it after each step. ``at`` None: half-way."""

    def __init__(self, at: float | None) -> None:
        self._at = at
        self.board: Board | None = None
        self.time = 0.0

    def __call__(self, simulation: Simulation) -> None:
        """One step was made."""
        if self.board is None:
            at = self._at
            if at is None:
                at = max((track.job.arrival for track in simulation.tracks.values()), default=0.0) / 2
            if simulation.now >= at:
                self.board, self.time = board_of(simulation), simulation.now


def board_of(simulation: Simulation) -> Board:
    """Who has what now."""
    state = simulation.site.state
    board = Board(measured(state))
    for flavor in state.flavors.values():
        board.set_flavor(flavor)
    for name, node in state.nodes.items():
        off = HostState.CORDONED if node.unschedulable else HostState.READY
        amount = amount_of(board.resource, node.allocatable)
        board.set_host(node, Host(name, amount, off if node.ready else HostState.NOT_READY))
    ours = set[str]()
    for track in simulation.tracks.values():
        for pod in _pods(track, board.resource):
            ours.add(pod.key)
            board.set_pod(pod)
        if track.where is not None or (track.end is None and track.job.arrival <= simulation.now):
            board.set_holder(_holder(track, board.resource))
    for key, found in state.pods.items():
        if key not in ours and found.claim is None:
            board.set_pod(_other(found, board.resource))
    return board


def _holder(track: Track, resource: str) -> Holder:
    job = track.job
    wants = sum(amount_of(resource, one.requests) * one.count for one in job.pod_sets)
    reason, _, message = track.reason.partition(": ")
    return Holder(
        namespace=job.namespace,
        kind=JOB,
        name=job.name,
        workload=job.name,
        queue=job.queue,
        cluster_queue=job.queue,
        priority=job.priority,
        created=max(job.arrival, 0.001),
        admitted=max(track.since, 0.001) if track.where is not None else 0.0,
        count=job.pods,
        wants=wants,
        reason="" if track.where is not None else (reason or "Pending"),
        message=message,
    )


def _pods(track: Track, resource: str) -> Iterator[BoundPod]:
    job, where = track.job, track.where
    for rank, (key, pod_set, node) in enumerate(where.pods if where is not None else ()):
        taken = where is not None and (key in where.taken or track.running)
        yield BoundPod(
            key=f"{job.namespace}/{job.name}-{rank}",
            holder=job.key,
            owner=(JOB, job.name),
            node=node,
            amount=amount_of(resource, pod_set.requests),
            rank=rank,
            phase="Terminating" if track.leaving else "Running" if taken else "Pending",
            gated=False,
        )


def _other(pod: Pod, resource: str) -> BoundPod:
    namespace, _, name = pod.key.partition("/")
    amount = amount_of(resource, pod.requests)
    return BoundPod(pod.key, f"{namespace}/Pod/{name}", ("Pod", name), pod.node, amount, None, "Running", gated=False)


def curves(result: Result) -> dict[str, Any]:
    """The series as the page draws them, thinned out where there are very many rows."""
    series = result.series
    step = max(1, -(-len(series.times) // MOST_ROWS))
    rows = range(0, len(series.times), step)
    capacity = int(result.capacity.sum())
    used = [int(series.used[row].sum()) for row in rows]
    zeros = [0] * len(used)
    free = [max(0, capacity - one) for one in used]
    return {
        "relative": True,
        "at": [series.times[row] for row in rows],
        "amount": [capacity] * len(used),
        "used": used,
        "promised": zeros,
        "out": zeros,
        "free": free,
        "waiting": [series.waiting[row] for row in rows],
        "wanted": [series.wanted[row] for row in rows],
        "evictions": [],
        "levels": result.levels,
        "stranded": [
            [round(series.levels[row][rank].stranded * left) for row, left in zip(rows, free, strict=True)]
            for rank in range(len(result.levels))
        ],
    }


def write(path: Path, found: Sequence[tuple[Result, Moment]], clock: Clock = SYSTEM) -> list[Path]:
    """The files: one a policy; its name has the policy's where there are several. Raises Failure."""
    written: list[Path] = []
    for result, moment in found:
        if moment.board is None:
            continue
        name = path if len(found) == 1 else path.with_stem(f"{path.stem}-{result.policy.name}")
        at: Callable[[], float] = lambda moment=moment: moment.time  # type: ignore[misc]  # noqa: E731
        hub = Hub(moment.board, Clock(at, clock.monotonic), f"{result.policy.name}, day {moment.time / 86400:.1f}")
        try:
            name.write_bytes(export.page(hub, None, lambda _: (None, None), history=curves(result)))
        except OSError as error:
            raise Failure(f"cannot write {name}: {error.strerror}") from error
        stderr().print(f"open {name} in a browser", markup=False, soft_wrap=True)
        written.append(name)
    return written
