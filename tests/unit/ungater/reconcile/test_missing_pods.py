"""What is held for pods that nobody makes goes back."""

import msgspec
import pytest
from msgspec.structs import replace
from support.owned import (
    KEYS,
    context,
    make_admission,
    make_job,
    make_known,
    make_owner,
    make_pod,
    make_record,
    slot_map,
)
from support.world import FLAVOR, NODES, World

from clock import SYSTEM
from crds.request import RequestError
from engine.reasons import Reason
from kube.objects import Condition
from ungater.model import actions as i
from ungater.model import conditions as names
from ungater.model.conditions import ADMITTED, EVICTED, PODS_READY, QUOTA_RESERVED, timestamp
from ungater.model.life import LifeRules
from ungater.reconcile import missing_pods
from ungater.reconcile.context import MissingPods
from ungater.reconcile.reconcile import reconcile

SLOTS = slot_map(("b/r/n1", 2), ("b/r/n2", 2))
WALL = 1_800_000_000.0
LIFE = LifeRules(backoff=10.0)


def condition(type_, status="True", reason="x", at=WALL - 10):
    return Condition(type=type_, status=status, reason=str(reason), message="m", last_transition_time=timestamp(at))


def rules(**more):
    return context(life=LIFE, missing_pods=MissingPods(60.0, 900.0), **more)


def held(pods=(), *conditions, queue="", slots=SLOTS, owner=None, **more):
    owner = owner or make_owner(labels={KEYS.queue_name: queue} if queue else {}, **more)
    admission = make_admission(slots, queue="cq" if queue else "", count=4)
    observed = make_known(
        owner, admission=admission, conditions=[condition(QUOTA_RESERVED), condition(ADMITTED), *conditions]
    )
    record = make_record(owner, slots=slots, admission=admission, observed=observed, pods=pods, started=True)
    record.came = {}  # nothing was held when it was looked at last
    return record


def look(record, now, **more):
    missing_pods.note(record, now)
    return reconcile(record, rules(**more), now, WALL)


def kinds(instructions):
    return {type(one) for one in instructions}


def running(*names):
    return [make_pod(name, at=("b", "r", "n1"), node="n1", phase="Running") for name in names]


def put(record, *pods):
    record.pods |= {pod.metadata.uid: pod for pod in pods}


@pytest.mark.parametrize("queue", ["", "team"])
@pytest.mark.parametrize("slots", [SLOTS, None])
def test_where_no_pod_comes_the_workload_is_evicted_after_a_short_time(queue, slots):
    if not queue and slots is None:
        return  # without a queue and slots nothing is held
    record = held(queue=queue, slots=slots)
    assert i.RequeueAfter(60.0) in look(record, 100.0)
    assert i.RequeueAfter(1.0) in look(record, 159.0)
    found = look(record, 160.0)
    (evict,) = [one for one in found if isinstance(one, i.Evict)]
    assert evict.reason is Reason.PODS_MISSING
    assert "0 of 4 pods exist" in evict.message
    assert "Job train" in evict.message
    assert (i.DoubtNamespace() in found) == (not queue), "a queue has quota, so what it holds is paid for"
    assert not kinds(found) & {i.Ungate, i.Shrink, i.Shorten}


def test_it_waits_longer_each_time():
    record = held([], condition(EVICTED, reason=Reason.PODS_MISSING))
    (back,) = look(record, 100.0)
    assert (back.until, back.requeues) == (WALL, 1)
    record.observed = msgspec.structs.replace(record.observed, requeues=3)
    (back,) = look(record, 100.0)
    assert (back.until, back.requeues) == (WALL - 10 + 80.0, 4)


def test_where_some_are_there_the_slots_of_the_others_go_back():
    record = held(running("a"))
    assert i.RequeueAfter(60.0) in look(record, 100.0)
    assert look(record, 160.0) == [i.DoubtNamespace(), i.Shorten({"main": 1}), i.RequeueAfter(0.0)]
    record.late = {"main": 1}
    assert i.ShrinkLater() in look(record, 160.0)
    record.shrink_at = 160.0
    (shrink,) = [one for one in look(record, 161.0) if isinstance(one, i.Shrink)]
    assert (shrink.count, [slot.count for slot in shrink.slots.slots]) == (1, [1])
    (said,) = [one for one in look(record, 161.0) if isinstance(one, i.WriteConditions)]
    assert said.wanted[0].type == PODS_READY
    assert said.wanted[0].reason is Reason.PODS_MISSING
    assert "1 of 4 pods exist" in said.wanted[0].message


@pytest.mark.parametrize(("left", "goes"), [(2, True), (0, False)])
def test_where_those_that_came_are_done_and_the_others_never_came_nothing_is_held_for_nobody(left, goes):
    """Of a JobSet, say, of which a ResourceQuota lets one Job have its pods."""
    record = held(queue="team")
    (main,) = record.job.pod_sets
    parts = (("a", left), ("b", 0))
    record.job = replace(record.job, pod_sets=tuple([replace(main, name=name, count=many) for name, many in parts]))
    (part,) = record.admission.parts
    record.admission = replace(record.admission, parts=(replace(part, name="a", count=0), replace(part, name="b")))
    record.slots_in, record.late = {"b": SLOTS}, {"a": 0}
    assert (i.Evict in kinds(look(record, 100.0))) == goes


def test_quota_without_slots_goes_back_too():
    owner = make_owner(labels={KEYS.queue_name: "team"})
    record = held(running("a"), queue="team", slots=None, owner=owner)
    look(record, 100.0)
    assert i.Shorten({"main": 1}) in look(record, 160.0)
    record.late, record.shrink_at = {"main": 1}, 160.0
    (shrink,) = [one for one in look(record, 161.0) if isinstance(one, i.Shrink)]
    assert (shrink.slots, shrink.count) == (None, 1)


@pytest.mark.parametrize("slots", [SLOTS, None])
def test_so_goes_what_is_held_for_more_pods_than_there_are_of_those_that_contradict_each_other(slots):
    """How many are wanted is not known of them, and one that is replaced keeps its place for as long as others do."""
    wrong = RequestError(Reason.INVALID_REQUEST, "spec", "b", "pods a and b differ")
    one = make_owner(parallelism=1).pod_sets[0]
    record = held(running("a", "b", "c"), slots=slots)
    record.own = record.job = msgspec.structs.replace(record.job, wrong=wrong, pod_sets=(one,))
    look(record, 100.0)
    del record.pods["uid-c"]
    assert not kinds(look(record, 159.0)) & {i.Shorten, i.ShrinkLater}
    assert i.Shorten({"main": 2}) in look(record, 1100.0)
    record.late, record.shrink_at = {"main": 2}, 1100.0
    (shrink,) = [one for one in look(record, 1101.0) if isinstance(one, i.Shrink)]
    assert shrink.count == 2


def test_pods_that_come_later_are_more_and_no_others():
    one = slot_map(("b/r/n1", 1))
    record = held(running("a"), slots=one)
    record.late = {"main": 1}
    assert i.Dequeue() in look(record, 200.0), "nothing more is wanted, though the job has four"
    put(record, make_pod("b"))
    assert i.Enqueue() in look(record, 201.0)
    assert record.growing == {"main": 2}
    put(record, make_pod("c"), make_pod("d"))
    look(record, 202.0)
    assert record.late == {}, "all are there"
    assert record.growing == {"main": 4}


def test_each_that_comes_gives_the_others_time_but_coming_again_does_not():
    record = held()
    look(record, 100.0)
    put(record, make_pod("a"))
    look(record, 150.0)
    assert i.RequeueAfter(1.0) in look(record, 209.0)
    record.pods.clear()
    look(record, 209.2)
    put(record, make_pod("again"))
    look(record, 209.5)
    assert i.Shorten({"main": 1}) in look(record, 210.0), "one pod that goes and comes holds nothing for three others"


def test_pods_that_were_there_have_more_time_to_come_again():
    record = held(running("a", "b", "c", "d"))
    look(record, 100.0)
    for name in ("c", "d"):
        del record.pods[f"uid-{name}"]
    assert i.RequeueAfter(900.0) in look(record, 500.0)
    assert i.RequeueAfter(1.0) in look(record, 1399.0)
    assert i.Shorten({"main": 2}) in look(record, 1400.0)
    assert i.DoubtNamespace() not in look(record, 1400.0), "they did come once"


def test_after_a_restart_pods_are_taken_to_have_been_there():
    record = held()
    record.came = None
    assert i.RequeueAfter(900.0) in look(record, 100.0)
    assert i.Evict in kinds(look(record, 1000.0))


@pytest.mark.parametrize("said", [Reason.PODS_MISSING, Reason.OTHER_QUEUE])
def test_what_was_given_back_is_known_after_a_restart_whatever_was_said_since(said):
    record = held(running("a"), condition(PODS_READY, "False", said), slots=slot_map(("b/r/n1", 1)))
    record.came = None
    assert i.Dequeue() in look(record, 100.0)
    assert record.late == {"main": 1}


def test_pods_that_wait_for_more_room_wait_for_it_after_a_restart_too():
    record = held([*running("a"), *(make_pod() for _ in range(3))], slots=slot_map(("b/r/n1", 1)))
    record.came = None
    assert i.Enqueue in kinds(look(record, 100.0))


def test_pods_that_come_in_order_have_more_time():
    record = held(running("a"), owner=msgspec.structs.replace(make_owner(), in_order=True))
    assert i.RequeueAfter(900.0) in look(record, 100.0)
    assert i.Shorten({"main": 1}) in look(record, 1000.0)


def test_before_a_job_is_started_nobody_waits_for_its_pods():
    record = held(queue="team", suspend=True)
    look(record, 100.0)
    record.own = record.job = make_owner(labels={KEYS.queue_name: "team"})
    assert i.RequeueAfter(60.0) in look(record, 1000.0)
    elsewhere = held()
    elsewhere.own = make_owner(suspend=True)  # placed for a queue that is not ours, which starts it later
    look(elsewhere, 100.0)
    assert not kinds(look(elsewhere, 5000.0)) & {i.Evict, i.Shorten}


def test_slots_of_ranks_that_are_done_wait_for_no_pod():
    status = {"completedIndexes": "0", "succeeded": 1, "active": 3}
    request = {KEYS.required[0]: "rack", KEYS.slice_size: "2", KEYS.slice_level: "kubernetes.io/hostname"}
    owner = make_owner(indexed=True, request=request, status=status)
    assert (owner.count, owner.pod_sets[0].idle) == (4, 1)
    record = held(running("b", "c", "d"), owner=owner)
    look(record, 100.0)
    assert not kinds(look(record, 5000.0)) & {i.Evict, i.Shorten}


# --- without a queue -------------------------------------------------------------------------------------------------


def waiting(*conditions, pods=(), **more):
    owner = make_owner(**more)
    return make_record(owner, observed=make_known(owner, conditions=conditions), pods=pods)


def test_without_a_queue_one_whose_pods_did_not_come_is_placed_when_all_are_there():
    record = waiting(condition(EVICTED, reason=Reason.PODS_MISSING), pods=[make_pod("a")])
    leave, write, *_ = look(record, 100.0)
    assert (leave, write.wanted[0].reason) == (i.Dequeue(), Reason.PODS_MISSING)
    assert "1 of 4 pods exist, and they were not created" in write.wanted[0].message
    put(record, *(make_pod(name) for name in "bcd"))
    assert look(record, 100.0) == [i.Enqueue()]


def test_where_pods_come_in_order_it_is_tried_again_after_an_hour():
    record = waiting(condition(EVICTED, reason=Reason.PODS_MISSING), pods=[make_pod("a")])
    assert i.RequeueAfter not in kinds(look(record, 100.0))
    record.job = replace(record.job, in_order=True)
    at = names.true_since(record.observed.conditions, EVICTED)
    *_, again = reconcile(record, rules(), 100.0, at + 60.0)
    assert again == i.RequeueAfter(missing_pods.DOUBT - 60.0)
    assert reconcile(record, rules(), 100.0, at + missing_pods.DOUBT) == [i.Enqueue()]


def test_so_is_what_comes_after_it_in_its_namespace():
    doubts = missing_pods.Doubts(lambda: 100.0)
    assert not doubts.about("ns", 100.0)
    doubts.record_doubt("ns")
    record = waiting()
    leave, write, *_, again = look(record, 101.0, doubted=doubts.about)
    assert again == i.RequeueAfter(missing_pods.DOUBT - 1.0)
    assert (leave, write.wanted[0].reason) == (i.Dequeue(), Reason.PODS_MISSING)
    assert "pods of others in namespace ns" in write.wanted[0].message
    assert look(waiting(pods=[make_pod(name) for name in "abcd"]), 101.0, doubted=doubts.about) == [i.Enqueue()]
    assert look(record, 101.0 + missing_pods.DOUBT, doubted=doubts.about) == [i.Enqueue()]
    assert not doubts.about("other", 101.0)


def test_one_with_a_queue_waits_for_no_pods():
    record = make_record(make_owner(labels={KEYS.queue_name: "team"}, suspend=True))
    assert look(record, 101.0, doubted=lambda *_: True) == [i.Enqueue()]


def test_where_a_queue_is_compulsory_nothing_is_placed_without_one():
    leave, write, tell = look(waiting(), 100.0, require_queue=True)
    assert leave == i.Dequeue()
    assert {write.wanted[0].reason, tell.reason} == {Reason.QUEUE_REQUIRED}
    assert KEYS.queue_name in write.wanted[0].message
    assert i.Enqueue() in look(
        make_record(make_owner(labels={KEYS.queue_name: "t"}, suspend=True)), 1.0, require_queue=True
    )
    assert not kinds(look(held(running("a", "b", "c", "d")), 100.0, require_queue=True)) & {i.Evict, i.Release}


# --- of others -------------------------------------------------------------------------------------------------------


def world():
    found = World()
    found.put("flavor", FLAVOR)
    for node in NODES:
        found.put("node", node)
    return found


@pytest.mark.parametrize("live", [True, False])
def test_a_job_that_another_controller_manages_is_that_controllers(live):
    cluster = world()
    job = make_job(managed="kueue.x-k8s.io/multikueue")
    cluster.put("job", job)
    memory = cluster.memory if live else cluster.restarted()
    assert memory.entries == {}
    cluster.put("job", make_job("own", managed="kubernetes.io/job-controller"))
    memory = cluster.memory if live else cluster.restarted()
    assert len(memory.entries) == 1


def test_a_total_on_a_bare_pod_means_nothing():
    cluster = world()
    pod = make_pod("alone")
    annotations = {KEYS.required[0]: "rack", KEYS.pod_group_total: "16"}
    pod = msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(), annotations=annotations)
    )
    cluster.put("pod", pod)
    (record,) = cluster.memory.entries.values()
    assert (record.job.count, record.job.wrong) == (1, None)


# --- whoever would have slots held for nobody ------------------------------------------------------------------------


def asks(record, pods):
    """The job asks for so many now."""
    (main,) = record.job.pod_sets
    record.own = record.job = replace(record.job, pod_sets=(replace(main, count=pods, full=pods),))


def has(record, pods):
    """So many are admitted."""
    record.slots_in = {"main": slot_map(("b/r/n1", pods))}
    record.admission = make_admission(record.slots, count=pods)


def shortened(record, now):
    """What is given up at a look, carried out; None: nothing is. "evicted": all is."""
    found = look(record, now)
    if i.Evict in kinds(found):
        return "evicted"
    gone = next((one.counts for one in found if isinstance(one, i.Shorten)), None)
    if gone is not None:
        record.shorten(gone)
    return gone


def test_asking_for_less_and_for_more_again_gives_no_time():
    record, now = held(), 100.0
    while shortened(record, now) is None:
        now += 15.0
        more = int(now / 30) % 2
        asks(record, 3 + more)
        has(record, 3 + more)
    assert now <= 160.0


def test_what_is_asked_for_between_counts_as_long_as_it_is_held():
    record, now = held(), 100.0
    while shortened(record, now) is None:
        now += 30.0
        pods = 4 if now % 60 < 30 else 0
        asks(record, pods)
        has(record, pods)
    assert now <= 240.0, "held for half of the time, so it takes twice as long"


def test_ever_more_gives_those_that_were_asked_for_before_no_more_time_than_any_pods_have():
    record, now = held(running("a")), 100.0
    for step in range(1000):
        if shortened(record, now) is not None:
            break
        now += 50.0
        asks(record, 4 + step)
        has(record, 4 + step)
    assert now <= 1000.0


def test_a_pod_that_comes_and_goes_holds_no_slots_for_others_that_were_there():
    record, now = held(running(*"abcd")), 100.0
    assert shortened(record, now) is None
    record.pods.clear()
    while shortened(record, now) is None:
        now += 300.0
        record.pods.clear() if record.pods else put(record, make_pod("a"))
        assert now <= 2000.0
    assert record.late.get("main", 0) <= 1


def test_asking_for_what_is_there_and_for_all_again_brings_back_nothing():
    record = held(running("a"))
    look(record, 100.0)
    assert shortened(record, 160.0) == {"main": 1}
    asks(record, 1)
    has(record, 1)
    assert not kinds(look(record, 170.0)) & {i.Shorten, i.Evict, i.WriteConditions}, "all that it asks for are there"
    asks(record, 4)
    assert i.Dequeue() in look(record, 200.0)
    put(record, *(make_pod(name) for name in "bcd"))
    assert i.Enqueue() in look(record, 300.0)
    assert record.late == {}


def test_after_an_hour_in_which_it_lacked_nothing_it_may_ask_for_more():
    record = held(running("a"))
    look(record, 100.0)
    assert shortened(record, 160.0) == {"main": 1}
    asks(record, 1)
    has(record, 1)
    look(record, 170.0)
    asks(record, 4)
    assert i.Dequeue() in look(record, 3769.0)
    asks(record, 1)
    look(record, 3769.0)
    asks(record, 4)
    assert i.Enqueue() in look(record, 3769.0 + missing_pods.DOUBT)


def test_those_that_are_there_have_their_time_again_once_the_others_are_given_up():
    record = held(running("a"))
    look(record, 100.0)
    assert shortened(record, 160.0) == {"main": 1}
    has(record, 1)
    look(record, 165.0)
    record.pods.clear()
    look(record, 500.0)
    assert shortened(record, 1399.0) is None
    assert shortened(record, 1400.0) == "evicted"


def test_where_pods_of_others_did_not_come_it_grows_by_those_that_are_there():
    record = held(running("a", "b"), slots=slot_map(("b/r/n1", 2)))
    record.admission = make_admission(record.slots, count=2)
    missing_pods.note(record, 100.0, doubted=True)
    assert (record.growing, record.late) == ({}, {"main": 2})
    put(record, make_pod("c"))
    missing_pods.note(record, 101.0, doubted=True)
    assert record.growing == {"main": 3}
    put(record, make_pod("d"))
    missing_pods.note(record, 102.0, doubted=True)
    assert (record.growing, record.late) == ({"main": 4}, {}), "all are there"


@pytest.mark.parametrize(("queue", "doubted"), [("", True), ("team", False)])
def test_one_after_the_other_they_have_no_more_time_than_one_has(queue, doubted):
    now = 100.0
    doubts = missing_pods.Doubts(lambda: now)
    for _ in range(3):
        record = held(queue=queue)
        look(record, now)
        now += 25.0
        assert not doubts.about("ns", now)
        doubts.given_back(record, rules().missing_pods)
        doubts.given_back(record, rules().missing_pods)
    assert bool(doubts.about("ns", now)) == doubted


def test_after_an_hour_nothing_is_kept_of_a_namespace():
    now = 100.0
    doubts = missing_pods.Doubts(lambda: now)
    first = held()
    look(first, now)
    now += 25.0
    doubts.given_back(first, rules().missing_pods)
    doubts.record_doubt("other")
    kept = [dict(each) for each in vars(doubts).values() if isinstance(each, dict)]
    doubts.forget_past()
    assert [each for each in vars(doubts).values() if isinstance(each, dict)] == kept
    now += missing_pods.DOUBT
    doubts.forget_past()
    assert [each for each in vars(doubts).values() if isinstance(each, dict)] == [{}, {}]
    assert all(kept)


def test_one_whose_pods_came_may_end_when_it_likes():
    now = 100.0
    doubts = missing_pods.Doubts(lambda: now)
    for _ in range(20):
        record = held()
        look(record, now)
        now += 5.0
        put(record, *(make_pod(name) for name in "abcd"))
        look(record, now)
        now += 500.0
        doubts.given_back(record, rules().missing_pods)
    assert not doubts.about("ns", now)


@pytest.mark.parametrize("ends", ["deleted", "suspended"])
def test_a_job_that_is_deleted_or_suspended_before_its_time_is_over_counts(ends):
    cluster = world()
    memory = cluster.memory
    for name in ("a", "b"):
        job = make_job(name)
        cluster.put("job", job)
        (record,) = memory.entries.values()
        memory.count_pods(record, 0.0)
        cluster.admit(job)
        now = SYSTEM.monotonic() - 45.0
        assert not memory.doubts.about("ns", now)
        memory.count_pods(record, now)
        if ends == "suspended":
            record.own = replace(record.job, suspended=True)
            memory.count_pods(record, SYSTEM.monotonic())
            assert record.came == {}
        cluster.drop("job", job)
    assert memory.doubts.about("ns", now) > 0
