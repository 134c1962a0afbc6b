"""Components beside a cluster take the settings of the installation in it, and say so where they cannot."""

import asyncio
import sys

import pytest
import yaml
from structlog.testing import capture_logs
from support.faults import FaultProxy
from support.jobs import until
from support.ports import free_port

from cli.output import Failure
from cli.settled import CONFIG_KEY, CONFIG_MAP, settled
from crds.constants import DEFAULT_DOMAIN
from kube.connection import config
from kube.resources import CONFIG_MAPS, ROLE_BINDINGS, ROLES

pytestmark = pytest.mark.cluster


@pytest.fixture
def read(cluster, namespace, monkeypatch):
    """The settings of a component beside the cluster, as one that is installed in the test's namespace."""
    monkeypatch.setenv("TOPOGATE_NAMESPACE", namespace)

    async def found(**given):
        return (await asyncio.to_thread(settled, None, given, str(cluster.kubeconfig), None)).settings

    return found


async def install(client, namespace, text):
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: text}}
    await client.create(CONFIG_MAPS, body, namespace)


async def test_the_domain_of_the_installation_counts_beside_the_cluster_too(read, client, namespace, monkeypatch):
    assert (await read()).domain == DEFAULT_DOMAIN, "nothing is installed"
    await install(client, namespace, "domain: topogate.dev\nqueuePatienceSeconds: 7\n")
    found = await read(health_port=8082, bind_address=None)
    assert (found.domain, found.queue_patience_seconds, found.health_port) == ("topogate.dev", 7, 8082)
    assert found.namespace == namespace
    monkeypatch.setenv("TOPOGATE_QUEUE_PATIENCE_SECONDS", "9")
    assert (await read()).queue_patience_seconds == 9


async def test_a_component_waits_for_an_api_server_that_comes_later(cluster, client, namespace, monkeypatch, tmp_path):
    monkeypatch.setenv("TOPOGATE_NAMESPACE", namespace)
    await install(client, namespace, "queuePatienceSeconds: 7")
    port, kubeconfig = free_port(), tmp_path / "later.kubeconfig"
    url = f"http://127.0.0.1:{port}"
    contexts = [{"name": "c", "context": {"cluster": "c"}}]
    clusters = [{"name": "c", "cluster": {"server": url}}]
    kubeconfig.write_text(yaml.safe_dump({"clusters": clusters, "contexts": contexts, "current-context": "c"}))
    with capture_logs() as logged:

        async def failed():
            return logged

        reading = asyncio.create_task(asyncio.to_thread(settled, None, {}, str(kubeconfig), None))
        await until(failed, "a first attempt that fails")
        assert not reading.done()
        assert (logged[0]["event"], logged[0]["server"]) == ("settings cannot be read yet", url)
        real = await config.load(str(cluster.kubeconfig))
        async with FaultProxy(real.url, real.tls).serve(port):
            assert (await reading).settings.queue_patience_seconds == 7


async def test_a_file_that_is_named_counts_alone(client, cluster, namespace, monkeypatch, tmp_path):
    monkeypatch.setenv("TOPOGATE_NAMESPACE", namespace)
    await install(client, namespace, "domain: topogate.dev")
    file = tmp_path / "config.yaml"
    file.write_text("domain: other.example")
    found = await asyncio.to_thread(settled, file, {}, str(cluster.kubeconfig), None)
    assert (found.settings.domain, found.source) == ("other.example", None)


@pytest.mark.parametrize(
    ("text", "told"),
    [("domian: x", "domian"), ("- a", "expected `key: value` lines"), ("a: [", "is not YAML")],
)
async def test_settings_that_cannot_be_used_stop_the_start_and_are_named(read, client, namespace, text, told):
    await install(client, namespace, text)
    with pytest.raises(Failure) as failed:
        await read()
    assert told in str(failed.value)
    assert f"ConfigMap {namespace}/{CONFIG_MAP}" in str(failed.value)


@pytest.mark.parametrize("component", ["ungater", "webhook"])
async def test_who_may_not_read_them_does_not_start_with_other_ones(cluster, client, namespace, component):
    token = await client.request_token("default", namespace, 600)
    kubeconfig = str(cluster.token_kubeconfig(token, f"nobody-{component}"))
    command = (sys.executable, "-m", "cli.main", component, "--kubeconfig", kubeconfig)
    made = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, said = await made.communicate()
    assert made.returncode == 1
    assert b"may not read" in said
    assert b"--config FILE" in said
    assert b"Traceback" not in said


async def test_who_may_read_them_a_moment_later_starts(cluster, client, namespace, monkeypatch):
    """An API server that has just started forbids everything until it knows the roles."""
    monkeypatch.setenv("TOPOGATE_NAMESPACE", namespace)
    await install(client, namespace, "queuePatienceSeconds: 7")
    token = await client.request_token("default", namespace, 600)
    kubeconfig = str(cluster.token_kubeconfig(token, "soon"))
    reading = asyncio.create_task(asyncio.to_thread(settled, None, {}, kubeconfig, None))
    await asyncio.sleep(1)
    assert not reading.done()
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
    await client.create(ROLES, {"metadata": {"name": "reads"}, "rules": [rule]}, namespace)
    who = [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reads"}
    await client.create(ROLE_BINDINGS, {"metadata": {"name": "reads"}, "subjects": who, "roleRef": role}, namespace)
    assert (await reading).settings.queue_patience_seconds == 7
