"""Placement where the inside of every node is known, beside the same placement by amounts alone.

``python -m benchmarks placement-numa [nodes]``. The cluster is that of ``benchmarks.placement``; each node is 8 NUMA
zones of 1 GPU, 12 CPUs and 96 GiB under ``single-numa-node``, and what runs on it is on its first zones. *Alike*: nodes
with equally many pods are in equal states, as in a fleet of one kind. *All different*: no two nodes have the same
memory, so nothing is shared between them.

The turns are those of ``benchmarks.placement``: release, place, reserve; for a *seen* shape with a workload of one
small pod on each of 1% of the nodes coming or going in the turn. *Pinned*: the same, but those pods are Guaranteed and
take a CPU of a zone, so that the zones of 50 pods are decided in each turn. *Read*: which zones every slot of the
answer gets, which is worked out when somebody asks, here for all of them at once.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from itertools import count
from statistics import median
from typing import Any, Final

from benchmarks.harness import report
from benchmarks.harness.goals import GOALS
from benchmarks.placement import BLOCK, CASES, FLAVOR, GIB, GPU, RACK, TURNS, Stopwatch, churning
from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from engine.kubelet.machine import (
    CPU,
    MEMORY,
    Container,
    Kubelet,
    Layout,
    Machine,
    NumaPlacement,
    PodShape,
    Qos,
    State,
    TopologyPolicy,
    Zone,
    ZoneUse,
)
from engine.model import HOSTNAME_LABEL, Flavor, Node, Pod, PodSet, Policy, TopologyRequest
from engine.placement.place import place
from engine.results import Placement, WorkloadRequest

SIZES: Final = (5_000,)
ZONES: Final = 8
GOAL: Final = 2.0  # times as long as by amounts alone
RESOURCES: Final = (CPU, MEMORY, GPU)
KUBELET: Final = Kubelet(policy=TopologyPolicy.SINGLE, static_cpu=True, static_memory=True)


def one_pod(less: int = 0) -> dict[str, int]:
    """What a pod requests: whole CPUs, so that they are pinned; ``less`` bytes make the shape another one."""
    return {CPU: 8_000, MEMORY: 64 * GIB - less, GPU: 1}


def shape(requests: dict[str, int], qos: Qos = Qos.GUARANTEED) -> PodShape:
    """What kubelets look at: one container."""
    amounts = tuple(sorted(requests.items()))
    limits = amounts if qos is Qos.GUARANTEED else ()
    return PodShape(containers=(Container(name="main", requests=amounts, limits=limits),), qos=qos)


def machine(name: str, less: int) -> Machine:
    """The inside of one node; ``less`` bytes of memory make its layout another one."""
    row = (12_000, 96 * GIB - less, 1)
    zones = tuple(Zone(id=zone, socket=zone // 4) for zone in range(ZONES))
    layout = Layout(
        zones=zones, resources=RESOURCES, capacity=(row,) * ZONES, allocatable=(row,) * ZONES, kubelet=KUBELET
    )
    return Machine(node=name, layout=layout, state=State(free=layout.allocatable))


def cluster(nodes: int, *, inside: bool, different: bool) -> ClusterState:
    """The cluster of the module's docstring; without ``inside`` nobody reports what is in a node."""
    state = ClusterState()
    state.set_flavor(Flavor(name=FLAVOR, levels=(BLOCK, RACK, HOSTNAME_LABEL), node_labels={"group": "tas"}))
    for i in range(nodes):
        name = f"n{i}"
        labels = {BLOCK: f"b{i // 512}", RACK: f"r{i // 16}", HOSTNAME_LABEL: name, "group": "tas"}
        less = i * 4096 if different else 0
        has = {CPU: 96_000, MEMORY: 768 * GIB - 8 * less, GPU: 8, "pods": 110}
        state.set_node(Node(name=name, labels=labels, allocatable=has))
        if inside:
            state.set_machine(machine(name, less))
        for zone in range((i * 2654435761 % 1000) // 100 - 3):  # 0 on 40% of the nodes, 1 to 6 on the others
            use = ZoneUse(zone=zone, amounts=one_pod())
            placement = NumaPlacement(zones=(use,)) if inside else None
            pod_shape = shape(one_pod()) if inside else None
            key = f"default/p-{i}-{zone}"
            state.set_pod(Pod(key=key, node=name, requests=one_pod(), shape=pod_shape, placement=placement))
    return state


class Bench:
    """One cluster and one question."""

    def __init__(self, state: ClusterState, policy: Policy, level: str, pods: int) -> None:
        self.state = state
        self.pods = pods
        self.topology = TopologyRequest(policy=policy, level=level)
        self.found: Sequence[Assignment] = ()

    def request(self, less: int) -> WorkloadRequest:
        """A request of a shape that depends on ``less``."""
        requests = one_pod(less)
        inside = shape(requests) if self.state.machines else None
        pod_set = PodSet(name="main", count=self.pods, requests=requests, topology=self.topology, shape=inside)
        return WorkloadRequest("bench", (pod_set,))

    def turn(self, request: WorkloadRequest) -> None:
        """Release, place, reserve."""
        self.state.release_workload("bench")
        answer = place(self.state, request)
        self.found = answer.assignments if isinstance(answer, Placement) else ()
        if self.found:
            self.state.reserve("bench", self.found)

    def new_shape(self, shapes: Iterator[int]) -> float:
        """Milliseconds of CPU a turn."""
        watch = Stopwatch([], [])
        for less in (next(shapes) for _ in range(TURNS)):
            request = self.request(less)
            watch.time(lambda request=request: self.turn(request))  # type: ignore[misc]  # bound early on purpose
        self.state.release_workload("bench")
        return median(watch.cpu)

    def seen_shape(self, others: Iterator[Assignment]) -> float:
        """Milliseconds of CPU a turn, in which 1% of the nodes changed."""
        watch, request = Stopwatch([], []), self.request(0)
        for turn in range(TURNS + 4):
            if turn == 4:  # the first turns are not counted
                watch = Stopwatch([], [])
            if turn % 2:
                watch.time(lambda: (self.state.release_workload("churn"), self.turn(request)))
            else:
                more = next(others)
                watch.time(lambda more=more: (self.state.reserve("churn", (more,)), self.turn(request)))  # type: ignore[misc]
        self.state.release_workload("churn")
        self.state.release_workload("bench")
        return median(watch.cpu)

    def reading(self) -> float:
        """Milliseconds until the zones of every slot of an answer are known."""
        watch = Stopwatch([], [])
        for _ in range(10):
            self.turn(self.request(0))
            watch.time(lambda: self.state.placements("bench", "main", "n0"))
        self.state.release_workload("bench")
        return median(watch.cpu)

    def nodes(self) -> int:
        """How many nodes the last answer uses."""
        return sum(len(part.slices) for part in self.found)


def churn(state: ClusterState, cpu: int) -> Iterator[Assignment]:
    """The churn of ``benchmarks.placement``, with what kubelets look at; whole CPUs (of 1,000) are pinned."""
    requests = {CPU: cpu, MEMORY: GIB}
    qos = Qos.BURSTABLE if cpu % 1000 else Qos.GUARANTEED
    inside = shape(requests, qos) if state.machines else None
    for small in churning(state):
        packing = small.packing
        assert packing is not None  # noqa: S101  (it was made from arrays)
        pod_set = PodSet(name="main", count=small.count, requests=requests, topology=_ANYWHERE, shape=inside)
        yield Assignment.packed(pod_set, *packing, small.count)


_ANYWHERE: Final = TopologyRequest(policy=Policy.UNCONSTRAINED)


def run(size: int, *, different: bool) -> list[dict[str, Any]]:
    """All cases on one cluster: milliseconds with and without what is inside."""
    states = [cluster(size, inside=inside, different=different) for inside in (False, True)]
    shapes = count(1)
    small, pinned = ([churn(state, cpu) for state in states] for cpu in (100, 1_000))
    gc.collect()
    gc.freeze()
    rows = []
    for policy, level, pods in CASES:
        plain, numa = (Bench(state, policy, level, pods) for state in states)
        new = [bench.new_shape(shapes) for bench in (plain, numa)]
        seen = [bench.seen_shape(others) for bench, others in zip((plain, numa), small, strict=True)]
        moved = [bench.seen_shape(others) for bench, others in zip((plain, numa), pinned, strict=True)]
        numa.turn(numa.request(0))
        rows.append(
            {
                "nodes": size,
                "states": "all different" if different else "alike",
                "request": f"{pods} {policy} {level.rsplit('-', 1)[-1]}",
                "new_plain_ms": new[0],
                "new_numa_ms": new[1],
                "new_ratio": report.ratio(new[1], new[0]),
                "seen_plain_ms": seen[0],
                "seen_numa_ms": seen[1],
                "seen_ratio": report.ratio(seen[1], seen[0]),
                "pinned_plain_ms": moved[0],
                "pinned_numa_ms": moved[1],
                "pinned_ratio": report.ratio(moved[1], moved[0]),
                "used_nodes": numa.nodes(),
                "read_ms": numa.reading(),
            }
        )
    gc.unfreeze()
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print all cases. ``arguments``: numbers of nodes, by default those of ``SIZES``."""
    given = sys.argv[1:] if arguments is None else arguments
    sizes = tuple(int(argument) for argument in given) or SIZES
    rows = [row for size in sizes for different in (False, True) for row in run(size, different=different)]
    report.table(
        "Placement, milliseconds of CPU a turn (median): by amounts, with what is inside, ratio",
        (
            *("nodes, states, request", "new", "inside", "ratio", "seen", "inside", "ratio"),
            *("pinned", "inside", "ratio", "nodes used", "read"),
        ),
        ([f"{row['nodes']:,}, {row['states']}, {row['request']}", *list(row.values())[3:]] for row in rows),
    )
    for size in sizes:
        for kind in ("new", "seen"):
            most = max(row[f"{kind}_ratio"] for row in rows if row["nodes"] == size)
            GOALS.at_most(f"{size:,} nodes, {kind} shape, of by amounts alone, slowest request", most, GOAL, "")
    report.save("placement-numa", rows)


if __name__ == "__main__":
    main()
