"""What a release has, on one cluster: the image's root file system, whose programs run as the manifests start them."""

import asyncio
import subprocess
import time
import urllib.request

import pytest
import yaml
from support import image_root
from support.image_pods import Pods
from support.kubelet import GIB, Kubelet
from support.packages import ROOT
from support.tree import machine

from kube.client import Client
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
            await add_nodes(client, Fleet(blocks=1, racks=1, hosts=2, gpus=8))

    with LocalCluster() as cluster:
        asyncio.run(nodes(cluster))
        yield cluster


@pytest.fixture(scope="module")
def kubectl(own):
    def run(*arguments):
        line = [own.kubectl, "--kubeconfig", own.kubeconfig, *arguments]
        done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def installed(own, kubectl, tmp_path_factory):
    file = tmp_path_factory.mktemp("install") / "all.yaml"
    file.write_text(yaml.safe_dump_all(render.objects(render.Options(agent=True))))
    kubectl("apply", "--server-side", "-f", str(file), "-f", "manifests/web/rbac.yaml")


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    if refused := image_root.refusal():
        pytest.skip(f"a root file system cannot be entered here: {refused}")
    return image_root.Image(tmp_path_factory.mktemp("image"))


def owners():
    made = [
        *render.objects(render.Options(agent=True)),
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


@pytest.mark.parametrize("name", owners())
def test_every_component_becomes_ready_out_of_the_image(installed, pods, name):
    with pods.run(owners()[name]) as probes:
        deadline = time.monotonic() + PATIENCE
        while not all(ready(address) for address in probes.values() if address):
            assert pods.all_run(), logs(pods)
            assert time.monotonic() < deadline, logs(pods)
            time.sleep(0.1)


def logs(pods):
    return "\n".join(f"--- {name}\n{path.read_text()}" for name, path in pods.logs.items())
