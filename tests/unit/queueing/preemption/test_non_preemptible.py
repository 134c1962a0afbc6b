"""Nobody's victim: what a class or a workload may say of that, and that nobody keeps more than its queue's own by it.

Queues here have quota of GPUs; each pod of 8 takes a node.
"""

import msgspec
import pytest
from support.queue_factories import GPU, keys, make_queue, make_queues, make_state, make_workload, run, submit

from queueing.cycle.cycle import cycle
from queueing.cycle.elastic import resize
from queueing.explain import explain
from queueing.model import NonPreemptible, Preemption, Reclaim, Rules, Within
from queueing.queues.entry import Phase
from queueing.queues.held import Held
from queueing.queues.quota import Quotas

BY_CLASS, BY_WORKLOAD, NEVER = NonPreemptible.BY_CLASS, NonPreemptible.BY_WORKLOAD, NonPreemptible.NEVER
LOWER = Preemption(within=Within.LOWER)


def victims(decisions):
    return {one.key: {victim.key for victim in one.victims} for one in decisions.preempting}


def reason(decisions, key):
    return next(f"{one.reason}: {one.message}" for one in decisions.waiting if one.key == key)


def cohort(*, nominal=16, said=BY_CLASS, rules=None, racks=2, **more):
    """Two queues of one cohort, each with half of the nodes; both take back what is theirs."""
    both = Preemption(within=Within.LOWER, reclaim=Reclaim.ANY, non_preemptible=said)
    made = [make_queue(name, nominal, cohort="all", preemption=both, **more) for name in ("a", "b")]
    return make_state(racks, 2), make_queues(*made, rules=rules)


def settled(state, queues):
    run(state, queues)
    cycle(state, queues, 2.0)  # those that were admitted may be victims now


@pytest.mark.parametrize(
    ("says", "believed", "spared"),
    [
        (NEVER, BY_WORKLOAD, False),
        (BY_CLASS, NEVER, False),
        (BY_CLASS, BY_CLASS, True),
        (BY_CLASS, BY_WORKLOAD, True),
        (BY_WORKLOAD, NEVER, False),
        (BY_WORKLOAD, BY_CLASS, False),
        (BY_WORKLOAD, BY_WORKLOAD, True),
    ],
)
def test_who_is_believed_to_be_nobodys_victim_is_for_the_queue_to_say(says, believed, spared):
    policy = msgspec.structs.replace(LOWER, non_preemptible=believed)
    state, queues = make_state(1, 1), make_queues(make_queue("q", 8, preemption=policy))
    submit(queues, make_workload("low", non_preemptible=says))
    settled(state, queues)
    submit(queues, make_workload("high", priority=9, created=1.0))
    assert victims(run(state, queues)) == ({} if spared else {"high": {"low"}})


def test_another_goes_instead_though_it_is_more_important():
    state, queues = make_state(1, 2), make_queues(make_queue("q", 16, preemption=LOWER))
    submit(queues, make_workload("kept", non_preemptible=BY_CLASS), make_workload("other", priority=5))
    settled(state, queues)
    submit(queues, make_workload("high", priority=9, created=1.0))
    assert victims(run(state, queues)) == {"high": {"other"}}


@pytest.mark.parametrize("fair", [False, True])
def test_no_queue_of_the_cohort_takes_one_that_holds_what_is_its_queues_own(fair):
    state, queues = cohort(rules=Rules(fair=fair))
    submit(queues, make_workload("kept", "a", 2, non_preemptible=BY_CLASS), make_workload("lent", "a", 1, created=1.0))
    settled(state, queues)
    submit(queues, make_workload("back", "b", 2, priority=9, created=2.0))
    assert victims(run(state, queues)) == {"back": {"lent"}}


def test_one_that_is_nobodys_victim_may_not_borrow():
    """Else whoever borrows could make it its own by naming a class."""
    state, queues = cohort()
    submit(queues, make_workload("large", "a", 3, level=None, non_preemptible=BY_CLASS))
    assert "ExceedsQuota" in (told := reason(run(state, queues), "large"))
    assert "at most 16 possible for a non-preemptible workload, which may not borrow" in told
    submit(queues, *(make_workload(f"w{i}", "a", created=1.0 + i, non_preemptible=BY_CLASS) for i in range(3)))
    found = run(state, queues)
    assert keys(found) == ["w0", "w1"]
    assert "InsufficientQuota" in (told := reason(found, "w2"))
    assert "16 of it for non-preemptible workloads, which may not borrow" in told
    submit(queues, make_workload("mortal", "a", created=9.0))
    assert keys(run(state, queues)) == ["mortal"]
    queues.remove_workload(state, "w0")
    assert keys(run(state, queues)) == ["w2"]


def test_one_that_is_nobodys_victim_comes_within_the_nominal_quota_though_others_of_its_queue_borrow():
    """What they borrow is theirs to give back, not its."""
    state, queues = cohort(racks=3)
    submit(queues, make_workload("lent", "a", 3, level=None))
    settled(state, queues)
    submit(queues, make_workload("kept", "a", created=1.0, non_preemptible=BY_CLASS))
    settled(state, queues)
    assert queues.entries["kept"].phase is Phase.ADMITTED
    submit(queues, make_workload("back", "b", 2, created=2.0))
    assert victims(run(state, queues)) == {"back": {"lent"}}


def test_naming_the_class_while_it_runs_keeps_nobody_elses_quota():
    state, queues = cohort()
    borrowers = [make_workload(f"w{i}", "a", created=float(i)) for i in range(4)]
    submit(queues, *borrowers)
    settled(state, queues)
    submit(queues, *(msgspec.structs.replace(one, non_preemptible=BY_CLASS) for one in borrowers))
    submit(queues, make_workload("back", "b", 2, level=None, created=9.0))
    (plan,) = run(state, queues).preempting
    assert {victim.key for victim in plan.victims} == {"w2", "w3"}, "the newest, and no more than are overheld"


def test_a_quota_that_was_lowered_is_no_longer_kept():
    state, queues = cohort()
    submit(queues, *(make_workload(f"w{i}", "a", created=float(i), non_preemptible=BY_CLASS) for i in range(2)))
    settled(state, queues)
    submit(queues, make_workload("first", "b", 2, created=2.0), make_workload("back", "b", 1, created=3.0))
    settled(state, queues)
    assert queues.entries["back"].phase is Phase.WAITING
    both = queues.quotas.queues["a"].preemption
    queues.set_cluster_queue(make_queue("a", 8, cohort="all", preemption=both))
    queues.set_cluster_queue(make_queue("b", 24, cohort="all", preemption=both))
    assert victims(run(state, queues)) == {"back": {"w1"}}


def test_it_is_nobodys_victim_as_soon_as_its_queue_says_so_and_no_longer():
    state, queues = make_state(1, 1), make_queues(make_queue("q", 8, preemption=LOWER))
    submit(queues, make_workload("low", non_preemptible=BY_WORKLOAD))
    settled(state, queues)
    believing = msgspec.structs.replace(LOWER, non_preemptible=BY_WORKLOAD)
    queues.set_cluster_queue(make_queue("q", 8, preemption=believing))
    submit(queues, make_workload("high", priority=9, created=1.0))
    assert victims(run(state, queues)) == {}
    queues.set_cluster_queue(make_queue("q", 8, preemption=LOWER))
    assert victims(run(state, queues)) == {"high": {"low"}}


def test_growth_of_one_that_is_nobodys_victim_does_not_borrow():
    state, queues = cohort()
    submit(queues, make_workload("w", "a", 1, level=None, non_preemptible=BY_CLASS))
    settled(state, queues)
    wanted = make_workload("w", "a", 3, level=None, non_preemptible=BY_CLASS)
    submit(queues, wanted)
    assert "which may not borrow" in resize(state, queues, "w", {"main": 3}).message
    assert resize(state, queues, "w", {"main": 2}).counts == {"main": 2}


def test_after_a_restart_the_same_are_nobodys_victims():
    state, queues = cohort()
    kept = make_workload("kept", "a", 2, non_preemptible=BY_CLASS)
    submit(queues, kept)
    settled(state, queues)
    again, (_, fresh) = make_state(2, 2), cohort()
    fresh.restore_workload(again, kept, queues.entries["kept"].grant, 3.0)
    submit(fresh, make_workload("high", "a", 2, priority=9, created=4.0), make_workload("next", "a", 1, created=5.0))
    found = run(again, fresh)
    assert victims(found) == {}
    assert fresh.holders.non_preemptible.keys() == {"kept"}


def test_what_may_be_taken_is_told_of_one_that_may_not_borrow():
    state, queues = cohort()
    asks = make_workload("w", "a", 1)
    (mortal,) = explain(state, queues, "a", asks)
    (kept,) = explain(state, queues, "a", msgspec.structs.replace(asks, non_preemptible=BY_CLASS))
    assert [(fit.left, fit.most) for fit in mortal.quotas] == [(32, 32)]
    assert [(fit.left, fit.most) for fit in kept.quotas] == [(16, 16)]


def test_amounts_of_those_that_stay_follow_every_change_and_every_roll_back():
    quotas, key = Quotas(), ("tas", GPU)
    quotas.set_queue(make_queue("q", 8))
    quotas.charge_workload("w", Held("q", {key: 12}, non_preemptible=True))
    assert quotas.overheld("q", key) == 4
    depth = quotas.begin()
    quotas.mark_leaving("w")
    assert quotas.overheld("q", key) == 0
    quotas.free_all(["w"])
    quotas.charge_workload("v", Held("q", {key: 9}, non_preemptible=True))
    assert quotas.overheld("q", key) == 1
    quotas.rollback(depth)
    assert quotas.overheld("q", key) == 4
    quotas.release_quota("w")
    assert quotas.overheld("q", key) == 0


def test_limits_are_those_of_one_that_may_borrow_or_may_not():
    _, queues = cohort()
    submit(queues, make_workload("kept", "a", non_preemptible=BY_CLASS), make_workload("mortal", "a"))
    kept, mortal = (queues.limits(queues.entries[name]) for name in ("kept", "mortal"))
    key = "tas", GPU
    assert (kept.most(key), kept.amount_left(key), mortal.most(key), mortal.amount_left(key)) == (16, 16, 32, 32)
    amounts = {key: 17}
    assert (kept.ever(amounts), kept.fits_limits(amounts), len(kept.missing_quota(amounts))) == (False, False, 1)
    assert (mortal.ever(amounts), mortal.fits_limits(amounts), mortal.missing_quota(amounts)) == (True, True, ())


# --- who has nobody evicted ----------------------------------------------------------------------------------------


def test_one_that_preempts_nobody_waits_and_has_no_victims():
    state, queues = make_state(1, 1), make_queues(make_queue("q", 8, preemption=LOWER))
    submit(queues, make_workload("low"))
    settled(state, queues)
    submit(queues, make_workload("meek", priority=9, created=1.0, preempts=False))
    found = run(state, queues)
    assert (victims(found), queues.searches) == ({}, 0)
    assert "InsufficientQuota" in reason(found, "meek")
    submit(queues, make_workload("high", priority=5, created=2.0))
    assert victims(run(state, queues)) == {"high": {"low"}}, "it is of another class than the one before it"
    queues.remove_workload(state, "low")
    assert keys(run(state, queues)) == ["high"]


def test_one_that_preempts_nobody_takes_back_nothing_either():
    state, queues = cohort()
    submit(queues, make_workload("lent", "a", 4, level=None))
    settled(state, queues)
    submit(queues, make_workload("meek", "b", 2, created=1.0, preempts=False))
    assert victims(run(state, queues)) == {}
    queues.remove_workload(state, "lent")
    assert keys(run(state, queues)) == ["meek"]
