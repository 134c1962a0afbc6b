"""Who reads what the API, the annotations and the settings offer: found in the text of the product.

A field of a spec counts as read where a wire shape takes it in (what no shape has is dropped while it is decoded) and
product code then loads the attribute of that name; below a part that is kept as it came, where the code names the key.
What we write ourselves (`unwritten`) counts where the code reads it, or names it as it makes the object. A name of
`crds.constants` counts where a function or a call uses it: a table of names at the top of a module checks and lists,
and does nothing; another constant made of it hands the question on.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
from support.imports import parsed

Texts = Mapping[str, str]


@dataclass(frozen=True)
class Uses:
    """What modules use: attributes that are loaded, names that functions and calls load, text that is named."""

    attributes: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)


def uses(texts: Texts) -> Uses:
    """What these modules use, all together."""
    found = Uses()
    for one in map(_uses, texts.values()):
        found.attributes.update(one.attributes)
        found.names.update(one.names)
        found.texts.update(one.texts)
    return found


@cache
def _uses(text: str) -> Uses:
    tree = parsed(text)
    found, documented = Uses(names=set(_in_functions(tree))), set(_documentation(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.attributes.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            found.texts.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            found.texts.add(node.value)
    return found


def _in_functions(node: ast.AST, *, inside: bool = False) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Call):
        inside = True
    elif inside and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    elif inside and isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node.attr
    for child in ast.iter_child_nodes(node):
        yield from _in_functions(child, inside=inside)


def _documentation(tree: ast.AST) -> Iterator[int]:
    return (id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr))


# --- fields of the API ---------------------------------------------------------------------------------------------


def unread(
    spec: Mapping[str, Any], shapes: Iterable[Any], used: Uses, handed_on: Collection[Any] = (), at: str = "spec"
) -> Iterator[str]:
    """The fields of a schema that nobody reads.

    ``shapes``: the types that the same part of the object is read as. ``handed_on``: those of which the product passes
    on a whole, so that to have a field is enough.
    """
    shapes = [inner for shape in shapes for inner in _inside(shape)]
    whole = any(shape in handed_on for shape in shapes)
    raw = any(_is_raw(shape) for shape in shapes)
    for name, child in spec.get("properties", {}).items():
        known = [one for shape in shapes for one in _fields(shape) if one.encode_name == name]
        found = any(whole or one.name in used.attributes for one in known)
        if not found and not (raw and name in used.texts):
            yield f"{at}.{name}"
        else:
            below = [one.type for one in known] + ([dict] if raw else [])
            yield from unread(_element(child), below, used, handed_on, f"{at}.{name}")


def unwritten(
    schema: Mapping[str, Any],
    used: Uses,
    shapes: Iterable[Any] = (),
    handed_on: Collection[Any] = (),
    at: str = "status",
) -> Iterator[str]:
    """The fields of a schema that nobody writes or reads; the other arguments as in `unread`."""
    shapes = [inner for shape in shapes for inner in _inside(shape)]
    for name, child in schema.get("properties", {}).items():
        known = [(shape, one) for shape in shapes for one in _fields(shape) if one.encode_name == name]
        passed = any(shape in handed_on for shape, _ in known)
        if not passed and not {name, _snake(name)} & (used.texts | used.attributes):
            yield f"{at}.{name}"
        yield from unwritten(_element(child), used, [one.type for _, one in known], handed_on, f"{at}.{name}")


def _element(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of what is in a list of such things, however deep."""
    while "items" in schema:
        schema = schema["items"]
    return schema


def _inside(shape: Any) -> Iterator[Any]:
    """The types that make up a type: X of `X | None`, of `tuple[X, ...]`, of `dict[str, X]` the dict."""
    if get_origin(shape) in {Union, UnionType} or get_origin(shape) in {tuple, list}:
        for one in get_args(shape):
            yield from _inside(one)
    else:
        yield shape


def _fields(shape: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    is_struct = isinstance(shape, type) and issubclass(shape, msgspec.Struct)
    return msgspec.structs.fields(shape) if is_struct else ()


def _is_raw(shape: Any) -> bool:
    return shape is dict or get_origin(shape) is dict or shape in {Any, msgspec.Raw}


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


# --- names of annotations and labels -------------------------------------------------------------------------------


def unused_names(constants: str, used: Uses) -> list[str]:
    """The constants and properties of a module of names that nothing uses, through another one or itself."""
    made_of = dict(_definitions(ast.parse(constants)))
    live = {name for name in made_of if name in used.names}
    while more := {one for name in live for one in made_of[name] if one in made_of} - live:
        live |= more
    return [name for name in made_of if name not in live]


def _definitions(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """By constant or property, the names that it is made of."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names = (one.id for one in ast.walk(target) if isinstance(one, ast.Name))
                yield from ((name, _loaded(node.value)) for name in names)
        elif isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.FunctionDef):
                    yield one.name, _loaded(one)


def _loaded(node: ast.AST) -> set[str]:
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
