"""Whose turn it is in a tree of cohorts: by how high up a workload would borrow, and by shares with fair sharing."""

from support.queue_factories import (
    GPU,
    keys,
    make_cohort,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from queueing.model import Rules
from queueing.queues.held import Held

KEY = ("tas", GPU)


def test_the_nearest_quota_goes_first():
    # As Kueue 0.19.2 sorts (scheduler.go, makeClassicalIterator): the height of the lowest subtree that has the quota
    # comes before priority.
    state = make_state(1, 1)
    queues = make_queues(
        make_queue("own", 8, cohort="near"),
        make_queue("within", 0, cohort="near"),
        make_queue("far", 0, cohort="empty"),
    )
    for name in ("near", "empty"):
        queues.set_cohort(make_cohort(name, 0, "org"))
    work = [("within", 1), ("far", 2), ("own", 0)]
    submit(queues, *(make_workload(name, name, gpu=4, priority=priority) for name, priority in work))
    ranks = {name: queues.rank_of_entry(queues.entries[name], {KEY: 4}).level for name, _ in work}
    assert ranks == {"own": 0, "within": 1, "far": 2}
    assert keys(run(state, queues)) == ["own", "within"]


def test_one_behind_the_first_that_borrows_less_high_up_brings_its_queue_forward():
    state = make_state(1, 1)
    queues = make_queues(make_queue("a", 0, cohort="near"), make_queue("b", 0, cohort="other"))
    queues.set_cohort(make_cohort("near", 4, "org"))
    queues.set_cohort(make_cohort("other", 0, "org"))
    queues.set_cohort(make_cohort("org", 4))
    large = make_workload("large", "a", gpu=8, priority=2)
    submit(queues, large, make_workload("small", "a", gpu=4, priority=1), make_workload("b", "b", gpu=4, priority=5))
    # Each queue is looked at in its own order, so large has the turn of small, before b, which is of higher priority.
    assert keys(run(state, queues)) == ["large"]


def test_with_fair_sharing_who_borrows_nothing_that_it_asks_for_goes_first():
    # Kueue's FairSharingPrioritizeNonBorrowing (0.17 and later): before the share, which counts other resources too.
    state = make_state(1, 1)
    queues = make_queues(
        make_queue("a", {"tas": 4, "other": 0}, cohort="c"),
        make_queue("b", {"tas": 0, "other": 0}, cohort="c"),
        make_queue("lender", {"tas": 4, "other": 8}, cohort="c"),
        rules=Rules(fair=True),
    )
    queues.charge_pod("ns/pod", Held("a", {("other", GPU): 8}))
    submit(queues, make_workload("owns", "a", gpu=4, created=1.0), make_workload("borrows", "b", gpu=4))
    ranks = [queues.rank_of_entry(queues.entries[key], {KEY: 4}) for key in ("owns", "borrows")]
    assert [rank.level for rank in ranks] == [0, 1]
    assert ranks[0].share > ranks[1].share
    assert keys(run(state, queues))[0] == "owns"


def test_those_who_leave_are_taken_off_a_share_once():
    state = make_state(1, 4)
    queues = make_queues(make_queue("a", 8, cohort="c"), make_queue("b", 24, cohort="c"), rules=Rules(fair=True))
    submit(queues, make_workload("stays", "a"), make_workload("leaves", "a", 2, created=1.0))
    run(state, queues)
    submit(queues, make_workload("next", "a", created=2.0))
    entry = queues.entries["next"]
    assert queues.rank_of_entry(entry, {KEY: 8})[:2] == (1, (False, 750))  # 32 - 8 of 32
    queues.holders.mark_leaving("leaves")
    queues.leaving.review_leaving(state, 2.0)
    assert queues.rank_of_entry(entry, {KEY: 8})[:2] == (1, (False, 250))  # 16 - 8 of 32
