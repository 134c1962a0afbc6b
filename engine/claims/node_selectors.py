"""Node selectors of slices and devices (k8s.io/component-helpers, nodeaffinity): terms are alternatives."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from engine.claims.quantities import LARGEST_INT

_NAME: Final = "metadata.name"


class ReachNeed(msgspec.Struct, frozen=True):
    """One requirement for a label, or for the node's name."""

    key: str
    operator: str
    values: tuple[str, ...]

    def is_met(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels meet it."""
        value = labels.get(self.key)
        return OPERATORS[self.operator](value, self.values)


class ReachTerm(msgspec.Struct, frozen=True):
    """What a node must have: labels, and names."""

    labels: tuple[ReachNeed, ...]
    fields: tuple[ReachNeed, ...]


ReachTerms = tuple[ReachTerm, ...]


def matches(terms: ReachTerms, name: str, labels: Mapping[str, str]) -> bool:
    """Whether a node meets any of the terms; a term that asks for nothing is met by none."""
    return any(
        (term.labels or term.fields)
        and all(need.is_met(labels) for need in term.labels)
        and all(need.is_met({_NAME: name}) for need in term.fields)
        for term in terms
    )


def only_node(terms: ReachTerms) -> str:
    """The one node that may meet these terms, as they name it; "" where there is none such.

    Of several terms it is none: no allocation can repeat them.
    """
    fields = terms[0].fields if len(terms) == 1 else ()
    names = [need.values[0] for need in fields if need.key == _NAME and need.operator == "In"]
    return names[0] if names else ""


def number(text: str | None) -> int | None:
    """A number of 64 bits; None where it is none."""
    digits = (text or "").removeprefix("-").removeprefix("+")
    # The length first: Python refuses to read more than 4,300 digits, and a label value may be anything.
    if text is None or not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        return None
    value = int(text)
    return value if -LARGEST_INT - 1 <= value <= LARGEST_INT else None


def _ordered(holds: Callable[[int, int], bool]) -> Callable[[str | None, tuple[str, ...]], bool]:
    def compared(value: str | None, values: tuple[str, ...]) -> bool:
        mine, limit = number(value), number(values[0])
        return mine is not None and limit is not None and holds(mine, limit)

    return compared


OPERATORS: Final[dict[str, Callable[[str | None, tuple[str, ...]], bool]]] = {
    "In": lambda value, values: value is not None and value in values,
    # A label that is not there is none of the values.
    "NotIn": lambda value, values: value is None or value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": _ordered(lambda mine, limit: mine > limit),
    "Lt": _ordered(lambda mine, limit: mine < limit),
}
