"""An API server that does not answer: every command of a person ends, and names server and context, and a way on."""

import base64
import json

import pytest
import yaml
from support.ports import free_port
from typer.testing import CliRunner

from cli.main import app
from cli.output import Failure
from cli.reaching import failure
from cli.settled import settled
from kube.client import Client
from kube.connection import transport
from kube.connection.config import DescribedConnection, described
from kube.errors import ConnectionFailed, Forbidden, KubeTimeout, NotFound, Unauthorized

COMMANDS = (
    ("web", "--port", "0"),
    ("web", "--out", "page.html"),
    ("queues",),
    ("explain", "train"),
    ("hold", "train"),
    ("requeue", "--all"),
    ("tree",),
    ("doctor",),
    ("snapshot",),
    ("defrag",),
    ("install", "--topology", "auto"),
    ("uninstall",),
)


@pytest.fixture
def dead(tmp_path, monkeypatch):
    """A kubeconfig of a server that nobody runs; it is given up on at once."""
    monkeypatch.setattr(transport, "MAX_RETRIES", 0)
    monkeypatch.setenv("KUBECONFIG", "")
    path = tmp_path / "config"
    server = f"http://127.0.0.1:{free_port()}"
    content = {
        "current-context": "east",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": name, "context": {"cluster": "c"}} for name in ("east", "west", "topogate-local")],
    }
    path.write_text(yaml.safe_dump(content))
    return server, str(path)


def run(*arguments):
    done = CliRunner().invoke(app, list(arguments))
    assert isinstance(done.exception, Failure), done.output
    return str(done.exception)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_ends_and_names_context_and_server(dead, command):
    server, path = dead
    said = run(*command, "--kubeconfig", path)
    assert f"the API server {server} cannot be reached" in said
    assert f"context east in kubeconfig {path}" in said
    assert "--context NAME" in said


def test_the_context_that_was_named_is_told(dead):
    server, path = dead
    assert "context west in" in run("queues", "--kubeconfig", path, "--context", "west")
    assert "topogate local status" in run("queues", "--kubeconfig", path, "--context", "topogate-local")
    said = CliRunner().invoke(app, ["version", "--kubeconfig", path]).output
    assert f"no API server reachable at {server} (context east in kubeconfig {path})" in said


def test_a_context_that_is_not_there_is_told_with_those_that_are(dead):
    assert "there is no context north; there are east, west, topogate-local" in run(
        "queues", "--kubeconfig", dead[1], "--context", "north"
    )


def test_a_person_is_not_kept_waiting_for_settings(dead):
    with pytest.raises(Failure, match="cannot be reached"):
        settled(None, {}, dead[1], None, patient=False)


def test_only_what_is_about_the_connection_names_it(dead):
    server, path = dead
    assert "log in again" in str(failure(Unauthorized(401), path))
    assert server in str(failure(KubeTimeout("GET pods: no answer within 30 s"), path))
    assert server not in str(failure(NotFound(404, message="not there"), path))


def token_of(subject):
    payload = base64.urlsafe_b64encode(json.dumps({"sub": subject}).encode()).decode().rstrip("=")
    return f"e30.{payload}.c2ln"


@pytest.mark.parametrize(
    ("token", "account"),
    [
        (token_of("system:serviceaccount:topogate-system:topogate-ungater"), "topogate-system/topogate-ungater"),
        (token_of("alice"), ""),
        (token_of(None), ""),
        ("opaque", ""),
        ("e30.!.x", ""),
        ("e30.W10.x", ""),
    ],
)
def test_a_dead_token_of_a_service_account_is_made_again_by_a_command(tmp_path, token, account):
    """A token ends with its account: installing Topogate again makes another account of the same name."""
    path = tmp_path / "config"
    content = {
        "current-context": "ungater",
        "contexts": [{"name": "ungater", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    path.write_text(yaml.safe_dump(content))
    assert described(path).account == account
    said = str(failure(Unauthorized(401), path))
    again = (
        'kubectl config set-credentials u --token="$(kubectl -n topogate-system create token topogate-ungater '
        '--duration=24h)"'
    )
    assert (again in said) is bool(account)
    assert ("log in again" in said) is (not account)


@pytest.mark.parametrize("command", ["doctor", "install", "uninstall"])
def test_a_tenant_is_told_that_an_installation_takes_an_administrator(monkeypatch, command):
    async def refused(*_, **__):
        raise Forbidden(403, message="users cannot get configmaps")

    monkeypatch.setattr(Client, "connect", refused)
    assert f"`topogate {command}` takes the rights of a cluster administrator: ask one to run it" in run(command)


def test_whoever_knows_helm_is_told_the_options_of_this_command():
    assert "--domain NAME" in run("install", "--set", "domain=topogate.dev")


def test_what_a_kubeconfig_does_not_say_is_no_second_error(tmp_path):
    path = tmp_path / "config"
    path.write_text("clusters: []\n")
    assert described(path) == DescribedConnection("?", "?", str(path))
    assert str(failure(ConnectionFailed("gone"), tmp_path / "absent")) == "gone"


def test_a_pod_has_no_context(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", "")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    (tmp_path / "token").write_text("t")
    monkeypatch.setattr("kube.connection.config.SERVICE_ACCOUNT", tmp_path)
    assert described() == DescribedConnection("10.0.0.1:443")
    assert "the cluster this pod is in" in str(failure(ConnectionFailed("refused")))
