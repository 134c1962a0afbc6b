"""Figures 3, 8 and 9 of the paper (seed 000), each preemption through the queue core's cycle and kubelets."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from engine.kubelet.machine import TopologyPolicy
from engine.preemption.model import ChoiceRules, Landing, Preemptor, TopologyQos
from engine.preemption.roster import Roster
from engine.preemption.search import find
from simulator.paper import (
    FIGURE_CLASSES,
    PREEMPTORS,
    RTX_4090,
    TABLE_3,
    Filling,
    figure_3_servers,
    filled_servers,
    full_servers,
    priority_only,
)
from simulator.saturated import MadeRoom, SaturatedCluster
from simulator.servers import Instance, InstanceClass, preemptor_of, room_of

FIGURE_8: Final = {"A": 8, "B": 16, "C": 82, "D": 36}  # Table 3 on 41 servers
FIGURE_8_SERVERS: Final = 41
SCALED_UP: Final = ("B", "C") * 8  # instances more, in this order
FIGURE_9: Final = (("B", 10), ("C", 20))  # two events of scaling up: so many instances of a class


def figure_3(of: str, rules: ChoiceRules, order: int) -> tuple[str, tuple[str, ...], bool]:
    """(machine of the figure, victims, whether it runs aligned) of one more instance of a class, best-effort.

    ``order``: of the machines' names and of the instances on them.
    """
    dice, servers = random.Random(order), figure_3_servers()  # noqa: S311  (a simulation)
    names = dice.sample(list(servers), len(servers))
    machine_of = dict(zip(names, servers, strict=True))
    shown = {name: dice.sample(on, len(on)) for name, on in zip(names, servers.values(), strict=True)}
    # By name, as ties go to the first name: the shuffle decides which machine has it.
    cluster = SaturatedCluster(RTX_4090, dict(sorted(shown.items())), rules)
    made = _scaled_up(cluster, "new", FIGURE_CLASSES[of])
    assert made is not None  # noqa: S101  (there are victims)
    # Told by the machines of the figure: their names were shuffled so that ties by name fall on any of them.
    return machine_of[made.node], tuple(sorted(made.victims)), made.hit


def _scaled_up(cluster: SaturatedCluster, name: str, of: InstanceClass) -> MadeRoom | None:
    """One more instance; None where it has to wait."""
    decided = cluster.plan(name, of)
    return None if decided is None else cluster.carry_out(decided)


def _sent_blindly(cluster: SaturatedCluster, name: str, of: InstanceClass, wanted: Preemptor) -> MadeRoom | None:
    """The same by amounts and priority alone."""
    found = priority_only(cluster.rooms(), wanted)
    return (
        None
        if found is None
        else cluster.send_instance(name, of, found[0].node, [str(victim.key) for victim in found[1]])
    )


class CapacitySnapshot(msgspec.Struct, frozen=True):
    """Servers after ``preempted`` instances made room: how many of several GPUs there are, and how many cross sockets.

    ``avoidable``: preemptors that cross though the best victims by the rules would have let them land on one socket.
    """

    preempted: int
    instances: int
    crossing: int
    avoidable: int


def figure_8(rules: ChoiceRules | None, seed: int = 0) -> CapacitySnapshot:
    """41 servers whose instances are all aligned, full, after up to 16 more best-effort ones made room, one by one.

    ``rules``: through the cycle; None: victims by amounts and priority alone, on the node where they cost least.
    """
    cluster = SaturatedCluster(RTX_4090, figure_8_servers(seed), rules or ChoiceRules())
    preempted = avoidable = 0
    for number, name in enumerate(SCALED_UP):
        of, key = TABLE_3[name], f"new-{number}"
        wanted = preemptor_of(of, TopologyQos.BEST_EFFORT, TopologyPolicy.NONE)
        # Before anything is carried out: the best victims are sought on the servers on which the decision is made.
        best = find(Roster(cluster.rooms()), wanted, rules or ChoiceRules())
        made = _sent_blindly(cluster, key, of, wanted) if rules is None else _scaled_up(cluster, key, of)
        if made is not None and best is not None:
            preempted += 1
            avoidable += made.crosses and best.landing < Landing.ACROSS
    return CapacitySnapshot(preempted, sum(of.gpus > 1 for of in cluster.running()), cluster.crossing(), avoidable)


class Crossings(msgspec.Struct, frozen=True):
    """Of ``preempted`` best-effort instances how many cross sockets; ``avoidable``: as in `CapacitySnapshot`."""

    preempted: int = 0
    crossing: int = 0
    avoidable: int = 0


def crossings(rules: ChoiceRules | None, filling: Filling, clusters: int, seed: int = 0) -> Crossings:
    """One more of B and one more of C, best-effort, each on so many full clusters as they are at first.

    ``rules``: as in `figure_8`.
    """
    preempted = crossing = avoidable = 0
    for number in range(clusters):
        servers = full_servers(filling, number, seed)
        for name in PREEMPTORS:
            cluster, of = SaturatedCluster(RTX_4090, servers, rules or ChoiceRules()), TABLE_3[name]
            wanted = preemptor_of(of, TopologyQos.BEST_EFFORT, TopologyPolicy.NONE)
            made = _sent_blindly(cluster, "new", of, wanted) if rules is None else _scaled_up(cluster, "new", of)
            if made is not None:
                preempted += 1
                crossing += made.crosses
            if made is not None and made.crosses:
                best = find(
                    Roster(room_of(RTX_4090, node, on) for node, on in servers.items()), wanted, rules or ChoiceRules()
                )
                avoidable += best is not None and best.landing < Landing.ACROSS
    return Crossings(preempted, crossing, avoidable)


def figure_8_servers(seed: int) -> Mapping[str, list[Instance]]:
    """The servers before."""
    classes = {name: (TABLE_3[name], count) for name, count in FIGURE_8.items()}
    return filled_servers(Filling.ALIGNED, FIGURE_8_SERVERS, classes, random.Random(f"figure 8/{seed}"))  # noqa: S311


def figure_9(rules: ChoiceRules, seed: int = 0) -> Iterator[dict[str, int]]:
    """How many instances of each class run: at first, and after each preemption of the two events.

    Those of a class that is scaled up are a service: pods of one workload, which grows by one at a time.
    """
    services = [TABLE_3[name] for name, _ in FIGURE_9]
    cluster = SaturatedCluster(RTX_4090, full_servers(Filling.ALIGNED, 0, seed), rules, services)
    name_of = {of.priority: name for name, of in TABLE_3.items()}

    def counts() -> dict[str, int]:
        found = Counter(name_of[of.priority] for of in cluster.running())
        return {name: found[name] for name in TABLE_3}

    yield counts()
    for name, count in FIGURE_9:
        for _ in range(count):
            cluster.add_instance(TABLE_3[name])
            yield counts()
