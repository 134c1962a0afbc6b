"""What a choice of victims keeps to, whatever the cluster; and the rules in small."""

import random

import msgspec
import pytest
from victim_cases import GPU, PODS, landing, make_case, shape_of

from engine.kubelet.machine import CPU, Kubelet, Layout, NumaPlacement, State, TopologyPolicy, Zone, ZoneUse
from engine.preemption.model import (
    ChoiceRules,
    Cost,
    Landing,
    NodeRoom,
    Preemptor,
    Scoring,
    Strategy,
    TopologyQos,
    VictimPod,
)
from engine.preemption.roster import Roster
from engine.preemption.search import find

SINGLE = TopologyPolicy.SINGLE


def chosen(seed, strategy=Strategy.LEAST_PRIORITY):
    case = make_case(seed)
    return case, find(Roster(case.rooms), case.preemptor, ChoiceRules(strategy))


@pytest.mark.parametrize("strategy", list(Strategy))
def test_the_kubelet_admits_and_every_victim_is_needed(strategy):
    """Left alone, any one of them would keep the preemptor out, or leave it a worse landing."""
    several = 0
    for seed in range(1000, 1300):
        case, choice = chosen(seed, strategy)
        if choice is None:
            continue
        room = next(room for room in case.rooms if room.node == choice.node)
        assert landing(room, case.preemptor, choice.victims) is choice.landing
        assert all(victim.priority < case.preemptor.above for victim in choice.victims)
        for one in choice.victims:
            rest = [victim for victim in choice.victims if victim is not one]
            assert landing(room, case.preemptor, rest) is None
        several += len(choice.victims) > 1
    assert several > 10


def test_the_order_of_nodes_and_pods_does_not_matter():
    for seed in range(2000, 2200):
        case, choice = chosen(seed)
        dice = random.Random(seed)
        rooms = [
            msgspec.structs.replace(room, victims=tuple(dice.sample(room.victims, len(room.victims))))
            for room in case.rooms
        ]
        dice.shuffle(rooms)
        other = find(Roster(rooms), case.preemptor)
        assert (choice is None) == (other is None)
        if choice is not None:
            assert (other.node, other.cost, other.landing, other.freed) == (
                choice.node,
                choice.cost,
                choice.landing,
                choice.freed,
            )


def test_a_roster_that_was_changed_answers_as_a_new_one():
    for seed in range(3000, 3100):
        case, other = make_case(seed), make_case(seed + 5000)
        roster = Roster(case.rooms)
        find(roster, case.preemptor)
        for room in other.rooms:
            roster.set(room)
        gone = case.rooms[-1].node
        kept = {room.node: room for room in (*case.rooms, *other.rooms)}
        roster.remove(gone)
        del kept[gone]
        assert find(roster, other.preemptor) == find(Roster(kept.values()), other.preemptor)


# -- in small -----------------------------------------------------------------------------------------------------


def make_layout(zones=2, policy=SINGLE, gpus=2):
    each = (4000, gpus)
    return Layout(
        zones=tuple(Zone(id=z, socket=z // 2) for z in range(zones)),
        resources=(CPU, GPU),
        capacity=(each,) * zones,
        allocatable=(each,) * zones,
        kubelet=Kubelet(policy=policy, static_cpu=True),
        threads=1,
    )


def make_room(name, held, *, layout=None, zones=2, unknown=False):
    """``held``: (priority, {zone: gpus}) of each pod; one CPU a GPU."""
    layout = layout or make_layout(zones)
    free = [list(row) for row in layout.allocatable]
    total = {CPU: 4000 * len(free), GPU: layout.allocatable[0][1] * len(free), PODS: 10}
    victims = []
    for number, (priority, gpus) in enumerate(held):
        for zone, count in gpus.items():
            free[zone][0] -= 1000 * count
            free[zone][1] -= count
        count = sum(gpus.values())
        requests = {CPU: 1000 * count, GPU: count, PODS: 1}
        total = {key: have - requests[key] for key, have in total.items()}
        uses = tuple(ZoneUse(zone=zone, amounts={CPU: 1000 * n, GPU: n}) for zone, n in gpus.items())
        victims.append(VictimPod(f"{name}-{number}", priority, requests, NumaPlacement(zones=uses)))
    if unknown:
        return NodeRoom(name, total, tuple(victims))
    return NodeRoom(name, total, tuple(victims), layout, State(free=tuple(map(tuple, free))))


def preemptor(gpus=2, *, above=100, qos=TopologyQos.GUARANTEED, wish=TopologyPolicy.NONE):
    requests = {CPU: 1000 * gpus, GPU: gpus}
    return Preemptor(requests, above, shape_of(requests, wish=wish), qos)


def names(choice):
    return {victim.key for victim in choice.victims}


def test_victims_of_one_zone_and_the_free_gpu_that_is_there():
    split = make_room("a", [(1, {0: 1}), (1, {1: 1}), (50, {0: 1})])  # a GPU of zone 1 is free
    choice = find(Roster([split]), preemptor())
    assert names(choice) == {"a-1"}
    assert choice.landing is Landing.ZONE


def test_a_blind_preemptor_takes_what_the_kubelet_then_refuses():
    room = make_room("a", [(1, {0: 1}), (1, {1: 1}), (50, {0: 1}), (50, {1: 1})])
    assert find(Roster([room]), preemptor(qos=TopologyQos.BLIND)).cost == Cost(1, 2, 2)
    assert find(Roster([room]), preemptor()).cost == Cost(50, 51, 2)


def test_a_node_that_needs_no_victim_wins_and_one_without_data_comes_last():
    full, free = make_room("a", [(1, {0: 2}), (1, {1: 2})]), make_room("z", [(1, {0: 2})])
    assert find(Roster([full, free]), preemptor()).node == "z"
    cheap, dear = make_room("a", [(1, {0: 2}), (1, {1: 2})], unknown=True), make_room("b", [(9, {0: 2}), (9, {1: 2})])
    assert find(Roster([cheap, dear]), preemptor()).node == "b"
    assert find(Roster([cheap]), preemptor()).landing is Landing.UNKNOWN
    assert find(Roster([]), preemptor()) is None


def test_what_must_be_linked_never_lands_where_nothing_is_known():
    wanted = Preemptor({GPU: 2}, 9, shape_of({GPU: 2}, link="require"))
    assert find(Roster([make_room("a", [(1, {0: 2})], unknown=True)]), wanted) is None


def test_what_has_a_wish_for_zones_never_lands_where_nothing_is_known_but_for_one_that_only_ranks():
    unknown = Roster([make_room("a", [(1, {0: 2})], unknown=True)])
    wish = TopologyPolicy.SINGLE
    assert find(unknown, preemptor(wish=wish)) is None
    assert find(unknown, preemptor(wish=wish, qos=TopologyQos.BEST_EFFORT)).landing is Landing.UNKNOWN
    assert find(unknown, preemptor(wish=TopologyPolicy.BEST_EFFORT)).landing is Landing.UNKNOWN


def test_the_least_priority_comes_before_the_fewest_and_the_other_way_round_by_the_paper():
    room = make_room("a", [(2, {0: 1}), (2, {0: 1}), (5, {1: 2})])
    assert names(find(Roster([room]), preemptor())) == {"a-0", "a-1"}
    assert names(find(Roster([room]), preemptor(), ChoiceRules(Strategy.INCREMENTAL_MINIMAL))) == {"a-2"}


def test_a_socket_is_filled_before_sockets_are_crossed():
    layout = make_layout(4, TopologyPolicy.BEST_EFFORT)
    room = make_room("a", [(1, {0: 2}), (1, {1: 2}), (1, {2: 2}), (1, {3: 2})], layout=layout)
    choice = find(Roster([room]), preemptor(4, wish=TopologyPolicy.SOCKET))
    assert choice.landing is Landing.SOCKET
    assert names(choice) in ({"a-0", "a-1"}, {"a-2", "a-3"})


def test_negative_priorities_evict_nobody_in_vain():
    room = make_room("a", [(-5, {0: 2}), (-7, {1: 1}), (-6, {1: 1})])
    choice = find(Roster([room]), preemptor(1))
    assert choice.cost == Cost(-7, 0, 1)


def test_sixty_equal_victims_take_no_longer_than_their_number():
    layout = make_layout(2, gpus=64)
    layout = msgspec.structs.replace(layout, capacity=((64000, 64),) * 2, allocatable=((64000, 64),) * 2)
    held = [(priority, {zone: 1}) for zone in (0, 1) for priority in range(64)]
    room = msgspec.structs.replace(make_room("a", held, layout=layout), free={CPU: 0, GPU: 0, PODS: 0})
    choice = find(Roster([room]), preemptor(60))
    assert choice.cost == Cost(59, sum(range(60)), 60)


def test_the_score_says_where_the_preemptor_lands():
    scoring = Scoring()
    assert scoring.score(1000, Landing.ZONE) > scoring.score(3, Landing.SOCKET)
    assert scoring.score(200, Landing.SOCKET) > scoring.score(400, Landing.SOCKET)
    assert Scoring(alpha=1.0).score(400, Landing.ACROSS) == 1 / 400
    for wrong in ({"alpha": 1.5}, {"high": 0.1}):
        with pytest.raises(ValueError, match="must be"):
            Scoring(**wrong)
