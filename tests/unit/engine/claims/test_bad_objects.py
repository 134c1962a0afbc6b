"""Objects that are wrong: each is its own error, with the field, and nothing else is ever raised."""

import copy
import gzip
import json
import random
from pathlib import Path

import pytest
from support.dra import ask, claim, counters, device, device_class, given, resource_slice

from engine.claims.errors import ClaimsError, ObjectError
from engine.claims.read.claims import read_claim, read_class, read_uses
from engine.claims.read.pods import read_allocatable, read_containers
from engine.claims.read.slices import read_slice

HUGE = (1 << 63) - 1
CASES = gzip.decompress((Path(__file__).parents[3] / "data" / "dra-count.jsonl.gz").read_bytes()).splitlines()
FIRST = json.loads(CASES[0])


def changed(made, path, value):
    made = copy.deepcopy(made)
    *way, last = path
    inner = made
    for step in way:
        inner = inner[step]
    inner[last] = value
    return made


SLICE = resource_slice(device("d", index=1, capacity={"memory": "1Gi"}, uses={"x": "1"}))
DEVICE = ("spec", "devices", 0)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("metadata",), {}, "metadata.name: expected a name, got nothing"),
        (("spec",), 3, "spec: expected an object, got 3"),
        (("spec", "driver"), None, "spec.driver: expected a text, got nothing"),
        (("spec", "pool", "generation"), HUGE + 1, "spec.pool.generation: expected a number"),
        (("spec", "pool", "generation"), -1, "spec.pool.generation: expected a number"),
        (("spec", "pool", "resourceSliceCount"), True, "spec.pool.resourceSliceCount: expected a number"),
        (("spec", "allNodes"), "yes", "spec.allNodes: expected true or false, got 'yes'"),
        (("spec", "devices"), {}, "spec.devices: expected a list, got an object"),
        (DEVICE, None, "spec.devices[0]: expected an object, got nothing"),
        ((*DEVICE, "name"), ["d"], "spec.devices[0].name: expected a text, got a list"),
        ((*DEVICE, "attributes", "index"), 3, "spec.devices[0].attributes[index]: expected an object, got 3"),
        ((*DEVICE, "attributes", "index"), {"int": 1 << 70}, "attributes[index].int: expected a number"),
        ((*DEVICE, "attributes", "index"), {"ints": [1, "2"]}, "attributes[index].ints: expected values of one type"),
        ((*DEVICE, "capacity", "memory", "value"), "1Xi", "capacity[memory].value: expected a quantity"),
        ((*DEVICE, "capacity", "memory", "value"), 1.5, "capacity[memory].value: expected a quantity, got 1.5"),
        ((*DEVICE, "capacity", "memory", "value"), "1e99999", "capacity[memory].value: expected an exponent"),
        ((*DEVICE, "capacity", "memory"), {}, "capacity[memory].value: expected a quantity, got nothing"),
        (
            (*DEVICE, "capacity", "memory", "requestPolicy"),
            {"validRange": {"min": "1", "step": "0"}},
            "requestPolicy.validRange.step: expected an amount above zero",
        ),
        (
            (*DEVICE, "consumesCounters", 0, "counters", "x"),
            {"value": "1e90"},
            "counters[x].value: expected a quantity",
        ),
        ((*DEVICE, "taints"), [[]], "spec.devices[0].taints[0]: expected an object, got a list"),
    ],
)
def test_a_wrong_field_is_named(path, value, told):
    with pytest.raises(ObjectError) as caught:
        read_slice(changed(SLICE, path, value))
    assert told in str(caught.value)


@pytest.mark.parametrize("read", [read_slice, read_claim, read_class, read_containers])
@pytest.mark.parametrize("given_", [None, 3, "x", [], {}, {"metadata": 3}, {"metadata": {"name": ""}}])
def test_what_is_no_object_is_told(read, given_):
    with pytest.raises(ObjectError):
        read(given_)


@pytest.mark.parametrize("kind", ["int", "bool", "string", "version", "ints", "other"])
@pytest.mark.parametrize("value", [1, -HUGE - 1, HUGE, -HUGE - 2, HUGE + 1, True, "", "1.0.0", 1.5, [1], {}, None])
def test_an_attribute_is_read_alike_whether_or_not_it_says_what_it_is_not(kind, value):
    def found(attribute):
        try:
            (one,) = read_slice(changed(SLICE, (*DEVICE, "attributes"), {"a": attribute})).devices
        except ObjectError as error:
            return str(error)
        return one.attributes["a"], type(one.attributes["a"].value)

    assert found({kind: value}) == found({kind: value, "another": None})


def test_requests_are_checked_too():
    with pytest.raises(ObjectError, match=r"ResourceClaim claim: spec\.devices\.requests\[0\]\.exactly\.count"):
        read_claim(claim(ask(count=-1)))
    with pytest.raises(ObjectError, match="expected a quantity"):
        read_claim(claim(ask(capacity={"requests": {"a": "lots"}})))
    with pytest.raises(ObjectError, match=r"allocated: results\[0\].driver"):
        read_uses([{"driver": 3}], "allocated")
    with pytest.raises(ObjectError):
        read_allocatable({"cpu": []})


def test_a_count_of_2_to_the_63_is_refused_by_the_claim_s_limit():
    found = given([resource_slice(device("d"))], claim(ask(count=HUGE)))
    assert f"adding {HUGE} devices exceeds the claim limit of 32" in found


def test_a_generation_and_a_number_of_slices_of_2_to_the_63_do_no_harm():
    slices = [resource_slice(device("d"), generation=HUGE, slices=HUGE)]
    assert given(slices, claim(ask())).startswith("unallocatable")


def test_a_request_of_an_unknown_kind_stops_the_pod():
    assert "unsupported request type" in given([SLICE], claim({"name": "r"}))
    assert "unsupported count mode Half" in given([SLICE], claim(ask(allocationMode="Half")))
    other = ask()
    other["exactly"]["selectors"] = [{"rego": {}}]
    assert "CEL expression empty" in given([SLICE], claim(other))
    assert "empty constraint" in given([SLICE], claim(ask(), constraints=[{"likeAttribute": "x/y"}]))


def test_deep_objects_do_no_harm():
    deep = {}
    for _ in range(100_000):
        deep = {"a": deep}
    assert read_class({**device_class(), "spec": {"config": [{"opaque": {"parameters": deep}}]}}).name == "c"
    with pytest.raises(ObjectError):
        read_slice(changed(SLICE, (*DEVICE, "name"), deep))


def places(made, path=()):
    yield path
    entries = made.items() if isinstance(made, dict) else enumerate(made) if isinstance(made, list) else ()
    for key, value in entries:
        yield from places(value, (*path, key))


def test_whatever_is_wrong_somewhere_is_an_error_of_this_package():
    dice = random.Random(7)
    odd = [None, True, -1, HUGE, HUGE + 1, 1.5, "", "x", "\ud800", [], [[]], {}, {"a": {}}, [None], "1e400", "device."]
    case = {
        "slices": [counters(x="1"), SLICE, *FIRST["slices"][:2]],
        "claims": FIRST["claims"],
        "classes": FIRST["classes"],
    }
    everywhere = [path for path in places(case) if len(path) > 2]
    refused = 0
    for _ in range(1500):
        broken = changed(case, dice.choice(everywhere), dice.choice(odd))
        try:
            given(broken["slices"], *broken["claims"], classes=broken["classes"])
        except ClaimsError:
            refused += 1
    assert 0 < refused < 1500
