"""One look at a workload in a tree of cohorts: circles, flavors by how high up they borrow, claims, what wakes whom."""

import pytest
from support.queue_factories import (
    GPU,
    HOST,
    keys,
    make_cohort,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from engine.reasons import Reason
from queueing.cycle.cycle import cycle
from queueing.model import Preemption, Reclaim, Rules

KEY = ("tas", GPU)


def in_circle(**more):
    """Queues a and b below cohorts one and two, of which only two has a parent yet."""
    queues = make_queues(make_queue("a", 16, cohort="one", **more), make_queue("b", 16, cohort="two"))
    queues.set_cohort(make_cohort("one"))
    queues.set_cohort(make_cohort("two", 0, "one"))
    return queues


def close_circle(queues):
    queues.set_cohort(make_cohort("one", 0, "two"))


def test_below_a_circle_nothing_is_admitted_and_what_runs_stays():
    state, queues = make_state(), in_circle()
    submit(queues, make_workload("runs", "a"))
    run(state, queues)
    close_circle(queues)
    submit(queues, make_workload("first", "a", created=1.0), make_workload("other", "b", created=1.0))
    made = run(state, queues, 2.0)
    assert (keys(made), made.evict, {one.reason for one in made.waiting}) == ([], [], {Reason.COHORT_CYCLE})
    assert queues.quotas.used("a", KEY) == 8
    assert run(state, queues, 3.0).waiting == []  # told once, and looked at no more
    queues.set_cohort(make_cohort("one"))
    assert sorted(keys(run(state, queues, 4.0))) == ["first", "other"]


def test_a_circle_does_not_hold_up_a_queue_by_its_first():
    # Aside as one that can never run: when the circle is mended all of them are looked at in their order.
    state, queues = make_state(), in_circle(strict=True)
    close_circle(queues)
    submit(queues, make_workload("first", "a", gpu=8), make_workload("second", "a", gpu=4, created=1.0))
    assert {one.reason for one in run(state, queues).waiting} == {Reason.COHORT_CYCLE}
    assert all(group.aside for group in queues.pending.lines["a"].groups.values())


def test_below_a_circle_nothing_grows():
    state, queues = make_state(), in_circle()
    submit(queues, make_workload("service", "a", level=HOST, gpu=4))
    run(state, queues)
    close_circle(queues)
    queues.wish("service", {"main": 2})
    assert cycle(state, queues, 2.0).resized == []
    assert queues.entries["service"].refusal.reason is Reason.COHORT_CYCLE
    queues.set_cohort(make_cohort("one"))
    assert [one.key for one in cycle(state, queues, 3.0).resized] == ["service"]


def test_a_preemptor_whose_cohort_comes_into_a_circle_gives_up_what_was_freed_for_it():
    state = make_state(1, 1)
    reclaims = Preemption(reclaim=Reclaim.ANY)
    queues = make_queues(make_queue("a", 8, cohort="one", preemption=reclaims), make_queue("b", 0, cohort="one"))
    submit(queues, make_workload("victim", "b"))
    run(state, queues)
    submit(queues, make_workload("owner", "a", created=1.0))
    assert [one.key for one in run(state, queues, 2.0).preempting] == ["owner"]
    queues.set_cohort(make_cohort("one", 0, "one"))
    queues.remove_workload(state, "victim")
    made = run(state, queues, 3.0)
    assert (keys(made), queues.quotas.used("a", KEY)) == ([], 0)
    queues.remove_cohort("one")
    assert keys(run(state, queues, 4.0)) == ["owner"]


@pytest.mark.parametrize(("borrow_first", "flavor"), [(False, "old"), (True, "tas")])
def test_flavors_by_level(borrow_first, flavor):
    # Of two flavors in which it borrows, the one whose quota is further down, unless whenCanBorrow is MayStopSearch.
    state = make_state(1, 1, flavors=("tas", "old"))
    queues = make_queues(
        make_queue("q", {"tas": 0, "old": 0}, cohort="near", borrow_first=borrow_first),
        make_queue("beside", {"tas": 0, "old": 8}, cohort="near"),
        make_queue("far", {"tas": 8, "old": 8}, cohort="org"),
    )
    queues.set_cohort(make_cohort("near", 0, "org"))
    submit(queues, make_workload("w"))
    run(state, queues)
    assert queues.entries["w"].grant.amounts == {(flavor, GPU): 8}


@pytest.mark.parametrize(("limit", "elsewhere"), [(8, ["q3"]), (None, [])])
def test_one_who_is_stopped_by_the_limit_of_a_cohort_keeps_quota_from_those_below_it_alone(limit, elsewhere):
    state = make_state(2, 2)
    queues = make_queues(
        make_queue("q1", 0, cohort="team"),
        make_queue("q2", 0, cohort="team"),
        make_queue("q3", 0, cohort="org"),
        rules=Rules(patience=10.0, hold=10.0),
    )
    queues.set_cohort(make_cohort("org", 16))
    queues.set_cohort(make_cohort("team", 0, "org", borrowing=limit))
    submit(queues, make_workload("runs", "q1", gpu=4), make_workload("beside", "q3", gpu=4 if limit else 8))
    assert keys(run(state, queues)) == ["beside", "runs"]
    submit(queues, make_workload("waits", "q1", gpu=8))
    assert keys(run(state, queues)) == []
    assert keys(run(state, queues, 20.0)) == []
    assert set(queues.claims) == {"waits"}
    submit(queues, *(make_workload(name, name, gpu=2, created=21.0) for name in ("q2", "q3")))
    made = run(state, queues, 22.0)
    assert keys(made) == elsewhere
    assert {one.key: one.reason for one in made.waiting}["q2"] is Reason.BEHIND_OTHERS


def test_who_may_take_back_is_woken_by_one_who_makes_a_cohort_exceed_its_quota_though_its_queue_does_not():
    state = make_state(2, 2)
    reclaims = Preemption(reclaim=Reclaim.ANY)
    queues = make_queues(
        make_queue("lends", 8, cohort="team"),
        make_queue("borrows", 0, cohort="team"),
        make_queue("owner", 16, cohort="org", preemption=reclaims),
    )
    queues.set_cohort(make_cohort("team", 0, "org"))
    submit(queues, make_workload("one", "borrows"), make_workload("two", "lends", created=1.0))
    run(state, queues)
    took = {name: list(queues.pending.helped_by_grant(queues.entries[name].grant)) for name in ("one", "two")}
    assert ("borrow", "cohort org") in took["one"]
    queues.remove_workload(state, "one")
    assert ("borrow", "cohort org") not in list(queues.pending.helped_by_grant(queues.entries["two"].grant))
    submit(queues, make_workload("three", "borrows", created=2.0))
    run(state, queues)
    # Team uses 16 of its 8 now, whoever of it took the last of them.
    assert ("borrow", "cohort org") in list(queues.pending.helped_by_grant(queues.entries["two"].grant))
