"""How long it takes to know how many pods with claims fit each node: ``python -m benchmarks claims``.

A node has 8 devices; which of them are in use, and the attributes of each, are such that so many *distinct* states are
there. Pods of one kind ask for a number of devices of a class, which selects a driver. *first*: the first kind that
anybody asks for, everything looked at for the first time; *new*: other kinds, of the same class; *selector*: kinds each
of which reads an attribute that nobody read before; *fails*: kinds whose selector fails on each device; *seen*: the
same again, nothing changed; *one change*: what is in use on one node changes, and the count of a kind that was seen is
corrected. Reading the slices comes before all that, and is told by itself. Partitions: 8 GPUs of 7 parts each, in use
at random, each node another state; *longest* is the longest of the looks that it took to count all nodes.

The yardstick is the same placement by plain amounts, of which as many are free on each node as devices are: the first,
a shape nobody asked for, a shape seen before, and one after a change; where claims are refused, one that no node has
room for. All figures are CPU milliseconds, the median over turns where there are several. The collector of garbage is
set as in the controller.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations, islice, product
from typing import Any, Final

from benchmarks.harness import report
from benchmarks.harness.goals import GOALS
from cli.run.component import settle_heap
from engine.claims.asks import DeviceAsk
from engine.claims.in_use import Use
from engine.claims.read.asks import read_ask, text_of
from engine.claims.read.claims import read_class
from engine.claims.read.slices import read_slice
from engine.cluster.state import ClusterState
from engine.model import HOSTNAME_LABEL, Flavor, Node, PodSet, Policy, TopologyRequest
from engine.placement.place import place
from engine.results import WorkloadRequest

NODES: Final = 5_000
DEVICES: Final = 8
DISTINCT: Final = 500
PARTITIONED: Final = 600
TURNS: Final = 15
SELECTORS: Final = 7  # each of which reads another attribute
DRIVER: Final = "dra.example.com"
PLAIN: Final = "example.com/gpu"  # the amounts without claims
GOAL_RATIO: Final = 2.0  # to plain amounts
GOAL_CHANGED_MS: Final = 1.0
GOAL_LOOK_MS: Final = 500.0
Row = dict[str, Any]
Figure = tuple[str, float, float]  # what, with claims, by plain amounts


def sliced(node: str, devices: list[Row], **more: object) -> Row:
    """A ResourceSlice of one node."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1 + bool(more)}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"{node}-devices"}, "spec": spec}


def whole(node: str, odd: int) -> list[Row]:
    """Its devices, as one slice."""
    attributes = {"odd": {"int": odd}, "kind": {"string": "gpu"}} | {f"a{at}": {"int": odd} for at in range(SELECTORS)}
    made = [{"name": f"gpu-{at}", "attributes": attributes | {"index": {"int": at}}} for at in range(DEVICES)]
    return [sliced(node, made)]


def parts(node: str, _odd: int) -> list[Row]:
    """Its partitions: a slice with the counters, and one with the devices."""
    sets = [{"name": f"gpu-{gpu}", "counters": {"part": {"value": "7"}}} for gpu in range(DEVICES)]
    made = [
        {
            "name": f"gpu-{gpu}-{part}",
            "attributes": {"odd": {"int": 0}},
            "consumesCounters": [{"counterSet": f"gpu-{gpu}", "counters": {"part": {"value": "1"}}}],
        }
        for gpu in range(DEVICES)
        for part in range(7)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 2}
    counters = {"driver": DRIVER, "nodeName": node, "pool": pool, "sharedCounters": sets}
    return [{"metadata": {"name": f"{node}-counters"}, "spec": counters}, sliced(node, made, counters=True)]


def asks(*counts: int, selector: str = "") -> DeviceAsk:
    """Pods that ask for so many devices, by as many requests."""
    exactly: Row = {"deviceClassName": "gpu", "allocationMode": "ExactCount"}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": f'device.attributes["{DRIVER}"].{selector}'}}]
    requests = [{"name": f"gpu-{at}", "exactly": {**exactly, "count": count}} for at, count in enumerate(counts)]
    return read_ask([("gpu", "one", text_of({"devices": {"requests": requests}}))])


def cluster(
    nodes: int, published: Callable[[str, int], list[Row]] | None, in_use: Sequence[Sequence[str]]
) -> ClusterState:
    """So many nodes in racks of 16; ``in_use``: names of devices, by the state that a node is in."""
    state = ClusterState()
    state.set_flavor(Flavor(name="f", levels=("rack", HOSTNAME_LABEL)))
    devices = state.cluster.devices
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    devices.set_device_class("gpu", read_class({"metadata": {"name": "gpu"}, "spec": {"selectors": selectors}}))
    for at in range(nodes):
        name = f"n{at}"
        labels = {"rack": f"r{at // 16}", HOSTNAME_LABEL: name}
        free = {"cpu": 64_000, "pods": 110, PLAIN: DEVICES - len(in_use[at % len(in_use)])}
        state.set_node(Node(name=name, labels=labels, allocatable=free))
        for one in published(name, at % len(in_use) % 2) if published is not None else ():
            devices.set_slice(one["metadata"]["name"], read_slice(one))
        if published is not None:
            devices.set_uses(f"c{at}", _uses(name, in_use[at % len(in_use)]))
    return state


def _uses(node: str, names: Sequence[str]) -> tuple[Use, ...]:
    return tuple([Use((DRIVER, node, name)) for name in names])


def ms(call: Callable[[], object]) -> float:
    """CPU milliseconds of this process."""
    start = time.process_time_ns()
    call()
    return (time.process_time_ns() - start) / 1e6


def placing(state: ClusterState, devices: DeviceAsk | int = 1, cpu: int = 1000) -> float:
    """One placement of four pods in a rack that ask for these devices, or for so many of plain amounts."""
    topology = TopologyRequest(policy=Policy.REQUIRED, level="rack")
    asked = {"cpu": cpu} | ({PLAIN: devices} if isinstance(devices, int) else {})
    claimed = None if isinstance(devices, int) else devices
    pod_set = PodSet(name="main", count=4, requests=asked, topology=topology, devices=claimed)
    return ms(lambda: place(state, WorkloadRequest(key="ns/w", pod_sets=(pod_set,))))


def median(turns: Sequence[float]) -> float:
    """Of several turns."""
    return report.median(list(turns)) or 0.0


def side_by_side(turns: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The medians of both."""
    claims, plain = zip(*turns, strict=True)
    return median(claims), median(plain)


def reading(nodes: int) -> float:
    """Reading the slices of so many nodes."""
    published = [one for at in range(nodes) for one in whole(f"n{at}", at % 2)]
    return ms(lambda: [read_slice(one) for one in published])


def figures(nodes: int, distinct: int) -> list[Figure]:
    """What takes how long; turn and turn about where there are several."""
    states = [chosen for count in range(DEVICES + 1) for chosen in combinations(range(DEVICES), count)]
    in_use = [tuple(f"gpu-{at}" for at in chosen) for chosen in islice(states, max(distinct // 2, 1)) for _ in "ab"]
    plain, claims = cluster(nodes, None, in_use), cluster(nodes, whole, in_use)
    found: list[Figure] = [("first", placing(claims, asks(1)), placing(plain))]
    counts = [*product(range(2, 6)), *product(range(1, 4), repeat=2)]
    reads, fails = ([asks(1, selector=f"{name}{at} < 1") for at in range(SELECTORS)] for name in ("a", "no"))
    kinds = [("new", [(asks(*each), sum(each)) for each in counts])]
    kinds += [("selector", [(pod, 1) for pod in reads]), ("fails", [(pod, DEVICES + 1) for pod in fails])]
    for at, (what, pods) in enumerate(kinds, 1):
        turns = [(placing(claims, pod), placing(plain, each, 1000 * at + no)) for no, (pod, each) in enumerate(pods, 1)]
        found.append((what, *side_by_side(turns)))
    found.append(("seen", *side_by_side((placing(claims, asks(1)), placing(plain, 1)) for _ in range(TURNS))))
    changed, plainly = [], []
    for turn in range(TURNS):
        node, holds = f"n{turn}", _uses(f"n{turn}", in_use[(turn + 7) % len(in_use)])
        changed.append(
            ms(lambda at=turn, uses=holds: claims.cluster.devices.set_uses(f"c{at}", uses)) + placing(claims, asks(1))
        )
        labels = {"rack": "r0", HOSTNAME_LABEL: node}
        other = Node(name=node, labels=labels, allocatable={"cpu": 63_000 - turn, "pods": 110, PLAIN: turn % DEVICES})
        plainly.append(ms(partial(plain.set_node, other)) + placing(plain))
    return [*found, ("one change", median(changed), median(plainly))]


def partitions(nodes: int) -> Row:
    """Looks until all nodes are counted, each of which has others of its partitions in use."""
    dice = random.Random(1)
    names = [f"gpu-{gpu}-{part}" for gpu in range(DEVICES) for part in range(7)]
    state = cluster(nodes, parts, [[name for name in names if dice.random() < 0.3] for _ in range(nodes)])
    devices, pod, looks, left = state.cluster.devices, asks(1), [], nodes
    devices.count_by_node(asks(2, selector="odd < 0"))  # all is read by now
    while left:
        devices.counting.next_round()
        looks.append(ms(lambda: devices.counting.uncounted(pod)))
        left = devices.counting.uncounted(pod)
    return {"nodes": nodes, "looks": len(looks), "longest_ms": max(looks), "all_ms": sum(looks)} | {
        "refused": devices.is_uncounted(pod)
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks claims", description="How many pods with claims fit.")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--distinct", type=int, default=DISTINCT, help="states of nodes")
    parser.add_argument("--partitioned", type=int, default=PARTITIONED, help="nodes with partitions, all different")
    given = parser.parse_args(arguments)
    settle_heap()
    found = figures(given.nodes, given.distinct)
    settle_heap()
    cut, read = partitions(given.partitioned), reading(given.nodes)
    rows = [[what, claims, plain, report.ratio(claims, plain)] for what, claims, plain in found]
    title = f"{given.nodes:,} nodes of {DEVICES} devices in {given.distinct:,} states: CPU ms for one placement"
    note = f"To read the slices took {read:,.0f} ms."
    report.table(title, ["count", "claims", "plain amounts", "ratio"], rows, note=note)
    report.table(
        f"{given.partitioned:,} nodes of {DEVICES * 7} partitions, all in different states: CPU ms",
        ["count", "looks", "longest", "all"],
        [["one partition", cut["looks"], cut["longest_ms"], cut["all_ms"]]],
    )
    _state(found, cut)
    report.save("claims", {"rows": found, "partitions": cut, "reading_ms": read})


def _state(found: Sequence[Figure], cut: Row) -> None:
    """The goals; partitions that are refused are not counted at all."""
    for what, claims, plain in found:
        if what == "one change":
            GOALS.at_most(what, claims, GOAL_CHANGED_MS, "ms")
        else:
            GOALS.at_most(f"{what}: times plain amounts", report.ratio(claims, plain), GOAL_RATIO, "")
    GOALS.at_most("partitions, longest look", None if cut["refused"] else cut["longest_ms"], GOAL_LOOK_MS, "ms")


if __name__ == "__main__":
    main()
