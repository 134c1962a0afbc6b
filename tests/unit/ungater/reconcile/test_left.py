"""Pods that left their workload, as a ReplicaSet lets go those that do not match any more, keep their places there."""

from support.owned import KEYS, context, make_admission, make_known, make_owner, make_pod, make_record, slot_map

from engine.reasons import Reason
from ungater.model import actions as i
from ungater.reconcile.reconcile import reconcile

SLOTS = slot_map(("b/r/n1", 1), ("b/r/n2", 1))
RULES = context()


def at(node):
    return make_pod(f"at-{node}", at=("b", "r", node), node=node, phase="Running")


def waiting(count):
    return [make_pod(f"new-{number}", created=f"2026-11-21T00:01:0{number}Z") for number in range(count)]


def record(*pods, left=(), slots=SLOTS):
    owner = make_owner(parallelism=2)
    admission = make_admission(slots, queue="" if slots is not None else "q", count=2)
    made = make_record(
        owner,
        slots=slots,
        admission=admission,
        observed=make_known(owner, admission=admission),
        pods=pods,
        started=True,
    )
    made.left = {pod.metadata.uid: ("main", pod) for pod in left}
    return made


def ungated(made):
    return sorted(one.pod.metadata.name for one in reconcile(made, RULES, 1.0) if isinstance(one, i.Ungate))


def test_the_place_of_one_that_left_is_given_to_nobody():
    assert ungated(record(at("n1"), *waiting(1), left=[at("n2")])) == []
    assert ungated(record(*waiting(2), left=[at("n1"), at("n2")])) == []
    assert ungated(record(*waiting(2), left=[at("n2")])) == ["new-0"]
    assert ungated(record(at("n1"), *waiting(1))) == ["new-0"]


def test_one_that_left_for_what_is_no_slot_any_more_keeps_a_place_all_the_same():
    assert ungated(record(*waiting(2), left=[at("n9")])) == ["new-0"]


def test_those_that_wait_for_it_are_told():
    (told,) = [
        one
        for one in reconcile(record(at("n1"), *waiting(1), left=[at("n2")]), RULES, 1.0)
        if isinstance(one, i.WriteConditions)
    ]
    assert told.wanted[0].reason is Reason.SLOT_OCCUPIED


def test_a_pod_set_has_a_place_for_those_that_left_as_long_as_fewer_run_than_are_admitted():
    assert record(at("n1"), *waiting(1)).has_place("main", KEYS.gate)
    assert not record(at("n1"), at("n2")).has_place("main", KEYS.gate)
    assert not record(at("n1"), left=[at("n2")]).has_place("main", KEYS.gate)
    assert not record(at("n1")).has_place("other", KEYS.gate)


def test_one_that_has_no_slot_any_more_and_takes_long_to_end_keeps_a_place_until_it_is_gone():
    slow = make_pod("slow", at=("b", "r", "n9"), node="n9", phase="Running", terminating=True)
    assert ungated(record(slow, *waiting(2))) == ["new-0"]
    assert ungated(record(*waiting(2))) == ["new-0", "new-1"]


def test_one_that_has_no_slot_and_is_about_to_be_deleted_keeps_a_place_until_that_is_seen():
    astray = make_pod("astray", at=("b", "r", "n9"), node="n9", phase="Running")
    made = record(astray, *waiting(2))
    assert ungated(made) == ["new-0"]
    deleted = [one.pod.metadata.name for one in reconcile(made, RULES, 1.0) if isinstance(one, i.Delete)]
    assert deleted == ["astray"]


def test_those_that_are_too_many_in_their_slice_keep_the_places_of_others():
    crowd = [make_pod(f"crowd-{number}", at=("b", "r", "n1"), node="n1", phase="Running") for number in range(2)]
    assert ungated(record(*crowd, *waiting(1))) == []
