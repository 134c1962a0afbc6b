"""Kubernetes quantities as integers: ``cpu`` in milli-CPU, everything else in its own unit (bytes, devices).

Grammar: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/. Fractions are rounded up, as
Kubernetes does, so that a request is never charged below what it asks for.

What is more than 2^63 - 1 is that much, as for the API server. Of what a pod asks for or a node has it is still too
much: the engine adds up amounts of all nodes, and of all pods of a node, in 64 bits. There it is `bounded`, and what
people are told is what was asked for (`engine.model.PodSet.cut`).
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

CPU: Final = "cpu"
LARGEST: Final = (1 << 63) - 1
MOST: Final = 1 << 47  # of one pod or node: 128 TiB, as there are machines of 64 TiB; of 2^16 of them together 2^63

_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_QUANTITY: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]))?")
_DIGITS: Final = 64  # of a number: what is behind them matters only in that it is there
_EXPONENT: Final = 2 * _DIGITS  # beyond, a number is 0 or `LARGEST` whatever its digits are
_REMEMBERED: Final = 64  # characters of a text that is worth remembering


def parse(resource: str, value: str | float) -> int:
    """The amount of ``resource`` that ``value`` stands for, rounded up, within `LARGEST`.

    Returns milli-CPU for ``cpu``, else units (bytes for memory). Raises ValueError naming the resource and the text
    where it is no quantity.
    """
    # Exactly int: True is one for ``isinstance``. The short way also keeps whole numbers out of the cache.
    if type(value) is int:
        return _limited(value * 1000 if resource == CPU else value, LARGEST)
    text = str(value)
    # Past the cache: a tenant may write quantities of any length, and 4,096 entries of them would be kept.
    if len(resource) + len(text) > _REMEMBERED:
        return _parse.__wrapped__(resource, text)
    return _parse(resource, text)


def bounded(amount: int) -> int:
    """An amount of one pod, or of a part of a machine, with which the engine can count: `MOST` where it is more.

    No node has as much (`of_node`), so a pod that asks for it fits none.
    """
    return _limited(amount, MOST)


def of_node(amount: int) -> int:
    """What a node has, with which the engine can count: less than `MOST`."""
    return _limited(amount, MOST - 1)


def _limited(amount: int, most: int) -> int:
    return min(max(amount, -most), most)


@lru_cache(maxsize=4096)
def _parse(resource: str, text: str) -> int:
    amount = _read_exactly(resource, text)
    # Rounded up by floor division of the negative, which is exact for fractions of any size.
    return _limited(-((-amount * (1000 if resource == CPU else 1)) // 1), LARGEST)


def parse_part(resource: str, value: str | float) -> float:
    """As `parse`, with what is behind the point, and from 0: of what was used over time."""
    amount = _read_exactly(resource, str(value)) * (1000 if resource == CPU else 1)
    return min(max(float(amount), 0.0), float(LARGEST))


def format_part(resource: str, amount: float) -> str:
    """What was used over time, as `parse_part` reads it again: with nine digits behind the point, bytes with none."""
    if in_bytes(resource):
        return str(int(amount))
    return f"{amount / (1000 if resource == CPU else 1):.9f}".rstrip("0").rstrip(".")


def _read_exactly(resource: str, text: str) -> Fraction:
    """The number that a quantity is, in cores where it is of ``cpu``."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or not (match[2] or match[3]):
        # The text goes into conditions and events, and anybody may write megabytes of it.
        shown = text if len(text) <= _REMEMBERED else f"{text[:_REMEMBERED]}..."
        raise ValueError(f"{resource}: {shown!r} is not a quantity; expected a number such as 2, 500m, 1.5 or 64Gi")
    sign, whole, part, exponent, suffix = match.groups()
    # Leading zeros are no digits: they must not use up the limit of `_DIGITS`.
    number = _parse_decimal(whole.lstrip("0"), part or "")
    if exponent:
        number *= Fraction(10) ** _bounded_power(exponent)
    elif suffix in _BINARY:
        number *= 1 << _BINARY[suffix]
    else:
        number *= Fraction(10) ** _DECIMAL[suffix or ""]
    return -number if sign == "-" else number


def _parse_decimal(whole: str, part: str) -> Fraction:
    """A decimal number by its digits. Digits without end are cut off such that nothing is rounded down."""
    if len(whole) > _DIGITS:
        whole = "9" * _DIGITS
    if len(part) > _DIGITS:
        # One more digit stands for whatever is cut off, so that rounding up still sees it.
        part = part[:_DIGITS] + ("1" if part[_DIGITS:].strip("0") else "")
    return Fraction(int(whole or "0")) + Fraction(int(part or "0"), 10 ** len(part))


def _bounded_power(exponent: str) -> int:
    """A power of ten that is as good as the one that is written."""
    digits = exponent.lstrip("+-").lstrip("0")
    # Without reading the digits: an exponent of many thousands of them takes Python long, or fails.
    size = _EXPONENT if len(digits) > 3 else min(int(digits or "0"), _EXPONENT)
    return -size if exponent.startswith("-") else size


def format_quantity(resource: str, amount: int) -> str:
    """``amount`` as a person writes it: ``1500`` milli-CPU is ``1500m``, ``68719476736`` bytes are ``64Gi``."""
    if resource == CPU:
        return f"{amount // 1000}" if amount % 1000 == 0 else f"{amount}m"
    if not in_bytes(resource):
        return str(amount)
    # The largest suffix first: every multiple of 1Gi is one of 1Ki too.
    for suffix, shift in reversed(_BINARY.items()):
        if amount and amount % (1 << shift) == 0:
            return f"{amount >> shift}{suffix}"
    return str(amount)


def readable(resource: str, text: str) -> str:
    """A quantity rounded for people: ``1535872m`` cpu are ``1536``, ``16000Gi`` are ``15.6Ti``."""
    amount = parse(resource, text)
    if resource == CPU:
        return _rounded(amount / 1000) if abs(amount) >= 10_000 else text
    if not in_bytes(resource):
        return text
    for suffix, shift in reversed(_BINARY.items()):
        if abs(amount) >> shift:
            return f"{_rounded(amount / (1 << shift))}{suffix}"
    return text


def _rounded(amount: float) -> str:
    return f"{amount:.0f}" if abs(amount) >= 100 else f"{amount:.1f}".removesuffix(".0")


def in_bytes(resource: str) -> bool:
    """Whether amounts of a resource are bytes."""
    return resource in {"memory", "ephemeral-storage", "storage"} or resource.startswith("hugepages-")
