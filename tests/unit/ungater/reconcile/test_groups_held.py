"""Pods with a place that kube-scheduler holds back, as others of their PodGroup are gated."""

import pytest
from support.owned import KEYS, LEVELS, make_admission, make_known, make_owner, make_pod, make_record, slot_map

from engine.reasons import Reason
from kube.objects import Condition
from queueing import lifecycle
from ungater.model import actions as i
from ungater.model.conditions import ADMITTED, EVICTED, QUOTA_RESERVED, timestamp
from ungater.model.workload_entry import Expectation
from ungater.reconcile import native_groups
from ungater.reconcile.reconcile import reconcile

SLOTS = slot_map(("b/r/n1", 2), ("b/r/n2", 2))
WALL = 1_800_000_000.0
HELD = 300.0  # replacementTimeout
IN_GROUP = {"schedulingGroup": {"podGroupName": "ring"}}


def said(type_):
    return Condition(type=type_, status="True", reason="x", message="m", last_transition_time=timestamp(WALL - 10))


def world(*pods, queue="", parallelism=6):
    """Six pods are wanted, four have slots."""
    owner = make_owner(parallelism=parallelism, labels={KEYS.queue_name: queue} if queue else {})
    admission = make_admission(SLOTS, queue="cq" if queue else "", count=4)
    observed = make_known(owner, admission=admission, conditions=[said(QUOTA_RESERVED), said(ADMITTED)])
    return make_record(owner, slots=SLOTS, admission=admission, observed=observed, pods=pods, started=True)


def look(record, now):
    native_groups.note(record, KEYS, now)
    rules = i.ReconcileContext(KEYS, {"gpu": LEVELS}, life=lifecycle.LifeRules(replacement=HELD))
    return reconcile(record, rules, now, WALL)


def running(name, spec=IN_GROUP):
    return make_pod(name, at=("b", "r", "n1"), node="n1", phase="Running", spec=spec)


def let_go(name, spec=IN_GROUP, **more):
    return make_pod(name, at=("b", "r", "n2"), spec=spec, **more)


def gated(name, spec=IN_GROUP, **more):
    return make_pod(name, spec=spec, **more)


def evicted(found):
    return [one for one in found if isinstance(one, i.Evict)]


def pods(spec=IN_GROUP, **more):
    """Two run, one was made again and was let go, and two more wait for room."""
    return (
        *(running("a", spec), running("b", spec)),
        *(let_go("c", spec), gated("d", spec, **more), gated("e", spec, **more)),
    )


@pytest.mark.parametrize("queue", ["", "team"])
def test_what_waits_to_grow_does_not_hold_its_group_up_for_ever(queue):
    record = world(*pods(), let_go("f"), queue=queue)
    assert i.RequeueAfter(HELD) in look(record, 100.0)
    assert i.RequeueAfter(1.0) in look(record, 100.0 + HELD - 1)
    (found,) = evicted(look(record, 100.0 + HELD))
    assert found.reason is Reason.POD_GROUP_HELD
    assert [one.type for one in found.wanted] == [EVICTED]
    assert "pod c, which has its place" in found.message
    assert "pod d of PodGroup ring waits for one" in found.message


def test_it_counts_from_when_the_pod_was_held_up():
    record = world(*pods(), let_go("f"))
    look(record, 100.0)
    record.pods["uid-c"] = running("c")
    record.pods["uid-f"] = running("f")
    assert not evicted(look(record, 100.0 + 2 * HELD)), "those that run are held up by nobody"
    record.pods["uid-c"] = let_go("c")
    assert not evicted(look(record, 101.0 + 2 * HELD))
    assert evicted(look(record, 101.0 + 3 * HELD))


@pytest.mark.parametrize(
    "those",
    [
        pods({}),  # of no group
        (*pods()[:2], let_go("c"), gated("d", {"schedulingGroup": {"podGroupName": "other"}})),
        (*pods()[:2], running("c"), gated("d"), gated("e")),  # all that have a place run
        (*pods()[:2], let_go("c", phase="Failed"), gated("d")),
        (*pods()[:2], let_go("c", terminating=True), gated("d")),
    ],
)
def test_who_holds_nobody_up_may_wait(those):
    record = world(*those)
    look(record, 100.0)
    assert not evicted(look(record, 100.0 + 2 * HELD))


def test_one_whose_patch_is_on_its_way_waits_no_more():
    record = world(*pods()[:2], let_go("c"), gated("d"))
    record.expectations["uid-d"] = Expectation(("b", "r", "n2"), 1e9)
    look(record, 100.0)
    assert not evicted(look(record, 100.0 + 2 * HELD))


def test_all_that_have_slots_are_let_go_at_one_look():
    record = world(*(gated(name) for name in "abcd"), parallelism=4)
    found = look(record, 100.0)
    assert [one.pod.metadata.name for one in found if isinstance(one, i.Ungate)] == ["a", "b", "c", "d"]


def test_it_comes_back_later_each_time():
    life = lifecycle.Life(
        key="w",
        reserved_at=1.0,
        admitted_at=1.0,
        evicted=lifecycle.Evicted(reason=str(Reason.POD_GROUP_HELD), message="m", at=50.0),
        requeues=2,
    )
    (found,) = lifecycle.decide(life, lifecycle.LifeRules(backoff=10.0), 60.0)
    assert (found.requeues, found.until) == (3, 90.0)
