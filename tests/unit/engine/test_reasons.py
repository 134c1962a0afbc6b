"""The rows of reasons hold together, and the engine's and the queues' refusals can be compared."""

import ast
import pickle
from pathlib import Path

import pytest

from engine.reasons import TOLD, Cure, Reason, Short, traits_of

ROOT = Path(__file__).parents[3]
REFUSED = {  # the modules whose refusals of several options are compared, and reasons that stand there alone
    "engine/placement": set(),
    "queueing/cycle/nominate.py": set(),
    "queueing/messages.py": {Reason.PENDING, Reason.PREEMPTING, Reason.CLAIMS_NOT_DEALLOCATED},
}


def refused_in(path):
    """The reasons of refusals that are made in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"Refusal", "Never", "Noted"} and node.args:
            first = node.args[0]
            if isinstance(first, ast.Attribute) and getattr(first.value, "id", "") == "Reason":
                yield Reason[first.attr]


def test_each_reason_has_a_row():
    assert all(traits_of(reason.value) is reason.traits for reason in Reason)
    assert traits_of("SomebodyElses") is TOLD


def test_a_row_is_a_word_and_nothing_else_to_those_who_write_it():
    assert Reason("DoesNotFit") is Reason.DOES_NOT_FIT
    assert (f"{Reason.DOES_NOT_FIT}", Reason.DOES_NOT_FIT.value) == ("DoesNotFit", "DoesNotFit")
    assert pickle.loads(pickle.dumps(Reason.DOES_NOT_FIT)) is Reason.DOES_NOT_FIT


def test_no_two_reasons_have_the_same_gravity():
    said = [reason.traits.gravity for reason in Reason if reason.traits.gravity != TOLD.gravity]
    assert len(said) == len(set(said))


@pytest.mark.parametrize("where", REFUSED)
def test_a_refusal_of_an_option_has_a_gravity(where):
    paths = (ROOT / where).rglob("*.py") if (ROOT / where).is_dir() else [ROOT / where]
    found = {reason for path in paths for reason in refused_in(path)}
    assert found
    assert {one for one in found if one.traits.gravity == TOLD.gravity} <= REFUSED[where]


def test_what_is_short_can_be_had_somehow():
    assert [reason for reason in Reason if reason.traits.short is not None and reason.traits.cure is None] == []
    lacking = [reason for reason in Reason if reason.traits.short is Short.ROOM]
    assert {reason for reason in lacking if reason.traits.cure is Cure.OTHERS} == {
        Reason.DOES_NOT_FIT,
        Reason.NUMA_ALIGNMENT,
    }
