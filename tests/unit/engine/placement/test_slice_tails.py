"""The last slice of a pod set may be a part of one: against every possible placement of small cases, and by hand.

The rule is Kueue's from 0.20 on (PR 15640): one layer of slices, and the tail in one domain of its level. Kueue 0.19.2
admits such a pod set and leaves the tail behind its gate for ever (issue 15277).
"""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine_factories import BLOCK, HOST, LEVELS, RACK, ask, make_node, make_state, nodes_of, racks
from unit.engine.placement.test_slices import cost_of, flat, holding, pods_in, sliced, small_trees

from engine.model import Policy, SliceLayer
from engine.placement.explain import explain
from engine.placement.place import extend, replace, shrink
from engine.reasons import Reason
from engine.results import Placement, Refusal

layers_with_tails = st.sampled_from([(RACK, 2), (RACK, 3), (RACK, 4), (HOST, 2), (HOST, 3), (BLOCK, 4), (BLOCK, 3)])


def is_right(counts, size, total):
    """Whole slices, and the tail in one domain."""
    rests = [pods % size for pods in counts if pods % size]
    return rests == ([total % size] if total % size else [])


def least_with_tail(tree, count, layer, policy, level):
    """The best cost of all possible placements, as `test_slices.least` counts it."""
    hosts = [((*path.split("/"), f"h{i}"), room) for i, (path, room) in enumerate(flat(tree))]
    at, size = layer
    best, asked, rank = None, LEVELS.index(level), LEVELS.index(at)
    for amounts in product(*(range(room + 1) for _, room in hosts)):
        if sum(amounts) != count:
            continue
        used = [(path, pods) for (path, _), pods in zip(hosts, amounts, strict=True) if pods]
        sums = Counter()
        for path, pods in used:
            sums[path[: rank + 1]] += pods
        if not is_right(sums.values(), size, count):
            continue
        widths = [len({path[: depth + 1] for path, _ in used}) for depth in range(3)]
        wider = next((up for up in range(asked + 1) if widths[asked - up] == 1), asked + 1)
        if policy is Policy.REQUIRED and wider:
            continue
        cost = (0, *widths[rank:]) if policy is Policy.UNCONSTRAINED else (wider, *widths[asked:])
        best = cost if best is None else min(best, cost)
    return best


@settings(max_examples=400, deadline=None)
@given(
    small_trees, st.integers(1, 11), layers_with_tails, st.sampled_from(list(Policy)), st.sampled_from([BLOCK, RACK])
)
def test_no_placement_with_a_tail_is_better(tree, count, layer, policy, level):
    if policy is not Policy.UNCONSTRAINED and LEVELS.index(level) > LEVELS.index(layer[0]):
        level = BLOCK
    tree = {path: tree[path] for path in sorted(tree)}
    answer = ask(racks(tree), sliced(count, layer, policy=policy, level=level))
    best = least_with_tail(tree, count, layer, policy, level)
    assert isinstance(answer, Placement) is (best is not None), answer
    if best is not None:
        assert cost_of(answer, [layer], policy, level) == best
        assert is_right(pods_in(answer, layer[0]).values(), layer[1], count)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 200), st.sampled_from(list(Policy)))
def test_large_trees_are_placed_with_one_tail(seed, count, policy):
    random = np.random.default_rng(seed)
    nodes = [make_node(f"n{i}", f"b{i // 96}", f"r{i // 8}", gpu=int(random.integers(0, 9))) for i in range(480)]
    state, pod_set = make_state(nodes), sliced(count, (RACK, 16), policy=policy)
    answer = ask(state, pod_set)
    if isinstance(answer, Refusal):
        assert policy is Policy.REQUIRED
        return
    assert is_right(pods_in(answer, RACK).values(), 16, count)
    assert ask(make_state(nodes), pod_set) == answer


# -- by hand ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "count", "expected"),
    [
        ({"b1/r1": [4], "b1/r2": [4], "b1/r3": [4]}, 10, [2, 4, 4]),
        ({"b1/r1": [4], "b1/r2": [2]}, 6, [2, 4]),
        ({"b1/r1": [6], "b1/r2": [4]}, 10, [4, 6]),
        ({"b1/r1": [6], "b1/r2": [6], "b1/r3": [2]}, 6, [6]),  # the tail beside a whole slice
        ({"b1/r1": [2], "b1/r2": [9]}, 2, [2]),  # fewer than a slice: all of them in one rack, the tightest
        ({"b1/r1": [3], "b1/r2": [3]}, 6, None),
        ({"b1/r1": [4], "b1/r2": [1, 1]}, 6, [2, 4]),
        ({"b1/r1": [4], "b1/r2": [1]}, 6, None),
    ],
)
def test_a_tail_is_in_one_rack(tree, count, expected):
    answer = ask(racks(tree), sliced(count, (RACK, 4)))
    assert (sorted(pods_in(answer, RACK).values()) if isinstance(answer, Placement) else None) == expected


def test_a_refusal_counts_what_a_tail_would_take():
    refusal = ask(racks({"b1/r1": [3], "b1/r2": [3]}), sliced(6, (RACK, 4)))
    assert refusal.reason is Reason.NEVER_FITS
    assert "b1 takes 2 in slices of 4 of one cloud/rack with nothing else running" in refusal.message
    assert "single pods fit, but not whole slices" in refusal.message
    (block,) = explain(racks({"b1/r1": [7], "b1/r2": [4]}), "tas", sliced(6, (RACK, 4)), BLOCK)
    assert block.fits == 10


def test_slices_within_slices_and_slices_that_are_alone_have_no_tail():
    state = racks({"b1/r1": [8]})
    two = ask(state, sliced(10, (RACK, 4), (HOST, 2)))
    assert (two.reason, "count 10 is no multiple of the slice size 4" in two.message) == (Reason.INVALID_REQUEST, True)


# -- as it grows, shrinks and moves --------------------------------------------------------------------------------


def test_growing_makes_a_whole_slice_of_the_tail_first():
    state = racks({"b1/r1": [4], "b1/r2": [4], "b1/r3": [4], "b1/r4": [4]})
    held = holding(state, sliced(10, (RACK, 4)))
    (host,) = (rack for rack, pods in pods_in(held, RACK).items() if pods == 2)
    more = extend(state, "w", sliced(11, (RACK, 4)), 1)
    assert pods_in(more, RACK)[host] == 3
    state.reserve("w", [more])
    more = extend(state, "w", sliced(14, (RACK, 4)), 3)
    assert sorted(pods_in(more, RACK).values()) == [2, 4, 4, 4]
    assert pods_in(more, RACK)[host] == 4


def test_a_tail_that_has_no_room_beside_it_does_not_grow():
    state = racks({"b1/r1": [4], "b1/r2": [2], "b1/r3": [4]})
    holding(state, sliced(6, (RACK, 4)))
    refusal = extend(state, "w", sliced(8, (RACK, 4)), 2)
    assert refusal.reason is Reason.DOES_NOT_FIT
    assert "the rest of a slice must go where the slice is" in refusal.message


@settings(max_examples=150, deadline=None)
@given(
    small_trees, st.integers(1, 11), st.integers(1, 6), st.sampled_from([(RACK, 2), (RACK, 3), (RACK, 4), (HOST, 2)])
)
def test_what_grows_and_shrinks_has_one_tail_at_most(tree, count, by, layer):
    state = racks({path: tree[path] for path in sorted(tree)})
    answer = ask(state, sliced(count, layer, policy=Policy.UNCONSTRAINED))
    if isinstance(answer, Refusal):
        return
    (held,) = answer.assignments
    state.reserve("w", [held])
    more = extend(state, "w", sliced(count + by, layer, policy=Policy.UNCONSTRAINED), by)
    if not isinstance(more, Refusal):
        assert more.count == count + by
        assert is_right(pods_in(more, layer[0]).values(), layer[1], count + by)
        before, after = pods_in(held, layer[0]), pods_in(more, layer[0])
        assert all(after[place] >= pods for place, pods in before.items()), "nobody moves"
    if by < count:
        less = shrink(state, "w", "main", by, slices=(SliceLayer(level=layer[0], size=layer[1]),))
        assert less.count == count - by
        assert is_right(pods_in(less, layer[0]).values(), layer[1], count - by)


def test_shrinking_keeps_a_tail_that_stays_and_what_pods_use():
    slices = (SliceLayer(level=RACK, size=4),)
    state = racks({"b1/r1": [6], "b1/r2": [4]})
    held = holding(state, sliced(10, (RACK, 4)))
    assert pods_in(held, RACK) == {("b1", "r1"): 6, ("b1", "r2"): 4}
    assert sorted(pods_in(shrink(state, "w", "main", 4, slices=slices), RACK).values()) == [6]
    assert sorted(pods_in(shrink(state, "w", "main", 2, slices=slices), RACK).values()) == [4, 4]
    assert sorted(pods_in(shrink(state, "w", "main", 5, slices=slices), RACK).values()) == [1, 4]


def test_a_tail_that_is_lost_whole_may_leave_and_a_part_of_it_may_not():
    # r2 has the tail, and its rank is the last though r3 comes after it in tree order.
    state = racks({"b1/r1": [4], "b1/r2": [1, 1], "b1/r3": [4], "b1/r4": [2]})
    held = holding(state, sliced(10, (RACK, 4)))
    tail = next(rack for rack, pods in pods_in(held, RACK).items() if pods == 2)
    inside = {"r2": {"n1", "n2"}, "r4": {"n4"}}[tail[1]]
    moved = replace(state, "w", sliced(10, (RACK, 4)), inside)
    assert sorted(pods_in(moved, RACK).values()) == [2, 4, 4]
    assert not inside & nodes_of(moved).keys()
    state = racks({"b1/r1": [4], "b1/r2": [1, 1], "b1/r3": [4], "b2/r1": [9]})
    holding(state, sliced(10, (RACK, 4)))
    refusal = replace(state, "w", sliced(10, (RACK, 4)), {"n1"})
    assert "the rest of a slice must go where the slice is" in refusal.message


@settings(max_examples=100, deadline=None)
@given(small_trees, st.integers(1, 10), st.sampled_from([(RACK, 2), (RACK, 3), (RACK, 4), (HOST, 2)]), st.data())
def test_one_tail_is_left_when_nodes_are_lost(tree, count, layer, data):
    state = racks({path: tree[path] for path in sorted(tree)})
    pod_set = sliced(count, layer)
    answer = ask(state, pod_set)
    if isinstance(answer, Refusal):
        return
    (held,) = answer.assignments
    state.reserve("w", [held])
    lost = set(data.draw(st.lists(st.sampled_from(sorted(nodes_of(held))), min_size=1, max_size=2)))
    moved = replace(state, "w", pod_set, lost)
    if isinstance(moved, Refusal):
        return
    assert moved.count == count
    assert not lost & nodes_of(moved).keys()
    assert is_right(pods_in(moved, layer[0]).values(), layer[1], count)
