"""Workloads that have each other evicted in a ring stop."""

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

from engine.cluster.state import ClusterState
from queueing.cycle.cycle import cycle
from queueing.model import (
    ClusterQueue,
    FlavorQuotas,
    PlainFlavor,
    Preemption,
    Quota,
    Reclaim,
    ResourceGroup,
    Rules,
    Within,
)
from queueing.queues.eviction_order import EvictionOrder

NIC = "example.com/nic"
TAKES_ALL = Preemption(within=Within.LOWER, reclaim=Reclaim.ANY, borrowing=True)


def make_ring_queue(name, gpus, nics):
    resources = {GPU: Quota(nominal=gpus), NIC: Quota(nominal=nics)}
    groups = (ResourceGroup(resources=(GPU, NIC), flavors=(FlavorQuotas(flavor="plain", resources=resources),)),)
    return ClusterQueue(name=name, groups=groups, cohort="c", preemption=TAKES_ALL)


def make_ring(*, fair=False):
    """``low`` and ``high`` of one queue, ``other`` of another one: any two of them are too many."""
    queues = make_queues(make_ring_queue("q", 4, 4), make_ring_queue("b", 0, 4), rules=Rules(fair=fair))
    queues.set_flavor(PlainFlavor(name="plain"))
    asked = {"low": ("q", 486, 3, 1), "high": ("q", 626, 2, 6), "other": ("b", 776, 4, 6)}
    made = {}
    for at, (name, (queue, priority, gpus, nics)) in enumerate(asked.items()):
        pod_set = msgspec.structs.replace(make_pod_set(level=None), requests={GPU: gpus, NIC: nics})
        made[name] = make_workload(name, queue, pod_sets=(pod_set,), priority=priority, created=float(at))
    return queues, made


def turns(state, queues, most=40):
    """Who evicts whom, cycle by cycle, where victims are gone at once and wait again; no more than ``most``."""
    found = []
    for at in range(most):
        now = 20.0 * at  # a text stays as it is for ten seconds
        decided = cycle(state, queues, now)
        for one in decided.preempting:
            for victim in one.victims:
                found.append((one.key, str(victim.key)))
                queues.release_and_requeue(state, str(victim.key), now)
        if not (decided.more or decided.preempting or decided.admitted):
            return found
    raise AssertionError(f"no end: {found}")


def test_who_borrows_leaves_those_alone_who_had_it_evicted():
    state, (queues, made) = ClusterState(), make_ring()
    submit(queues, made["low"])
    assert keys(run(state, queues)) == ["low"]
    submit(queues, made["high"], made["other"])
    # Kueue 0.19.2 goes round without end: its preemption looks at queues as they are, and at no eviction before.
    assert turns(state, queues) == [("high", "low"), ("other", "high"), ("low", "other"), ("high", "low")]
    assert [name for name in made if queues.entries[name].grant] == ["high"]
    told = queues.entries["other"].refusal
    assert told.message.endswith("; it evicts nobody in order to borrow from high, for which it was evicted itself")


def test_a_ring_has_another_turn_when_one_of_it_is_gone():
    state, (queues, made) = ClusterState(), make_ring()
    submit(queues, *made.values())
    turns(state, queues)
    assert [name for name in made if queues.entries[name].grant] == ["high"]
    queues.remove_workload(state, "low")
    assert turns(state, queues) == [("other", "high")]


def test_a_ring_has_another_turn_when_one_of_it_wishes_for_something_else():
    state, (queues, made) = ClusterState(), make_ring()
    submit(queues, *made.values())
    turns(state, queues)
    submit(queues, msgspec.structs.replace(made["low"], priority=400))
    found = turns(state, queues)
    assert found[0] == ("other", "high")
    assert [name for name in made if queues.entries[name].grant] == ["high"]


@pytest.mark.parametrize("fair", [False, True])
def test_priority_holds_within_a_queue_whoever_had_whom_evicted(fair):
    """As in Kueue 0.19.2 (pkg/scheduler/preemption/preemption.go): candidates of its own queue have a lower priority.

    ``other`` had ``high`` evicted, and ``low`` took its quota back from ``other``.
    """
    state, lender = make_state(1, 2), make_queue("lends", 4, cohort="c")
    owner = make_queue("q", 4, cohort="c", preemption=Preemption(within=Within.LOWER, reclaim=Reclaim.ANY))
    queues = make_queues(owner, make_queue("b", 0, cohort="c"), lender, rules=Rules(fair=fair))
    submit(queues, make_workload("low", gpu=4, priority=5))
    assert keys(run(state, queues)) == ["low"]
    queues.eviction_order.record_evictions("other", ["high"])
    queues.eviction_order.record_evictions("low", ["other"])
    submit(queues, make_workload("high", priority=9))
    (found,) = cycle(state, queues, 2.0).preempting
    assert (found.key, [victim.key for victim in found.victims]) == ("high", ["low"])


def test_nothing_is_kept_of_workloads_that_are_gone():
    order = EvictionOrder()
    order.record_evictions("a", ["b", "c"])
    order.record_evictions("b", ["c"])
    order.record_evictions("c", ["c"])  # one that grows and gives up a part of itself
    assert order.takers_before("c") == {"a", "b"}
    assert [order.forget_workload(key) for key in ("b", "d", "a", "c")] == [True, False, True, False]
    assert order == EvictionOrder()


def test_one_that_wants_more_pods_has_another_turn_when_a_ring_opens():
    state, lender = make_state(1, 4), make_queue("lends", 8, cohort="c")
    queues = make_queues(make_queue("q", 8, cohort="c", preemption=TAKES_ALL), make_queue("b", 0, cohort="c"), lender)
    submit(queues, make_workload("grows", priority=9), make_workload("low", "b"), make_workload("waits", "b"))
    assert keys(run(state, queues)) == ["grows", "low"]
    queues.eviction_order.record_evictions("low", ["waits"])
    queues.eviction_order.record_evictions("waits", ["grows"])
    queues.wish("grows", {"main": 2})
    assert not cycle(state, queues, 2.0).preempting, "it would borrow, and was evicted for one that low had evicted"
    queues.remove_workload(state, "waits")
    (found,) = cycle(state, queues, 3.0).preempting
    assert (found.key, [victim.key for victim in found.victims]) == ("grows", ["low"])
