"""Test files have names of their own: pytest imports them by these, and two of one name end the run of all.

What docs say of files and benchmarks is there.
"""

import re
from collections import Counter
from pathlib import Path

import pytest
from support.imports import PACKAGES

from benchmarks.__main__ import BENCHMARKS

TESTS = Path(__file__).parents[2]
ROOT = TESTS.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
FOLDERS = "|".join((*PACKAGES, "benchmarks", "tests"))
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]*(?:\.(?:py|yaml|gz|ts|tsv|html)|/))(?:`|::)")


def doubles(names):
    return sorted(name for name, count in Counter(names).items() if count > 1)


def test_no_two_test_files_have_one_name():
    assert doubles(path.name for path in TESTS.rglob("test_*.py")) == []


def test_two_of_one_name_are_found():
    assert doubles(["test_a.py", "test_b.py", "test_a.py"]) == ["test_a.py"]


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_files_that_docs_name_are_there(page):
    assert [path for path in PATH.findall(page.read_text()) if not (ROOT / path).exists()] == []


def test_a_file_that_is_named_is_found_in_the_text_around_it():
    text = "a file in `ungater/roles/` and `engine/a.py::test`, not `topogate.dev/x` or `engine/a b`"
    assert PATH.findall(text) == ["ungater/roles/", "engine/a.py"]


def test_docs_name_every_benchmark_and_no_other():
    table = (ROOT / "docs" / "benchmarks.md").read_text().split("| name |", 1)[1].split("\n\n", 1)[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == list(BENCHMARKS)
