"""Every object is whole from its constructor on: nobody else sets its attributes, its own methods do.

What counts as an assignment, and which are none, is said in `support.assigned`.
"""

import pytest
from support.assigned import assigned, attributes
from support.imports import PACKAGES, modules

GENERATED = ("_pb2",)


@pytest.fixture(scope="module")
def texts():
    found = modules(*PACKAGES)
    assert len(found) > 300
    return {name: text for name, text in found.items() if not name.endswith(GENERATED)}


def test_nobody_sets_attributes_of_another_object(texts):
    ours = attributes(*texts.values())
    found = [f"{name}:{one.line}: {one.text}" for name, text in texts.items() for one in assigned(text, ours, PACKAGES)]
    assert found == [], "pass it to the constructor, or say what happens by a method of its own class"


# --- the judge itself ------------------------------------------------------------------------------------------------

OURS = """
class Line:
    strict: bool = False
    __slots__ = ("turn",)

    def __init__(self):
        self.queue = ""

    @property
    def later(self): ...

    @later.setter
    def later(self, value): ...
"""


def found_in(
    body, head="import ssl\nfrom rich.table import Table\nfrom typing import Any\nfrom queueing.line import Line"
):
    text = f"{head}\n{body}\n"
    return [one.text for one in assigned(text, attributes(OURS), {"queueing"})]


def test_the_attributes_of_a_class_are_those_that_it_declares_and_those_that_its_methods_set():
    assert attributes(OURS) == {"Line": {"strict", "__slots__", "turn", "queue", "later"}}


@pytest.mark.parametrize(
    ("body", "offence"),
    [
        ("def f(line): line.turn = 1", "line.turn"),
        ("def f(line): line.turn += 1", "line.turn"),
        ("def f(line): line.turn: int = 1", "line.turn"),
        ("def f(line): line.turn, x = 1, 2", "line.turn"),
        ("def f(line): [x, *line.turn] = 1, 2", "line.turn"),
        ("def f(line): del line.turn", "line.turn"),
        ("def f(line):\n    for line.turn in (1, 2): pass", "line.turn"),
        ("def f(line, file):\n    with file as line.turn: pass", "line.turn"),
        ("def f(line): setattr(line, 'turn', 1)", "line.turn"),
        ("def f(line, name): setattr(line, name, 1)", "line."),
        ("def f(line): object.__setattr__(line, 'turn', 1)", "line.turn"),
        ("def f(line): line.__setattr__('turn', 1)", "line.turn"),
        ("def f(line): delattr(line, 'turn')", "line.turn"),
        ("def f(line): msgspec.structs.force_setattr(line, 'turn', 1)", "line.turn"),
        ("def f(lines): lines['a'].turn = 1", "lines['a'].turn"),
        ("def f(lines): lines.first().turn = 1", "lines.first().turn"),
        ("def f(line): line.later = 1", "line.later"),
        ("def f(line): line.strict = True", "line.strict"),
        ("class C:\n    def f(self): self.line.turn = 1", "self.line.turn"),
        ("class C:\n    def f(self, other): other.turn = 1", "other.turn"),
        ("class C:\n    @staticmethod\n    def f(self): self.turn = 1", "self.turn"),
        ("class C:\n    def f(self, other):\n        self = other\n        self.turn = 1", "self.turn"),
        ("def f(self): self.turn = 1", "self.turn"),
        ("f = lambda line: setattr(line, 'turn', 1)", "line.turn"),
        ("Line.turn = 1", "Line.turn"),
        ("def f():\n    line = Line()\n    def g(): line.turn = 1", "line.turn"),
        ("def f(line):\n    line = line or Line()\n    line.turn = 1", "line.turn"),
        ("def f(line=None):\n    if not line: line = Line()\n    line.turn = 1", "line.turn"),
        ("def f(old):\n    line = copy(old)\n    line.turn = 1", "line.turn"),
        ("def f():\n    line = Line.named('a')\n    line.turn = 1", "line.turn"),
        ("def f(lines):\n    line = Line()\n    for line in lines: line.turn = 1", "line.turn"),
        ("def f(lines):\n    line, other = Line(), lines[0]\n    other.turn = 1", "other.turn"),
        ("def f():\n    made = Line()\n    made.next.turn = 1", "made.next.turn"),
        ("def f(line: Line): line.turn = 1", "line.turn"),
        ("def f(line: Any): line.turn = 1", "line.turn"),
        ("def f(line: Line | ssl.SSLContext): line.turn = 1", "line.turn"),
        ("line = ssl.create()\nline.turn = 1", "line.turn"),
        ("def f():\n    global line\n    line.turn = 1", "line.turn"),
    ],
)
def test_an_attribute_of_another_object_is_not_set(body, offence):
    assert found_in(body) == [offence]


@pytest.mark.parametrize(
    "body",
    [
        "class C:\n    def f(self): self.turn = 1",
        "class C:\n    def f(self):\n        def g(): self.turn = 1",
        "class C:\n    def f(self): self.turns['a'] = 1",
        "class C:\n    @classmethod\n    def f(cls): cls.turn = 1",
        "class C:\n    def f(self): object.__setattr__(self, 'turn', 1)",
        "class C:\n    def f(self, name, value): super().__setattr__(name, value)",
        "class C:\n    @classmethod\n    def f(cls):\n        made = cls.__new__(cls)\n        made.turn = 1",
        "class C:\n    @classmethod\n    def f(cls):\n        made = cls()\n        made.turn = 1",
        "class C:\n    def f(self):\n        made = type(self)()\n        made.turn = 1",
        "def f():\n    line = Line()\n    line.turn = 1",
        "def f(lines):\n    line = lines['a'] = queueing.line.Line[int]()\n    line.turn = 1",
        "from queueing.line import Line as Other\ndef f():\n    line = Other()\n    line.turn = 1",
        "def f(table): table.caption = ''",
        "def f():\n    table = Table()\n    table.strict = True",
        "def f():\n    table = Table()\n    table.columns.strict = True",
        "def f(connection: ssl.SSLObject): connection.strict = True",
        "def f(connection: 'ssl.SSLObject | None'): connection.strict = True",
        "def f(line): return line.turn == 1",
        "def f(line): print(getattr(line, 'turn'))",
    ],
)
def test_what_is_its_own_or_somebody_elses_or_just_made_may_be_set(body):
    assert found_in(body) == []
