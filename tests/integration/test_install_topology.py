"""``topogate install --topology`` and ``topogate doctor`` on a real API server."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from cli.doctor import installation
from cli.install import command
from cli.main import app
from cli.output import Failure, OutputFormat
from clock import SYSTEM
from kube.client import Client
from kube.resources import CLUSTER_ROLES, NODES, RESOURCE_FLAVORS
from localcluster import Fleet, LocalCluster, add_nodes, wait_ready
from localcluster.nodes import BLOCK_LABEL, RACK_LABEL

pytestmark = pytest.mark.cluster

OUTSIDE = {"out_of_cluster": True, "webhook_url": "https://127.0.0.1:9443", "wait": False}
HOST = "kubernetes.io/hostname"


@pytest.fixture(scope="module")
def own():
    with LocalCluster() as cluster:
        asyncio.run(_nodes(cluster))
        yield cluster


async def _nodes(cluster):
    async with await Client.connect(str(cluster.kubeconfig)) as client:
        fleet = Fleet(blocks=2, racks=2, hosts=2)
        await add_nodes(client, fleet)
        await wait_ready(client, fleet.node_names(), timeout=30)


def ask(own, *calls):
    """What the API server answers to these calls of a client."""

    async def run():
        async with await Client.connect(str(own.kubeconfig)) as client:
            return [await call(client) for call in calls]

    return asyncio.run(run())


def findings(own, status=3):
    result = CliRunner().invoke(app, ["doctor", "--kubeconfig", str(own.kubeconfig), "-o", "json"])
    assert result.exit_code == status, result.output
    return {(one["weight"], one["about"]): one for one in json.loads(result.stdout)["findings"]}


@pytest.mark.parametrize("asked", [("queues",), ("web", "--port", "0"), ("tree",), ("defrag",), ("explain", "train")])
def test_before_an_installation_a_command_names_the_command_that_makes_one(own, asked):
    result = CliRunner().invoke(app, [*asked, "--kubeconfig", str(own.kubeconfig)])
    assert isinstance(result.exception, Failure)
    told = "no ResourceFlavor has a topology" if asked == ("defrag",) else "Topogate is not installed in this cluster"
    assert told in str(result.exception)
    assert "topogate install --topology auto" in str(result.exception)


def test_one_word_installs_and_makes_the_flavor_and_the_doctor_sees_what_is_wrong(own, capsys):
    kubeconfig = str(own.kubeconfig)
    assert "topogate install" in findings(own)["error", "installation"]["mend"]

    command.install(kubeconfig=kubeconfig, topology="auto", dry_run=True, **OUTSIDE)
    printed = capsys.readouterr().out
    assert "Topology of 8 nodes with nvidia.com/gpu" in printed
    assert "resourceflavor/local created (dry run)" in printed
    command.install(kubeconfig=kubeconfig, topology="auto", output=OutputFormat.YAML, **OUTSIDE)
    assert capsys.readouterr().out.count("\nkind: ResourceFlavor\n") == 1

    command.install(kubeconfig=kubeconfig, topology="auto", **OUTSIDE)
    assert "require-topology: rack" in capsys.readouterr().out
    (flavor,) = ask(own, lambda client: client.get(RESOURCE_FLAVORS, "local"))
    assert flavor["spec"]["topology"] == {
        "levels": [BLOCK_LABEL, RACK_LABEL, HOST],
        "names": {"block": BLOCK_LABEL, "rack": RACK_LABEL, "host": HOST},
    }
    command.install(kubeconfig=kubeconfig, topology="auto", **OUTSIDE)
    assert "resourceflavor/local unchanged" in capsys.readouterr().out
    command.install(kubeconfig=kubeconfig, **OUTSIDE)
    again = capsys.readouterr().out
    assert "make a ResourceFlavor" not in again
    assert "require-topology: rack" in again
    assert "start `topogate webhook`" in again
    for options, told in (
        ({"topology": RACK_LABEL, "flavor": "local"}, "exists with the levels"),
        ({"topology": "auto", "flavor": "other"}, "would count twice"),
        ({"topology": "gke"}, "no node has any of the labels that gke sets"),
        ({"flavor": "x"}, "give that too"),
        ({"namespace": "elsewhere"}, "installed in namespace topogate-system"),
        ({"topology": "auto", "nodes": "pool"}, "expected KEY=VALUE"),
    ):
        with pytest.raises(Failure, match=told):
            command.install(kubeconfig=kubeconfig, **OUTSIDE, **options)

    with pytest.raises(Failure, match="say --namespace topogate-system"):
        command.uninstall(kubeconfig=kubeconfig, namespace="elsewhere")

    found = findings(own)
    assert set(found) == {("error", "ungater"), ("error", "certificates")}, found
    assert "topogate webhook" in found["error", "certificates"]["mend"]

    role = {"rules": []}
    node = {"metadata": {"labels": {RACK_LABEL: None}}}
    away = {"metadata": {"labels": {"cloud-provider.com/node-group": None}}}
    ask(
        own,
        lambda client: client.patch(CLUSTER_ROLES, "topogate-ungater", body=role),
        lambda client: client.patch(NODES, "b1-r1-h1", body=node),
        lambda client: client.patch(NODES, "b2-r2-h2", body=away),
    )
    found = findings(own)
    assert "ClusterRole topogate-ungater (rules)" in found["error", "rbac"]["message"]
    assert found["error", "rbac"]["mend"] == "topogate install --out-of-cluster --webhook-url https://127.0.0.1:9443"
    assert "node b1-r1-h1 (1 of 7) lacks the label" in found["warning", "flavor local"]["message"]
    assert found["warning", "flavor local"]["mend"] == f"kubectl label node b1-r1-h1 {RACK_LABEL}=r1"
    assert "b2-r2-h2" in found["warning", "nodes"]["mend"]
    command.install(kubeconfig=kubeconfig, **OUTSIDE)
    assert ("error", "rbac") not in findings(own)


def test_certificates_and_leader_of_a_healthy_installation_are_no_findings(own):
    """As read from the API server: only what is not there is said to be missing."""

    async def look(client):
        return await installation.look_at(client)

    (seen,) = ask(own, look)
    about = {one.about for one in installation.judge(seen, SYSTEM.utc(), "0.2.0")}
    assert about == {"certificates", "ungater"}
