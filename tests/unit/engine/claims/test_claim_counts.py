"""Counts of pods for many nodes: each as if it were counted alone, and one count for nodes that look the same."""

import gzip
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from support.dra import DRIVER, ask, claim, counters, device, device_class, fitting, hardware, resource_slice, taken

from engine.claims.cel.selectors import Selectors
from engine.claims.counting.count import ClaimCounter
from engine.claims.counting.looks import NodeDevices
from engine.claims.features import Features
from engine.claims.hardware import NodeHardware
from engine.claims.in_use import InUse
from engine.claims.pools import Inventory
from engine.claims.read.claims import read_claim, read_class, read_node, read_uses
from engine.claims.read.slices import read_slice

MINE = f'device.attributes["{DRIVER}"]'
PAIRS = claim(ask("r", 2, f'{MINE}.kind == "x"'), constraints=[{"matchAttribute": f"{DRIVER}/pair"}])


def node(name, *kinds, in_use=(), **fields):
    devices = [
        device(f"{name}-{at}", kind=kind, uuid=f"{name}{at}", pair=at // 2, **fields) for at, kind in enumerate(kinds)
    ]
    slices = [resource_slice(*devices, nodeName=name, pool=name)]
    used = taken(*(f"{name}-{at}" for at in in_use), pool=name)
    return NodeDevices(hardware(slices, node=name), used)


def counter(*claims, limit=16, steps=100_000):
    return ClaimCounter(
        claims=[read_claim(one) for one in claims],
        classes={"c": read_class(device_class())},
        selectors=Selectors(),
        limit=limit,
        steps=steps,
    )


def test_nodes_that_look_the_same_are_counted_once():
    nodes = [node(f"n{index}", "x", "x", "x", "x") for index in range(50)]
    enough = next(
        steps for steps in range(1, 1000) if counter(PAIRS, steps=steps).count_by_node(nodes[:1]).tolist() == [2]
    )
    assert counter(PAIRS, steps=2 * enough).count_by_node(nodes).tolist() == [2] * 50


def test_what_is_in_use_and_what_is_read_tells_nodes_apart():
    counted = counter(PAIRS)
    nodes = [
        node("a", "x", "x", "x", "x"),
        node("b", "x", "x", "x", "x", in_use=[1]),
        node("c", "x", "y", "x", "x"),
        node("d", "x", "x", "x", "x", in_use=[0, 3]),
        node("e"),
    ]
    assert counted.count_by_node(nodes).tolist() == [2, 1, 1, 0, 0]
    nodes[3] = node("d", "x", "x", "x", "x")
    assert counted.count_by_node(nodes).tolist() == [2, 1, 1, 2, 0]
    assert counted.count_by_node(nodes[:2]).tolist() == [2, 1]


def test_counters_that_other_nodes_use_tell_nodes_apart():
    def slices(name):
        sets = counters(x="2")
        sets["spec"] |= {"nodeName": name}
        sets["spec"]["pool"]["resourceSliceCount"] = 3
        here = resource_slice(device("d", uses={"x": "1"}), device("e", uses={"x": "1"}), slices=3, nodeName=name)
        return [sets, here, resource_slice(device("t", uses={"x": "1"}), name="t", slices=3, nodeName="other")]

    counted = counter(claim(ask()))
    free = NodeDevices(hardware(slices("a"), node="a"), InUse())
    used = NodeDevices(hardware(slices("b"), node="b"), taken("t"))
    assert counted.count_by_node([free, used]).tolist() == [2, 1]


def test_a_device_that_is_none_tells_nodes_apart_whichever_slice_it_is_in():
    def found(name, *versions):
        made = [device(f"d{at}", kind="x") for at in range(len(versions))]
        for one, version in zip(made, versions, strict=True):
            one["attributes"]["driver"] = {"version": version}
        slices = [
            resource_slice(one, name=one["name"], pool=name, nodeName=name, slices=len(made), generation=1)
            for one in made
        ]
        return NodeDevices(hardware(slices, node=name), InUse())

    counted = counter(claim(ask("r", 1, f'{MINE}.kind == "x"')))
    nodes = [found("a", "1.0.0", "one"), found("b", "one", "1.0.0"), found("c", "1.0.0", "1.2.0")]
    assert counted.count_by_node(nodes).tolist() == [1, 0, 2]
    assert counted.state_class(nodes[2]) == counted.state_class(found("d", "2.0.0", "3.0.0"))


@pytest.mark.parametrize("seed", range(10))
def test_devices_in_use_are_where_the_search_has_them(seed):
    dice = random.Random(seed)
    slices = [
        resource_slice(
            *(device(f"d{at}-{number}") for number in range(dice.randint(0, 5))),
            name=f"s{at}",
            pool=dice.choice("pq"),
            driver=dice.choice([DRIVER, "another.example.com"]),
            **dice.choice([{"nodeName": "n"}, {"allNodes": True}, {"nodeName": "other"}]),
        )
        for at in range(8)
    ]
    sizes = Counter((one["spec"]["driver"], one["spec"]["pool"]["name"]) for one in slices)
    for one in slices:
        one["spec"]["pool"]["resourceSliceCount"] = sizes[one["spec"]["driver"], one["spec"]["pool"]["name"]]
    found = hardware(slices)
    everything = [(*key, f"d{at}-{number}") for key in sizes for at in range(8) for number in range(5)]
    in_use = frozenset(dice.sample(everything, len(everything) // 3))
    there = [index for index, one in enumerate(found.candidates) if one.device_id in in_use]
    assert found.indexes(in_use) == there == list(NodeDevices(found, InUse(in_use)).state.busy)
    assert found.size == len(found.candidates)


def test_what_one_call_does_not_come_to_the_next_one_counts():
    counted = counter(PAIRS, steps=60)
    nodes = [node("a", "x", "x", "x", "x"), node("b", "x", "x", "y", "x"), node("c", "y", "x", "x", "x", "x", "x")]
    first = counted.count_by_node(nodes).tolist()
    assert first != [2, 1, 2]
    for _ in range(5):
        last = counted.count_by_node(nodes).tolist()
    assert last == [2, 1, 2]


def test_the_limit_holds():
    admin = claim(ask(adminAccess=True))
    assert counter(admin, limit=7).count_by_node([node("a", "x")]).tolist() == [7]


@pytest.mark.parametrize("seed", range(5))
def test_every_count_is_that_of_the_node_alone(seed):
    dice = random.Random(seed)
    nodes, alone = [], []
    for index in range(40):
        kinds = [dice.choice("xxy") for _ in range(dice.randint(0, 6))]
        in_use = [at for at in range(len(kinds)) if dice.random() < 0.3]
        one = node(f"n{index}", *kinds, in_use=in_use)
        nodes.append(one)
        devices = [device(f"n{index}-{at}", kind=kind, pair=at // 2) for at, kind in enumerate(kinds)]
        used = taken(*(f"n{index}-{at}" for at in in_use))
        alone.append(fitting([resource_slice(*devices)], PAIRS, in_use=used))
    counted = counter(PAIRS)
    assert counted.count_by_node(nodes).tolist() == alone


def test_pods_of_the_recorded_cases_are_counted_alike_node_by_node():

    lines = gzip.decompress((Path(__file__).parents[3] / "data" / "dra-count.jsonl.gz").read_bytes()).splitlines()
    for case in map(json.loads, lines[::9]):
        if "pod" in case:
            continue
        one = read_node(case["node"]["name"], case["node"].get("labels", {}))
        features = Features.from_gates(case["features"])
        reached = NodeHardware.for_node(Inventory.from_slices(map(read_slice, case["slices"])), one, features)
        counted = ClaimCounter(
            claims=[read_claim(given) for given in case["claims"]],
            classes={made.name: made for made in map(read_class, case["classes"])},
            selectors=Selectors(),
            limit=case["limit"],
        )
        nodes = [NodeDevices(reached, InUse.from_uses(read_uses(case["allocated"], "allocated")))]
        assert counted.count_by_node(nodes).tolist() == [case["expected"]["count"]], case["id"]
