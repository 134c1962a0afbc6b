import random
from itertools import combinations

import pytest
from published_links import DATA, MACHINES, MESH_PCIE, published

from engine.kubelet.devices.choose import (
    KEEP,
    PREFER,
    REQUIRE,
    DeviceChoice,
    best_set,
    choose,
    fragmentation,
)
from engine.kubelet.devices.links import from_words, largest_clique, mask_of

MODES = [KEEP, PREFER, REQUIRE]


def members(mask):
    return tuple(device for device in range(mask.bit_length()) if mask >> device & 1)


def clique_size(graph, mask):
    """By definition: the largest subset whose pairs are all linked."""
    devices = members(mask)
    for size in range(len(devices), 1, -1):
        if any(all(graph.nvlinks[a][b] for a, b in combinations(s, 2)) for s in combinations(devices, size)):
            return size
    return min(len(devices), 1)


def exhaustive(graph, wanted, spare):
    """The order of preference written down once more, over every set there is. ``spare``: mask -> largest clique."""
    free = wanted.free
    within = free if wanted.within is None else wanted.within
    reach = free if wanted.reach is None else wanted.reach
    best = None
    for chosen in combinations(members(within & ~wanted.held | wanted.must), wanted.count):
        mask = mask_of(chosen)
        if mask & wanted.must != wanted.must:
            continue
        joined = mask | wanted.held
        if wanted.mode == REQUIRE:
            more = [mask_of(rest) for rest in combinations(members(reach & ~joined), wanted.later)]
            if not any(graph.is_clique(joined | rest) for rest in more):
                continue
        left = free & ~mask
        closeness = (graph.weight_of_set(joined), graph.pairs_in_zone(joined))
        rules = (spare(left), *closeness) if wanted.mode == KEEP else (*closeness, spare(left))
        rank = (*rules, graph.weight_of_set(left), graph.pairs_in_zone(left), tuple(-device for device in chosen))
        if best is None or rank > best[0]:
            best = rank, mask
    return None if best is None else best[1]


def sparing(graph):
    sizes = {}

    def spare(mask):
        if mask not in sizes:
            sizes[mask] = clique_size(graph, mask)
        return sizes[mask]

    return spare


@pytest.mark.parametrize("name", MACHINES)
def test_every_choice_on_every_published_machine_is_the_exhaustive_one(name):
    graph = published(name, pcie=MESH_PCIE if name == "v100-dgx1" else ())
    spare = sparing(graph)
    for free in range(0, 256, 1 if name == "v100-dgx1" else 3):
        for count in (1, 2, 3, 4, 8):
            for mode in MODES:
                wanted = DeviceChoice(count=count, free=free, mode=mode)
                assert choose(graph, wanted) == exhaustive(graph, wanted, spare), (free, count, mode)


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_with_what_a_pod_has_and_will_want(seed):
    dice = random.Random(seed)
    size = dice.randint(4, 9)
    kinds = ["SYS", "NODE", "PHB", "PIX", "NV1", "NV2", "NV4"]
    words = [["X"] * size for _ in range(size)]
    for a, b in combinations(range(size), 2):
        words[a][b] = words[b][a] = dice.choice(kinds)
    graph = from_words(words, zones=[1 << dice.randrange(3) for _ in range(size)])
    spare = sparing(graph)
    for _ in range(60):
        held = dice.getrandbits(size) & dice.getrandbits(size) & dice.getrandbits(size)
        free = dice.getrandbits(size) & ~held
        within = free & (dice.getrandbits(size) | dice.getrandbits(size))
        must = within & dice.getrandbits(size) & dice.getrandbits(size)
        mode = dice.choice(MODES)
        later = dice.choice([0, 0, 1, 2]) if mode != PREFER else 0
        wanted = DeviceChoice(
            count=dice.randint(0, 4), free=free, mode=mode, within=within, must=must, held=held, later=later
        )
        expected = exhaustive(graph, wanted, spare) if wanted.count >= must.bit_count() else None
        assert choose(graph, wanted) == expected, wanted


@pytest.mark.parametrize("case", DATA["v100-dgx1"]["best_effort"], ids=lambda case: f"{case['n']} of {case['avail']}")
def test_prefer_on_the_mesh_is_no_worse_than_the_peers(case):
    graph = published("v100-dgx1", pcie=MESH_PCIE)
    found = best_set(graph, mask_of(case["avail"]), case["n"], PREFER)
    best = max(graph.weight_of_set(mask_of(chosen)) for chosen in combinations(case["avail"], case["n"]))
    assert graph.weight_of_set(found) == best >= max(case["partition_score"], case.get("greedy_score", 0))


def test_prefer_on_the_mesh():
    graph = published("v100-dgx1", pcie=MESH_PCIE)
    assert members(best_set(graph, 0xFF, 2, PREFER)) == (2, 3)
    assert graph.weight_of_set(best_set(graph, 0xFF, 3, PREFER)) == 610
    assert members(best_set(graph, 0xFF, 4, PREFER)) == (0, 1, 2, 3)
    assert graph.weight_of_set(best_set(graph, 0xFF, 4, PREFER)) == 1120


def test_require_is_one_clique_or_nothing():
    mesh = published("v100-dgx1", pcie=MESH_PCIE)
    assert members(best_set(mesh, 0xFF, 4, REQUIRE)) == (0, 1, 2, 3)
    assert best_set(mesh, 0xFF, 5, REQUIRE) is None
    assert best_set(mesh, mask_of([0, 1, 2, 4, 5, 6]), 4, REQUIRE) is None
    assert members(best_set(mesh, mask_of([0, 1, 2, 4, 5]), 3, REQUIRE)) == (0, 1, 2)
    assert members(best_set(mesh, mask_of([0, 4, 5]), 2, REQUIRE)) == (0, 4)
    assert best_set(published("hgx-h100"), 0xFF, 8, REQUIRE) == 0xFF
    assert best_set(published("4090-8x"), 0xFF, 2, REQUIRE) is None
    assert best_set(published("4090-8x"), 0xFF, 1, REQUIRE) == 1
    assert best_set(published("titanv-8x"), 0xFF, 2, REQUIRE) is None


def test_prefer_takes_the_two_behind_one_switch():
    titan = published("titanv-8x")
    assert members(best_set(titan, 0xFF, 2, PREFER)) == (0, 1)
    assert members(best_set(titan, mask_of([1, 2, 3, 4, 6]), 2, PREFER)) == (2, 3)
    assert members(best_set(titan, mask_of([0, 2, 4, 6, 7]), 3, PREFER)) == (4, 6, 7)


def test_numa_separates_what_links_do_not():
    boxes = published("4090-8x")
    assert members(best_set(boxes, mask_of([0, 1, 4, 5, 6]), 3, PREFER)) == (4, 5, 6)
    assert members(best_set(boxes, mask_of([0, 1, 4, 5, 6, 7]), 2)) == (0, 1)  # the whole half stays whole
    switched = published("hgx-h100")
    assert members(best_set(switched, mask_of([0, 1, 2, 3, 6]), 1)) == (6,)


def test_without_annotation_the_largest_clique_stays():
    mesh = published("v100-dgx1", pcie=MESH_PCIE)
    assert members(best_set(mesh, mask_of([3, 4, 5, 6, 7]), 1)) == (3,)
    assert members(best_set(mesh, mask_of([0, 1, 4, 5, 6, 7]), 2)) == (0, 1)
    # The best connected pair is 6 and 7; taking it would break the only clique of four.
    free = mask_of([0, 1, 4, 5, 6, 7])
    assert members(best_set(mesh, free, 2, PREFER)) == (6, 7)
    assert largest_clique(mesh, free & ~best_set(mesh, free, 2)) == 4


def test_only_zones_of_the_admission_are_used():
    mesh = published("v100-dgx1", pcie=MESH_PCIE)
    found = choose(mesh, DeviceChoice(count=2, free=0xFF, within=0xF0, mode=PREFER))
    assert members(found) == (6, 7)
    assert choose(mesh, DeviceChoice(count=2, free=0xFF, within=0b10001, mode=PREFER)) == 0b10001
    assert choose(mesh, DeviceChoice(count=3, free=0xFF, within=0b10001, mode=PREFER)) is None


def test_the_first_container_leaves_room_for_the_next():
    mesh = published("v100-dgx1", pcie=MESH_PCIE)
    free = mask_of([1, 2, 4, 5, 6, 7])
    alone = choose(mesh, DeviceChoice(count=2, free=free, mode=REQUIRE))
    assert members(alone) in {(1, 2), (6, 7)}
    first = choose(mesh, DeviceChoice(count=2, free=free, mode=REQUIRE, later=2))
    second = choose(mesh, DeviceChoice(count=2, free=free & ~first, mode=REQUIRE, held=first))
    assert members(first | second) == (4, 5, 6, 7)
    # 1 and 2 of the six have 230, less than 6 and 7; two containers of one and three devices end on one quad.
    first = choose(mesh, DeviceChoice(count=1, free=free, mode=PREFER, later=3))
    second = choose(mesh, DeviceChoice(count=3, free=free & ~first, mode=PREFER, held=first))
    assert first | second == best_set(mesh, free, 4, PREFER)


def two_switches(size=24):
    half = size // 2
    return from_words(
        [["X" if a == b else "NV4" if a // half == b // half else "SYS" for b in range(size)] for a in range(size)],
        zones=[1 << (device // half) for device in range(size)],
    )


def test_more_devices_than_the_tables_hold():
    graph = two_switches()
    assert best_set(graph, graph.all, 12, REQUIRE) == 0xFFF
    assert best_set(graph, graph.all, 13, REQUIRE) is None
    assert best_set(graph, graph.all & ~1, 12, REQUIRE) == 0xFFF << 12
    assert best_set(graph, graph.all & ~1, 11, PREFER) == 0xFFE
    assert best_set(graph, graph.all & ~0b111, 4) == 0b1111000
    assert choose(graph, DeviceChoice(count=2, free=graph.all & ~1, held=1, mode=REQUIRE, later=9)) == 0b110
    assert choose(graph, DeviceChoice(count=2, free=graph.all & ~1, held=1, mode=REQUIRE, later=10)) is None
    assert choose(graph, DeviceChoice(count=2, free=graph.all, must=1 | 1 << 12, mode=REQUIRE)) is None
    assert choose(graph, DeviceChoice(count=2, free=graph.all, must=3, mode=REQUIRE)) == 3
    assert choose(graph, DeviceChoice(count=2, free=graph.all, must=1 | 1 << 12, mode=PREFER)) == 1 | 1 << 12


def test_few_free_of_many_devices_are_chosen_exactly():
    graph = two_switches()
    free = mask_of([0, 1, 11, 12, 13, 14, 23])
    assert members(best_set(graph, free, 3, PREFER)) == (0, 1, 11)
    assert members(best_set(graph, free, 4, REQUIRE)) == (12, 13, 14, 23)
    assert members(choose(graph, DeviceChoice(count=2, free=free, within=mask_of([0, 12, 23]), mode=REQUIRE))) == (
        12,
        23,
    )
    assert members(choose(graph, DeviceChoice(count=2, free=free, held=1 << 22, mode=REQUIRE))) == (12, 13)


def test_fragmentation_is_what_the_best_set_of_that_size_has_more():
    mesh = published("v100-dgx1", pcie=MESH_PCIE)
    assert fragmentation(mesh, 0xFF) == fragmentation(mesh, 0) == fragmentation(mesh, 0xF) == 0
    assert fragmentation(mesh, 1) == 0
    # 0 and 5 share no link: weight 10 of the 251 that 2 and 3, in one zone, have.
    assert fragmentation(mesh, mask_of([0, 5])) == 1000 * 241 // 251
    assert fragmentation(published("hgx-h100"), 0b1111) == 0
    assert 0 < fragmentation(published("hgx-h100"), 0b110011) < 10
    assert fragmentation(two_switches(), 0xFFF) == 0
    assert fragmentation(two_switches(), 1 | 1 << 12) > 900
