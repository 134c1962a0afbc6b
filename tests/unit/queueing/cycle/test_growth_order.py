"""Who grows takes its place among those who wait: it passes nobody who would evict it for that."""

import msgspec
import pytest
from support.queue_factories import (
    HOST,
    RACK,
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
from queueing.cycle import elastic
from queueing.cycle.cycle import cycle
from queueing.model import Preemption, Reclaim, Rules, Within

LOWER = Preemption(within=Within.LOWER)
RECLAIM = Preemption(reclaim=Reclaim.ANY)


def world(racks=1, hosts=4, preemption=LOWER):
    return make_state(racks, hosts), make_queues(make_queue("q", 800, preemption=preemption))


def gang(count, size=2):
    """Rack by rack in slices, which go one by one."""
    slices = (SliceLayer(level=RACK, size=size),)
    topology = TopologyRequest(policy=Policy.UNCONSTRAINED, level=None, slices=slices)
    pod_set = msgspec.structs.replace(make_pod_set(count, level=None), topology=topology)
    return make_workload("svc", pod_sets=(pod_set,), by_slices=True)


def admitted(state, queues, *workloads, now=1.0):
    for workload in workloads:
        submit(queues, workload, now=now)
        assert keys(cycle(state, queues, now)) == [workload.key]


def blocker(count=2, **more):
    return make_workload("blocker", count=count, priority=5, created=2.0, **more)


def nodes(state, key):
    return {name for piece in state.assignments(key)["main"].slices for name, _ in piece.nodes}


def is_spared(made):
    """Nobody lost anything, and who grows waits."""
    return (made.preempting, made.evict, made.resized, made.failed) == ([], [], [], [])


def test_who_waits_with_a_higher_priority_gets_what_becomes_free():
    state, queues = world()
    admitted(state, queues, make_workload("svc", count=2), blocker())
    queues.wish("svc", {"main": 4})
    assert is_spared(cycle(state, queues, 4.0))
    submit(queues, make_workload("high", count=2, priority=3, created=4.0))
    queues.remove_workload(state, "blocker")
    made = cycle(state, queues, 5.0)
    assert keys(made) == ["high"]
    assert is_spared(made)
    queues.remove_workload(state, "high")
    assert [one.counts for one in cycle(state, queues, 6.0).resized] == [{"main": 4}]


@pytest.mark.parametrize("waited", [1.0, 400.0])
def test_so_it_does_where_its_room_is_claimed_softly(waited):
    state, queues = world()
    admitted(state, queues, make_workload("svc"), make_workload("other", priority=5, created=2.0), blocker())
    submit(queues, make_workload("high", count=2, priority=3, created=3.0), now=3.0)
    queues.wish("svc", {"main": 2})
    cycle(state, queues, 3.0)
    cycle(state, queues, 3.0 + waited)
    assert [claim.soft for claim in queues.claims.values()] == [True] * (waited > 300)
    queues.remove_workload(state, "blocker")
    made = cycle(state, queues, 4.0 + waited)
    assert keys(made) == ["high"]
    assert is_spared(made)


@pytest.mark.parametrize(("preemption", "grows"), [(LOWER, False), (Preemption(), True)])
def test_what_is_claimed_softly_by_one_who_may_evict_it_is_closed_to_who_grows(preemption, grows):
    state, queues = world(hosts=5, preemption=preemption)
    others = [make_workload(f"other{i}", priority=5, created=2.0) for i in range(4)]
    admitted(state, queues, make_workload("svc"), *others)
    submit(queues, make_workload("high", count=3, priority=3, created=3.0), now=3.0)
    cycle(state, queues, 3.0)
    cycle(state, queues, 400.0)
    assert [claim.soft for claim in queues.claims.values()] == [True]
    queues.remove_workload(state, "other0")
    queues.wish("svc", {"main": 2})
    assert bool(cycle(state, queues, 401.0).resized) == grows
    queues.remove_workload(state, "other1")
    queues.remove_workload(state, "other2")
    made = cycle(state, queues, 402.0)
    assert (keys(made), is_spared(made)) == ([] if grows else ["high"], True)


def test_a_gang_by_slices_does_not_grow_into_the_rack_where_its_other_slice_runs():
    state, queues = world()
    admitted(state, queues, gang(2), blocker())
    queues.wish("svc", {"main": 4})
    submit(queues, make_workload("high", count=2, priority=3, created=4.0))
    queues.remove_workload(state, "blocker")
    made = cycle(state, queues, 5.0)
    assert (keys(made), queues.holders.losing) == (["high"], {})
    assert is_spared(made)


def test_a_gang_by_slices_regrows_in_no_rack_that_it_would_lose_at_once():
    state, queues = world(racks=2, hosts=2)
    admitted(state, queues, gang(4))
    submit(queues, blocker())
    (plan,) = cycle(state, queues, 2.0).preempting
    assert [len(victim.domains) for victim in plan.victims] == [1]
    assert elastic.lose(state, queues, "svc") is not None
    queues.wish("svc", {"main": 4})
    assert keys(cycle(state, queues, 3.0)) == ["blocker"]
    before = nodes(state, "svc")
    submit(queues, make_workload("high", count=2, priority=3, created=4.0))
    queues.remove_workload(state, "blocker")
    made = cycle(state, queues, 5.0)
    assert (keys(made), queues.holders.losing, nodes(state, "svc")) == (["high"], {}, before)
    assert is_spared(made)


def test_an_owner_within_its_own_quota_comes_before_who_borrows_to_grow():
    state = make_state(1, 3)
    queues = make_queues(
        make_queue("qa", 8, cohort="x", preemption=RECLAIM), make_queue("qb", 16, cohort="x", preemption=RECLAIM)
    )
    admitted(state, queues, make_workload("svc", "qa", count=2, priority=5))
    admitted(state, queues, make_workload("blocker", "qb", created=2.0))
    queues.wish("svc", {"main": 3})
    assert is_spared(cycle(state, queues, 3.0))
    queues.remove_workload(state, "blocker")
    submit(queues, make_workload("owner", "qb", created=4.0))
    made = cycle(state, queues, 4.0)
    assert keys(made) == ["owner"]
    assert is_spared(made)


def test_of_two_who_grow_the_one_within_its_own_quota_comes_first():
    state = make_state(1, 4)
    queues = make_queues(
        make_queue("qa", 8, cohort="x", preemption=RECLAIM), make_queue("qb", 24, cohort="x", preemption=RECLAIM)
    )
    admitted(state, queues, make_workload("svc", "qa", priority=5), make_workload("owner", "qb", created=2.0))
    admitted(state, queues, make_workload("blocker", "qb", count=2, created=3.0))
    queues.wish("svc", {"main": 3})
    queues.wish("owner", {"main": 3})
    assert is_spared(cycle(state, queues, 3.0))
    queues.remove_workload(state, "blocker")
    made = cycle(state, queues, 4.0)
    assert ([one.key for one in made.resized], made.preempting) == (["owner"], [])


def test_with_fair_sharing_the_least_share_comes_first():
    state = make_state(1, 4)
    queues = make_queues(
        *(make_queue(name, 8, cohort="x", preemption=RECLAIM) for name in ("qa", "qb")),
        make_queue("lender", 16, cohort="x"),
        rules=Rules(fair=True),
    )
    admitted(state, queues, make_workload("svc", "qa", count=2, priority=5))
    admitted(state, queues, make_workload("blocker", "lender", count=2, created=2.0))
    queues.wish("svc", {"main": 4})
    assert is_spared(cycle(state, queues, 3.0))
    queues.remove_workload(state, "blocker")
    submit(queues, make_workload("least", "qb", count=2, created=4.0))
    made = cycle(state, queues, 4.0)
    assert keys(made) == ["least"]
    assert is_spared(made)


def test_who_comes_before_those_who_wait_still_grows_before_them():
    state, queues = world()
    admitted(state, queues, make_workload("svc", count=2, priority=10), blocker())
    queues.wish("svc", {"main": 4})
    submit(queues, make_workload("high", count=2, priority=9, created=4.0))
    assert keys(cycle(state, queues, 4.0)) == []
    queues.remove_workload(state, "blocker")
    made = cycle(state, queues, 5.0)
    assert ([one.key for one in made.resized], keys(made), made.preempting) == (["svc"], [], [])


def test_in_its_own_queue_priority_decides_also_where_it_borrows():
    state = make_state(1, 4)
    queues = make_queues(make_queue("q", 16, cohort="x", preemption=LOWER), make_queue("other", 16, cohort="x"))
    admitted(state, queues, make_workload("svc", priority=5), make_workload("blocker", "other", count=2))
    queues.wish("svc", {"main": 4})
    queues.remove_workload(state, "blocker")
    submit(queues, make_workload("low", created=4.0))
    made = cycle(state, queues, 5.0)
    assert ([one.key for one in made.resized], keys(made), made.preempting) == (["svc"], [], [])


def test_who_is_not_looked_at_in_this_cycle_is_not_passed_either():
    state, queues = world(hosts=5)
    admitted(state, queues, make_workload("svc", level=HOST), blocker(4, level=RACK))
    queues.wish("svc", {"main": 2})
    names = [make_workload(f"high{i}", priority=3, created=float(i)) for i in range(4)]
    submit(queues, *names)
    queues.remove_workload(state, "blocker")
    found = [cycle(state, queues, 5.0, limit=1) for _ in range(4)]
    assert [keys(made) for made in found] == [["high0"], ["high1"], ["high2"], ["high3"]]
    assert [made.more for made in found[:3]] == [True] * 3
    assert all(is_spared(made) for made in found)


def test_after_a_restart_it_passes_nobody_who_has_waited_long():
    state, queues = world()
    admitted(state, queues, make_workload("svc", count=2, priority=10), now=500.0)
    queues.wish("svc", {"main": 4})
    queues.submit(make_workload("old", count=2, priority=3, created=1.0), 500.0, since=1.0)
    made = cycle(state, queues, 500.0)
    assert ([one.key for one in made.resized], keys(made)) == (["svc"], [])


def test_one_that_grows_in_a_queue_that_was_deleted_stops_nobody_else():
    state, queues = make_state(1, 4), make_queues(make_queue("gone"), make_queue("q"))
    admitted(state, queues, make_workload("lost", "gone", gpu=4), make_workload("grows", gpu=4))
    for key in ("lost", "grows"):
        elastic.resize(state, queues, key, {"main": 0})  # all its pods are done, so the deleted queue uses nothing
        queues.wish(key, {"main": 1})
    queues.remove_cluster_queue("gone")
    submit(queues, make_workload("waits", gpu=4))
    found = cycle(state, queues, 2.0, 64)
    assert not found.failed
    assert keys(found) == ["waits"]
    assert [one.key for one in found.resized] == ["grows"]


@pytest.mark.parametrize(
    ("priority", "queue", "woken"),
    [(0, "q", True), (3, "q", True), (9, "q", False), (0, "b", True), (9, "b", True), (0, "apart", False)],
)
def test_one_that_found_no_victims_is_looked_at_again_once_somebody_is_admitted_who_may_be_one(priority, queue, woken):
    """An admission frees nothing, so nothing else would have its growth tried again."""
    state, mine = make_state(1, 4), Preemption(within=Within.LOWER, reclaim=Reclaim.LOWER)
    queues = make_queues(
        make_queue("q", 32, cohort="c", preemption=mine), make_queue("b", 8, cohort="c"), make_queue("apart", 8)
    )
    submit(queues, make_workload("grows", priority=5), make_workload("blocks", count=2, priority=9))
    run(state, queues)
    for key in ("grows", "blocks"):
        queues.stored(key)
    queues.wish("grows", {"main": 3})
    assert not cycle(state, queues, 2.0).preempting
    assert elastic.eager(queues) == []
    submit(queues, make_workload("later", queue, priority=priority))
    (found,) = cycle(state, queues, 3.0).admitted
    queues.stores(found.key)
    assert elastic.eager(queues) == []
    assert queues.stored(found.key) is woken
    assert elastic.eager(queues) == (["grows"] if woken else [])
