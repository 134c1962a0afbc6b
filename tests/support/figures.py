"""Figures about the house: how the product's names, functions and comments are, counted from its source."""

import ast
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from support.imports import parsed

# Bases that say nothing about what the methods of a class are for.
GENERAL = frozenset({
    "object", "Protocol", "Struct", "Enum", "StrEnum", "IntEnum", "NamedTuple", "ABC", "Generic", "Exception",
    "BaseModel", "TypedDict",
})  # fmt: skip
MANY = 4  # classes
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """Modules by dotted name, and what stands in them."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.classes: list[tuple[str, ast.ClassDef]] = []
        self.functions: list[tuple[str, Function]] = []
        self.used: Counter[tuple[str, str]] = Counter()  # (module, name) -> how often something is called by the name
        for module, text in texts.items():
            for node in ast.walk(parsed(text)):
                if isinstance(node, ast.ClassDef):
                    self.classes.append((module, node))
                elif isinstance(node, Function) and not node.name.startswith("__"):
                    self.functions.append((module, node))
                elif isinstance(node, ast.Name):
                    self.used[module, node.id] += 1
                elif isinstance(node, ast.Attribute):
                    self.used[module, node.attr] += 1

    def methods_of_many(self) -> dict[str, int]:
        """Public names that methods of `MANY` classes or more have which share no base: name -> how many families."""
        parents: dict[str, set[str]] = defaultdict(set)
        having: dict[str, list[str]] = defaultdict(list)
        for _, node in self.classes:
            names = {ast.unparse(base).split("[")[0].rpartition(".")[2] for base in node.bases}
            parents[node.name] |= names - GENERAL
            for one in node.body:
                if isinstance(one, Function) and not one.name.startswith("_"):
                    having[one.name].append(node.name)
        found = {name: _families(classes, parents) for name, classes in having.items()}
        return {name: families for name, families in found.items() if families >= MANY}

    def doubled_classes(self) -> dict[str, list[str]]:
        """Public class names that stand in two modules or more: name -> the modules."""
        found: dict[str, set[str]] = defaultdict(set)
        for module, node in self.classes:
            if not node.name.startswith("_"):
                found[node.name].add(module)
        return {name: sorted(places) for name, places in found.items() if len(places) > 1}

    def one_word(self) -> float:
        """The share of functions whose name is one word."""
        return sum("_" not in node.name.strip("_") for _, node in self.functions) / len(self.functions)

    def one_caller(self) -> float:
        """The share of private functions that stand in one place of their module besides their definition."""
        private = [(module, node.name) for module, node in self.functions if node.name.startswith("_")]
        return sum(self.used[one] == 1 for one in private) / len(private)

    def comments(self) -> float:
        """Comments of their own line, for each hundred lines of code."""
        lines = [line.strip() for text in self.texts.values() for line in text.splitlines()]
        comments = sum(line.startswith("#") for line in lines)
        return 100 * comments / (sum(map(bool, lines)) - comments)

    def early_returns(self, package: str, kinds: Collection[str]) -> int:
        """How many functions' ends stand before their last line, of a package's functions that return such classes."""
        return sum(
            len([one for one in ast.walk(node) if isinstance(one, ast.Return)]) - isinstance(node.body[-1], ast.Return)
            for module, node in self.functions
            if module.startswith(f"{package}.") and node.returns is not None
            if {one.id for one in ast.walk(node.returns) if isinstance(one, ast.Name)} & set(kinds)
        )

    def hidden_keys(self) -> list[str]:
        """Texts that begin with NUL, or have one inside: keys that stand for more than one thing."""
        return sorted(set(self._hidden_keys()))

    def _hidden_keys(self) -> Iterator[str]:
        for module, text in self.texts.items():
            for node in ast.walk(parsed(text)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\0" in node.value:
                    yield f"{module}:{node.lineno}"


def _families(classes: list[str], parents: Mapping[str, set[str]]) -> int:
    """How many groups of classes there are that share no base."""
    groups: list[set[str]] = []
    for name in classes:
        own, todo = set[str](), [name]
        while todo:
            if (one := todo.pop()) not in own:
                own.add(one)
                todo += parents.get(one, ())
        for group in [group for group in groups if group & own]:
            groups.remove(group)
            own |= group
        groups.append(own)
    return len(groups)
