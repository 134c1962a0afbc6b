"""Values of CEL at run time, and what is equal.

``int``, ``bool``, ``float``, ``str`` and None are themselves; a list is a tuple, a map a dict. What Python has no type
for, or Kubernetes adds, is here.
"""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any, Final, TypeAlias

import msgspec

from engine.claims.cel.errors import EvaluationError
from engine.claims.cel.versions import Version
from engine.claims.quantities import Quantity

Value: TypeAlias = Any  # one of the classes above and below: what an expression computes with

LARGEST_INT: Final = (1 << 63) - 1
LARGEST_UINT: Final = (1 << 64) - 1


class UInt(int):
    """An unsigned integer, which is a type of its own."""

    __slots__ = ()


class Optional(msgspec.Struct, frozen=True):
    """A value that may not be there."""

    value: Value = None
    there: bool = False


class Domains(dict[str, Value]):
    """The attributes or capacities of a device by domain.

    A domain that is not there is found all the same, and empty; only ``in`` and the macros tell it from one that is.
    """

    __slots__ = ()


NONE: Final = Optional()
Address = (IPv4Address, IPv6Address)
Prefix = (IPv4Interface, IPv6Interface)
NUMBERS: Final = frozenset({int, UInt, float})
_KEYS: Final = NUMBERS | {str, bool}  # what may stand between brackets, or after a dot
_OPAQUE: Final = frozenset({Quantity, Version, *Address, *Prefix})
_FAMILIES: Final[dict[type, tuple[type, ...]]] = {
    **dict.fromkeys(Address, Address),
    **dict.fromkeys(Prefix, Prefix),
    Quantity: (Quantity,),
    Version: (Version,),
}
_TRUTHS: Final = (0, 1)  # that a Python dict cannot tell from False and True
_EMPTY: Final[dict[str, Value]] = {}


def equal(left: Value, right: Value, spend: Callable[[int], None]) -> bool:
    """Whether two values are equal; values of two types are not, and numbers of two types may be.

    ``spend`` is charged for the elements of lists and maps: nested ones that share their parts have more of them than
    memory holds.

    Raises:
        EvaluationError: a quantity, version or address is compared with what is none.
    """
    # Exact types from here on: ``UInt`` and ``bool`` are ints in Python, and other types in CEL.
    kind = type(left)
    if left is None or right is None:
        same = left is right
    elif kind in _OPAQUE:
        same = _same_opaque(left, right)
    elif kind in NUMBERS:
        same = type(right) in NUMBERS and bool(left == right)
    elif isinstance(left, dict):
        same = isinstance(right, dict) and _same_entries(left, right, spend)
    elif kind is tuple:
        same = type(right) is tuple and _same_items(left, right, spend)
    elif kind is Optional:
        same = type(right) is Optional and left.there == right.there and equal(left.value, right.value, spend)
    else:
        same = kind is type(right) and bool(left == right)
    return same


def _same_opaque(left: Value, right: Value) -> bool:
    if type(right) not in _FAMILIES[type(left)]:
        raise EvaluationError("no such overload")
    return bool(left.nanos == right.nanos if type(left) is Quantity else left == right)


def _same_items(left: tuple[Value, ...], right: tuple[Value, ...], spend: Callable[[int], None]) -> bool:
    if len(left) != len(right):
        return False
    spend(len(left))
    return all(equal(one, other, spend) for one, other in zip(left, right, strict=True))


def _same_entries(left: dict[Value, Value], right: dict[Value, Value], spend: Callable[[int], None]) -> bool:
    if len(left) != len(right):
        return False
    spend(len(left))
    return all(is_there(right, key) and equal(value, right[key], spend) for key, value in left.items())


def is_there(entries: dict[Value, Value], key: Value) -> bool:
    """Whether a map has the key; True is no number here."""
    if type(key) is bool or type(key) in NUMBERS:
        # Python finds 1 under True. Only for 0 and 1 the keys are looked at one by one.
        return key in entries and (key not in _TRUTHS or any(equal(key, one, lambda _: None) for one in entries))
    return type(key) is str and key in entries


def found(container: Value, key: Value) -> tuple[bool, Value]:
    """Whether a map or a list has an element, and which.

    Raises:
        EvaluationError: nothing can have such a key, or no list such a position; also where the element is optional.
    """
    # As `newQualifier` of cel-go, which looks at the key before the container.
    if type(key) not in _KEYS:
        raise EvaluationError(f"invalid qualifier type: {type(key).__name__}")
    if isinstance(container, dict):
        # As in Kubernetes, where an unknown domain is an empty map and a missing key inside one is an error.
        if isinstance(container, Domains):
            return True, container.get(key, _EMPTY)
        return (True, container[key]) if is_there(container, key) else (False, None)
    if type(container) is tuple:
        # As `IndexOrError` of cel-go has it.
        if type(key) not in NUMBERS:
            raise EvaluationError(f"unsupported index type '{type(key).__name__}' in list")
        # The bounds come first: neither infinity nor NaN is between them, and `int` refuses both.
        if not -LARGEST_INT - 1 <= key <= LARGEST_INT or key != int(key):
            raise EvaluationError(f"unsupported index value {key} in list")
        at = int(key)
        return (True, container[at]) if 0 <= at < len(container) else (False, None)
    return False, None


def element(container: Value, key: Value) -> Value:
    """An element of a map or a list; of an optional one, the element as an optional value.

    Raises:
        EvaluationError: there is none.
    """
    if type(container) is Optional:
        return optional_element(container, key)
    there, value = found(container, key)
    if not there:
        raise EvaluationError(f"{'index out of bounds' if type(container) is tuple else 'no such key'}: {key!s:.64}")
    return value


def optional_element(container: Value, key: Value) -> Optional:
    """An element of a map, a list or an optional one of these, if it is there."""
    if type(container) is Optional:
        return optional_element(container.value, key) if container.there else NONE
    there, value = found(container, key)
    return Optional(value, there=True) if there else NONE


def size(value: Value) -> int:
    """Characters of a text, elements of a list or a map; 1 of everything else, as the cost is counted."""
    if isinstance(value, str | tuple | dict):
        return len(value)
    return 1
