"""What is wrong with a value of a setting, for people: what was expected, and what was found. No types of Python."""

import json
from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import ErrorDetails

LONGEST: Final = 60  # characters of a value that is shown

_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "bool": "true or false",
    "string": "text",
    "tuple": "a list",
    "list": "a list",
    "model": "`key: value` lines",
    "dict": "`key: value` lines",
}
_BOUNDS: Final = {  # by what pydantic calls the fault: words before the bound, its name there, and words after it
    "greater_than": ("more than", "gt", ""),
    "greater_than_equal": ("at least", "ge", ""),
    "less_than": ("less than", "lt", ""),
    "less_than_equal": ("at most", "le", ""),
    "too_long": ("a list of at most", "max_length", ""),
    "too_short": ("a list of at least", "min_length", ""),
    "string_too_short": ("text of", "min_length", " or more characters"),
    "string_too_long": ("text of at most", "max_length", " characters"),
    "literal_error": ("one of", "expected", ""),
}


def expected(problem: ErrorDetails, patterns: Mapping[str, str]) -> str:
    """What was expected; ``patterns``: in words, which texts an expression takes."""
    type_, context = problem["type"], problem.get("ctx", {})
    if type_ == "string_pattern_mismatch":
        return f"expected {patterns[context['pattern']]}"
    if type_ in _BOUNDS:
        before, name, after = _BOUNDS[type_]
        # Times are floats, and 60.0 reads as 60 to whoever wrote it.
        bound = str(context[name]).removesuffix(".0").replace("'", "")
        return f"expected {before} {bound}{after}"
    if (kind := _KINDS.get(type_.partition("_")[0])) is not None:
        return f"expected {kind}"
    return problem["msg"].removeprefix("Value error, ")


def value_in_words(value: Any) -> str:
    """A value as it may stand in the file, in a line."""
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
