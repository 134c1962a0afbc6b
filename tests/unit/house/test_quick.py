"""`make quick` runs the tests that are near a change, the nearest first."""

import pytest
from support.quick import changed_files, distances, main, rings

GRAPH = {
    "engine.a": set(),
    "engine.b": {"engine.a"},
    "tests.support.w": {"engine.b"},
    "tests.unit.engine.test_a": {"engine.a"},
    "tests.unit.engine.test_w": {"tests.support.w"},
    "tests.unit.engine.test_far": {"engine.c"},
    "tests.integration.test_a": {"engine.a"},
}


def test_a_test_is_as_far_as_the_imports_between():
    found = distances(GRAPH, ["engine.a"])
    assert found["tests.unit.engine.test_a"] == 1
    assert found["tests.unit.engine.test_w"] == 3
    assert "tests.unit.engine.test_far" not in found


def test_the_nearest_tests_and_those_of_the_house_come_first_and_none_needs_a_cluster():
    first, last = rings(distances(GRAPH, ["engine.a"]))
    assert "tests/unit/engine/test_a.py" in first
    assert "tests/unit/house/test_size.py" in first
    assert last == ["tests/unit/engine/test_w.py"]


def test_a_test_that_was_changed_runs_itself():
    assert "tests/unit/engine/test_far.py" in rings(distances(GRAPH, ["tests.unit.engine.test_far"]))[0]


def test_without_time_left_it_says_how_many_files_did_not_run(monkeypatch, capsys):
    ran = []
    monkeypatch.setattr("support.quick._run", lambda *command, seconds=None: ran.append(command[0]) or 0)
    monkeypatch.setattr("support.quick.SECONDS", -1.0)
    monkeypatch.setattr("support.quick.changed_files", lambda: ["engine/model.py"])
    assert main() == 0
    assert ran == ["ruff", "ruff", "mypy"]
    assert "files of tests farther off did not run: make unit" in capsys.readouterr().out


@pytest.mark.parametrize("failing", ["ruff", "mypy", "pytest"])
def test_what_fails_is_the_status_of_all(monkeypatch, failing):
    monkeypatch.setattr("support.quick._run", lambda *command, seconds=None: int(command[0] == failing))
    assert main() == 1


def test_what_changed_are_files_of_this_repository():
    assert all(" " not in one for one in changed_files())
