import numpy as np
import pytest

from engine.numa.batch.masks import Workspace, holding, sets_of


@pytest.mark.parametrize("zones", range(1, 9))
def test_the_sets_of_a_width_are_all_of_them_once(zones):
    for width in range(1, zones + 1):
        want = [mask for mask in range(1 << zones) if mask.bit_count() == width]
        assert sorted(sets_of(zones, width).masks.tolist()) == want


@pytest.mark.parametrize(("unit", "extra"), [(1, 0), (1 << 12, 0), (1 << 33, 0), (1 << 33, 1)])
def test_sums_are_exact_whatever_the_amounts(unit, extra):
    # 32 bits do for small amounts, and for large ones that end in zeros; the last unit needs all 64
    dice = np.random.default_rng(unit + extra)
    space = Workspace()
    for zones in (1, 2, 3, 5, 8):
        have = dice.integers(0, 50, (2, zones, 40)) * np.array([1, unit])[:, None, None]
        have[1] += dice.integers(0, 3, (zones, 40)) * extra
        for width in range(1, zones + 1):
            amounts = np.array([20 * width, 20 * width * unit + extra])
            sets = sets_of(zones, width)
            got = holding(sets, list(have), amounts.tolist(), space)
            members = (sets.masks[:, None] >> np.arange(zones)) & 1
            want = (np.einsum("sz,rzm->rsm", members, have) >= amounts[:, None, None]).all(axis=0)
            assert np.array_equal(got, want)
            assert width in {1, zones} or 0 < want.mean() < 1


def test_few_machines_are_asked_another_way_with_the_same_answer():
    dice = np.random.default_rng(7)
    space = Workspace()
    sets = sets_of(8, 3)
    for unit in (1, 1 << 50):
        have = dice.integers(0, 9, (2, 8, 30)) * unit
        amounts = [12 * unit, 15 * unit]
        many = holding(sets, list(have), amounts, space).copy()
        few = [holding(sets, [part[:, at : at + 3] for part in have], amounts, space) for at in range(0, 30, 3)]
        assert np.array_equal(np.concatenate(few, axis=1), many)
        assert 0 < many.mean() < 1
