"""Who needs devices of claims takes nobody's place in vain: what claims hold comes back later than pods end."""

import msgspec
import pytest
from support.dra import DRIVER, ask, claim, device, device_class, resource_slice
from support.queue_factories import make_queue, make_queues, make_state, make_workload, run, submit

from engine.claims.asks import ExtendedRequest
from engine.claims.in_use import Use
from engine.claims.read.asks import read_ask, text_of
from engine.claims.read.claims import read_class
from engine.claims.read.slices import read_slice
from engine.model import Pod
from engine.reasons import Reason
from queueing.model import PlainFlavor, Preemption, Within

ONE = read_ask([("gpu", "one", text_of(claim(ask())["spec"]))])


def asking(key, count=1, devices=ONE, **more):
    """A workload whose pods have one claim each."""
    made = make_workload(key, count=count, gpu=1, **more)
    sets = tuple(msgspec.structs.replace(one, devices=devices) for one in made.pod_sets)
    return msgspec.structs.replace(made, pod_sets=sets)


@pytest.fixture
def cluster():
    """One node with two devices of claims, and eight of others."""
    state, queues = make_state(1, 1), make_queues(make_queue("q", 64, preemption=Preemption(within=Within.LOWER)))
    state.cluster.devices.set_class("c", read_class(device_class()))
    slices = resource_slice(device("a"), device("b"), name="s", pool="p", nodeName="tas-0")
    state.cluster.devices.set_slice("s", read_slice(slices))
    return state, queues


def hold(state, key, *names):
    """Pods of a workload run there, and their claims have these devices."""
    for name in names:
        state.set_pod(Pod(key=f"ns/{key}-{name}", node="tas-0", requests={"nvidia.com/gpu": 1}, claim=(key, "main")))
        state.cluster.devices.set_uses(f"ns/{key}-{name}", (Use((DRIVER, "p", name)),))


def test_devices_that_claims_hold_are_not_made_free_by_ending_pods(cluster):
    state, queues = cluster
    submit(queues, asking("low", 2))
    assert [one.key for one in run(state, queues).admitted] == ["low"]
    hold(state, "low", "a", "b")
    submit(queues, asking("high", priority=5, created=1.0))
    found = run(state, queues)
    assert ([one.key for one in found.preempting], found.waiting[0].reason) == ([], Reason.DOES_NOT_FIT)
    assert "devices of its claims" in found.waiting[0].message
    state.cluster.devices.set_uses("ns/low-a", ())
    queues.freed(["tas"])
    assert [one.key for one in run(state, queues).preempting] == []


def test_amounts_are_made_free_where_devices_are(cluster):
    state, queues = cluster
    submit(queues, make_workload("low", gpu=8))
    run(state, queues)
    submit(queues, asking("high", 2, priority=5, created=1.0))
    assert [one.key for one in run(state, queues).preempting] == ["high"]


def test_what_is_promised_and_not_taken_yet_is_given_to_who_is_more_important(cluster):
    state, queues = cluster
    submit(queues, asking("low", 2))
    run(state, queues)
    submit(queues, asking("high", 2, priority=5, created=1.0))
    assert [one.key for one in run(state, queues).preempting] == ["high"]


def test_a_flavor_without_a_topology_counts_no_devices(cluster):
    state, queues = make_state(1, 1, flavors=()), make_queues(make_queue("q", 64, flavors=("plain",)))
    queues.set_flavor(PlainFlavor(name="plain"))
    submit(queues, asking("w", level=None))
    (waiting,) = run(state, queues).waiting
    assert waiting.reason is Reason.RESOURCE_CLAIMS_NOT_COUNTED
    assert "flavor plain has no topology" in waiting.message
    submit(queues, asking("other", level=None, devices=None))
    assert [one.key for one in run(state, queues).admitted] == ["other"]
    extended = read_ask([], (ExtendedRequest("nvidia.com/gpu", "container-0-request-0", "c", 1),))
    submit(queues, asking("extended", level=None, devices=extended))
    assert [one.key for one in run(state, queues).admitted] == ["extended"]
