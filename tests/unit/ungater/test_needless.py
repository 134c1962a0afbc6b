"""The judge of histories knows a plan that has somebody go for room that is free, or was a moment ago."""

import pytest
from support.history.needless import judged_plans, would_fit
from support.queue_factories import GPU, make_pod_set, make_queue, make_queues, make_state, make_workload, run, submit

from engine.model import Pod
from queueing.cycle import cycle, nominate
from queueing.model import Preemption, Reclaim, Within
from queueing.queues.held import Held

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
        monkeypatch.setattr(nominate._QueueNominator, "place_option", lambda *_: None)
        monkeypatch.setattr(nominate._QueueNominator, "_suffices", lambda *_: False)
        monkeypatch.setattr(nominate, "plan", lambda *_: nominate.Plan((), (), ()))
        monkeypatch.setattr(nominate.PromisedRoom, "cheaper", lambda _, plan: plan)
    with judged_plans(said.append, lambda: 1.0, tuple):
        made = cycle.cycle(state, queues, 1.0)
    assert len(made.preempting) == 1
    assert said == (["high preempts , and would fit in what is free"] if errs else [])


LENDERS = Preemption(reclaim=Reclaim.ANY)


@pytest.fixture
def leaves(monkeypatch):
    found, said = Leaves(monkeypatch), []
    with judged_plans(said.append, lambda: found.now, lambda: found.stop):
        yield found, said


class Leaves:
    """Two queues lend to each other. `large` of the one waits for what a pod leaves, `small` of the other borrows."""

    def __init__(self, monkeypatch):
        self.state = make_state(1, 2)
        self.queues = make_queues(
            *(make_queue(name, nominal, cohort="all", preemption=LENDERS) for name, nominal in (("a", 16), ("b", 0)))
        )
        self.stop = []
        self.stops("ns/g")
        self.now, self.monkeypatch = 1.0, monkeypatch
        submit(self.queues, make_workload("large", "a", 2), make_workload("small", "b", created=1.0))

    def stops(self, pod):
        """A pod of the other queue on the first node is told to stop."""
        self.state.set_pod(Pod(key=pod, node="tas-0", requests={GPU: 8}))
        self.queues.charge_pod(pod, Held("b", {("tas", GPU): 8}))
        self.queues.leaving.pod_stops(pod)
        self.stop.append(pod)

    def gone(self, pod):
        self.queues.leaving.pod_gone(pod)
        self.queues.charge_pod(pod, None)
        self.state.remove_pod(pod)
        self.queues.pending.room_freed(["tas"])
        self.stop.remove(pod)

    def forget_leavers(self):
        """As if the controller did not know that the pod leaves."""
        self.monkeypatch.setattr(type(self.queues.leaving), "review_leaving", lambda *_: None)

    def runs(self):
        """All cycles of a moment, a second later."""
        self.now += 1.0
        made = run(self.state, self.queues, self.now)
        return [one.key for one in made.admitted], [one.key for one in made.preempting]


def test_that_somebody_gets_what_comes_free_for_another_one_and_is_evicted_for_it_is_found(leaves):
    leaves, said = leaves
    leaves.forget_leavers()
    assert leaves.runs() == (["small"], [])
    leaves.gone("ns/g")
    assert leaves.runs() == ([], ["large"])
    assert said == ["large preempts small, and small got 1.0 s ago what was coming free for it"]


def test_that_somebody_is_evicted_beside_those_that_leave_is_found(leaves):
    leaves, said = leaves
    leaves.queues.remove_workload(leaves.state, "large")
    leaves.forget_leavers()
    assert leaves.runs() == (["small"], [])
    submit(leaves.queues, make_workload("first", "a"))
    assert leaves.runs() == ([], ["first"])
    assert said == ["first preempts small, and would fit once those are gone that leave: ['ns/g']"]


@pytest.mark.parametrize("anew", [False, True])
def test_one_may_preempt_beside_those_that_leave_where_it_waited_for_as_long_as_anybody_may(leaves, anew):
    """Not where that was before it got in and was evicted: it waits ``anew``."""
    leaves, said = leaves
    leaves.queues.remove_workload(leaves.state, "large")
    assert leaves.runs() == (["small"], [])
    submit(leaves.queues, make_workload("first", "a"), now=leaves.now)
    assert leaves.runs() == ([], [])
    leaves.gone("ns/g")
    leaves.stops("ns/h")
    leaves.now = 50.0
    assert leaves.runs() == ([], [])
    if anew:
        leaves.queues.entries["first"].restart(leaves.now)
    leaves.now = 63.0
    assert leaves.runs() == ([], ["first"])
    told = "first preempts small, and would fit once those are gone that leave: ['ns/h']"
    assert said == ([told] if anew else [])


def test_where_all_is_well_nothing_is_found(leaves):
    leaves, said = leaves
    assert leaves.runs() == ([], [])
    leaves.gone("ns/g")
    assert leaves.runs() == (["large"], [])
    assert said == []
