"""Types of CEL, as far as an expression is checked before it is evaluated.

``DYN`` fits everything: what a device's attribute is shows itself only at run time.
"""

from typing import Final

import msgspec

from engine.claims.cel.values import Address, Optional, Prefix, UInt, Value
from engine.claims.cel.versions import Version
from engine.claims.quantities import Quantity


class Type(msgspec.Struct, frozen=True):
    """A type by its name, and those of its elements."""

    name: str
    parameters: tuple["Type", ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})" if self.parameters else self.name


DYN: Final = Type("dyn")
BOOL: Final = Type("bool")
INT: Final = Type("int")
UINT: Final = Type("uint")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
NULL: Final = Type("null_type")
QUANTITY: Final = Type("kubernetes.Quantity")
SEMVER: Final = Type("kubernetes.Semver")
IP: Final = Type("net.IP")
CIDR: Final = Type("net.CIDR")
DEVICE: Final = Type("kubernetes.DRADevice")

_NEVER_NULL: Final = frozenset({"dyn", "bool", "int", "uint", "double", "string", "list", "map"})
_CLASSES: Final[dict[str, tuple[type, ...]]] = {
    "bool": (bool,),
    "int": (int,),
    "uint": (UInt,),
    "double": (float,),
    "string": (str,),
    "null_type": (type(None),),
    "kubernetes.Quantity": (Quantity,),
    "kubernetes.Semver": (Version,),
    "net.IP": Address,
    "net.CIDR": Prefix,
    "list": (tuple,),
    "optional_type": (Optional,),
}


def list_of(element: Type) -> Type:
    """A list of elements of one type."""
    return Type("list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """A map."""
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    """A value that may not be there."""
    return Type("optional_type", (value,))


def fits(given: Type, wanted: Type) -> bool:
    """Whether a value of a type may stand where another is wanted; what is DYN is seen at run time."""
    if DYN in {given, wanted}:
        return True
    return (
        given.name == wanted.name
        and len(given.parameters) == len(wanted.parameters)
        and all(map(fits, given.parameters, wanted.parameters))
    )


def joined(one: Type, other: Type) -> Type | None:
    """The type of what is either; None where nothing is both. What is no value of CEL's own may be null."""
    if one == other:
        return one
    if NULL in {one, other} and not {one.name, other.name} & _NEVER_NULL:
        return other if one is NULL else one
    if DYN in {one, other}:
        return DYN
    if one.name != other.name or len(one.parameters) != len(other.parameters):
        return None
    parts = [joined(mine, its) for mine, its in zip(one.parameters, other.parameters, strict=True)]
    return Type(one.name, tuple(part for part in parts if part)) if None not in parts else None


def is_a(value: Value, wanted: Type) -> bool:
    """Whether a value is of a type; elements are not looked at."""
    if wanted is DYN:
        return True
    if wanted.name == "map":
        return isinstance(value, dict)
    return type(value) in _CLASSES.get(wanted.name, ())
