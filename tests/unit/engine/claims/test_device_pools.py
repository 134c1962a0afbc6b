"""What a node reaches: generations, complete and broken pools, selection of nodes."""

import random

import pytest
from support.dra import DRIVER, ask, claim, counters, device, fitting, given, resource_slice, taken

from engine.claims.errors import ObjectError
from engine.claims.features import Features
from engine.claims.model import DeviceNode
from engine.claims.pools import Inventory, reaches
from engine.claims.read.slices import read_slice

ONE = claim(ask())


def selector(key, operator, *values, field="matchExpressions"):
    return {"nodeSelectorTerms": [{field: [{"key": key, "operator": operator, "values": list(values)}]}]}


def test_only_the_newest_generation_counts():
    old = resource_slice(device("old"), name="a", generation=1)
    new = resource_slice(device("new"), name="b", generation=2)
    assert given([old, new], claim(ask(count=1))) == "r=new"
    assert given([new, old], claim(ask(count=2))).startswith("unallocatable")


def test_an_incomplete_pool_gives_nothing():
    assert given([resource_slice(device("d"), slices=2)], ONE).startswith("unallocatable")


def test_slices_of_other_nodes_make_a_pool_complete():
    here = resource_slice(device("d"), slices=2)
    there = resource_slice(device("e"), name="t", slices=2, nodeName="m")
    assert given([here, there], ONE) == "r=d"


def test_a_newer_generation_elsewhere_voids_only_an_incomplete_pool():
    newer = resource_slice(device("e"), name="t", generation=2, nodeName="m")
    assert given([resource_slice(device("d")), newer], ONE) == "r=d"
    assert given([resource_slice(device("d"), slices=2), newer], ONE).startswith("unallocatable")
    every = claim(ask("r", None))
    assert given([resource_slice(device("d"), slices=2), newer], every).startswith("unallocatable")


def test_a_pool_that_contradicts_itself_is_told_only_where_nothing_is_found():
    twice = resource_slice(device("d"), device("d"))
    good = resource_slice(device("e"), pool="q", name="t")
    assert given([twice, good], ONE) == "r=e"
    assert given([twice], ONE) == f"invalid-pool: resource pool {DRIVER}/p is invalid: duplicate device name d"


@pytest.mark.parametrize(
    ("where", "reached"),
    [
        ({"nodeName": "n"}, True),
        ({"nodeName": "m"}, False),
        ({"allNodes": True}, True),
        ({"nodeSelector": selector("zone", "In", "a", "b")}, True),
        ({"nodeSelector": selector("zone", "NotIn", "a")}, False),
        ({"nodeSelector": selector("rack", "NotIn", "a")}, True),
        ({"nodeSelector": selector("zone", "Exists")}, True),
        ({"nodeSelector": selector("rack", "DoesNotExist")}, True),
        ({"nodeSelector": selector("size", "Gt", "3")}, True),
        ({"nodeSelector": selector("size", "Lt", "4")}, False),
        ({"nodeSelector": selector("zone", "Gt", "1")}, False),
        ({"nodeSelector": selector("metadata.name", "In", "n", field="matchFields")}, True),
        ({"nodeSelector": selector("metadata.name", "NotIn", "n", field="matchFields")}, False),
        ({"nodeSelector": {"nodeSelectorTerms": [{}]}}, False),
    ],
)
def test_slices_and_devices_say_where_they_are_reached_from(where, reached):
    labels = {"zone": "a", "size": "4"}
    by_slice = [resource_slice(device("d"), **where)]
    by_device = [resource_slice(device("d", **where), perDeviceNodeSelection=True)]
    for slices in (by_slice, by_device):
        assert given(slices, ONE, labels=labels).startswith("r=d" if reached else "unallocatable")


def test_a_slice_that_says_nothing_of_nodes_is_passed_over():
    odd = resource_slice(device("d"))
    del odd["spec"]["nodeName"]
    assert given([odd], ONE).startswith("unallocatable")


def test_a_node_selector_that_is_none_is_the_slice_s_error():
    for wrong in (selector("a", "Near"), selector("a", "In"), selector("a", "Gt", "x"), selector("a", "Exists", "b")):
        with pytest.raises(ObjectError, match=r"ResourceSlice s: spec\.nodeSelector\.nodeSelectorTerms\[0\]"):
            given([resource_slice(device("d"), nodeSelector=wrong)], ONE)


def test_counters_are_shared_by_the_devices_of_a_pool():
    parts = [device(f"half-{index}", uses={"memory": "20Gi"}) for index in range(3)]
    whole = device("whole", uses={"memory": "40Gi"})
    slices = [counters(memory="40Gi"), resource_slice(whole, *parts, slices=2)]
    assert fitting(slices, ONE) == 1
    assert fitting(slices, ONE, in_use=taken("half-0")) == 1
    assert given(slices, ONE, in_use=taken("half-0")) == "r=half-1"
    assert given(slices, claim(ask(count=2))) == "r=half-0 r=half-1"


def test_counters_that_devices_of_other_nodes_use_count():
    here = resource_slice(device("d", uses={"memory": "20Gi"}), slices=3)
    there = resource_slice(device("e", uses={"memory": "30Gi"}), name="t", slices=3, nodeName="m")
    sets = counters(memory="40Gi")
    sets["spec"]["pool"]["resourceSliceCount"] = 3
    assert given([sets, here, there], ONE) == "r=d"
    assert given([sets, here, there], ONE, in_use=taken("e")).startswith("unallocatable")


def test_a_counter_that_is_overdrawn_stops_all_that_take_any():
    both = device("a", uses={"x": "2"}), device("b", uses={"y": "1"}), device("c")
    slices = [counters(x="1", y="9"), resource_slice(*both, slices=2)]
    assert given(slices, ONE) == "r=b"
    assert given(slices, ONE, in_use=taken("a")) == "r=c"


def test_counters_that_are_not_there_break_the_pool():
    slices = [counters(x="1"), resource_slice(device("a", uses={"y": "1"}), slices=2)]
    assert given(slices, ONE).endswith("counter y not found in counter set set")
    off = Features.from_gates(["DRAConsumableCapacity"])
    assert given([resource_slice(device("a", uses={"y": "1"}))], ONE, features=off).startswith("unallocatable")


@pytest.mark.parametrize("seed", range(20))
def test_slices_are_found_by_the_labels_of_nodes_as_if_all_were_compared(seed):
    dice = random.Random(seed)

    def need():
        operator = dice.choice(["In", "In", "NotIn", "Exists"])
        values = dice.sample("abc", dice.randint(1, 2)) if operator != "Exists" else []
        return {"key": dice.choice(["zone", "rack"]), "operator": operator, "values": values}

    def terms():
        return [{"matchExpressions": [need() for _ in range(dice.randint(0, 2))]} for _ in range(dice.randint(1, 3))]

    slices = [
        read_slice(
            resource_slice(device("d"), pool=f"p{at}", name=f"s{at}", nodeSelector={"nodeSelectorTerms": terms()})
        )
        for at in range(40)
    ]
    inventory = Inventory.from_slices(slices)
    for one in slices[30:]:
        inventory.remove(one)
    for zone in ("", *"abc"):
        for rack in ("", *"abc"):
            node = DeviceNode("n", {key: value for key, value in (("zone", zone), ("rack", rack)) if value})
            found = [pool.pool_id for pool in inventory.pools(node, Features())]
            assert found == sorted(one.pool_id for one in slices[:30] if reaches(one.reach, node))
