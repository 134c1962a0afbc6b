"""What a Cohort that comes, changes or goes means for those who wait: they are looked at again, and no others."""

from support.queue_factories import keys, make_cohort, make_queue, make_queues, make_state, make_workload, run, submit

from queueing.cycle.cycle import cycle


def waiting(queues, *workloads):
    """Queues with these workloads, of which none fits now."""
    state = make_state()
    submit(queues, *workloads)
    assert keys(run(state, queues)) == []
    return state


def test_a_cohort_that_comes_wakes_those_below_it():
    queues = make_queues(make_queue("a", 4, cohort="team"), make_queue("b", 4))
    state = waiting(queues, make_workload("ns/one", "a", gpu=8), make_workload("ns/two", "b", gpu=8))
    looked = queues.changes
    queues.set_cohort(make_cohort("team", 4))
    assert keys(run(state, queues)) == ["ns/one"]
    assert queues.changes == looked  # what queues offer is as it was


def test_an_unchanged_cohort_wakes_nobody():
    queues = make_queues(make_queue("a", 4, cohort="team"))
    queues.set_cohort(make_cohort("team", 2))
    waiting(queues, make_workload("ns/one", "a", gpu=8))
    queues.set_cohort(make_cohort("team", 2))
    assert queues.pending.lines["a"].next() is None
    queues.set_cohort(make_cohort("team", 3))
    assert queues.pending.lines["a"].next() is not None


def test_a_cohort_that_moves_wakes_both_trees():
    queues = make_queues(
        make_queue("a", 4, cohort="team"), make_queue("b", 4, cohort="left"), make_queue("c", 4, cohort="right")
    )
    queues.set_cohort(make_cohort("team", 0, "left"))
    work = [make_workload(f"ns/{name}", name, 2, gpu=8) for name in "abc"]
    state = waiting(queues, *work)
    queues.set_cohort(make_cohort("team", 0, "right", weight=500))
    assert [queues.pending.lines[name].next() is not None for name in "abc"] == [True] * 3
    run(state, queues)
    queues.remove_cohort("team")
    assert [queues.pending.lines[name].next() is not None for name in "abc"] == [True, False, True]


def test_a_circle_that_is_mended_wakes_all_that_it_stopped():
    queues = make_queues(make_queue("a", 8, cohort="one"), make_queue("b", 8, cohort="two"))
    queues.set_cohort(make_cohort("one", 0, "two"))
    queues.set_cohort(make_cohort("two", 0, "one"))
    state = waiting(queues, make_workload("ns/x", "a", gpu=8), make_workload("ns/y", "b", gpu=8))
    queues.remove_cohort("one")
    assert sorted(keys(run(state, queues))) == ["ns/x", "ns/y"]


def test_those_who_grow_try_again_when_their_tree_changes():
    queues = make_queues(make_queue("a", 8, cohort="team"))
    state = make_state()
    submit(queues, make_workload("ns/x", "a", gpu=8))
    run(state, queues)
    before = queues.freed_so_far("ns/x")
    queues.set_cohort(make_cohort("team", 8))
    assert queues.freed_so_far("ns/x") != before


def test_those_who_grow_try_again_when_their_cohort_comes_below_another_one():
    queues, state = make_queues(make_queue("a", 8, cohort="team")), make_state()
    queues.set_cohort(make_cohort("team"))
    queues.set_cohort(make_cohort("org", 8))
    submit(queues, make_workload("ns/x", "a", gpu=8))
    run(state, queues)
    queues.wish("ns/x", {"main": 2})
    assert not run(state, queues).resized
    queues.set_cohort(make_cohort("team", 0, "org"))  # each of the two trees changed once
    assert [one.key for one in cycle(state, queues, 2.0).resized] == ["ns/x"]


def test_a_cohort_that_nobody_made_is_removed_in_vain():
    queues = make_queues(make_queue("a", 8, cohort="team"))
    queues.remove_cohort("team")
    queues.remove_cohort("nobody")
    assert queues.quotas.pool("a") == "cohort team"
