"""The page "Move from Kueue": its example, options, settings and keys are those of the command."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.migrate import feature_gates
from cli.migrate.judge_workloads import TOLD
from crds.settings import Settings

PAGE = (Path(__file__).parents[4] / "docs" / "move-from-kueue.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
CODE = re.findall(r"`([^`\n]+)`", PAGE)


def test_the_example_prints_what_the_page_says(tmp_path, monkeypatch):
    (example,) = [text for kind, text in BLOCKS if kind == "yaml"]
    (shown,) = [text for kind, text in BLOCKS if not kind]
    (tmp_path / "kueue.yaml").write_text(example)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["migrate", "kueue", "-f", "kueue.yaml"])
    assert done.exit_code == 3
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines()


def test_each_option_exists():
    commands = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()] + CODE
    words = {word for line in commands if "topogate migrate" in line for word in line.partition("|")[0].split()}
    words |= {word for code in CODE if code.startswith("--") for word in code.split()}
    text = CliRunner().invoke(app, ["migrate", "kueue", "--help"], terminal_width=200).stdout
    options = {word for word in words if word.startswith("-")} - {"--domain", "--feature-gates"}  # of others
    assert {"--apply", "--check", "--without-checks", "--skip-refused", "--overwrite", "-f", "-o"} <= options
    assert [one for one in options if not re.search(rf"(?<![-\w]){one}\b", text)] == []


def test_the_settings_on_the_right_are_ours():
    rows = PAGE.partition("## Settings")[2].partition("\n## ")[0]
    right = [
        cell
        for row in re.findall(r"^\| .* \| (.*) \|$", rows, re.MULTILINE)
        for cell in re.findall(r"`(\w+)`", cell_of(row))
    ]
    known = {field.alias for field in Settings.model_fields.values()}
    assert len(right) > 8
    assert set(right) <= known


def cell_of(row):
    """What stands before explanations."""
    return row.partition(". ")[0] if not row.startswith("refused") else ""


@pytest.mark.parametrize("key", TOLD)
def test_each_key_that_is_told_is_on_the_page_or_may_be_read_some_day(key):
    name = key.partition("/")[2]
    later = {"workload-slice-name"}
    assert name in later or f"`{name}`" in PAGE


def test_gates_are_judged_by_names_of_kueue():
    assert feature_gates.judge_gate("PartialAdmission", False).outcome == "refused"
    assert feature_gates.judge_gate("PartialAdmission", True).outcome == "left"
    assert feature_gates.judge_gate("PrioritizePreemptorWorkloads", True).outcome == "refused"
    assert feature_gates.judge_gate("DisableWaitForPodsReady", True).outcome == "taken"
