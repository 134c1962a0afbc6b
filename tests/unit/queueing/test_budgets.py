"""Budgets of disruption, known before a plan is made: who could not be evicted is not chosen."""

import pytest
from queue_factories import make_queue, make_queues, make_state, make_workload, run, submit

from queueing.budgets import Budgets
from queueing.model import Preemption, Within

LOWER = Preemption(within=Within.LOWER)


@pytest.fixture
def full():
    """Four machines with a workload each, the later ones less important."""
    state, queues = make_state(1, 4), make_queues(make_queue("q", 32, preemption=LOWER))
    submit(queues, *(make_workload(f"w{i}", created=float(i), priority=3 - i) for i in range(4)))
    run(state, queues)
    return state, queues


def planned(state, queues, pods=1):
    """Whom a workload of high priority makes go, each time anew."""
    submit(queues, make_workload("high", count=pods, priority=9, created=9.0))
    found = run(state, queues)
    return sorted(victim.key for plan in found.preempting for victim in plan.victims)


def test_whom_a_budget_keeps_is_no_victim_and_the_next_one_is(full):
    state, queues = full
    queues.budgets.allow("keep", 0)
    queues.budgets.take("w3", {"keep": 1})
    assert planned(state, queues) == ["w2"]


def test_a_budget_that_allows_it_changes_nothing(full):
    state, queues = full
    queues.budgets.allow("keep", 1)
    queues.budgets.take("w3", {"keep": 1})
    assert planned(state, queues) == ["w3"]


def test_several_victims_share_a_budget(full):
    state, queues = full
    queues.budgets.allow("share", 1)
    for key in ("w3", "w2"):
        queues.budgets.take(key, {"share": 1})
    assert planned(state, queues, 2) == ["w1", "w3"]


def test_those_who_go_already_have_used_their_budget(full):
    state, queues = full
    queues.budgets.allow("share", 1)
    for key in ("w3", "w2"):
        queues.budgets.take(key, {"share": 1})
    assert planned(state, queues) == ["w3"]
    submit(queues, make_workload("more", priority=9, created=10.0))
    assert [victim.key for plan in run(state, queues).preempting for victim in plan.victims] == ["w1"]


def test_where_budgets_keep_all_it_waits_until_one_lets_go(full):
    state, queues = full
    for number in range(4):
        queues.budgets.take(f"w{number}", {"keep": 1})
    assert planned(state, queues) == []
    assert queues.budgets.allow("keep", 1)
    queues.freed(["tas"])
    found = run(state, queues)
    assert [victim.key for plan in found.preempting for victim in plan.victims] == ["w3"]


def test_what_is_told_of_budgets_and_holders():
    budgets = Budgets()
    assert not budgets.take("a", {"one": 2})
    assert list(budgets.guarded) == ["a"]  # a budget that nobody told of allows nothing
    assert budgets.allow("one", 2)
    assert not budgets.allow("one", 2)
    assert list(budgets.guarded) == []
    assert not budgets.allow("one", 1)
    assert list(budgets.guarded) == ["a"]
    assert budgets.take("a", {})
    budgets.forget("one")
    assert list(budgets.guarded) == []
    assert budgets.over([(1, "a")]) is None
