"""No callable that something is built or called with does nothing unless somebody fills it in: who has none says so.

A default that does nothing is a lambda, or a function of the same module, that gives None, a plain value, something
empty or what it was given; or a built-in type, called for what is empty of it.
"""

import ast
from collections.abc import Iterator

import pytest
from support.imports import PACKAGES, modules, parsed

EMPTY = frozenset({"dict", "float", "frozenset", "int", "list", "set", "str", "tuple"})  # called, each gives nothing
Defaults = Iterator[tuple[str, ast.expr]]


def idle_defaults(text):
    """Fields and parameters of a module that do nothing by default, as ``Owner.name``."""
    tree = parsed(text)
    known = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from _named(node.name, _fields(node), known)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _named(node.name, _parameters(node.args), known)


def _named(owner, defaults, known):
    return (f"{owner}.{name}" for name, default in defaults if _idle(default, known))


def _fields(node: ast.ClassDef) -> Defaults:
    """Those that say what they are called with: an enum's members and constants of a class are no callables."""
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and one.value is not None:
            yield ast.unparse(one.target), one.value
        elif isinstance(one, ast.Assign) and isinstance(one.value, ast.Lambda):
            yield ast.unparse(one.targets[0]), one.value


def _parameters(args: ast.arguments) -> Defaults:
    """Those of type[...] get a class to read something as, and no callable."""
    placed = [*args.posonlyargs, *args.args]
    pairs = [*zip(placed[len(placed) - len(args.defaults) :], args.defaults, strict=True)]
    pairs += [(arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default]
    for arg, default in pairs:
        if arg.annotation is None or not ast.unparse(arg.annotation).startswith("type["):
            yield arg.arg, default


def _idle(default: ast.expr, known) -> bool:
    if isinstance(default, ast.Call):  # field(default=...)
        return any(one.arg == "default" and _idle(one.value, known) for one in default.keywords)
    if isinstance(default, ast.Lambda):
        return _nothing(default.body, default.args)
    if isinstance(default, ast.Name) and default.id in known:
        return all(_no_step(one, known[default.id].args) for one in known[default.id].body)
    return isinstance(default, ast.Name) and default.id in EMPTY


def _no_step(step: ast.stmt, args: ast.arguments) -> bool:
    value = getattr(step, "value", None)  # of a docstring, an ellipsis or what is returned
    expected = isinstance(step, ast.Pass | ast.Expr | ast.Return)
    return expected and (value is None or _nothing(value, args))


def _nothing(value: ast.expr, args: ast.arguments) -> bool:
    """A plain value, something empty, or what was given."""
    if isinstance(value, ast.Name):
        return value.id in {one.arg for one in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    if isinstance(value, ast.Call):  # set(), frozenset()
        return isinstance(value.func, ast.Name) and value.func.id in EMPTY and not value.args
    if isinstance(value, ast.Tuple | ast.List | ast.Set):
        return all(_nothing(one, args) for one in value.elts)
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Dict) and not value.keys)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_callable_does_nothing_by_default(package):
    found = [f"{name}: {one}" for name, text in modules(package).items() for one in idle_defaults(text)]
    assert found == [], "require it, so that whoever builds the object says what it does"


# --- the judge itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "default",
    [
        "lambda: None",
        "lambda *_: ()",
        "lambda _node: False",
        "lambda _entry, requests, *_: requests",
        "lambda: {}",
        "lambda: frozenset()",
        "frozenset",
        "field(default=lambda: 0.0)",
        "nobody",
        "empty",
    ],
)
def test_a_default_that_does_nothing_is_found_in_fields_and_parameters(default):
    head = 'def nobody(_): pass\ndef empty(_):\n    "Nothing."\n    return []\n'
    field = f"{head}class A:\n    f: Callable[..., object] = {default}\n"
    assert list(idle_defaults(field)) == ["A.f"]
    assert list(idle_defaults(f"{head}class A:\n    def __init__(self, f={default}): ...\n")) == ["__init__.f"]
    assert list(idle_defaults(f"{head}async def g(*, f: Callable[[], int] = {default}): ...\n")) == ["g.f"]


@pytest.mark.parametrize(
    "default",
    ["None", "lambda: time()", "lambda pod: pod.name", "real", "()", "SYSTEM", "field(default_factory=list)"],
)
def test_a_default_that_does_something_or_is_no_callable_may_be(default):
    head = "def real(pod):\n    return MAIN\n"
    assert list(idle_defaults(f"{head}class A:\n    f: Callable[..., object] = {default}\n")) == []
    assert list(idle_defaults(f"{head}def g(f={default}): ...\ndef h(kind: type[T] = dict): ...\n")) == []
