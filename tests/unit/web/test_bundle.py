"""What is committed of the page is what its sources make, byte for byte; skipped where its tools are not there.

``npm ci`` in web/page brings them. What needs no tools: the files are there, small, and ask nobody else anything.
"""

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.reasons import TOLD, Reason

ROOT = Path(__file__).parents[3] / "web"
FILES = ("index.html", "page.js", "page.css", "icon.svg")
LIMIT = 100_000


def test_all_files_together_are_small():
    assert sum(len(gzip.compress((ROOT / "static" / name).read_bytes(), 9, mtime=0)) for name in FILES) < LIMIT


def test_the_page_names_no_other_site():
    """But namespaces of XML, which nobody fetches."""
    found = {
        url for name in FILES for url in re.findall(r"https?://[^\s\"'`)<>\\]+", (ROOT / "static" / name).read_text())
    }
    assert {url for url in found if not url.startswith("http://www.w3.org/")} == set()


def test_the_page_has_no_script_of_its_own_in_html():
    html = (ROOT / "static" / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*src=)", html) == []
    assert not re.search(r"\son\w+=|style=", html)


def test_nothing_makes_markup_of_text():
    found = [
        path.name
        for path in (ROOT / "page" / "src").glob("*.ts*")
        if re.search(r"innerHTML|dangerously|insertAdjacent|document\.write", path.read_text())
    ]
    assert found == []


def test_reasons_that_the_page_calls_problems_are_reasons():
    text = (ROOT / "page" / "src" / "model.ts").read_text()
    named = re.findall(r'"(\w+)"', re.search(r"NEVER = new Set\(\[(.*?)\]\)", text)[1])
    assert len(named) > 5
    assert set(named) <= set(Reason)
    queued = {reason for reason in Reason if reason.traits.hopeless and reason.traits.gravity != TOLD.gravity}
    assert set(named) >= queued, "what no end of others helps"


def test_the_units_of_the_page():
    """Layout, painter and changes, in node."""
    if shutil.which("node") is None or not (ROOT / "page" / "node_modules").exists():
        pytest.skip("no node, or no npm ci in web/page")
    done = subprocess.run(
        ["node", "--test", "test.mjs"], cwd=ROOT / "page", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_the_bundle_is_what_its_sources_make():
    if shutil.which("node") is None or not (ROOT / "page" / "node_modules").exists():
        pytest.skip("no node, or no npm ci in web/page: the bundle is compared where they are")
    done = subprocess.run(
        ["node", "build.mjs", "--check"], cwd=ROOT / "page", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
