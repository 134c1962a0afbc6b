"""Devices that several nodes reach: no more pods are placed on these nodes together than there are devices for."""

import random

import pytest
from support.dra import DRIVER, ask, claim, device, device_class, first, resource_slice

from engine.claims.in_use import Use
from engine.claims.read.asks import read_ask, text_of
from engine.claims.read.claims import read_class
from engine.claims.read.slices import read_slice
from engine.cluster.state import ClusterState
from engine.devices import kinds
from engine.devices.turns import DeviceTurn
from engine.model import HOSTNAME_LABEL, Flavor, Node, Pod, PodSet, Policy, TopologyRequest
from engine.placement.place import place
from engine.reasons import Reason
from engine.results import Placement, WorkloadRequest

LEVELS = ("block", "rack", HOSTNAME_LABEL)
ANYWHERE = TopologyRequest(policy=Policy.UNCONSTRAINED)
RACK = TopologyRequest(policy=Policy.REQUIRED, level="rack")
HOST = TopologyRequest(policy=Policy.REQUIRED, level=HOSTNAME_LABEL)


def kind(name):
    return f'device.attributes["{DRIVER}"].kind == "{name}"'


def asks(*requests, **fields):
    return read_ask([("gpu", "one", text_of(claim(*requests)["spec"]))], **fields)


ONE, TWO = asks(ask("gpu", 1, kind("far"))), asks(ask("gpu", 2, kind("far")))
NEAR = asks(ask("gpu", 1, kind("near")))
BOTH = asks(ask("gpu", 1, kind("near")), ask("far", 1, kind("far")))
ANY = asks(ask("gpu"))
EITHER = asks(first("gpu", ask("near", 1, kind("near")), ask("far", 1, kind("far"))))


def terms(**labels):
    expressions = [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}


def pool(name, count, what="far", **where):
    made = [device(f"{name}-{number}", kind=what, index=number) for number in range(count)]
    return read_slice(resource_slice(*made, name=f"{name}-devices", pool=name, **where))


def used(name, *numbers):
    return tuple(Use((DRIVER, name, f"{name}-{number}")) for number in numbers)


class Fabric(ClusterState):
    """A block of two racks of two nodes: each rack reaches devices of its own, and ``b`` has two near ones too."""

    def __init__(self, racks=(4, 2)):
        super().__init__()
        self.set_flavor(Flavor(name="f", levels=LEVELS))
        self.devices = self.cluster.devices
        self.devices.set_device_class("c", read_class(device_class()))
        for at, name in enumerate("abcd"):
            labels = {"block": "b1", "rack": f"r{at // 2}", HOSTNAME_LABEL: name}
            self.set_node(Node(name=name, labels=labels, allocatable={"cpu": 6000, "pods": 110}))
        for at, count in enumerate(racks):
            self.put(pool(f"fabric{at}", count, **terms(rack=f"r{at}")))
        self.put(pool("b", 2, "near", nodeName="b"))

    def put(self, found):
        self.devices.set_slice(found.name, found)

    def place(self, count, devices=ONE, topology=ANYWHERE, key="ns/w", cpu=1000):
        pod_set = PodSet(name="main", count=count, requests={"cpu": cpu}, topology=topology, devices=devices)
        return place(self, WorkloadRequest(key=key, pod_sets=(pod_set,)))

    def hold(self, count, devices=ONE, topology=ANYWHERE, key="ns/w", cpu=1000):
        found = self.place(count, devices, topology, key, cpu)
        assert isinstance(found, Placement), found
        self.reserve(key, found.assignments)
        return on(found)

    def most(self, devices=ONE, topology=ANYWHERE):
        """So many pods are placed, and one more is not."""
        fits = [count for count in range(1, 30) if isinstance(self.place(count, devices, topology), Placement)]
        assert fits == list(range(1, len(fits) + 1))
        return len(fits)


def on(found):
    return {name: count for one in found.assignments for part in one.slices for name, count in part.nodes}


def test_so_many_pods_go_to_all_nodes_that_reach_the_devices_as_there_are_devices():
    fabric = Fabric()
    assert (fabric.most(), fabric.most(topology=RACK), fabric.most(topology=HOST)) == (6, 4, 4)
    assert (fabric.most(TWO), fabric.most(TWO, RACK)) == (3, 2)
    assert sum(fabric.hold(6, cpu=2000).values()) == 6  # three to a node: of both nodes of the first rack
    assert fabric.most() == 0


def test_what_is_promised_on_one_node_is_not_there_for_another():
    fabric = Fabric()
    assert fabric.hold(3, topology=HOST, key="ns/first") == {"a": 3}
    assert (fabric.most(), fabric.most(topology=RACK), fabric.most(TWO)) == (3, 2, 1)
    fabric.release_workload("ns/first")
    assert fabric.most() == 6


def test_what_claims_hold_is_not_there_and_comes_back():
    fabric = Fabric()
    fabric.devices.set_uses("ns/held", used("fabric0", 0, 2))
    assert fabric.most() == 4
    fabric.hold(2, topology=HOST, key="ns/first")
    fabric.devices.set_uses("ns/more", used("fabric0", 1, 3))
    assert fabric.most(topology=RACK) in {0, 2}
    fabric.devices.set_uses("ns/held", ())
    fabric.devices.set_uses("ns/more", ())
    assert fabric.most() == 4


def test_devices_that_all_nodes_reach_are_counted_once():
    fabric = Fabric(racks=())
    fabric.put(pool("wide", 5, allNodes=True))
    assert (fabric.most(), fabric.most(topology=RACK)) == (5, 5)
    assert fabric.place(6).reason is Reason.NEVER_FITS


def test_near_devices_and_those_that_several_nodes_reach_are_counted_side_by_side():
    fabric = Fabric()
    assert fabric.most(BOTH) == 2
    assert fabric.hold(2, BOTH) == {"b": 2}
    assert (fabric.most(NEAR), fabric.most(topology=RACK)) == (0, 2)
    fabric.release_workload("ns/w")
    fabric.hold(1, NEAR)
    assert (fabric.most(BOTH), fabric.most()) == (1, 6)


def test_a_request_that_takes_either_gets_none_that_was_promised_to_others():
    fabric = Fabric()
    assert fabric.most(EITHER) == 2
    fabric.hold(3, key="ns/far", topology=HOST)
    assert fabric.most(EITHER) == 1
    fabric.hold(1, key="ns/more", topology=TopologyRequest(policy=Policy.REQUIRED, level="block"))
    fabric.devices.set_uses("ns/held", used("fabric0", 0))
    assert fabric.most(EITHER) == 0
    fabric.devices.set_uses("ns/held", ())
    fabric.release_workload("ns/more")
    fabric.release_workload("ns/far")
    fabric.hold(1, EITHER, key="ns/either")
    assert fabric.most(topology=RACK) == 3  # it may be given one of them


def test_of_sets_that_share_devices_no_more_are_given_than_leaves_all_theirs():
    fabric = Fabric()
    fabric.put(pool("wide", 5, allNodes=True))
    assert fabric.most() == 7  # of nine and seven, five of which are the same
    fabric = Fabric()
    assert fabric.hold(1, FIRST, topology=RACK) in ({"a": 1}, {"b": 1}, {"c": 1}, {"d": 1})
    assert fabric.most() < 6  # one of them would take the only device that it can have


FIRST = asks(ask("gpu", 1, kind("far"), f'device.attributes["{DRIVER}"].index == 0'))


def test_a_pod_goes_once_those_on_their_way_to_other_nodes_leave_devices_for_it():
    fabric, turn = Fabric(), DeviceTurn
    devices = fabric.devices
    devices.set_uses("ns/held", used("fabric0", 0, 1))
    assert devices.turn("a", ONE, {"b": {ONE: 1}}) is turn.NOW
    assert devices.turn("a", ONE, {"b": {ONE: 2}}) is turn.LATER
    assert devices.turn("a", ONE, {"b": {ONE: 1}, "a": {ONE: 1}}) is turn.LATER
    assert devices.turn("a", ONE, {"c": {ONE: 2}}) is turn.NOW
    assert devices.turn("a", ONE, {"b": {EITHER: 1}}) is turn.NOW
    assert devices.turn("a", ONE, {"b": {EITHER: 2}}) is turn.LATER
    assert devices.turn("b", EITHER, {"a": {ONE: 2}}) is turn.LATER
    devices.set_uses("ns/held", used("fabric0", 0, 1, 2, 3))
    assert devices.turn("a", ONE, {}) is turn.NONE


def test_devices_kept_for_pods_of_several_nodes_may_be_lost_together():
    fabric = Fabric()
    common = fabric.devices.common
    assert common.overdrawn(ONE, {"a": 2, "b": 2, "c": 2}) == ""
    assert common.overdrawn(ONE, {"a": 2, "b": 3}) in {"a", "b"}


def test_what_takes_too_many_steps_to_know_is_placed_nowhere_and_keeps_nothing_from_others(monkeypatch):
    monkeypatch.setattr(kinds, "DRAW_STEPS", 0)
    fabric = Fabric()
    assert fabric.most() == 0
    assert "it takes too many steps to find out" in fabric.devices.explain_devices("a", ONE)
    monkeypatch.undo()
    assert fabric.most(TWO) == 3


def shared(*names):
    made = read_ask([("gpu", "claim/one", text_of(claim(*names)["spec"]))], named=("ns/one",))
    return type(made)(made.key, made.named, made.extended, made.claims, True)


def test_pods_that_share_a_claim_stand_on_all_nodes_that_reach_its_devices():
    fabric, far = Fabric(), shared(ask("gpu", 1, kind("far")))
    assert fabric.devices.common.spread(far)
    assert set(fabric.hold(8, far)) == {"a", "b"}
    assert fabric.most() == 5  # it takes one device, on however many nodes its pods wait


def test_pods_that_share_a_claim_on_near_devices_stand_on_one_node():
    fabric, near = Fabric(), shared(ask("gpu", 1, kind("near")))
    assert fabric.most(near) == 6
    assert fabric.hold(5, near) == {"b": 5}


class Coming:
    """Pods of placed workloads come in any order; the allocator gives each what kube-scheduler would."""

    def __init__(self, fabric):
        self.fabric, self.waiting, self.given = fabric, [], {}

    def place(self, key, count, devices, topology):
        found = self.fabric.place(count, devices, topology, key, cpu=100)
        if isinstance(found, Placement):
            self.fabric.reserve(key, found.assignments)
            self.given[key] = []
            self.waiting += [(key, node, devices) for node, each in on(found).items() for _ in range(each)]

    def come(self, chance):
        key, node, devices = self.waiting.pop(chance.randrange(len(self.waiting)))
        uses = self.fabric.devices.first_fit(node, devices)
        assert uses is not None, (node, devices.key)
        pod = f"{key}-{len(self.given[key])}"
        self.given[key].append(pod)
        self.fabric.devices.set_uses(pod, uses, frozenset([pod]))
        self.fabric.set_pod(Pod(key=pod, node=node, requests={"cpu": 100}, claim=(key, "main")))

    def leave(self, key):
        self.waiting = [one for one in self.waiting if one[0] != key]
        for pod in self.given.pop(key):
            self.fabric.remove_pod(pod)
            self.fabric.devices.set_uses(pod, ())
        self.fabric.release_workload(key)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_order_pods_come_in_each_gets_devices(seed):
    chance = random.Random(seed)
    fabric = Fabric(racks=(chance.randint(1, 6), chance.randint(1, 6)))
    if chance.random() < 0.6:
        fabric.put(pool("wide", 3, chance.choice(["far", "wide"]), allNodes=True))
    fabric.devices.set_uses("ns/foreign", used("fabric0", 0))
    wide = asks(ask("gpu", 1, kind("wide")), ask("far", 1, kind("far")))
    kinds = [ONE, TWO, NEAR, BOTH, FIRST, wide, asks(ask("gpu", 1, kind("wide")))]
    if seed % 2:
        kinds += [EITHER, ANY]
    coming, came = Coming(fabric), 0
    for number in range(40):
        coming.place(f"ns/w{number}", chance.randint(1, 3), chance.choice(kinds), chance.choice([ANYWHERE, RACK, HOST]))
        if coming.waiting and chance.random() < 0.5:
            coming.come(chance)
            came += 1
        if not seed % 2 and coming.given and chance.random() < 0.2:
            coming.leave(chance.choice(sorted(coming.given)))
    while coming.waiting:
        coming.come(chance)
        came += 1
    assert came
