"""Pods of one PodGroup of Kubernetes itself are let go together, and wait for others of it no longer than a while."""

import msgspec
import pytest
from support.owned import KEYS, context, make_admission, make_known, make_owner, make_pod, make_record, slot_map

from engine.reasons import Reason
from kube.objects import Condition
from ungater.model import actions as i
from ungater.model import life as lives
from ungater.model.conditions import ADMITTED, EVICTED, MOVING, QUOTA_RESERVED, timestamp
from ungater.model.workload_entry import Expectation
from ungater.reconcile import lifecycle
from ungater.reconcile.reconcile import reconcile

SLOTS = slot_map(("b/r/n1", 2), ("b/r/n2", 2))
WALL = 1_800_000_000.0
HELD = 300.0  # replacementTimeout
IN_GROUP = {"schedulingGroup": {"podGroupName": "ring"}}
OTHER = {"schedulingGroup": {"podGroupName": "other"}}


def said(type_):
    return Condition(type=type_, status="True", reason="x", message="m", last_transition_time=timestamp(WALL - 10))


def world(*pods, queue="", parallelism=6):
    """Six pods are wanted, four have slots."""
    owner = make_owner(parallelism=parallelism, labels={KEYS.queue_name: queue} if queue else {})
    admission = make_admission(SLOTS, queue="cq" if queue else "", count=4)
    observed = make_known(owner, admission=admission, conditions=[said(QUOTA_RESERVED), said(ADMITTED)])
    return make_record(owner, slots=SLOTS, admission=admission, observed=observed, pods=pods, started=True)


def look(record, now, strangers=(), *, wall=WALL, ready=None, dead=()):
    """Look at it once, and remember since when it is held up, as the controller does."""

    def in_group(group):
        return [
            pod
            for pod in (*record.pods.values(), *strangers)
            if f"{pod.metadata.namespace}/{pod.spec.pod_group}" == group
        ]

    life = lives.LifeRules(replacement=HELD, ready_timeout=ready)
    rules = context(life=life, in_group=in_group, dead=lambda node: node in dead)
    found = reconcile(record, rules, now, wall)
    for one in found:
        if isinstance(one, i.HoldUp):
            record.hold_up(one.since, ending=one.ending, now=wall)
    return found


def running(name, spec=IN_GROUP):
    return make_pod(name, at=("b", "r", "n1"), node="n1", phase="Running", spec=spec)


def let_go(name, spec=IN_GROUP, **more):
    return make_pod(name, at=("b", "r", "n2"), spec=spec, **more)


def gated(name, spec=IN_GROUP, **more):
    return make_pod(name, spec=spec, **more)


def goes(found):
    return [one.pod.metadata.name for one in found if isinstance(one, i.Ungate)]


def evicted(found):
    return [one for one in found if isinstance(one, i.Evict)]


def growing(spec=IN_GROUP):
    """Three run, and three wait for the slot of one that went."""
    return [*(running(name, spec) for name in "abc"), *(gated(name, spec) for name in "def")]


def test_all_that_have_slots_are_let_go_at_one_look():
    assert goes(look(world(*(gated(name) for name in "abcd"), parallelism=4), 100.0)) == ["a", "b", "c", "d"]


def test_none_goes_while_another_of_its_group_has_no_slot():
    assert goes(look(world(*growing()), 100.0)) == []
    assert goes(look(world(*growing({})), 100.0)) == ["d"], "of no group each goes by itself"


def test_other_groups_and_workloads_count_by_their_group_alone():
    four = [gated(name) for name in "abcd"]
    stranger = gated("stranger")
    assert goes(look(world(*four, parallelism=4), 100.0, [stranger])) == []
    assert goes(look(world(*four, parallelism=4), 100.0, [gated("stranger", OTHER)])) == ["a", "b", "c", "d"]
    leaving = gated("stranger", terminating=True)
    assert goes(look(world(*four, parallelism=4), 100.0, [leaving])) == [], "its end would wake nobody"


def test_one_whose_patch_is_on_its_way_is_sent_again_and_holds_nobody_up():
    record = world(gated("a"), gated("b"), running("c"), running("d"), parallelism=4)
    record.expectations["uid-a"] = Expectation(("b", "r", "n2"), 50.0)
    assert goes(look(record, 100.0)) == ["a", "b"]
    record = world(*growing(), parallelism=6)
    record.expectations["uid-d"] = Expectation(("b", "r", "n2"), 50.0)
    assert goes(look(record, 100.0)) == ["d"], "it may be let go already"


@pytest.mark.parametrize("queue", ["", "team"])
def test_what_waits_to_grow_does_not_hold_its_group_up_for_ever(queue):
    record = world(*growing(), queue=queue)
    assert {i.HoldUp(since=100.0), i.RequeueAfter(HELD)} <= set(filter(_hashable, look(record, 100.0)))
    assert i.RequeueAfter(1.0) in look(record, 100.0 + HELD - 1)
    (found,) = evicted(look(record, 100.0 + HELD))
    assert found.reason is Reason.POD_GROUP_HELD
    assert [one.type for one in found.wanted] == [EVICTED]
    assert "pod d has a place" in found.message
    assert "for pod e of PodGroup ring, which has none" in found.message


def _hashable(one):
    return isinstance(one, (i.HoldUp, i.RequeueAfter))


def test_pods_that_came_after_the_others_were_let_go_hold_them_up_too():
    record = world(running("a"), running("b"), let_go("c"), let_go("d"), gated("e"))
    look(record, 100.0)
    (found,) = evicted(look(record, 100.0 + HELD))
    assert "pod c has a place" in found.message


def test_it_counts_from_when_a_pod_was_held_up():
    record = world(running("a"), running("b"), running("c"), let_go("d"), gated("e"))
    look(record, 100.0)
    record.pods["uid-d"] = running("d")
    assert i.HoldUp(since=None) in look(record, 100.0 + 2 * HELD), "those that run are held up by nobody"
    record.pods["uid-d"] = let_go("d")
    assert not evicted(look(record, 101.0 + 2 * HELD))
    assert evicted(look(record, 101.0 + 3 * HELD))


@pytest.mark.parametrize(
    "those",
    [
        (running("a"), let_go("b", {}), gated("c", {})),  # of no group
        (running("a"), let_go("b"), gated("c", OTHER)),
        (*(running(name) for name in "abc"), running("d"), gated("e"), gated("f")),  # all that have a place run
    ],
)
def test_who_holds_nobody_up_may_wait(those):
    record = world(*those)
    look(record, 100.0)
    assert not evicted(look(record, 100.0 + 2 * HELD))


def test_pods_of_one_that_is_moved_wait_for_those_that_end():
    """However long these take to stop: evicted, all of it would lose the places that it is moved to."""
    old = make_pod("old", at=("b", "r", "n9"), node="n9", phase="Running", spec=IN_GROUP, terminating=True)
    record = world(*(gated(name) for name in "abcd"), old, parallelism=4)
    record.observe(msgspec.structs.replace(record.observed, conditions=(*record.observed.conditions, said(MOVING))))
    assert goes(look(record, 100.0)) == [], "the old one has one of the four places yet"
    late = look(record, 101.0 + HELD)
    assert (evicted(late), goes(late)) == ([], [])
    assert all(one.after > 0 for one in late if isinstance(one, i.RequeueAfter))
    del record.pods["uid-old"]
    assert goes(look(record, 102.0 + HELD)) == ["a", "b", "c", "d"]


# -- pods that end: kube-scheduler 1.37 counts them to their group as long as they have a node ------------------------


def ends(name="old", spec=IN_GROUP, **more):
    return make_pod(name, at=("b", "r", "n9"), node="n9", phase="Running", spec=spec, terminating=True, **more)


@pytest.mark.parametrize("own", [True, False])
def test_new_pods_of_a_group_stay_gated_until_no_pod_of_it_that_ends_has_a_node(own):
    """Seen on 1.37.1: bound 52 s later where there is a level; without one, one of four was bound, alone."""
    four = [gated(name) for name in "abcd"]
    record = world(*four, *([ends()] if own else ()), parallelism=4)
    strangers = () if own else [ends()]
    first = look(record, 100.0, strangers)
    assert goes(first) == []
    (told,) = [one for one in first if isinstance(one, i.EmitEvent)]
    assert "until pod old on node n9 has ended: kube-scheduler still counts that pod in PodGroup ring" in told.message
    late = look(record, 101.0 + 2 * HELD, strangers)
    assert (goes(late), evicted(late)) == ([], []), "however long its grace period is"
    record.pods.pop("uid-old", None)
    assert goes(look(record, 102.0 + 2 * HELD)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "other", [ends(spec=OTHER), make_pod("old", spec=IN_GROUP, phase="Failed", node="n9", terminating=True)]
)
def test_pods_that_end_in_another_group_or_have_ended_keep_nobody_gated(other):
    four = [gated(name) for name in "abcd"]
    assert goes(look(world(*four, parallelism=4), 100.0, [other])) == ["a", "b", "c", "d"]


def test_a_pod_that_nobody_ends_is_not_waited_for():
    assert goes(look(world(*(gated(name) for name in "abcd"), parallelism=4), 100.0, [ends()], dead=["n9"]))


def test_the_ready_timeout_starts_when_the_last_pod_of_the_group_has_ended():
    record = world(*(gated(name) for name in "abcd"), queue="team", parallelism=4)
    start = WALL + 1000.0
    for wall in (WALL, start):
        assert not evicted(look(record, wall - WALL, [ends()], wall=wall, ready=300.0)), "late for nobody"
    assert goes(look(record, 1001.0, wall=start + 1, ready=300.0)) == ["a", "b", "c", "d"]
    for name in "abcd":
        record.pods[f"uid-{name}"] = let_go(name)
    assert not evicted(look(record, 1299.0, wall=start + 299, ready=300.0))
    (found,) = evicted(look(record, 1302.0, wall=start + 302, ready=300.0))
    assert found.reason is Reason.PODS_READY_TIMEOUT


def test_it_comes_back_later_each_time():
    life = lives.Life(
        reserved_at=1.0,
        admitted_at=1.0,
        evicted=lives.Evicted(reason=str(Reason.POD_GROUP_HELD), message="m", at=50.0),
        requeues=2,
    )
    (found,) = lifecycle.live_on(life, lives.LifeRules(backoff=10.0), 60.0)
    assert (found.requeues, found.until) == (3, 90.0)
