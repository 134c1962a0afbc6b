"""How many workloads that run are moved, whose turn it is, and who is left alone."""

import pytest

from queueing.moves import HOUR, MOST_DOUBLINGS, MoveLog, MoveRules

RULES = MoveRules(per_hour=3, rest=600.0)


def test_so_many_an_hour_and_no_more():
    log = MoveLog(RULES)
    for number in range(3):
        assert log.moves_left(100.0, asked=True) == 3 - number
        log.begin_move(f"ns/{number}", 100.0, asked=True)
    assert log.moves_left(100.0 + HOUR - 1.0, asked=True) == 0
    assert log.moves_left(100.0 + HOUR, asked=True) == 3


@pytest.mark.parametrize(("per_hour", "own"), [(0, 0), (1, 1), (2, 1), (5, 2), (6, 3)])
def test_half_of_them_are_kept_for_administrators(per_hour, own):
    log = MoveLog(MoveRules(per_hour=per_hour))
    for number in range(own):
        assert log.moves_left(100.0) == own - number
        log.begin_move(f"ns/{number}", 100.0)
    assert log.moves_left(100.0) == 0
    assert log.moves_left(100.0, asked=True) == per_hour - own
    for number in range(per_hour - own):
        log.begin_move(f"asked/{number}", 100.0, asked=True)
    assert log.moves_left(100.0, asked=True) == 0
    assert log.moves_left(100.0 + HOUR) == own


def test_what_administrators_asked_for_takes_nothing_from_the_others_half():
    log = MoveLog(MoveRules(per_hour=4))
    log.begin_move("ns/a", 100.0, asked=True)
    log.begin_move("ns/b", 100.0, asked=True)
    assert log.moves_left(100.0) == 2
    log.begin_move("ns/c", 100.0, asked=True)
    assert log.moves_left(100.0) == 1, "more than half, where nobody else wants them: the limit is one"


def test_none_where_nobody_allows_any():
    assert MoveLog(MoveRules()).moves_left(0.0) == 0


def test_one_that_was_moved_is_left_alone_and_longer_each_time():
    log, now = MoveLog(RULES), 0.0
    for times in range(MOST_DOUBLINGS + 3):
        log.begin_move("ns/w", now)
        rest = 600.0 * 2.0 ** min(times, MOST_DOUBLINGS)
        assert log.resting("ns/w", now + rest - 1.0) == pytest.approx(1.0)
        assert log.resting("ns/w", now + rest) == 0.0
        now += rest
    assert log.resting("ns/other", now) == 0.0


def test_after_a_long_time_it_counts_as_never_moved():
    log = MoveLog(RULES)
    log.begin_move("ns/w", 0.0)
    log.begin_move("ns/other", 10 * HOUR)
    log.begin_move("ns/w", 10 * HOUR)
    assert log.resting("ns/w", 10 * HOUR) == 600.0


def test_what_workloads_tell_counts_after_a_restart_once():
    log, now = MoveLog(RULES), 10_000.0
    for _ in range(2):
        log.record_stored_move("ns/w", now - 60.0, now)
        log.record_stored_move("ns/old", now - 3 * HOUR, now)
    assert log.moves_left(now, asked=True) == 2
    assert log.resting("ns/w", now) == 540.0
    assert log.resting("ns/old", now) == 0.0


def test_what_is_known_is_not_counted_again_when_its_workload_tells_of_it():
    log = MoveLog(RULES)
    log.begin_move("ns/w", 100.0)
    log.record_stored_move("ns/w", 130.0, 140.0)
    assert log.moves_left(140.0, asked=True) == 2


def test_namespaces_are_counted_apart():
    log = MoveLog(RULES)
    log.begin_move("a/1", 0.0)
    log.begin_move("a/2", 1.0)
    assert (log.recent("a", 2.0), log.recent("b", 2.0)) == (2, 0)
    assert log.recent("a", HOUR + 1.0) == 0


def test_when_one_more_may_begin_is_known():
    log = MoveLog(MoveRules(per_hour=4))
    assert log.free_at(10.0) == 10.0
    for at in (10.0, 20.0):
        log.begin_move(f"ns/{at}", at)
    assert (log.moves_left(20.0), log.free_at(20.0)) == (0, 10.0 + HOUR)
    log.begin_move("ns/asked", 30.0, asked=True)
    log.begin_move("ns/asked-too", 40.0, asked=True)
    assert log.free_at(50.0) == 10.0 + HOUR
    assert log.moves_left(log.free_at(50.0)) == 1
    assert MoveLog(MoveRules()).free_at(5.0) == 5.0
