"""The judges are judged first: checker, exact solver and brute force against each other and the peer's answers."""

import pytest
from support.checker import check
from support.exact import brute_force, optimum, rank, slices
from support.generate import small_case
from support.scenario import load_cases, pods_on, scenario

PEER_CASES = {case["id"]: case for case in load_cases()}
SCENARIOS = {case_id: scenario(case) for case_id, case in PEER_CASES.items()}
OPTIMA = {case_id: optimum(case) for case_id, case in SCENARIOS.items()}
PEER_PLACED = [case_id for case_id, case in PEER_CASES.items() if case["fits"]]


def host_case(capacities, *, count, mode="required", levels=("rack", "kubernetes.io/hostname"), level="rack"):
    """Hosts that each take so many pods, told as {(rack,): [capacity, ...]}."""
    nodes = []
    for path, rooms in capacities.items():
        for room in rooms:
            name = f"n{len(nodes)}"
            labels = dict(zip(levels, (*path, name), strict=False)) | {"kubernetes.io/hostname": name}
            nodes.append({"name": name, "labels": labels, "allocatable": {"cpu": room, "pods": 110}, "used": {}})
    request = {"mode": mode, "level": level, "count": count, "perPod": {"cpu": 1}}
    return scenario({"id": "t", "levels": list(levels), "nodes": nodes, "request": request})


def test_the_peers_file_is_whole():
    assert len(PEER_CASES) == 400
    assert len(PEER_PLACED) == 244


def test_every_optimum_passes_the_checker_and_is_as_good_as_it_says():
    for case in SCENARIOS.values():
        best = OPTIMA[case.id]
        if best is None:
            continue
        verdict = check(case, slices(case, best.pods))
        assert verdict.problems == (), case.id
        if case.level is not None:
            assert rank(case, verdict.domains, verdict.nodes) == (best.widening, best.key), case.id


def test_the_exact_verdict_is_the_peers_where_the_host_is_last():
    for case in SCENARIOS.values():
        if case.host_is_last:
            assert (OPTIMA[case.id] is not None) is PEER_CASES[case.id]["fits"], case.id
        elif not PEER_CASES[case.id]["fits"]:
            assert OPTIMA[case.id] is None, f"{case.id}: adding up fragments errs only by saying yes"


def test_no_answer_of_the_peer_beats_the_optimum():
    compared = 0
    for case_id in PEER_PLACED:
        case, best = SCENARIOS[case_id], OPTIMA[case_id]
        verdict = check(case, PEER_CASES[case_id]["slices"])
        if case.host_is_last:
            assert verdict.problems == (), case_id
        if best is not None and not verdict.problems and case.level is not None:
            compared += 1
            assert (best.widening, best.key) <= rank(case, verdict.domains, verdict.nodes), case_id
    assert compared == 183


def test_the_peers_false_yes_is_caught():
    false_yes = [case_id for case_id in PEER_PLACED if OPTIMA[case_id] is None]
    assert len(false_yes) == 3
    for case_id in false_yes:
        assert check(SCENARIOS[case_id], PEER_CASES[case_id]["slices"]).problems, case_id


@pytest.mark.parametrize("spare", [0, 1])
def test_the_recursion_equals_brute_force_on_tiny_trees(spare):
    for seed in range(500):
        case = scenario(small_case(seed, most_hosts=4))
        best, brute = optimum(case, spare), brute_force(case, spare)
        assert (best is None) is (brute is None), seed
        if best is not None and case.level is not None:
            assert (best.widening, best.key) == brute, seed


def test_greedy_is_not_good_enough():
    # Largest first takes 19 and then one of 10: the two of 10 hold the same and leave the 19 whole.
    best = optimum(host_case({("r1",): [19, 10, 10]}, count=20))
    assert best.key == (1, 2, 2)
    assert optimum(host_case({("r1",): [7, 4, 4, 4], ("r2",): [9, 2, 2]}, count=11)).key == (1, 2, 2)


def test_the_choice_of_the_domain_counts():
    # r1 fits tightest but takes four hosts, r2 needs one.
    best = optimum(host_case({("r1",): [1, 1, 1, 1], ("r2",): [9]}, count=4))
    assert best.key == (1, 1, 1)


def test_preferred_widens_level_by_level():
    levels = ("block", "rack", "kubernetes.io/hostname")
    rooms = {("b1", "r1"): [2], ("b1", "r2"): [2], ("b1", "r3"): [1], ("b2", "r1"): [3], ("b2", "r2"): [1]}
    widened = [optimum(host_case(rooms, count=count, mode="preferred", levels=levels)) for count in (3, 4, 5, 6, 9, 10)]
    assert [best and (best.widening, best.key[0]) for best in widened] == [(0, 1), (1, 2), (1, 3), (2, 3), (2, 5), None]


@pytest.mark.parametrize(
    ("slices_given", "problem"),
    [
        ([{"values": ["r1", "n0"], "count": 3}], "3 pods placed, 4 wanted"),
        ([{"values": ["r1", "n0"], "count": 2}, {"values": ["r2", "n2"], "count": 2}], "spans 2 domains"),
        ([{"values": ["r2", "n0"], "count": 4}], "names no domain"),
        ([{"values": ["n9"], "count": 4}], "names no domain"),
        ([{"values": ["r1", "n0"], "count": 4}], "its nodes take 3"),
        ([{"values": ["n0"], "count": 2}, {"values": ["r1", "n0"], "count": 2}], "two slices"),
        ([{"values": ["n0"], "count": 3}, {"values": ["n1"], "count": 2}, {"values": ["n2"], "count": -1}], "count -1"),
    ],
)
def test_the_checker_finds_what_is_wrong(slices_given, problem):
    case = host_case({("r1",): [3, 3], ("r2",): [3]}, count=4)
    assert any(problem in found for found in check(case, slices_given).problems)


def test_the_checker_passes_what_is_right():
    case = host_case({("r1",): [3, 3], ("r2",): [3]}, count=4)
    verdict = check(case, [{"values": ["r1", "n0"], "count": 3}, {"values": ["r1", "n1"], "count": 1}])
    assert verdict.problems == ()
    assert (verdict.domains, verdict.nodes) == ((1, 2), 2)


def test_fragments_of_nodes_are_not_added_up():
    case = host_case({("r1",): [3, 3]}, count=2, levels=("rack",))
    assert check(case, [{"values": ["r1"], "count": 2}]).problems == ()
    node = {"name": "n", "allocatable": {"cpu": 3, "pods": 9}}
    assert [pods_on(node, {"cpu": size}, 9) for size in (1, 2, 3, 4)] == [3, 1, 1, 0]
    assert pods_on(node | {"used": {"pods": 8}}, {"cpu": 1}, 9) == 1
    assert pods_on(node | {"used": {"cpu": 4}}, {"cpu": 1}, 9) == 0
    assert pods_on(node, {"nvidia.com/gpu": 1}, 9) == 0
