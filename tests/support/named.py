"""Names in back ticks: what a page or a docstring names is there, as a file, a module, or something that code defines.

What is checked: paths (``engine/model.py``, `search/` of some package, a pattern with ``*``), ``FILE: NAME`` and
``FILE::NAME``, dotted names and single ones, called or not. What is not: whatever has a space or a sign that no name
has (commands, annotations, expressions), fields of Kubernetes' objects, and names of other people's libraries.
"""

import ast
import builtins
import os
import re
import sys
from collections import defaultdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from support.imports import PACKAGES, ROOT, modules, parsed

FOLDERS = (*PACKAGES, "benchmarks", "docs", "tests", ".ci", ".github")
FIELDS = frozenset({"spec", "status", "metadata"})  # that a path into an object of Kubernetes begins with
SKIPPED = frozenset({"node_modules", "__pycache__"})
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_IN_FILE = re.compile(r"([\w./-]+\.py)(?:: |::)(\w+)(?:\[.*\])?")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:\(\))?")
_PATH = re.compile(r"\.?[\w*-][\w.*-]*(?:/[\w.*-]+)*/?")
_FILE = re.compile(r"\.(?:py|md|yaml|gz|jsonl|ts|txt|toml|html)$")
_ROW = re.compile(r"([\w/]+\.py) +((?:\w+, )*\w+)(?= *(?:#|$))")
# What defines a name, line by line: to parse all modules takes seconds, and a name in a comment does no harm.
_DEFINITIONS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^ *(?:async )?(?:def|class) (\w+)",
        r"^ *(?:\w+, )*(?:self\.)?(\w+)(?:: | = |, [\w, ]+ = )",
        r"\bself\.(\w+)",
    )
)
_SIGNATURE = re.compile(r"^ *(?:async )?def \w+\(([^)]*)", re.MULTILINE)
_PARAMETER = re.compile(r"(\w+)(?=: |=|,|$)")
_TEXT = re.compile(r"[\"'](\w+)[\"']")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


def missing_names(text: str, package: str = "") -> list[str]:
    """What of the back-ticked names of a text is not there. ``package``: a name without dots has to be of that one."""
    return [span for span in _SPAN.findall(_BLOCK.sub("", text)) if not is_there(span, package)]


def missing_rows(text: str) -> list[str]:
    """Rows ``FILE  FUNCTION, FUNCTION  # why`` of blocks of code whose file does not define those functions."""
    rows = [row for block in _BLOCK.findall(text) for row in map(_ROW.match, block.splitlines()) if row]
    return [row[0].strip() for row in rows if not set(row[2].split(", ")) <= _functions(row[1])]


def is_there(span: str, package: str = "") -> bool:
    """Whether what this text names exists; what is no name is."""
    if found := _IN_FILE.fullmatch(span):
        return any(found[2] in _defined(path.read_text()) for path in _files(found[1]))
    if ("/" in span or _FILE.search(span)) and _PATH.fullmatch(span):
        return _is_domain(span) or _is_path(span)
    if not _DOTTED.fullmatch(span):
        return True
    parts = span.removesuffix("()").split(".")
    return _is_dotted(parts) if len(parts) > 1 else _is_name(parts[0], package)


# --- paths ---------------------------------------------------------------------------------------------------------


def _is_domain(span: str) -> bool:
    """Whether it is a label or an address: what begins with a domain is no folder of ours."""
    first, slash, _ = span.partition("/")
    return bool(slash) and "." in first.lstrip(".")


def _is_path(span: str) -> bool:
    if "*" in span:
        return any(ROOT.glob(span))
    return bool(_files(span.rstrip("/")))


def _files(path: str) -> list[Path]:
    """The file or folder of this path; else those that have it from some folder on."""
    if (ROOT / path).exists():
        return [ROOT / path]
    return [one for one in _by_name().get(path.rpartition("/")[2], ()) if f"{one}".endswith(f"/{path}")]


@cache
def _by_name() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = defaultdict(list)
    for folder in FOLDERS:
        for path, folders, files in os.walk(ROOT / folder):
            folders[:] = [name for name in folders if name not in SKIPPED]
            for name in (*folders, *files):
                found[name].append(Path(path) / name)
    return found


# --- names ---------------------------------------------------------------------------------------------------------


@cache
def _defined(text: str) -> frozenset[str]:
    """Every name that a module defines: functions, classes, parameters, attributes, constants."""
    found = {name for pattern in _DEFINITIONS for name in pattern.findall(text)}
    found.update(name for signature in _SIGNATURE.findall(text) for name in _PARAMETER.findall(signature))
    return frozenset(found)


def _functions(path: str) -> set[str]:
    tree = parsed((ROOT / path).read_text()) if (ROOT / path).exists() else ast.Module([], [])
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@cache
def _texts() -> dict[str, str]:
    return {**modules(*PACKAGES, "benchmarks"), **modules("tests")}


@cache
def _known(package: str) -> frozenset[str]:
    """All names of the modules of a package ("": of all), and these modules' own."""
    found = set(dir(builtins))
    for name, text in _texts().items():
        if not package or f"{name}.".startswith(f"{package}."):
            found |= {*_defined(text), *name.removeprefix(package).split(".")}
    return frozenset(found)


@cache
def _said() -> frozenset[str]:
    """What the product says as a text that could be a name (reasons, conditions, kinds), and what tests read (options).

    Tests name what is not there, too: of their texts only variables of the environment count.
    """
    words = {word for text in modules(*PACKAGES).values() for word in _TEXT.findall(text)}
    tried = {word for text in modules("tests").values() for word in _TEXT.findall(text)}
    return frozenset(words | {word for word in tried if word.startswith("TOPOGATE_")})


def _is_name(name: str, package: str) -> bool:
    if package and name[0].islower():
        return name in PACKAGES or name in _known(package)
    spelled = {name, _HUMP.sub("_", name).lower(), name.removesuffix("_total")}  # as a field, and as a metric
    return not spelled.isdisjoint(_known("") | _said()) or name in _by_name()


def _is_dotted(parts: list[str]) -> bool:
    first, second = parts[:2]
    modules_named = _last_names().get(first)
    if first in FIELDS or (not modules_named and _is_foreign(first)):
        return True
    if first in FOLDERS:
        return _is_in_module(parts)
    if first[0].isupper():
        return second in _members(first)
    return any(second in _defined(_texts()[name]) for name in modules_named or ())


def _is_foreign(name: str) -> bool:
    return name in sys.stdlib_module_names or find_spec(name) is not None


def _is_in_module(parts: list[str]) -> bool:
    for size in range(len(parts), 0, -1):
        if (text := _texts().get(".".join(parts[:size]))) is not None:
            return all(part in _defined(text) for part in parts[size:])
    return False


@cache
def _last_names() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name in _texts():
        found[name.rpartition(".")[2]].append(name)
    return found


@cache
def _members(name: str) -> frozenset[str]:
    """What classes of a name have, by themselves or by a base of ours."""
    found: set[str] = set()
    for text in _texts().values():
        nodes = ast.walk(parsed(text)) if re.search(rf"^ *class {name}\b", text, re.MULTILINE) else ()
        for node in nodes:
            if isinstance(node, ast.ClassDef) and node.name == name:
                found |= _defined(ast.unparse(node))
                bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases} - {name}
                found.update(*map(_members, bases))
    return frozenset(found)
