"""Test files have names of their own: pytest imports them by these, and two of one name end the run of all.

What docs say of files and benchmarks is there, and so is every name in the guide for developers, on the pages of
designs and in the heads of packages (`support.named`).
"""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from support.imports import PACKAGES, modules, parsed
from support.named import is_there, missing_names, missing_rows

from benchmarks.__main__ import BENCHMARKS

TESTS = Path(__file__).parents[2]
ROOT = TESTS.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
GUIDES = [ROOT / "docs" / "develop.md", *sorted((ROOT / "docs" / "designs").glob("*.md"))]
HEADS = {
    name: text for name, text in modules(*PACKAGES, "benchmarks").items() if (ROOT / name.replace(".", "/")).is_dir()
}
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


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_names_in_guides_are_there(page):
    assert missing_names(page.read_text()) == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_walks_in_guides_name_functions_of_their_files(page):
    assert missing_rows(page.read_text()) == []


@pytest.mark.parametrize("package", HEADS)
def test_names_in_the_head_of_a_package_are_there(package):
    assert missing_names(ast.get_docstring(parsed(HEADS[package])) or "", package) == []


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("engine/model.py", True), ("engine/models.py", False), ("queues/", True), ("guards/", False),
        ("tests/unit/house/test_*.py", True), ("tests/unit/house/toast_*.py", False),
        ("history.py: _for_nobody", True), ("history.py: _for_everybody", False),
        ("tests/unit/house/test_files.py::doubles", True), ("tests/unit/house/test_files.py::trebles", False),
        ("WorkloadEntry", True), ("WorkloadEntrance", False), ("Queues.grant", True), ("Queues.back", False),
        ("place()", True), ("misplace()", False), ("queueing.cycle.cycle", True), ("queueing.cycle.circle", False),
        ("reconcile.reconcile", True), ("reconcile.decide", False), ("WorkloadEntry.slots_in", True),
        ("DoesNotFit", True), ("spec.nodeName", True), ("kubernetes.io/hostname", True), ("asyncio.sleep", True),
        ("make unit", True),
    ],
)  # fmt: skip
def test_a_name_is_there_as_a_file_or_in_code(name, there):
    assert is_there(name) is there
    assert missing_names(f"see `{name}`, not ``gone``\n```\n`gone`\n```\n") == ([] if there else [name])


def test_a_name_in_the_head_of_a_package_is_one_of_that_package():
    assert missing_names("`queues`, `engine`, `Decisions`, `mutate`", "queueing") == ["mutate"]


def test_a_row_whose_file_has_no_such_function_is_found():
    text = "```\nungater/workqueue.py  add, done  # both\nungater/workqueue.py  add, redo\nno/such.py  add\n```\n"
    assert missing_rows(text) == ["ungater/workqueue.py  add, redo", "no/such.py  add"]


def test_docs_name_every_benchmark_and_no_other():
    table = (ROOT / "docs" / "benchmarks.md").read_text().split("| name |", 1)[1].split("\n\n", 1)[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == list(BENCHMARKS)
