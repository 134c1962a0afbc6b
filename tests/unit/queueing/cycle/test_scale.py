"""Workloads that change while they hold something: elastic, reclaimable, moved."""

import msgspec
import pytest
from support.queue_factories import (
    GPU,
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
from engine.placement.place import replace
from engine.reasons import Reason
from engine.results import Refusal
from queueing.cycle.elastic import Resized, reclaim, resize, sized
from queueing.queues.entry import Phase

KEY = ("tas", GPU)


def running(nominal=32, *, count=2, level=RACK, **more):
    state, queues = make_state(2, 4), make_queues(make_queue("q", nominal, **more))
    submit(queues, make_workload("w", count=count, level=level))
    assert keys(run(state, queues)) == ["w"]
    return state, queues


def racks(state, key="w"):
    return {piece.values[0] for piece in state.assignments(key)["main"].slices}


def test_more_pods_stay_in_the_rack_and_take_quota():
    state, queues = running()
    found = resize(state, queues, "w", {"main": 4})
    assert isinstance(found, Resized)
    assert (found.counts, found.grant.amounts) == ({"main": 4}, {KEY: 32})
    assert len(racks(state)) == 1
    assert queues.quotas.available("q", KEY) == 0
    assert resize(state, queues, "w", {"main": 4}) is None


@pytest.mark.parametrize(("nominal", "reason"), [(16, Reason.INSUFFICIENT_QUOTA), (64, Reason.NEVER_FITS)])
def test_more_pods_than_quota_or_room_are_refused_and_nothing_changes(nominal, reason):
    state, queues = running(nominal)
    before = state.assignments("w"), queues.entries["w"].grant
    found = resize(state, queues, "w", {"main": 5})
    assert isinstance(found, Refusal)
    assert found.reason is reason
    assert (state.assignments("w"), queues.entries["w"].grant) == before


def test_fewer_pods_give_back_at_once_and_wake_who_waits():
    state, queues = running(16)
    submit(queues, make_workload("next", created=1.0))
    assert keys(run(state, queues)) == []
    assert resize(state, queues, "w", {"main": 1}).counts == {"main": 1}
    assert keys(run(state, queues)) == ["next"]


def test_finished_pods_are_reclaimed_and_never_come_back():
    state, queues = running()
    assert reclaim(state, queues, "w", {"main": 1}).counts == {"main": 1}
    assert reclaim(state, queues, "w", {"main": 1}) is None
    assert reclaim(state, queues, "w", {"main": 2}).counts == {"main": 0}
    assert state.assignments("w") == {}
    assert queues.quotas.available("q", KEY) == 32
    assert queues.entries["w"].phase is Phase.ADMITTED


def test_to_nothing_and_back():
    state, queues = running()
    resize(state, queues, "w", {"main": 0})
    assert resize(state, queues, "w", {"main": 3}).counts == {"main": 3}
    assert sum(part.count for part in state.assignments("w").values()) == 3


def test_a_wish_is_granted_when_something_is_freed_before_anybody_new():
    state, queues = running(32)
    submit(queues, make_workload("other", count=2, created=1.0))
    run(state, queues)
    queues.wish("w", {"main": 3})
    assert run(state, queues).resized == []
    submit(queues, make_workload("new", count=2, created=2.0))
    queues.remove_workload(state, "other")
    found = run(state, queues)
    assert [(one.key, one.counts) for one in found.resized] == [("w", {"main": 3})]
    assert keys(found) == []  # eight are left, and it wants sixteen
    queues.wish("w", {"main": 9})
    queues.wish("w", None)
    assert not queues.growing


def test_both_ways_at_once_gives_back_even_where_growth_is_refused():
    state, queues = make_state(2, 4), make_queues(make_queue("q", 32))
    sets = (make_pod_set(2, name="a"), make_pod_set(2, name="b"))
    submit(queues, make_workload("w", pod_sets=sets))
    run(state, queues)
    found = resize(state, queues, "w", {"a": 1, "b": 9})
    assert isinstance(found.refusal, Refusal)
    assert found.counts == {"a": 1, "b": 2}
    assert queues.quotas.available("q", KEY) == 8


def test_an_auto_level_is_kept_when_it_grows():
    state, queues = make_state(2, 4), make_queues(make_queue("q", 64))
    submit(queues, make_workload("w", pod_sets=(make_pod_set(1, level="auto", policy=Policy.PREFERRED),)))
    run(state, queues)
    assert resize(state, queues, "w", {"main": 6}).counts == {"main": 6}
    assert state.assignments("w")["main"].source.topology.level == HOST


def test_a_pod_set_that_had_no_pods_gets_them_in_the_flavors_of_the_others():
    """A replicated job of a JobSet whose Jobs were done, and are made again by a restart."""
    state, queues = make_state(2, 4), make_queues(make_queue("q", 32))
    one = make_workload("w", count=2)
    submit(queues, one)
    assert keys(run(state, queues)) == ["w"]
    done = make_pod_set(0, name="done")
    submit(queues, msgspec.structs.replace(one, pod_sets=(*one.pod_sets, done)))
    found = resize(state, queues, "w", {"main": 2, "done": 1})
    assert isinstance(found, Resized)
    assert (found.counts, found.grant.amounts) == ({"main": 2, "done": 1}, {KEY: 24})
    assert found.grant.flavors["done"] == {GPU: "tas"}
    again = resize(state, queues, "w", {"main": 2, "done": 0})
    assert isinstance(again, Resized)
    assert again.grant.amounts == {KEY: 16}


def test_a_pod_set_whose_flavor_nobody_knows_waits_until_it_is_admitted_anew():
    state, queues = make_state(2, 4), make_queues(make_queue("q", 32))
    one = make_workload("w", count=2)
    submit(queues, one)
    run(state, queues)
    grant = queues.entries["w"].grant
    queues.entries["w"].grant = msgspec.structs.replace(grant, flavors={"main": {}})
    submit(queues, msgspec.structs.replace(one, pod_sets=(*one.pod_sets, make_pod_set(0, name="done"))))
    found = resize(state, queues, "w", {"done": 1})
    assert isinstance(found, Refusal)
    assert found.reason is Reason.INSUFFICIENT_QUOTA
    assert "done" in found.message


def test_only_admitted_ones_with_known_pod_sets_are_resized():
    state, queues = running()
    with pytest.raises(ValueError, match="no pod set nope"):
        resize(state, queues, "w", {"nope": 1})
    with pytest.raises(ValueError, match="is not admitted"):
        resize(state, queues, "gone", {"main": 1})


def test_slices_stay_whole_as_a_workload_changes():
    state, queues = make_state(3, 2), make_queues(make_queue("q", 64))
    slices = TopologyRequest(policy=Policy.UNCONSTRAINED, slices=(SliceLayer(level=RACK, size=2),))
    pod_set = msgspec.structs.replace(make_pod_set(2), topology=slices)
    submit(queues, make_workload("w", pod_sets=(pod_set,)))
    assert keys(run(state, queues)) == ["w"]
    assert isinstance(resize(state, queues, "w", {"main": 3}), Resized)
    assert len(racks(state)) == 2, "the last slice is a part of one"
    assert isinstance(resize(state, queues, "w", {"main": 4}), Resized)
    assert [piece.count for piece in state.assignments("w")["main"].slices] == [1, 1, 1, 1]
    assert len(racks(state)) == 2
    assert isinstance(resize(state, queues, "w", {"main": 2}), Resized)
    assert len(racks(state)) == 1
    (lost, _) = (piece.nodes[0][0] for piece in state.assignments("w")["main"].slices)
    refusal = replace(state, "w", sized(queues.entries["w"], state.assignments("w")["main"].levels, "main", 2), {lost})
    assert isinstance(refusal, Refusal)  # the rack has two nodes, and the rest of the slice is there
