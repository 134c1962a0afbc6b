"""Placements in annotations: what is written, what is read back, and which of several counts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.numa_placement import decode, encode, misaligned, resolve, zone_id, zone_name
from engine.kubelet.machine import NumaPlacement, ZoneUse
from engine.quantity import MOST


def _placed(*uses, devices=None):
    zones = tuple(ZoneUse(zone=zone, amounts=amounts, devices=(devices or {}).get(zone, {})) for zone, amounts in uses)
    return NumaPlacement(zones=zones)


TWO = _placed(
    (0, {"cpu": 8000, "nvidia.com/gpu": 2}), (3, {"memory": 64 << 30}), devices={0: {"nvidia.com/gpu": ("G0", "G1")}}
)


def test_the_record_is_that_of_the_design():
    assert json.loads(encode(TWO)) == [
        {"zone": "node-0", "amount": {"cpu": "8", "nvidia.com/gpu": "2"}, "devices": {"nvidia.com/gpu": ["G0", "G1"]}},
        {"zone": "node-3", "amount": {"memory": "64Gi"}},
    ]


_AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "hugepages-1Gi", "nvidia.com/gpu"]), st.integers(0, MOST))
_USES = st.lists(st.tuples(st.integers(0, 4095), _AMOUNTS), min_size=1, max_size=8, unique_by=lambda use: use[0])


@given(_USES)
def test_what_is_written_is_read_back_with_zones_ascending(uses):
    assert decode(encode(_placed(*uses))) == _placed(*sorted(uses, key=lambda use: use[0]))


@given(_USES)
def test_the_order_of_zones_does_not_show(uses):
    assert encode(_placed(*uses)) == encode(_placed(*reversed(uses)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        "[",
        "\x00",
        '"node-0"',
        '[{"zone":"node-0"}]',
        '[{"zone":"0","amount":{"cpu":"1"}}]',
        '[{"zone":"node-00","amount":{"cpu":"1"}}]',
        '[{"zone":"node--1","amount":{"cpu":"1"}}]',
        '[{"zone":"node-4096","amount":{"cpu":"1"}}]',
        '[{"zone":"node-99999999999999999999","amount":{"cpu":"1"}}]',
        '[{"zone":"node-²","amount":{"cpu":"1"}}]',
        '[{"zone":"node-0","amount":{"cpu":"-1"}}]',
        '[{"zone":"node-0","amount":{"cpu":"many"}}]',
        '[{"zone":"node-0","amount":{"cpu":true}}]',
        '[{"zone":"node-0","amount":{"cpu":"1"},"devices":["G0"]}]',
        '[{"zone":"node-0","amount":{"cpu":"1"}},{"zone":"node-0","amount":{"cpu":"1"}}]',
    ],
)
def test_what_is_malformed_is_no_record(text):
    assert decode(text) is None


@given(st.text())
def test_no_text_makes_reading_fail(text):
    assert decode(text) is None or resolve(observed=text) is not None


def test_numbers_and_unknown_keys_are_read():
    assert decode('[{"zone":"node-1","amount":{"cpu":2,"memory":"1Ki"},"socket":0}]') == _placed(
        (1, {"cpu": 2000, "memory": 1024})
    )


A, B, C = (_placed((zone, {"cpu": 1000})) for zone in (0, 1, 2))


@pytest.mark.parametrize(
    ("observed", "in_flight", "predicted", "counts"),
    [
        (encode(A), B, encode(C), A),
        ("[]", B, encode(C), B),
        ("nonsense", B, encode(C), B),
        (None, B, encode(C), B),
        (None, None, encode(C), C),
        ("[]", None, "[]", None),
        (None, None, None, None),
    ],
)
def test_observed_goes_before_in_flight_before_predicted(observed, in_flight, predicted, counts):
    assert resolve(observed=observed, in_flight=in_flight, predicted=predicted, zones={0, 1, 2}) == counts


def test_a_zone_that_the_machine_lacks_voids_the_whole_record():
    spread = _placed((0, {"cpu": 1000}), (7, {"cpu": 1000}))
    assert resolve(observed=encode(spread), predicted=encode(B), zones={0, 1}) == B
    assert resolve(in_flight=spread, zones={0, 1}) is None
    assert resolve(observed=encode(spread)) == spread


def test_misaligned_compares_what_both_name():
    gpu = "nvidia.com/gpu"
    predicted = _placed((0, {"cpu": 4000, gpu: 2, "memory": 1 << 30}))
    assert not misaligned(predicted, _placed((0, {gpu: 2})))
    assert not misaligned(predicted, _placed((0, {gpu: 2}), (1, {"example.com/nic": 1})))
    assert not misaligned(predicted, _placed((0, {gpu: 2}), (1, {"cpu": 0})))
    assert misaligned(predicted, _placed((0, {gpu: 1}), (1, {gpu: 1})))
    assert misaligned(predicted, _placed((0, {gpu: 2}), (1, {"cpu": 4000})))
    assert not misaligned(predicted, _placed((1, {"example.com/nic": 1})))


def test_zone_names():
    assert [zone_id(zone_name(zone)) for zone in (0, 7, 4095)] == [0, 7, 4095]
