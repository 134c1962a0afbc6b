"""Arrays: which values are the largest, the same on every processor; ranges, and what differs."""

import numpy as np
import pytest

from engine.arrays import distinct, highest, quotient, ranges


@pytest.mark.parametrize(
    ("values", "count", "positions"),
    [
        ([3, 1, 2], 1, [0]),
        ([1, 2, 2, 2], 2, [1, 2]),
        ([2, 5, 2, 5, 2], 3, [0, 1, 3]),
        ([-1, -1, 4], 2, [0, 2]),
        ([7, 7], 2, [0, 1]),
    ],
)
def test_of_equal_values_the_first_are_the_largest(values, count, positions):
    assert highest(np.array(values), count).tolist() == positions


def test_so_it_is_for_any_values():
    dice = np.random.default_rng(1)
    for _ in range(200):
        values = dice.integers(0, 6, dice.integers(1, 1200))
        count = int(dice.integers(1, len(values) + 1))
        ranked = sorted(range(len(values)), key=lambda at: (-values[at], at))
        assert highest(values, count).tolist() == sorted(ranked[:count])


def test_ranges_follow_one_another():
    dice = np.random.default_rng(2)
    for _ in range(100):
        starts = dice.integers(0, 50, dice.integers(0, 6))
        ends = starts + dice.integers(0, 5, len(starts))
        expected = [at for first, last in zip(starts, ends, strict=True) for at in range(first, last)]
        assert ranges(starts, ends).tolist() == expected


@pytest.mark.parametrize("values", [[], [3], [1, 1, 2, 5, 5, 5]])
def test_each_value_once(values):
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))


@pytest.mark.parametrize("by", [1, 2, 3, 8000, 2**36, 2**36 - 1, 2**62])
def test_a_quotient_is_rounded_down_below_zero_too(by):
    values = [0, 1, 7, 8, -1, -8, -9, 2**36, 2**36 - 1, -(2**36), -(2**40) - 1]
    assert quotient(np.array(values), by, None).tolist() == [value // by for value in values]
