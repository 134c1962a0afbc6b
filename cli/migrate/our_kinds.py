"""What our API takes: the models of `crds.kinds` asked about an object before an API server is.

Rules in CEL are the API server's. Those that Kueue has not are the converters' own business.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from pydantic import ValidationError

from cli.migrate.rows import FieldVerdict, Json, refused
from crds.generate import KINDS, schema
from crds.kinds.common import ApiObject, Schema
from crds.setting_words import expected, value_in_words
from engine.quantity import parse

MODELS: Final[Mapping[str, type[ApiObject]]] = {model.__name__: model for model in KINDS}
_CORRECT: Final = "correct it in Kueue's object, or leave it out there"
# What our API lacks, by kind and the beginning of the field, with what to do instead.
_INSTEAD: Final[Mapping[str, str]] = {
    "ResourceFlavor spec.topology.levels": "leave out levels that no job asks for",
    "ClusterQueue spec.resourceGroups": "divide the queue into several of one cohort",
}


class _Patterns(dict[str, str]):
    def __missing__(self, pattern: str) -> str:
        return f"text like {pattern}"


def find_problems(kind: str, made: Json) -> Iterator[tuple[str, FieldVerdict]]:
    """(field, refusal) of all that our API would not take in an object that was made."""
    model = MODELS.get(kind)
    if model is None:
        yield "", refused(f"Topogate has no kind {kind}", _advice(kind, ""), grave=True)
        return
    shape, told = _shape_of(model), set[str]()
    for part in sorted(made.keys() - {"apiVersion", "kind", "metadata"}):
        for field in _unknown_fields(shape["properties"].get(part), made[part], part):
            yield field, refused(f"a {kind} of Topogate has no such field", _advice(kind, field), grave=True)
        for field, why in _wrong_quantities(shape["properties"].get(part, {}), made[part], part):
            told.add(field)
            yield field, refused(why, _CORRECT, grave=True)
    # Strictly, as the API server does: 5 is no text, and "5" no number.
    try:
        model.model_validate(made, strict=True)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            # Of a union there is one problem for each arm.
            if (field := field_of(problem["loc"])) in told:
                continue
            told.add(field)
            found = f"{len(problem['input'])} of them" if "too_l" in problem["type"] else None
            found = found or value_in_words(problem["input"])
            why = f"{expected(problem, _Patterns())}, found {found}"
            yield field, refused(why, _advice(kind, field), grave=True)


@cache
def _shape_of(model: type[ApiObject]) -> Schema:
    return schema(model)


def _advice(kind: str, field: str) -> str:
    whole = f"{kind} {field}".rstrip()
    return next((text for start, text in _INSTEAD.items() if whole.startswith(start)), _CORRECT)


def field_of(loc: tuple[int | str, ...]) -> str:
    """The path of a problem, as people write it."""
    text = ""
    for part in loc:
        # pydantic appends which arm of a union it tried ("str", "int"): that is no field.
        if part in {"str", "int", "constrained-str"}:
            break
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _unknown_fields(node: Schema | None, value: Any, at: str) -> Iterator[str]:
    """Fields that the schema does not have, each once, with nothing below it."""
    if node is None:
        yield at
    elif isinstance(value, dict) and "properties" in node:
        for key, inner in value.items():
            yield from _unknown_fields(node["properties"].get(key), inner, f"{at}.{key}")
    elif isinstance(value, list) and "items" in node:
        for number, inner in enumerate(value):
            yield from _unknown_fields(node["items"], inner, f"{at}[{number}]")


def _wrong_quantities(node: Schema, value: Any, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and "properties" in node:
        for key, inner in value.items():
            yield from _wrong_quantities(node["properties"].get(key, {}), inner, f"{at}.{key}")
    elif isinstance(value, list) and "items" in node:
        for number, inner in enumerate(value):
            yield from _wrong_quantities(node["items"], inner, f"{at}[{number}]")
    elif node.get("x-kubernetes-int-or-string") and not is_quantity(node, value):
        yield at, f"expected a quantity of 0 or more, found {value_in_words(value)}"


def is_quantity(node: Schema, value: Any) -> bool:
    """Whether our API takes a value as a quantity."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return False
    # In JSON a number beyond that is a fraction to the API server.
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return False
    text = str(value)
    if len(text) > node.get("maxLength", len(text)) or not re.fullmatch(node.get("pattern", ".*"), text):
        return False
    try:
        return parse("", value) >= 0
    except ValueError:
        return False
