from itertools import combinations

import pytest
from published_links import DATA, MACHINES, MESH_PCIE, published

from engine.kubelet.devices import links
from engine.kubelet.devices.links import (
    LinkError,
    LinkGraph,
    bits,
    cliques,
    closeness,
    from_words,
    largest_clique,
    mask_of,
    part,
    tables,
)


def brute_cliques(graph, within):
    """Every subset that is a clique and lies in no larger one."""
    found = [
        mask
        for mask in range(1, 1 << graph.size)
        if not mask & ~within
        and all(graph.nvlinks[a][b] for a, b in combinations([d for d in range(graph.size) if mask >> d & 1], 2))
    ]
    return {clique for clique in found if not any(clique != other and clique & other == clique for other in found)}


def test_the_published_weights_are_ours():
    for word, weight in DATA["weights"].items():
        if word in links.LEVELS:
            assert links.LEVELS[word] == weight
    assert links.LEVELS["PSB"] == DATA["weights"]["same-board"]
    assert DATA["weights"]["NV#"] == f"{links.NVLINK}*#"


def test_mesh_pair_sums_from_gpu_0():
    graph = published("v100-dgx1", pcie=MESH_PCIE)
    assert graph.weights[0] == (0, 150, 130, 230, 210, 10, 10, 10)
    assert [list(row) for row in graph.weights] == DATA["v100-dgx1"]["pair_scores_with_pcie"]


def test_mesh_without_pcie_levels_has_the_least_they_can_be():
    graph = published("v100-dgx1")
    assert graph.weights[0] == (0, 120, 120, 220, 210, 10, 10, 10)
    unknown = from_words(DATA["v100-dgx1"]["matrix"])
    assert unknown.weights[0] == (0, 110, 110, 210, 210, 10, 10, 10)


@pytest.mark.parametrize(
    ("name", "weight", "linked"),
    [
        ("dgx-a100", {1210, 1220}, 7),
        ("hgx-h100", {1810, 1820}, 7),
        ("4090-8x", {10}, 0),
        ("titanv-8x", {10, 30, 50}, 0),
    ],
)
def test_pair_weights_of_other_machines(name, weight, linked):
    graph = published(name)
    assert {graph.weights[a][b] for a, b in combinations(range(8), 2)} == weight
    assert {near.bit_count() for near in graph.neighbours} == {linked}


@pytest.mark.parametrize("name", MACHINES)
def test_graphs_are_symmetric_and_hash_by_value(name):
    graph = published(name)
    assert all(graph.weights[a][b] == graph.weights[b][a] for a in range(8) for b in range(8))
    assert all(graph.weights[a][a] == graph.nvlinks[a][a] == 0 for a in range(8))
    again = published(name)
    assert again == graph
    assert hash(again) == hash(graph)
    assert tables(again) is tables(graph)


def test_cliques_of_published_machines():
    assert cliques(published("dgx-a100")) == (0xFF,)
    assert cliques(published("hgx-h100")) == (0xFF,)
    assert cliques(published("4090-8x")) == tuple(1 << gpu for gpu in range(8))
    mesh = cliques(published("v100-dgx1"))
    assert mesh[:2] == (0b1111, 0b11110000)
    assert set(mesh[2:]) == {mask_of(pair) for pair in [(0, 4), (1, 5), (2, 6), (3, 7)]}


@pytest.mark.parametrize("name", MACHINES)
def test_cliques_are_all_maximal_cliques_of_every_set(name):
    graph = published(name)
    for within in range(1, 256, 7):
        assert set(cliques(graph, within)) == brute_cliques(graph, within)
    assert cliques(graph, 0) == ()


@pytest.mark.parametrize("name", MACHINES)
def test_tables_say_what_every_set_is_worth(name):
    graph = published(name)
    worth = tables(graph)
    for mask in range(256):
        assert worth.weight[mask] == graph.weight_of_set(mask)
        assert worth.in_zone[mask] == graph.pairs_in_zone(mask)
        assert worth.common[mask] == graph.common(mask)
        assert worth.clique[mask] == max((c.bit_count() for c in cliques(graph, mask)), default=0)
        assert (worth.clique[mask] == mask.bit_count()) == graph.is_clique(mask)
        assert worth.peak[mask.bit_count()] >= worth.weight[mask] + worth.in_zone[mask]


def test_largest_clique_beyond_the_tables():
    size = 20  # two switches with ten GPUs each
    words = [["X" if a == b else "NV4" if a // 10 == b // 10 else "SYS" for b in range(size)] for a in range(size)]
    graph = from_words(words)
    assert largest_clique(graph, graph.all) == 10
    assert largest_clique(graph, 0b111 | 0b1111 << 10) == 4
    assert largest_clique(graph, 0) == 0


def test_a_part_keeps_order_and_zones():
    graph = published("v100-dgx1", pcie=MESH_PCIE)
    small = part(graph, mask_of([0, 3, 4]))
    assert small.weights == ((0, 230, 210), (230, 0, 10), (210, 10, 0))
    assert small.zones == (1, 1, 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([["X", "NV1"], ["NV2", "X"]], "devices 0 and 1: 'NV1' one way, 'NV2' the other"),
        ([["X", "NV0"], ["NV0", "X"]], "'NV0' is not a link"),
        ([["X", "NVX"], ["NVX", "X"]], "'NVX' is not a link"),
        ([["X", "SYS"]], "expected 1 rows of 1 links"),
    ],
)
def test_what_is_no_matrix_is_refused(words, said):
    with pytest.raises(LinkError, match=said):
        from_words(words)


def test_zones_must_be_of_all_devices():
    with pytest.raises(LinkError, match="zones of 2 devices, found 1"):
        from_words([["X", "SYS"], ["SYS", "X"]], zones=[1])


def test_unknown_pairs_have_no_weight():
    graph = from_words([["X", ""], ["", "X"]])
    assert graph == LinkGraph(((0, 0), (0, 0)), ((0, 0), (0, 0)))
    assert list(bits(0b1010)) == [1, 3]


def test_closeness_compares_sets_of_different_machines():
    a100 = closeness(from_words(DATA["dgx-a100"]["matrix"], generation=3), 0b1111)
    h100 = closeness(from_words(DATA["hgx-h100"]["matrix"], generation=4), 0b1111)
    assert closeness(published("4090-8x"), 0b1111) < closeness(published("titanv-8x"), 0b1111)
    assert closeness(published("titanv-8x"), 0b1111) < closeness(published("v100-dgx1", pcie=MESH_PCIE), 0b1111) < a100
    assert (a100, h100) == (12_100, 18_100)
    b200 = from_words(DATA["hgx-h100"]["matrix"], generation=5)
    assert closeness(b200, 0b1111) == 36_100
    assert closeness(part(b200, 0b111), 0b111) == 36_100
    p100 = from_words([["X", "NV1"], ["NV1", "X"]], pcie=[["X", "PIX"], ["PIX", "X"]], generation=1)
    assert closeness(p100, 0b11) == 10 * 50 + 10 * 80
    assert closeness(b200, 1) == closeness(b200, 0) == 0
