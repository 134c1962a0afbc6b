"""Kubernetes quantities as integers: ``cpu`` in milli-CPU, everything else in its own unit (bytes, devices).

Grammar: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/. Fractions are rounded up, as
Kubernetes does, so that a request is never charged below what it asks for.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

CPU: Final = "cpu"

_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_QUANTITY: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,3})|([KMGTPE]i|[numkMGTPE]))?")


def parse(resource: str, value: str | float) -> int:
    """The amount of ``resource`` that ``value`` stands for, rounded up.

    Returns milli-CPU for ``cpu``, else units (bytes for memory). Raises ValueError naming the resource and the text
    where it is no quantity.
    """
    if type(value) is int:
        return value * 1000 if resource == CPU else value
    return _parse(resource, str(value))


@lru_cache(maxsize=4096)
def _parse(resource: str, text: str) -> int:
    amount = _exact(resource, text)
    return -((-amount * (1000 if resource == CPU else 1)) // 1)


def _exact(resource: str, text: str) -> Fraction:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{resource}: {text!r} is no quantity; expected a number such as 2, 500m, 1.5 or 64Gi")
    number, exponent, suffix = match.groups()
    if exponent:
        return Fraction(number) * Fraction(10) ** int(exponent[1:])
    if suffix in _BINARY:
        return Fraction(number) * (1 << _BINARY[suffix])
    return Fraction(number) * Fraction(10) ** _DECIMAL[suffix or ""]


def format_quantity(resource: str, amount: int) -> str:
    """``amount`` as a person writes it: ``1500`` milli-CPU is ``1500m``, ``68719476736`` bytes are ``64Gi``."""
    if resource == CPU:
        return f"{amount // 1000}" if amount % 1000 == 0 else f"{amount}m"
    if not _in_bytes(resource):
        return str(amount)
    for suffix, shift in reversed(_BINARY.items()):
        if amount and amount % (1 << shift) == 0:
            return f"{amount >> shift}{suffix}"
    return str(amount)


def _in_bytes(resource: str) -> bool:
    return resource in {"memory", "ephemeral-storage", "storage"} or resource.startswith("hugepages-")
