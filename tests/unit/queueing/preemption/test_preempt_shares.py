"""Victims where shares of domains are limited: those count no more, and room is made where one more may go."""

from msgspec.structs import replace
from support.queue_factories import (
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

from engine.model import Policy, ShareLimits, ShareRule, TopologyRequest
from queueing.model import Preemption, Within

HALF = ShareLimits(rules=(ShareRule(level=RACK, most=400),), key="app", values=("main",))


def limited(key, *, priority=0, count=2, app="main", shares=HALF, rack=None, **more):
    """One workload of a whole rack of two nodes."""
    topology = TopologyRequest(policy=Policy.REQUIRED, level=RACK, shares=shares)
    pods = replace(make_pod_set(count, gpu=8), labels={"app": app}, topology=topology)
    if rack is not None:
        pods = replace(pods, node_selector={RACK: rack})
    return make_workload(key, priority=priority, pod_sets=(pods,), **more)


def world(racks=2):
    return make_state(racks, 2), make_queues(make_queue("q", 64, preemption=Preemption(within=Within.LOWER)))


def test_the_victim_is_in_the_rack_that_may_take_one_more():
    state, queues = world()
    submit(queues, limited("ns/main", priority=1, rack="tas-r0"), limited("ns/other", app="else", shares=None))
    run(state, queues)
    submit(queues, limited("ns/new", priority=9))
    (plan,) = run(state, queues, now=2.0).preempting
    assert [victim.key for victim in plan.victims] == ["ns/other"]


def test_one_of_its_own_kind_may_be_the_victim_that_opens_its_rack():
    # With it gone nothing is left that counts, and the other rack is full of what may not be evicted.
    state, queues = world()
    submit(
        queues,
        limited("ns/main", rack="tas-r0"),
        limited("ns/other", app="else", shares=None, priority=9, rack="tas-r1"),
    )
    run(state, queues)
    submit(queues, limited("ns/new", priority=5))
    (plan,) = run(state, queues, now=2.0).preempting
    assert [victim.key for victim in plan.victims] == ["ns/main"]


def test_nobody_is_evicted_where_the_share_would_forbid_it_all_the_same():
    state, queues = world()
    fixed = limited("ns/main", priority=9, rack="tas-r0", count=1)
    submit(queues, fixed, limited("ns/low", app="else", shares=None, rack="tas-r0", count=1))
    submit(queues, limited("ns/high", priority=9, app="else", shares=None, rack="tas-r1"))
    assert len(keys(run(state, queues))) == 3
    submit(queues, limited("ns/new", priority=5, count=1))
    decided = run(state, queues, now=2.0)
    assert not decided.preempting
    assert "rack tas-r0 has 1 of 1 that belong together, more than 40%" in decided.waiting[0].message
