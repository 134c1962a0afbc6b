"""Why a workload waits, in sentences: each wording stands in a file, and each that the code has is made by a case."""

import ast
import re
from pathlib import Path

import pytest
from support.sentences import CASES, FILE, said

from engine.placement import fit, never_fits, refusals
from queueing import messages

MADE_IN = (refusals, never_fits, fit, messages)
# Sentences about devices, which take more to come about, and the test that holds each.
ELSEWHERE = {
    "devices of claims are short (": "ungater/cache/test_claims_of_templates.py",
    "in other ComputeDomains": "engine/placement/test_compute_domains.py",
    "no node gives a pod what it asks for:": "ungater/numa/test_xpu_sizes.py",
    "has the devices of a pod's claims (": "engine/placement/test_compute_domains.py",
    ", or correct its claims": "engine/placement/test_compute_domains.py",
    "; correct the expression in the claim or its DeviceClass": "engine/placement/test_compute_domains.py",
}
NO_SENTENCES = {"\\bCEL (runtime|compile) error|must evaluate to bool", "Fit | Refusal"}
HASH = re.compile(r"job-[a-z]+-[0-9a-f]{4,}")


def test_each_sentence_says_what_the_file_has():
    assert said() == FILE.read_text(encoding="utf-8"), "look at each, then `python -m support.sentences` in tests/"


def fragments(module):
    """The texts of at least three words that the functions of a module have, but for docstrings."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    yield from (one.value.strip() for one in texts if id(one) not in told and len(one.value.split()) >= 3)


@pytest.mark.parametrize("module", MADE_IN, ids=lambda module: module.__name__)
def test_each_sentence_that_the_code_has_is_made_by_a_case(module):
    text = FILE.read_text(encoding="utf-8")
    other = [one for one in fragments(module) if one not in text and one not in NO_SENTENCES]
    held = {
        one: (Path(__file__).parent / ELSEWHERE[one]).read_text(encoding="utf-8") for one in other if one in ELSEWHERE
    }
    assert [one for one in other if one not in held.get(one, "")] == []


@pytest.mark.parametrize("name", CASES)
def test_a_sentence_is_short_and_names_what_people_know(name):
    text = " ".join(said_by(name).split())
    assert len(text) <= 320
    assert not HASH.search(text), "a Workload's name, where the owner's is known"
    assert not re.search(r"\b1 (pods|nodes|workloads)\b", text)
    assert "(no queue)" not in text


def said_by(name):
    found = CASES[name]()
    return found if isinstance(found, str) else found.message
