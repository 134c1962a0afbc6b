"""How long a placement takes, state update and filters included: ``python -m benchmarks.placement [nodes]``.

The shape is the one the peers were measured on: levels block / rack / host, 16 nodes a rack, 32 racks a block; a node
has 8 GPUs, 96 CPU, 768 GiB and 110 pods; a pod takes 1 GPU, 8 CPU, 64 GiB; each node runs one DaemonSet pod, and 60% of
them are partly used.

One timed turn of *new shape*: release the reservation of the turn before, place a pod set whose requests no turn had
before, reserve what was placed. One timed turn of *seen shape*: the same with equal requests each time, and with a
workload of one pod on each of 1% of the nodes (drawn anew) reserved or released in the turn. What is placed is not read
in the turn: ``slices`` are built when somebody asks for them, and that is timed apart.

Every figure is the median over the turns, of wall time and of CPU time of this process: where other processes keep the
machine busy, CPU time is the one to compare.
"""

import gc
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness import report
from benchmarks.harness.goals import GOALS
from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from engine.cluster.tree import SHAPES_KEPT
from engine.model import HOSTNAME_LABEL, Flavor, Node, Pod, PodSet, Policy, TopologyRequest
from engine.placement.place import place
from engine.results import Placement, Refusal, WorkloadRequest

SIZES: Final = (640, 5_000, 20_000, 100_000)
# Of a new shape, and of a seen one that goes to several racks; half of that for a seen one that goes to one rack.
GOALS_MS: Final = {5_000: 0.1, 20_000: 0.25, 100_000: 1.0}
ONE_RACK: Final = 16  # pods
BLOCK: Final = "cloud.example.com/topology-block"
RACK: Final = "cloud.example.com/topology-rack"
GPU: Final = "nvidia.com/gpu"
GIB: Final = 2**30
TURNS: Final = 60
FLAVOR: Final = "tas"

CASES: Final = (
    (Policy.REQUIRED, RACK, 16),
    (Policy.REQUIRED, BLOCK, 256),
    (Policy.REQUIRED, BLOCK, 4096),
    (Policy.PREFERRED, RACK, 16),
    (Policy.PREFERRED, RACK, 256),
    (Policy.PREFERRED, RACK, 4096),
)

Row = dict[str, Any]


def cluster(nodes: int, seed: int = 1) -> ClusterState:
    """The shape of the module's docstring with so many nodes."""
    dice = random.Random(seed)
    state = ClusterState()
    state.set_flavor(Flavor(name=FLAVOR, levels=(BLOCK, RACK, HOSTNAME_LABEL), node_labels={"group": "tas"}))
    for i in range(nodes):
        name = f"n{i}"
        labels = {BLOCK: f"b{i // 512}", RACK: f"r{i // 16}", HOSTNAME_LABEL: name, "group": "tas"}
        has = {"cpu": 96_000, "memory": 768 * GIB, GPU: 8, "pods": 110}
        state.set_node(Node(name=name, labels=labels, allocatable=has))
        state.set_pod(Pod(key=f"kube-system/ds-{i}", node=name, requests={"cpu": 200, "memory": GIB // 2}))
        if dice.random() < 0.6:
            state.set_pod(Pod(key=f"default/p-{i}", node=name, requests=times(dice.randint(1, 7))))
    return state


def times(pods: int, less: int = 0) -> dict[str, int]:
    """What so many pods request; ``less`` makes the shape another one, by milli-CPUs and bytes that change no count."""
    return {"cpu": 8000 * pods - less, "memory": 64 * GIB * pods - less, GPU: pods}


@dataclass
class Stopwatch:
    """Times turns by the wall and by this process's CPU, in milliseconds."""

    wall: list[float]
    cpu: list[float]

    def time(self, turn: Callable[[], object]) -> None:
        """Run and time one turn."""
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        turn()
        self.cpu.append((time.process_time_ns() - cpu) / 1e6)
        self.wall.append((time.perf_counter_ns() - wall) / 1e6)


class Bench:
    """One cluster and one question; each method is a series of turns."""

    def __init__(self, state: ClusterState, policy: Policy, level: str, count: int) -> None:
        self.state = state
        self.count = count
        self.topology = TopologyRequest(policy=policy, level=level)
        self.answer: Placement | Refusal | None = None

    def request(self, less: int) -> WorkloadRequest:
        """A request of a shape that depends on ``less``."""
        pod_set = PodSet(name="main", count=self.count, requests=times(1, less), topology=self.topology)
        return WorkloadRequest("bench", (pod_set,))

    def turn(self, request: WorkloadRequest) -> None:
        """Release, place, reserve."""
        self.state.release_workload("bench")
        self.answer = place(self.state, request)
        if isinstance(self.answer, Placement):
            self.state.reserve("bench", self.answer.assignments)

    def new_shape(self, shapes: Iterator[int]) -> Stopwatch:
        """Every turn has another shape."""
        watch = Stopwatch([], [])
        for less in (next(shapes) for _ in range(TURNS)):
            request = self.request(less)
            watch.time(lambda request=request: self.turn(request))  # type: ignore[misc]  # bound early on purpose
        self.state.release_workload("bench")
        return watch

    def seen_shape(self, churn: Iterator[Assignment]) -> Stopwatch:
        """Every turn has the same shape, and 1% of the nodes changed."""
        watch, request = Stopwatch([], []), self.request(0)
        self.turn(request)
        for turn in range(TURNS):
            others = next(churn) if turn % 2 == 0 else None

            def changed(others: Assignment | None = others) -> None:
                if others is None:
                    self.state.release_workload("churn")
                else:
                    self.state.reserve("churn", (others,))
                self.turn(request)

            watch.time(changed)
        self.state.release_workload("churn")
        self.state.release_workload("bench")
        return watch

    def reading(self) -> float:
        """Milliseconds to build the slices of an answer."""
        watch = Stopwatch([], [])
        for _ in range(10):
            self.turn(self.request(0))
            if isinstance(self.answer, Placement):
                (assignment,) = self.answer.assignments
                watch.time(lambda assignment=assignment: assignment.slices)  # type: ignore[misc]
        self.state.release_workload("bench")
        return median(watch.cpu) if watch.cpu else 0.0

    def outcome(self) -> str:
        """What the last answer was: domains used at each level, or the reason of the refusal."""
        if not isinstance(self.answer, Placement):
            return "" if self.answer is None else str(self.answer.reason)
        slices = self.answer.assignments[0].slices
        blocks, racks = ({part.values[:depth] for part in slices} for depth in (1, 2))
        return f"{len(blocks)} blocks, {len(racks)} racks, {len(slices)} nodes"


def churning(state: ClusterState, seed: int = 2) -> Iterator[Assignment]:
    """Workloads of one small pod on each of 1% of the nodes."""
    tree = state.tree(FLAVOR)
    assert tree is not None  # noqa: S101  (``cluster`` made the flavor)
    dice = np.random.default_rng(seed)
    topology = TopologyRequest(policy=Policy.UNCONSTRAINED)
    some = max(tree.size // 100, 1)
    pod_set = PodSet(name="main", count=some, requests={"cpu": 100, "memory": GIB // 4}, topology=topology)
    while True:
        leaves = np.sort(dice.choice(tree.size, some, replace=False))
        yield Assignment.packed(pod_set, tree, leaves, np.ones(some, np.int64), some)


def run(sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """All cases on all sizes; milliseconds. The keys of a row are the columns that ``main`` prints."""
    rows: list[Row] = []
    for size in sizes:
        state = cluster(size)
        shapes, churn = iter(range(1, 1 << 30)), churning(state)
        gc.collect()
        gc.freeze()  # the cluster's hundred thousand objects are not what is measured
        for _ in range(SHAPES_KEPT):  # as a process has that runs for a while: the cache of shapes is full
            place(state, Bench(state, *CASES[0]).request(next(shapes)))
        for policy, level, count in CASES:
            rows.append(_row(Bench(state, policy, level, count), size, shapes, churn))
        gc.unfreeze()
    return rows


def _row(bench: Bench, size: int, shapes: Iterator[int], churn: Iterator[Assignment]) -> Row:
    new, seen = bench.new_shape(shapes), bench.seen_shape(churn)
    return {
        "nodes": size,
        "policy": str(bench.topology.policy),
        "level": str(bench.topology.level).rsplit("-", 1)[-1],
        "pods": bench.count,
        "new_cpu_ms": median(new.cpu),
        "new_wall_ms": median(new.wall),
        "seen_cpu_ms": median(seen.cpu),
        "seen_wall_ms": median(seen.wall),
        "read_ms": bench.reading(),
        "outcome": bench.outcome(),
    }


def events(size: int = 5_000) -> list[Row]:
    """What single events cost, in microseconds of CPU, and building the trees anew, in milliseconds."""
    state = cluster(size)
    state.tree(FLAVOR)
    pods = [Pod(key=f"default/e-{i}", node=f"n{i % size}", requests=times(1)) for i in range(2_000)]
    nodes = list(state.nodes.values())[:2_000]
    beats = [Node(**{field: getattr(node, field) for field in node.__struct_fields__}) for node in nodes]
    last = nodes[-1].name

    def rebuilt() -> None:
        node = state.nodes[last]
        state.remove_node(last)
        state.tree(FLAVOR)
        state.set_node(node)
        state.tree(FLAVOR)

    return [
        {"event": "set_pod", "cpu_us": _each(state.set_pod, pods)},
        {"event": "remove_pod", "cpu_us": _each(state.remove_pod, [pod.key for pod in pods])},
        {"event": "set_node, nothing changed", "cpu_us": _each(state.set_node, beats)},
        {"event": f"{size:,} nodes: one leaves, trees anew, it comes back, trees anew", "cpu_us": _once(rebuilt)},
    ]


def _each(change: Callable[[Any], object], items: list[Any]) -> float:
    before = time.process_time_ns()
    for item in items:
        change(item)
    return (time.process_time_ns() - before) / 1e3 / len(items)


def _once(change: Callable[[], object]) -> float:
    change()
    before = time.process_time_ns()
    change()
    return (time.process_time_ns() - before) / 1e3


def bare(size: int) -> float:
    """The floor: milliseconds for a bare numpy sketch of count, roll-up and best fit on so many nodes."""
    dice = np.random.default_rng(0)
    cpu, memory, gpu, pods = (dice.integers(0, 9, size) * unit for unit in (12_000, 96 * GIB, 1, 13))
    racks = np.arange(0, size, 16)
    watch = Stopwatch([], [])

    def sketch() -> None:
        fits = np.minimum(np.minimum(gpu, pods), np.minimum(cpu // 8000, memory // (64 * GIB)))
        rooms = np.add.reduceat(fits, racks)
        np.add.reduceat(rooms, np.arange(0, len(racks), 32))
        np.where(rooms >= 16, rooms, 1 << 60).argmin()

    for _ in range(TURNS):
        watch.time(sketch)
    return median(watch.cpu)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print everything as tables. ``arguments``: numbers of nodes, by default all of ``SIZES``."""
    given = sys.argv[1:] if arguments is None else arguments
    sizes = tuple(int(argument) for argument in given) or SIZES
    console = Console()
    console.width = max(console.width, 160)  # a log has room
    table = Table(title="Placement, milliseconds a turn (median): new shape | seen shape with 1% of the nodes changed")
    for heading in ("nodes", "request", "new cpu", "wall", "seen cpu", "wall", "read", "outcome"):
        table.add_column(heading, justify="left" if heading in {"request", "outcome"} else "right")
    rows = []
    for row in run(sizes):
        rows.append(row)
        figures = [row[key] for key in row if key.endswith("_ms")]
        shown = [f"{figure:.3f}" for figure in figures]
        table.add_row(f"{row['nodes']:,}", f"{row['pods']} {row['policy']} {row['level']}", *shown, row["outcome"])
    console.print(table)
    for size in sizes:
        console.print(f"bare numpy sketch of count, roll-up and best fit, {size:,} nodes: {bare(size):.3f} ms")
    for event in events():
        console.print(f"{event['event']}: {event['cpu_us']:.1f} us")
    for size in sizes:
        _state(size, [row for row in rows if row["nodes"] == size])
    report.save("placement", rows)


def _state(size: int, rows: Sequence[Row]) -> None:
    """The goals on so many nodes, each for the slowest of the requests that it is about."""
    if size not in GOALS_MS:
        return
    for name, some in (
        ("one rack", [row for row in rows if row["pods"] <= ONE_RACK]),
        ("several racks", [row for row in rows if row["pods"] > ONE_RACK]),
    ):
        half = 0.5 if name == "one rack" else 1.0
        for kind, goal in (("new", GOALS_MS[size]), ("seen", GOALS_MS[size] * half)):
            what = f"{size:,} nodes, {name}, {kind} shape, slowest request"
            GOALS.at_most(what, max(row[f"{kind}_cpu_ms"] for row in some), goal, "ms")


if __name__ == "__main__":
    main()
