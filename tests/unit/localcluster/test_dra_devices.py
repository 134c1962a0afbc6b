"""What the stand-in for DRA drivers publishes of simulated machines, and how the engine reads it."""

import json
from collections import Counter

import pytest
from typer.testing import CliRunner

from cli.main import app
from engine.claims.model import Device
from engine.claims.read.asks import read_ask, text_of
from engine.claims.read.claims import read_class
from engine.claims.read.slices import read_slice
from engine.devices.compute_domains import CHANNELS, CLIQUE, DRIVER, LABEL, domains_of
from localcluster import Fleet
from localcluster.dra.devices import GPU_DRIVER, NIC_DRIVER, NUMA_NODE, PCIE_ROOT
from localcluster.dra.domains import CHANNEL_CLASS, CLIQUE_LABEL, DOMAIN_DRIVER, DOMAIN_LABEL, channel_template
from localcluster.dra.driver import GPUS, PARTITIONS, SHARED, Driver, check_driver, parse_driver
from localcluster.dra.publish import same_slices
from localcluster.dra.slices import device_classes, pools, resource_slice
from localcluster.kubelets.specs import GPU, build, parse_machine, without_devices

EIGHT = "2 sockets / 8 NUMA / 64 cores / 8 GPUs / 8 NICs"


def published(text, machine=EIGHT, node="n"):
    """driver -> specs."""
    return pools(node, build(parse_machine(machine), node), parse_driver(text))


def devices(specs):
    return [one for spec in specs for one in spec.get("devices", ())]


def values(device):
    return {name: next(iter(one.values())) for name, one in device["attributes"].items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpus", Driver(GPUS)),
        ("tainted", Driver(GPUS, tainted=True)),
        ("partitions, tainted", Driver(PARTITIONS, tainted=True)),
        ("shared", Driver(SHARED)),
        ("gpus, channels", Driver(GPUS, channels=True)),
    ],
)
def test_a_driver_is_read_as_a_person_writes_it(text, expected):
    assert parse_driver(text) == expected


@pytest.mark.parametrize(
    ("text", "machine", "complaint"),
    [
        ("gpu", EIGHT, "'gpu': expected one of gpus, partitions, shared, tainted, channels"),
        ("gpus, shared", EIGHT, "gpus and shared contradict"),
        ("gpus", "", "only simulated machines"),
        ("gpus", "8 cores", "neither GPUs nor NICs"),
        ("partitions", "8 cores / 2 NICs", "no GPUs to be partitioned"),
        ("tainted", "8 cores / 2 NICs", "no GPUs to be tainted"),
        ("gpus", "8 wings", "expected a part of a machine"),
    ],
)
def test_what_cannot_be_published_is_refused_with_why(text, machine, complaint):
    with pytest.raises(ValueError, match=complaint):
        check_driver(text, machine)


def test_gpus_and_nics_tell_where_they_are():
    found = published("gpus")
    gpus, nics = devices(found[GPU_DRIVER]), devices(found[NIC_DRIVER])
    assert [one["name"] for one in gpus] == [f"gpu-{number}" for number in range(8)]
    assert [values(one)[NUMA_NODE] for one in gpus] == list(range(8))
    assert [values(one)[PCIE_ROOT] for one in gpus] == [values(one)[PCIE_ROOT] for one in nics]
    assert len({values(one)[PCIE_ROOT] for one in gpus}) == len({values(one)["uuid"] for one in gpus}) == 8
    assert values(gpus[0])["productName"] == "NVIDIA H100 80GB HBM3"
    assert values(nics[3])["dra.net/numaNode"] == values(nics[3])[NUMA_NODE] == 3


def test_uuids_are_those_of_the_machine_and_differ_between_machines():
    uuids = [values(one)["uuid"] for one in devices(published("gpus")[GPU_DRIVER])]
    assert uuids == [one.id for one in build(parse_machine(EIGHT), "n").devices[GPU]]
    assert not set(uuids) & {values(one)["uuid"] for one in devices(published("gpus", node="m")[GPU_DRIVER])}


def test_a_nic_whose_zone_has_no_gpu_left_has_a_root_of_its_own():
    found = published("gpus", "1 socket / 2 NUMA / 8 cores / 1 GPU / 4 NICs")
    (gpu,) = (values(one)[PCIE_ROOT] for one in devices(found[GPU_DRIVER]))
    nics = [values(one)[PCIE_ROOT] for one in devices(found[NIC_DRIVER])]
    assert nics[0] == gpu
    assert len(set(nics)) == 4


def test_partitions_share_what_their_gpu_has():
    specs = published("partitions")[GPU_DRIVER]
    sets = {one["name"]: one["counters"] for spec in specs for one in spec.get("sharedCounters", ())}
    assert len(sets) == 8
    for one in devices(specs):
        (use,) = one["consumesCounters"]
        assert use["counters"].keys() <= sets[use["counterSet"]].keys()
    of_first = [one for one in devices(specs) if one["name"].startswith("gpu-0-mig")]
    assert Counter(values(one)["profile"] for one in of_first) == Counter(
        {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}
    )


def test_the_last_gpu_is_tainted_with_its_partitions():
    for text in ("gpus, tainted", "partitions, tainted"):
        names = {one["name"].partition("-mig")[0] for one in devices(published(text)[GPU_DRIVER]) if "taints" in one}
        assert names == {"gpu-7"}


@pytest.mark.parametrize(
    ("text", "count", "sizes"),
    [
        ("gpus", 300, [128, 128, 44]),
        ("shared", 128, [128]),
        ("tainted", 65, [64, 1]),
        ("partitions", 9, [64, 64, 7]),
    ],
)
def test_a_slice_holds_what_the_api_server_takes(text, count, sizes):
    specs = published(text, f"1 socket / 1 NUMA / 8 cores / {count} GPUs")[GPU_DRIVER]
    assert [len(spec["devices"]) for spec in specs if "devices" in spec] == sizes
    assert all(len(spec.get("sharedCounters", ())) <= 8 for spec in specs)
    assert {spec["pool"]["resourceSliceCount"] for spec in specs} == {len(specs)}
    names = [one["name"] for one in devices(specs)]
    assert len(names) == len(set(names))
    made = [resource_slice(spec, number, 1)["metadata"]["name"] for number, spec in enumerate(specs)]
    assert made == sorted(set(made))


@pytest.mark.parametrize("text", ["gpus", "partitions", "shared", "partitions, tainted", "gpus, channels"])
def test_the_engine_reads_what_is_published(text):
    for specs in published(text).values():
        for number, spec in enumerate(specs):
            read = read_slice(resource_slice(spec, number, 3))
            assert (read.generation, read.slices, len(read.devices)) == (3, len(specs), len(spec.get("devices", ())))
            assert all(isinstance(one, Device) for one in read.devices)


def test_each_machine_has_one_channel_and_a_rack_is_a_clique():
    assert published("gpus")[DOMAIN_DRIVER] == []
    names = [one["name"] for one in devices(published("gpus, channels")[DOMAIN_DRIVER])]
    assert names == ["channel-0", "daemon-0"]
    fleet = Fleet(blocks=2, racks=2, hosts=2, machine=EIGHT, dra="gpus, channels")
    cliques = [one["metadata"]["labels"][CLIQUE_LABEL] for one in fleet.objects()]
    assert sorted(Counter(cliques).values()) == [2, 2, 2, 2]
    assert all(len(one) <= 63 for one in cliques)
    plain = Fleet(blocks=1, racks=1, hosts=1, machine=EIGHT, dra="gpus")
    assert all(CLIQUE_LABEL not in one["metadata"]["labels"] for one in plain.objects())


def test_its_claims_and_labels_are_those_that_the_engine_reads():
    spec = channel_template("a", "uid-a")["spec"]["spec"]
    assert domains_of(read_ask([("channel", "a", text_of(spec))])) == ("uid-a",)
    assert (DOMAIN_DRIVER, DOMAIN_LABEL, CLIQUE_LABEL, CHANNEL_CLASS) == (DRIVER, LABEL, CLIQUE, CHANNELS)


def test_classes_come_with_and_without_extended_resources():
    classes = [read_class(one) for one in device_classes()]
    assert {one.name for one in classes} >= {"gpu.nvidia.com", "mig.nvidia.com", "dranet"}
    resources = {one["spec"].get("extendedResourceName") for one in device_classes()}
    assert resources == {None, "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"}


def test_slices_that_say_the_same_are_left_alone():
    specs = published("tainted")[GPU_DRIVER]
    there = json.loads(json.dumps([resource_slice(spec, number, 4) for number, spec in enumerate(specs)]))
    there[0]["spec"]["devices"][7]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    assert same_slices(specs, there)
    assert not same_slices(published("gpus")[GPU_DRIVER], there)
    assert not same_slices([], there)
    assert same_slices([], [])
    two = published("partitions")[GPU_DRIVER][:2]
    assert same_slices(two, [resource_slice(spec, number, 4) for number, spec in enumerate(two)])
    assert not same_slices(two, [resource_slice(spec, number, 4 + number) for number, spec in enumerate(two)])


def test_a_node_whose_devices_are_published_offers_none_itself():
    (node,) = Fleet(blocks=1, racks=1, hosts=1, machine=EIGHT, dra="gpus").objects()
    (plain,) = Fleet(blocks=1, racks=1, hosts=1, machine=EIGHT).objects()
    assert GPU in plain["status"]["capacity"]
    assert not {name for name in node["status"]["capacity"] if name.startswith("nvidia.com/")}
    assert node["status"]["capacity"]["memory"] == plain["status"]["capacity"]["memory"]
    assert node["metadata"]["annotations"]["topogate.dev/machine"] == "2 sockets / 8 NUMA / 64 cores"
    assert without_devices("8 cores, 2 NICs, 64Gi") == "8 cores / 64Gi"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--dra", "gpus"], "give --machine too"),
        (["--dra", "mig", "--machine", EIGHT], "--dra: 'mig': expected one of"),
        (["--dra", "gpus", "--machine", "8 cores"], "neither GPUs nor NICs"),
    ],
)
def test_the_command_says_what_is_wrong_before_anything_is_made(options, complaint):
    result = CliRunner().invoke(app, ["local", "nodes", "--name", "none-of-that-name", *options])
    assert result.exit_code == 1
    assert complaint in " ".join(str(result.exception or result.output).split())
