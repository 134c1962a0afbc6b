"""How long a decision cycle takes, and freeing a rack by preemption: ``python -m benchmarks queueing [nodes]``.

*Cycle*: 100 queues in 10 cohorts of 10, half of them StrictFIFO, 100 workloads waiting in each, of 12 shapes (1 to 16
pods of 1 to 8 GPUs, required=rack or preferred); the cluster (racks of 16 nodes of 8 GPUs) is full of admitted
workloads. One timed turn: so many of the admitted finish, and one cycle is run that may admit as many. What is timed is
the cycle; giving back is timed apart. ``own shapes``: every workload that waits has a shape of its own, the worst case.

*Tree*: the same with 1,000 queues, once all in one cohort, and once below cohorts five deep (1, 5, 25 and 125 cohorts,
8 queues below each of the last): one turn of the one, then one of the other, and the ratio of both.

*Preemption*: the cluster is full of workloads of lower priority; 16 pods of 8 GPUs, required=rack, are submitted and
one cycle is run; its plan is given up again. By what the cluster is full of: pods x GPUs.

Medians of CPU time and wall time of this process, in milliseconds.
"""

import gc
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from benchmarks.harness import report
from benchmarks.harness.goals import GOALS
from engine.cluster.state import ClusterState
from engine.model import HOSTNAME_LABEL, Flavor, Node, PodSet, Policy, TopologyRequest
from engine.reservation_key import order_of, workload_of
from queueing.cycle.cycle import Decisions, cycle
from queueing.model import (
    ClusterQueue,
    Cohort,
    FlavorQuotas,
    LocalQueue,
    Preemption,
    Quota,
    Reclaim,
    ResourceGroup,
    Rules,
    Within,
    Workload,
)
from queueing.queues.queues import Queues

BLOCK: Final = "cloud.example.com/topology-block"
RACK: Final = "cloud.example.com/topology-rack"
GPU: Final = "nvidia.com/gpu"
GIB: Final = 2**30
RESOURCES: Final = ("cpu", "memory", GPU)
QUEUES: Final = 100
PENDING: Final = 10_000
TURNS: Final = 20
SHAPES: Final = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8), (16, 8), (2, 4), (4, 2), (8, 1), (16, 1))
FULL_OF: Final = ((16, 8), (2, 8), (4, 4), (1, 8), (1, 1))
TREE_QUEUES: Final = 1_000
TREE_COHORTS: Final = (1, 5, 25, 125)  # at each level, and the queues are one level further down
TREE_GOAL: Final = 1.3  # times the same queues in one cohort
CYCLE_GOALS: Final = {1: 5.0, 100: 40.0}
PREEMPTION_GOALS: Final = {640: 4.0, 5_000: 20.0}


def cluster(nodes: int) -> ClusterState:
    """Empty nodes of 8 GPUs in racks of 16."""
    state = ClusterState()
    state.set_flavor(Flavor(name="tas", levels=(BLOCK, RACK, HOSTNAME_LABEL)))
    for i in range(nodes):
        labels = {BLOCK: f"b{i // 512}", RACK: f"r{i // 16}", HOSTNAME_LABEL: f"n{i}"}
        has = {"cpu": 96_000, "memory": 768 * GIB, GPU: 8, "pods": 110}
        state.set_node(Node(name=f"n{i}", labels=labels, allocatable=has))
    return state


def queues(nodes: int, number: int, cohorts: int, preemption: Preemption, rules: Rules | None = None) -> Queues:
    """Queues that share the cluster's capacity evenly; every second one is strict."""
    made = Queues(rules)
    made.set_namespace("team", {})
    each = {"cpu": 96_000 * nodes // number, "memory": 768 * GIB * nodes // number, GPU: 8 * nodes // number}
    quotas = FlavorQuotas(flavor="tas", resources={name: Quota(nominal=each[name]) for name in RESOURCES})
    group = ResourceGroup(resources=RESOURCES, flavors=(quotas,))
    for i in range(number):
        cohort = f"c{i % cohorts}" if cohorts else ""
        made.set_cluster_queue(
            ClusterQueue(name=f"q{i}", groups=(group,), cohort=cohort, strict=bool(i % 2), preemption=preemption)
        )
        made.set_local_queue(LocalQueue(namespace="team", name=f"q{i}", cluster_queue=f"q{i}"))
    return made


def put_below(made: Queues, levels: Sequence[int]) -> None:
    """Hang the cohorts of these queues below so many cohorts of each level, the fewest at the top."""
    parents = [""]
    for depth, count in enumerate(levels):
        names = [f"c{at}" if depth == len(levels) - 1 else f"at{depth}-{at}" for at in range(count)]
        for at, name in enumerate(names):
            made.set_cohort(Cohort(name=name, parent=parents[at * len(parents) // count]))
        parents = names


def workload(
    key: str, queue: str, pods: int, gpus: int, *, priority: int = 0, created: float = 0.0, less: int = 0
) -> Workload:
    """So many pods of so many GPUs; ``less`` milli-CPUs less make the shape another one."""
    requests = {"cpu": 8000 * gpus - less, "memory": 64 * GIB * gpus, GPU: gpus}
    policy = Policy.PREFERRED if pods == 8 else Policy.REQUIRED
    topology = TopologyRequest(policy=policy, level=RACK)
    pod_set = PodSet(name="main", count=pods, requests=requests, topology=topology, namespace="team")
    return Workload(key=key, namespace="team", queue=queue, pod_sets=(pod_set,), priority=priority, created=created)


@dataclass
class Stopwatch:
    """CPU and wall time of turns, in milliseconds."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def run(self, state: ClusterState, made: Queues, limit: int) -> Decisions:
        """Time one cycle."""
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        found = cycle(state, made, 10.0, limit)
        self.cpu.append((time.process_time_ns() - cpu) / 1e6)
        self.wall.append((time.perf_counter_ns() - wall) / 1e6)
        return found


class Busy:
    """A full cluster with 10,000 workloads that wait in these queues."""

    def __init__(self, nodes: int, made: Queues, *, own_shapes: bool = False) -> None:
        self.state = cluster(nodes)
        self.queues = made
        self.count = len(made.quotas.queues)
        self.watch, self.freeing, self.admitted = Stopwatch(), list[float](), 0
        self.dice = random.Random(1)
        self.own_shapes = own_shapes
        self.made = 0
        waiting = 0
        while waiting < PENDING:
            self.submit(PENDING - waiting)
            self.settle()
            waiting = sum(len(line) for line in self.queues.pending.lines.values())

    def submit(self, count: int) -> None:
        """More of them, one queue after the other."""
        for _ in range(count):
            self.made += 1
            pods, gpus = self.dice.choice(SHAPES)
            less = self.made % 7_000 if self.own_shapes else 0
            key, queue = f"team/w{self.made}", f"q{self.made % self.count}"
            self.queues.submit(workload(key, queue, pods, gpus, created=float(self.made), less=less), 0.0)

    def settle(self) -> None:
        """Cycles until nobody is left to look at."""
        while cycle(self.state, self.queues, 10.0, 10_000).more:
            pass

    def turn(self, ends: int) -> None:
        """So many end, and a cycle of at most 100 looks follows; then the rest is settled untimed."""
        holding = sorted(self.queues.holders.keys(), key=order_of)
        begin = time.process_time_ns()
        for key in self.dice.sample(holding, min(ends, len(holding))):
            self.queues.remove_workload(self.state, workload_of(key))
        self.freeing.append((time.process_time_ns() - begin) / 1e6)
        self.admitted += len(self.watch.run(self.state, self.queues, 100).admitted)
        self.settle()
        self.submit(PENDING - sum(len(line) for line in self.queues.pending.lines.values()))
        self.settle()

    def turns(self, ends: int) -> dict[str, Any]:
        """What the turns took."""
        self.watch, self.freeing, self.admitted = Stopwatch(), [], 0
        for _ in range(TURNS):
            self.turn(ends)
        return self.times()

    def times(self) -> dict[str, Any]:
        """What the turns so far took."""
        return {
            "cpu_ms": median(self.watch.cpu),
            "wall_ms": median(self.watch.wall),
            "most_cpu_ms": max(self.watch.cpu),
            "admitted": self.admitted / TURNS,
            "freeing_ms": median(self.freeing),
        }


def cycles(nodes: int) -> list[dict[str, Any]]:
    """All cases of a cycle."""
    rows: list[dict[str, Any]] = []
    lower = Preemption(within=Within.LOWER, reclaim=Reclaim.ANY)
    for name, own_shapes, preemption in (
        ("12 shapes", False, Preemption()),
        ("12 shapes, queues may preempt", False, lower),
        ("own shapes", True, Preemption()),
    ):
        busy = Busy(nodes, queues(nodes, QUEUES, 10, preemption), own_shapes=own_shapes)
        gc.collect()
        gc.freeze()
        rows += [{"case": name, "nodes": nodes, "ends": ends, **busy.turns(ends)} for ends in CYCLE_GOALS]
        gc.unfreeze()
    return rows


def trees(nodes: int) -> list[dict[str, Any]]:
    """The same queues in one cohort and below a tree of cohorts, one turn of each after the other."""
    rows: list[dict[str, Any]] = []
    lower = Preemption(within=Within.LOWER, reclaim=Reclaim.ANY)
    for name, preemption, rules in (
        ("1,000 queues", Preemption(), Rules()),
        ("1,000 queues, they may preempt", lower, Rules()),
        ("1,000 queues, fair sharing", lower, Rules(fair=True)),
    ):
        flat = Busy(nodes, queues(nodes, TREE_QUEUES, 1, preemption, rules))
        below = queues(nodes, TREE_QUEUES, TREE_COHORTS[-1], preemption, rules)
        put_below(below, TREE_COHORTS)
        deep = Busy(nodes, below)
        gc.collect()
        gc.freeze()
        for at in range(TURNS):
            # Each goes first as often as the other: what the first leaves in the caches helps the second.
            for one in (flat, deep) if at % 2 else (deep, flat):
                one.turn(100)
        gc.unfreeze()
        shapes = (("one cohort", flat), ("five deep", deep))
        rows += [{"case": name, "shape": shape, "nodes": nodes, "ends": 100, **one.times()} for shape, one in shapes]
    return rows


def preemptions(nodes: int) -> list[dict[str, Any]]:
    """Freeing a rack, by what the cluster is full of."""
    rows = []
    for pods, gpus in FULL_OF:
        state = cluster(nodes)
        made = queues(nodes, 1, 0, Preemption(within=Within.LOWER))
        for i in range(nodes * 8 // (pods * gpus)):
            made.submit(workload(f"team/w{i}", "q0", pods, gpus, priority=i % 5, created=float(i)), 0.0)
        while cycle(state, made, 1.0, 10_000).more:
            pass
        gc.collect()
        gc.freeze()
        watch, victims = Stopwatch(), 0
        for i in range(TURNS):
            made.submit(workload(f"team/large{i}", "q0", 16, 8, priority=10, created=1e6 + i), 0.0)
            found = watch.run(state, made, 64)
            (planned,) = found.preempting
            victims = len(planned.victims)
            made.remove_workload(state, planned.key)
        gc.unfreeze()
        rows.append(
            {
                "full of": f"{pods} x {gpus}",
                "nodes": nodes,
                "victims": victims,
                "cpu_ms": median(watch.cpu),
                "wall_ms": median(watch.wall),
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print all. ``arguments``: numbers of nodes for preemption; the cycle is always run on 5,000."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sizes = [int(argument) for argument in given] or list(PREEMPTION_GOALS)
    found = cycles(5_000)
    report.table(
        f"One cycle, {PENDING:,} workloads waiting in {QUEUES} queues, 5,000 nodes, all full",
        ("what waits", "ended", "admitted", "cpu ms", "wall ms", "worst cpu ms", "giving back, ms"),
        (
            [row[k] for k in ("case", "ends", "admitted", "cpu_ms", "wall_ms", "most_cpu_ms", "freeing_ms")]
            for row in found
        ),
    )
    for row in found:
        GOALS.at_most(f"cycle, {row['case']}, {row['ends']} ended", row["cpu_ms"], CYCLE_GOALS[row["ends"]], "ms")
    deep = trees(5_000)
    report.table(
        f"One cycle, {PENDING:,} workloads waiting in {TREE_QUEUES:,} queues, 5,000 nodes, all full",
        ("what waits", "cohorts", "admitted", "cpu ms", "wall ms", "worst cpu ms", "giving back, ms"),
        (
            [row[k] for k in ("case", "shape", "admitted", "cpu_ms", "wall_ms", "most_cpu_ms", "freeing_ms")]
            for row in deep
        ),
    )
    for flat, tree in zip(deep[::2], deep[1::2], strict=True):
        ratio = tree["cpu_ms"] / flat["cpu_ms"]
        GOALS.at_most(f"a cycle five deep, {tree['case']}", ratio, TREE_GOAL, "times one cohort")
    freed = [row for size in sizes for row in preemptions(size)]
    report.table(
        "Freeing a rack by preemption: 16 pods of 8 GPUs, required=rack, cluster full",
        ("full of", "nodes", "victims", "cpu ms", "wall ms"),
        ([row[k] for k in ("full of", "nodes", "victims", "cpu_ms", "wall_ms")] for row in freed),
    )
    for size in sizes:
        most = max(row["cpu_ms"] for row in freed if row["nodes"] == size)
        if size in PREEMPTION_GOALS:
            GOALS.at_most(f"a rack freed, {size:,} nodes, slowest", most, PREEMPTION_GOALS[size], "ms")
    report.save("queueing", {"cycle": found, "tree": deep, "preemption": freed})


if __name__ == "__main__":
    main()
