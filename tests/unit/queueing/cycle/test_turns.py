"""Everybody's turn comes in bounded time, whatever others have to look at and however often events wake them."""

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

from engine.model import Pod
from engine.reasons import Reason
from queueing.cycle.cycle import cycle
from queueing.cycle.turns import SEARCH
from queueing.model import ClusterQueue, LocalQueue, Preemption, Rules, Within

SHAPES, LIMIT = 1500, 64
LARGE = 10**6
PLAIN = ClusterQueue(name="q", unlimited=True)
ONE = make_queue("q", LARGE)
SEARCHES = make_queue("q", LARGE, preemption=Preemption(within=Within.LOWER))
STRICT = make_queue("q", LARGE, strict=True)
BORROWS = make_queue("b", 0, cohort="c")


def workload(name, queue="q", **more):
    return msgspec.structs.replace(make_workload(name, queue, **more), namespace=name.partition("/")[0])


def shape(at, namespace="bad", *, count=4, **more):
    """One of many that nearly fit: they lack one node of a rack. None of them is like another."""
    pod_set = msgspec.structs.replace(make_pod_set(count), labels={"shape": f"{namespace}{at}"})
    return workload(f"{namespace}/w{at:04}", pod_sets=(pod_set,), created=float(at), **more)


def world(*queues, fair=False, namespaces=("bad", "good")):
    """Four racks of four nodes; in each of them a small pod runs."""
    state, made = make_state(4, 4), make_queues(*queues, rules=Rules(fair=fair))
    for namespace in namespaces:
        made.set_namespace(namespace, {"team": "ns"})
        for queue in queues:
            made.set_local_queue(LocalQueue(namespace=namespace, name=queue.name, cluster_queue=queue.name))
    for at in range(0, 16, 4):
        state.set_pod(Pod(key=f"x/{at}", node=f"tas-{at}", requests={GPU: 1}))
    return state, made


def cycles_until(state, queues, key, most):
    """How many cycles it takes until one is admitted, where before each of them small pods end and others come."""
    for at in range(1, most + 1):
        queues.pending.room_freed(["tas"])
        if key in [one.key for one in cycle(state, queues, float(at), LIMIT).admitted]:
            return at
    return None


@pytest.mark.parametrize(
    ("queues", "fair", "its"),
    [
        ((PLAIN,), False, "q"),
        ((ONE,), False, "q"),
        ((SEARCHES,), False, "q"),
        ((msgspec.structs.replace(ONE, cohort="c"), BORROWS), True, "b"),
    ],
    ids=["without a queue", "one queue", "each look is a search", "a queue of a lower share"],
)
def test_one_that_fits_is_looked_at_in_the_first_cycle_whatever_another_namespace_has_waiting(queues, fair, its):
    state, made = world(*queues, fair=fair)
    submit(made, *(shape(at) for at in range(SHAPES)))
    assert cycles_until(state, made, "nobody", 3) is None
    submit(made, workload("good/job", its, gpu=4, created=1e5))
    assert cycles_until(state, made, "good/job", 1) == 1


def test_those_of_one_namespace_have_their_turn_one_after_the_other():
    state, queues = world(ONE)
    submit(queues, *(shape(at) for at in range(SHAPES)), workload("bad/job", gpu=4, created=1e5))
    assert cycles_until(state, queues, "bad/job", SHAPES // (LIMIT // 2)) is not None


def test_namespaces_have_their_turn_one_after_the_other():
    others = [f"bad{at}" for at in range(100)]
    state, queues = world(ONE, namespaces=(*others, "good"))
    submit(queues, *(shape(at, other) for other in others for at in range(15)))
    submit(queues, workload("good/job", gpu=4, created=1e5))
    assert cycles_until(state, queues, "good/job", -(-101 // (LIMIT // 2))) is not None


def test_shapes_that_keep_coming_have_their_turn_after_those_that_wait():
    state, queues = world(ONE)
    submit(queues, *(shape(at) for at in range(100)), workload("bad/job", gpu=4, created=1e5))
    for at in range(1, 5):
        submit(queues, *(shape(100 * at + more) for more in range(100)))
        if cycles_until(state, queues, "bad/job", 1):
            return
    pytest.fail("it was not looked at")


def test_those_that_can_never_fit_hold_up_nobody_in_a_strict_queue():
    state, queues = world(STRICT)
    submit(queues, *(shape(at, count=5) for at in range(SHAPES)), workload("good/job", gpu=4, created=1e5))
    while cycle(state, queues, 1.0, LIMIT).more and queues.entries["good/job"].grant is None:
        pass
    queues.remove_workload(state, "good/job")
    submit(queues, workload("good/next", gpu=4, created=2e5))
    assert cycles_until(state, queues, "good/next", 1) == 1


def test_nobody_passes_one_that_waits_in_a_strict_queue():
    state, queues = world(STRICT)
    submit(queues, workload("bad/runs", gpu=8), *(shape(at) for at in range(SHAPES)))
    submit(queues, workload("good/job", gpu=4, created=1e5))
    assert cycles_until(state, queues, "good/job", 30) is None
    assert queues.entries["good/job"].refusal.reason is Reason.BEHIND_OTHERS


def test_as_many_as_half_of_the_looks_are_for_go_by_their_place_alone():
    state, queues = world(ONE)
    few = LIMIT // 2
    submit(queues, *(shape(at) for at in range(few - 1)), workload("bad/first", count=3, created=50.0))
    submit(queues, workload("good/second", count=3, created=60.0))
    assert [one.key for one in cycle(state, queues, 1.0, LIMIT).admitted] == ["bad/first", "good/second"]


def grower(name, **more):
    """One that is admitted with one pod, and wants so many more that a rack cannot take them."""
    return workload(name, level="rack", **more)


@pytest.mark.parametrize("waiting", [False, True])
def test_one_that_wants_one_more_pod_is_looked_at_whatever_another_namespace_has_waiting(waiting):
    state, queues = world(PLAIN)
    many = 12 if waiting else 200
    names = [f"bad/w{at:03}" for at in range(many)]
    submit(queues, *(workload(name, gpu=0 if not waiting else 1, created=float(at)) for at, name in enumerate(names)))
    submit(queues, workload("good/job", gpu=1, created=1e5))
    cycle(state, queues, 1.0, 1000)
    assert queues.entries["good/job"].grant is not None
    if waiting:
        submit(queues, *(shape(at) for at in range(SHAPES)))
    for name in names:
        queues.wish(name, {"main": 500})
    queues.wish("good/job", {"main": 2})
    for at in (2.0, 3.0):
        queues.pending.room_freed(["tas"])
        resized = [one.key for one in cycle(state, queues, at, LIMIT).resized]
        if "good/job" in resized:
            return
    pytest.fail("it was not looked at")


def test_of_those_that_want_more_pods_the_next_namespace_is_looked_at_however_many_have_some():
    others = [f"bad{at}" for at in range(LIMIT + 1)]
    state, queues = world(PLAIN, namespaces=(*others, "good"))
    names = [f"{other}/w{at}" for at in range(3) for other in others]
    submit(queues, *(workload(name, gpu=0, created=float(at)) for at, name in enumerate(names)))
    submit(queues, workload("good/job", gpu=1, created=1e5))
    cycle(state, queues, 1.0, 1000)
    for name in names:
        queues.wish(name, {"main": 500})
    queues.wish("good/job", {"main": 2})
    for at in range(-(-len(others) // (LIMIT // 2)) + 1):
        queues.pending.room_freed(["tas"])
        if "good/job" in [one.key for one in cycle(state, queues, 2.0 + at, LIMIT).resized]:
            return
    pytest.fail("it was not looked at")


def test_one_hears_why_it_waits_however_many_of_another_namespace_are_to_hear_it():
    state, queues = world(ONE)
    submit(queues, *(shape(at, queue="nowhere") for at in range(SHAPES)))
    submit(queues, workload("good/job", "nowhere"))
    assert "good/job" in [one.key for one in cycle(state, queues, 1.0, LIMIT).waiting]


@pytest.mark.parametrize("queue", [ONE, STRICT], ids=["best effort", "strict"])
def test_after_a_restart_a_cycle_is_no_longer_where_many_have_waited_for_long(queue):
    state, queues = world(queue)
    for at in range(SHAPES):
        queues.submit(shape(at, count=5 if queue is STRICT else 4), 1000.0, since=0.0)
    queues.submit(workload("good/job", gpu=4, created=1e5), 1000.0)
    first = cycle(state, queues, 1000.0, LIMIT)
    assert len(first.waiting) <= LIMIT
    assert [one.key for one in first.admitted] == (["good/job"] if queue is ONE else [])
    told = {one.key for one in first.waiting}
    # Each of them would claim once it was refused, and is asked first whether it would fit an emptied cluster.
    for at in range(SHAPES * (1 + SEARCH) // LIMIT + 1):
        told |= {one.key for one in cycle(state, queues, 1001.0 + at, LIMIT).waiting}
    assert len(told) == SHAPES, "each of them was looked at"


def test_those_that_come_and_go_behind_one_that_holds_them_up_leave_nothing_behind():
    state, queues = make_state(1, 1), make_queues(make_queue("q", 16, strict=True))
    submit(queues, make_workload("runs", gpu=8), make_workload("holds", gpu=8, created=1.0))
    run(state, queues)
    line = queues.pending.lines["q"]
    for number in range(1000):
        submit(queues, make_workload(f"w{number}", gpu=1 + number % 7, created=2.0 + number))
        queues.remove_workload(state, f"w{number}")
        submit(queues, make_workload(f"v{number % 2}", gpu=4, created=2.0 + number))
    assert len(line._ready[""]) < 100
    queues.remove_workload(state, "runs")
    assert keys(run(state, queues, 2.0)) == ["holds"]
    for key in list(queues.entries):
        queues.remove_workload(state, key)
    assert line._ready == {"": []}


def test_a_queue_that_is_deleted_has_no_line_and_gets_one_when_it_comes_back():
    state, queues = make_state(1, 1), make_queues(make_queue("q", 0))
    submit(queues, make_workload("w", gpu=8))
    run(state, queues)
    queues.remove_cluster_queue("q")
    run(state, queues, 2.0)
    assert "q" not in queues.pending.lines
    queues.set_cluster_queue(make_queue("q", 8))
    assert keys(run(state, queues, 3.0)) == ["w"]
