"""What is decided about a job: state in, instructions out."""

import msgspec
import pytest
from support.owned import KEYS, context, make_admission, make_known, make_owner, make_pod, make_record, slot_map

from engine.reasons import Reason
from kube.objects import Condition
from ungater.model import actions as i
from ungater.model.conditions import ADMITTED, FINISHED, PODS_READY, QUOTA_RESERVED
from ungater.model.pod_slots import Expectation
from ungater.model.workload_entry import LastEvent, PlacementMismatch, Refused
from ungater.reconcile.reconcile import reconcile
from ungater.reconcile.said import RETELL_AFTER
from ungater.reconcile.ungating import NODE_BACK

RULES = context()
SLOTS = slot_map(("b/r/n1", 2), ("b/r/n2", 2))
NOW = 1000.0


def run(record, now=NOW, rules=RULES):
    first = reconcile(record, rules, now)
    assert reconcile(record, rules, now) == first, "the same record gives the same instructions"
    return first


def of(kind, instructions):
    return [found for found in instructions if isinstance(found, kind)]


def wanted(instructions):
    return {w.type: w for write in of(i.WriteConditions, instructions) for w in write.wanted}


def true(kind, reason="x"):
    return Condition(type=kind, status="True", reason=str(reason), message="m")


def test_a_new_job_gets_its_workload_first_and_nothing_else():
    assert run(make_record(observed=None)) == [i.Create()]


def test_then_it_waits_for_a_place():
    assert run(make_record()) == [i.Enqueue()]


def test_pods_on_their_way_to_a_place_that_is_held_no_more_are_replaced():
    """Its Workload was deleted while no controller was there, and the node of its pods too."""
    owner = make_owner()
    coming = make_pod("coming", owner=owner, at=("b", "r", "gone"))
    others = (
        make_pod("runs", owner=owner, at=("b", "r", "n1"), node="n1", phase="Running"),
        make_pod("gated", owner=owner),
        make_pod("goes", owner=owner, at=("b", "r", "gone"), terminating=True),
        make_pod("another's", owner=owner, at=("b", "r", "gone"), marked=False),
    )
    record = make_record(owner, pods=(coming, *others))
    (deleted,) = of(i.Delete, run(record))
    assert (deleted.pod, deleted.reason) == (coming, Reason.SLOT_MOVED)
    assert "does not hold any more" in deleted.message
    assert i.Enqueue() in run(record)
    record.deleting[coming.metadata.uid] = NOW + 1
    assert of(i.Delete, run(record)) == []
    held = make_record(owner, pods=(coming,), slots=SLOTS)
    assert "no slot of Job train" in of(i.Delete, run(held))[0].message
    queued = make_owner(labels={KEYS.queue_name: "team"}, suspend=True)
    coming = make_pod("coming", owner=queued, at=("b", "r", "gone"))
    assert of(i.Delete, run(make_record(queued, pods=(coming,)))) == []


def test_a_refusal_is_written_at_once_and_told_once():
    record = make_record(refused=Refused(Reason.DOES_NOT_FIT, "r1 could take 3 of 4"))
    enter, write, tell = run(record)
    assert enter == i.Enqueue()
    assert (write.wanted[0].type, write.wanted[0].status, write.delay) == (QUOTA_RESERVED, False, 0.0)
    assert "3 of 4" in write.wanted[0].message
    assert (tell.type, tell.reason) == ("Warning", Reason.DOES_NOT_FIT)
    record.last_event = LastEvent("DoesNotFit", "r1 could take 3 of 4", NOW)
    record.observed = make_known(
        record.job, conditions=[Condition(type=QUOTA_RESERVED, status="False", reason="DoesNotFit", message="old")]
    )
    record.refused = Refused(Reason.DOES_NOT_FIT, "r1 could take 2 of 4")
    assert of(i.EmitEvent, run(record)) == []
    assert of(i.WriteConditions, run(record))[0].delay > 0
    assert len(of(i.EmitEvent, run(record, now=NOW + RETELL_AFTER))) == 1


@pytest.mark.parametrize(
    ("owner", "reason", "text"),
    [
        ({"request": {KEYS.required[0]: "rak"}}, Reason.UNKNOWN_LEVEL, '"block", "rack", "kubernetes.io/hostname"'),
        ({"request": {KEYS.required[0]: "rack", KEYS.preferred[0]: "block"}}, Reason.CONTRADICTING_REQUESTS, "rack"),
        ({"parallelism": 0}, Reason.PENDING, "parallelism 0"),
    ],
)
def test_what_cannot_be_placed_says_why(owner, reason, text):
    instructions = run(make_record(make_owner(**owner)))
    assert i.Enqueue() not in instructions
    assert wanted(instructions)[QUOTA_RESERVED].reason == reason
    assert text in wanted(instructions)[QUOTA_RESERVED].message
    assert of(i.EmitEvent, instructions)[0].reason == reason


def test_a_gate_without_a_request_and_a_request_without_a_gate_are_pointed_at():
    for owner, reason in (({"request": {}}, Reason.INVALID_REQUEST), ({"gated": False}, Reason.NOT_GATED)):
        leave, tell = run(make_record(make_owner(**owner), observed=None))
        assert leave == i.Dequeue()
        assert (tell.reason, bool(tell.once)) == (reason, True)


def test_one_whose_request_was_taken_away_keeps_its_slots_as_long_as_a_pod_has_one():
    owner, went = make_owner(request={}), make_pod(at=("b", "r", "n1"), node="n1", phase="Running")
    waiting = make_record(owner, slots=SLOTS, admission=make_admission(SLOTS), pods=[make_pod("gated", owner=owner)])
    waiting.observed = make_known(owner, slots=SLOTS)
    (release,) = of(i.Release, run(waiting))
    assert {one.reason for one in release.wanted} == {Reason.INVALID_REQUEST}
    waiting.observed = None
    assert of(i.FreeCapacity, run(waiting))
    waiting.pods[went.metadata.uid] = went
    assert run(waiting)[1:] == of(i.EmitEvent, run(waiting))


def test_pods_that_the_webhook_gated_one_by_one_are_served_too():
    owner = make_owner(gated=False)
    assert run(make_record(owner, observed=None, pods=[make_pod(owner=owner)])) == [i.Create()]


def test_no_pod_goes_before_its_admission_is_stored():
    record = make_record(pods=[make_pod(rank=rank) for rank in range(4)])
    assert of(i.Ungate, run(record)) == []
    record.slots_in = {"main": SLOTS}  # held in memory, and the record is gone from the API server
    record.admission = make_admission(SLOTS)
    assert run(record) == [i.RestoreAdmission()]
    record.observed = make_known(record.job, slots=SLOTS)
    assert [ungate.index for ungate in of(i.Ungate, run(record))] == [0, 0, 1, 1]


def test_a_replacement_takes_the_slot_that_was_freed():
    pods = [make_pod(at=("b", "r", "n1"), node="n1"), make_pod(at=("b", "r", "n2"), node="n2", phase="Failed")]
    pods += [make_pod(at=("b", "r", "n1"), node="n1"), make_pod(at=("b", "r", "n2"), node="n2"), make_pod("new")]
    assert [(u.pod.metadata.name, u.index) for u in of(i.Ungate, run(make_record(slots=SLOTS, pods=pods)))] == [
        ("new", 1)
    ]


def test_a_replacement_waits_while_the_old_pod_is_on_its_node_and_the_workload_says_so():
    pods = [make_pod(at=("b", "r", node), node=node) for node in ("n1", "n1", "n2")]
    old = make_pod("old", at=("b", "r", "n2"), node="n2", terminating=True)
    record = make_record(slots=SLOTS, pods=[*pods, old, make_pod("new")])
    assert of(i.Ungate, run(record)) == []
    assert wanted(run(record))[PODS_READY].reason == Reason.SLOT_OCCUPIED
    del record.pods["uid-old"]
    assert [u.pod.metadata.name for u in of(i.Ungate, run(record))] == ["new"]


def test_a_pod_whose_slot_moved_is_replaced_without_a_hot_loop():
    moved = make_pod("moved", at=("b", "r", "n7"))
    record = make_record(slots=SLOTS, pods=[moved])
    (delete,) = of(i.Delete, run(record))
    assert (delete.pod, delete.reason) == (moved, Reason.SLOT_MOVED)
    record.deleting["uid-moved"] = NOW + 30
    assert i.RequeueAfter(30.0) in run(record)
    assert of(i.Delete, run(record)) == []
    assert len(of(i.Delete, run(record, now=NOW + 30))) == 1


def test_a_lost_patch_is_sent_again_to_the_same_slot():
    pod = make_pod("p", rank=0)
    record = make_record(slots=SLOTS, pods=[pod], expectations={"uid-p": Expectation(("b", "r", "n2"), NOW + 1)})
    assert of(i.Ungate, run(record)) == []
    assert [u.index for u in of(i.Ungate, run(record, now=NOW + 1))] == [1]


def test_pods_of_a_lost_node_wait_for_another_place_and_the_others_stay():
    rules = context(lost=lambda _r, _p, slots, wanted: [at for at in wanted if slots.slots[at].node == "n2"])
    pods = [make_pod(at=("b", "r", "n1"), node="n1"), make_pod(at=("b", "r", "n1"), node="n1")]
    unbound = make_pod(at=("b", "r", "n2"))
    for waits in (make_pod("new"), unbound):
        instructions = run(make_record(slots=SLOTS, pods=[*pods, waits]), rules=rules)
        assert of(i.Enqueue, instructions) == [i.Enqueue({"main": ((1, 2),)})]
        assert of(i.Ungate, instructions) == []
    still_there = make_pod(at=("b", "r", "n2"), node="n2")
    instructions = run(make_record(slots=SLOTS, pods=[*pods, still_there, make_pod("new")]), rules=rules)
    assert of(i.Enqueue, instructions) == [i.Enqueue({"main": ((1, 1),)})], (
        "the pod that runs there stays, the other slot moves"
    )
    assert of(i.Ungate, instructions) == []
    record = make_record(slots=SLOTS, pods=[*pods, make_pod("new")], refused=Refused(Reason.DOES_NOT_FIT, "full"))
    assert "pods for n2 (lost)" in wanted(run(record, rules=rules))[PODS_READY].message


def test_pods_on_a_deleted_node_are_deleted_after_a_while():
    """Before Kubernetes does, which counts each as a failure of the Job; the node may come back in the meantime."""
    there = {"n1": None, "n2": NOW - 5}
    rules = context(missing=there.get)
    on = {node: make_pod(f"on-{node}", at=("b", "r", node), node=node, phase="Running") for node in ("n1", "n2")}
    ended = make_pod("ended", at=("b", "r", "n2"), node="n2", phase="Failed")
    foreign = make_pod("foreign", at=("b", "r", "n2"), node="n2", phase="Running", marked=False)
    record = make_record(slots=SLOTS, pods=[*on.values(), ended, foreign])
    assert of(i.RequeueAfter, run(record, rules=rules)) == [i.RequeueAfter(NODE_BACK - 5)]
    later = NOW - 5 + NODE_BACK
    (gone,) = of(i.Delete, run(record, now=later, rules=rules))
    assert (gone.pod.metadata.name, gone.reason, gone.at_once) == ("on-n2", Reason.NODE_DELETED, True)
    record.deleting[gone.pod.metadata.uid] = later + 3
    again = run(record, now=later, rules=rules)
    assert (of(i.Delete, again), of(i.RequeueAfter, again)) == ([], [i.RequeueAfter(3.0)])


def test_a_job_that_wants_fewer_pods_moves_no_slot_that_it_does_not_need():
    """One of two pods finished before their node was lost: another place for two might be nowhere."""
    rules = context(lost=lambda _r, _p, slots, wanted: list(wanted))
    record = make_record(make_owner(parallelism=1), slots=slot_map(("b/r/n2", 2)), pods=[make_pod("new")])
    instructions = run(record, rules=rules)
    assert (of(i.Enqueue, instructions), of(i.ShrinkLater, instructions)) == ([], [i.ShrinkLater()])
    record.shrink_at = NOW
    (shrink,) = of(i.Shrink, run(record, rules=rules))
    assert shrink.count == 1


def test_more_pods_wait_for_the_difference_only():
    owner = make_owner(parallelism=6)
    record = make_record(owner, slots=SLOTS)
    assert i.Enqueue() in run(record)
    assert i.UpdateSpec() not in run(record)
    record.observed = make_known(owner, slots=SLOTS, count=4)
    assert i.UpdateSpec() in run(record)
    record.refused = Refused(Reason.DOES_NOT_FIT, "full")
    assert wanted(run(record))[PODS_READY].reason == Reason.PARTLY_PLACED
    assert "4 of 6" in wanted(run(record))[PODS_READY].message


def test_fewer_pods_give_back_free_slots_after_a_moment_and_never_one_in_use():
    owner = make_owner(parallelism=2)
    pods = [make_pod(at=("b", "r", "n2"), node="n2"), make_pod(at=("b", "r", "n2"), node="n2")]
    record = make_record(owner, slots=SLOTS, pods=[*pods, make_pod(at=("b", "r", "n1"), node="n1")])
    assert i.ShrinkLater() in run(record)
    record.shrink_at = NOW + 1
    assert of(i.Shrink, run(record)) == []
    assert i.RequeueAfter(1.0) in run(record)  # or the look that came before would be the last one
    (shrink,) = of(i.Shrink, run(record, now=NOW + 1))
    assert [(slot.values[-1], slot.count) for slot in shrink.slots.slots] == [("n1", 1), ("n2", 2)]


def test_a_slot_that_a_pod_is_sent_to_at_the_same_look_is_not_given_back():
    owner = make_owner(parallelism=4, indexed=True, status={"succeeded": 3, "completedIndexes": "0-2"})
    done = [
        make_pod(owner=owner, rank=rank, at=("b", "r", host), node=host, phase="Succeeded")
        for rank, host in enumerate(("n1", "n1", "n2"))
    ]
    record = make_record(owner, slots=SLOTS, pods=[*done, make_pod(owner=owner, rank=3)], shrink_at=NOW)
    (ungate,), (shrink,) = of(i.Ungate, run(record)), of(i.Shrink, run(record))
    assert [(slot.values, slot.count) for slot in shrink.slots.slots] == [(SLOTS.slots[ungate.index].values, 1)]


@pytest.mark.parametrize("labels", [{}, {KEYS.queue_name: "team"}], ids=["free", "queued"])
def test_no_pods_at_all_release_the_workload(labels):
    record = make_record(make_owner(parallelism=0, labels=labels), slots=SLOTS, shrink_at=NOW)
    admitted = msgspec.structs.replace(true(ADMITTED), last_transition_time="2026-11-21T00:00:00Z")
    record.observed = make_known(record.job, slots=SLOTS, conditions=[admitted])
    (release,) = of(i.Release, run(record))
    assert {w.type: w.status for w in release.wanted} == {QUOTA_RESERVED: False, ADMITTED: False}


def test_a_queued_job_whose_pods_have_all_finished_keeps_its_quota_until_it_is_over():
    owner = make_owner(parallelism=2, completions=2, labels={KEYS.queue_name: "team"}, status={"succeeded": 2})
    record = make_record(owner, slots=SLOTS, shrink_at=NOW)
    admitted = msgspec.structs.replace(true(ADMITTED), last_transition_time="2026-11-21T00:00:00Z")
    record.observed = make_known(record.job, slots=SLOTS, conditions=[admitted])
    assert of(i.Release, run(record)) == []


def test_a_suspended_job_gives_everything_back_and_says_so():
    owner = make_owner(suspend=True)
    record = make_record(owner, slots=SLOTS)
    record.observed = make_known(owner, slots=SLOTS, conditions=[true(ADMITTED)])
    leave, release = run(record)
    assert leave == i.Dequeue()
    assert {w.type: (w.status, w.reason) for w in release.wanted} == {
        QUOTA_RESERVED: (False, Reason.SUSPENDED),
        ADMITTED: (False, Reason.SUSPENDED),
    }
    assert of(i.Release, run(make_record(owner))) == []


def test_a_suspended_job_that_left_its_queue_is_in_none_and_says_how_it_is_resumed():
    """Its Workload named the queue until its end, and it was told to wait until it is resumed, by nobody."""
    record = make_record(make_owner(suspend=True))
    record.observed = make_known(record.job, queue="team")
    assert run(record) == [i.Dequeue(), i.UpdateSpec()]
    assert run(record, rules=context(flavors={})) == [i.Dequeue(), i.UpdateSpec()], "whatever else is wrong with it"
    record.observed = make_known(record.job)
    _, write = run(record)
    (said,) = write.wanted
    assert (said.reason, "set spec.suspend to false" in said.message) == (Reason.SUSPENDED, True)


def test_a_suspended_job_keeps_its_slots_until_its_controller_has_asked_its_pods_to_go():
    owner, (at, node) = make_owner(suspend=True), (("b", "r", "n1"), "n1")
    record = make_record(owner, slots=SLOTS, pods=[make_pod(owner=owner, at=at, node=node, phase="Running")])
    assert run(record) == [i.Dequeue()]  # resumed in time, its pods just go on
    sent = make_record(owner, slots=SLOTS, pods=[pod := make_pod(owner=owner)])
    sent.expectations[pod.metadata.uid] = Expectation(at, 9.0)
    assert run(sent) == [i.Dequeue()], "its patch was sent, and it may run by now"
    for gone in ({"terminating": True, "phase": "Running"}, {"phase": "Failed"}):
        pod = make_pod(owner=owner, at=at, node=node, **gone)
        assert of(i.Release, run(make_record(owner, slots=SLOTS, pods=[pod])))


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ({"deleted": True}, None),
        ({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}, Reason.SUCCEEDED),
    ],
)
def test_a_job_that_is_over_frees_its_capacity_at_once(job, says):
    instructions = run(make_record(make_owner(**job), slots=SLOTS))
    assert instructions[:2] == [i.Dequeue(), i.FreeCapacity()]
    assert (wanted(instructions)[FINISHED].reason if says else of(i.WriteConditions, instructions)) == (says or [])


def test_ready_pods_are_said_lazily_once_and_taken_back():
    owner = make_owner(status={"ready": 4})
    pods = [make_pod(at=("b", "r", node), node=node) for node in ("n1", "n1", "n2", "n2")]
    record = make_record(owner, slots=SLOTS, pods=pods)
    assert wanted(run(record))[PODS_READY].status
    assert of(i.WriteConditions, run(record))[0].delay > 0
    record.observed = make_known(owner, slots=SLOTS, conditions=[true(PODS_READY)])
    assert of(i.WriteConditions, run(record)) == []
    record.job = make_owner(status={"ready": 3})
    assert not wanted(run(record))[PODS_READY].status


def test_a_pod_that_runs_without_a_slot_is_pointed_at_once():
    stranger = make_pod("s", at=("b", "r", "n1"), marked=False)
    record = make_record(slots=SLOTS, pods=[stranger])
    assert [tell.pod for tell in of(i.EmitEvent, run(record))] == [stranger]
    record.noted.add("uid-s")
    assert of(i.EmitEvent, run(record)) == []


def refusing(*nodes):
    return context(avoided=lambda *_: frozenset(nodes))


def test_slots_on_a_node_that_refused_such_a_pod_are_moved_and_its_running_pods_stay():
    runs = make_pod(at=("b", "r", "n1"), node="n1", rank=0)
    failed = make_pod(at=("b", "r", "n1"), node="n1", rank=1, phase="Failed")
    other = make_pod(at=("b", "r", "n2"), node="n2", rank=2)
    again, last = make_pod(rank=1), make_pod(rank=3)
    record = make_record(slots=SLOTS, pods=[runs, failed, other, again, last])
    instructions = run(record, rules=refusing("n1"))
    assert of(i.Enqueue, instructions) == [i.Enqueue({"main": ((0, 1),)})]
    assert [u.pod for u in of(i.Ungate, instructions)] == [last]
    assert of(i.Delete, instructions) == []
    assert {u.index for u in of(i.Ungate, run(record))} == {0, 1}, "without the refusal both go"


def test_a_node_that_refused_is_no_matter_where_no_pod_needs_it():
    pods = [make_pod(at=("b", "r", "n1"), node="n1"), make_pod(at=("b", "r", "n1"), node="n1")]
    instructions = run(make_record(slots=SLOTS, pods=[*pods, make_pod("new")]), rules=refusing("n1"))
    assert of(i.Enqueue, instructions) == []
    assert [u.index for u in of(i.Ungate, instructions)] == [1]


def test_with_no_other_place_than_the_node_that_refused_the_workload_says_so():
    refused = Refused(Reason.DOES_NOT_FIT, "full")
    record = make_record(slots=SLOTS, pods=[make_pod("new", rank=0)], refused=refused)
    condition = wanted(run(record, rules=refusing("n1")))[PODS_READY]
    assert (condition.status, condition.reason) == (False, Reason.PARTLY_PLACED)
    assert "pods for n1 (refused there) have no other place" in condition.message


def test_a_refusal_is_on_the_workload_until_its_pods_are_ready():
    failed = make_pod("f", at=("b", "r", "n1"), node="n1", phase="Failed")
    trouble = PlacementMismatch(failed, "n1", "TopologyAffinityError", "the kubelet of n1 refused pod f", 15.0)
    record = make_record(slots=SLOTS, pods=[failed], mismatches={"uid-f": trouble})
    condition = wanted(run(record))[PODS_READY]
    assert (condition.status, condition.reason) == (False, Reason.KUBELET_REFUSED)
    assert "the kubelet of n1 refused pod f" in condition.message
    assert "15 s" in condition.message
    ready = make_record(make_owner(status={"ready": 4}), slots=SLOTS, pods=[failed], mismatches={"uid-f": trouble})
    condition = wanted(run(ready))[PODS_READY]
    assert (condition.status, condition.reason) == (True, Reason.PODS_READY)


def test_pods_with_other_zones_than_predicted_are_counted_where_all_are_ready():
    pod = make_pod("a", at=("b", "r", "n1"), node="n1")
    record = make_record(
        make_owner(status={"ready": 4}), slots=SLOTS, mismatches={"uid-a": PlacementMismatch(pod, "n1", "", "m")}
    )
    assert "1 of them did not get the NUMA zones" in wanted(run(record))[PODS_READY].message


def test_a_patch_that_failed_is_not_tried_again_while_its_slice_is_too_full():
    """A slot was moved from under them: one pod is to go first, wherever the other's patch ended."""
    inside = [make_pod(name, at=("b", "r", "n1"), node="n1", phase="Running") for name in "ab"]
    late = {"uid-p": Expectation(("b", "r", "n1"), NOW - 1)}
    crowded = run(make_record(slots=SLOTS, pods=[*inside, make_pod("p")], expectations=late))
    assert [found.pod.metadata.name for found in of(i.Delete, crowded)] == ["b"]
    assert of(i.Ungate, crowded) == []
    record = make_record(slots=SLOTS, pods=[inside[0], make_pod("p")], expectations=late)
    assert [found.pod.metadata.name for found in of(i.Ungate, run(record))] == ["p"]


def test_a_removal_that_was_begun_goes_on_though_there_are_pods_again():
    """It may have taken effect though nobody heard of it, and nothing stands on what is not stored."""
    record = make_record(slots=SLOTS, pods=[make_pod("p")])
    record.removing = True
    assert run(record) == [i.Dequeue(), i.Remove(), i.FreeCapacity()]
    record.observed = None
    assert run(record) == [i.Create()]
