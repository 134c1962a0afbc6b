"""The state: charging, claims, reservations, transactions, restoring after a restart."""

import pytest
from support.engine_factories import (
    BLOCK,
    GPU,
    HOST,
    RACK,
    ask,
    make_flavor,
    make_node,
    make_pod,
    make_pod_set,
    make_state,
    nodes_of,
    placed,
    racks,
    stored,
)

from engine.cluster.assignment import Assignment, Slice
from engine.cluster.state import ClusterState
from engine.model import Policy
from engine.results import Refusal

WIDE = make_flavor(levels=(BLOCK, RACK))


def gpus(state, *names):
    """Free GPUs of the nodes."""
    found = [state.free_on_node(name)[GPU] for name in names]
    return found[0] if len(found) == 1 else found


def held(state, key, *pod_sets):
    """Place and reserve; returns the assignments."""
    found = placed(ask(state, *pod_sets, key=key)).assignments
    state.reserve(key, found)
    return found


# -- nodes and pods -------------------------------------------------------------------------------------------


def test_a_heartbeat_changes_nothing():
    state = racks({"b1/r1": [8]})
    version = state.version
    assert state.set_node(make_node("n0")) is False
    assert state.set_flavor(make_flavor()) is False
    assert state.version == version
    assert state.set_node(make_node("n0", gpu=7)) is True
    assert state.version == version + 1


def test_pods_are_charged_once_whatever_is_applied_twice():
    state = racks({"b1/r1": [8, 8]})
    assert [state.set_pod(make_pod(gpu=3, node="n0")) for _ in range(2)] == [True, False]
    assert gpus(state, "n0") == 5
    assert state.free_on_node("n0")["pods"] == 109
    assert state.set_pod(make_pod(gpu=2, node="n1"))
    assert gpus(state, "n0", "n1") == [8, 6]
    assert [state.remove_pod("default/p") for _ in range(2)] == [True, False]
    assert gpus(state, "n0", "n1") == [8, 8]


def test_a_pod_may_say_how_many_pods_it_stands_for():
    state = racks({"b1/r1": [8]})
    state.set_pod(make_pod(node="n0", requests={"pods": 51}))
    assert state.free_on_node("n0")["pods"] == 59


def test_pods_and_slots_outlive_their_node():
    state = racks({"b1/r1": [8]})
    held(state, "w", make_pod_set(2))
    state.set_pod(make_pod(gpu=3, node="n0"))
    assert [state.remove_node("n0") for _ in range(2)] == [True, False]
    assert isinstance(ask(state, make_pod_set(1)), Refusal)
    state.set_node(make_node("n0"))
    assert gpus(state, "n0") == 3
    assert nodes_of(ask(state, make_pod_set(3))) == {"n0": 3}


def test_pods_may_come_before_their_node():
    state = make_state(pods=[make_pod(gpu=3, node="late")])
    state.set_node(make_node("late"))
    assert gpus(state, "late") == 5


def test_a_node_may_move_to_another_rack():
    state = racks({"b1/r1": [8, 8], "b1/r2": [6]})
    held(state, "w", make_pod_set(3, level=HOST))
    assert nodes_of(state.assignments("w")["main"]) == {"n2": 3}
    state.set_node(make_node("n2", rack="r1", gpu=6))
    assert gpus(state, "n2") == 3
    assert domains_of(state, 19) == {"r1"}


def domains_of(state, count):
    return {part.values[1] for part in placed(ask(state, make_pod_set(count))).assignments[0].slices}


def test_many_nodes_may_be_added_and_removed_between_placements():
    state = make_state()
    for i in range(300):
        state.set_node(make_node(f"n{i}", rack=f"r{i // 10}", gpu=1))
    assert sum(nodes_of(ask(state, make_pod_set(10))).values()) == 10
    for i in range(0, 300, 2):
        state.remove_node(f"n{i}")
    assert isinstance(ask(state, make_pod_set(10)), Refusal)
    assert set(nodes_of(ask(state, make_pod_set(5)))) == {"n1", "n3", "n5", "n7", "n9"}


def test_a_new_resource_may_appear_at_any_time():
    state = racks({"b1/r1": [8]})
    held(state, "w", make_pod_set(1))
    state.set_node(make_node("n1", allocatable={"fpga": 2}))
    held(state, "f", make_pod_set(2, requests={"fpga": 1}))
    state.release_workload("w")
    assert gpus(state, "n0") == 8
    assert state.free_on_node("n1")["fpga"] == 0


# -- reservations ---------------------------------------------------------------------------------------------


def test_reserve_replaces_and_release_gives_back():
    state = racks({"b1/r1": [8, 8]})
    (small,) = placed(ask(state, make_pod_set(2))).assignments
    (large,) = placed(ask(state, make_pod_set(12))).assignments
    for _ in range(2):
        state.reserve("w", [small])
    assert sum(gpus(state, "n0", "n1")) == 14
    state.reserve("w", [large])
    assert sum(gpus(state, "n0", "n1")) == 4
    assert [state.release_workload("w") for _ in range(2)] == [True, False]
    assert gpus(state, "n0", "n1") == [8, 8]


def test_an_assignment_holds_its_nodes_even_after_others_came():
    state = racks({"b1/r5": [8], "b1/r6": [8]})
    (assignment,) = placed(ask(state, make_pod_set(8))).assignments
    assert nodes_of(assignment) == {"n0": 8}
    state.set_node(make_node("first", rack="r1"))
    ask(state, make_pod_set(1))
    state.reserve("w", [assignment])
    assert gpus(state, "first", "n0", "n1") == [8, 0, 8]
    state.remove_node("first")
    ask(state, make_pod_set(1))
    state.release_workload("w")
    assert gpus(state, "n0", "n1") == [8, 8]


def test_an_assignment_lets_go_of_a_tree_that_was_replaced():
    state = racks({"b1/r1": [8, 8]})
    (assignment,) = held(state, "w", make_pod_set(9))
    before = assignment.slices
    assert assignment.packing is not None
    state.set_node(make_node("first", rack="r0"))
    ask(state, make_pod_set(1))
    assert (assignment.packing, assignment.slices) == (None, before)
    state.release_workload("w")
    assert gpus(state, "n0", "n1") == [8, 8]


def test_workloads_show_what_is_held():
    state = racks({"b1/r1": [8]})
    (assignment,) = held(state, "w", make_pod_set(2))
    assert state.workloads == {"w": {"main": assignment}}
    assert state.assignments("other") == {}


# -- claims ---------------------------------------------------------------------------------------------------


def claimed(key, node, gpu=1, workload="w"):
    return make_pod(key, node, gpu, claim=(workload, "main"))


def test_a_claiming_pod_fills_its_slot():
    state = racks({"b1/r1": [4, 4]})
    held(state, "w", make_pod_set(6))
    assert sum(gpus(state, "n0", "n1")) == 2
    state.set_pod(claimed("a", "n0"))
    assert sum(gpus(state, "n0", "n1")) == 2
    assert state.unclaimed("w", "main") == ((("b1", "r1", "n0"), 3), (("b1", "r1", "n1"), 2))
    state.remove_pod("a")
    assert sum(gpus(state, "n0", "n1")) == 2
    state.release_workload("w")
    assert sum(gpus(state, "n0", "n1")) == 8


def test_the_pods_own_requests_are_charged_instead_of_the_unit():
    state = racks({"b1/r1": [8]})
    held(state, "w", make_pod_set(2, gpu=2))
    state.set_pod(claimed("a", "n0", gpu=1))
    assert gpus(state, "n0") == 8 - 2 - 1


def test_more_pods_than_slots_are_charged_as_foreign():
    state = racks({"b1/r1": [8]})
    held(state, "w", make_pod_set(1))
    for key in "abc":
        state.set_pod(claimed(key, "n0"))
    assert gpus(state, "n0") == 5
    state.remove_pod("a")
    state.remove_pod("b")
    assert gpus(state, "n0") == 7
    state.remove_pod("c")
    assert gpus(state, "n0") == 7


def test_a_claim_elsewhere_frees_nothing_where_each_slice_is_a_host():
    state = racks({"b1/r1": [8, 8]})
    assert nodes_of(held(state, "w", make_pod_set(2))[0]) == {"n0": 2}
    state.set_pod(claimed("a", "n1"))
    assert gpus(state, "n0", "n1") == [6, 7]


def test_a_claim_on_another_node_of_the_slices_domain_fills_a_slot():
    state = make_state([make_node("n0", gpu=4), make_node("n1", gpu=4), make_node("n2", rack="r2", gpu=8)], WIDE)
    held(state, "w", make_pod_set(4, Policy.REQUIRED))
    assert gpus(state, "n0", "n1", "n2") == [0, 4, 8]
    state.set_pod(claimed("a", "n1"))
    assert gpus(state, "n0", "n1", "n2") == [1, 3, 8]
    state.set_pod(claimed("a", "n0"))  # bound elsewhere: the same pod, another node
    assert gpus(state, "n0", "n1", "n2") == [0, 4, 8]
    state.set_pod(claimed("b", "n2"))  # outside the slice's domain: fills nothing
    assert gpus(state, "n0", "n1", "n2") == [0, 4, 7]


@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_what_stays_held_does_not_depend_on_the_order_of_claims(order):
    pods = {"a": claimed("a", "n1"), "b": claimed("b", "n2"), "c": claimed("c", "n1")}
    state = make_state([make_node(f"n{i}", gpu=2) for i in range(4)], WIDE)
    pod_set = make_pod_set(5)
    held(state, "w", pod_set)
    for key in order:
        state.set_pod(pods[key])
    state.set_pod(claimed("d", "n3"))
    state.remove_pod("b")
    assert gpus(state, "n0", "n1", "n2", "n3") == [1, 0, 1, 1]


def test_a_claim_may_come_before_its_reservation():
    state = racks({"b1/r1": [8]})
    (assignment,) = placed(ask(state, make_pod_set(3))).assignments
    state.set_pod(claimed("a", "n0"))
    assert gpus(state, "n0") == 7
    state.reserve("w", [assignment])
    assert gpus(state, "n0") == 5
    state.remove_pod("a")
    assert gpus(state, "n0") == 5
    state.release_workload("w")
    assert gpus(state, "n0") == 8


def test_a_claim_on_a_workload_that_holds_nothing_is_a_foreign_pod():
    state = racks({"b1/r1": [8]})
    state.set_pod(claimed("a", "n0", workload="unknown"))
    assert gpus(state, "n0") == 7
    state.remove_pod("a")
    assert gpus(state, "n0") == 8


def test_releasing_with_claims_leaves_the_pods_charged():
    state = racks({"b1/r1": [8]})
    held(state, "w", make_pod_set(3))
    state.set_pod(claimed("a", "n0"))
    state.release_workload("w")
    assert gpus(state, "n0") == 7


# -- restoring ------------------------------------------------------------------------------------------------


def slices(*parts, levels=None, requests=None):
    return Assignment(
        pod_set="main",
        flavor="tas",
        levels=levels or (BLOCK, RACK, HOST),
        requests=requests or {GPU: 1},
        slices=[Slice(tuple(path.split("/")), count) for path, count in parts],
    )


def test_restored_slots_are_where_they_were():
    before = racks({"b1/r1": [8, 8]})
    (assignment,) = held(before, "w", make_pod_set(11))
    after = racks({"b1/r1": [8, 8]})
    after.restore_slots("w", [stored(assignment)])
    assert gpus(after, "n0", "n1") == gpus(before, "n0", "n1")


def test_restoring_what_is_held_keeps_its_packing():
    state = make_state([make_node("n0", gpu=4), make_node("n1", gpu=4)], WIDE)
    (assignment,) = held(state, "w", make_pod_set(6))
    before, version = gpus(state, "n0", "n1"), state.version
    state.restore_slots("w", [stored(assignment)])
    assert (gpus(state, "n0", "n1"), state.version) == (before, version)


def test_restore_never_fails_but_over_commits():
    state = racks({"b1/r1": [2]})
    state.restore_slots("w", [slices(("b1/r1/n0", 5))])
    assert gpus(state, "n0") == -3
    assert isinstance(ask(state, make_pod_set(1)), Refusal)
    state.release_workload("w")
    assert gpus(state, "n0") == 2


def test_restored_slices_without_nodes_are_packed_where_room_is():
    nodes = [make_node("n0", gpu=4), make_node("n1", gpu=4), make_node("n2", rack="r2")]
    state = make_state(nodes, WIDE, [make_pod("x", "n0", 3)])
    state.restore_slots("w", [slices(("b1/r1", 5), levels=(BLOCK, RACK))])
    assert gpus(state, "n0", "n1", "n2") == [0, 0, 8]
    assert nodes_of(state.assignments("w")["main"]) == {"n0": 1, "n1": 4}
    state.restore_slots("v", [slices(("b1/r1", 2), levels=(BLOCK, RACK))])
    assert sum(gpus(state, "n0", "n1")) == -2


def test_restored_slices_are_packed_where_their_pods_are():
    nodes = [make_node("n0", gpu=4), make_node("n1", gpu=4)]
    state = make_state(nodes, WIDE, [claimed("a", "n1"), claimed("b", "n1")])
    state.restore_slots("w", [slices(("b1/r1", 3), levels=(BLOCK, RACK))])
    assert gpus(state, "n0", "n1") == [3, 2]


def test_slots_whose_nodes_are_not_known_yet_are_held_when_they_come():
    state = make_state()
    state.restore_slots("w", [slices(("b1/r1/n0", 3), ("b1/r1/n1", 2))])
    assert state.unclaimed("w", "main") == ((("b1", "r1", "n0"), 3), (("b1", "r1", "n1"), 2))
    state.set_node(make_node("n0"))
    assert isinstance(ask(state, make_pod_set(6)), Refusal)
    state.set_node(make_node("n1"))
    ask(state, make_pod_set(1))
    assert gpus(state, "n0", "n1") == [5, 6]
    state.release_workload("w")
    assert gpus(state, "n0", "n1") == [8, 8]


def test_slots_whose_nodes_came_are_held_after_a_what_if_too():
    state = make_state()
    state.restore_slots("w", [slices(("b1/r1/n0", 3))])
    state.set_node(make_node("n0"))
    checkpoint = state.begin()
    state.release_workload("w")
    ask(state, make_pod_set(6), key="other")
    state.rollback(checkpoint)
    assert gpus(state, "n0") == 5


def test_a_hostname_label_need_not_be_the_nodes_name():
    state = make_state([make_node("node-a", labels={HOST: "alpha"})])
    state.restore_slots("w", [slices(("b1/r1/alpha", 3))])
    assert gpus(state, "node-a") == 5


# -- transactions ---------------------------------------------------------------------------------------------


def picture(state: ClusterState):
    return (
        {name: state.free_on_node(name) for name in state.nodes},
        dict(state.nodes),
        dict(state.pods),
        state.workloads,
        state.version,
    )


def test_rollback_undoes_every_kind_of_change():
    state = racks({"b1/r1": [8, 8], "b1/r2": [8]})
    held(state, "kept", make_pod_set(3))
    state.set_pod(claimed("p", "n0", workload="kept"))
    before = picture(state)
    checkpoint = state.begin()
    held(state, "w", make_pod_set(6))
    state.release_workload("kept")
    state.set_pod(make_pod("q", "n1", 2))
    state.remove_pod("p")
    state.remove_node("n2")
    state.set_node(make_node("n9", rack="r0"))
    state.set_node(make_node("n0", gpu=5, unschedulable=True))
    state.set_flavor(make_flavor("other", (RACK,)))
    ask(state, make_pod_set(1))
    state.remove_flavor("tas")
    assert picture(state) != before
    state.rollback(checkpoint)
    assert picture(state) == before
    assert set(state.flavors) == {"tas"}
    assert nodes_of(ask(state, make_pod_set(8))) == {"n1": 8}


def test_transactions_nest():
    state = racks({"b1/r1": [8]})
    outer = state.begin()
    state.set_pod(make_pod("a", "n0", 1))
    inner = state.begin()
    state.set_pod(make_pod("b", "n0", 2))
    state.rollback(inner)
    assert gpus(state, "n0") == 7
    inner = state.begin()
    state.set_pod(make_pod("c", "n0", 3))
    state.commit(inner)
    assert gpus(state, "n0") == 4
    state.rollback(outer)
    assert gpus(state, "n0") == 8


def test_a_commit_keeps_and_a_closed_checkpoint_is_refused():
    state = racks({"b1/r1": [8]})
    checkpoint = state.begin()
    state.set_pod(make_pod("a", "n0", 1))
    state.commit(checkpoint)
    assert gpus(state, "n0") == 7
    with pytest.raises(ValueError, match="not open"):
        state.rollback(checkpoint)


def test_a_what_if_of_draining_a_node():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    checkpoint = state.begin()
    state.remove_node("n0")
    assert nodes_of(ask(state, make_pod_set(8))) == {"n1": 8}
    state.rollback(checkpoint)
    assert nodes_of(ask(state, make_pod_set(8))) == {"n0": 8}
