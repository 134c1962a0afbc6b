"""How many pods fit beside others that wait for devices: as many as get theirs in whatever order all of them come."""

import random
from itertools import permutations

import pytest
from support.dra import ask, claim, counters, device, ready, resource_slice, taken

from engine.claims.budget import Budget
from engine.claims.counting.beside import MOST_PLACES, count_beside, given
from engine.claims.counting.interchangeable import DeviceSets, Takers
from engine.claims.in_use import InUse

BIG = 'device.attributes["d.example.com"].big'
SAME = [{"matchAttribute": "d.example.com/socket"}]
ANY, PAIR = claim(ask()), claim(ask("r", 2), constraints=SAME)


def kinds(slices, *claims):
    """Each made ready for the same node."""
    prepared = [ready(slices, [one])[0] for one in claims]
    hardware = prepared[0].hardware
    return [type(one)(hardware, one.claims, one.failed) for one in prepared]


def in_any_order(waiting, asking, in_use, limit):
    """The same by trying each order."""
    for more in range(limit + 1):
        queue = [index for index, (_, count) in enumerate(waiting) for _ in range(count)] + [-1] * more
        for order in set(permutations(queue)):
            state = in_use
            for index in order:
                state = state and given(Takers(asking if index < 0 else waiting[index][0], Budget()), state)
            if state is None:
                return max(more - 1, 0)
    return limit


def test_who_comes_first_may_take_what_another_needs():
    slices = [resource_slice(device("a", big=True), device("b", big=False))]
    any_, big = kinds(slices, ANY, claim(ask("r", 1, BIG)))
    assert count_beside([(any_, 1)], big, InUse(), 2, Budget()) == 0
    assert count_beside([(big, 1)], any_, InUse(), 2, Budget()) == 0
    assert count_beside([(any_, 1)], any_, InUse(), 2, Budget()) == 1


def test_those_that_do_not_stand_in_each_others_way_count_alone():
    slices = [resource_slice(*(device(f"d-{at}", big=at < 3) for at in range(6)))]
    small, big = kinds(slices, claim(ask("r", 1, f"!{BIG}")), claim(ask("r", 1, BIG)))
    assert count_beside([(small, 2)], big, InUse(), 9, Budget()) == 3
    assert count_beside([(small, 4)], big, InUse(), 9, Budget()) == 0  # there are three small ones
    assert count_beside([(big, 1)], small, taken("d-3"), 9, Budget()) == 2


def test_common_devices_of_a_kind_are_looked_for_once_however_many_pods_it_has(monkeypatch):
    looked, plain = [], DeviceSets.from_prepared
    monkeypatch.setattr(
        DeviceSets, "from_prepared", lambda prepared, budget: looked.append(prepared) or plain(prepared, budget)
    )
    slices = [resource_slice(*(device(f"d-{at}", big=at < 8) for at in range(16)), allNodes=True)]
    small, big = kinds(slices, claim(ask("r", 1, f"!{BIG}")), claim(ask("r", 1, BIG)))
    assert count_beside([(small, 5)], big, InUse(), 9, Budget()) == 8
    assert looked == [small, big]


def test_one_and_two_of_the_same_devices_are_alike_in_any_order():
    slices = [resource_slice(*(device(f"d-{at}") for at in range(8)))]
    one, two = kinds(slices, ANY, claim(ask("r", 2)))
    assert count_beside([(one, 3)], two, InUse(), 9, Budget()) == 2
    assert count_beside([(one, 1), (two, 2)], one, InUse(), 9, Budget()) == 3


def test_counters_and_shares_are_followed_in_each_order():
    whole = device("whole", big=True, uses={"m": "4"})
    halves = [device(f"half-{at}", big=False, uses={"m": "2"}) for at in range(2)]
    slices = [counters(m="4"), resource_slice(whole, *halves, slices=2)]
    big, half, any_ = kinds(slices, claim(ask("r", 1, BIG)), claim(ask("r", 1, f"!{BIG}")), ANY)
    assert count_beside([(half, 1)], big, InUse(), 4, Budget()) == 0
    assert count_beside([(half, 1)], half, InUse(), 4, Budget()) == 1
    assert count_beside([(half, 1)], any_, InUse(), 4, Budget()) == 0  # the whole one may go first


def test_what_takes_too_many_steps_counts_as_none():
    slices = [resource_slice(*(device(f"d-{at}", socket=at % 2, big=at < 4) for at in range(32)))]
    any_, pair, big = kinds(slices, ANY, PAIR, claim(ask("r", 1, BIG)))
    assert count_beside([(any_, MOST_PLACES)], pair, InUse(), 1, Budget()) == 0
    assert count_beside([(any_, 4), (big, 2)], pair, InUse(), 9, Budget(1000)) == 0


@pytest.mark.parametrize("seed", range(40))
def test_it_is_what_trying_each_order_gives(seed):
    dice = random.Random(seed)
    slices = [
        resource_slice(*(device(f"d-{at}", socket=dice.randrange(2), big=dice.random() < 0.5) for at in range(6)))
    ]
    several = [ANY, claim(ask("r", 2)), PAIR, claim(ask("r", 1, BIG)), claim(ask("a"), ask("b", 1, f"!{BIG}"))]
    chosen = kinds(slices, *dice.sample(several, 3))
    waiting = [(kind, dice.randrange(1, 3)) for kind in chosen[: dice.randrange(1, 3)]]
    in_use = taken(*dice.sample([f"d-{at}" for at in range(6)], dice.randrange(3)))
    asking = dice.choice([chosen[2], waiting[0][0]])
    assert count_beside(waiting, asking, in_use, 3, Budget()) == in_any_order(waiting, asking, in_use, 3)
