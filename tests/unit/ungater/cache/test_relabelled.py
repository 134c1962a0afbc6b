"""Labels of levels that change under running pods: whose they are is told, once for all nodes since the last cycle."""

import msgspec
import pytest
from support.owned import make_pod
from support.queued_world import entry_of, filled, queued
from support.world import NODES, World


@pytest.fixture
def world():
    return filled(World())


def relabel(world, name, **labels):
    node = next(one for one in NODES if one.metadata.name == name)
    kept = {key: value for key, value in ((node.metadata.labels or {}) | labels).items() if value}
    world.put("node", msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=kept)))


@pytest.fixture
def running(world):
    """A workload of two pods, and the names of the nodes where they run."""
    job = queued(world, "train")
    record, nodes = entry_of(world, job), []
    for at, slot in enumerate([one for one in world.admit(job).slots for _ in range(one.count)]):
        world.put("pod", make_pod(f"train-{at}", owner=record.job, at=slot.values, node=slot.node, phase="Running"))
        nodes.append(slot.node)
    return record, list(dict.fromkeys(nodes))


def test_labels_that_change_under_running_pods_are_told_once(world, running):
    record, (first, *others) = running
    assert list(world.memory.nodes.relabelled()) == []
    relabel(world, first, rack="no-topology")
    ((entry, text),) = world.memory.nodes.relabelled()
    assert entry is record
    assert text == f"labels changed on 1 of the nodes where its pods run: {first} (rack was r1, is no-topology)"
    assert list(world.memory.nodes.relabelled()) == []
    for name in others:
        relabel(world, name, rack="")
    assert all("(rack was r1, is gone)" in text for _, text in world.memory.nodes.relabelled())


def test_labels_that_are_no_level_or_come_back_are_not_told(world, running):
    _, (first, *_) = running
    relabel(world, first, colour="red")
    relabel(world, "r2-h1", rack="r3")
    assert list(world.memory.nodes.relabelled()) == [], "no level of its pods, and no node of its pods"
    relabel(world, first, rack="r2")
    assert len(list(world.memory.nodes.relabelled())) == 1
    relabel(world, first)
    assert list(world.memory.nodes.relabelled()) == []
