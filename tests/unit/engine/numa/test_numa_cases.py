"""The acceptance cases of the scheduler's side: precedence, rebuilding what is free, eviction and rollback."""

import pytest
from support.engine_factories import GPU, ask, nodes_of, placed
from support.numa_factories import (
    BEST_EFFORT,
    RESTRICTED,
    SINGLE,
    at,
    left,
    make_machine,
    make_shape,
    on_zone,
    pod_on,
    pods_of,
    state_of,
    zones_of,
)

from engine.kubelet.machine import TopologyPolicy
from engine.kubelet.rebuild import same_amounts
from engine.model import Policy
from engine.placement.place import extend
from engine.reasons import Reason
from engine.results import Refusal

FOUR = ({"cpu": 4}, {"cpu": 4})


def cpus(amount):
    return make_shape({"cpu": amount})


def reserve(state, shape, count=1, key="w"):
    """Place and reserve; returns the zones of each slot on n0."""
    state.reserve(key, placed(ask(state, pods_of(shape, count), key=key)).assignments)
    return zones_of(state.placements(key, "main", "n0"))


# -- A: the node's side, where several pods follow each other ---------------------------------------------------


@pytest.mark.parametrize("policy", [SINGLE, RESTRICTED])
@pytest.mark.parametrize("exact", [False, True])
def test_a7_two_of_three_pods_run_though_the_third_fits_by_count(policy, exact):
    state = state_of(make_machine(*FOUR, policy=policy, exact=exact))
    assert reserve(state, cpus(3), key="a") == [(0,)]
    assert reserve(state, cpus(3), key="b") == [(1,)]
    assert left(state) == [1, 1]
    refusal = ask(state, pods_of(cpus(2)))
    assert refusal.reason is Reason.NUMA_ALIGNMENT
    assert left(state) == [1, 1]


@pytest.mark.parametrize("exact", [False, True])
def test_a7_best_effort_admits_the_third_over_both_zones(exact):
    state = state_of(make_machine(*FOUR, policy=BEST_EFFORT, exact=exact))
    reserve(state, cpus(3), key="a")
    reserve(state, cpus(3), key="b")
    assert reserve(state, cpus(2), key="c") == [(0, 1)]
    assert left(state) == [0, 0]


def test_a13_a_pod_that_fits_the_node_but_no_zone_never_fits():
    state = state_of(make_machine({GPU: 2, "cpu": 4}, {GPU: 2, "cpu": 4}))
    refusal = ask(state, pods_of(make_shape({GPU: 3, "cpu": 6})))
    assert refusal.reason is Reason.NEVER_FITS
    assert "TopologyAffinityError" in refusal.message


def test_a14_without_a_report_or_a_policy_amounts_decide():
    shape = cpus(6)
    for state in (state_of(make_machine(*FOUR, policy=TopologyPolicy.NONE)), state_of(make_machine(*FOUR))):
        if state.machines["n0"].layout.kubelet.policy is SINGLE:
            assert isinstance(ask(state, pods_of(shape)), Refusal)
            state.remove_machine("n0")
        assert nodes_of(ask(state, pods_of(shape))) == {"n0": 1}


# -- B: what is aligned -----------------------------------------------------------------------------------------


def test_b1_a_resource_that_no_zone_reports_is_not_aligned_on_that_node():
    shape = make_shape({"cpu": 2, GPU: 3})
    with_gpus = make_machine({"cpu": 4, GPU: 2}, {"cpu": 4, GPU: 2}, node="n0")
    without = make_machine({"cpu": 4}, {"cpu": 4}, node="n1")
    state = state_of(with_gpus, without)
    state.set_node(node_with_gpus(state, "n1"))
    assert nodes_of(ask(state, pods_of(shape))) == {"n1": 1}
    one_reports = make_machine({"cpu": 4, GPU: 2}, {"cpu": 4}, node="n1")
    state.set_machine(one_reports)
    assert isinstance(ask(state, pods_of(shape)), Refusal)


def node_with_gpus(state, name):
    node = state.nodes[name]
    fields = {field: getattr(node, field) for field in node.__struct_fields__}
    return type(node)(**fields | {"allocatable": node.allocatable | {GPU: 8}})


# -- C: which record counts -------------------------------------------------------------------------------------


def test_c1_an_unknown_zone_voids_the_whole_record():
    half_known = at((0, {"cpu": 1}), (7, {"cpu": 1}))
    state = state_of(make_machine(*FOUR))
    state.set_pod(pod_on("p", cpus(2), half_known))
    assert left(state) == [4, 4]


def test_c1_a_pod_without_a_record_is_not_guessed():
    state = state_of(make_machine(*FOUR))
    state.set_pod(pod_on("p", cpus(3)))
    assert left(state) == [4, 4]


# -- D: rebuilding what is free ---------------------------------------------------------------------------------


def test_d1_available_is_allocatable_less_what_is_known_to_be_held():
    state = state_of(make_machine(*FOUR, available=({"cpu": 99}, {"cpu": 99})))
    state.set_pod(pod_on("running", cpus(2), on_zone(1, cpu=2)))
    assert reserve(state, cpus(2), key="pipelined") == [(0,)]
    state.set_pod(pod_on("running-without-a-record", cpus(1)))
    assert left(state) == [2, 2]


def test_d2_a_pod_that_was_just_bound_is_charged_though_the_report_lags():
    state = state_of(make_machine(*FOUR))
    state.set_pod(pod_on("just-bound", cpus(3), on_zone(0, cpu=3)))
    assert reserve(state, cpus(3)) == [(1,)]
    assert isinstance(ask(state, pods_of(cpus(3))), Refusal)


def test_d3_a_deleted_pod_is_given_back_at_once_and_no_second_victim_is_needed():
    lagging = make_machine(*FOUR, available=({"cpu": 1}, {"cpu": 1}))
    state = state_of(lagging)
    for number in (0, 1):
        state.set_pod(pod_on(f"victim{number}", cpus(3), on_zone(number, cpu=3)))
    assert isinstance(ask(state, pods_of(cpus(3))), Refusal)
    state.hold_placements("preemptor", "main", "n0", [])  # nothing is held: nothing happens
    state.remove_pod("victim0")
    assert left(state) == [4, 1]
    assert reserve(state, cpus(3), key="preemptor") == [(0,)]
    assert left(state) == [1, 1]


def test_d3_a_victim_that_still_runs_and_the_preemptor_that_waits_for_it_are_both_charged():
    state = state_of(make_machine(*FOUR))
    for number in (0, 1):
        state.set_pod(pod_on(f"victim{number}", cpus(3), on_zone(number, cpu=3)))
    checkpoint = state.begin()
    state.remove_pod("victim0")
    assignments = placed(ask(state, pods_of(cpus(3)))).assignments
    state.reserve("preemptor", assignments)
    decided = state.placements("preemptor", "main", "n0")
    state.rollback(checkpoint)
    state.reserve("preemptor", assignments)
    state.hold_placements("preemptor", "main", "n0", decided)
    assert left(state) == [0, 1]
    state.remove_pod("victim0")
    assert left(state) == [1, 1]
    assert state.placements("preemptor", "main", "n0") == decided


def test_d4_without_reconstruction_the_report_is_trusted():
    machine = make_machine(*FOUR, available=({"cpu": 1}, {"cpu": 4}))
    state = state_of(machine, reconstruct_available=False)
    state.set_pod(pod_on("counted-already", cpus(3), on_zone(0, cpu=3)))
    assert left(state) == [1, 4]
    assert reserve(state, cpus(2)) == [(1,)]
    assert left(state) == [1, 2]


# -- E: eviction, preemption, rollback --------------------------------------------------------------------------


def with_victims(exact=False):
    """Zones of four CPUs, each with a victim that holds three."""
    state = state_of(make_machine(*FOUR, exact=exact))
    for number in (0, 1):
        state.set_pod(pod_on(f"victim{number}", cpus(3), on_zone(number, cpu=3)))
    assert left(state) == [1, 1]
    return state


def victims_needed(state, shape):
    """The fewest of the victims without which the pod fits, or None; the state is as before."""
    for gone in ((), ("victim0",), ("victim1",), ("victim0", "victim1")):
        checkpoint = state.begin()
        for key in gone:
            state.remove_pod(key)
        fits = not isinstance(ask(state, pods_of(shape)), Refusal)
        state.rollback(checkpoint)
        if fits:
            return gone
    return None


@pytest.mark.parametrize("exact", [False, True])
def test_e1_one_victim_is_enough_and_its_zone_is_taken(exact):
    state = with_victims(exact)
    assert victims_needed(state, cpus(3)) == ("victim0",)
    state.remove_pod("victim0")
    assert reserve(state, cpus(3), key="preemptor") == [(0,)]
    assert left(state) == [1, 1]


@pytest.mark.parametrize("exact", [False, True])
def test_e2_no_victim_helps_where_no_zone_can_hold_the_pod(exact):
    state = with_victims(exact)
    assert victims_needed(state, cpus(5)) is None
    assert ask(state, pods_of(cpus(5))).reason is Reason.NEVER_FITS
    assert left(state) == [1, 1]


@pytest.mark.parametrize("exact", [False, True])
def test_e3_a_victim_finds_a_new_home_in_the_other_zone(exact):
    state = with_victims(exact)
    state.remove_pod("victim0")
    state.remove_pod("victim1")
    assert left(state) == [4, 4]
    assert reserve(state, cpus(3), key="preemptor") == [(0,)]
    assert left(state) == [1, 4]
    assert reserve(state, cpus(3), key="a-victim0-again") == [(1,)]
    assert left(state) == [1, 1]
    assert zones_of(state.placements("preemptor", "main", "n0")) == [(0,)]
    assert isinstance(ask(state, pods_of(cpus(3))), Refusal)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_e4_rollback_brings_both_zones_back(exact, inner):
    state = with_victims(exact)
    before = state.state_inside("n0")
    outer = state.begin()
    state.remove_pod("victim0")
    state.remove_pod("victim1")
    checkpoint = state.begin()
    reserve(state, cpus(3), key="preemptor")
    reserve(state, cpus(3), key="a-victim0-again")
    assert left(state) == [1, 1]
    if inner:
        state.rollback(checkpoint)
        assert left(state) == [4, 4]
    state.rollback(outer)
    assert state.state_inside("n0") == before
    assert left(state) == [1, 1]
    assert not state.placements("preemptor", "main", "n0")


def test_e5_a_victim_without_a_placement_frees_nothing():
    state = with_victims()
    state.set_pod(pod_on("unknown", cpus(3)))
    before = state.state_inside("n0")
    state.remove_pod("unknown")
    assert state.state_inside("n0") == before


def test_e5_without_reconstruction_only_what_is_known_to_be_freed_is_freed():
    machine = make_machine(*FOUR, available=({"cpu": 1}, {"cpu": 1}))
    state = state_of(machine, reconstruct_available=False)
    state.set_pod(pod_on("known", cpus(3), on_zone(0, cpu=3)))
    state.set_pod(pod_on("unknown", cpus(3)))
    checkpoint = state.begin()
    state.remove_pod("unknown")
    assert left(state) == [1, 1]
    state.remove_pod("known")
    assert left(state) == [4, 1]
    state.rollback(checkpoint)
    assert left(state) == [1, 1]


def test_e6_other_amounts_on_the_same_zones_are_another_placement():
    one, other = at((0, {GPU: 3}), (1, {GPU: 1})), at((0, {GPU: 2}), (1, {GPU: 2}))
    assert not same_amounts(one, other)
    assert same_amounts(one, at((0, {GPU: 3, "cpu": 0}), (1, {GPU: 1})))
    state = state_of(make_machine({GPU: 4}, {GPU: 4}, policy=BEST_EFFORT))
    shape = make_shape({GPU: 4})
    assert state.set_pod(pod_on("p", shape, one))
    assert left(state, GPU) == [1, 3]
    assert state.set_pod(pod_on("p", shape, other))
    assert left(state, GPU) == [2, 2]
    assert not state.set_pod(pod_on("p", shape, other))


def test_e7_an_over_quota_victim_is_taken_where_its_zone_is_needed():
    machine = make_machine({"cpu": 4, GPU: 1}, {"cpu": 4})
    state = state_of(machine)
    for number in (0, 1):
        state.set_pod(pod_on(f"victim{number}", cpus(3), on_zone(number, cpu=3)))
    assert victims_needed(state, make_shape({"cpu": 3, GPU: 1})) == ("victim0",)


# -- beyond the table -------------------------------------------------------------------------------------------


def test_every_mode_of_placement_counts_by_kubelet():
    for policy in Policy:
        state = state_of(make_machine(*FOUR), make_machine(*FOUR, node="n1"))
        answer = ask(state, pods_of(cpus(3), 4, policy))
        assert nodes_of(answer) == {"n0": 2, "n1": 2}
        assert isinstance(ask(state, pods_of(cpus(3), 5, policy)), Refusal)


def test_extending_counts_by_kubelet():
    state = state_of(make_machine(*FOUR), make_machine(*FOUR, node="n1"))
    assert reserve(state, cpus(3)) == [(0,)]
    grown = extend(state, "w", pods_of(cpus(3), 4), 3)
    assert nodes_of(grown) == {"n0": 2, "n1": 2}
    assert isinstance(extend(state, "w", pods_of(cpus(3), 5), 4), Refusal)
    before = state.placements("w", "main", "n0")
    state.reserve("w", [grown])
    assert state.placements("w", "main", "n0")[:1] == before
    assert zones_of(state.placements("w", "main", "n0")) == [(0,), (1,)]
