"""The choice of domains against every possible choice, and the promises about budget and determinism."""

from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine_factories import (
    BLOCK,
    RACK,
    ask,
    make_flavor,
    make_node,
    make_pod_set,
    make_state,
    nodes_of,
    placed,
    racks,
)

from engine.model import Policy
from engine.placement.fit import Fit
from engine.placement.largest_first import cover, cover_few, largest
from engine.placement.search.exact import Work
from engine.results import Placement

rooms = st.lists(st.integers(0, 6), min_size=1, max_size=4)
small_trees = st.dictionaries(
    st.sampled_from(["b1/r1", "b1/r2", "b1/r3", "b2/r1", "b2/r2"]), rooms, min_size=1, max_size=4
).filter(lambda tree: sum(map(len, tree.values())) <= 9)


def least(tree, count, policy, level):
    """(how many levels wider than asked, domains at the level and below, nodes) of the best choice, by trying all."""
    leaves = [(path, room) for path in sorted(tree) for room in tree[path]]
    best = None
    for used in product((False, True), repeat=len(leaves)):
        chosen = [leaf for leaf, on in zip(leaves, used, strict=True) if on]
        if sum(room for _, room in chosen) < count or any(not room for _, room in chosen):
            continue
        used_racks = {path for path, _ in chosen}
        blocks = {path.split("/")[0] for path in used_racks}
        widths = [len(used_racks), len(blocks)] if level == RACK else [len(blocks)]
        wider = next((up for up, width in enumerate(widths) if width == 1), len(widths))
        if policy is Policy.REQUIRED and wider:
            continue
        cost = (wider, *([len(used_racks)] if level == RACK else [len(blocks), len(used_racks)]), len(chosen))
        best = cost if best is None else min(best, cost)
    return best


def cost_of(answer, level):
    parts = placed(answer).assignments[0].slices
    used_racks, blocks = {part.values[:2] for part in parts}, {part.values[:1] for part in parts}
    widths = [len(used_racks), len(blocks)] if level == RACK else [len(blocks)]
    wider = next((up for up, width in enumerate(widths) if width == 1), len(widths))
    return (wider, *([len(used_racks)] if level == RACK else [len(blocks), len(used_racks)]), len(parts))


@settings(max_examples=80, deadline=None)
@given(
    small_trees,
    st.integers(1, 20),
    st.sampled_from([Policy.REQUIRED, Policy.PREFERRED]),
    st.sampled_from([BLOCK, RACK]),
)
def test_no_choice_of_domains_is_better(tree, count, policy, level):
    answer = ask(racks(tree), make_pod_set(count, policy, level))
    best = least(tree, count, policy, level)
    assert isinstance(answer, Placement) is (best is not None)
    if best is not None:
        assert cost_of(answer, level) == best


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 60))
def test_cover_takes_the_fewest_and_the_tightest_last(values, need):
    if sum(values) < need:
        return
    array = np.array(values)
    picked, rest = cover(array, need, tight=True)
    amounts = [values[at] for at in picked]
    ranked = sorted(values, reverse=True)
    fewest = next(k for k in range(1, len(values) + 1) if sum(ranked[:k]) >= need)
    assert len(set(picked.tolist())) == len(picked) == fewest
    assert sorted(amounts[:-1], reverse=True) == ranked[: fewest - 1]
    assert rest == need - sum(amounts[:-1])
    enough = [value for value in ranked[fewest - 1 :] if value >= rest]
    assert amounts[-1] == min(enough)
    few, held = cover_few(array, need)
    assert few == sorted(picked.tolist())
    assert sum(held) == need


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=48), st.integers(1, 300), st.booleans())
def test_a_few_values_are_covered_as_many_are(values, need, tight):
    if sum(values) < need:
        return
    few, rest = cover(np.array(values), need, tight=tight)
    many, left = cover(np.array([*values, *[0] * 48]), need, tight=tight)
    assert (few.tolist(), rest) == (many.tolist(), left)


def nodes_for(rooms, count):
    """The fewest nodes that hold so many pods; None where all do not."""
    ranked = sorted(rooms, reverse=True)
    return next((k for k in range(1, len(ranked) + 1) if sum(ranked[:k]) >= count), None)


@settings(max_examples=200, deadline=None)
@given(small_trees, st.integers(1, 20), st.integers(1, 4), st.integers(1, 9))
def test_no_choice_of_so_many_racks_is_better_than_what_is_called_the_best(tree, count, number, nodes):
    if sum(map(sum, tree.values())) < count or number > len(tree):
        return
    greedy = Fit.count_pod_set(racks(tree), "tas", make_pod_set(count, Policy.PREFERRED)).chooser(-1).greedy
    if greedy.is_fewest(slice(0, len(tree)), (1, 2), (number, nodes)):
        needed = [nodes_for(chain(*some), count) for some in combinations(tree.values(), number)]
        assert all(least is None or least >= nodes for least in needed)


def wide_state():
    """A hundred racks of sixteen nodes, some used: beyond what is searched to the end."""
    seed = np.random.default_rng(7)
    nodes = [make_node(f"n{i}", f"b{i // 512}", f"r{i // 16}", gpu=int(seed.integers(0, 9))) for i in range(1600)]
    return make_state(nodes)


@pytest.mark.parametrize("level", [BLOCK, RACK])
@pytest.mark.parametrize("count", [1, 40, 300, 2000, 6000])
def test_large_trees_are_placed_validly_and_alike_each_time(level, count):
    state = wide_state()
    pod_set = make_pod_set(count, Policy.PREFERRED, level)
    answer = ask(state, pod_set)
    used = nodes_of(answer)
    assert sum(used.values()) == count
    assert all(0 < pods <= state.nodes[name].allocatable["nvidia.com/gpu"] for name, pods in used.items())
    assert ask(wide_state(), pod_set) == answer


def test_more_effort_is_never_worse():
    state = wide_state()
    fit = Fit.count_pod_set(state, "tas", make_pod_set(300, Policy.PREFERRED, BLOCK))
    costs = []
    for effort in (0, 200_000, 20_000_000):
        fit.work = Work(effort)
        costs.append(fit.pick().cost)
    assert costs == sorted(costs, reverse=True)


def test_racks_of_unequal_size_are_compared_alike():
    even = racks({f"b1/r{i}": [1, 1, 2, 4] for i in range(40)} | {"b1/r40": [4, 4, 1, 1]})
    odd = racks({f"b1/r{i}": [1, 1, 2, 4] for i in range(40)} | {"b1/r40": [4, 4, 1, 1, 0], "b1/r41": [1]})
    for state in (even, odd):
        assert len(nodes_of(ask(state, make_pod_set(8)))) == 2  # only r40 does it with two nodes


def test_a_flavor_of_one_level():
    state = make_state([make_node(f"n{i}", rack=f"r{i % 3}", gpu=2) for i in range(6)], make_flavor(levels=(RACK,)))
    assert (
        len({part.values for part in placed(ask(state, make_pod_set(8, Policy.PREFERRED))).assignments[0].slices}) == 2
    )


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(1, 30))
def test_the_largest_values_are_the_first_of_all_in_order_however_many_are_0(values, need):
    ranked = sorted(values, reverse=True)
    expected = ranked[:need] if len(values) > 4 * need else ranked
    assert largest(np.array(values), need).tolist() == expected
