"""Victims of another ComputeDomain: the driver's label bars their node, and goes when they do."""

import msgspec
import pytest
from support.dra import device, device_class, resource_slice
from support.queue_factories import make_queue, make_queues, make_state, make_workload, run, submit

from engine.claims.in_use import Use
from engine.claims.read.asks import read_ask, text_of
from engine.claims.read.claims import read_class
from engine.claims.read.slices import read_slice
from engine.devices.compute_domains import DRIVER, LABEL
from engine.model import Pod
from engine.reasons import Reason
from queueing.model import Preemption, Within


def channel(uid):
    config = {"opaque": {"driver": DRIVER, "parameters": {"kind": "ComputeDomainChannelConfig", "domainID": uid}}}
    request = {"name": "channel", "exactly": {"deviceClassName": "c"}}
    return read_ask([("channel", uid, text_of({"devices": {"requests": [request], "config": [config]}}))])


def asking(key, uid, **more):
    made = make_workload(key, count=1, gpu=1, **more)
    sets = tuple(msgspec.structs.replace(one, devices=channel(uid)) for one in made.pod_sets)
    return msgspec.structs.replace(made, pod_sets=sets)


class World:
    """One node, whose channel a pod of domain a has."""

    def __init__(self):
        self.state = make_state(1, 1)
        self.queues = make_queues(make_queue("q", 64, preemption=Preemption(within=Within.LOWER)))
        self.devices = self.state.cluster.devices
        self.devices.set_device_class("c", read_class(device_class()))
        made = resource_slice(device("channel-0"), name="s", pool="tas-0", nodeName="tas-0", driver=DRIVER)
        self.devices.set_slice("s", read_slice(made))
        submit(self.queues, asking("low", "a"))
        run(self.state, self.queues)
        self.state.set_pod(Pod(key="ns/low", node="tas-0", requests={"nvidia.com/gpu": 1}, claim=("low", "main")))
        self.queues.bind("ns/low", "low")
        self.devices.set_uses("ns/low", (Use((DRIVER, "tas-0", "channel-0")),), frozenset(["ns/low"]))
        self.label("a")

    def label(self, uid):
        node = self.state.nodes["tas-0"]
        kept = {key: value for key, value in node.labels.items() if key != LABEL}
        self.state.set_node(msgspec.structs.replace(node, labels=kept | ({LABEL: uid} if uid else {})))

    def end(self):
        self.state.remove_pod("ns/low")
        self.queues.unbind("ns/low")
        self.devices.pod_ended("ns/low")
        self.queues.release_workload(self.state, "low")
        self.devices.set_uses("ns/low", ())
        self.label("")
        self.queues.pending.room_freed(["tas"])


@pytest.fixture
def world():
    return World()


def test_a_pod_of_another_domain_goes_for_a_more_important_one(world):
    submit(world.queues, asking("high", "b", priority=5, created=1.0))
    (plan,) = run(world.state, world.queues).preempting
    assert [victim.key for victim in plan.victims] == ["low"]
    world.end()
    assert [one.key for one in run(world.state, world.queues, now=2.0).admitted] == ["high"]


def test_nobody_goes_where_the_label_would_stay(world):
    world.label("c")
    world.devices.set_uses("ns/low", (), frozenset())
    submit(world.queues, asking("high", "b", priority=5, created=1.0))
    found = run(world.state, world.queues)
    assert (found.preempting, found.waiting[0].reason) == ([], Reason.DOES_NOT_FIT)
