"""A described machine as files, the kubelet's configuration, and whether the system lets a kubelet run."""

import subprocess
import sys

import pytest
import yaml

from agent.kubelet import checkpoints
from agent.machine import sysfs
from agent.machine.cpuset import render
from localcluster.kubelets.hardware import cpu_list
from localcluster.kubelets.specs import build, parse_machine
from localcluster.real import enter, machine
from localcluster.real.configuration import arguments, configuration
from localcluster.real.layout import RealNode

MACHINES = (
    "2 sockets / 8 NUMA / 64 cores / 8 GPUs",
    "1 NUMA / 4 cores / 1 thread / 16Gi",
    "2 NUMA / 40 cores / 4 NICs",
)


@pytest.mark.parametrize("text", MACHINES)
def test_an_agent_reads_the_machine_that_was_described(text, tmp_path):
    hardware = build(parse_machine(text), "n")
    machine.write(hardware, tmp_path / "sys", tmp_path / "proc")
    machine.write(hardware, tmp_path / "sys", tmp_path / "proc")  # again, as with each start
    found = sysfs.read(tmp_path / "sys", tmp_path / "proc")
    assert found.problems == ()
    assert [(zone.id, render(zone.cpus), zone.memory, tuple(zone.distances.values())) for zone in found.zones] == [
        (zone.id, cpu_list(cpus), zone.memory, zone.distances)
        for zone, cpus in zip(hardware.zones, hardware.zone_cpus, strict=True)
    ]
    assert [(core.cpus, core.zone, core.socket, core.l3) for core in found.cores] == [
        (core.cpus, zone.id, zone.socket, zone.id) for zone in hardware.zones for core in zone.cores
    ]


def test_masks_are_words_of_32_bits():
    assert [machine._mask(members) for members in (0, 1, 1 << 31, 1 << 32, 0xF << 30)] == [
        "00000000",
        "00000001",
        "80000000",
        "00000001,00000000",
        "00000003,c0000000",
    ]


def test_what_a_kubelet_is_told(tmp_path):
    node = RealNode(
        name="n",
        machine=MACHINES[0],
        kubelet="single-numa-node, pod, full-pcpus-only, prefer-closest-numa-nodes",
        pods=17,
        labels={"a": "b"},
        taints=({"key": "k", "effect": "NoSchedule"},),
    )
    told = configuration(node)
    assert told["reservedMemory"] == [{"numaNode": 0, "limits": {"memory": str(1 << 30)}}]
    assert told["systemReserved"] == {"memory": str(1 << 30)}
    assert (told["maxPods"], told["registerWithTaints"]) == (17, [{"key": "k", "effect": "NoSchedule"}])
    assert "--node-labels=a=b" in arguments(node)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(told))
    read = checkpoints.read_config(tmp_path / "config.yaml")
    assert (read.topology_manager_policy, read.topology_manager_scope) == ("single-numa-node", "pod")
    assert (read.cpu_manager_policy_options, read.reserved_system_cpus) == ({"full-pcpus-only": "true"}, "0,64")
    plain = configuration(RealNode(name="n", machine=MACHINES[1], kubelet="none, no-static-cpu, no-static-memory"))
    assert not {"cpuManagerPolicy", "memoryManagerPolicy", "reservedMemory"} & plain.keys()


def test_a_system_without_user_namespaces_is_told_with_its_reason():
    """A user namespace has a limit of its own, so this one changes nothing of the host."""
    limit = "echo 0 > /proc/sys/user/max_user_namespaces"
    check = f"{limit} && exec '{sys.executable}' -I -S '{enter.__file__}' --check"
    done = subprocess.run(["unshare", "-Ur", "sh", "-c", check], capture_output=True, text=True, check=False)
    if done.stderr.startswith("unshare: "):
        pytest.skip(f"this system has none itself: {done.stderr.strip()}")
    assert done.returncode == 1
    assert done.stderr.startswith("unshare(CLONE_NEWUSER | CLONE_NEWNS): ")
    assert "see the sysctl user.max_user_namespaces" in done.stderr
