"""Where pods go: each mode, ties, natural order, levels without a host, several pod sets, leader and workers."""

import pytest
from support.engine_factories import (
    BLOCK,
    GPU,
    HOST,
    LEVELS,
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
)

from engine.model import Policy, TopologyRequest
from engine.placement import place
from engine.reasons import Reason
from engine.results import Placement, Refusal, WorkloadRequest


def domains(answer, level=1):
    """Domains of a level that an answer uses."""
    return sorted({part.values[: level + 1] for part in placed(answer).assignments[0].slices})


# -- required -------------------------------------------------------------------------------------------------


def test_required_takes_the_tightest_of_equally_good_domains():
    state = racks({"b1/r1": [8], "b1/r2": [5], "b1/r3": [4], "b1/r4": [3]})
    assert nodes_of(ask(state, make_pod_set(4))) == {"n2": 4}


def test_required_prefers_fewer_nodes_to_a_tighter_domain():
    state = racks({"b1/r1": [1, 1, 1, 1], "b1/r2": [9]})
    assert nodes_of(ask(state, make_pod_set(4))) == {"n4": 4}


def test_required_never_spans_two_domains():
    state = racks({"b1/r1": [4, 3], "b1/r2": [4, 3]})
    assert domains(ask(state, make_pod_set(7))) == [("b1", "r1")]
    refusal = ask(state, make_pod_set(8))
    assert refusal.reason is Reason.NEVER_FITS
    assert "8 pods do not fit one rack: the largest, b1/r1, has 7" in refusal.message
    assert GPU in refusal.message


def test_the_last_node_is_the_smallest_that_suffices():
    state = racks({"b1/r1": [8, 5, 3, 2]})
    assert nodes_of(ask(state, make_pod_set(10))) == {"n0": 8, "n3": 2}
    assert nodes_of(ask(state, make_pod_set(11))) == {"n0": 8, "n2": 3}
    assert nodes_of(ask(state, make_pod_set(5))) == {"n1": 5}


def test_required_block_takes_fewest_racks_then_fewest_nodes():
    state = racks({"b1/r1": [4, 4], "b1/r2": [2, 2, 2, 2], "b1/r3": [8], "b2/r1": [1] * 15})
    assert nodes_of(ask(state, make_pod_set(8, level=BLOCK))) == {"n6": 8}
    answer = ask(state, make_pod_set(16, level=BLOCK))
    assert nodes_of(answer) == {"n0": 4, "n1": 4, "n6": 8}
    assert domains(ask(state, make_pod_set(15, level=BLOCK))) == [("b2", "r1")]  # one rack, though of 15 nodes


def test_greedy_is_improved_where_it_misses_the_best():
    # Two racks are needed either way; the two largest (10 + 10) need six nodes, 10 + 9 needs four.
    state = racks({"b1/r1": [2] * 5, "b1/r2": [10], "b1/r3": [3, 3, 3], "b2/r1": [1]})
    answer = ask(state, make_pod_set(19, level=BLOCK))
    assert nodes_of(answer) == {"n5": 10, "n6": 3, "n7": 3, "n8": 3}


def test_required_host():
    state = racks({"b1/r1": [8, 5, 8]})
    assert nodes_of(ask(state, make_pod_set(5, level=HOST))) == {"n1": 5}
    assert ask(state, make_pod_set(9, level=HOST)).reason is Reason.NEVER_FITS


# -- preferred ------------------------------------------------------------------------------------------------


def test_preferred_stays_in_one_domain_where_it_can():
    state = racks({"b1/r1": [4], "b1/r2": [8]})
    assert nodes_of(ask(state, make_pod_set(4, Policy.PREFERRED))) == {"n0": 4}


def test_preferred_goes_one_level_wider_and_uses_as_few_domains_as_possible():
    state = racks({"b1/r1": [8], "b1/r2": [8], "b2/r1": [6], "b2/r2": [6], "b2/r3": [6]})
    answer = ask(state, make_pod_set(18, Policy.PREFERRED))
    assert domains(answer, 0) == [("b2",)]
    assert domains(ask(state, make_pod_set(14, Policy.PREFERRED))) == [("b1", "r1"), ("b1", "r2")]


def test_of_several_blocks_that_hold_all_the_one_with_the_fewest_nodes_is_taken():
    state = racks(
        {"b1/r1": [3, 3], "b1/r2": [3, 3], "b2/r1": [8, 1], "b2/r2": [4, 1], "b3/r1": [4, 4], "b3/r2": [4, 4]}
    )
    assert nodes_of(ask(state, make_pod_set(12, Policy.PREFERRED, HOST))) == {"n4": 8, "n6": 4}


def test_of_several_blocks_with_equally_few_nodes_the_one_with_the_fewest_racks_is_taken():
    state = racks({"b1/r1": [8], "b1/r2": [8], "b1/r3": [8], "b2/r1": [8, 8], "b2/r2": [8, 3]})
    assert nodes_of(ask(state, make_pod_set(24, Policy.PREFERRED, HOST))) == {"n3": 8, "n4": 8, "n5": 8}


def test_preferred_spreads_over_the_whole_flavor_at_last():
    state = racks({"b1/r1": [8], "b1/r2": [2], "b2/r1": [7], "b2/r2": [2]})
    answer = ask(state, make_pod_set(15, Policy.PREFERRED))
    assert nodes_of(answer) == {"n0": 8, "n2": 7}
    assert ask(state, make_pod_set(20, Policy.PREFERRED)).reason is Reason.NEVER_FITS


def test_twenty_from_nineteen_ten_ten():
    state = racks({"b1/r1": [19], "b1/r2": [10], "b1/r3": [10]})
    assert len(domains(ask(state, make_pod_set(20, Policy.PREFERRED)))) == 2


# -- unconstrained --------------------------------------------------------------------------------------------


def test_unconstrained_fills_used_nodes_first():
    state = racks({"b1/r1": [8, 8], "b1/r2": [8, 3]})
    assert nodes_of(ask(state, make_pod_set(2, Policy.UNCONSTRAINED))) == {"n3": 2}


def test_unconstrained_takes_one_node_in_the_fullest_rack():
    state = racks({"b1/r1": [8, 8, 8], "b1/r2": [8, 1], "b2/r1": [8, 3]})
    assert nodes_of(ask(state, make_pod_set(8, Policy.UNCONSTRAINED))) == {"n3": 8}


def test_unconstrained_takes_the_fewest_nodes_together():
    state = racks({"b1/r1": [8, 8, 8], "b1/r2": [8, 1], "b2/r1": [8], "b2/r2": [8, 8]})
    assert nodes_of(ask(state, make_pod_set(16, Policy.UNCONSTRAINED))) == {"n6": 8, "n7": 8}, "in the tightest rack"
    assert nodes_of(ask(state, make_pod_set(32, Policy.UNCONSTRAINED))) == {"n0": 8, "n1": 8, "n2": 8, "n3": 8}


def test_unconstrained_leaves_racks_whole_where_those_in_use_will_do():
    state = racks({"b1/r1": [8, 8], "b1/r2": [8, 8], "b2/r1": [8, 8]})
    for node in ("n2", "n4"):
        state.set_pod(make_pod(f"default/{node}", node))
    assert nodes_of(ask(state, make_pod_set(15, Policy.UNCONSTRAINED))) == {"n2": 7, "n3": 8}
    assert nodes_of(ask(state, make_pod_set(16, Policy.UNCONSTRAINED))) == {"n3": 8, "n5": 8}
    assert nodes_of(ask(state, make_pod_set(24, Policy.UNCONSTRAINED))) == {"n0": 8, "n1": 8, "n3": 8}, "or four nodes"


# -- order ----------------------------------------------------------------------------------------------------


def test_slices_are_in_natural_order_whatever_order_the_nodes_came_in():
    names = ["n10", "n2", "n1", "n11", "n3"]
    state = make_state([make_node(name, gpu=1) for name in names])
    slices = placed(ask(state, make_pod_set(5))).assignments[0].slices
    assert [part.values[-1] for part in slices] == ["n1", "n2", "n3", "n10", "n11"]


def test_ties_go_to_the_first_in_natural_order():
    state = racks({"b10/r1": [4], "b2/r10": [4], "b2/r9": [4]})
    assert domains(ask(state, make_pod_set(4))) == [("b2", "r9")]


def test_domain_names_repeat_under_different_parents():
    state = racks({"b1/r1": [4], "b2/r1": [4]})
    assert ask(state, make_pod_set(8)).reason is Reason.NEVER_FITS
    assert len(domains(ask(state, make_pod_set(8, Policy.PREFERRED)))) == 2


def test_equal_inputs_give_equal_outputs_in_any_order_of_events():
    nodes = [make_node(f"n{i}", f"b{i % 2}", f"r{i % 5}", gpu=1 + i % 4) for i in range(40)]
    one, other = make_state(nodes), make_state(reversed(nodes))
    for count in (1, 3, 9, 17):
        for policy in Policy:
            assert ask(one, make_pod_set(count, policy)) == ask(other, make_pod_set(count, policy))


# -- levels without a host ------------------------------------------------------------------------------------


def rackless(rooms):
    nodes = [make_node(f"n{i}", rack=rack, gpu=gpu) for i, (rack, gpu) in enumerate(rooms)]
    return make_state(nodes, make_flavor(levels=(BLOCK, RACK)))


def test_fragments_of_nodes_are_never_added_up():
    state = rackless([("r1", 3), ("r1", 3), ("r2", 4)])
    two = make_pod_set(2, gpu=2)
    assert nodes_of(ask(state, two)) == {"n2": 2}
    assert isinstance(ask(state, make_pod_set(3, gpu=2)), Refusal)  # r1 has six GPUs free, but on two nodes


def test_a_slice_is_a_domain_of_the_last_level_and_names_its_nodes():
    state = rackless([("r1", 3), ("r1", 3), ("r2", 1)])
    (part,) = placed(ask(state, make_pod_set(5))).assignments[0].slices
    assert (part.values, part.count, part.nodes) == (("b1", "r1"), 5, (("n0", 3), ("n1", 2)))


def test_two_nodes_with_one_hostname_label_are_two_nodes_where_it_is_no_level():
    nodes = [make_node("a", gpu=3, labels={HOST: "same"}), make_node("b", gpu=3, labels={HOST: "same"})]
    state = make_state(nodes, make_flavor(levels=(BLOCK, RACK)))
    assert isinstance(ask(state, make_pod_set(2, gpu=3)), Placement)
    assert isinstance(ask(state, make_pod_set(1, gpu=4)), Refusal)


# -- several pod sets -----------------------------------------------------------------------------------------


def test_pod_sets_see_each_others_reservations():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    answer = ask(state, make_pod_set(8, name="a"), make_pod_set(8, name="b"))
    assert nodes_of(answer, 0) | nodes_of(answer, 1) == {"n0": 8, "n1": 8}


def test_all_pod_sets_or_none_and_nothing_is_left_behind():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    version, free = state.version, {name: state.free_on_node(name) for name in state.nodes}
    refusal = ask(state, make_pod_set(8, name="a"), make_pod_set(9, name="b"))
    assert (refusal.reason, refusal.pod_set) == (Reason.NEVER_FITS, "b")
    assert {name: state.free_on_node(name) for name in state.nodes} == free
    assert state.version == version
    assert not state.workloads


def test_another_order_of_pod_sets_is_tried_before_refusing():
    # In request order the small set takes the only node that can hold the large pods.
    state = make_state([make_node("big", gpu=8, cpu=8000), make_node("small", rack="r2", gpu=2, cpu=96_000)])
    small, large = make_pod_set(2, name="small", gpu=1), make_pod_set(1, name="large", gpu=7)
    state.set_pod(make_pod("x", "small", gpu=0, requests={"cpu": 1}))
    answer = ask(state, make_pod_set(1, name="s", gpu=2, requests={GPU: 2}), large)
    assert nodes_of(answer, 1) == {"big": 1}
    assert [part.pod_set for part in placed(ask(state, small, large)).assignments] == ["small", "large"]


def test_all_orders_of_four_pod_sets_are_tried_and_as_many_of_five():
    def orders(count):
        units = [(make_pod_set(1, name=f"set{at}", gpu=at),) for at in range(count)]
        return [tuple(unit[0].name for unit in order) for order in place._orders(units)]

    for count, tried in ((1, 1), (2, 2), (3, 6), (4, 24), (5, place.ORDERS)):
        assert len(orders(count)) == len(set(orders(count))) == tried
    assert orders(3)[:2] == [("set0", "set1", "set2"), ("set2", "set1", "set0")]


# -- leader and workers ---------------------------------------------------------------------------------------


def leader(**more):
    return make_pod_set(**({"count": 1, "name": "leader", "group": "g", "gpu": 0, "requests": {"cpu": 1000}} | more))


def workers(count, **more):
    return make_pod_set(**({"count": count, "name": "workers", "group": "g"} | more))


def test_the_leader_sits_with_the_first_workers():
    state = racks({"b1/r1": [8, 8], "b1/r2": [8, 8]})
    answer = ask(state, leader(), workers(16))
    assert list(nodes_of(answer, 0)) == [next(iter(nodes_of(answer, 1)))]
    assert [part.pod_set for part in placed(answer).assignments] == ["leader", "workers"]


def test_the_leader_takes_room_that_the_workers_then_lack():
    # A leader with a GPU and 15 workers fill r1; 16 workers and the leader fit no rack.
    state = racks({"b1/r1": [8, 8]})
    answer = ask(state, leader(requests={GPU: 1}), workers(15))
    assert sum(nodes_of(answer, 0).values()) == 1
    assert sum(nodes_of(answer, 1).values()) == 15
    assert list(nodes_of(answer, 0)) == ["n0"]
    assert isinstance(ask(state, leader(requests={GPU: 1}), workers(16)), Refusal)


def test_the_group_shares_one_domain():
    state = racks({"b1/r1": [8], "b1/r2": [4, 4, 1]})
    answer = ask(state, leader(requests={GPU: 1}), workers(8))
    assert {part.values[1] for one in placed(answer).assignments for part in one.slices} == {"r2"}


def test_a_group_is_refused_whole():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    refusal = ask(state, leader(requests={"fpga": 1}), workers(2))
    assert isinstance(refusal, Refusal)
    assert not state.workloads


def test_a_preferred_group_spills_together():
    state = racks({"b1/r1": [4], "b1/r2": [4], "b2/r1": [4]})
    answer = ask(state, leader(requests={GPU: 1}, policy=Policy.PREFERRED), workers(7, policy=Policy.PREFERRED))
    blocks = {part.values[0] for one in placed(answer).assignments for part in one.slices}
    assert blocks == {"b1"}


# -- flavors and refusals -------------------------------------------------------------------------------------


def two_flavors():
    state = make_state([make_node("a", gpu=2, labels={"f": "a"})], make_flavor("fa", node_labels={"f": "a"}))
    state.set_flavor(make_flavor("fb", (RACK, HOST), node_labels={"f": "b"}))
    state.set_node(make_node("b", gpu=8, labels={"f": "b"}))
    return state


def test_the_first_flavor_by_name_that_takes_it():
    state = two_flavors()
    assert placed(ask(state, make_pod_set(1))).assignments[0].flavor == "fa"
    assert placed(ask(state, make_pod_set(4))).assignments[0].flavor == "fb"
    assert placed(ask(state, make_pod_set(1), flavors=("fb", "fa"))).assignments[0].flavor == "fb"


def test_only_flavors_with_the_level_are_asked():
    state = two_flavors()
    assert ask(state, make_pod_set(4, level=BLOCK)).flavor == "fa"
    refusal = ask(state, make_pod_set(1, level="no/such"))
    assert refusal.reason is Reason.NO_FLAVOR
    assert all(level in refusal.message for level in LEVELS)
    assert ask(state, make_pod_set(1, level=BLOCK), flavors=("fb",)).reason is Reason.UNKNOWN_LEVEL
    assert ask(state, make_pod_set(1), flavors=("zz",)).reason is Reason.NO_FLAVOR


def test_a_flavor_without_nodes_says_so():
    flavor = make_flavor(node_labels={"f": "a"})
    assert ask(make_state([], flavor), make_pod_set(1)).reason is Reason.NO_NODES
    bare = make_node("n1", labels={"f": "a"})
    labels = {key: value for key, value in bare.labels.items() if key != RACK}
    refusal = ask(make_state([type(bare)(name="n1", labels=labels)], flavor), make_pod_set(1))
    assert refusal.reason is Reason.NO_NODES
    assert "none of its nodes has the label cloud/rack" in refusal.message
    other = {key: value for key, value in bare.labels.items() if key != BLOCK}
    lacking = [type(bare)(name="n1", labels=labels), type(bare)(name="n2", labels=other)]
    assert (
        "2 nodes have f=a, but none has all level labels" in ask(make_state(lacking, flavor), make_pod_set(1)).message
    )


def test_what_never_fits_is_told_from_what_does_not_fit_now():
    state = make_state([make_node("n1")], pods=[make_pod(gpu=4)])
    assert ask(state, make_pod_set(8)).reason is Reason.DOES_NOT_FIT
    assert ask(state, make_pod_set(9)).reason is Reason.NEVER_FITS
    state.set_node(make_node("n1", ready=False))
    assert ask(state, make_pod_set(1)).reason is Reason.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("pod_sets", "text"),
    [
        ((), "no pod sets"),
        ((make_pod_set(0),), "count is 0"),
        ((make_pod_set(1), make_pod_set(1)), "used twice"),
        ((make_pod_set(1, requests={"cpu": -1}),), "negative"),
        ((make_pod_set(1, level=None),), "needs a level"),
    ],
)
def test_bad_requests_are_refused_in_words(pod_sets, text):
    refusal = ask(racks({"b1/r1": [8]}), *pod_sets)
    assert refusal.reason is Reason.INVALID_REQUEST
    assert text in refusal.message


def test_place_changes_nothing():
    state = racks({"b1/r1": [8, 8]})
    before = state.version
    request = WorkloadRequest("w", (make_pod_set(3),))
    assert ask(state, *request.pod_sets) == ask(state, *request.pod_sets)
    assert state.version == before


def test_unconstrained_needs_no_level():
    state = racks({"b1/r1": [8]})
    pod_set = make_pod_set(2, Policy.UNCONSTRAINED)
    assert pod_set.topology == TopologyRequest(policy=Policy.UNCONSTRAINED)
    assert nodes_of(ask(state, pod_set)) == {"n0": 2}
