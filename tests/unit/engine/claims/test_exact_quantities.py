"""Quantities as Kubernetes keeps and prints them."""

import pytest

from engine.claims.quantities import BINARY_SI, NANO, Quantity, parse, whole_quantity


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("0", 0),
        ("1", NANO),
        ("+1.5", 3 * NANO // 2),
        ("-2k", -2000 * NANO),
        ("1e3", 1000 * NANO),
        ("1E3", 1000 * NANO),
        ("2E", 2 * 10**18 * NANO),
        ("100m", NANO // 10),
        ("1.5Gi", 3 * 2**29 * NANO),
        (".5", NANO // 2),
        ("1.", NANO),
        ("0.1n", 1),
        ("1e-20", 1),
        ("16Ei", (2**63 - 1) * NANO),
        ("1000000000000000000000", 10**21 * NANO),
    ],
)
def test_amounts_are_exact(text, nanos):
    assert parse(text).nanos == nanos


@pytest.mark.parametrize(
    "text", ["", "x", "1.2.3", "1Mo", "1 ", " 1", "e3", "--1", "1e", "1e101", "1e-999999999", "9" * 200]
)
def test_what_is_no_quantity_is_told(text):
    with pytest.raises(ValueError, match=r"expected|more than"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1024Mi", "1Gi"),
        ("1500m", "1500m"),
        ("1000m", "1"),
        ("1000", "1k"),
        ("1536", "1536"),
        ("512Ki", "512Ki"),
        ("1e6", "1e6"),
        ("0.5Gi", "512Mi"),
        ("1023Ki", "1023Ki"),
        ("-4Gi", "-4Gi"),
    ],
)
def test_they_are_printed_in_their_canonical_form(text, shown):
    assert str(parse(text)) == shown


def test_what_is_too_large_for_a_suffix_stays_true():
    assert parse(str(parse("1000000000000000000000"))).nanos == 10**21 * NANO


def test_an_integer_is_one_by_how_it_is_kept():
    assert parse("1").integer() == 1
    assert parse("1k").integer() == 1000
    assert parse("1.0").integer() is None
    assert parse("1000m").integer() is None
    assert parse("100E").integer() is None
    assert parse("0.5").plus(NANO // 2, -1).integer() is None
    assert parse("1").plus(NANO, 0).integer() == 2
    assert parse("0").plus(NANO, 0) == whole_quantity(1, "DecimalSI")
    assert Quantity(1024 * NANO, 0, BINARY_SI).plus(0, -3).integer() == 1024
