"""One workload that leads to an error costs no other workload anything."""

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

from engine.reasons import Reason
from queueing.cycle import backfill, cycle, elastic, nominate
from queueing.cycle.shield import FIRST
from queueing.model import Preemption, Rules, Within
from queueing.queues import flavor_assigner
from queueing.queues.entry import Phase


class BoomError(Exception):
    pass


@pytest.fixture
def poison(monkeypatch):
    """Have a function of the core fail for the workload of this key."""

    def install(module, name, found):
        real = getattr(module, name)

        def failing(*args, **more):
            if found(*args, **more):
                raise BoomError("no good")
            return real(*args, **more)

        monkeypatch.setattr(module, name, failing)

    return install


def everything(state, queues):
    """What is free and held, for comparison."""
    return (
        {name: state.free_on_node(name) for name in state.nodes},
        dict(queues.quotas.held),
        state.depth,
        queues.quotas.depth,
    )


@pytest.mark.parametrize("priority", [0, 1])
@pytest.mark.parametrize(
    ("module", "name", "found"),
    [
        (nominate, "put", lambda _state, key, _option: key == "poison"),
        (nominate, "barring_claim", lambda _queues, entry, _option: entry.workload.key == "poison"),
        (flavor_assigner, "_option", lambda choices, _asks: choices[0].pod_set.labels.get("poison")),
        (cycle, "_admitted", lambda grant, **_: grant.counts == {"main": 3}),
    ],
)
def test_a_poisoned_one_is_put_off_and_all_others_are_admitted(poison, module, name, found, priority):
    state, queues = make_state(4, 4), make_queues(make_queue(nominal=1000))
    before = everything(state, queues)
    poison(module, name, found)
    bad = make_pod_set(3, gpu=1, labels={"poison": "yes"})
    submit(
        queues,
        make_workload("poison", priority=priority, pod_sets=(bad,)),
        *(make_workload(f"w{n}", created=float(n)) for n in range(5)),
    )
    made = run(state, queues)
    assert keys(made) == [f"w{n}" for n in range(5)]
    entry = queues.entries["poison"]
    assert (entry.phase, entry.until, entry.grant) == (Phase.LATER, 1.0 + FIRST, None)
    assert entry.refusal.reason is Reason.INTERNAL_ERROR
    for n in range(5):
        queues.remove_workload(state, f"w{n}")
    assert everything(state, queues) == before


def test_it_is_told_with_its_error_and_tried_again_ever_later(poison):
    state, queues = make_state(), make_queues(make_queue())
    poison(nominate, "put", lambda _state, key, _option: key == "poison")
    submit(queues, make_workload("poison"))
    now, waits = 0.0, []
    for _ in range(4):
        (failed,) = cycle.cycle(state, queues, now).failed
        assert (failed.key, str(failed.error)) == ("poison", "no good")
        assert not cycle.cycle(state, queues, now + 1).failed, "it waits"
        waits.append(failed.until - now)
        now = failed.until
    assert waits == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST]
    submit(queues, make_workload("poison", gpu=4), now=now)
    (failed,) = cycle.cycle(state, queues, now).failed
    assert failed.until - now == FIRST, "it is another one now"


def test_a_search_for_victims_that_fails_leaves_the_victims_where_they_are(poison):
    rule = Preemption(within=Within.LOWER)
    state, queues = make_state(1, 2), make_queues(make_queue(preemption=rule))
    submit(queues, make_workload("low0"), make_workload("low1"))
    run(state, queues)
    before = everything(state, queues)
    poison(nominate, "plan", lambda _state, _queues, entry, _option: entry.workload.key == "poison")
    submit(queues, make_workload("poison", priority=9), make_workload("high", priority=5))
    made = run(state, queues, 2.0)
    assert [one.key for one in made.preempting] == ["high"]
    queues.remove_workload(state, "high")
    assert everything(state, queues) == before


def test_growth_that_fails_keeps_what_is_stored(poison):
    state, queues = make_state(1, 2), make_queues(make_queue())
    submit(queues, make_workload("w", gpu=1), make_workload("v", gpu=1))
    run(state, queues)
    before = everything(state, queues)
    poison(elastic, "resize", lambda _state, _queues, key, _counts: key == "w")
    queues.wish("w", {"main": 2})
    queues.wish("v", {"main": 2})
    made = cycle.cycle(state, queues, 2.0)
    assert [one.key for one in made.resized] == ["v"]
    assert [one.key for one in made.failed] == ["w"]
    assert queues.entries["w"].phase is Phase.ADMITTED
    queues.wish("w", {"main": 2})
    assert not cycle.cycle(state, queues, 3.0).failed, "it is not tried again as it says the same"
    queues.pending.room_freed(["tas"])
    assert [one.key for one in cycle.cycle(state, queues, 4.0).failed] == ["w"]
    elastic.resize(state, queues, "v", {"main": 1})
    queues.wish("w", None)
    assert everything(state, queues) == before


def test_a_claim_that_fails_closes_nothing_to_others(poison):
    state, queues = make_state(1, 2), make_queues(make_queue(nominal=48), rules=Rules(patience=100.0))
    submit(queues, make_workload("w0"), make_workload("w1"))
    run(state, queues)
    submit(queues, make_workload("large", count=2, created=2.0), now=2.0)
    run(state, queues, 2.0)
    poison(backfill, "close", lambda _state, _queues, claim: claim.key == "large")
    assert [one.key for one in cycle.cycle(state, queues, 200.0).failed] == ["large"]
    queues.remove_workload(state, "w0")
    submit(queues, make_workload("late", created=4.0), now=201.0)
    assert keys(run(state, queues, 201.0)) == ["late"]
    assert not queues.claims
    assert state.free_on_node("tas-0")[GPU] + state.free_on_node("tas-1")[GPU] == 0
