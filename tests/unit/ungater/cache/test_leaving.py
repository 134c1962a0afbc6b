"""Which pods and workloads count as leaving: what they hold is waited for, and nobody is evicted instead."""

import pytest
from msgspec.structs import replace
from support.owned import KEYS, make_job, make_pod
from support.queued_world import entry_of, filled, queued
from support.world import World, make_node

from kube.objects import OwnerReference
from kube.resources import JOB_SETS
from queueing.cycle.cycle import cycle

CPU = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}


@pytest.fixture
def world():
    return filled(World())


def running(world, name="train", pods=2):
    """A job that is admitted, with its pods on their nodes."""
    job = queued(world, name, pods)
    world.admit(job)
    record = entry_of(world, job)
    places = [slot for slot in record.slots.slots for _ in range(slot.count)]
    for number, slot in enumerate(places):
        world.put("pod", pod_of(record, f"{name}-{number}", slot))
    return job, record, places


def pod_of(record, name, slot, **more):
    return make_pod(name, owner=record.job, at=slot.values, node=slot.node, spec=CPU, **{"phase": "Running", **more})


def leaving(world):
    """Once a cycle has looked."""
    cycle(world.memory.state, world.memory.queues, 1000.0)
    return world.memory.queues.leaving.pods, world.memory.queues.leaving.workloads


def test_a_pod_that_was_told_to_stop_leaves_until_it_is_gone(world):
    _, record, (slot, _) = running(world)
    assert leaving(world) == ([], [])
    stopping = pod_of(record, "train-0", slot, terminating=True)
    world.put("pod", stopping)
    assert leaving(world) == (["ns/train-0"], [])
    world.drop("pod", stopping)
    assert leaving(world) == ([], [])


def test_a_restart_knows_it(world):
    _, record, (slot, _) = running(world)
    world.put("pod", pod_of(record, "train-0", slot, terminating=True))
    world.memory = world.restarted()
    assert leaving(world)[0] == ["ns/train-0"]


def test_a_pod_that_was_told_to_stop_leaves_though_its_job_leaves_a_jobset(world):
    job, record, (slot, _) = running(world)
    world.put("pod", pod_of(record, "train-0", slot, terminating=True))
    parent = OwnerReference(api_version=JOB_SETS.api_version, kind="JobSet", name="set", uid="uid-set", controller=True)
    adopted = replace(job, metadata=replace(job.metadata, owner_references=(parent,)))
    world.put("job", adopted)
    world.put("job", job)
    assert "ns/train-0" in leaving(world)[0]


def test_where_nobody_ends_pods_none_leaves(world):
    _, record, (slot, _) = running(world)
    rack, host = slot.node.split("-")
    world.put("node", make_node(rack, host, ready=False))
    world.put("pod", pod_of(record, "train-0", slot, terminating=True))
    assert leaving(world) == ([], [])
    world.put("node", make_node(rack, host))
    assert leaving(world) == (["ns/train-0"], []), "its kubelet is back, and ends it"


def test_the_pods_of_a_job_that_is_gone_leave_before_each_of_them_is_told(world):
    """The garbage collector tells them one by one; the first may be gone before the last is told."""
    job, _, _ = running(world)
    world.drop("job", job)
    assert leaving(world) == (["ns/train-0", "ns/train-1"], [])


def test_a_job_whose_pods_end_and_are_not_made_again_leaves(world):
    _, record, (slot, _) = running(world)
    world.put("pod", pod_of(record, "train-0", slot, phase="Succeeded"))
    status = {"succeeded": 1, "active": 1}
    world.put("job", make_job("train", parallelism=2, labels={KEYS.queue_name: "team"}, status=status))
    assert leaving(world) == ([], []), "it holds as much as before, so nothing is free yet"
    smaller = record.admission.shrink_pod_set("main", record.slots.without_slots({0: 1}), 1)
    world.memory.admissions.hold_admission(record, smaller)
    assert leaving(world) == ([], [record.key])


def test_a_job_that_was_scaled_down_stays(world):
    _, record, _ = running(world)
    world.put("job", make_job("train", parallelism=1, completions=None, labels={KEYS.queue_name: "team"}))
    smaller = record.admission.shrink_pod_set("main", record.slots.without_slots({0: 1}), 1)
    world.memory.admissions.hold_admission(record, smaller)
    assert leaving(world) == ([], [])


def test_that_is_believed_for_a_minute(world):
    _, record, (slot, _) = running(world)
    world.put("pod", pod_of(record, "train-0", slot, terminating=True))
    assert leaving(world)[0] == ["ns/train-0"]
    cycle(world.memory.state, world.memory.queues, 1060.0)
    assert not world.memory.queues.leaving
