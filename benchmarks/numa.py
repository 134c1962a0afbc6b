"""How long it takes to know which nodes' kubelets would admit a pod: ``python -m benchmarks numa``.

A machine has 2, 4 or 8 zones, each of 48 CPUs (2 reserved), 192 GiB (2 reserved), a GPU and a NIC, and runs the static
CPU and memory managers. Some CPUs and memory of every zone are taken, the GPU and the NIC of every tenth. Pods are
Guaranteed and have one container that asks for CPUs, memory, GPUs and NICs: a *narrow* one fits one zone, a *wide* one
needs half of the zones (both of 2).

*fits*: which nodes take one more pod of a shape that nobody asked for before. *counts*: how many they take. Both in
nanoseconds a node. *one changed*: a node's state changes, and it is asked again which nodes take a pod of a shape seen
before; microseconds in all. Every figure is the median over turns, of CPU time of this process (wall time is in the
JSON too).

The yardstick of the run is a bare numpy expression that compares every zone's amounts with the request, without widths,
policies, sets of zones or equal states. The peers' figures were measured elsewhere; see ``PEERS``.
"""

import argparse
import gc
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.harness import report
from benchmarks.harness.goals import GOALS
from engine.kubelet.machine import CPU, MEMORY, Container, Kubelet, Layout, PodShape, Qos, State, TopologyPolicy, Zone
from engine.numa.fleet import Fleet

GPU: Final = "nvidia.com/gpu"
NIC: Final = "nvidia.com/rdma_nic"
GIB: Final = 1 << 30
PAGE: Final = 4096
NODES: Final = 5_000
ZONES: Final = (2, 4, 8)
PODS: Final = 110  # the most that a node takes
TURNS: Final = 60
SINGLE: Final = TopologyPolicy.SINGLE
RESTRICTED: Final = TopologyPolicy.RESTRICTED
FITS_GOALS: Final = {  # for 8 zones and narrow pods, fits; (policy, all states different)
    (SINGLE, True): 120.0,
    (RESTRICTED, True): 350.0,
    (SINGLE, False): 20.0,
    (RESTRICTED, False): 50.0,
}
GOAL_CHANGED_US: Final = 50.0
GOAL_WIDE: Final = 102.0  # on 8 zones: what a compiled peer takes
PEERS: Final = {  # nanoseconds a node for 2, 4 and 8 zones, compiled Go; measured on another day
    "scheduler-plugins Filter": {2: 26_700, 4: 41_000, 8: 83_800},
    "KAI predicate, single-numa-node": {2: 31, 4: 36, 8: 45},
    "KAI predicate, restricted": {2: 52, 4: 75, 8: 102},
}

Row = dict[str, Any]


def layout(zones: int, policy: TopologyPolicy) -> Layout:
    """The machine of the module's docstring."""
    return Layout(
        zones=tuple([Zone(id=zone, socket=zone * 2 // zones) for zone in range(zones)]),
        resources=(CPU, MEMORY, GPU, NIC),
        capacity=((48_000, 192 * GIB, 1, 1),) * zones,
        allocatable=((46_000, 190 * GIB, 1, 1),) * zones,
        kubelet=Kubelet(policy=policy, static_cpu=True, static_memory=True),
    )


def states(zones: int, count: int, seed: int = 1) -> list[State]:
    """So many different states of it."""
    dice = random.Random(seed)

    def zone() -> tuple[int, ...]:
        free = 190 * GIB - dice.randrange(64 * GIB // PAGE) * PAGE
        return dice.randint(34, 46) * 1000, free, int(dice.random() < 0.9), int(dice.random() < 0.9)

    return [State(free=tuple([zone() for _ in range(zones)])) for _ in range(count)]


def shape(turn: int, zones: int) -> PodShape:
    """A pod that needs so many zones; another shape each turn, by a little memory that changes no answer."""
    memory = zones * 150 * GIB - turn * PAGE
    asked = ((CPU, zones * 38_000), (MEMORY, memory), (GPU, zones), (NIC, zones))
    return PodShape(containers=(Container(name="main", requests=asked, limits=asked),), qos=Qos.GUARANTEED)


class Bench:
    """5,000 machines, or as many as asked for, with so many distinct states."""

    def __init__(self, zones: int, policy: TopologyPolicy, nodes: int, distinct: int) -> None:
        self.zones, self.policy, self.nodes = zones, policy, nodes
        self.layout = layout(zones, policy)
        self.states = states(zones, distinct + TURNS)
        self.fleet = Fleet()
        self.fleet.grow_to(nodes)
        for index in range(nodes):
            self.fleet.set(index, self.layout, self.states[index % distinct])
        self.distinct = distinct

    def row(self, width: int) -> Row:
        """All figures for pods of ``width`` zones."""
        shapes = [shape(turn, width) for turn in range(2 * TURNS)]
        yes = int(self.fleet.feasible(shapes[0]).sum())
        times = {
            "fits_ns": [timed(partial(self.fleet.feasible, each)) for each in shapes[:TURNS]],
            "counts_ns": [timed(partial(self.fleet.count_by_machine, each, PODS)) for each in shapes[TURNS:]],
            "changed_us": [timed(partial(self._change, turn, shapes[TURNS - 1])) for turn in range(TURNS)],
        }
        for index in range(TURNS):
            self.fleet.set(index, self.layout, self.states[index % self.distinct])
        found: Row = {"zones": self.zones, "policy": str(self.policy), "distinct": self.distinct, "pod": width}
        found["admit"] = yes
        for name, turns in times.items():
            for clock, taken in zip(("cpu", "wall"), zip(*turns, strict=True), strict=True):
                found[f"{name}_{clock}"] = median(taken) / (1e3 if name == "changed_us" else self.nodes)
        return found

    def _change(self, turn: int, seen: PodShape) -> None:
        self.fleet.set(turn, self.layout, self.states[self.distinct + turn])
        self.fleet.feasible(seen)


def timed(turn: Callable[[], object]) -> tuple[int, int]:
    """Nanoseconds of this process's CPU, and of the wall."""
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    turn()
    return time.process_time_ns() - cpu, time.perf_counter_ns() - wall


def bare(zones: int, nodes: int) -> float:
    """The yardstick: nanoseconds a node to compare all amounts of all zones with a request."""
    free = np.array([state.free for state in states(zones, nodes)]).transpose(2, 1, 0).copy()
    asked = np.array([12_000, 32 * GIB, 1, 1])[:, None, None]
    return median(timed(lambda: (free >= asked).all(axis=0).any(axis=0))[0] for _ in range(TURNS)) / nodes


def run(nodes: int) -> list[Row]:
    """Every case; the keys of a row are in the JSON."""
    rows = []
    for zones in ZONES:
        floor = bare(zones, nodes)
        for distinct in (nodes, max(nodes // 10, 1)):
            for policy in (SINGLE, RESTRICTED):
                bench = Bench(zones, policy, nodes, distinct)
                gc.collect()
                for width in (1,) if policy is SINGLE else (1, max(zones // 2, 2)):
                    row = bench.row(width)
                    row["bare_ns_cpu"] = floor
                    rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and save all figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks numa", description="Which nodes' kubelets admit a pod.")
    parser.add_argument("--nodes", type=int, default=NODES)
    nodes = parser.parse_args(arguments).nodes
    rows = run(nodes)
    report.table(
        f"Which of {nodes:,} nodes admit a pod: CPU time, ns a node; one changed: us in all",
        ("policy, pod", "zones", "states", "admit", "fits", "x bare", "KAI (Go)", "counts", "one changed"),
        [_shown(row) for row in rows],
        note="KAI's figures are of another machine. scheduler-plugins there: 26,700, 41,000, 83,800 for 2, 4, 8 zones.",
    )
    _state([row for row in rows if row["zones"] == max(ZONES)], nodes)
    report.save("numa", {"peers_ns": PEERS, "rows": rows})


def _state(rows: Sequence[Row], nodes: int) -> None:
    """The goals, for the most zones."""
    for row in rows:
        narrow = row["pod"] == 1
        goal = FITS_GOALS[row["policy"], row["distinct"] == nodes] if narrow else GOAL_WIDE
        pod = f"{row['policy']}, {'narrow' if narrow else 'wide'}, {row['distinct']:,} states"
        GOALS.at_most(f"{pod}: a node", row["fits_ns_cpu"], goal, "ns")
    changed = max(row["changed_us_cpu"] for row in rows if row["pod"] == 1)
    GOALS.at_most("narrow, one state changed, slowest", changed, GOAL_CHANGED_US, "us")


def _shown(row: Row) -> list[object]:
    kind = f"{row['policy']}, {'narrow' if row['pod'] == 1 else 'wide'}"
    ratio = report.ratio(row["fits_ns_cpu"], row["bare_ns_cpu"])
    peer = PEERS[f"KAI predicate, {row['policy']}"][row["zones"]]
    states, yes = f"{row['distinct']:,}", f"{row['admit']:,}"
    figures = row["fits_ns_cpu"], ratio, peer, row["counts_ns_cpu"], row["changed_us_cpu"]
    return [kind, row["zones"], states, yes, *figures]


if __name__ == "__main__":
    main()
