"""The podresources client against a real gRPC server on a Unix socket."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.kubelet import GIB, Kubelet
from support.tree import DATA

from agent import podresources
from agent.podresources import client as api
from agent.podresources.client import GrantedMemory, KubeletClient, Unavailable

ROOT = Path(__file__).parents[3]
DEVICES = {"nvidia.com/gpu": {"a": (0,), "b": (2,)}, "x.y/two": {"t": (0, 2)}, "x.y/none": {"n": ()}}


@pytest.fixture
def kubelet(tmp_path):
    return Kubelet(tmp_path, "0-7", {0: 8 * GIB, 2: 8 * GIB}, devices=DEVICES)


@pytest.fixture
def client(kubelet):
    made = KubeletClient(kubelet.socket, timeout=5)
    yield made
    made.close()


def test_both_calls(kubelet, client):
    kubelet.hold("u", namespace="d", pod="p", cpus="1-2", memory=(("memory", (0, 2), GIB),), devices={"x.y/two": ["t"]})
    kubelet.hold("u", "setup", namespace="d", pod="p", cpus="3", init=True)
    kubelet.sick.add("b")
    with kubelet.serving():
        answer = client.read()
    assert answer.allocatable.cpus == frozenset(range(1, 8))
    assert answer.allocatable.memory == (GrantedMemory("memory", 7 * GIB, (0,)), GrantedMemory("memory", 7 * GIB, (2,)))
    assert answer.allocatable.devices == {
        "nvidia.com/gpu": {"a": (0,)},  # healthy ones alone
        "x.y/none": {"n": ()},
        "x.y/two": {"t": (0, 2)},  # one device, though it comes once for each zone
    }
    (container,) = answer.pods["d", "p"].values()  # ordinary init containers are not listed
    assert container.cpus == {1, 2}
    assert container.memory == (GrantedMemory("memory", GIB, (0, 2)),)
    assert container.devices == {"x.y/two": {"t": (0, 2)}}


def test_no_kubelet_is_said(client):
    with pytest.raises(Unavailable, match=r"kubelet\.sock: no such socket"):
        client.read()


def test_a_kubelet_that_restarts_is_met_again(kubelet, client):
    with kubelet.serving():
        client.read()
    kubelet.socket.touch()  # nobody listens
    with pytest.raises(Unavailable, match="List"):
        client.read()
    kubelet.socket.unlink()
    with kubelet.serving():
        assert client.read().allocatable.cpus


def test_large_answers(kubelet, client):
    """More than gRPC's default of 4 MiB, which a node with many devices can reach."""
    names = [f"{'d' * 200}-{i}" for i in range(30_000)]
    kubelet.devices = {"x.y/many": dict.fromkeys(names, (0,))}
    with kubelet.serving():
        assert len(client.read().allocatable.devices["x.y/many"]) == len(names)


def test_what_the_kubelets_own_server_sends():
    """Recorded from kubelet v1.36.3; it has fields that nobody reads here (dynamic resources)."""
    kubelet = DATA / "kubelet"
    listed = podresources.api_pb2.ListPodResourcesResponse.FromString((kubelet / "list.bin").read_bytes())
    given = podresources.api_pb2.AllocatableResourcesResponse.FromString((kubelet / "allocatable.bin").read_bytes())
    (pod,) = listed.pod_resources
    (container,) = pod.containers
    assert (pod.namespace, pod.name, container.name) == ("default", "train", "main")
    found = api.resources(container)
    assert found.cpus == {1, 2, 3}
    assert found.memory == (GrantedMemory("memory", 2 * GIB, (0, 2)),)
    assert found.devices == {"nvidia.com/gpu": {"GPU-a": (1,)}, "x.y/none": {"n": ()}, "x.y/two": {"t": (0, 2)}}
    assert api.resources(given).cpus == {1, 2, 3, 4, 5}


def test_the_committed_messages_are_those_of_the_proto_file(tmp_path):
    source = "agent/podresources/api.proto"
    out = (f"--python_out={tmp_path}", f"--pyi_out={tmp_path}")
    command = (sys.executable, "-m", "grpc_tools.protoc", "-I.", *out, source)
    subprocess.run(command, cwd=ROOT, check=True)
    for name in ("api_pb2.py", "api_pb2.pyi"):
        made = (tmp_path / "agent/podresources" / name).read_text()
        assert made == (ROOT / "agent/podresources" / name).read_text(), "run `make generate`"


def test_the_messages_are_the_kubelets():
    """Field numbers are the wire: those of k8s.io/kubelet/pkg/apis/podresources/v1."""
    fields = {
        message.name: {field.name: field.number for field in message.fields}
        for message in podresources.api_pb2.DESCRIPTOR.message_types_by_name.values()
    }
    assert fields["ContainerResources"] == {"name": 1, "devices": 2, "cpu_ids": 3, "memory": 4}
    assert fields["ContainerDevices"] == {"resource_name": 1, "device_ids": 2, "topology": 3}
    assert fields["ContainerMemory"] == {"memory_type": 1, "size": 2, "topology": 3}
    assert fields["AllocatableResourcesResponse"] == {"devices": 1, "cpu_ids": 2, "memory": 3}
    assert fields["PodResources"] == {"name": 1, "namespace": 2, "containers": 3}
    assert fields["NUMANode"] == {"ID": 1}
    assert api.MAX_MESSAGE == 16 * 1024 * 1024
