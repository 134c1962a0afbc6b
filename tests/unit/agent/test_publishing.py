"""What is written: the graph, the status, the topology's spelling, and patches with nothing but what differs."""

import typing

import msgspec
import pytest
from support.nvml import recorded
from support.tree import machine

from agent import fingerprint, graph, status, zones
from agent.kubelet.checkpoints import Config, MemoryNode, MemoryTable
from agent.kubelet.held import KubeletDevice, KubeletPod, KubeletState, Owner
from agent.machine import gpus, sysfs
from agent.machine.gpus import Gpu, Gpus
from agent.machine.hardware import Hardware, MachineCore, MachineZone
from agent.publish import foreign, merge_patch
from crds.kinds import common
from crds.kinds import flex_topo as kind
from engine.reasons import Reason
from kube import topologies

GPU = "nvidia.com/gpu"
OWNER = Owner("u", "main")
PODS = [KubeletPod("u", "d", "train")]
MISSING = "no default"
OTHER_NAMES = {  # of shapes whose model has another one
    "Component": "HardwareNode",
    "Edge": "HardwareEdge",
    "MemoryUse": "MemoryState",
    "PluginDevice": "Device",
    "WholeFlexTopoStatus": "FlexTopoStatus",
}


@pytest.fixture
def dgx(tmp_path):
    root = machine("epyc-dgx", tmp_path)
    hardware = sysfs.read(root, root)
    return hardware, gpus.read(recorded("dgx-a100"), hardware)


@pytest.fixture
def xeon(tmp_path):
    root = machine("xeon-snc", tmp_path)
    return sysfs.read(root, root)


def edges(spec, kind):
    return [(edge.source, edge.target, edge.attributes) for edge in spec.edges if edge.type == kind]


def components(spec):
    return {node.id: node for node in spec.nodes}


# --- the graph -------------------------------------------------------------------------------------------------------


def test_the_graph_of_a_dgx(dgx):
    spec = graph.spec(*dgx, 8)
    found = components(spec)
    assert len(found) == len(spec.nodes)  # ids are unique
    assert found["numa-3"].attributes == {
        "cpus": "48-63,176-191",
        "memory": str(263_921_340 * 1024),
        "hugepages-1Gi": str(8 << 30),
        "hugepages-2Mi": str(1 << 30),
        "socket": "0",
    }
    assert found["group-48"].attributes == {"cpus": "48-55,176-183"}
    assert found["core-48"].attributes == {"cpus": "48,176", "l3": "6"}
    gpu = next(node for node in spec.nodes if node.type == "GPU")
    assert gpu.id == f"gpu-{gpu.attributes['uuid']}"
    assert gpu.attributes["memory"] == "81920"
    assert gpu.attributes["pciAddress"] == "0000:07:00.0"
    assert gpu.attributes["pcieRoot"] == "pci0000:00"
    assert found["nic-0000:0c:00.0"].attributes["pcieRoot"] == "pci0000:00"
    assert found["nic-0000:0c:00.0"].attributes["names"] == "ib0,mlx5_0"
    assert (gpu.id, "numa-3", None) in edges(spec, "nearby")
    assert ("numa-0", "numa-7", {"distance": "32"}) in edges(spec, "distance")
    assert len(edges(spec, "distance")) == 56
    assert len(edges(spec, "host")) == len(edges(spec, "localized")) == 16
    assert len(edges(spec, "contain")) == 128
    assert ("socket-1", "group-64", None) in edges(spec, "host")
    assert ("group-48", "numa-3", None) in edges(spec, "localized")
    assert {edge.source for edge in spec.edges} | {edge.target for edge in spec.edges} <= found.keys()


def test_equal_hardware_is_an_equal_graph(dgx, tmp_path):
    root = machine("epyc-dgx", tmp_path / "again")
    again = sysfs.read(root, root)
    assert graph.spec(again, gpus.read(recorded("dgx-a100"), again), 8) == graph.spec(*dgx, 8)


@pytest.mark.parametrize(
    ("size", "groups", "last"), [(8, 8, "8-15,72-79"), (6, 12, "12-15,76-79"), (100, 4, "0-15,64-79")]
)
def test_the_size_of_a_core_group_is_a_setting(xeon, size, groups, last):
    spec = graph.spec(xeon, Gpus(), size)
    assert spec.core_group_size == size
    made = [node.attributes["cpus"] for node in spec.nodes if node.type == "CPUCoreGroup"]
    assert len(made) == groups
    assert last in made  # the last one of a zone has what is left


def test_devices_that_no_driver_describes(xeon):
    """GPUs and XPUs from PCI alone, linked by PCIe alone; one whose zone nobody knows has no zone."""
    spec = graph.spec(xeon, Gpus(absent="no driver"), 8)
    kinds = {node.id: node.type for node in spec.nodes if "-0000:" in node.id}
    assert kinds == {
        "nic-0000:16:00.0": "NIC",
        "nic-0000:16:00.1": "NIC",
        "xpu-0000:3a:00.0": "XPU",
        "xpu-0000:3b:00.0": "XPU",
        "gpu-0000:5e:00.0": "GPU",
        "gpu-0000:b1:00.0": "GPU",
    }
    assert components(spec)["nic-0000:16:00.0"].attributes["virtualFunctions"] == "4"
    near = {source: target for source, target, _ in edges(spec, "nearby")}
    assert near["xpu-0000:3a:00.0"] == "numa-1"
    assert "gpu-0000:b1:00.0" not in near
    assert edges(spec, "link") == [
        ("gpu-0000:5e:00.0", "gpu-0000:b1:00.0", {"kind": "SYS", "pcie": "SYS"}),
        ("xpu-0000:3a:00.0", "xpu-0000:3b:00.0", {"kind": "PIX", "pcie": "PIX"}),
    ]


def test_cpus_that_are_numbered_round_the_sockets(tmp_path):
    """Their lists are long, and what is published of them is accepted all the same."""
    root = machine("interleaved", tmp_path)
    hardware = sysfs.read(root, root)
    assert [core.zone for core in hardware.cores] == [0] * 64 + [1] * 64
    spec = graph.spec(hardware, Gpus(), 8)
    found = components(spec)
    assert len(found["numa-1"].attributes["cpus"]) > 256
    assert found["group-1"].attributes["cpus"].startswith("1,3,5,7,9,11,13,15,129,131")
    assert found["core-3"].attributes == {"cpus": "3,131", "l3": "1"}
    assert edges(spec, "localized")[0] == ("group-0", "numa-0", None)
    held = small(cpus={OWNER: frozenset(range(1, 256, 2))}, default=frozenset(range(0, 256, 2)))
    made = status.status(held, hardware, Gpus(), PODS, 8)
    assert {each.id for each in made.components if each.status == "allocated"} == {
        *(f"core-{cpu}" for cpu in range(1, 128, 2)),
        *(f"group-{cpu}" for cpu in range(1, 128, 16)),
    }


def test_memory_without_cpus(tmp_path):
    root = machine("cxl-sparse", tmp_path)
    spec = graph.spec(sysfs.read(root, root), Gpus(), 8)
    found = components(spec)
    assert found["numa-4"].attributes == {"cpus": "", "memory": str(128 << 30)}
    assert ("numa-4", "numa-2", {"distance": "24"}) in edges(spec, "distance")
    assert "numa-1" not in found


# --- the status ------------------------------------------------------------------------------------------------------


def small(**changes):
    held = {"config": Config(), "static_cpu": True, "default": frozenset({0, 2, 3}), "reserved": frozenset({0})}
    return KubeletState(**held | changes)


HARDWARE = Hardware(
    (MachineZone(0, frozenset({0, 1}), 100), MachineZone(2, frozenset({2, 3}), 100)),
    (MachineCore((0,), 0), MachineCore((1,), 0), MachineCore((2,), 2), MachineCore((3,), 2)),
)


def test_components_that_are_not_free():
    uuids = ["a", "b", "c", "d"]
    found = Gpus(tuple(Gpu(name, name, i, fault="lost" if name == "c" else "") for i, name in enumerate(uuids)))
    held = small(
        cpus={OWNER: frozenset({1})},
        devices={
            GPU: {
                "a": KubeletDevice((0,), True, OWNER),
                "b": KubeletDevice((0,), False),
                "d::0": KubeletDevice((2,), True),
                "d::1": KubeletDevice((2,), True, OWNER),
            }
        },
    )
    made = status.status(held, HARDWARE, found, PODS, 1)
    assert {each.id: each.status for each in made.components} == {
        "group-0": "reserved",
        "core-0": "reserved",
        "group-1": "allocated",
        "core-1": "allocated",
        "gpu-a": "allocated",
        "gpu-b": "unhealthy",  # the plugin says so
        "gpu-c": "unhealthy",  # the driver says so
        "gpu-d": "allocated",  # a share of it
    }
    by_id = {each.id: each for each in made.components}
    assert by_id["core-1"].used_by is None  # its group says who
    assert [(user.namespace, user.pod) for user in by_id["group-1"].used_by] == [("d", "train")]
    assert [user.container for user in by_id["gpu-d"].used_by] == ["main"]


def test_a_manager_that_is_off_has_no_state():
    made = status.status(small(static_cpu=False), HARDWARE, Gpus(), [], 8)
    assert made.cpus is None
    assert made.memory is None
    assert made.kubelet.cpu_manager_policy == "none"
    assert made.kubelet.online_cpus == "0-3"


def test_ready_says_what_is_missing_and_what_is_only_to_be_known():
    assert status.ready(small(), HARDWARE, Gpus()) == (True, Reason.READY, "the kubelet's state is known exactly")
    notes = Hardware((MachineZone(0),), problems=("bus/pci/devices/x: gone",))
    holds, _, message = status.ready(small(), notes, Gpus(absent="no library", problems=("GPU 1: lost",)))
    assert holds
    assert message == (
        "the kubelet's state is known exactly; beside that: bus/pci/devices/x: gone; GPU 1: lost; "
        "no GPUs are described, for NVML is not there: no library"
    )
    broken = Hardware((MachineZone(0),), problems=("devices/system/cpu/cpu5: x",))
    assert status.ready(small(), broken, Gpus())[:2] == (False, Reason.STATE_INCOMPLETE)
    assert status.ready(small(missing=("a", "b")), HARDWARE, Gpus())[2] == "could not be read: a; b"


def test_a_condition_keeps_its_time_while_it_holds():
    now, later = "2026-11-21T12:00:00Z", "2026-11-21T13:00:00Z"
    first = status.condition((True, Reason.READY, "x"), None, now, 1)
    assert status.condition((True, Reason.READY, "y"), [first], later, 2).last_transition_time == now
    assert status.condition((False, Reason.STATE_INCOMPLETE, "y"), [first], later, 2).last_transition_time == later


# --- the topology ----------------------------------------------------------------------------------------------------


def test_the_topology_of_a_machine():
    table = MemoryTable(100, 10, 90, 30, 60)
    held = small(
        config=Config("single-numa-node", "pod", {"prefer-closest-numa-nodes": "true"}),
        static_memory=True,
        memory_zones={0: MemoryNode(1, {"memory": table, "hugepages-1Gi": MemoryTable()}, (0,)), 2: MemoryNode(0, {})},
        devices={
            GPU: {
                "a": KubeletDevice((0,), True, OWNER),
                "b": KubeletDevice((0, 2), True),
                "c": KubeletDevice((2,), False),
                "n": KubeletDevice(),
            }
        },
    )
    made = zones.topology("n1", held, HARDWARE, PODS)
    assert (made["metadata"], made["topologyPolicies"]) == ({"name": "n1"}, ["SingleNUMANodePodLevel"])
    assert {each["name"]: each["value"] for each in made["attributes"]} == {
        "topologyManagerPolicy": "single-numa-node",
        "topologyManagerScope": "pod",
        "topologyManagerOptionPreferClosestNumaNodes": "true",
        "nodeTopologyPodsFingerprint": fingerprint.of_pods([("d", "train")]),
        "nodeTopologyPodsFingerprintMethod": "all",
    }
    amounts = [
        {each["name"]: (each["capacity"], each["allocatable"], each["available"]) for each in zone["resources"]}
        for zone in made["zones"]
    ]
    assert [zone["name"] for zone in made["zones"]] == ["node-0", "node-2"]
    assert amounts == [
        {"cpu": ("2", "1", "0"), "memory": ("100", "90", "60"), GPU: ("2", "2", "1")},
        {"cpu": ("2", "2", "2"), GPU: ("2", "1", "1")},
    ]


@pytest.mark.parametrize(
    ("policy", "scope", "legacy"),
    [
        ("none", "container", "None"),
        ("best-effort", "container", "BestEffortContainerLevel"),
        ("restricted", "pod", "RestrictedPodLevel"),
        ("single-numa-node", "container", "SingleNUMANodeContainerLevel"),
    ],
)
def test_the_old_names_of_policies(policy, scope, legacy):
    held = small(config=Config(policy, scope), static_cpu=False)
    made = zones.topology("n", held, HARDWARE, [])
    assert made["topologyPolicies"] == [legacy]
    assert all(zone["resources"] == [] for zone in made["zones"])  # nothing is aligned


def test_the_fingerprint_is_the_published_one():
    assert fingerprint.of_pods([("default", "test-pod-0")]) == "pfp0v001fe53c4dbd2c5f4a0"
    pods = [("ns", f"pod-{i}") for i in range(20)]
    assert fingerprint.of_pods(pods) == fingerprint.of_pods(reversed(pods))
    assert fingerprint.of_pods(pods) != fingerprint.of_pods(pods[1:])


@pytest.mark.parametrize(
    ("text", "seed", "expected"),
    [
        (b"", 0, 0xEF46DB3751D8E999),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1),
        (b"xxhash", 20141025, 0xB559B98D844E0635),
    ],
)
def test_xxh64(text, seed, expected):
    assert fingerprint.xxh64(text, seed) == expected


# --- the shapes ------------------------------------------------------------------------------------------------------


def shapes(struct):
    """A shape, and those that its fields are made of."""
    yield struct
    for field in msgspec.structs.fields(struct):
        for part in flattened(field.type):
            if isinstance(part, type) and issubclass(part, msgspec.Struct):
                yield from shapes(part)


def flattened(annotation):
    yield annotation
    for part in typing.get_args(annotation):
        yield from flattened(part)


@pytest.mark.parametrize(
    "struct", sorted({*shapes(topologies.FlexTopoSpec), *shapes(topologies.WholeFlexTopoStatus)}, key=str)
)
def test_the_shapes_are_those_of_the_kind(struct):
    """All fields of the models that the kind is made of, with their defaults, and no others."""
    model = getattr(kind, OTHER_NAMES.get(struct.__name__, struct.__name__), None) or common.Condition

    def default(field):
        return MISSING if field.is_required() else field.default

    wanted = {field.alias: default(field) for field in model.model_fields.values()}
    made = {field.encode_name: field.default for field in msgspec.structs.fields(struct)}
    if model is common.Condition:  # `kube.objects` reads anybody's conditions; the agent writes whole ones
        assert made.keys() == wanted.keys()
    else:
        assert {name: MISSING if value is msgspec.NODEFAULT else value for name, value in made.items()} == wanted
        # Read though it is missing, and written whatever it is.
        required = {name for name, value in wanted.items() if value is MISSING}
        assert msgspec.to_builtins(struct()).keys() == msgspec.json.decode(msgspec.json.encode(struct())).keys()
        assert msgspec.to_builtins(struct()).keys() == required


# --- patches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1, "b": 2}, {"a": 3}, {"a": 3, "b": None}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, {"a": {"c": None}}),
        ({"a": [1, 2]}, {"a": [2, 1]}, {"a": [2, 1]}),
        ({"a": {"b": 1}}, {"a": 1}, {"a": 1}),
        ({}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_a_patch_has_what_differs(before, after, expected):
    assert merge_patch(before, after) == expected


@pytest.mark.parametrize(
    ("managers", "theirs"),
    [
        ([("topogate-agent", "f:zones")], False),
        ([("topogate-agent", "f:zones"), ("kubectl-label", "f:metadata")], False),
        ([("nfd-master", "f:zones")], True),
        ([("topogate-agent", "f:zones"), ("nfd-master", "f:zones")], True),
        ([], True),  # who writes it is not known: it is not ours
    ],
)
def test_whose_topology_it_is(managers, theirs):
    fields = [{"manager": manager, "fieldsV1": {field: {}}} for manager, field in managers]
    assert foreign({"metadata": {"managedFields": fields}}) is theirs
