"""The engine's answers before judges that do not know it: 400 cases with a peer's answers, and 3,000 seeded ones."""

import json

import pytest
from support.checker import check, hosts_by_domain
from support.exact import opened, optimum, rank
from support.generate import opened_case, rugged_case, small_case
from support.scenario import load_cases, scenario

from cli.whatif.cases import decide, decode_case
from cli.whatif.command import CaseAnswer, answer
from engine.results import Placement

PEER_CASES = {case["id"]: case for case in load_cases()}
SCENARIOS = {case_id: scenario(case) for case_id, case in PEER_CASES.items()}


def ask(case, spare=0) -> CaseAnswer:
    return answer(decode_case(json.dumps(case).encode()), spare)


def plain(slices):
    return [{"values": part.values, "count": part.count} for part in slices]


@pytest.fixture(scope="module")
def answers():
    return {case_id: ask(case) for case_id, case in PEER_CASES.items()}


@pytest.fixture(scope="module")
def optima():
    return {case_id: optimum(case) for case_id, case in SCENARIOS.items()}


def faults(case, given, best, spare=0):
    """Everything that is wrong with an answer: the verdict, the assignment, or that a better one exists."""
    if given.fits is not (best is not None):
        return [f"fits is {given.fits}"]
    if not given.fits:
        return [] if given.reason and given.message and not given.slices else ["a refusal that does not explain itself"]
    verdict = check(case, plain(given.slices))
    wrong = list(verdict.problems)
    ranked = rank(case, verdict.domains, verdict.nodes, opened(case, plain(given.slices), spare))
    if case.level is not None and ranked != (best.widening, best.key):
        wrong.append(f"{ranked}, the best is {(best.widening, best.key)}")
    return wrong


def test_all_400_are_right_and_none_could_be_better(answers, optima):
    wrong = {case_id: faults(SCENARIOS[case_id], answers[case_id], optima[case_id]) for case_id in PEER_CASES}
    assert {case_id: found for case_id, found in wrong.items() if found} == {}


def test_the_verdict_is_the_peers_where_the_host_is_last(answers):
    differ = [case_id for case_id, case in PEER_CASES.items() if answers[case_id].fits is not case["fits"]]
    assert [case_id for case_id in differ if SCENARIOS[case_id].host_is_last] == []
    # Elsewhere the peer adds up fragments of nodes: it says yes where no node has room, and never a wrong no.
    assert [PEER_CASES[case_id]["fits"] for case_id in differ] == [True] * 3


def test_never_more_domains_than_the_peer_at_the_requested_level_and_those_below(answers):
    compared, more = 0, []
    for case_id, case in SCENARIOS.items():
        if case.level is None or not (answers[case_id].fits and PEER_CASES[case_id]["fits"]):
            continue
        ours = check(case, plain(answers[case_id].slices))
        theirs = check(case, PEER_CASES[case_id]["slices"])
        if theirs.problems:
            continue
        compared += 1
        pairs = zip(
            (*ours.domains[case.level :], ours.nodes), (*theirs.domains[case.level :], theirs.nodes), strict=True
        )
        more += [case_id for mine, other in pairs if mine > other]
    assert compared == 183
    assert more == []


def test_every_value_of_every_level_is_told(answers):
    for case_id, given in answers.items():
        assert all(len(part.values) == len(PEER_CASES[case_id]["levels"]) for part in given.slices), case_id


def packing_faults(case, slices):
    """The engine also says on which node it counts each pod: those must be real, have room, and be as few as can be."""
    by_domain, wrong = hosts_by_domain(case), []
    for part in slices:
        room = {host.name: host.capacity for host in by_domain[part.values]}
        if sum(pods for _, pods in part.nodes) != part.count or len(dict(part.nodes)) != len(part.nodes):
            wrong.append(f"{part}: the nodes do not add up")
        wrong += [f"{part}: {name} is over-full" for name, pods in part.nodes if not 0 < pods <= room.get(name, 0)]
    if case.level is not None:
        least = check(case, plain(slices)).nodes
        used = sum(len(part.nodes) for part in slices)
        wrong += [f"packed onto {used} nodes, {least} would do"] if used != least else []
    return wrong


def test_pods_are_packed_onto_real_nodes():
    placed = 0
    for case_id, case in PEER_CASES.items():
        decision = decide(decode_case(json.dumps(case).encode()))
        if isinstance(decision, Placement):
            placed += 1
            (assignment,) = decision.assignments
            assert packing_faults(SCENARIOS[case_id], assignment.slices) == [], case_id
    assert placed == 241


@pytest.mark.parametrize(("make", "seeds"), [(small_case, 3000), (rugged_case, 100)])
def test_seeded_cases_are_right_and_none_could_be_better(make, seeds):
    wrong, placed = {}, 0
    for seed in range(seeds):
        case = make(seed)
        read, given = scenario(case), ask(case)
        placed += given.fits
        if found := faults(read, given, optimum(read)):
            wrong[seed] = found
    assert wrong == {}
    assert seeds // 2 < placed < seeds


@pytest.mark.parametrize("spare", [0, 1, 4])
def test_a_rack_is_opened_only_where_none_in_use_takes_the_pods_on_so_many_nodes_more(spare):
    wrong, more = {}, 0
    for seed in range(400):
        case = opened_case(seed)
        read, given, first = scenario(case), ask(case, spare), ask(case)
        if found := faults(read, given, optimum(read, spare), spare):
            wrong[seed] = found
        if given.fits:
            mine, least = (check(read, plain(one.slices)) for one in (given, first))
            racks = read.rack + 1
            assert mine.domains[read.level : racks] == least.domains[read.level : racks], seed
            assert least.nodes <= mine.nodes <= least.nodes + spare, seed
            more += mine.nodes > least.nodes
    assert wrong == {}
    assert (more > 10) is (spare > 0)


def test_the_peers_cases_hold_where_racks_are_left_whole_too():
    for case_id, case in PEER_CASES.items():
        best = optimum(SCENARIOS[case_id], 4)
        assert faults(SCENARIOS[case_id], ask(case, 4), best, 4) == [], case_id


def test_the_order_in_which_nodes_come_changes_nothing(answers):
    for case_id in list(PEER_CASES)[::10]:
        case = PEER_CASES[case_id]
        assert ask(case | {"nodes": case["nodes"][::-1]}) == answers[case_id], case_id
