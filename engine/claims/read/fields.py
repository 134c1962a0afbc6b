"""Fields of an object of the API, checked as they are read: every error names the object and the field.

Objects are what JSON gives. A field that is null is not there; unknown fields are passed over, as the API server does.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from engine.claims import quantities
from engine.claims.errors import ObjectError
from engine.claims.quantities import Quantity

LARGEST: Final = (1 << 63) - 1
_SHOWN: Final = 40  # characters of a wrong value


class Fields(msgspec.Struct, frozen=True):
    """Some fields of an object: ``what`` names the object, ``path`` where in it they are."""

    what: str
    path: str
    values: Mapping[str, Any]

    @classmethod
    def of_object(cls, kind: str, given: object) -> "Fields":
        """An object of the API by its kind.

        Raises:
            ObjectError: it is none, or has no name.
        """
        if not isinstance(given, Mapping):
            raise ObjectError(kind, "", f"expected an object, got {_describe_value(given)}")
        metadata = given.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        if not isinstance(name, str) or not name:
            raise ObjectError(kind, "metadata.name", f"expected a name, got {_describe_value(name)}")
        # Names go into every error. One that the API server never checked, from a file, may be of any length.
        return cls(f"{kind} {name[:253]}", "", given)

    @property
    def metadata(self) -> "Fields":
        """The metadata of an object, which `of_object` has seen."""
        return self._fields_of_value("metadata", self.values["metadata"])

    def text(self, name: str, default: str = "") -> str:
        """A text; ``default`` where there is none."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(name, f"expected a text, got {_describe_value(value)}")
        return value

    def required(self, name: str) -> str:
        """A text that must be there."""
        value = self.text(name)
        if not value:
            raise self.error(name, "expected a text, got nothing")
        return value

    def integer(self, name: str, *, least: int = 0) -> int:
        """A number of 64 bits from ``least``; 0 where there is none."""
        value = self.values.get(name)
        if value is None:
            return 0
        # Not ``isinstance``: JSON's true would pass as 1.
        if type(value) is not int or not least <= value <= LARGEST:
            raise self.error(name, f"expected a number from {least} to {LARGEST}, got {_describe_value(value)}")
        return value

    def flag(self, name: str) -> bool | None:
        """True or False; None where neither is given."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, f"expected true or false, got {_describe_value(value)}")
        return value

    def fields_of(self, name: str) -> "Fields | None":
        """The fields of a part; None where there is none."""
        value = self.values.get(name)
        return None if value is None else self._fields_of_value(name, value)

    def parts_of_list(self, name: str) -> "Iterator[Fields]":
        """The parts of a list, in order."""
        for index, value in enumerate(self.items(name)):
            yield self._fields_of_value(f"{name}[{index}]", value)

    def parts_by_key(self, name: str) -> "Iterator[tuple[str, Fields]]":
        """The parts of a map, by key."""
        for key, value in self.entries(name):
            yield key, self.entry(name, key, value)

    def entries(self, name: str) -> Iterable[tuple[str, Any]]:
        """The values of a map, by key, as they are."""
        return self._map(name).items()

    def entry(self, name: str, key: str, value: object) -> "Fields":
        """One of these, as fields."""
        return self._fields_of_value(f"{name}[{key[:253]}]", value)

    def items(self, name: str) -> list[Any]:
        """A list; an empty one where there is none."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(name, f"expected a list, got {_describe_value(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        found = self.items(name)
        for index, value in enumerate(found):
            if not isinstance(value, str):
                raise self.error(f"{name}[{index}]", f"expected a text, got {_describe_value(value)}")
        return tuple(found)

    def quantity(self, name: str) -> Quantity | None:
        """A quantity; None where there is none."""
        value = self.values.get(name)
        return None if value is None else self._quantity(name, value)

    def quantities(self, name: str) -> dict[str, Quantity]:
        """A map of quantities."""
        return {key: self._quantity(f"{name}[{key[:253]}]", value) for key, value in self._map(name).items()}

    def listed_quantities(self, name: str) -> tuple[Quantity, ...]:
        """A list of quantities."""
        return tuple(self._quantity(f"{name}[{index}]", value) for index, value in enumerate(self.items(name)))

    def labels(self, name: str) -> dict[str, str]:
        """A map of texts."""
        found = self._map(name)
        for key, value in found.items():
            if not isinstance(value, str):
                raise self.error(f"{name}[{key[:253]}]", f"expected a text, got {_describe_value(value)}")
        return dict(found)

    def error(self, name: str, message: str) -> ObjectError:
        """The error of one of these fields."""
        return ObjectError(self.what, f"{self.path}.{name}".lstrip("."), message)

    def _fields_of_value(self, name: str, value: object) -> "Fields":
        # The exact type first: ``isinstance`` against an abstract class is slow, and each device is many such objects.
        if type(value) is not dict and not isinstance(value, Mapping):
            raise self.error(name, f"expected an object, got {_describe_value(value)}")
        return Fields(self.what, f"{self.path}.{name}".lstrip("."), value)

    def _map(self, name: str) -> Mapping[str, Any]:
        value = self.values.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise self.error(name, f"expected a map, got {_describe_value(value)}")
        return value

    def _quantity(self, name: str, value: object) -> Quantity:
        # A bare number is a legal quantity. Beyond 64 bits its text could be too long for Python to print.
        if type(value) is int and abs(value) <= LARGEST:
            value = str(value)
        if not isinstance(value, str):
            raise self.error(name, f"expected a quantity, got {_describe_value(value)}")
        try:
            return quantities.parse(value.strip())
        except ValueError as error:
            raise self.error(name, str(error)) from error


def _describe_value(value: object) -> str:
    """A wrong value as far as it helps; what is nested is only named."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    # Python raises when it prints more than 4,300 digits, and a file may hold such a number.
    if isinstance(value, int) and abs(value) > LARGEST:
        return "a number beyond 64 bits"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
