"""Workloads that have not run for long enough are nobody's victims, and whoever waits for them is looked at in time."""

import random

import pytest
from support.queue_factories import (
    HOST,
    keys,
    make_cohort,
    make_pod_set,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from engine.model import Policy
from queueing.cycle.cycle import cycle
from queueing.model import Preemption, Reclaim, Rules, RunTime, Stop, Within
from queueing.moves import why_not_moved
from queueing.preemption.cohort_reach import nodes_between
from queueing.queues.minimum_run_time import Taking

ANY = Preemption(reclaim=Reclaim.ANY)
LOWER = Preemption(within=Within.LOWER)
TEN = RunTime(within=600.0, reclaim=600.0)
PATIENT = Rules(patience=1e9)  # else claims have times of their own


def starts(queues, *names, at, ready=None):
    return [queues.run_times.note_start(name, at, ready) for name in names]


def victims(made):
    return {victim.key for one in made.preempting for victim in one.victims}


def lent(*, minimum=TEN, rules=PATIENT, held=4, ready=100.0, unadmitted="", **more):
    """``owner`` has 16 GPUs of nominal quota, all lent to the workloads of ``borrower``, which began at 100 s."""
    queues = make_queues(
        make_queue("owner", 16, cohort="c", preemption=ANY, **more), make_queue("borrower", 16, cohort="c"), rules=rules
    )
    queues.set_cohort(make_cohort("c", minimum=minimum))
    state = make_state(1, 4)
    names = [f"ns/b{at}" for at in range(held)]
    submit(queues, *(make_workload(name, "borrower", created=float(at)) for at, name in enumerate(names)))
    assert len(keys(run(state, queues, 100.0))) == held
    starts(queues, *(name for name in names if name != unadmitted), at=100.0, ready=ready)
    return state, queues


def own():
    """A full queue of 32 GPUs whose workloads, of priority 0, began at 100 s."""
    queues = make_queues(make_queue("q", 32, preemption=LOWER, minimum=TEN))
    state, names = make_state(1, 4), [f"ns/b{at}" for at in range(4)]
    submit(queues, *(make_workload(name, created=float(at)) for at, name in enumerate(names)))
    run(state, queues, 100.0)
    starts(queues, *names, at=100.0, ready=100.0)
    return state, queues


def test_a_victim_is_safe_to_the_second_from_those_who_take_back_their_quota():
    state, queues = lent()
    submit(queues, make_workload("ns/w", "owner", created=200.0))
    assert victims(run(state, queues, 699.0)) == set()
    assert victims(run(state, queues, 700.0)) == {"ns/b3"}


def test_a_victim_is_safe_to_the_second_within_its_queue():
    state, queues = own()
    submit(queues, make_workload("ns/w", priority=1, created=200.0))
    assert victims(run(state, queues, 699.0)) == set()
    assert victims(run(state, queues, 700.0)) == {"ns/b3"}


def test_a_victim_is_safe_to_the_second_where_shares_decide():
    queues = make_queues(
        make_queue("poor", 0, cohort="c", preemption=ANY),
        make_queue("rich", 0, cohort="c"),
        make_queue("lender", 32, cohort="c", preemption=ANY),
        rules=Rules(fair=True),
    )
    queues.set_cohort(make_cohort("c", minimum=RunTime(reclaim=5.0, fair=600.0)))
    state = make_state(1, 4)
    submit(queues, *(make_workload(f"ns/b{at}", "rich", created=float(at)) for at in range(4)))
    run(state, queues, 100.0)
    starts(queues, *(f"ns/b{at}" for at in range(4)), at=100.0, ready=100.0)
    submit(queues, make_workload("ns/w", "poor", created=200.0))
    assert victims(run(state, queues, 699.0)) == set()
    assert victims(run(state, queues, 700.0)) == {"ns/b3"}
    # Who takes back what is its own compares no shares, and reclaims.
    submit(queues, make_workload("ns/l", "lender", created=300.0))
    assert victims(run(state, queues, 701.0)) == {"ns/b2"}


def test_one_that_borrows_itself_takes_nobody_who_is_safe():
    queues = make_queues(
        make_queue("taker", 0, cohort="c", preemption=Preemption(reclaim=Reclaim.ANY, borrowing=True)),
        make_queue("borrower", 0, cohort="c"),
        make_queue("lender", 32, cohort="c", minimum=RunTime(reclaim=1.0)),
    )
    queues.set_cohort(make_cohort("c", minimum=TEN))
    state = make_state(1, 4)
    submit(queues, *(make_workload(f"ns/b{at}", "borrower", created=float(at)) for at in range(4)))
    run(state, queues, 100.0)
    starts(queues, *(f"ns/b{at}" for at in range(4)), at=100.0, ready=100.0)
    submit(queues, make_workload("ns/w", "taker", priority=1, created=200.0))
    assert victims(run(state, queues, 699.0)) == set()
    assert victims(run(state, queues, 700.0)) == {"ns/b3"}


def test_others_who_are_not_safe_go_instead():
    state, queues = own()
    # Newer ones go first, and this is the newest that has run for long enough.
    starts(queues, "ns/b1", at=50.0, ready=50.0)
    starts(queues, "ns/b0", at=40.0, ready=40.0)
    submit(queues, make_workload("ns/w", priority=1, created=200.0))
    assert victims(run(state, queues, 660.0)) == {"ns/b1"}


def test_a_plan_takes_all_slices_of_one_that_is_safe_or_none():
    queues = make_queues(make_queue("q", 32, preemption=LOWER, minimum=TEN))
    state = make_state(2, 2)
    pods = make_pod_set(4, level=HOST, policy=Policy.PREFERRED)
    submit(queues, make_workload("ns/service", pod_sets=(pods,), by_slices=True))
    run(state, queues, 100.0)
    starts(queues, "ns/service", at=100.0, ready=100.0)
    submit(queues, make_workload("ns/w", priority=1, created=200.0))
    assert victims(run(state, queues, 699.0)) == set()
    assert victims(run(state, queues, 700.0)) == {"ns/service"}


def test_nothing_else_wakes_who_waits_for_it():
    state, queues = lent()
    submit(queues, make_workload("ns/w", "owner", created=200.0))
    made = cycle(state, queues, 250.0)
    assert not made.preempting
    assert made.next_time == 700.0
    # Until then nobody is looked at again.
    searches = queues.searches
    assert cycle(state, queues, 699.5).next_time == 700.0
    assert queues.searches == searches
    assert victims(cycle(state, queues, 700.0)) == {"ns/b3"}


def test_the_first_of_all_who_are_safe_is_waited_for():
    state, queues = lent()
    starts(queues, "ns/b1", at=60.25, ready=60.25)
    starts(queues, "ns/b2", at=70.0, ready=70.0)
    submit(queues, make_workload("ns/w", "owner", 2, created=200.0))
    # Both have to go: with the first alone there is no plan yet, and it is looked at again.
    made = cycle(state, queues, 250.0)
    assert made.next_time == 661.0  # in whole seconds
    made = cycle(state, queues, 661.0)
    assert (victims(made), made.next_time) == (set(), 670.0)
    assert victims(cycle(state, queues, 670.0)) == {"ns/b1", "ns/b2"}


def test_one_whose_pods_become_ready_is_waited_for_until_then_and_no_longer():
    state, queues = lent(ready=None)
    submit(queues, make_workload("ns/w", "owner", created=200.0))
    assert cycle(state, queues, 250.0).next_time == 1300.0
    assert starts(queues, "ns/b0", at=100.0, ready=255.0) == [True]
    made = cycle(state, queues, 260.0)
    assert (victims(made), made.next_time) == (set(), 855.0)
    assert victims(cycle(state, queues, 855.0)) == {"ns/b0"}


def test_one_that_waits_for_its_checks_is_not_safe():
    state, queues = lent(unadmitted="ns/b1")
    submit(queues, make_workload("ns/w", "owner", created=200.0))
    assert victims(run(state, queues, 250.0)) == {"ns/b1"}


@pytest.mark.parametrize("where", ["cohort", "queue"])
def test_a_minimum_that_is_lowered_counts_at_once(where):
    state, queues = lent()
    submit(queues, make_workload("ns/w", "owner", created=200.0))
    assert not victims(run(state, queues, 250.0))
    if where == "cohort":
        queues.set_cohort(make_cohort("c", minimum=RunTime(reclaim=100.0)))
    else:
        queues.set_cluster_queue(make_queue("borrower", 16, cohort="c", minimum=RunTime(reclaim=100.0)))
    assert victims(run(state, queues, 251.0)) == {"ns/b3"}


def test_a_clock_that_is_set_right_keeps_nobody_safe_for_longer():
    queues = make_queues(make_queue("q", 32, preemption=LOWER, minimum=TEN), rules=PATIENT)
    state, names = make_state(1, 4), [f"ns/c{at}" for at in range(4)]
    submit(queues, *(make_workload(name, created=float(at)) for at, name in enumerate(names)), now=9000.0)
    run(state, queues, 9000.0)
    starts(queues, *names, at=9000.0, ready=9000.0)
    submit(queues, make_workload("ns/w", priority=1, created=200.0), now=9001.0)
    assert cycle(state, queues, 9001.0).next_time == 9600.0
    # The clock was ahead: it is 150 s.
    made = cycle(state, queues, 150.0)
    assert (victims(made), made.next_time) == (set(), 750.0)
    assert victims(run(state, queues, 750.0)) == {"ns/c3"}


def test_a_strict_queue_waits_for_it():
    state, queues = lent(strict=True)
    submit(queues, make_workload("ns/w", "owner", created=200.0))
    submit(queues, make_workload("ns/small", "owner", gpu=1, created=201.0))
    queues.release_and_requeue(state, "ns/b0", 202.0, until=9999.0)
    # One of the nodes is free: the one behind would fit, and so does the first. With two pods it has to wait.
    submit(queues, make_workload("ns/w", "owner", 2, created=200.0))
    made = run(state, queues, 250.0)
    assert keys(made) == []
    made = run(state, queues, 700.0)
    assert ([one.key for one in made.preempting], victims(made)) == (["ns/w"], {"ns/b3"})


def test_budget_override_does_not_override_it():
    state, queues = lent(rules=Rules(override=True))
    for at in range(3):
        queues.spare_until(f"ns/b{at}", 10_000.0)
    submit(queues, make_workload("ns/w", "owner", created=200.0))
    starts(queues, "ns/b1", at=10.0, ready=10.0)
    # The newest is safe. Of those whose budgets refused one has run for long enough: the owner overrides its budget.
    assert victims(run(state, queues, 650.0)) == {"ns/b1"}


def test_a_queue_that_is_drained_ends_all_of_its_workloads():
    state, queues = lent()
    queues.set_cluster_queue(make_queue("borrower", 16, cohort="c", stop=Stop.DRAIN))
    assert {one.key for one in run(state, queues, 200.0).evict} == {f"ns/b{at}" for at in range(4)}


def test_nobody_is_moved_before_the_longest_of_its_minimums_is_over():
    _, queues = lent(minimum=RunTime(within=30.0, reclaim=600.0))
    queues.fresh.clear()
    queues.pass_time(699.0)
    told = "it has not run for its minimumRunTime, which it has at 1970-01-01 00:11:40 UTC"
    assert why_not_moved(queues, "ns/b0") == told
    queues.pass_time(700.0)
    assert why_not_moved(queues, "ns/b0") == ""


def test_growth_waits_for_it_and_is_looked_at_in_time():
    queues = make_queues(make_queue("q", 32, preemption=LOWER, minimum=TEN), rules=PATIENT)
    state = make_state(1, 4)
    submit(queues, make_workload("ns/service", count=2, priority=10))
    run(state, queues, 50.0)
    submit(queues, make_workload("ns/b", count=2, created=1.0))
    run(state, queues, 100.0)
    starts(queues, "ns/service", "ns/b", at=100.0, ready=100.0)
    queues.wish("ns/service", {"main": 4})
    made = cycle(state, queues, 250.0)
    assert (victims(made), made.next_time) == (set(), 700.0)
    told = queues.entries["ns/service"].refusal.message
    assert told.endswith(
        "; ns/b is safe from eviction until 1970-01-01 00:11:40 UTC (minimumRunTime of ClusterQueue q)"
    )
    assert not victims(cycle(state, queues, 699.0))
    assert victims(cycle(state, queues, 700.0)) == {"ns/b"}


def test_who_waits_is_told_until_when():
    state, queues = lent()
    starts(queues, "ns/b2", at=70.0, ready=70.0)
    submit(queues, make_workload("ns/w", "owner", created=200.0))
    (told,) = run(state, queues, 250.0).waiting
    assert told.message.endswith(
        "; ns/b2 is safe from eviction until 1970-01-01 00:11:10 UTC (minimumRunTime of Cohort c), "
        "and others until 1970-01-01 00:11:40 UTC at the latest"
    )


def test_where_the_rules_say_it_nobody_is_named():
    state, queues = lent(minimum=RunTime(), rules=Rules(minimum=TEN))
    submit(queues, make_workload("ns/w", "owner", created=200.0))
    (told,) = run(state, queues, 250.0).waiting
    # All four began at once: there is no later one to tell of.
    assert told.message.endswith("is safe from eviction until 1970-01-01 00:11:40 UTC (minimumRunTime)")


def test_without_a_minimum_nobody_is_told_of_one():
    state, queues = lent(minimum=RunTime())
    submit(queues, make_workload("ns/w", "owner", created=200.0))
    assert victims(run(state, queues, 101.0)) == {"ns/b3"}


def test_it_runs_on_over_a_restart():
    state, queues = lent()
    grants = {name: queues.entries[name].grant for name in (f"ns/b{at}" for at in range(4))}
    state, again = (
        make_state(1, 4),
        make_queues(
            make_queue("owner", 16, cohort="c", preemption=ANY), make_queue("borrower", 16, cohort="c"), rules=PATIENT
        ),
    )
    again.set_cohort(make_cohort("c", minimum=TEN))
    for at, (name, grant) in enumerate(grants.items()):
        again.restore_workload(state, make_workload(name, "borrower", created=float(at)), grant, 300.0)
    starts(again, *grants, at=100.0, ready=100.0)
    submit(again, make_workload("ns/w", "owner", created=200.0))
    made = cycle(state, again, 300.0)
    assert (victims(made), made.next_time) == (set(), 700.0)
    assert victims(cycle(state, again, 700.0)) == {"ns/b3"}


def random_world(dice):
    """Four queues in two cohorts below a third, with all that decides over victims and their time drawn."""

    def minimum():
        return RunTime(**{name: dice.choice([None, None, 0.0, 30.0, 90.0]) for name in ("within", "reclaim", "fair")})

    policies = Preemption(within=dice.choice([Within.NEVER, Within.LOWER]), reclaim=Reclaim.ANY, borrowing=True)
    rules = Rules(fair=dice.random() < 0.5, minimum=minimum(), patience=1e9, leaving=0.0)
    each = ((name, dice.choice("xy"), minimum()) for name in "abcd")
    queues = make_queues(
        *(make_queue(name, 16, cohort=above, preemption=policies, minimum=of) for name, above, of in each), rules=rules
    )
    for name in "xy":
        queues.set_cohort(make_cohort(name, parent="top", minimum=minimum()))
    return make_state(2, 4), queues


def settle(state, queues, now, dice):
    """Cycles at one time until nobody is to be looked at; who is evicted is gone at once, and waits again."""
    evicted = 0
    for _ in range(64):
        # Noted before: whoever goes has no start any more.
        began = {key: (entry.admitted_at, entry.ready_at, entry.queue) for key, entry in queues.entries.items()}
        made = cycle(state, queues, now, 1000)
        for one in made.preempting:
            for victim in one.victims:
                admitted, ready, queue = began[victim.key]
                assert last_moment(admitted, ready, least_of(queues, queues.entries[one.key].queue, queue)) <= now
                # Where it waits nobody looks at it at once, or it would have others evicted at this very time.
                queues.release_and_requeue(state, victim.key, now, until=now + 5.0)
                evicted += 1
        for one in made.admitted:
            starts(queues, one.key, at=now, ready=now if dice.random() < 0.7 else None)
        if not (made.more or made.preempting or made.admitted):
            return made.next_time, evicted
    raise AssertionError("it never settles")


def least_of(queues, taker, victim):
    """The least time that may count between two queues, by any right."""
    nodes, times = queues.quotas.tree.queues, queues.run_times
    if taker == victim:
        return times.minimum_above(nodes[victim], Taking.WITHIN).seconds
    below = nodes_between(nodes[taker], nodes[victim])[-1]
    rights = (Taking.RECLAIM, Taking.FAIR) if queues.rules.fair else (Taking.RECLAIM,)
    return min(times.minimum_above(below, right).seconds for right in rights)


def last_moment(admitted, ready, least):
    if admitted is None or not least:
        return 0.0
    return min(1e18 if ready is None else ready, admitted + least) + least


def test_nobody_who_is_safe_is_evicted_and_nobody_who_waits_for_one_is_forgotten():
    evicted = 0
    for seed in range(12):
        dice = random.Random(f"safe {seed}")
        state, queues = random_world(dice)
        now, due = 0.0, None
        for number in range(60):
            if number < 20:
                workload = make_workload(f"ns/w{number}", dice.choice("abcd"), priority=dice.randrange(3), created=now)
                submit(queues, workload, now=now)
            now = due if due is not None and dice.random() < 0.5 else now + float(dice.randrange(1, 20))
            for key, entry in queues.entries.items():
                if entry.admitted_at is not None and entry.ready_at is None and dice.random() < 0.2:
                    starts(queues, key, at=entry.admitted_at, ready=now)
            due, gone = settle(state, queues, now, dice)
            # Had anybody missed the moment at which it may have others evicted, a look at all would find it.
            queues.flavors_changed()
            assert (settle(state, queues, now, dice)[1], seed, number) == (0, seed, number)
            evicted += gone
    assert evicted > 30
