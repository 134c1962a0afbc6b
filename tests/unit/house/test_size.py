"""How long a file and a function of the product may be: what does not fit a few screens is more than one subject."""

import ast

import pytest
from support.imports import PACKAGES, modules, parsed

LINES = 600  # of a file
BODY = 80  # lines of a function, from its def to its end
REASON = "more than 600 lines"  # in the docstring of a module that is one subject and better whole, with why
GENERATED = ("_pb2",)

# Known for now, with why; an entry that is not needed any more fails too.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}


@pytest.fixture(scope="module")
def texts():
    found = modules(*PACKAGES)
    assert len(found) > 300
    return {name: text for name, text in found.items() if not name.endswith(GENERATED)}


def long_file(text):
    """How many lines it has, where those are too many and its docstring does not say why."""
    lines = len(text.splitlines())
    return lines if lines > LINES and REASON not in " ".join((ast.get_docstring(parsed(text)) or "").split()) else 0


def long_functions(text):
    """Functions that are too long, wherever they stand: by name, with the classes and functions around it."""
    return dict(_long_functions(parsed(text), ""))


def _long_functions(tree, around):
    for node in ast.iter_child_nodes(tree):
        inner = around
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{around}{node.name}."
            lines = node.end_lineno - node.lineno + 1
            if lines > BODY and not isinstance(node, ast.ClassDef):
                yield f"{around}{node.name}", lines
        yield from _long_functions(node, inner)


def judged(found, known):
    """What is too long and not known, and what is known and not too long any more."""
    return {name: lines for name, lines in found.items() if name not in known}, sorted(known.keys() - found.keys())


def test_no_file_is_too_long(texts):
    found = {name: lines for name, text in texts.items() if (lines := long_file(text))}
    assert judged(found, LONG_FILES) == ({}, [])


def test_no_function_is_too_long(texts):
    found = {
        f"{module}:{name}": lines for module, text in texts.items() for name, lines in long_functions(text).items()
    }
    assert judged(found, LONG_FUNCTIONS) == ({}, [])


def test_a_file_is_too_long_unless_its_docstring_says_why():
    lines = "x = 1\n" * LINES
    assert long_file(lines) == 0
    assert long_file(lines + "y = 2\n") == LINES + 1
    assert long_file('"""All of it."""\n' + lines) == LINES + 1
    assert long_file(f"# it has {REASON}, for no reason\n" + lines) == LINES + 1
    assert long_file('"""All of it.\n\nIt has more than 600\nlines, for it is one table.\n"""\n' + lines) == 0


def test_a_function_is_too_long_wherever_it_stands():
    body = "{0}    x = 1\n" * (BODY - 1)
    assert long_functions("def f():\n" + body.format("")) == {}
    assert long_functions("async def f():\n" + body.format("") + "    y = 2\n") == {"f": BODY + 1}
    method = "class C:\n    @property\n    def f(self):\n" + body.format("    ")
    assert long_functions(method) == {}
    assert long_functions(method + "        y = 2\n") == {"C.f": BODY + 1}
    nested = "def f():\n    if x:\n        def g():\n" + body.format("        ") + "            y = 2\n"
    assert long_functions(nested) == {"f": BODY + 3, "f.g": BODY + 1}


def test_what_is_known_must_still_be_so():
    assert judged({"a": 601, "b": 700}, {"b": "why"}) == ({"a": 601}, [])
    assert judged({"a": 601}, {"a": "why", "b": "why"}) == ({}, ["b"])
