"""How many pods with resource claims fit nodes, beside what claims hold, what is promised, and what is on its way."""

import random

import pytest
from support.dra import DRIVER, ask, claim, device, device_class, resource_slice

from engine.claims.in_use import Use
from engine.claims.read.asks import read_ask, text_of
from engine.claims.read.claims import read_class
from engine.claims.read.slices import read_slice
from engine.cluster.nodes import Nodes
from engine.cluster.state import ClusterState
from engine.devices.taints import read_rule
from engine.model import HOSTNAME_LABEL, Flavor, Node, Pod, PodSet, Policy, TopologyRequest
from engine.placement.place import extend, place
from engine.reasons import Reason
from engine.results import Refusal, WorkloadRequest

LEVELS = ("rack", HOSTNAME_LABEL)
ANYWHERE = TopologyRequest(policy=Policy.UNCONSTRAINED)
RACK = TopologyRequest(policy=Policy.REQUIRED, level="rack")


def a_node(name, rack="r1", cpu=64_000, **labels):
    return Node(name=name, labels={"rack": rack, HOSTNAME_LABEL: name, **labels}, allocatable={"cpu": cpu, "pods": 110})


def gpus(node, count=4, **fields):
    made = [device(f"gpu-{number}", index=number, **fields) for number in range(count)]
    return read_slice(resource_slice(*made, name=f"{node}-gpus", pool=node, nodeName=node))


def asks(count=1, *selectors):
    return read_ask([("gpu", "one", text_of(claim(ask("gpu", count, *selectors))["spec"]))])


ONE, TWO = asks(1), asks(2)


def used(node, *numbers):
    return tuple(Use((DRIVER, node, f"gpu-{number}")) for number in numbers)


class Cluster(ClusterState):
    """Two racks of two nodes with four devices each."""

    def __init__(self, nodes=("a", "b", "c", "d"), devices=4):
        super().__init__()
        self.set_flavor(Flavor(name="f", levels=LEVELS))
        self.cluster.devices.set_device_class("c", read_class(device_class()))
        for at, name in enumerate(nodes):
            self.set_node(a_node(name, f"r{at // 2}"))
            if devices:
                self.cluster.devices.set_slice(f"{name}-gpus", gpus(name, devices))

    def place(self, count, devices=ONE, topology=ANYWHERE, key="ns/w"):
        pod_set = PodSet(name="main", count=count, requests={"cpu": 1000}, topology=topology, devices=devices)
        return place(self, WorkloadRequest(key=key, pod_sets=(pod_set,)))

    def hold(self, count, devices=ONE, topology=ANYWHERE, key="ns/w"):
        found = self.place(count, devices, topology, key)
        self.reserve(key, found.assignments)
        return on(found)

    def fits(self, devices=ONE):
        return dict(zip(self.cluster._names(), self.cluster.devices.count_by_node(devices).tolist(), strict=True))


def on(found):
    return {name: count for one in found.assignments for part in one.slices for name, count in part.nodes}


def test_pods_go_where_devices_are_and_no_more_than_there_are():
    cluster = Cluster()
    assert cluster.fits() == {"a": 4, "b": 4, "c": 4, "d": 4}
    assert on(cluster.place(8, topology=RACK)) == {"a": 4, "b": 4}
    assert sum(on(cluster.place(16)).values()) == 16
    refused = cluster.place(17)
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.NEVER_FITS


def test_nothing_goes_where_no_device_is():
    cluster = Cluster(devices=0)
    assert cluster.place(1).reason is Reason.NEVER_FITS
    cluster.cluster.devices.set_slice("d-gpus", gpus("d", 1))
    assert on(cluster.place(1)) == {"d": 1}
    cluster.cluster.devices.set_slice("d-gpus", None)
    assert cluster.place(1).reason is Reason.NEVER_FITS


def test_slots_keep_their_devices_until_they_are_given_back():
    cluster = Cluster(("a",))
    cluster.hold(3, key="ns/first")
    assert cluster.fits() == {"a": 1}
    assert cluster.fits(TWO) == {"a": 0}
    assert cluster.place(2).reason is Reason.DOES_NOT_FIT
    checkpoint = cluster.begin()
    cluster.release_workload("ns/first")
    assert cluster.fits(TWO) == {"a": 2}
    cluster.rollback(checkpoint)
    assert cluster.fits() == {"a": 1}
    cluster.release_all(["ns/first"])
    assert cluster.fits() == {"a": 4}


def test_a_pod_waits_for_devices_until_its_claim_has_them():
    cluster = Cluster(("a",))
    cluster.hold(2, TWO)
    assert cluster.fits() == {"a": 0}
    coming = Pod(key="ns/p", node="a", requests={"cpu": 1000}, claim=("ns/w", "main"), devices=TWO)
    cluster.set_pod(coming)
    assert cluster.fits() == {"a": 0}
    cluster.cluster.devices.set_uses("ns/p-gpu", used("a", 2, 3))
    cluster.set_pod(Pod(key="ns/p", node="a", requests={"cpu": 1000}, claim=("ns/w", "main")))
    assert cluster.fits() == {"a": 0}
    cluster.remove_pod("ns/p")
    cluster.release_workload("ns/w")
    assert cluster.fits() == {"a": 2}  # the claim is not deallocated yet
    cluster.cluster.devices.set_uses("ns/p-gpu", ())
    assert cluster.fits() == {"a": 4}


def test_a_node_on_which_promises_cannot_be_kept_takes_nobody():
    cluster = Cluster(("a", "b"))
    cluster.hold(3, key="ns/first", topology=RACK)
    cluster.cluster.devices.set_uses("ns/foreign", used("a", 0, 1))
    assert cluster.fits() == {"a": 0, "b": 4}


def test_who_comes_first_takes_nobodys_only_device():
    """One that takes any device may take the first, which is the only one that another can use."""
    cluster = Cluster(("a", "b"), devices=2)
    first = asks(1, f'device.attributes["{DRIVER}"].index == 0')
    assert cluster.hold(1, ONE, key="ns/any") == {"a": 1}
    assert cluster.fits(first) == {"a": 0, "b": 1}
    assert cluster.fits(ONE) == {"a": 1, "b": 2}
    cluster.release_workload("ns/any")
    assert cluster.hold(1, first, key="ns/first") == {"a": 1}
    assert cluster.fits(ONE) == {"a": 0, "b": 2}
    cluster.release_workload("ns/first")
    assert cluster.fits(first) == {"a": 1, "b": 1}


def test_what_a_transaction_took_is_given_back_with_it():
    cluster = Cluster(("a",))
    checkpoint = cluster.begin()
    cluster.hold(3)
    assert cluster.fits() == {"a": 1}
    cluster.rollback(checkpoint)
    assert cluster.fits() == {"a": 4}


def test_so_many_changes_that_nobody_remembers_them_are_all_seen():
    cluster = Cluster(("a", "b"))
    assert cluster.fits() == {"a": 4, "b": 4}
    for number in range(5000):
        cluster.cluster.devices.set_uses("ns/c", used("a", number % 4))
    cluster.cluster.devices.set_uses("ns/d", used("b", 1, 2, 3))
    assert cluster.fits() == {"a": 3, "b": 1}


def test_a_taint_of_a_rule_is_one_of_the_devices_it_names():
    cluster = Cluster(("a", "b"))
    rule = {"metadata": {"name": "r"}, "spec": {"taint": {"key": "k", "effect": "NoSchedule"}}}
    for selector, left in (({}, [0, 0]), ({"pool": "a", "device": "gpu-1"}, [3, 4]), ({"driver": "other"}, [4, 4])):
        rule["spec"]["deviceSelector"] = selector
        cluster.cluster.devices.set_rule("r", read_rule(rule))
        assert list(cluster.fits().values()) == left
    del rule["spec"]["deviceSelector"]
    assert read_rule(rule) is None


def test_growth_counts_devices():
    cluster = Cluster(("a",))
    cluster.hold(3)
    pod_set = PodSet(name="main", count=4, requests={"cpu": 1000}, topology=ANYWHERE, devices=ONE)
    assert extend(cluster, "ns/w", pod_set, 1).count == 4
    assert isinstance(extend(cluster, "ns/w", pod_set, 2), Refusal)


def test_a_device_that_other_nodes_could_give_away_is_not_counted_beside_others():
    """A pod may be given either; which one it gets would decide what other nodes have left."""
    cluster = Cluster(("a", "b"), devices=0)
    cluster.cluster.devices.set_slice("b-gpus", gpus("b", 1))
    shared = resource_slice(device("net"), device("net-2"), name="fabric", pool="z-fabric", allNodes=True)
    cluster.cluster.devices.set_slice("fabric", read_slice(shared))
    assert cluster.fits()["b"] == 1
    assert cluster.hold(1, topology=TopologyRequest(policy=Policy.REQUIRED, level=HOSTNAME_LABEL)) == {"b": 1}
    assert cluster.fits()["b"] == 0
    assert on(cluster.place(1, key="ns/more")) == {"a": 1}  # the other one may go to the pod on b
    assert isinstance(cluster.place(2, key="ns/more"), Refusal)


def named(*nodes, **labels):
    needs = [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]
    fields = [[{"key": "metadata.name", "operator": "In", "values": [node]}] for node in nodes]
    return {"nodeSelectorTerms": [{"matchFields": one, "matchExpressions": needs} for one in fields]}


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        (named("a"), {"a": 2, "b": 0}),
        (named("a", rack="r0"), {"a": 2, "b": 0}),
        (named("a", rack="r9"), {"a": 0, "b": 0}),
        (named("a", "a"), {"a": 0, "b": 0}),  # Kubernetes repeats only one term in an allocation
        (named("a", "b"), {"a": 0, "b": 0}),
        ({"nodeSelectorTerms": [named("a")["nodeSelectorTerms"][0], {"matchExpressions": []}]}, {"a": 0, "b": 0}),
    ],
)
@pytest.mark.parametrize("each", [False, True])
def test_a_selector_that_names_one_node_is_as_good_as_its_name(selector, fits, each):
    cluster, way = Cluster(("a", "b"), devices=0), {"nodeSelector": selector}
    made = [device(name, **(way if each else {})) for name in ("net", "net-2")]
    where = {"perDeviceNodeSelection": True} if each else way
    cluster.cluster.devices.set_slice("net", read_slice(resource_slice(*made, name="net", pool="net", **where)))
    assert cluster.fits() == fits
    cluster.cluster.devices.set_uses("ns/held", (Use((DRIVER, "net", "net")),))
    assert cluster.fits() == {name: count // 2 for name, count in fits.items()}
    cluster.cluster.devices.set_slice("net", None)
    assert cluster.fits() == {"a": 0, "b": 0}


def test_a_kind_that_each_node_is_asked_about_has_the_nodes_named_once(monkeypatch):
    named, plain = [], Nodes._names
    monkeypatch.setattr(Nodes, "_names", lambda self: named.append(self) or plain(self))
    cluster = Cluster([f"n{at}" for at in range(20)])
    counts = cluster.cluster.devices.count_by_node
    assert counts(ONE).tolist() == [4] * 20
    named.clear()
    assert not counts(asks(1, f'device.attributes["{DRIVER}"].no')).any()
    assert counts(TWO).tolist() == [2] * 20
    assert not named
    cluster.set_node(a_node("n20"))
    assert counts(TWO).tolist() == [2] * 20 + [0]
    assert len(named) == 1


def test_nodes_that_come_go_and_move_keep_their_own_devices():
    cluster = Cluster(("b", "d"))
    cluster.hold(1, topology=RACK)
    held = next(name for name, count in cluster.fits().items() if count == 3)
    cluster.set_node(a_node("a", "r0"))
    cluster.cluster.devices.set_slice("a-gpus", gpus("a", 2))
    cluster.tree("f")
    assert cluster.fits() == {"a": 2, "b": 4, "d": 4} | {held: 3}
    cluster.remove_node(held)
    assert cluster.fits()[held] == 0
    cluster.set_node(a_node(held, "r0"))
    cluster.tree("f")
    assert cluster.fits()[held] == 3


def test_a_class_that_changes_counts_at_once():
    cluster = Cluster(("a",))
    assert cluster.fits() == {"a": 4}
    cluster.cluster.devices.set_device_class("c", None)
    assert cluster.fits() == {"a": 0}
    body = device_class("c", f'device.attributes["{DRIVER}"].index < 1')
    cluster.cluster.devices.set_device_class("c", read_class(body))
    assert cluster.fits() == {"a": 1}


@pytest.mark.parametrize("seed", range(6))
def test_what_is_left_is_the_same_whatever_came_first(seed):
    dice = random.Random(seed)
    steps = [("ns/a", 2, ONE), ("ns/b", 1, TWO), ("ns/c", 1, ONE)]
    dice.shuffle(steps)
    cluster = Cluster(("a", "b"))
    for key, count, devices in steps:
        cluster.hold(count, devices, topology=RACK, key=key)
    before = cluster.fits()
    for key, _, _ in steps:
        checkpoint = cluster.begin()
        cluster.release_workload(key)
        cluster.fits()
        cluster.rollback(checkpoint)
        assert cluster.fits() == before
