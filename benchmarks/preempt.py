"""How long it takes to find victims: ``python -m benchmarks preempt [nodes]``.

*One pod*: the scenario of the paper, 100 servers of 8 GPUs, all held; sourcing candidates over all nodes for 4 and for
2 GPUs, with both strategies, beside victims by priority alone. Each cluster is searched 50 times in turn; ``first`` is
the first search of a cluster.

*A rack*: 16 pods of 8 GPUs, required=rack, on a full cluster (as ``benchmarks queueing``); and where the nodes' insides
are known (2 zones of 4 GPUs, single-numa-node), 16 pods of 4 GPUs.

CPU time of this process.
"""

import gc
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks import queueing
from benchmarks.harness import report
from benchmarks.harness.goals import GOALS
from engine.kubelet.machine import CPU, Container, Kubelet, Layout, Machine, PodShape, Qos, State, TopologyPolicy, Zone
from engine.model import PodSet, Policy, TopologyRequest
from engine.preemption.model import ChoiceRules, Strategy
from engine.preemption.roster import Roster
from engine.preemption.search import sourced
from queueing.cycle.cycle import cycle
from queueing.model import Preemption, Within, Workload
from simulator.paper import PREEMPTORS, TABLE_3, Filling, full_cluster, guaranteed, priority_only

if TYPE_CHECKING:
    from engine.cluster.state import ClusterState

GPU: Final = queueing.GPU
CYCLES: Final = 10
A_CLUSTER: Final = 50
POD_GOALS: Final = {("B", Strategy.LEAST_PRIORITY): 150.0, ("C", Strategy.LEAST_PRIORITY): 100.0}
FEW: Final = 16  # victims: one for each pod
RACK_GOALS: Final = {640: (2.0, 4.0), 2_000: (3.0, 6.0), 5_000: (5.0, 10.0)}  # few victims, more of them
INSIDE_GOAL: Final = 4.0  # where kubelets align, on 640 nodes
BLIND: Final = "priority only"
Row = dict[str, Any]


def one_pod() -> list[dict[str, Any]]:
    """Sourcing candidates, in microseconds."""
    times: dict[tuple[str, str], list[float]] = {}
    first: dict[tuple[str, str], list[float]] = {}
    for filling in Filling:
        for number in range(CYCLES):
            rooms = full_cluster(filling, number)
            roster = Roster(rooms)
            roster.build()
            gc.collect()
            gc.freeze()
            for turn in range(A_CLUSTER):
                for name in PREEMPTORS:
                    preemptor = guaranteed(TABLE_3[name])
                    for strategy in Strategy:
                        begin = time.process_time_ns()
                        next(sourced(roster, preemptor, ChoiceRules(strategy)))
                        spent = (time.process_time_ns() - begin) / 1e3
                        (first if not turn else times).setdefault((name, strategy), []).append(spent)
                    if turn < 5:
                        begin = time.process_time_ns()
                        priority_only(rooms, preemptor)
                        times.setdefault((name, BLIND), []).append((time.process_time_ns() - begin) / 1e3)
            gc.unfreeze()
    return [
        {
            "preemptor": f"{name}, {TABLE_3[name].gpus} GPUs",
            "method": method,
            "p50_us": median(times[name, method]),
            "p90_us": sorted(times[name, method])[len(times[name, method]) * 9 // 10],
            "first_us": median(first[name, method]) if (name, method) in first else None,
        }
        for name in PREEMPTORS
        for method in (BLIND, *Strategy)
    ]


def machine(name: str) -> Machine:
    """2 zones of 48 CPUs and 4 GPUs."""
    amounts = ((48_000, 4),) * 2
    layout = Layout(
        zones=(Zone(id=0), Zone(id=1, socket=1)),
        resources=(CPU, GPU),
        capacity=amounts,
        allocatable=amounts,
        kubelet=Kubelet(policy=TopologyPolicy.SINGLE, static_cpu=True),
    )
    return Machine(node=name, layout=layout, state=State(free=amounts))


def workload(key: str, pods: int, gpus: int, *, priority: int, created: float) -> Workload:
    """Guaranteed pods of so many GPUs; those of one GPU go where there is room."""
    asked = tuple(sorted({CPU: 8000 * gpus, GPU: gpus}.items()))
    shape = PodShape(containers=(Container(name="main", requests=asked, limits=asked),), qos=Qos.GUARANTEED)
    topology = TopologyRequest(policy=Policy.REQUIRED, level=queueing.RACK)
    pod_set = PodSet(name="main", count=pods, requests=dict(asked), topology=topology, namespace="team", shape=shape)
    return Workload(key=key, namespace="team", queue="q0", pod_sets=(pod_set,), priority=priority, created=created)


def inside(nodes: int) -> list[dict[str, Any]]:
    """Freeing 16 zones of a rack whose kubelets align."""
    rows = []
    for pods, gpus in ((4, 4), (1, 2), (1, 1)):
        state: ClusterState = queueing.cluster(nodes)
        for i in range(nodes):
            state.set_machine(machine(f"n{i}"))
        made = queueing.queues(nodes, 1, 0, Preemption(within=Within.LOWER))
        for i in range(nodes * 8 // (pods * gpus)):
            made.submit(workload(f"team/w{i}", pods, gpus, priority=i % 5, created=float(i)), 0.0)
        while cycle(state, made, 1.0, 10_000).more:
            pass
        gc.collect()
        gc.freeze()
        watch, victims = queueing.Stopwatch(), 0
        for i in range(5):
            made.submit(workload(f"team/large{i}", 16, 4, priority=10, created=1e6 + i), 0.0)
            found = watch.run(state, made, 64)
            (planned,) = found.preempting
            victims = len(planned.victims)
            made.remove_workload(state, planned.key)
        gc.unfreeze()
        rows.append({"full of": f"{pods} x {gpus}", "nodes": nodes, "victims": victims, "cpu_ms": median(watch.cpu)})
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print all. ``arguments``: numbers of nodes for racks."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sizes = [int(argument) for argument in given] or list(RACK_GOALS)
    pods = one_pod()
    columns = ("preemptor", "method", "p50_us", "p90_us", "first_us")
    report.table(
        "Sourcing candidates over 100 full servers of 8 GPUs, CPU microseconds",
        ("preemptor", "method", "P50", "P90", "first"),
        ([row[k] for k in columns] for row in pods),
    )
    racks = [row for size in sizes for row in queueing.preemptions(size)]
    report.table(
        "Freeing a rack: 16 pods of 8 GPUs, required=rack, cluster full",
        ("full of", "nodes", "victims", "cpu ms", "wall ms"),
        ([row[k] for k in ("full of", "nodes", "victims", "cpu_ms", "wall_ms")] for row in racks),
    )
    zones = inside(sizes[0])
    report.table(
        "The same where kubelets align (2 zones of 4 GPUs a node, single-numa-node): 16 pods of 4 GPUs",
        ("full of", "nodes", "victims", "cpu ms"),
        ([row[k] for k in ("full of", "nodes", "victims", "cpu_ms")] for row in zones),
    )
    _state(pods, racks, zones)
    report.save("preempt", {"one pod": pods, "rack": racks, "inside": zones})


def _state(pods: Sequence[Row], racks: Sequence[Row], zones: Sequence[Row]) -> None:
    """The goals; of equal cases the slowest counts."""
    for (name, strategy), goal in POD_GOALS.items():
        row = next(row for row in pods if row["preemptor"].startswith(f"{name},") and row["method"] == strategy)
        GOALS.at_most(f"one pod, {row['preemptor']}, {strategy}, median", row["p50_us"], goal, "us")
    for size, (few, many) in RACK_GOALS.items():
        here = [row for row in racks if row["nodes"] == size]
        for what, some, goal in (
            (f"at most {FEW} victims", [row for row in here if row["victims"] <= FEW], few),
            (f"more than {FEW} victims", [row for row in here if row["victims"] > FEW], many),
        ):
            if some:
                slowest = max(row["cpu_ms"] for row in some)
                GOALS.at_most(f"a rack freed, {size:,} nodes, {what}, slowest", slowest, goal, "ms")
    if zones[0]["nodes"] == min(RACK_GOALS):
        slowest = max(row["cpu_ms"] for row in zones)
        GOALS.at_most("a rack freed where kubelets align, slowest", slowest, INSIDE_GOAL, "ms")


if __name__ == "__main__":
    main()
