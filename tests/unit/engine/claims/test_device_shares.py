"""Capacities that several claims share: what a request takes, and what is left."""

import pytest
from support.dra import DRIVER, ask, claim, counters, device, fitting, given, resource_slice

from engine.claims.features import Features
from engine.claims.in_use import InUse, Use
from engine.claims.quantities import NANO

RANGE = {"value": "10", "requestPolicy": {"default": "1", "validRange": {"min": "2", "max": "8", "step": "2"}}}


def shared(**capacity):
    return [resource_slice(device("d", allowMultipleAllocations=True, capacity=capacity))]


def wants(**amounts):
    return {"capacity": {"requests": amounts}}


def share(name="d", **amounts):
    return InUse.from_uses([Use((DRIVER, "p", name), "1", {key: value * NANO for key, value in amounts.items()})])


def test_a_device_is_shared_until_its_capacity_is_used_up():
    slices = shared(bandwidth={"value": "10", "requestPolicy": {"default": "3"}})
    assert fitting(slices, claim(ask())) == 3
    assert fitting(slices, claim(ask(**wants(bandwidth="5")))) == 2
    assert fitting(slices, claim(ask(**wants(bandwidth="5"))), in_use=share(bandwidth=6)) == 0
    assert fitting(slices, claim(ask(**wants(bandwidth="11")))) == 0


def test_who_asks_for_nothing_takes_the_default_or_all():
    assert fitting(shared(a={"value": "10", "requestPolicy": {"default": "2"}}), claim(ask())) == 5
    assert fitting(shared(a="10"), claim(ask())) == 1


@pytest.mark.parametrize(("wanted", "pods"), [("1", 5), ("3", 2), ("4", 2), ("5", 1), ("8", 1), ("9", 0)])
def test_requests_are_raised_to_the_least_amount_and_to_the_next_step(wanted, pods):
    assert fitting(shared(a=RANGE), claim(ask(**wants(a=wanted)))) == pods


def test_steps_may_be_fractions():
    policy = {"default": "500m", "validRange": {"min": "500m", "step": "250m"}}
    slices = shared(a={"value": "3", "requestPolicy": policy})
    assert fitting(slices, claim(ask(**wants(a="600m")))) == 4
    off = Features.from_gates(["DRAConsumableCapacity"])
    assert fitting(slices, claim(ask(**wants(a="600m"))), features=off) == 3


def test_requests_are_raised_to_the_next_valid_value():
    slices = shared(a={"value": "10", "requestPolicy": {"default": "1", "validValues": ["1", "4"]}})
    assert fitting(slices, claim(ask(**wants(a="2")))) == 2
    assert fitting(slices, claim(ask(**wants(a="5")))) == 0


def test_a_request_that_cannot_be_counted_stops_the_pod():
    huge = {"value": "100E", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "2"}}}
    assert given(shared(a=huge), claim(ask(**wants(a="20E")))).startswith(
        "error: claim claim, request r: checking capacity for device"
    )
    assert "capacity value is negative" in given(shared(a="10"), claim(ask(**wants(a="-1"))))


def test_requested_capacities_must_be_published_also_by_exclusive_devices():
    slices = [resource_slice(device("d0"), device("d1", capacity={"memory": "80Gi"}))]
    assert given(slices, claim(ask(**wants(memory="10Gi")))) == "r=d1"
    assert given(slices, claim(ask(**wants(Memory="10Gi")))).startswith("unallocatable")
    assert given(slices, claim(ask(**wants(memory="81Gi")))).startswith("unallocatable")


def test_one_request_never_takes_one_device_twice_and_two_requests_may():
    slices = shared(a="10")
    assert given(slices, claim(ask("r", 2, **wants(a="2")))).startswith("unallocatable")
    assert given(slices, claim(ask("x", **wants(a="2")), ask("y", **wants(a="2")))) == "x=d y=d"


def test_further_shares_do_not_pay_counters_again():
    one = device("d", allowMultipleAllocations=True, capacity={"a": "10"}, uses={"slots": "1"})
    slices = [counters(slots="1"), resource_slice(one, slices=2)]
    assert fitting(slices, claim(ask(**wants(a="2")))) == 5
    other = device("e", allowMultipleAllocations=True, capacity={"a": "10"}, uses={"slots": "1"})
    both = [counters(slots="1"), resource_slice(one, other, slices=2)]
    assert fitting(both, claim(ask(**wants(a="5")))) == 2


def test_without_the_feature_a_share_is_the_whole_device():
    uses = [Use((DRIVER, "p", "d"), "1", {"a": NANO})]
    off = Features.from_gates([])
    in_use = InUse.from_uses(uses, shares=off.consumable_capacity)
    assert given(shared(a="10"), claim(ask()), in_use=in_use, features=off).startswith("unallocatable")
    assert "feature is disabled" in given(shared(a="10"), claim(ask(**wants(a="1"))), features=off)
