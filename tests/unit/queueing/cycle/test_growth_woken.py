"""Who wants more pods in vain is tried again as soon as anything may help it, though no room and no quota came free."""

from support.queue_factories import GPU, keys, make_queue, make_queues, make_state, make_workload, run, submit

from queueing.cycle.cycle import cycle
from queueing.model import PlainFlavor, Preemption, Reclaim, Rules
from queueing.queues.held import Held

RECLAIM = Preemption(reclaim=Reclaim.ANY)
PLAIN = {"flavors": ("plain",)}


def shared(**more):
    """``mine`` of queue a and ``theirs`` of b fill a rack; ``beside`` of b has the other one, half of which is free.

    Each queue has half of the quota.
    """
    state = make_state(2, 2)
    queues = make_queues(
        make_queue("a", 16, cohort="team", preemption=RECLAIM), make_queue("b", 16, cohort="team"), **more
    )
    for name, queue in (("mine", "a"), ("theirs", "b"), ("beside", "b")):
        submit(queues, make_workload(name, queue))
        run(state, queues)
    assert len({node for key in ("mine", "theirs") for node in rack(state, key)}) == 1
    queues.wish("mine", {"main": 2})
    made = cycle(state, queues, 2.0)
    assert (made.preempting, made.resized, made.more) == ([], [], False)
    return state, queues


def rack(state, key):
    return {piece.values[0] for piece in state.assignments(key)["main"].slices}


def victims(made):
    return [(one.key, [victim.key for victim in one.victims]) for one in made.preempting]


def test_one_whose_queue_borrows_once_another_grew_is_evicted_for_growth():
    state, queues = shared()
    queues.wish("beside", {"main": 2})
    made = cycle(state, queues, 3.0)
    assert ([one.key for one in made.resized], made.more) == (["beside"], True)
    assert victims(cycle(state, queues, 3.0)) == [("mine", ["theirs"])]


def test_so_it_is_where_the_other_grows_behind_it_in_the_same_cycle():
    state, queues = shared()
    queues.wish("beside", {"main": 2})
    queues.wish("mine", {"main": 1})
    queues.wish("mine", {"main": 2})
    made = cycle(state, queues, 3.0)
    assert ([one.key for one in made.resized], victims(made), made.more) == (["beside"], [], True)
    made = cycle(state, queues, 3.0)
    assert (victims(made), made.more) == ([("mine", ["theirs"])], False)


def test_so_it_is_where_a_pod_that_no_workload_answers_for_makes_its_queue_borrow():
    state, queues = shared()
    assert queues.charge_pod("ns/left", Held("b", {("tas", GPU): 8}))
    assert victims(cycle(state, queues, 3.0)) == [("mine", ["theirs"])]


def test_one_that_waits_hears_of_such_a_pod_too():
    state, queues = shared()
    queues.remove_workload(state, "mine")
    submit(queues, make_workload("waits", "a", 2, created=1.0), now=3.0)
    assert (keys(made := cycle(state, queues, 3.0)), victims(made)) == ([], [])
    assert not queues.charge_pod("ns/own", Held("b", {}))
    assert not cycle(state, queues, 3.0).preempting
    assert queues.charge_pod("ns/left", Held("b", {("tas", GPU): 8}))
    assert [key for key, _ in victims(cycle(state, queues, 3.0))] == ["waits"]


def test_so_it_is_where_one_is_admitted_and_nobody_says_when_that_is_stored():
    state, queues = shared()
    submit(queues, make_workload("late", "b", created=3.0), now=3.0)
    assert keys(cycle(state, queues, 3.0)) == ["late"]
    assert victims(cycle(state, queues, 4.0)) == [("mine", ["theirs"])]


def test_what_a_claim_kept_of_quota_alone_goes_to_growth_once_its_workload_is_gone():
    state = make_state(1, 1)
    queues = make_queues(make_queue("q", 32, **PLAIN), rules=Rules(patience=10.0))
    queues.set_flavor(PlainFlavor(name="plain"))
    for key in ("svc", "other"):
        submit(queues, make_workload(key, level=None))
        assert keys(run(state, queues)) == [key]
    submit(queues, make_workload("large", count=3, level=None, priority=5, created=1.0), now=1.0)
    run(state, queues, 1.0)
    queues.wish("svc", {"main": 2})
    for now in (12.0, 13.0):
        assert not cycle(state, queues, now).resized
    assert list(queues.claims) == ["large"]
    assert "svc" in queues.growing
    queues.remove_workload(state, "large")
    assert [one.counts for one in cycle(state, queues, 14.0).resized] == [{"main": 2}]


def test_what_was_kept_for_a_successor_goes_to_growth_once_its_workload_is_gone():
    state, queues = make_state(1, 4), make_queues(make_queue("a", 64))
    for key in ("svc", "leaves"):
        submit(queues, make_workload(key, "a", 1 if key == "svc" else 2))
        assert keys(run(state, queues)) == [key]
    queues.holders.mark_leaving("leaves")
    submit(queues, make_workload("large", "a", 3, priority=5, created=1.0), now=2.0)
    run(state, queues, 2.0)
    assert list(queues.successors) == ["large"]
    queues.wish("svc", {"main": 2})
    assert not cycle(state, queues, 3.0).resized
    queues.remove_workload(state, "large")
    cycle(state, queues, 4.0)
    assert queues.entries["svc"].grant.counts == {"main": 2}
