"""Budgets of disruption, known before a plan is made: who could not be evicted is not chosen."""

import pytest
from support.queue_factories import make_queue, make_queues, make_state, make_workload, run, submit

from engine.reasons import Reason
from queueing.model import Preemption, Reclaim, Rules, Within
from queueing.queues.pdb import Budgets

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
    queues.budgets.set_selected("w3", {"keep": 1})
    assert planned(state, queues) == ["w2"]


def test_a_budget_that_allows_it_changes_nothing(full):
    state, queues = full
    queues.budgets.allow("keep", 1)
    queues.budgets.set_selected("w3", {"keep": 1})
    assert planned(state, queues) == ["w3"]


def test_several_victims_share_a_budget(full):
    state, queues = full
    queues.budgets.allow("share", 1)
    for key in ("w3", "w2"):
        queues.budgets.set_selected(key, {"share": 1})
    assert planned(state, queues, 2) == ["w1", "w3"]


def test_those_who_go_already_have_used_their_budget(full):
    state, queues = full
    queues.budgets.allow("share", 1)
    for key in ("w3", "w2"):
        queues.budgets.set_selected(key, {"share": 1})
    assert planned(state, queues) == ["w3"]
    submit(queues, make_workload("more", priority=9, created=10.0))
    assert [victim.key for plan in run(state, queues).preempting for victim in plan.victims] == ["w1"]


def test_where_budgets_keep_all_it_waits_until_one_lets_go(full):
    state, queues = full
    for number in range(4):
        queues.budgets.set_selected(f"w{number}", {"keep": 1})
    assert planned(state, queues) == []
    assert queues.budgets.allow("keep", 1)
    queues.pending.room_freed(["tas"])
    found = run(state, queues)
    assert [victim.key for plan in found.preempting for victim in plan.victims] == ["w3"]


def test_what_is_told_of_budgets_and_holders():
    budgets = Budgets()
    assert not budgets.set_selected("a", {"one": 2})
    assert list(budgets.guarded) == ["a"]  # a budget that nobody told of allows nothing
    assert budgets.allow("one", 2)
    assert not budgets.allow("one", 2)
    assert list(budgets.guarded) == []
    assert not budgets.allow("one", 1)
    assert list(budgets.guarded) == ["a"]
    assert budgets.set_selected("a", {})
    budgets.remove_budget("one")
    assert list(budgets.guarded) == []
    assert budgets.exceeded_budget([(1, "a")]) is None


# --- what was borrowed -----------------------------------------------------------------------------------------------


def borrowed(*, override=True, fair=False, **mine):
    """Two queues of two machines each, of which the other borrows one, and a budget that lets nobody of it go."""
    own = make_queue("own", 16, cohort="c", preemption=Preemption(reclaim=Reclaim.ANY, **mine))
    queues = make_queues(own, make_queue("other", 16, cohort="c"), rules=Rules(override=override, fair=fair))
    state = make_state(1, 4)
    submit(queues, *(make_workload(f"b{i}", queue="other", created=float(i)) for i in range(3)))
    run(state, queues)
    for number in range(3):
        queues.budgets.set_selected(f"b{number}", {"keep": 1})
    submit(queues, make_workload("first", queue="own", priority=1, created=5.0))
    run(state, queues)
    return state, queues


def whom(decisions):
    return {victim.key: victim.reason for plan in decisions.preempting for victim in plan.victims}


@pytest.mark.parametrize("fair", [False, True])
def test_a_budget_keeps_nobody_from_taking_back_its_nominal_quota(fair):
    state, queues = borrowed(fair=fair)
    submit(queues, make_workload("mine", queue="own", created=9.0))
    assert whom(run(state, queues)) == {"b2": Reason.RECLAIMED}


def test_but_where_the_rules_do_not_say_so():
    state, queues = borrowed(override=False)
    submit(queues, make_workload("mine", queue="own", created=9.0))
    assert whom(run(state, queues)) == {}


def test_those_whom_no_budget_keeps_go_first():
    state, queues = borrowed()
    queues.budgets.set_selected("b0", {})
    submit(queues, make_workload("mine", queue="own", created=9.0))
    assert whom(run(state, queues)) == {"b0": Reason.RECLAIMED}


def test_one_who_was_spared_goes_too():
    state, queues = borrowed()
    for number in range(3):
        queues.budgets.set_selected(f"b{number}", {})
        queues.spare_until(f"b{number}", 1e9)
    submit(queues, make_workload("mine", queue="own", created=9.0))
    assert whom(run(state, queues)) == {"b2": Reason.RECLAIMED}


def test_budgets_hold_for_who_would_borrow_itself_and_within_a_queue():
    state, queues = borrowed(borrowing=True)
    submit(queues, make_workload("large", queue="own", count=2, priority=5, created=9.0))
    assert whom(run(state, queues)) == {}, "with what it has, two machines more are above its nominal quota"
    state, queues = borrowed(within=Within.LOWER)
    queues.budgets.set_selected("first", {"keep": 1})
    for number in range(3):
        queues.remove_workload(state, f"b{number}")
    submit(queues, make_workload("high", queue="own", count=4, priority=5, created=9.0))
    assert whom(run(state, queues)) == {}, "the budget of its own queue's workload counts"
