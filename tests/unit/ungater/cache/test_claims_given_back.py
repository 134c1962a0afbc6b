"""Who has the devices of which claim, as the API server tells it, and which claims are to be deallocated."""

import msgspec
import pytest
from support.claims_world import read
from support.equipped import DRIVER, META, Equipped, claim, request_of

from engine.claims.read.asks import read_ask, text_of
from engine.devices.holders import NO_POD
from kube.pods.devices import ResourceClaim

ASK = read_ask([("gpu", "one-gpu", text_of({"devices": {"requests": [request_of(1)]}}))])


def shared(*users, numbers=(0, 1), node="r1-h1"):
    """A claim without an owner that has devices, reserved for these; a tuple says what else that is."""
    results = [{"request": "gpu", "driver": DRIVER, "pool": node, "device": f"gpu-{number}"} for number in numbers]
    made = [{"resource": "pods", "name": one, "uid": f"u-{one}"} if isinstance(one, str) else one[0] for one in users]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": made}
    spec = {"devices": {"requests": [request_of(2)]}}
    return read(ResourceClaim, {"metadata": {"name": "shared", **META}, "spec": spec, "status": status})


@pytest.fixture
def world():
    return Equipped()


def held(memory):
    return memory.state.cluster.devices.holders


def fits(world, memory=None, node="r1-h1"):
    state = (memory or world.memory).state
    return int(state.cluster.devices.count_by_node(ASK)[state.cluster.by_name[node].index])


def running(world, name="train-a"):
    record = world.placed(count=1)
    world.pod_of(record, name)
    assert world.let_go(record) == [name]
    pod = world.stores["pod"][f"ns/{name}"]
    world.put("resource_claim", claim(name, pod.spec.node_name, 0))
    return pod


def test_a_claim_is_the_pods_that_it_is_reserved_for_else_its_owners(world):
    world.put("resource_claim", shared("a", "b"))
    assert held(world.memory).pods_of_claim("ns/shared") == {"ns/a", "ns/b"}
    other = {"apiGroup": "example.com", "resource": "pods", "name": "c", "uid": "u"}
    world.put("resource_claim", shared("a", (other,)))
    assert held(world.memory).pods_of_claim("ns/shared") == {"ns/a", NO_POD}
    made = claim("p", "r1-h1", 0)
    owner = msgspec.structs.replace(made.metadata.owner_references[0], controller=True)
    meta = msgspec.structs.replace(made.metadata, owner_references=(owner,))
    world.put("resource_claim", msgspec.structs.replace(made, metadata=meta))
    assert held(world.memory).pods_of_claim("ns/p-gpu") == {"ns/p"}
    world.put("resource_claim", claim("p", "r1-h1"))
    assert held(world.memory).pods_of_claim("ns/p-gpu") == frozenset()


@pytest.mark.parametrize("how", ["gone", "finished"])
def test_what_a_pod_that_ended_had_is_held_until_it_is_deallocated(world, how):
    pod = running(world)
    node = pod.spec.node_name
    users = ({"resource": "pods", "name": "train-a", "uid": "u-train-a"},)
    held_by = claim("train-a", node, 0)
    status = read(ResourceClaim, {"metadata": {"name": "x"}, "status": {"reservedFor": list(users)}}).status
    status = msgspec.structs.replace(status, allocation=held_by.status.allocation)
    world.put("resource_claim", msgspec.structs.replace(held_by, status=status))
    devices = world.memory.state.cluster.devices
    assert devices.lingering(node) == []
    if how == "gone":
        world.drop("pod", pod)
    else:
        world.put("pod", msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Succeeded")))
    assert devices.lingering(node) == ["ns/train-a-gpu"]
    before = fits(world, node=node)
    with devices.deallocated():
        assert fits(world, node=node) == before + 1
    again = world.restarted()
    assert again.state.cluster.devices.lingering(node) == ["ns/train-a-gpu"]
    generation = world.memory.generation
    world.put("resource_claim", claim("train-a", node))
    assert (devices.lingering(node), fits(world, node=node)) == ([], before + 1)
    assert world.memory.generation > generation


def test_a_restart_knows_which_pods_of_a_shared_claim_are_there(world):
    pod = running(world)
    world.put("resource_claim", shared("train-a", "gone", numbers=(1,), node=pod.spec.node_name))
    assert world.restarted().state.cluster.devices.lingering(pod.spec.node_name) == []
    world.put("resource_claim", shared("gone", "lost", numbers=(1,), node=pod.spec.node_name))
    assert world.restarted().state.cluster.devices.lingering(pod.spec.node_name) == ["ns/shared"]


def test_those_who_wait_are_looked_at_when_fewer_have_a_claim(world):
    world.put("resource_claim", shared("a", "b"))
    generation = world.memory.generation
    world.put("resource_claim", shared("a", "b", "c"))
    assert world.memory.generation == generation
    world.put("resource_claim", shared("a"))
    assert world.memory.generation > generation
