"""The paper's evaluation (seed 000, Tables 3 to 5 and Figure 3), to be run again: clusters, preemptors, the other way.

The paper publishes neither where its instances sat nor in which order they came, so there are three ways to fill the
100 servers: ``packed`` (each server filled from its first GPU on), ``aligned`` (each instance within one socket, at
random), ``scattered`` (any GPUs of one server). The same seed fills the same way.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import combinations
from typing import Final

import msgspec

from engine.preemption.model import NodeRoom, Preemptor, TopologyQos, VictimPod
from engine.preemption.search import cost_of
from simulator.servers import GPU, Instance, InstanceClass, Server, one_socket, preemptor_of, room_of

SERVERS: Final = 100
RTX_4090: Final = Server(
    cores=tuple(range(8 * zone, 8 * zone + 8) for zone in range(8)),
    socket_of=(0, 0, 0, 0, 1, 1, 1, 1),
    zone_of=tuple(range(8)),
)
TABLE_3: Final = {
    "A": InstanceClass(priority=1500, gpus=8, cpu=56, preemptible=False, count=20),
    "B": InstanceClass(priority=1000, gpus=4, cpu=28, preemptible=False, count=40),
    "C": InstanceClass(priority=500, gpus=2, cpu=14, count=200),
    "D": InstanceClass(priority=200, gpus=1, cpu=7, count=80),
}
PREEMPTORS: Final = ("B", "C")
PUBLISHED_HITS: Final = {"priority only": 2225, "topology-aware": 5000}
PUBLISHED_MICROS: Final = {  # Table 5: P50, P90
    ("B", "Gödel, priority only"): (6421.0, 62308.6),
    ("B", "FlexTopo, all subsets"): (268011.0, 416780.6),
    ("B", "FlexTopo-IMP"): (180019.5, 275575.8),
    ("C", "Gödel, priority only"): (1801.0, 2491.5),
    ("C", "FlexTopo, all subsets"): (2282.0, 20624.6),
    ("C", "FlexTopo-IMP"): (2115.0, 4853.1),
}


class Filling(StrEnum):
    """How the servers are filled."""

    PACKED = "packed"
    ALIGNED = "aligned"
    SCATTERED = "scattered"


def full_cluster(filling: Filling, cycle: int, seed: int = 0) -> list[NodeRoom]:
    """100 servers, all GPUs held as Table 3 says; the victims of each in the order in which they started."""
    return [room_of(RTX_4090, node, on) for node, on in full_servers(filling, cycle, seed).items()]


def full_servers(filling: Filling, cycle: int, seed: int = 0) -> dict[str, list[Instance]]:
    """The same by node: all its instances in the order in which they started."""
    dice = random.Random(f"{seed}/{filling}/{cycle}")  # noqa: S311  (a simulation)
    return filled_servers(filling, SERVERS, {name: (of, of.count) for name, of in TABLE_3.items()}, dice)


def filled_servers(
    filling: Filling, servers: int, classes: Mapping[str, tuple[InstanceClass, int]], dice: random.Random
) -> dict[str, list[Instance]]:
    """So many instances of each class on so many servers; by node in the order in which they started."""
    while True:
        # The last instances may find no server with room for them: the cluster is then drawn again.
        instances = _filled(filling, servers, classes, dice)
        if instances is not None:
            break
    by_node: dict[str, list[Instance]] = {node_name(node): [] for node in range(servers)}
    for one in dice.sample(instances, len(instances)):  # in the order in which they started
        by_node[node_name(one.node)].append(one)
    return by_node


def node_name(node: int) -> str:
    """As the paper's scenario names its nodes."""
    return f"node-{node:03d}"


def _filled(
    filling: Filling, servers: int, classes: Mapping[str, tuple[InstanceClass, int]], dice: random.Random
) -> list[Instance] | None:
    """Large instances first, each on a server with room for it; None where the last ones find none."""
    free = [set(range(8)) for _ in range(servers)]
    found: list[Instance] = []
    order = [name for name, (_, count) in classes.items() for _ in range(count)]
    for number, name in enumerate(order):
        of = classes[name][0]
        fitting = [node for node in range(servers) if _choices(filling, free[node], of.gpus)]
        if not fitting:
            return None
        node = dice.choice(fitting)
        gpus = dice.choice(_choices(filling, free[node], of.gpus))
        free[node] -= set(gpus)
        found.append(Instance(f"{name}{number}", node, of, gpus))
    return found


def _choices(filling: Filling, free: set[int], count: int) -> list[tuple[int, ...]]:
    """Sets of free GPUs of one server that an instance may hold."""
    if len(free) < count:
        return []
    if filling is Filling.ALIGNED and count <= 4:
        sockets = [[gpu for gpu in sorted(free) if gpu // 4 == socket] for socket in (0, 1)]
        return [some for socket in sockets for some in combinations(socket, count)]
    if filling is Filling.PACKED:
        return [tuple(sorted(free)[:count])]
    return list(combinations(sorted(free), count))


def priority_only(rooms: Sequence[NodeRoom], preemptor: Preemptor) -> tuple[NodeRoom, tuple[VictimPod, ...]] | None:
    """Victims by amounts and priority alone, as the default preemption of kube-scheduler and Gödel finds them.

    On each node all less important are taken, and left alone again one by one while the pod still fits: the most
    important first, of equal ones the one that started first. Of the nodes the one with the least highest priority, the
    least sum, the fewest victims; then the first.
    """
    best: tuple[tuple[int, int, int], NodeRoom, tuple[VictimPod, ...]] | None = None
    for room in rooms:
        taken = [victim for victim in room.victims if victim.priority < preemptor.above]
        free = {
            name: room.free.get(name, 0) + sum(victim.requests.get(name, 0) for victim in taken)
            for name in preemptor.requests
        }
        if any(free[name] < amount for name, amount in preemptor.requests.items()):
            continue
        # The sort is stable and victims come in the order of their
        # starts: of equal ones the first to start is spared first.
        for victim in sorted(taken, key=lambda one: -one.priority):
            left = {name: have - victim.requests.get(name, 0) for name, have in free.items()}
            if all(left[name] >= amount for name, amount in preemptor.requests.items()):
                free = left
                taken.remove(victim)
        cost = cost_of(taken)
        if best is None or cost < best[0]:
            best = cost, room, tuple(taken)
    return None if best is None else best[1:]


# -- Figure 3 -----------------------------------------------------------------------------------------------------

FIGURE_CLASSES: Final = {
    "A": InstanceClass(priority=1000, gpus=4, cpu=32, preemptible=False),
    "B": InstanceClass(priority=1000, gpus=2, cpu=16, preemptible=False),
    "C": InstanceClass(priority=100, gpus=1, cpu=8),
}
_SNAPSHOT: Final = (  # by machine: class and GPUs of each instance
    (("B", (0, 1)), ("B", (2, 3)), ("C", (4,)), ("C", (5,)), ("C", (6,)), ("C", (7,))),
    (("B", (0, 1)), ("C", (2,)), ("C", (3,)), ("B", (4, 5)), ("C", (6,)), ("C", (7,))),
    (("A", (0, 1, 2, 3)), ("B", (4, 5)), ("B", (6, 7))),
)


class Option(msgspec.Struct, frozen=True):
    """Two instances of C that could give way to one of B on a machine (0, 1, 2)."""

    machine: int
    victims: tuple[str, ...]
    aligned: bool


def figure_3() -> list[NodeRoom]:
    """Three machines, all full: one instance of A, six of B, eight of C."""
    return [room_of(RTX_4090, node, on) for node, on in figure_3_servers().items()]


def figure_3_servers() -> dict[str, list[Instance]]:
    """The same by machine: all its instances."""
    numbers = iter(range(100))
    return {
        f"machine-{machine + 1}": [
            Instance(f"{name}{next(numbers)}", machine, FIGURE_CLASSES[name], gpus) for name, gpus in held
        ]
        for machine, held in enumerate(_SNAPSHOT)
    }


def options(rooms: Sequence[NodeRoom], of: InstanceClass) -> Iterator[Option]:
    """Every way to free as many GPUs as an instance needs, and whether they are on one socket."""
    for machine, room in enumerate(rooms):
        for some in combinations(room.victims, of.gpus):
            if sum(victim.requests[GPU] for victim in some) == of.gpus:
                names = tuple(str(victim.key) for victim in some)
                yield Option(machine, names, one_socket(RTX_4090, room, of, some))


def guaranteed(of: InstanceClass) -> Preemptor:
    """One more instance of a class, on one socket or not at all."""
    return preemptor_of(of, TopologyQos.GUARANTEED)
