import pytest

from agent import checkpoints
from agent.checkpoints import Block, Unreadable

# Written by kubelets; checksums left as they were.
CPU = (
    '{"policyName":"static","defaultCpuSet":"0,4-127","entries":{"0c7c1f52":{"init":"1","main":"1-3"}},"checksum":2547}'
)
MEMORY = (
    '{"policyName":"Static","machineState":{"0":{"numberOfAssignments":2,"memoryMap":{"hugepages-1Gi":{"total":0,'
    '"systemReserved":0,"allocatable":0,"reserved":0,"free":0},"memory":{"total":67416219648,"systemReserved":1073741824,'
    '"allocatable":66342477824,"reserved":2147483648,"free":64194994176}},"cells":[0,2]},"2":{"numberOfAssignments":2,'
    '"memoryMap":{"memory":{"total":100,"systemReserved":0,"allocatable":100,"reserved":0,"free":100}},"cells":[0,2]}},'
    '"entries":{"0c7c1f52":{"main":[{"numaAffinity":[0,2],"type":"memory","size":2147483648}]}},"checksum":1}'
)
DEVICES = (
    '{"Data":{"PodDeviceEntries":[{"PodUID":"0c7c1f52","ContainerName":"main","ResourceName":"nvidia.com/gpu",'
    '"DeviceIDs":{"1":["GPU-a"],"-1":["GPU-b"]},"AllocResp":"CkcK"}],'
    '"RegisteredDevices":{"nvidia.com/gpu":["GPU-a","GPU-c"],"x.y/gone":null}},"Checksum":4242}'
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "device-plugins").mkdir()
    for name, text in (
        (checkpoints.CPU_STATE, CPU),
        (checkpoints.MEMORY_STATE, MEMORY),
        (checkpoints.DEVICE_STATE, DEVICES),
    ):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_managers_files(folder):
    cpu = checkpoints.read_cpu(folder)
    assert cpu.policy == "static"
    assert cpu.default == {0, *range(4, 128)}
    assert cpu.entries == {"0c7c1f52": {"init": {1}, "main": {1, 2, 3}}}
    memory = checkpoints.read_memory(folder)
    assert list(memory.zones) == [0, 2]
    assert memory.zones[0].cells == (0, 2)
    assert memory.zones[0].memory_map["memory"].free == 64_194_994_176
    assert memory.entries == {"0c7c1f52": {"main": (Block((0, 2), "memory", 2_147_483_648),)}}
    devices = checkpoints.read_devices(folder)
    (entry,) = devices.entries
    assert (entry.pod_uid, entry.container_name, entry.resource_name) == ("0c7c1f52", "main", "nvidia.com/gpu")
    assert entry.device_ids == {1: ("GPU-a",), -1: ("GPU-b",)}
    assert devices.registered == {"nvidia.com/gpu": ("GPU-a", "GPU-c"), "x.y/gone": ()}


def test_managers_that_are_off(folder):
    (folder / checkpoints.CPU_STATE).write_text('{"policyName":"none","defaultCpuSet":"","checksum":1}')
    (folder / checkpoints.MEMORY_STATE).write_text('{"policyName":"None","machineState":{},"checksum":1}')
    (folder / checkpoints.DEVICE_STATE).write_text(
        '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}'
    )
    assert checkpoints.read_cpu(folder).entries == {}
    assert checkpoints.read_memory(folder).zones == {}
    assert checkpoints.read_devices(folder).entries == ()


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (checkpoints.CPU_STATE, "", "truncated"),
        (checkpoints.CPU_STATE, '{"policyName":"static","defaultCpuSet":"0-x"}', "is no CPU list"),
        (checkpoints.CPU_STATE, '{"policyName":"static","entries":{"u":["1"]}}', "Expected `object`"),
        (checkpoints.MEMORY_STATE, '{"policyName":"Static","machineState":{"a":{}}}', "invalid literal"),
        (checkpoints.DEVICE_STATE, '{"Checksum":1}', "missing required field `Data`"),
    ],
)
def test_a_broken_file_is_named(folder, name, text, why):
    (folder / name).write_text(text)
    read = {
        checkpoints.CPU_STATE: checkpoints.read_cpu,
        checkpoints.MEMORY_STATE: checkpoints.read_memory,
        checkpoints.DEVICE_STATE: checkpoints.read_devices,
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
