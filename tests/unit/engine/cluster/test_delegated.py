"""Extended resources that devices of claims give on nodes whose plugins give none."""

import pytest
from support.dra import device, device_class, resource_slice

from engine.claims.asks import ExtendedRequest
from engine.claims.read.asks import at_node, read_ask, same_devices
from engine.claims.read.claims import read_class
from engine.claims.read.slices import read_slice
from engine.cluster.fit_counts import known_shape
from engine.cluster.state import ClusterState
from engine.model import HOSTNAME_LABEL, Flavor, Node, Pod, PodSet, Policy, TopologyRequest

GPU, NIC = "x.com/gpu", "x.com/nic"


def asks(*wanted):
    """(resource, count) of one container each."""
    made = [ExtendedRequest(name, f"container-{at}-request-0", "c", count) for at, (name, count) in enumerate(wanted)]
    return read_ask([], tuple(made))


ONE = asks((GPU, 1))


def node(name, **allocatable):
    amounts = {"cpu": 8000, "pods": 10, **{f"x.com/{key}": value for key, value in allocatable.items()}}
    return Node(name=name, labels={HOSTNAME_LABEL: name}, allocatable=amounts)


def pods(devices=ONE, **requests):
    wanted = {"cpu": 1000, **{f"x.com/{key}": value for key, value in (requests or {"gpu": 1}).items()}}
    anywhere = TopologyRequest(policy=Policy.UNCONSTRAINED)
    return PodSet(name="main", count=1, requests=wanted, topology=anywhere, devices=devices)


@pytest.fixture
def state():
    """Nodes a and b, the first with three devices."""
    found = ClusterState()
    found.set_flavor(Flavor(name="f", levels=(HOSTNAME_LABEL,)))
    for name in "ab":
        found.set_node(node(name))
    found.cluster.devices.set_device_class("c", read_class(device_class()))
    slices = resource_slice(*(device(f"d{at}") for at in range(3)), name="s", pool="p", nodeName="a")
    found.cluster.devices.set_slice("s", read_slice(slices))
    return found


def fits(state, pod_set):
    tree = state.tree("f")
    counts = known_shape(state.cluster.columns, tree, pod_set).counts.leaf.tolist()
    return dict(zip(tree.names, counts, strict=True))


def test_devices_count_where_no_node_publishes_the_resource(state):
    state.cluster.table.delegate(GPU)
    assert fits(state, pods()) == {"a": 3, "b": 0}
    assert fits(state, pods(None)) == {"a": 0, "b": 0}


@pytest.mark.parametrize("first", [True, False])
def test_a_plugin_counts_on_its_node_whatever_came_first(state, first):
    if first:
        state.cluster.table.delegate(GPU)
        fits(state, pods())
    state.set_node(node("b", gpu=2))
    state.cluster.table.delegate(GPU)
    assert fits(state, pods()) == {"a": 3, "b": 2}
    assert fits(state, pods(None)) == {"a": 0, "b": 2}
    state.set_node(node("a", gpu=1))
    state.set_node(node("b", gpu=0))
    assert fits(state, pods()) == {"a": 1, "b": 0}
    assert fits(state, pods(None)) == {"a": 1, "b": 0}
    state.set_node(node("c"))
    assert fits(state, pods()) == {"a": 1, "b": 0, "c": 0}


def test_what_pods_take_is_remembered_when_a_plugin_comes(state):
    state.cluster.table.delegate(GPU)
    state.set_pod(Pod(key="ns/p", node="a", requests={GPU: 2}))
    state.set_node(node("a", gpu=3))
    assert state.free_on_node("a")[GPU] == 1
    state.set_node(node("a"))
    state.remove_pod("ns/p")
    state.set_node(node("a", gpu=3))
    assert state.free_on_node("a")[GPU] == 3


def test_of_two_resources_a_plugin_gives_one_and_devices_the_other(state):
    both = asks((GPU, 1), (NIC, 2))
    for name in (GPU, NIC):
        state.cluster.table.delegate(name)
    assert fits(state, pods(both, gpu=1, nic=2)) == {"a": 1, "b": 0}
    state.set_node(node("a", nic=4))
    assert fits(state, pods(both, gpu=1, nic=2)) == {"a": 2, "b": 0}


def test_a_slot_waits_for_devices_where_devices_give_them(state):
    state.cluster.table.delegate(GPU)
    state.cluster.devices.waiting.add("a", ONE, 2)
    assert fits(state, pods()) == {"a": 1, "b": 0}
    state.set_node(node("a", gpu=8))
    assert fits(state, pods()) == {"a": 8, "b": 0}
    state.set_node(node("a"))
    assert fits(state, pods()) == {"a": 1, "b": 0}


def test_names_of_requests_are_nothing_to_pods_that_ask_for_the_same():
    other = read_ask([], (ExtendedRequest(GPU, "container-0-request-3", "c", 1),))
    assert same_devices(ONE, other)
    assert not same_devices(ONE, asks((GPU, 2)))
    assert not same_devices(ONE, read_ask([], (ExtendedRequest(GPU, "container-0-request-0", "d", 1),)))


def test_nothing_is_asked_of_a_node_whose_plugins_give_all():
    assert at_node(ONE, frozenset([GPU])) is None
    assert at_node(asks((GPU, 1), (NIC, 1)), frozenset([GPU])).named == (("<extended-resources>", ""),)
