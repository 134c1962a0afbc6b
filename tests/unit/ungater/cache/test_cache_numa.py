"""Machines, placements and refusals in what the controller knows: by events, and again after a restart."""

import json

import msgspec
import pytest
from support.numa_world import POD, NumaWorld, sent
from support.owned import make_job, make_pod
from support.published import GI, GPU

from crds.constants import NUMA_PLACEMENT_OBSERVED
from crds.numa_placement import decode, encode
from engine.reasons import Reason
from ungater.model.admission import slots_of_assignment
from ungater.model.job_view import id_of
from ungater.numa.node_backoff import LONG
from ungater.numa.predictions import Predictions
from ungater.scheduling.replacement import refused_text, replace_lost_slots


@pytest.fixture
def world():
    return NumaWorld()


def make(world, pods, name="train", **options):
    job = make_job(name, parallelism=pods, spec=POD, **options)
    world.put("job", job)
    return job


def zones_of(placements):
    return [tuple(use.zone for use in placement.zones) for placement in placements]


def test_each_slot_has_its_zone_and_each_is_given_out_once_in_order(world):
    job = make(world, 4)
    slots = world.admit(job)
    record, (slot,) = world.record(job), slots.slots
    predictions = Predictions(world.memory.state, record)
    pods = [make_pod(f"p{rank}", owner=record.job, rank=rank) for rank in range(5)]
    given = [predictions.prediction_for(pod, slot) for pod in pods]
    assert zones_of(given[:4]) == [(0,), (0,), (1,), (1,)]
    assert given[4] is None
    assert world.free(slot.node) == [0, 0]
    assert all(use.amounts == {"cpu": 4000, "memory": 4 * GI, GPU: 2} for found in given[:4] for use in found.zones)


def test_what_is_on_its_way_is_not_given_out_again(world):
    job = make(world, 3)
    slots = world.admit(job)
    record, (slot,) = world.record(job), slots.slots
    first, second, third = Predictions(world.memory.state, record)._state.placements(record.key, "main", slot.node)
    world.put("pod", sent(world, job, 0, slot, second))
    waiting = make_pod("w", owner=record.job, rank=1)
    predictions = Predictions(world.memory.state, record)
    assert [predictions.prediction_for(waiting, slot), predictions.prediction_for(waiting, slot)] == [first, third]
    assert predictions.prediction_for(waiting, slot) is None
    bound = sent(world, job, 0, slot, second, node=slot.node)
    world.put("pod", bound)
    assert sorted(zones_of(world.memory.state.placements(record.key, "main", slot.node))) == sorted(
        zones_of([first, third])
    )
    assert sum(world.free(slot.node)) == 2


def test_observed_zones_replace_predicted_ones_and_a_finished_pod_gives_all_back(world):
    job = make(world, 1)
    (slot,) = world.admit(job).slots
    (placement,) = world.memory.state.placements(world.record(job).key, "main", slot.node)
    assert zones_of([placement]) == [(0,)]
    assert world.free(slot.node) == [2, 4]
    bound = sent(world, job, 0, slot, placement, node=slot.node)
    world.put("pod", bound)
    assert world.free(slot.node) == [2, 4]
    other = encode(placement).replace("node-0", "node-1")
    seen = sent(world, job, 0, slot, placement, node=slot.node, phase="Running", observed=other)
    world.put("pod", seen)
    assert world.free(slot.node) == [4, 2]
    assert [trouble.refused for trouble in world.mismatches] == [False]
    unknown = other.replace("node-1", "node-7")
    world.put("pod", sent(world, job, 0, slot, placement, node=slot.node, phase="Running", observed=unknown))
    assert world.free(slot.node) == [2, 4], "a zone that the machine lacks voids the record"
    world.publish(slot.node, zones=(0, 7))
    assert world.free(slot.node) == [4, 2], "and the pod is looked at again when the zones change"


def two_that_were_promised_different_zones(world, node=""):
    """(job, slot, promises, pods) of three pods of 2 GPUs on one node: zones 0, 0 and 1."""
    job = make(world, 3)
    (slot,) = world.admit(job).slots
    promises = world.memory.state.placements(world.record(job).key, "main", slot.node)
    assert zones_of(promises) == [(0,), (0,), (1,)]
    pods = [sent(world, job, rank, slot, promises[rank], node=slot.node if rank != 2 else node) for rank in range(3)]
    for pod in pods:
        world.put("pod", pod)
    return job, slot, promises


def test_pods_of_a_job_that_come_in_another_order_exchange_their_zones(world):
    job, slot, promises = two_that_were_promised_different_zones(world, node="r1-h1")
    assert slot.node == "r1-h1"
    assert world.free() == [0, 2]
    world.put("pod", sent(world, job, 0, slot, promises[0], node=slot.node, observed=encode(promises[2])))
    assert world.free() == [0, 2], "the pod that was promised zone 1 will get zone 0"
    assert zones_of([world.memory.state.pods["ns/train-2"].placement]) == [(0,)]
    world.put("pod", sent(world, job, 2, slot, promises[2], node=slot.node, observed=encode(promises[0])))
    assert world.free() == [0, 2]
    assert world.mismatches == []
    strange = encode(promises[2])
    world.put("pod", sent(world, job, 1, slot, promises[1], node=slot.node, observed=strange))
    assert world.free() == [2, 0]
    assert len(world.mismatches) == 1, "nobody is left to exchange with"


def test_an_exchange_waits_for_a_pod_that_is_on_its_way(world):
    job, slot, promises = two_that_were_promised_different_zones(world)
    record = world.record(job)
    world.put("pod", sent(world, job, 0, slot, promises[0], node=slot.node, observed=encode(promises[2])))
    assert zones_of(world.memory.state.placements(record.key, "main", slot.node)) == [(0,)]
    assert world.free() == [0, 2]
    assert Predictions(world.memory.state, record).prediction_for(make_pod("w", owner=record.job), slot) is None
    world.put("pod", sent(world, job, 2, slot, promises[2], node=slot.node))
    assert world.free() == [0, 2]
    assert zones_of([world.memory.state.pods["ns/train-2"].placement]) == [(0,)]
    assert record.exchanges == {("main", slot.node): []}
    world.put("pod", sent(world, job, 2, slot, promises[2], node=slot.node, observed=encode(promises[0])))
    assert world.mismatches == []


def test_an_exchange_with_a_pod_that_never_comes_is_for_its_successor(world):
    job, slot, promises = two_that_were_promised_different_zones(world)
    record = world.record(job)
    world.put("pod", sent(world, job, 0, slot, promises[0], node=slot.node, observed=encode(promises[2])))
    world.drop("pod", world.stores["pod"]["ns/train-2"])
    assert record.exchanges == {("main", slot.node): []}
    successor = make_pod("w", owner=record.job)
    assert zones_of([Predictions(world.memory.state, record).prediction_for(successor, slot)]) == [(0,)]


def test_a_refused_pod_leaves_its_node_out_for_its_shape_and_its_slot_moves(world):
    job = make(world, 1)
    (slot,) = world.admit(job).slots
    record = world.record(job)
    (placement,) = world.memory.state.placements(record.key, "main", slot.node)
    world.put("pod", sent(world, job, 0, slot, placement, node=slot.node))
    failed = sent(world, job, 0, slot, placement, node=slot.node, phase="Failed", reason="TopologyAffinityError")
    world.put("pod", failed)
    assert [(trouble.node, trouble.reason) for trouble in world.mismatches] == [(slot.node, "TopologyAffinityError")]
    assert world.memory.rules.avoided(record, record.job.pod_sets[0], world.now) == {slot.node}
    record.lost = {"main": ((0, 1),)}
    (moved,) = replace_lost_slots(world.memory, record).assignments
    (other_slot,) = slots_of_assignment(moved).slots
    assert other_slot.node != slot.node
    assert world.free(slot.node) == [2, 4], "asking changes nothing"
    other = make(world, 1, "other")
    assert world.admit(other).slots[0].node == other_slot.node
    world.now += LONG
    assert world.memory.rules.avoided(record, record.job.pod_sets[0], world.now) == frozenset()
    assert world.memory.mismatches.has_expired()


def test_all_nodes_left_out_is_no_place_with_the_reason_until_the_time_is_over(world):
    job = make(world, 1)
    record = world.record(job)
    for host in ("r1-h1", "r1-h2"):
        failed = make_pod(f"f-{host}", owner=record.job, at=("b", "r1", host), node=host, phase="Failed")
        world.memory.mismatches.leave_out(record, failed)
    refusal = world.refused(job)
    assert "r1-h1 (" in refused_text(world.memory, record, refusal)
    world.now += LONG
    assert world.admit(job)


def test_pods_that_no_zone_can_hold_wait_with_numa_as_the_reason(world):
    big = {"cpu": "9", "memory": "4Gi"}
    job = make_job("big", parallelism=1, spec={"containers": [{"name": "c", "resources": {"limits": big}}]})
    world.put("job", job)
    refusal = world.refused(job)
    assert refusal.reason in {Reason.NUMA_ALIGNMENT, Reason.NEVER_FITS}
    text = refused_text(world.memory, world.record(job), refusal)
    assert "no kubelet would admit such a pod" in text


def test_a_restart_ends_in_the_same_placements(world):
    job = make(world, 4)
    (slot,) = world.admit(job).slots
    record = world.record(job)
    first, second, third, fourth = world.memory.state.placements(record.key, "main", slot.node)
    world.put("pod", sent(world, job, 3, slot, fourth))
    world.put("pod", sent(world, job, 1, slot, second, node=slot.node, phase="Running"))
    again = world.restarted()
    left = again.state.placements(record.key, "main", slot.node)
    assert world.free(slot.node, again) == world.free(slot.node) == [0, 0]
    assert sorted(zones_of(left)) == sorted(zones_of([first, third, fourth]))
    predictions = Predictions(again.state, again.entries[id_of(job)])
    waiting = make_pod("w", owner=record.job, rank=0)
    assert sorted(
        zones_of([predictions.prediction_for(waiting, slot), predictions.prediction_for(waiting, slot)])
    ) == zones_of([first, third])


def test_after_a_restart_nodes_that_refused_are_still_left_out(world):
    job = make(world, 1)
    (slot,) = world.admit(job).slots
    (placement,) = world.memory.state.placements(world.record(job).key, "main", slot.node)
    world.put("pod", sent(world, job, 0, slot, placement, node=slot.node, phase="Failed", reason="SMTAlignmentError"))
    again = world.restarted()
    record = again.entries[id_of(job)]
    assert again.rules.avoided(record, record.job.pod_sets[0], world.now) == {slot.node}
    assert record.mismatches == {}, "told by whoever led then"


def test_a_pod_of_somebody_else_counts_where_it_was_seen(world):
    pod = make_pod("foreign", node="r1-h1", gated=False, phase="Running", spec=POD)
    text = json.dumps([{"zone": "node-1", "amount": {"cpu": "4", GPU: "2"}}])
    meta = msgspec.structs.replace(pod.metadata, annotations={NUMA_PLACEMENT_OBSERVED: text}, owner_references=())
    world.put("pod", msgspec.structs.replace(pod, metadata=meta))
    assert world.free("r1-h1") == [4, 2]
    assert world.memory.state.pods["ns/foreign"].placement == decode(text)
