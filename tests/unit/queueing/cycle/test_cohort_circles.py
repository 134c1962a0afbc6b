"""Cohorts that are each other's parents: what waits below them is told so, and goes on once one has another parent."""

from support.queue_factories import keys, make_cohort, make_queue, make_queues, make_state, make_workload, run, submit

from engine.reasons import Reason


def circle(*queues):
    """Queues of which those of cohort a are below a circle."""
    made = make_queues(*queues)
    made.set_cohort(make_cohort("a", 0, "b"))
    made.set_cohort(make_cohort("b", 0, "a"))
    return made


def refused(decisions):
    return {one.key: one.reason for one in decisions.waiting}


def test_one_that_asks_for_nothing_waits_too():
    state, queues = make_state(), circle(make_queue("q", 16, cohort="a"))
    submit(queues, make_workload("ns/w", count=0))
    assert refused(run(state, queues)) == {"ns/w": Reason.COHORT_CYCLE}
    queues.remove_cohort("b")
    assert keys(run(state, queues)) == ["ns/w"]


def test_a_queue_that_is_led_into_a_circle_evicts_nobody():
    state, queues = make_state(), make_queues(make_queue("q", 8, cohort="a"), make_queue("b", 8, cohort="a"))
    submit(queues, make_workload("ns/low", "b", count=2, gpu=8))
    assert keys(run(state, queues)) == ["ns/low"]
    queues.set_cohort(make_cohort("a", 0, "a"))
    submit(queues, make_workload("ns/high", priority=9, gpu=8))
    found = run(state, queues)
    assert (found.preempting, refused(found)) == ([], {"ns/high": Reason.COHORT_CYCLE})
