"""Nodes that kube-scheduler does not take pods to: who keeps off them, for how long, and what is not touched by it."""

import msgspec
import pytest
from support.owned import KEYS, make_job, make_pod
from support.world import FLAVOR, NODES, Ticking, live_world, make_node, without_hosts

from engine.results import Refusal
from kube.objects import Condition
from ungater.let_go.place_refusals import MOST
from ungater.model.job_view import id_of
from ungater.numa.node_backoff import LONG, SHORT
from ungater.reconcile import let_go
from ungater.scheduling.replacement import refused_text, replace_lost_slots

WORDS = "1 node(s) had a filter that nobody knows"
ONE_NODE = {KEYS.required[0]: "kubernetes.io/hostname"}


@pytest.fixture
def clock():
    return Ticking()


@pytest.fixture
def world(clock):
    return live_world(clock)


def let_go_pod(world, job, name="pod-0", *, words=WORDS, node=""):
    """A pod of a job in its first slot; kube-scheduler said ``words`` of it, "": nothing."""
    record = world.memory.entries[id_of(job)]
    pod = make_pod(name, owner=record.job, at=record.slots.slots[0].values, node=node)
    said = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=words)
    status = msgspec.structs.replace(pod.status, conditions=(said,) if words else ())
    world.put("pod", pod := msgspec.structs.replace(pod, status=status))
    return record, pod


def admitted(world, name="train", *, parallelism=1, **more):
    job = make_job(name, parallelism=parallelism, request={KEYS.required[0]: "rack"}, **more)
    world.put("job", job)
    world.admit(job)
    return job


def refused(world, job, **more):
    record, pod = let_go_pod(world, job, **more)
    world.memory.refusals.leave_out(record, [pod])
    return record


def avoided(world, record):
    return world.memory.pod_sets.avoided_nodes(record, record.job.pod_sets[0])


def test_a_pod_that_is_bound_at_once_is_no_reason_for_another_look(world):
    job = admitted(world)
    record, _ = let_go_pod(world, job, words="")
    assert len(record.unscheduled) == 1
    world.waits.clear()
    let_go_pod(world, job, words="", node=record.slots.slots[0].node)
    assert record.unscheduled == {}
    assert world.waits == []


def test_one_that_is_refused_is_looked_at_when_its_time_is_over(world):
    record, _ = let_go_pod(world, admitted(world))
    assert (record.id, 10.0) in world.waits
    (seen,) = record.unscheduled.values()
    assert (seen.refused_at, seen.words) == (1000.0, WORDS)


def test_what_kube_scheduler_says_later_gives_no_more_time_and_binding_ends_it(world, clock):
    job = admitted(world)
    record, _ = let_go_pod(world, job)
    clock.at += 7
    let_go_pod(world, job, words="0/4 nodes are available: 1 other words, 3 more")
    (seen,) = record.unscheduled.values()
    assert (seen.refused_at, seen.words) == (1000.0, "1 other words, 3 more")
    let_go_pod(world, job, words="", node=record.slots.slots[0].node)
    assert record.unscheduled == {}


def test_a_controller_that_starts_sees_it_too(world):
    record, pod = let_go_pod(world, admitted(world))
    again = world.restarted().entries[record.id]
    assert again.unscheduled[pod.metadata.uid].words == WORDS


def test_pods_alike_keep_off_the_node_and_others_do_not(world):
    record = refused(world, admitted(world))
    node = record.slots.slots[0].node
    assert avoided(world, record) == {node}
    alike = make_job("alike", parallelism=1)
    other = make_job("other", parallelism=1, spec={"hostNetwork": True})
    theirs = make_job("theirs", parallelism=1)
    theirs = msgspec.structs.replace(theirs, metadata=msgspec.structs.replace(theirs.metadata, namespace="another"))
    for job, expected in ((alike, {node}), (other, set()), (theirs, set())):
        world.put("job", job)
        assert avoided(world, world.memory.entries[id_of(job)]) == expected, job.metadata.name


def test_what_the_admission_adds_to_a_template_makes_no_other_pod_of_it(world):
    """A queued Job gets its flavor's selector and tolerations when it starts, and loses them when it is put back."""
    job = admitted(world)
    record = refused(world, job)
    spec = {"nodeSelector": {"pool": "gpu"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    started = make_job("started", parallelism=1, spec=spec)
    labels = {"batch.kubernetes.io/job-name": "started", "controller-uid": "u"}
    template = msgspec.json.decode(started.spec.template)
    template["metadata"]["labels"] = labels
    template = msgspec.Raw(msgspec.json.encode(template))
    started = msgspec.structs.replace(started, spec=msgspec.structs.replace(started.spec, template=template))
    world.put("job", started)
    assert avoided(world, world.memory.entries[id_of(started)]) == avoided(world, record) != frozenset()


def test_the_slot_moves_within_its_rack_and_where_that_is_full_people_hear_which_nodes_are_left_out(world):
    job = admitted(world)
    record = refused(world, job)
    was = record.slots.slots[0]
    record.lost = {"main": ((0, 1),)}
    found = replace_lost_slots(world.memory, record)
    (piece,) = found.assignments[0].slices
    assert piece.values[:2] == was.values[:2]
    assert piece.values != was.values
    other = next(name for name, _ in piece.nodes)
    world.put("node", make_node(was.values[1], other.partition("-")[2], cpu="0"))
    assert replace_lost_slots(world.memory, record).assignments[0].slices[0].values[1] != was.values[1], (
        "the rack is full"
    )


def test_a_gang_that_keeps_other_slots_finds_no_place_beyond_its_rack_and_people_hear_which_nodes_are_left_out(world):
    record = refused(world, admitted(world, parallelism=3))
    was = record.slots.slots[0]
    record.lost = {"main": ((0, was.count),)}
    found = replace_lost_slots(world.memory, record)
    assert isinstance(found, Refusal)
    text = refused_text(world.memory, record, found)
    assert f"such a pod was refused there: {was.node} (kube-scheduler: {WORDS}, again in 15 s)" in text


def test_the_search_of_a_first_place_avoids_the_node_by_the_same_code(world):
    record = refused(world, admitted(world))
    node = record.slots.slots[0].node
    for name in ("a", "b", "c", "d", "e", "f"):
        other = admitted(world, name)
        assert world.memory.entries[id_of(other)].slots.slots[0].node != node


def test_each_refusal_in_a_row_doubles_the_time_and_a_change_of_the_node_shortens_it(world, clock):
    job = admitted(world)
    record = refused(world, job)
    node = next(one for one in NODES if one.metadata.name == record.slots.slots[0].node)
    clock.at += LONG
    assert avoided(world, record) == frozenset()
    refused(world, job)
    clock.at += 2 * LONG - 1
    assert avoided(world, record) == {node.metadata.name}
    labels = {**node.metadata.labels, "new": "label"}
    world.put("node", msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels)))
    clock.at += 2 * SHORT
    assert avoided(world, record) == frozenset()
    refused(world, job)
    world.drop("node", node)
    assert avoided(world, record) == frozenset()


def test_who_waits_is_looked_at_when_a_node_may_be_tried_again(world, clock):
    record = refused(world, admitted(world))
    waiting = make_job("waiting", parallelism=9)
    world.put("job", waiting)
    world.memory.refusals.requeue_expired([])
    clock.at += LONG
    world.asked.clear()
    entries = world.memory.entries.values()
    assert world.memory.refusals.requeue_expired(entries)
    assert world.asked == [id_of(waiting)]
    assert not world.memory.refusals.requeue_expired(entries)
    assert record.refusals == 1


def test_a_slot_that_is_a_whole_rack_leaves_out_all_of_its_nodes(world):
    world.put("flavor", without_hosts(FLAVOR))
    job = make_job(parallelism=2)
    world.put("job", job)
    slots = world.admit(job)
    record = world.memory.entries[id_of(job)]
    pod = make_pod("pod-0", owner=record.job, at=(*slots.slots[0].values, ""))
    selector = dict(zip(slots.levels, slots.slots[0].values, strict=True))
    said = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=WORDS)
    pod = msgspec.structs.replace(
        pod,
        spec=msgspec.structs.replace(pod.spec, node_selector=selector),
        status=msgspec.structs.replace(pod.status, conditions=(said,)),
    )
    world.put("pod", pod)
    world.memory.refusals.leave_out(record, [pod])
    rack = slots.slots[0].values[-1]
    assert avoided(world, record) == {f"{rack}-h1", f"{rack}-h2"}


def test_a_namespace_keeps_no_more_than_so_many_refusals(world):
    record = refused(world, admitted(world))
    kept = world.memory.refusals._refusals["ns"]
    for number in range(MOST + 50):
        kept.record_refusal(f"kind-{number}", "r1-h1", "x", 1000.0)
    assert len(kept._oldest_first) == MOST
    assert avoided(world, record) == frozenset(), "the oldest is forgotten, and costs another try"


def test_the_gauge_counts_pods_that_were_refused_for_longer_than_they_are_waited_for(world, clock):
    let_go_pod(world, admitted(world))
    entries = world.memory.entries.values()
    assert world.memory.coming.hanging(entries) == (0, 0)
    clock.at += 10
    assert world.memory.coming.hanging(entries) == (1, 0)


def test_a_job_that_is_refused_on_node_after_node_counts_how_often(world, clock):
    job = admitted(world)
    for expected in (1, 2, 3, 4):
        record = refused(world, job)
        assert record.refusals == expected
        clock.at += 20
    assert let_go.pause(record) == 10.0
    assert world.unscheduled_pods == [(record.key, 1, WORDS)] * 4
    clock.at += 3600
    assert refused(world, job).refusals == 1
