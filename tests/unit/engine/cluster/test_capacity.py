import numpy as np
import pytest
from support.engine_factories import (
    GPU,
    LEVELS,
    ask,
    make_flavor,
    make_node,
    make_pod,
    make_pod_set,
    make_state,
    placed,
)

from engine.cluster.capacity import MOST_DEVICES, WHOLE, Capacity, measured
from engine.cluster.state import ClusterState

NODES = [make_node(f"n{i}", f"b{i // 4}", f"r{i // 2 % 2}") for i in range(8)]  # 2 blocks of 2 racks of 2 hosts


def capacity(state):
    return Capacity(state, state.tree("tas"))


def test_sums_at_every_rank():
    state = make_state(NODES, pods=[make_pod("a", "n0", 3), make_pod("b", "n5", 8)])
    found = capacity(state)
    assert found.free_amounts(GPU, WHOLE).tolist() == [53]
    assert found.free_amounts(GPU, 0).tolist() == [29, 24]
    assert found.free_amounts(GPU, 1).tolist() == [13, 16, 8, 16]
    assert found.free_amounts(GPU, 2).tolist() == [5, 8, 8, 8, 8, 0, 8, 8]
    assert found.taken_amounts(GPU, 1).tolist() == [3, 0, 8, 0]
    assert found.allocatable(GPU, 0).tolist() == [32, 32]
    assert found.count_nodes(1).tolist() == [2, 2, 2, 2]
    assert found.count_idle_nodes(GPU, 1).tolist() == [1, 2, 1, 2]
    assert [found.count_whole_domains(GPU, rank) for rank in range(3)] == [0, 2, 6]


def test_nodes_out_of_order_have_nothing_free():
    nodes = [make_node("n0", ready=False), make_node("n1", unschedulable=True), make_node("n2"), make_node("n3")]
    state = make_state(nodes, pods=[make_pod("over", "n2", 9), make_pod("a", "n0", 1)])
    found = capacity(state)
    assert found.free_amounts(GPU, 2).tolist() == [
        0,
        0,
        0,
        8,
    ]  # one that has too much takes nothing from its neighbours
    assert found.taken_amounts(GPU, 2).tolist() == [1, 0, 9, 0]
    assert found.not_ready(1).tolist() == [1]
    assert found.cordoned(1).tolist() == [1]
    assert found.count_whole_domains(GPU, 1) == 0
    assert found.count_whole_domains(GPU, 2) == 1


def test_slots_that_wait_for_pods_are_taken():
    state = make_state(NODES)
    state.reserve("w", placed(ask(state, make_pod_set(2, gpu=8))).assignments)
    assert capacity(state).taken_amounts(GPU, WHOLE).tolist() == [16]


def test_scattered_leaves_and_racks_of_several_nodes():
    """Two flavors over the same nodes: the second one's leaves do not lie side by side in the table."""
    state = ClusterState()
    odd = {"odd": "yes"}
    state.set_flavor(make_flavor("all"))
    state.set_flavor(make_flavor("odd", levels=LEVELS[:2], node_labels=odd))
    for i in range(8):
        state.set_node(make_node(f"n{i}", f"b{i // 4}", f"r{i // 2 % 2}", gpu=i, labels=odd if i % 2 else {}))
    found = Capacity(state, state.tree("odd"))
    assert found.free_amounts(GPU, 1).tolist() == [1, 3, 5, 7]
    assert found.count_nodes(1).tolist() == [1, 1, 1, 1]
    assert Capacity(state, state.tree("all")).free_amounts(GPU, 1).tolist() == [1, 5, 9, 13]


def test_a_flavor_without_nodes():
    found = capacity(make_state())
    assert found.count_nodes(WHOLE).tolist() == [0]
    assert found.free_amounts(GPU, 0).tolist() == []
    assert found.count_whole_domains(GPU, 1) == 0


def test_equals_a_sum_over_the_nodes_after_changes():
    random = np.random.default_rng(7)
    state = make_state(NODES)
    for step in range(200):
        name = f"n{random.integers(8)}"
        match random.integers(4):
            case 0:
                state.set_pod(make_pod(f"p{random.integers(12)}", name, int(random.integers(1, 5))))
            case 1:
                state.remove_pod(f"p{random.integers(12)}")
            case 2:
                block = f"b{random.integers(2)}"
                state.set_node(make_node(name, block, ready=bool(random.integers(4)), gpu=int(random.integers(9))))
            case _:
                state.remove_node(name) if step % 7 == 0 else None
        found, tree = capacity(state), state.tree("tas")
        for rank in range(3):
            wanted = [0] * tree.count_domains(rank)
            for at in range(tree.count_domains(rank)):
                for leaf in range(int(tree.bounds[rank][at]), int(tree.bounds[rank][at + 1])):
                    node = state.nodes[tree.names[leaf]]
                    wanted[at] += max(0, state.free_on_node(node.name)[GPU]) if node.ready else 0
            assert found.free_amounts(GPU, rank).tolist() == wanted


@pytest.mark.parametrize(("amounts", "wanted"), [({}, (GPU, "cpu", "memory")), ({GPU: 0}, ("cpu", "memory"))])
def test_what_is_worth_telling(amounts, wanted):
    assert measured(make_state([make_node(allocatable=amounts)])) == wanted


def test_gangs_that_would_start_in_one_domain():
    """Whole nodes for a gang; what is scattered over nodes starts nothing."""
    found = capacity(make_state(NODES, pods=[make_pod("a", "n0", 1), make_pod("b", "n5", 8)]))
    assert found.gangs(GPU, 8, 2).tolist() == [0, 1, 1, 1, 1, 0, 1, 1]
    assert found.gangs(GPU, 8, WHOLE).tolist() == [6]
    assert found.gangs(GPU, 16, 1).tolist() == [0, 1, 0, 1]
    assert found.gangs(GPU, 32, 0).tolist() == [0, 0]
    assert found.gangs(GPU, 20, 0).tolist() == [1, 1], "three nodes make room for it"
    assert found.gangs(GPU, 4, 2).tolist() == [1, 2, 2, 2, 2, 0, 2, 2]
    assert found.gangs("nvidia.com/none", 8, 1).tolist() == [0, 0, 0, 0]


def test_gangs_on_nodes_of_several_sizes_are_of_the_size_that_most_have():
    nodes = [make_node(f"n{at}", gpu=4 if at < 3 else 8) for at in range(4)]
    assert capacity(make_state(nodes)).gangs(GPU, 8, WHOLE).tolist() == [2], "pods of 4: 3 and 2 of them, two a gang"


def test_of_a_node_that_publishes_thousands_of_devices_only_some_are_told_of():
    """What the other nodes have is among them, whatever the names."""
    state = make_state(NODES)
    state.set_node(make_node("odd", allocatable={f"a.b/{n:04}": 1 for n in range(3000)}))
    found = measured(state)
    assert GPU in found
    assert len([name for name in found if "/" in name]) == MOST_DEVICES
