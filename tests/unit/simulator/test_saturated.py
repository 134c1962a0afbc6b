"""Preemptions on full servers through the queue core's cycle and kubelets: where the preemptor lands counts (seed 000).

`TOPOGATE_LANDING_CLUSTERS` says how many clusters of each filling; 20 make the 120 preemptions of docs/preemption.md.
"""

import os
import random

import pytest
from msgspec.structs import replace

from engine.kubelet.machine import TopologyPolicy
from engine.preemption.model import ChoiceRules, Landing, Scoring, Strategy, TopologyQos
from engine.preemption.roster import Roster
from engine.preemption.search import find
from simulator.figures import crossings
from simulator.paper import (
    FIGURE_CLASSES,
    PREEMPTORS,
    RTX_4090,
    TABLE_3,
    Filling,
    figure_3_servers,
    full_cluster,
    full_servers,
)
from simulator.saturated import ANYWHERE, ONE_NODE, SaturatedCluster
from simulator.servers import preemptor_of

CLUSTERS = int(os.environ.get("TOPOGATE_LANDING_CLUSTERS", "2"))
CROSSING = {2: 0, 20: 1}  # by clusters of each filling
LEVELS = pytest.mark.parametrize("topology", [ANYWHERE, ONE_NODE], ids=["anywhere", "hostname"])
STRATEGIES = pytest.mark.parametrize("strategy", list(Strategy))


def made_room(servers, rules, of, topology=ANYWHERE, **how):
    cluster = SaturatedCluster(RTX_4090, servers, rules)
    return cluster.carry_out(cluster.plan("new", of, topology=topology, **how))


@LEVELS
@STRATEGIES
@pytest.mark.parametrize("filling", list(Filling))
def test_a_best_effort_preemptor_crosses_sockets_only_where_the_best_victims_of_one_node_make_it(
    filling, strategy, topology
):
    rules, crossings = ChoiceRules(strategy), 0
    for number in range(CLUSTERS):
        servers = full_servers(filling, number)
        of_id = {one.id: one.of for on in servers.values() for one in on}
        for name in PREEMPTORS:
            of = TABLE_3[name]
            made = made_room(servers, rules, of, topology)
            wanted = preemptor_of(of, TopologyQos.BEST_EFFORT, TopologyPolicy.NONE)
            best = find(Roster(full_cluster(filling, number)), wanted, rules)
            priorities = sorted(of_id[victim].priority for victim in made.victims)
            assert priorities == sorted(victim.priority for victim in best.victims), (number, name)
            assert made.crosses == (best.landing is Landing.ACROSS), (number, name)
            assert not made.refused
            crossings += made.crosses
    assert crossings <= CLUSTERS // 4


@STRATEGIES
def test_of_all_fillings_together_one_of_120_crosses_and_could_not_but(strategy):
    """What `topogate simulate paper` prints, of as many clusters."""
    found = [crossings(ChoiceRules(strategy), filling, CLUSTERS) for filling in Filling]
    assert sum(one.preempted for one in found) == CLUSTERS * len(Filling) * len(PREEMPTORS)
    assert sum(one.avoidable for one in found) == 0
    assert sum(one.crossing for one in found) == CROSSING[CLUSTERS]


def test_who_looks_at_priority_alone_crosses_where_it_need_not():
    found = [crossings(None, filling, 1) for filling in Filling]
    assert sum(one.avoidable for one in found) > 0


@STRATEGIES
def test_a_guaranteed_preemptor_always_lands_on_one_socket(strategy):
    for filling in Filling:
        for name in PREEMPTORS:
            servers = full_servers(filling, 0)
            assert made_room(servers, ChoiceRules(strategy), TABLE_3[name], wish=TopologyPolicy.SOCKET).hit


def in_order(order):
    """The machines of Figure 3 with names in another order, and their instances in another order."""
    dice, servers = random.Random(order), figure_3_servers()
    names = dice.sample(list(servers), len(servers))
    shown = {name: dice.sample(on, len(on)) for name, on in zip(names, servers.values(), strict=True)}
    return names[0], dict(sorted(shown.items()))


@LEVELS
@STRATEGIES
def test_one_more_instance_of_a_takes_machine_1_in_every_order_of_nodes(strategy, topology):
    for order in range(20):
        first, servers = in_order(order)
        made = made_room(servers, ChoiceRules(strategy), FIGURE_CLASSES["A"], topology)
        assert (made.node, made.hit) == (first, True), order


@LEVELS
@STRATEGIES
def test_one_more_instance_of_b_takes_none_of_the_four_options_that_miss(strategy, topology):
    for order in range(20):
        _, servers = in_order(order)
        assert made_room(servers, ChoiceRules(strategy), FIGURE_CLASSES["B"], topology).hit, order


def test_with_alpha_1_the_sum_of_priorities_decides_and_with_0_the_landing():
    """Two low ones across sockets, or one socket freed by two higher ones: Equation 1 weighs them."""
    servers = figure_3_servers()
    on = servers["machine-2"][:]
    for at in (2, 5):  # GPUs 3 and 7 of machine 2 belong to instances of a lower priority now
        on[at] = low(on[at])
    alone = {"machine-2": on}
    by_sum = made_room(alone, ChoiceRules(Strategy.INCREMENTAL_MINIMAL, Scoring(alpha=1.0)), FIGURE_CLASSES["B"])
    by_landing = made_room(alone, ChoiceRules(Strategy.INCREMENTAL_MINIMAL, Scoring(alpha=0.0)), FIGURE_CLASSES["B"])
    assert (by_sum.crosses, by_landing.crosses) == (True, False)
    assert set(by_sum.victims) == {on[2].id, on[5].id}


def low(instance):
    """The same instance of a class of the least priority."""
    return replace(instance, of=replace(instance.of, priority=1))
