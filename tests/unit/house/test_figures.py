"""What makes the code hard to live in is counted, and may only get better.

Whoever makes a figure better writes the new one here, so that nobody makes it worse again.
"""

import pytest
from support.figures import Source
from support.imports import PACKAGES, modules


@pytest.fixture(scope="module")
def source():
    texts = {name: text for name, text in modules(*PACKAGES).items() if not name.endswith("_pb2")}
    assert len(texts) > 300
    return Source(texts)


METHODS_OF_MANY = 38  # public names of methods in four unrelated classes or more
DOUBLED_CLASSES = 54  # public names of classes in two modules or more
ONE_WORD = 0.517  # of all functions
ONE_CALLER = 0.5  # of private functions
COMMENTS = 4.3  # of their own line, a hundred lines of code
EARLY_RETURNS = 45  # of functions in ungater.reconcile that decide about actions
HIDDEN_KEYS = 0  # texts with NUL inside


def test_grep_for_a_method_finds_those_that_do_the_same(source):
    found = source.methods_of_many()
    worst = sorted(found, key=found.__getitem__, reverse=True)[:10]
    assert len(found) <= METHODS_OF_MANY, f"name what the method does, and to what (most often used: {worst})"


def test_a_class_is_found_by_its_name(source):
    found = source.doubled_classes()
    assert len(found) <= DOUBLED_CLASSES, f"another module has a class of the name: one of {sorted(found)}"


def test_functions_say_what_they_do_and_to_what(source):
    assert source.one_word() <= ONE_WORD, "a verb alone says little: name its object too"


def test_private_functions_are_no_thoughts_cut_in_two(source):
    assert source.one_caller() <= ONE_CALLER, "write a helper with one caller into it, or make it a subject of its own"


def test_comments_say_why_where_it_counts(source):
    assert source.comments() >= COMMENTS, "say why where an order matters, events race or a number was measured"


def test_what_is_to_be_done_is_decided_by_rules_that_stand_below_each_other(source):
    actions = [node.name for module, node in source.classes if module == "ungater.model.actions"]
    found = source.early_returns("ungater.reconcile", ["Action", *actions])
    assert found <= EARLY_RETURNS, "yield each rule's action from a branch of its own (if, elif, else)"


def test_a_key_is_a_type_and_no_text_with_a_secret_end(source):
    # Of the local cluster, two texts with NUL are what programs take and print.
    found = [place for place in source.hidden_keys() if not place.startswith("localcluster.")]
    assert len(found) <= HIDDEN_KEYS, f"a key with parts is a NamedTuple: {found}"


# --- the judge itself ------------------------------------------------------------------------------------------------


def test_classes_with_a_common_base_are_one_family():
    alone = "class A:\n    def of(self): ...\nclass B:\n    def of(self): ...\nclass C:\n    def of(self): ...\n"
    assert Source({"m": alone + "class D:\n    def of(self): ...\n"}).methods_of_many() == {"of": 4}
    assert Source({"m": alone + "class D(A):\n    def of(self): ...\n"}).methods_of_many() == {}
    assert Source({"m": alone + "class D(Protocol):\n    def of(self): ...\n"}).methods_of_many() == {"of": 4}
    assert Source({"m": alone + "class D:\n    def _of(self): ...\n"}).methods_of_many() == {}


def test_a_public_class_of_two_modules_is_doubled():
    found = Source({"m": "class A: ...\nclass _B: ...\n", "n": "class A: ...\nclass _B: ...\n"})
    assert found.doubled_classes() == {"A": ["m", "n"]}


def test_shares_are_of_functions_and_callers_in_the_module():
    found = Source(
        {"m": "def go():\n    return _cut() + _use() + _use()\ndef _cut(): ...\ndef _use(): ...\ndef go_on(): ...\n"}
    )
    assert found.one_word() == 0.75
    assert found.one_caller() == 0.5


def test_a_return_is_early_unless_it_is_the_last_line_of_a_function():
    decides = "def f(x) -> list[A]:\n    if x:\n        return [A()]\n    return []\ndef g(x) -> int:\n    return 1\n"
    yields = "def h(x) -> Iterator[A | B]:\n    if x:\n        return\n    yield A()\n"
    found = Source({"p.m": decides + yields, "q.m": decides})
    assert (found.early_returns("p", ["A"]), found.early_returns("p", ["B"])) == (2, 1)


def test_comments_at_the_end_of_a_line_and_empty_lines_do_not_count():
    assert Source({"m": "# why\nx = 1\n\ny = 2  # what\n"}).comments() == 50
    assert Source({"m": 'key = f"{x}\\0end"\nother = "plain"\n'}).hidden_keys() == ["m:1"]
