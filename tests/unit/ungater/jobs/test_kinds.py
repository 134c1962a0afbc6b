"""Owners whose pods are of several kinds.

Facts of ray.io/v1 (KubeRay ``reconcilePods``): the head is made first, then the workers of each group, one by one, all
in one pass and without waiting for each other; pods carry ``ray.io/group`` (``headgroup``, or the worker group's name)
and are controlled by the RayCluster. Those that end are deleted, and others made.
"""

import msgspec
import pytest
from support.looked_at import LookedAt
from support.owned import KEYS
from support.world import FLAVOR, NODES

from kube.objects import Pod

RAY = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "ray", "uid": "u-ray", "controller": True}


def made(name, group, cpu, total, *, request="unconstrained"):
    asked = {KEYS.unconstrained: "true"} if request == "unconstrained" else {KEYS.required[0]: request}
    body = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"u-{name}",
            "labels": {"ray.io/group": group, "ray.io/node-type": "head" if group == "headgroup" else "worker"},
            "annotations": asked | ({KEYS.pod_group_total: str(total)} if total else {}),
            "ownerReferences": [RAY],
            "creationTimestamp": "2026-11-21T00:00:00Z",
        },
        "spec": {
            "schedulingGates": [{"name": KEYS.gate}],
            "containers": [{"name": "ray", "resources": {"requests": {"cpu": cpu}}}],
        },
        "status": {"phase": "Pending"},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Pod)


@pytest.fixture
def world():
    """Four nodes of 2 CPUs in two racks."""
    found = LookedAt()
    found.put("flavor", FLAVOR)
    for node in NODES:
        found.put("node", node)
    return found


def cluster(world, workers=6, total=7, head="2"):
    """The pods of a RayCluster, looked at after each, as the watch tells of them."""
    world.put("pod", made("head", "headgroup", head, total))
    for number in range(workers):
        world.settle()
        world.put("pod", made(f"worker-{number}", "small", "1", total))
    world.settle()
    (record,) = world.memory.entries.values()
    return record


def test_a_group_of_several_kinds_waits_until_all_its_pods_are_there(world):
    record = cluster(world, workers=5)
    assert record.admission is None, "the head alone does not tell what the others are"
    assert world.said(record) == "Pending: 6 of 7 pods are there; they are placed together when all are"
    world.put("pod", made("worker-5", "small", "1", 7))
    world.settle()
    assert {one.name: (one.count, record.granted(one.name)) for one in record.admission.parts} == {
        "headgroup": (1, {"cpu": 2000}),
        "small": (6, {"cpu": 1000}),
    }, "each kind in its own shape"
    assert len(world.let_go(record)) == 7
    assert world.gated() == []
    assert all(
        amount >= 0 for name in world.memory.state.nodes for amount in world.memory.state.free_on_node(name).values()
    )


def test_its_workload_tells_of_all_kinds_before_it_is_placed(world):
    record = cluster(world)
    workload = world.stores["workload"][record.key]
    assert [(one.name, one.count) for one in workload.spec.pod_sets] == [("headgroup", 1), ("small", 6)]


def test_a_pod_of_a_kind_that_has_no_slots_does_not_go_and_is_told_why(world):
    """The total is of the head alone, so it is placed; then there is no place for workers."""
    record = cluster(world, workers=2, total=1)
    assert world.let_go(record) == ["head"]
    world.settle()
    assert world.let_go(record) == []
    assert world.gated() == ["worker-0", "worker-1"]
    assert "PartlyPlaced: pod worker-0 is of kind small, and RayCluster ray was placed with " in world.said(record)
    assert f"annotation {KEYS.pod_group_total} must count the pods of all kinds" in world.said(record)


@pytest.mark.parametrize("gone", ["worker-3", "head"])
def test_one_that_is_made_again_gets_its_slot_also_after_a_restart(world, gone):
    record = cluster(world)
    world.let_go(record)
    world.drop("pod", world.stores["pod"][f"ns/{gone}"])
    held = {one.name: one.count for one in record.admission.parts}
    world.memory = world.restarted()
    (record,) = world.memory.entries.values()
    world.settle()
    assert {one.name: one.count for one in record.admission.parts} == held
    again = world.memory.reservations.admission_of(record, record.grant)
    assert again.same_grant(record.admission), "whoever writes it next"
    kind, cpu = ("headgroup", "2") if gone == "head" else ("small", "1")
    world.put("pod", made("again", kind, cpu, 7))
    world.settle()
    assert world.let_go(record) == ["again"]
    workload = world.stores["workload"][record.key]
    assert [(one.name, one.count) for one in workload.spec.pod_sets] == [("headgroup", 1), ("small", 6)]
