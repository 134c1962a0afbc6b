"""What claims have comes free when the last pod that has it is thought away, and for good when it is deallocated."""

import pytest
from support.dra import DRIVER, ask, claim, counters, device, device_class, resource_slice

from engine.claims.in_use import Use
from engine.claims.read.asks import read_ask, text_of
from engine.claims.read.claims import read_class
from engine.claims.read.slices import read_slice
from engine.cluster.state import ClusterState
from engine.devices.holders import NO_POD
from engine.model import HOSTNAME_LABEL, Flavor, Node, Pod

ONE = read_ask([("gpu", "one", text_of(claim(ask())["spec"]))])


class World(ClusterState):
    """One node with devices; pods that have claims run there."""

    def __init__(self, *slices):
        super().__init__()
        self.set_flavor(Flavor(name="f", levels=(HOSTNAME_LABEL,)))
        self.set_node(Node(name="n", labels={HOSTNAME_LABEL: "n"}, allocatable={"cpu": 64_000, "pods": 110}))
        self.devices = self.cluster.devices
        self.devices.set_device_class("c", read_class(device_class()))
        for one in slices or (resource_slice(device("a"), device("b"), device("d")),):
            self.devices.set_slice(one["metadata"]["name"], read_slice(one))

    def run(self, *names):
        for name in names:
            self.set_pod(Pod(key=f"ns/{name}", node="n", requests={"cpu": 1000}))

    def has(self, name, *uses, pods=()):
        made = tuple(one if isinstance(one, Use) else Use((DRIVER, "p", one)) for one in uses)
        self.devices.set_uses(f"ns/{name}", made, frozenset([f"ns/{pod}" if pod else NO_POD for pod in pods]))

    def fit(self, devices=ONE):
        return int(self.devices.count_by_node(devices)[0])

    def without(self, *names):
        """How many fit if these pods were gone and their claims deallocated, in both ways to ask that."""
        relieved = int(self.devices.relieved(ONE, [f"ns/{name}" for name in names], {})[0])
        checkpoint = self.begin()
        for name in names:
            self.remove_pod(f"ns/{name}", deallocated=True)
        found = self.fit()
        self.rollback(checkpoint)
        assert found == relieved
        return found


@pytest.fixture
def world():
    made = World()
    made.run("x", "y", "z")
    return made


def test_a_claim_is_freed_with_its_pod_and_held_again_with_the_rollback(world):
    world.has("one", "a", pods=["x"])
    assert (world.fit(), world.without("x"), world.without("y"), world.fit()) == (2, 3, 2, 2)


def test_a_shared_claim_is_freed_only_with_the_last_of_those_who_have_it(world):
    world.has("shared", "a", "b", pods=["x", "y"])
    assert (world.without("x"), world.without("y"), world.without("x", "y")) == (1, 1, 3)


def test_what_nobody_or_no_pod_has_is_never_freed(world):
    world.has("nobody", "a")
    world.has("other", "b", pods=["x", ""])
    assert world.without("x", "y", "z") == 1


def test_what_is_only_looked_at_holds_nothing(world):
    world.has("admin", Use((DRIVER, "p", "a"), admin=True), pods=["x"])
    world.has("mine", "b", pods=["x"])
    assert (world.fit(), world.without("x")) == (2, 3)
    assert list(world.devices.holders.devices_of(["ns/x"])) == [(DRIVER, "p", "b")]


def test_counters_come_free_with_the_device_that_takes_them():
    parts = resource_slice(*[device(f"half-{n}", uses={"memory": "40"}) for n in range(3)], slices=2)
    world = World(counters(memory="80"), parts)
    world.run("x", "y")
    world.has("first", "half-0", pods=["x"])
    world.has("second", "half-1", pods=["y"])
    assert (world.fit(), world.without("x"), world.without("x", "y")) == (0, 1, 2)


def test_shares_of_a_device_come_free_one_by_one():
    policy = {"default": "10", "validRange": {"min": "10"}}
    shared = device("big", capacity={"memory": {"value": "40", "requestPolicy": policy}}, allowMultipleAllocations=True)
    world = World(resource_slice(shared))
    world.run("x", "y")
    share = {"memory": 20_000_000_000}
    for number, pod in enumerate(("x", "y")):
        world.has(pod, Use((DRIVER, "p", "big"), share=f"s{number}", consumed=share), pods=[pod])
    assert (world.fit(), world.without("x"), world.without("x", "y")) == (0, 2, 4)


def test_a_claim_whose_pods_are_gone_holds_until_it_is_deallocated(world):
    world.has("one", "a", pods=["x"])
    world.has("shared", "b", pods=["x", "y"])
    world.remove_pod("ns/x")
    assert world.devices.lingering("n") == []
    world.devices.pod_ended("ns/x")
    assert (world.fit(), world.devices.lingering("n")) == (1, ["ns/one"])
    with world.devices.deallocated():
        assert (world.fit(), world.without("y")) == (2, 3)
        with world.devices.deallocated():
            assert world.fit() == 2
        assert world.fit() == 2
    assert world.fit() == 1
    world.run("x")
    assert world.devices.lingering("n") == []
    with world.devices.deallocated():
        assert world.fit() == 1
    world.devices.pod_ended("ns/x")
    world.has("one")
    assert (world.fit(), world.devices.lingering("n")) == (2, [])


def test_another_ledger_is_told_whose_claims_they_are(world):
    world.has("one", "a", pods=["x"])
    other = World()
    other.run("x")
    other.devices.take_over(world.devices.facts())
    assert (other.fit(), other.without("x")) == (2, 3)
    assert world.devices.facts().unused.pods == {}


def test_slots_give_up_the_devices_that_are_kept_for_them(world):
    world.devices.waiting.add("n", ONE, 2)
    assert world.fit() == 1
    assert int(world.devices.relieved(ONE, (), {"n": {ONE: 1}})[0]) == 2


def test_nothing_is_remembered_of_claims_that_are_gone(world):
    world.has("one", "a", pods=["x"])
    world.devices.pod_ended("ns/x")
    world.has("one")
    assert not world.devices.holders.reserved_pods
    world.has("one", "a", pods=["x"])
    assert world.devices.lingering("n") == []


def test_who_has_ended_is_remembered_while_any_claim_names_it(world):
    """The claim controller takes pods off a claim one by one, in the order in which it sees them."""
    world.has("shared", "a", pods=["x", "y"])
    for pod in ("x", "y"):
        world.remove_pod(f"ns/{pod}")
        world.devices.pod_ended(f"ns/{pod}")
    world.has("shared", "a", pods=["y"])
    assert world.devices.lingering("n") == ["ns/shared"]


def test_who_is_put_back_and_thought_away_again_gives_back_its_claims_again(world):
    world.has("one", "a", pods=["x"])
    outer = world.begin()
    gone = world.pods["ns/x"]
    world.remove_pod("ns/x", deallocated=True)
    inner = world.begin()
    world.set_pod(gone)
    assert world.fit() == 2
    world.rollback(inner)
    assert world.fit() == 3
    world.rollback(outer)
    assert world.fit() == 2
