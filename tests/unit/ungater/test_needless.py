"""The judge of histories knows a plan that has somebody go for room that is free."""

import pytest
from support.history.needless import judged_plans, would_fit
from support.queue_factories import make_pod_set, make_queue, make_queues, make_state, make_workload, run, submit

from queueing.cycle import cycle, nominate
from queueing.model import Preemption, Within

LOWER = Preemption(within=Within.LOWER)


def world(nominal=64, *, victims=1):
    """Two racks of two nodes, and so many workloads of low priority on a node each."""
    state, queues = make_state(), make_queues(make_queue("q", nominal, preemption=LOWER))
    submit(queues, *(make_workload(f"low{at}") for at in range(victims)))
    assert len(run(state, queues).admitted) == victims
    return state, queues


def waiting(state, queues, **more):
    submit(queues, make_workload("high", priority=5, created=9.0, **more))
    entry = queues.entries["high"]
    return entry, queues.options_of(state, entry.group).found[0]


@pytest.mark.parametrize(
    ("victims", "nominal", "more", "fits"),
    [
        (1, 64, {"count": 2}, True),
        (3, 64, {"count": 2}, False),  # no rack has room for both
        (2, 64, {"count": 3, "level": None}, False),
        (1, 64, {"count": 3, "level": None}, True),
        (1, 16, {"count": 2}, False),  # quota is lacking
        (1, 64, {"pod_sets": (make_pod_set(1), make_pod_set(1, name="other"))}, True),
        (1, 64, {"pod_sets": (make_pod_set(2), make_pod_set(2, name="other"))}, False),
    ],
)
def test_it_says_that_one_would_fit_only_where_that_is_certain(victims, nominal, more, fits):
    state, queues = world(nominal, victims=victims)
    entry, option = waiting(state, queues, **more)
    assert would_fit(state, queues, entry, option) is fits


@pytest.mark.parametrize("errs", [False, True])
def test_a_plan_for_room_that_is_free_is_found(errs, monkeypatch):
    state, queues = world(victims=1 if errs else 4)
    waiting(state, queues)
    said = []
    if errs:
        monkeypatch.setattr(nominate._QueueNominator, "fits", lambda *_: None)
        monkeypatch.setattr(nominate._QueueNominator, "_suffices", lambda *_: False)
        monkeypatch.setattr(nominate, "plan", lambda *_: nominate.Plan((), (), ()))
        monkeypatch.setattr(nominate.PromisedRoom, "cheaper", lambda _, plan: plan)
    with judged_plans(said.append):
        made = cycle.cycle(state, queues, 1.0)
    assert len(made.preempting) == 1
    assert said == (["high preempts , and would fit in what is free"] if errs else [])
