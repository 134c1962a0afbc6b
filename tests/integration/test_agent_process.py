"""``topogate agent`` as a process on a machine of tests/data, and an API server that goes away under it."""

import asyncio
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.agents import ACCOUNT, FAST, NAMESPACE, install_agent_rights, pod_on
from support.jobs import until
from support.kubelet import GIB, Kubelet
from support.ports import free_port
from support.tree import machine

from crds.constants import NUMA_PLACEMENT_OBSERVED
from kube.client import Client
from kube.errors import NotFound
from kube.resources import FLEX_TOPOS, NODES, PODS
from localcluster import Fleet, add_nodes

pytestmark = pytest.mark.cluster


@asynccontextmanager
async def process(cluster, client, node, root, kubelet):
    """The command, with a kubeconfig that has nothing but its service account's token."""
    token = await client.request_token(ACCOUNT, NAMESPACE, 3600)
    port = free_port()
    environment = {
        **os.environ,
        "TOPOGATE_AGENT_SYSFS": str(root),
        "TOPOGATE_AGENT_PROC": str(root / "proc"),
        "TOPOGATE_AGENT_KUBELET_DIRECTORY": str(kubelet.folder),
        "TOPOGATE_BIND_ADDRESS": "127.0.0.1",
        "TOPOGATE_LOG_FORMAT": "json",
        **{f"TOPOGATE_{name.upper()}": str(value) for name, value in FAST.items()},
    }
    kubeconfig = str(cluster.token_kubeconfig(token, f"agent-{node}"))
    options = ("--node", node, "--kubeconfig", kubeconfig, "--health-port", str(port))
    command = (sys.executable, "-m", "cli.main", "agent", *options)
    made = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.PIPE)
    try:
        yield made, port
    finally:
        if made.returncode is None:
            made.kill()
        await made.communicate()


async def ask(port, path):
    """Status and text; 0 where nobody listens."""

    def call():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""

    return await asyncio.to_thread(call)


async def is_ready(port):
    return (await ask(port, "readyz"))[0] == 200


@pytest.fixture
def vm(tmp_path):
    """A virtual machine without NUMA and without a GPU."""
    kubelet = Kubelet(tmp_path / "kubelet", "0-2", {0: 8 * GIB}, config={"cpuManagerPolicy": "static"} | STRICT)
    return machine("vm", tmp_path / "sys"), kubelet


STRICT = {"topologyManagerPolicy": "single-numa-node", "memoryManagerPolicy": "None"}


async def test_the_command_on_a_virtual_machine(client, cluster, nodes, namespace, vm):
    root, kubelet = vm
    await install_agent_rights(client)
    (node,) = await nodes(blocks=1, racks=1, hosts=1, gpus=0, prefix="vm-")
    pod = await pod_on(client, node, namespace, "pinned")
    kubelet.hold(pod["metadata"]["uid"], namespace=namespace, pod="pinned", cpus="1-2")
    with kubelet.serving():
        async with process(cluster, client, node, root, kubelet) as (running, port):
            await until(lambda: is_ready(port), "the agent to be ready")
            assert (await ask(port, "healthz"))[0] == 200
            found = await client.get(FLEX_TOPOS, node)
            (condition,) = found["status"]["conditions"]
            assert condition["status"] == "True"
            assert "no GPUs are described" in condition["message"]  # there is no driver here, and that is no error
            assert found["status"]["cpus"]["defaultSet"] == "0"
            pod = await client.get(PODS, "pinned", namespace)
            assert json.loads(pod["metadata"]["annotations"][NUMA_PLACEMENT_OBSERVED]) == [
                {"zone": "node-0", "amount": {"cpu": "2"}}
            ]
            text = (await ask(port, "metrics"))[1]
            for line in (
                "topogate_agent_state_exact 1.0",
                'topogate_agent_writes_total{object="pod",outcome="written"} 1.0',
            ):
                assert line in text
            libraries = await asyncio.to_thread(Path(f"/proc/{running.pid}/maps").read_text)
            assert "msgspec" in libraries
            for heavy in ("pydantic", "cryptography", "numpy"):  # tests/unit/agent/test_process.py has all
                assert heavy not in libraries
            running.send_signal(signal.SIGTERM)
            _, log = await asyncio.wait_for(running.communicate(), 20)
            assert running.returncode == 0, log.decode()


async def test_a_wrong_setting_ends_in_one_line(cluster):
    environment = {**os.environ, "TOPOGATE_AGENT_PUBLISH_TOPOLOGY": "perhaps"}
    command = (sys.executable, "-m", "cli.main", "agent")
    made = await asyncio.create_subprocess_exec(
        *command, env=environment, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    _, error = await made.communicate()
    assert made.returncode == 1
    assert b"TOPOGATE_AGENT_PUBLISH_TOPOLOGY" in error
    assert b"Traceback" not in error


async def test_an_api_server_that_goes_away_only_delays(fresh_cluster, vm):
    root, kubelet = vm
    async with await Client.connect(str(fresh_cluster.kubeconfig)) as client:
        await install_agent_rights(client, topologies=False)  # nobody brought that kind: the rest goes on
        fleet = Fleet(blocks=1, racks=1, hosts=1, gpus=0)
        await add_nodes(client, fleet)
        (node,) = fleet.node_names()
        with kubelet.serving():
            async with process(fresh_cluster, client, node, root, kubelet) as (running, port):
                await until(lambda: is_ready(port), "the agent to be ready")
                fresh_cluster.kill("kube-apiserver")
                kubelet.hold("u", namespace="d", pod="p", cpus="1")
                await asyncio.sleep(2)
                assert running.returncode is None
                assert (await ask(port, "healthz"))[0] == 200
                fresh_cluster.start("kube-apiserver")

                async def written():
                    try:
                        found = await client.get(FLEX_TOPOS, node)
                    except NotFound:
                        return False
                    return [each["cpus"] for each in found["status"]["cpus"].get("assignments", [])] == ["1"]

                await until(written, "what happened meanwhile to be published")
                # Its node goes, and with it what was published; a new one of that name gets its own.
                await client.delete(NODES, node)
                await until(lambda: _gone(client, node), "the FlexTopo to go with its node")
                await add_nodes(client, fleet)
                kubelet.drop("u")

                async def anew():
                    made = await client.get(NODES, node)
                    try:
                        found = await client.get(FLEX_TOPOS, node)
                    except NotFound:
                        return False
                    (owner,) = found["metadata"]["ownerReferences"]
                    return owner["uid"] == made["metadata"]["uid"]

                await until(anew, "the FlexTopo of the new node")


async def _gone(client, node):
    try:
        await client.get(FLEX_TOPOS, node)
    except NotFound:
        return True
    return False
