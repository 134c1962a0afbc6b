"""Test files have names of their own: pytest imports them by these, and two of one name end the run of all."""

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[2]


def doubles(names):
    return sorted(name for name, count in Counter(names).items() if count > 1)


def test_no_two_test_files_have_one_name():
    assert doubles(path.name for path in TESTS.rglob("test_*.py")) == []


def test_two_of_one_name_are_found():
    assert doubles(["test_a.py", "test_b.py", "test_a.py"]) == ["test_a.py"]
