"""The cheapest cover, against every subset; and sets in the order of their cost."""

import random
from itertools import combinations

from engine.preemption.cover import Item, by_cost, cheapest


def total(items, some):
    return tuple(map(sum, zip(*(items[at].price for at in some), strict=True)))


def test_no_cover_is_cheaper():
    dice, covered = random.Random(1), 0
    for _ in range(2000):
        rows = dice.randint(1, 3)
        missing = tuple(dice.randint(1, 6) for _ in range(rows))
        items = [
            Item(tuple(dice.randint(0, 4) for _ in range(rows)), (dice.randint(0, 3), 1, dice.randint(0, 2)))
            for _ in range(dice.randint(0, 7))
        ]
        every = [
            total(items, some)
            for size in range(1, len(items) + 1)
            for some in combinations(range(len(items)), size)
            if all(sum(items[at].gains[row] for at in some) >= missing[row] for row in range(rows))
        ]
        found = cheapest(missing, items)
        assert (None if found is None else total(items, found)) == min(every, default=None)
        covered += found is not None
    assert covered > 500


def test_many_different_items_are_covered_in_time():
    dice = random.Random(2)
    items = [Item((dice.randint(1, 1 << 36), dice.randint(1, 9)), (dice.randint(1, 99), 1, 0)) for _ in range(110)]
    missing = (1 << 40, 200)
    found = cheapest(missing, items)
    assert all(sum(items[at].gains[row] for at in found) >= missing[row] for row in (0, 1))


def test_sets_come_by_cost_each_class_once():
    prices, same = [1, 1, 2, 2, 5], [0, 0, 1, 1, 2]
    sets = list(by_cost(same, lambda chosen: (sum(prices[at] for at in chosen), len(chosen))))
    costs = [sum(prices[at] for at in chosen) for chosen in sets]
    assert costs == sorted(costs)
    assert len(sets) == 3 * 3 * 2 - 1
    assert len({tuple(sorted(same[at] for at in chosen)) for chosen in sets}) == len(sets)
