"""Who waits for a place, in which order, and when each is looked at."""

from ungater.pool import Pool


def test_priority_then_age_then_key():
    pool = Pool()
    for key, priority, created in (("b", 0, "2"), ("c", 0, "1"), ("a", 0, "2"), ("z", 9, "3")):
        pool.add(key, priority, created)
    assert pool.heads(3, 0.0) == ["z", "c", "a"]
    assert pool.heads(3, 0.0) == ["b"]


def test_one_that_was_refused_is_looked_at_again_only_when_something_changed():
    pool = Pool()
    pool.add("a", 0, "1", token="4")
    assert pool.heads(9, 0.0) == ["a"]
    pool.add("a", 0, "1", token="4")
    assert pool.heads(9, 0.0) == []
    assert pool.next_time(0.0) is None
    pool.wake()
    assert pool.next_time(0.0) == 0.0
    assert pool.heads(9, 0.0) == ["a"]
    pool.add("a", 0, "1", token="5")
    assert pool.heads(9, 0.0) == ["a"]
    pool.add("a", 7, "1", token="5")
    assert pool.heads(9, 0.0) == ["a"]


def test_one_whose_write_failed_comes_back_after_its_time():
    pool = Pool()
    pool.add("a", 0, "1")
    pool.add("b", 0, "2")
    pool.heads(9, 0.0)
    pool.again("a", after=5.0)
    assert pool.heads(9, 4.0) == []
    assert pool.next_time(4.0) == 1.0
    pool.again("b")
    assert pool.heads(9, 4.0) == ["b"]
    assert pool.heads(9, 5.0) == ["a"]


def test_one_that_left_is_gone():
    pool = Pool()
    pool.add("a", 0, "1")
    pool.remove("a")
    pool.wake()
    assert pool.heads(9, 0.0) == []
    pool.again("a")
    assert len(pool) == 0
    assert pool.heads(9, 0.0) == []
    pool.add("a", 0, "1")
    assert pool.heads(9, 0.0) == ["a"]
