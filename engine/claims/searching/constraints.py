"""Constraints within a claim: devices that share an attribute's value, or have different ones.

Without the feature of lists, values are compared as they are; with it, as sets: what is shared must have an element in
common, what is distinct must have none. Without it, a first device may have a value of a kind that is not compared, as
in Kubernetes.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from engine.claims.model import Attribute, Constraint

_ELEMENTS: Final = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}
_SCALARS: Final = frozenset(_ELEMENTS.values())

Lookup = Callable[[str], Attribute | None]  # of a device: the attribute by its qualified name
Values = frozenset[tuple[str, object]]


class Rule(Protocol):
    """One constraint while devices are added and removed, last in, first out."""

    def add(self, name: str, full_name: str, lookup: Lookup) -> bool:
        """Add a device for a request, ``full_name`` with the alternative; False, and nothing is added."""

    def remove(self, name: str, full_name: str) -> None:
        """Take back what was added last for this request."""


def rule_of(constraint: Constraint, *, lists: bool) -> Rule | None:
    """The rule of a constraint; None where it is of a kind that is not known."""
    if constraint.match:
        return Match(constraint, lists=lists)
    if constraint.distinct:
        return Distinct(constraint, lists=lists)
    return None


def _values(attribute: Attribute | None, *, lists: bool, first: bool) -> Values | None:
    """The values of an attribute as a set; None where a device with it cannot be added."""
    if attribute is None:
        return None
    if attribute.kind in _SCALARS:
        return frozenset({(attribute.kind, attribute.value)})
    if not lists:
        # An empty set: under matchAttribute no second device fits beside such a first one.
        return frozenset() if first else None
    if not attribute.kind or not isinstance(attribute.value, tuple) or not attribute.value:
        return None
    return frozenset((_ELEMENTS[attribute.kind], value) for value in attribute.value)


def _applies(constraint: Constraint, name: str, full_name: str) -> bool:
    wanted = constraint.requests
    return not wanted or name in wanted or full_name in wanted


class Match(msgspec.Struct):
    """All devices have a value in common; what is left of it after each is kept for the way back."""

    constraint: Constraint
    lists: bool
    common: list[Values] = msgspec.field(default_factory=list)

    def add(self, name: str, full_name: str, lookup: Lookup) -> bool:
        """Add a device."""
        if not _applies(self.constraint, name, full_name):
            return True
        values = _values(lookup(self.constraint.match), lists=self.lists, first=not self.common)
        if values is None:
            return False
        # With lists the common values shrink device by device: three devices may share values in pairs, and none
        # together.
        if self.common:
            values &= self.common[-1]
            if not values:
                return False
        self.common.append(values)
        return True

    def remove(self, name: str, full_name: str) -> None:
        """Remove the last."""
        if _applies(self.constraint, name, full_name):
            self.common.pop()


class Distinct(msgspec.Struct):
    """No two devices have a value in common."""

    constraint: Constraint
    lists: bool
    taken: list[Values] = msgspec.field(default_factory=list)

    def add(self, name: str, full_name: str, lookup: Lookup) -> bool:
        """Add a device."""
        if not _applies(self.constraint, name, full_name):
            return True
        values = _values(lookup(self.constraint.distinct), lists=self.lists, first=not self.taken)
        # Each pair must differ, so the sets of all devices before are kept.
        if values is None or any(values & others for others in self.taken):
            return False
        self.taken.append(values)
        return True

    def remove(self, name: str, full_name: str) -> None:
        """Remove the last."""
        if _applies(self.constraint, name, full_name):
            self.taken.pop()
