"""Objects as YAML that is short, for what is installed goes into repositories and through reviews.

Rules
- It says what the objects are, and nothing else: a reader of YAML 1.1, kubectl's too, gets them back.
- What fits into a line is one. Of a schema each field begins a line, set in by one space a level: in blocks of their
  own the marks of a field would be lines too, and more than half of the text indentation.
- Within schemas what comes again is an alias (``*3``) of where it came first (``&3``), merged (``<<``) where only the
  description differs; nowhere else, for people read rights and rules one by one. Aliases end with their document, so
  the kinds are one, a List.
"""

import json
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import Any, TextIO

import yaml

_WIDTH = 160  # of a line that is not a text
_UNBROKEN = 1 << 30
_KIND = "CustomResourceDefinition"
_SCHEMA = "openAPIV3Schema"
_DESCRIPTION = "description"
_MERGE = "<<"
_FEWEST: dict[type, int] = {dict: 30, list: 30, str: 24}  # characters of what is worth an alias


def write(objects: Iterable[dict[str, Any]], stream: TextIO) -> None:
    """The objects as documents, in their order; kinds that follow one another as one List."""
    documents = []
    for kinds, group in groupby(objects, lambda obj: obj["kind"] == _KIND):
        if kinds:
            documents.append({"apiVersion": "v1", "kind": "List", "items": list(group)})
        else:
            documents += group
    stream.write("---\n".join(f"{_block(one, 0, _Schemas(one))}\n" for one in documents))


class _Schemas:
    """The schemas of a document, a line a field, and what comes again in them by its alias."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._times: Counter[str] = Counter()
        self._aliases: dict[str, str] = {}
        for obj in document.get("items", ()):
            for version in obj["spec"]["versions"]:
                self._count_value(version["schema"][_SCHEMA])

    def text(self, value: Any, indent: int) -> str:
        """The value; what begins a line in it is set in by more than ``indent`` spaces."""
        key = json.dumps(value)
        if alias := self._aliases.get(key):
            return f"*{alias}"
        if self._times[key] <= 1:
            return self._print_whole(value, indent)
        # Named while it is written, so an anchor always comes before its aliases, as YAML requires.
        self._aliases[key] = str(len(self._aliases) + 1)
        return f"&{self._aliases[key]} {self._print_whole(value, indent)}"

    def _count_value(self, value: Any) -> None:
        key = json.dumps(value)
        if len(key) < _FEWEST.get(type(value), len(key) + 1):
            return
        self._times[key] += 1
        if self._times[key] > 1 or not isinstance(value, (dict, list)):  # what is in it is written once
            return
        if isinstance(value, dict) and (rest := _undescribed(value)):
            self._count_value(rest)
            return
        for each in value.values() if isinstance(value, dict) else value:
            self._count_value(each)

    def _print_whole(self, value: Any, indent: int) -> str:
        if isinstance(value, list):
            return "[" + ", ".join(self.text(each, indent) for each in value) + "]"
        if not isinstance(value, dict):
            return _scalar(value)
        if (rest := _undescribed(value)) and self._times[json.dumps(rest)] > 1:
            return f"{{{_DESCRIPTION}: {self.text(value[_DESCRIPTION], indent)}, {_MERGE}: {self.text(rest, indent)}}}"
        marks = (f"{_scalar(name)}: {self._mark(name, each, indent)}" for name, each in value.items())
        return "{" + ", ".join(marks) + "}"

    def _mark(self, name: str, value: Any, indent: int) -> str:
        """One mark of a field; of the fields in it each begins a line."""
        if name != "properties" or not isinstance(value, dict):
            return self.text(value, indent)
        start = "\n" + " " * (indent + 1)
        fields = (f"{start}{_scalar(field)}: {self.text(each, indent + 1)}" for field, each in value.items())
        return "{" + ",".join(fields) + "}"


def _undescribed(value: dict[str, Any]) -> dict[str, Any]:
    """The mapping without its description; empty where it has none, or has keys that a merge would take for its own."""
    # A field of a schema may itself be called description; its value is a mapping then.
    if not isinstance(value.get(_DESCRIPTION), str) or _MERGE in value:
        return {}
    return {name: each for name, each in value.items() if name != _DESCRIPTION}


def _block(value: Any, indent: int, schemas: _Schemas) -> str:
    """A mapping or list over several lines, set in by ``indent`` spaces."""
    start = " " * indent
    if isinstance(value, dict):
        return "\n".join(start + _entry(name, each, indent, schemas) for name, each in value.items())
    return "\n".join(f"{start}- {_line(each) or _block(each, indent + 2, schemas).lstrip()}" for each in value)


def _entry(name: str, value: Any, indent: int, schemas: _Schemas) -> str:
    if name == _SCHEMA:
        return f"{name}: {schemas.text(value, indent)}"
    if isinstance(value, str):
        return _text(name, value).replace("\n", "\n" + " " * indent)
    if line := _line(value):
        return f"{_scalar(name)}: {line}"
    return f"{_scalar(name)}:\n{_block(value, indent + 2 if isinstance(value, dict) else indent, schemas)}"


def _line(value: Any) -> str:
    """The value as one line; empty where it takes several."""
    if not isinstance(value, (dict, list)):
        return _scalar(value)
    line = _flow(value)
    return line if len(line) <= _WIDTH and "\\n" not in line else ""


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(name)}: {_flow(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _text(name: str, text: str) -> str:
    """A field of a block; a text of several lines as such, and a rule in the quotes that it has fewer of."""
    if "\n" in text:
        literal = yaml.safe_dump(text, default_style="|", width=_UNBROKEN, allow_unicode=True).rstrip()
        return f"{_scalar(name)}: {literal}"
    plain = yaml.safe_dump({name: text}, width=_UNBROKEN, allow_unicode=True).rstrip("\n")
    # CEL rules are full of single quotes, which YAML's single-quoted style doubles.
    return min(plain, f"{_scalar(name)}: {_quoted(text)}", key=len)


def _scalar(value: Any) -> str:
    """A value without parts, in a line with others."""
    if not isinstance(value, str):
        return json.dumps(value)
    if not value.isprintable():
        return _quoted(value)
    # Within a list, as only there the dumper quotes what flow style needs quoted: commas and brackets.
    plain = yaml.safe_dump([value], default_flow_style=True, width=_UNBROKEN, allow_unicode=True).strip()[1:-1]
    return min(plain, _quoted(value), key=len)


def _quoted(text: str) -> str:
    return yaml.safe_dump(text, default_style='"', width=_UNBROKEN, allow_unicode=True).rstrip("\n")
