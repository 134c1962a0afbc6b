"""The pages of the documentation can be read: in an editor and a diff, and one page of figures in one sitting."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [*(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))]
# api.md is generated.
PAGES += [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "api.md"]
WIDTH = 160


def long_lines(text):
    """Numbers of the lines that are too long; rows of tables and blocks of code cannot be broken."""
    code, found = False, []
    for number, line in enumerate(text.splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        if len(line) > WIDTH and not code and not line.lstrip().startswith("|"):
            found.append(number)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_lines_are_short_enough_to_be_compared(page):
    assert long_lines(page.read_text()) == []


def test_a_long_line_is_found_and_a_row_or_a_command_is_none():
    long = "x" * (WIDTH + 1)
    assert long_lines(f"x\n{long}\n```\n{long}\n```\n| {long} |\n{long}") == [2, 7]


def test_the_page_of_benchmarks_has_figures_and_no_history():
    assert len((ROOT / "docs" / "benchmarks.md").read_text().splitlines()) <= 200
