"""Rows of workloads that are gone are forgotten when they are many, and nobody is taken for somebody else by that."""

import pytest
from support.queue_factories import make_queue, make_queues, make_state, make_workload, run, submit

from queueing.model import Preemption, Within


def filled():
    """Four nodes of 8 GPUs, full of workloads of one GPU, in a queue that preempts."""
    state, queues = make_state(), make_queues(make_queue("q", 1000, preemption=Preemption(within=Within.LOWER)))
    submit(queues, *(make_workload(f"w{at}", gpu=1, priority=50 + at, created=float(at)) for at in range(32)))
    run(state, queues)
    return state, queues


@pytest.mark.parametrize("rounds", range(6))
def test_victims_are_the_least_important_whoever_came_and_went(rounds):
    state, queues = filled()
    # A search notes who holds what from here on.
    submit(queues, make_workload("none", gpu=8, priority=51, created=100.0))
    run(state, queues)
    queues.remove_workload(state, "none")
    names = [f"w{at}" for at in range(32)]
    for turn in range(rounds):
        for at, name in enumerate(names):
            queues.remove_workload(state, name)
            names[at] = f"w{at}-{turn}"
            submit(queues, make_workload(names[at], gpu=1, priority=50 + at, created=200.0 + turn), now=2.0)
        run(state, queues, 3.0 + turn)
    known = len(queues.holders.usage(state, "tas").keys)
    submit(queues, make_workload("high", gpu=1, level=None, priority=1000, created=300.0), now=9.0)
    (decided,) = run(state, queues, 10.0).preempting
    assert [str(victim.key) for victim in decided.victims] == [names[0]]
    assert (known > 64) == (rounds > 1)
    # Numbers are given again once more than half of those that are known are of nobody.
    assert len(queues.holders.usage(state, "tas").keys) < known or known <= 64
