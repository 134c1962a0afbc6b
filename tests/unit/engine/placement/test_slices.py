"""Slices of a pod set: against every possible placement of small cases, by hand, and as they grow, shrink and move."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

from engine.model import PodTerm, Policy, SliceLayer, TopologyRequest
from engine.placement.explain import explain
from engine.placement.place import extend, replace, shrink
from engine.reasons import Reason
from engine.results import Placement, Refusal


def sliced(count, *layers, policy=Policy.REQUIRED, level=BLOCK, **more):
    """A pod set with slices given as (level, size)."""
    pod_set = make_pod_set(count, policy, level, **more)
    parts = tuple(SliceLayer(level=at, size=size) for at, size in layers)
    topology = TopologyRequest(policy=policy, level=pod_set.topology.level, slices=parts)
    return make_again(pod_set, topology=topology)


def make_again(pod_set, **other):
    return type(pod_set)(**{field: getattr(pod_set, field) for field in pod_set.__struct_fields__} | other)


def pods_in(answer, level):
    """Pods by domain of a level."""
    assignment = placed(answer).assignments[0] if isinstance(answer, Placement) else answer
    rank = LEVELS.index(level)
    found = Counter()
    for part in assignment.slices:
        found[part.values[: rank + 1]] += part.count
    return dict(found)


def rank_domains(answer, level, size):
    """The domains of a level that each run of ``size`` ranks is in."""
    assignment = placed(answer).assignments[0] if isinstance(answer, Placement) else answer
    rank = LEVELS.index(level)
    path = [part.values[: rank + 1] for part in assignment.slices for _ in range(part.count)]
    return [set(path[at : at + size]) for at in range(0, len(path), size)]


def holding(state, pod_set):
    (assignment,) = placed(ask(state, pod_set)).assignments
    state.reserve("w", [assignment])
    return assignment


# -- against every possible placement -------------------------------------------------------------------------

PATHS = ["b1/r1", "b1/r2", "b2/r1", "b2/r2"]
small_trees = st.dictionaries(
    st.sampled_from(PATHS), st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=3
).filter(lambda tree: sum(map(len, tree.values())) <= 6)
layerings = st.sampled_from(
    [
        ((RACK, 2),),
        ((RACK, 4),),
        ((RACK, 3),),
        ((HOST, 2),),
        ((BLOCK, 4),),
        ((RACK, 4), (HOST, 2)),
        ((BLOCK, 4), (RACK, 2)),
        ((BLOCK, 4), (HOST, 2)),
        ((BLOCK, 6), (RACK, 3)),
        ((RACK, 2), (HOST, 1)),
        ((BLOCK, 4), (RACK, 2), (HOST, 1)),
        ((BLOCK, 4), (RACK, 4), (HOST, 2)),
    ]
)


def least(tree, count, layers, policy, level):
    """(how many levels wider than asked, domains at each level from there, nodes) of the best, by trying all."""
    hosts = [((*path.split("/"), f"h{i}"), room) for i, (path, room) in enumerate(flat(tree))]
    best = None
    asked = LEVELS.index(level)
    for amounts in product(*(range(room + 1) for _, room in hosts)):
        if sum(amounts) != count:
            continue
        used = [(path, pods) for (path, _), pods in zip(hosts, amounts, strict=True) if pods]
        if not all(whole(used, LEVELS.index(at), size) for at, size in layers):
            continue
        widths = [len({path[: rank + 1] for path, _ in used}) for rank in range(3)]
        wider = next((up for up in range(asked + 1) if widths[asked - up] == 1), asked + 1)
        if policy is Policy.REQUIRED and wider:
            continue
        cost = (
            (0, *widths[LEVELS.index(layers[0][0]) :]) if policy is Policy.UNCONSTRAINED else (wider, *widths[asked:])
        )
        best = cost if best is None else min(best, cost)
    return best


def flat(tree):
    return [(path, room) for path in sorted(tree) for room in tree[path]]


def whole(used, rank, size):
    sums = Counter()
    for path, pods in used:
        sums[path[: rank + 1]] += pods
    return all(pods % size == 0 for pods in sums.values())


def cost_of(answer, layers, policy, level):
    widths = [len(pods_in(answer, at)) for at in LEVELS]
    asked = LEVELS.index(level)
    if policy is Policy.UNCONSTRAINED:
        return (0, *widths[LEVELS.index(layers[0][0]) :])
    wider = next((up for up in range(asked + 1) if widths[asked - up] == 1), asked + 1)
    return (wider, *widths[asked:])


@settings(max_examples=150, deadline=None)
@given(small_trees, st.integers(1, 3), layerings, st.sampled_from(list(Policy)), st.sampled_from([BLOCK, RACK]))
def test_no_placement_in_whole_slices_is_better(tree, slices, layers, policy, level):
    if policy is not Policy.UNCONSTRAINED and LEVELS.index(level) > LEVELS.index(layers[0][0]):
        level = BLOCK
    count = slices * layers[0][1]
    answer = ask(racks({path: tree[path] for path in sorted(tree)}), sliced(count, *layers, policy=policy, level=level))
    # Slices of one pod say nothing, also about what is counted for unconstrained ones.
    telling = [layer for layer in layers if layer[1] > 1]
    best = least(tree, count, telling, policy, level)
    assert isinstance(answer, Placement) is (best is not None), answer
    if best is None:
        return
    assert cost_of(answer, telling, policy, level) == best
    for at, size in layers:
        assert all(len(domains) == 1 for domains in rank_domains(answer, at, size))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from(list(Policy)))
def test_large_trees_are_placed_in_whole_slices(seed, slices, policy):
    random = np.random.default_rng(seed)
    nodes = [make_node(f"n{i}", f"b{i // 96}", f"r{i // 8}", gpu=int(random.integers(0, 9))) for i in range(480)]
    state = make_state(nodes)
    pod_set = sliced(slices * 16, (RACK, 16), (HOST, 2), policy=policy)
    answer = ask(state, pod_set)
    if isinstance(answer, Refusal):
        assert policy is Policy.REQUIRED
        return
    used = nodes_of(answer)
    assert sum(used.values()) == slices * 16
    assert all(pods <= state.nodes[name].allocatable[GPU] for name, pods in used.items())
    assert all(len(domains) == 1 for domains in rank_domains(answer, RACK, 16))
    assert all(len(domains) == 1 for domains in rank_domains(answer, HOST, 2))
    assert ask(make_state(nodes), pod_set) == answer


# -- by hand --------------------------------------------------------------------------------------------------


def test_a_rack_takes_whole_slices_only():
    state = racks({"b1/r1": [3, 3], "b1/r2": [3, 3]})
    assert pods_in(ask(state, sliced(8, (RACK, 4))), RACK) == {("b1", "r1"): 4, ("b1", "r2"): 4}
    refusal = ask(state, sliced(12, (RACK, 4)))
    assert refusal.reason is Reason.NEVER_FITS
    assert "b1 takes 8 in slices of 4 of one cloud/rack with nothing else running" in refusal.message
    assert "single pods fit, but not whole slices" in refusal.message


def test_layers_hold_from_the_inside_out():
    state = racks({"b1/r1": [3, 3, 3], "b1/r2": [2, 2]})
    answer = ask(state, sliced(8, (RACK, 4), (HOST, 2)))
    assert pods_in(answer, RACK) == {("b1", "r1"): 4, ("b1", "r2"): 4}
    assert set(nodes_of(answer).values()) == {2}
    assert ask(state, sliced(12, (RACK, 4), (HOST, 2))).reason is Reason.NEVER_FITS


def test_fewer_nodes_below_equally_few_racks():
    # Either two racks do; greedy takes the largest, r1, whose slices need four nodes more.
    state = racks({"b1/r1": [1] * 9, "b1/r2": [8], "b1/r3": [4, 4]})
    assert nodes_of(ask(state, sliced(16, (RACK, 4)))) == {"n9": 8, "n10": 4, "n11": 4}


def test_slices_of_a_host():
    state = racks({"b1/r1": [5, 3, 1]})
    assert nodes_of(ask(state, sliced(6, (HOST, 2), level=RACK))) == {"n0": 4, "n1": 2}
    assert ask(state, sliced(8, (HOST, 2), level=RACK)).reason is Reason.NEVER_FITS


def test_slices_without_an_outer_domain_go_anywhere():
    state = racks({"b1/r1": [4], "b2/r1": [4], "b2/r2": [3]})
    answer = ask(state, sliced(8, (RACK, 4), policy=Policy.UNCONSTRAINED))
    assert pods_in(answer, RACK) == {("b1", "r1"): 4, ("b2", "r1"): 4}


def test_preferred_widens_and_keeps_slices_whole():
    state = racks({"b1/r1": [6], "b1/r2": [6], "b2/r1": [6]})
    answer = ask(state, sliced(12, (RACK, 4), policy=Policy.PREFERRED))
    assert sorted(pods_in(answer, RACK).values()) == [4, 4, 4]


def test_pods_that_must_not_share_a_node_count_as_slices_too():
    apart = PodTerm(topology_key=HOST, selector=())
    state = racks({"b1/r1": [8, 8, 8], "b1/r2": [8, 8]})
    answer = ask(state, sliced(4, (RACK, 2), anti_affinity=(apart,)))
    assert pods_in(answer, RACK) == {("b1", "r1"): 2, ("b1", "r2"): 2}


def test_a_flavor_whose_last_level_is_the_rack():
    state = racks({"b1/r1": [3, 3], "b1/r2": [3, 3]}, levels=(BLOCK, RACK))
    assert pods_in(ask(state, sliced(8, (RACK, 4))), RACK) == {("b1", "r1"): 4, ("b1", "r2"): 4}


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod_set", "text"),
    [
        (sliced(10, (RACK, 4), (HOST, 2)), "count 10 is no multiple of the slice size 4 (in one cloud/rack)"),
        (sliced(8, (RACK, 4), (HOST, 3)), "slice size 4 is no multiple of the slice size 3"),
        (sliced(8, (RACK, 0)), "slices of 0 in one cloud/rack; expected at least 1"),
        (sliced(8, (HOST, 4), (RACK, 2)), "slices of 2 share one cloud/rack, which is not narrower than kubernetes"),
        (sliced(8, (BLOCK, 4), level=RACK), "slices of 4 share one cloud/block, which is not narrower than cloud/rack"),
    ],
)
def test_slices_that_cannot_be_are_refused(pod_set, text):
    refusal = ask(racks({"b1/r1": [8]}), pod_set)
    assert refusal.reason is Reason.INVALID_REQUEST
    assert text in refusal.message


def test_a_level_that_no_flavor_has():
    state = racks({"b1/r1": [8]})
    assert "no flavor has the level cloud/block and the level zone" in ask(state, sliced(8, ("zone", 4))).message
    named = ask(state, sliced(8, ("zone", 4)), flavors=("tas",))
    assert named.reason is Reason.UNKNOWN_LEVEL
    assert "flavor tas has no level zone" in named.message


def test_only_flavors_that_have_all_levels_are_asked():
    state = racks({"b1/r1": [8]})
    state.set_flavor(make_flavor("a", levels=(BLOCK, HOST)))
    assert placed(ask(state, sliced(8, (RACK, 4)))).assignments[0].flavor == "tas"


def test_explain_counts_whole_slices():
    state = racks({"b1/r1": [3, 3], "b1/r2": [3]})
    (block,) = explain(state, "tas", sliced(8, (RACK, 4)), BLOCK)
    assert (block.fits, block.limit) == (4, Reason.SLICES)
    first, second = explain(state, "tas", sliced(8, (RACK, 4)), RACK)
    assert (first.fits, second.fits) == (4, 0)


# -- change ---------------------------------------------------------------------------------------------------


def test_growth_comes_in_whole_slices_in_used_racks_first():
    state = racks({"b1/r1": [8], "b1/r2": [6, 2], "b1/r3": [4]})
    assert pods_in(holding(state, sliced(4, (RACK, 4))), RACK) == {("b1", "r3"): 4}
    more = extend(state, "w", sliced(12, (RACK, 4)), 8)
    assert pods_in(more, RACK) == {("b1", "r3"): 4, ("b1", "r1"): 8}
    state.reserve("w", [more])
    assert isinstance(extend(state, "w", sliced(24, (RACK, 4)), 12), Refusal)


def test_growth_of_slices_within_slices_is_whole():
    state = racks({"b1/r1": [4, 4]})
    holding(state, sliced(4, (RACK, 4), (HOST, 2)))
    uneven = extend(state, "w", sliced(6, (RACK, 4), (HOST, 2)), 2)
    assert uneven.reason is Reason.INVALID_REQUEST
    assert uneven.message == (
        "2 more pods do not fit in slices of 4 of one cloud/rack, of 2 of one kubernetes.io/hostname: they are not a "
        "whole number of slices"
    )


def test_a_lost_node_is_replaced_inside_its_slice():
    state = racks({"b1/r1": [2, 2, 2], "b1/r2": [2, 2, 1]})
    assert pods_in(holding(state, sliced(8, (RACK, 4))), RACK) == {("b1", "r1"): 4, ("b1", "r2"): 4}
    moved = replace(state, "w", sliced(8, (RACK, 4)), {"n0"})
    assert nodes_of(moved) == {"n1": 2, "n2": 2, "n3": 2, "n4": 2}
    refusal = replace(state, "w", sliced(8, (RACK, 4)), {"n3"})
    assert refusal.reason is Reason.DOES_NOT_FIT
    assert "the rest of a slice must go where the slice is" in refusal.message


def test_a_slice_that_is_lost_whole_may_leave():
    state = racks({"b1/r1": [4, 4], "b1/r2": [4], "b2/r1": [7]})
    assert nodes_of(holding(state, sliced(8, (RACK, 4)))) == {"n0": 4, "n1": 4}
    assert nodes_of(replace(state, "w", sliced(8, (RACK, 4)), {"n0"})) == {"n1": 4, "n2": 4}


def test_what_two_slices_lost_does_not_become_a_slice_of_its_own():
    # Ranks 2..5 are lost: two of each slice. Four pods would fit r2, but then neither slice were whole.
    state = racks({"b1/r1": [2, 2, 2, 2], "b1/r2": [4]})
    assert pods_in(holding(state, sliced(8, (RACK, 4))), RACK) == {("b1", "r1"): 8}
    assert replace(state, "w", sliced(8, (RACK, 4)), {"n1", "n2"}).reason is Reason.DOES_NOT_FIT


def test_inner_slices_move_inside_their_outer_slice():
    state = racks({"b1/r1": [2, 2, 3], "b1/r2": [2, 2, 2]})
    layers = ((RACK, 4), (HOST, 2))
    held = holding(state, sliced(4, *layers))
    (rack,) = pods_in(held, RACK)
    lost = next(iter(nodes_of(held)))
    moved = replace(state, "w", sliced(4, *layers), {lost})
    assert pods_in(moved, RACK) == {rack: 4}
    assert set(nodes_of(moved).values()) == {2}
    assert lost not in nodes_of(moved)


def test_growth_completes_what_is_not_whole():
    state = racks({"b1/r1": [4, 4], "b1/r2": [8]})
    holding(state, sliced(8, (RACK, 4)))
    part = shrink(state, "w", "main", 2)
    state.reserve("w", [part])
    whole_again = extend(state, "w", sliced(8, (RACK, 4)), 2)
    assert all(pods % 4 == 0 for pods in pods_in(whole_again, RACK).values())
    assert whole_again.count == 8


def test_shrink_gives_back_whole_slices_that_nobody_uses():
    state = racks({"b1/r1": [4], "b1/r2": [4], "b1/r3": [4]})
    layers = (SliceLayer(level=RACK, size=4),)
    holding(state, sliced(12, (RACK, 4)))
    state.set_pod(make_pod("p", "n2", claim=("w", "main")))
    assert nodes_of(shrink(state, "w", "main", 4, slices=layers)) == {"n0": 4, "n2": 4}
    assert nodes_of(shrink(state, "w", "main", 4)) == {"n0": 4, "n1": 3, "n2": 1}
    assert nodes_of(shrink(state, "w", "main", 8, slices=layers)) == {"n2": 4}


@settings(max_examples=60, deadline=None)
@given(small_trees, st.integers(1, 2), layerings, st.data())
def test_slices_stay_whole_when_nodes_are_lost(tree, slices, layers, data):
    state = racks({path: tree[path] for path in sorted(tree)})
    pod_set = sliced(slices * layers[0][1], *layers)
    answer = ask(state, pod_set)
    if isinstance(answer, Refusal):
        return
    held = answer.assignments[0]
    state.reserve("w", [held])
    lost = set(data.draw(st.lists(st.sampled_from(sorted(nodes_of(held))), min_size=1, max_size=2)))
    moved = replace(state, "w", pod_set, lost)
    if isinstance(moved, Refusal):
        return
    assert moved.count == held.count
    assert not lost & nodes_of(moved).keys()
    stays = {name: pods for name, pods in nodes_of(held).items() if name not in lost}
    assert all(nodes_of(moved)[name] >= pods for name, pods in stays.items())
    for at, size in layers:
        assert all(pods % size == 0 for pods in pods_in(moved, at).values())


# -- slices that are alone --------------------------------------------------------------------------------------


def alone(count, size, policy=Policy.UNCONSTRAINED):
    """Each run of ``size`` pods in a rack of its own; racks of one name are one rack, as for kube-scheduler."""
    pod_set = sliced(count, (RACK, size), policy=policy)
    layer = SliceLayer(level=RACK, size=size, alone=True)
    return make_again(pod_set, topology=make_again(pod_set.topology, slices=(layer,)))


def names_of_racks(assignment):
    found = Counter()
    for path, pods in pods_in(assignment, RACK).items():
        found[path[1]] += pods
    return found


@settings(max_examples=200, deadline=None)
@given(small_trees, st.integers(1, 2), st.integers(1, 4), st.sampled_from(Policy), st.data())
def test_slices_that_are_alone_have_a_rack_each_wherever_that_is_possible(tree, slices, size, policy, data):
    state = racks({path: tree[path] for path in sorted(tree)})
    pod_set = alone(slices * size, size, policy)
    answer = ask(state, pod_set)
    fitting = {tuple(path.split("/")) for path in tree if sum(tree[path]) >= size}
    within = [{rack for block, rack in fitting if block == one} for one in ("b1", "b2")]
    names = within if policy is Policy.REQUIRED else [*within, {rack for _, rack in fitting}]
    assert isinstance(answer, Placement) == any(len(there) >= slices for there in names)
    if isinstance(answer, Refusal):
        return
    (held,) = answer.assignments
    assert names_of_racks(held) == dict.fromkeys(names_of_racks(held), size)
    assert len(pods_in(held, RACK)) == len(names_of_racks(held)) == slices
    state.reserve("w", [held])
    lost = set(data.draw(st.lists(st.sampled_from(sorted(nodes_of(held))), min_size=1, max_size=2)))
    moved = replace(state, "w", pod_set, lost)
    if not isinstance(moved, Refusal):
        assert names_of_racks(moved) == dict.fromkeys(names_of_racks(moved), size)
        assert len(pods_in(moved, RACK)) == slices


def test_more_slices_that_are_alone_go_where_none_is():
    state = racks({"b1/r1": [8], "b1/r2": [2], "b1/r3": [2, 2]})
    assert sorted(names_of_racks(holding(state, alone(4, 2))).values()) == [2, 2]
    assert names_of_racks(extend(state, "w", alone(6, 2), 2)) == {"r1": 2, "r2": 2, "r3": 2}
    refusal = extend(state, "w", alone(8, 2), 4)
    assert refusal.reason is Reason.DOES_NOT_FIT
    assert "in slices of 2 alone in one cloud/rack" in refusal.message


def test_explain_counts_one_slice_that_is_alone_a_rack():
    state = racks({"b1/r1": [8, 8], "b1/r2": [1]})
    assert [fit.fits for fit in explain(state, "tas", alone(4, 2), RACK)] == [2, 0]


# -- groups ---------------------------------------------------------------------------------------------------


def test_pod_sets_of_a_group_must_ask_for_the_same_domain():
    state = racks({"b1/r1": [8]})
    leader = make_pod_set(1, level=RACK, name="leader", group="g")
    workers = make_pod_set(4, level=BLOCK, name="workers", group="g")
    refusal = ask(state, leader, workers)
    assert refusal.reason is Reason.INVALID_REQUEST
    assert "required cloud/rack and required cloud/block" in refusal.message


def leader_and_workers(count, layer=(RACK, 4), **more):
    """A leader, and workers in slices: both in one block, as Kueue places them from 0.20 on (PR 15111)."""
    workers = make_again(sliced(count, layer), name="workers", group="g")
    return make_pod_set(1, level=BLOCK, name="leader", group="g", **more), workers


def test_a_leader_is_beside_the_first_slice_of_its_workers():
    state = racks({"b1/r1": [8], "b2/r1": [4], "b2/r2": [5]})
    answer = placed(ask(state, *leader_and_workers(8)))
    leader, workers = answer.assignments
    assert {part.values[0] for part in (*leader.slices, *workers.slices)} == {"b2"}
    assert pods_in(workers, RACK) == {("b2", "r1"): 4, ("b2", "r2"): 4}
    assert pods_in(leader, RACK) == {("b2", "r2"): 1}
    beside = placed(ask(racks({"b1/r1": [5], "b1/r2": [4]}), *leader_and_workers(8))).assignments
    assert pods_in(beside[0], HOST) == {("b1", "r1", "n0"): 1}, "on the node of the first slice where it has room"


def test_workers_leave_room_for_their_leader_or_wait():
    assert isinstance(ask(racks({"b1/r1": [4], "b1/r2": [4]}), *leader_and_workers(8)), Refusal)
    answer = placed(ask(racks({"b1/r1": [4], "b1/r2": [4], "b1/r3": [1]}), *leader_and_workers(8)))
    assert pods_in(answer.assignments[0], RACK) == {("b1", "r3"): 1}


@settings(max_examples=150, deadline=None)
@given(small_trees, st.integers(1, 9), st.sampled_from([(RACK, 2), (RACK, 4), (RACK, 3), (HOST, 2)]))
def test_a_group_with_slices_is_placed_wherever_that_is_possible(tree, count, layer):
    tree = {path: tree[path] for path in sorted(tree)}
    answer = ask(racks(tree), *leader_and_workers(count, layer))
    hosts = flat(tree)
    possible = any(
        isinstance(ask(racks(_less(tree, at, path)), sliced(count, layer)), Placement)
        for at, (path, room) in enumerate(hosts)
        if room
    )
    assert isinstance(answer, Placement) is possible
    if possible:
        leader, workers = answer.assignments
        assert len({part.values[0] for part in (*leader.slices, *workers.slices)}) == 1
        rests = [pods % layer[1] for pods in pods_in(workers, layer[0]).values() if pods % layer[1]]
        assert rests == ([count % layer[1]] if count % layer[1] else [])


def _less(tree, at, path):
    """What is left in the block of one host when the leader has a place on that."""
    block, number, left = path.split("/")[0], 0, {}
    for name in sorted(tree):
        rooms = []
        for room in tree[name]:
            rooms.append(room - (number == at) if name.split("/")[0] == block else 0)
            number += 1
        left[name] = rooms
    return left


def test_one_pod_set_of_a_group_has_slices():
    leader, workers = leader_and_workers(8)
    both = make_again(leader, count=4, topology=workers.topology)
    refusal = ask(racks({"b1/r1": [16]}), both, workers)
    assert refusal.reason is Reason.INVALID_REQUEST
    assert "pod sets leader and workers of group g both have slices; only one pod set of a group can" in refusal.message
    single = make_again(leader, topology=make_again(leader.topology, slices=(SliceLayer(level=RACK, size=1),)))
    assert isinstance(ask(racks({"b1/r1": [16]}), single, workers), Placement), "slices of one pod say nothing"
    alike = make_again(leader, topology=workers.topology)  # as annotations of the LeaderWorkerSet itself give it
    assert isinstance(ask(racks({"b1/r1": [16]}), alike, workers), Placement)
