import json
from itertools import combinations
from pathlib import Path

import pytest

from engine.kubelet.device_manager import is_gpu
from engine.kubelet.devices.links import LinkError, from_words
from engine.kubelet.devices.xpu import XpuBoard
from kube.links import device_links, from_annotations, parse_matrix
from kube.topologies import Component, Edge, FlexTopoSpec

DATA = json.loads((Path(__file__).parents[2] / "data" / "gpu-links.json").read_text())
GPU = "nvidia.com/gpu"
KEY = "gpu-topology.acme.com/nvlink-matrix"
SEED = json.dumps([[0 if a == b else 1 for b in range(8)] for a in range(8)])

DGX = """\
\x1b[4m\tGPU0\tGPU1\tGPU2\tmlx5_0\tmlx5_1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tPHB\tPXB\tSYS\t48-63,176-191\t3\t\tN/A
GPU1\tNV12\t X \tSYS\tPXB\tSYS\t48-63,176-191\t3\t\tN/A
GPU2\tPHB\tSYS\t X \tSYS\tPXB\t16-31,144-159\t1\t\tN/A
mlx5_0\tPXB\tPXB\tSYS\t X \tSYS
mlx5_1\tSYS\tSYS\tPXB\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
"""


def spec(matrix, *, pcie=None, numa=None, order=None):
    """A FlexTopo as the agent writes it: GPU ``i`` has index ``i`` and is listed where ``order`` says."""
    size = len(matrix)
    gpus = [
        Component(id=f"gpu-GPU-{i}", type="GPU", attributes={"uuid": f"GPU-{i}", "index": str(i)}) for i in range(size)
    ]
    edges = [
        Edge(
            source=f"gpu-GPU-{a}",
            target=f"gpu-GPU-{b}",
            type="link",
            attributes={"kind": matrix[a][b], "pcie": pcie[a][b]} if pcie else {"kind": matrix[a][b]},
        )
        for a, b in combinations(range(size), 2)
    ]
    near = [Edge(source=f"gpu-GPU-{i}", target=f"numa-{zone}", type="nearby") for i, zone in enumerate(numa or ())]
    return FlexTopoSpec(nodes=tuple(gpus[i] for i in order or range(size)), edges=(*near, *edges))


def table(matrix, numa, cpus):
    size = len(matrix)
    head = "\t" + "\t".join(f"GPU{i}" for i in range(size)) + "\tCPU Affinity\tNUMA Affinity"
    rows = ["\t".join([f"GPU{i}", *(f" {w} " for w in matrix[i]), cpus[i], str(numa[i])]) for i in range(size)]
    return "\n".join([head, *rows])


@pytest.mark.parametrize("name", ["dgx-a100", "hgx-h100", "v100-dgx1", "v100-other-order", "4090-8x"])
def test_a_printed_table_gives_the_graph_of_its_matrix(name):
    machine = DATA[name]
    text = table(machine["matrix"], machine["numa"], machine["cpus"])
    zone_ids = sorted(set(range(8)) if name == "dgx-a100" else set(machine["numa"]))
    found = device_links(GPU, 8, zone_ids=zone_ids, annotations={KEY: text})
    masks = [1 << zone_ids.index(zone) for zone in machine["numa"]]
    assert found == (from_words(machine["matrix"], zones=masks), ())


def test_columns_that_are_no_gpus_are_left_out():
    matrix = parse_matrix(DGX)
    assert matrix.words == (("X", "NV12", "PHB"), ("NV12", "X", "SYS"), ("PHB", "SYS", "X"))
    assert matrix.zones == (3, 3, 1)


def test_the_seeds_annotation_is_a_clique():
    found = device_links(GPU, 8, annotations={KEY: SEED, "gpu-topology.acme.com/gpu-states": "[]"})
    assert found.problems == ()
    assert found.found.nvlinks[0] == (0, 1, 1, 1, 1, 1, 1, 1)


def test_words_and_numbers_mix_in_json():
    assert parse_matrix('[["X", "NV12"], ["NV12", "X"]]').words == (("X", "NV12"), ("NV12", "X"))
    assert parse_matrix('[[0, 2, "PIX"], [2, 0, 0], ["PIX", 0, 0]]').words[0] == ("X", "NV2", "PIX")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[0,1],[0,0]]", "devices 0 and 1: 'NV1' one way, '' the other"),
        ("[[0,1,1],[1,0,1]]", "expected 2 rows of 2 links"),
        ("[[0,-1],[-1,0]]", "expected a number of NVLinks"),
        ('[["X","FAST"],["FAST","X"]]', "'FAST' is not a link"),
        ("[[0,1],[1,0]", "nvlink-matrix: Input data was truncated"),
        ("[]", "expected 1 to 64 devices, found 0"),
        ("", "expected a header that starts with GPU0"),
        ("GPU0 GPU1\nGPU0 X", "GPU0: expected 2 links, found 1"),
        ("GPU0 GPU1\nGPU0 X PIX", "expected 1 rows of 1 links"),
        (json.dumps([[0] * 65] * 65), "expected 1 to 64 devices, found 65"),
    ],
)
def test_what_is_no_matrix_is_named(text, said):
    with pytest.raises(LinkError, match=said):
        from_annotations({KEY: text})
    found = device_links(GPU, 2, annotations={KEY: text})
    assert found.found is None
    assert len(found.problems) == 1


def test_edges_give_links_levels_and_zones_in_order_of_the_devices():
    matrix = DATA["v100-dgx1"]["matrix"]
    pcie = [["PIX" if a // 2 == b // 2 else "PHB" if a // 4 == b // 4 else "SYS" for b in range(8)] for a in range(8)]
    hardware = spec(matrix, pcie=pcie, numa=[0, 0, 0, 0, 1, 1, 1, 1], order=[3, 0, 7, 1, 2, 6, 5, 4])
    known = device_links(GPU, 8, ids=[f"GPU-{i}" for i in range(8)], zones=[1] * 4 + [2] * 4, spec=hardware)
    assert known.found.weights == tuple(map(tuple, DATA["v100-dgx1"]["pair_scores_with_pcie"]))
    assert known.problems == ()
    # Where only the number is known, devices are in order of their index, and their zones come from the edges.
    assert device_links(GPU, 8, spec=hardware, zone_ids=[0, 1]).found == known.found
    turned = device_links(GPU, 8, ids=[f"GPU-{7 - i}" for i in range(8)], zones=[2] * 4 + [1] * 4, spec=hardware)
    assert turned.found.weights[7] == tuple(reversed(known.found.weights[0]))


def test_some_of_the_gpus_may_be_cut_into_slices():
    """Two of four GPUs are MIG: the plugin registers the other two as whole GPUs."""
    hardware = spec([["X" if a == b else "NV12" for b in range(4)] for a in range(4)])
    found = device_links(GPU, 2, ids=["GPU-1", "GPU-3"], zones=[1, 2], spec=hardware)
    assert found.found.nvlinks == ((0, 12), (12, 0))
    by_matrix = DATA["v100-dgx1"]["matrix"]
    only_ids = FlexTopoSpec(nodes=spec(by_matrix).nodes)
    found = device_links(GPU, 2, ids=["GPU-3", "GPU-7"], spec=only_ids, annotations={KEY: json.dumps(by_matrix)})
    assert found.found.nvlinks == ((0, 1), (1, 0))


@pytest.mark.parametrize("resource", ["nvidia.com/mig-3g.40gb", "nvidia.com/gpu.shared", "rdma/nic", "cpu", "memory"])
def test_slices_and_other_resources_have_no_links(resource):
    assert not is_gpu(resource)
    assert device_links(resource, 8, annotations={KEY: SEED}) == (None, ())


def test_time_slices_of_a_gpu_are_not_gpus():
    hardware = spec([["X", "NV4"], ["NV4", "X"]])
    assert device_links(GPU, 4, ids=["GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"], spec=hardware).found is None


def test_sources_that_disagree_are_a_problem_and_flextopo_counts():
    hardware = spec([["X", "NV12"], ["NV12", "X"]])
    found = device_links(GPU, 2, spec=hardware, annotations={KEY: "[[0,0],[0,0]]"})
    assert found.found.nvlinks == ((0, 12), (12, 0))
    assert found.problems == ("FlexTopo and annotation nvlink-matrix disagree about NVLinks; FlexTopo counts",)
    assert device_links(GPU, 2, spec=hardware, annotations={KEY: "[[0,1],[1,0]]"}).problems == ()
    assert device_links(GPU, 2, spec=hardware, annotations={KEY: '[["X","NV12"],["NV12","X"]]'}).problems == ()


def test_two_annotations_that_disagree_are_a_problem():
    found = device_links(GPU, 2, annotations={KEY: "[[0,1],[1,0]]", "example.com/nvlink-matrix": "[[0,0],[0,0]]"})
    assert found == (None, (f"annotations example.com/nvlink-matrix and {KEY} disagree",))


def test_two_edges_of_a_pair_that_disagree_are_a_problem():
    hardware = spec([["X", "NV12"], ["NV12", "X"]])
    again = Edge(source="gpu-GPU-1", target="gpu-GPU-0", type="link", attributes={"kind": "PIX"})
    found = device_links(GPU, 2, spec=FlexTopoSpec(nodes=hardware.nodes, edges=(*hardware.edges, again)))
    assert found.found is None
    assert found.problems == ("FlexTopo: gpu-GPU-1 and gpu-GPU-0: two links that disagree, NV12 and PIX",)


def test_a_matrix_of_other_gpus_is_not_used():
    found = device_links(GPU, 4, annotations={KEY: SEED})
    assert found == (None, ("annotation nvlink-matrix has 8 GPUs, the node 4; it is not used",))


def test_a_matrix_needs_the_devices_indexes_where_pairs_differ():
    mesh = json.dumps(DATA["v100-dgx1"]["matrix"])
    ids = [f"GPU-{i}" for i in range(8)]
    found = device_links(GPU, 8, ids=ids, zones=[1] * 8, annotations={KEY: mesh})
    assert found.found is None
    assert "which device is which" in found.problems[0]
    assert device_links(GPU, 8, ids=ids, zones=[1] * 8, annotations={KEY: SEED}).problems == ()
    named = FlexTopoSpec(nodes=spec(DATA["v100-dgx1"]["matrix"]).nodes)
    found = device_links(GPU, 8, ids=ids[::-1], zones=[1] * 8, annotations={KEY: mesh}, spec=named)
    assert found.found.nvlinks[7] == (0, 0, 0, 2, 2, 1, 1, 0)  # GPU 0, to GPU 7 first


def test_edges_by_count_of_links_or_level_alone():
    nodes = spec([["X"] * 3] * 3).nodes
    edges = (
        Edge(source="gpu-GPU-0", target="gpu-GPU-1", type="link", attributes={"nvlinks": "2", "pcie": "PIX"}),
        Edge(source="gpu-GPU-0", target="gpu-GPU-2", type="link", attributes={"nvlinks": "0", "pcie": "NODE"}),
    )
    found = device_links(GPU, 3, spec=FlexTopoSpec(nodes=nodes, edges=edges))
    assert found.found.weights == ((0, 250, 20), (250, 0, 0), (20, 0, 0))


def test_nothing_known_is_no_problem():
    assert device_links(GPU, 8) == (None, ())
    assert device_links(GPU, 8, spec=FlexTopoSpec(), annotations={}) == (None, ())


def test_xpus_have_wings():
    cards = device_links("kunlunxin.com/xpu", 8, ids=[str(i) for i in range(8)], zones=[1] * 4 + [2] * 4)
    assert cards.found == XpuBoard((0b1111, 0b11110000))
    assert device_links("kunlunxin.com/xpu", 8).found == XpuBoard()
    other = device_links("example.com/xpu", 4, ids=list("abcd"), zones=[0] * 4, xpus=("example.com/xpu",))
    assert other.found == XpuBoard((0b1111,))


def test_the_nvlinks_generation_is_the_oldest_one():
    nodes = spec([["X"] * 3] * 3).nodes

    def linked(*versions):
        pairs = zip([(0, 1), (1, 2), (0, 2)], versions, strict=False)
        edges = [
            Edge(
                source=f"gpu-GPU-{a}",
                target=f"gpu-GPU-{b}",
                type="link",
                attributes={"kind": "NV4", "pcie": "PIX"} | ({"nvlinkVersion": version} if version else {}),
            )
            for (a, b), version in pairs
        ]
        return device_links(GPU, 3, spec=FlexTopoSpec(nodes=nodes, edges=tuple(edges))).found.generation

    assert linked("4.0", "3.1", "4.0") == 3
    assert linked("4.0", "", "4.0") == 0
    assert linked("new") == 0
