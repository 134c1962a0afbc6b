"""Assignments that grow, shrink, or leave lost nodes."""

import random
from collections import Counter

import pytest
from support.engine_factories import (
    BLOCK,
    GPU,
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

from engine.model import Policy
from engine.placement.place import extend, replace, shrink
from engine.placement.resize import _taken_whole
from engine.reasons import Reason
from engine.results import Refusal


def holding(state, pod_set):
    (assignment,) = placed(ask(state, pod_set)).assignments
    state.reserve("w", [assignment])
    return assignment


# -- extend ---------------------------------------------------------------------------------------------------


def test_extend_fills_used_nodes_first_and_stays_in_the_domain():
    state = racks({"b1/r1": [4, 8], "b1/r2": [8, 8]})
    assert nodes_of(holding(state, make_pod_set(10))) == {"n0": 2, "n1": 8}
    more = extend(state, "w", make_pod_set(12), 2)
    assert nodes_of(more) == {"n0": 4, "n1": 8}
    assert more.count == 12
    refusal = extend(state, "w", make_pod_set(13), 3)
    text = f"3 more pods do not fit in the same rack: b1/r1 has 12 {GPU} in all; 13 are wanted"
    assert (refusal.reason, refusal.message) == (Reason.NEVER_FITS, text)


def test_extend_changes_nothing_until_reserved():
    state = racks({"b1/r1": [8]})
    holding(state, make_pod_set(2))
    version = state.version
    more = extend(state, "w", make_pod_set(5), 3)
    assert (state.version, state.free_on_node("n0")["nvidia.com/gpu"]) == (version, 6)
    state.reserve("w", [more])
    assert state.free_on_node("n0")["nvidia.com/gpu"] == 3


def test_preferred_may_leave_the_domain_when_it_must():
    state = racks({"b1/r1": [4], "b1/r2": [4], "b2/r1": [8]})
    holding(state, make_pod_set(4, Policy.PREFERRED))
    more = extend(state, "w", make_pod_set(6, Policy.PREFERRED), 2)
    assert nodes_of(more) == {"n0": 4, "n1": 2}
    assert nodes_of(extend(state, "w", make_pod_set(9, Policy.PREFERRED), 5)).keys() == {"n0", "n2"}


def test_extend_keeps_slices_in_tree_order():
    state = racks({"b1/r1": [2, 2, 8]})
    holding(state, make_pod_set(8))
    more = extend(state, "w", make_pod_set(11), 3)
    assert [part.values[-1] for part in more.slices] == ["n0", "n1", "n2"]
    assert [part.count for part in more.slices] == [2, 1, 8]


def test_extending_by_nothing_is_the_same_assignment():
    state = racks({"b1/r1": [8]})
    assignment = holding(state, make_pod_set(2))
    assert extend(state, "w", make_pod_set(2), 0) == assignment


def test_extend_where_the_last_level_is_the_rack():
    nodes = [make_node("n0", gpu=4), make_node("n1", gpu=4), make_node("n2", rack="r2", gpu=5)]
    state = make_state(nodes, make_flavor(levels=(BLOCK, RACK)))
    holding(state, make_pod_set(6))
    (part,) = extend(state, "w", make_pod_set(8), 2).slices
    assert (part.values, part.count) == (("b1", "r1"), 8)
    assert isinstance(extend(state, "w", make_pod_set(9), 3), Refusal)


@pytest.mark.parametrize("change", [lambda s: extend(s, "x", make_pod_set(1), 1), lambda s: shrink(s, "x", "main", 1)])
def test_a_workload_that_holds_nothing_cannot_change(change):
    with pytest.raises(ValueError, match="holds no pod set"):
        change(racks({"b1/r1": [8]}))


# -- shrink ---------------------------------------------------------------------------------------------------


def test_shrink_gives_back_from_the_end_of_rank_order():
    state = racks({"b1/r1": [4, 4, 4]})
    holding(state, make_pod_set(12))
    assert nodes_of(shrink(state, "w", "main", 5)) == {"n0": 4, "n1": 3}
    assert shrink(state, "w", "main", 12).slices == ()
    assert nodes_of(shrink(state, "w", "main", 0)) == {"n0": 4, "n1": 4, "n2": 4}


def test_shrink_gives_back_unused_slots_first():
    state = racks({"b1/r1": [4, 4]})
    holding(state, make_pod_set(8))
    for i in range(3):
        state.set_pod(make_pod(f"p{i}", "n1", claim=("w", "main")))
    assert nodes_of(shrink(state, "w", "main", 3)) == {"n0": 2, "n1": 3}
    assert nodes_of(shrink(state, "w", "main", 6)) == {"n1": 2}


def test_shrink_keeps_what_it_is_told_to_keep():
    state = racks({"b1/r1": [4, 4]})
    holding(state, make_pod_set(8))
    assert nodes_of(shrink(state, "w", "main", 4, {("b1", "r1", "n1"): 4})) == {"n1": 4}
    assert nodes_of(shrink(state, "w", "main", 6, {("b1", "r1", "n1"): 4})) == {"n1": 2}


def one_by_one(counts, unused, by, size):
    """Whole slices that nobody uses, from the end: each looked at by itself."""
    owners = [at for at, count in enumerate(counts) for _ in range(count)]
    for number in reversed(range(len(owners) // size)):
        takes = Counter(owners[number * size : (number + 1) * size])
        if by >= size and all(take <= unused[at] for at, take in takes.items()):
            for at, take in takes.items():
                counts[at] -= take
                unused[at] -= take
            by -= size
    return by


def test_whole_slices_go_as_if_each_was_looked_at_by_itself():
    rng = random.Random(7)
    for _ in range(3000):
        counts = [rng.randint(1, 9) for _ in range(rng.randint(0, 6))]
        unused, by, size = [rng.randint(-1, count) for count in counts], rng.randint(0, 20), rng.randint(1, 5)
        wanted, left = (counts[:], unused[:]), (counts[:], unused[:])
        assert _taken_whole(*left, by, size) == one_by_one(*wanted, by, size)
        assert left == wanted


def test_slices_of_any_number_of_pods_are_arithmetic():
    counts, unused = [10**15, 3, 10**15], [10**15, 0, 10**15 - 7]
    assert _taken_whole(counts, unused, 10**15, 2) == 0
    assert (counts, unused) == ([10**15 - 8, 3, 8], [10**15 - 8, 0, 1])


# -- replace --------------------------------------------------------------------------------------------------


def test_replace_moves_only_what_was_lost_within_the_domain():
    state = racks({"b1/r1": [4, 4, 4], "b1/r2": [7]})
    holding(state, make_pod_set(8))
    state.set_node(make_node("n0", gpu=4, ready=False))
    moved = replace(state, "w", make_pod_set(8), {"n0"})
    assert nodes_of(moved) == {"n1": 4, "n2": 4}
    assert nodes_of(replace(state, "w", make_pod_set(8), {"n0", "n9"})) == {"n1": 4, "n2": 4}
    assert isinstance(replace(state, "w", make_pod_set(8), {"n0", "n1"}), Refusal)


def test_replace_does_not_put_pods_back_on_a_lost_node():
    state = racks({"b1/r1": [8, 4]})
    holding(state, make_pod_set(2))
    lost = next(iter(nodes_of(state.assignments("w")["main"])))
    assert lost not in nodes_of(replace(state, "w", make_pod_set(2), {lost}))


def test_replace_keeps_the_domain_even_when_all_nodes_are_lost():
    state = racks({"b1/r1": [4, 4], "b1/r2": [8]})
    assert nodes_of(holding(state, make_pod_set(4))) == {"n0": 4}
    assert nodes_of(replace(state, "w", make_pod_set(4), {"n0"})) == {"n1": 4}


def test_replacing_nothing_is_the_same_assignment():
    state = racks({"b1/r1": [8]})
    assignment = holding(state, make_pod_set(4))
    assert replace(state, "w", make_pod_set(4), {"elsewhere"}) == assignment


def test_why_a_lost_pod_has_no_other_place_is_told_of_its_own_rack():
    """The reason named the rack with most room, which the pods may not go to, and so contradicted itself."""
    state = racks({"b1/r1": [8, 8], "b1/r2": [8, 8, 8]})
    state.reserve("w", placed(ask(state, make_pod_set(2, gpu=8))).assignments)
    state.remove_node("n1")
    refusal = replace(state, "w", make_pod_set(2, gpu=8), {"n1"})
    text = f"1 more pod does not fit in the same rack: b1/r1 has 8 {GPU} in all; 16 are wanted"
    assert refusal.message == text


def test_a_rack_of_which_no_node_is_left_is_named():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    state.reserve("w", placed(ask(state, make_pod_set(1, gpu=8))).assignments)
    (part,) = state.assignments("w")["main"].slices
    state.remove_node(part.nodes[0][0])
    refusal = replace(state, "w", make_pod_set(1, gpu=8), {part.nodes[0][0]})
    assert refusal.message.endswith(f"b1/{part.values[1]} has no nodes any more that take its pods")


def test_why_no_more_pods_fit_anywhere_counts_what_more_fits():
    state = racks({"b1/r1": [8, 8, 8]})
    state.reserve("other", placed(ask(state, make_pod_set(1, gpu=8))).assignments)
    state.reserve("w", placed(ask(state, make_pod_set(1, gpu=8, policy=Policy.UNCONSTRAINED))).assignments)
    refusal = extend(state, "w", make_pod_set(3, gpu=8, policy=Policy.UNCONSTRAINED), 2)
    assert "2 more pods do not fit anywhere: the 3 nodes of flavor tas take 1 more" in refusal.message
