from itertools import combinations, product

import pytest

from engine.kubelet.devices.links import mask_of
from engine.kubelet.devices.xpu import SIZES, XpuBoard, best_split, board, choose_cards, delta_mtf, fill, mtf, score

P800 = board([1, 1, 1, 1, 2, 2, 2, 2])


def cards(mask):
    return {card for card in range(mask.bit_length()) if mask >> card & 1}


def occupied(text):
    """The free cards, from the form of the vendor's table: 1 is occupied, left to right."""
    return mask_of([card for card, used in enumerate(text) if used == "0"])


def tasks_to_fill(wings, free, sizes=SIZES):
    """By definition: the fewest tasks that partition the free cards, tried one task after another."""
    if not free:
        return 0
    best = free.bit_count()
    lowest = min(cards(free))
    for size in sizes:
        for others in combinations(sorted(cards(free) - {lowest}), size - 1):
            task = mask_of([lowest, *others])
            if size > 4 or any(task & ~wing == 0 for wing in wings):
                best = min(best, 1 + tasks_to_fill(wings, free & ~task, sizes))
    return best


@pytest.mark.parametrize(
    ("occupation", "tasks", "sizes"),
    [
        ("11111111", 0, ()),
        ("00000000", 1, (8,)),
        ("00000011", 2, (4, 2)),
        ("00000001", 3, (4, 2, 1)),
        ("00010001", 4, (2, 2, 1, 1)),
    ],
)
def test_the_documented_mtf(occupation, tasks, sizes):
    free = P800.free_by_wing(occupied(occupation))
    assert mtf(free) == tasks
    assert fill(free) == sizes


@pytest.mark.parametrize(
    ("before", "after", "delta", "points"),
    [
        ("00000111", "00001111", -1, 2000),
        ("00000111", "00110111", 0, 1000),
        ("00001111", "00011111", 1, 0),
        ("00000000", "00000001", 2, -1000),
    ],
)
def test_the_documented_scores(before, after, delta, points):
    free = P800.free_by_wing(occupied(before))
    taken = P800.free_by_wing(occupied(before) & ~occupied(after))
    assert delta_mtf(free, taken) == delta
    assert score(delta) == points


@pytest.mark.parametrize(
    ("used", "count", "chosen", "delta"),
    [
        ((), 1, {0}, 2),
        ((), 2, {0, 1}, 1),
        ((), 4, {0, 1, 2, 3}, 0),
        ((), 8, {0, 1, 2, 3, 4, 5, 6, 7}, -1),
        ((0, 1, 2), 1, {3}, -1),
        ((0, 1, 2), 2, {4, 5}, 0),
        ((0, 1, 2, 3), 1, {4}, 1),
        ((0, 4), 2, {1, 2}, -1),
        ((0, 1, 4), 1, {5}, -1),
    ],
)
def test_worked_examples(used, count, chosen, delta):
    found = choose_cards(P800, 0xFF & ~mask_of(used), count)
    assert cards(found.cards) == chosen
    assert found.delta == delta
    assert found.score == 1000 - 1000 * delta


@pytest.mark.parametrize(("used", "count"), [((0,), 8), ((0, 1, 2, 4, 5, 6), 2), ((0, 4), 4), (tuple(range(8)), 1)])
def test_what_does_not_fit_is_refused(used, count):
    assert choose_cards(P800, 0xFF & ~mask_of(used), count) is None
    assert best_split(P800.free_by_wing(0xFF & ~mask_of(used)), count) is None


@pytest.mark.parametrize("count", [0, 3, 5, 6, 7, 9, 16])
def test_other_numbers_of_cards_are_refused_whatever_is_free(count):
    assert all(choose_cards(P800, free, count) is None for free in range(256))


@pytest.mark.parametrize(
    "wings",
    [
        (0b1111, 0b11110000),
        (0b1010101, 0b10101010),
        (0b11, 0b1100, 0b110000, 0b11000000),
        (0xFF,),
        (0b11111, 0b11100000),
    ],
)
def test_every_state_of_eight_cards_is_chosen_as_exhaustive_search_would(wings):
    here = XpuBoard(wings)
    least = {free: tasks_to_fill(wings, free) for free in range(256)}
    for free, count in product(range(256), SIZES):
        assert mtf(here.free_by_wing(free)) == least[free]
        best = None
        for chosen in combinations(sorted(cards(free)), count):
            mask = mask_of(chosen)
            crossed = sum(1 for wing in wings if wing & mask) - 1
            if count <= 4 and crossed:
                continue
            rank = (least[free & ~mask] - least[free], crossed, chosen)
            if best is None or rank < best[0]:
                best = rank, mask
        found = choose_cards(here, free, count)
        assert (found and (found.cards, found.delta)) == (best and (best[1], best[0][0])), (free, count)


def test_sixteen_cards_stay_in_one_wing_where_they_can():
    here = board([1] * 8 + [2] * 8)
    assert choose_cards(here, 0xFFFF, 8).cards == 0xFF
    assert choose_cards(here, 0xFFFE, 8).cards == 0xFF00
    assert choose_cards(here, 0xFEFE, 8).cards.bit_count() == 8
    assert mtf((8, 8)) == 2
    assert mtf((7, 7)) == 3  # 8 from both, then 4 and 2
    assert fill((7, 7)) == (8, 4, 2)


def test_only_the_zones_of_the_admission_are_used():
    assert cards(choose_cards(P800, 0xFF & ~0b111, 1, within=0xF0).cards) == {4}
    assert choose_cards(P800, 0xFF, 8, within=0xF0) is None
    assert cards(choose_cards(P800, 0xFF, 4, within=0xF0).cards) == {4, 5, 6, 7}


def test_an_init_containers_cards_are_taken_again():
    free = 0xFF & ~0b110000
    found = choose_cards(P800, free, 2, must=0b010000)
    assert cards(found.cards) == {4, 6}
    assert found.delta == mtf((4, 1)) - mtf((4, 3))
    assert choose_cards(P800, free, 1, must=0b110000) is None
    assert choose_cards(P800, free, 2, must=0b010001) is None  # they span wings
    # An app that needs fewer than its init container had takes some of those.
    assert cards(choose_cards(P800, 0b1111, 1, within=0b110000).cards) == {4}
    assert choose_cards(P800, 0b1111, 1, within=0b110000).delta == mtf((4, 1)) - mtf((4, 2))


def test_numbers_alone_give_the_same_verdict_and_change():
    for free in range(256):
        for count in SIZES:
            found, split = choose_cards(P800, free, count), best_split(P800.free_by_wing(free), count)
            assert (found is None) == (split is None)
            if found is not None:
                assert found.delta == delta_mtf(P800.free_by_wing(free), split)
    assert best_split((1, 4), 2, within=(1, 0)) is None
    assert best_split((1, 4), 1, within=(0, 4)) == (0, 1)


def test_wings_are_numa_zones_or_fours():
    assert board([0] * 8) == P800
    assert board([2, 1, 2, 1]).wings == (0b0101, 0b1010)
    assert board([0] * 4).wings == (0b1111,)
    assert board(()).wings == ()


def test_one_after_another_until_full():
    free, taken = 0xFF, []
    for count in (1, 2, 4, 1, 1):
        found = choose_cards(P800, free, count)
        taken.append(cards(found.cards) if found else None)
        free &= ~found.cards if found else free
    assert taken == [{0}, {1, 2}, {4, 5, 6, 7}, {3}, None]
