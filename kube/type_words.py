"""Errors of msgspec for people: which kind of value was expected, and which was found, in words."""

import re
from typing import Final

_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "nothing",
    "bytes": "text",
}
_WRONG: Final = re.compile(r"Expected `([^`]+)`")
_FOUND: Final = re.compile(r", got\s`([^`]+)`")


def in_words(message: str) -> str:
    """``Expected `int | null`, got `str``` is "expected a whole number, found text"."""
    message = _WRONG.sub(lambda found: f"expected {_alternatives(found[1])}", message)
    return _FOUND.sub(lambda found: f", found {_alternatives(found[1])}", message)


def _alternatives(types: str) -> str:
    """Of a field that may be left out, what it is where it is there."""
    names = types.split(" | ")
    kinds = [name for name in names if name != "null"] or names
    return " or ".join(_WORDS.get(name, name) for name in kinds)
