"""Which module of the product imports which, read from their text: imports for types, and late ones, count too."""

import ast
from collections.abc import Container, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("engine", "queueing", "simulator", "crds", "kube", "webhook", "ungater", "agent", "serving", "certs", "cli"),
    *("localcluster", "manifests", "clock", "web", "image"),
)  # of the product
Graph = dict[str, set[str]]


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a module: many tests read all of them, and nobody changes one."""
    return ast.parse(text)


@cache
def _read(path: Path) -> str:
    return path.read_text()


def modules(*packages: str) -> dict[str, str]:
    """The text of each module of these packages, by its dotted name."""
    found = {}
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = _read(path)
    return found


def classes(text: str) -> list[str]:
    """The public classes of a module."""
    found = (node.name for node in parsed(text).body if isinstance(node, ast.ClassDef))
    return [name for name in found if not name.startswith("_")]


def imports(texts: Mapping[str, str]) -> Graph:
    """By module, those of the others that it imports."""
    return {name: {one for one in _named(text, texts) if one in texts and one != name} for name, text in texts.items()}


def _named(text: str, known: Container[str]) -> Iterator[str]:
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for one in node.names:
                inner = f"{node.module}.{one.name}"
                yield inner if inner in known else node.module


def rooms(graph: Graph, package: str) -> Graph:
    """The same between what lies side by side in a package: its folders, and its modules outside of folders."""
    found: Graph = {}
    depth = package.count(".") + 2
    for name, others in graph.items():
        if name.startswith(f"{package}."):
            own = ".".join(name.split(".")[:depth])
            wanted = {".".join(one.split(".")[:depth]) for one in others if one.startswith(f"{package}.")}
            found.setdefault(own, set()).update(wanted - {own})
    return found


def circle(graph: Graph) -> list[str]:
    """One circle in a graph, as names in their order; [] where there is none."""
    done: set[str] = set()
    for start in sorted(graph):
        path, turns = [start], [iter(sorted(graph[start]))]
        while path:
            following = next(turns[-1], None)
            if following is None:
                done.add(path.pop())
                turns.pop()
            elif following in path:
                return [*path[path.index(following) :], following]
            elif following not in done:
                path.append(following)
                turns.append(iter(sorted(graph.get(following, ()))))
    return []
