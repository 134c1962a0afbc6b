"""Where not all pods fit by which a workload grows, and nobody is evicted for them, it gets as many as do."""

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
    submit,
)

from engine.model import Policy, SliceLayer, TopologyRequest
from engine.reasons import Reason
from queueing.cycle.cycle import cycle
from queueing.model import Preemption, Within

LOWER = Preemption(within=Within.LOWER)


def world(hosts=5, nominal=800, preemption=LOWER, **more):
    state, queues = make_state(1, hosts), make_queues(make_queue("q", nominal, preemption=preemption))
    submit(queues, make_workload("svc", **{"count": 2, "one_by_one": True, **more}))
    assert keys(cycle(state, queues, 1.0)) == ["svc"]
    return state, queues


def counts(made):
    return [dict(one.counts) for one in made.resized]


def grow(state, queues, to, now=2.0):
    queues.wish("svc", {"main": to})
    return cycle(state, queues, now)


@pytest.mark.parametrize("hosts", [3, 4, 5])
def test_a_service_gets_as_many_pods_as_there_is_room_for(hosts):
    state, queues = world(hosts)
    made = grow(state, queues, 6)
    assert counts(made) == [{"main": hosts}]
    assert made.resized[0].refusal is not None
    assert queues.growing["svc"][0] == {"main": 6}
    assert queues.entries["svc"].refusal.reason is Reason.NEVER_FITS
    assert (cycle(state, queues, 3.0).resized, queues.quotas.used("q", ("tas", GPU))) == ([], 8 * hosts)


def test_it_gets_the_others_when_there_is_room():
    state, queues = world(8)
    submit(queues, *(make_workload(f"other{i}", priority=5, created=2.0) for i in range(4)))
    assert len(keys(cycle(state, queues, 1.5))) == 4
    assert counts(grow(state, queues, 6)) == [{"main": 4}]
    queues.remove_workload(state, "other0")
    assert counts(cycle(state, queues, 3.0)) == [{"main": 5}]
    queues.remove_workload(state, "other1")
    assert counts(cycle(state, queues, 4.0)) == [{"main": 6}]
    assert queues.growing == {}


def test_quota_is_room_too():
    state, queues = world(nominal=32)
    assert counts(grow(state, queues, 5)) == [{"main": 4}]
    assert queues.entries["svc"].refusal.reason is Reason.INSUFFICIENT_QUOTA


def test_where_others_can_be_evicted_for_all_of_it_they_are():
    state, queues = world(6, priority=10)
    submit(queues, make_workload("batch", count=2, created=2.0))
    cycle(state, queues, 1.5)
    made = grow(state, queues, 6)
    assert ([plan.key for plan in made.preempting], made.resized) == (["svc"], [])


def test_a_gang_that_needs_all_gets_all_or_nothing():
    state, queues = world(one_by_one=False)
    assert grow(state, queues, 6).resized == []


@pytest.mark.parametrize(("hosts", "found"), [(3, []), (4, [{"main": 4}]), (5, [{"main": 4}]), (7, [{"main": 6}])])
def test_of_a_pod_set_with_slices_whole_ones(hosts, found):
    topology = TopologyRequest(policy=Policy.REQUIRED, level=RACK, slices=(SliceLayer(level=RACK, size=2),))
    state, queues = world(hosts, pod_sets=(msgspec.structs.replace(make_pod_set(2), topology=topology),))
    assert counts(grow(state, queues, 8)) == found


def test_several_pod_sets_that_grow_get_all_or_nothing():
    state, queues = world(pod_sets=tuple(make_pod_set(1, name=name, level=None) for name in ("a", "b")))
    queues.wish("svc", {"a": 4, "b": 4})
    assert cycle(state, queues, 2.0).resized == []
    queues.wish("svc", {"a": 1, "b": 9})
    assert counts(cycle(state, queues, 3.0)) == [{"a": 1, "b": 4}]


def test_who_waits_before_it_is_not_passed():
    state, queues = world(4)
    submit(queues, make_workload("high", count=2, priority=3, created=2.0))
    made = grow(state, queues, 6)
    assert (keys(made), made.resized, made.preempting) == (["high"], [], [])


def test_it_is_looked_at_when_nothing_keeps_it_off_nodes_any_more():
    """A node that refused one of its pods is left out for a while; no room comes free when that ends."""
    state, queues = world(3)
    here = state.nodes[state.assignments("svc")["main"].slices[0].nodes[0][0]]
    one_node = make_pod_set(2, node_selector={"kubernetes.io/hostname": here.labels["kubernetes.io/hostname"]})
    submit(queues, make_workload("svc", pod_sets=(one_node,), one_by_one=True))
    assert counts(grow(state, queues, 3)) == []
    submit(queues, make_workload("svc", count=2, one_by_one=True))
    assert counts(cycle(state, queues, 3.0)) == [{"main": 3}]
