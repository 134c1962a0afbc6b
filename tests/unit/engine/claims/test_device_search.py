"""Which devices are taken, and in which order: what surprises in Kubernetes' allocator, one test each."""

import pytest
from support.dra import DRIVER, ask, claim, counters, device, device_class, first, fitting, given, resource_slice, taken

from engine.claims.budget import Budget
from engine.claims.features import Features

PLAIN = [resource_slice(*(device(f"d{index}", index=index, pair=index // 2) for index in range(4)))]
MINE = f'device.attributes["{DRIVER}"]'
MATCH = {"matchAttribute": f"{DRIVER}/pair"}
DISTINCT = {"distinctAttribute": f"{DRIVER}/pair"}


def test_devices_are_taken_as_they_are_published():
    assert given(PLAIN, claim(ask(count=2))) == "r=d0 r=d1"
    assert given(PLAIN, claim(ask(count=2)), in_use=taken("d0", "d2")) == "r=d1 r=d3"
    assert fitting(PLAIN, claim(ask(count=3))) == 1


def test_slices_are_taken_by_name_and_pools_by_driver_and_name():
    slices = [
        resource_slice(device("x"), name="b", pool="q", slices=2),
        resource_slice(device("y"), name="a", pool="q", slices=2),
        resource_slice(device("z"), name="c", pool="p", driver="z.example.com"),
        resource_slice(device("w"), name="d", pool="p"),
    ]
    assert given(slices, claim(ask(count=4))) == "r=w r=y r=x r=z"


def test_pools_with_binding_conditions_come_last():
    attached = device("a", bindingConditions=["is-attached"])
    slices = [resource_slice(attached, pool="a"), resource_slice(device("b"), name="t", pool="b")]
    assert given(slices, claim(ask(count=2))) == "r=b r=a"
    off = Features.from_gates(["DRAPrioritizedList"])
    assert given(slices, claim(ask()), features=off) == "r=b"
    assert given(slices, claim(ask(count=2)), features=off).startswith("unallocatable")


def test_each_request_starts_at_the_first_device_and_the_search_goes_back():
    narrow = ask("b", 1, f"{MINE}.index == 0")
    assert given(PLAIN, claim(ask("a"), narrow)) == "a=d1 b=d0"
    assert given(PLAIN, claim(ask("a"), name="one"), claim(narrow, name="two")) == "a=d1 b=d0"


def test_a_device_in_use_is_not_asked_about():
    odd = [resource_slice(device("d0", kind="x"), device("d1"))]
    one = claim(ask("r", 1, f'{MINE}.kind == "x"'))
    assert given(odd, one) == "r=d0"
    assert given(odd, one, in_use=taken("d0")).startswith(
        f"error: claim claim: selector #0 on device {DRIVER}/p/d1: CEL runtime error: '{MINE}.kind"
    )
    assert given(odd, one, in_use=taken("d0", "d1")).startswith("unallocatable")
    assert fitting(odd, one) == 1


def test_an_expression_that_is_none_stops_the_pod_and_is_told():
    found = given(PLAIN, claim(ask()), classes=[device_class("c", "nosuch")])
    assert found == "error: class c: selector #0: CEL compile error: 'nosuch': undeclared reference to 'nosuch'"
    assert given([], claim(ask()), classes=[device_class("c", "nosuch")]).startswith("unallocatable")


def test_a_class_that_is_not_there_stops_the_pod():
    assert given(PLAIN, claim(ask()), classes=[device_class("x")]).startswith(
        "error: claim claim, request r: could not retrieve device class c"
    )


def test_constraints_hold_within_a_claim_and_not_between_claims():
    pair = claim(ask("a", 2), constraints=[MATCH])
    assert given(PLAIN, pair, in_use=taken("d1")) == "a=d2 a=d3"
    assert given(PLAIN, claim(ask("a", 2), constraints=[DISTINCT])) == "a=d0 a=d2"
    single = [claim(ask(name), name=name, constraints=[DISTINCT]) for name in ("x", "y")]
    assert given(PLAIN, *single) == "x=d0 y=d1"


def test_a_constraint_may_be_of_some_requests_only():
    some = {**MATCH, "requests": ["a", "b"]}
    requests = ask("x"), ask("a"), ask("b")
    assert given(PLAIN, claim(*requests, constraints=[some])) == "x=d0 a=d2 b=d3"


def test_a_device_without_the_attribute_meets_no_constraint():
    assert given([resource_slice(device("d0"))], claim(ask(), constraints=[MATCH])).startswith("unallocatable")


def test_lists_are_compared_only_where_their_feature_is_on_but_a_first_device_may_have_one():
    lists = [resource_slice(*({"name": name, "attributes": {"pair": {"ints": [1, 2]}}} for name in ("a", "b")))]
    on = Features.from_gates(["DRAListTypeAttributes"])
    for constraint, together in ((MATCH, True), (DISTINCT, False)):
        assert given(lists, claim(ask(), constraints=[constraint])) == "r=a"
        assert given(lists, claim(ask(count=2), constraints=[constraint])).startswith("unallocatable")
        found = given(lists, claim(ask(count=2), constraints=[constraint]), features=on)
        assert (found == "r=a r=b") is together


@pytest.mark.parametrize("name", ["pair", f"{DRIVER}/pair"])
def test_an_attribute_without_domain_is_in_the_driver_s(name):
    one = {"name": "d0", "attributes": {name: {"int": 1}}}
    assert given([resource_slice(one)], claim(ask(), constraints=[MATCH])) == "r=d0"
    assert given([resource_slice(one)], claim(ask("r", 1, f"{MINE}.pair == 1"))) == "r=d0"


def test_all_means_every_device_that_is_selected_and_fails_where_one_is_taken():
    some = claim(ask("r", None, f"{MINE}.index > 1"))
    assert given(PLAIN, some) == "r=d2 r=d3"
    assert given(PLAIN, some, in_use=taken("d2")).startswith("unallocatable")
    assert given(PLAIN, claim(ask("r", None, f"{MINE}.index > 9"))).startswith("unallocatable")


def test_all_stops_at_a_violated_constraint():
    assert given(PLAIN, claim(ask("r", None), constraints=[MATCH])) == (
        f"error: claim claim, request r: cannot add device {DRIVER}/p/d2 because a claim constraint would not be "
        "satisfied"
    )


def test_all_stops_at_an_incomplete_pool_of_another_driver():
    broken = resource_slice(device("x"), name="x", driver="other.example.com", slices=2)
    mine = ask("r", None, f'device.driver == "{DRIVER}"')
    assert "other.example.com/p is currently being updated" in given([*PLAIN, broken], claim(mine))
    assert given([*PLAIN, broken], claim(ask(count=4))) == "r=d0 r=d1 r=d2 r=d3"


def test_a_claim_has_at_most_32_devices():
    many = [resource_slice(*(device(f"d{index}") for index in range(40)))]
    assert "adding 33 devices exceeds the claim limit of 32" in given(many, claim(ask(count=33)))
    assert "exceeds the claim limit" in given(many, claim(ask("a", 16), ask("b", 17)))
    assert given(many, claim(ask("a", 16)), claim(ask("b", 17), name="other")).count("=") == 33
    wide = first("b", ask("large", 20), ask("small", 16))
    assert given(many, claim(ask("a", 16), wide)).count("b/small=") == 16


def test_the_first_alternative_that_fits_is_taken():
    choice = first("r", ask("nine", 1, f"{MINE}.index == 9"), ask("two", 1, f"{MINE}.index == 2"), ask("any"))
    assert given(PLAIN, claim(choice)) == "r/two=d2"
    assert given(PLAIN, claim(choice), in_use=taken("d2")) == "r/any=d0"
    assert given(PLAIN, claim(choice, ask("x", 1, f"{MINE}.index == 2"))) == "r/any=d0 x=d2"
    off = Features.from_gates(["DRAConsumableCapacity"])
    assert "DRAPrioritizedList feature is disabled" in given(PLAIN, claim(choice), features=off)


def test_who_only_looks_takes_nothing_and_sees_what_is_taken():
    admin = claim(ask("r", 2, adminAccess=True))
    assert given(PLAIN, admin, in_use=taken("d0", "d1")) == "r=d0 r=d1"
    assert fitting(PLAIN, admin, limit=5) == 5
    assert "admin access is requested, but the feature is disabled" in given(
        PLAIN, admin, features=Features.from_gates([])
    )


def test_who_only_looks_at_partitions_takes_of_their_counters_all_the_same():
    """Kubernetes 1.37 with NVIDIA's driver: for adminAccess "in use" alone does not count; counters do."""
    parts = resource_slice(device("whole", size=2, uses={"c": "2"}), device("half", size=1, uses={"c": "1"}), slices=2)
    slices, admin = [counters(c="2"), parts], claim(ask("r", 1, f"{MINE}.size == 1", adminAccess=True))
    assert given(slices, admin, in_use=taken("half")) == "r=half"
    assert given(slices, admin, in_use=taken("whole")).startswith("unallocatable")
    assert given(slices, claim(ask("r", 1, f"{MINE}.size == 2")), in_use=taken("half")).startswith("unallocatable")


def test_devices_may_be_published_in_another_order_and_with_a_counter_of_none():
    """NVIDIA's driver v0.4.1 publishes in the order of a map of Go, and some partitions have no encoder."""
    assert given([resource_slice(device("d1"), device("d0"))], claim(ask())) == "r=d1"
    assert given([resource_slice(device("d0"), device("d1"))], claim(ask())) == "r=d0"
    part = resource_slice(device("part", uses={"memory": "1", "encoders": "0"}), slices=2)
    assert given([counters(memory="1", encoders="0"), part], claim(ask())) == "r=part"


def test_taints_keep_those_away_who_do_not_tolerate_them():
    taint = {"key": "sick", "value": "yes", "effect": "NoSchedule"}
    slices = [resource_slice(device("d0", taints=[taint]), device("d1", taints=[{**taint, "effect": "None"}]))]
    assert given(slices, claim(ask())) == "r=d1"
    for toleration in ({"operator": "Exists"}, {"key": "sick", "value": "yes"}, {"key": "sick", "operator": "Exists"}):
        assert given(slices, claim(ask(tolerations=[toleration]))) == "r=d0"
    for toleration in ({"key": "sick"}, {"operator": "Exists", "effect": "NoExecute"}, {"operator": "Gt"}):
        assert given(slices, claim(ask(tolerations=[toleration]))) == "r=d1"


def test_a_search_without_end_is_given_up_with_its_reason():
    slices = [resource_slice(*(device(f"d{index}", kind="a" if index else "b") for index in range(24)))]
    hopeless = claim(*(ask(f"r{index}", 2) for index in range(11)), ask("x", 1, f'{MINE}.kind == "c"'))
    found = given(slices, hopeless, budget=Budget(20_000))
    assert found == "given-up: the search for devices took too many steps"


def test_more_devices_than_the_search_descends_to_are_given_up():
    many = [
        resource_slice(*(device(f"d{index}") for index in range(32)), pool=f"p{at}", name=f"s{at}") for at in range(16)
    ]
    claims = [claim(ask("r", 32), name=f"c{index}") for index in range(12)]
    assert given(many, *claims) == "given-up: more than 300 devices and requests"
