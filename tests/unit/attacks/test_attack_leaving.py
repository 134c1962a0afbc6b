"""Who makes believe that he leaves: pods that are told to stop and never do, jobs that come and go."""

import pytest
from support.queue_factories import GPU, keys, make_queue, make_queues, make_state, make_workload, run, submit

from engine.model import Pod
from engine.reservation_key import ReservationKey
from queueing.cycle.cycle import cycle
from queueing.model import Preemption, Reclaim, Within
from queueing.queues.held import Held

PATIENCE = 60.0
RECLAIMS = Preemption(reclaim=Reclaim.ANY)


def plain(state, queues, name, node, *, queue="", gpus=1):
    """A pod that nobody answers for; charged to a queue, as one that a deleted job left behind."""
    state.set_pod(Pod(key=name, node=node, requests={GPU: gpus}))
    if queue:
        queues.charge_pod(name, Held(queue, {("tas", GPU): gpus}))


def test_pods_that_begin_to_leave_one_after_the_other_and_never_do_keep_a_rack_for_nobody_longer_than_a_minute():
    """They have finalizers. His next job fits with any one of them gone, and waits for each in turn."""
    state = make_state(1, 4)
    queues = make_queues(make_queue("bad", 32, cohort="all"), make_queue("good", 0, cohort="all"))
    for number in range(8):
        plain(state, queues, f"mallory/{number}", "tas-0", queue="bad")
    submit(queues, make_workload("mallory", "bad", count=25, gpu=1))
    run(state, queues)
    now, since = 2.0, None
    for number in range(8):
        queues.leaving.pod_stops(f"mallory/{number}")
        if number == 0:
            assert keys(run(state, queues, now)) == []
            assert list(queues.successors) == ["mallory"]
            submit(queues, make_workload("honest", "good", created=5.0), now=now)
            since = now
        for _ in range(3):
            if "honest" in keys(run(state, queues, now)):
                assert now - since <= PATIENCE
                return
            now += PATIENCE / 3
    pytest.fail("nothing of the rack was given to anybody")


def borrowed(count):
    """A team borrows all that another one has, a pod a job, and has its pods end one after the other; they never do."""
    state = make_state(1, 1)
    queues = make_queues(
        make_queue("bad", 0, cohort="all"), make_queue("good", 8, cohort="all", preemption=RECLAIMS, borrowing=0)
    )
    submit(queues, *(make_workload(f"mallory{number}", "bad", gpu=1) for number in range(count)))
    assert len(keys(run(state, queues))) == count
    for number in range(count):
        name = f"mallory{number}"
        state.set_pod(Pod(key=f"{name}-0", node="tas-0", requests={GPU: 1}, claim=(name, "main")))
        queues.bind(f"{name}-0", name)
    return state, queues


def test_pods_that_begin_to_leave_one_after_the_other_keep_no_owner_from_his_quota():
    """Who fits once they are gone has nobody evicted. So he would wait for as long as there is another one."""
    state, queues = borrowed(8)
    submit(queues, make_workload("honest", "good", gpu=1, created=5.0), now=2.0)
    now = 2.0
    for number in range(8):
        queues.holders.mark_leaving(f"mallory{number}")  # he says so himself, and a finalizer keeps the pod
        for _ in range(3):
            made = run(state, queues, now)
            if made.preempting:
                assert now - 2.0 <= PATIENCE
                return
            now += PATIENCE / 3
    pytest.fail("the owner evicted nobody")


def test_they_keep_nobody_from_growing_into_his_quota_either():
    state, queues = borrowed(7)
    submit(queues, make_workload("honest", "good", gpu=1), now=2.0)
    assert keys(run(state, queues, 2.0)) == ["honest"]
    queues.stored("honest")
    submit(queues, make_workload("honest", "good", 2, gpu=1), now=2.0)
    queues.wish("honest", {"main": 2})
    now = 3.0
    for number in range(7):
        queues.holders.mark_leaving(f"mallory{number}")
        for _ in range(3):
            made = cycle(state, queues, now)
            if made.preempting:
                assert now - 3.0 <= PATIENCE
                return
            now = min(now + PATIENCE / 3, made.next_time or now + PATIENCE / 3)
    pytest.fail("the owner evicted nobody")


def test_a_successor_that_comes_and_goes_all_the_time_keeps_nothing_meanwhile():
    """A tenant deletes his job and makes it again: of the same leavers it is a successor once."""
    state = make_state(1, 4)
    queues = make_queues(make_queue("bad", 32, cohort="all"), make_queue("good", 0, cohort="all"))
    plain(state, queues, "mallory/0", "tas-0", queue="bad", gpus=8)
    queues.leaving.pod_stops("mallory/0")
    submit(queues, make_workload("mallory", "bad", 4), make_workload("honest", "good", created=5.0))
    assert keys(run(state, queues, 1.0)) == []
    assert list(queues.successors) == ["mallory"]
    queues.remove_workload(state, "mallory")
    submit(queues, make_workload("mallory", "bad", 4), now=2.0)
    assert keys(run(state, queues, 2.0)) == ["honest"]
    assert not queues.successors
    assert not [
        name
        for name in (*state.workloads, *queues.quotas.held)
        if isinstance(name, ReservationKey) and name.workload == "mallory"
    ]


def test_nobody_who_leaves_all_the_time_has_others_looked_at_without_end():
    """Each beginning has those looked at who wait for such room: once, however often it is told."""
    state = make_state(1, 2)
    queues = make_queues(make_queue("q", 64, preemption=Preemption(within=Within.LOWER)))
    submit(queues, make_workload("runs"), *(make_workload(f"w{at}", count=3, gpu=8 - at) for at in range(4)))
    run(state, queues)
    plain(state, queues, "mallory/0", "tas-1")
    queues.leaving.pod_stops("mallory/0")
    run(state, queues, 2.0)
    searches = queues.searches
    for at in range(50):
        queues.leaving.pod_stops("mallory/0")
        assert not cycle(state, queues, 3.0 + at).more
    assert queues.searches == searches
