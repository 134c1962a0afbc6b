"""A queue that is stopped: who was admitted runs on or is evicted, a plan of evictions ends, and nobody grows.

Who holds quota and waits for admission checks gives it back (`tests/unit/ungater/reconcile/test_queued.py`). Each pod
of 8 takes a node.
"""

import msgspec
import pytest
from support.queue_factories import GPU, keys, make_queue, make_queues, make_state, make_workload, run, submit

from engine.reasons import Reason
from queueing.model import LocalQueue, Preemption, Stop, Within
from queueing.queues.entry import Phase

LOWER = Preemption(within=Within.LOWER)
QUEUE = make_queue("q", 16, preemption=LOWER)


def stop(queues, how, *, local=False, **more):
    if local:
        queues.set_local_queue(LocalQueue(namespace="ns", name="q", cluster_queue="q", stop=how))
    else:
        queues.set_cluster_queue(msgspec.structs.replace(QUEUE, stop=how, **more))


def victims(decisions):
    return {one.key: {victim.key for victim in one.victims} for one in decisions.preempting}


def nominated(**more):
    """A full queue, and one of high priority that waits for the eviction of another."""
    state, queues = make_state(1, 2), make_queues(msgspec.structs.replace(QUEUE, **more))
    submit(queues, make_workload("low"), make_workload("mid", priority=1, created=0.5))
    run(state, queues)
    run(state, queues, 2.0)
    submit(queues, make_workload("high", priority=9, created=1.0))
    assert victims(run(state, queues, 3.0)) == {"high": {"low"}}
    return state, queues


@pytest.mark.parametrize("local", [False, True], ids=["ClusterQueue", "LocalQueue"])
@pytest.mark.parametrize("how", [Stop.HOLD, Stop.DRAIN])
def test_a_plan_of_evictions_ends_and_its_victim_may_stay(how, local):
    state, queues = nominated()
    assert "low" in queues.holders.evicting
    stop(queues, how, local=local)
    found = run(state, queues, 4.0)
    (gone,) = found.given_up
    name = "LocalQueue q" if local else "ClusterQueue q"
    assert (gone.key, gone.reason, gone.victims) == ("high", Reason.QUEUE_STOPPED, ("low",))
    assert gone.message == f"{name} is stopped (stopPolicy {how})"
    assert queues.entries["high"].phase is Phase.STUCK
    assert queues.quotas.used("q", ("tas", GPU)) == 16, "what the victim has is held once"
    # Under Hold both run on. Drained queues evict whom they admitted, and never one that holds a plan alone.
    assert {one.key: one.message for one in found.evict} == (
        {} if how is Stop.HOLD else dict.fromkeys(["low", "mid"], f"{name} is drained (stopPolicy HoldAndDrain)")
    )
    stop(queues, Stop.NONE, local=local)
    if how is Stop.HOLD:
        assert "low" not in queues.holders.evicting
        assert victims(run(state, queues, 5.0)) == {"high": {"low"}}


def test_one_whose_victims_are_gone_is_not_admitted_and_others_get_the_room():
    state, queues = nominated(cohort="all")
    queues.set_cluster_queue(make_queue("other", 0, cohort="all"))
    queues.set_local_queue(LocalQueue(namespace="ns", name="other", cluster_queue="other"))
    queues.remove_workload(state, "low")
    stop(queues, Stop.HOLD, cohort="all")
    submit(queues, make_workload("borrows", "other", created=2.0))
    assert keys(run(state, queues, 4.0)) == ["borrows"]
    assert queues.entries["high"].phase is Phase.STUCK
    queues.remove_workload(state, "borrows")
    stop(queues, Stop.NONE, cohort="all")
    assert keys(run(state, queues, 5.0)) == ["high"]


@pytest.mark.parametrize("local", [False, True], ids=["ClusterQueue", "LocalQueue"])
def test_who_was_admitted_does_not_grow_until_the_queue_goes_on_and_may_shrink(local):
    state, queues = make_state(1, 4), make_queues(msgspec.structs.replace(QUEUE, groups=make_queue("q", 64).groups))
    submit(queues, make_workload("w", count=2, one_by_one=True))
    run(state, queues)
    stop(queues, Stop.HOLD, local=local, groups=make_queue("q", 64).groups)
    queues.wish("w", {"main": 4})
    assert run(state, queues, 2.0).resized == []
    assert queues.entries["w"].refusal.reason is Reason.QUEUE_STOPPED
    assert queues.entries["w"].phase is Phase.ADMITTED
    queues.wish("w", {"main": 1})
    assert [one.counts["main"] for one in run(state, queues, 3.0).resized] == [1]
    queues.wish("w", {"main": 4})
    assert run(state, queues, 4.0).resized == []
    stop(queues, Stop.NONE, local=local, groups=make_queue("q", 64).groups)
    assert [one.counts["main"] for one in run(state, queues, 5.0).resized] == [4]


def test_growth_that_waits_for_victims_ends_and_they_stay():
    state, queues = make_state(1, 2), make_queues(QUEUE)
    submit(queues, make_workload("w", priority=9), make_workload("low", created=1.0))
    run(state, queues)
    run(state, queues, 2.0)
    queues.wish("w", {"main": 2})
    assert victims(run(state, queues, 3.0)) == {"w": {"low"}}
    stop(queues, Stop.HOLD)
    (gone,) = run(state, queues, 4.0).given_up
    assert (gone.key, gone.grows, gone.victims) == ("w", True, ("low",))
    assert gone.message == "ClusterQueue q is stopped (stopPolicy Hold)"
    assert "low" not in queues.holders.evicting
    assert queues.entries["w"].grant.counts == {"main": 1}


def test_the_example_of_kueue_once_the_one_that_waits_for_its_check_gave_back_what_it_held():
    """Nominal 8 in a cohort: w1 runs on 4, w2 held 4 and waited for a check (0.19.2 unsets that reservation)."""
    queue = make_queue("q", 8, cohort="all")
    state, queues = make_state(1, 1), make_queues(queue, make_queue("other", 0, cohort="all"))
    submit(queues, make_workload("w1", gpu=4), make_workload("w2", gpu=4, created=1.0))
    assert keys(run(state, queues)) == ["w1", "w2"]
    queues.set_cluster_queue(msgspec.structs.replace(queue, stop=Stop.HOLD))
    queues.release_and_requeue(state, "w2", 2.0)  # as the ungater does
    submit(queues, make_workload("borrows", "other", gpu=4, created=2.0))
    found = run(state, queues, 3.0)
    assert (keys(found), found.evict) == (["borrows"], [])
    assert (queues.entries["w1"].phase, queues.entries["w2"].phase) == (Phase.ADMITTED, Phase.STUCK)
    queues.set_cluster_queue(msgspec.structs.replace(queue, stop=Stop.DRAIN))
    assert [one.key for one in run(state, queues, 4.0).evict] == ["w1"]
    queues.release_and_requeue(state, "w1", 5.0)
    queues.remove_workload(state, "borrows")
    assert keys(run(state, queues, 6.0)) == []
    queues.set_cluster_queue(queue)
    assert keys(run(state, queues, 7.0)) == ["w1", "w2"], "in their old order"


def test_one_whose_local_queue_leads_elsewhere_goes_when_the_queue_whose_quota_it_holds_is_drained():
    state, queues = make_state(1, 4), make_queues(QUEUE, make_queue("new", 16))
    submit(queues, make_workload("w"))
    assert keys(run(state, queues)) == ["w"]
    queues.set_local_queue(LocalQueue(namespace="ns", name="q", cluster_queue="new"))
    stop(queues, Stop.DRAIN)
    (gone,) = run(state, queues, 2.0).evict
    assert (gone.key, gone.message) == ("w", "ClusterQueue q is drained (stopPolicy HoldAndDrain)")
    queues.release_and_requeue(state, "w", 3.0)
    assert keys(run(state, queues, 3.0)) == ["w"]
    assert queues.entries["w"].queue == "new"
