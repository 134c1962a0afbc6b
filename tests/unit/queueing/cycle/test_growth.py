"""An admitted workload that wants more pods makes room for them, under the rules of its queue."""

import msgspec
import pytest
from support.queue_factories import (
    GPU,
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

from engine.cluster.assignment import Slice, with_slices
from engine.model import Policy
from engine.reasons import Reason
from engine.reservation_key import ReservationKey
from queueing.cycle.growth import hold_growth
from queueing.model import NonPreemptible, PlainFlavor, Preemption, Reclaim, Within
from queueing.preemption.plan import PlannedVictim
from queueing.queues.entry import Phase
from queueing.status import standings

KEY = ("tas", GPU)
LOWER = Preemption(within=Within.LOWER)


def world(*workloads, nominal=64, preemption=LOWER, racks=2, hosts=4, **more):
    state, queues = make_state(racks, hosts), make_queues(make_queue("q", nominal, preemption=preemption, **more))
    for workload in workloads:
        submit(queues, workload)
        assert keys(run(state, queues)) == [workload.key]
    run(state, queues)
    return state, queues


def service(count=2, *, level=RACK, priority=10, **more):
    return make_workload("ns/service", count=count, level=level, priority=priority, **more)


def batch(name, count, *, created=1.0, **more):
    return make_workload(f"ns/{name}", count=count, created=created, **more)


def nodes(state, key):
    return {name for piece in state.assignments(key)["main"].slices for name, _ in piece.nodes}


def racks(state, key):
    return {piece.values[0] for piece in state.assignments(key)["main"].slices}


def grow(state, queues, count):
    queues.wish("ns/service", {"main": count})
    return run(state, queues, now=2.0)


def test_who_grows_evicts_in_its_own_rack_and_gets_that_room():
    state, queues = world(service(), batch("here", 2), batch("there", 2), racks=2)
    assert racks(state, "ns/service") == racks(state, "ns/here") != racks(state, "ns/there")
    made = grow(state, queues, 4)
    (plan,) = made.preempting
    assert (plan.key, plan.grows, [victim.key for victim in plan.victims]) == ("ns/service", True, ["ns/here"])
    assert (plan.grant.counts, plan.grant.amounts) == ({"main": 2}, {KEY: 16})
    assert made.resized == []
    before = nodes(state, "ns/service")
    room = nodes(state, ReservationKey.for_growth("ns/service"))
    assert room == nodes(state, "ns/here")
    queues.release_and_requeue(state, "ns/here", 3.0)
    (resized,) = run(state, queues, now=3.0).resized
    assert (resized.counts, resized.grant.amounts) == ({"main": 4}, {KEY: 32})
    assert nodes(state, "ns/service") == before | room
    assert (set(queues.entries), queues.growing) == ({"ns/service", "ns/here", "ns/there"}, {})
    assert queues.entries["ns/here"].grant is not None, "it finds room in the other rack"


def test_the_room_is_kept_until_the_last_victim_is_gone():
    state, queues = world(service(), batch("one", 1), batch("two", 1), racks=1)
    (plan,) = grow(state, queues, 4).preempting
    assert {victim.key for victim in plan.victims} == {"ns/one", "ns/two"}
    queues.release_and_requeue(state, "ns/one", 3.0, until=50.0)
    submit(queues, make_workload("ns/quick", count=1, priority=5))
    made = run(state, queues, now=3.0)
    assert (keys(made), made.resized, made.preempting) == ([], [], [])
    queues.release_and_requeue(state, "ns/two", 4.0, until=50.0)
    assert [one.counts for one in run(state, queues, now=4.0).resized] == [{"main": 4}]


def test_quota_alone_is_made_free_too():
    state, queues = world(service(), batch("batch", 2), nominal=32)
    (plan,) = grow(state, queues, 3).preempting
    assert [(victim.key, victim.reason) for victim in plan.victims] == [("ns/batch", Reason.IN_CLUSTER_QUEUE)]


def test_a_flavor_without_a_topology_is_quota_alone():
    state, queues = make_state(1, 1), make_queues(make_queue("q", 32, flavors=("plain",), preemption=LOWER))
    queues.set_flavor(PlainFlavor(name="plain"))
    submit(queues, service(level=None))
    run(state, queues)
    submit(queues, batch("batch", 2, level=None))
    run(state, queues)
    (plan,) = grow(state, queues, 3).preempting
    assert (plan.grant.counts, plan.grant.amounts, plan.grant.assignments) == ({"main": 1}, {("plain", GPU): 8}, ())
    queues.release_and_requeue(state, "ns/batch", 3.0, until=50.0)
    (resized,) = run(state, queues, now=3.0).resized
    assert (resized.counts, resized.grant.amounts) == ({"main": 3}, {("plain", GPU): 24})
    assert queues.growing == {}


def test_one_that_is_being_stored_is_a_victim_as_soon_as_it_is():
    state, queues = make_state(1, 4), make_queues(make_queue("q", 64, preemption=LOWER))
    submit(queues, service(), batch("here", 2))
    assert keys(run(state, queues)) == ["ns/service", "ns/here"]
    queues.stores("ns/here")
    assert grow(state, queues, 4).preempting == []
    assert run(state, queues, now=3.0).preempting == [], "it is not looked at again before"
    assert queues.stored("ns/here")
    (plan,) = run(state, queues, now=4.0).preempting
    assert [victim.key for victim in plan.victims] == ["ns/here"]


def test_nobody_is_asked_again_for_every_admission_that_is_stored():
    state, queues = world(service(4), batch("there", 4), preemption=Preemption())
    grow(state, queues, 6)
    seen = queues.growing["ns/service"]
    submit(queues, make_workload("ns/other", count=1, created=3.0, level=None))
    run(state, queues, now=3.0)
    queues.stores("ns/other")
    assert not queues.stored("ns/other")
    assert queues.growing["ns/service"] == seen


def test_a_pod_set_that_the_workload_has_no_more_is_wished_for_no_more():
    two = (make_pod_set(1, name="a"), make_pod_set(1, name="b"))
    state, queues = world(make_workload("ns/service", pod_sets=two, priority=10), batch("here", 2), racks=1)
    submit(queues, make_workload("ns/service", pod_sets=two[:1], priority=10))
    queues.wish("ns/service", {"a": 2, "b": 2})
    made = run(state, queues, now=2.0)
    assert made.failed == []
    assert [one.grant.counts for one in made.preempting] == [{"a": 1}]


def test_who_is_told_to_go_gets_nothing_more_and_goes_on_leaving():
    state, queues = make_state(1, 5), make_queues(make_queue("q", 64, preemption=LOWER))
    submit(queues, service(2), batch("b", 2, priority=5))
    run(state, queues)
    run(state, queues)
    queues.wish("ns/service", {"main": 4})
    queues.wish("ns/b", {"main": 3})
    made = run(state, queues, now=2.0)
    assert ([one.key for one in made.preempting], made.resized) == (["ns/service"], [])
    assert queues.quotas.held["ns/b"].leaving
    queues.wish("ns/b", {"main": 3})
    assert run(state, queues, now=3.0).resized == []


def test_who_waits_is_told_of_a_workload_and_its_growth_as_one():
    state, queues = world(service(), batch("here", 2), racks=1, nominal=32)
    grow(state, queues, 4)
    submit(queues, make_workload("ns/waits", count=1, created=5.0))
    run(state, queues, now=3.0)
    assert "growth" not in queues.entries["ns/waits"].refusal.message


def test_growth_follows_its_queues_word_on_who_is_nobodys_victim():
    by_class = make_workload("ns/service", count=2, level=RACK, priority=10, non_preemptible=NonPreemptible.BY_CLASS)
    state, queues = world(by_class, batch("here", 2), racks=1)
    grow(state, queues, 4)
    assert set(queues.holders.non_preemptible) == {"ns/service", ReservationKey.for_growth("ns/service")}
    said = Preemption(within=Within.LOWER, non_preemptible=NonPreemptible.NEVER)
    queues.set_cluster_queue(make_queue("q", 64, preemption=said))
    assert queues.holders.non_preemptible == {}


def test_who_borrows_gives_back_to_who_grows_within_its_own():
    reclaims = Preemption(reclaim=Reclaim.ANY)
    state = make_state(2, 2)
    queues = make_queues(make_queue("q", 16, cohort="x", preemption=reclaims), make_queue("other", 16, cohort="x"))
    submit(queues, make_workload("ns/service", count=1, level=None))
    run(state, queues)
    submit(queues, *(make_workload(f"ns/b{i}", "other", count=1, level=None) for i in range(3)))
    run(state, queues)
    (plan,) = grow(state, queues, 2).preempting
    assert [victim.reason for victim in plan.victims] == [Reason.RECLAIMED]
    assert grow(state, queues, 3).preempting == [], "a third would borrow itself"


@pytest.mark.parametrize("preemption", [Preemption(), Preemption(reclaim=Reclaim.ANY)])
def test_nobody_is_evicted_where_the_queue_does_not_say_so(preemption):
    state, queues = world(service(), batch("here", 2), preemption=preemption, racks=1)
    assert grow(state, queues, 4).preempting == []
    assert queues.entries["ns/service"].refusal.reason is Reason.DOES_NOT_FIT


def test_nobody_of_the_same_priority_or_a_higher_one_is_evicted():
    state, queues = world(service(), batch("equal", 1, priority=10), batch("high", 1, priority=11), racks=1)
    assert grow(state, queues, 4).preempting == []


def test_it_does_not_evict_in_another_rack_than_its_own():
    state, queues = world(service(4), batch("there", 4), racks=2)
    assert grow(state, queues, 6).preempting == []


def test_a_preferred_level_may_be_left():
    four = make_workload("ns/service", pod_sets=(make_pod_set(4, policy=Policy.PREFERRED),), priority=10)
    state, queues = world(four, batch("there", 4), racks=2)
    (plan,) = grow(state, queues, 6).preempting
    assert [victim.key for victim in plan.victims] == ["ns/there"]


def test_who_wants_fewer_after_all_lets_its_victims_stay():
    state, queues = world(service(), batch("here", 2), racks=1)
    grow(state, queues, 4)
    assert "ns/here" in queues.holders.evicting
    queues.wish("ns/service", None)
    made = run(state, queues, now=3.0)
    assert [(one.key, one.grows) for one in made.given_up] == [("ns/service", True)]
    assert (queues.holders.evicting, queues.holders.nominated) == ({}, {})
    assert ReservationKey.for_growth("ns/service") not in queues.entries
    assert queues.quotas.available("q", KEY) == 64 - 32


def test_who_wants_still_more_gets_what_was_made_free_and_goes_on():
    state, queues = world(service(1), batch("one", 1), batch("two", 1, created=2.0), racks=1, hosts=3)
    (plan,) = grow(state, queues, 2).preempting
    assert grow(state, queues, 3).preempting == []
    queues.release_and_requeue(state, plan.victims[0].key, 3.0, until=50.0)
    made = run(state, queues, now=3.0)
    assert [one.counts for one in made.resized] == [{"main": 2}]
    assert [len(one.victims) for one in made.preempting] == [1]


def test_who_is_evicted_itself_gives_up_its_growth():
    state, queues = world(service(), batch("here", 2), racks=1)
    grow(state, queues, 4)
    queues.release_and_requeue(state, "ns/service", 3.0, until=50.0)
    assert ReservationKey.for_growth("ns/service") not in queues.entries
    assert queues.holders.evicting == {}
    assert queues.quotas.available("q", KEY) == 64 - 16


def test_a_restart_goes_on_where_the_growth_stood():
    state, queues = world(service(), batch("here", 2), racks=1)
    (plan,) = grow(state, queues, 4).preempting
    more = queues.entries[ReservationKey.for_growth("ns/service")].workload
    again, fresh = make_state(1, 4), make_queues(make_queue("q", 64, preemption=LOWER))
    for key in ("ns/service", "ns/here"):
        entry = queues.entries[key]
        fresh.restore_workload(again, entry.workload, entry.grant, 3.0)
    hold_growth(again, fresh, more, plan.grant, ["ns/here"], {}, stored=True)
    made = run(again, fresh, now=3.0)
    assert (made.preempting, made.resized, made.given_up) == ([], [], [])
    assert "ns/here" in fresh.holders.evicting
    fresh.remove_workload(again, "ns/here")
    assert [one.counts for one in run(again, fresh, now=4.0).resized] == [{"main": 4}]


def test_after_a_restart_what_it_got_beside_its_pods_of_the_same_host_is_charged():
    state, queues = world(service(1, gpu=2), batch("here", 1, gpu=6), racks=1, hosts=1)
    (plan,) = grow(state, queues, 2).preempting
    more = queues.entries[ReservationKey.for_growth("ns/service")].workload
    again, fresh = make_state(1, 1), make_queues(make_queue("q", 64, preemption=LOWER))
    entry = queues.entries["ns/service"]
    fresh.restore_workload(again, entry.workload, entry.grant, 3.0)
    # A nomination is stored with its domains, and without the nodes in them.
    (part,) = plan.grant.assignments
    bare = with_slices(part, [Slice(piece.values, piece.count) for piece in part.slices])
    hold_growth(again, fresh, more, msgspec.structs.replace(plan.grant, assignments=(bare,)), [], {}, stored=True)
    submit(fresh, batch("late", 1, gpu=6))
    made = run(again, fresh, now=4.0)
    assert ([one.counts for one in made.resized], keys(made)) == ([{"main": 2}], []), "4 of 8 GPUs are left"
    (piece,) = again.assignments("ns/service")["main"].slices
    assert [count for _, count in piece.nodes] == [piece.count] == [2]


def test_room_that_was_lost_meanwhile_is_looked_for_again():
    state, queues = world(service(), batch("here", 1), batch("near", 1, created=2.0), racks=1)
    (plan,) = grow(state, queues, 3).preempting
    (lost,) = nodes(state, ReservationKey.for_growth("ns/service"))
    state.remove_node(lost)
    queues.release_and_requeue(state, plan.victims[0].key, 3.0, until=50.0)
    made = run(state, queues, now=3.0)
    assert [(one.key, one.grows) for one in made.given_up] == [("ns/service", True)]
    assert [[victim.key for victim in one.victims] for one in made.preempting] == [["ns/here"]]


def test_pods_that_ask_for_more_than_was_granted_evict_nobody():
    state, queues = world(service(2, gpu=4), batch("here", 2), racks=1, hosts=3)
    submit(queues, service(2, gpu=8))
    assert grow(state, queues, 3).preempting == []


def test_its_queue_counts_what_is_kept_and_one_workload():
    state, queues = world(service(), batch("here", 2), racks=1)
    grow(state, queues, 4)
    standing = standings(queues, ["tas"]).cluster["q"]
    assert (standing.admitted, standing.reserving, standing.pending) == (2, 2, 0)
    assert (standing.used[KEY], standing.reserved[KEY]) == (32, 48)


def test_many_who_grow_in_vain_do_not_hold_up_a_cycle():
    state, queues = make_state(1, 4), make_queues(make_queue("q", 64, preemption=LOWER))
    for i in range(4):
        submit(queues, make_workload(f"ns/w{i}", count=1, priority=i))
    run(state, queues)
    for i in range(4):
        queues.wish(f"ns/w{i}", {"main": 2})
    before = queues.searches
    made = run(state, queues, now=2.0, limit=1)
    assert queues.searches > before
    assert not made.more
    assert [queues.entries[f"ns/w{i}"].phase for i in range(4)] == [Phase.ADMITTED] * 4
    assert all(isinstance(victim, PlannedVictim) for one in made.preempting for victim in one.victims)
