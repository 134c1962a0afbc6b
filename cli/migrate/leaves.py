"""An object as the list of its leaves: each is judged by itself, so that none can be forgotten.

A leaf is a value that is no mapping and no list, or an empty one: ``namespaceSelector: {}`` says a lot. The tables of
the modules beside this one name Kueue's fields as ``spec.resourceGroups[].flavors[].name``; ``*`` is any one key,
``**`` all that is below. A leaf that no table names is a field of a newer Kueue, or a slip of the pen.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from cli.migrate.rows import TAKEN, FieldVerdict, Json, left, refused

Path = tuple[str | int, ...]
Scene = TypeVar("Scene")
# In a table's tree: not texts, so that no key of an object is taken for one of them.
_ANY, _ALL, _EACH = None, ..., 0
_WORDS: Mapping[str, Any] = {"*": _ANY, "**": _ALL, "[]": _EACH}
UNKNOWN = refused(
    "topogate does not know the field, and what it asks for would be lost",
    "remove the field from Kueue's object, and see what its documentation says of it",
    grave=True,
)
NOTHING = left("null is the same as no field")


class Leaf(NamedTuple):
    """One value, and the way to it."""

    path: Path
    value: Any

    @property
    def field(self) -> str:
        """``spec.levels[0].nodeLabel``; keys with a dot or a slash in brackets."""
        text = ""
        for part in self.path:
            plain = isinstance(part, str) and not set(part) & set("./[]")
            text += f".{part}" if plain else f"[{part}]"
        return text.removeprefix(".")


def list_leaves(body: Json) -> Iterator[Leaf]:
    """All leaves, in the order of the object. Without recursion: a file may be nested as deep as its author likes."""
    stack: list[Leaf] = [Leaf((), body)]
    while stack:
        leaf = stack.pop()
        if isinstance(leaf.value, dict) and leaf.value:
            stack.extend(Leaf((*leaf.path, str(key)), value) for key, value in reversed(leaf.value.items()))
        elif isinstance(leaf.value, list) and leaf.value:
            stack.extend(Leaf((*leaf.path, at), value) for at, value in reversed([*enumerate(leaf.value)]))
        else:
            yield leaf


def build_object(leaves: Iterator[Leaf]) -> Json:
    """The object of these leaves. An entry of a list keeps its place among those that are still there."""
    root: Json = {}
    made: dict[Path, Json | list[Any]] = {(): root}
    for path, value in leaves:
        inner: Json | list[Any] = root
        for depth in range(1, len(path)):
            below = made.get(path[:depth])
            if below is None:
                below = made[path[:depth]] = [] if isinstance(path[depth], int) else {}
                put_into(inner, path[depth - 1], below)
            inner = below
        put_into(inner, path[-1], value)
    return root


def put_into(inner: Json | list[Any], key: str | int, value: Any) -> None:
    """Put a value into a mapping, or at the end of a list."""
    if isinstance(inner, list):
        inner.append(value)
    else:
        inner[str(key)] = value


Rule = FieldVerdict | Callable[[Leaf, Scene], FieldVerdict]


class FieldTable(Generic[Scene]):
    """Kueue's fields of one kind, each with its verdict or the function that comes to one."""

    def __init__(self, *tables: Mapping[str, "Rule[Scene]"]) -> None:
        self._root: dict[Any, Any] = {}
        for pattern, rule in ((key, value) for table in tables for key, value in table.items()):
            inner = self._root
            *before, last = (_WORDS.get(part, part) for part in pattern.replace("[]", ".[]").split("."))
            for part in before:
                inner = inner.setdefault(part, {})
            inner[last] = rule

    def judge_leaf(self, leaf: Leaf, scene: Scene) -> FieldVerdict:
        """What becomes of it."""
        node: Any = self._root
        for part in leaf.path:
            if not isinstance(node, dict):
                return UNKNOWN
            if _ALL in node:
                break
            node = node.get(_EACH) if isinstance(part, int) else node.get(part, node.get(_ANY))
        whole = isinstance(node, dict) and _ALL in node
        if whole:
            node = node[_ALL]
        if node is None:
            return UNKNOWN
        if leaf.value is None:
            return NOTHING
        is_empty = leaf.value in ({}, [])
        # An empty mapping or list where the table has fields is a value of its own; elsewhere it is a mistake.
        if isinstance(node, dict) != is_empty and not whole:
            wanted = "a mapping or a list" if isinstance(node, dict) else "a value"
            why = f"expected {wanted}, found {str(leaf.value)[:60]!r}"
            return refused(why, "correct Kueue's object", grave=True)
        if isinstance(node, dict):
            return TAKEN
        found: FieldVerdict = node(leaf, scene) if callable(node) else node
        return found
