"""A release, on one cluster: it goes on with what 0.1.0 stored, and its image runs as the manifests start it."""

import asyncio
import subprocess
import time
import urllib.request
from contextlib import AsyncExitStack
from functools import partial

import pytest
import yaml
from support import image_root
from support.earlier import NAMESPACE as TEAM
from support.earlier import REPLICA_SETS, Earlier
from support.house import BIN, LEASE, House
from support.image_pods import Pods
from support.jobs import until
from support.kubelet import GIB, Kubelet
from support.packages import ROOT
from support.tree import machine

from cli.run.components import Components
from kube.client import Client
from kube.resources import CLUSTER_QUEUES, JOBS, LOCAL_QUEUES, PODS, WORKLOADS
from localcluster import Fleet, LocalCluster, add_nodes
from manifests import render

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
PATIENCE = 60.0  # seconds
NODE = "b1-r1-h1"
POLICIES = {"topologyManagerPolicy": "none", "cpuManagerPolicy": "none", "memoryManagerPolicy": "None"}


@pytest.fixture(scope="module")
def own():
    async def nodes(cluster):
        async with await Client.connect(str(cluster.kubeconfig)) as client:
            await add_nodes(client, Fleet(blocks=1, racks=2, hosts=2, gpus=8))

    with LocalCluster() as cluster:
        asyncio.run(nodes(cluster))
        yield cluster


@pytest.fixture(scope="module")
def kubectl(own):
    def run(*arguments, stdin=None, fails=False):
        line = [own.kubectl, "--kubeconfig", own.kubeconfig, *arguments]
        given = yaml.safe_dump(stdin) if stdin is not None else None
        done = subprocess.run(line, input=given, capture_output=True, text=True, check=False, cwd=ROOT)
        assert (done.returncode != 0) is fails, done.stderr
        return done.stderr if fails else done.stdout

    return run


@pytest.fixture
def installed(own, kubectl):
    """All objects but the Deployments, whose containers the test starts."""
    options = ("--out-of-cluster", "--webhook-url", "https://127.0.0.1:9443", "--agent", "--kubeconfig", own.kubeconfig)
    subprocess.run([BIN / "topogate", "install", *options], check=True)
    kubectl("apply", "-f", "manifests/web/rbac.yaml")


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    if refused := image_root.refusal():
        pytest.skip(f"a root file system cannot be entered here: {refused}")
    return image_root.Image(tmp_path_factory.mktemp("image"))


def owners():
    made = [
        *render.objects(render.InstallOptions(agent=True)),
        *yaml.safe_load_all((ROOT / "manifests/web/deployment.yaml").read_text()),
    ]
    return {obj["metadata"]["name"]: obj for obj in made if obj["kind"] in {"Deployment", "DaemonSet"}}


def ready(address):
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture
def pods(image, own, kubectl, tmp_path):
    kubelet = Kubelet(tmp_path / "kubelet", "0-2", {0: 8 * GIB}, config=POLICIES)
    (kubelet.folder / "pods").mkdir()
    host = {
        "/sys": machine("vm", tmp_path / "sys"),
        "/var/lib/kubelet": kubelet.folder,
        "/var/lib/kubelet/pod-resources": kubelet.socket.parent,
    }
    server = yaml.safe_load(own.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    with kubelet.serving():
        yield Pods(image, tmp_path, server.removeprefix("https://"), kubectl, host)


async def test_what_0_1_0_stored_goes_on(own):
    """Rows of docs/upgrades.md, "From 0.1.0 to 0.2.0"."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await Client.connect(str(own.kubeconfig)))
        await Earlier(client).make()
        running = await until(partial(run_on, client, 3), "three pods to run where 0.1.0 placed them")
        before = {obj["metadata"]["name"]: obj for obj in await client.list(WORKLOADS, TEAM)}
        components = await stack.enter_async_context(Components(own, client, env=LEASE))
        here = House(own, client, components)
        await here.topogate("install", "--out-of-cluster", "--webhook-url", components.webhook_url)
        await asyncio.gather(components.start("webhook"), components.start("ungater"))
        assert "Nothing is wrong" in await here.topogate("doctor")

        # What waited is looked at, and says why in the words of this version; what was admitted stays as it is.
        await until(
            partial(says, client, "gated", "2 pods do not fit one rack: b1/r2"), "the Job without a queue to wait"
        )
        await until(partial(says, client, "waits", "uses 17 of its nominal 24"), "the Job in the queue to wait")
        now = {obj["metadata"]["name"]: obj for obj in await client.list(WORKLOADS, TEAM)}
        assert now.keys() == before.keys(), "nothing is made again, not even for the pods of other controllers"
        for name, workload in now.items():
            assert workload["metadata"]["uid"] == before[name]["metadata"]["uid"]
            assert workload["status"].get("admission") == before[name]["status"].get("admission")
        assert await run_on(client, 3) == running, "no pod is touched"
        queue = await client.get(CLUSTER_QUEUES, "shared")
        (flavor,) = queue["status"]["flavorsUsage"]
        assert {each["name"]: each["total"] for each in flavor["resources"]} == {"nvidia.com/gpu": "17", "cpu": "17"}
        assert queue["spec"]["preemption"]["strategy"] == "LeastPriority", "0.1.0 set it by default"
        assert (await client.get(LOCAL_QUEUES, "team", TEAM))["spec"] == {
            "clusterQueue": "shared",
            "stopPolicy": "None",
            "fairSharing": {"weight": 3},
        }

        # Room is made, and what 0.1.0 had wait goes on.
        await client.delete(JOBS, "runs", TEAM, propagation="Background")
        await client.delete(REPLICA_SETS, "serve", TEAM, propagation="Background")
        await until(partial(run_on, client, 4), "all four pods that waited to run")


async def says(client, job, text):
    """Whether the Workload of a Job gives this reason for waiting."""
    found = [obj for obj in await client.list(WORKLOADS, TEAM) if obj["metadata"]["ownerReferences"][0]["name"] == job]
    return any(text in condition["message"] for obj in found for condition in obj["status"]["conditions"])


async def run_on(client, count):
    """Pod -> uid, node, version, of those that run, once they are so many."""
    found = [pod for pod in await client.list(PODS, TEAM) if pod["status"]["phase"] == "Running"]
    pods = {
        pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["spec"]["nodeName"], pod["metadata"]["resourceVersion"])
        for pod in found
    }
    return pods if len(pods) == count else {}


def test_every_component_becomes_ready_out_of_the_image(installed, pods):
    for owner in owners().values():
        with pods.run(owner) as probes:
            deadline = time.monotonic() + PATIENCE
            while not all(ready(address) for address in probes.values() if address):
                assert pods.all_run(), logs(pods)
                assert time.monotonic() < deadline, logs(pods)
                time.sleep(0.1)


def logs(pods):
    return "\n".join(f"--- {name}\n{path.read_text()}" for name, path in pods.logs.items())
