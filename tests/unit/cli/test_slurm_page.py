"""The page for those who come from Slurm: its commands, options, reasons, keys and settings exist."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import COMMANDS, app
from crds.constants import Keys
from crds.settings import Settings
from engine.reasons import Reason

PAGE = (Path(__file__).parents[3] / "docs" / "slurm.md").read_text()
CODE = re.findall(r"`([^`]+)`", PAGE)
CALLS = sorted({text for text in CODE if re.match(r"topogate [a-z]", text)})


@pytest.mark.parametrize("call", CALLS)
def test_each_command_and_its_options_exist(call):
    _, name, *rest = call.split()
    assert name in COMMANDS
    text = CliRunner().invoke(app, [name, "--help"], terminal_width=200).stdout
    options = [word.partition("=")[0] for word in rest if word.startswith("-")]
    assert [option for option in options if not re.search(rf"(?<![-\w]){option}\b", text)] == []


def test_the_reasons_on_the_right_are_ours():
    rows = PAGE.partition("## Why a job waits")[2].partition("\n## ")[0]
    ours = [
        cell
        for row in re.findall(r"^\| .* \| (.*) \|$", rows, re.MULTILINE)
        for cell in re.findall(r"`(\w+)`", cell_of(row))
    ]
    assert len(ours) > 8
    assert set(ours) <= {str(reason) for reason in Reason}


def cell_of(row):
    """The reasons of a cell: what stands before its explanation."""
    return row.partition(":")[0]


def test_the_keys_and_settings_are_ours():
    keys = {
        text.partition(":")[0].partition("=")[0]
        for text in CODE
        if re.match(r"(kueue\.x-k8s\.io|topogate\.dev)/", text)
    }
    known = {value for name in dir(Keys()) for value in values(getattr(Keys(), name))}
    assert len(keys) > 6
    assert keys <= known | {"topogate.dev/numa-policy"}
    settings = {type(Settings()).model_fields[name].alias for name in Settings.model_fields}
    assert {"movesPerHour", "fairSharing", "queuePatienceSeconds"} <= settings


def values(found):
    """A key, or several."""
    return (
        [found]
        if isinstance(found, str)
        else [one for one in found if isinstance(one, str)]
        if isinstance(found, tuple)
        else []
    )
