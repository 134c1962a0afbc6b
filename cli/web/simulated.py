"""A simulation from moment to moment, and how it went, as a page in one file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from cli.output import Failure, stderr
from cli.queues.cohorts import path_of
from engine.quantity import format_quantity
from simulator.results import Result
from simulator.run import Simulation
from simulator.tally import measured
from simulator.tracks import Track
from web import export
from web.board import Board
from web.facts import Asked, BoundPod, ConditionStep, HolderFacts, Host, HostState, amount_of
from web.film import Film

MOST_ROWS: Final = 2000  # of the curves
MOMENTS: Final = 120  # of a film, while jobs arrive
BEGINNING: Final = 0.001  # what happens first: 0 is no time
JOB: Final = "Job"


class Recording:
    """A film of a simulation, taken while it runs: call it after each step. ``first``: what is shown first, in seconds.

    Moments are as far from each other as there is room for, in the time in which jobs arrive; what goes on afterwards
    is told as long as there is room.
    """

    def __init__(self, first: float | None, name: str) -> None:
        self.first = first or 0.0
        self.film: Film | None = None
        self.queues: dict[str, Any] = {}
        self._half = first is None
        self._name = name
        self._step = 1.0

    def __call__(self, simulation: Simulation) -> None:
        """One step was made."""
        film = self.film or self._begin(simulation)
        # Checked before the board is brought up to date, which walks through all jobs and pods.
        if film.full or (film.times and simulation.now < film.times[-1] + self._step):
            return
        # Who has what now, and who waits; what was told before and is no more is gone.
        board = film.board
        pods, holders = dict[str, BoundPod](), dict[str, HolderFacts]()
        ours = set[str]()
        for track in simulation.tracks.values():
            # Neither those that are over nor those that nobody knows of yet; the track of a job exists from the
            # beginning.
            if track.where is None and (track.end is not None or track.job.arrival > simulation.now):
                continue
            holders[track.job.key] = _holder(track, board.resource, simulation)
            for pod in _pods_of_track(track, board.resource):
                pods[pod.key] = pod
            ours.update(key for key, _, _ in track.where.pods) if track.where is not None else None
        for key, found in simulation.site.state.pods.items():
            if key not in ours and found.claim is None:
                namespace, _, name = found.key.partition("/")
                amount = amount_of(board.resource, found.requests)
                whose = f"{namespace}/Pod/{name}"
                pods[found.key] = BoundPod(
                    found.key, whose, ("Pod", name), found.node, amount, None, "Running", gated=False
                )
        # First what is gone: a holder loses its number only once all its pods are away.
        for key in board.pods.keys() - pods.keys():
            board.hide_pod(key)
        for key in board.holders.keys() - holders.keys():
            board.remove_holder(key)
        for holder in holders.values():
            board.set_holder(holder)
        for pod in pods.values():
            board.set_pod(pod)
        film.take_moment(simulation.now)

    def _begin(self, simulation: Simulation) -> Film:
        board = Board(measured(simulation.site.state))
        state = simulation.site.state
        for flavor in state.flavors.values():
            board.show_flavor(flavor)
        for name, node in state.nodes.items():
            off = HostState.CORDONED if node.unschedulable else HostState.READY
            amount = amount_of(board.resource, node.allocatable)
            board.set_host(node, Host(name, amount, off if node.ready else HostState.NOT_READY))
        self.film = Film(board, self._name)
        # What cohorts use changes with each moment, and the page has that of queues alone.
        self.queues = {"queues": list(_queues(simulation)), "cohorts": []}
        window = max((track.job.arrival for track in simulation.tracks.values()), default=0.0)
        self.first = window / 2 if self._half else self.first
        self._step = max(1.0, window / MOMENTS)
        return self.film


def _queues(simulation: Simulation) -> Iterator[dict[str, Any]]:
    """Their quotas, which stay; the page itself tells what of it is used, and who waits, at each moment."""
    known = simulation.queues
    for name, queue in sorted(known.quotas.queues.items()):
        local = sorted("/".join(key) for key, one in known.config.local.items() if one.cluster_queue == name)
        quotas = [
            {
                "flavor": one.flavor,
                "resource": resource,
                "nominal": format_quantity(resource, quota.nominal),
                "borrowing_limit": _limit(resource, quota.borrowing),
                "lending_limit": _limit(resource, quota.lending),
            }
            for group in queue.groups
            for one in group.flavors
            for resource, quota in one.resources.items()
        ]
        yield {
            "name": name,
            "cohort": queue.cohort,
            "path": path_of(known.quotas.tree.queues[name]),
            "strategy": "StrictFIFO" if queue.strict else "BestEffortFIFO",
            "active": True,
            "local_queues": local,
            "quotas": quotas,
            "others": 0,
        }


def _limit(resource: str, amount: int | None) -> str | None:
    return None if amount is None else format_quantity(resource, amount)


def _holder(track: Track, resource: str, simulation: Simulation) -> HolderFacts:
    job, placed = track.job, track.where is not None
    asked = tuple(
        Asked(
            one.name, one.count, amount_of(resource, one.requests), str(one.topology.policy), one.topology.level or ""
        )
        for one in job.pod_sets
    )
    reason, _, message = track.reason.partition(": ")
    local = simulation.queues.config.local.get((job.namespace, job.queue))
    # The page reads 0 as "never".
    admitted = max(track.admitted, BEGINNING)
    return HolderFacts(
        namespace=job.namespace,
        kind=JOB,
        name=job.name,
        workload=job.name,
        queue=job.queue,
        cluster_queue=local.cluster_queue if local is not None else job.queue,
        priority=job.priority,
        created=max(job.arrival, BEGINNING),
        admitted=admitted if placed else 0.0,
        count=job.pods,
        wants=sum(one.count * one.amount for one in asked),
        asked=asked,
        reason="" if placed else (reason or "Pending"),
        message=message,
        since=0.0 if placed else max(job.arrival, BEGINNING),
        steps=(ConditionStep("Admitted", status=True, at=admitted, reason="", message=""),) if placed else (),
    )


def _pods_of_track(track: Track, resource: str) -> Iterator[BoundPod]:
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


def curves(result: Result) -> dict[str, Any]:
    """The series as the page draws them, thinned out where there are very many rows."""
    series = result.series
    # Rounded up, so that there are never more rows than the page draws.
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


def write(path: Path, found: Sequence[tuple[Result, Recording]]) -> list[Path]:
    """The files: one a policy; its name has the policy's where there are several. Raises Failure."""
    written: list[Path] = []
    for result, recording in found:
        if recording.film is None:
            continue
        name = path if len(found) == 1 else path.with_stem(f"{path.stem}-{result.policy.name}")
        try:
            name.write_bytes(export.moving(recording.film, recording.first, recording.queues, curves(result)))
        except OSError as error:
            raise Failure(f"cannot write {name}: {error.strerror}") from error
        stderr().print(f"open {name} in a browser", soft_wrap=True)
        written.append(name)
    return written
