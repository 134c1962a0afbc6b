"""Pods that were let go while nobody sees it yet: what they take of a queue when their workload gives it back."""

import msgspec
import pytest
from support.owned import KEYS, make_admission, make_owner, make_pod, make_record, slot_map
from support.queued_world import entry_of, filled, queued
from support.world import World

from engine.reservation_key import ReservationKey, order_of, workload_of
from kube.objects import Job
from kube.pods.requests import pod_requests
from queueing.queues.queues import Queues
from ungater.cache.charges.orphans import Orphans
from ungater.model.pod_slots import Expectation

SLOTS = slot_map(("b/r/n1", 1))
SLOT = ("b", "r", "n1")


def given_back(expectation):
    """Orphans and queues after the workload of a gated pod gave back what it held; and the pod."""
    pod = make_pod("p")
    record = make_record(
        make_owner(),
        slots=SLOTS,
        admission=make_admission(SLOTS, queue="q", flavors={"cpu": "gpu", "pods": "gpu"}),
        pods=[pod],
    )
    if expectation is not None:
        record.expectations[pod.metadata.uid] = expectation
    queues = Queues()
    orphans = Orphans(queues, KEYS, lambda _: False, lambda pod: pod_requests(pod.spec))
    orphans.remember(record)
    record.expectations.clear()
    orphans.judge(pod, None)
    return orphans, queues, pod


def charged(queues):
    return sum(held.amounts["gpu", "pods"] for held in queues.quotas.held.values())


def test_one_whose_patch_was_sent_is_charged_until_it_is_seen_to_be_gone():
    orphans, queues, pod = given_back(Expectation(SLOT, 9.0))
    assert charged(queues) == 1
    assert orphans.remove_orphan(pod)
    assert charged(queues) == 0


def test_one_that_is_seen_at_last_says_itself_what_it_takes():
    orphans, queues, _ = given_back(Expectation(SLOT, 9.0))
    seen = make_pod("p", at=SLOT, node="n1", phase="Running")
    orphans.judge(seen, None)
    assert charged(queues) == 1
    assert not orphans.stayed(seen, make_owner().workload)


@pytest.mark.parametrize("expectation", [None, Expectation(SLOT, 9.0, gone=True), Expectation(SLOT, 9.0, refused=True)])
def test_one_that_was_not_sent_takes_nothing(expectation):
    _, queues, _ = given_back(expectation)
    assert charged(queues) == 0


def test_one_whose_patch_came_to_nothing_takes_nothing_any_more():
    orphans, queues, pod = given_back(Expectation(SLOT, 9.0))
    assert orphans.stayed(pod, make_owner().workload)
    assert charged(queues) == 0
    assert not orphans.stayed(pod, make_owner().workload)


@pytest.fixture
def world():
    return filled(World())


def leaving(world, expectation=None):
    """The record of a workload of two pods, one of which left it after its patch was sent; and that pod."""
    job = queued(world, "train")
    slots, record = world.admit(job), entry_of(world, job)
    pod = make_pod("p", owner=record.job)
    world.put("pod", pod)
    values = slots.slots[0].values
    if expectation is not None:
        record.expectations["uid-p"] = Expectation(values, 9.0, **expectation)
    world.put("pod", orphaned(pod))
    return record, orphaned(pod), values


def orphaned(pod):
    said = {**pod.metadata.annotations, KEYS.pod_set: "main"} if pod.metadata.annotations else {}
    meta = msgspec.structs.replace(pod.metadata, owner_references=(), annotations=said)
    return msgspec.structs.replace(pod, metadata=meta)


def test_one_that_left_while_its_patch_was_under_way_keeps_its_place_before_and_after_it_is_seen(world):
    record, pod, values = leaving(world, {})
    (kept,) = record.left_of("main")
    assert record.slots.of_selector(kept.spec.node_selector) == record.slots.index(values)
    world.put("pod", orphaned(make_pod("p", owner=record.job, at=values, node=values[-1], phase="Running")))
    assert len(record.left_of("main")) == 1
    assert set(world.memory.queues.quotas.held) == {record.key}, "its workload pays for it"
    world.drop("pod", pod)
    assert not record.left_of("main")


@pytest.mark.parametrize("expectation", [None, {"gone": True}, {"refused": True}])
def test_one_that_left_and_was_not_sent_has_no_place(world, expectation):
    record, _, _ = leaving(world, expectation)
    assert not record.left_of("main")


def test_one_that_left_has_no_place_any_more_once_its_patch_came_to_nothing(world):
    record, pod, _ = leaving(world, {})
    world.memory.left_pods.stayed(pod, record.job.workload)
    assert not record.left_of("main")


def test_one_that_left_is_charged_where_its_workload_gives_back_what_it_held(world):
    record, _, _ = leaving(world, {})
    world.memory.admissions.release_job(record)
    assert not record.left_of("main")
    assert [key for key in world.memory.queues.quotas.held if workload_of(key) == "ns/p"]


def test_one_that_left_is_another_workloads_once_it_was_let_go_for_that(world):
    record, pod, _ = leaving(world, {})
    other = world.memory.entries[f"ns/{pod.metadata.uid}"]
    again = make_pod("p", owner=other.job, at=("b", "r2", "r2-h2"), node="r2-h2", phase="Running")
    world.put("pod", orphaned(again))
    assert not record.left_of("main")


def taken_over(world):
    """A pod that was let go for a workload, is seen behind its gate still, and is another one's, which is admitted."""
    first, second = queued(world, "first"), queued(world, "second")
    (slot, *_), record = world.admit(first).slots, entry_of(world, first)
    pod = make_pod("p", owner=record.job)
    world.put("pod", pod)
    record.expectations["uid-p"] = Expectation(slot.values, 9.0)
    world.memory.admissions.release_job(record)
    other = entry_of(world, second)
    pod = make_pod("p", owner=other.job)
    world.put("pod", pod)
    world.admit(second)
    return record, other, pod


def charged_beside(world, *records):
    """What is charged for pods by themselves, and not for what these workloads hold."""
    return sorted(set(world.memory.queues.quotas.held) - {record.key for record in records}, key=order_of)


def test_one_that_may_run_by_an_earlier_workload_is_charged_beside_the_one_that_has_it_now(world):
    """A LeaderWorkerSet was made anew under its name, for one: the new one's place is for a pod of its own."""
    _, other, _ = taken_over(world)
    assert charged_beside(world, other) == [ReservationKey.for_orphan("ns/p")]


@pytest.mark.parametrize("given_back", [False, True])
def test_so_it_is_however_the_patch_of_the_one_that_has_it_now_ends(world, given_back):
    record, other, pod = taken_over(world)
    if given_back:
        other.expectations["uid-p"] = Expectation(other.slots.slots[0].values, 9.0)
        world.memory.admissions.release_job(other)
    world.memory.left_pods.stayed(pod, other.job.workload)
    assert charged_beside(world, other) == [ReservationKey.for_orphan("ns/p")]
    world.memory.left_pods.stayed(pod, record.job.workload)
    assert charged_beside(world, other) == [], "it is behind its gate"


def test_it_has_no_place_in_the_one_that_it_leaves_next(world):
    _, other, pod = taken_over(world)
    other.expectations["uid-p"] = Expectation(other.slots.slots[0].values, 9.0)
    world.put("pod", orphaned(pod))
    assert not other.left_of("main")
    assert charged_beside(world, other) == [ReservationKey.for_orphan("ns/p")]


def test_once_it_is_seen_to_run_by_the_one_that_has_it_now_that_one_pays_for_it(world):
    """The earlier patch was lost."""
    _, other, _ = taken_over(world)
    values = other.slots.slots[0].values
    world.put("pod", make_pod("p", owner=other.job, at=values, node=values[-1], phase="Running"))
    assert charged_beside(world, other) == []


@pytest.mark.parametrize(("phase", "ending"), [("Running", False), ("Succeeded", False), ("Running", True)])
def test_one_that_is_first_seen_to_go_when_it_is_done_or_ends_is_looked_at(world, phase, ending):
    job = queued(world, "train")
    slots, record = world.admit(job), entry_of(world, job)
    values = slots.slots[0].values
    world.put("pod", make_pod("p", owner=record.job))
    record.expectations["uid-p"] = Expectation(values, 9.0)
    world.waits.clear()
    seen = make_pod("p", owner=record.job, at=values, node=values[-1], phase=phase, terminating=ending)
    world.put("pod", seen)
    assert "uid-p" not in record.expectations
    assert ((record.id, 0.0) in world.waits) == (phase != "Running" or ending)


def test_those_with_slots_on_a_node_that_such_a_pod_comes_to_after_all_are_looked_at(world):
    """Its workload gave the place back, and somebody else has it: who is there too many finds another."""
    job = queued(world, "train")
    slot = world.admit(job).slots[0]
    world.memory.nodes.look_at_changed()
    world.asked.clear()
    room = world.memory.state.free_on_node(slot.node)["cpu"]
    other = make_owner("elsewhere")
    asks = {"containers": [{"name": "c", "resources": {"requests": {"cpu": f"{room}m"}}}]}
    world.put("pod", make_pod("small", owner=other, node=slot.node, phase="Running", spec=asks))
    world.memory.nodes.look_at_changed()
    assert not world.asked, "there is room beside the slots"
    asks = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    world.put("pod", make_pod("late", owner=other, at=slot.values, spec=asks))
    world.memory.nodes.look_at_changed()
    assert world.asked == [entry_of(world, job).id]
    world.asked.clear()
    bound = asks | {"nodeName": slot.node}
    world.put("pod", make_pod("late", owner=other, at=slot.values, phase="Running", spec=bound))
    world.memory.nodes.look_at_changed()
    assert not world.asked, "that is known"


@pytest.mark.parametrize(("now", "helped"), [("2", True), ("1", False)])
def test_growth_is_tried_again_once_a_pod_takes_less_of_its_slot_than_more_pods_would(world, now, helped):
    """A template was edited: an empty slot counts by what is asked for now, and one with a pod by what that takes."""
    job = queued(world, "train")
    slot, entry = world.admit(job).slots[0], entry_of(world, job)
    body = msgspec.json.decode(msgspec.json.encode(job))
    body["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = now
    world.put("job", msgspec.json.decode(msgspec.json.encode(body), type=Job))
    queues = world.memory.queues
    queues.wish(entry.key, {"main": 3})
    before = queues.freed_so_far(entry.key)
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    world.put("pod", make_pod("old", owner=entry.job, at=slot.values, node=slot.node, phase="Running", spec=spec))
    assert (queues.freed_so_far(entry.key) != before) is helped


def test_a_pod_that_names_an_earlier_workload_until_our_patch_is_seen_keeps_what_is_stored_for_it(world):
    """It left a set that it was let go for, was let go for its own Workload, and is seen step by step."""
    lone = make_pod("lone", at=None)
    labels, wish = {KEYS.queue_name: "team"}, {KEYS.required[0]: "rack"}
    meta = msgspec.structs.replace(lone.metadata, owner_references=(), labels=labels, annotations=wish)
    lone = msgspec.structs.replace(lone, metadata=meta)
    world.put("pod", lone)
    [record] = world.memory.entries.values()
    [slot] = world.admit_entry(record).slots

    def let_go(workload):
        at, spec = {KEYS.workload: workload}, lone.spec
        meta = msgspec.structs.replace(lone.metadata, annotations={**wish, **at})
        spec = msgspec.structs.replace(spec, scheduling_gates=None, node_name=slot.node)
        return msgspec.structs.replace(lone, metadata=meta, spec=spec)

    world.put("pod", let_go("statefulset-s-1"))
    assert world.memory.pod_groups.regroup(record)
    assert record.job.over
    world.memory.admissions.release_job(record)
    world.put("pod", let_go(record.job.workload))
    assert world.memory.pod_groups.regroup(record)
    assert not record.job.over
    assert record.admission is not None
    assert [held.queue for held in world.memory.queues.quotas.held.values()] == ["cq"]
    assert world.memory.state.assignments(record.key)
