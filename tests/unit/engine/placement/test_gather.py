"""Of equally few racks and nodes the fewest blocks: against every possible choice, and never at the cost of a rack."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine_factories import HOST, RACK, ask, make_node, make_pod_set, make_state, nodes_of, placed, racks

from benchmarks import placement as benchmark
from engine.model import Policy
from engine.placement.choose import Chooser
from engine.placement.fit import Fit
from engine.placement.largest_first import edge_of, largest
from engine.results import Placement

rooms = st.lists(st.integers(1, 5), min_size=1, max_size=3)
small_trees = st.dictionaries(
    st.sampled_from(["b1/r1", "b1/r2", "b2/r1", "b2/r2", "b3/r1", "b3/r2"]), rooms, min_size=2, max_size=6
).filter(lambda tree: sum(map(len, tree.values())) <= 10)


def counted(paths, level):
    """(domains at the level and below, then at each wider level) of the racks of some hosts, one path a host."""
    used_racks, blocks = set(paths), {path.split("/")[0] for path in paths}
    below = (len(used_racks), len(paths)) if level == RACK else (len(paths),)
    return (*below, len(blocks)) if level == RACK else (*below, len(blocks), len(used_racks))


def least_anywhere(tree, count, level):
    """The least of ``counted`` over all choices of hosts; None where one block holds all."""
    hosts = [(path, room) for path in sorted(tree) for room in tree[path]]
    best = None
    for used in product((False, True), repeat=len(hosts)):
        chosen = [host for host, on in zip(hosts, used, strict=True) if on]
        if sum(room for _, room in chosen) >= count:
            cost = counted([path for path, _ in chosen], level)
            best = cost if best is None else min(best, cost)
    return best


def cost_of(answer, level):
    return counted(["/".join(part.values[:2]) for part in placed(answer).assignments[0].slices], level)


@settings(max_examples=150, deadline=None)
@given(small_trees, st.integers(2, 30), st.sampled_from([RACK, HOST]))
def test_first_few_racks_then_few_nodes_then_few_blocks(tree, count, level):
    blocks = {path.split("/")[0]: 0 for path in tree}
    for path, hosts in tree.items():
        blocks[path.split("/")[0]] += sum(hosts)
    if max(blocks.values()) >= count:
        return  # one block holds all
    answer = ask(racks(tree), make_pod_set(count, Policy.PREFERRED, level))
    best = least_anywhere(tree, count, level)
    assert isinstance(answer, Placement) is (best is not None)
    if best is not None:
        assert cost_of(answer, level) == best


@settings(max_examples=150, deadline=None)
@given(small_trees, st.integers(2, 30))
def test_without_a_wish_few_nodes_then_few_blocks_then_few_racks(tree, count):
    answer = ask(racks(tree), make_pod_set(count, Policy.UNCONSTRAINED))
    best = least_anywhere(tree, count, HOST)
    assert isinstance(answer, Placement) is (best is not None)
    if best is not None:
        assert cost_of(answer, HOST) == best


def test_equally_few_racks_lie_in_the_fewest_blocks():
    state = racks({"b1/r1": [8], "b2/r1": [7], "b2/r2": [7], "b3/r1": [8], "b3/r2": [7], "b3/r3": [6]})
    answer = ask(state, make_pod_set(28, Policy.PREFERRED))
    assert cost_of(answer, RACK) == (4, 4, 2)
    assert nodes_of(answer) == {"n0": 8, "n3": 8, "n4": 7, "n5": 5}


def test_a_block_less_is_not_worth_a_node_more():
    state = racks({"b1/r1": [8], "b2/r1": [8], "b3/r1": [8], "b3/r2": [4, 4], "b3/r3": [1]})
    assert cost_of(ask(state, make_pod_set(24, Policy.PREFERRED)), RACK) == (3, 3, 3)


def test_4096_pods_that_prefer_a_rack_lie_in_as_few_blocks_as_40_racks_and_their_nodes_allow():
    """Of as many racks and nodes no fewer blocks will do: by Lagrangian duality for each choice of blocks."""
    pod_set = make_pod_set(4096, Policy.PREFERRED, benchmark.RACK, requests=benchmark.times(1))
    fit = Fit.count_pod_set(benchmark.cluster(5_000), benchmark.FLAVOR, pod_set)
    pick = fit.chooser(-1).pick_anywhere(1)
    used, nodes, blocks = pick.cost
    assert (used, nodes, blocks) == (40, 605, 8)
    leaf, (first, starts, _) = fit.room.counts.leaf, [bound[:-1] for bound in fit.tree.bounds]
    block_of = fit.tree.owners[0][starts]
    worth = [np.add.reduceat(np.maximum(leaf - price, 0), starts) for price in range(9)]
    for chosen in combinations(range(len(first)), blocks - 1):
        inside = np.isin(block_of, chosen)
        most = min(np.sort(row[inside])[-used:].sum() + price * nodes for price, row in enumerate(worth))
        assert most < 4096, chosen


def large_state(seed):
    dice = np.random.default_rng(seed)
    return make_state(
        [make_node(f"n{i}", f"b{i // 160}", f"r{i // 16}", gpu=int(dice.integers(1, 9))) for i in range(1600)]
    )


@pytest.mark.parametrize("count", [1500, 2500, 4000])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_on_large_trees_no_more_racks_and_nodes_than_without_and_fewer_blocks_as_a_rule(seed, count):
    fit = Fit.count_pod_set(large_state(seed), "tas", make_pod_set(count, Policy.PREFERRED))
    chooser = fit.chooser(-1)
    assert isinstance(chooser, Chooser)
    gathered = chooser.pick_anywhere(1)
    chooser.gather = False
    plain = chooser.pick_anywhere(1)
    assert all(new <= old for new, old in zip(gathered.cost, plain.cost, strict=False))
    blocks = [len(set((pick.leaves // 160).tolist())) for pick in (gathered, plain)]
    assert blocks[0] <= blocks[1]
    assert gathered.cost[2] == blocks[0]
    assert int(gathered.amounts.sum()) == count
    assert (gathered.amounts <= fit.room.counts.leaf[gathered.leaves]).all()


@pytest.mark.parametrize(("seed", "part", "count"), [(28, 0.5, 400), (32, 0.8, 400), (35, 0.2, 128)])
def test_where_the_last_rack_is_a_small_one_of_an_earlier_block_no_node_is_counted_twice(seed, part, count):
    dice = np.random.default_rng(seed)
    assert dice.choice([0.2, 0.5, 0.8]) == part
    gpus = np.where(dice.random(1600) < part, dice.integers(1, 7, 1600), 0)
    gpus = np.where(np.repeat(dice.random(100) < 0.3, 16), gpus, gpus // 2)
    nodes = [make_node(f"n{i}", f"b{i // 512}", f"r{i // 16}", gpu=int(gpus[i])) for i in range(1600)]
    fit = Fit.count_pod_set(make_state(nodes), "tas", make_pod_set(count, Policy.PREFERRED))
    pick = fit.chooser(-1).pick_anywhere(1)
    assert (np.diff(pick.leaves) > 0).all()
    assert (pick.amounts <= fit.room.counts.leaf[pick.leaves]).all()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=600), st.sampled_from([9, 60, 301]), st.integers(1, 5000))
def test_the_last_value_taken_is_found_by_a_tally_as_by_sorting(values, below, need):
    array = np.array(values * 2) % below
    before = largest(array, need).cumsum()
    if int(array.sum()) >= need:
        whole = int(before.searchsorted(need))
        rest = need - (int(before[whole - 1]) if whole else 0)
        assert edge_of(array, need) == (whole, largest(array, need)[whole], rest)
