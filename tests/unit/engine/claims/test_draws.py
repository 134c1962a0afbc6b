"""What pods may be given of devices that several nodes reach."""

import pytest
from support.dra import DRIVER, ask, claim, counters, device, first, ready, resource_slice

from engine.claims.counting.draws import DrawsByIndex, most_devices

OWN = resource_slice(device("own", kind="near"), name="own", pool="own")


def draws(slices, *requests, constraints=()):
    prepared, budget = ready(slices, [claim(*requests, constraints=constraints)])
    found = DrawsByIndex.from_prepared(prepared, budget).draws_on_node(
        prepared.hardware, most_devices([one for one, _ in prepared.claims])
    )
    sets = {tuple(sorted(name for _, _, name in devices)): each for devices, each in found.sets}
    return sets, sorted(name for _, _, name in found.loose), found.most, found.whole


def far(*names, pool="far", **fields):
    made = [device(name, kind="far") if isinstance(name, str) else name for name in names]
    return resource_slice(*made, name=pool, pool=pool, allNodes=True, **fields)


def of(kind):
    return f'device.attributes["{DRIVER}"].kind == "{kind}"'


def test_each_request_takes_any_of_a_set():
    assert draws([far("a", "b")], ask(count=2)) == ({("a", "b"): 2}, [], 0, True)
    assert draws([far("a", "b"), OWN], ask("x", 1, of("far")), ask("y", 1, of("near"))) == (
        {("a", "b"): 1},
        [],
        0,
        False,
    )


def test_what_binds_to_a_node_is_not_of_all_nodes():
    sets, _, _, whole = draws([far(device("a", bindsToNode=True))], ask())
    assert (sets, whole) == ({("a",): 1}, False)


@pytest.mark.parametrize(
    ("requests", "fields", "most"),
    [
        ([ask("r", 2)], {}, 2),  # it takes the node's own as well
        ([first("r", ask("x", 1, of("near")), ask("y", 2, of("far")))], {}, 2),
        ([ask("r", None)], {}, 2),
        ([ask("r", 1, of("far"))], {"constraints": [{"matchAttribute": f"{DRIVER}/kind"}]}, 1),
        ([ask("r", 1, "device.nothing == 1")], {}, 1),
    ],
)
def test_what_more_than_numbers_decide_on_may_take_any(requests, fields, most):
    sets, loose, found, whole = draws([far("a", "b"), OWN], *requests, **fields)
    assert (sets, loose, found, whole) == ({}, ["a", "b"], most, False)


def test_devices_of_the_node_alone_are_nothing_of_it():
    assert draws([OWN], ask()) == ({}, [], 0, False)
    assert draws([far("a"), OWN], ask("r", 1, of("near"))) == ({}, [], 0, False)


def test_a_device_that_takes_counters_decides_more_than_a_number():
    some = resource_slice(device("a", uses={"x": "1"}), name="some", slices=2, allNodes=True)
    whole = {**counters(x="2"), "spec": {**counters(x="2")["spec"], "allNodes": True, "nodeName": None}}
    assert draws([whole, some], ask())[1] == ["a"]
