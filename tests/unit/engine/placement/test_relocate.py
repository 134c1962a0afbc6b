"""Other places for pods that run: what stays, where the rest goes, and what is never done."""

import itertools
import random

import pytest
from support.engine_factories import BLOCK, GPU, RACK, make_pod, make_pod_set, nodes_of, racks

from engine.cluster.assignment import Assignment, Slice
from engine.model import PodSet, Policy, SliceLayer, TopologyRequest
from engine.placement.relocate import away, gather, gather_all, relocate, spread
from engine.reasons import Reason
from engine.results import Refusal


def holding(state, pod_set, counts):
    """The workload w with so many pods on each node."""
    tree = state.tree("tas")
    at = dict(zip(tree.names, tree.paths, strict=True))
    slices = [Slice((*at[name][:2], name), count, ((name, count),)) for name, count in counts.items()]
    held = Assignment(
        pod_set="main",
        flavor="tas",
        levels=tree.flavor.levels,
        requests=pod_set.requests,
        slices=slices,
        source=pod_set,
    )
    state.reserve("w", [held])
    return held


def path(state, name):
    return next(part.values for part in state.assignments("w")["main"].slices if part.values[-1] == name)


def preferred(count, level=RACK):
    return make_pod_set(count, Policy.PREFERRED, level)


# --- together --------------------------------------------------------------------------------------------------


def test_those_stay_that_are_where_most_are():
    state = racks({"b1/r1": [8, 8], "b1/r2": [8]})
    holding(state, preferred(8), {"n0": 5, "n2": 3})
    found = gather(state, "w", preferred(8))
    assert nodes_of(found) == {"n0": 8}
    assert found.source == preferred(8), "it is the pod set as it was asked for, not as it was searched with"


def test_where_there_is_no_room_beside_them_all_go_to_another_rack():
    state = racks({"b1/r1": [4], "b1/r2": [4], "b1/r3": [8]})
    holding(state, preferred(8), {"n0": 4, "n1": 4})
    assert nodes_of(gather(state, "w", preferred(8))) == {"n2": 8}


def test_one_that_is_together_or_has_no_room_stays():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    holding(state, preferred(4), {"n0": 4})
    assert gather(state, "w", preferred(4)) is None
    holding(state, preferred(10), {"n0": 5, "n1": 5})
    assert gather(state, "w", preferred(10)) is None


def test_what_others_have_is_not_free():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    holding(state, preferred(8), {"n0": 5, "n1": 3})
    state.set_pod(make_pod("x/y", "n0", 1))
    state.set_pod(make_pod("x/z", "n1", 1))
    assert gather(state, "w", preferred(8)) is None
    state.remove_pod("x/y")
    assert nodes_of(gather(state, "w", preferred(8))) == {"n0": 8}


def test_a_wider_domain_is_a_gain_where_the_narrow_one_has_no_room():
    state = racks({"b1/r1": [4], "b1/r2": [4], "b2/r1": [4]})
    held = holding(state, preferred(8), {"n0": 4, "n2": 4})
    assert spread(held, RACK) == (2, 2)
    found = gather(state, "w", preferred(8))
    assert nodes_of(found) == {"n0": 4, "n1": 4}
    assert spread(found, RACK) == (1, 2)


def test_one_block_is_no_gain_where_it_takes_more_racks():
    state = racks({"b1/r1": [4], "b1/r2": [2], "b1/r3": [2], "b2/r1": [4]})
    holding(state, preferred(8), {"n0": 4, "n3": 4})
    assert gather(state, "w", preferred(8)) is None
    assert gather(state, "w", preferred(8, BLOCK)) is not None


@pytest.mark.parametrize("policy", [Policy.REQUIRED, Policy.UNCONSTRAINED])
def test_only_who_prefers_a_level_is_gathered(policy):
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    holding(state, make_pod_set(4, policy), {"n0": 2, "n1": 2})
    assert gather(state, "w", make_pod_set(4, policy)) is None


def test_a_search_changes_nothing():
    state = racks({"b1/r1": [8, 8], "b1/r2": [8]})
    holding(state, preferred(8), {"n0": 5, "n2": 3})
    before = state.version, nodes_of(state.assignments("w")["main"])
    gather(state, "w", preferred(8))
    assert (state.version, nodes_of(state.assignments("w")["main"])) == before


def test_gathering_ends_and_never_spreads_or_overfills():
    """On random clusters: each move is a gain, and after a few nothing is left to gain."""
    for seed in range(60):
        chance = random.Random(seed)
        rooms = {f"b{b}/r{r}": [chance.randint(1, 4) for _ in range(2)] for b in (1, 2) for r in (1, 2, 3)}
        state = racks(rooms)
        sizes = {f"n{i}": gpus for i, gpus in enumerate(itertools.chain(*rooms.values()))}
        counts = {name: chance.randint(1, sizes[name]) for name in chance.sample(sorted(sizes), 3)}
        total = sum(counts.values())
        held = holding(state, preferred(total), counts)
        for _ in range(4):
            found = gather(state, "w", preferred(total))
            if found is None:
                break
            before, after = spread(held, RACK), spread(found, RACK)
            assert all(now <= then for then, now in zip(before, after, strict=True)), seed
            assert after < before, seed
            assert found.count == total
            assert all(count <= sizes[name] for name, count in nodes_of(found).items()), seed
            state.reserve("w", [found])
            held = found
        else:
            pytest.fail(f"seed {seed}: it goes on for ever")


# --- single slots ----------------------------------------------------------------------------------------------


def test_one_slot_goes_elsewhere_in_the_required_rack_and_not_back():
    state = racks({"b1/r1": [8, 8], "b1/r2": [8]})
    pod_set = make_pod_set(4)
    holding(state, pod_set, {"n0": 4})
    found = relocate(state, "w", pod_set, {path(state, "n0"): 1})
    assert nodes_of(found) == {"n0": 3, "n1": 1}
    state.set_pod(make_pod("x/y", "n1", 8))
    refused = relocate(state, "w", pod_set, {path(state, "n0"): 1})
    assert isinstance(refused, Refusal)


def test_all_of_it_goes_to_other_nodes_than_those_it_leaves():
    state = racks({"b1/r1": [8, 4]})
    pod_set = make_pod_set(4)
    holding(state, pod_set, {"n0": 4})
    assert nodes_of(relocate(state, "w", pod_set, {path(state, "n0"): 4})) == {"n1": 4}
    state.set_pod(make_pod("x/y", "n1", 1))
    assert isinstance(relocate(state, "w", pod_set, {path(state, "n0"): 4}), Refusal)


def test_a_preferred_level_is_not_given_up_for_it():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    holding(state, preferred(4), {"n0": 4})
    refused = relocate(state, "w", preferred(4), {path(state, "n0"): 1})
    assert refused.reason is Reason.DOES_NOT_FIT


def test_only_named_nodes_are_used_where_some_are_named():
    state = racks({"b1/r1": [8, 8, 8]})
    pod_set = make_pod_set(4)
    holding(state, pod_set, {"n0": 4})
    everything = {path(state, "n0"): 4}
    assert nodes_of(relocate(state, "w", pod_set, everything, only={"n2"})) == {"n2": 4}
    assert isinstance(relocate(state, "w", pod_set, everything, only={"n9"}), Refusal)


def test_a_required_rack_holds_for_all_of_it():
    state = racks({"b1/r1": [4], "b1/r2": [2, 2]})
    pod_set = make_pod_set(4)
    holding(state, pod_set, {"n0": 4})
    everything = {path(state, "n0"): 4}
    assert nodes_of(relocate(state, "w", pod_set, everything, only={"n1", "n2"})) == {"n1": 2, "n2": 2}
    half = relocate(state, "w", pod_set, {path(state, "n0"): 2}, only={"n1"})
    assert isinstance(half, Refusal), "half of it in another rack"


# --- all at once -----------------------------------------------------------------------------------------------


def sliced(count, size, level=BLOCK):
    """Pods that prefer a level, and of which ``size`` keep together in a rack."""
    topology = TopologyRequest(policy=Policy.PREFERRED, level=level, slices=(SliceLayer(RACK, size),))
    return PodSet(name="main", count=count, requests={GPU: 1}, topology=topology)


def test_slices_come_together_in_a_block_and_none_of_their_pods_stays():
    state = racks({"b1/r1": [4], "b1/r2": [2], "b2/r3": [4], "b3/r4": [4], "b3/r5": [4]})
    holding(state, sliced(8, 4), {"n0": 4, "n2": 4})
    (found,) = gather_all(state, "w", [sliced(8, 4)])
    assert nodes_of(found) == {"n3": 4, "n4": 4}
    assert found.source == sliced(8, 4)


def test_slices_stay_where_not_all_of_them_have_room_in_one_block():
    state = racks({"b1/r1": [4], "b1/r2": [4], "b2/r3": [4]})
    holding(state, sliced(8, 4), {"n0": 4, "n2": 4})
    assert gather_all(state, "w", [sliced(8, 4)]) is None, "where half of it is, its own pods are yet"


def test_who_shares_a_domain_is_apart_where_one_of_them_is_elsewhere_and_goes_with_the_others():
    state = racks({"b1/r1": [1, 1], "b1/r2": [4], "b2/r3": [8]})
    pod_sets = [make_pod_set(1, Policy.PREFERRED, name="leader", group="g")]
    pod_sets += [make_pod_set(4, Policy.PREFERRED, name="workers", group="g")]
    tree = state.tree("tas")
    at = dict(zip(tree.names, tree.paths, strict=True))
    state.reserve(
        "w",
        [
            Assignment(
                pod_set=pod_set.name,
                flavor="tas",
                levels=tree.flavor.levels,
                requests=pod_set.requests,
                slices=[Slice((*at[node][:2], node), pod_set.count, ((node, pod_set.count),))],
                source=pod_set,
            )
            for pod_set, node in zip(pod_sets, ("n0", "n2"), strict=True)
        ],
    )
    found = gather_all(state, "w", pod_sets)
    assert [nodes_of(part) for part in found] == [{"n3": 1}, {"n3": 4}]


def test_where_a_slot_is_more_than_a_node_nobody_is_taken_for_one_that_went():
    state = racks({"b1/r1": [4, 4]}, levels=(BLOCK, RACK))
    tree = state.tree("tas")
    pod_set = make_pod_set(4, Policy.PREFERRED)
    part = Slice(tree.paths[0][:2], 4, (("n0", 4),))
    state.reserve(
        "w",
        [
            Assignment(
                pod_set="main",
                flavor="tas",
                levels=(BLOCK, RACK),
                requests=pod_set.requests,
                slices=[part],
                source=pod_set,
            )
        ],
    )
    assert isinstance(away(state, "w", [pod_set]), Refusal)
