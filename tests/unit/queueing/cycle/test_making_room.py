"""Room is made for one that waits long: what goes has another place, and the one that waits fits afterwards."""

import random

import pytest
from support.queue_factories import (
    RACK,
    keys,
    make_cohort,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from engine.results import Refusal
from queueing.cycle.elastic import sized
from queueing.making_room import Going, RoomTurns, lift, make_room
from queueing.model import Rules, RunTime
from queueing.moves import MoveRules
from queueing.queues.flavor_assigner import put

LATE = 10_000.0


def asks_of(state, queues):
    def asks(key):
        held = state.assignments(key)
        entry = queues.entries[key]
        return Going(tuple(sized(entry, part.levels, name, part.count) for name, part in held.items()))

    return asks


def allows(*_):
    return True


def broken(seed, *, nominal=1000, priority=0):
    """Three racks of six nodes with small jobs in all of them, and one that wants a rack."""
    dice = random.Random(seed)
    state, queues = make_state(3, 6), make_queues(make_queue("q", nominal), rules=Rules(patience=1.0))
    for number in range(40):
        gpu, count = dice.choice([(1, 1), (2, 1), (4, 1), (8, 1), (8, 2)])
        found = make_workload(f"small{number}", count=count, gpu=gpu, priority=priority, created=float(number))
        submit(queues, found)
    admitted = keys(run(state, queues))
    for key in dice.sample(admitted, len(admitted) * 2 // 3):
        queues.remove_workload(state, key)
    for key in [key for key, entry in queues.entries.items() if entry.grant is None]:
        queues.remove_workload(state, key)
    submit(queues, make_workload("large", count=6, created=100.0))
    run(state, queues, now=200.0)
    run(state, queues, now=LATE)
    return state, queues


def on(part):
    return [node for piece in part.slices for node, _ in piece.nodes]


def racks_of(state, node):
    return state.nodes[node].labels[RACK]


def racks(state, parts):
    return {racks_of(state, node) for part in parts for node in on(part)}


@pytest.mark.parametrize("seed", range(40))
def test_what_goes_has_a_place_and_then_it_fits(seed):
    state, queues = broken(seed)
    claim = queues.claims.get("large")
    if claim is None:
        return
    before = {key: state.assignments(key) for key in queues.entries}
    found = make_room(state, queues, claim, 10, asks=asks_of(state, queues), allows=allows)
    assert {key: state.assignments(key) for key in queues.entries} == before
    assert sum(queues.entries[key].workload.pod_sets[0].requests["nvidia.com/gpu"] for key in found) <= 48, (
        "no more than it asks for"
    )
    if found:
        lift(state, claim)
    for key, grant in found.items():
        assert len(racks(state, grant.assignments)) == 1, "a rack was required"
        queues.grant(state, key, grant)
    if found:
        assert not isinstance(put(state, "large", claim.option), Refusal)
        assert all(free >= 0 for node in state.nodes for free in state.free_on_node(node).values())


def test_room_is_made_at_all():
    made = 0
    for seed in range(40):
        state, queues = broken(seed)
        if claim := queues.claims.get("large"):
            made += bool(make_room(state, queues, claim, 10, asks=asks_of(state, queues), allows=allows))
    assert made >= 5


def some():
    """A cluster where room can be made, and for whom."""
    for seed in range(40):
        state, queues = broken(seed)
        claim = queues.claims.get("large")
        if claim and make_room(state, queues, claim, 10, asks=asks_of(state, queues), allows=allows):
            return state, queues, claim
    raise AssertionError


def test_nobody_goes_where_one_of_them_may_not():
    state, queues, claim = some()
    asks = asks_of(state, queues)
    assert not make_room(state, queues, claim, 0, asks=asks, allows=allows)
    assert not make_room(state, queues, claim, 10, asks=asks, allows=lambda *_: False)
    assert not make_room(state, queues, claim, 10, asks=lambda _: None, allows=allows)
    claim.lack({("tas", "nvidia.com/gpu")})
    assert not make_room(state, queues, claim, 10, asks=asks, allows=allows), "room would be of no use to it"


def test_one_of_a_higher_priority_goes_where_the_administrator_says_so():
    with_limit = {None: 0, 9: 0, 10: 0}
    for seed in range(40):
        state, queues = broken(seed, priority=10)
        claim = queues.claims.get("large")
        for limit in with_limit if claim else ():
            found = make_room(state, queues, claim, 10, asks=asks_of(state, queues), allows=allows, priority=limit)
            with_limit[limit] += bool(found)
    assert with_limit[None] == with_limit[9] == 0
    assert with_limit[10] >= 5


@pytest.mark.parametrize("count", [2, 3])
def test_those_go_who_are_no_larger_than_it(count):
    """Each rack has one node free, but for the one where a job of two or three pods lies that needs none."""
    state, queues = make_state(6, 2), make_queues(make_queue("q", 1000), rules=Rules(patience=1.0))
    fillers = [make_workload(f"filler{number}", created=float(number)) for number in range(12)]
    submit(queues, *fillers)
    run(state, queues)
    keys_in: dict[str, list[str]] = {}
    for key in queues.entries:
        (rack,) = racks(state, state.assignments(key).values())
        keys_in.setdefault(rack, []).append(key)
    *others, whole = keys_in.values()
    for key in [*whole, *(found[0] for found in others[: count - 2])]:
        queues.remove_workload(state, key)
    submit(queues, make_workload("wide", count=count, level=None, created=50.0))
    assert keys(run(state, queues, now=100.0)) == ["wide"]
    for found in others[count - 2 :]:
        queues.remove_workload(state, found[0])
    submit(queues, make_workload("large", count=2, created=100.0))
    run(state, queues, now=200.0)
    run(state, queues, now=LATE)
    claim = queues.claims["large"]
    asks = asks_of(state, queues)
    found = make_room(state, queues, claim, 10, asks=lambda key: asks(key) if key == "wide" else None, allows=allows)
    assert list(found) == (["wide"] if count == 2 else [])


def test_room_is_looked_for_when_something_was_freed_and_not_all_the_time():
    _, queues, claim = some()
    turns = RoomTurns(MoveRules(per_hour=1, rest=3600.0))
    begun = claim.entry.since
    assert turns.due_claims(queues, begun + 3599) == []
    assert turns.next_search_time(queues, begun + 3599) == begun + 3600
    assert turns.due_claims(queues, begun + 3600) == [claim]
    turns.record_search(queues, claim, begun + 3600)
    assert turns.due_claims(queues, begun + 9000) == [], "nothing was freed"
    queues.pending.room_freed(("tas",))
    assert turns.due_claims(queues, begun + 3601) == []
    assert turns.due_claims(queues, begun + 9000) == [claim]
    # Those who had not run for long enough may have by then, whatever is free.
    turns.record_search(queues, claim, begun + 9000)
    assert turns.due_claims(queues, begun + 12_000) == []
    queues.set_cohort(make_cohort("c", minimum=RunTime(reclaim=1.0)))
    assert turns.due_claims(queues, begun + 9500) == []
    assert turns.due_claims(queues, begun + 12_000) == [claim]
    assert RoomTurns(MoveRules(per_hour=1, rest=3600.0, room=False)).due_claims(queues, begun + 9000) == []
