"""Kubernetes quantities, exact: the rules of k8s.io/apimachinery/pkg/api/resource.

``engine.quantity`` rounds to whole units, which is right for what nodes count; devices compare fractions, and what an
expression sees of a quantity depends on how it was written (``1.0`` is no integer there, ``1`` is).
"""

import re
from functools import lru_cache
from typing import Final

import msgspec

NANO: Final = 10**9
LARGEST_INT: Final = (1 << 63) - 1

_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SUFFIXES: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_TEXT: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]))?")
_LONGEST: Final = 128  # characters; whatever is longer is no amount of anything
_LARGEST_EXPONENT: Final = 100  # 10^100: more than anybody has, and still cheap to count with
_DIGITS: Final = 18  # of a number that Kubernetes keeps as an integer and a power of ten

DECIMAL_SI: Final = "DecimalSI"
DECIMAL_EXPONENT: Final = "DecimalExponent"
BINARY_SI: Final = "BinarySI"


class Quantity(msgspec.Struct, frozen=True):
    """An amount in billionths (``nanos``), how it is written, and the power of ten it is kept with.

    ``scale`` is None where Kubernetes keeps the amount as a decimal of any size: then it is no integer to an
    expression, whatever it amounts to.
    """

    nanos: int
    scale: int | None = 0
    written: str = DECIMAL_SI

    def integer(self) -> int | None:
        """The amount as an expression's ``asInteger`` has it; None where that fails."""
        if self.scale is None or self.scale < 0:
            return None
        value = self.nanos // NANO
        return value if -LARGEST_INT - 1 <= value <= LARGEST_INT else None

    def plus(self, nanos: int, scale: int | None) -> "Quantity":
        """The sum with an amount that is kept with a scale of its own; written as the first is."""
        # Kubernetes returns the other operand when one is zero, with that operand's scale.
        if nanos == 0 or self.nanos == 0:
            kept = self.scale if nanos == 0 else scale
        else:
            kept = None if self.scale is None or scale is None else min(self.scale, scale)
        total = self.nanos + nanos
        # An amount that no longer fits 64 bits is kept as a decimal of any size from here on.
        if kept is not None and abs(total) > LARGEST_INT * 10 ** (kept + 9):
            kept = None
        return Quantity(total, kept, self.written)

    def __str__(self) -> str:
        # Kubernetes leaves out a suffix that SI has not (10^21 is ``1`` there); here the canonical form stays true.
        if self.nanos == 0:
            return "0"
        if self.written == BINARY_SI and self.nanos % NANO == 0 and abs(self.nanos) >= 1024 * NANO:
            value, shift = self.nanos // NANO, 0
            # Ei is the largest suffix.
            while value % 1024 == 0 and shift < 60:
                value, shift = value // 1024, shift + 10
            return f"{value}{next((suffix for suffix, bits in _BINARY.items() if bits == shift), '')}"
        value, exponent = self.nanos, -9
        while value % 1000 == 0:
            value, exponent = value // 1000, exponent + 3
        if self.written == DECIMAL_EXPONENT or exponent not in _SUFFIXES:
            return f"{value}e{exponent}" if exponent else str(value)
        return f"{value}{_SUFFIXES[exponent]}"


def whole_quantity(amount: int, written: str) -> Quantity:
    """So many units."""
    return Quantity(amount * NANO, 0, written)


def parse(text: str) -> Quantity:
    """A quantity by its text. Amounts below a billionth become one.

    Raises:
        ValueError: the text is no quantity, or an amount beyond 10^100.
    """
    if len(text) > _LONGEST:
        raise ValueError("expected a quantity, got a text of more than 128 characters")
    return _parse(text)


@lru_cache(maxsize=4096)
def _parse(text: str) -> Quantity:
    match = _TEXT.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"expected a quantity such as 2, 500m or 64Gi, got {text!r}")
    sign, number, fraction, exponent, suffix = match.groups()
    number, fraction = number.lstrip("0") or "0", fraction or ""
    if suffix in _BINARY:
        found = _binary(number, fraction, _BINARY[suffix])
    else:
        power = int(exponent) if exponent else _DECIMAL[suffix or ""]
        # Before any power is computed: ``1e999999999`` would keep this process busy, and anybody may write it.
        if abs(power) > _LARGEST_EXPONENT:
            raise ValueError(f"expected an exponent up to {_LARGEST_EXPONENT}, got {text!r}")
        found = _decimal(number, fraction, power, DECIMAL_EXPONENT if exponent else DECIMAL_SI)
    return Quantity(-found.nanos, found.scale, found.written) if sign == "-" else found


def _decimal(number: str, fraction: str, power: int, written: str) -> Quantity:
    scale = power - len(fraction)
    digits = int(number + fraction)
    if digits == 0:
        return Quantity(0, 0, written)
    # Below a billionth the amount is rounded up, away from zero, as Kubernetes does.
    nanos = digits * 10 ** (scale + 9) if scale >= -9 else -(-digits // 10 ** (-9 - scale))
    kept = scale if len(number) + len(fraction) <= _DIGITS and scale >= -9 else None
    return Quantity(nanos, kept, written)


def _binary(number: str, fraction: str, shift: int) -> Quantity:
    nanos = -(-(int(number + fraction) * NANO << shift) // 10 ** len(fraction))
    # As apimachinery's resource/quantity.go `ParseQuantity` estimates the precision: 15 digits, less those of the
    # number, less three for each ten bits of the suffix. Beyond, the amount is kept as a decimal.
    if not fraction and 15 - len(number) - shift * 3 // 10 - 1 >= 0 and nanos <= LARGEST_INT * NANO:
        return Quantity(nanos, 0, BINARY_SI)
    # Binary amounts are cut at 2^63 - 1; decimal ones are not.
    nanos = min(nanos, LARGEST_INT * NANO)
    return Quantity(nanos, 0 if nanos == 0 else None, DECIMAL_SI if 0 < nanos < NANO else BINARY_SI)
