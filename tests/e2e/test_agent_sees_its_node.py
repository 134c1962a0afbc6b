"""The sample by which an API server lets an agent list the pods of its own node alone, on a real one that has it."""

from pathlib import Path

import pytest
import yaml
from support.accounts import pod, token_on
from support.agents import ACCOUNT, NAMESPACE, install_agent_rights

from kube.client import Client
from kube.errors import ApiError
from kube.resources import PODS
from localcluster import API_SERVER, Fleet, LocalCluster, Options, add_nodes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SAMPLE = Path(__file__).parents[2] / "manifests" / "hardening" / "authorization.yaml"


@pytest.fixture
def cluster(tmp_path):
    sample = yaml.safe_load(SAMPLE.read_text())
    (tmp_path / "nobody.kubeconfig").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "nobody", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "nobody", "user": {}}],
                "contexts": [{"name": "nobody", "context": {"cluster": "nobody", "user": "nobody"}}],
                "current-context": "nobody",
            }
        )
    )
    connection = sample["authorizers"][0]["webhook"]["connectionInfo"]
    assert connection["kubeConfigFile"].startswith("/")
    connection["kubeConfigFile"] = str(tmp_path / "nobody.kubeconfig")
    (tmp_path / "authorization.yaml").write_text(yaml.safe_dump(sample))
    arguments = [f"--authorization-config={tmp_path / 'authorization.yaml'}"]
    with LocalCluster(options=Options(extra_args={API_SERVER: arguments})) as running:
        yield running


async def refused(call):
    """Refused it is; that the last condition fails shows as an error of the API server."""
    with pytest.raises(ApiError) as error:
        await call
    assert error.value.status in {403, 500}
    assert "cannot get" in str(error.value) or "cel evaluation error" in str(error.value)


async def of_node(cluster, client, node):
    """A client with the agent's token as its pod on the node has it."""
    token = await token_on(client, NAMESPACE, ACCOUNT, node)
    return await Client.connect(str(cluster.token_kubeconfig(token, node)))


async def test_an_agent_lists_the_pods_of_its_own_node_alone(cluster):
    fleet = Fleet(blocks=1, racks=1, hosts=2)
    async with await Client.connect(str(cluster.kubeconfig)) as client:
        await install_agent_rights(client, topologies=False)
        await add_nodes(client, fleet)
        own, other = fleet.node_names()
        for name, node in (("here", own), ("there", other)):
            await client.create(PODS, pod(name, nodeName=node), "default")
        async with await of_node(cluster, client, own) as agent:
            found = await agent.list(PODS, field_selector=f"spec.nodeName={own}")
            assert [one["metadata"]["name"] for one in found] == ["here"]
            for selector in (
                "",
                f"spec.nodeName={other}",
                f"spec.nodeName!={other}",
                "status.phase=Running",
                f"metadata.name=there,spec.nodeName={other}",
            ):
                await refused(agent.list(PODS, field_selector=selector, timeout=5))
            await refused(agent.list(PODS, "default", timeout=5))
            watch = {"watch": "true", "timeoutSeconds": "1"}
            await refused(agent.raw("GET", PODS.path(), params=watch))
            await agent.raw("GET", PODS.path(), params={**watch, "fieldSelector": f"spec.nodeName={own}"})
            await refused(agent.get(PODS, "there", "default"))
        token = await client.request_token(ACCOUNT, NAMESPACE)  # one that names no node
        async with await Client.connect(str(cluster.token_kubeconfig(token, "unbound"))) as nowhere:
            await refused(nowhere.list(PODS, field_selector=f"spec.nodeName={own}"))
        assert len(await client.list(PODS, "default")) == 2
