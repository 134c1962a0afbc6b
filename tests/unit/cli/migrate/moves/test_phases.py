"""What a move does next, from what is there."""

import pytest
from msgspec.structs import replace

from cli.migrate.moves.phases import (
    LAST,
    BackFacts,
    BackPhase,
    MoveFacts,
    MovePhase,
    next_back_phase,
    next_phase,
    note_turn,
)
from cli.output import Failure

START = MoveFacts(unsaved=["q"], unheld=["q"], joined=["q"], unserved=["x"])
BACK = BackFacts(unheld=["q"], served=["x"], joined=["q"], apart=["q"], unreleased=["q"], kept=["q"])
_AFTER = {
    MovePhase.BACK_UP: {"unsaved": ()},
    MovePhase.HOLD: {"unheld": ()},
    MovePhase.SETTLE: {"settled": True},
    MovePhase.MAKE: {"made": True},
    MovePhase.LEAVE: {"joined": ()},
    MovePhase.SERVE: {"unserved": ()},
    MovePhase.ADOPT: {"adopted": True, "unreleased": ["q"]},
    MovePhase.RELEASE: {"unreleased": ()},
    MovePhase.CLEAN: {"cleaned": True},
}
_BACK_AFTER = {
    BackPhase.HOLD: {"unheld": ()},
    BackPhase.SETTLE: {"settled": True},
    BackPhase.HAND_BACK: {"handed": True},
    BackPhase.LEAVE: {"joined": ()},
    BackPhase.RETURN: {"apart": ()},
    BackPhase.UNSERVE: {"served": ()},
    BackPhase.WAKE: {"woken": True},
    BackPhase.RELEASE: {"unreleased": ()},
    BackPhase.REMOVE: {"removed": True, "unheld": ()},
    BackPhase.FORGET: {"kept": ()},
}


def walk(facts, *, lost=None):
    """All phases from there on; ``lost``: after the first of it the command ends, and another one goes on."""
    choose, after = (next_back_phase, _BACK_AFTER) if isinstance(facts, BackFacts) else (next_phase, _AFTER)
    way = []
    while (phase := choose(facts)) != LAST:
        way.append(phase)
        facts = replace(facts, **after[phase])
        if phase is lost:
            lost = None
            # What this run alone knows: the next one finds the rest in the cluster.
            facts = replace(facts, **{name: False for name in facts.__struct_fields__ if getattr(facts, name) is True})
    return way


def test_a_move_has_all_phases_in_order():
    assert walk(START) == [phase for phase in MovePhase if phase is not MovePhase.DONE]


def test_wherever_it_ends_the_next_run_goes_on_and_labels_nothing_before_all_is_quiet():
    for at in MovePhase:
        way = walk(START, lost=at)
        assert way[-1] is MovePhase.CLEAN
        serve = way.index(MovePhase.SERVE)
        for earlier in (MovePhase.BACK_UP, MovePhase.HOLD, MovePhase.SETTLE, MovePhase.MAKE, MovePhase.LEAVE):
            assert earlier in way[:serve], (at, way)
        # What runs is taken over by a queue that admits nothing yet.
        assert MovePhase.RELEASE not in way[: way.index(MovePhase.ADOPT)]


def test_a_queue_that_somebody_has_go_on_in_kueue_is_held_again_first():
    assert next_phase(MoveFacts(unheld=["q"], settled=True, made=True, adopted=True)) is MovePhase.HOLD


def test_a_namespace_that_was_labelled_by_hand_is_not_waited_for():
    assert MovePhase.SETTLE not in walk(replace(START, unserved=()))


def test_what_has_moved_is_looked_at_and_nothing_is_written():
    assert walk(MoveFacts()) == [MovePhase.MAKE, MovePhase.ADOPT, MovePhase.RELEASE, MovePhase.CLEAN]


def test_the_way_back_has_all_phases_in_order():
    assert walk(BACK) == [phase for phase in BackPhase if phase is not BackPhase.DONE]


def test_wherever_it_ends_kueue_has_the_workloads_before_the_label_goes_and_goes_on_last():
    for at in BackPhase:
        way = walk(BACK, lost=at)
        assert way[-1] is BackPhase.FORGET or at is BackPhase.FORGET
        assert BackPhase.HAND_BACK in way[: way.index(BackPhase.UNSERVE)]
        assert BackPhase.WAKE in way[: way.index(BackPhase.RELEASE)]
        assert way.index(BackPhase.UNSERVE) < way.index(BackPhase.WAKE)


def test_a_phase_that_somebody_undoes_each_time_is_told_and_not_repeated_for_ever():
    turns = {}
    for _ in range(20):
        note_turn(turns, MovePhase.HOLD)
    note_turn(turns, MovePhase.SERVE)
    with pytest.raises(Failure, match='what the phase "hold" writes is undone each time'):
        note_turn(turns, MovePhase.HOLD)
