"""Expressions as Kubernetes evaluates them: `tests/data/cel.jsonl.gz` has answers of its own compiler (1.37).

All are about the device in the first line.
``answer`` is true, false, ``error`` (it fails on the device), ``compile`` (it is none), or null: not evaluated here.
"""

import gzip
import json
import random
from pathlib import Path
from unittest.mock import patch

import pytest
import re2

from engine.claims.budget import Budget
from engine.claims.cel import parser, strings
from engine.claims.cel import selectors as cel_selectors
from engine.claims.cel.compiler import compiled
from engine.claims.cel.errors import CompileError, CostError, EvaluationError
from engine.claims.cel.frame import MOST, PATTERN
from engine.claims.cel.selectors import MOST_PATTERNS, Program, Selectors
from engine.claims.cel.values import is_there
from engine.claims.errors import ClaimsError, SearchLimitError
from engine.claims.read.slices import read_slice

LINES = gzip.decompress((Path(__file__).parents[3] / "data" / "cel.jsonl.gz").read_bytes()).splitlines()
MINE = 'device.attributes["gpu.nvidia.com"]'


def device(made, driver="gpu.nvidia.com"):
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "pool": pool, "allNodes": True, "devices": [{"name": "d", **made}]}
    return read_slice({"metadata": {"name": "s"}, "spec": spec}).devices[0]


def plain(**attributes):
    kinds = {bool: "bool", int: "int", str: "string"}
    return device({"attributes": {name: {kinds[type(value)]: value} for name, value in attributes.items()}})


def answered(expression, one, budget=None):
    try:
        return Program.compile_expression(expression).matches(one, budget or Budget())
    except CompileError:
        return "compile"
    except EvaluationError:
        return "error"


def test_every_answer_is_that_of_kubernetes():
    described = json.loads(LINES[0])
    one = device(described["device"], described["driver"])
    cases = [json.loads(line) for line in LINES[1:]]
    assert len(cases) > 2000
    found = {case["expression"]: answered(case["expression"], one) for case in cases}
    wanted = {case["expression"]: "compile" if case["answer"] is None else case["answer"] for case in cases}
    assert {text: answer for text, answer in found.items() if answer != wanted[text]} == {}


def test_what_is_not_evaluated_is_refused_with_its_name():
    for expression, named in (
        ('duration("1h") > duration("1m")', "'duration'"),
        ('url("https://x").getHost() == "x"', "'url'"),
        ('{"a": 1}.all(k, v, v == 1)', "'all' of two variables"),
        ("type(1) == int", "'type'"),
    ):
        error = Program.compile_expression(expression).error
        assert error is not None
        assert named in str(error)
        assert "not evaluated here" in str(error)


def test_an_error_counts_only_where_the_other_side_does_not_decide():
    one = plain(type="gpu")
    missing = f"{MINE}.nosuch"
    assert answered(f"false && {missing}", one) is False
    assert answered(f"{missing} && false", one) is False
    assert answered(f"{missing} || true", one) is True
    assert answered(f"true && {missing}", one) == "error"
    assert answered(f"[1, 2].exists(x, {missing} || x == 2)", one) is True
    assert answered(f"[1, 2].all(x, {missing} || x == 2)", one) == "error"


def test_an_unknown_domain_is_empty_and_a_missing_key_is_an_error():
    one = plain(type="gpu")
    assert answered('has(device.attributes["other"].type)', one) is False
    assert answered('device.attributes["other"].type == "gpu"', one) == "error"
    assert answered('"other" in device.attributes', one) is False
    assert answered("has(device.attributes.other)", one) is True


def test_of_an_attribute_with_and_without_its_domain_everybody_reads_the_one_with_it():
    # As `lookupAttribute` of k8s.io/dynamic-resource-allocation 0.37.1; what an expression sees is left open there.
    bare, full = {"a": {"int": 1}}, {"gpu.nvidia.com/a": {"int": 2}}
    small, large = {"c": {"value": "1"}}, {"gpu.nvidia.com/c": {"value": "2"}}
    for attributes, capacity in ((bare | full, small | large), (full | bare, large | small)):
        one = device({"attributes": attributes, "capacity": capacity})
        assert one.attribute("gpu.nvidia.com/a").value == 2
        assert one.looks(("attributes", "gpu.nvidia.com", "a")).value == 2
        assert one.looks(("capacity", "gpu.nvidia.com", "c")).integer() == 2
        assert answered(f'{MINE}.a == 2 && device.capacity["gpu.nvidia.com"].c == quantity("2")', one) is True
    assert device({"attributes": bare}).attribute("gpu.nvidia.com/a").value == 1
    assert answered(f"{MINE}.a == 1", device({"attributes": bare})) is True


def test_values_of_two_types_are_not_equal_and_numbers_may_be():
    one = plain(type="gpu", index=3)
    assert answered(f"{MINE}.type == {MINE}.index", one) is False
    assert answered(f"{MINE}.index == 3.0 && {MINE}.index in [1u, 3u]", one) is True
    assert answered("device.driver == 3", one) == "compile"


def test_an_attribute_without_a_known_value_fails_whatever_is_asked():
    odd = device({"attributes": {"type": {"string": "gpu"}, "new": {"duration": "1h"}}})
    assert answered("device.driver == 'gpu.nvidia.com'", odd) == "error"
    wrong = device({"attributes": {"v": {"version": "1.2"}}})
    assert answered("true", wrong) == "error"


def test_regular_expressions_that_are_made_on_the_way_are_counted():
    """Each takes milliseconds, which Kubernetes counts by the length of its text."""
    made, budget = [], Budget()
    each = 'lists.range(16000).all(i, !"a".matches("(.{0,999})" + string(i)))'
    quick = patch.object(strings, "pattern", lambda text: made.append(text) or re2.compile("b"))
    with quick, pytest.raises(SearchLimitError, match="regular expressions"):
        Program.compile_expression(each).matches(plain(), budget)
    assert len(made) <= MOST // PATTERN
    assert budget.left < 0
    assert answered('lists.range(1000).all(i, !"a".matches("b" + string(i % 5)))', plain()) is True, "five, not 1,000"


def test_regular_expressions_in_a_text_are_so_many_and_so_large():
    one = '"a".matches("b")'
    assert answered(" || ".join([one] * MOST_PATTERNS), plain()) is False
    assert answered(" || ".join([one] * (MOST_PATTERNS + 1)), plain()) == "compile"
    assert answered('"a".matches("(\\\\pL|\\\\pN){300}")', plain()) == "compile"


def test_a_number_is_found_in_a_map_by_its_value():
    entries = "{" + ", ".join(f"{number}: 'v{number}'" for number in range(300)) + "}"
    for key in ("0", "1", "299"):
        assert answered(f"{key} in {entries}", plain()) is True
    for key in ("300", "-1"):
        assert answered(f"{key} in {entries}", plain()) is False
    assert not is_there({True: "t"}, 1)
    assert not is_there({1: "one"}, True)
    assert is_there({1: "one"}, 1.0)
    assert is_there({0.5: "half", False: "f"}, False)


def test_one_evaluation_costs_at_most_what_kubernetes_grants():
    numbers = f"[{', '.join(map(str, range(120)))}]"
    nested = f"{numbers}.all(x, {numbers}.all(y, {numbers}.all(z, x + y + z >= 0)))"
    with pytest.raises(CostError, match="cost limit"):
        Program.compile_expression(nested).matches(plain(), Budget())
    with pytest.raises(SearchLimitError):
        Program.compile_expression(nested).matches(plain(), Budget(10_000))


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 4000 + "1" + ")" * 4000,
        "!(" * 500 + "true" + ")" * 500,
        "[" * 500 + "]" * 500,
        ".a" * 3000,
        "device" + ".a" * 3000,
        "1 + " * 3000 + "1",
        "a ? b : " * 500 + "c",
        '"' + "x" * 20000 + '"',
        "1" * 400,
        '"\\uD800"',
        "cel.bind(a, [1], " * 60 + "true" + ")" * 60,
        "",
        "\ud800",
        '"abc".matches("(?P<x")',
        "device[1][2][3]",
        "{[1]: 2}.size() == 1",
        "{1: 2, 1: 3}.size() == 1",
        "1e999 == 1.0",
    ],
    ids=range(18),
)
def test_no_expression_raises_anything_but_errors_of_its_own(expression):
    message = ""
    try:
        Program.compile_expression(expression).matches(plain(type="gpu"), Budget())
    except ClaimsError as error:
        message = str(error)
    assert len(message) < 1000


# What k8s.io/dynamic-resource-allocation 0.37.1 answers of the first device of the data, with cel-go 0.29.2.
ODD = {
    f"{MINE}.l[1.0 / 0.0] == 1": "error",
    f"{MINE}.l[-1.0 / 0.0] == 1": "error",
    f"{MINE}.l[0.0 / 0.0] == 1": "error",
    f"{MINE}.l[1e300] == 1": "error",
    f"{MINE}.l[1.5] == 1": "error",
    f"{MINE}.l[2.0] == 3": True,
    f"{MINE}.l[true] == 1": "error",
    f"{MINE}.l[?1.0 / 0.0].hasValue()": "error",
    f"{MINE}.l[?{MINE}.type].hasValue()": "error",
    f"{MINE}.l[?9].hasValue()": False,
    f"has({MINE}.l.a)": "error",
    f"device.attributes[{MINE}.l].size() == 0": "error",
    f"device.attributes[{MINE}.v].size() == 0": "error",
    f"device.attributes[{MINE}.index].size() == 0": True,
    f"{MINE}[{MINE}.l] == 1": "error",
    f"{MINE}[?{MINE}.l].hasValue()": "error",
    f"{MINE}[?{MINE}.v].hasValue()": "error",
    f"{MINE}.type[?{MINE}.l].hasValue()": "error",
    f"{MINE}[?{MINE}.index].hasValue()": False,
    f"{MINE}.type.matches({MINE}.l)": "error",
    f"matches({MINE}.type, {MINE}.v)": "error",
    "0.0 / 0.0 < 1.0": "error",
    "1 >= 0.0 / 0.0": "error",
    "0.0 / 0.0 == 0.0 / 0.0": False,
    "[0.0 / 0.0, 1.0].isSorted()": True,
    "[1.0, 0.0 / 0.0].min() == 1.0": True,
    f"{MINE}.l in {MINE}": False,
    f"(1.0 / 0.0) in {MINE}.l": False,
    "int(0.0 / 0.0) == 1": "error",
}


def test_values_that_are_no_keys_and_numbers_that_are_no_positions_are_errors_of_the_expression():
    described = json.loads(LINES[0])
    one = device(described["device"], described["driver"])
    assert {expression: answered(expression, one) for expression in ODD} == ODD


def test_the_message_of_a_key_that_is_none_does_not_write_out_what_shares_its_parts():
    doubled = "".join(f"cel.bind(v{step + 1}, [v{step}, v{step}], " for step in range(40))
    for last in (
        f"{MINE}[dyn] == 1",
        "{dyn: 1}.size() == 1",
        f"{MINE}.type[dyn] == 1",
        "device.attributes[dyn].size() == 1",
        f"{MINE}.type.matches(dyn)",
    ):
        asked = f"cel.bind(v0, [1], {doubled}cel.bind(dyn, {MINE}.no ? {MINE}.type : v40, {last} || true)" + ")" * 41
        assert answered(asked, plain(type="gpu", no=False)) is True


def random_expression(dice, depth):
    """An operation on values whose types are known only when it is evaluated."""
    if depth == 0:
        made = dice.choice(LEAVES)
    else:
        one, other, third = (random_expression(dice, dice.randrange(depth)) for _ in range(3))
        made = dice.choice(OPERATIONS).format(one, other, third)
    return f"({MINE}.no ? {MINE}.type : {made})"


LEAVES = (
    *(f"{MINE}.{name}" for name in ("type", "index", "v", "ok", "big", "neg", "l", "ls", "uni", "nosuch")),
    *("0", "-1", "9223372036854775807", "18446744073709551615u", "0.0", "1e308", "(1.0 / 0.0)", "(0.0 / 0.0)", "true"),
    *('"a{1000}"', '"("', '"10.0.0.0/8"', '"1.2.3"', '"1e100"', "null", "[]", "{}", '{"a": [1]}', "device.attributes"),
    *("device.capacity", 'quantity("80Gi")', 'semver("1.2.3")', 'ip("::1")', 'cidr("fd00::/8")', "optional.none()"),
)
OPERATIONS = (
    *(f"({{0}} {sign} {{1}})" for sign in ("+", "-", "*", "/", "%", "<", ">=", "==", "in", "&&", "||")),
    *(
        "{0}[{1}]",
        "{0}[?{1}]",
        "{0}.?a",
        "has({0}.a)",
        "({0} ? {1} : {2})",
        "-({0})",
        "!({0})",
        "[{0}]",
        "{{{0}: {1}}}",
    ),
    *(f"{name}({{0}})" for name in ("size", "int", "uint", "double", "string", "quantity", "semver", "ip", "cidr")),
    *(f"{{0}}.{name}()" for name in ("sum", "min", "isSorted", "distinct", "join", "split", "asInteger", "value")),
    *(f"{{0}}.{name}({{1}})" for name in ("matches", "contains", "charAt", "indexOf", "add", "compareTo", "includes")),
    *("{0}.replace({1}, {2})", "{0}.substring({1}, {2})", "{0}.slice({1}, {2})", "sets.contains({0}, {1})"),
    *(f"{{0}}.{name}(x, x == {{1}})" for name in ("exists", "all", "exists_one", "filter", "map", "optMap")),
)


def test_random_expressions_on_values_of_unknown_types_raise_nothing_but_errors_of_their_own():
    described = json.loads(LINES[0])
    one, dice = device(described["device"], described["driver"]), random.Random(3)
    for _ in range(1_500):
        answered(random_expression(dice, 3), one)


def test_what_is_made_of_shared_parts_costs_what_it_has():
    doubled = "cel.bind(a, [1], " + "".join(
        f"cel.bind({chr(98 + step)}, [{chr(97 + step)}, {chr(97 + step)}], " for step in range(20)
    )
    same = f"{doubled}{chr(117)} == {chr(117)}" + ")" * 21
    with pytest.raises(ClaimsError):
        Program.compile_expression(same).matches(plain(), Budget())
    grown = "cel.bind(a, 'xxxxxxxx', " * 1 + "".join(f"cel.bind(a, a{' + a' * 7}, " for _ in range(12)) + "a == ''"
    with pytest.raises(ClaimsError):
        Program.compile_expression(grown + ")" * 13).matches(plain(), Budget())


def test_a_regular_expression_takes_linear_time():
    one = plain(type="a" * 60 + "b")
    assert answered(f'{MINE}.type.matches("^(a+)+$")', one) is False


def test_devices_that_look_the_same_are_asked_once():
    asked = Program.compile_expression(f'{MINE}.type == "gpu"')
    budget = Budget()
    for index in range(100):
        assert asked.matches(plain(type="gpu", uuid=f"GPU-{index}"), budget)
    first = Budget()
    Program.compile_expression(f'{MINE}.type == "gpu"').matches(plain(type="gpu"), first)
    assert budget.left == first.left
    assert asked.reads == (("",), ("attributes", "gpu.nvidia.com", "type"))


def test_one_that_reads_what_is_another_of_each_device_has_its_own_answers_forgotten(monkeypatch):
    """Anybody writes a thousand of these, and what was found of 40,000 devices by each would be gigabytes."""
    monkeypatch.setattr(cel_selectors, "_ANSWERS", 200)
    selectors, first = Selectors(), Budget()
    modest = selectors.program(f'{MINE}.type == "gpu"')
    assert modest.matches(plain(type="gpu", uuid="GPU"), first)
    for number in range(20):
        greedy = selectors.program(f'{MINE}.uuid != "{number}"')
        assert all(greedy.matches(plain(type="gpu", uuid=f"GPU-{index}"), Budget()) for index in range(90))
        kept = selectors._answers._of
        assert sum(map(len, kept.values())) == selectors._answers._total <= 200
    again = Budget()
    assert modest.matches(plain(type="gpu", uuid="other"), again)
    assert again.left == Budget().left, "it was not asked again"


def test_a_name_that_a_macro_gives_away_is_no_surprise():
    shadowed = Program.compile_expression('[device].exists(device, device.driver == "gpu.nvidia.com")')
    assert shadowed.matches(plain(), Budget())
    assert not shadowed.matches(device({}, "other"), Budget())


def test_equal_looks_are_of_equal_types():
    asked = Program.compile_expression(f"{MINE}.a == true")
    assert asked.matches(plain(a=True), Budget())
    assert not asked.matches(plain(a=1), Budget())


def test_programs_are_compiled_once():
    selectors = Selectors()
    assert selectors.program("true") is selectors.program("true")
    assert parser.parse("a.?b") == parser.parse("a . ? b")


def test_code_is_kept_by_the_length_of_its_expression_as_anybody_may_write_long_ones():
    """Two thousand of ten thousand characters took 2 GiB."""
    selectors = Selectors()
    for number in range(200):
        program = selectors.program(f"{number} == 0 || {'true && ' * 1_100}true")
        assert selectors.program(program.expression) is program
        assert program.matches(plain(), Budget())
    assert sum(map(len, selectors._codes)) <= 1 << 19


def test_code_that_made_room_for_others_is_made_anew_only_for_devices_that_look_otherwise():
    """Else eighty long selectors of a tenant would be compiled at each look, two seconds of it."""
    selectors = Selectors()
    programs = [selectors.program(f"{MINE}.a > {number} || {'false || ' * 1_000}false") for number in range(80)]
    assert [one.matches(plain(a=40), Budget()) for one in programs] == [number < 40 for number in range(80)]
    with patch("engine.claims.cel.selectors.compiled", wraps=compiled) as made:
        assert [selectors.program(one.expression) for one in programs] == programs
        assert [one.matches(plain(a=40), Budget()) for one in programs] == [number < 40 for number in range(80)]
        assert made.call_count == 0
        assert programs[0].matches(plain(a=1), Budget())
        assert made.call_count == 1
