"""Whose minimum run time counts, until when it makes one safe, and that its columns follow those who hold something."""

from math import inf

import numpy as np
import pytest
from support.queue_factories import make_cohort, make_queue, make_queues, make_state, make_workload, run, submit

from queueing.model import Rules, RunTime
from queueing.preemption.cohort_reach import nodes_between
from queueing.queues.minimum_run_time import Minimum, Taking, safe_until


def queues_of(cohorts, queues, rules=None):
    """Cohorts and queues by name, each with (parent, RunTime)."""
    made = make_queues(
        *(make_queue(name, cohort=parent, minimum=of) for name, (parent, of) in queues.items()), rules=rules
    )
    for name, (parent, of) in cohorts.items():
        made.set_cohort(make_cohort(name, parent=parent, minimum=of))
    return made


def needed(queues, taker, victim, taking=Taking.RECLAIM):
    nodes = queues.quotas.tree.queues
    below = nodes[victim] if taker == victim else nodes_between(nodes[taker], nodes[victim])[-1]
    return queues.run_times.minimum_above(below, taking)


NONE = RunTime()


@pytest.mark.parametrize(
    ("taker", "victim", "seconds", "source"),
    [
        ("b1", "a1", 600.0, "Cohort A"),
        ("b1", "a2", 600.0, "Cohort A"),
        ("a1", "a2", 120.0, "ClusterQueue a2"),
        ("a2", "a1", 600.0, "Cohort A"),
    ],
)
def test_example_f(taker, victim, seconds, source):
    queues = queues_of(
        {"T": ("", NONE), "A": ("T", RunTime(reclaim=600.0)), "B": ("T", NONE)},
        {"a1": ("A", NONE), "a2": ("A", RunTime(reclaim=120.0)), "b1": ("B", NONE)},
    )
    assert needed(queues, taker, victim) == Minimum(seconds, source)


@pytest.mark.parametrize(
    ("taker", "victim", "seconds"), [("leaf1", "leaf3", 60.0), ("leaf1", "leaf2", 180.0), ("leaf3", "leaf1", 600.0)]
)
def test_the_tree_of_kais_design(taker, victim, seconds):
    # docs/developer/designs/min-runtime/README.md at 521a99aa: leaf1 says 0 s, which counts among siblings alone.
    queues = queues_of(
        {"A": ("", NONE), "B": ("A", RunTime(reclaim=600.0)), "C": ("B", NONE), "D": ("B", RunTime(reclaim=60.0))},
        {
            "leaf1": ("C", RunTime(reclaim=0.0)),
            "leaf2": ("C", RunTime(reclaim=180.0)),
            "leaf3": ("D", NONE),
        },
    )
    assert needed(queues, taker, victim).seconds == seconds


@pytest.mark.parametrize(("queue", "seconds"), [("leaf1", 300.0), ("leaf2", 600.0)])
def test_within_a_queue_the_first_value_upwards_counts(queue, seconds):
    queues = queues_of(
        {"B": ("", RunTime(within=600.0)), "C": ("B", NONE)},
        {"leaf1": ("C", RunTime(within=300.0)), "leaf2": ("C", NONE)},
    )
    assert needed(queues, queue, queue, Taking.WITHIN).seconds == seconds


def test_where_shares_decide_a_value_of_its_own_counts_and_else_that_for_reclaim_of_the_same_place():
    queues = queues_of(
        {"c": ("", RunTime(reclaim=50.0, fair=70.0))},
        {"a": ("c", RunTime(reclaim=20.0)), "b": ("c", RunTime(within=5.0))},
    )
    assert needed(queues, "b", "a", Taking.FAIR) == Minimum(20.0, "ClusterQueue a")
    assert needed(queues, "a", "b", Taking.FAIR) == Minimum(70.0, "Cohort c")
    assert needed(queues, "a", "b") == Minimum(50.0, "Cohort c")


def test_where_no_queue_and_no_cohort_says_it_the_rules_do():
    queues = queues_of({}, {"a": ("c", NONE), "b": ("c", NONE)}, Rules(minimum=RunTime(within=1.0, reclaim=2.0)))
    assert needed(queues, "a", "a", Taking.WITHIN) == Minimum(1.0, "")
    assert needed(queues, "a", "b") == needed(queues, "a", "b", Taking.FAIR) == Minimum(2.0, "")


def test_it_is_in_use_as_soon_as_anybody_says_it_and_no_longer():
    queues = queues_of({"c": ("", NONE)}, {"a": ("c", NONE)})
    assert not queues.run_times.any_minimum
    queues.set_cohort(make_cohort("c", minimum=RunTime(fair=1.0)))
    assert queues.run_times.any_minimum
    queues.set_cohort(make_cohort("c", minimum=RunTime(fair=0.0)))
    assert not queues.run_times.any_minimum
    queues.set_cluster_queue(make_queue("a", cohort="c", minimum=RunTime(within=1.0)))
    assert queues.run_times.any_minimum


@pytest.mark.parametrize(
    ("admitted", "ready", "until"),
    [
        (100.0, None, 1300.0),  # its pods are not ready: at most twice
        (100.0, 130.0, 730.0),
        (100.0, 700.0, 1300.0),
        (100.0, 5000.0, 1300.0),
        (100.0, 40.0, 640.0),  # it ran before it was taken over
        (None, 40.0, -inf),
    ],
)
def test_it_counts_from_when_pods_are_ready_and_for_twice_as_long_at_most(admitted, ready, until):
    assert safe_until(admitted, ready, 600.0) == until


def test_a_minimum_of_nothing_makes_nobody_safe_whatever_the_clock_said():
    assert safe_until(1e9, None, 0.0) == -inf


def start(queues, key, admitted, ready=None):
    return queues.run_times.note_start(key, admitted, ready)


def one_running():
    state, queues = make_state(), make_queues(make_queue("q", 64))
    submit(queues, make_workload("ns/a"))
    run(state, queues)
    return state, queues, queues.entries["ns/a"]


@pytest.mark.parametrize(
    "said",
    [(10.0, 90.0), (10.0, None), (None, None), (50.0, 90.0)],
    ids=["ready-again", "unready", "deleted", "written"],
)
def test_what_is_said_later_of_the_same_run_does_not_begin_its_time_again(said):
    _, queues, entry = one_running()
    start(queues, "ns/a", 10.0, 20.0)
    assert not start(queues, "ns/a", *said)
    assert (entry.admitted_at, entry.ready_at) == (10.0, 20.0)


def test_one_that_is_admitted_again_begins_again():
    state, queues, entry = one_running()
    start(queues, "ns/a", 10.0, 20.0)
    queues.release_and_requeue(state, "ns/a", 30.0)
    run(state, queues, 50.0)
    start(queues, "ns/a", 50.0, None)
    assert (entry.admitted_at, entry.ready_at) == (50.0, None)


def test_who_holds_nothing_has_no_start():
    state, queues, entry = one_running()
    start(queues, "ns/a", 10.0, 20.0)
    queues.release_and_requeue(state, "ns/a", 30.0)
    assert (entry.admitted_at, entry.ready_at) == (None, None)
    start(queues, "ns/a", 10.0, 20.0)  # an event that is older than that
    assert entry.admitted_at is None
    assert not start(queues, "ns/none", 1.0)


def test_the_columns_follow_those_who_hold_something():
    state, queues = make_state(8, 16), make_queues(make_queue("q", 4096))
    names = [f"ns/{number}" for number in range(100)]
    submit(queues, *(make_workload(name, level=None, created=float(at)) for at, name in enumerate(names)))
    run(state, queues)
    rows = queues.holders.usage(state, "tas")
    for at, name in enumerate(names):
        start(queues, name, 100.0 + at, 200.0 + at if at % 2 else None)

    def columns():
        found = {key: (rows.admitted[n], rows.ready[n]) for key, n in rows.numbers.items()}
        return {key: (float(admitted), float(ready)) for key, (admitted, ready) in found.items()}

    said = {name: (100.0 + at, 200.0 + at if at % 2 else inf) for at, name in enumerate(names)}
    assert columns() == said
    for name in names[:80]:
        queues.remove_workload(state, name)
    queues.holders.drop_dead(["tas"])
    assert len(rows.keys) == 20
    assert columns() == {name: said[name] for name in names[80:]}
    # One that comes has no start until its Workload says so.
    submit(queues, make_workload("ns/late", level=None, created=1000.0))
    run(state, queues)
    assert columns()["ns/late"] == (-inf, inf)
    assert not np.isnan(rows.admitted).any()
