"""The command as a person types it: help, exit statuses, errors. Runs in this process, without a cluster."""

import json
import subprocess
import sys
from importlib.metadata import entry_points, version

import pytest
import yaml

from cli import main as command
from cli.main import COMMANDS


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs the command with these words and no cluster in reach, not even a local one: exit status, stdout, stderr."""
    for folder in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(folder, str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words, program="topogate"):
        monkeypatch.setattr(sys, "argv", [f"/usr/bin/{program}", *words])
        with pytest.raises(SystemExit) as ended:
            command.main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return call


def test_help_lists_every_command(run):
    status, out, _ = run("--help")
    assert status == 0
    for name, (_, _, line, panel) in COMMANDS.items():
        assert any(name in row and line in row for row in out.splitlines()), name
        assert panel in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(run, name):
    status, out, _ = run(name, "--help")
    assert status == 0
    assert f"Usage: topogate {name}" in out
    assert "--help" in out


@pytest.mark.parametrize(
    "words",
    [
        (),
        *((name,) for name in COMMANDS),
        ("simulate", "run"),
        ("local", "up"),
        ("local", "nodes"),
        ("whatif", "place"),
    ],
)
def test_help_fits_80_columns_and_half_of_them_are_words(run, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(*words, "--help")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.rstrip().endswith("…") for line in lines), "nothing is cut off"
    texts = [line[32:] for line in lines if line.startswith(" " * 32)]
    assert not texts or max(map(len, texts)) >= 30


def test_help_imports_no_subcommand():
    code = "import sys; sys.argv[1:] = ['--help']\nfrom cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
    heavy = ("rich", "numpy", "aiohttp", "pydantic", "kubernetes_asyncio", "cli.install.command")
    code += f"print([m for m in sys.modules if m in {heavy}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_called_by_kubectl_it_says_so(run):
    status, out, _ = run("explain", "--help", program="kubectl-topogate")
    assert status == 0
    assert "Usage: kubectl topogate explain" in out


def test_both_names_are_installed():
    scripts = {entry.name: entry.value for entry in entry_points(group="console_scripts")}
    assert scripts["topogate"] == scripts["kubectl-topogate"] == "cli.main:main"


def test_an_unknown_command_is_named(run):
    status, _, err = run("expalin")
    assert status == 2
    assert "expalin" in err


def test_a_wrong_option_is_a_usage_error(run):
    status, _, err = run("version", "-o", "xml")
    assert status == 2
    assert "xml" in err
    assert "json" in err


@pytest.mark.parametrize(("form", "parse"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_version_without_a_cluster(run, form, parse):
    status, out, _ = run("version", "-o", form)
    assert status == 0
    assert parse(out) | {"python": ""} == {"topogate": version("topogate"), "python": "", "kubernetes": None}


def test_version_for_people(run):
    status, out, _ = run("version")
    assert status == 0
    assert "no API server reachable" in out


@pytest.mark.parametrize("words", [("explain", "train"), ("install",), ("uninstall",), ("local", "status")])
def test_what_cannot_work_ends_in_one_line_and_status_1(run, words):
    status, out, err = run(*words)
    assert status == 1, out + err
    (line,) = [line for line in err.splitlines() if line.startswith("Error: ")]
    assert len(line) > len("Error: ")
    assert "Traceback" not in err


def test_a_component_names_the_setting_that_is_wrong(run, monkeypatch):
    monkeypatch.setenv("TOPOGATE_UNGATE_CONCURRENCY", "many")
    status, _, err = run("ungater")
    assert status == 1
    assert err.startswith("Error: environment variable TOPOGATE_UNGATE_CONCURRENCY")
    assert '"many"' in err
