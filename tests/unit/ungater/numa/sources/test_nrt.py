"""Machines from NodeResourceTopology: what counts, what is inferred, and what is said about bad values."""

import pytest
from support.published import GI, GPU, node, nrt, nrt_zone

from engine.kubelet.devices.xpu import XpuBoard
from engine.kubelet.machine import Kubelet, Scope, TopologyPolicy
from ungater.numa.sources import SourceRules, describe

EIGHT = {"cpu": (16, 14, 10), "memory": (64 * GI, 60 * GI, 30 * GI), GPU: (4, 4, 3)}


def described(*zones, rules=None, **options):
    return describe(node(), topology=nrt(zones, **options), rules=rules)


def test_amounts_come_in_milli_cpu_bytes_and_units_by_zone():
    found = described(nrt_zone(1, EIGHT), nrt_zone(0, {"cpu": 8, GPU: 0}))
    layout, state = found.machine.layout, found.machine.state
    assert found.problems == ()
    assert found.source == "NodeResourceTopology"
    assert [zone.id for zone in layout.zones] == [0, 1]
    assert layout.resources == ("cpu", "memory", GPU)
    assert layout.capacity == ((8000, -1, 0), (16000, 64 * GI, 4))
    assert layout.allocatable == ((8000, -1, 0), (14000, 60 * GI, 4))
    assert state.free == ((8000, -1, 0), (10000, 30 * GI, 3))
    assert not layout.exact
    assert found.machine.holds is None


def test_sparse_ids_and_other_types_of_zones():
    found = described(
        nrt_zone(4, EIGHT, {0: 20, 4: 10}),
        {"name": "l3-0", "type": "Cache", "resources": []},
        nrt_zone(0, EIGHT, {4: 20, 0: 10}),
    )
    assert [(zone.id, zone.distances) for zone in found.machine.layout.zones] == [(0, (10, 20)), (4, (20, 10))]
    assert found.problems == ()


@pytest.mark.parametrize(
    ("policies", "policy", "scope"),
    [
        (["SingleNUMANodeContainerLevel"], TopologyPolicy.SINGLE, Scope.CONTAINER),
        (["SingleNUMANodePodLevel"], TopologyPolicy.SINGLE, Scope.POD),
        (["Restricted"], TopologyPolicy.RESTRICTED, Scope.CONTAINER),
        (["RestrictedContainerLevel"], TopologyPolicy.RESTRICTED, Scope.CONTAINER),
        (["RestrictedPodLevel", "BestEffort"], TopologyPolicy.RESTRICTED, Scope.POD),
        (["BestEffort"], TopologyPolicy.BEST_EFFORT, Scope.CONTAINER),
        (["BestEffortPodLevel"], TopologyPolicy.BEST_EFFORT, Scope.POD),
        (["None"], TopologyPolicy.NONE, Scope.CONTAINER),
        ([], TopologyPolicy.NONE, Scope.CONTAINER),
    ],
)
def test_the_old_list_counts_where_there_are_no_attributes(policies, policy, scope):
    kubelet = described(nrt_zone(0, EIGHT), policy="", policies=policies).machine.layout.kubelet
    assert (kubelet.policy, kubelet.scope) == (policy, scope)


def test_attributes_win_over_the_old_list():
    found = described(nrt_zone(0, EIGHT), policy="restricted", scope="pod", policies=["SingleNUMANodeContainerLevel"])
    assert found.machine.layout.kubelet.policy is TopologyPolicy.RESTRICTED
    assert found.machine.layout.kubelet.scope is Scope.POD
    assert found.problems == ()


def test_options_and_version():
    attributes = {
        "topologyManagerOptionPreferClosestNUMANodes": "true",
        "topologyManagerMaxNUMANodes": "16",
        "cpuManagerOptionFullPcpusOnly": "true",
        "nodeTopologyPodsFingerprint": "pfp0v0013fa2b8d40c5e1f7a",
    }
    found = describe(node(version="v1.34.2-eks-1"), topology=nrt([nrt_zone(0, EIGHT)], attributes=attributes))
    assert found.machine.layout.kubelet == Kubelet(
        version=(1, 34),
        policy=TopologyPolicy.RESTRICTED,
        static_cpu=True,
        static_memory=True,
        prefer_closest_numa_nodes=True,
        full_pcpus_only=True,
        max_allowable_numa_nodes=16,
    )
    assert found.problems == ()


@pytest.mark.parametrize(
    ("amounts", "cpu", "memory"),
    [
        ({GPU: 1}, False, False),
        ({"cpu": 1}, True, False),
        ({"memory": 1}, False, True),
        ({"hugepages-1Gi": GI}, False, True),
        ({"cpu": 0, "memory": 0}, False, False),
    ],
)
def test_the_managers_are_on_where_any_zone_has_their_resource(amounts, cpu, memory):
    kubelet = described(nrt_zone(0, {}), nrt_zone(1, amounts)).machine.layout.kubelet
    assert (kubelet.static_cpu, kubelet.static_memory) == (cpu, memory)


def test_what_is_to_be_ignored_is_handed_on():
    found = described(nrt_zone(0, EIGHT), rules=SourceRules(ignored=("memory", "cpu")))
    assert found.machine.layout.ignored == ("cpu", "memory")


def test_equal_hardware_under_equal_settings_has_equal_layouts():
    zones = [nrt_zone(zone, EIGHT) for zone in (0, 1)]
    one = describe(node("a"), topology=nrt(zones, name="a"))
    other = describe(node("b"), topology=nrt(list(reversed(zones)), name="b"))
    assert hash(one.machine.layout) == hash(other.machine.layout)
    assert one.machine.layout == other.machine.layout
    assert (one.machine.node, other.machine.node) == ("a", "b")


@pytest.mark.parametrize(
    ("zones", "options", "said"),
    [
        ([nrt_zone(0, {"cpu": ("8", "8", "many")})], {}, 'zones[0].resources[0][cpu].available: Invalid value: "many"'),
        ([nrt_zone(0, {"cpu": ("8", "-1", "0")})], {}, 'allocatable: Invalid value: "-1": expected no negative amount'),
        ([nrt_zone(0, {"cpu": (8, 9, 8)})], {}, 'allocatable: Invalid value: "9": expected at most the capacity, 8'),
        (
            [nrt_zone(0, {"cpu": (8, 7, 8)})],
            {},
            'available: Invalid value: "8": expected at most what is allocatable, 7',
        ),
        (
            [nrt_zone(0, EIGHT), nrt_zone(0, EIGHT)],
            {},
            'zones[1].name: Invalid value: "node-0": expected each zone once',
        ),
        ([nrt_zone(0, EIGHT), nrt_zone(1, EIGHT, name="numa-1")], {}, 'zones[1].name: Invalid value: "numa-1"'),
        ([nrt_zone(0, EIGHT, {0: 10, 1: 20})], {}, 'zones[0].costs[1].name: Invalid value: "node-1"'),
        ([nrt_zone(0, EIGHT, {0: 10}), nrt_zone(1, EIGHT)], {}, "zones[0].costs: Required value"),
        ([nrt_zone(0, EIGHT)], {"policy": "socket"}, 'attributes[0](topologyManagerPolicy): Invalid value: "socket"'),
        ([nrt_zone(0, EIGHT)], {"scope": "node"}, "expected one of container, pod"),
        ([nrt_zone(0, EIGHT)], {"policy": "", "policies": ["Strict"]}, 'topologyPolicies[0]: Invalid value: "Strict"'),
        ([nrt_zone(0, EIGHT)], {"attributes": {"topologyManagerMaxNUMANodes": "x"}}, "expected a whole number"),
    ],
)
def test_what_is_wrong_is_named_with_its_node_its_field_and_what_was_expected(zones, options, said):
    found = described(*zones, **options)
    assert found.machine is not None
    assert any(said in problem and problem.startswith("NodeResourceTopology n1: ") for problem in found.problems), found


def test_a_bad_amount_counts_as_nothing_and_a_too_large_one_as_the_smaller():
    found = described(nrt_zone(0, {"cpu": (8, 8, "x"), "memory": (8, "x", 4), GPU: (4, 3, 9)}))
    layout = found.machine.layout
    assert layout.allocatable == ((8000, 0, 3),)
    assert found.machine.state.free == ((0, 0, 3),)


@pytest.mark.parametrize("zones", [[], [{"name": "l3", "type": "Cache"}], [{"name": "zone-0", "type": "Node"}]])
def test_an_object_without_zones_is_no_machine_and_says_so(zones):
    found = described(*zones)
    assert found.machine is None
    assert any("zones: Required value" in problem for problem in found.problems)


def test_very_many_problems_are_counted():
    found = described(*(nrt_zone(zone, {"cpu": (8, 8, "x")}) for zone in range(30)))
    assert len(found.problems) == 9
    assert found.problems[-1] == "NodeResourceTopology n1: and 22 more"


def test_links_come_with_the_node_s_annotation():
    matrix = "[[0,1,1,0],[1,0,1,0],[1,1,0,0],[0,0,0,0]]"
    annotated = node(annotations={"gpu-topology.acme.com/nvlink-matrix": matrix})
    found = describe(annotated, topology=nrt([nrt_zone(0, {GPU: 4, "kunlunxin.com/xpu": 8})]))
    layout = found.machine.layout
    assert layout.links[layout.resources.index(GPU)].neighbours == (6, 5, 3, 0)
    assert layout.links[layout.resources.index("kunlunxin.com/xpu")] == XpuBoard()
    short = describe(annotated, topology=nrt([nrt_zone(0, {GPU: 3})]))
    assert any("4 GPUs, the node 3" in problem for problem in short.problems)
    assert short.machine.layout.links == ()
