"""The paper's evaluation in small: Figure 3, hits by method, the same seed the same answer."""

import json
import random
from itertools import pairwise

import msgspec
import pytest
from typer.testing import CliRunner

from cli.simulate import paper
from cli.simulate.command import app
from cli.simulate.paper import Evaluation
from engine.kubelet.machine import TopologyPolicy
from engine.preemption.every_subset import every_subset
from engine.preemption.model import ChoiceRules, Strategy
from engine.preemption.roster import Roster
from engine.preemption.search import find
from queueing.cycle import growth
from simulator.figures import figure_8, figure_9
from simulator.paper import (
    FIGURE_CLASSES,
    PREEMPTORS,
    RTX_4090,
    TABLE_3,
    Filling,
    figure_3,
    full_cluster,
    full_servers,
    guaranteed,
    options,
    priority_only,
)
from simulator.saturated import MAIN, SaturatedCluster
from simulator.servers import GPU, one_socket

SMALL = ("--cycles", "1", "--preemptions", "4", "-o", "json")


def run(*args):
    result = CliRunner().invoke(app, ["paper", *args])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def renamed(rooms, order):
    """The same machines with names in another order, and their victims in another order."""
    dice = random.Random(order)
    names = dice.sample([room.node for room in rooms], len(rooms))
    return [
        msgspec.structs.replace(room, node=name, victims=tuple(dice.sample(room.victims, len(room.victims))))
        for room, name in zip(rooms, names, strict=True)
    ]


def test_figure_3_has_twelve_options_of_which_four_miss():
    rooms, of = figure_3(), FIGURE_CLASSES["B"]
    found = list(options(rooms, of))
    assert [room.free[GPU] for room in rooms] == [0, 0, 0]
    assert (len(found), sum(not one.aligned for one in found)) == (12, 4)
    assert {one.machine for one in found if not one.aligned} == {1}


@pytest.mark.parametrize("strategy", list(Strategy))
def test_none_of_the_four_is_ever_chosen(strategy):
    of = FIGURE_CLASSES["B"]
    for order in range(200):
        rooms = renamed(figure_3(), order)
        choice = find(Roster(rooms), guaranteed(of), ChoiceRules(strategy))
        assert one_socket(RTX_4090, next(room for room in rooms if room.node == choice.node), of, choice.victims)


def test_an_instance_of_a_fits_the_first_machine_alone():
    assert find(Roster(figure_3()), guaranteed(FIGURE_CLASSES["A"])).node == "machine-1"


@pytest.mark.parametrize("filling", list(Filling))
def test_the_cluster_is_full_and_the_same_for_the_same_seed(filling):
    rooms = full_cluster(filling, 3, seed=7)
    assert rooms == full_cluster(filling, 3, seed=7)
    assert rooms != full_cluster(filling, 4, seed=7)
    assert sum(room.free[GPU] for room in rooms) == 0
    assert sum(len(room.victims) for room in rooms) == TABLE_3["C"].count + TABLE_3["D"].count


@pytest.mark.parametrize("filling", list(Filling))
def test_twenty_in_a_row_all_land_on_one_socket(filling):
    cluster = SaturatedCluster(RTX_4090, full_servers(filling, 0), ChoiceRules())
    for number in range(20):
        assert cluster.carry_out(cluster.plan(f"new-{number}", TABLE_3["B"], wish=TopologyPolicy.SOCKET)).hit


def test_priority_alone_misses_sometimes():
    of, misses = TABLE_3["B"], 0
    for cycle in range(5):
        room, victims = priority_only(full_cluster(Filling.ALIGNED, cycle), guaranteed(of))
        assert sum(victim.requests[GPU] for victim in victims) >= of.gpus
        misses += not one_socket(RTX_4090, room, of, victims)
    assert misses


@pytest.mark.parametrize("name", PREEMPTORS)
def test_no_set_scores_better_than_the_best_of_all_and_the_search_finds_the_best_of_the_fewest(name):
    """Equation 2 without and with IMP."""
    rules, preemptor = ChoiceRules(Strategy.INCREMENTAL_MINIMAL), guaranteed(TABLE_3[name])
    for filling in Filling:
        rooms = full_cluster(filling, 0)
        every, fewest = every_subset(rooms, preemptor, rules), find(Roster(rooms), preemptor, rules)
        room = next(room for room in rooms if room.node == every.node)
        assert one_socket(RTX_4090, room, TABLE_3[name], every.victims)
        assert every.score >= fewest.score
        assert every.cost.size > fewest.cost.size or every.score == fewest.score


@pytest.mark.parametrize("filling", list(Filling))
@pytest.mark.parametrize("name", PREEMPTORS)
def test_all_sets_go_through_the_cycle_which_takes_the_one_of_the_highest_score(filling, name):
    rules, servers = ChoiceRules(every_subset=True), full_servers(filling, 1)
    best = every_subset(full_cluster(filling, 1), guaranteed(TABLE_3[name]), rules)
    cluster = SaturatedCluster(RTX_4090, servers, rules)
    decided = cluster.plan("new", TABLE_3[name], wish=TopologyPolicy.SOCKET)
    scored = rules.scoring.score(sum(victim.priority for victim in decided.victims), best.landing)
    assert (len(decided.victims), scored) == (best.cost.size, best.score)
    assert cluster.carry_out(decided).hit


@pytest.mark.parametrize("seed", range(2))
def test_figure_8_no_preemptor_crosses_sockets_that_could_be_spared_it(seed):
    blind = figure_8(None, seed)
    assert blind.avoidable > 0
    for strategy in Strategy:
        made = figure_8(ChoiceRules(strategy), seed)
        assert made.avoidable == 0
        assert made.preempted >= blind.preempted
        assert made.crossing < blind.crossing


def test_figure_9_a_service_grows_by_one_instance_each_time_and_takes_the_least_important(monkeypatch):
    grown, nominate = [], growth.nominate_growth
    monkeypatch.setattr(growth, "nominate_growth", lambda *asked: grown.append(nominate(*asked)) or grown[-1])
    counts = list(figure_9(ChoiceRules()))
    assert len(counts) == 31
    assert len(grown) == 30
    assert all(one.grant.counts == {MAIN: 1} for one in grown), "each is growth of a service"
    assert counts[0] == {name: of.count for name, of in TABLE_3.items()}
    for before, after in pairwise(counts):
        change = {name: after[name] - before[name] for name in TABLE_3}
        assert change in ({"A": 0, "B": 1, "C": 0, "D": -4}, {"A": 0, "B": 0, "C": 1, "D": -2})


def test_kubelets_judge_the_methods_of_others_too():
    """A hit in Table 4 is a pod whose kubelet took it and gave it GPUs of one socket."""
    evaluation, servers = Evaluation(in_a_row=False), full_servers(Filling.ALIGNED, 0)
    evaluation.cycle(Filling.ALIGNED, servers, 3)  # two of B, one of C
    hits = {row.method: row.hits for row in evaluation.table_4()}
    landed = []
    for name in PREEMPTORS:
        cluster = SaturatedCluster(RTX_4090, servers, ChoiceRules())
        room, victims = priority_only(cluster.rooms(), guaranteed(TABLE_3[name]))
        made = cluster.send_instance("new", TABLE_3[name], room.node, [victim.key for victim in victims])
        assert made.hit == one_socket(RTX_4090, room, TABLE_3[name], victims)
        landed.append(made.hit)
    assert hits == {"priority only": 2 * landed[0] + landed[1], **dict.fromkeys(("all subsets", *Strategy), 3)}


def test_the_command_prints_all_and_the_same_for_the_same_seed(monkeypatch):
    monkeypatch.setattr(paper, "BARS", 1)
    first = run(*SMALL, "--no-times", "--placement", "aligned")
    assert first == run(*SMALL, "--no-times", "--placement", "aligned")
    found = json.loads(first)
    assert len(found["figure_3"]) == 12
    assert not any(one["chosen"] for one in found["figure_3"] if not one["aligned"])
    rates = {row["method"]: row["hits"] for row in found["table_4"]}
    assert rates["LeastPriority"] == rates["IncrementalMinimal"] == rates["all subsets"] == 4
    machines = [(one["machine"], one["orders"], one["aligned"]) for one in found["figure_3_a"]]
    assert machines == [("machine-1", 20, 20)] * 2
    assert found["figure_9"][0] == {"A": 20, "B": 40, "C": 200, "D": 80}
    assert not {"table_5", "figure_10", "figure_11"} & found.keys()
    text = run("--cycles", "1", "--preemptions", "2", "--placement", "packed", "--in-a-row")
    for part in ("Table 3", "Figure 3", "Table 4", "Table 5", *[f"Figure {n}" for n in (8, 9)], "published", "2225"):
        assert part in text
    assert text.count(", whole cycle ") == 4 + 12 + 4  # of all that go through it, in Table 5, and Figures 10 and 11
