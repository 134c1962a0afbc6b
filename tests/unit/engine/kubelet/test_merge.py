"""The merge of hints against 2,000 results of the kubelet's own, and against its product of hint lists."""

import gzip
import json
import random
from itertools import product
from pathlib import Path

import pytest

from engine.kubelet.hint_merge import IMPOSSIBLE, NO_PREFERENCE, Hints, Merged, meet, merge, space_of
from engine.kubelet.machine import TopologyPolicy

DATA = Path(__file__).parents[3] / "data" / "merge.jsonl.gz"


def family_of(masks):
    return sum(1 << mask for mask in set(masks))


def cases():
    with gzip.open(DATA, "rt") as lines:
        return [json.loads(line) for line in lines]


def hints_of(case):
    index = {zone: at for at, zone in enumerate(case["numa_nodes"])}
    found = []
    for provider in case["providers"]:
        for hints in (provider or {None: None}).values():
            if hints is None:
                found.append(NO_PREFERENCE)
            elif not hints:
                found.append(IMPOSSIBLE)
            else:
                found.append(one_list([(hint["mask"], hint["preferred"]) for hint in hints], index))
    return found


def one_list(hints, index):
    masks = [(None if mask is None else sum(1 << index[zone] for zone in mask), preferred) for mask, preferred in hints]
    return Hints(
        preferred=family_of(mask for mask, preferred in masks if mask is not None and preferred),
        others=family_of(mask for mask, preferred in masks if mask is not None and not preferred),
        free=(None, True) in masks,
        lost=(None, False) in masks,
    )


def test_every_recorded_merge_comes_out_equal():
    wrong = []
    for case in cases():
        index = {zone: at for at, zone in enumerate(case["numa_nodes"])}
        policy = TopologyPolicy(case["policy"])
        distances = case["distances"] if case["prefer_closest_numa_nodes"] else ()
        merged = merge(hints_of(case), space_of(len(index)), policy, distances)
        mask = case["merged"]["mask"]
        want = Merged(None if mask is None else sum(1 << index[zone] for zone in mask), case["merged"]["preferred"])
        if merged != want:
            wrong.append((case["id"], merged, want))
    assert len(cases()) == 2000
    assert not wrong


def test_zones_1_and_2_come_before_0_and_3():
    hints = [Hints(preferred=family_of([0b1001, 0b0110]))]
    assert merge(hints, space_of(4), TopologyPolicy.RESTRICTED) == (0b0110, True)


def test_closer_zones_come_first_only_where_that_is_asked_for_and_more_than_one_zone_may_be():
    distances = [[10, 30, 20], [30, 10, 30], [20, 30, 10]]
    hints = [Hints(preferred=family_of([0b011, 0b101]))]
    assert merge(hints, space_of(3), TopologyPolicy.RESTRICTED, distances).mask == 0b101
    assert merge(hints, space_of(3), TopologyPolicy.RESTRICTED).mask == 0b011
    assert merge(hints, space_of(3), TopologyPolicy.SINGLE, distances) == (None, False)


def by_product(hints, zones):
    """The narrowest preferred result, or all others, of one hint of each resource."""
    every = (1 << zones) - 1
    lists = []
    for hint in hints:
        listed = [(mask, True) for mask in range(1 << zones) if hint.preferred >> mask & 1]
        listed += [(mask, False) for mask in range(1 << zones) if hint.others >> mask & 1]
        listed += [(None, True)] * hint.free + [(None, False)] * hint.lost
        lists.append(listed)
    preferred, others = [], set()
    for chosen in product(*lists):
        mask = every
        for one, _ in chosen:
            mask &= every if one is None else one
        named = {one for one, _ in chosen if one is not None}
        if mask and len(named) <= 1 and all(liked for _, liked in chosen):
            preferred.append(mask)
        elif mask:
            others.add(mask)
    return min(preferred, key=lambda mask: (mask.bit_count(), mask), default=0), others


@pytest.mark.parametrize("seed", range(60))
def test_the_closed_form_is_what_the_product_gives(seed):
    dice = random.Random(seed)
    zones = dice.choice([2, 3, 4])
    space = space_of(zones)
    hints = []
    for _ in range(dice.randint(1, 3)):
        masks = dice.sample(range(1, 1 << zones), dice.randint(1, min(5, (1 << zones) - 1)))
        liked = {mask for mask in masks if dice.random() < 0.5}
        hints.append(Hints(family_of(liked), family_of(set(masks) - liked), dice.random() < 0.2, dice.random() < 0.1))
    mask, others = by_product(hints, zones)
    merged = merge(hints, space, TopologyPolicy.RESTRICTED)
    assert merged.preferred is bool(mask)
    assert merged.mask == mask or (not mask and (merged.mask in others or (not others and merged.mask == space.all)))


@pytest.mark.parametrize("seed", range(40))
def test_meet_is_every_and_of_two_masks(seed):
    dice = random.Random(seed)
    zones = dice.choice([1, 3, 5])
    one, other = (dice.getrandbits(1 << zones) for _ in range(2))
    want = family_of(a & b for a in range(1 << zones) for b in range(1 << zones) if one >> a & 1 and other >> b & 1)
    assert meet(one, other, zones) == want
