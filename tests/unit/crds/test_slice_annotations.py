"""Slices and groups as annotations say them."""

import json

import pytest

from crds.constants import Keys
from crds.levels import check_level
from crds.request import (
    ParsedRequest,
    RequestError,
    canonical,
    parse_job_request,
    parse_request,
    resolve,
    unresolved,
)
from crds.slices import uneven
from engine.model import Policy, SliceLayer, TopologyRequest
from engine.reasons import Reason

K = Keys()
BLOCK, RACK, HOST = "cloud/block", "cloud/rack", "kubernetes.io/hostname"
FLAVORS = {"tas": (BLOCK, RACK, HOST), "flat": (HOST,)}
SLICED = {K.slice_level: RACK, K.slice_size: "4"}


def layers(*pairs):
    return json.dumps([{"topology": level, "size": size} for level, size in pairs])


@pytest.mark.parametrize("keys", [K, Keys("topogate.dev")], ids=lambda keys: keys.domain)
def test_a_level_and_a_size_are_a_layer(keys):
    request = parse_request({keys.required[1]: BLOCK, keys.slice_level: RACK, keys.slice_size: "4"}, keys)
    assert request.slices == (SliceLayer(level=RACK, size=4),)
    assert request.slices_field == f"metadata.annotations[{keys.slice_level}]"
    wanted = TopologyRequest(policy=Policy.REQUIRED, level=BLOCK, slices=request.slices)
    assert resolve(request, FLAVORS["tas"]) == unresolved(request) == wanted


def test_slices_alone_are_unconstrained_outside():
    request = parse_request(SLICED, K)
    assert request.policy is Policy.UNCONSTRAINED
    assert canonical(request, K) == (K.unconstrained, "true")
    again = parse_request({**SLICED, K.unconstrained: "true"}, K)
    assert (again.policy, again.slices) == (request.policy, request.slices)


@pytest.mark.parametrize("pairs", [[(RACK, 4)], [(BLOCK, 8), (RACK, 4)], [(BLOCK, 8), (RACK, 4), (HOST, 1)]])
def test_layers(pairs):
    request = parse_request({K.preferred[0]: BLOCK, K.slice_layers: layers(*pairs)}, K)
    assert request.slices == tuple(SliceLayer(level=level, size=size) for level, size in pairs)


def test_job_and_template_are_one_request():
    assert parse_job_request({K.slice_level: RACK}, {K.slice_size: "4"}, K).slices == parse_request(SLICED, K).slices
    assert parse_job_request(SLICED, SLICED, K).slices == parse_request(SLICED, K).slices
    with pytest.raises(RequestError) as error:
        parse_job_request(SLICED, {K.slice_size: "8"}, K)
    assert error.value.reason is Reason.CONTRADICTING_REQUESTS
    assert '"8" contradicts metadata.annotations' in str(error.value)


@pytest.mark.parametrize(
    ("annotations", "field", "text"),
    [
        ({K.slice_level: RACK}, K.slice_size, f"Required value: it goes with metadata.annotations[{K.slice_level}]"),
        ({K.slice_size: "4"}, K.slice_level, "Required value: it goes with"),
        ({K.slice_level: "no key", K.slice_size: "4"}, K.slice_level, '"no key": expected the node label key'),
        ({K.slice_level: RACK, K.slice_size: "0"}, K.slice_size, '"0": expected a whole number from 1 to 1000000'),
        ({K.slice_level: RACK, K.slice_size: "-1"}, K.slice_size, '"-1"'),
        ({K.slice_level: RACK, K.slice_size: "4.0"}, K.slice_size, '"4.0"'),
        ({K.slice_level: RACK, K.slice_size: "٤"}, K.slice_size, "expected a whole number"),
        ({K.slice_level: RACK, K.slice_size: "9" * 5000}, K.slice_size, "expected a whole number"),
        ({**SLICED, K.slice_layers: layers((RACK, 4))}, K.slice_layers, "Forbidden: it says the same as"),
        ({K.slice_layers: "[]"}, K.slice_layers, "expected JSON of 1 to 3 layers"),
        ({K.slice_layers: "{"}, K.slice_layers, "expected JSON of 1 to 3 layers"),
        ({K.slice_layers: "[" * 100_000}, K.slice_layers, "expected JSON of 1 to 3 layers"),
        ({K.slice_layers: '["rack"]'}, f"{K.slice_layers}][0]", "expected JSON of 1 to 3 layers"),
        ({K.slice_layers: '[{"topology": "r", "sizes": [1]}]'}, f"{K.slice_layers}][0]", "expected JSON of 1 to 3"),
        ({K.slice_layers: layers(*[(f"l{i}", 2) for i in range(4)])}, K.slice_layers, "expected JSON of 1 to 3 layers"),
        ({K.slice_layers: '[{"size": 2}]'}, f"{K.slice_layers}][0].topology", "Required value"),
        ({K.slice_layers: layers(("a b", 2))}, f"{K.slice_layers}][0].topology", '"a b": expected the node label key'),
        ({K.slice_layers: layers((RACK, "4"))}, f"{K.slice_layers}][0].size", 'Invalid value: "4": expected a whole'),
        ({K.slice_layers: layers((RACK, True))}, f"{K.slice_layers}][0].size", "Invalid value: true"),
        ({K.slice_layers: layers((RACK, None))}, f"{K.slice_layers}][0].size", "Invalid value: null"),
        ({K.slice_layers: layers((RACK, 1e99))}, f"{K.slice_layers}][0].size", "expected a whole number"),
        ({K.slice_layers: layers((BLOCK, 4), (RACK, 3))}, f"{K.slice_layers}][1].size", "Invalid value: 3: expected a"),
        ({K.slice_layers: layers((RACK, 4), (RACK, 2))}, f"{K.slice_layers}][1].topology", "layer 0 has it"),
        ({K.required[0]: RACK, K.group: "12"}, K.group, '"12": expected a name of at most 63'),
        ({K.required[0]: RACK, K.group: "No"}, K.group, '"No": expected a name'),
        ({K.group: "g"}, K.group, 'Forbidden: "g": a group shares a domain of a level: it needs one of'),
        ({K.unconstrained: "true", K.group: "g"}, K.group, "it needs one of"),
    ],
)
def test_bad_ones_are_refused_with_field_and_value(annotations, field, text):
    with pytest.raises(RequestError) as error:
        parse_request(annotations, K)
    assert error.value.reason is Reason.INVALID_REQUEST
    assert error.value.field == f"metadata.annotations[{field}" + ("" if "][" in field else "]")
    assert str(error.value).startswith(error.value.field)
    assert text in str(error.value)


def test_a_group_shares_a_domain():
    request = parse_request({K.required[0]: RACK, K.group: "ring"}, K)
    assert (request.group, request.slices) == ("ring", ())


def sliced(*pairs, policy=Policy.UNCONSTRAINED, level=None):
    made = tuple(SliceLayer(level=at, size=size) for at, size in pairs)
    return ParsedRequest(policy, level, "field", made, "slices")


@pytest.mark.parametrize(
    "request_",
    [
        sliced((RACK, 4)),
        sliced((RACK, 4), (HOST, 2), policy=Policy.REQUIRED, level=BLOCK),
        sliced((RACK, 4), policy=Policy.REQUIRED, level=RACK),
        sliced((HOST, 4), policy=Policy.PREFERRED, level="auto"),
    ],
)
def test_levels_that_some_flavor_has_in_that_order(request_):
    check_level(request_, FLAVORS)


@pytest.mark.parametrize(
    ("request_", "reason", "text"),
    [
        (sliced(("row", 4)), Reason.UNKNOWN_LEVEL, 'slices: Unsupported value: "row": it is no topology level'),
        (sliced((HOST, 4), (RACK, 2)), Reason.INVALID_REQUEST, "do not go from the widest to the narrowest"),
        (sliced((BLOCK, 4), policy=Policy.REQUIRED, level=RACK), Reason.INVALID_REQUEST, f'"{RACK}", "{BLOCK}" do not'),
        (sliced((RACK, 4), policy=Policy.PREFERRED, level="auto"), Reason.INVALID_REQUEST, "do not go from"),
    ],
)
def test_levels_that_no_flavor_has_like_that(request_, reason, text):
    with pytest.raises(RequestError) as error:
        check_level(request_, FLAVORS)
    assert error.value.reason is reason
    assert text in str(error.value)
    assert RACK in str(error.value)


def test_what_makes_whole_slices():
    four = (SliceLayer(level=RACK, size=4),)
    layered = (*four, SliceLayer(level=HOST, size=2))
    assert uneven(four, 8) == uneven((), 7) == uneven(layered, 8) == ""
    assert uneven(four, 10) == uneven(four, 3) == uneven(four, 10, 10) == "", "the last one is a part of one"
    assert uneven(layered, 10) == "10 pods do not divide into slices of 4 that have slices within them; 8 or 12 would"
    assert uneven(layered, 3) == "3 pods do not divide into slices of 4 that have slices within them; 4 would"
    assert uneven(four, 10, 30) == ("10 pods at once, of 30, do not divide into slices of 4; 8 or 12 would")


def test_a_group_goes_with_slices():
    # Kueue from 0.20 on (PR 15111, gate TASGroupedPodSetSlicing); 0.19.2 refuses both together.
    asked = parse_request({K.required[0]: BLOCK, K.group: "g", **SLICED}, K)
    assert (asked.group, [layer.size for layer in asked.slices]) == ("g", [4])
