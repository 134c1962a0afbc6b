"""Pages that name what the code says: log lines and reasons, policies and tests."""

import re
from pathlib import Path

from engine.reasons import Reason
from manifests import render

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "logs.md").read_text()


def said():
    """(sentence, level) of every log line of components."""
    found = {}
    for folder in ("ungater", "kube", "serving"):
        for path in (ROOT / folder).rglob("*.py"):
            for level, text in re.findall(r'log\.(\w+)\(\s*"([^"]+)"', path.read_text()):
                found[text] = "error" if level == "exception" else level
    return found


def test_log_lines_that_the_page_names_are_said_with_that_level():
    rows = re.findall(r"^\| `([^`]+)` \| (info|warning|error) \|", PAGE, re.MULTILINE)
    assert len(rows) > 10
    lines = said()
    assert {text: lines.get(text) for text, _ in rows} == dict(rows)


def test_every_happening_of_a_workload_is_on_the_page():
    text = (ROOT / "ungater" / "scheduling" / "scheduler.py").read_text() + (
        ROOT / "ungater" / "controller.py"
    ).read_text()
    for sentence in re.findall(r'log\.info\("(admitted|preempts|waits|leading)"', text):
        assert f"`{sentence}`" in PAGE


def test_reasons_that_the_page_names_exist():
    part = PAGE.partition("## Events")[2].partition("## At 3 a.m.")[0]
    named = set(re.findall(r"`([A-Z][A-Za-z]+)`", part))
    assert named <= {str(reason) for reason in Reason}
    assert {"Admitted", "KubeletRefused"} <= named


def test_the_security_page_names_policies_roles_and_tests_that_exist():
    page = (ROOT / "docs" / "security.md").read_text()
    names = {obj["metadata"]["name"] for obj in render.objects(render.InstallOptions(agent=True))}
    assert set(re.findall(r"`(topogate-[a-z-]+)`", page)) <= names | {"topogate-system", "topogate-system-agent"}
    tests = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    named = set(re.findall(r"`(?:tests/\w+/)?(test_\w+\.py)`", page))
    assert named <= tests.keys()
    assert len(named) > 4
    for path in re.findall(r"`((?:tests|manifests|docs)/[\w./-]+)`", page):
        assert (ROOT / path).exists(), path
