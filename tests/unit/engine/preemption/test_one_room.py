"""One node without columns answers as a roster of that node does: the same victims, not only equal ones."""

from itertools import combinations

import pytest
from victim_cases import landing, make_case

from engine.kubelet.machine import TopologyPolicy
from engine.preemption.blocks import kind_of, wanted
from engine.preemption.model import ChoiceRules, Landing, Strategy, TopologyQos
from engine.preemption.one_room import OneRoom, least_landing
from engine.preemption.roster import Roster
from engine.preemption.search import find
from simulator.paper import PREEMPTORS, TABLE_3, Filling, full_cluster, guaranteed
from simulator.servers import preemptor_of

STRATEGIES = pytest.mark.parametrize("strategy", list(Strategy))


@STRATEGIES
def test_generated_nodes(strategy):
    found = seen = 0
    for seed in range(300):
        case = make_case(seed)
        for room in case.rooms:
            choice = find(OneRoom(room), case.preemptor, ChoiceRules(strategy))
            assert choice == find(Roster([room]), case.preemptor, ChoiceRules(strategy)), (seed, room.node)
            seen, found = seen + 1, found + (choice is not None and bool(choice.victims))
    assert 100 < found < seen


@STRATEGIES
@pytest.mark.parametrize("filling", list(Filling))
def test_servers_of_table_3(strategy, filling):
    for room in full_cluster(filling, 0):
        for name in PREEMPTORS:
            best_effort = preemptor_of(TABLE_3[name], TopologyQos.BEST_EFFORT, TopologyPolicy.NONE)
            for preemptor in (guaranteed(TABLE_3[name]), best_effort):
                found = find(OneRoom(room), preemptor, ChoiceRules(strategy))
                assert found == find(Roster([room]), preemptor, ChoiceRules(strategy))


def test_no_set_of_victims_lands_better_than_its_number_and_priorities_allow():
    met, missed = 0, 0
    for seed in range(300):
        case = make_case(seed, most=5)
        for room in case.rooms:
            needs = wanted(kind_of(room.layout), case.preemptor)
            if needs is None or needs.asked is None:
                continue
            for highest in sorted({victim.priority for victim in room.victims}):
                may = [victim for victim in room.victims if victim.priority <= highest]
                best: Landing | None = None
                for size in range(len(may) + 1):
                    found = [landing(room, case.preemptor, picked) for picked in combinations(may, size)]
                    best = min([one for one in (best, *found) if one is not None], default=None)
                    least = least_landing(room, needs, highest, size)
                    assert best is None or least <= best, (seed, room.node, highest, size)
                    met, missed = met + (least == best), missed + (best is not None and least < best)
    assert met > 10 * missed > 0
