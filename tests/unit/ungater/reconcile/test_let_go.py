"""Pods that were let go and that kube-scheduler does not take: what is done about them, and what people are told."""

import msgspec
import pytest
from support.owned import context, make_known, make_owner, make_pod, make_record, slot_map

from engine.reasons import Reason
from kube.objects import Condition
from ungater.model import actions as i
from ungater.model.conditions import ADMITTED, EVICTED, PODS_READY
from ungater.model.life import Evicted, Life, LifeRules
from ungater.model.unscheduled import Unscheduled, words_about
from ungater.model.workload_entry import Refused
from ungater.reconcile import let_go, lifecycle
from ungater.reconcile.reconcile import reconcile

NOW = 1000.0
PATIENCE = 10.0
SLOTS = slot_map(("b/r/n1", 2), ("b/r/n2", 2))
ELSEWHERE = "node(s) didn't match Pod's node affinity/selector"
NO_VICTIMS = "0/5 nodes are available: 1 No preemption victims found for incoming pod, 4 Preemption is not helpful."
WORDS = "1 node(s) had a filter that nobody knows"


def refused_pod(name, owner, words=WORDS):
    pod = make_pod(name, owner=owner, at=("b", "r", "n1"))
    said = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=words)
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=(said,)))


def refused_record(*pods, for_=PATIENCE, owner=None, slots=SLOTS, **more):
    owner = owner or make_owner()
    record = make_record(owner, slots=slots, pods=pods, **more)
    for pod in pods:
        if not pod.spec.node_name and not pod.spec.scheduling_gates:
            record.unscheduled[pod.metadata.uid] = Unscheduled(NOW - for_ - 1, NOW - for_, WORDS)
    return record


def run(record, **rules):
    found = reconcile(record, context(**rules), NOW)
    assert reconcile(record, context(**rules), NOW) == found
    return found


def of(kind, instructions):
    return [found for found in instructions if isinstance(found, kind)]


def said(instructions, type_):
    (found,) = [w for write in of(i.WriteConditions, instructions) for w in write.wanted if w.type == type_]
    return found


def test_a_pod_that_is_refused_is_waited_for_as_long_as_the_setting_says():
    owner = make_owner()
    record = refused_record(refused_pod("a", owner), for_=PATIENCE - 4, owner=owner)
    done = run(record)
    assert of(i.LeaveOut, done) == []
    assert of(i.Enqueue, done) == []
    assert i.RequeueAfter(4.0) in done
    for_ever = refused_record(refused_pod("a", owner), for_=9999.0, owner=owner)
    assert of(i.LeaveOut, run(for_ever, patience=None)) == []


def test_then_its_node_is_left_out_its_slots_move_and_the_job_is_told_once_in_the_schedulers_words():
    owner = make_owner()
    pods = [
        refused_pod("a", owner),
        refused_pod("b", owner),
        make_pod("c", owner=owner, at=("b", "r", "n2"), node="n2"),
    ]
    done = run(refused_record(*pods, owner=owner))
    assert of(i.LeaveOut, done) == [i.LeaveOut(tuple(pods[:2]))]
    assert of(i.Enqueue, done) == [i.Enqueue({"main": ((0, 2),)})]
    assert of(i.Delete, done) == [], "a pod goes once its slot has moved, and not before"
    (told,) = of(i.EmitEvent, done)
    condition = said(done, PODS_READY)
    assert condition.reason == told.reason == Reason.SCHEDULER_REFUSED
    assert told.message == condition.message
    assert condition.message.startswith(
        f"kube-scheduler does not bind pod a (and 1 more) to n1, where its slot is: {WORDS}; its replacement"
    )


def test_a_node_is_counted_once_for_a_pod_until_it_may_be_tried_again():
    owner = make_owner()
    record = refused_record(pod := refused_pod("a", owner), owner=owner)
    record.unscheduled[pod.metadata.uid] = record.unscheduled[pod.metadata.uid].counted(NOW + 15)
    done = run(record)
    assert of(i.LeaveOut, done) == []
    assert of(i.Enqueue, done), "its slot moves still"
    record.unscheduled[pod.metadata.uid] = record.unscheduled[pod.metadata.uid].counted(NOW)
    assert len(of(i.LeaveOut, run(record))) == 1


def test_no_other_pod_goes_to_a_slot_that_is_about_to_move():
    owner = make_owner()
    pods = [refused_pod("a", owner), make_pod("gated", owner=owner)]
    done = run(refused_record(*pods, owner=owner, slots=slot_map(("b/r/n1", 2), ("b/r/n2", 1))))
    assert of(i.Ungate, done) == []


def test_room_that_a_plain_pod_took_moves_the_slot_once_and_counts_no_node():
    owner = make_owner()
    done = run(refused_record(refused_pod("a", owner), owner=owner), lost=lambda *_: (0,))
    assert of(i.LeaveOut, done) == []
    assert of(i.Enqueue, done) == [i.Enqueue({"main": ((0, 2),)})]


def evict_of(record):
    (found,) = of(i.Evict, run(record)) or [None]
    return found


def never_ready(owner, **more):
    false = Condition(
        type=PODS_READY, status="False", reason="WaitForStart", last_transition_time="2026-11-21T00:00:00Z"
    )
    true = Condition(type=ADMITTED, status="True", reason="Admitted", last_transition_time="2026-11-21T00:00:00Z")
    return make_known(owner, slots=SLOTS, conditions=[true, false], **more)


def test_a_gang_that_has_no_other_place_is_put_back_as_a_whole_and_is_told_why():
    owner = make_owner()
    pods = [refused_pod("a", owner), make_pod("runs", owner=owner, at=("b", "r", "n2"), node="n2", phase="Running")]
    record = refused_record(*pods, owner=owner, observed=never_ready(owner))
    assert evict_of(record) is None, "its slot may move"
    record.lost, record.refused = {"main": ((0, 2),)}, Refused(Reason.DOES_NOT_FIT, "r could take 2 of 4")
    done = run(record)
    (evict,) = of(i.Evict, done)
    assert evict.reason is Reason.SCHEDULER_REFUSED
    assert [one.type for one in evict.wanted] == [EVICTED]
    assert WORDS in evict.message
    assert "no other place for it: r could take 2 of 4" in evict.message
    assert of(i.LeaveOut, done), "the nodes are left out all the same, so it does not come back there"


def test_one_that_moved_on_several_times_in_a_row_is_placed_anew():
    owner = make_owner()
    record = refused_record(refused_pod("a", owner), owner=owner, observed=never_ready(owner))
    record.refusals = let_go.MOVES
    assert evict_of(record) is None
    record.refusals = let_go.MOVES + 1
    assert "7 times in a row" in evict_of(record).message


def test_one_whose_pods_ran_all_is_not_put_back_for_a_single_pod_but_waits_like_for_a_lost_node():
    owner = make_owner()
    ran = Condition(type=PODS_READY, status="True", reason="PodsReady", last_transition_time="2026-11-21T00:01:00Z")
    observed = msgspec.structs.replace(never_ready(owner), conditions=(never_ready(owner).conditions[0], ran))
    record = refused_record(refused_pod("a", owner), owner=owner, observed=observed)
    record.lost, record.refused = {"main": ((0, 2),)}, Refused(Reason.DOES_NOT_FIT, "r could take 2 of 4")
    assert evict_of(record) is None
    (waits,) = of(i.Enqueue, run(record))
    assert waits.urgent
    assert "no other place for it: r could take 2 of 4" in said(run(record), PODS_READY).message
    limited = LifeRules(replacement=60.0)
    record.lost_at = None
    assert of(i.Evict, run(record, life=limited)) == []
    assert i.RequeueAfter(50.0) in run(record, life=limited)
    (evict,) = of(i.Evict, reconcile(record, context(life=limited), NOW + 50))
    assert evict.reason is Reason.SCHEDULER_REFUSED


def test_a_pod_that_nobody_makes_again_is_told_of_and_keeps_its_slot():
    owner = make_owner()
    pod = refused_pod("bare", owner)
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=()))
    record = refused_record(pod, owner=owner, observed=never_ready(owner))
    record.refusals = let_go.MOVES + 1
    done = run(record)
    assert [type(one) for one in done if isinstance(one, i.LeaveOut | i.Evict | i.Enqueue | i.Delete)] == []
    assert "no controller that would create it again" in said(done, PODS_READY).message


def test_a_pod_for_which_kube_scheduler_has_others_go_is_waited_for_longer():
    owner = make_owner()
    record = refused_record(pod := refused_pod("a", owner), owner=owner)
    record.unscheduled[pod.metadata.uid] = Unscheduled(0.0, NOW - 20, WORDS, nominated=True)
    assert of(i.LeaveOut, run(record)) == []
    record.unscheduled[pod.metadata.uid] = Unscheduled(0.0, NOW - let_go.NOMINATED, WORDS, nominated=True)
    assert of(i.LeaveOut, run(record))


@pytest.mark.parametrize(
    ("node", "spec", "others_go"),
    [
        ("", {}, False),
        ("n1", {}, True),
        ("n1", {"preemptionPolicy": "Never"}, False),
        ("n1", {"schedulingGroup": {"podGroupName": "ring"}}, False),
        ("n2", {"schedulingGroup": {"podGroupName": "ring"}}, True),
    ],
)
def test_a_nomination_by_which_room_was_kept_does_not_say_that_others_go(node, spec, others_go):
    """A pod was nominated to n1 while it was gated, and is refused now.

    kube-scheduler 1.36 and 1.37 remove a nomination with each refusal for which nobody goes; but not from a pod that
    never has others go, and not from one of a PodGroup.
    """
    status = msgspec.structs.replace(refused_pod("a", make_owner()).status, nominated_node_name=node)
    pod = msgspec.structs.replace(make_pod("a", at=("b", "r", "n1"), spec=spec), status=status)
    assert Unscheduled(NOW, kept="n1").see_again(pod, NOW).nominated == others_go


@pytest.mark.parametrize(("refusals", "seconds"), [(1, 0), (3, 0), (4, 10), (5, 20), (6, 40), (60, 600)])
def test_who_is_refused_everywhere_stays_away_for_longer_each_time(refusals, seconds):
    record = make_record()
    record.refusals = refusals
    assert let_go.pause(record) == seconds


def test_such_an_eviction_does_not_count_against_the_limit_of_requeues():
    evicted = Evicted(reason="SchedulerRefused", message="m", at=100.0)
    life = Life(reserved_at=1.0, evicted=evicted, requeues=2, pause=40.0)
    (release,) = lifecycle.live_on(life, LifeRules(backoff_limit=2), 103.0)
    assert (release.until, release.requeues, release.leave) == (140.0, 2, False)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            f"0/5 nodes are available: 1 Insufficient nvidia.com/gpu, 4 {ELSEWHERE}. preemption: {NO_VICTIMS}",
            "1 Insufficient nvidia.com/gpu",
        ),
        (
            f"0/2 nodes are available: 2 {ELSEWHERE}. preemption: {NO_VICTIMS}",
            f"2 {ELSEWHERE}",
        ),
        ("0/1 nodes are available: 1 node(s) said no", "1 node(s) said no"),
        ("running PreBind plugin: cannot", "running PreBind plugin: cannot"),
        ("", "Unschedulable"),
    ],
)
def test_of_what_kube_scheduler_says_the_nodes_that_were_not_meant_are_left_out(message, expected):
    """kube-scheduler 1.37 names all nodes of the cluster, of which the pod's selector excludes all but one."""
    assert words_about(refused_pod("a", make_owner(), words=message)) == expected


def test_a_pod_that_waits_behind_a_gate_is_not_refused():
    said_gated = Condition(type="PodScheduled", status="False", reason="SchedulingGated", message="")
    pod = make_pod("a")
    assert words_about(pod) is None
    status = msgspec.structs.replace(pod.status, conditions=(said_gated,))
    assert words_about(msgspec.structs.replace(pod, status=status)) is None
