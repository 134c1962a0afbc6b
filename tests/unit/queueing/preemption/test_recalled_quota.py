"""Whose quota is taken back that leaves already, and so is nobody's victim."""

import pytest
from support.queue_factories import make_queue, make_queues, make_state, make_workload, run, submit

from queueing.model import Preemption, Reclaim
from queueing.preemption.recalled import recalled_quota

ANY, LOWER = Preemption(reclaim=Reclaim.ANY), Preemption(reclaim=Reclaim.LOWER)


def asked(*, preemption=ANY, cohort="c", waits=1, priority=0, nominal=16):
    """Whether the quota of one that leaves is taken back: the borrower has two workloads of 8 GPUs each."""
    queues = make_queues(
        make_queue("owner", nominal, cohort="c", preemption=preemption),
        make_queue("borrower", 16 - nominal, cohort=cohort),
    )
    state = make_state(1, 2)
    submit(queues, make_workload("ns/a", "borrower"), make_workload("ns/b", "borrower"))
    run(state, queues)
    queues.holders.mark_leaving("ns/a", "ns/b")
    submit(queues, *(make_workload(f"ns/{n}", "owner", priority=priority, created=5.0) for n in range(waits)))
    run(state, queues, now=1000.0)
    assert not queues.holders.nominated
    return recalled_quota(state, queues)(queues.quotas.held["ns/a"], 0)


def test_one_that_leaves_and_borrows_has_its_quota_taken_back_by_one_that_waits():
    assert asked()


@pytest.mark.parametrize(
    "changed",
    [{"waits": 0}, {"preemption": Preemption()}, {"nominal": 0}, {"cohort": "another", "nominal": 0}],
    ids=["nobody-waits", "its-owner-never-reclaims", "it-is-its-own", "in-another-cohort"],
)
def test_nothing_is_taken_back_from_one_that_leaves_where(changed):
    assert not asked(**changed)


@pytest.mark.parametrize(("priority", "found"), [(0, False), (1, True)])
def test_an_owner_that_reclaims_from_lower_priorities_takes_back_from_those_alone(priority, found):
    assert asked(preemption=LOWER, priority=priority) == found


def test_one_that_is_nominated_takes_back_from_others_that_leave_beside_its_victims():
    queues = make_queues(make_queue("owner", 16, cohort="c", preemption=ANY), make_queue("borrower", 0, cohort="c"))
    state = make_state(1, 4)
    submit(queues, make_workload("ns/a", "borrower"), make_workload("ns/b", "borrower"))
    run(state, queues)
    queues.holders.mark_leaving("ns/a")
    submit(queues, make_workload("ns/gang", "owner", 2, created=5.0))
    assert [one.key for one in run(state, queues, now=1000.0).preempting] == ["ns/gang"]
    assert recalled_quota(state, queues)(queues.quotas.held["ns/a"], 0)


def test_what_is_asked_for_beyond_nominal_quota_takes_nothing_back():
    queues = make_queues(
        make_queue("owner", 8, cohort="c", preemption=ANY),
        make_queue("lender", 8, cohort="c"),
        make_queue("borrower", 0, cohort="c"),
    )
    state = make_state(1, 2)
    submit(queues, make_workload("ns/a", "borrower"), make_workload("ns/b", "borrower"))
    run(state, queues)
    queues.holders.mark_leaving("ns/a", "ns/b")
    submit(queues, make_workload("ns/large", "owner", 2, created=5.0))
    run(state, queues, now=1000.0)
    assert not recalled_quota(state, queues)(queues.quotas.held["ns/a"], 0)
