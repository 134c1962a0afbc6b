from dataclasses import replace

import pytest

from localcluster.kubelets.hardware import PlayedSettings, cpu_list, parse_cpu_list
from localcluster.kubelets.pods import from_api, quantity
from localcluster.kubelets.specs import GPU, NIC, MachineSpec, build, capacity, parse_kubelet, parse_machine

EIGHT = "2 sockets / 8 NUMA / 64 cores / 8 GPUs"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (EIGHT, MachineSpec(sockets=2, zones=8, cores=64, gpus=8, memory=1 << 40)),
        ("2 NUMA / 128 cores / 8 GPUs", MachineSpec(sockets=2, zones=2, cores=128, gpus=8, memory=2 << 40)),
        (
            "1 socket, 4 NUMA zones, 16 cores, 1 thread, 4 NICs, 64Gi memory",
            MachineSpec(sockets=1, zones=4, cores=16, threads=1, nics=4, memory=64 << 30),
        ),
        ("8 cores", MachineSpec(sockets=1, zones=1, cores=8, memory=128 << 30)),
    ],
)
def test_a_machine_is_read_as_a_person_writes_it(text, expected):
    assert parse_machine(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("2 sockets / 8 NUMA", "expected a number of cores"),
        ("8 cores / 3 wings", "'3 wings': expected a part of a machine"),
        ("8 cores / 16 cores", "says cores a second time"),
        ("8 cores / 3 NUMA", "cannot be shared evenly"),
        ("2 sockets / 3 NUMA / 6 cores", "cannot be shared evenly by 2 sockets"),
        ("64 cores / 16 NUMA", "takes at most 8"),
        ("0 cores", "at least one"),
        ("8 cores / 1Gi", "at least 2 GiB"),
        ("99999 cores", "at most 4096"),
    ],
)
def test_what_is_no_machine_is_refused_with_what_to_write(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_machine(text)


def test_a_kubelet_is_read_as_a_person_writes_it():
    assert parse_kubelet("") == PlayedSettings()
    assert parse_kubelet(
        "single-numa-node, pod scope, full-pcpus-only, prefer-closest-numa-nodes, no-static-memory"
    ) == (
        PlayedSettings(
            "single-numa-node",
            "pod",
            static_memory=False,
            cpu_options=frozenset({"full-pcpus-only"}),
            topology_options=frozenset({"prefer-closest-numa-nodes"}),
        )
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("strict", "'strict': expected one of"),
        ("restricted, none", "restricted and none contradict"),
        ("single-numa-node, align-by-socket", "cannot be used with single-numa-node"),
        ("distribute-cpus-across-cores, full-pcpus-only", "cannot be used with full-pcpus-only"),
        ("distribute-cpus-across-numa, prefer-align-cpus-by-uncorecache", "cannot be used with distribute"),
    ],
)
def test_what_no_kubelet_starts_with_is_refused(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_kubelet(text)


def test_a_machine_is_built_as_linux_would_show_it():
    hardware = build(replace(parse_machine(EIGHT), nics=4), "n1")
    assert [cpu_list(cpus) for cpus in hardware.zone_cpus[:2]] == ["0-7,64-71", "8-15,72-79"]
    assert [zone.socket for zone in hardware.zones] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert hardware.zones[1].distances == (12, 10, 12, 12, 32, 32, 32, 32)
    assert [device.zones for device in hardware.devices[GPU]] == [(i,) for i in range(8)]
    assert [device.zones for device in hardware.devices[NIC]] == [(0,), (2,), (4,), (6,)]
    other = {device.id for device in build(parse_machine(EIGHT), "n2").devices[GPU]}
    assert not other & {device.id for device in hardware.devices[GPU]}
    assert capacity(hardware) == (
        {"cpu": "128", "memory": str(1 << 40), GPU: "8", NIC: "4"},
        {"cpu": "126", "memory": str((1 << 40) - (1 << 30)), GPU: "8", NIC: "4"},
    )


@pytest.mark.parametrize("text", ["", "0", "0-3", "0-3,8,10-11"])
def test_cpu_lists_are_written_as_they_are_read(text):
    assert cpu_list(parse_cpu_list(text)) == text


@pytest.mark.parametrize(("text", "number"), [("500m", 0.5), ("8Gi", 8 << 30), ("1e3", 1000), ("2", 2), ("1.5k", 1500)])
def test_quantities(text, number):
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "8Q", "8KiB"])
def test_what_is_no_quantity(text):
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity(text)


def test_a_pod_is_read_as_the_api_server_has_it():
    def container(name, **more):
        return {"name": name, "resources": {"limits": {"cpu": "2", "memory": "1Gi", GPU: "1"}}, **more}

    spec = {
        "initContainers": [container("first"), container("side", restartPolicy="Always")],
        "containers": [container("main")],
    }
    pod = from_api({"metadata": {"uid": "u"}, "spec": spec})
    assert [(c.name, c.kind) for c in pod.containers] == [("first", "init"), ("side", "sidecar"), ("main", "app")]
    assert pod.qos == "Guaranteed"  # a limit alone is a request too
    assert pod.pins
    assert pod.peak({"cpu": 2} for _ in pod.containers) == {"cpu": 4}
    whole = {**spec, "resources": {"limits": {"cpu": "8"}}}
    assert not from_api({"metadata": {"uid": "u"}, "spec": whole}).pins
