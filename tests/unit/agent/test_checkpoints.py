import shutil

import pytest
from support.tree import DATA

from agent import copies
from agent.kubelet import checkpoints
from agent.kubelet.checkpoints import CheckpointBlock, Unreadable

UID = "0c7c1f52-0000-4000-8000-000000000001"


@pytest.fixture
def folder(tmp_path):
    """The files as kubelet v1.36.3 writes them."""
    return shutil.copytree(DATA / "kubelet", tmp_path / "kubelet")


def test_the_managers_files(folder):
    cpu = checkpoints.read_cpu(folder)
    assert cpu.policy == "static"
    assert cpu.default == {0, *range(4, 128)}
    assert cpu.entries == {UID: {"setup": {1}, "main": {1, 2, 3}}}
    memory = checkpoints.read_memory(folder)
    assert memory.policy == "Static"
    assert list(memory.zones) == [0, 2]
    assert memory.zones[0].cells == (0, 2)
    assert memory.zones[0].memory_map["memory"].free == 64_194_994_176
    assert memory.entries == {UID: {"main": (CheckpointBlock((0, 2), "memory", 2_147_483_648),)}}
    devices = checkpoints.read_devices(folder)
    (entry,) = devices.entries
    assert (entry.pod_uid, entry.container_name, entry.resource_name) == (UID, "main", "nvidia.com/gpu")
    assert entry.device_ids == {1: ("GPU-a",), -1: ("GPU-b",)}
    assert devices.registered == {"nvidia.com/gpu": ("GPU-a", "GPU-c")}


def test_managers_that_are_off(folder):
    (folder / copies.CPU_STATE).write_text('{"policyName":"none","defaultCpuSet":"","checksum":1}')
    (folder / copies.MEMORY_STATE).write_text('{"policyName":"None","machineState":{},"checksum":1}')
    (folder / copies.DEVICE_STATE).write_text(
        '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"x.y/gone":null}},"Checksum":1}'
    )
    assert checkpoints.read_cpu(folder).entries == {}
    assert checkpoints.read_memory(folder).zones == {}
    devices = checkpoints.read_devices(folder)
    assert (devices.entries, devices.registered) == ((), {"x.y/gone": ()})


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (copies.CPU_STATE, "", "truncated"),
        (copies.CPU_STATE, '{"policyName":"static","defaultCpuSet":"0-x"}', "is no CPU list"),
        (copies.CPU_STATE, '{"policyName":"static","entries":{"u":["1"]}}', "Expected `object`"),
        (copies.MEMORY_STATE, '{"policyName":"Static","machineState":{"a":{}}}', "invalid literal"),
        (copies.DEVICE_STATE, '{"Checksum":1}', "missing required field `Data`"),
    ],
)
def test_a_broken_file_is_named(folder, name, text, why):
    (folder / name).write_text(text)
    read = {
        copies.CPU_STATE: checkpoints.read_cpu,
        copies.MEMORY_STATE: checkpoints.read_memory,
        copies.DEVICE_STATE: checkpoints.read_devices,
    }[name]
    with pytest.raises(Unreadable, match=why) as error:
        read(folder)
    assert name in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(Unreadable, match=r"cpu_manager_state: No such file"):
        checkpoints.read_cpu(tmp_path)


def test_configuration(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncpuManagerPolicy: static\n"
        "topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod\nreservedSystemCPUs: 0,64\n"
        "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: 'true'}\nsystemReserved: {memory: 1Gi}\n"
    )
    found = checkpoints.read_config(path)
    assert (found.topology_manager_policy, found.topology_manager_scope) == ("single-numa-node", "pod")
    assert found.topology_manager_policy_options == {"prefer-closest-numa-nodes": "true"}
    assert found.reserved_system_cpus == "0,64"
    assert found.memory_manager_policy == "None"
    path.write_text('{"kind": "KubeletConfiguration"}')  # JSON, and all defaults
    assert checkpoints.read_config(path) == checkpoints.Config()
    for text in ("topologyManagerPolicy: strange", "a: [", "just text"):
        path.write_text(text)
        with pytest.raises(Unreadable, match=r"config\.yaml"):
            checkpoints.read_config(path)
