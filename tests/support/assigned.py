"""Which statements of the product assign attributes of an object that is not their own, read from their text.

An assignment is any statement that sets or deletes an attribute, ``setattr`` and its kin too. It is no offence where

- a method does it to its own ``self`` or ``cls``;
- no class of ours has an attribute of that name, or the object is made by a class of somebody else's, or is a parameter
  that is one, as its annotation says: then the object is not ours;
- the function itself made the object, by calling the class, and the name stands for nothing else in it: a builder.
"""

import ast
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from support.imports import parsed

Attributes = dict[str, set[str]]  # by name of a class; those of one name are told from each other by nothing
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_OWN: Final = frozenset({"self", "cls"})
_OF_ANYTHING: Final = frozenset({"typing", "collections", "types"})  # what is annotated with these may be ours
_SETTING: Final = frozenset({"setattr", "delattr", "force_setattr", "__setattr__", "__delattr__"})


class Assigned(NamedTuple):
    """One offence: in which line, and to what (``self.queue.turn``)."""

    line: int
    text: str


def attributes(*texts: str) -> Attributes:
    """What attributes the classes of these modules have: declared in their bodies, or set by their methods."""
    found: Attributes = {}
    for text in texts:
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(_attributes(node))
    return found


def _attributes(owner: ast.ClassDef) -> Iterator[str]:
    for node in owner.body:
        for target in _targets(node):
            if isinstance(target, ast.Name):
                yield target.id
                if target.id == "__slots__" and isinstance(node, ast.Assign):
                    yield from ast.literal_eval(node.value)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (one.value.id for one in node.decorator_list if _is_setter(one))
            yield from (
                each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and isinstance(each.value, ast.Name)
                and each.value.id in _OWN
            )


def _is_setter(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Attribute) and decorator.attr == "setter" and isinstance(decorator.value, ast.Name)


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []


def assigned(text: str, ours: Mapping[str, Collection[str]], packages: Container[str]) -> list[Assigned]:
    """The offences of a module. ``ours``: as `attributes` tells; ``packages``: where an import is one of ours."""
    tree = parsed(text)
    finder = _Finder(ours, _strangers(tree, packages), _renamed(tree))
    return sorted(finder.found(tree))


def _strangers(tree: ast.Module, packages: Container[str]) -> set[str]:
    """The names in a module that stand for what is imported from elsewhere."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {(one.asname or one.name).partition(".")[0]: one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            names = dict.fromkeys((one.asname or one.name for one in node.names), node.module)
        else:
            continue
        for name, module in names.items():
            if module.partition(".")[0] not in packages and module.partition(".")[0] not in _OF_ANYTHING:
                found.add(name)
    return found


def _renamed(tree: ast.Module) -> dict[str, str]:
    """What is imported under another name: by that name, its own."""
    found = (one for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for one in node.names)
    return {one.asname: one.name for one in found if one.asname is not None}


@dataclass
class _Scope:
    """A function (or a module, or a lambda). ``values``: what each name is bound to; None where that is not known."""

    own: frozenset[str] = frozenset()
    values: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    annotations: dict[str, ast.expr] = field(default_factory=dict)


@dataclass
class _Finder:
    ours: Mapping[str, Collection[str]]
    strangers: Container[str]
    renamed: Mapping[str, str]

    @cached_property
    def attributes(self) -> set[str]:
        """What any class of ours has."""
        return {name for names in self.ours.values() for name in names}

    def found(self, tree: ast.Module) -> Iterator[Assigned]:
        """All offences."""
        yield from self._in(tree, _Scope(values=_bound(tree)), in_class=False)

    def _in(self, node: ast.AST, scope: _Scope, *, in_class: bool) -> Iterator[Assigned]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _Function):
                yield from self._in(child, _entered(child, scope, in_class=in_class), in_class=False)
                continue
            for of, name in _set(child):
                if not self._allowed(scope, of, name):
                    yield Assigned(child.lineno, f"{ast.unparse(of)}.{name}")
            yield from self._in(child, scope, in_class=isinstance(child, ast.ClassDef))

    def _allowed(self, scope: _Scope, of: ast.expr, name: str) -> bool:
        if isinstance(of, ast.Name) and of.id in scope.own:
            return True
        if name and name not in self.attributes:
            return True
        root = of
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            return False
        if _is_made(scope, root.id, self._strange) or self._is_strange(scope.annotations.get(root.id)):
            return True
        return root is of and _is_made(scope, root.id, self._makes)

    def _makes(self, made: ast.expr) -> bool:
        """Whether a class of ours is called."""
        called = _called(made)
        of_its_own = isinstance(called, ast.Call) and ast.unparse(called.func) == "type"
        name = _last(called)
        return of_its_own or name in {"cls", "__new__"} or self.renamed.get(name, name) in self.ours

    def _strange(self, made: ast.expr) -> bool:
        """Whether a class is called that is not ours: classes have capitals."""
        called = _called(made)
        return _root(called) in self.strangers and _last(called)[:1].isupper()

    def _is_strange(self, annotation: ast.expr | None) -> bool:
        """Whether what is annotated so is not ours."""
        match annotation:
            case ast.BinOp(left=left, right=right):
                return self._is_strange(left) and (self._is_strange(right) or ast.unparse(right) == "None")
            case ast.Constant(value=str(text)):
                return self._is_strange(ast.parse(text, mode="eval").body)
            case ast.Subscript(value=value):
                return self._is_strange(value)
            case ast.Name() | ast.Attribute():
                return _root(annotation) in self.strangers
        return False


def _entered(node: _Function, outer: _Scope, *, in_class: bool) -> _Scope:
    """The scope of a function. Of what is outside of it only ``self`` stays what it was."""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    arguments += [one for one in (node.args.vararg, node.args.kwarg) if one is not None]
    first = next(iter([*node.args.posonlyargs, *node.args.args]), None)
    values = _bound(node)
    own = set(outer.own) - {one.arg for one in arguments} - values.keys()
    plain = not isinstance(node, ast.Lambda) and all(ast.unparse(one) != "staticmethod" for one in node.decorator_list)
    if in_class and plain and first is not None and first.arg in _OWN and first.arg not in values:
        own.add(first.arg)
    annotations = {one.arg: one.annotation for one in arguments if one.annotation is not None}
    for one in arguments:
        values.setdefault(one.arg, []).append(None)
    bound_again = {name for name, bound in values.items() if len(bound) > 1}
    return _Scope(frozenset(own), values, {name: kind for name, kind in annotations.items() if name not in bound_again})


def _bound(function: _Function | ast.Module) -> dict[str, list[ast.expr | None]]:
    """What the names of a function are bound to in it, those of the functions inside left out."""
    found: dict[str, list[ast.expr | None]] = {}
    plain: set[ast.expr] = set()  # the targets whose value is known
    for node in _nodes(function):
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            pairs = [(node.target, node.value)]
        for target, value in pairs:
            if isinstance(target, ast.Name):
                plain.add(target)
                found.setdefault(target.id, []).append(value)
    for node in _nodes(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del) and node not in plain:
            found.setdefault(node.id, []).append(None)
    return found


def _nodes(function: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, _Function | ast.ClassDef):
            yield from _nodes(child)


def _set(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """(object, attribute) of each attribute that a node itself sets or deletes; "" where its name is not said."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        yield node.value, node.attr
    if isinstance(node, ast.Call) and (called := _last(node.func)) in _SETTING:
        of = node.args
        if called.startswith("__") and len(of) < (3 if called == "__setattr__" else 2):  # bound to its object
            of = [node.func.value, *of] if isinstance(node.func, ast.Attribute) else of
        if of and ast.unparse(of[0]) != "super()":
            name = of[1].value if len(of) > 1 and isinstance(of[1], ast.Constant) else ""
            yield of[0], str(name)


def _is_made(scope: _Scope, name: str, how: Callable[[ast.expr], bool]) -> bool:
    """Whether all that a name stands for in a function was made there like that."""
    values = scope.values.get(name, ())
    return bool(values) and all(value is not None and how(value) for value in values)


def _called(made: ast.expr) -> ast.expr | None:
    if not isinstance(made, ast.Call):
        return None
    return made.func.value if isinstance(made.func, ast.Subscript) else made.func


def _last(named: ast.expr | None) -> str:
    """The last name of a dotted one."""
    return named.attr if isinstance(named, ast.Attribute) else named.id if isinstance(named, ast.Name) else ""


def _root(named: ast.expr | None) -> str:
    while isinstance(named, ast.Attribute):
        named = named.value
    return named.id if isinstance(named, ast.Name) else ""
