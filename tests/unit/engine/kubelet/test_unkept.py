"""What a pod really got, against what it asked for: where that is not so, it may be moved."""

import pytest
from support.numa_factories import BEST_EFFORT, GPU, make_layout, make_shape, units

from engine.kubelet.machine import NumaPlacement, TopologyPolicy, ZoneUse
from engine.kubelet.numa_policy import unkept

LAYOUT = make_layout({"cpu": 8, GPU: 4}, {"cpu": 8, GPU: 4}, policy=BEST_EFFORT, ids=(0, 1))


def got(*zones):
    return NumaPlacement(zones=tuple(ZoneUse(zone=at, amounts=units(zone)) for at, zone in enumerate(zones) if zone))


def asks(wish, amounts, *resources):
    return make_shape(amounts, wish=TopologyPolicy(wish), wish_resources=resources)


@pytest.mark.parametrize(
    ("wish", "resources", "placement", "kept"),
    [
        ("single-numa-node", (), got({"cpu": 2, GPU: 2}), True),
        ("single-numa-node", (), got({}, {"cpu": 2, GPU: 2}), True),  # another zone than predicted, and as asked for
        ("single-numa-node", (), got({"cpu": 2, GPU: 1}, {GPU: 1}), False),
        ("single-numa-node", ("cpu",), got({"cpu": 2, GPU: 1}, {GPU: 1}), True),
        ("single-numa-node", (GPU,), got({"cpu": 2, GPU: 1}, {GPU: 1}), False),
        ("restricted", (), got({"cpu": 2, GPU: 1}, {GPU: 1}), False),
        ("restricted", (GPU,), got({"cpu": 2}), True),  # nobody observed the GPUs
        ("best-effort", (), got({"cpu": 2, GPU: 1}, {GPU: 1}), True),
        ("none", (), got({"cpu": 2, GPU: 1}, {GPU: 1}), True),
    ],
)
def test_what_is_not_as_it_was_asked_for(wish, resources, placement, kept):
    found = unkept(LAYOUT, asks(wish, {"cpu": 2, GPU: 2}, *resources), placement)
    assert (not found) is kept, found


def test_four_devices_of_three_a_zone_need_two_zones():
    layout = make_layout({"cpu": 8, GPU: 3}, {"cpu": 8, GPU: 3}, policy=BEST_EFFORT, ids=(0, 1))
    assert not unkept(layout, asks("restricted", {GPU: 4}), got({GPU: 2}, {GPU: 2}))
    assert unkept(layout, asks("restricted", {GPU: 2}), got({GPU: 1}, {GPU: 1}))


def test_zones_and_resources_that_the_machine_does_not_have_say_nothing():
    shape = asks("single-numa-node", {GPU: 2})
    strange = NumaPlacement(zones=(ZoneUse(zone=7, amounts={GPU: 2}), ZoneUse(zone=0, amounts={"x/y": 1})))
    assert unkept(LAYOUT, shape, strange) == ""
