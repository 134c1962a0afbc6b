"""Which values of an array are the largest: the same on every processor."""

import numpy as np
import pytest

from engine.arrays import highest


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
        values = dice.integers(0, 6, dice.integers(1, 400))
        count = int(dice.integers(1, len(values) + 1))
        ranked = sorted(range(len(values)), key=lambda at: (-values[at], at))
        assert highest(values, count).tolist() == sorted(ranked[:count])
