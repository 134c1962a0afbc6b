"""What comes back by itself does not count as borrowed: whoever got in beside it is nobody's victim meanwhile."""

import pytest
from support.queue_factories import keys, make_queue, make_queues, make_state, make_workload, run, submit

from queueing.cycle.elastic import reclaim
from queueing.model import Preemption, Reclaim
from queueing.queues.leaving import QUIET

RECLAIMS = Preemption(reclaim=Reclaim.ANY)


@pytest.fixture
def teams():
    """A pod of `ends` is done, so `early` of its queue gets in beside the other one; then `late` wants its quota."""
    queues = make_queues(make_queue("a", 16, cohort="all"), make_queue("b", 32, cohort="all", preemption=RECLAIMS))
    state = make_state(1, 4)
    submit(queues, make_workload("ends", "a", 2, created=1.0))
    assert keys(run(state, queues)) == ["ends"]
    queues.leaving.pod_ended("ends")
    reclaim(state, queues, "ends", {"main": 1})
    submit(queues, make_workload("early", "a", 2, created=2.0))
    assert keys(run(state, queues, 2.0)) == ["early"]
    submit(queues, make_workload("late", "b", 3, created=3.0))
    return state, queues


def victims(made):
    return [victim.key for one in made.preempting for victim in one.victims]


def test_its_queue_need_not_borrow_once_that_is_gone(teams):
    state, queues = teams
    assert victims(run(state, queues, 3.0)) == []
    queues.remove_workload(state, "ends")
    assert victims(run(state, queues, 4.0)) == []


def test_it_borrows_where_that_stays_after_all(teams):
    state, queues = teams
    assert victims(run(state, queues, 3.0)) == []
    assert victims(run(state, queues, 2.0 + QUIET)) == ["early"]
