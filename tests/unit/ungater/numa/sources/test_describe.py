"""Which source counts, and what is done where two disagree."""

import json

import pytest
from support.published import GI, GPU, flex, flex_body, node, nrt, nrt_zone

from engine.kubelet.devices.xpu import XpuBoard
from engine.kubelet.machine import Scope, TopologyPolicy
from ungater.numa.sources import SourceRules, describe

MATRIX = "gpu-topology.acme.com/nvlink-matrix"
STATES = "gpu-topology.acme.com/gpu-states"
ZONE0 = {"cpu": (8, 7, 7), "memory": (64 * GI, 63 * GI, 63 * GI), GPU: 2}
ZONE1 = {"cpu": 8, "memory": (64 * GI, 63 * GI, 63 * GI), GPU: 2}


def agreeing(**options):
    return nrt([nrt_zone(0, ZONE0), nrt_zone(1, ZONE1)], **options)


def test_exact_goes_before_amounts_and_amounts_before_annotations():
    annotated = node(annotations={MATRIX: json.dumps([[0, 1], [1, 0]])})
    assert describe(annotated, topology=agreeing(), flex=flex()).source == "FlexTopo"
    partial = flex_body()
    partial["status"]["conditions"][0]["status"] = "False"
    assert describe(annotated, topology=agreeing(), flex=flex(partial)).source == "NodeResourceTopology"
    assert describe(annotated, flex=flex(partial)).source == "FlexTopo"
    assert describe(annotated).source == "Node"
    nothing = describe(node())
    assert (nothing.machine, nothing.source, nothing.problems) == (None, "", ())


def test_sources_that_agree_disagree_about_nothing():
    found = describe(node(), topology=agreeing(), flex=flex())
    assert found.machine.layout.exact
    assert found.disagreements == ()


def test_a_little_less_memory_is_no_disagreement():
    zone = ZONE0 | {"memory": (64 * GI, 63 * GI - (GI // 4), 60 * GI)}
    assert describe(node(), topology=nrt([nrt_zone(0, zone), nrt_zone(1, ZONE1)]), flex=flex()).disagreements == ()


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        (agreeing(policy="single-numa-node"), "Topology Manager policy: FlexTopo has restricted"),
        (agreeing(scope="pod"), "Topology Manager scope: FlexTopo has container, NodeResourceTopology has pod"),
        (
            nrt([nrt_zone(0, ZONE0 | {GPU: 4}), nrt_zone(1, ZONE1)]),
            "allocatable nvidia.com/gpu of zone 0: FlexTopo has 2",
        ),
        (nrt([nrt_zone(0, ZONE0 | {"cpu": 8}), nrt_zone(1, ZONE1)]), "NodeResourceTopology has 8000"),
    ],
)
def test_a_disagreement_is_named_and_the_machine_is_amounts_alone(topology, said):
    found = describe(node(), topology=topology, flex=flex())
    assert found.source == "FlexTopo and NodeResourceTopology"
    assert any(said in text for text in found.disagreements), found.disagreements
    assert not found.machine.layout.exact
    assert found.machine.holds is None
    assert all(zone.cores == () for zone in found.machine.layout.zones)


def test_the_safer_picture_is_the_stricter_policy_and_the_smaller_amounts():
    topology = nrt(
        [
            nrt_zone(0, ZONE0 | {GPU: (4, 4, 1), "example.com/nic": 2}),
            nrt_zone(1, ZONE1),
        ],
        policy="single-numa-node",
        scope="pod",
    )
    layout = describe(node(), topology=topology, flex=flex(policy="best-effort")).machine.layout
    state = describe(node(), topology=topology, flex=flex(policy="best-effort")).machine.state
    assert [zone.id for zone in layout.zones] == [0, 1]
    assert layout.zones[0].distances == (10, 20)
    assert layout.kubelet.policy is TopologyPolicy.SINGLE
    assert layout.kubelet.scope is Scope.POD
    assert dict(zip(layout.resources, layout.allocatable[0], strict=True)) == {
        "cpu": 7000,
        "memory": 63 * GI,
        GPU: 2,
        "example.com/nic": 2,
    }
    assert dict(zip(layout.resources, state.free[0], strict=True))[GPU] == 1


def test_the_safer_picture_keeps_what_decides_about_devices():
    body = flex_body(policy="best-effort")
    near = [{"source": f"gpu-GPU-{gpu}", "target": f"numa-{gpu // 2}", "type": "nearby"} for gpu in range(4)]
    body["spec"]["edges"] += near
    xpus = {"kunlunxin.com/xpu": 4}
    topology = nrt([nrt_zone(0, ZONE0 | xpus), nrt_zone(1, ZONE1)], policy="single-numa-node")
    found = describe(node(), topology=topology, flex=flex(body))
    links = dict(zip(found.machine.layout.resources, found.machine.layout.links, strict=True))
    assert found.disagreements
    assert links["kunlunxin.com/xpu"] == XpuBoard()
    assert links[GPU].neighbours == (0b10, 0b01, 0b1000, 0b0100)
    assert links[GPU].zones == (1, 1, 2, 2)


def test_which_resources_are_xpus_is_a_rule():
    topology = nrt([nrt_zone(0, ZONE0 | {"example.com/xpu": 4})])
    found = describe(node(), topology=topology, rules=SourceRules(xpus=("example.com/xpu",)))
    links = dict(zip(found.machine.layout.resources, found.machine.layout.links, strict=True))
    assert links["example.com/xpu"] == XpuBoard()


@pytest.mark.parametrize("zones", [(6, 7), (0, 2)])
def test_where_sources_name_different_zones_amounts_of_the_node_decide(zones):
    """Of the zones that both name pods would wait for ever, if those are a part of the machine."""
    first, second = zones
    found = describe(node(), topology=nrt([nrt_zone(first, ZONE0), nrt_zone(second, ZONE1)]), flex=flex())
    assert found.machine is None
    assert f"zones: FlexTopo has 0, 1, NodeResourceTopology has {first}, {second}" in found.disagreements


# -- zones that contradict their node -------------------------------------------------------------------------

# Node Feature Discovery 0.19.0 on a machine with NUMA nodes 0 and 2: zones by their place, amounts by their number.
OF_NFD = [
    nrt_zone(0, {"cpu": (16, 15, 1)}, {0: 10, 1: 20}),
    nrt_zone(1, {"cpu": 0}),
]
BELIEVED = [
    nrt_zone(0, {"cpu": (16, 15, 1)}, {0: 10, 2: 20}),
    nrt_zone(2, {"cpu": 16}, {0: 20, 2: 10}),
]
EMPTY, FEW = "zone node-1 has no capacity and no costs", "the zones have 15 cpu allocatable in all, and the node has 31"


def test_zones_that_contradict_their_node_are_not_believed():
    found = describe(node(cpu="31", memory="512Gi"), topology=nrt(OF_NFD))
    assert found.machine is None
    assert any(EMPTY in text for text in found.problems)
    assert any(FEW in text for text in found.problems)
    assert describe(node(cpu="31", memory="512Gi"), topology=nrt(BELIEVED)).problems == ()
    assert any(EMPTY in text for text in describe(node(), topology=nrt(OF_NFD)).problems), "whatever the node has"


def test_the_agent_beside_such_an_exporter_counts_whole():
    found = describe(node(cpu="15"), topology=nrt(OF_NFD), flex=flex(flex_body(zones=(0, 2))))
    assert (found.source, found.disagreements) == ("FlexTopo", ())
    assert [zone.id for zone in found.machine.layout.zones] == [0, 2]
    assert found.problems


@pytest.mark.parametrize(
    ("zones", "allocatable", "believed"),
    [
        ([{"cpu": 8}, {"cpu": 8}], {"cpu": "15500m"}, True),
        ([{"cpu": (4, 2, 2)}], {"cpu": "3900m"}, True),
        ([{"cpu": 8}, {"cpu": 8}], {"cpu": "12"}, True),
        ([{"cpu": 8}, {"cpu": 8}], {"cpu": "32"}, False),
        ([{"cpu": 8}, {"cpu": 8}], {"cpu": "8"}, False),
        ([{"memory": 64 * GI}, {"memory": 64 * GI}], {"cpu": "32", "memory": "126Gi"}, True),
        ([{"memory": 64 * GI}], {"memory": "126Gi"}, True),
        ([{"memory": 64 * GI}, {"memory": 64 * GI}], {"memory": "64Gi"}, True),
        ([{GPU: 8}, {GPU: 8}], {"cpu": "32", GPU: "8"}, True),
        ([{"cpu": 0}, {"cpu": 0}], {"cpu": "32"}, True),
    ],
)
def test_how_far_sums_may_be_off(zones, allocatable, believed):
    """Reservations and hugepages are counted in several ways, and a device near to two zones counts in both."""
    topology = nrt([nrt_zone(at, amounts) for at, amounts in enumerate(zones)])
    assert (describe(node(**allocatable), topology=topology).machine is not None) is believed


def test_a_zone_of_memory_alone_is_believed():
    """A memory expander: no CPUs, but costs."""
    zones = [nrt_zone(0, {"cpu": 16}, {0: 10, 1: 24}), nrt_zone(1, {"cpu": 0}, {0: 24, 1: 10})]
    assert describe(node(cpu="16"), topology=nrt(zones)).machine is not None


def test_a_matrix_alone_tells_links_and_what_is_free():
    matrix = [[int(a // 4 == b // 4 and a != b) for b in range(8)] for a in range(8)]
    states = ["free", "allocated"] + ["free"] * 6
    found = describe(node(annotations={MATRIX: json.dumps(matrix), STATES: json.dumps(states)}, **{GPU: "8"}))
    layout = found.machine.layout
    assert layout.resources == (GPU,)
    assert layout.capacity == ((8,),)
    assert found.machine.state.free == ((7,),)
    assert layout.kubelet.policy is TopologyPolicy.NONE
    assert layout.links[0].neighbours[7] == 0b01110000
    assert not found.zones_known
    assert found.problems == ()


def test_a_printed_matrix_tells_the_zones():
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\tX\tNV4\t0-7\t0\nGPU1\tNV4\tX\t8-15\t1\n"
    found = describe(node(annotations={MATRIX: text}))
    assert [zone.id for zone in found.machine.layout.zones] == [0, 1]
    assert found.machine.layout.capacity == ((1,), (1,))
    assert found.machine.layout.links[0].zones == (1, 2)
    assert found.zones_known


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({MATRIX: "[[0,1]"}, "nvlink-matrix"),
        ({MATRIX: "[[0,1],[0,0]]"}, "one way"),
        ({MATRIX: "[[0]]", STATES: "free"}, f"metadata.annotations[{STATES}]: Invalid value"),
        ({MATRIX: "[[0]]", STATES: '["free","free"]'}, "expected one for each of 1 GPUs"),
    ],
)
def test_bad_annotations_are_named(annotations, said):
    found = describe(node(annotations=annotations))
    assert any(said in text and text.startswith("Node n1: ") for text in found.problems), found.problems


def behind(*roots):
    """The two zones' machine, with one network card a (root, zone)."""
    body = flex_body()
    for at, (root, zone) in enumerate(roots):
        body["spec"]["nodes"].append({"id": f"nic-{at}", "type": "NIC", "attributes": {"pcieRoot": root}})
        if zone is not None:
            body["spec"]["edges"].append({"source": f"nic-{at}", "target": f"numa-{zone}", "type": "nearby"})
    return flex(body)


def test_a_pcie_root_is_of_the_zone_that_all_its_devices_are_near():
    topo = behind(("a", 0), ("b", 1), ("b", 1), ("both", 0), ("both", 1), ("nowhere", None), ("gone", 7))
    for topology in (None, agreeing()):
        assert describe(node(), topology=topology, flex=topo).machine.pcie_roots == {"a": 0, "b": 1}
    assert describe(node(), topology=agreeing()).machine.pcie_roots == {}


def test_of_sources_that_disagree_no_root_is_known():
    topology = nrt([nrt_zone(0, ZONE0 | {GPU: 4}), nrt_zone(1, ZONE1)])
    assert describe(node(), topology=topology, flex=behind(("a", 0))).machine.pcie_roots == {}
