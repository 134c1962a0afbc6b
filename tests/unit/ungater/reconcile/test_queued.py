"""What is decided about a job with a queue: state in, instructions out."""

import msgspec
import pytest
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

from engine.reasons import Reason
from kube.objects import Condition
from ungater.jobs.job import owner_of as owner_view
from ungater.model import actions as i
from ungater.model.conditions import ADMITTED, EVICTED, PODS_READY, PREEMPTED, QUOTA_RESERVED, REQUEUED, timestamp
from ungater.model.life import Check, CheckVerdict, LifeRules
from ungater.model.pod_slots import Expectation
from ungater.model.workload_entry import Refused
from ungater.reconcile.reconcile import reconcile, why_not_placed

SLOTS = slot_map(("b/r/n1", 2), ("b/r/n2", 2))
NOW, WALL = 1000.0, 1_800_000_000.0
LIFE = LifeRules(ready_timeout=60.0, backoff=10.0, backoff_limit=2)


def rules(**more):
    return context(life=LIFE, **more)


def condition(type_, status="True", reason="x", at=WALL - 10, message="m"):
    return Condition(type=type_, status=status, reason=str(reason), message=message, last_transition_time=timestamp(at))


def owner_of(*, suspend=True, **more):
    return make_owner(labels={KEYS.queue_name: "team"}, suspend=suspend, **more)


def held(*conditions, suspend=False, pods=(), observed=(), **more):
    """A record that is admitted."""
    owner = owner_of(suspend=suspend, **more)
    admission = make_admission(SLOTS, queue="cq")
    found = [condition(QUOTA_RESERVED), condition(ADMITTED), *conditions]
    stored = make_known(owner, admission=admission, conditions=found, **dict(observed))
    return make_record(owner, slots=SLOTS, admission=admission, observed=stored, pods=pods, started=not suspend)


def since(observed, at):
    """The same, admitted at another time."""
    others = [one for one in observed.conditions if one.type != ADMITTED]
    return msgspec.structs.replace(observed, conditions=(*others, condition(ADMITTED, at=at)))


def run(record, wall=WALL, **more):
    first = reconcile(record, rules(**more), NOW, wall)
    assert reconcile(record, rules(**more), NOW, wall) == first, "the same record gives the same instructions"
    return first


def wanted(instructions):
    return {one.type: one for step in instructions for one in getattr(step, "wanted", ())}


def bound(name="p", node="n1", **more):
    return make_pod(name, at=("b", "r", node), node=node, phase="Running", **more)


def test_a_template_that_was_edited_while_it_waits_is_copied_before_it_goes_on():
    edited = make_record(owner_of(spec={"nodeSelector": {"a": "b"}}), observed=make_known(owner_of()))
    assert run(edited) == [i.Dequeue(), i.UpdateSpec()]
    plain = make_record(make_owner(spec={"nodeSelector": {"a": "b"}}), observed=make_known(make_owner()))
    assert run(plain) == [i.Dequeue(), i.UpdateSpec()], "without a queue too"
    left = make_record(make_owner(), observed=make_known(make_owner(), queue="team"))
    assert run(left) == [i.Dequeue(), i.UpdateSpec()], "its Workload names a queue that it has left"
    suspended = held(suspend=True, spec={"nodeSelector": {"a": "b"}}, observed={"copy_of": "other"})
    leave, release = run(suspended)
    assert (type(leave), type(release)) == (i.Dequeue, i.Release), "it is admitted as it is now, or not at all"
    assert {one.message for one in release.wanted} == {
        "Job train was edited after it was admitted: it waits to be admitted as it is now"
    }
    assert run(held(suspend=True, spec={"nodeSelector": {"a": "b"}})) == [i.Start()]


def test_it_waits_suspended_and_is_started_once_it_is_admitted():
    assert run(make_record(owner_of())) == [i.Enqueue()]
    assert run(held(suspend=True)) == [i.Start()]
    waiting = make_pod("w", rank=0)
    assert [step for step in run(held(pods=[waiting])) if isinstance(step, i.Ungate)]


def test_it_is_not_started_beside_pods_of_an_earlier_run_that_end_on_their_nodes():
    """The Job controller of Kubernetes 1.37 makes new pods of a resumed Job while old ones terminate."""
    ending = bound(terminating=True)
    (said,) = run(held(suspend=True, pods=[ending]))
    assert wanted([said])[PODS_READY].reason == Reason.SLOT_OCCUPIED
    assert "pod p of an earlier run still ends: " in wanted([said])[PODS_READY].message
    assert run(held(suspend=True, pods=[ending]), dead=lambda node: node == "n1") == [i.Start()], "nobody ends it there"
    gone = make_pod("q", at=("b", "r", "n1"), terminating=True)
    assert run(held(suspend=True, pods=[gone])) == [i.Start()], "one without a node takes nothing"


def test_who_is_not_suspended_and_not_admitted_is_suspended_and_told_why():
    (suspend,) = run(make_record(owner_of(suspend=False)), no_queue=lambda _: "there is no LocalQueue team")
    assert suspend.why.startswith("it is suspended again, as LocalQueue team has not admitted it yet: ")
    (suspend,) = run(make_record(before_topogate()))
    assert suspend.why.startswith("Job train was started without Topogate, and LocalQueue team has not admitted it: ")


@pytest.mark.parametrize("seen", [True, False])
def test_who_is_resumed_while_it_is_on_hold_is_suspended_and_told_why(seen):
    """So it is in Kueue (0.19.2, jobframework/reconciler.go): one that is not admitted is stopped, active or not."""
    record = make_record(owner_of(suspend=False) if seen else before_topogate())
    record.observed = make_known(record.job, active=False)
    leave, suspend, write, _ = run(record)
    assert (leave, write.wanted[0].reason) == (i.Dequeue(), Reason.DEACTIVATED)
    assert suspend == i.Suspend(
        "Job train is suspended, as it is on hold (spec.active is false): `topogate release` has it wait again"
    )


def before_topogate(**more):
    """A Job that was created while there was no webhook: neither gate nor mark is on its template."""
    return owner_of(suspend=False, request={}, gated=False, **more)


def test_one_that_runs_since_before_topogate_is_left_running_while_its_queue_does_not_exist():
    """Kueue 0.19 stops it; nothing could resume it, though, and its training would be lost for a label."""
    missing = {"no_queue": lambda _: "there is no LocalQueue team in namespace ns"}
    record = make_record(before_topogate())
    leave, write, tell = run(record, **missing)
    (said,) = write.wanted
    assert (leave, said.type, said.status, said.reason) == (i.Dequeue(), QUOTA_RESERVED, False, Reason.NO_QUEUE)
    assert (tell.reason, tell.message) == (Reason.NO_QUEUE, said.message)
    assert said.message.startswith(
        "there is no LocalQueue team in namespace ns: Job train was started without Topogate"
    )
    record.observed = make_known(record.job, queue="another")
    assert run(record, **missing) == [i.Dequeue(), i.UpdateSpec()], "its Workload names the queue that is missing"
    admitted = held(request={}, gated=False)
    assert run(admitted, **missing) == run(admitted), "it is admitted: nothing else counts"


@pytest.mark.parametrize(
    ("state", "made", "left"),
    [
        ("False", WALL + 61, True),  # resumed by a former Kueue, long before there was a Workload of ours
        ("False", WALL + 30, False),  # resumed, and its gate taken off, by whoever did not want to wait
        ("True", WALL + 61, False),  # its controller has not seen the resumption yet
    ],
)
def test_one_that_was_suspended_is_left_running_only_if_it_ran_long_before_it_had_a_workload(state, made, left):
    suspended = {"type": "Suspended", "status": state, "lastTransitionTime": timestamp(WALL)}
    record = make_record(before_topogate(status={"conditions": [suspended]}))
    record.observed = make_known(record.job, created=made)
    steps = run(record, no_queue=lambda _: "there is no LocalQueue team in namespace ns")
    assert any(isinstance(one, i.Suspend) for one in steps) is not left


@pytest.mark.parametrize(
    "marked",
    [owner_of(suspend=False, request={}), owner_of(suspend=False, request={KEYS.pod_set: "main"}, gated=False)],
    ids=["gated", "marked"],
)
def test_one_that_a_webhook_saw_does_not_run_past_a_queue_that_does_not_exist(marked):
    (suspend,) = run(make_record(marked), no_queue=lambda _: "there is no LocalQueue team in namespace ns")
    assert isinstance(suspend, i.Suspend)


def test_no_request_is_needed_in_a_queue():
    assert run(make_record(owner_of(request={}, gated=False))) == [i.Enqueue()]


def test_why_it_waits_is_said():
    record = make_record(owner_of(), refused=Refused(Reason.INSUFFICIENT_QUOTA, "8 wanted"))
    enter, write, tell = run(record)
    assert (enter, write.wanted[0].reason, tell.reason) == (
        i.Enqueue(),
        Reason.INSUFFICIENT_QUOTA,
        Reason.INSUFFICIENT_QUOTA,
    )


@pytest.mark.parametrize("made", [held, lambda **more: make_record(owner_of(), observed=held(**more).observed)])
def test_conditions_follow_the_generation_of_a_workload_whose_state_an_edit_does_not_change(made):
    """Else `kubectl wait --for=condition=Admitted workload/x` (1.37) never ends once spec.priority was changed."""
    record = made()
    usual = run(record)
    record.observed = msgspec.structs.replace(record.observed, generation=2)
    *others, again = run(record)
    assert others == usual
    assert {one.type: (one.status, one.reason, one.message) for one in again.wanted} == {
        QUOTA_RESERVED: (True, "x", "m"),
        ADMITTED: (True, "x", "m"),
    }
    said = tuple(msgspec.structs.replace(one, observed_generation=2) for one in record.observed.conditions)
    record.observed = msgspec.structs.replace(record.observed, conditions=said)
    assert run(record) == usual, "once"


def test_a_changed_wish_is_written_before_it_waits():
    record = make_record(owner_of(parallelism=6))
    record.observed = make_known(record.job, count=4)
    assert run(record) == [i.Dequeue(), i.UpdateSpec()]
    record.observed = make_known(record.job, queue="another")
    assert run(record) == [i.Dequeue(), i.UpdateSpec()]


def test_one_that_backs_off_waits_from_then_on():
    record = make_record(owner_of())
    later = condition(REQUEUED, "False", Reason.BACKING_OFF)
    record.observed = make_known(record.job, conditions=[later], requeues=1, requeue_at=WALL + 5)
    assert run(record) == [i.RequeueAfter(5.0), i.Enqueue(until=WALL + 5)]
    write, enter = run(record, WALL + 6)
    assert (write.wanted[0].status, write.wanted[0].reason) == (True, Reason.REQUEUED)
    assert enter == i.Enqueue(until=WALL + 5)


def test_an_eviction_goes_one_step_at_a_time():
    pods = [bound("a"), bound("b", "n2")]
    record = held(pods=pods)
    record.evict = i.Evict(Reason.PREEMPTED, "for another", Reason.IN_CLUSTER_QUEUE)
    (evict,) = run(record)
    assert {one.type: (one.status, one.reason) for one in evict.wanted} == {
        EVICTED: (True, Reason.PREEMPTED),
        PREEMPTED: (True, Reason.IN_CLUSTER_QUEUE),
    }
    leaving = condition(EVICTED, reason=Reason.PREEMPTED, message="for another")
    (gone,) = run(held(leaving, pods=pods))
    assert ([pod.metadata.name for pod in gone.pods], gone.why) == (["a", "b"], "for another")
    assert run(held(leaving, pods=[make_pod("new")])) == [i.Suspend()], "what was made anew is gated, and holds nothing"
    (back,) = run(held(leaving, condition(PODS_READY), suspend=True))
    assert (back.until, back.requeues, back.leave) == (WALL, 0, False)
    assert {one.type: (one.status, one.reason) for one in back.wanted} == {
        QUOTA_RESERVED: (False, Reason.PENDING),
        ADMITTED: (False, Reason.PREEMPTED),
        PODS_READY: (False, Reason.PREEMPTED),
        REQUEUED: (True, Reason.REQUEUED),
    }


def test_pods_without_a_gate_that_come_again_go_with_the_job():
    """Else each evicted pod would be made again and evicted again, without an end."""
    owner = owner_of(suspend=False, request={}, gated=False)
    admission = make_admission(None, queue="cq", count=4)
    leaving = condition(EVICTED, reason=Reason.PREEMPTED)
    observed = make_known(
        owner, admission=admission, conditions=[condition(QUOTA_RESERVED), condition(ADMITTED), leaving]
    )
    old, new = (bound(name, gated=False, created=timestamp(at)) for name, at in (("old", WALL - 60), ("new", WALL - 1)))
    record = make_record(owner, admission=admission, observed=observed, pods=[old, new], started=True)
    (evict,) = run(record)
    assert [pod.metadata.name for pod in evict.pods] == ["old"]
    record.pods.pop(old.metadata.uid)
    assert run(record) == [i.Suspend()]


def test_a_job_that_is_suspended_by_hand_is_put_back():
    record = held(suspend=True)
    record.started = True
    (evict,) = run(record)
    assert evict.reason == Reason.SUSPENDED


def test_after_a_restart_the_time_of_the_suspension_tells_by_whom_it_was():
    status = {"conditions": [{"type": "Suspended", "status": "True", "lastTransitionTime": timestamp(WALL - 60)}]}
    assert run(held(suspend=True, status=status)) == [i.Start()], "it was suspended before it was admitted"
    for found in ("True", "False"):  # the Job controller may not have seen it yet
        status["conditions"][0] |= {"status": found, "lastTransitionTime": timestamp(WALL - 1)}
        (evict,) = run(held(suspend=True, status=status))
        assert evict.reason == Reason.SUSPENDED


def test_it_is_not_started_before_its_controller_has_seen_that_it_was_suspended():
    seen = {"type": "Suspended", "status": "False", "lastTransitionTime": timestamp(WALL - 60)}
    record = held(suspend=True, status={"conditions": [seen]})
    assert run(record) == [i.RequeueAfter(50.0)], "it would delete the new run's pods"
    assert run(record, WALL + 50) == [i.Start()], "one that never says so holds up nobody for ever"
    seen |= {"status": "True", "lastTransitionTime": timestamp(WALL - 30)}
    assert run(held(suspend=True, status={"conditions": [seen]})) == [i.Start()]


def test_pods_that_are_not_ready_in_time_put_it_back_and_at_the_limit_for_good():
    steps = run(held(pods=[bound()]), WALL + 60)
    assert [step.reason for step in steps if isinstance(step, i.Evict)] == [Reason.PODS_READY_TIMEOUT]
    assert not [step for step in steps if isinstance(step, i.Ungate | i.Enqueue)], "nothing else is done with it"
    leaving = condition(EVICTED, reason=Reason.PODS_READY_TIMEOUT, at=WALL)
    (back,) = run(held(leaving, suspend=True, observed={"requeues": 1}))
    assert (back.until, back.requeues, back.leave) == (WALL + 20.0, 2, False)
    assert wanted([back])[REQUEUED].reason == Reason.BACKING_OFF
    assert timestamp(WALL + 20.0) in wanted([back])[REQUEUED].message
    off, last = run(held(leaving, suspend=True, observed={"requeues": 2}))
    assert (off.reason, last.leave) == (Reason.REQUEUE_LIMIT, True)
    assert "put back 2 times" in off.message


def test_one_that_is_inactive_waits_in_no_queue():
    record = make_record(owner_of())
    record.observed = make_known(record.job, active=False)
    leave, write, tell = run(record)
    assert (leave, write.wanted[0].reason, tell.reason) == (i.Dequeue(), Reason.DEACTIVATED, Reason.DEACTIVATED)
    said = [condition(QUOTA_RESERVED, "False", Reason.DEACTIVATED)]
    record.observed = make_known(record.job, conditions=said, active=False)
    assert isinstance(run(record)[-1], i.EmitEvent), "who told it may have died before it was heard"


@pytest.mark.parametrize(
    ("state", "step"), [("Pending", i.WriteConditions), ("Ready", i.WriteConditions), ("Rejected", i.Evict)]
)
def test_checks_stand_between_quota_and_admission(state, step):
    owner = owner_of()
    admission = make_admission(SLOTS, queue="cq")
    check = Check(name="c", state=CheckVerdict(state), message="why")
    observed = make_known(owner, admission=admission, conditions=[condition(QUOTA_RESERVED)], checks=(check,))
    record = make_record(owner, slots=SLOTS, admission=admission, observed=observed)
    (found,) = run(record, checks=lambda _: ("c",))
    assert isinstance(found, step)
    if step is i.WriteConditions:
        assert (found.wanted[0].type, found.wanted[0].status) == (ADMITTED, state == "Ready")
    else:
        assert found.reason == Reason.CHECK_REJECTED


def test_a_partial_admission_is_no_edit_of_the_job():
    owner = owner_of(parallelism=2, suspend=False)
    slots = slot_map(("b/r/n1", 2))
    admission = make_admission(slots, queue="cq")
    conditions = [condition(QUOTA_RESERVED), condition(ADMITTED)]
    observed = make_known(owner, admission=admission, conditions=conditions, count=4, least=2)
    record = make_record(owner, slots=slots, admission=admission, observed=observed, started=True)
    assert not [step for step in run(record) if isinstance(step, i.UpdateSpec)]
    record.observed = make_known(owner, admission=admission, conditions=conditions, count=4)
    assert [step for step in run(record) if isinstance(step, i.UpdateSpec)], "without a least number it is an edit"


def test_pods_without_slots_give_back_quota_and_never_that_of_one_that_runs():
    owner = owner_of(parallelism=1, suspend=False, request={}, gated=False)
    admission = make_admission(None, queue="cq", count=4)
    observed = make_known(owner, admission=admission, conditions=[condition(QUOTA_RESERVED), condition(ADMITTED)])
    pods = [bound("a", gated=False), bound("b", gated=False)]
    record = make_record(owner, admission=admission, observed=observed, pods=pods, started=True, shrink_at=NOW)
    assert [step for step in run(record) if isinstance(step, i.Shrink)] == [i.Shrink(None, 2)]


def test_a_finished_workload_is_kept_for_its_time():
    done = {"conditions": [{"type": "Complete", "status": "True", "message": "all done"}]}
    owner = owner_of(status=done)
    record = make_record(owner)
    finish = run(record)[-1]
    assert (finish.wanted[0].reason, finish.wanted[0].message) == (Reason.SUCCEEDED, "all done")
    record.observed = make_known(owner, conditions=[condition("Finished", at=WALL)])
    kept = context(life=LifeRules(retention=30.0))
    assert reconcile(record, kept, NOW, WALL + 10)[-1] == i.RequeueAfter(20.0)
    assert reconcile(record, kept, NOW, WALL + 30)[-1] == i.Remove()


# --- without a queue -----------------------------------------------------------------------------------------------


def alone(*conditions, pods=(), observed=(), **more):
    """A record of a job without a queue that holds its slots."""
    owner = make_owner()
    found = [condition(QUOTA_RESERVED), condition(ADMITTED), *conditions]
    stored = make_known(owner, admission=make_admission(SLOTS), conditions=found, **dict(observed))
    return make_record(owner, slots=SLOTS, observed=stored, pods=pods, **more)


def test_without_a_queue_one_that_is_made_inactive_goes_and_what_is_made_anew_stays_gated():
    pods = [bound("a"), make_pod("on-its-way", at=("b", "r", "n2")), make_pod("gated")]
    (evict,) = run(alone(pods=pods, observed={"active": False}))
    assert [(one.type, one.status, one.reason) for one in evict.wanted] == [(EVICTED, True, Reason.DEACTIVATED)]
    leaving = condition(EVICTED, reason=Reason.DEACTIVATED)
    (gone,) = run(alone(leaving, pods=pods, observed={"active": False}))
    assert [pod.metadata.name for pod in gone.pods] == ["a", "on-its-way"]
    (back,) = run(alone(leaving, pods=pods[2:], observed={"active": False}))
    assert (type(back), back.leave) == (i.ClearAdmission, True)
    assert wanted([back])[QUOTA_RESERVED].reason == Reason.DEACTIVATED
    inactive = make_record(make_owner(), observed=make_known(make_owner(), active=False), pods=pods[2:])
    leave, write, *_ = run(inactive)
    assert (leave, write.wanted[0].reason) == (i.Dequeue(), Reason.DEACTIVATED)
    assert run(alone(leaving, pods=pods)) == [gone], "an eviction that began goes on to its end"


@pytest.mark.parametrize("taken", [{"request": {}}, {"gated": False}, {"suspend": True}])
def test_a_victim_goes_though_its_user_took_request_or_gate_off_it_or_suspended_its_job(taken):
    """Labels and annotations of a pod that runs can be changed: else whoever waits for its room would for ever."""
    owner, runs, leaving = make_owner(**taken), bound("a"), condition(EVICTED, reason=Reason.PREEMPTED)

    def steps(*conditions, pods=(runs,), **more):
        known = make_known(owner, admission=make_admission(SLOTS), conditions=conditions)
        return run(make_record(owner, slots=SLOTS, **{"observed": known, "pods": pods} | more))

    def taking(steps):
        return [step for step in steps if isinstance(step, (i.Evict, i.EvictPods, i.ClearAdmission))]

    assert taking(steps()) == [], "it keeps what it has"
    wanted_for = i.Evict(Reason.PREEMPTED, "cluster queue b takes back its nominal quota", Reason.RECLAIMED)
    (evict,) = taking(steps(evict=wanted_for))
    assert evict.reason is Reason.PREEMPTED
    (gone,) = taking(steps(leaving))
    assert gone.pods == (runs,)
    if taken == {"request": {}}:  # whose Workload was deleted; that of the others is created again first
        (gone,) = taking(steps(evict=wanted_for, observed=None))
        assert gone.pods == (runs,)


def test_without_a_queue_lost_slots_without_another_place_put_it_back_for_a_while():
    limits = LifeRules(ready_timeout=1.0, replacement=30.0, backoff=10.0, backoff_limit=1)

    def look(record, wall=WALL):
        return reconcile(record, context(life=limits), NOW, wall)

    waits = {"lost": ((0, 2),), "refused": Refused(Reason.DOES_NOT_FIT, "no room")}
    pods = [bound("a"), bound("b", "n2")]
    assert i.RequeueAfter(5.0) in look(alone(pods=pods, lost_at=WALL - 25, **waits))
    assert not any(isinstance(one, i.Evict) for one in look(alone(pods=pods, lost_at=WALL - 60)))
    evict, *rest = look(alone(pods=pods, lost_at=WALL - 30, **waits))
    assert (evict.reason, rest) == (Reason.REPLACEMENT_TIMEOUT, [])
    leaving = condition(EVICTED, reason=Reason.REPLACEMENT_TIMEOUT, at=WALL - 2)
    (back,) = look(alone(leaving))
    assert (back.until, back.requeues, back.leave) == (WALL + 8, 1, False)
    later = condition(REQUEUED, "False", Reason.BACKING_OFF)
    observed = make_known(make_owner(), conditions=[later], requeues=1, requeue_at=WALL + 8)
    assert look(make_record(make_owner(), observed=observed)) == [i.RequeueAfter(8.0), i.Enqueue(until=WALL + 8)]
    write, enter = look(make_record(make_owner(), observed=observed), WALL + 9)
    assert (wanted([write])[REQUEUED].status, enter) == (True, i.Enqueue(until=WALL + 8))
    deactivate, back = look(alone(leaving, observed={"requeues": 1}))
    assert (deactivate.reason, back.leave) == (Reason.REQUEUE_LIMIT, True)
    too_often = condition(REQUEUED, "False", Reason.REQUEUE_LIMIT)
    (back,) = look(alone(leaving, too_often, observed={"requeues": 1, "active": False}))
    assert REQUEUED not in wanted([back]), "what was said of that says more"


def test_a_pod_that_hangs_on_a_dead_node_keeps_no_eviction_from_its_end():
    leaving = condition(EVICTED, reason=Reason.DEACTIVATED)
    pods = [bound("a"), bound("hangs", "n2", terminating=True)]
    (gone,) = run(held(leaving, pods=pods))
    assert [pod.metadata.name for pod in gone.pods] == ["a", "hangs"]
    (gone,) = run(held(leaving, pods=pods), dead=lambda node: node == "n2")
    assert [pod.metadata.name for pod in gone.pods] == ["a"]
    assert run(held(leaving, pods=pods[1:]), dead=lambda node: node == "n2") == [i.Suspend()]


def test_one_that_was_let_go_goes_too_though_it_is_still_seen_behind_its_gate():
    sent, gone = make_pod("sent"), make_pod("gone")
    for leaving in (held, alone):
        record = leaving(condition(EVICTED, reason=Reason.DEACTIVATED), pods=[sent, gone])
        record.expectations[sent.metadata.uid] = Expectation(("b", "r", "n1"), deadline=9.0)
        record.expectations[gone.metadata.uid] = Expectation(("b", "r", "n1"), deadline=9.0, gone=True)
        (evicted,) = run(record)
        assert [pod.metadata.name for pod in evicted.pods] == ["sent"]


def test_one_that_was_let_go_and_has_no_node_as_far_as_is_seen_is_waited_for():
    """It may be on its node already, and its place would be another's before it is gone."""
    let_go, plain = make_pod("let-go", at=("b", "r", "n1"), gated=False), make_pod("plain", gated=False)
    leaving = condition(EVICTED, reason=Reason.SUSPENDED)
    (gone,) = run(held(leaving, pods=[let_go, plain]))
    assert [pod.metadata.name for pod in gone.pods] == ["let-go"], "the other would come again at once"
    (gone,) = run(held(leaving, pods=[let_go, plain], suspend=True))
    assert [pod.metadata.name for pod in gone.pods] == ["let-go", "plain"]


@pytest.mark.parametrize("reason", [Reason.PODS_NOT_READY, Reason.PARTLY_PLACED, Reason.WAITS_FOR_ARRIVALS])
def test_pods_that_were_ready_once_have_the_time_to_recover_whatever_is_said_of_them(reason):
    """One that was scaled up beyond what there is room for is not put back for the time that it has to start."""
    limits = context(life=LifeRules(ready_timeout=60.0, recovery_timeout=600.0))
    again = held(condition(PODS_READY, "False", reason, at=WALL - 100), pods=[bound("a")])
    again.observed = since(again.observed, WALL - 300)
    assert not [one for one in reconcile(again, limits, NOW, WALL) if isinstance(one, i.Evict)]
    assert [one.reason for one in reconcile(again, limits, NOW, WALL + 501) if isinstance(one, i.Evict)]
    first = held(condition(PODS_READY, "False", Reason.WAIT_FOR_START, at=WALL - 300), pods=[bound("a")])
    first.observed = since(first.observed, WALL - 300)
    (evict,) = [one for one in reconcile(first, limits, NOW, WALL) if isinstance(one, i.Evict)]
    assert evict.reason == Reason.PODS_READY_TIMEOUT


def test_pods_that_wait_for_room_to_grow_do_not_count_as_not_ready():
    limits = context(life=LifeRules(ready_timeout=60.0, recovery_timeout=60.0))
    partly = condition(PODS_READY, "False", Reason.PARTLY_PLACED, at=WALL - 100)
    pods = [*(bound(name, node) for node in ("n1", "n2") for name in (f"{node}-a", f"{node}-b")), make_pod("c")]
    for ready, evicted in ((4, False), (3, True)):
        grown = held(partly, pods=pods, parallelism=5)
        grown.job = msgspec.structs.replace(grown.job, ready=ready)
        grown.observed = since(grown.observed, WALL - 300)
        assert bool([one for one in reconcile(grown, limits, NOW, WALL) if isinstance(one, i.Evict)]) is evicted


@pytest.mark.parametrize(("since_when", "reason"), [(30, Reason.WAIT_FOR_START), (10, Reason.PODS_NOT_READY)])
def test_pods_that_were_never_ready_are_not_said_to_be_not_ready_again(since_when, reason):
    """Else they would have the time to recover, and not that to start; a restart told the two apart by chance."""
    stuck = condition(PODS_READY, "False", Reason.WAITS_FOR_ARRIVALS, at=WALL - since_when)
    record = held(stuck, pods=[bound("a"), bound("b")], parallelism=2)
    record.job = msgspec.structs.replace(record.job, ready=1)
    record.observed = since(record.observed, WALL - 30)
    assert wanted(run(record))[PODS_READY].reason == reason


def test_without_a_queue_nobody_waits_for_pods_to_be_ready():
    rules_ = context(life=LifeRules(ready_timeout=1.0, recovery_timeout=1.0))
    record = alone(condition(PODS_READY, "False", Reason.PODS_NOT_READY), pods=[bound("a")])
    assert reconcile(record, rules_, NOW, WALL) == [i.Dequeue()]


def gated_by(text, **more):
    job = make_job(labels={KEYS.queue_name: "team"}, suspend=True, **more)
    meta = msgspec.structs.replace(job.metadata, annotations={KEYS.gated_by: text})
    return owner_view(msgspec.structs.replace(job, metadata=meta), KEYS)


def test_one_that_a_controller_holds_back_waits_outside_of_its_queue():
    # Kueue 0.19.2 (pkg/controller/core/workload_controller.go): condition QuotaReserved has the reason AdmissionGated.
    leave, told, *_ = run(make_record(gated_by("example.com/budget")))
    assert leave == i.Dequeue()
    (said,) = (one for one in told.wanted if one.type == QUOTA_RESERVED)
    assert (said.status, said.reason) == (False, Reason.ADMISSION_GATED)
    assert said.message.startswith("admission is held back by example.com/budget")
    assert run(make_record(gated_by(""))) == [i.Enqueue()], "the last name was removed"
    assert run(make_record(gated_by("nonsense"))) != [i.Enqueue()], "stored while the webhook was away"
    # What is wrong with it is told first: it would come to light only once it may go.
    wrong = make_record(gated_by("example.com/budget", request={KEYS.required[0]: "a b"}))
    assert why_not_placed(wrong, rules())[0] is Reason.INVALID_REQUEST


def test_one_that_runs_is_not_put_back_by_a_name_that_came_late():
    record = held(observed={})
    job = msgspec.structs.replace(record.job, gated_by="example.com/budget")
    late = make_record(job, slots=SLOTS, admission=record.admission, observed=record.observed, started=True)
    assert run(late) == run(record)


STOPPED = "ClusterQueue cq is stopped (stopPolicy Hold)"


def reserved(*conditions, suspend=True, admitted="False", queue="team", **more):
    """A record that holds quota and waits for an admission check, unless it is ``admitted``."""
    owner = make_owner(labels={KEYS.queue_name: queue} if queue else {}, suspend=suspend)
    admission = make_admission(SLOTS, queue="cq" if queue else "")
    found = [condition(QUOTA_RESERVED), condition(ADMITTED, admitted), *conditions]
    stored = make_known(owner, admission=admission, conditions=found)
    return make_record(owner, slots=SLOTS, admission=admission, observed=stored, **more)


def test_one_that_waits_for_its_checks_gives_all_back_where_its_queue_is_stopped_and_is_not_evicted():
    leave, release = run(reserved(), find_stop=lambda _: STOPPED, checks=lambda _: ("budget",))
    assert leave == i.Dequeue()
    assert isinstance(release, i.Release)
    said = {one.type: (one.status, one.reason, one.message) for one in release.wanted}
    assert said == dict.fromkeys((QUOTA_RESERVED, ADMITTED), (False, Reason.QUEUE_STOPPED, STOPPED))
    assert EVICTED not in said


def test_a_queue_that_is_drained_has_it_wait_too_and_evicts_who_was_admitted():
    drained = i.Evict(Reason.QUEUE_DRAINED, "drained")
    waiting = reserved(evict=drained)
    assert [type(one) for one in run(waiting, find_stop=lambda _: STOPPED)] == [i.Dequeue, i.Release]
    admitted = reserved(admitted="True", evict=drained)
    assert run(admitted, find_stop=lambda _: STOPPED) == [drained]


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(held, id="it runs"),
        pytest.param(lambda: held(suspend=True), id="it is admitted and not started yet"),
        pytest.param(lambda: reserved(queue=""), id="it has no queue"),
        pytest.param(lambda: reserved(condition(EVICTED, reason=Reason.PREEMPTED)), id="it is on its way out"),
    ],
)
def test_a_queue_that_is_stopped_changes_nothing_for_others(record):
    assert run(record(), find_stop=lambda _: STOPPED) == run(record())
