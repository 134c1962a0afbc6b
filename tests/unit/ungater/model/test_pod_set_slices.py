"""Ranks of one slice stay in one domain, however slots were moved, added and given back."""

import json
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.owned import KEYS, make_owner, make_pod, slot_map

from engine.model import SliceLayer
from ungater.model.pod_set_slices import Homes, RankLayer, layers_of, slots_to_give_back, whole_slices
from ungater.model.pod_slots import Tally, assign, surplus

RACK, HOST = RankLayer(2, 4), RankLayer(3, 2)
SLICED = {KEYS.required[0]: "block", KEYS.slice_level: "rack", KEYS.slice_size: "4"}


def pods(*ranks):
    return [make_pod(f"p{rank}", rank=rank) for rank in ranks]


def given_to(waiting, free, slots, taken=None, layers=(RACK,)):
    found = assign(waiting, free, slots, lambda rank: rank, taken or {}, layers)
    return {int(pod.metadata.name[1:]): index for pod, index in found}


def test_layers_are_told_the_narrowest_first():
    wanted = (SliceLayer(level="rack", size=4), SliceLayer(level="host", size=2), SliceLayer(level="gone", size=2))
    assert layers_of(wanted, ("block", "rack", "host"), 8) == (RankLayer(3, 2), RankLayer(2, 4))
    assert layers_of(wanted[:1], ("block", "rack"), 10) == (RankLayer(2, 4, 10),)
    assert layers_of((SliceLayer(level="rack", size=1),), ("block", "rack"), 8) == ()


def test_a_fresh_assignment_goes_by_rank_order():
    slots = slot_map(("b/r1/n1", 4), ("b/r2/n2", 4))
    assert given_to(pods(*range(8)), [4, 4], slots) == {rank: rank // 4 for rank in range(8)}


def test_a_recreated_rank_goes_back_to_its_slice_though_the_order_of_domains_changed():
    # r1 came later: the first slice is in r2. Rank order alone would send rank 0 to r1, and rank 4 to r2.
    slots = slot_map(("b/r1/n1", 4), ("b/r2/n2", 4))
    taken = {1: 1, 2: 1, 3: 1, 5: 0, 6: 0, 7: 0}
    assert given_to(pods(0, 4), [1, 1], slots, taken) == {0: 1, 4: 0}
    assert given_to(pods(0, 4), [1, 1], slots, taken, layers=()) == {0: 0, 4: 1}


def test_a_new_slice_goes_where_all_of_it_has_room():
    slots = slot_map(("b/r1/n1", 4), ("b/r2/n2", 4), ("b/r3/n3", 4))
    taken = {4: 0, 5: 0}  # the second slice is in r1, and two of it are still to come
    assert given_to(pods(0, 1, 2, 3), [2, 4, 4], slots, taken) == dict.fromkeys(range(4), 1)


def test_a_rank_waits_where_its_slice_has_no_room_now():
    slots = slot_map(("b/r1/n1", 4), ("b/r2/n2", 4))
    taken = {0: 0, 1: 0, 2: 0}  # and a fourth that terminates
    assert given_to(pods(3), [0, 4], slots, taken) == {}


def test_a_rank_that_waits_for_its_volumes_keeps_its_place_beside_its_slice():
    """It holds no slot: its slice still needs that one, and the next slice goes elsewhere."""
    pair = RankLayer(2, 2)
    slots = slot_map(("b/r1/n1", 3), ("b/r2/n2", 2))
    waiting = pods(0, 1, 2, 3)
    only = {waiting[0].metadata.uid: {1}}  # its volume is in the other rack
    found = assign(waiting, [3, 2], slots, lambda rank: rank, {}, (pair,), only=only)
    assert {pod.metadata.name: index for pod, index in found} == {"p1": 0, "p2": 1, "p3": 1}


def test_inner_slices_stay_together_too():
    slots = slot_map(("b/r1/n1", 2), ("b/r1/n2", 2), ("b/r2/n3", 4))
    assert given_to(pods(0, 2), [1, 1, 4], slots, {1: 1, 3: 0}, (HOST, RACK)) == {0: 1, 2: 0}


def test_whole_slices_are_given_back():
    slots = slot_map(("b/r1/n1", 4), ("b/r2/n2", 4), ("b/r3/n3", 4))
    counted = Tally([1, 0, 3], [0, 0, 1], [1, 0, 3], [0, 0, 0])
    assert surplus(slots, counted, 8, (RACK,)) == {1: 4}
    assert surplus(slots, counted, 11, (RACK,)) == {}
    inner = slot_map(("b/r1/n1", 3), ("b/r1/n2", 3), ("b/r1/n3", 2))
    values = [slot.values for slot in inner.slots]
    counts = [slot.count for slot in inner.slots]
    assert slots_to_give_back((HOST, RACK), values, counts, [3, 3, 2], 4) == {2: 2, 1: 2}
    assert slots_to_give_back((HOST, RACK), values, counts, [1, 3, 1], 4) == {}


def test_slices_are_given_back_by_arithmetic_however_many_they_are():
    many = 10**12
    paths = [("b", rack, host) for rack in ("r1", "r2") for host in ("h1", "h2")]
    layers = [RankLayer(3, 2), RankLayer(2, 8)]
    counts = [many] * 4
    assert slots_to_give_back(layers, paths, counts, counts, 3 * many) == {3: many, 2: many, 1: many}
    assert slots_to_give_back(layers, paths, counts, [many, many, 7, 10], many) == {3: 10, 2: 6, 1: many - 16}


def test_done_in_whole_slices():
    assert whole_slices([(0, 2)], 4, 16) == whole_slices([(0, 2)], 4, None) == ()
    assert whole_slices([(0, 1), (2, 9), (11, 15)], 4, 16) == ((0, 7), (12, 15))
    assert whole_slices([(0, 1), (4, 9)], 4, 10) == ((4, 9),), "the last one is a part of one"
    assert whole_slices([(8, 9)], 4, 10) == ((8, 9),)
    assert whole_slices([(9, 9)], 4, 10) == ()


def test_a_slice_keeps_its_slots_until_all_of_it_is_done():
    status = {"succeeded": 5, "completedIndexes": "0-3,5", "active": 3, "ready": 3}
    owner = make_owner(parallelism=8, indexed=True, request=SLICED, status=status)
    (pod_set,) = owner.pod_sets
    assert (pod_set.count, pod_set.full, owner.ready) == (4, 8, 4)
    assert [pod_set.position(rank) for rank in (0, 4, 5, 7)] == [None, 0, 1, 3]
    plain = make_owner(parallelism=8, indexed=True, status=status)
    assert (plain.pod_sets[0].count, plain.ready) == (3, 3)
    unranked = make_owner(parallelism=8, request=SLICED, status={"succeeded": 5, "active": 3})
    assert unranked.pod_sets[0].count == 4


def test_layers_of_a_job_are_read():
    layers = json.dumps([{"topology": "rack", "size": 4}, {"topology": "kubernetes.io/hostname", "size": 2}])
    owner = make_owner(parallelism=8, request={KEYS.slice_layers: layers})
    assert layers_of(owner.request.slices, ("block", "rack", "kubernetes.io/hostname"), 8) == (HOST, RACK)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 4), st.permutations(range(4)), st.sampled_from([(RACK,), (HOST, RACK)]))
def test_pods_that_come_and_go_never_break_a_slice(data, racks, order, layers):
    """Racks of two hosts, each with one slice; the first slices were placed in any order of racks."""
    slots = slot_map(*((f"b/r{i // 2}/n{i}", 2) for i in range(2 * racks)))
    place = {4 * k + i: 2 * rack + i // 2 for k, rack in enumerate(r for r in order if r < racks) for i in range(4)}
    started = [k for k in range(racks) if data.draw(st.booleans())]
    taken = {rank: index for rank, index in place.items() if rank // 4 in started}
    for _ in range(3):
        gone = data.draw(st.lists(st.sampled_from(sorted(taken)), unique=True)) if taken else []
        taken = {rank: index for rank, index in taken.items() if rank not in gone}
        free = [2] * (2 * racks)
        for index in taken.values():
            free[index] -= 1
        late = [rank for rank in place if rank not in taken and data.draw(st.booleans())]
        found = given_to(pods(*late), free, slots, taken, layers)
        taken |= found
        used = defaultdict(int)
        for index in taken.values():
            used[index] += 1
        assert max(used.values(), default=0) <= 2
        for layer in layers:
            homes = defaultdict(set)
            for rank, index in taken.items():
                homes[rank // layer.size].add(slots.slots[index].values[: layer.depth])
            assert all(len(domains) == 1 for domains in homes.values())
    found = given_to(pods(*(rank for rank in place if rank not in taken)), _free(slots, taken), slots, taken, layers)
    assert found.keys() | taken.keys() == place.keys()


def _free(slots, taken):
    free = [slot.count for slot in slots.slots]
    for index in taken.values():
        free[index] -= 1
    return free


@pytest.mark.parametrize("layers", [(RACK,), (HOST, RACK)])
def test_large_pod_sets_are_assigned_in_one_pass(layers):
    slots = slot_map(*((f"b/r{i // 8}/n{i}", 2) for i in range(400)))
    found = given_to(pods(*range(800)), [2] * 400, slots, {}, layers)
    assert found == {rank: rank // 2 for rank in range(800)}
    assert Homes(layers, [slot.values for slot in slots.slots], [2] * 400, [2] * 400).choose(0, 0) == 0


# -- the last slice as a part of one ------------------------------------------------------------------------------

TAILED = RankLayer(2, 4, 10)  # ten ranks: 0..3, 4..7, and 8 and 9


def test_a_tail_goes_to_the_domain_that_has_it_wherever_that_is_in_tree_order():
    slots = slot_map(("b/r1/n1", 4), ("b/r2/n2", 2), ("b/r3/n3", 4))
    expected = {**dict.fromkeys(range(4), 0), **dict.fromkeys(range(4, 8), 2), 8: 1, 9: 1}
    assert given_to(pods(*range(10)), [4, 2, 4], slots, layers=(TAILED,)) == expected
    # Beside whole slices too, and though its ranks come first.
    beside = slot_map(("b/r1/n1", 6), ("b/r2/n2", 4))
    early = given_to(pods(8, 9), [6, 4], beside, layers=(TAILED,))
    assert early == {8: 0, 9: 0}
    rest = given_to(pods(*range(8)), [4, 4], beside, early, layers=(TAILED,))
    assert {rest[rank] for rank in range(4)} != {rest[rank] for rank in range(4, 8)}
    assert sorted(rest.values()) == [0] * 4 + [1] * 4


@settings(max_examples=150, deadline=None)
@given(st.data(), st.permutations([4, 4, 2]), st.permutations(range(10)))
def test_ranks_of_a_tail_are_together_in_whatever_order_they_come(data, sizes, order):
    slots = slot_map(*((f"b/r{at}/n{at}", size) for at, size in enumerate(sizes)))
    taken = {}
    while len(taken) < 10:
        free = _free(slots, taken)
        left = [rank for rank in order if rank not in taken]
        some = left[: data.draw(st.integers(1, len(left)))]
        found = given_to(pods(*some), free, slots, taken, (TAILED,))
        assert found.keys() == set(some), "each of them has its place"
        taken |= found
    homes = [{taken[rank] for rank in ranks} for ranks in (range(4), range(4, 8), range(8, 10))]
    assert all(len(domains) == 1 for domains in homes)


def test_a_tail_is_given_back_where_whole_slices_remain():
    slots = slot_map(("b/r1/n1", 6), ("b/r2/n2", 4))
    counted = Tally([4, 4], [0, 0], [4, 4], [0, 0])
    assert surplus(slots, counted, 8, (TAILED,)) == {0: 2}, "the tail is done"
    assert surplus(slots, Tally([2, 4], [0, 0], [2, 4], [0, 0]), 6, (TAILED,)) == {0: 4}, "a whole slice is done"
    nothing = Tally([0, 0], [0, 0], [0, 0], [0, 0])
    assert surplus(slots, nothing, 6, (TAILED,)) == {1: 4}, "the tail is still to come"
    assert surplus(slots, nothing, 4, (TAILED,)) == {0: 2, 1: 4}
    assert surplus(slots, Tally([0, 4], [0, 0], [0, 4], [0, 0]), 9, (TAILED,)) == {}


@pytest.mark.parametrize(
    ("done", "count", "positions"),
    [
        ("", 10, [0, 9]),
        ("0-3", 6, [None, 5]),
        ("8,9", 8, [0, None]),
        ("9", 10, [0, 9]),
        ("0-3,8-9", 4, [None, None]),
        ("0,1", 10, [0, 9]),
    ],
)
def test_a_job_with_a_tail_needs_what_its_slices_need(done, count, positions):
    status = {"completedIndexes": done, "succeeded": len([one for one in done if one.isdigit()])}
    (pod_set,) = make_owner(parallelism=10, indexed=True, request=SLICED, status=status).pod_sets
    assert (pod_set.count, pod_set.full) == (count, 10)
    assert [pod_set.position(rank) for rank in (0, 9)] == positions


def test_a_job_of_which_more_ranks_come_later_has_no_tail():
    owner = make_owner(parallelism=10, completions=30, indexed=True, request=SLICED)
    assert "10 pods at once, of 30, do not divide into slices of 4; 8 or 12 would" in str(owner.wrong)
    assert make_owner(parallelism=10, completions=30, request=SLICED).wrong is None, (
        "without ranks nothing is told apart"
    )
    assert make_owner(parallelism=8, completions=30, indexed=True, request=SLICED).wrong is None


def test_a_job_with_a_tail_is_evicted_as_one():
    by_slice = {**SLICED, "topogate.dev/evict-by": "slice"}
    assert make_owner(parallelism=8, request=by_slice).by_slices
    assert not make_owner(parallelism=10, request=by_slice).by_slices
