"""A priority that changes while a workload runs decides at once who may be evicted for whom."""

import msgspec
import pytest
from support.queue_factories import (
    GPU,
    keys,
    make_pod_set,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from engine.model import Policy, SliceLayer, TopologyRequest
from queueing.cycle.cycle import cycle
from queueing.model import PlainFlavor, Preemption, Reclaim, Within
from queueing.queues.entry import Phase

LOWER = Preemption(within=Within.LOWER)
NEWER = Preemption(within=Within.LOWER_OR_NEWER)


def victims(decisions):
    return {one.key: {victim.key for victim in one.victims} for one in decisions.preempting}


def filled(*workloads, policy=LOWER, racks=1):
    """A full queue; its workloads may be victims by now."""
    state, queues = make_state(racks, 1), make_queues(make_queue("q", 8 * racks, preemption=policy))
    submit(queues, *workloads)
    run(state, queues)
    run(state, queues, 2.0)
    return state, queues


def change(queues, key, **fields):
    queues.submit(msgspec.structs.replace(queues.entries[key].workload, **fields), 5.0)


@pytest.mark.parametrize("looked", [False, True], ids=["columns made later", "columns made before"])
def test_one_that_falls_below_a_waiting_one_is_evicted_at_the_next_cycle(looked):
    state, queues = filled(make_workload("runs", priority=100))
    if looked:
        submit(queues, make_workload("most", priority=200, created=1.0))
        assert victims(run(state, queues, 3.0)) == {"most": {"runs"}}
        queues.remove_workload(state, "most")
    submit(queues, make_workload("waits", priority=50, created=1.0))
    assert victims(run(state, queues, 4.0)) == {}
    change(queues, "runs", priority=10)
    assert queues.holders.lowest("q") == 10
    assert victims(run(state, queues, 6.0)) == {"waits": {"runs"}}


def test_one_that_rises_above_a_waiting_one_stays_and_the_next_one_goes():
    low, other = make_workload("low", priority=1), make_workload("other", priority=5, created=0.5)
    state, queues = filled(low, other, racks=2)
    change(queues, "low", priority=60)
    submit(queues, make_workload("waits", priority=50, created=1.0))
    assert queues.holders.lowest("q") == 5
    assert victims(run(state, queues, 6.0)) == {"waits": {"other"}}
    queues.remove_workload(state, "low")
    queues.remove_workload(state, "other")
    assert queues.holders.lowest("q") == 50  # who is nominated; counts of those who left are gone too


def test_the_least_priority_goes_by_what_it_is_now():
    one, other = make_workload("one", priority=5), make_workload("other", priority=6, created=0.5)
    state, queues = filled(one, other, racks=2)
    change(queues, "one", priority=7)
    submit(queues, make_workload("waits", priority=50, created=1.0))
    assert victims(run(state, queues, 6.0)) == {"waits": {"other"}}


def test_in_a_flavor_without_a_topology_too():
    state, queues = make_state(1, 1), make_queues(make_queue("q", 8, flavors=("plain",), preemption=LOWER))
    queues.set_flavor(PlainFlavor(name="plain"))
    submit(queues, make_workload("runs", level=None, priority=100))
    run(state, queues)
    run(state, queues, 2.0)
    submit(queues, make_workload("waits", level=None, priority=50, created=1.0))
    assert victims(run(state, queues, 4.0)) == {}
    change(queues, "runs", priority=10)
    assert victims(run(state, queues, 6.0)) == {"waits": {"runs"}}


def test_one_that_borrows_is_reclaimed_once_it_is_low_enough():
    policy = Preemption(reclaim=Reclaim.LOWER)
    both = [make_queue(name, 8, cohort="all", preemption=policy) for name in ("a", "b")]
    state, queues = make_state(2, 1), make_queues(*both)
    submit(queues, make_workload("lent", "b", 2, level=None, priority=100))
    run(state, queues)
    run(state, queues, 2.0)
    submit(queues, make_workload("back", "a", level=None, priority=50, created=1.0))
    assert victims(run(state, queues, 4.0)) == {}
    change(queues, "lent", priority=10)
    assert victims(run(state, queues, 6.0)) == {"back": {"lent"}}


def test_its_slices_are_victims_one_by_one_by_what_it_says_now():
    slices = TopologyRequest(policy=Policy.UNCONSTRAINED, level=None, slices=(SliceLayer(level="rack", size=1),))
    sets = (msgspec.structs.replace(make_pod_set(2), topology=slices),)
    state, queues = filled(make_workload("runs", pod_sets=sets, priority=100), racks=2)
    submit(queues, make_workload("most", priority=200, created=1.0))
    first = run(state, queues, 3.0)
    assert victims(first) == {"most": {"runs"}}
    assert first.preempting[0].victims[0].domains == ()  # it goes whole
    queues.remove_workload(state, "most")
    change(queues, "runs", priority=10, by_slices=True)
    submit(queues, make_workload("waits", priority=50, created=1.0))
    found = run(state, queues, 6.0)
    assert victims(found) == {"waits": {"runs"}}
    assert len(found.preempting[0].victims[0].domains) == 1
    assert queues.entries["runs"].grant.amounts["tas", GPU] == 16


def test_one_that_is_newer_now_may_go_for_an_older_one_of_its_priority():
    state, queues = filled(make_workload("runs", priority=5), policy=NEWER)
    submit(queues, make_workload("waits", priority=5, created=1.0))
    assert victims(run(state, queues, 4.0)) == {}
    change(queues, "runs", created=3.0)
    assert victims(run(state, queues, 6.0)) == {"waits": {"runs"}}


def test_one_that_is_nominated_is_a_victim_by_its_new_priority_once_it_is_admitted():
    state, queues = filled(make_workload("low"))
    submit(queues, make_workload("next", priority=100, created=1.0))
    assert victims(run(state, queues, 3.0)) == {"next": {"low"}}
    change(queues, "next", priority=10)
    queues.remove_workload(state, "low")
    assert keys(run(state, queues, 4.0)) == ["next"]
    run(state, queues, 5.0)
    submit(queues, make_workload("waits", priority=50, created=2.0))
    assert victims(run(state, queues, 6.0)) == {"waits": {"next"}}


def test_a_priority_that_stays_wakes_nobody():
    state, queues = filled(make_workload("runs", priority=100))
    submit(queues, make_workload("waits", priority=50, created=1.0))
    run(state, queues, 4.0)
    before = queues.searches
    change(queues, "runs", priority=100)
    change(queues, "runs", priority=120)
    assert not keys(cycle(state, queues, 6.0))
    assert queues.searches == before
    assert queues.entries["runs"].phase is Phase.ADMITTED


def test_one_that_comes_to_be_the_first_of_those_alike_is_looked_at_though_a_younger_one_was_refused():
    """Its policy lets it evict what is younger than itself, and the one that was refused is younger."""
    state, queues = filled(make_workload("runs", priority=1, created=2.0), policy=NEWER)
    submit(queues, make_workload("young", priority=1, created=3.0), make_workload("old", created=1.0))
    assert victims(run(state, queues, 4.0)) == {}
    change(queues, "old", priority=1)
    assert victims(run(state, queues, 6.0)) == {"old": {"runs"}}


def test_one_that_comes_behind_those_alike_that_were_refused_is_not_looked_at():
    state, queues = filled(make_workload("runs", priority=1, created=2.0), policy=NEWER)
    submit(queues, make_workload("young", priority=1, created=3.0))
    run(state, queues, 4.0)
    submit(queues, make_workload("younger", priority=1, created=4.0), now=5.0)
    assert queues.pending.lines["q"].next() is None
