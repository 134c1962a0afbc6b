"""Kubeconfigs and in-cluster files: merging, credentials, what is refused and how."""

import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kube.connection import config
from kube.errors import ConfigError


def write(path, *, server="http://one", user=None, cluster=None, name="c", current="c"):
    content = {
        "clusters": [{"name": name, "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"ns-{name}"}}],
    }
    if current:
        content["current-context"] = current
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return str(path)


@pytest.fixture
def certificate(tmp_path):
    """A self-signed CA as (certificate file, key file)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=now,
        not_valid_after=now + timedelta(days=1),
        extensions=[x509.Extension(x509.OID_BASIC_CONSTRAINTS, True, x509.BasicConstraints(ca=True, path_length=None))],
    ).sign(key, hashes.SHA256())
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (tmp_path / "ca.crt").write_bytes(made.public_bytes(encoding))
    (tmp_path / "ca.key").write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    return tmp_path / "ca.crt", tmp_path / "ca.key"


async def test_current_and_named_context_of_several_files(tmp_path, monkeypatch):
    first = write(tmp_path / "a" / "config", server="http://one", name="one", current="one")
    second = write(tmp_path / "b" / "config", server="http://two", name="two", current="two", user={"token": "t"})
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(tmp_path / "absent"), first, second]))
    found = await config.load()
    assert (found.url, found.namespace, found.credentials.current_header()) == ("http://one", "ns-one", "")
    found = await config.load(context="two")
    assert (found.url, found.namespace, found.credentials.current_header()) == ("http://two", "ns-two", "Bearer t")


async def test_relative_paths_are_relative_to_their_file(tmp_path, certificate):
    files = {"client-certificate": "../ca.crt", "client-key": "../ca.key"}
    path = write(
        tmp_path / "sub" / "config", server="https://one", user=files, cluster={"certificate-authority": "../ca.crt"}
    )
    found = await config.load(path)
    assert found.tls.check_hostname
    assert len(found.tls.get_ca_certs()) == 1


async def test_verification_is_off_only_where_the_kubeconfig_says_so(tmp_path):
    secure = await config.load(write(tmp_path / "one", server="https://one"))
    assert secure.tls.check_hostname
    assert secure.tls.verify_mode.name == "CERT_REQUIRED"
    insecure = await config.load(
        write(tmp_path / "two", server="https://one", cluster={"insecure-skip-tls-verify": True})
    )
    assert insecure.tls.verify_mode.name == "CERT_NONE"


async def test_inline_keys_leave_no_file_behind(tmp_path, certificate, monkeypatch):
    import base64
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    user = {
        "client-certificate-data": base64.b64encode(certificate[0].read_bytes()).decode(),
        "client-key-data": base64.b64encode(certificate[1].read_bytes()).decode(),
    }
    for _ in range(2):
        await config.load(write(tmp_path / "config", server="https://one", user=user))
        assert not list((tmp_path / "tmp").iterdir())


async def test_a_context_without_a_user_is_anonymous(tmp_path):
    path = write(tmp_path / "config", server="https://one")
    content = yaml.safe_load((tmp_path / "config").read_text())
    del content["contexts"][0]["context"]["user"]
    (tmp_path / "config").write_text(yaml.safe_dump(content))
    assert (await config.load(path)).credentials.current_header() == ""


async def test_server_name_and_proxy(tmp_path):
    cluster = {"tls-server-name": "kubernetes", "proxy-url": "http://proxy:3128"}
    found = await config.load(write(tmp_path / "config", server="https://one", cluster=cluster))
    assert (found.server_name, found.proxy) == ("kubernetes", "http://proxy:3128")


async def test_a_token_file_is_read_again(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("first\n")
    found = await config.load(write(tmp_path / "config", user={"tokenFile": "token", "token": "inline"}))
    await found.credentials.refresh()
    assert found.credentials.current_header() == "Bearer first"
    (tmp_path / "token").write_text("second\n")
    assert found.credentials.current_header() == "Bearer first"
    monkeypatch.setattr(config, "TOKEN_SECONDS", 0.0)
    assert found.credentials.current_header() is None
    await found.credentials.refresh()
    monkeypatch.undo()
    assert found.credentials.current_header() == "Bearer second"
    (tmp_path / "token").write_text("")  # being replaced
    await found.credentials.refresh()
    assert found.credentials.current_header() == "Bearer second"


PLUGIN = """#!{python}
import json, pathlib, sys
count = pathlib.Path(__file__).with_suffix(".count")
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
status = {{"token": f"token-{{number}}"}}
if {expires!r}:
    status["expirationTimestamp"] = {expires!r}
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
"""


def plugin(tmp_path, expires=""):
    path = tmp_path / "plugin"
    path.write_text(PLUGIN.format(python=sys.executable, expires=expires))
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    spec = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}
    return write(tmp_path / "config", user={"exec": spec})


async def test_a_plugin_without_expiry_is_asked_again_only_when_told_to(tmp_path):
    found = await config.load(plugin(tmp_path))
    assert found.credentials.current_header() == "Bearer token-1"
    await found.credentials.refresh()
    assert found.credentials.current_header() == "Bearer token-2"


async def test_a_plugin_whose_token_expired_is_asked_again(tmp_path):
    found = await config.load(plugin(tmp_path, "2020-01-01T00:00:00Z"))
    assert found.credentials.current_header() is None
    await found.credentials.refresh()
    assert found.credentials._header == "Bearer token-2"


async def test_a_plugin_that_fails_is_named(tmp_path):
    (tmp_path / "plugin").write_text("#!/bin/sh\necho sorry >&2\nexit 3\n")
    (tmp_path / "plugin").chmod(0o755)
    spec = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}
    with pytest.raises(ConfigError, match=r"process returned 3.*sorry"):
        await config.load(write(tmp_path / "config", user={"exec": spec}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- not a map", "expected a map"),
        ("a: [", "while parsing"),
        ("clusters: [{}]", "an entry of clusters has no name"),
        ("current-context: other", "there is no context other; there are none"),
        ("{}", "it has no current-context"),
        ("{contexts: [{name: c, context: {cluster: x}}], current-context: c}", "there is no cluster x with a server"),
    ],
)
async def test_a_bad_kubeconfig_is_refused_by_name(tmp_path, content, message):
    (tmp_path / "config").write_text(content)
    with pytest.raises(ConfigError, match=f"{tmp_path}/config: .*{message}"):
        await config.load(tmp_path / "config")


async def test_no_kubeconfig_at_all(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        await config.load(tmp_path / "absent")


async def test_in_cluster(tmp_path, certificate, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigError, match="token"):
        await config.load_in_cluster(tmp_path)
    (tmp_path / "token").write_text("sa")
    (tmp_path / "namespace").write_text("topogate-system")
    found = await config.load_in_cluster(tmp_path)
    assert (found.url, found.namespace) == ("https://[fd00::1]:443", "topogate-system")
    assert found.credentials.current_header() == "Bearer sa"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(ConfigError, match="not a pod"):
        await config.load_in_cluster(tmp_path)


LOADS = """
import asyncio, sys
from kube.connection import config
asyncio.run(config.load(sys.argv[1]))
print("kubernetes_asyncio" in sys.modules)
"""


@pytest.mark.parametrize("asks", [False, True])
def test_kubernetes_asyncio_is_imported_for_plugins_only(tmp_path, certificate, asks):
    told = {"token": "t", "client-certificate": "ca.crt", "client-key": "ca.key"}
    path = plugin(tmp_path) if asks else write(tmp_path / "config", server="https://one", user=told)
    done = subprocess.run([sys.executable, "-c", LOADS, path], capture_output=True, text=True, check=True)
    assert done.stdout == f"{asks}\n"


async def test_a_password(tmp_path):
    found = await config.load(write(tmp_path / "config", user={"username": "me", "password": "open"}))
    assert found.credentials.current_header() == "Basic bWU6b3Blbg=="


async def test_inline_data_that_is_none_is_named(tmp_path):
    cluster = {"certificate-authority-data": "a"}
    with pytest.raises(ConfigError, match="certificate-authority-data"):
        await config.load(write(tmp_path / "config", server="https://one", cluster=cluster))
