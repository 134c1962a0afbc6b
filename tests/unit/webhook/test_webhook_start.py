import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cli import main
from cli.output import Failure
from cli.settled import settled


def test_the_webhook_starts_without_kubernetes_asyncio_and_numpy():
    """They cost a second and 100 MB, and a webhook in a cluster needs neither."""
    modules = "cli.run.commands, cli.settled, webhook.server"
    code = f"import sys, {modules}; print({{'kubernetes_asyncio', 'numpy'}} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_options_win_over_the_file(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("domain: topogate.dev\nwebhookPort: 1234\n")
    given = {"webhook_port": 4321, "metrics_port": None, "health_port": 0, "bind_address": "127.0.0.1"}
    settings = settled(file, given, None, None).settings
    assert (settings.domain, settings.webhook_port, settings.health_port) == ("topogate.dev", 4321, 0)
    assert (settings.metrics_port, settings.bind_address) == (8443, "127.0.0.1")


def test_a_wrong_setting_names_itself(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("webhookPort: high\n")
    with pytest.raises(Failure, match="webhookPort"):
        settled(file, {}, None, None)


def test_help_explains_the_options():
    shown = CliRunner().invoke(main.app, ["webhook", "--help"], env={"COLUMNS": "200"}).output
    for option in ("--config", "--port", "--out-of-cluster", "--kubeconfig", "--context", "--health-port"):
        assert option in shown
