"""Quantities of Kubernetes as integers."""

import pytest

from engine.quantity import LARGEST, format_part, format_quantity, parse, parse_part, readable


@pytest.mark.parametrize(
    ("resource", "text", "amount"),
    [
        ("cpu", "1", 1000),
        ("cpu", "1500m", 1500),
        ("cpu", "0.1", 100),
        ("cpu", "100u", 1),
        ("cpu", "1n", 1),
        ("cpu", 2, 2000),
        ("cpu", 0.5, 500),
        ("cpu", "1e3", 1_000_000),
        ("cpu", "+.5", 500),
        ("memory", "64Gi", 64 * 2**30),
        ("memory", "1.5G", 1_500_000_000),
        ("memory", "1E", 10**18),
        ("memory", "0.1m", 1),
        ("memory", "12e2", 1200),
        ("memory", 5, 5),
        ("pods", "110", 110),
        ("nvidia.com/gpu", "8", 8),
        ("memory", "-1Ki", -1024),
    ],
)
def test_parse(resource, text, amount):
    assert parse(resource, text) == amount


@pytest.mark.parametrize("text", ["", "abc", "1.2.3", "5 Gi", "1Zi", "--1", "1ki", "0x10", "1e", "e3", "."])
def test_what_is_no_quantity_is_named(text):
    with pytest.raises(ValueError, match="memory"):
        parse("memory", text)


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cpu", 1500, "1500m"),
        ("cpu", 2000, "2"),
        ("memory", 64 * 2**30, "64Gi"),
        ("memory", 1_500_000_000, "1500000000"),
        ("memory", 0, "0"),
        ("hugepages-1Gi", 2**30, "1Gi"),
        ("nvidia.com/gpu", 1024, "1024"),
    ],
)
def test_format(resource, amount, text):
    assert format_quantity(resource, amount) == text


@pytest.mark.parametrize("text", ["1500m", "2", "100m"])
def test_what_is_formatted_parses_back(text):
    assert format_quantity("cpu", parse("cpu", text)) == text


@pytest.mark.parametrize(
    ("resource", "text", "shown"),
    [
        ("cpu", "1535872m", "1536"),
        ("cpu", "12500m", "12.5"),
        ("cpu", "128m", "128m"),
        ("cpu", "96", "96"),
        ("memory", "16000Gi", "15.6Ti"),
        ("memory", "12Ti", "12Ti"),
        ("memory", "768Gi", "768Gi"),
        ("memory", "0", "0"),
        ("nvidia.com/gpu", "100000", "100000"),
    ],
)
def test_people_read_rounded_amounts_in_a_unit_that_keeps_them_short(resource, text, shown):
    assert readable(resource, text) == shown


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("nvidia.com/gpu", 4.242640687119285, "4.242640687"),
        ("nvidia.com/gpu", 4.0, "4"),
        ("nvidia.com/gpu", 0.0, "0"),
        ("cpu", 1500.25, "1.50025"),
        ("memory", 2.0**36 + 0.5, "68719476736"),
    ],
)
def test_what_was_used_over_time_has_nine_digits_behind_the_point(resource, amount, text):
    assert format_part(resource, amount) == text
    assert parse_part(resource, text) == pytest.approx(amount, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "amount"), [("2343145750n", 2.34314575), ("-1", 0.0), ("1e400", float(LARGEST)), ("1.5Ki", 1536.0)]
)
def test_what_kueue_writes_of_use_can_be_read_and_nothing_is_out_of_bounds(text, amount):
    assert parse_part("nvidia.com/gpu", text) == pytest.approx(amount)


def test_what_is_no_amount_of_use_is_named():
    with pytest.raises(ValueError, match="cpu: 'much' is not a quantity"):
        parse_part("cpu", "much")
