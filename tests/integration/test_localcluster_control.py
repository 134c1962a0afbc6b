"""Control over the control plane: components killed and started again, parents that die, clusters side by side."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cli.local import app
from cli.output import Failure
from kube.client import Client
from kube.resources import JOBS
from localcluster import (
    API_SERVER,
    COMPONENTS,
    ETCD,
    ComponentFailed,
    Fleet,
    LocalCluster,
    Options,
    add_nodes,
    supervisor,
)
from localcluster.process import start_time

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 120


async def poll(read, condition):
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition(value := await read()):
            await asyncio.sleep(0.05)
    return value


def wait_until(condition) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def make_job(name: str) -> dict:
    annotations = {"topogate.dev/run-seconds": "0"}
    container = {"name": "main", "image": "none"}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container], "restartPolicy": "Never"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template}}


async def run_job(cluster: LocalCluster, name: str) -> None:
    """Every component has to do its part for a Job to complete."""
    async with await Client.connect(cluster.kubeconfig) as client:
        await client.create(JOBS, make_job(name), "default")
        await poll(lambda: client.get(JOBS, name, "default"), lambda job: job.get("status", {}).get("succeeded") == 1)


async def test_every_component_can_be_killed_and_started_again(cluster, fresh_cluster, make_client):
    client = await make_client(fresh_cluster.kubeconfig)
    await add_nodes(client, Fleet(blocks=1, racks=1, hosts=1))
    await run_job(fresh_cluster, "before")
    for name in COMPONENTS:
        killed = fresh_cluster.pids[name]
        fresh_cluster.kill(name)
        assert start_time(killed) is None
        assert name not in fresh_cluster.pids
        assert {c.name: c.state for c in fresh_cluster.status()}[name] == "Stopped"
        fresh_cluster.start(name)
        await run_job(fresh_cluster, f"after-{name}")
    assert fresh_cluster.is_ready()
    # Side by side: the other cluster knows nothing of all that.
    assert cluster.api_url != fresh_cluster.api_url
    assert not set(cluster.pids.values()) & set(fresh_cluster.pids.values())
    assert cluster.is_ready()
    other = await make_client(cluster.kubeconfig)
    assert await other.list(JOBS, "default") == []


def test_nothing_outlives_a_parent_that_was_killed(tmp_path):
    code = (
        "import sys, time; from localcluster import LocalCluster\n"
        "cluster = LocalCluster.launch(sys.argv[1]); print(*cluster.pids.values(), flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "data")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == len(COMPONENTS)
        assert all(start_time(pid) for pid in pids)
        parent.kill()
    wait_until(lambda: not any(start_time(pid) for pid in pids))


@pytest.mark.parametrize("component", [ETCD, API_SERVER])
def test_component_that_cannot_start_says_why_and_leaves_nothing(component, tmp_path):
    cluster = LocalCluster(tmp_path, options=Options(extra_args={component: ["--no-such-flag"]}))
    with pytest.raises(ComponentFailed, match=r"(?s)ended with status.*no-such-flag") as failure:
        cluster.up()
    assert failure.value.component == component
    assert cluster.pids == {}


@pytest.fixture
def local(tmp_path, monkeypatch):
    """Runs ``topogate local ... --name test`` and returns what it printed, errors too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, "--name", "test"])
        assert result.exception is None or isinstance(result.exception, Failure), result.exception
        return result.output + str(result.exception or "")

    yield run
    supervisor.stop(supervisor.directory("test"))


def test_local_outlives_its_command_and_its_data_survives_the_supervisor(local):
    assert "not up; start it with: topogate local up --name test" in local("status")
    assert "cluster test is up after" in local("up")
    assert "cluster test is up already" in local("up")
    components = yaml.safe_load(local("status", "-o", "yaml"))["components"]
    assert [(c["name"], c["state"]) for c in components] == [(name, "Ready") for name in COMPONENTS]
    assert "6 nodes are ready, 6 of them new" in local("nodes", "--blocks", "1", "--racks", "2", "--hosts", "3")
    before = local("kubeconfig", "--raw")
    assert Path(local("kubeconfig").strip()).read_text() == before

    os.kill(supervisor.running(supervisor.directory("test")).pid, signal.SIGKILL)
    wait_until(lambda: not any(start_time(c["pid"]) for c in components))
    assert "is not up" in local("status")

    assert "cluster test is up after" in local("up")
    assert local("kubeconfig", "--raw") == before
    assert "6 nodes are ready, 0 of them new" in local("nodes", "--blocks", "1", "--racks", "2", "--hosts", "3")
    killed = supervisor.running(supervisor.directory("test")).pids["kube-scheduler"]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: supervisor.running(supervisor.directory("test")).pids["kube-scheduler"] != killed)
    machine = (
        "--prefix",
        "m-",
        "--blocks",
        "1",
        "--racks",
        "1",
        "--hosts",
        "1",
        "--machine",
        "2 NUMA / 8 cores / 2 GPUs",
    )
    assert "kubelet: restricted, container scope" in local("nodes", *machine)
    wait_until(lambda: "kubelets" in local("status"))
    assert "expected one of" in local("nodes", *machine, "--kubelet", "strict")
    assert "cluster test is gone" in local("down")
    assert not supervisor.directory("test").exists()
    assert "cluster test is not up" in local("down")


def test_a_cluster_that_a_demo_left_is_known_to_local(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def ask(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments])
        assert result.exception is None or isinstance(result.exception, Failure), result.exception
        return result.output + str(result.exception or "")

    with supervisor.announce_cluster("demo", cluster) as name, supervisor.announce_cluster("demo", cluster) as second:
        assert (name, second) == ("demo", "demo-2")
        assert "not up; start it with: topogate local up; there is --name demo, --name demo-2" in ask("status")
        assert ask("kubeconfig", "--name", "demo").strip() == str(cluster.kubeconfig)
        shutil.rmtree(supervisor.directory("demo-2"))
        printed = ask("status")
        assert "cluster demo:" in printed
        assert printed.count("Ready") == len(COMPONENTS)
    assert supervisor.names() == []
    assert ask("status").endswith("start it with: topogate local up")
    left = supervisor.directory("demo")
    left.mkdir()
    (left / supervisor.STATE).write_text('{"pid": 1, "started": 1}')
    with supervisor.announce_cluster("demo", cluster) as name:
        assert name == "demo", "what a killed process left is taken over"
